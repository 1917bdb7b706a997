// A temporary folder, a script, one run of gnuplot.
#include "validation/report/plot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <string_view>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"

namespace outgrad::validation {

using kernels::EnvironmentError;
namespace fs = std::filesystem;

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (fs::temp_directory_path(error) / "outgrad-XXXXXX").string();
    if (error || !::mkdtemp(path_.data())) throw EnvironmentError(fmt::format("{}: no temporary folder: {}", path_, std::strerror(errno)));
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Colour {
  const char* name;
  int red, green, blue;  // as drawn, and on white paper
  const char* dark;      // the same role on a dark page
};
// Told apart by brightness too, so that they survive a grey printer and the common kinds of colour blindness.
constexpr std::array<Colour, 9> kColours{{{"blue", 31, 95, 168, "#79b8ff"},
                                          {"pale", 122, 166, 214, "#3d6ea8"},
                                          {"orange", 217, 130, 0, "#ffb14a"},
                                          {"red", 179, 38, 30, "#ff8a80"},
                                          {"green", 27, 127, 77, "#5fd08f"},
                                          {"violet", 118, 68, 163, "#c9a3f5"},
                                          {"grey", 89, 99, 110, "#a3adb8"},
                                          {"line", 224, 228, 232, "#30363d"},
                                          {"ink", 51, 51, 51, "#d5dbe1"}}};

std::string hex(const Colour& c) { return fmt::format("#{:02x}{:02x}{:02x}", c.red, c.green, c.blue); }

// The look of every plot; fonts are the page's.
std::string style() {
  std::string text;
  for (const Colour& c : kColours) text += fmt::format("{} = '{}'\n", c.name, hex(c));
  return text +
         "set encoding utf8\n"
         "set border 3 lc rgb grey lw 1\n"
         "set tics nomirror out scale 0.6 textcolor rgb ink\n"
         "set grid xtics ytics lc rgb line lt 1 lw 0.8\n"
         "set key outside bottom center horizontal samplen 1.5 width -1 textcolor rgb ink font ',10'\n"
         "set title textcolor rgb ink offset 0,-0.5\nset xlabel textcolor rgb ink offset 0,0.8\nset ylabel textcolor rgb ink offset 0.8,0\n"
         "set style fill solid 1.0 noborder\n";
}

void run_gnuplot(const TemporaryFolder& folder) {
  constexpr const char* kErrors = "errors";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.path().c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, kErrors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::array<std::string, 3> words{"gnuplot", "--default-settings", "script"};
  std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) throw EnvironmentError("gnuplot: not found; install the package gnuplot-nox");
  if (error != 0) throw EnvironmentError(fmt::format("gnuplot: cannot be started: {}", std::strerror(error)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw EnvironmentError(fmt::format("gnuplot: {}", std::strerror(errno)));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  throw EnvironmentError("gnuplot: failed: " + kernels::read_file(folder.file(kErrors)).substr(0, 400));
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) text.replace(at, what.size(), with);
  return text;
}

std::string escaped(const std::string& text) { return replaced(replaced(replaced(text, "&", "&amp;"), "<", "&lt;"), ">", "&gt;"); }

/// From `<svg` on: every id and every reference to one prefixed, colours by name, our title in place of gnuplot's.
std::string for_page(const std::string& svg, const std::string& prefix, const std::string& title) {
  const size_t begin = svg.find("<svg");
  if (begin == std::string::npos) throw EnvironmentError("gnuplot: wrote no SVG");
  std::string text = svg.substr(begin);
  text = std::regex_replace(text, std::regex("(\\bid=['\"])"), "$1" + prefix);
  text = std::regex_replace(text, std::regex("(href=['\"]#|url\\(#)"), "$1" + prefix);
  for (const Colour& c : kColours) {
    const std::string by_name = fmt::format("var(--plot-{})", c.name);
    text = replaced(text, fmt::format("rgb({},{},{})", c.red, c.green, c.blue), by_name);
    text = replaced(text, fmt::format("rgb({:3}, {:3}, {:3})", c.red, c.green, c.blue), by_name);
  }
  text = replaced(text, "color=\"black\"", "color=\"var(--plot-ink)\"");
  text = replaced(text, "fill=\"black\"", "fill=\"var(--plot-ink)\"");
  const size_t from = text.find("<title>"), end = text.find("</desc>");
  if (from == std::string::npos || end == std::string::npos) throw EnvironmentError("gnuplot: wrote an SVG without title");
  text.replace(from, end + std::strlen("</desc>") - from, fmt::format("<title id=\"{}title\">{}</title>", prefix, escaped(title)));
  return text.insert(std::strlen("<svg"), fmt::format(" role=\"img\" aria-labelledby=\"{}title\"", prefix));
}

}  // namespace

std::vector<std::string> draw(const std::vector<Plot>& plots) {
  if (plots.empty()) return {};
  const TemporaryFolder folder;
  std::string script;
  for (size_t i = 0; i < plots.size(); ++i) {
    const Plot& plot = plots[i];
    kernels::write_file(folder.file(fmt::format("{}.dat", i)), plot.data);
    script +=
        fmt::format("reset\nset terminal svg size {},{} dynamic enhanced font 'sans-serif,11'\nset output '{}.svg'\ndata = '{}.dat'\n",
                    plot.width, plot.height, i, i);
    script += style() + plot.commands + "\nunset output\n";
  }
  kernels::write_file(folder.file("script"), script);
  run_gnuplot(folder);
  std::vector<std::string> drawn;
  for (size_t i = 0; i < plots.size(); ++i)
    drawn.push_back(for_page(kernels::read_file(folder.file(fmt::format("{}.svg", i))), fmt::format("plot{}-", i), plots[i].title));
  return drawn;
}

std::string plain_name(const std::string& name) {
  std::string text = "\"";
  for (const char c : name)
    text += std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_+-.()^, ").find(c) != std::string_view::npos ? c : '?';
  return text + "\"";
}

std::string light_colours() {
  std::string text;
  for (const Colour& c : kColours) text += fmt::format("--plot-{}: {}; ", c.name, hex(c));
  return text;
}

std::string dark_colours() {
  std::string text;
  for (const Colour& c : kColours) text += fmt::format("--plot-{}: {}; ", c.name, c.dark);
  return text;
}

}  // namespace outgrad::validation
