// Looks for an x that rounds to a stored y, by the inverse of f.
#include "validation/certificate/stored_argument.h"

#include <algorithm>
#include <cmath>

#include "validation/certificate/header_reader.h"

namespace outgrad::validation {

StoredGrid::StoredGrid(const std::string& format) : parity(is_parity(format)) {
  const std::string carrier = carrier_of(format);
  digits = carrier == "f32" ? 23 : carrier == "f16" ? 10 : carrier == "mxfp8" ? 3 : 7;
  least_exponent = carrier == "f16" ? -14 : -126;
}

double StoredGrid::spacing(double y) const {
  return std::ldexp(1.0, std::max(y == 0 ? least_exponent : std::ilogb(y), least_exponent) - digits);
}

double StoredGrid::nearest(double y) const { return std::nearbyint(y / spacing(y)) * spacing(y); }

// Next to a power of two of y < 0 the finer spacing begins.
double StoredGrid::above(double y) const { return y + (y < 0 ? spacing(y + spacing(y) * 0.25) : spacing(y)); }

std::pair<double, double> StoredGrid::range(double y) const {
  if (parity && y < 0) return {below(y), above(y)};
  return {y - (y - below(y)) / 2, y + (above(y) - y) / 2};
}

double StoredGrid::lowest(double y_star) const {
  return nearest(y_star) - (parity ? spacing(nearest(y_star)) : 0);
}

StoredGrid::Reach StoredGrid::reach(double y, bool m, const Interval& y_star) const {
  const bool odd = std::fmod(y / spacing(y), 2) != 0;
  if (parity ? (y < 0 ? odd == m : !m) : !m && y > 0) return Reach::no;
  const double end = range(y).second;
  if (end > y_star.upper()) return Reach::yes;
  // Only x* itself, which is right of the minimum, gives a y* on the boundary.
  return end > y_star.lower() || (m && end == y_star.lower()) ? Reach::unclear : Reach::no;
}

std::optional<Interval> StoredArguments::slope_at(double x) const {
  if (!(formula_.low <= x && x <= formula_.high) || !std::isfinite(x) ||
      (activation_.limited() && std::fabs(x) > kExpressionEnd))
    return {};
  const Interval at(x);
  if (masked_) {
    const Interval& x_star = activation_.x_star();
    const bool is_right = certainly_less(x_star, at) || x_star.identical(at);
    if (m_ ? !is_right : !certainly_less(at, x_star)) return {};
  }
  const auto d = formula_.f.at<1>(at);
  if (!certainly_less(Interval(low_), d[0]) || !certainly_less(d[0], Interval(high_))) return {};
  return d[1];
}

std::optional<double> StoredArguments::find() const {
  constexpr int kHalvings = 1200;  // from the largest double to the least
  constexpr double kBeyondTail = 16, kLargest = 0x1p1000;
  const bool rises = m_ || !masked_;
  const auto value = [&](double x) { return formula_.f.at<0>(MediumInterval(x))[0]; };
  // The f of known activations goes on beyond the beginnings of the tails.
  double left =
      std::max(activation_.limited() ? -kExpressionEnd : kBeyondTail * formula_.far_low, formula_.low);
  double right = std::min(activation_.limited() ? kExpressionEnd : formula_.far_high, formula_.high);
  while (!formula_.bounded_above && right < kLargest && value(right).middle() <= low_) right = 2 * right + 1;
  if (masked_) (m_ ? left : right) = activation_.x_star().middle();
  for (const double end : {left, right}) {
    if (slope_at(end)) return end;
  }
  for (int step = 0; step < kHalvings; ++step) {
    const double x = left + (right - left) / 2;
    if (!(left < x && x < right)) break;
    if (slope_at(x)) return x;
    const MediumInterval y = value(x);
    const bool too_low = y.upper() <= low_, too_high = y.lower() >= high_;
    if (!too_low && !too_high) break;
    (too_low == rises ? left : right) = x;
  }
  return {};
}

bool is_stored(const Activation& activation, bool masked, const StoredGrid& grid, double y, bool m) {
  return grid.nearest(y) == y && (!masked || grid.reach(y, m, activation.y_star()) == StoredGrid::Reach::yes);
}

std::optional<double> argument_of(const Activation& activation, bool masked, const StoredGrid& grid, double y,
                                  bool m) {
  if (!is_stored(activation, masked, grid, y, m)) return {};
  auto [low, high] = grid.range(y);
  if (y == 0) (std::signbit(y) ? high : low) = 0;
  for (const Formula& formula : activation.formulas()) {
    if (const auto x = StoredArguments(activation, formula, masked, m, low, high).find()) return x;
  }
  return {};
}

}  // namespace outgrad::validation
