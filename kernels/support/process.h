// Other programs, and children of this one, started and waited for.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <csignal>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/support/files.h"

namespace outgrad::kernels {

// How a child ended.
struct Ending {
  // as a shell has it: the program is not there, or cannot be executed
  static constexpr int kNotStarted = 127;

  int status = 0;     // exit status; -1: a signal ended it
  int signal = 0;
  bool late = false;  // ended by a limit of time: the clock's, or that of RLIMIT_CPU
  double cpu_s = 0;
  std::size_t peak_bytes = 0;  // of memory, at once
  std::string text;  // what it wrote, see run()
};

// What to start, and what it gets that the caller has otherwise.
struct Launch {
  static constexpr int kNowhere = -1;   // /dev/null
  static constexpr int kCaptured = -2;  // Ending::text; of run() alone

  std::vector<std::string> words;  // the program, looked for in PATH, and its arguments
  int in = kNowhere, out = kNowhere, err = kNowhere;
  std::string folder = {};                          // to work in
  std::vector<std::string> environment = {};        // "NAME=value"
  std::vector<std::pair<int, rlim_t>> limits = {};  // as of limit_resource()
  // of processes, so that what it starts can be killed and ends with it; Ctrl-C does not reach it then
  bool leads_group = false;
};

// The path of a program that is in the folder of this one.
std::string beside_this_program(const std::string& name);

// Starts a program and returns at once. It ends with the thread that started it, however that ends. Throws
// EnvironmentError where there can be no more processes.
pid_t start(Launch launch);

// Runs a program to its end. Keeps the first `most_bytes` of what it writes to streams that are kCaptured,
// and kills it where these do not end within `limit_s`.
Ending run(Launch launch, double limit_s = std::numeric_limits<double>::infinity(),
           std::size_t most_bytes = std::string::npos);

// This program once more, to run `body` and leave with the status that it returns; what is buffered is
// written before. It ends with the thread that started it; or `at_end` is another signal, which is blocked in
// it and comes when this thread has ended, and again for each thread of this process that becomes its parent
// then. Throws EnvironmentError.
pid_t start_copy(const std::function<int()>& body, int at_end = SIGKILL);

Ending wait_for(pid_t child);
std::optional<Ending> ended(pid_t child);  // nothing while it runs

struct Pipe {
  Pipe();  // throws EnvironmentError
  Descriptor from, to;
};

// Hands on what comes until the writers are gone; false where `limit_s` is up before. Only the time spent
// waiting counts, and of each wait no more than was asked for: a job that was stopped and goes on has lost
// nothing.
bool read_to_end(const Descriptor& from, double limit_s, const std::function<void(std::string_view)>& take);

// Sets the soft limit of a resource (RLIMIT_...) of this process and those it starts, as far as the hard one
// lets it.
void limit_resource(int resource, rlim_t most);

}  // namespace outgrad::kernels
