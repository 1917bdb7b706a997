// Bounds with few decimal digits, rounded up, so that what is shown is a bound as well; -f(-bound) rounds
// down.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace outgrad::kernels {

// A share of a bound that nobody sees: 1.05, or a claim that was rounded up in binary64 already, is not shown
// as the next decimal above it.
inline constexpr double kUnseen = 1e-9;

// To so many digits after the point.
inline double decimals_up(double bound, int decimals) {
  if (!std::isfinite(bound)) return bound;
  const auto nearest = [&](double value) {
    char text[400];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return std::strtod(text, nullptr);
  };
  const double near = nearest(bound);
  return near < bound - kUnseen * std::fabs(bound) ? nearest(near + std::pow(10, -decimals)) : near;
}

// To so many significant digits.
inline double digits_up(double bound, int digits) {
  if (!std::isfinite(bound) || bound == 0) return bound;
  const auto nearest = [&](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*e", digits - 1, value);
    return std::strtod(text, nullptr);
  };
  const double near = nearest(bound);
  if (!(near < bound - kUnseen * std::fabs(bound))) return near;
  return nearest(near + std::pow(10, std::floor(std::log10(std::fabs(bound))) - digits + 1));
}

// "2^-10.80", "0".
inline std::string power_up(double bound, int decimals = 2) {
  if (!(bound > 0)) return bound == 0 ? "0" : "nan";
  char text[40];
  std::snprintf(text, sizeof text, "2^%.*f", decimals, decimals_up(std::log2(bound), decimals));
  return text;
}

}  // namespace outgrad::kernels
