// The forwards that have a fit on a GPU, for the elements of one thread: the evaluators of kernels/eval.h, an
// octet's mask bits and, for 16-bit formats, operations on two elements at once.
#pragma once

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/tables.cuh"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/fitted_forward.h"
#include "kernels/params.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The tables of an f32 forward fit, its core and its tail, each as a separate fit for resident_table.
template <class Forward>
struct CoreOf {
  static constexpr int kRows = Forward::kRows;
  static OUTGRAD_HD constexpr auto table() { return Forward::table(); }
};
template <class Forward>
struct TailOf {
  static constexpr int kRows = Forward::kTailRows;
  static OUTGRAD_HD constexpr auto table() { return Forward::tail(); }
};

// A forward's tables, in the place where the kernel reads them. The rows of a rounded forward are numbered by
// the bits of an index, which begin with those of 2^23.
template <class Forward, TableHome Wanted, int Threads>
__device__ __forceinline__ decltype(auto) resident_forward() {
  if constexpr (kIsRoundedForward<Forward>) {
    constexpr float kFirst = Forward::kXMin * Forward::kIndexScale + (Forward::kIndexBias - 0x1p23f),
                    kLast = Forward::kXMax * Forward::kIndexScale + (Forward::kIndexBias - 0x1p23f);
    static_assert(kFirst > -0.5f && kLast < Forward::kRows - 0.5f, "an index is the number of a row");
    return rows_from<kTwoTo23>(resident_table<Forward, Wanted, Threads>());
  } else {
    if constexpr (requires { Forward::tail(); }) {
      using Core = decltype(resident_table<CoreOf<Forward>, Wanted, Threads>());
      using Tail = decltype(resident_table<TailOf<Forward>, Wanted, Threads>());
      return ForwardTables<Core, Tail>{resident_table<CoreOf<Forward>, Wanted, Threads>(),
                                       resident_table<TailOf<Forward>, Wanted, Threads>()};
    } else {
      // Copies of the core may take the shared memory that others need for their tail.
      constexpr TableHome kHome = Wanted == TableHome::automatic ? TableHome::spread : Wanted;
      using Core = decltype(resident_table<CoreOf<Forward>, kHome, Threads>());
      return ForwardTables<Core, NoTail>{resident_table<CoreOf<Forward>, kHome, Threads>(), {}};
    }
  }
}

// The operations of a rounded forward. v may be a NaN, but w, which alone picks a row, is always a number.
// Packed: x is already clamped, and its sign is put back later.
template <bool Packed>
struct RoundedOps : FloatOps {
  OUTGRAD_HD float at_least(float a, float lo) const { return Packed ? a : FloatOps::at_least(a, lo); }
  OUTGRAD_HD float number_at_most(float a, float hi) const {
#ifdef __CUDA_ARCH__
    float result;
    asm("min.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(hi));
    return result;
#else
    return a < hi ? a : hi;
#endif
  }
  OUTGRAD_HD u32 row_index(float q, int) const { return bits_of(q); }
  OUTGRAD_HD float restored(float y, float x) const { return Packed ? y : signed_as(y, x); }
};

// f(x) in fp32, ready to be narrowed to T.
template <class T, class Forward, bool Packed, class Tables>
__device__ __forceinline__ float forward_value(const Tables& tables, float x) {
  if constexpr (kIsRoundedForward<Forward>) {
    return fitted_forward_value<T>(RoundedOps<Packed>{}, Forward{}, tables, x);
  } else {
    return fitted_forward_value<T>(FloatOps{}, Forward{}, tables, x);
  }
}

// Shifts the bits up by one and puts m = [x >= x*] below them, as evaluate_mask would. m is the sign of the
// difference between the float next below x* and x, which no rounding changes. A NaN gives m = 0, because the
// device makes every NaN the positive one (PTX ISA, "Floating point instructions": 7fffffff).
template <class Forward>
__device__ __forceinline__ u32 with_mask_bit(u32 bits, float x) {
#ifdef __CUDA_ARCH__
  static_assert(Forward::kXStar < 0);
  constexpr float kBelow = constant_of(__builtin_bit_cast(u32, Forward::kXStar) + 1);
  return __funnelshift_l(bits_of(sub_rn(kBelow, x)), bits, 1);
#else
  return bits << 1 | static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, x));
#endif
}

// f(x) in fp32, ready to be narrowed to T, of 8 values x, and their mask byte.
template <class T, class Forward, class Tables>
__device__ __forceinline__ void forward_values(const Tables& tables, const float (&x)[kOctet],
                                               float (&result)[kOctet], u32& bits) {
  bits = 0;
  OUTGRAD_UNROLL
  for (int k = kOctet - 1; k >= 0; --k) {
    result[k] = forward_value<T, Forward, false>(tables, x[k]);
    if constexpr (kHasMask<Forward>) bits = with_mask_bit<Forward>(bits, x[k]);
  }
}

// y and the mask byte of 8 values x.
template <class T, class Forward, class Tables>
__device__ __forceinline__ Octet<T> forward_octet(const Tables& tables, const float (&x)[kOctet], u32& bits) {
  float result[kOctet];
  forward_values<T, Forward>(tables, x, result, bits);
  return packed<T>(result);
}

// Whether T has this number as a normal number, and the code of the number rounded towards zero.
template <class T>
OUTGRAD_HD constexpr bool is_stored(float value) {
  constexpr u32 kCut = 23 - (kPrecisionOf<T> - 1);
  return (__builtin_bit_cast(u32, value) & ((1u << kCut) - 1)) == 0;
}
template <class T>
OUTGRAD_HD constexpr u32 code_towards_zero(float value) {
  constexpr u32 kCut = 23 - (kPrecisionOf<T> - 1), kRebias = (kIsBf16<T> ? 0u : 112u) << 23;
  const u32 bits = __builtin_bit_cast(u32, value);
  return (bits >> 16 & 0x8000u) | ((bits & 0x7fffffffu) - kRebias) >> kCut;
}

#ifdef __CUDA_ARCH__
#define OUTGRAD_PAIR_COMPARES (__CUDA_ARCH__ >= 900)  // compares two bf16 at once
#else
#define OUTGRAD_PAIR_COMPARES 1
#endif

// For two values x of T in one word: x, or the limit if that is greater; a NaN stays a NaN. The limit's code
// stands in both halves.
template <class T>
__device__ __forceinline__ u32 pair_at_least(u32 pair, u32 limit) {
#ifdef __CUDA_ARCH__
  if constexpr (kIsBf16<T>) {
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(limit));
  } else {
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(limit));
  }
  return pair;
#else
  const auto half = [](u32 x, u32 lo) {
    return widen(T{static_cast<u16>(x)}) < widen(T{static_cast<u16>(lo)}) ? lo & 0xffffu : x & 0xffffu;
  };
  return half(pair, limit) | half(pair >> 16, limit >> 16) << 16;
#endif
}

// Sets all bits of a half if x >= limit there.
template <class T>
__device__ __forceinline__ u32 pair_at_least_mask(u32 pair, u32 limit) {
#ifdef __CUDA_ARCH__
  u32 mask = 0;
#if OUTGRAD_PAIR_COMPARES
  if constexpr (kIsBf16<T>) asm("set.ge.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(pair), "r"(limit));
#endif
  if constexpr (!kIsBf16<T>) asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(pair), "r"(limit));
  return mask;
#else
  const auto half = [](u32 x, u32 lo) {
    return widen(T{static_cast<u16>(x)}) >= widen(T{static_cast<u16>(lo)}) ? 0xffffu : 0u;
  };
  return half(pair, limit) | half(pair >> 16, limit >> 16) << 16;
#endif
}

// The mask byte of an octet of stored x. x* is negative, so the values of T that are at least x* begin with
// x* rounded towards zero.
template <class Forward, class T>
__device__ __forceinline__ u32 mask_byte(const Octet<T>& x) {
  static_assert(Forward::kXStar < 0);
  constexpr u32 kStar = code_towards_zero<T>(Forward::kXStar) * 0x10001u;
  u32 masks = 0;  // elements 0, 2, 4, 6 have bits 0, 2, 4, 6; elements 1, 3, 5, 7 have bits 17, 19, 21, 23
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet / 2; ++k)
    masks = joined(pair_at_least_mask<T>(x.w[k], kStar), 0x20001u << (2 * k), masks);
  return masks | masks >> 16;
}

// y and the mask byte of an octet of stored x.
template <class Forward, class Tables, class T>
__device__ __forceinline__ Octet<T> forward_octet(const Tables& tables, const Octet<T>& x, u32& bits) {
  constexpr bool kPacked = [] {
    if constexpr (kIsRoundedForward<Forward> && sizeof(T) == 2) {
      return is_stored<T>(Forward::kXMin) && (OUTGRAD_PAIR_COMPARES || !kIsBf16<T>);
    } else {
      return false;
    }
  }();
  if constexpr (kPacked) {
    constexpr u32 kBoth = 0x10001u, kLeast = code_towards_zero<T>(Forward::kXMin) * kBoth;
    Octet<T> clamped;
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet / 2; ++k) clamped.w[k] = pair_at_least<T>(x.w[k], kLeast);
    bits = 0;
    if constexpr (kHasMask<Forward>) bits = mask_byte<Forward>(x);
    float result[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) result[k] = forward_value<T, Forward, true>(tables, widened(clamped, k));
    Octet<T> y = packed<T>(result);
    if constexpr (!kIsPlain<Forward>) {
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet / 2; ++k) y.w[k] = (y.w[k] & 0x7fff7fffu) | (x.w[k] & 0x80008000u);
    }
    return y;
  } else {
    float wide[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) wide[k] = widened(x, k);
    return forward_octet<T, Forward>(tables, wide, bits);
  }
}

// y and the mask bit of one value.
template <class T, class Forward, class Tables>
__device__ __forceinline__ ForwardElement<T> forward_element(const Tables& tables, float x) {
  const T y = narrow<T>(forward_value<T, Forward, false>(tables, x));
  if constexpr (kHasMask<Forward>) {
    return {y, evaluate_mask(FloatOps{}, Forward{}, x)};
  } else {
    return {y, false};
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
