// What a header makes of every x of a format, for a function that the library does not ship: f(x) and f'(x)
// by MPFR intervals, y correctly rounded.
#pragma once

#include <string>
#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/exact/oracle.h"

namespace outgrad::validation {

/// A finite x with |x| <= kPointsReach; slope is f'(x), within a relative 2^-48 or an absolute 2^-100.
struct HeaderPoint {
  float x = 0;
  double slope = 0;
  float y = 0;  ///< f(x) rounded to the header's format
  bool m = true;  ///< x >= x*
  float g = 0;  ///< what the header computes from y and m
};

/// The claims for a user's expression end here.
inline constexpr double kPointsReach = 64;

/// f16 or bf16 by name. @throws kernels::SpecError for another, with the file.
const FloatFormat& swept_format(const std::string& format, const std::string& file);

/// In ascending x, -0 before +0. The header is a backward one or a direct table, for y in f16 or bf16.
/// @throws kernels::SpecError for another header, for a function that has no proof (activation.h), and where
/// no precision decides how an f(x) is rounded.
std::vector<HeaderPoint> header_points(const Header& header, const FloatFormat& x_format);

/// What a header says of itself. @throws kernels::SpecError for a header of another kind.
struct HeaderSummary {
  std::string file, name, function, format;
  bool masked = true;
  int operations = 0;
  StorageClaims claims;
};
HeaderSummary summary_of(const Header& header);

}  // namespace outgrad::validation
