// `outgrad validate --header`: T, O and R of a header over every x of its format, counted.
#pragma once

#include <string>

#include "kernels/support/result.h"

namespace outgrad::validation {

/// Sweeps, prints, and writes the result ("outgrad.own_sweep/1") to `out` (empty: beside the header, ending
/// in .sweep.json). Whether no error is above what the header claims. `histogram`: a file of x to weigh
/// errors by, beside N(0, sigma^2). @throws kernels::SpecError, kernels::IoError.
bool validate_header(const std::string& header, const std::string& histogram, const std::string& out,
                     const kernels::ResultForm& form);

}  // namespace outgrad::validation
