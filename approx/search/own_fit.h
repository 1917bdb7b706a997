/// A fit of which only the function and the format are given: target, rows and degree are found.
#pragma once

#include "approx/model/fit.h"
#include "approx/model/spec.h"

#include <string>

namespace outgrad::approx {

struct OwnFunction {
  std::string name;        ///< of the fit
  std::string definition;  ///< members of a specification: "expression": "tanh(x)", "activation": "elu"
  Format format = Format::bf16;
  double error = 0;  ///< what A may be, at most 1/2; 0: the least that is of use in the format, or in reach
  bool oracle = false;  ///< a direct table of the best gradient of each stored y
};

struct OwnFit {
  Spec spec;  ///< fit() makes the same of it
  Fit fit;
  std::string mirror;  ///< -f(-x), where that was fitted in place of f(x); else empty
};

/// Fits with the layouts of layouts_within, or, of a 16-bit format where none of them reaches the error, with
/// break points that level the errors of the rows. The result does not depend on `threads` (0: all).
/// @throws kernels::SpecError where the function cannot be served, or the error is asked for and not reached.
OwnFit fit_own(OwnFunction wanted, int threads);

}  // namespace outgrad::approx
