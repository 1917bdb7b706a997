/// The constants of the coordinate, y_c in place of y* and the floor t_min, chosen against the proven storage intervals.
///
/// Even the exact g, evaluated at a rounded y, misses the least possible error O: the preimages of the lowest stored y fold at the
/// minimum, so the middle of the gradients they stand for is not g(y). Two constants repair nearly all of it.
#pragma once

#include "approx/fit_model.h"

#include <vector>

namespace outgrad::approx {

/// What the constants are chosen for. Both count alike: the largest of (T/O - 1)/(ratio - 1) and R/regret is minimised.
struct StorageGoal {
  double ratio;   ///< of the total error T to the oracle O
  double regret;  ///< distance R to the middle of the interval of true gradients
  double bend;    ///< how far, at most, the row that holds s = 0 may leave g towards those middles; 0 for not at all
};

/// What the row that holds s = 0 (|s| <= radius) adds to g: -bend T_3(s/radius), the odd cubic of least maximum for its slope at 0. It
/// takes back some of what y_c, chosen for the lowest stored y, costs the next ones.
double bent_by(double bend, double radius, double s);

struct CoordinateConstants {
  float y_hi, y_lo, t_min;
  double expected_ratio, expected_regret;  ///< of the exact g with these constants, near y*; the sweep proves the whole
};

/// |s| up to which the constants are chosen for.
double reach_of_constants(const Composite& composite);

/// For 16-bit formats over the x of the format and over all f32 x, for f32 over all f32 x (taken as continuous: over 1000 of them
/// share a stored y next to y*).
/// `radius` is the half-width of the row that holds s = 0. Where `rows` in s have coefficients, these are what is deployed: their own error, up to a
/// twentieth of O, may be for or against the constants. Elsewhere it is g, with the bend.
CoordinateConstants choose_constants(const Composite& composite, Format format, const StorageGoal& goal, double radius, const std::vector<Piece>& rows = {});

}  // namespace outgrad::approx
