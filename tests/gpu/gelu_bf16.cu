// GELU and bias + GELU in bf16.
#include "tests/gpu/gelu_checks.cuh"

OUTGRAD_GELU_CHECKS(outgrad::kernels::BF16)
