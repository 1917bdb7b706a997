// The g that an f32 fit has at an x, where y is the library's f32 forward of x, against f'(x).
//
// Next to x* (|x - x*| <= 2^-8) every f32 x goes through the kernels that the library deploys, and f' is
// enclosed over runs of 64 x by mean values. Elsewhere the f32 y is within 2 ulp of f(x), which the sweeps of
// `outgrad validate` show for every x. So g is that of a y' no further from f(x) than 2 ulp and what the
// coordinate's constant y_c differs from y*, up to the fit's A + B; `outgrad check` proves these from the
// fit's own header. Over cells of x the arguments of all such y' are enclosed by the inverse of s, and the
// change of f' between them by |f''| move / |f'| or by the range of f'.
#pragma once

#include "validation/certificate/verdict.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {

/// What is known of a fit of an activation with a minimum, and its g as deployed.
struct FittedGradient {
  double bound_ab;
  float y_hi, y_lo;
  float (*gradient)(float x);
};

/// "G": sup |g - f'(x)| over the finite f32 x. A witness is in x.
Finding prove_fitted_gradient(const Activation& activation, const FittedGradient& fit, double claim);

}  // namespace outgrad::validation
