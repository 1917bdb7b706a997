/// The activations, each defined once, as an expression, with the facts about its tails that no finite
/// evaluation can prove.
#pragma once

#include "approx/function/expression.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace outgrad::approx {

/// A user's own function is certified for |x| up to here.
inline constexpr double kExpressionDomain = 64;

/// The parameters of swish(beta) = x sigmoid(beta x) and of elu(alpha).
struct Parameters {
  double beta = 1, alpha = 1;
};

class GradientTails;

/// An activation at run time: the evaluations of one definition, and how f' settles towards its limits.
struct Activation {
  std::string name;      ///< "gelu", ...; "expression" for a user's own
  std::string function;  ///< the definition, for which another program can prove the same
  double left_limit_gradient = 0, right_limit_gradient = 1;  ///< limits of f' at -inf and +inf: 0 or 1
  double reach = kExpressionDomain;     ///< |x| up to which tails are covered by balls
  /// |f' - limit| for every |x| >= reach: proven for the built-in ones; a user's own is certified for |x| <=
  /// domain
  double beyond = 0;
  double domain = std::numeric_limits<double>::infinity();
  bool linear_from_zero = false;  ///< f(x) = x for x >= 0; the expression holds below

  [[nodiscard]] double value(double x) const;
  /// In double arithmetic throughout, where a user's own may cancel: any number at all, and fast.
  [[nodiscard]] double rough_value(double x) const;
  [[nodiscard]] Real value_real(const Real& x) const;
  [[nodiscard]] Ball value_ball(const Ball& x) const;
  [[nodiscard]] Series value_series(const Series& x) const;
  /// Taylor coefficients of f at every point of x. Of a user's own function, where plain evaluation leaves
  /// the sign of one open, all are enclosed by a Taylor model about the middle too: log(1 + exp(x)) far to
  /// the right has an f'' that plain evaluation only finds in parts narrower than itself.
  [[nodiscard]] Series expand(const Ball& x, slong length) const;
  /// How far f' lies below and above its limit over [x, domain), or over (-domain, x], at most.
  struct TailRange {
    double below = 0, above = 0;
  };
  [[nodiscard]] TailRange gradient_tail_range(const Ball& x, bool right) const;
  /// The larger of both.
  [[nodiscard]] double gradient_tail(const Ball& x, bool right) const;

  std::shared_ptr<const Expression> expression;
  std::shared_ptr<GradientTails> tails;
};

/// @throws kernels::SpecError for a name that is none of the activations.
Activation find_activation(const std::string& name, const Parameters& parameters = {});

/// A user's own. @throws kernels::SpecError "column N: why", or when f' does not settle at 0 or 1 on both
/// sides.
Activation activation_from_expression(const std::string& text);

/// Names of the built-in activations.
const std::vector<std::string>& activation_names();

}  // namespace outgrad::approx
