// GELU and bias + GELU in f32.
#include "tests/gpu/gelu_checks.cuh"

OUTGRAD_GELU_CHECKS(float)
