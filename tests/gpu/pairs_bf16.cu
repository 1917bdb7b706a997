// Gated pairs, and tensors in 8 bits, in bf16.
#include "tests/gpu/pairs.cuh"

OUTGRAD_PAIR_LAUNCHES(outgrad::kernels::BF16)
