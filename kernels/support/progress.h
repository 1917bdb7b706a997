// The line on a terminal that says how far a long job is.
#pragma once

#include <string>

namespace outgrad::kernels {

// On stderr, where that is a terminal; else nothing is drawn. One thread at a time.
class ProgressLine {
 public:
  explicit ProgressLine(bool wanted = true);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { erase(); }

  bool shown() const { return shown_; }
  // In place of what was drawn before, cut to the terminal's width.
  void draw(const std::string& text);
  // Before anything else is printed, and at the end.
  void erase();

 private:
  bool shown_, drawn_ = false;
};

}  // namespace outgrad::kernels
