// Draws one line over itself, as wide as the terminal.
#include "kernels/support/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

namespace outgrad::kernels {
namespace {

constexpr const char* kBlankLine = "\r\033[K";  // ECMA-48: back to the first column, and erased from there

// Characters that a line of stderr's terminal has room for. A longer line would go on in the next, where
// nothing erases it.
int width() {
  constexpr int kUsual = 80;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (known ? size.ws_col : kUsual) - 1;
}

}  // namespace

ProgressLine::ProgressLine(bool wanted) : shown_(wanted && ::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::draw(const std::string& text) {
  if (!shown_) return;
  std::fprintf(stderr, "%s%.*s", kBlankLine, width(), text.c_str());
  drawn_ = true;
}

void ProgressLine::erase() {
  if (drawn_) std::fputs(kBlankLine, stderr);
  drawn_ = false;
}

}  // namespace outgrad::kernels
