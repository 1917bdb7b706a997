// What the machine code of a variant's kernels says of their cost: autotune/gpu/model.h makes a time of it.
#pragma once

#include <vector>

#include "autotune/gpu/model.h"
#include "autotune/gpu/variant.h"

namespace outgrad::autotune::gpu {

// What the one kernel of variant.source() costs. Throws std::runtime_error where the hot path of an
// elementwise kernel is not found; a norm's for which that happens is not `counted`.
//
// Elementwise kernels, bias + GELU: the loop around the stores of one trip (autotune/gpu/sass.h). Norms whose
// rows lie in registers: the shortest way through one row that has all loads and stores of the thread's
// octets, hence no side channels, no absent gamma and no slow path of a division. Norms that loop over a
// row's octets: the same way, on which an instruction of an innermost loop is issued once for each octet, and
// of a loop around others once for every two passes of those (fold_steps in kernels/reduce.h); what is in the
// loop over rows alone, once a row. Rows that come element by element are not counted.
CodeFacts facts_of(const GpuVariant& variant, const GpuCode& code, const Architecture& architecture);

// The kernels of variant.helper_source(): only their symbols and resources.
std::vector<CodeFacts> helper_facts(const GpuCode& code);

}  // namespace outgrad::autotune::gpu
