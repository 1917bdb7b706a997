/// How numbers, ranges and coordinates are written in the files for Coq.
#pragma once

#include "approx/function/format.h"
#include "approx/function/scalars.h"
#include "approx/model/piece.h"
#include "approx/proof/gappa.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

namespace outgrad::approx::coq {

inline Real power_of_2(int exponent) { return ldexp(Real(1), exponent); }
inline Real nearest(const Real& r, int bits) { return ldexp(round(ldexp(r, bits)), -bits); }
inline Real above(const Real& r, int bits) { return ldexp(ceil(ldexp(r, bits)), -bits); }
inline Real below(const Real& r, int bits) { return ldexp(floor(ldexp(r, bits)), -bits); }

/// "n / 2 ^ k" for a number that is one, as doubles and what is rounded to so many places are.
inline std::string exact(Real r) {
  int places = 0;
  for (; r != floor(r); r *= 2) ++places;
  const std::string n = r.str(0, std::ios_base::fixed);
  const std::string integer = n.substr(0, n.find('.'));
  return places == 0 ? integer : fmt::format("{} / 2 ^ {}", integer, places);
}

/// The same as an argument of a function.
inline std::string operand(const Real& r) {
  const std::string text = exact(r);
  return text.find_first_of(" -") == std::string::npos ? text : "(" + text + ")";
}

/// The same as a float of Flocq.
inline std::string dyadic(double value) {
  const auto [integer, exponent] = integer_and_exponent(value);
  return fmt::format("Float radix2 ({}) ({})", integer, exponent);
}

inline std::string between(const Real& lo, const char* variable, const Real& hi) {
  return fmt::format("{} <= {} <= {}", exact(lo), variable, exact(hi));
}

/// What a row's polynomial is of: the coordinate s, or y itself.
inline bool in_s(const Piece& piece) { return piece.coordinate == Coordinate::signed_root; }
inline const char* coordinate_of(const Piece& piece) { return in_s(piece) ? "coordinate x" : "f x"; }
/// The same right of the row's range, where y is held at y_max.
inline std::string held_coordinate_of(const Piece& piece, float y_max) {
  const std::string held = fmt::format("Rmin (f x) {}", operand(Real(static_cast<double>(y_max))));
  return in_s(piece) ? "root_of (" + held + ")" : held;
}

/// Precision and exponent range of a format as Format.v has them.
struct Shape {
  explicit Shape(Format format)
      : precision(precision_bits(format)), range(1 << (shape_of(format).exponent_bits - 1)) {}
  int precision, range;
  /// the number of 2^power, a normal number
  [[nodiscard]] int first_of(int power) const { return (range - 1 + power) << (precision - 1); }
  [[nodiscard]] int magnitudes() const { return first_of(range); }
  [[nodiscard]] std::string arguments() const { return fmt::format("{} {}", precision, range); }
};

}  // namespace outgrad::approx::coq
