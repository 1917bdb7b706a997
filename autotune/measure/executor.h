// What runs compiled candidates: the CPU, or a device. Lives in a child process, for the code is not trusted.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>

#include "autotune/measure/candidate.h"
#include "autotune/measure/timing.h"
#include "autotune/space/arguments.h"

namespace outgrad::autotune {

class Executor {
 public:
  virtual ~Executor() = default;

  // The candidate's code as a function over arrays of the host. May throw WroteOutside.
  virtual std::function<void(const Arguments&)> function(const Candidate& candidate) = 0;

  // The arrays of the timed calls of a sized problem; called once, before the following.
  virtual void allocate(const Problem& problem, std::uint64_t seed) = 0;
  // What the memory gives as many streams as the kernel has.
  virtual Workload ceiling() = 0;
  virtual Workload workload(const Candidate& candidate) = 0;
  virtual Stopwatch stopwatch() const { return steady_ns; }
};

// Opens one in the child process that calls it.
using OpenExecutor = std::function<std::unique_ptr<Executor>()>;

// A kernel changed memory that is not its own to write: a wrong answer, found by whoever keeps watch over the
// arrays.
struct WroteOutside : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace outgrad::autotune
