// The library's CUDA launchers in their default schedules, as functions of units of their own: kernels are compiled once, format beside format, and
// what only launches them needs no device code. Parameters are the launchers' (kernels/cuda/).
#pragma once

#include <cuda_runtime.h>

#include "kernels/layernorm.h"
#include "kernels/portable.h"

namespace outgrad::autotune::gpu::launches {

using kernels::i64;
using kernels::Norm;
using kernels::u32;
using kernels::u64;

template <class T>
cudaError_t gelu_backward(const T* dy, const T* y, const u32* mask, T* dx, i64 n, cudaStream_t stream);
template <class T>
cudaError_t gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream);
template <class T>
cudaError_t bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx, float* dbias, float* workspace, i64 words,
                               cudaStream_t stream);
template <class T>
cudaError_t bias_gelu_forward(const T* x, const float* bias, i64 rows, i64 n, T* y, u32* mask, cudaStream_t stream);
template <class T>
cudaError_t silu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream);
template <class T>
cudaError_t dropout(const T* x, T* y, i64 n, const u64* seed, double p, cudaStream_t stream);

template <Norm N, class T>
cudaError_t norm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
                         const kernels::SideBuffer<float>& side, cudaStream_t stream);
template <Norm N, class T>
cudaError_t norm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx, float* dgamma,
                          float* dbeta, const kernels::SideBuffer<const float>& side, float* workspace, i64 words, cudaStream_t stream);

}  // namespace outgrad::autotune::gpu::launches
