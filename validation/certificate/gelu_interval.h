// Enclosures of GELU for the proof of its forward header, and its minimum. Gradients of any activation:
// activation.h.
//
// f(x) = x Phi(x), f' = Phi + x phi, f'' = phi (2 - x^2), phi and Phi the normal density and distribution.
// f'' > 0 exactly for |x| < sqrt 2, so f' rises there from f'(-sqrt 2) < 0 to f'(sqrt 2) > 1, falls to 1 on
// the right and, on the left, falls from 0 as x comes from -inf: one minimum.
#pragma once

#include "validation/exact/mp.h"

namespace outgrad::validation {

/// Pointwise enclosures over intervals of x.
Interval normal_density(const Interval& x);
Interval normal_cdf(const Interval& x);
Interval gelu(const Interval& x);
Interval gelu_d1(const Interval& x);
Interval gelu_d2(const Interval& x);

/// sup |phi(z)| over the complex disc |z - middle| <= radius: |exp(-z^2/2)| = exp((Im^2 - Re^2)/2).
Interval density_over_disc(double middle, double radius);
/// x*, isolated by the sign of f' at the ends of an interval of relative width 2^-200.
const Interval& x_star();

}  // namespace outgrad::validation
