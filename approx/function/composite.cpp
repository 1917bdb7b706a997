// Encloses g and its coordinates over balls of x, with their Taylor series.
#include "approx/function/composite.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace outgrad::approx {
namespace {

/// A ball this many times smaller than its distance from the root is divided plainly; nearer ones take the
/// divided difference, whose hull with the root is then no more than as many times wider than the ball.
constexpr double kSmallBeside = 64;
/// A point this far from the root may still be divided: 16 bits lost per order and per derivative leave over
/// 100 of 320 at length 11.
constexpr double kClosest = 0x1p-16;

/// Beyond it every ball is divided plainly: f - f(root) is far from 0 there.
constexpr double kFar = 0.375;

/// w = X - root: whether (f - f(root))/w^k and sqrt(f - f(root)) are evaluated as they stand.
bool apart(const Ball& x, const Ball& w) {
  if (arb_is_exact(x.raw())) return abs(w).lower() > kClosest;
  return abs(w).lower() > kFar || kSmallBeside * (x - x.midpoint()).magnitude() < abs(w).lower();
}

/// Where values that are below y at `near` and above it at `far` pass it.
template <class Value>
double bisected(double near, double far, double y, const Value& value) {
  const auto [above, below] = bisect(far, near, 80, [&](double x) { return value(x) < y; });
  return 0.5 * (below + above);
}

/// What follows from a first guess by at most `steps` of Newton's method, and whether these have settled.
template <class Correction>
std::pair<Real, bool> newton(Real x, int steps, const Correction& correction) {
  constexpr double kSettled = 0x1p-100, kDone = 0x1p-180;  // Real has 200 bits
  Real last = 0;
  const auto is_below = [&](double bound) {
    return abs(last) <= bound * std::max(1.0, std::abs(static_cast<double>(x)));
  };
  for (int step = 0; step < steps; ++step) {
    last = correction(x);
    x -= last;
    if (is_below(kDone)) break;
  }
  return {x, is_below(kSettled)};
}

}  // namespace

const char* to_string(Coordinate c) {
  switch (c) {
    case Coordinate::signed_root: return "signed_root";
    case Coordinate::identity: return "identity";
    case Coordinate::argument: return "argument";
  }
  return "";
}

Composite::Composite(Activation activation)
    : activation_(std::move(activation)), minimum_(survey(activation_)) {
  const auto limit = [&](double x, double gradient) {
    if (gradient != 0) return std::copysign(INFINITY, x);
    // f has settled there: what is left of its change is below any number that matters, and 0 is told from it
    // by size.
    constexpr double kNothing = 0x1p-40;
    const double value = activation_.value_ball(Ball(x)).to_double();
    return std::abs(value) < kNothing ? 0.0 : static_cast<double>(static_cast<float>(value));
  };
  left_limit_ = limit(-activation_.reach, activation_.left_limit_gradient);
  right_limit_ = limit(activation_.reach, activation_.right_limit_gradient);
  tail_start_ = bisect(0, -activation_.reach, 30, [&](double x) {
                  return activation_.gradient_tail(x, false) < 0x1p-50;
                }).second;
}

double Composite::spacing_at_minimum(int precision_bits) const {
  return std::ldexp(1.0, std::ilogb(y_star().to_double()) + 1 - precision_bits);
}

Series Composite::value(const Ball& x, slong length) const { return activation_.expand(x, length); }

Series Composite::gradient(const Ball& x, slong length) const { return value(x, length + 1).derivative(); }

Series Composite::quotient(const Ball& x, const Ball& root, slong order, slong length) const {
  const Ball w = x - root;
  if (apart(x, w)) {
    Series shift = Series::variable(w, length);
    if (order == 2) shift = shift * shift;
    return (value(x, length) - Series::constant(activation_.value_ball(root), length)) / shift;
  }
  const Series wide = value(Ball::hull(root, x), length + order);
  Series r(length);
  for (slong k = 0; k < length; ++k) r.set(k, wide[k + order]);
  return r;
}

Series Composite::coordinate(Coordinate kind, const Ball& x, slong length) const {
  switch (kind) {
    case Coordinate::argument: return Series::variable(x, length);
    case Coordinate::identity: return value(x, length);
    case Coordinate::signed_root: break;
  }
  const Ball w = x - x_star();
  if (apart(x, w)) {
    const Series root = sqrt(value(x, length) - Series::constant(y_star(), length));
    return w.negative() ? Series::constant(Ball(0.0), length) - root : root;
  }
  return Series::variable(w, length) * sqrt(quotient(x, x_star(), 2, length));
}

Real Composite::value_at(const Real& x) const { return activation_.value_ball(Ball(x)).mid(); }

Real Composite::gradient_at(const Real& x) const { return gradient(Ball(x), 1)[0].mid(); }

Real Composite::coordinate_at(Coordinate kind, const Real& x) const {
  switch (kind) {
    case Coordinate::argument: return x;
    case Coordinate::identity: return value_at(x);
    case Coordinate::signed_root: break;
  }
  const Ball root = sqrt(abs(activation_.value_ball(Ball(x)) - y_star()));
  return x < x_star().mid() ? -root.mid() : root.mid();
}

template <class Correction>
Real Composite::solved(double near, double far, double y, int steps, const Correction& correction) const {
  // Double arithmetic is a tenth of the cost of balls, and where a user's own function cancels in it,
  // Newton's method does not settle.
  const auto [x, settled] =
      newton(Real(bisected(near, far, y, [&](double at) { return activation_.rough_value(at); })), steps,
             correction);
  if (settled || activation_.name != "expression") return x;
  return newton(Real(bisected(near, far, y, [&](double at) { return activation_.value(at); })), steps,
                correction)
      .first;
}

Real Composite::argument_of_root(const Real& s) const {
  const double target = static_cast<double>(s);
  // 2^-50 doubles each time; next to x* the slope's enclosure gains 13 bits a step.
  constexpr int kSteps = 7;
  const auto correction = [&](const Real& x) {
    return Real((coordinate_at(Coordinate::signed_root, x) - s) /
                coordinate(Coordinate::signed_root, Ball(x), 2)[1].mid());
  };
  // The local expansion starts Newton well only next to x*; elsewhere bisect in double first. Where the
  // minimum is shallow, as that of x*sigmoid(x-9) is, all s on the left are small.
  constexpr double kLocal = 0x1p-5, kShare = 0x1p-3;
  const double depth = std::min(left_limit_, right_limit_) - y_star().to_double();
  if (std::abs(target) <= std::min(kLocal, kShare * std::sqrt(depth))) {
    const Real curvature = activation_.value_series(Series::variable(x_star(), 3))[2].mid();
    return newton(x_star().mid() + s / sqrt(curvature), kSteps, correction).first;
  }
  const double y = static_cast<double>(y_star().mid() + s * s);
  // right of 0, f(x) > x - 1
  const double far = target > 0 ? std::max(activation_.reach, y + 1) : -activation_.reach;
  return solved(x_star().to_double(), far, y, kSteps, correction);  // f grows away from x* on both sides
}

Real Composite::argument_of(const Real& y, bool right) const {
  if (!masked()) {
    const double target = static_cast<double>(y);
    constexpr int kSteps = 4;
    return solved(-activation_.reach, std::max(activation_.reach, target + 1), target, kSteps,
                  [&](const Real& x) { return Real((value_at(x) - y) / gradient_at(x)); });
  }
  const Real t = y - y_star().mid();
  const Real root = sqrt(t > 0 ? t : Real(0));
  return argument_of_root(right ? root : Real(-root));
}

Ball Composite::enclose_argument_of(const Ball& y, bool right) const {
  const Ball x(argument_of(y.mid(), right));
  const Ball margin(0x1p-60);
  const Ball low = (x - margin).midpoint(), high = (x + margin).midpoint();
  const Ball below = activation_.value_ball(low) - y, above = activation_.value_ball(high) - y;
  if (right || !masked() ? below.negative() && above.positive() : below.positive() && above.negative())
    return Ball::hull(low, high);
  const std::string tried =
      std::isfinite(x.to_double())
          ? fmt::format("; x = {:.9g} is not shown to lie within 2^-60 of it", x.to_double())
          : "";
  throw kernels::SpecError(fmt::format("undecided: the argument of y = {:.9g}{}{}", y.to_double(),
                                       masked() ? right ? ", right of x*" : ", left of x*" : "", tried));
}

}  // namespace outgrad::approx
