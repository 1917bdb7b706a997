// The norms in bf16.
#include "autotune/gpu/norm_checks.cuh"

OUTGRAD_NORM_CHECKS(outgrad::kernels::BF16)
