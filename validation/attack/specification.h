// Random specifications of fits: functions from a grammar, beside every format, class and layout that a specification can ask for.
//
// Half are near what fits are made for: gates (sigmoid, normal_cdf, (1 + tanh)/2, (1 + erf)/2) of x times a polynomial, smooth kinks, rising functions, sums of them;
// with shifts and factors that put the minimum y* next to +-2^k, where the stored numbers change their distance, and limits of f' that are not 0 and 1. The others are
// drawn node by node, and most of them have kinks, poles or several stationary points. All are input: a refusal is an answer, a crash or a false bound is not.
#pragma once

#include <string>

#include "validation/random.h"

namespace outgrad::validation::gate {

struct Specification {
  std::string function;  ///< the expression, or the activation's name
  std::string json;      ///< schema outgrad.spec/2
};

/// The same from a seed on every machine, but for the last digits of a shift, which are libm's.
Specification random_specification(Random& random);

}  // namespace outgrad::validation::gate
