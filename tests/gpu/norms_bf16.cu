// The norms in bf16.
#include "tests/gpu/norm_checks.cuh"

OUTGRAD_NORM_CHECKS(outgrad::kernels::BF16)
