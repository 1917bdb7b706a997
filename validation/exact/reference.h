// A fast, libm-free double reference with proven error bounds for every activation. It decides the bulk of an
// exhaustive sweep.
//
// The line is cut into cells [l, r] with dyadic ends and middle a, |d| = |x - a| <= D. d is exact in binary64
// for every binary32 x of the cell, since both are multiples of D 2^-23. In a cell, f and f' are polynomials
// in d, of degree 8 and 6. Their coefficients are the Taylor coefficients c_n of f at a from Function::taylor
// at 112 bits, rounded once; those of f' are (n + 1) c_(n+1). For each cell, let u = 2^-53, let C_n be the
// interval that encloses the exact coefficient, and let T_n be an enclosure of coefficient n over the whole
// cell (Function::taylor of the interval [l, r], 64 bits):
//   truncation (Lagrange)  <= |T_9| D^9 for f,  8 |T_8| D^7 for f'
//   coefficients           <= sum sup |C_n - c_n| D^n
//   Horner by fma          <= u sum (1 + n) |c_n| D^n   (step k rounds a partial sum of at most
//                          sum_{i>=k} |c_i| D^(i-k), which later steps multiply by d^k)
// and second-order terms stay below a factor 1 + 2^-40. For f' the sum is an absolute bound. For f it is
// divided by the least |f| of the cell, inf |T_0|, which gives a *relative* bound, also on tails that vanish.
// If f(0) = 0, one cell has its middle at 0. There f is d times the polynomial of f(x) / x, whose
// coefficients are c_1, c_2, ...: the truncation is |T_10| D^9, the least |f(x) / x| is inf |T_1| (the mean
// of f' between 0 and x), and the product adds u.
// A cell whose sums exceed the constants below is halved, so that the bounds hold by construction.
//
// Outside the cells only the side of a rounding boundary matters, and f is replaced by proxies: numbers
// between the same boundaries of every format of at most 24 bits (Ends has the facts of each activation).
// Boundaries are at least a relative 2^-25 apart.
//   x < L, limit 0      |f(x)| <= |f(L)| <= 2^-151 as f is monotone there: f rounds to a zero of its sign in
//                       every format, whose least midpoint is 2^-150. The proxy is 2^-163 with that sign.
//                       Here alone the value has no relative bound.
//   x < L, limit -1     -1 < f(x) <= f(L) <= -1 + 2^-54: the proxy is -1 + 2^-53.
//   x >= R, below x     x (1 - 2^-53) <= f(x) < x, as f(x) / x rises and f(R) / R >= 1 - 2^-53: the proxy is
//                       x - x 2^-52; above x likewise x + x 2^-52, as f(x) - x falls and is at most 2^-53 R
//                       at R.
//   x >= R, limit 1     1 - 2^-54 <= f(x) < 1: the proxy is 1 - 2^-53.
//   x >= 0, is x        elu: f(x) = x, and so is the proxy.
//   |x| < 2^-53         f(x) = x f'(0) + x^2 f''(xi) / 2 with f'(0) = p / q (1/2, 3/5 or 1): x p / q is a
//                       boundary, or at least a relative 2^-29 from one, and f lies by less than a relative
//                       2^-52 on the side of the next term. The proxy is x p / q and 2^-52 |x| on that side.
// L and R are the integers nearest to 0 for which intervals prove this, and prove |f' - limit| <= 2^-52
// beyond them (Formula::slopes).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "validation/exact/activation.h"
#include "validation/exact/oracle.h"

namespace outgrad::validation {

/// The behaviour of f at 0 and far out. These are facts of analysis that no enclosure over an interval could
/// show.
struct Ends {
  enum class Right { below_x, above_x, below_one, is_x };

  double left_limit;  // the limit of f at -inf: 0 or -1
  int left_side;  // f lies above that limit (1) or below it (-1)
  Right right;  // f(x) / x rises to 1; f(x) - x falls to 0; f rises to 1; f(x) = x for x >= 0
  bool zero_at_zero;  // f(0) = 0, with f'(0) = slope
  double slope_p, slope_q;  // f'(0) = p / q if f(0) = 0
  int next_even, next_odd;  // f(x) - x f'(0) has the sign of next_even + next_odd sign(x), for x near 0

  /// A number that lies between the same boundaries of every FloatFormat as f(x), for x so far out or so near
  /// 0 that the facts above decide.
  double beyond_left() const;
  double beyond_right(double x) const;
  double near_zero(double x) const;
};

/// What Reference::evaluate gives of some x.
struct ReferenceValues {
  std::vector<double> value, low, high, slope;
};

/// f and f' for every finite binary32 x. Immutable after construction, so threads may share it.
class Reference {
 public:
  static constexpr double kDerivativeBound = 0x1p-51;  // absolute, every finite x
  static constexpr double kValueBound = 0x1p-50;  // relative, except where f rounds to zero

  /// Throws std::logic_error if an enclosure contradicts a fact of Ends.
  Reference(const Activation& activation, const Ends& ends);

  /// derivative[i] is within kDerivativeBound of f'(x[i]), and value[i] is within kValueBound, relative, of
  /// f(x[i]). In every FloatFormat, the real f(x[i]) is certain to round to one of the roundings of
  /// value_lo[i] <= value[i] <= value_hi[i]. All arrays hold n elements, with finite x in any order; runs of
  /// neighbouring x in one cell are fast.
  void evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative,
                std::int64_t n) const;
  ReferenceValues at(std::span<const float> x) const;
  /// f' at one x.
  double slope_at(float x) const;

  /// The largest of the per-cell bounds of the derivation above, rounded up: absolute for f', relative for f.
  double proven_derivative_bound() const { return proven_derivative_bound_; }
  double proven_value_bound() const { return proven_value_bound_; }
  /// L and R; R = 0 if f(x) = x from 0 on.
  float left() const { return left_; }
  float right() const { return right_; }
  /// The ends of cells in ascending order, including L and R.
  std::vector<float> edges() const;

 private:
  static constexpr int kValueDegree = 8;
  static constexpr int kDerivativeDegree = 6;

  struct Cell {
    float from, to;
    bool times_d;  // whether f is d times the polynomial
    double centre;
    double value[kValueDegree + 1];
    double derivative[kDerivativeDegree + 1];
    double value_bound, derivative_bound;
  };
  enum class Kind { left_tail, cell, near_zero, right_tail };
  struct Piece {
    float from, to;  // x in [from, to)
    Kind kind;
    std::size_t cell;
  };

  /// 0 and the cell if its bounds hold; otherwise how often the width should be halved.
  static int prove(const Function& f, float from, float to, bool at_zero, Cell& cell);
  static void cover(const Function& f, float from, float to, std::vector<Cell>& cells);
  const Piece& piece_of(float x) const;

  Ends ends_;
  float left_ = 0, right_ = 0;
  std::vector<Cell> cells_;
  std::vector<Piece> pieces_;
  std::vector<float> starts_;  // pieces_[i].from
  double proven_derivative_bound_ = 0;
  double proven_value_bound_ = 0;
};

/// v rounded to nearest even in `format` (zeros keep v's sign, and overflow gives an infinity). Uses only
/// binary64 operations, and can be vectorised. The last place 2^q of the format at |v| decides: the sum v +
/// 1.5 * 2^(52 + q) has that ulp, and ties go to even in it as they do in the format.
inline double round_to_format(double v, const FloatFormat& format) {
  constexpr std::int64_t kBias = 1023, kFraction = 52;
  const auto bits = std::bit_cast<std::int64_t>(v);
  const std::int64_t exponent = ((bits >> kFraction) & 0x7ff) - kBias;
  const std::int64_t last_place =
      std::max<std::int64_t>(exponent - format.precision + 1, format.quantum_exponent);
  const double shift = std::bit_cast<double>(((last_place + kFraction + kBias) << kFraction) |
                                             (std::int64_t{1} << (kFraction - 1)));
  const double rounded = (v + shift) - shift;
  const double capped =
      std::fabs(rounded) > format.largest ? std::numeric_limits<double>::infinity() : rounded;
  return std::copysign(capped, v);
}

/// n numbers x, and the enclosures of f(x) that Reference::evaluate gives.
struct EnclosedValues {
  const float* x;
  const double *low, *high;
  std::int64_t n;
};

/// Sets y[i] to f(x[i]) correctly rounded to `format`, widened. The enclosures are used if both ends round
/// alike, and otherwise `oracle`. Returns how many of the n elements the oracle decided.
std::int64_t round_values(const EnclosedValues& values, float* y, const FloatFormat& format, Oracle& oracle);

}  // namespace outgrad::validation
