// What each instruction set adds to the C library: the kernels of a format behind plain function pointers.
//
// kernels/c/variant.h is compiled once for every instruction set and format. Its objects share only these
// types and the constants at the end with the rest of the program.
#pragma once

#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/catalogue/stores.h"
#include "kernels/formats.h"
#include "kernels/host/call.h"
#include "kernels/kernels.h"
#include "kernels/portable.h"
#include "kernels/stores/code.h"

namespace outgrad::c {

using kernels::ActivationFits;
using kernels::FitList;
using kernels::i64;
using kernels::kActivations;
using kernels::kKernels;
using kernels::kStoreCount;
using kernels::StoreId;
using kernels::u32;
using kernels::u64;

inline constexpr int kFormats = 3;  // in the order of outgrad_format
inline constexpr int kNorms = 2;  // LayerNorm, RMSNorm

// The schedule that runs a problem, and the rung of the ladder (kernels/ladder.h) on which it was found.
struct ChosenSchedule {
  const char* variant = nullptr;
  const char* rung = nullptr;
};

// A call whose arguments were checked, and what follows from them.
struct Call {
  const outgrad_call& given;
  kernels::Arguments arguments{};  // of a kernel of the catalogue
  float lo = 0, hi = 0;  // the range of f' that codes are for
  const void* tables = nullptr;  // a kernels::Fp8Table or kernels::Fp4Tables
};

// Any tensor in a format of 8 bits. scales: the scale of the tensor, which `scale` makes of x, or a byte for
// each block, which `encode` writes.
struct TensorCodes {
  void (*scale)(const void* x, i64 n, float least, void* scales) = nullptr;  // null of a format in blocks
  void (*encode)(const void* x, void* codes, void* scales, i64 n) = nullptr;
  void (*decode)(const void* codes, const void* scales, void* x, i64 n) = nullptr;
};

// Of a pair that keeps a and b in such a format, the call's store: their codes and scales.
struct GatedCodes {
  void *codes_of_a = nullptr, *scales_of_a = nullptr, *codes_of_b = nullptr, *scales_of_b = nullptr;
};

// The contracts are in kernels/host/elementwise.h, forwards.h, parity.h, code.h, mxfp8.h, fp8.h, fp4.h,
// bias.h, gated.h, product.h, layernorm.h, norm_store.h, softmax.h, dropout.h and tensor_codes.h.
struct FormatKernels {
  using Run = void(const Call& call);

  Run* run[kKernels];  // by kernels::KernelId
  ChosenSchedule (*chosen[kKernels])(i64 rows, i64 n);

  // By StoreId and activation, null where an activation has no such store.
  Run* forward[kStoreCount][kActivations] = {};
  Run* backward[kStoreCount][kActivations] = {};

  Run* encode_gradients;
  Run* backward_encoded;

  // By activation, null of one that is no gate.
  Run* gated_forward[kActivations] = {};
  Run* gated_backward[kActivations] = {};
  // The same of pairs that keep their product, which f32 has none of.
  Run* product_forward[kActivations] = {};
  Run* product_backward[kActivations] = {};
  // And of those that keep a and b in 8 bits, where the backward's call has neither; without db, they are
  // packed.
  void (*gated_forward_8bit[kActivations])(const outgrad_call& of, const GatedCodes& kept) = {};
  void (*gated_backward_8bit[kActivations])(const outgrad_call& of, const GatedCodes& kept) = {};

  Run* softmax_forward;
  Run* softmax_encode;
  Run* softmax_backward;

  // By kernels::Norm and StoreId, null where norms have no such store; with y itself they are in `run`.
  Run* norm_forward[kNorms][kStoreCount] = {};
  Run* norm_backward[kNorms][kStoreCount] = {};

  void (*dropout)(const void* x, void* y, i64 n, u64 seed, double p);

  TensorCodes tensor_codes[kStoreCount] = {};  // by StoreId, null of a store that no tensor can have

  i64 (*norm_workspace)(i64 rows, i64 n);  // words
  i64 (*bias_workspace)(i64 rows, i64 n);  // words
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

// For what is linked with the static library and measures kernels themselves, or needs one that the C
// interface lacks: those of the instruction set that the process has chosen, or kernels::SpecError if
// OUTGRAD_ISA names none; and the tables of a store of few bits for a call's activation, store and bits, with
// the bound of outgrad_store_error, where `amax` is given as bits.
const FormatKernels& chosen_kernels(outgrad_format format);
double make_tables(const outgrad_call& call, float scale, u32 amax, void* tables);

}  // namespace outgrad::c
