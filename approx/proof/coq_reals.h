/// T of a deployed 16-bit kernel over all real x as files for Coq: for every real x whose f(x), rounded to
/// the format, is a finite y, |kernel(y, [x >= x*]) - f'(x)| <= T.
///
/// What is computed here is a list of places on either side of x*. Between two of them Coq looks at every y
/// (Continuum.v). Wrong places make cells too wide, so that Coq refuses them; they never make it accept a
/// false T.
#pragma once

#include "approx/proof/coq.h"

#include <string>
#include <vector>

namespace outgrad::approx::coq {

/// Places from x* outward as Continuum.v writes them, the first of them star, the last far_left or far_right:
/// next to the x where f(x) is midway between two numbers of the format, of which those between two places
/// are within kT of all of f' there. As few places as do, because f' is enclosed at each.
std::vector<std::string> places(const Fit& backward, bool right);

/// NAME_reals_K.v: the lemma covered, that T holds for all x between the first and the last of these places,
/// in ascending order, left or right of x*.
WitnessScript reals_script(const Fit& backward, int k, const std::vector<std::string>& ascending, bool right);

/// What proves the theorem NAME_T_reals: the kernel, the files of either side, and the theorem. @throws
/// kernels::SpecError as kernel_script() does.
Groups reals_scripts(const Fit& backward, const std::string& path);

}  // namespace outgrad::approx::coq
