// Runs work that may crash, hang or use up the machine, in separate processes under limits.
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
  /// a waiting process uses no processor time, so it is ended after this many times cpu_s of real time
  int clock_factor = 10;
};

/// Runs a program. The text of its ending is the first 64 KiB of stdout and stderr together. Throws
/// kernels::EnvironmentError if it cannot be started.
kernels::Ending run_program(const std::vector<std::string>& words, const Limits& limits);

/// Runs body(i) for i = 0, ..., count - 1, each in the caller's present state. A forked process runs them in
/// order and reports one line for each. If one of them ends the process, `fallen` describes how, and a new
/// process continues with the next. If a body throws, its line is the exception after "exception: ". The
/// limit of processor time applies to each i; the limit of memory is in addition to what the caller has.
std::vector<std::string> run_guarded(
    size_t count, const std::function<std::string(size_t)>& body, const Limits& limits,
    const std::function<std::string(size_t, const kernels::Ending&)>& fallen);

}  // namespace outgrad::validation::gate
