/// Proven bounds of a fit whose y is the quotient of a rounded product (ProductBall): T over all real y and
/// all x so near, and what no function of (y, bit) goes below.
///
/// T is certified in x, as A is: over a cell of x, y lies between f(x) less its ball at one end and f(x) with
/// its ball at the other, and the rows' polynomials over these y are compared with f' over the cell. The cell
/// with the largest bound is halved until that is within 2^-9 of the largest error seen at a point.
#pragma once

#include "approx/model/fit_model.h"

namespace outgrad::approx {

struct ProductErrors {
  double total = 0;  ///< T = max |g(y, m) - f'(x)|, rounding included, rounded up
  double oracle = 0;  ///< half the range of f' over the x of one (y, m), rounded down
  Found worst_total, worst_oracle;
};
/// @throws kernels::SpecError (undecided) when so many cells do not suffice.
ProductErrors certify_product(const Composite& composite, const BackwardModel& model);

}  // namespace outgrad::approx
