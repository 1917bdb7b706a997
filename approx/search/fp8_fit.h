/// y in 8 bits at a scale, with 0 to 2 bits beside it (kernels/stores/fp8.h): how far what is kept can be
/// from f'(x), over all scales.
#pragma once

#include "approx/model/fit_model.h"
#include "approx/model/spec.h"

namespace outgrad::approx {

/// Where f' has its extrema, and the certified errors of both formats over their ranges of scales.
/// @throws kernels::SpecError where the library has no such codes, f has no minimum or f' other extrema than
/// one on each side of it, the function is another one, or kRoom is above the target.
Fp8Model fit_fp8(const Composite& composite, const Spec& spec);

}  // namespace outgrad::approx
