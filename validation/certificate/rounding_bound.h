// Bound B, re-proved: how far the deployed fp32 sequence is from the same formulas in exact arithmetic, over
// the stored y.
//
// Exact means p_row(v) with v = +-sqrt(max(y - y_hi - y_lo, t_min)), clamped to s_min, or v = y on the left
// and right segments and without a mask, y itself clamped to [y_min, y_max], and the row that the deployed
// fp32 s selects. 16-bit formats are enumerated: every bit pattern with either mask bit. For f32 an a priori
// analysis in the manner of Wilkinson runs over ranges of consecutive floats y that share a row; with half(v)
// half an ulp at magnitude v:
//   t:  e_t = [inexact] half(y - y_hi) + [inexact] half(t), a difference of multiples of 2^k below 2^(k + 24)
//       being exact
//   s:  e_s = half(s) + e_t / (sqrt t + sqrt(t - e_t))
//   u:  e_u = [inexact] half(u)
//   p:  each RN(a b + c) of the scheme: e_a |b| + |a| e_b + e_c + half of what is reached; in Horner's rule
//       e <- |u| e + half(|p_k| + |u| e)
//   g:  e + sup |p'| (e_s + e_u)
// A range that does not meet the claim is halved; one of a few floats is enumerated. The first fp32 grid
// points around y_c, where the root is steepest, are enumerated for every format, against MPFR.
#pragma once

#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {

/// Decides sup |g_deployed - g_exact| <= claim. A witness is in y.
Finding prove_rounding(const BackwardHeader& h, double claim);

/// g_deployed - g_exact at one y.
Interval rounding_error_at(const BackwardHeader& h, float y, bool m);

/// What A and B of a row come to together, f32 headers.
enum class RowMeasure {
  sum,  ///< A + B
  /// (A + B) / ulp(g) where |g| >= kUlpFrom, for rows whose last operation adds something small to c0. Before
  /// it is rounded, that operation's result is within e of g, A and the other roundings: if the two share a
  /// binade, rounding costs at most half an ulp of g, and if not, no more than e. So the measure is at most
  /// 1/2 + e / ulp(g).
  ulps,
};
/// Decides the measure over all y, `fit_errors` the proven A of each row. Never Violated: B is an upper
/// bound.
Finding prove_rows(const BackwardHeader& h, const std::vector<double>& fit_errors, RowMeasure measure,
                   double claim);

/// Proven upper bounds of A, one a row; +inf where none was proven.
std::vector<double> row_fit_errors(const BackwardHeader& h);
/// The claims on A and B together, re-proved with each row's own A: kAB of f32 headers, and kUlp of two-word
/// ones.
std::vector<Finding> prove_row_claims(const BackwardHeader& h);

}  // namespace outgrad::validation
