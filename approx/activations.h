/// The activations, each defined once as a template over the scalar, with the facts about its tails that no finite evaluation can prove.
#pragma once

#include "approx/scalars.h"

#include <functional>
#include <string>

namespace outgrad::approx {

/// erf-GELU, f(x) = x Phi(x) (Hendrycks and Gimpel 2016).
struct Gelu {
  static constexpr const char* kName = "gelu";
  template <class T>
  static T value(const T& x) {
    return x * normal_cdf(x);
  }
  /// Bound on |f'(z)| for every z <= x, x <= -2: f' = Phi - |z| phi lies in (-|z| phi(z), 0) since Phi(z) < phi(z)/|z|, and
  /// |z| phi(z) grows towards -1.
  static Ball left_gradient_tail(const Ball& x) { return abs(x) * exp(x * x * Ball(-0.5)) * Ball(0.4); }  // 1/sqrt(2 pi) < 0.4
  /// Bound on |f'(z) - 1| for every z >= x >= 2: f' - 1 = z phi(z) - Phi(-z) lies in (0, z phi(z)).
  static Ball right_gradient_tail(const Ball& x) { return left_gradient_tail(x); }
};

/// An activation at run time: the four evaluations of one definition.
struct Activation {
  std::string name;
  std::function<double(double)> value;
  std::function<Real(const Real&)> value_real;
  std::function<Ball(const Ball&)> value_ball;
  std::function<Series(const Series&)> value_series;
  std::function<Ball(const Ball&)> left_gradient_tail;   ///< sup |f'| on (-inf, x], x <= kTail
  std::function<Ball(const Ball&)> right_gradient_tail;  ///< sup |f' - 1| on [x, inf), x >= -kTail
};

template <class A>
Activation make_activation() {
  return {A::kName,
          [](double x) { return A::value(x); },
          [](const Real& x) { return A::value(x); },
          [](const Ball& x) { return A::value(x); },
          [](const Series& x) { return A::value(x); },
          A::left_gradient_tail,
          A::right_gradient_tail};
}

/// @throws kernels::SpecError for a name that is none of the activations.
Activation find_activation(const std::string& name);

}  // namespace outgrad::approx
