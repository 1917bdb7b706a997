// Limits, and a line for each piece of work.
#include "tests/attack/process.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <system_error>

namespace outgrad::validation::gate {
namespace {

// Beyond what tells what is wrong, a mutant's compiler may say anything.
constexpr size_t kMostText = size_t{1} << 16;

double own_cpu_s() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::uint64_t address_space() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (file) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

kernels::Ending run_program(const std::vector<std::string>& words, const Limits& limits) {
  kernels::Launch launch{words};
  launch.out = launch.err = kernels::Launch::kCaptured;
  launch.limits = {
      {RLIMIT_CORE, 0}, {RLIMIT_CPU, static_cast<rlim_t>(limits.cpu_s)}, {RLIMIT_AS, limits.memory_bytes}};
  kernels::Ending ending = kernels::run(launch, limits.clock_factor * limits.cpu_s, kMostText);
  if (ending.status == kernels::Ending::kNotStarted && ending.text.empty())
    throw kernels::EnvironmentError(words.front() + ": cannot be started");
  return ending;
}

std::vector<std::string> run_guarded(
    size_t count, const std::function<std::string(size_t)>& body, const Limits& limits,
    const std::function<std::string(size_t, const kernels::Ending&)>& fallen) {
  std::vector<std::string> lines;
  while (lines.size() < count) {
    kernels::Pipe pipe;
    const size_t first = lines.size();
    const pid_t child = kernels::start_copy([&] {
      pipe.from.close();
      kernels::limit_resource(RLIMIT_CORE, 0);
      kernels::limit_resource(RLIMIT_AS, address_space() + limits.memory_bytes);
      for (size_t i = first; i < count; ++i) {
        kernels::limit_resource(RLIMIT_CPU, static_cast<rlim_t>(own_cpu_s() + limits.cpu_s + 1));
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
          const ssize_t wrote = write(pipe.to.get(), line.data() + written, line.size() - written);
          if (wrote <= 0) return 0;
          written += static_cast<size_t>(wrote);
        }
      }
      return 0;
    });
    pipe.to.close();
    std::string pending;
    const double clock_s =
        static_cast<double>(limits.clock_factor * limits.cpu_s) * static_cast<double>(count - first);
    const bool read = kernels::read_to_end(pipe.from, clock_s, [&](std::string_view part) {
      pending += part;
      for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
        lines.push_back(pending.substr(0, end));
        pending.erase(0, end + 1);
      }
    });
    if (!read) kill(child, SIGKILL);
    kernels::Ending ending = kernels::wait_for(child);
    ending.late |= !read;
    if (lines.size() < count) {
      const size_t at = lines.size();
      lines.push_back(fallen(at, ending));
    }
  }
  return lines;
}

}  // namespace outgrad::validation::gate
