// y in 4 bits in blocks that share a scale, MXFP4 (OCP Microscaling Formats specification 1.0, sections 5.2
// and 6.3) and NVFP4 (NVIDIA's, as its libraries make it), and 0, 1 or 2 bits beside each code, as in
// kernels/stores/parts.h.
//
// An element's code is y m rounded to nearest even in e2m1 and saturated, where m follows from its block's
// scale, and the scale from amax, the largest |y| of the block:
//   MXFP4  blocks of 32. scale = 2^(e - 2), where 2^e <= amax < 2^(e + 1), not below 2^-127, and
//          m = 1 / scale.
//   NVFP4  blocks of 16. With the tensor's scale t, scale = amax t/6 rounded to e4m3 and saturated, not below
//          its least number 2^-9, and m = t / scale. t is 6 448 / (the tensor's largest |y|), so that no
//          scale is saturated. Both quotients and the product are rounded to fp32.
// A code of a block stands for code / m. The scale tells that no |y| of the block is larger than what leads
// to this scale. So its table is that of kernels/stores/parts.h for the scale m, cut there: Fp4Tables has one
// for each scale, and everything that is said of kRoom there holds here.
//
// An infinity counts as the largest finite number in amax. e2m1 has no NaN: one in a block makes the scale
// NaN, and with it the gradients of the block, so that it does not go unseen.
#pragma once

#include "kernels/stores/mxfp8.h"
#include "kernels/stores/parts.h"
#include "kernels/stores/store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr int kFp4Bits = 4, kBlockScales = 256;

struct Fp4Tables {
  int bits;
  float tensor;  // the tensor's scale
  float multiplier[kBlockScales];  // m; 0 of a code that no block has for its scale
  Fp4Table of_scale[kBlockScales];
};

// A block's scale from amax as bits, m of a scale, and the largest amax that leads to it. B is MxFp4 or
// NvFp4, and `tensor` the tensor's scale, of which MXFP4 has none: 1. tensor_scale_for is that for a tensor's
// largest |y|.
template <class B>
struct BlockScale;

template <>
struct BlockScale<MxFp4> {
  static constexpr int kLast = 252;  // of finite amax
  static constexpr u8 kNan = 255;
  static constexpr const char* kScaleRule = "MXFP4 has no scale of the tensor; it is 1";
  OUTGRAD_HD static bool tensor_scale_holds(float tensor) { return tensor == 1; }
  OUTGRAD_HD static float tensor_scale_for(float) { return 1; }
  OUTGRAD_HD static u8 of(u32 amax, float) {
    const u32 exponent = amax >> 23;
    return static_cast<u8>(exponent > 2 ? exponent - 2 : 0);
  }
  OUTGRAD_HD static float multiplier(int scale, float) { return reciprocal_of(E8M0{static_cast<u8>(scale)}); }
  // The bits of the least amax that leads to a larger scale.
  OUTGRAD_HD static u32 end(int scale, float) { return static_cast<u32>(scale + 3) << 23; }
  static constexpr int kFirst = 0;
};

template <>
struct BlockScale<NvFp4> {
  static constexpr int kFirst = 1, kLast = 0x7e;
  static constexpr u8 kNan = kCanonicalNanF8;
  static constexpr const char* kScaleRule = "it is from 2^-117 up to 2^118";
  // So that t/6 and every m are normal.
  OUTGRAD_HD static bool tensor_scale_holds(float tensor) { return 0x1p-117f <= tensor && tensor < 0x1p118f; }
  OUTGRAD_HD static float tensor_scale_for(float largest) { return 6 * 448 / largest; }
  OUTGRAD_HD static float sixth(float tensor) { return div_rn(tensor, 6.0f); }
  OUTGRAD_HD static u8 of(u32 amax, float tensor) {
    const u8 code = fp8_code<F8E4M3>(float_of(amax), sixth(tensor)).bits;
    return code > 0 ? code : u8{1};
  }
  OUTGRAD_HD static float multiplier(int scale, float tensor) {
    return div_rn(tensor, widen(F8E4M3{static_cast<u8>(scale)}));
  }
  OUTGRAD_HD static u32 end(int scale, float tensor) {
    return scale == kLast ? kBeyondInfinity : detail::first_magnitude<F8E4M3>(scale + 1, sixth(tensor));
  }
};

// The tables of S for the blocks of B; returns the largest error that is proven of a block whose amax, as
// bits, is at most `amax`.
template <class S, class B>
OUTGRAD_HD double fill_fp4_tables(float tensor, int bits, u32 amax, Fp4Tables& tables) {
  using Scale = BlockScale<B>;
  const int most = Scale::of(amax < kLargestFiniteBits ? amax : kLargestFiniteBits, tensor);
  double error = 0;
  tables.bits = bits, tables.tensor = tensor;
  for (int scale = 0; scale < kBlockScales; ++scale) {
    Fp4Table& table = tables.of_scale[scale];
    if (scale < Scale::kFirst || scale > Scale::kLast) {
      tables.multiplier[scale] = 0;
      table.bits = bits, table.widest = 0;
      for (auto& part : table.edges) {
        for (float& edge : part) edge = float_of(0x7f800000u);
      }
      for (auto& part : table.values) {
        for (float& value : part) value = float_of(kCanonicalNanF32);
      }
      continue;
    }
    const u32 end = Scale::end(scale, tensor);
    tables.multiplier[scale] = Scale::multiplier(scale, tensor);
    // An infinity is in the block with the scale of the largest finite number.
    fill_fp8_table<S, F4E2M1>(tables.multiplier[scale], bits, table,
                              end > kLargestFiniteBits ? kBeyondInfinity : end);
    if (scale <= most && error < fp8_error<S>(table)) error = fp8_error<S>(table);
  }
  return error;
}

// The store of y in blocks of B. Its claims hold in every block, whatever the scale is.
template <class B>
struct InBlocks {
  using Block = B;
  using Tables = Fp4Tables;
  static constexpr const char* kScaleRule = BlockScale<B>::kScaleRule;
  OUTGRAD_HD static bool scale_holds(float tensor) { return BlockScale<B>::tensor_scale_holds(tensor); }
  OUTGRAD_HD static float scale_for(float largest) { return BlockScale<B>::tensor_scale_for(largest); }
  OUTGRAD_HD static u8 nan() { return BlockScale<B>::kNan; }
  template <class Header>
  static constexpr Fp8Claims kClaims = {0, 0, {Header::kSignT0, Header::kSignT1, Header::kSignT2}};

  template <class S>
  OUTGRAD_HD static double make_tables(float tensor, int bits, u32 amax, Tables& tables) {
    return fill_fp4_tables<S, B>(tensor, bits, amax, tables);
  }
};

template <>
struct StoreArithmetic<StoreId::kMxFp4> : InBlocks<MxFp4> {};
template <>
struct StoreArithmetic<StoreId::kNvFp4> : InBlocks<NvFp4> {};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
