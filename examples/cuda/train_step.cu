// One training step of y = GELU(x) in bf16 on a GPU, on two streams, each with its half of the elements: keep
// y and one bit an element, forget x, compute the gradient in place, compare it with the one from x.
//
// Build: CMakeLists.txt beside this file, or  nvcc -std=c++20 -I<prefix>/include/outgrad train_step.cu
// Exit status 0 if the gradients agree, 77 without a GPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/fits.h"

namespace {

using namespace outgrad::kernels;

constexpr i64 kElements = i64{1} << 20;
constexpr i64 kHalf = kElements / 2;  // a multiple of 32: each half has its own words of the mask
constexpr int kSkipped = 77;

void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(2);
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* memory = nullptr;
  require(cudaMalloc(&memory, values.size() * sizeof(T)));
  require(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

double gelu_derivative(double x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0));
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * density;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU here\n");
    return kSkipped;
  }
  std::vector<BF16> x(kElements), gradient(kElements, narrow<BF16>(1.0f));
  for (i64 i = 0; i < kElements; ++i) x[i] = narrow<BF16>(-8.0f + 16.0f * static_cast<float>(i) / kElements);
  BF16* const device_x = on_device(x);
  BF16* const device_y = on_device(std::vector<BF16>(kElements));
  BF16* const device_gradient = on_device(gradient);
  u32* const mask = on_device(std::vector<u32>(kElements / 32));

  using Fit = DefaultFit<BF16>::Type;
  using Forward = ForwardFit<BF16>::Type;
  cudaStream_t streams[2];
  for (int k = 0; k < 2; ++k) {
    require(cudaStreamCreate(&streams[k]));
    const i64 begin = k * kHalf;
    require(cuda::launch_gelu_forward<Forward>(device_x + begin, device_y + begin, mask + begin / 32, kHalf,
                                               streams[k]));
    require(cuda::launch_gelu_backward<Fit>(device_gradient + begin, device_y + begin, mask + begin / 32,
                                            device_gradient + begin, kHalf, streams[k]));
  }
  for (const cudaStream_t stream : streams) {
    require(cudaStreamSynchronize(stream));
    require(cudaStreamDestroy(stream));
  }
  require(cudaMemcpy(gradient.data(), device_gradient, kElements * sizeof(BF16), cudaMemcpyDeviceToHost));

  double largest = 0;
  for (i64 i = 0; i < kElements; ++i) {
    const double value = widen(gradient[i]);
    // T, and half an ulp of dx in bf16 and in fp32
    const double bound = Fit::kT + std::abs(value) * 0x1p-8 + 0x1p-120;
    largest = std::max(largest, std::abs(value - gelu_derivative(widen(x[i]))) / bound);
  }
  std::printf("GELU in bf16 from its output on a GPU: fit %s, largest error %.3f of its bound\n", Fit::kName,
              largest);
  for (void* memory : {static_cast<void*>(device_x), static_cast<void*>(device_y),
                       static_cast<void*>(device_gradient), static_cast<void*>(mask)}) {
    require(cudaFree(memory));
  }
  return largest <= 1 ? 0 : 1;
}
