// Everything here follows from mpfr_erfc and mpfr_exp under directed rounding; nothing is shared with approx/.
#include "validation/gelu_interval.h"

#include <cmath>
#include <limits>
#include <numbers>

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

// A radius within which Newton's result is expected; the signs at the ends decide, so a wrong guess costs a retry, never soundness.
constexpr double kIsolationRadius = 0x1p-200;

Interval isolate_x_star() {
  Interval x = -0.75;
  // Newton doubles the correct bits; eight steps pass the precision from the two correct digits of the start.
  for (int step = 0; step < 8; ++step) x = (x - gelu_d1(x) / gelu_d2(x)).keep_lower();
  double radius = kIsolationRadius;
  while (!(gelu_d1(x - radius).negative() && gelu_d1(x + radius).positive())) radius *= 4;
  return hull(x - radius, x + radius);
}

// x with s(x) near s, no guarantee: a start by bisection in double (next to x*, where double cancels, by s'(x*)), then Newton.
Interval approximate_inverse(const Interval& s) {
  const double target = s.middle(), y = y_star().middle() + target * target, minimum = x_star().middle();
  double below = target < 0 ? -40.0 : minimum, above = target < 0 ? minimum : y + 2;  // f(x) > x - 0.2 for x >= 0
  for (int step = 0; step < 64; ++step) {
    const double x = below + (above - below) / 2;
    const bool right_of = (x / 2 * std::erfc(-x * std::numbers::sqrt2 / 2) > y) == (target > 0);
    (right_of ? above : below) = x;
  }
  static const double slope_at_minimum = sqrt(gelu_d2(x_star()) * 0.5).middle();
  constexpr double kNear = 0x1p-10;  // there bisection has 2^-42 of x - x*, the linear start 2^-10: Newton needs no more
  Interval x = std::fabs(target) < kNear ? (x_star() + s / slope_at_minimum).keep_lower() : Interval(below);
  for (int step = 0; step < 10; ++step) {
    const Interval root = signed_root(x).keep_lower();
    const Interval next = (x - (root - s) * root * 2 / gelu_d1(x)).keep_lower();
    const double moved = (next - x).magnitude();
    if (!std::isfinite(moved)) break;
    x = next;
    if (moved < 0x1p-100) break;  // the next step would be below 2^-190
  }
  return x;
}

Interval inverse_at(const Interval& s) {
  // Then s^2 + y* > -2^-200, whereas f(-16) < -2^-187.
  if (!certainly_less(s_infimum(), s)) return {-std::numeric_limits<double>::infinity(), -16.0};
  const Interval x = s.contains_zero() ? x_star() : approximate_inverse(s);
  double radius = 0x1p-180;
  while (true) {
    const Interval low = (x - radius).keep_lower(), high = (x + radius).keep_upper();
    if (certainly_less(signed_root(low), s) && certainly_less(s, signed_root(high))) return hull(low, high);
    radius *= 16;
  }
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

Interval gelu_d2_over_disc(double middle, double radius) {
  return density_over_disc(middle, radius) * (square(Interval(std::fabs(middle)) + radius) + 2);
}

const Interval& x_star() {
  static const Interval value = isolate_x_star();
  return value;
}

const Interval& y_star() {
  static const Interval value = gelu(x_star());
  return value;
}

const Interval& s_infimum() {
  static const Interval value = -sqrt(-y_star());
  return value;
}

Interval signed_root(const Interval& x) {
  const Interval root = sqrt(gelu(x) - y_star());
  if (certainly_less(x_star(), x)) return root;
  if (certainly_less(x, x_star())) return -root;
  return symmetric(root);
}

Interval inverse_signed_root(const Interval& s) {
  const Interval low = inverse_at(s.keep_lower());
  return s.is_point() ? low : hull(low, inverse_at(s.keep_upper()));
}

Interval g_slope(const Interval& s) {
  const Interval x = inverse_signed_root(s);
  // dx/ds = 2 s / f'(x). With f(x) - y* = (x - x*)^2 h and f'(x) = (x - x*) k, h a mean of f''/2 and k a mean of f'' between x* and x,
  // dx/ds = 2 sqrt(h) / k, which has no 0/0 at x*.
  const Interval between = gelu_d2(hull(x, x_star()));
  const Interval by_means = gelu_d2(x) * sqrt(between * 2) / between;
  const Interval by_quotient = gelu_d2(x) * s * 2 / gelu_d1(x);
  return by_means.width() < by_quotient.width() ? by_means : by_quotient;
}

}  // namespace outgrad::validation
