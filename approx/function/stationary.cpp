// Isolates the minimum of f by bisection and interval Newton steps, or says by which x there is none.
#include "approx/function/stationary.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace outgrad::approx {
namespace {

/// Below this width two stationary points, or a kink and none, are not told apart.
constexpr double kFinest = 0x1p-20;
/// No stored y but 0 is smaller: half the least subnormal of fp32.
constexpr double kUnderflow = 0x1p-150;
/// How near f' must be to 0 or 1 at both ends: x/sqrt(1 + x^2), which settles like a power, is 2^-18 from 0
/// at |x| = 64. What is left counts as a tail's error.
constexpr double kSettled = 0x1p-17;

struct Local {
  Ball value, slope, curvature;
};

Local local(const Series& f) { return {f[0], f[1], f[2] * Ball(2.0)}; }

Local expand(const Activation& a, const Ball& x) { return local(a.value_series(Series::variable(x, 3))); }

std::string refusal(const Activation& a, double lo, double hi, const std::string& why) {
  return fmt::format("{}: [{:.10g}, {:.10g}]: {}", a.name == "expression" ? a.function.substr(0, 80) : a.name,
                     lo, hi, why);
}
[[noreturn]] void refuse(const Activation& a, double lo, double hi, const std::string& why) {
  throw kernels::SpecError(refusal(a, lo, hi, why));
}

/// What stands in the way on an interval that stays undecided however small it is. The proof has failed by
/// then; these are samples.
std::string obstacle(const Activation& a, double lo, double hi) {
  constexpr double kFarWidths = 64;
  // Relative difference across a few 2^-20 that only a discontinuity explains.
  constexpr double kJump = 0x1p-10;
  const double width = hi - lo, x_left = std::max(lo - width, -a.reach),
               x_right = std::min(hi + width, a.reach);
  const Local left = expand(a, Ball(x_left)), right = expand(a, Ball(x_right));
  if (!a.value_ball(Ball::hull(lo, hi)).finite() || !a.value_ball(Ball(0.5 * (lo + hi))).finite()) {
    if (!left.value.finite() || !right.value.finite())
      return fmt::format("f is not defined at x = {:.10g}", left.value.finite() ? x_right : x_left);
    const Ball far_left = a.value_ball(Ball(lo - kFarWidths * width)),
               far_right = a.value_ball(Ball(hi + kFarWidths * width));
    // A logarithm grows by a quarter over six octaves at 2^-20; what is bounded does not.
    constexpr double kGrowth = 1.25;
    const double near = std::max(left.value.magnitude(), right.value.magnitude()),
                 far = std::max(far_left.magnitude(), far_right.magnitude());
    if (near > kGrowth * far) {
      return fmt::format(
          "a pole: |f| grows from {:.3g} to {:.3g} as the distance shrinks from {:.3g} to {:.3g}", far, near,
          kFarWidths * width, width);
    }
    const double step = std::abs(right.value.to_double() - left.value.to_double());
    const double slope = std::max(left.slope.magnitude(), right.slope.magnitude());
    // Neither rounding nor twice the way between the two samples at their slopes.
    if (step > kJump * near && !(step <= 2 * (x_right - x_left) * slope)) {
      return fmt::format("a jump: f is {:.6g} left of it and {:.6g} right of it", left.value.to_double(),
                         right.value.to_double());
    }
  }
  if (!left.slope.finite() || !right.slope.finite())
    return "cannot be decided: f has no derivative next to it";
  if (!expand(a, Ball::hull(lo, hi)).slope.finite()) {
    const double before = left.slope.to_double(), after = right.slope.to_double();
    const double bend = std::max(left.curvature.magnitude(), right.curvature.magnitude());
    // As for the jump, one derivative on.
    if (std::abs(after - before) > kJump * std::max(std::abs(before), std::abs(after)) &&
        !(std::abs(after - before) <= 2 * (x_right - x_left) * bend)) {
      return fmt::format("a kink: f' is {:.6g} left of it and {:.6g} right of it", before, after);
    }
    return "cannot be decided: f or f' cannot be enclosed here, though samples show neither a pole nor a "
           "jump nor a kink";
  }
  return fmt::format(
      "cannot be decided: f' and f'' both come near 0 (f' is {:.3g} and {:.3g} on both sides): an "
      "inflection, or stationary points "
      "that lie together",
      left.slope.to_double(), right.slope.to_double());
}

/// A place outside [lo, hi] where f' cannot be enclosed: what stands in the way there is the plainer reason
/// why f is refused.
std::optional<std::pair<double, double>> rough_place(const Activation& a) {
  const auto rough = [&](double lo, double hi) { return !expand(a, Ball::hull(lo, hi)).slope.finite(); };
  constexpr int kCells = 1024;
  for (int k = 0; k < kCells; ++k) {
    double lo = a.reach * (2.0 * k / kCells - 1), hi = a.reach * (2.0 * (k + 1) / kCells - 1);
    if (!rough(lo, hi)) continue;
    while (hi - lo >= kFinest) {
      const double mid = 0.5 * (lo + hi);
      if (rough(lo, mid)) {
        hi = mid;
      } else if (rough(mid, hi)) {
        lo = mid;
      } else {
        break;  // the enclosure was too wide
      }
    }
    if (hi - lo < kFinest) return std::pair{lo, hi};
  }
  return std::nullopt;
}

/// @throws kernels::SpecError with what stands in the way next to an interval that stays undecided.
[[noreturn]] void refuse_undecided(const Activation& a, double lo, double hi) {
  // The cause may lie just outside: a pole makes its neighbours undecided first.
  constexpr double kAround = 16;
  const auto around = [&](double from, double to) {
    const double margin = kAround * (to - from);
    return std::pair{std::max(from - margin, -a.reach), std::min(to + margin, a.reach)};
  };
  auto [from, to] = around(lo, hi);
  if (expand(a, Ball::hull(from, to)).slope.finite()) {
    if (const auto place = rough_place(a)) std::tie(from, to) = around(place->first, place->second);
  }
  refuse(a, from, to, obstacle(a, from, to));
}

/// -f(-x), which has the derivative of f at -x. The variable stands alone; the x of exp and of hexadecimal
/// numbers do not.
std::string mirrored(const std::string& function) {
  const auto in_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  std::string r = "-(";
  for (size_t k = 0; k < function.size(); ++k) {
    const bool alone = function[k] == 'x' && (k == 0 || !in_word(function[k - 1])) &&
                       (k + 1 == function.size() || !in_word(function[k + 1]));
    r += alone ? "(-x)" : std::string(1, function[k]);
  }
  return r + ")";
}

void settle_limits(Activation& a) {
  const auto limit = [&](double x, const char* side) {
    const Ball slope = expand(a, Ball(x)).slope;
    for (const double l : {0.0, 1.0}) {
      if ((slope - Ball(l)).magnitude() < kSettled) return l;
    }
    refuse(a, std::min(x, 0.0), std::max(x, 0.0),
           fmt::format("f' is {:.6g} at x = {}, where it should have settled at 0 or 1 on the {}",
                       slope.to_double(), x, side));
  };
  a.left_limit_gradient = limit(-a.reach, "left");
  a.right_limit_gradient = limit(a.reach, "right");
  if (a.left_limit_gradient != 0) {
    if (a.right_limit_gradient != 0)
      refuse(a, -a.reach, 0, "f' is 1 on both sides; on the left it must settle at 0");
    const std::string mirror = mirrored(a.function);
    throw FallsToRight(refusal(a, -a.reach, 0,
                               fmt::format("f' is 1 on the left and 0 on the right; fit its mirror image, "
                                           "\"expression\": \"{}\", and store -f(x) in place of f(x)",
                                           mirror)),
                       mirror);
  }
  a.beyond = std::max((expand(a, Ball(-a.reach)).slope - Ball(a.left_limit_gradient)).magnitude(),
                      (expand(a, Ball(a.reach)).slope - Ball(a.right_limit_gradient)).magnitude());
}

/// The zero of f' in [lo, hi], where f'' > 0 and f' goes from negative to positive.
Minimum enclose(const Activation& activation, double lo, double hi) {
  // Bisect until one ball decides f'' > 0 by a margin, then interval Newton: N(X) = m - f'(m)/f''(X) keeps
  // every zero of f' in X.
  constexpr double kNewtonWidth = 0x1p-10;
  while (hi - lo > kNewtonWidth || !expand(activation, Ball::hull(lo, hi)).curvature.positive()) {
    const double mid = 0.5 * (lo + hi);
    const Ball slope = expand(activation, Ball(mid)).slope;
    if (mid <= lo || mid >= hi) break;
    if (slope.holds_zero()) {  // the minimum itself, or too near it to tell: closed in on from both sides
      const double l = 0.5 * (lo + mid), h = 0.5 * (mid + hi);
      if (!expand(activation, Ball(l)).slope.negative() || !expand(activation, Ball(h)).slope.positive())
        break;
      lo = l, hi = h;
      continue;
    }
    (slope.negative() ? lo : hi) = mid;
  }
  Ball x = Ball::hull(lo, hi);
  for (int step = 0; step < 64; ++step) {
    const Ball m = x.midpoint(), curvature = expand(activation, x).curvature;
    if (!curvature.positive()) refuse(activation, lo, hi, "f'' is not positive at the minimum");
    const Ball next = m - expand(activation, m).slope / curvature;
    Ball meet;
    if (arb_intersection(meet.raw(), next.raw(), x.raw(), kPrecisionBits) == 0)
      refuse(activation, lo, hi, "no zero of f'");
    const bool settled = arb_rel_accuracy_bits(meet.raw()) <= arb_rel_accuracy_bits(x.raw());
    x = meet;
    if (settled) break;
  }
  return {x, activation.value_ball(x)};
}

enum class Shape { falling, rising, minimum, maximum, convex, concave, flat };

/// A subinterval and what is proven of f there.
struct Subinterval {
  double lo, hi;
  Shape shape;
};

/// What these values say of f where they are taken; nothing where they leave it open.
std::optional<Shape> shape_by(const Local& f) {
  const bool known = f.value.finite() && f.slope.finite(), bent = known && f.curvature.finite();
  if (known && f.slope.negative()) return Shape::falling;
  if (known && f.slope.positive()) return Shape::rising;
  if (known && f.value.magnitude() < kUnderflow) return Shape::flat;
  if (bent && f.curvature.positive()) return Shape::convex;
  if (bent && f.curvature.negative()) return Shape::concave;
  return std::nullopt;
}

/// [-reach, reach] from left to right, neighbours of one shape as one.
std::vector<Subinterval> cover(const Activation& activation, size_t most_work) {
  std::vector<Subinterval> pending, decided;
  // Parts over which exponentials keep their order of magnitude.
  constexpr int kStart = 128;
  const double unit = 2 * activation.reach / kStart;
  for (int k = kStart; k-- > 0;)
    pending.push_back({-activation.reach + k * unit, -activation.reach + (k + 1) * unit, Shape::flat});
  // Taylor models have a budget of their own, so that what plain enclosures decide is decided as without them
  size_t work = 0, dear_work = 0;
  while (!pending.empty()) {
    Subinterval p = pending.back();
    pending.pop_back();
    std::optional<Shape> shape = shape_by(expand(activation, Ball::hull(p.lo, p.hi)));
    work += activation.expression->size();
    if (!shape && activation.name == "expression" && dear_work <= most_work) {
      constexpr size_t kDearer = 8;  // than a plain evaluation
      shape = shape_by(local(activation.expand(Ball::hull(p.lo, p.hi), 3)));
      dear_work += kDearer * activation.expression->size();
    }
    if (shape) {
      p.shape = *shape;
    } else if (p.hi - p.lo < kFinest) {
      refuse_undecided(activation, p.lo, p.hi);
    } else if (work > most_work) {
      refuse(activation, p.lo, p.hi, fmt::format("cannot be decided: gave up after {} operations", work));
    } else {
      const double mid = 0.5 * (p.lo + p.hi);
      pending.push_back({mid, p.hi, Shape::flat});
      pending.push_back({p.lo, mid, Shape::flat});
      continue;
    }
    if (!decided.empty() && decided.back().shape == p.shape) {
      decided.back().hi = p.hi;
    } else {
      decided.push_back(p);
    }
  }
  return decided;
}

bool stationary(const Subinterval& p) { return p.shape == Shape::minimum || p.shape == Shape::maximum; }

/// f' is monotone on a convex or concave part: its signs at the ends say whether it has one zero there or
/// none.
void resolve(const Activation& activation, Subinterval& p) {
  if (p.shape != Shape::convex && p.shape != Shape::concave) return;
  const Ball lo = expand(activation, Ball(p.lo)).slope, hi = expand(activation, Ball(p.hi)).slope;
  if (lo.negative() && hi.negative()) {
    p.shape = Shape::falling;
  } else if (lo.positive() && hi.positive()) {
    p.shape = Shape::rising;
  } else if (lo.negative() && hi.positive()) {
    p.shape = Shape::minimum;
  } else if (lo.positive() && hi.negative()) {
    p.shape = Shape::maximum;
  } else {
    refuse(activation, p.lo, p.hi,
           "cannot be decided: f' is 0 or nearly so at an end, between falling and rising");
  }
  // Near enough for a message, and for Newton's steps to start.
  constexpr double kPlace = 0x1p-10;
  while (stationary(p) && p.hi - p.lo > kPlace) {
    const double mid = 0.5 * (p.lo + p.hi);
    const Ball slope = expand(activation, Ball(mid)).slope;
    if (slope.holds_zero()) break;
    (slope.negative() == lo.negative() ? p.lo : p.hi) = mid;
  }
}

std::string described(const Subinterval& p) {
  return fmt::format("a {} in [{:.10g}, {:.10g}]", p.shape == Shape::minimum ? "minimum" : "maximum", p.lo,
                     p.hi);
}

}  // namespace

std::optional<Minimum> survey(Activation& activation, size_t most_work) {
  std::vector<Subinterval> parts = cover(activation, most_work);
  const Subinterval* turn = nullptr;
  const Subinterval* falling = nullptr;
  bool rises = false;
  for (Subinterval& p : parts) {
    resolve(activation, p);
    const bool at_an_end = &p == &parts.front() || &p == &parts.back();
    if (p.shape == Shape::flat && !at_an_end) {
      refuse(activation, p.lo, p.hi,
             "cannot be decided: |f| < 2^-150 inside the domain, where f' may be of either sign");
    }
    rises = rises || p.shape == Shape::rising;
    if (p.shape == Shape::falling) falling = &p;
    if (!stationary(p)) continue;
    if (turn != nullptr)
      refuse(activation, turn->lo, p.hi,
             "several stationary points: " + described(*turn) + ", " + described(p));
    turn = &p;
  }
  if (turn != nullptr && turn->shape == Shape::maximum) {
    refuse(activation, turn->lo, turn->hi,
           "a maximum: f rises before it and falls after it; one minimum, or none and f rising, is needed");
  }
  if (turn == nullptr && falling != nullptr)
    refuse(activation, falling->lo, falling->hi,
           "f falls and no minimum follows; it must rise at the right end");
  if (turn == nullptr && !rises) refuse(activation, parts.front().lo, parts.back().hi, "f rises nowhere");
  if (activation.name == "expression") settle_limits(activation);
  if (turn == nullptr) return std::nullopt;
  return enclose(activation, turn->lo, turn->hi);
}

}  // namespace outgrad::approx
