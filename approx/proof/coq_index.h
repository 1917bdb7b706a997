/// The ranges of x of a fit's rows as theorems for Coq: that they leave no x out, that A holds over them,
/// and, of a kernel that the library describes, that they are those of its index arithmetic.
///
/// A row's range is written down once, as `range row x`, and all of these theorems are about it. Where a fit
/// has a shorter range than its kernel, to make its A smaller, the kernel asks the row for an x that the
/// range does not hold, and Coq refuses the file.
#pragma once

#include "approx/proof/gappa.h"

#include <string>
#include <vector>

namespace outgrad::approx::coq {

/// NAME_ranges.v: the definition range, and the theorem ranges_cover, that every x is in the range of a row.
WitnessScript ranges_script(const Fit& fit);

/// NAME_index.v: the theorem index_in_range, for every finite number y of the format and either bit: the
/// range of the row that the kernel picks holds the x whose coordinate is the kernel's own, as it is computed
/// and as it is before rounding (bounds B and K are about what lies between these and the coordinate of y)
/// or, in the left segment, the x left of x* with f x = y. Coq proves it by running the kernel's index
/// arithmetic over all of them. Needs NAME_ranges.v and NAME_kernel.v; fit: has_kernel().
WitnessScript index_script(const Fit& fit);

/// NAME_rows.v: the theorem rows_within_A, that `range row x` implies what the theorems in NAME_row_K.v say.
/// It is about `rows`, or about all if none are given.
WitnessScript rows_script(const Fit& fit, const std::vector<int>& rows);

}  // namespace outgrad::approx::coq
