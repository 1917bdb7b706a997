/// How far the g of a deployed f32 fit is from f'(x), where y is the deployed f32 forward of x.
#pragma once

#include "approx/function/composite.h"

namespace outgrad::approx {

/// A fit of an activation with a minimum, with what has to be known of it.
struct FittedGradient {
  double error;                ///< A + B
  double y_c;                  ///< its coordinate's
  float (*gradient)(float x);  ///< as deployed: the fit at the forward's y and the mask bit of x
};

/// sup |g - f'(x)| over every finite f32 x, certified given that the forward's y is within 2 ulp of f(x).
/// @throws kernels::SpecError where that stays undecided.
double fitted_gradient_error(const Composite& composite, const FittedGradient& deployed);

}  // namespace outgrad::approx
