// Bound A, re-proved: how far a row's polynomial, in exact arithmetic, is from the function it stands for,
// over all it is asked for.
//
// Backward: E(x) = p(v(x)) - f'(x), v the signed root s(x) about the exact y*, or y = f(x) on the left and
// right segments and where there is no mask; absolute error, or, in the class rel, E(x) = p(v(x)) / f'(x) - 1
// in every row but the one that runs into y = 0-. Forward: E(x) = p(x) / f(x) - 1, relative error.
// A cell's domain is its floats, widened by what rounding can put between an exact s and the float that
// selected the row (kRootRounding), or to the next float where v is y, and continued by the clamps and tails:
// the last cell stands for all y > y_max, where g lies in the range of f' right of f^-1(y_max), the first for
// all s < s_min (y < y_min), and the cell of y = 0- reaches x = -inf.
#pragma once

#include <optional>

#include "validation/certificate/deployed.h"
#include "validation/certificate/sup_norm.h"

namespace outgrad::validation {

// The relative distance of s from the exact root of max(y - y_hi - y_lo, t_min). RN(y - y_hi) is exact for y
// < y_hi / 2 (Sterbenz), and beyond, t > |y_hi| / 2 - |y_lo|, with |y_lo| < 2^-10 |y_hi| (a condition of
// check_structure), so both differences together are off by at most (2 + 2^-8) 2^-24 t; half of that in s,
// and 2^-24 for the root itself.
inline constexpr double kRootRounding = 1.01 * 0x1p-23;

/// Decides sup |E| <= claim over one cell of a backward header. `at` of the result is an x.
SupNorm prove_cell(const BackwardHeader& h, const Cell& cell, double claim);
/// The same, relative error, over one cell of the forward header.
SupNorm prove_cell(const ForwardHeader& h, const Cell& cell, double claim);
SupNorm prove_cell(const RoundedForwardHeader& h, const Cell& cell, double claim);

/// E at one x, if x asks for the cell's row; two cells that share an end both answer there, and within 2^-21
/// of the header's largest coordinate.
std::optional<Interval> fit_error_at(const BackwardHeader& h, const Cell& cell, double x);
std::optional<Interval> fit_error_at(const ForwardHeader& h, const Cell& cell, double x);
std::optional<Interval> fit_error_at(const RoundedForwardHeader& h, const Cell& cell, double x);

/// The claim kA over all cells, each held to its row's own claim as well; `proven` is the maximum.
Finding prove_fit(const BackwardHeader& h, double claim, Findings wanted = Findings::all);
Finding prove_fit(const ForwardHeader& h, double claim, Findings wanted = Findings::all);
/// core: over the rows from core_first on alone.
Finding prove_fit(const RoundedForwardHeader& h, double claim, Findings wanted = Findings::all,
                  bool core = false);

}  // namespace outgrad::validation
