// What the brute force asks a compiled header, and the answers. Shared by the gate and by the shared
// libraries that it compiles.
//
// Plain data without dependencies, because it is included together with every mutant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace outgrad::validation::gate {

/// A place where the header is evaluated: y and the mask bit, or x of a forward or code header.
struct Point {
  float at = 0;
  std::uint32_t code = 0;  ///< for a direct table: y's bits in the header's format
  bool m = true;
  bool traced = false;   ///< also evaluated in exact arithmetic
  long double root = 0;  ///< the true sqrt(y - y*) for this y, whatever the header's constants are
};

struct Outcome {
  float got = 0;              ///< g in fp32, as kernels compute it; f(x) of a forward header
  bool bit = false;           ///< the mask bit that a forward computes
  std::uint32_t row = 0;      ///< the row that the true coordinate selects
  long double star = 0;       ///< the row's polynomial in exact arithmetic, at the true coordinate
  double rounding = 0;        ///< |got - the same operations in exact arithmetic|
  int operations = 0;         ///< fma, sub and mul that were performed
};

inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

/// A header's constants as the compiler sees them; NaN, -1 or null if it has no constant of the name.
struct Claims {
  enum class Kind { backward, table, forward, rounded, code, fp8 } kind = Kind::backward;
  const char *name = nullptr, *activation = nullptr, *function = nullptr, *format = nullptr,
             *accuracy = nullptr, *entry_format = nullptr, *fit = nullptr, *code = nullptr,
             *product = nullptr;
  bool masked = true, plain = false, exact_limits = false, has_left = false, has_right = false,
       right_both = false, has_tail = false, levels = false;
  int operations = -1, index_operations = -1, core_first = -1;
  double y_hi = kAbsent, y_lo = kAbsent, t_min = kAbsent, s_min = kAbsent, y_max = kAbsent, left_y = kAbsent,
         right_s = kAbsent;
  double x_star = kAbsent, x_min = kAbsent, x_max = kAbsent, end = kAbsent;
  double a = kAbsent, k = kAbsent, b = kAbsent, ab = kAbsent, t = kAbsent, o = kAbsent, r = kAbsent,
         ulp = kAbsent, ulp_from = kAbsent, core_a = kAbsent, relative = kAbsent, absolute = kAbsent;
  double lo = kAbsent, hi = kAbsent, g = kAbsent, bias = kAbsent;
  // of codes
  double exact[8] = {kAbsent, kAbsent, kAbsent, kAbsent, kAbsent, kAbsent, kAbsent, kAbsent},
         dithered[2] = {kAbsent, kAbsent};
  /// What is claimed of y in few bits: the range of scales, and T by bits.
  struct Scales {
    double least = kAbsent, most = kAbsent, total[3] = {kAbsent, kAbsent, kAbsent};
  };
  double room = kAbsent, least_at = kAbsent, greatest_at = kAbsent;
  Scales e4m3, e5m2, int8, mxfp4, nvfp4;
  double sign[3] = {kAbsent, kAbsent, kAbsent};  // T of any format with a -0
};

using ClaimsFunction = void (*)(Claims*);
using ProbeFunction = void (*)(const Point*, std::size_t, Outcome*);

}  // namespace outgrad::validation::gate
