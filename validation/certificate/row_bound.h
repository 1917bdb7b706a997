// The claims on A and B together, re-proved with each row's own A: kAB of f32 headers, and kUlp of two-word
// ones.
#pragma once

#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// Proven upper bounds of A, one a row; +inf where none was proven.
std::vector<double> row_fit_errors(const BackwardHeader& h);

/// Decides kAB and, in a two-word header, kUlp.
std::vector<Finding> prove_row_claims(const BackwardHeader& h);

}  // namespace outgrad::validation
