/// The activations that Coq's library (approx/proof/coq) has: f x = x Phi x where Phi is the normal
/// distribution function, or the logistic function of a multiple of x or of the argument of GELU's tanh form.
#pragma once

#include "approx/function/scalars.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace outgrad::approx::coq {

/// One of them, with what the files are written by.
struct KnownActivation {
  std::string module;  ///< MODULE.v and MODULESeries.v are of it alone
  double width = 1;  ///< the x at which its Phi is where that of a steepness of 1 is at 1: 1/W of Swish
  double tail;  ///< where the theorems about its tails begin
  std::function<Real(const Real&)> cdf, density;  ///< Phi and its derivative phi
  std::function<Real(const Real&)> curve;  ///< f'' x / phi x
  std::string steepness = {};  ///< the text of SwishSteepness.v; of another module, empty

  /// Continuum.v's tails begin here; an integer.
  [[nodiscard]] int tail_place() const;
  /// bf16_near of MODULESeries.v is for |x| below 2^near_power().
  [[nodiscard]] int near_power() const;
};

/// The modules of all of them.
const std::vector<std::string>& modules();

/// None for a function that the library lacks: it has to be spelled as in no_theory_of().
std::optional<KnownActivation> known_activation(const std::string& function);
/// known_activation() of a function that has one.
KnownActivation known(const std::string& function);

/// What is missing of it.
std::string no_theory_of(const std::string& function);

}  // namespace outgrad::approx::coq
