// Everything here follows from mpfr_erfc and mpfr_exp under directed rounding; nothing is shared with
// approx/.
#include "validation/certificate/gelu_interval.h"

#include <cmath>

namespace outgrad::validation {
namespace {

const Interval& sqrt_two() {
  static const Interval value = sqrt(Interval(2));
  return value;
}

const Interval& sqrt_two_pi() {
  static const Interval value = sqrt(Interval(2) * Interval::pi());
  return value;
}

// A radius within which Newton's result is expected; the signs at the ends decide, so a wrong guess costs a
// retry, never soundness.
constexpr double kIsolationRadius = 0x1p-200;

Interval isolate_x_star() {
  Interval x = -0.75;
  // Newton doubles the correct bits; eight steps pass the precision from the two correct digits of the start.
  for (int step = 0; step < 8; ++step) x = (x - gelu_d1(x) / gelu_d2(x)).keep_lower();
  double radius = kIsolationRadius;
  while (!(gelu_d1(x - radius).negative() && gelu_d1(x + radius).positive())) radius *= 4;
  return hull(x - radius, x + radius);
}

}  // namespace

Interval normal_density(const Interval& x) { return exp(square(x) * -0.5) / sqrt_two_pi(); }

Interval normal_cdf(const Interval& x) { return erfc(-x / sqrt_two()) * 0.5; }

Interval gelu(const Interval& x) { return x * normal_cdf(x); }

Interval gelu_d1(const Interval& x) { return normal_cdf(x) + x * normal_density(x); }

Interval gelu_d2(const Interval& x) { return normal_density(x) * (Interval(2) - square(x)); }

Interval density_over_disc(double middle, double radius) {
  const Interval nearest = maximum(Interval(std::fabs(middle)) - radius, 0);
  return (exp((square(Interval(radius)) - square(nearest)) * 0.5) / sqrt_two_pi()).keep_upper();
}

const Interval& x_star() {
  static const Interval value = isolate_x_star();
  return value;
}

}  // namespace outgrad::validation
