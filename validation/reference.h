// A fast, libm-free double reference for GELU and SiLU with proven error bounds: what decides the bulk of an exhaustive sweep.
//
// GELU, f(x) = x Phi(x). The line is cut into cells of width 2^-7 around a = j / 128, -15 <= a <= 9; d = x - a is exact in binary64 for every
// binary32 x (both are multiples of 2^-31 below 16 where a != 0), |d| <= D = 2^-8. With phi the normal density and He_n the probabilists'
// Hermite polynomials, phi^(n) = (-1)^n He_n phi, so
//   Phi(a + d) = Phi(a) + sum_{n>=1} (-1)^(n-1) He_{n-1}(a) phi(a) / n! d^n                       degree 8
//   f'(a + d)  = f'(a)  + sum_{n>=1} (-1)^(n-1) (He_{n-1}(a) - He_{n+1}(a)) phi(a) / n! d^n       degree 6
// (the second from f'^(n) = (n+1) phi^(n-1) + x phi^(n) and x He_n = He_{n+1} + n He_{n-1}). The coefficients come from MPFR and are
// rounded once. Per cell, with u = 2^-53, X and x0 the largest and least |x| in it, and |He|_n the Hermite polynomial with the absolute
// values of its coefficients:
//   truncation (Lagrange)   <= |He|_8(X) phi(x0) D^9 / 9!                 for Phi
//                           <= (|He|_6(X) + |He|_8(X)) phi(x0) D^7 / 7!   for f'
//   coefficients            <= u sum |c_n| D^n
//   Horner by fma           <= u (sum |c_n| D^n + sum n |c_n| D^n)        (step k rounds a partial sum of at most sum_{i>=k} |c_i| D^(i-k),
//                                                                         which later steps multiply by d^k)
// and second-order terms stay below a factor 1 + 2^-40. For f' the sum is an absolute bound. For Phi it is divided by the least Phi of the
// cell, Phi(a - D), and the product x Phi adds u: a *relative* bound on f, also on the left tail, where Phi(-15) is about 4e-51. The
// constructor evaluates these sums for every cell with outward rounding and refuses to exist if one exceeds the constants below.
//
// Outside the cells, and where only the side of a rounding boundary matters:
//   |x| < 2^-53   x/2 < f(x) < x/2 + 0.4 x^2: f lies above the real x/2 (which may be a tie) by less than |x| 2^-54. The proxy
//                 x/2 + |x| 2^-52 is on the same side, and no boundary of a format of at most 24 bits lies between (the nearest is |x| 2^-26
//                 away from x/2). Its relative error is below 2^-50.
//   x >= 9        x (1 - Q(9)) < f(x) < x with Q(9) < 2^-62: the proxy x - x 2^-52 lies below x like f, within a relative 2^-51, and the next
//                 boundary is a relative 2^-26 away. |f' - 1| <= x phi(x) <= 9 phi(9) < 2^-56.
//   x < -15 - D   |f| < phi(15) < 2^-163 and |f'| <= |x| phi(x) < 2^-159: f rounds to -0 in every format, whose least midpoint is 2^-150.
//                 The proxy is -2^-163. Here alone the value has no relative bound.
//
// SiLU, f(x) = x sigma(x), in the same way: cells of the same width on -120 <= a <= 44, where |x| < 128 keeps d exact. With s_n the Taylor
// coefficients of sigma at a, from sigma' = sigma - sigma^2: (n + 1) s_(n+1) = s_n - sum s_i s_(n-i), those of f' are
// (n + 1) (a s_(n+1) + s_n). On the disc |z - a| <= rho = 3/2 < pi/2 the real part of e^z is positive, so |sigma| <= min(1, e^(a+rho)) there,
// and as sigma(z) = 1 - sigma(-z), for n >= 1 Cauchy gives |s_n| <= M rho^-n with M = e^(rho-|a|) and also <= min(1, e^(a+rho)) rho^-n:
//   truncation  <= M q^9 / (1 - q)                                   for sigma, q = D / rho
//               <= (|a| / rho + 1) M sum_{n>=7} (n + 1) q^n          for f'
// Coefficients and Horner as above; for sigma the sum is divided by sigma(a - D). Outside the cells:
//   |x| < 2^-53   x/2 < f(x) < x/2 + x^2/4: as for GELU.
//   x >= 44       x (1 - sigma(-x)) with sigma(-44) < 2^-63: as for GELU; |f' - 1| <= x exp(-x) < 2^-57.
//   x < -120 - D  |f|, |f'| < |x| exp(x) < 2^-165: as for GELU.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "validation/oracle.h"

namespace outgrad::validation {

/// f and f' for every finite binary32 x. Immutable after construction: threads may share it.
class Reference {
 public:
  static constexpr double kDerivativeBound = 0x1p-51;  // absolute, every finite x
  static constexpr double kValueBound = 0x1p-50;       // relative, right of the left tail

  virtual ~Reference() = default;

  /// derivative[i] is within kDerivativeBound of f'(x[i]); value[i] within kValueBound, relative, of f(x[i]), and the real f(x[i]) is
  /// certain to round, in every FloatFormat, to one of the roundings of value_lo[i] <= value[i] <= value_hi[i]. All arrays hold n
  /// elements, x finite in any order; runs of neighbouring x in one cell are what is fast.
  virtual void evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative, std::int64_t n) const = 0;

  /// Largest of the per-cell bounds of the derivation above, rounded up: absolute for f', relative for f.
  double proven_derivative_bound() const { return proven_derivative_bound_; }
  double proven_value_bound() const { return proven_value_bound_; }

 protected:
  static constexpr int kCdfDegree = 8;
  static constexpr int kDerivativeDegree = 6;

  /// Phi or sigma, and f', as polynomials in x - centre.
  struct Cell {
    double centre;
    double cdf[kCdfDegree + 1];
    double derivative[kDerivativeDegree + 1];
  };

  /// Takes the cell into the bounds: the truncations given, absolute, and the rounding of its coefficients and of Horner's rule.
  void prove(const Cell& cell, double cdf_truncation, double least_cdf, double derivative_truncation);
  /// Throws std::logic_error if a cell exceeds what is claimed.
  void require_proven() const;

  std::vector<Cell> cells_;

 private:
  double proven_derivative_bound_ = 0;
  double proven_value_bound_ = 0;
};

class GeluReference final : public Reference {
 public:
  GeluReference();
  /// The process-wide instance (MPFR takes about a second to build its tables).
  static const GeluReference& instance();
  void evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative, std::int64_t n) const override;

 private:
  Cell make_cell(int j, GeluOracle& oracle);
};

class SiluReference final : public Reference {
 public:
  SiluReference();
  static const SiluReference& instance();
  void evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative, std::int64_t n) const override;

 private:
  Cell make_cell(int j, SiluOracle& oracle);
};

/// v rounded to nearest even in `format` (zeros keep v's sign, overflow gives an infinity): binary64 operations only, vectorisable. The last
/// place 2^q of the format at |v| decides: the sum v + 1.5 * 2^(52 + q) has that ulp, and ties go to even in it as they do in the format.
inline double round_to_format(double v, const FloatFormat& format) {
  constexpr std::int64_t kBias = 1023, kFraction = 52;
  const auto bits = std::bit_cast<std::int64_t>(v);
  const std::int64_t exponent = ((bits >> kFraction) & 0x7ff) - kBias;
  const std::int64_t last_place = std::max<std::int64_t>(exponent - format.precision + 1, format.quantum_exponent);
  const double shift = std::bit_cast<double>(((last_place + kFraction + kBias) << kFraction) | (std::int64_t{1} << (kFraction - 1)));
  const double rounded = (v + shift) - shift;
  const double capped = std::fabs(rounded) > format.largest ? std::numeric_limits<double>::infinity() : rounded;
  return std::copysign(capped, v);
}

/// y[i] = f(x[i]) correctly rounded to `format`, widened: from the enclosures of Reference::evaluate where both ends round alike, else
/// by `oracle`. Returns how many of the n elements the oracle decided.
std::int64_t round_values(const float* x, const double* value_lo, const double* value_hi, float* y, std::int64_t n, const FloatFormat& format,
                          Oracle& oracle);

}  // namespace outgrad::validation
