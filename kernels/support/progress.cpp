// Draws one line over itself, as wide as the terminal.
#include "kernels/support/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <utility>

namespace outgrad::kernels {
namespace {

constexpr const char* kBlankLine = "\r\033[K";  // ECMA-48: back to the first column, and erased from there

}  // namespace

bool is_terminal(int descriptor) { return ::isatty(descriptor) != 0; }

int columns_of(int descriptor) {
  constexpr int kUsual = 80;
  winsize size{};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

bool takes_colour(int descriptor) {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return is_terminal(descriptor) && (refused == nullptr || *refused == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

std::string in_colour(Colour colour, const std::string& text) {
  return "\033[" + std::to_string(static_cast<int>(colour)) + "m" + text + "\033[0m";
}

ProgressLine::ProgressLine(bool wanted) : shown_(wanted && is_terminal(STDERR_FILENO)) {}

void ProgressLine::draw(const std::string& text) {
  if (!shown_) return;
  // A longer line would go on in the next, where nothing erases it.
  std::fprintf(stderr, "%s%.*s", kBlankLine, columns_of(STDERR_FILENO) - 1, text.c_str());
  drawn_ = true;
}

void ProgressLine::erase() {
  if (drawn_) std::fputs(kBlankLine, stderr);
  drawn_ = false;
}

JobLine::JobLine(const std::string& label, std::function<std::string()> state)
    : drawer_([label, state = std::move(state)](const std::stop_token& over) {
        ProgressLine line;
        if (!line.shown()) return;
        using Seconds = std::chrono::seconds;
        const auto start = std::chrono::steady_clock::now();
        std::mutex guard;
        std::condition_variable_any wake;
        std::unique_lock lock(guard);
        while (!wake.wait_for(lock, over, Seconds(1), [&] { return over.stop_requested(); })) {
          const auto passed = std::chrono::duration_cast<Seconds>(std::chrono::steady_clock::now() - start);
          line.draw(label + ": " + std::to_string(passed.count()) + " s: " + state());
        }
      }) {}

}  // namespace outgrad::kernels
