// GELU and SiLU by MPFR under directed rounding; see oracle.h.

#include "validation/exact/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace outgrad::validation {
namespace {

// Enough for every binary32 argument. The hardest are the subnormals, where f(x) = x/2 + x^2/sqrt(2 pi) lies
// a relative 2^-149 from a tie.
constexpr mpfr_prec_t kFirstPrecision = 96;
constexpr mpfr_prec_t kLastPrecision = 1 << 13;
constexpr mpfr_prec_t kSquarePrecision = 2 * std::numeric_limits<double>::digits;  // x * x is exact

// Right of this, x (1 - 2^-108) < f(x) < x, because Q(12) < 2^-108. Rounding boundaries differ from binary64
// x by a relative 2^-54 or not at all, so f rounds like any number in (x (1 - 2^-54), x). With enclosures
// alone, a tie at x would take x^2 bits to decide.
constexpr double kGeluDecidedByLess = 12;
// The same for SiLU, as sigma(-80) < 2^-115.
constexpr double kSiluDecidedByLess = 80;
// Here |f| is below the least subnormal of every format, so an inverse need not search further left: |f| <
// phi(64) < 2^-2900 for GELU, and |f| < 1024 exp(-1024) < 2^-1460 for SiLU.
constexpr double kGeluLeftEnd = -64, kSiluLeftEnd = -1024;

/// Doubles the precision until `decide(precision)` answers true.
template <class Decide>
void until_decided(Decide decide) {
  for (mpfr_prec_t precision = kFirstPrecision; precision <= kLastPrecision; precision *= 2) {
    if (decide(precision)) return;
  }
  throw std::logic_error("oracle: no decision at the largest working precision");
}

void multiply_outwards(double x, Real& lo, Real& hi) {
  if (x < 0) mpfr_swap(lo.get(), hi.get());
  mpfr_mul_d(lo.get(), lo.get(), x, MPFR_RNDD);
  mpfr_mul_d(hi.get(), hi.get(), x, MPFR_RNDU);
}

/// One ulp would be undecidable next to a binary64 number, such as 1, which f' approaches from x = 9 on.
bool at_most_two_ulps_apart(const DoubleBounds& bounds) {
  constexpr double kUp = std::numeric_limits<double>::infinity();
  return bounds.hi <= std::nextafter(std::nextafter(bounds.lo, kUp), kUp);
}

void require_finite(double x) {
  if (!std::isfinite(x)) throw std::invalid_argument("oracle: the argument must be finite");
}

}  // namespace

double round_to_format(const Real& v, const FloatFormat& format) {
  if (mpfr_zero_p(v.get())) return mpfr_signbit(v.get()) ? -0.0 : 0.0;
  // |v| lies in [2^(e-1), 2^e). The last significand bit has the weight 2^(e - precision), but never less
  // than the subnormal quantum.
  const mpfr_exp_t quantum =
      std::max<mpfr_exp_t>(mpfr_get_exp(v.get()) - format.precision, format.quantum_exponent);
  Real scaled(mpfr_get_prec(v.get()));
  mpfr_mul_2si(scaled.get(), v.get(), -quantum, MPFR_RNDN);
  mpfr_roundeven(scaled.get(), scaled.get());
  mpfr_mul_2si(scaled.get(), scaled.get(), quantum, MPFR_RNDN);
  const double rounded = mpfr_get_d(scaled.get(), MPFR_RNDN);
  const double magnitude =
      std::fabs(rounded) > format.largest ? std::numeric_limits<double>::infinity() : std::fabs(rounded);
  return mpfr_signbit(v.get()) ? -magnitude : magnitude;
}

double Oracle::value(double x, const FloatFormat& format) {
  require_finite(x);
  if (x == 0) return x;
  if (x >= decided_by_less_) {
    Real below(kFirstPrecision);
    mpfr_set_d(below.get(), x, MPFR_RNDN);
    mpfr_nextbelow(below.get());
    return round_to_format(below, format);
  }
  double result = 0;
  until_decided([&](mpfr_prec_t precision) {
    Real lo(precision), hi(precision);
    enclose_value(x, lo, hi);
    result = round_to_format(lo, format);
    return result == round_to_format(hi, format);
  });
  return std::copysign(result, x);
}

double Oracle::derivative(double x) {
  double result = 0;
  until_decided([&](mpfr_prec_t precision) {
    Real lo(precision), hi(precision);
    enclose_derivative(x, lo, hi);
    result = mpfr_get_d(lo.get(), MPFR_RNDN);
    return result == mpfr_get_d(hi.get(), MPFR_RNDN);
  });
  return result;
}

DoubleBounds Oracle::bounds(double x, void (Oracle::*enclose)(double, Real&, Real&)) {
  DoubleBounds bounds{};
  until_decided([&](mpfr_prec_t precision) {
    Real lo(precision), hi(precision);
    (this->*enclose)(x, lo, hi);
    bounds = {mpfr_get_d(lo.get(), MPFR_RNDD), mpfr_get_d(hi.get(), MPFR_RNDU)};
    return at_most_two_ulps_apart(bounds);
  });
  return bounds;
}

double Oracle::derivative_at_value(double y, bool right_branch) {
  constexpr double kFar = 64;
  if (right_branch ? y >= kFar : y >= 0) return right_branch ? 1.0 : 0.0;
  Real lo(kFirstPrecision), hi(kFirstPrecision);
  // f(x) > y, decided to a relative 2^-90; an x on the wrong side moves g by less than that
  const auto above = [&](double x) {
    enclose_value(x, lo, hi);
    return mpfr_cmp_d(lo.get(), y) > 0;
  };
  double near = x_star_, far = right_branch ? kFar : left_end_;
  if (!above(near)) {
    while (std::nextafter(near, far) != far) {
      const double middle = near + (far - near) / 2;
      (above(middle) ? far : near) = middle;
    }
  }
  return derivative(near);
}

GeluOracle::GeluOracle() : Oracle(kGeluXStar, kGeluDecidedByLess, kGeluLeftEnd) {}

void GeluOracle::enclose_cdf(double x, Real& lo, Real& hi) {
  require_finite(x);
  Real half_square(kSquarePrecision);
  mpfr_set_d(half_square.get(), x, MPFR_RNDN);
  mpfr_sqr(half_square.get(), half_square.get(), MPFR_RNDN);
  mpfr_div_2ui(half_square.get(), half_square.get(), 1, MPFR_RNDN);
  // z = -x / sqrt 2 in [hi, lo], because erfc decreases: lo uses the larger z.
  const bool left = x < 0;
  mpfr_sqrt(lo.get(), half_square.get(), left ? MPFR_RNDU : MPFR_RNDD);
  mpfr_sqrt(hi.get(), half_square.get(), left ? MPFR_RNDD : MPFR_RNDU);
  if (!left) {
    mpfr_neg(lo.get(), lo.get(), MPFR_RNDN);
    mpfr_neg(hi.get(), hi.get(), MPFR_RNDN);
  }
  mpfr_erfc(lo.get(), lo.get(), MPFR_RNDD);
  mpfr_erfc(hi.get(), hi.get(), MPFR_RNDU);
  mpfr_div_2ui(lo.get(), lo.get(), 1, MPFR_RNDD);
  mpfr_div_2ui(hi.get(), hi.get(), 1, MPFR_RNDU);
}

void GeluOracle::enclose_value(double x, Real& lo, Real& hi) {
  enclose_cdf(x, lo, hi);
  multiply_outwards(x, lo, hi);
}

void GeluOracle::enclose_derivative(double x, Real& lo, Real& hi) {
  enclose_density(x, lo, hi);
  multiply_outwards(x, lo, hi);
  Real cdf_lo(mpfr_get_prec(lo.get())), cdf_hi(mpfr_get_prec(hi.get()));
  enclose_cdf(x, cdf_lo, cdf_hi);
  mpfr_add(lo.get(), lo.get(), cdf_lo.get(), MPFR_RNDD);
  mpfr_add(hi.get(), hi.get(), cdf_hi.get(), MPFR_RNDU);
}

void GeluOracle::enclose_density(double x, Real& lo, Real& hi) {
  Real exponent(kSquarePrecision);
  mpfr_set_d(exponent.get(), x, MPFR_RNDN);
  mpfr_sqr(exponent.get(), exponent.get(), MPFR_RNDN);
  mpfr_div_2ui(exponent.get(), exponent.get(), 1, MPFR_RNDN);
  mpfr_neg(exponent.get(), exponent.get(), MPFR_RNDN);
  const auto one_side = [&](Real& side, mpfr_rnd_t away, mpfr_rnd_t back) {
    Real root(mpfr_get_prec(side.get()));
    mpfr_const_pi(root.get(), back);
    mpfr_mul_2ui(root.get(), root.get(), 1, back);
    mpfr_sqrt(root.get(), root.get(), back);
    mpfr_exp(side.get(), exponent.get(), away);
    mpfr_div(side.get(), side.get(), root.get(), away);
  };
  one_side(lo, MPFR_RNDD, MPFR_RNDU);
  one_side(hi, MPFR_RNDU, MPFR_RNDD);
}

SiluOracle::SiluOracle() : Oracle(kSiluXStar, kSiluDecidedByLess, kSiluLeftEnd) {}

void SiluOracle::enclose_sigmoid(double x, Real& lo, Real& hi) {
  require_finite(x);
  const auto one_side = [x](Real& side, mpfr_rnd_t away, mpfr_rnd_t back) {
    mpfr_set_d(side.get(), -x, MPFR_RNDN);
    mpfr_exp(side.get(), side.get(), back);
    mpfr_add_ui(side.get(), side.get(), 1, back);
    mpfr_ui_div(side.get(), 1, side.get(), away);
  };
  one_side(lo, MPFR_RNDD, MPFR_RNDU);
  one_side(hi, MPFR_RNDU, MPFR_RNDD);
}

void SiluOracle::enclose_value(double x, Real& lo, Real& hi) {
  enclose_sigmoid(x, lo, hi);
  multiply_outwards(x, lo, hi);
}

void SiluOracle::enclose_derivative(double x, Real& lo, Real& hi) {
  enclose_sigmoid(-x, lo, hi);
  multiply_outwards(x, lo, hi);
  mpfr_add_ui(lo.get(), lo.get(), 1, MPFR_RNDD);
  mpfr_add_ui(hi.get(), hi.get(), 1, MPFR_RNDU);
  Real sigmoid_lo(mpfr_get_prec(lo.get())), sigmoid_hi(mpfr_get_prec(hi.get()));
  enclose_sigmoid(x, sigmoid_lo, sigmoid_hi);
  mpfr_mul(lo.get(), lo.get(), mpfr_signbit(lo.get()) ? sigmoid_hi.get() : sigmoid_lo.get(), MPFR_RNDD);
  mpfr_mul(hi.get(), hi.get(), mpfr_signbit(hi.get()) ? sigmoid_lo.get() : sigmoid_hi.get(), MPFR_RNDU);
}

}  // namespace outgrad::validation
