// The output y of a norm in 8 bits, as the next product reads it: how it is stored, and what the norm's
// backward reads.
//
// y is what the forward gives in fp32 before it is narrowed, so it is rounded once. All arithmetic is fp32,
// rounded to nearest even.
//
//   e4m3    One scale s for the tensor (fp32, positive and normal). Code: RN(y / s) in e4m3, saturated at
//           448. It stands for RN(code s). The scale that follows from the tensor is RN(amax / 448), amax its
//           largest |y|, and at least 2^-126.
//   mxfp8   Blocks of 32 along the row share a power of two, as kernels/stores/mxfp8.h says.
//   int8    Groups of 64 along the row keep their least y as zero point z, and the step s = RN(RN(max - z) /
//           255), at least 2^-126. Code: RN(RN(y - z) / s) to an integer, which is at most 255. It stands for
//           RN(z + code s).
//
// A y that is NaN or infinite. e4m3 and mxfp8 keep NaN, and infinity becomes the largest number; neither NaN
// nor infinity enlarges a scale beyond that of the largest finite number. int8 has no code for them: the
// whole group reads as NaN, also if max - z overflows.
//
// With the dequantised y in place of y, the backward is that of kernels/layernorm.h. How far dx, dgamma and
// dbeta can then be from the exact gradients is derived in validation/norms/stability.h, channel by channel.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/saturated.h"
#include "kernels/stores/mxfp8.h"

namespace outgrad::kernels {

// A group of int8.
struct Int8Scale {
  float zero;  // NaN if the group held a NaN or an infinity
  float step;
};

// The stores. kGroup elements along the row share a Scale; 0: all of the tensor.
struct NormE4m3 {
  static constexpr const char* kName = "e4m3";
  using Code = F8E4M3;
  using Scale = float;
  static constexpr i64 kGroup = 0;
};
struct NormMxFp8 {
  static constexpr const char* kName = "mxfp8";
  using Code = F8E4M3;
  using Scale = E8M0;
  static constexpr i64 kGroup = Format<MxFp8>::kBlock;
};
struct NormInt8 {
  static constexpr const char* kName = "int8";
  using Code = u8;
  using Scale = Int8Scale;
  static constexpr i64 kGroup = 64;
};

template <class... Store>
struct NormStoreList {};
using NormStores = NormStoreList<NormE4m3, NormMxFp8, NormInt8>;

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

template <class Store>
OUTGRAD_HD constexpr i64 norm_scales_of(i64 rows, i64 n) {
  if constexpr (Store::kGroup == 0) {
    return 1;
  } else {
    return rows * (n / Store::kGroup);
  }
}

inline constexpr float kLeastNormScale = 0x1p-126f;  // the least normal number
inline constexpr float kLastInt8 = 255.0f;

// The least and the largest y of a group, in the order of their bits: -NaN, -infinity, .., -0, +0, ..,
// infinity, NaN.
struct OutputRange {
  i32 least = 0x7fffffff;
  i32 most = -0x7fffffff - 1;

  // A float's place in that order, and the float at a place.
  static OUTGRAD_HD i32 key(i32 bits) { return bits ^ (bits >> 31 & 0x7fffffff); }
  OUTGRAD_HD void include(float y) {
    const i32 at = key(static_cast<i32>(bits_of(y)));
    least = at < least ? at : least;
    most = at > most ? at : most;
  }
  OUTGRAD_HD float lowest() const { return float_of(static_cast<u32>(key(least))); }
  OUTGRAD_HD float highest() const { return float_of(static_cast<u32>(key(most))); }
};

// The tensor's scale from the bits of its amax, in which magnitude_in_block says how NaN and infinity count.
OUTGRAD_HD float e4m3_scale(u32 amax) {
  const float scale = div_rn(float_of(amax), kLargestOf<F8E4M3>);
  return scale < kLeastNormScale ? kLeastNormScale : scale;
}

OUTGRAD_HD Int8Scale int8_scale(float lowest, float highest) {
  const float zero = add_rn(lowest, 0.0f);  // -0 becomes +0
  const float width = add_rn(sub_rn(highest, zero), 0.0f);  // infinite or NaN if an end of the range is
  if (bits_of(width) >= 0x7f800000u) return {float_of(kCanonicalNanF32), kLeastNormScale};
  const float step = div_rn(width, kLastInt8);
  return {zero, step < kLeastNormScale ? kLeastNormScale : step};
}

OUTGRAD_HD Int8Scale int8_scale(const OutputRange& range) {
  return int8_scale(range.lowest(), range.highest());
}

// Whether a backward can read this scale. Every E8M0 can be read; 255 is NaN.
OUTGRAD_HD bool norm_scale_holds(float scale) { return scale_holds(scale); }
OUTGRAD_HD bool norm_scale_holds(E8M0) { return true; }
OUTGRAD_HD bool norm_scale_holds(Int8Scale scale) {
  return scale_holds(scale.step) && (bits_of(scale.zero) & 0x7fffffffu) != 0x7f800000u;
}

// narrow_saturated<F8E4M3>(v) without branches, so that loops over it become vectors. 2^20 times v's power of
// two, or e4m3's least normal one, has an ulp of e4m3's distance there, so the sum's last bits are v in that
// unit.
OUTGRAD_HD F8E4M3 e4m3_code(float v) {
  constexpr u32 kLeastPower = 121u << 23, kLargest = 0x43e00000u;  // 2^-6, 448
  const u32 magnitude = bits_of(v) & 0x7fffffffu;
  const u32 saturated = magnitude < kLargest ? magnitude : kLargest;
  const u32 exponent = (saturated & 0x7f800000u) < kLeastPower ? kLeastPower : saturated & 0x7f800000u;
  const u32 grid = exponent + (20u << 23);
  const u32 code =
      ((exponent - kLeastPower) >> 20) + bits_of(add_rn(float_of(saturated), float_of(grid))) - grid;
  const u32 signed_code = (bits_of(v) >> 24 & 0x80u) | code;
  return F8E4M3{static_cast<u8>(magnitude > 0x7f800000u ? kCanonicalNanF8 : signed_code)};
}

// A scale by which many numbers v >= 0 are divided, in vectors (kernels/host/norm_store.h).
//
// RN(v / s) takes a division, or a product and three fma. With r = RN(1 / s) and r' = RN(RN(1 - s r) r), r +
// r' is 1 / s within a relative 2^-46, so that q = RN(v r + RN(v r')) is within an ulp of v / s. Then RN(q +
// RN(v - q s) r) is RN(v / s) (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", IBM J. Res. Dev. 34, 1990: r is correctly rounded, q within an ulp, and nothing underflows). v
// - q s is a whole number of units of 2^-46 q s, so that it is exact for s >= 2^-92 and q >= 2^-11; below,
// every code is that of 0. Quotients beyond kMostQuotient are not needed.
struct Divisor {
  static constexpr float kLeast = 0x1p-92f, kMost = 0x1p96f, kMostQuotient = 0x1p10f;
  float scale, reciprocal, rest;

  static OUTGRAD_HD Divisor of(float scale) {
    const float reciprocal = div_rn(1.0f, scale);
    return {scale, reciprocal, mul_rn(fma_rn(-scale, reciprocal, 1.0f), reciprocal)};
  }
  OUTGRAD_HD bool is_usual() const { return kLeast <= scale && scale <= kMost; }
};

// The code of y, which lies in the range from which the scale was made (or any y for e4m3).
OUTGRAD_HD F8E4M3 norm_code(float y, float scale) { return e4m3_code(div_rn(y, scale)); }
// as block_element
OUTGRAD_HD F8E4M3 norm_code(float y, E8M0 scale) { return e4m3_code(mul_rn(y, reciprocal_of(scale))); }
OUTGRAD_HD u8 norm_code(float y, Int8Scale scale) {
  constexpr float kUnits = 0x1p23f;  // the numbers from here to its double are integers
  return static_cast<u8>(bits_of(add_rn(div_rn(sub_rn(y, scale.zero), scale.step), kUnits)));
}

// What a code stands for.
OUTGRAD_HD float norm_value(F8E4M3 code, float scale) { return mul_rn(widen(code), scale); }
OUTGRAD_HD float norm_value(F8E4M3 code, E8M0 scale) { return mul_rn(widen(code), widen(scale)); }
OUTGRAD_HD float norm_value(u8 code, Int8Scale scale) {
  return fma_rn(static_cast<float>(code), scale.step, scale.zero);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
