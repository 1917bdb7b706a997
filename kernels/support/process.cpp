// fork, exec, poll, wait4.
#include "kernels/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace outgrad::kernels {
namespace {

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

Ending ending_of(int status, const rusage& usage) {
  Ending ending;
  ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending.late = ending.signal == SIGXCPU;
  ending.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  ending.peak_bytes = static_cast<std::size_t>(usage.ru_maxrss) << 10;
  return ending;
}

}  // namespace

pid_t start_copy(const std::function<int()>& body, int at_end) {
  std::fflush(nullptr);  // or the child would write it again
  // From its first moment on, in which the thread that starts it may end.
  sigset_t told, before;
  sigemptyset(&told), sigaddset(&told, at_end);
  ::pthread_sigmask(SIG_BLOCK, &told, &before);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) throw EnvironmentError(std::string("fork: ") + std::strerror(errno));
  if (child == 0)
    [&]() noexcept {  // no destructors, and no way back into the caller
      ::prctl(PR_SET_PDEATHSIG, at_end);
      ::_exit(at_end != SIGKILL || ::getppid() == parent ? body() : Ending::kNotStarted);
    }();
  return child;
}

std::string beside_this_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name).string();
}

pid_t start(Launch launch) {
  if (std::exchange(launch.leads_group, false)) {
    // The leader is a copy that waits for the program: it hears of the end of this one, and tells all.
    const pid_t leader = start_copy([&] {
      ::setpgid(0, 0);
      std::signal(SIGUSR1, [](int) {
        std::signal(SIGTERM, SIG_IGN);
        ::kill(0, SIGTERM);
      });
      ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
      const Ending ending = wait_for(start(launch));
      ::raise(ending.signal);
      return ending.status;
    });
    ::setpgid(leader, leader);  // whoever comes first: a kill may follow at once
    return leader;
  }
  std::vector<char*> words;
  for (const std::string& word : launch.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  return start_copy([&] {
    const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const auto& [given, stream] :
         {std::pair(launch.in, STDIN_FILENO), std::pair(launch.out, STDOUT_FILENO),
          std::pair(launch.err, STDERR_FILENO)})
      ::dup2(given == Launch::kNowhere ? nowhere : given, stream);
    for (const std::string& variable : launch.environment) ::putenv(const_cast<char*>(variable.c_str()));
    for (const auto& [resource, most] : launch.limits) limit_resource(resource, most);
    if (launch.folder.empty() || ::chdir(launch.folder.c_str()) == 0) ::execvp(words[0], words.data());
    return Ending::kNotStarted;
  });
}

Ending run(Launch launch, double limit_s, std::size_t most_bytes) {
  Pipe pipe;
  for (int* stream : {&launch.out, &launch.err})
    if (*stream == Launch::kCaptured) *stream = pipe.to.get();
  const pid_t child = start(launch);
  pipe.to.close();
  std::string text;
  const bool read = read_to_end(pipe.from, limit_s, [&](std::string_view part) {
    text += part.substr(0, most_bytes - std::min(most_bytes, text.size()));
  });
  if (!read) ::kill(launch.leads_group ? -child : child, SIGKILL);
  Ending ending = wait_for(child);
  ending.late |= !read;
  ending.text = std::move(text);
  return ending;
}

Ending wait_for(pid_t child) {
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  return ending_of(status, usage);
}

std::optional<Ending> ended(pid_t child) {
  int status = 0;
  rusage usage{};
  const pid_t found = ::wait4(child, &status, WNOHANG, &usage);
  if (found == 0 || (found < 0 && errno == EINTR)) return std::nullopt;
  return ending_of(status, usage);
}

Pipe::Pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw EnvironmentError(std::string("pipe: ") + std::strerror(errno));
  from = Descriptor(ends[0]);
  to = Descriptor(ends[1]);
}

bool read_to_end(const Descriptor& from, double limit_s, const std::function<void(std::string_view)>& take) {
  using std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  constexpr double kWait_s = 0.2;
  std::array<char, 1 << 14> buffer;
  for (double left_s = limit_s; left_s > 0;) {
    const double wait_s = std::min(kWait_s, left_s);
    pollfd waiting{from.get(), POLLIN, 0};
    const auto begin = steady_clock::now();
    const int ready = ::poll(&waiting, 1, static_cast<int>(1e3 * wait_s) + 1);
    left_s -= std::min(wait_s, Seconds(steady_clock::now() - begin).count());
    if (ready <= 0) continue;
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got == 0 || (got < 0 && errno != EINTR)) return true;
    if (got > 0) take(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  }
  return false;
}

void limit_resource(int resource, rlim_t most) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  limit.rlim_cur = std::min(most, limit.rlim_max);
  ::setrlimit(resource, &limit);
}

}  // namespace outgrad::kernels
