// The norms of x + residual that are timed and that no check instantiates.
#include "tests/gpu/norm_checks.cuh"

namespace outgrad::tests::gpu {

OUTGRAD_RESIDUAL_NORM_LAUNCHES(Norm::rms, kernels::BF16)
OUTGRAD_RESIDUAL_NORM_LAUNCHES(Norm::rms, kernels::F16)
OUTGRAD_RESIDUAL_NORM_LAUNCHES(Norm::layer, float)

}  // namespace outgrad::tests::gpu
