/// T of the kernel of a gated pair as a file for Coq: for every real x and every fp32 s within the ball of
/// quotients about f(x) (ProductBall), |kernel(s, [x >= x*]) - f'(x)| <= T.
///
/// Coq halves intervals of x and of s by itself (Product.v); what is written here are the constants.
#pragma once

#include "approx/proof/coq.h"

#include <string>

namespace outgrad::approx::coq {

/// What proves NAME_T, and NAME_pair, that its s is what a gated pair has (GatedPair.v): the kernel, and
/// NAME_all.v. `fit`: of_product(). @throws
/// kernels::SpecError as kernel_script() does.
Groups product_scripts(const Fit& fit, const std::string& path);

}  // namespace outgrad::approx::coq
