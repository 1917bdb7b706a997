// Any activation by MPFR intervals; see function_oracle.h.

#include "validation/exact/function_oracle.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace outgrad::validation {
namespace {

/// use(derivative number N of f over the point x), at the least of kOraclePrecisions that is at least `bits`.
template <int N, std::size_t kLevel = 0, class Use>
void enclose(const Function& f, double x, mpfr_prec_t bits, const Use& use) {
  if constexpr (kLevel == kOraclePrecisions.size()) {
    throw std::logic_error("oracle: no decision at the largest working precision");
  } else {
    if (bits <= kOraclePrecisions[kLevel]) {
      use(f.at<N>(OracleInterval<kLevel>(x))[N]);
    } else {
      enclose<N, kLevel + 1>(f, x, bits, use);
    }
  }
}

template <int N>
void enclose(const Function& f, double x, Real& lo, Real& hi) {
  if (!std::isfinite(x)) throw std::invalid_argument("oracle: the argument must be finite");
  enclose<N>(f, x, mpfr_get_prec(lo.get()), [&](const auto& v) {
    mpfr_set(lo.get(), v.lower_end(), MPFR_RNDD);
    mpfr_set(hi.get(), v.upper_end(), MPFR_RNDU);
  });
}

}  // namespace

FunctionOracle::FunctionOracle(const Activation& activation, const Ends& ends, double x_star)
    : Oracle(x_star, std::numeric_limits<double>::infinity(), activation.formulas().front().far_low),
      activation_(activation), ends_(ends), x_star_(x_star) {}

void FunctionOracle::enclose_value(double x, Real& lo, Real& hi) {
  enclose<0>(activation_.formula_at(x).f, x, lo, hi);
}
void FunctionOracle::enclose_derivative(double x, Real& lo, Real& hi) {
  enclose<1>(activation_.formula_at(x).f, x, lo, hi);
}

double FunctionOracle::value(double x, const FloatFormat& format) {
  if (x == 0 && ends_.zero_at_zero) return x;
  std::pair<double, double> ends{0, 1};
  for (const int bits : kOraclePrecisions) {
    Real lo(bits), hi(bits);
    enclose_value(x, lo, hi);
    ends = {round_to_format(lo, format), round_to_format(hi, format)};
    if (ends.first == ends.second) break;
  }
  // Far out, f(x) may be nearer to a boundary than 2^-2048.
  constexpr double kFar = 512;
  if (ends.first != ends.second) {
    if (std::fabs(x) < kFar) throw std::logic_error("oracle: no decision at the largest working precision");
    ends.first = round_to_format(x < 0 ? ends_.beyond_left() : ends_.beyond_right(x), format);
  }
  if (ends_.zero_at_zero) return std::copysign(ends.first, x);
  return std::fabs(ends.first);  // sigmoid and softplus are positive
}

double FunctionOracle::derivative_at_value(double y, bool right_branch) {
  const bool masked = std::isfinite(x_star_);
  const Formula& formula =
      masked || y < 0 || !ends_.zero_at_zero ? activation_.formulas().front() : activation_.formulas().back();
  if (formula.f == Function::parse("x")) return 1;
  // f(x) > y, decided to a relative 2^-100 or so; an x on the wrong side moves g by less than that
  const auto above = [&](double x) {
    return mpfr_cmp_d(formula.f.at<0>(OracleInterval<0>(x))[0].lower_end(), y) > 0;
  };
  // Beyond the beginnings of the tails, f' is within 2^-80 of its limit.
  double low = masked && right_branch ? x_star_ : formula.far_low,
         high = masked && !right_branch ? x_star_ : formula.far_high;
  const bool rises = right_branch || !masked;
  if (above(rises ? low : high)) return rises && masked ? 0.0 : derivative(rises ? low : high);
  if (!above(rises ? high : low)) {
    const double limit = rises && ends_.right != Ends::Right::below_one ? 1 : 0;
    return std::isfinite(formula.high) && rises ? derivative(high) : limit;
  }
  while (std::nextafter(low, high) != high) {
    const double middle = low + (high - low) / 2;
    (above(middle) == rises ? high : low) = middle;
  }
  return derivative(rises ? low : high);
}

}  // namespace outgrad::validation
