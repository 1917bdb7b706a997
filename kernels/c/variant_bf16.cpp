// The kernels of bf16 for one instruction set.
#include "kernels/c/variant.h"

namespace outgrad::c {

constinit const FormatKernels OUTGRAD_C_CONSTANT(kBf16) = kernels_of<kernels::BF16>();

}  // namespace outgrad::c
