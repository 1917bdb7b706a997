// Random specifications of fits: functions from a grammar, with every format, class and layout that a
// specification can ask for, and codes.
//
// Two out of five functions are moved to where most are not: x* up to 56 from 0, steep by factors up to 300,
// |y*| from 2^-14 to 2^10, lifted by up to 40. Of the others three out of five are what fits are made for: x
// times a gate (sigmoid, normal_cdf, (1 + tanh)/2, (1 + erf)/2 of a polynomial, and products and means of
// these). Half of these are stretched so that the minimum y* lies next to -2^k, where the spacing of stored
// numbers changes. One in five rises. The others have limits of f' other than 0 and 1, or are drawn node by
// node; most of the latter have kinks, poles or several stationary points. Targets are within a few bits of
// what a layout can reach. All are valid input: a refusal is an answer, but a crash or a false bound is not.
#pragma once

#include <string>

#include "kernels/support/random.h"

namespace outgrad::validation::gate {

struct Specification {
  std::string function;  ///< the expression, or the activation's name
  std::string json;  ///< schema outgrad.spec/2
};

/// A fit for y in f32, f16, bf16, e4m3 or e5m2. A seed gives the same specification on every machine, except
/// for the last digits of a shift, which depend on libm.
Specification random_specification(kernels::Random& random);

/// The same of what can be kept in place of y and a bit: y in a parity format or in MXFP8, and codes.
/// `number` chooses among these in turn.
Specification random_store(size_t number, kernels::Random& random);

}  // namespace outgrad::validation::gate
