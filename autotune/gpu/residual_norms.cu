// The norms of x + residual that are timed and that no check instantiates.
#include "autotune/gpu/norm_checks.cuh"

namespace outgrad::autotune::gpu {

OUTGRAD_RESIDUAL_NORM_LAUNCHES(Norm::rms, kernels::BF16)
OUTGRAD_RESIDUAL_NORM_LAUNCHES(Norm::rms, kernels::F16)
OUTGRAD_RESIDUAL_NORM_LAUNCHES(Norm::layer, float)

}  // namespace outgrad::autotune::gpu
