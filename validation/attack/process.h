// Work that may crash, hang or eat the machine, in processes of its own under limits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/support/process.h"

namespace outgrad::validation::gate {

struct Limits {
  int cpu_s = 60;
  std::uint64_t memory_bytes = std::uint64_t{2} << 30;  ///< of address space
  int clock_factor = 10;  ///< who waits uses no processor time: the clock is up after so many times cpu_s
};

/// Runs a program; its stdout is thrown away, and the text of its ending is the first 64 KiB of stderr. Throws kernels::EnvironmentError where it cannot be
/// started.
kernels::Ending run_program(const std::vector<std::string>& words, const Limits& limits);

/// body(i) for i = 0, ..., count - 1, each in the state in which the caller is now: a forked process runs them in order and reports a line each; when one of them
/// ends the process, `fallen` says how, and a new process goes on with the next. An exception of a body is its line, after "exception: ".
/// The limit of processor time is for each i; that of memory is beyond what the caller has.
std::vector<std::string> run_guarded(size_t count, const std::function<std::string(size_t)>& body, const Limits& limits,
                                     const std::function<std::string(size_t, const kernels::Ending&)>& fallen);

}  // namespace outgrad::validation::gate
