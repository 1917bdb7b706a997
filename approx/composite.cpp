#include "approx/composite.h"

#include <stdexcept>
#include <utility>

namespace outgrad::approx {
namespace {

/// Within this distance of the root a ball is handled by the divided difference, outside by plain division.
constexpr double kNear = 0.375;
/// A point this far from the root may still be divided: 12 bits lost per order and per derivative leave over 64 of 256 at length 12.
constexpr double kClosest = 0x1p-13;

}  // namespace

const char* to_string(Coordinate c) {
  switch (c) {
    case Coordinate::signed_root: return "signed_root";
    case Coordinate::identity: return "identity";
    case Coordinate::argument: return "argument";
  }
  return "";
}

Composite::Composite(Activation activation) : activation_(std::move(activation)), minimum_(isolate_minimum(activation_)) {}

Series Composite::value(const Ball& x, slong length) const { return activation_.value_series(Series::variable(x, length)); }

Series Composite::gradient(const Ball& x, slong length) const { return value(x, length + 1).derivative(); }

Series Composite::quotient(const Ball& x, const Ball& root, slong order, slong length) const {
  const Ball w = x - root;
  const bool divisible = arb_is_exact(x.raw()) ? abs(w).lower() > kClosest : abs(w).lower() > kNear;
  if (divisible) {
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
  if (abs(w).lower() > kNear) {
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

Real Composite::argument_of_root(const Real& s) const {
  const double target = static_cast<double>(s);
  const Real curvature = activation_.value_series(Series::variable(x_star(), 3))[2].mid();
  Real x = x_star().mid() + s / sqrt(curvature);
  // The local expansion starts Newton well only next to x*; elsewhere bisect in double first.
  constexpr double kLocal = 0x1p-5;
  if (std::abs(target) > kLocal) {
    const double y = static_cast<double>(y_star().mid() + s * s);
    double near = x_star().to_double(), far = target > 0 ? 38.0 : -38.0;  // |f(-38)| < 2^-1000, below every stored y
    for (int step = 0; step < 80; ++step) {
      const double mid = 0.5 * (near + far);
      (activation_.value(mid) < y ? near : far) = mid;  // f grows away from x* on both sides
    }
    x = Real(0.5 * (near + far));
  }
  for (int step = 0; step < 7; ++step) {  // 2^-50 doubles each time; next to x* the slope's enclosure gains 13 bits a step
    x -= (coordinate_at(Coordinate::signed_root, x) - s) / coordinate(Coordinate::signed_root, Ball(x), 2)[1].mid();
  }
  return x;
}

Real Composite::argument_of(const Real& y, bool right) const {
  const Real t = y - y_star().mid();
  const Real root = sqrt(t > 0 ? t : Real(0));
  return argument_of_root(right ? root : Real(-root));
}

Ball Composite::enclose_argument_of(const Ball& y, bool right) const {
  const Ball x(argument_of(y.mid(), right));
  const Ball margin(0x1p-60);
  const Ball low = (x - margin).midpoint(), high = (x + margin).midpoint();
  const Ball below = activation_.value_ball(low) - y, above = activation_.value_ball(high) - y;
  if (right ? below.negative() && above.positive() : below.positive() && above.negative()) return Ball::hull(low, high);
  throw std::runtime_error("undecided: no enclosure of an argument");
}

}  // namespace outgrad::approx
