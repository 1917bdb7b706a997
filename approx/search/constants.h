/// The constants of the coordinate, y_c in place of y* and the floor t_min, chosen against the proven storage
/// intervals.
///
/// Even the exact g, evaluated at a rounded y, misses the least possible error O: the preimages of the lowest
/// stored y fold at the minimum, so the middle of the gradients they stand for is not g(y). Two constants
/// repair nearly all of it.
#pragma once

#include "approx/model/spec.h"

#include <memory>
#include <vector>

namespace outgrad::approx {

struct CoordinateConstants {
  float y_hi, y_lo, t_min;
  /// with these constants, near y*; the sweep proves the whole. A ratio of 0: no two x share a (y, bit)
  double expected_ratio, expected_regret;
  int considered = 0;  ///< constants that the search has looked at
};

/// A stored y with the range of true gradients it stands for, on one branch.
struct StoredRange {
  double height;  ///< (y - y*) in units of the spacing; negative for a stored y below y*
  bool right;
  double lo, hi;
  [[nodiscard]] double middle() const { return 0.5 * (lo + hi); }
  [[nodiscard]] double half() const { return 0.5 * (hi - lo); }
};

/// The storage ranges next to y*, for real x (taken as continuous: over 1000 fp32 numbers share a stored y
/// there) and, of 16-bit formats, for the x of the format too; and what constants and coefficients make of
/// them.
class NearMinimum {
 public:
  /// With a `product` the ranges are those of its quotients, which are all reals.
  NearMinimum(const Composite& composite, Format format, Format product = Format::f32);
  ~NearMinimum();
  NearMinimum(const NearMinimum&) = delete;
  NearMinimum& operator=(const NearMinimum&) = delete;

  /// |s| up to which there are ranges.
  [[nodiscard]] double reach() const;
  /// No function of (y, bit) has T <= ratio O over the real x and over the x of the format at once, next to
  /// y*, with a ratio below this: where one pair's two ranges lie apart, what serves one costs the other. At
  /// least 1. In double, of ranges within 1e-12.
  [[nodiscard]] double least_ratio() const;

  /// Those `rows` in s that are `storage_aware` are taken to be the best that their programmes allow.
  /// Where others have coefficients, these are what is deployed: their own error, up to a twentieth of O, may
  /// be for or against the constants. Elsewhere it is g. Ends after some 110,000 constants at the most.
  /// @throws kernels::SpecError when none has a finite error.
  [[nodiscard]] CoordinateConstants choose_constants(const StorageGoal& goal,
                                                     const std::vector<Piece>& rows = {}) const;

  /// Coefficients of a row in s by its programme: the ranges of the goal and, whatever becomes of these, |p -
  /// g| <= allowed. A goal that is out of reach is stretched until a polynomial of the degree that c has room
  /// for serves it. Fills centre, degree and c, rounded to fp32; false: none stays in the tube.
  bool fit(const StorageGoal& goal, const CoordinateConstants& constants, Piece& row) const;

 private:
  class Data;
  class Choosing;
  std::unique_ptr<const Data> data_;
};

}  // namespace outgrad::approx
