#include "approx/stationary.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace outgrad::approx {
namespace {

/// Below this width a sign change of f' next to f'' of unknown sign is refused: two stationary points could hide there.
constexpr double kFinest = 0x1p-20;
/// A smooth f is decided in some hundreds of steps; one that needs more is refused, so that no expression hangs the survey.
constexpr int kMostSteps = 40000;
/// No stored y but 0 is smaller: half the least subnormal of fp32.
constexpr double kUnderflow = 0x1p-150;
/// How near f' must be to 0 or 1 at both ends.
constexpr double kSettled = 0x1p-20;

Ball interval(double lo, double hi) { return Ball::hull(Ball(lo), Ball(hi)); }

struct Local {
  Ball value, slope, curvature;
};

Local expand(const Activation& a, const Ball& x) {
  const Series f = a.value_series(Series::variable(x, 3));
  return {f[0], f[1], f[2] * Ball(2.0)};
}

struct Bracket {
  double lo, hi;
};

[[noreturn]] void refuse(const Activation& a, double lo, double hi, const std::string& why) {
  throw kernels::SpecError(fmt::format("{}: [{:.7g}, {:.7g}]: {}", a.name == "expression" ? a.function.substr(0, 80) : a.name, lo, hi, why));
}

bool finite(const Ball& b) { return arb_is_finite(b.raw()) != 0; }

/// What stands in the way on an interval that bisection could not decide.
std::string obstacle(const Activation& a, double lo, double hi) {
  const Local all = expand(a, interval(lo, hi)), left = expand(a, Ball(lo)), right = expand(a, Ball(hi));
  if (!finite(all.value)) {
    if (!finite(left.value) || !finite(right.value)) return "f is not defined here";
    return "f is not bounded here: a pole, or the edge of where it is defined";
  }
  if (finite(left.slope) && finite(right.slope) && !finite(all.slope)) return "f' jumps here: a kink";
  if (!finite(left.slope) || !finite(right.slope)) return "f has no derivative here";
  return "neither the sign of f' nor that of f'' can be decided: a stationary point that is no minimum, or several";
}

void settle_limits(Activation& a) {
  const auto limit = [&](double x, const char* side) {
    const Ball slope = expand(a, Ball(x)).slope;
    for (const double l : {0.0, 1.0}) {
      if ((slope - Ball(l)).magnitude() < kSettled) return l;
    }
    refuse(a, std::min(x, 0.0), std::max(x, 0.0), fmt::format("f' is {:.6g} at x = {}, where it should have settled at 0 or 1 on the {}", slope.to_double(), x, side));
  };
  a.left_limit_gradient = limit(-a.reach, "left");
  a.right_limit_gradient = limit(a.reach, "right");
  if (a.left_limit_gradient != 0) refuse(a, -a.reach, 0, "f' does not vanish on the left");
  a.beyond = std::max((expand(a, Ball(-a.reach)).slope - Ball(a.left_limit_gradient)).magnitude(),
                      (expand(a, Ball(a.reach)).slope - Ball(a.right_limit_gradient)).magnitude());
}

/// The zero of f' in [lo, hi], where f'' > 0 and f' goes from negative to positive.
Minimum enclose(const Activation& activation, double lo, double hi) {
  // Bisect until one ball decides f'' > 0 by a margin, then interval Newton: N(X) = m - f'(m)/f''(X) keeps every zero of f' in X.
  constexpr double kNewtonWidth = 0x1p-10;
  while (hi - lo > kNewtonWidth) {
    const double mid = 0.5 * (lo + hi);
    const Ball slope = expand(activation, Ball(mid)).slope;
    if (slope.holds_zero()) break;
    (slope.negative() ? lo : hi) = mid;
  }
  Ball x = interval(lo, hi);
  for (int step = 0; step < 64; ++step) {
    const Ball m = x.midpoint(), curvature = expand(activation, x).curvature;
    if (!curvature.positive()) refuse(activation, lo, hi, "f'' is not positive at the minimum");
    const Ball next = m - expand(activation, m).slope / curvature;
    Ball meet;
    if (arb_intersection(meet.raw(), next.raw(), x.raw(), kPrecisionBits) == 0) refuse(activation, lo, hi, "no zero of f'");
    const bool settled = arb_rel_accuracy_bits(meet.raw()) <= arb_rel_accuracy_bits(x.raw());
    x = meet;
    if (settled) break;
  }
  return {x, activation.value_ball(x)};
}

}  // namespace

Landscape survey(Activation& activation) {
  std::vector<Bracket> pending, rising;
  // From the right to the left, in parts over which exponentials keep their order of magnitude.
  const double unit = activation.reach / 64;
  for (int k = 64; k-- > -64;) pending.push_back({k * unit, (k + 1) * unit});
  std::vector<Bracket> falling, growing;
  int steps = 0;
  while (!pending.empty()) {
    const Bracket b = pending.back();
    pending.pop_back();
    const Local f = expand(activation, interval(b.lo, b.hi));
    const double mid = 0.5 * (b.lo + b.hi);
    if (++steps > kMostSteps) refuse(activation, b.lo, b.hi, "cannot be decided: " + obstacle(activation, b.lo, b.hi));
    if (!finite(f.value) || !finite(f.slope)) {
      if (b.hi - b.lo < kFinest) refuse(activation, b.lo, b.hi, obstacle(activation, b.lo, b.hi));
    } else if (f.slope.negative()) {
      falling.push_back(b);
      continue;
    } else if (f.slope.positive()) {
      growing.push_back(b);
      continue;
    } else if (f.value.magnitude() < kUnderflow) {
      continue;
    } else if (finite(f.curvature) && f.curvature.positive()) {
      rising.push_back(b);
      continue;
    } else if (b.hi - b.lo < kFinest) {
      refuse(activation, b.lo, b.hi, obstacle(activation, b.lo, b.hi));
    }
    pending.push_back({b.lo, mid});
    pending.push_back({mid, b.hi});
  }
  if (activation.name == "expression") settle_limits(activation);
  const auto lowest = [](const std::vector<Bracket>& v) { return std::min_element(v.begin(), v.end(), [](auto& a, auto& b) { return a.lo < b.lo; })->lo; };
  const auto highest = [](const std::vector<Bracket>& v) { return std::max_element(v.begin(), v.end(), [](auto& a, auto& b) { return a.hi < b.hi; })->hi; };
  if (growing.empty()) refuse(activation, -activation.reach, activation.reach, "f rises nowhere");
  if (falling.empty()) {
    if (!rising.empty()) refuse(activation, lowest(rising), highest(rising), "f' may vanish here, though f falls nowhere");
    return {};
  }
  if (rising.empty()) refuse(activation, lowest(growing), highest(falling), "f rises and then falls: a maximum");
  const double lo = lowest(rising), hi = highest(rising);
  // f'' > 0 on the union of `rising`, so one zero at most in it, provided that the union is the whole gap between the two signs.
  if (highest(falling) > lo) refuse(activation, lo, highest(falling), "f falls again after it has risen: several stationary points");
  if (lowest(growing) < hi) refuse(activation, lowest(growing), hi, "f rises before its minimum: several stationary points");
  double width = 0;
  for (const Bracket& b : rising) width += b.hi - b.lo;
  if (width < (hi - lo) * (1 - 0x1p-40)) refuse(activation, lo, hi, "several places where f' may vanish");
  if (!expand(activation, Ball(lo)).slope.negative() || !expand(activation, Ball(hi)).slope.positive()) refuse(activation, lo, hi, "f' does not change sign");
  return {enclose(activation, lo, hi)};
}

}  // namespace outgrad::approx
