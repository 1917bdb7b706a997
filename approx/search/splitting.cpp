// Finds the break points of a levelled split.
//
// The error of the best polynomial grows with its interval, so rows taken as long as the level allows, from
// left to right, are as few as can be; the least level at which that number still suffices makes their errors
// equal.
#include "approx/search/splitting.h"

#include "approx/search/partition.h"
#include "approx/search/remez.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

/// Points of the curve (v, g) that stand for it: a row of a 16-row split sees 250 of them.
constexpr int kPoints = 4001;
constexpr size_t kMostLevelledRows = 32;
/// Room left to the rounding of coefficients and to what a thinned curve does not show.
constexpr double kRoom = 0.88;

/// The curve over the core's range, even in the coordinate: v ascending.
struct Curve {
  std::vector<double> v, g;
};

Curve sample_curve(const Composite& composite, double begin, double end) {
  Curve c;
  c.v.resize(kPoints);
  c.g.resize(kPoints);
#pragma omp parallel for schedule(dynamic, 32)
  for (int k = 0; k < kPoints; ++k) {
    const double v = begin + (end - begin) * k / (kPoints - 1);
    const auto at = static_cast<size_t>(k);
    c.v[at] = v;
    // Beyond the tail's start, also where no x reaches, g is its limit.
    Real x;
    if (composite.masked()) {
      const double least = -std::sqrt(-composite.y_star().to_double());
      x = v <= least * (1 - 0x1p-30) ? Real(composite.tail_start()) : composite.argument_of_root(Real(v));
    } else {
      const bool low = v <= composite.left_limit(), high = v >= composite.right_limit();
      x = low    ? Real(composite.tail_start())
          : high ? Real(composite.activation().reach)
                 : composite.argument_of(Real(v), true);
    }
    c.g[at] = static_cast<double>(composite.gradient_at(x));
  }
  flint_cleanup();
  return c;
}

/// Error of the best polynomial on points [from, to], at most 64 of them: those missed change a degree-12
/// maximum by less than 1%.
double best_error(const Curve& curve, size_t from, size_t to, int degree) {
  const size_t count = to - from + 1;
  constexpr size_t kUsed = 64;
  const size_t used = std::min(count, kUsed);
  if (used <= static_cast<size_t>(degree) + 1) return 0;
  Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic> columns(static_cast<Eigen::Index>(used),
                                                                     degree + 1);
  Eigen::Matrix<long double, Eigen::Dynamic, 1> target(static_cast<Eigen::Index>(used));
  const double middle = 0.5 * (curve.v[from] + curve.v[to]), half = 0.5 * (curve.v[to] - curve.v[from]);
  for (size_t i = 0; i < used; ++i) {
    // Chebyshev points, snapped to the curve's: the ends carry maxima.
    const double place =
        0.5 - 0.5 * std::cos(3.141592653589793 * static_cast<double>(i) / static_cast<double>(used - 1));
    const size_t k = from + static_cast<size_t>(std::lround(place * static_cast<double>(count - 1)));
    const long double u = (static_cast<long double>(curve.v[k]) - middle) / half;
    long double power = 1;
    for (int j = 0; j <= degree; ++j, power *= u) columns(static_cast<Eigen::Index>(i), j) = power;
    target[static_cast<Eigen::Index>(i)] = curve.g[k];
  }
  return static_cast<double>(exchange<long double>(columns, target, 1e-3, 200).error);
}

/// Ends of the rows that reach at most `level`, greedily; gives up beyond `most` rows.
std::vector<size_t> greedy(const Curve& curve, int degree, double level, size_t most) {
  std::vector<size_t> ends;
  size_t from = 0;
  while (from + 1 < curve.v.size()) {
    size_t lo = from + 1, hi = curve.v.size() - 1;
    if (best_error(curve, from, hi, degree) <= level) {
      lo = hi;
    } else {
      while (hi - lo > 1) {
        const size_t mid = (lo + hi) / 2;
        (best_error(curve, from, mid, degree) <= level ? lo : hi) = mid;
      }
    }
    ends.push_back(lo);
    from = lo;
    if (ends.size() > most) break;
  }
  return ends;
}

}  // namespace

std::vector<float> levelled_breaks(const Composite& composite, const BackwardSpec& spec,
                                   const CoordinateConstants& constants, double target) {
  const auto [begin, end] = core_range(composite, spec, constants, target);
  const Curve curve = sample_curve(composite, begin, end);
  std::vector<size_t> ends = greedy(curve, spec.degree, kRoom * target, kMostLevelledRows);
  if (ends.size() > kMostLevelledRows) {
    throw kernels::SpecError(fmt::format("split: degree {} needs more than {} rows for 2^{:.2f}", spec.degree,
                                         kMostLevelledRows, std::log2(target)));
  }
  // Level: the least error at which as many rows still reach from end to end.
  double lo = 0, hi = kRoom * target;
  for (int step = 0; step < 12; ++step) {
    const double mid = 0.5 * (lo + hi);
    const auto tried = greedy(curve, spec.degree, mid, ends.size());
    if (tried.size() <= ends.size()) {
      ends = tried;
      hi = mid;
    } else {
      lo = mid;
    }
  }
  std::vector<float> breaks;
  for (size_t k = 0; k + 1 < ends.size(); ++k) {
    // 13 bits: finer than the curve's points, and short as an immediate.
    const double v = curve.v[ends[k]];
    const double unit = std::ldexp(1.0, std::max(std::ilogb(v), -8) - 12);
    breaks.push_back(static_cast<float>(std::nearbyint(v / unit) * unit));
  }
  return breaks;
}

}  // namespace outgrad::approx
