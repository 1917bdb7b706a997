// The kernels of f16 for one instruction set.
#include "kernels/c/variant.h"

namespace outgrad::c {

constinit const FormatKernels OUTGRAD_C_CONSTANT(kF16) = kernels_of<kernels::F16>();

}  // namespace outgrad::c
