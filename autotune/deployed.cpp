#include "autotune/deployed.h"

#include "kernels/host/functions.h"

namespace outgrad::autotune {
namespace {

// action(kernel, T{}) for the problem's kernel, as a constant, and its format's type.
template <class Action>
auto with_problem(const Problem& problem, const Action& action) {
  return with_type(problem.format, [&]<class T>(T) { return kernels::with_kernel(problem.kernel, [&](auto kernel) { return action(kernel, T{}); }); });
}

}  // namespace

Deployed deployed(const Problem& problem) {
  return with_problem(problem, [&]<class T>(auto kernel, T) {
    using Table = typename kernels::HostKernel<kernel()>::template Table<T>;
    const kernels::tuned::Tuning tuning = kernels::tuned::tuning_of<Table>(problem.rows, problem.cols);
    return Deployed{tuning.entry->variant, name_of(tuning.found.rung), tuning.fit};
  });
}

void run_deployed(const Problem& problem, const Arguments& arguments) {
  with_problem(problem, [&]<class T>(auto kernel, T) { kernels::enter<kernel(), T>(arguments); });
}

}  // namespace outgrad::autotune
