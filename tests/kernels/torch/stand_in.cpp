// The operators for CUDA as operators of CPU tensors, in the library OUTGRAD_STAND_IN: what they launch runs
// on the driver that OUTGRAD_LIBCUDA names.
#include "kernels/torch/operators.h"

// Through another macro, so that the library's name is read before it is made a text.
#define OUTGRAD_LIBRARY_OF(name)                                            \
  STABLE_TORCH_LIBRARY(name, m) { outgrad::torch_operators::define(m); }    \
  STABLE_TORCH_LIBRARY_IMPL(name, CPU, m) {                                 \
    outgrad::torch_operators::implement<outgrad::torch_operators::Cuda>(m); \
  }
OUTGRAD_LIBRARY_OF(OUTGRAD_STAND_IN)
