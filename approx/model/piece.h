/// One row of a coefficient table while it is fitted: where it applies, what it approximates, what is known
/// of its error.
#pragma once

#include "approx/function/composite.h"
#include "approx/function/found.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace outgrad::approx {

/// What the polynomial approximates over the piece.
enum class Target {
  gradient,           ///< g, absolute error
  gradient_relative,  ///< g, relative error; where g vanishes, at s = 0, the row is centred there and c0 is 0
  value_relative,  ///< f / scale, relative error
  ratio_relative,  ///< f / x, relative error
};

/// Where the deployed sequence decides that a row is asked for.
enum class Region {
  core,  ///< by cells or break points of the index coordinate (s, or y without a mask)
  right,  ///< the same rows, from kRightS on evaluated in y
  right_mirrored,  ///< likewise from -kRightS downwards, where kRightBoth
  left,  ///< by the exponent of y
};

const char* to_string(Region r);

struct Piece {
  int row = 0;  ///< place in the table
  Region region = Region::core;
  Coordinate coordinate = Coordinate::identity;
  Target target = Target::gradient;
  /// arguments the row can be asked for; the fit and the certificate cover all of them
  Real x_lo, x_hi;
  double v_lo = 0, v_hi = 0;  ///< the same range in the piece's coordinate, rounded outward
  bool left_tail = false;  ///< also every x < x_lo, by the activation's tail bound
  bool right_tail = false;  ///< also every x > x_hi
  double nominal_centre = 0;  ///< the centre is searched for next to it, unless `anchor` pins it
  bool centre_is_0 = false;  ///< the fit is not centred
  struct Anchor {
    float centre, c0;
    std::optional<float> c1 = std::nullopt;
  };
  std::optional<Anchor> anchor;  ///< exact value at the centre, and the slope there
  double allowed = 0;  ///< error that the row may have
  bool two_word = false;  ///< c_0 has a low part, so that only the others lose to rounding
  bool compensated = false;  ///< evaluated by evaluate_compensated, with c_1 + c1_low for c_1
  float c1_low = 0;
  bool constant = false;  ///< the anchor's value everywhere, which is exact: nothing to fit
  double scale = 1;  ///< power of two; the polynomial approximates f/scale

  // results
  double real_centre = 0;  ///< centre of `real`
  std::vector<Real> real;  ///< the best real coefficients found, before rounding
  int degree = 0;  ///< the row's own; leading coefficients above it are 0
  /// fitted to storage intervals, not to g: lower_bound and minimax, if any, are of its degree and not of it
  bool storage_aware = false;
  float centre = 0;
  std::vector<float> c;  ///< c_0 ... c_degree
  float c0_low = 0;  ///< the low part of a two-word row's c_0
  double lower_bound = 0;  ///< de la Vallee-Poussin: no real coefficients of this degree do better
  double minimax = 0;  ///< error of the best real coefficients found, on the samples
  double minimax_certified = 0;  ///< proven bound of the error of `real`
  double observed = 0;  ///< error of the rounded coefficients, max over the samples
  /// the same over the samples that the deployed sequence asks the row for: a piece is a little wider
  Found found;
  double certified = 0;  ///< proven bound of the same over the piece (A)
  double ulp = 0;  ///< a two-word row's proven bound of A + B in ulp of g, where |g| >= kUlpFrom
  double evaluation = 0;  ///< proven bound on the rounding of the deployed sequence (B)

  /// Word k of the row as deployed: the centre, the coefficients, the low part of c_0.
  [[nodiscard]] float word(int k) const {
    const auto at = static_cast<size_t>(k);
    return k == 0 ? centre : at <= c.size() ? c[at - 1] : c0_low;
  }
  /// The x without the tails, outward to doubles: proofs cover a little more than the piece.
  [[nodiscard]] std::pair<double, double> outer_range() const {
    return {std::nextafter(static_cast<double>(x_lo), -INFINITY),
            std::nextafter(static_cast<double>(x_hi), INFINITY)};
  }
};

}  // namespace outgrad::approx
