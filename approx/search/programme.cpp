// Solves the programme of one row by exchange, and bounds it from below by its dual.
#include "approx/search/programme.h"

#include "approx/search/remez.h"

#include <algorithm>
#include <cmath>

namespace outgrad::approx {

using LongMatrix = Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic>;
using LongVector = Eigen::Matrix<long double, Eigen::Dynamic, 1>;

std::optional<ProgrammeSolution> solve_programme(const std::vector<Range>& ranges, int degree,
                                                 double centre) {
  // One value of p serves all that share a v.
  std::vector<double> v, middle, w;
  for (size_t k = 0; k < ranges.size();) {
    double lo = -INFINITY, hi = INFINITY;
    const double at = ranges[k].v;
    for (; k < ranges.size() && ranges[k].v == at; ++k) {
      lo = std::max(lo, ranges[k].middle - ranges[k].tolerance);
      hi = std::min(hi, ranges[k].middle + ranges[k].tolerance);
    }
    if (!(lo < hi)) return std::nullopt;
    v.push_back(at);
    middle.push_back(0.5 * (lo + hi));
    w.push_back(0.5 * (hi - lo));
  }
  if (v.empty()) return ProgrammeSolution{std::vector<double>(static_cast<size_t>(degree) + 1, 0.0), 0, 0};
  const int free = std::min<int>(degree + 1, static_cast<int>(v.size()));
  double reach = 0;
  for (const double at : v) reach = std::max(reach, std::abs(at - centre));
  if (reach == 0) reach = 1;
  const auto rows = static_cast<Eigen::Index>(v.size());
  // Columns of unit size beside the exchange's column of signs: tolerances may be as small as 2^-133.
  const long double least = *std::min_element(w.begin(), w.end());
  LongMatrix columns(rows, free);
  LongVector target(rows);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const auto k = static_cast<size_t>(i);
    const long double u = (static_cast<long double>(v[k]) - centre) / reach;
    long double power = least / w[k];
    for (int j = 0; j < free; ++j, power *= u) columns(i, j) = power;
    target[i] = static_cast<long double>(middle[k]) / w[k];
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
