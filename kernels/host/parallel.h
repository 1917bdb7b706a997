// Runs work on all cores, each in the floating-point environment that the proofs assume, whatever the caller
// has set.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/host/forked.h"
#include "kernels/portable.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif
#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

// While alive, this thread rounds to nearest even, keeps subnormals (no flush-to-zero, no denormals-are-zero)
// and traps nothing; the caller's environment is put back at the end of the scope.
class DefaultFloatEnvironment {
 public:
#if defined(__SSE2__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
    // every exception masked, round to nearest, FTZ and DAZ clear: the reset value
    constexpr unsigned kDefaultMxcsr = 0x1f80;
    _mm_setcsr(kDefaultMxcsr);
    asm volatile("" ::: "memory");  // no operand may be loaded, and so no operation done, before the switch
  }
  ~DefaultFloatEnvironment() {
    asm volatile("" ::: "memory");
    _mm_setcsr(saved_);
  }
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

// The number of threads that a request for `threads` gives (0 = all that OpenMP offers); 1 without OpenMP.
inline int thread_count(int threads) {
#ifdef _OPENMP
  return threads > 0 ? threads : omp_get_max_threads();
#else
  static_cast<void>(threads);
  return 1;
#endif
}

// How many of `most` tasks with scratch of their own such a request needs: fewer touch less memory. Where the
// number of threads is no power of two, 8 of each share out the work evenly.
inline i64 tasks_for(i64 most, int threads) {
  constexpr u64 kTasksOfAThread = 8;
  const u64 count = static_cast<u64>(thread_count(threads));
  const u64 wanted = std::has_single_bit(count) ? count : std::bit_ceil(kTasksOfAThread * count);
  return std::min(most, static_cast<i64>(wanted));
}

#ifdef _OPENMP
// Whether this process was forked from one that had come here before. OpenMP's threads stayed behind in the
// parent, and GNU's run-time would wait for them for ever.
inline bool has_lost_threads() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { after_fork = true; });
  return after_fork;
}
#endif

namespace detail {

// parallel_for, compiled once for all bodies.
__attribute__((noinline)) inline void run_tasks(i64 tasks, int threads, void (*run)(void* of, i64 task),
                                                void* of) {
  i64 workers = std::min<i64>(thread_count(threads), tasks);
#ifdef _OPENMP
  if (workers > 1 && has_lost_threads()) workers = 1;
#endif
  if (workers <= 1) {
    const DefaultFloatEnvironment environment;
    for (i64 task = 0; task < tasks; ++task) run(of, task);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(workers))
  {
    const DefaultFloatEnvironment environment;
#pragma omp for schedule(static)
    for (i64 task = 0; task < tasks; ++task) run(of, task);
  }
#endif
}

}  // namespace detail

// Calls body(task) once for every task in [0, tasks), on at most `threads` threads (0 = all). Each thread
// gets a contiguous range of tasks. Returns when all are done. `body` must not throw. The caller must make
// sure that results do not depend on which thread runs a task. A process that was forked after a call on
// several threads uses one.
template <class Body>
void parallel_for(i64 tasks, int threads, Body&& body) {
  const auto run = [](void* of, i64 task) { (*static_cast<std::remove_reference_t<Body>*>(of))(task); };
  detail::run_tasks(tasks, threads, run, const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
