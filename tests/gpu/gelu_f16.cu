// GELU and bias + GELU in f16.
#include "tests/gpu/gelu_checks.cuh"

OUTGRAD_GELU_CHECKS(outgrad::kernels::F16)
