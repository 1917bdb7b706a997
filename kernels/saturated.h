// OFP8's saturating mode, and those of int8 and e2m1: beyond the largest finite value of such a format,
// infinities included, there is that value.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The largest finite value of F.
template <class F>
inline constexpr float kLargestOf = 448.0f;
template <>
inline constexpr float kLargestOf<F8E5M2> = 57344.0f;
template <>
inline constexpr float kLargestOf<I8> = 127.0f;
template <>
inline constexpr float kLargestOf<F4E2M1> = 6.0f;

// Whether numbers of such a format can have this scale: positive, finite and not subnormal.
OUTGRAD_HD bool scale_holds(float scale) {
  return bits_of(scale) >= 0x00800000u && bits_of(scale) < 0x7f800000u;
}

// value rounded to nearest even in F and saturated. NaN gives the canonical NaN.
template <class F>
OUTGRAD_HD F narrow_saturated(float value) {
  constexpr float kLargest = kLargestOf<F>;
  return narrow<F>(value > kLargest ? kLargest : value < -kLargest ? -kLargest : value);
}

// e2m1 has no NaN: kernels/stores/fp4.h says what becomes of one.
template <>
OUTGRAD_HD F4E2M1 narrow_saturated<F4E2M1>(float value) {
  const float v = float_of(bits_of(value) & 0x7fffffffu);
  // Of two neighbours the even code has the number midway between them.
  const int code =
      (0.25f < v) + (0.75f <= v) + (1.25f < v) + (1.75f <= v) + (2.5f < v) + (3.5f <= v) + (5.0f < v);
  return F4E2M1{static_cast<u8>(static_cast<u32>(code) | (bits_of(value) >> 28 & 8u))};
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
