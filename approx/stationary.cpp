#include "approx/stationary.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

namespace outgrad::approx {
namespace {

/// Beyond +-14 the tail bounds of every activation here decide the sign of f' (|f'| and |f' - 1| are below 2^-130).
constexpr double kReach = 14.0;
/// Below this width a sign change of f' next to f'' of unknown sign is refused: two stationary points could hide there.
constexpr double kFinest = 0x1p-20;

Ball interval(double lo, double hi) { return Ball::hull(Ball(lo), Ball(hi)); }

/// f' and f'' over a ball.
std::pair<Ball, Ball> derivatives(const Activation& a, const Ball& x) {
  const Series f = a.value_series(Series::variable(x, 3));
  return {f[1], f[2] * Ball(2.0)};
}

struct Bracket {
  double lo, hi;
};

}  // namespace

Minimum isolate_minimum(const Activation& activation) {
  std::vector<Bracket> pending{{-kReach, kReach}}, rising;
  std::optional<double> last_negative, first_positive;
  while (!pending.empty()) {
    const Bracket b = pending.back();
    pending.pop_back();
    const auto [d1, d2] = derivatives(activation, interval(b.lo, b.hi));
    if (d1.negative()) {
      if (!last_negative || b.hi > *last_negative) last_negative = b.hi;
    } else if (d1.positive()) {
      if (!first_positive || b.lo < *first_positive) first_positive = b.lo;
    } else if (d2.positive()) {
      rising.push_back(b);
    } else if (b.hi - b.lo < kFinest) {
      throw kernels::SpecError(fmt::format("{}: [{}, {}]: neither the sign of f' nor that of f'' can be decided", activation.name, b.lo, b.hi));
    } else {
      const double mid = 0.5 * (b.lo + b.hi);
      pending.push_back({b.lo, mid});
      pending.push_back({mid, b.hi});
    }
  }
  if (rising.empty()) throw kernels::SpecError(activation.name + ": f' has no sign change");
  double lo = rising.front().lo, hi = rising.front().hi;
  for (const Bracket& b : rising) {
    lo = std::min(lo, b.lo);
    hi = std::max(hi, b.hi);
  }
  // f'' > 0 on the union of `rising`, so one zero at most in it, provided that the union is the whole gap between the two signs.
  if ((last_negative && *last_negative > lo) || (first_positive && *first_positive < hi)) {
    throw kernels::SpecError(fmt::format("{}: [{}, {}]: f' changes sign more than once", activation.name, lo, hi));
  }
  if (!derivatives(activation, Ball(lo)).first.negative() || !derivatives(activation, Ball(hi)).first.positive()) {
    throw kernels::SpecError(activation.name + ": f' has no sign change");
  }
  // Bisect until one ball decides f'' > 0 by a margin, then interval Newton: N(X) = m - f'(m)/f''(X) keeps every zero of f' in X.
  constexpr double kNewtonWidth = 0x1p-10;
  while (hi - lo > kNewtonWidth) {
    const double mid = 0.5 * (lo + hi);
    const Ball d1 = derivatives(activation, Ball(mid)).first;
    if (d1.holds_zero()) break;
    (d1.negative() ? lo : hi) = mid;
  }
  Ball x = interval(lo, hi);
  for (int step = 0; step < 64; ++step) {
    const Ball m = x.midpoint(), slope = derivatives(activation, x).second;
    if (!slope.positive()) throw kernels::SpecError(fmt::format("{}: [{}, {}]: f'' is not positive at the minimum", activation.name, lo, hi));
    const Ball next = m - derivatives(activation, m).first / slope;
    Ball meet;
    if (arb_intersection(meet.raw(), next.raw(), x.raw(), kPrecisionBits) == 0) {
      throw kernels::SpecError(fmt::format("{}: [{}, {}]: no zero of f'", activation.name, lo, hi));
    }
    const bool settled = arb_rel_accuracy_bits(meet.raw()) <= arb_rel_accuracy_bits(x.raw());
    x = meet;
    if (settled) break;
  }
  return {x, activation.value_ball(x)};
}

}  // namespace outgrad::approx
