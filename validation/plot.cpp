// A temporary folder, a script, one run of gnuplot.
#include "validation/plot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>

#include "kernels/host/errors.h"
#include "kernels/host/files.h"

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

// The look of every plot; fonts are the page's.
constexpr const char* kStyle =
    "set encoding utf8\n"
    "set border 3 lc rgb '#8c959f' lw 1\n"
    "set tics nomirror out scale 0.6 textcolor rgb '#333333'\n"
    "set grid xtics ytics lc rgb '#e4e7eb' lt 1 lw 0.8\n"
    "set key outside top right horizontal samplen 2 textcolor rgb '#333333'\n"
    "set style fill solid 1.0 noborder\n";

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

/// From `<svg` on, every id and every reference to one prefixed.
std::string for_page(const std::string& svg, const std::string& prefix) {
  const size_t begin = svg.find("<svg");
  if (begin == std::string::npos) throw EnvironmentError("gnuplot: wrote no SVG");
  std::string text = svg.substr(begin);
  text = std::regex_replace(text, std::regex("(\\bid=['\"])"), "$1" + prefix);
  return std::regex_replace(text, std::regex("(href=['\"]#|url\\(#)"), "$1" + prefix);
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
        fmt::format("reset\nset terminal svg size {},{} dynamic enhanced font 'sans-serif,12'\nset output '{}.svg'\ndata = '{}.dat'\n",
                    plot.width, plot.height, i, i);
    script += kStyle + plot.commands + "\nunset output\n";
  }
  kernels::write_file(folder.file("script"), script);
  run_gnuplot(folder);
  std::vector<std::string> drawn;
  for (size_t i = 0; i < plots.size(); ++i)
    drawn.push_back(for_page(kernels::read_file(folder.file(fmt::format("{}.svg", i))), fmt::format("plot{}-", i)));
  return drawn;
}

}  // namespace outgrad::validation
