// The norms in f32.
#include "autotune/gpu/norm_checks.cuh"

OUTGRAD_NORM_CHECKS(float)
