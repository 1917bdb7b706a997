// Gated pairs, and tensors in 8 bits, in f16.
#include "tests/gpu/pairs.cuh"

OUTGRAD_PAIR_LAUNCHES(outgrad::kernels::F16)
