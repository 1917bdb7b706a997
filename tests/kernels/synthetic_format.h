// Block formats (kernels/stored.h) for tests: one with scales that are powers of two, one whose products are rounded.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/stored.h"

namespace outgrad::kernels {
namespace synthetic {

// E8M0 of the OCP Microscaling Formats specification 1.0: 2^(bits - 127); 255 is NaN.
struct PowerOfTwo {
  u8 bits;
};

OUTGRAD_HD float widen(PowerOfTwo scale) {
  if (scale.bits == 255) return float_of(kCanonicalNanF32);
  return scale.bits == 0 ? float_of(1u << 22) : float_of(static_cast<u32>(scale.bits) << 23);
}

struct BlocksOf32 {};  // e4m3 by PowerOfTwo: MXFP8
struct BlocksOf16 {};  // e5m2 by fp32

}  // namespace synthetic

template <>
struct Format<synthetic::BlocksOf32> {
  static constexpr const char* kName = "blocks_of_32";
  static constexpr const char* kType = "synthetic::BlocksOf32";
  using Element = F8E4M3;
  using Scale = synthetic::PowerOfTwo;
  static constexpr int kBlock = 32;
};

template <>
struct Format<synthetic::BlocksOf16> {
  static constexpr const char* kName = "blocks_of_16";
  static constexpr const char* kType = "synthetic::BlocksOf16";
  using Element = F8E5M2;
  using Scale = float;
  static constexpr int kBlock = 16;
};

}  // namespace outgrad::kernels
