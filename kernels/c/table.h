// What one instruction set brings to the C library: the kernels of a format behind plain function pointers.
//
// kernels/c/variant.h is compiled once for every instruction set and format. All that its objects share with the rest of the program are these
// types and the constants at the end.
#pragma once

#include "kernels/activations.h"
#include "kernels/formats.h"
#include "kernels/layernorm.h"
#include "kernels/portable.h"

namespace outgrad::c {

using kernels::ActivationFits;
using kernels::FitList;
using kernels::i64;
using kernels::kActivations;
using kernels::u32;

inline constexpr int kFormats = 3;       // in the order of outgrad_format
inline constexpr int kKernels = 12;  // in the order of outgrad_kernel

// What runs a problem, and the rung of the ladder (kernels/ladder.h) that it was found on.
struct ChosenSchedule {
  const char* variant;
  const char* rung;
};

// Contracts: kernels/host/elementwise.h, bias.h and layernorm.h, beta and dbeta null for RMSNorm. Arrays of void are of the format.
struct FormatKernels {
  using Forward = void(const void* x, void* y, u32* mask, i64 n);
  using Backward = void(const void* dy, const void* y, const u32* mask, void* dx, i64 n);
  using NormForward = void(const void* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, void* y, float* rstd,
                           kernels::SideBuffer<float> side);
  using NormBackward = void(const void* dy, const void* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, void* dx, float* dgamma,
                            float* dbeta, kernels::SideBuffer<const float> side, float* workspace, i64 words);
  using BiasForward = void(const void* x, const float* bias, i64 rows, i64 n, void* y, u32* mask);
  using BiasBackward = void(const void* dy, const void* y, const u32* mask, i64 rows, i64 n, void* dx, float* dbias, float* workspace, i64 words);
  using ResidualForward = void(const void* x, const void* residual, const float* gamma, const float* beta, i64 rows, i64 n, float eps, void* z, void* y,
                               float* rstd, kernels::SideBuffer<float> side);
  using ResidualBackward = void(const void* dy, const void* y, const void* dz_next, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n,
                                void* dz, float* dgamma, float* dbeta, kernels::SideBuffer<const float> side, float* workspace, i64 words);

  Forward* gelu_forward;
  Backward* backward[kActivations];
  NormForward* norm_forward[2];  // by kernels::Norm
  NormBackward* norm_backward[2];
  ResidualForward* residual_forward[2];
  ResidualBackward* residual_backward[2];
  i64 (*norm_workspace)(i64 rows, i64 n);  // words
  BiasForward* bias_gelu_forward;
  BiasBackward* bias_gelu_backward;
  i64 (*bias_workspace)(i64 rows, i64 n);  // words
  ChosenSchedule (*chosen)(int kernel, i64 rows, i64 n);
};

extern const FormatKernels kF32Baseline, kF16Baseline, kBf16Baseline;
extern const FormatKernels kF32Avx2, kF16Avx2, kBf16Avx2;
extern const FormatKernels kF32Avx512, kF16Avx512, kBf16Avx512;
extern const FormatKernels kBf16Avx512Bf16;  // which brings nothing to the other formats

// An instruction set's, by format.
using Family = const FormatKernels* [kFormats];
inline constexpr Family kBaseline = {&kF32Baseline, &kF16Baseline, &kBf16Baseline};
inline constexpr Family kAvx2 = {&kF32Avx2, &kF16Avx2, &kBf16Avx2};
inline constexpr Family kAvx512 = {&kF32Avx512, &kF16Avx512, &kBf16Avx512};

}  // namespace outgrad::c
