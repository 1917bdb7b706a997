/// Fits a forward for one 16-bit format: y = x p, p about f(x)/x, such that the fp32 sequence as deployed
/// rounds every x of the format correctly.
///
/// A row has four words. Its centre follows from its number, and c4 from c3: the float whose bits are the low
/// ones of c3, shifted up. So c4 has few bits, chosen first, and c3 lies on the coarser grid of the floats
/// that end in them; c2, c1 and c0 make up for both. What p may be at an x of the format is known from the
/// rounding of the result; the coefficients pass through those ranges, and within the least tube about f(x)/x
/// for which that is possible (the idea of RLIBM, Lim and Nagarakatte, PLDI 2021, by the exchange of
/// programme.h).
#pragma once

#include "approx/model/fit_model.h"
#include "approx/model/spec.h"
#include "approx/progress.h"

namespace outgrad::approx {

/// Constants, coefficients and certified relative errors. `rows` counts the rows done.
/// @throws kernels::SpecError where a row rounds some x of the format wrongly, or the cells do not fit.
RoundedForwardModel fit_rounded_forward(const Composite& composite, const RoundedForwardSpec& spec,
                                        const std::string& name, Stage& rows);

}  // namespace outgrad::approx
