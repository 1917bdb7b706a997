// Tasks of unequal length on all cores, and the way of an exception out of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <limits>
#include <mutex>

#include "kernels/host/parallel.h"

namespace outgrad::kernels {

// Of what the steps of a parallel loop throw, the exception of the least step, so that what a user reads does
// not depend on timing.
class Failure {
 public:
  template <class Body>
  void guard(Body&& body, std::size_t step = 0) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(guard_);
      if (step >= least_) return;
      least_ = step;
      exception_ = std::current_exception();
    }
  }
  bool happened(std::size_t before = kNone) const { return least_ < before; }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  std::mutex guard_;
  std::atomic<std::size_t> least_ = kNone;
  std::exception_ptr exception_;
};

// Calls body(task) once for every task in [0, tasks), on at most `threads` threads of OpenMP (0: all); who is
// free takes the next one. Returns when all are done. Where one throws, those after it may be left out, and
// the least task's exception is thrown again.
template <class Body>
void for_each_task(std::size_t tasks, int threads, Body&& body) {
  Failure failure;
  [[maybe_unused]] const int workers =
      static_cast<int>(std::clamp<std::size_t>(tasks, 1, static_cast<std::size_t>(thread_count(threads))));
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers)
#endif
  for (std::size_t task = 0; task < tasks; ++task) {
    if (!failure.happened(task)) failure.guard([&] { body(task); }, task);
  }
  failure.rethrow();
}

}  // namespace outgrad::kernels
