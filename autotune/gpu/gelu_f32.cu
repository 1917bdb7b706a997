// GELU and bias + GELU in f32.
#include "autotune/gpu/gelu_checks.cuh"

OUTGRAD_GELU_CHECKS(float)
