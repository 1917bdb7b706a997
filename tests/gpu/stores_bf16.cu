// What is kept in fewer bits, in bf16.
#include "tests/gpu/stores.cuh"

OUTGRAD_STORE_LAUNCHES(outgrad::kernels::BF16)
