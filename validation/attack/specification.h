// Random specifications of fits: functions from a grammar, beside every format, class and layout that a specification can ask for.
//
// Three of five are what fits are made for: x times a gate (sigmoid, normal_cdf, (1 + tanh)/2, (1 + erf)/2 of a polynomial, and products and means of them), half of
// these stretched so that the minimum y* lies next to -2^k, where the stored numbers change their distance. One in five rises. The others have limits of f' that are
// not 0 and 1, or are drawn node by node, and most of them have kinks, poles or several stationary points. Targets are within a few bits of what a layout can
// reach. All are input: a refusal is an answer, a crash or a false bound is not.
#pragma once

#include <string>

#include "kernels/support/random.h"

namespace outgrad::validation::gate {

struct Specification {
  std::string function;  ///< the expression, or the activation's name
  std::string json;  ///< schema outgrad.spec/2
};

/// The same from a seed on every machine, but for the last digits of a shift, which are libm's.
Specification random_specification(kernels::Random& random);

}  // namespace outgrad::validation::gate
