// Solves the programme of one row by exchange, and bounds it from below by its dual.
#include "approx/search/programme.h"

#include "approx/search/remez.h"

#include <algorithm>
#include <cmath>

namespace outgrad::approx {

using LongMatrix = Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic>;
using LongVector = Eigen::Matrix<long double, Eigen::Dynamic, 1>;

std::vector<Range> intersected(const std::vector<Range>& ranges) {
  std::vector<Range> all;
  for (size_t k = 0; k < ranges.size();) {
    double lo = -INFINITY, hi = INFINITY;
    const double at = ranges[k].v;
    for (; k < ranges.size() && ranges[k].v == at; ++k) {
      lo = std::max(lo, ranges[k].middle - ranges[k].tolerance);
      hi = std::min(hi, ranges[k].middle + ranges[k].tolerance);
    }
    all.push_back({at, 0.5 * (lo + hi), 0.5 * (hi - lo)});
  }
  return all;
}

std::optional<ProgrammeSolution> solve_programme(const std::vector<Range>& ranges, int degree,
                                                 double centre) {
  const std::vector<Range> at = intersected(ranges);
  if (at.empty()) return ProgrammeSolution{std::vector<double>(static_cast<size_t>(degree) + 1, 0.0), 0, 0};
  if (!std::ranges::all_of(at, [](const Range& range) { return range.tolerance > 0; })) return std::nullopt;
  // Columns of unit size beside the exchange's column of signs: tolerances may be as small as 2^-133.
  const long double least = std::ranges::min_element(at, {}, &Range::tolerance)->tolerance;
  const int free = std::min<int>(degree + 1, static_cast<int>(at.size()));
  double reach = 0;
  for (const Range& range : at) reach = std::max(reach, std::abs(range.v - centre));
  if (reach == 0) reach = 1;
  const auto rows = static_cast<Eigen::Index>(at.size());
  LongMatrix columns(rows, free);
  LongVector target(rows);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const auto& [v, middle, tolerance] = at[static_cast<size_t>(i)];
    const long double u = (static_cast<long double>(v) - centre) / reach;
    long double power = least / tolerance;
    for (int j = 0; j < free; ++j, power *= u) columns(i, j) = power;
    target[i] = static_cast<long double>(middle) / tolerance;
  }
  ProgrammeSolution s;
  if (rows == free) {  // interpolation
    const LongVector c = columns.fullPivLu().solve(target);
    s.level = s.error = 0;
    for (int j = 0; j < free; ++j) s.c.push_back(static_cast<double>(c[j] * least));
  } else {
    const auto best = exchange<long double>(columns, target, 1e-4, 400);
    s.level = static_cast<double>(best.level);
    s.error = static_cast<double>(best.error);
    for (int j = 0; j < free; ++j) s.c.push_back(static_cast<double>(best.coefficients[j] * least));
  }
  s.c.resize(static_cast<size_t>(degree) + 1, 0.0);
  double unscale = 1;
  for (double& c : s.c) {
    c *= unscale;
    unscale /= reach;
  }
  return s;
}

}  // namespace outgrad::approx
