// What each instruction set adds to the C library: the kernels of a format behind plain function pointers.
//
// kernels/c/variant.h is compiled once for every instruction set and format. Its objects share only these
// types and the constants at the end with the rest of the program.
#pragma once

#include "kernels/activations.h"
#include "kernels/formats.h"
#include "kernels/fp4.h"
#include "kernels/fp8.h"
#include "kernels/host/call.h"
#include "kernels/kernels.h"
#include "kernels/portable.h"

namespace outgrad::c {

using kernels::ActivationFits;
using kernels::FitList;
using kernels::i64;
using kernels::kActivations;
using kernels::kKernels;
using kernels::u32;

inline constexpr int kFormats = 3;       // in the order of outgrad_format
inline constexpr int kFp8Formats = 3;    // in the order of outgrad_fp8
inline constexpr int kFp4Formats = 2;    // in the order of outgrad_fp4
inline constexpr int kNormStores = 3;    // in the order of outgrad_norm_store
inline constexpr int kNorms = 2;         // LayerNorm, RMSNorm

// The schedule that runs a problem, and the rung of the ladder (kernels/ladder.h) on which it was found.
struct ChosenSchedule {
  const char* variant = nullptr;
  const char* rung = nullptr;
};

// A call with codes for f'(x) (kernels/host/code.h): from x, y and codes; from g, codes; from dy and codes,
// dx.
struct CodeArguments {
  const void* input;
  void* output;  // unused if codes are all that is written
  void* codes;   // only read by a backward
  i64 n;
  int bits;
  const kernels::u64* seed;
  float lo, hi;  // the range of f'; a forward has that of its activation
};

// A call of softmax with codes (kernels/host/softmax.h): from x, y and codes; from p, codes; from dy and
// codes, dx.
struct SoftmaxArguments {
  const void* input;
  void* output;  // unused if codes are all that is written
  void* codes;   // only read by a backward
  i64 rows, n;
};

// A call with y in 8 bits at a scale (kernels/host/fp8.h): from x, codes and parts; from dy, codes and parts,
// dx.
struct Fp8Arguments {
  const void* input;
  void* codes;  // codes and parts are only read by a backward
  void* parts;
  void* output;  // of a backward
  i64 n;
  float scale;
  const kernels::Fp8Table* table;
};

// A call of a norm with y in 8 bits (kernels/host/norm_store.h): from x, y, codes, scales, rstd and x^; from
// dy and these, dx, dgamma and dbeta. RMSNorm has neither beta nor dbeta.
struct Norm8Arguments {
  const void* input;
  const float *gamma, *beta;
  i64 rows, n;
  float eps;  // of a forward
  const float* given;  // a forward's scale, if it is given
  void* output;
  void* codes;  // codes, scales, rstd and x^ are only read by a backward
  void* scales;
  float* rstd;
  kernels::SideBuffer<float> side;
  float *dgamma, *dbeta, *workspace;  // of a backward
};

// A call with y in 4 bits by blocks (kernels/host/fp4.h): from x, codes, scales and parts; from dy and these,
// dx.
struct Fp4Arguments {
  const void* input;
  void* codes;  // codes, scales and parts are only read by a backward
  void* scales;
  void* parts;
  void* output;  // of a backward
  i64 n;
  const kernels::Fp4Tables* tables;
};

// The contracts are in kernels/host/elementwise.h, forwards.h, mxfp8.h, bias.h, layernorm.h, norm_store.h,
// code.h, softmax.h, fp8.h and fp4.h.
struct FormatKernels {
  using Run = void(const kernels::Arguments& a);
  using RunCode = void(const CodeArguments& a);
  using RunSoftmax = void(const SoftmaxArguments& a);
  using RunFp8 = void(const Fp8Arguments& a);
  using RunNorm8 = void(const Norm8Arguments& a);
  using RunFp4 = void(const Fp4Arguments& a);

  Run* run[kKernels];  // by kernels::KernelId
  Run* forward[kActivations];
  Run* backward[kActivations];
  Run* forward_mxfp8;  // x, codes, mask; scales
  Run* backward_mxfp8;  // dy, codes, mask, dx; scales
  ChosenSchedule (*chosen[kKernels])(i64 rows, i64 n);  // by kernels::KernelId
  i64 (*norm_workspace)(i64 rows, i64 n);  // words
  i64 (*bias_workspace)(i64 rows, i64 n);  // words

  // Of a y that carries its branch (kernels/host/parity.h), with the arrays of GELU's kernels, the mask among
  // them unused. Null in f32 and for activations without a minimum.
  Run* forward_parity[kActivations] = {};
  Run* backward_parity[kActivations] = {};

  RunCode* forward_code[kActivations];
  RunCode* encode_gradients;
  RunCode* backward_code;

  RunSoftmax* softmax_forward;
  RunSoftmax* softmax_encode;
  RunSoftmax* softmax_backward;

  // By outgrad_fp8; null for activations without a minimum.
  RunFp8* forward_fp8[kFp8Formats][kActivations] = {};
  RunFp8* backward_fp8;

  // By kernels::Norm and outgrad_norm_store.
  RunNorm8* norm_forward[kNorms][kNormStores];
  RunNorm8* norm_backward[kNorms][kNormStores];

  // By outgrad_fp4; null for activations without a minimum.
  RunFp4* forward_fp4[kFp4Formats][kActivations] = {};
  RunFp4* backward_fp4[kFp4Formats];
};

extern const FormatKernels kF32Baseline, kF16Baseline, kBf16Baseline;
extern const FormatKernels kF32Avx2, kF16Avx2, kBf16Avx2;
extern const FormatKernels kF32Avx512, kF16Avx512, kBf16Avx512;
extern const FormatKernels kBf16Avx512Bf16;  // it has nothing to offer to the other formats

// The kernels of one instruction set, by format.
using Family = const FormatKernels* [kFormats];
inline constexpr Family kBaseline = {&kF32Baseline, &kF16Baseline, &kBf16Baseline};
inline constexpr Family kAvx2 = {&kF32Avx2, &kF16Avx2, &kBf16Avx2};
inline constexpr Family kAvx512 = {&kF32Avx512, &kF16Avx512, &kBf16Avx512};

}  // namespace outgrad::c
