/// The inverse of f on one side of its minimum, for many neighbouring y in turn: double arithmetic finds x,
/// balls prove it.
#pragma once

#include "approx/function/composite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace outgrad::approx {

/// An argument with f(x) = y up to the bracket's width, on the branch right of `from` (or left of it).
class Inverse {
 public:
  Inverse(const Composite& composite, bool right) : composite_(composite), right_(right) {
    end_ = composite.masked() ? composite.x_star().to_double()
                              : (right ? -composite.activation().reach : composite.activation().reach);
    far_ = right ? composite.activation().reach : -composite.activation().reach;
  }
  /// Endpoints that enclose the x with f(x) = y; y is between f at the two ends of the branch. The last
  /// answer starts the next search: neighbours of the grid are asked one after the other.
  [[nodiscard]] Ball operator()(const Ball& y) {
    const auto& f = composite_.activation();
    // What double arithmetic finds costs a tenth, and the bracket proves it or does not.
    constexpr double kWidest = 0x1p-14;
    // a user's own is evaluated by balls
    const Values exact = f.name == "expression" ? Values::dear : Values::cheap;
    const double neighbour = last_;
    if (const auto found = bracketed(
            y, root(y.to_double(), Values::cheap, [&](double x) { return f.rough_value(x); }), kBracket))
      return *found;
    last_ = neighbour;
    if (const auto found =
            bracketed(y, root(y.to_double(), exact, [&](double x) { return f.value(x); }), kWidest))
      return *found;
    // Next to x* the root is flat: the regular coordinate s resolves it.
    return composite_.enclose_argument_of(y, right_);
  }

  /// Brackets of an argument are this wide, relative to max(|x|, 1): double Newton is within 2^-48, and so is
  /// f' where f'' |x| is about 1.
  static constexpr double kBracket = 0x1p-46;

 private:
  /// f rises away from the end of a masked branch, and everywhere on an increasing one.
  [[nodiscard]] bool rising() const { return right_ || !composite_.masked(); }

  /// Dear values are used twice: the slope is that of the step before.
  enum class Values { cheap, dear };

  template <class Value>
  [[nodiscard]] double root(double target, Values values, Value&& value_at) {
    double low = right_ ? end_ : std::min(end_, far_), high = std::max(end_, far_);
    if (right_ && far_ < target + 1) high = target + 1;  // f(x) > x - 1/2 right of 0 wherever f is unbounded
    double x = last_;
    if (!(x > low && x < high)) x = 0.5 * (low + high);
    double slope = 0, x_before = std::numeric_limits<double>::quiet_NaN(), value_before = 0;
    for (int step = 0; step < 200; ++step) {
      const double value = value_at(x) - target;
      if (value == 0) break;
      ((value < 0) == rising() ? low : high) = x;
      // The slope of the secant through a point 2^-20 away is good enough for Newton: bisection takes over
      // where it is not.
      const double h = 0x1p-20 * std::max(1.0, std::abs(x));
      if (values == Values::cheap || step == 0) {
        slope = (value_at(x + h) - value_at(x - h)) / (2 * h);
      } else if (std::abs(x - x_before) > 0x1p-10 * h) {
        slope = (value - value_before) / (x - x_before);
      }
      x_before = x, value_before = value;
      double next = x - value / slope;
      if (!(next > low && next < high)) next = 0.5 * (low + high);
      if (std::abs(next - x) <= 0x1p-52 * std::max(1.0, std::abs(x))) {
        x = next;
        break;
      }
      x = next;
    }
    last_ = x;
    return x;
  }

  /// The least bracket about x, up to `widest` relative to max(|x|, 1), over which f passes y.
  [[nodiscard]] std::optional<Ball> bracketed(const Ball& y, double x, double widest) const {
    const auto& f = composite_.activation();
    const double scale = std::max(1.0, std::abs(x));
    for (double width = kBracket; width <= widest; width *= 16) {
      const Ball below(x - width * scale), above(x + width * scale);
      Ball at_below = f.value_ball(below) - y, at_above = f.value_ball(above) - y;
      if (!rising()) std::swap(at_below, at_above);
      if (at_below.negative() && at_above.positive()) return Ball::hull(below, above);
    }
    return {};
  }

  const Composite& composite_;
  bool right_;
  double end_ = 0, far_ = 0, last_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace outgrad::approx
