// The kernels of any fit, compiled where they are asked for: what defines the bits of a problem with a fit.
#pragma once

#include "autotune/space/variant.h"
#include "kernels/direct.h"
#include "kernels/host/elementwise.h"

namespace outgrad::autotune {

// GELU's backward of any fit, of those too that kernels/fits.h does not list. Y: the format of y, where it is
// not that of dy and dx.
template <class Fit, class T, kernels::CpuSchedule kSchedule, class Y = T>
void run_backward(const Arguments& a) {
  kernels::call<KernelId::kGeluBackward, T, Y>(
      a, [](auto... x) { kernels::activation_backward<Fit, T, kSchedule, Y>(x...); });
}

// What a generated header offers for values stored as T.
template <class Fit, class T>
FitChoice backward_choice() {
  FitChoice choice{.type = type_name(Fit::kName),
                   .name = Fit::kName,
                   .accuracy = Fit::kClass,
                   .bounds = kernels::claims_of<Fit>().bounds,
                   .reference = &run_backward<Fit, T, kReferenceSchedule>};
  if constexpr (!kernels::kIsDirect<Fit>) choice.has_rows = Fit::kRows > 1;
  return choice;
}

}  // namespace outgrad::autotune
