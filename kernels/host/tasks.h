// Tasks of unequal length on all cores.
#pragma once

#include <cstddef>
#include <exception>

#include "kernels/host/parallel.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Calls body(task) once for every task in [0, tasks), on at most `threads` threads (0: all); who is free takes the next one.
// Returns when all are done. Of what they threw, the least task's exception is thrown again, so that what a user reads does not depend on timing.
template <class Body>
void for_each_task(std::size_t tasks, int threads, Body&& body) {
  std::exception_ptr failure;
  std::size_t failed = tasks;
  const auto guarded = [&](std::size_t task) {
    try {
      body(task);
    } catch (...) {
#ifdef _OPENMP
#pragma omp critical(outgrad_for_each_task)
#endif
      if (task < failed) {
        failed = task;
        failure = std::current_exception();
      }
    }
  };
  [[maybe_unused]] const int workers = thread_count(threads);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers)
#endif
  for (std::size_t task = 0; task < tasks; ++task) guarded(task);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace outgrad::kernels
