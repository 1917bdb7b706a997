// Enclosures of GELU, its derivatives, its minimum, and the signed root s(x) = sign(x - x*) sqrt(f(x) - y*) with its inverse.
//
// f(x) = x Phi(x), f' = Phi + x phi, f'' = phi (2 - x^2), f''' = phi (x^3 - 4 x), phi and Phi the normal density and distribution.
// Signs used without further proof: f'' > 0 exactly for |x| < sqrt 2, so f' rises there from f'(-sqrt 2) < 0 to f'(sqrt 2) > 1, falls
// to 1 on the right and, on the left, falls from 0 as x comes from -inf. Hence one minimum x*, s(x) rising, g(s) = f'(x(s)) rising for
// |x| < sqrt 2.
#pragma once

#include "validation/mp.h"

namespace outgrad::validation {

/// Pointwise enclosures over intervals of x.
Interval normal_density(const Interval& x);
Interval normal_cdf(const Interval& x);
Interval gelu(const Interval& x);
Interval gelu_d1(const Interval& x);
Interval gelu_d2(const Interval& x);

/// sup |phi(z)| over the complex disc |z - middle| <= radius: |exp(-z^2/2)| = exp((Im^2 - Re^2)/2).
Interval density_over_disc(double middle, double radius);
/// sup |f''(z)| over that disc.
Interval gelu_d2_over_disc(double middle, double radius);

/// x* and y*, isolated by the sign of f' at the ends of an interval of relative width 2^-200.
const Interval& x_star();
const Interval& y_star();
/// The infimum of s, -sqrt(-y*), which x -> -inf approaches.
const Interval& s_infimum();

/// s(x); x may hold x*. Meant for points and intervals about as narrow as a point.
Interval signed_root(const Interval& x);
/// x(s) for s_infimum() < s. The lower end is -inf where s is not certainly above s_infimum().
Interval inverse_signed_root(const Interval& s);
/// dg/ds = f''(x) 2 s / f'(x) over the x of an interval of s; through s = 0 by mean values of f''. Finite unless x reaches far left.
Interval g_slope(const Interval& s);

}  // namespace outgrad::validation
