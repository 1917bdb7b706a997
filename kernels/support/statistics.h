// What several measurements of one thing come to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

namespace outgrad::kernels {

// Of an even number of values the mean of the two in the middle; NaN of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The largest k for which the k-th of n values from either end hold the median of what they are drawn from
// between them with this confidence, however it is spread; 0 where there are too few values. The median lies
// below the k-th with the chance of fewer than k heads in n throws.
inline std::size_t place_of_bound(std::size_t n, double confidence) {
  double chance = std::pow(0.5, static_cast<double>(n)), below = 0;
  std::size_t k = 0;
  while (2 * (below + chance) <= 1 - confidence) {
    below += chance;
    chance *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  return k;
}

// The t for which a variable of Student's distribution lies in [-t, t] with this probability: the sums of
// Abramowitz and Stegun (1964), 26.7.3 and 26.7.4, in the angle whose tangent is t / sqrt(degrees), by
// bisection.
inline double students_t(double confidence, int degrees) {
  const auto probability = [&](double angle) {
    const double square = std::cos(angle) * std::cos(angle);
    const int odd = degrees % 2;
    double term = odd == 1 ? std::cos(angle) : 1, sum = 0;
    for (int power = 2 + odd; power <= degrees; power += 2) {
      sum += term;
      term *= square * (power - 1) / power;
    }
    return odd == 1 ? (angle + std::sin(angle) * sum) / std::numbers::pi * 2 : std::sin(angle) * sum;
  };
  double low = 0, high = std::numbers::pi / 2;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (probability(middle) < confidence ? low : high) = middle;
  }
  return std::sqrt(degrees) * std::tan(low);
}

}  // namespace outgrad::kernels
