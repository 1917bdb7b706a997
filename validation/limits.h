// What every part of the validation calls infinity.
#pragma once

#include <limits>

namespace outgrad::validation {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace outgrad::validation
