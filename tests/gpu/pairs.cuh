// The launchers of gated pairs and of any tensor in 8 bits, for timing, in one format: a unit to a format
// instantiates them. SiLU stands for the other gates, and e4m3 for e5m2.
#pragma once

#include "tests/gpu/launches.cuh"
#include "kernels/cuda/gated_codes.cuh"
#include "kernels/cuda/product.cuh"

namespace outgrad::tests::gpu::launches {

using Gate = kernels::gates::Silu;
using kernels::E8M0;
using kernels::F8E4M3;
using kernels::MxFp8;

// a and b themselves.
template <class T>
Store<T> pair() {
  return {.forward_name = "gated_silu_forward",
          .backward_name = "gated_silu_backward",
          .kept_bytes = 0,
          .forward_arrays = 3,
          .backward_arrays = 5,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_gated_forward<Gate>(a.x, a.b, n / kPairColumns, kPairColumns,
                                                                 a.out, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_gated_backward<Gate>(a.dy, a.x, a.b, n / kPairColumns,
                                                                  kPairColumns, a.out, a.second_out,
                                                                  static_cast<T*>(nullptr), stream);
              }};
}

// The product, and beside it a number and a bit.
template <class T>
Store<T> product() {
  return {.forward_name = "gated_silu_forward_output",
          .backward_name = "gated_silu_backward_output",
          .kept_bytes = 2 * sizeof(T),
          .forward_arrays = 2,
          .backward_arrays = 3,
          .masked = true,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                T* const z = reinterpret_cast<T*>(a.kept);
                return kernels::cuda::launch_product_forward<Gate>(a.x, a.b, n / kPairColumns, kPairColumns,
                                                                   z, z + n, a.mask_out, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                const T* const z = reinterpret_cast<const T*>(a.kept);
                return kernels::cuda::launch_product_backward<Gate>(
                    a.dy, z, z + n, a.mask, n / kPairColumns, kPairColumns, a.out, a.second_out, stream);
              }};
}

// Codes of a and of b, then their scales: one each, or one for each block.
template <class T, class Kept>
kernels::cuda::GatedCodes codes_of_pair(const StoreArrays<T>& a, i64 n) {
  u8* const scales = a.kept + 2 * n;
  return {a.kept, scales, a.kept + n,
          sizeof(typename Kept::Scale) == 1 ? scales + n / kernels::Format<MxFp8>::kBlock
                                            : scales + sizeof(float)};
}
template <class T, class Kept>
Store<T> coded_pair(const char* forward, const char* backward, double kept_bytes) {
  return {.forward_name = forward,
          .backward_name = backward,
          .kept_bytes = kept_bytes,
          .forward_arrays = 3,
          .backward_arrays = 3,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_gated_forward_8bit<Gate, Kept>(
                    a.x, a.b, n / kPairColumns, kPairColumns, a.out, codes_of_pair<T, Kept>(a, n),
                    sizeof(typename Kept::Scale) == 1 ? nullptr : a.maxima, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_gated_backward_8bit<Gate, Kept>(
                    a.dy, codes_of_pair<T, Kept>(a, n), n / kPairColumns, kPairColumns, a.out, a.second_out,
                    static_cast<T*>(nullptr), stream);
              }};
}

// Any tensor, for which x stands.
template <class T>
Store<T> tensor_at_scale() {
  return {.forward_name = "encode_e4m3",
          .backward_name = "decode_e4m3",
          .kept_bytes = 1,
          .backward_arrays = 1,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_encode_tensor<F8E4M3>(
                    a.x, n, kernels::kLeastOfTensors, reinterpret_cast<F8E4M3*>(a.kept),
                    reinterpret_cast<float*>(a.kept + n), a.maxima, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_decode_tensor(reinterpret_cast<const F8E4M3*>(a.kept),
                                                           reinterpret_cast<const float*>(a.kept + n), a.out,
                                                           n, stream);
              }};
}
template <class T>
Store<T> tensor_in_blocks() {
  return {.forward_name = "encode_mxfp8",
          .backward_name = "decode_mxfp8",
          .kept_bytes = 1 + 1.0 / kernels::Format<MxFp8>::kBlock,
          .backward_arrays = 1,
          .forward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_encode_tensor_blocks(
                    a.x, reinterpret_cast<F8E4M3*>(a.kept), reinterpret_cast<E8M0*>(a.kept + n), n, stream);
              },
          .backward =
              [](const StoreArrays<T>& a, i64 n, cudaStream_t stream) {
                return kernels::cuda::launch_decode_tensor_blocks(reinterpret_cast<const F8E4M3*>(a.kept),
                                                                  reinterpret_cast<const E8M0*>(a.kept + n),
                                                                  a.out, n, stream);
              }};
}

template <class T>
std::vector<Store<T>> pairs() {
  std::vector<Store<T>> all = {
      pair<T>(),
      coded_pair<T, kernels::cuda::AtScale<F8E4M3>>("gated_silu_forward_e4m3", "gated_silu_backward_e4m3", 2),
      coded_pair<T, kernels::cuda::InBlocks>("gated_silu_forward_mxfp8", "gated_silu_backward_mxfp8",
                                             2 + 2.0 / kernels::Format<MxFp8>::kBlock),
      tensor_at_scale<T>(), tensor_in_blocks<T>()};
  if constexpr (sizeof(T) == 2) all.push_back(product<T>());
  return all;
}

}  // namespace outgrad::tests::gpu::launches

#define OUTGRAD_PAIR_LAUNCHES(T)             \
  namespace outgrad::tests::gpu::launches {  \
  template std::vector<Store<T>> pairs<T>(); \
  }
