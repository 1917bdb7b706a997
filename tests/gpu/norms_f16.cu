// The norms in f16.
#include "tests/gpu/norm_checks.cuh"

OUTGRAD_NORM_CHECKS(outgrad::kernels::F16)
