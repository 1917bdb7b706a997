// What is kept in fewer bits, in f32.
#include "tests/gpu/stores.cuh"

OUTGRAD_STORE_LAUNCHES(float)

namespace outgrad::tests::gpu {

cudaError_t launches::fp8_table(const float* scale, int bits, kernels::Fp8Table* table, cudaStream_t stream) {
  return kernels::cuda::launch_fp8_table<Fp8Gelu, kernels::F8E4M3>(scale, bits, table, stream);
}

}  // namespace outgrad::tests::gpu
