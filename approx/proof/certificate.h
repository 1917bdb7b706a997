/// Proven bounds of a fit: A (approximation), K (coordinate constants) and B (rounding of the deployed
/// sequence).
///
/// A is certified in x, not in y: E(x) = p(v(x)) - f'(x) needs no inverse. On a subinterval, E is a Taylor
/// model about a point x0, coefficients enclosed at x0, remainder from the highest coefficient over the whole
/// subinterval; bisection until the bound is within 1% of the largest error seen. A ball that cannot decide
/// raises, it never passes.
#pragma once

#include "approx/model/fit_model.h"
#include "approx/model/piece.h"

namespace outgrad::approx {

/// Factor over every double operation on error bounds; each expression rounds fewer than 16 times.
inline constexpr double kUp = 1 + 0x1p-48;

/// Upper bound of |p - g| (or of |p scale/f - 1|, |p x/f - 1|) over the piece, tails included, at most 1%
/// above `piece.observed` or `floor`.
double certify_approximation(const Composite& composite, const Piece& piece, double floor);

/// Upper bound of |p - g| over the piece from `piece.certified`, which in the class rel bounds |p/g - 1|.
double absolute_bound(const Composite& composite, const Piece& piece);

/// As certify_approximation for the best real coefficients, before rounding.
double certify_minimax(const Composite& composite, const Piece& piece);

struct CoordinateBound {
  double bound = 0;
  Found found;  ///< among the stored y next to the minimum, which are looked at one by one
};
/// Upper bound of |g(s_c(y)) - g(s(y))| over the stored y of the format, where s_c uses the fit's y_c and
/// t_min in place of y*, 0.
CoordinateBound certify_coordinate(const Composite& composite, const BackwardModel& model);

/// Upper bound, beyond the intervals that storage_intervals lists for f32, of what storing y and the
/// coordinate's constants cost together: |g(s_c(y)) - f'(x)| for every real x with RN(f(x)) = y.
double certify_storage_beyond(const Composite& composite, const BackwardModel& model);

/// Upper bound of |deployed fp32 sequence - the same sequence in real arithmetic| over the y that can reach
/// `piece`'s row.
double certify_evaluation(const BackwardModel& model, const Piece& piece);

/// The deployed sequence in real arithmetic at one y that reaches `piece`'s row.
Ball exact_evaluation(const BackwardModel& model, const Piece& piece, float y, bool m);

/// Upper bound of (A + B) / ulp(g) over the same y as far as |g| >= kUlpFrom; g is that of the deployed
/// coordinate (K apart). The last operation must be one that adds something small to c0 (kTwoWord), or the
/// bound is above 1.
double certify_ulp(const BackwardModel& model, const Piece& piece);

}  // namespace outgrad::approx
