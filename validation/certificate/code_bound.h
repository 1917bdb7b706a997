// The claims of a code header, re-proved: the range of f', the error of the coded g, and that of each code.
//
// Range: f' is monotone between the brackets of validation/exact/activation.h, so its values there and its
// limits bound it.
// G: g is f'(x) as kernels/stores/code.h computes it. GELU's is the derivative of its f32 forward's
// polynomials. Over parts of each row it is compared with f' by mean values of p'' - f''. What its operations
// round is bounded by running them on intervals, with a bound beside each. The same is done with the formulas
// in double precision that the other activations have, of which exp is within 2^-48 (head of
// kernels/forwards.h). T: for each code, the f' that it may stand for, with the rounding of the fp32 sequence
// (kernels/stores/code.h) in cells: one of a number below 512 before it is rounded to an integer. Dithered:
// |code - v| <= 1/2 for v = g in steps + d, and roundings of numbers below 8.
#pragma once

#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// The function of one of the library's activations as text; null if it has no codes.
const char* coded_function(const std::string& activation);

/// Whether f has a minimum: the library's, as it is known; a user's own, if its header says that f' is
/// negative somewhere.
bool has_minimum(const CodeHeader& h);

/// Whether [kLo, kHi] holds every f'(x): `proven` is by how far the enclosure of all f' exceeds it, the claim
/// 0. Violated only with a witness, an x whose f' is outside.
Finding prove_code_range(const CodeHeader& h);

/// sup |g - f'(x)| over the finite f32 x. Violated only with a witness, in x. Of a user's own function g is
/// the caller's, and so is kG: what it is good for is then named as given, and nothing is proven of it.
Finding prove_coded_gradient(const CodeHeader& h);

/// T of the exact codes of 1 to 8 bits and of the dithered ones of 2 and 3, and the bias, given kLo, kHi and
/// kG. A claim below half of the width of f' in steps is Violated: no code of so few bits reaches it.
std::vector<Finding> prove_codes(const CodeHeader& h);

}  // namespace outgrad::validation
