/// Certified isolation of an activation's minimum.
#pragma once

#include "approx/activations.h"

namespace outgrad::approx {

/// The one stationary point and its value.
struct Minimum {
  Ball x_star;
  Ball y_star;
};

/// Proves that f' has exactly one zero, that f falls before it and rises after it, and encloses it to over 200 bits.
///
/// [-14, 14] is covered by balls on which f' has one sign, or on which f'' > 0 while f' changes sign; outside, the activation's tail
/// bounds speak. @throws kernels::SpecError naming the subinterval when there is no such zero or more than one.
Minimum isolate_minimum(const Activation& activation);

}  // namespace outgrad::approx
