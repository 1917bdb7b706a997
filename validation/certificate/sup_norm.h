// A rigorous bound of sup |E| over a real interval, E analytic around it: Chebyshev interpolation,
// Bernstein's truncation bound, and the inequality of Ehlich and Zeller for the maximum of a polynomial
// between sample points.
//
// On [m - r, m + r] let P interpolate E at the n + 1 points m + r cos(j pi / n). If |E| <= M on the disc of
// radius R = r (q + 1/q) / 2 about m, which holds the Bernstein ellipse of parameter q > 1, then |E - P| <= 4
// M q^-n / (q - 1) on the interval (Trefethen, Approximation Theory and Approximation Practice, theorem 8.2).
// P(m + r cos t) is a cosine sum of degree n; around a maximum of |P| it stays above max |P| cos(n |t - t0|)
// for |t - t0| <= pi / 2n (M. Riesz), and some point of the grid t = i pi / N lies within pi / 2N, so max |P|
// <= max over the grid / cos(n pi / 2N) for N > n (Ehlich and Zeller 1964).
#pragma once

#include <functional>

#include "validation/certificate/verdict.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {

/// A function of a real x that continues analytically to discs around the real axis.
struct AnalyticFunction {
  /// An enclosure of E over the points of x (narrow intervals).
  std::function<Interval(const Interval& x)> at;
  /// An upper bound of |E(z)| for |z - middle| <= radius; +inf where E was not shown to be analytic and
  /// bounded there.
  std::function<double(double middle, double radius)> disc_bound;
};

/// What was proved of sup |E|.
struct SupNorm {
  Verdict verdict = Verdict::Holds;
  double proven = 0;  // sup |E| <= proven; +inf when a part resisted
  double at = 0;  // where |E| was seen largest
  double observed = 0;  // a certified lower bound of |E(at)|
};

/// Decides sup |E| <= claim over [low, high]: Holds only if proven <= claim, Violated only if |E(at)| > claim
/// is certain.
SupNorm bound_sup_norm(const AnalyticFunction& error, double low, double high, double claim);

}  // namespace outgrad::validation
