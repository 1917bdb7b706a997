/// The composite derivative g = f' o f^-1 and its coordinates, always parametrised by x, so that nothing
/// needs an inverse to be certified.
///
/// (f(x) - f(r))/(x - r)^k is analytic where f - f(r) vanishes to order k at r. With r = x*, k = 2 it is h,
/// and s(x) = (x - x*) sqrt(h(x)) is the analytic signed root of y - y* on both branches. Its Taylor
/// coefficients over a ball X next to r are enclosed by the mean value form of the divided difference:
/// coefficient j of the quotient is f^(j+k)(xi)/(j+k)! for some xi between r and X.
#pragma once

#include "approx/function/activations.h"
#include "approx/function/stationary.h"

namespace outgrad::approx {

/// What a piece's polynomial is a polynomial of.
enum class Coordinate {
  signed_root,  ///< s = +-sqrt(y - y*), negative left of x*
  identity,     ///< y itself
  argument,     ///< x (forward)
};

const char* to_string(Coordinate c);

class Composite {
 public:
  explicit Composite(Activation activation);

  [[nodiscard]] const Activation& activation() const { return activation_; }
  /// Whether f has a minimum, so that (y, bit) and not y alone tells x. x_star and y_star are for these only.
  [[nodiscard]] bool masked() const { return minimum_.has_value(); }
  [[nodiscard]] const Ball& x_star() const { return minimum_.value().x_star; }
  [[nodiscard]] const Ball& y_star() const { return minimum_.value().y_star; }
  /// Limits of f itself at -inf and +inf: a float, or an infinity.
  [[nodiscard]] double left_limit() const { return left_limit_; }
  [[nodiscard]] double right_limit() const { return right_limit_; }
  /// Spacing of the format's numbers in the binade of y*.
  [[nodiscard]] double spacing_at_minimum(int precision_bits) const;
  /// From here on, leftwards, |f' - limit| is below 2^-50: nothing beside any target.
  [[nodiscard]] double tail_start() const { return tail_start_; }

  /// f(X + t), f'(X + t).
  [[nodiscard]] Series value(const Ball& x, slong length) const;
  [[nodiscard]] Series gradient(const Ball& x, slong length) const;
  /// The coordinate of X + t.
  [[nodiscard]] Series coordinate(Coordinate kind, const Ball& x, slong length) const;
  /// (f(X + t) - f(root))/(X + t - root)^order, order 1 or 2; X may hold the root.
  [[nodiscard]] Series quotient(const Ball& x, const Ball& root, slong order, slong length) const;

  /// Point evaluations, correct to far more bits than any fit needs.
  [[nodiscard]] Real value_at(const Real& x) const;
  [[nodiscard]] Real gradient_at(const Real& x) const;
  [[nodiscard]] Real coordinate_at(Coordinate kind, const Real& x) const;
  /// x with s(x) = s, to about 2^-90: Newton's steps on s, which is regular also at x*. s must be attained
  /// within +-reach.
  [[nodiscard]] Real argument_of_root(const Real& s) const;
  /// x on the given side of x* with f(x) = y; without a minimum the one x there is.
  [[nodiscard]] Real argument_of(const Real& y, bool right) const;
  /// The same as a ball that is proven to hold it. @throws kernels::SpecError (undecided) when 2^-60 is not
  /// enough.
  [[nodiscard]] Ball enclose_argument_of(const Ball& y, bool right) const;

 private:
  /// The x between near and far with f(x) = y, by bisection in double and then `steps` of Newton's method,
  /// whose steps `correction` gives.
  template <class Correction>
  [[nodiscard]] Real solved(double near, double far, double y, int steps, const Correction& correction) const;

  Activation activation_;
  std::optional<Minimum> minimum_;
  double left_limit_ = 0, right_limit_ = 0, tail_start_ = 0;
};

}  // namespace outgrad::approx
