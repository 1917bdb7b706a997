// The claims of a code header, re-proved: the range of f', the error of the coded g, and that of each code.
//
// Range: f' is monotone between the brackets of validation/exact/activation.h, so its values there and its limits bound it.
// G: next to x* (|x - x*| <= 2^-8) every f32 x goes through the kernels that the library deploys, and f' is enclosed over runs of 64 x by
// mean values. Elsewhere the f32 y is within 2 ulp of f(x), which the sweeps of `outgrad validate` show for every x. So g is that of a y'
// no further from f(x) than 2 ulp and what the coordinate's constant y_c differs from y*, up to the fit's A + B; `outgrad check` proves
// these from the fit's own header. Over cells of x the arguments of all such y' are enclosed by the inverse of f, and the change of f'
// between them by |f''| move / |f'| or by the range of f'.
// T: for each code, the f' that it may stand for, with the rounding of the fp32 sequence (kernels/code.h) in cells: one of a number below
// 512 before it is rounded to an integer. Dithered: |code - v| <= 1/2 for v = g in steps + d, and roundings of numbers below 8.
#pragma once

#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// The name of the library's f32 fit of an activation and its function as text; null if there is none.
struct CodedFit {
  const char* name;
  const char* function;
};
const CodedFit* coded_fit(const std::string& activation);

/// Whether [kLo, kHi] holds every f'(x): `proven` is by how far the enclosure of all f' exceeds it, the claim 0. Violated only with a
/// witness, an x whose f' is outside.
Finding prove_code_range(const CodeHeader& h);

/// sup |g - f'(x)| over the finite f32 x. A witness is in x.
Finding prove_coded_gradient(const CodeHeader& h);

/// T of the exact codes of 1 to 8 bits and of the dithered ones of 2 and 3, and the bias, given kLo, kHi and kG. A claim below half of
/// the width of f' in steps is Violated: no code of so few bits reaches it.
std::vector<Finding> prove_codes(const CodeHeader& h);

}  // namespace outgrad::validation
