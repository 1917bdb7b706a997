// fork, setrlimit, pipe, wait4.
#include "validation/attack/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>

#include "kernels/support/errors.h"

namespace outgrad::validation::gate {
namespace {

constexpr size_t kMostErrors = size_t{1} << 16;

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

double own_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void set_limit(int resource, rlim_t soft) {
  rlimit limit{};
  getrlimit(resource, &limit);
  limit.rlim_cur = std::min(soft, limit.rlim_max);
  setrlimit(resource, &limit);
}

void forbid_core_dumps() { set_limit(RLIMIT_CORE, 0); }

std::uint64_t address_space() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (file) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Reads until the writers are gone or the clock is up; says whether it was. The clock counts the time spent waiting, and of each wait no more than was
// asked for: a job that was stopped and goes on has lost nothing.
template <class Take>
bool read_all(int descriptor, int clock_s, Take&& take) {
  using std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kWait(200);
  steady_clock::duration left = std::chrono::seconds(clock_s);
  char buffer[1 << 14];
  while (left.count() > 0) {
    pollfd waiting{descriptor, POLLIN, 0};
    const auto begin = steady_clock::now();
    if (poll(&waiting, 1, static_cast<int>(kWait.count())) < 0 && errno != EINTR) return false;
    left -= std::min<steady_clock::duration>(kWait, steady_clock::now() - begin);
    if (waiting.revents == 0) continue;
    const ssize_t got = read(descriptor, buffer, sizeof buffer);
    if (got == 0) return false;
    if (got > 0) take(std::string_view(buffer, static_cast<size_t>(got)));
  }
  return true;
}

Ending wait_for(pid_t child, bool clock_is_up) {
  if (clock_is_up) kill(child, SIGKILL);
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  Ending ending;
  ending.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending.hung = clock_is_up || ending.signal == SIGXCPU;
  return ending;
}

void make_pipe(int (&ends)[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) throw kernels::EnvironmentError(std::string("attack: pipe: ") + std::strerror(errno));
}

pid_t fork_or_throw() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw kernels::EnvironmentError(std::string("attack: fork: ") + std::strerror(errno));
  return child;
}

}  // namespace

Ending run_program(const std::vector<std::string>& words, const Limits& limits) {
  constexpr int kNotStarted = 127;
  int ends[2];
  make_pipe(ends);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork_or_throw();
  if (child == 0) {
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO), dup2(nothing, STDOUT_FILENO), dup2(ends[1], STDERR_FILENO);
    forbid_core_dumps();
    set_limit(RLIMIT_CPU, static_cast<rlim_t>(limits.cpu_s));
    set_limit(RLIMIT_AS, limits.memory_bytes);
    execvp(arguments[0], arguments.data());
    _exit(kNotStarted);
  }
  close(ends[1]);
  std::string errors;
  const bool late = read_all(ends[0], limits.clock_factor * limits.cpu_s, [&](std::string_view part) { errors += part.substr(0, kMostErrors - std::min(kMostErrors, errors.size())); });
  close(ends[0]);
  Ending ending = wait_for(child, late);
  ending.errors = std::move(errors);
  if (ending.status == kNotStarted && ending.errors.empty()) throw kernels::EnvironmentError(words.front() + ": cannot be started");
  return ending;
}

std::vector<std::string> run_guarded(size_t count, const std::function<std::string(size_t)>& body, const Limits& limits,
                                     const std::function<std::string(size_t, const Ending&)>& fallen) {
  std::vector<std::string> lines;
  while (lines.size() < count) {
    int ends[2];
    make_pipe(ends);
    const size_t first = lines.size();
    const pid_t child = fork_or_throw();
    if (child == 0) {
      close(ends[0]);
      forbid_core_dumps();
      set_limit(RLIMIT_AS, address_space() + limits.memory_bytes);
      for (size_t i = first; i < count; ++i) {
        set_limit(RLIMIT_CPU, static_cast<rlim_t>(own_cpu_s() + limits.cpu_s + 1));
        std::string line;
        try {
          line = body(i);
        } catch (const std::exception& error) {
          line = std::string("exception: ") + error.what();
        }
        for (char& c : line)
          if (c == '\n') c = ' ';
        line += '\n';
        for (size_t written = 0; written < line.size();) {
          const ssize_t wrote = write(ends[1], line.data() + written, line.size() - written);
          if (wrote <= 0) _exit(0);
          written += static_cast<size_t>(wrote);
        }
      }
      _exit(0);
    }
    close(ends[1]);
    std::string pending;
    const bool late = read_all(ends[0], static_cast<int>(static_cast<size_t>(limits.clock_factor * limits.cpu_s) * (count - first)), [&](std::string_view part) {
      pending += part;
      for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
        lines.push_back(pending.substr(0, end));
        pending.erase(0, end + 1);
      }
    });
    close(ends[0]);
    const Ending ending = wait_for(child, late);
    if (lines.size() < count) {
      const size_t at = lines.size();
      lines.push_back(fallen(at, ending));
    }
  }
  return lines;
}

ScratchFolder::ScratchFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "outgrad-attack-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw kernels::IoError(pattern, "create", errno);
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace outgrad::validation::gate
