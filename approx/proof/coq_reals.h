/// T of a deployed 16-bit kernel over all real x as files for Coq: for every real x whose f(x), rounded to
/// the format, is a finite y, |kernel(y, [x >= x*]) - f'(x)| <= T.
///
/// What is computed here is a list of places on either side of x*. Between two of them Coq looks at every y
/// (Continuum.v). Wrong places make cells too wide, so that Coq refuses them; they never make it accept a
/// false T.
#pragma once

#include "approx/proof/coq.h"

#include <array>
#include <string>
#include <vector>

namespace outgrad::approx::coq {

/// Places left of x* and right of it, outward, as Continuum.v writes them, the first of them star, the last
/// far_left or far_right: next to the x where f(x) is midway between two numbers of the format. What the
/// kernel makes of the numbers of a cell is within kT of all of f' there, and the cells are as long as that
/// allows, because f' has to be enclosed at each place.
std::array<std::vector<std::string>, 2> places(const Fit& backward);

/// NAME_reals_0.v, left of x*, or NAME_reals_1.v: the lemma covered, that T holds for all x between the first
/// and the last of these places. Needs NAME_kernel.v.
WitnessScript reals_script(const Fit& backward, const std::vector<std::string>& ascending, bool right);

/// What proves the theorem NAME_T_reals: the kernel, the files of either side, and the theorem. @throws
/// kernels::SpecError as kernel_script() does.
Groups reals_scripts(const Fit& backward, const std::string& path);

}  // namespace outgrad::approx::coq
