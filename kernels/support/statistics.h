// What several measurements of one thing come to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
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

}  // namespace outgrad::kernels
