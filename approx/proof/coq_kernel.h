/// The deployed 16-bit kernels of GELU, its tanh form and Swish, and what is true of them at every number of
/// the format, as files for Coq over the hand-written library in approx/proof/coq.
///
/// Constants and rows become records of Kernel.v and Forward.v, which compute with them as kernels/eval.h
/// does. The theorems say, for every finite x of the format: for every fp32 y that stands for f(x) rounded to
/// it, |kernel(y, [x >= x*]) - f'(x)| <= T; the forward kernel delivers this y and this bit; and the same
/// bound holds from what it delivers. Coq proves them by running the check of Forward.v over all absolute
/// values; these are spread over files that can be compiled side by side.
#pragma once

#include "approx/proof/coq.h"

#include <string>

namespace outgrad::approx::coq {

/// Whether Kernel.v describes the backward kernel of a fit: with a mask, cells of equal width, centred rows
/// and Horner's scheme.
bool is_described(const Fit& fit);
/// Whether Index.v is about it, too: in f16 or bf16, with a left and without a right segment.
bool has_kernel(const Fit& fit);

/// NAME_kernel.v: a backward fit as the definition kernel, and T, the claim kT; or a rounded forward fit as
/// the definition forward.
WitnessScript constants_script(const Fit& fit);

/// The same. @throws kernels::SpecError if the fit is not one whose numbers can all be tried: backward
/// is_described() without a right segment, of_product() with a left one, or forward, in f16 or bf16.
WitnessScript kernel_script(const Fit& fit, const std::string& path);

/// NAME_all_K.v, where NAME is the backward fit's: the lemma covered, that the check holds at the format's
/// absolute values first <= n < last in the numbering of Format.v. Needs both kernel_script() files. Both
/// fits are of one format.
WitnessScript covered_script(const Fit& forward, const Fit& backward, int k, int first, int last);

/// What proves the theorems NAME_T, FORWARD_right and NAME_gradient over the whole format: both kernels
/// first, the theorems in NAME_all.v last, and between them the files that need only the first two. @throws
/// kernels::SpecError as kernel_script() does.
Groups exhaustion_scripts(const Fit& forward, const Fit& backward, const std::string& path);

}  // namespace outgrad::approx::coq
