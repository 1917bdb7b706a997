// What is shown on terminals alone: colour, lines that fit, and the line that says how far a long job is.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace outgrad::kernels {

// Whether the descriptor is a terminal, which readers rather than programs see.
bool is_terminal(int descriptor);
// Of that terminal; 80 where it is none or does not say.
int columns_of(int descriptor);
// Whether what goes there may have colour: on a terminal, unless NO_COLOR is set and not empty (no-color.org)
// or TERM is dumb.
bool takes_colour(int descriptor);
enum class Colour { kGood = 32, kBad = 31 };  // ECMA-48: green, red
std::string in_colour(Colour colour, const std::string& text);

// A line in as many as a terminal of this width needs: broken between words, which stay whole, the rest below
// the last column of a table that begins in the left half. Markdown's tables stay as they are.
std::string folded(const std::string& line, int columns);
// Folds what is printed on stdout from here on, where that is a terminal that says its width.
void fold_stdout();
// From here on lines are for programs, and stay as they are.
void keep_lines();

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

// Draws once a second while it lives, where stderr is a terminal: "label: 12 s: ", and what `state` says,
// which is called by another thread.
class JobLine {
 public:
  JobLine(const std::string& label, std::function<std::string()> state);

 private:
  std::jthread drawer_;
};

}  // namespace outgrad::kernels
