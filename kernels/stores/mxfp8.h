// How MXFP8 stores a block: the shared scale, and elements in e4m3 (OCP Microscaling Formats specification
// 1.0, sections 5.2 and 6.3).
//
// The scale is 2^(e - 8), where 2^e <= amax < 2^(e + 1), amax is the largest magnitude of the block, and 2^8
// is the largest power of two of e4m3; it is not below 2^-127, the least of E8M0, which a block of zeros has
// too. An element is y / scale rounded to nearest even; beyond 448 it is saturated. The specification leaves
// open what an infinity and a NaN do: here a NaN is left out of amax and stays a NaN, and takes no other
// element of its block with it; an infinity counts as the largest finite number and is saturated, and the
// others beside it are 0.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/saturated.h"
#include "kernels/stores/store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr u32 kLargestFiniteBits = 0x7f7fffffu;

// The bits of |y| as they count for amax: magnitudes are in the order of their bits.
OUTGRAD_HD u32 magnitude_in_block(float y) {
  const u32 magnitude = bits_of(y) & 0x7fffffffu;
  const u32 finite = magnitude < kLargestFiniteBits ? magnitude : kLargestFiniteBits;
  return magnitude > 0x7f800000u ? 0 : finite;
}

// The scale of a block from the bits of amax.
OUTGRAD_HD E8M0 shared_scale(u32 amax) {
  const u32 exponent = amax >> 23;
  return E8M0{static_cast<u8>(exponent > 8 ? exponent - 8 : 0)};
}

// 1 / scale, a normal number for every shared scale.
OUTGRAD_HD float reciprocal_of(E8M0 scale) { return float_of((254u - scale.bits) << 23); }

// The code of y in a block of that scale. The quotient is exact, or so small that e4m3 has 0 for it.
OUTGRAD_HD F8E4M3 block_element(float y, E8M0 scale) {
  return narrow_saturated<F8E4M3>(mul_rn(y, reciprocal_of(scale)));
}

template <>
struct StoreArithmetic<StoreId::kMxFp8> {
  template <class T>
  using Kept = MxFp8;
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
