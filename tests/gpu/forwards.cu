// The other activations' forwards and dropout, in every format.
#include "tests/gpu/checks.h"
#include "tests/gpu/device_side.cuh"
#include "tests/gpu/launches.cuh"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/forwards.cuh"

namespace outgrad::tests::gpu {
namespace {

// One element past whole octets; of a 16-bit format every pattern and more.
constexpr i64 kElements = (i64{1} << 17) + 1;

template <class F, class T>
void forward_equality(Report& report, int activation, bool reduced) {
  // f32 has the first patterns of every binade, of either sign, or, reduced, those from 1 on.
  constexpr u64 kStep = u64{1} << 23, kOne = 0x3f800000;
  const bool f32 = sizeof(T) == 4;
  const u64 first = f32 && reduced ? kOne : 0, end = f32 && !reduced ? u64{1} << 32 : first + 1;
  const Array<T> x(kElements);
  const Array<u32> mask((kElements + 31) / 32);
  GeluArrays<T> host;
  std::string wrong;
  u64 hash = 0, outputs = 0;
  for (u64 begin = first; begin < end && wrong.empty(); begin += kStep) {
    fill(x, ArgumentAt<T>{begin});
    check(kernels::cuda::launch_activation_forward<F, T>(x.get(), x.get(), F::kMasked ? mask.get() : nullptr,
                                                         kElements, nullptr),
          F::kActivation);
    host_activation_forward(activation, begin, kElements, host);
    wrong = difference("y", x, host.y, begin, hash);
    if (F::kMasked && wrong.empty()) wrong = difference("mask", mask, host.mask, begin / 32, hash);
    outputs += static_cast<u64>(kElements);
  }
  report.add(std::string(F::kActivation) + " forward", kernels::Format<T>::kName, outputs, hash, wrong);
}

template <class T, class... F>
void each_forward(kernels::ForwardList<F...>, Report& report, bool reduced) {
  int activation = 1;  // after GELU
  (forward_equality<F, T>(report, activation++, reduced), ...);
}

template <class T, class... F>
cudaError_t forward_at(kernels::ForwardList<F...>, int activation, const T* x, T* y, u32* mask, i64 n,
                       cudaStream_t stream) {
  int each = 1;  // after GELU
  cudaError_t status = cudaErrorInvalidValue;
  ((each++ == activation ? void(status = kernels::cuda::launch_activation_forward<F>(x, y, mask, n, stream))
                         : void()),
   ...);
  return status;
}

template <class T>
void dropout_equality(Report& report) {
  constexpr u64 kSeed = 0x0123456789abcdefu;
  const Array<T> x(kElements);
  const Array<u64> seed(1);
  check(cudaMemcpy(seed.get(), &kSeed, sizeof kSeed, cudaMemcpyHostToDevice), "copy to the device");
  std::string wrong;
  u64 hash = 0, outputs = 0;
  for (const double p : {0.0, 0.1, 0.5, 1.0}) {
    fill(x, ArgumentAt<T>{0});
    check(kernels::cuda::launch_dropout(x.get(), x.get(), kElements, seed.get(), p, nullptr), "dropout");
    if (wrong.empty()) wrong = difference("y", x, host_dropout<T>(kElements, kSeed, p), 0, hash);
    outputs += static_cast<u64>(kElements);
  }
  report.add("dropout", kernels::Format<T>::kName, outputs, hash, wrong);
}

}  // namespace

template <class T>
void forwards_equality(Report& report, bool reduced) {
  each_forward<T>(kernels::ActivationForwards{}, report, reduced);
  dropout_equality<T>(report);
}

template <class T>
cudaError_t launches::activation_forward(int activation, const T* x, T* y, u32* mask, i64 n,
                                         cudaStream_t stream) {
  return forward_at(kernels::ActivationForwards{}, activation, x, y, mask, n, stream);
}

template <class T>
cudaError_t launches::dropout(const T* x, T* y, i64 n, const u64* seed, double p, cudaStream_t stream) {
  return kernels::cuda::launch_dropout(x, y, n, seed, p, stream);
}

#define OUTGRAD_FOR_FORMAT(T)                                                                       \
  template void forwards_equality<T>(Report&, bool);                                                \
  template cudaError_t launches::activation_forward<T>(int, const T*, T*, u32*, i64, cudaStream_t); \
  template cudaError_t launches::dropout<T>(const T*, T*, i64, const u64*, double, cudaStream_t);
OUTGRAD_FOR_FORMAT(float)
OUTGRAD_FOR_FORMAT(kernels::F16)
OUTGRAD_FOR_FORMAT(kernels::BF16)
#undef OUTGRAD_FOR_FORMAT

}  // namespace outgrad::tests::gpu
