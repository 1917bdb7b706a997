// OFP8's saturating mode: beyond the largest finite value of an 8-bit format, infinities included, there is that value.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The largest finite value of F.
template <class F>
inline constexpr float kLargestOf = 448.0f;
template <>
inline constexpr float kLargestOf<F8E5M2> = 57344.0f;

// value rounded to nearest even in F and saturated. NaN gives the canonical NaN.
template <class F>
OUTGRAD_HD F narrow_saturated(float value) {
  constexpr float kLargest = kLargestOf<F>;
  return narrow<F>(value > kLargest ? kLargest : value < -kLargest ? -kLargest : value);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
