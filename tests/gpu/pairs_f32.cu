// Gated pairs, and tensors in 8 bits, in f32.
#include "tests/gpu/pairs.cuh"

OUTGRAD_PAIR_LAUNCHES(float)
