// What `outgrad validate` does with the fits of gated pairs' products.
#pragma once

#include <string>
#include <vector>

#include "kernels/support/result.h"
#include "validation/sweep/product_sweep.h"

namespace outgrad::validation {

/// Counts all pairs of each, prints, and writes each result to `out`: the file of one or the folder of many;
/// where it is empty, to out/sweeps. Returns whether all gates hold.
bool validate_products(const std::vector<const ProductSubject*>& subjects, const std::string& out,
                       const kernels::ResultForm& form);

}  // namespace outgrad::validation
