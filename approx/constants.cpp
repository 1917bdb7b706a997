#include "approx/constants.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <utility>

namespace outgrad::approx {
namespace {

/// g on |s| <= reach_of_constants by barycentric interpolation in 33 Chebyshev points: error
/// below 1e-12, nothing beside R >= 1e-6.
class LocalGradient {
 public:
  explicit LocalGradient(const Composite& composite) : reach_(reach_of_constants(composite)) {
    for (int k = 0; k < kPoints; ++k) {
      const double node = reach_ * std::cos(std::numbers::pi * k / (kPoints - 1));
      s_.push_back(node);
      g_.push_back(static_cast<double>(composite.gradient_at(composite.argument_of_root(Real(node)))));
    }
  }
  double operator()(double s) const {
    double above = 0, below = 0;
    for (size_t k = 0; k < s_.size(); ++k) {
      if (s == s_[k]) return g_[k];
      const double weight = (k % 2 == 0 ? 1.0 : -1.0) * (k == 0 || k + 1 == s_.size() ? 0.5 : 1.0) / (s - s_[k]);
      above += weight * g_[k];
      below += weight;
    }
    return above / below;
  }
  [[nodiscard]] double reach() const { return reach_; }

 private:
  double reach_;
  static constexpr int kPoints = 33;
  std::vector<double> s_, g_;
};

/// A stored y with the range of true gradients it stands for, on one branch.
struct Interval {
  double height;  ///< (y - y*) in units of the spacing; negative for a stored y below y*
  bool right;
  double lo, hi;
};

/// Stored y beyond this many spacings above y* are not touched by the constants any more.
constexpr int kHeights = 200;

std::vector<Interval> intervals_of_reals(const LocalGradient& g, double lowest, double spacing) {
  std::vector<Interval> r;
  for (int j = 0; j < kHeights; ++j) {
    const double height = lowest + j;
    if (std::sqrt((height + 1) * spacing) > g.reach()) break;
    if (height <= -0.5) continue;
    const double below = std::sqrt(std::max(0.0, height - 0.5) * spacing), above = std::sqrt((height + 0.5) * spacing);
    r.push_back({height, true, g(below), g(above)});
    r.push_back({height, false, g(-above), g(-below)});
  }
  return r;
}

std::vector<Interval> intervals_of_format(const Composite& composite, Format format, double reach, double lowest, double spacing) {
  const double x_star = composite.x_star().to_double(), y_star = composite.y_star().to_double();
  const FormatShape shape = shape_of(format);
  std::map<std::pair<int, bool>, Interval> found;
  for (std::uint32_t code = 0; code < 1U << (1 + shape.exponent_bits + shape.fraction_bits); ++code) {
    const double x = decode(format, code);
    // A first look in double keeps those out that are far away.
    if (!std::isfinite(x) || !(composite.activation().value(x) - y_star <= 1.01 * reach * reach)) continue;
    const double height = (static_cast<double>(composite.value_at(Real(x)) - Real(y_star))) / spacing;
    if (height * spacing > reach * reach) continue;
    const int j = static_cast<int>(std::nearbyint(height - lowest));
    if (j >= kHeights) continue;
    const double g = static_cast<double>(composite.gradient_at(Real(x)));
    auto [place, fresh] = found.try_emplace({j, x > x_star}, Interval{lowest + j, x > x_star, g, g});
    place->second.lo = std::min(place->second.lo, g);
    place->second.hi = std::max(place->second.hi, g);
  }
  std::vector<Interval> r;
  for (const auto& entry : found) r.push_back(entry.second);
  return r;
}

struct Score {
  double ratio = 0, regret = 0;
};

/// `g` is the deployed gradient as a function of s.
template <class Gradient>
Score score(const Gradient& g, const std::vector<Interval>& intervals, double spacing, double shift, double floor) {
  double total = 0, oracle = 0, regret = 0;
  for (const Interval& i : intervals) {
    const double s = std::sqrt(std::max(i.height - shift, floor) * spacing);
    const double off = std::abs(g(i.right ? s : -s) - 0.5 * (i.lo + i.hi)), half = 0.5 * (i.hi - i.lo);
    regret = std::max(regret, off);
    oracle = std::max(oracle, half);
    total = std::max(total, off + half);
  }
  return {total / oracle, regret};
}

}  // namespace

double reach_of_constants(const Composite& composite) {
  return 0.6 * std::sqrt(-composite.y_star().to_double());  // the left branch ends at sqrt(-y*)
}

double bent_by(double bend, double radius, double s) {
  const double z = s / radius;
  return std::abs(z) <= 1 + 0x1p-10 ? -bend * (4 * z * z - 3) * z : 0;  // rows overlap a little beyond their radius
}

CoordinateConstants choose_constants(const Composite& composite, Format format, const StorageGoal& goal, double radius, const std::vector<Piece>& rows) {
  const LocalGradient g(composite);
  const auto deployed = [&](double s) {
    for (const Piece& row : rows) {
      if (row.c.empty() || row.coordinate != Coordinate::signed_root || s < row.v_lo || s > row.v_hi) continue;
      double p = 0;
      for (size_t k = row.c.size(); k-- > 0;) p = p * (s - static_cast<double>(row.centre)) + static_cast<double>(row.c[k]);
      return p;
    }
    return g(s) + bent_by(goal.bend, radius, s);
  };
  const double spacing = composite.spacing_at_minimum(precision_bits(format));
  const double y_star = composite.y_star().to_double();
  const double lowest = std::floor(y_star / spacing) - y_star / spacing;
  std::vector<std::vector<Interval>> domains{intervals_of_reals(g, lowest, spacing)};
  if (format != Format::f32) domains.push_back(intervals_of_format(composite, format, g.reach(), lowest, spacing));

  struct Choice {
    double shift = 0, floor = 0, cost = INFINITY;
    Score worst;
  } best;
  const auto consider = [&](double shift, double floor) {
    Choice c{shift, floor, 0, {}};
    for (const auto& domain : domains) {
      const Score s = score(deployed, domain, spacing, shift, floor);
      c.worst = {std::max(c.worst.ratio, s.ratio), std::max(c.worst.regret, s.regret)};
      c.cost = std::max({c.cost, (s.ratio - 1) / (goal.ratio - 1), s.regret / goal.regret});
    }
    if (c.cost < best.cost) best = c;
  };
  // In units of the spacing: the optimum lies within half a spacing of y*; 1/50 first, then 1/1000 around the best.
  constexpr double kLeast = 1.0 / 1024;  // the floor stays positive: the square root is of a normal number
  for (int i = -15; i <= 25; ++i) {
    for (int k = 0; k <= 35; ++k) consider(i / 50.0, std::max(kLeast, k / 50.0));
  }
  for (double width : {1 / 250.0, 1 / 1000.0}) {
    const Choice around = best;
    for (int i = -5; i <= 5; ++i) {
      for (int k = -5; k <= 5; ++k) consider(around.shift + i * width, std::max(kLeast, around.floor + k * width));
    }
  }
  const double y_c_offset = best.shift * spacing;
  const Real y_c = composite.y_star().mid() + Real(y_c_offset);
  const auto y_hi = static_cast<float>(y_c);
  // A single float is fine enough for the 16-bit grids (1/16384 of a bf16 spacing) and saves a subtraction.
  const float y_lo = format == Format::f32 ? static_cast<float>(y_c - Real(y_hi)) : 0.0f;
  return {y_hi, y_lo, static_cast<float>(best.floor * spacing), best.worst.ratio, best.worst.regret};
}

}  // namespace outgrad::approx
