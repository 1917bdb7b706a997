// Calls the compiled library, and instantiates the host kernels in the schedules of a local tuned header.
#include "autotune/bench/deployed.h"

#include <algorithm>
#include <iterator>

#include "kernels/activations.h"
#include "kernels/c/table.h"
#include "kernels/cuda/plan.h"
#include "kernels/host/functions.h"
#include "kernels/support/errors.h"

namespace outgrad::autotune {
namespace {

// action(kernel, T{}) for the problem's kernel, as a constant, and its format's type.
template <class Action>
auto with_problem(const Problem& problem, const Action& action) {
  return with_type(problem.format, [&]<class T>(T) {
    return kernels::with_kernel(problem.kernel, [&](auto kernel) { return action(kernel, T{}); });
  });
}

}  // namespace

Deployed deployed(const Problem& problem) {
  return with_problem(problem, [&]<class T>(auto kernel, T) {
    using Table = typename kernels::HostKernel<kernel()>::template Table<T>;
    const kernels::tuned::Tuning tuning = kernels::tuned::tuning_of<Table>(problem.rows, problem.cols);
#ifdef OUTGRAD_TUNED_HEADER
    return Deployed{tuning.entry->variant, name_of(tuning.found.rung), tuning.fit};
#else
    const c::FormatKernels& library = c::chosen_kernels(static_cast<outgrad_format>(problem.format));
    const c::ChosenSchedule chosen =
        library.chosen[static_cast<int>(problem.kernel)](problem.rows, problem.cols);
    return Deployed{chosen.variant, chosen.rung, tuning.fit};
#endif
  });
}

void run_deployed(const Problem& problem, const Arguments& arguments) {
#ifdef OUTGRAD_TUNED_HEADER
  with_problem(problem, [&]<class T>(auto kernel, T) { kernels::enter<kernel(), T>(arguments); });
#else
  const outgrad_call none{};
  c::chosen_kernels(static_cast<outgrad_format>(problem.format))
      .run[static_cast<int>(problem.kernel)]({none, arguments});
#endif
}

namespace {

template <class... Fit>
DeployedActivation fit_at(int activation, kernels::FitList<Fit...>) {
  const DeployedActivation all[] = {
      {Fit::kMasked, kernels::cuda::has_rows<Fit>(), kernels::claims_of<Fit>()}...};
  return all[activation];
}

}  // namespace

DeployedActivation deployed_activation(int activation, FormatId format) {
  return with_type(
      format, [&]<class T>(T) { return fit_at(activation, typename kernels::ActivationFits<T>::Type{}); });
}

int activation_named(std::string_view name) {
  return static_cast<int>(
      std::find(std::begin(kernels::kActivationNames), std::end(kernels::kActivationNames), name) -
      std::begin(kernels::kActivationNames));
}

std::string run_deployed_activation(int activation, const Problem& problem, const Arguments& a) {
  outgrad_call call{};
  call.size = sizeof call;
  call.activation = activation;
  call.format = static_cast<outgrad_format>(problem.format);
  call.n = problem.cols;
  const bool backward = is_backward(problem.kernel);
  (backward ? call.dy : call.x) = a.array[0];
  call.y = a.array[1];
  call.mask = static_cast<kernels::u32*>(a.array[2]);
  if (backward) call.dx = a.array[3];
  const outgrad_status status =
      backward ? outgrad_activation_backward(&call) : outgrad_activation_forward(&call);
  if (status == OUTGRAD_ERROR_ENVIRONMENT) throw kernels::EnvironmentError(outgrad_error_message());
  if (status != OUTGRAD_OK) throw kernels::SpecError(outgrad_error_message());
  return outgrad_instruction_set();
}

}  // namespace outgrad::autotune
