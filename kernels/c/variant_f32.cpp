// The kernels of f32 for one instruction set.
#include "kernels/c/variant.h"

namespace outgrad::c {

constinit const FormatKernels OUTGRAD_C_CONSTANT(kF32) = kernels_of<float>();

}  // namespace outgrad::c
