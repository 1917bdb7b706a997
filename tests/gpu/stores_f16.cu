// What is kept in fewer bits, in f16.
#include "tests/gpu/stores.cuh"

OUTGRAD_STORE_LAUNCHES(outgrad::kernels::F16)
