// The launchers of what is kept in fewer bits, for timing, in one format: a unit to a format instantiates
// them. GELU stands for the other activations, whose backwards are the same kernels.
#pragma once

#include <type_traits>

#include "tests/gpu/launches.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/mxfp8.cuh"
#include "kernels/cuda/parity.cuh"
#include "kernels/cuda/softmax.cuh"

namespace outgrad::tests::gpu::launches {

using kernels::MxFp8;
using Fp8Gelu = kernels::Fp8Activation<kernels::generated::GeluFp8>;

// Codes of g, which a forward writes beside y.
template <class T, int Bits, bool Dithered = false>
Store<T> coded(const char* forward, const char* backward) {
  using A = kernels::CodedGelu;
  return {.forward_name = forward,
          .backward_name = backward,
          .kept_bytes = Bits / 8.0,
          .forward_arrays = 2,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_activation_forward_code<A, T, Bits, Dithered>(a.x, a.out, a.kept,
                                                                                           n, a.seed, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_activation_backward_code<T, Bits, Dithered>(
                    {A::Code::kLo, A::Code::kHi}, a.dy, a.kept, a.out, n, a.seed, stream);
              }};
}

// y in e4m3 at a scale, and Bits beside each code: the codes, then the parts.
template <class T, int Bits>
Store<T> scaled(const char* forward, const char* backward) {
  using F = kernels::F8E4M3;
  return {.forward_name = forward,
          .backward_name = backward,
          .kept_bytes = 1 + Bits / 8.0,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_activation_forward_fp8<Fp8Gelu, F, T, Bits>(
                    a.tables + Bits, a.scale, a.x, reinterpret_cast<F*>(a.kept), a.kept + n, n, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_activation_backward_fp8<T, Bits>(a.tables + Bits, a.dy, a.kept,
                                                                              a.kept + n, a.out, n, stream);
              }};
}

// y in MXFP8 and the mask: the codes, then the blocks' scales.
template <class T>
Store<T> block_scaled() {
  return {.forward_name = "gelu_forward_mxfp8",
          .backward_name = "gelu_backward_mxfp8",
          .kept_bytes = 1 + 1.0 / kernels::Format<MxFp8>::kBlock,
          .masked = true,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_gelu_forward_mxfp8<typename kernels::ForwardFit<T>::Type, T>(
                    a.x, reinterpret_cast<kernels::F8E4M3*>(a.kept),
                    reinterpret_cast<kernels::E8M0*>(a.kept + n), a.mask_out, n, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_gelu_backward<kernels::generated::GeluMxfp8, T, MxFp8>(
                    a.dy, kernels::stored<MxFp8>(a.kept, a.kept + n), a.mask, a.out, n, stream);
              }};
}

// A 16-bit y that carries its branch.
template <class T>
Store<T> carrying() {
  constexpr bool kF16 = std::is_same_v<T, kernels::F16>;
  using Y = std::conditional_t<kF16, kernels::ParityF16, kernels::ParityBf16>;
  using Fit = std::conditional_t<kF16, kernels::generated::GeluF16Parity, kernels::generated::GeluBf16Parity>;
  return {
      .forward_name = "gelu_forward_parity",
      .backward_name = "gelu_backward_parity",
      .kept_bytes = sizeof(Y),
      .forward =
          [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
            return kernels::cuda::launch_activation_forward_parity<typename kernels::ForwardFit<float>::Type,
                                                                   Y>(a.x, reinterpret_cast<Y*>(a.kept), n,
                                                                      stream);
          },
      .backward =
          [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
            return kernels::cuda::launch_gelu_backward<Fit, T, Y>(a.dy, reinterpret_cast<const Y*>(a.kept),
                                                                  nullptr, a.out, n, stream);
          }};
}

// Codes of gradients that the caller has computed, for which dy stands.
template <class T>
Store<T> encoded() {
  constexpr int kBits = 4;
  return {.forward_name = "encode_gradients_4",
          .kept_bytes = kBits / 8.0,
          .forward = [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
            using Code = kernels::CodedGelu::Code;
            return kernels::cuda::launch_encode_gradients<T, kBits>({Code::kLo, Code::kHi}, a.dy, a.kept, n,
                                                                    nullptr, stream);
          }};
}

// Softmax over rows of kSoftmaxColumns, with a code beside each p.
template <class T>
Store<T> softmax() {
  return {.forward_name = "softmax_forward_code",
          .backward_name = "softmax_backward_code",
          .kept_bytes = 1,
          .forward_arrays = 2,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_softmax_forward_code(a.x, a.out, a.kept, n / kSoftmaxColumns,
                                                                  kSoftmaxColumns, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_softmax_backward_code(a.dy, a.kept, a.out, n / kSoftmaxColumns,
                                                                   kSoftmaxColumns, stream);
              }};
}

template <class T>
std::vector<Store<T>> stores() {
  std::vector<Store<T>> all = {
      coded<T, 2>("gelu_forward_code_2", "gelu_backward_code_2"),
      coded<T, 2, true>("gelu_forward_code_2_dithered", "gelu_backward_code_2_dithered"),
      coded<T, 4>("gelu_forward_code_4", "gelu_backward_code_4"),
      coded<T, 8>("gelu_forward_code_8", "gelu_backward_code_8"),
      encoded<T>(),
      scaled<T, 1>("gelu_forward_e4m3_1", "gelu_backward_e4m3_1"),
      scaled<T, 2>("gelu_forward_e4m3_2", "gelu_backward_e4m3_2"),
      block_scaled<T>(),
      softmax<T>()};
  if constexpr (sizeof(T) == 2) all.push_back(carrying<T>());
  return all;
}

}  // namespace outgrad::tests::gpu::launches

#define OUTGRAD_STORE_LAUNCHES(T)             \
  namespace outgrad::tests::gpu::launches {   \
  template std::vector<Store<T>> stores<T>(); \
  }
