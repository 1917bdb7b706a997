/// Break points for a levelled split: as few rows as the degree, the coordinate and the target allow, with
/// equal errors.
#pragma once

#include "approx/search/constants.h"

#include <vector>

namespace outgrad::approx {

/// Interior break points of the core, ascending, on floats of few bits. @throws kernels::SpecError when more
/// than 32 rows would be needed.
std::vector<float> levelled_breaks(const Composite& composite, const BackwardSpec& spec,
                                   const CoordinateConstants& constants, double target);

}  // namespace outgrad::approx
