/// The programme of one row: a polynomial that passes through a range at each of finitely many coordinates,
/// as well as any can.
#pragma once

#include <optional>
#include <vector>

namespace outgrad::approx {

/// |p(v) - middle| <= tolerance is asked for.
struct Range {
  double v, middle, tolerance;
};

/// One range for each v, what all that share it have in common: of a tolerance that is not positive where
/// that is nothing. Ranges are in ascending v.
std::vector<Range> intersected(const std::vector<Range>& ranges);

/// Coefficients are rounded to fp32 after the fit: tolerances are held this much below what is asked for,
/// which is more than fp32 Horner steps on |p| < 2 can lose.
inline constexpr double kRoundingRoom = 0x1p-21;

struct ProgrammeSolution {
  std::vector<double> c;  ///< in powers of v - centre
  /// These are of the weighted problem: error <= 1 serves every range, level > 1 proves that nothing does
  double level, error;
};

/// Least max |p(v) - middle| / tolerance. Ranges that share a v count as their intersection; nothing is
/// returned where one is empty. Ranges are in ascending v.
std::optional<ProgrammeSolution> solve_programme(const std::vector<Range>& ranges, int degree, double centre);

}  // namespace outgrad::approx
