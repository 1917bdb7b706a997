// Breaks lines that a terminal has no room for, and draws one line over itself, as wide as the terminal.
#include "kernels/support/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

namespace outgrad::kernels {
namespace {

constexpr const char* kBlankLine = "\r\033[K";  // ECMA-48: back to the first column, and erased from there

// 0: the terminal does not say.
int told_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// Of each byte, and of the end, the column: a colour takes none, and a letter of UTF-8 one.
std::vector<int> columns_in(std::string_view text) {
  std::vector<int> columns;
  bool colour = false;
  int column = 0;
  for (const char c : text) {
    columns.push_back(column);
    colour = colour || c == '\033';
    column += !colour && (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    colour = colour && c != 'm';
  }
  columns.push_back(column);
  return columns;
}

// Where what is broken off a line goes on.
int hanging_column(std::string_view line, const std::vector<int>& at, int columns) {
  const std::size_t first = line.find_first_not_of(' ');
  constexpr int kBeyond = 4;
  int hanging = at[first] + kBeyond;
  for (std::size_t k = first + 2; k < line.size() && at[k] <= columns / 2; ++k)
    if (line[k] != ' ' && line[k - 1] == ' ' && line[k - 2] == ' ') hanging = at[k];
  return std::min(hanging, columns / 2);
}

struct Folder {
  std::string line;  // that has not ended
  bool keeps = false;
};

Folder& folder() {
  static Folder one;
  return one;
}

bool written(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno != EINTR) return false;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  return true;
}

// As fopencookie(3) wants it: 0 is a failure. A line that has not ended is written when it does, or at the
// end of the program.
ssize_t write_folded(void*, const char* data, std::size_t size) {
  std::string& line = folder().line;
  std::string text;
  for (const char c : std::string_view(data, size)) {
    if (c != '\n') {
      line += c;
      continue;
    }
    text += (folder().keeps ? line : folded(line, told_columns(STDOUT_FILENO))) + '\n';
    line.clear();
  }
  return written(text) ? static_cast<ssize_t>(size) : 0;
}

}  // namespace

std::string folded(const std::string& line, int columns) {
  std::vector<int> at = columns_in(line);
  const bool is_blank = line.find_first_not_of(' ') == line.npos;
  if (columns <= 0 || at.back() <= columns || is_blank || line.starts_with('|')) return line;
  const int hanging = hanging_column(line, at, columns);
  const std::size_t first = line.find_first_not_of(' '), most = static_cast<std::size_t>(hanging);
  std::string result, rest = line.substr(first - std::min(first, most));  // indented at most so far, too
  at = columns_in(rest);
  while (at.back() > columns) {
    const std::size_t begin = rest.find_first_not_of(' ');
    std::size_t end = rest.find(' ', begin), gap = 0;  // of a table's columns, rather than of a cell's words
    for (std::size_t next = end; next != rest.npos && at[next] <= columns; next = rest.find(' ', next + 1)) {
      end = next;
      if (rest[next - 1] != ' ' && rest[next + 1] == ' ' && at[next] > columns / 2) gap = next;
    }
    if (gap > 0) end = gap;
    const std::size_t behind = end == rest.npos ? end : rest.find_first_not_of(' ', end);
    if (behind == rest.npos) break;
    result += rest.substr(0, rest.find_last_not_of(' ', end) + 1) + '\n';
    rest = std::string(most, ' ') + rest.substr(behind);
    at = columns_in(rest);
  }
  return result + rest;
}

void fold_stdout() {
  if (!is_terminal(STDOUT_FILENO) || told_columns(STDOUT_FILENO) == 0) return;
  std::FILE* const folding = ::fopencookie(nullptr, "w", {nullptr, write_folded, nullptr, nullptr});
  if (folding == nullptr) return;
  std::setvbuf(folding, nullptr, _IOLBF, BUFSIZ);
  std::fflush(stdout);
  stdout = folding;
  std::atexit([] {
    std::fflush(stdout);
    written(folder().line);
  });
}

void keep_lines() { folder().keeps = true; }

bool is_terminal(int descriptor) { return ::isatty(descriptor) != 0; }

int columns_of(int descriptor) {
  constexpr int kUsual = 80;
  const int told = told_columns(descriptor);
  return told > 0 ? told : kUsual;
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
