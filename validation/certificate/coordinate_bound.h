// Bound K, re-proved: what the constants of the coordinate (y_c = y_hi + y_lo for y*, the floor t_min) change
// in the exact g.
//
// D(s) = G(s_c(s)) - G(s) with G(s) = f'(x(s)), s = +-sqrt(y - y*) the true coordinate of y (0 for a stored y
// below y*; the least one is RN(y*)) and s_c = +-sqrt(max(y - y_c, t_min)) the deployed one; y - y_c = s^2 +
// d, d = y* - y_c. The stored y next to y* are taken one by one, as the constants are chosen for them.
// Beyond, over all real y, each branch is cut at s_0 = sqrt(max(t_min - d, 0)):
//   |s| <= s_0: s_c is constant and G monotone next to x*, so D is extreme at the ends of the range;
//   |s| >= s_0: on a cell [a, b] the least of three bounds,
//     the length of the range of G         (next to y = 0-, where both values vanish; G is continued by its
//                                          limit beyond),
//     sup |G'| max |s_c - s|               (s_c - s = d / (s_c + s) is extreme at an end),
//     |D(middle)| + sup |D'| radius,       D' = G'(s_c) s / s_c - G'(s);
//   cells are halved until the claim is decided.
#pragma once

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {

/// Decides sup |D| <= claim over the y of the format and both branches: m = 1 from y* on, up to the right
/// segment if there is one, m = 0 up to left_y (or the end of s).
/// A witness is in y.
Finding prove_coordinate(const BackwardHeader& h, double claim);

/// D at one y of a branch; 0 where no x is stored as y.
Interval coordinate_error_at(const BackwardHeader& h, double y, bool m);

}  // namespace outgrad::validation
