/// The fitter: from a specification to fp32 coefficients with proven bounds.
#pragma once

#include "approx/model/fit.h"
#include "approx/model/spec.h"

namespace outgrad::approx {

/// Fits, rounds and certifies. The result does not depend on `threads` (0: all).
/// @throws kernels::SpecError when the target is out of reach, with the proven lower bound. Where `advises`,
/// the refusal of an expression's layout ends with one that reaches the target, if any does: that takes as
/// long as a few fits more.
Fit fit(const Spec& spec, int threads, bool advises = false);

}  // namespace outgrad::approx
