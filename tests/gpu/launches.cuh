// The library's CUDA launchers in their default schedules, as functions of units of their own: kernels are
// compiled once, format beside format, and what only launches them needs no device code. Parameters are the
// launchers' (kernels/cuda/).
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/layernorm.h"
#include "kernels/portable.h"
#include "kernels/stores/fp8.h"

namespace outgrad::tests::gpu::launches {

using kernels::i64;
using kernels::Norm;
using kernels::u32;
using kernels::u64;
using kernels::u8;

template <class T>
cudaError_t gelu_backward(const T* dy, const T* y, const u32* mask, T* dx, i64 n, cudaStream_t stream);
template <class T>
cudaError_t gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream);
template <class T>
cudaError_t bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx, float* dbias,
                               float* workspace, i64 words, cudaStream_t stream);
template <class T>
cudaError_t bias_gelu_forward(const T* x, const float* bias, i64 rows, i64 n, T* y, u32* mask,
                              cudaStream_t stream);
// The forward of an activation after GELU, by its place in kActivationNames.
template <class T>
cudaError_t activation_forward(int activation, const T* x, T* y, u32* mask, i64 n, cudaStream_t stream);
template <class T>
cudaError_t dropout(const T* x, T* y, i64 n, const u64* seed, double p, cudaStream_t stream);

template <Norm N, class T>
cudaError_t norm_forward(const kernels::cuda::NormForwardArrays<T>& a, cudaStream_t stream);
template <Norm N, class T>
cudaError_t norm_backward(const kernels::cuda::NormBackwardArrays<T>& a,
                          const kernels::cuda::NormBackwardColumns& of, cudaStream_t stream);
// The norm of z = x + residual.
template <Norm N, class T>
cudaError_t residual_norm_forward(const kernels::cuda::NormForwardArrays<T>& a, cudaStream_t stream);
template <Norm N, class T>
cudaError_t residual_norm_backward(const kernels::cuda::NormBackwardArrays<T>& a,
                                   const kernels::cuda::NormBackwardColumns& of, cudaStream_t stream);

// The arrays of a store's kernels: `kept` is what the forward writes for the backward, `out` is y or dx. Of a
// pair, x and b are its factors, and `out` and `second_out` their gradients.
template <class T>
struct StoreArrays {
  const T *x, *b, *dy;
  T *out, *second_out;
  u8* kept;
  u32* mask_out;
  const u32* mask;  // of x
  const u64* seed;
  const float* scale;
  const kernels::Fp8Table* tables;  // at this scale, by their bits
  u32* maxima;  // 2 kMostMaxima words that a forward at a scale of its own writes
};

// Something that is kept for a backward. Behind `kept_bytes` of each element there is room for two scales.
template <class T>
struct Store {
  const char* forward_name;
  const char* backward_name = nullptr;  // none
  double kept_bytes;  // of an element, without the mask
  // of T that a pass reads and writes: x, and y where the forward writes it; dy and dx
  int forward_arrays = 1, backward_arrays = 2;
  bool masked = false;
  cudaError_t (*forward)(const StoreArrays<T>&, i64 n, cudaStream_t);
  cudaError_t (*backward)(const StoreArrays<T>&, i64 n, cudaStream_t) = nullptr;
};
inline constexpr i64 kSoftmaxColumns = 1024, kPairColumns = 4096;
// Of activations; and of gated pairs and of tensors.
template <class T>
std::vector<Store<T>> stores();
template <class T>
std::vector<Store<T>> pairs();
// GELU's, in e4m3.
cudaError_t fp8_table(const float* scale, int bits, kernels::Fp8Table* table, cudaStream_t stream);

}  // namespace outgrad::tests::gpu::launches
