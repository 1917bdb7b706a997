// The norms in f32.
#include "tests/gpu/norm_checks.cuh"

OUTGRAD_NORM_CHECKS(float)
