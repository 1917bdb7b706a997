// Samples are exact to about 2^-200; from there on double suffices, because every later quantity is
// proportional to the small |E|.
#include "validation/certificate/sup_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr int kDegree = 32;              // q = 4 then truncates to 2^-64 M
// of the claim: what truncation may add to a bound before the interval is halved instead
constexpr double kTruncation = 0x1p-34;
constexpr int kMaxIntervals = 256;       // a row of a real header takes a few; a hostile one must end
// the last for functions that the polynomial all but equals, whose claims are tiny
constexpr std::array kEllipses{8.0, 4.0, 2.5, 64.0};
// the factors 1 / cos are 1 + 2^-13.7, 2^-21.7, 2^-29.7
constexpr std::array kGrids{1 << 12, 1 << 16, 1 << 20};

// Conversion of the samples, cosine transform and Clenshaw's recurrence in double: at most n^2 2^-52 times
// the sum of |c_k|, which is at most 2 (n + 1) max |sample|; (n + 4)^3 2^-50 covers that and the transform's
// own sums of n + 1 terms.
constexpr double kRounding = (kDegree + 4.0) * (kDegree + 4.0) * (kDegree + 4.0) * 0x1p-50;
constexpr double kLebesgue = 4;  // of n + 1 Chebyshev points: 2/pi log(n + 1) + 1 < 3.3

// One subinterval's polynomial sum c_k T_k, and what separates it from E.
struct Interpolant {
  std::array<double, kDegree + 1> coefficients;
  double distance;
};

const std::array<Interval, kDegree + 1>& nodes() {
  static const auto values = [] {
    std::array<Interval, kDegree + 1> cosines;
    for (int j = 0; j <= kDegree; ++j) cosines[j] = cos(Interval::pi() * j / kDegree);
    return cosines;
  }();
  return values;
}

// The least bound, or the first that is small enough.
double truncation(const AnalyticFunction& error, double middle, double radius, double enough) {
  double least = kInfinity;
  for (const double q : kEllipses) {
    const double disc = (Interval(radius) * (Interval(q) + Interval(1) / q) * 0.5).upper();
    const double bound = error.disc_bound(middle, disc);
    // pow and 3 products
    if (std::isfinite(bound))
      least = std::min(least, bound * 4 / (q - 1) * std::pow(q, -kDegree) * (1 + 0x1p-40));
    if (least <= enough) break;
  }
  return least;
}

Interpolant interpolate(const AnalyticFunction& error, double middle, double radius) {
  std::array<double, kDegree + 1> samples, cosines;
  double largest = 0, widest = 0;
  for (int j = 0; j <= kDegree; ++j) {
    const Interval value = error.at(Interval(middle) + nodes()[j] * radius);
    samples[j] = value.middle();
    cosines[j] = std::cos(std::numbers::pi * j / kDegree);
    largest = std::max(largest, value.magnitude());
    widest = std::max(widest, value.width());
  }
  Interpolant p{{}, (kRounding * largest + kLebesgue * widest)};
  for (int k = 0; k <= kDegree; ++k) {
    double sum = 0;
    for (int j = 0; j <= kDegree; ++j) {
      const int turn = k * j % (2 * kDegree);
      const double weight = j == 0 || j == kDegree ? 0.5 : 1.0;
      sum += weight * samples[j] * cosines[turn <= kDegree ? turn : 2 * kDegree - turn];
    }
    p.coefficients[k] = sum * (k == 0 || k == kDegree ? 1.0 : 2.0) / kDegree;
  }
  return p;
}

// cos(i pi / n) for i from 0 to n, with 0s up to a whole number of blocks.
constexpr int kBlock = 16;
std::vector<double> abscissae(int n) {
  std::vector<double> x((static_cast<size_t>(n) / kBlock + 1) * kBlock);
  for (int i = 0; i <= n; ++i) x[static_cast<size_t>(i)] = i == n ? -1.0 : std::cos(std::numbers::pi * i / n);
  return x;
}

// max |P| over the grid cos(i pi / n), and the abscissa in [-1, 1] where it is.
std::pair<double, double> maximum_over_grid(const Interpolant& p, int n) {
  static const std::vector<double> coarse = abscissae(kGrids.front());
  const std::vector<double> finer = n == kGrids.front() ? std::vector<double>() : abscissae(n);
  const double* grid = n == kGrids.front() ? coarse.data() : finer.data();
  double largest = 0, at = 0;
  for (int begin = 0; begin <= n; begin += kBlock) {
    const double* x = grid + begin;
    // Side by side, as one recurrence waits for its own last step.
    std::array<double, kBlock> b1{}, b2{}, value;
    for (int k = kDegree; k >= 1; --k) {
      for (int i = 0; i < kBlock; ++i) {
        const double next = 2 * x[i] * b1[i] - b2[i] + p.coefficients[k];
        b2[i] = b1[i], b1[i] = next;
      }
    }
    for (int i = 0; i < kBlock; ++i) value[i] = std::fabs(x[i] * b1[i] - b2[i] + p.coefficients[0]);
    for (int i = 0; i < kBlock && begin + i <= n; ++i) {
      if (!(value[i] <= largest)) largest = value[i], at = x[i];
    }
  }
  return {largest, at};
}

}  // namespace

SupNorm bound_sup_norm(const AnalyticFunction& error, double low, double high, double claim) {
  SupNorm result;
  const auto look_at = [&](double x) {
    const double seen = error.at(x).mignitude();
    if (!(seen < result.observed)) result.observed = seen, result.at = x;
    if (seen > claim) result.verdict = Verdict::Violated;
  };
  look_at(low + (high - low) / 2);
  std::vector<std::pair<double, double>> pending{{low, high}};
  int intervals = 0;
  while (!pending.empty()) {
    // clang 14 captures no structured bindings
    const double a = pending.back().first, b = pending.back().second;
    pending.pop_back();
    const double middle = a + (b - a) / 2;
    const double radius = std::max((Interval(b) - middle).upper(), (Interval(middle) - a).upper());
    const auto halve = [&] {
      // An interval of a few floating-point steps that still resists will not yield to halving.
      if (++intervals < kMaxIntervals && a < middle && middle < b) {
        pending.insert(pending.end(), {{a, middle}, {middle, b}});
      } else {
        result.proven = kInfinity;
        if (result.verdict == Verdict::Holds) result.verdict = Verdict::Undecided, result.at = middle;
      }
    };
    // Once the claim is refuted it is no measure of what matters: one of 0 would halve intervals to the last.
    const double tolerance = std::max(claim, result.observed) * kTruncation,
                 truncated = truncation(error, middle, radius, tolerance);
    if (!(truncated <= tolerance) && !(radius == 0)) {
      halve();
      continue;
    }
    const Interpolant p = interpolate(error, middle, radius);
    double bound = 0;
    for (const int n : kGrids) {
      const auto [largest, at] = maximum_over_grid(p, n);
      // 1.001: the grid's abscissae are rounded, which moves t by less than 2^-20 of the grid's step.
      bound = largest / std::cos(1.001 * kDegree * std::numbers::pi / (2.0 * n)) + p.distance + truncated;
      const double x = std::clamp(middle + radius * at, a, b);
      // A finer grid cannot help once a sample itself exceeds the claim.
      if (bound <= claim || largest > claim || n == kGrids.back()) {
        if (!(largest < result.observed)) look_at(x);
        break;
      }
    }
    if (bound <= claim || (result.verdict == Verdict::Violated && std::isfinite(bound))) {
      result.proven = std::max(result.proven, bound);
    } else {
      halve();
    }
  }
  return result;
}

}  // namespace outgrad::validation
