// Any tensor in 8 bits: e4m3 or e5m2 at one scale, or MXFP8. Kernels of this library alone read such codes.
//
//   at one scale   The scale s (fp32) is what x is multiplied by: RN(RN(4 / m) L / 4), L being the format's
//                  largest number and m the largest finite |x|, which counts as `least` at least and as 2^127
//                  at most. Code: RN(RN(x s)), saturated. It stands for RN(code / s).
//   mxfp8          Blocks of 32 in the order of the elements share a power of two, the least by which the
//                  largest finite |x| of a block becomes at most 448, and at least 2^-126. Code: RN(x /
//                  power), saturated. It stands for code power; where that is beyond the largest number of
//                  the type it is read in, because a code was rounded up, it stands for that number. (The
//                  power of kernels/stores/mxfp8.h is the specification's. It may be half of this one, and
//                  what lies between 448 and 512 of it is then saturated.)
//
// NaNs stay NaN, and an infinity counts as the largest number there; neither has part in a scale or a power.
// All arithmetic is fp32, rounded to nearest even.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/saturated.h"
#include "kernels/stored.h"
#include "kernels/stores/mxfp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr u32 kInfinityBits = 0x7f800000u;

// The bits of |x| as they count for a scale: 0 of what is no finite number. Magnitudes are in the order of
// their bits.
OUTGRAD_HD u32 finite_magnitude(float x) {
  const u32 magnitude = bits_of(x) & 0x7fffffffu;
  return magnitude < kInfinityBits ? magnitude : 0;
}

// The least and the most that a tensor's largest magnitude counts as, so that a scale is a normal number.
inline constexpr float kLeastOfTensors = 0x1p-100f, kMostOfTensors = 0x1p127f;

// The scale of a tensor from the bits of its largest finite magnitude; kLeastOfTensors <= least.
template <class F>
OUTGRAD_HD float tensor_scale(u32 magnitude, float least) {
  const float found = float_of(magnitude), raised = found < least ? least : found,
              largest = raised > kMostOfTensors ? kMostOfTensors : raised;
  return mul_rn(div_rn(4.0f, largest), kLargestOf<F> / 4);  // of quarters: no reciprocal is subnormal
}

// A scale s by which codes are divided, without a division for each. With r = RN(1 / s), q = RN(v r) and e =
// RN(q s - v), RN(q - e r) is RN(v / s), the sign of a zero included, for every v that a code can be: a test
// tries all significands of s with all of v (CodeDivisor in tests/kernels/tensor_codes_test.cpp). Their
// powers of two change nothing as long as all numbers are normal, which a usual s makes sure of.
struct CodeDivisor {
  static constexpr float kLeast = 0x1p-92f, kMost = 0x1p96f;
  float scale, reciprocal;

  static OUTGRAD_HD CodeDivisor of(float scale) { return {scale, div_rn(1.0f, scale)}; }
  OUTGRAD_HD bool is_usual() const { return kLeast <= scale && scale <= kMost; }
  OUTGRAD_HD float quotient(float v) const {
    const float near = mul_rn(v, reciprocal);
    return fma_rn(fma_rn(near, scale, -v), -reciprocal, near);
  }
};

// For mxfp8_blocks of kernels/host/mxfp8_blocks.h, too.
struct LeastPower {
  static constexpr u32 kCarry = (1u << 23) - 1 - (3u << 21);  // makes the next exponent of an m > 448 / 256
  static constexpr u32 kLeastExponent = 9;
};

// What a code stands for at a scale.
template <class F>
OUTGRAD_HD float tensor_value(F code, float scale) {
  return div_rn(widen(code), scale);
}

// A block's power of two from the bits of its largest finite magnitude m 2^k, 1 <= m < 2: 8 are taken from
// the exponent, or 7 where m > 448 / 256.
OUTGRAD_HD E8M0 least_power(u32 magnitude) {
  const u32 exponent = (magnitude + LeastPower::kCarry) >> 23;
  return E8M0{static_cast<u8>(exponent > LeastPower::kLeastExponent ? exponent - 8 : 1)};
}

// The largest number of T.
template <class T>
inline constexpr float kMostOf = 0x1.fffffep127f;
template <>
inline constexpr float kMostOf<F16> = 65504.0f;
template <>
inline constexpr float kMostOf<BF16> = 0x1.fep127f;

// A number, or the largest that T has.
template <class T>
OUTGRAD_HD float within(float value) {
  return value > kMostOf<T> ? kMostOf<T> : value < -kMostOf<T> ? -kMostOf<T> : value;
}

// What a code of a block stands for in T.
template <class T>
OUTGRAD_HD float block_value(F8E4M3 code, E8M0 power) {
  return within<T>(mul_rn(widen(code), widen(power)));
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
