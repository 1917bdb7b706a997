// y in MXFP4 or NVFP4 with 0 to 2 bits beside it, over arrays on the CPU (kernels/stores/fp4.h): the forward
// that writes the codes, the blocks' scales and the parts, and the backward that reads them. Every schedule
// gives the same bits.
//
// Two codes are a byte, the earlier in its lower half. The last block may be a part of one.
#pragma once

#include <algorithm>

#include "kernels/host/fp8.h"
#include "kernels/stores/fp4.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Blocks of n elements.
template <class B>
OUTGRAD_HD constexpr i64 blocks_of(i64 n) {
  return n / Format<B>::kBlock + (n % Format<B>::kBlock != 0);
}

// Codes, scales and parts of f(x[i]), for i in [0, n), with the bits and the tensor's scale of `tables`,
// which fill_fp4_tables<A, B> made for them. codes has code_bytes(kFp4Bits, n) bytes, scales blocks_of<B>(n),
// and parts code_bytes(bits, n); parts is not written without bits. No array overlaps another.
template <class A, class B, class T, CpuSchedule S>
void activation_forward_fp4(const Fp4Tables& tables, const T* x, u8* codes, u8* scales, u8* parts, i64 n);

// Sets dx[i] = dy[i] g, where g is what code i and part i stand for in a block with its scale, as dx =
// RN_T(RN_f32(dy g)). dx may equal dy and overlaps nothing otherwise.
template <class B, class T, CpuSchedule S>
void activation_backward_fp4(const Fp4Tables& tables, const T* dy, const u8* codes, const u8* scales,
                             const u8* parts, T* dx, i64 n);

// -------------------------------------------------------------------------------------------------

namespace detail {

template <class A, class B>
struct BlockEncoder {
  static constexpr int kInPlace = 1, kBlock = Format<B>::kBlock;
  static constexpr bool kStreams = false, kStagedStreams = false;
  const Fp4Tables& tables;

  template <CpuSchedule S, bool, class T>
  void encode(i64, const T* x, u8* const* to) const {
    alignas(64) float y[kCodeBlock], g[kCodeBlock];
    alignas(64) u8 codes[kCodeBlock], parts[kCodeBlock];
    fitted_block<A, S>(x, y, tables.bits > 0 ? g : nullptr);
    u8* scales = to[0];
    for (int first = 0; first < kCodeBlock; first += kBlock) {
      u32 amax = 0;
      // a NaN's are the largest
      for (int k = first; k < first + kBlock; ++k) amax = std::max(amax, bits_of(y[k]) & 0x7fffffffu);
      const u8 scale = amax < kBeyondInfinity
                           ? BlockScale<B>::of(std::min(amax, kLargestFiniteBits), tables.tensor)
                           : BlockScale<B>::kNan;
      const Fp4Table& table = tables.of_scale[scale];
      *scales++ = scale;
      for (int k = first; k < first + kBlock; ++k) {
        codes[k] =
            scale == BlockScale<B>::kNan ? u8{0} : fp8_code<F4E2M1>(y[k], tables.multiplier[scale]).bits;
      }
      if (tables.bits == 0) continue;
      for (int k = first; k < first + kBlock; ++k) parts[k] = static_cast<u8>(part_of(table, codes[k], g[k]));
    }
    pack_codes(codes, kFp4Bits, 0, to[1]);
    if (tables.bits > 0) pack_codes(parts, tables.bits, 0, to[2]);
  }
};

template <int kBlock>
struct BlockDecoder {
  static constexpr bool kStreams = false;
  const Fp4Tables& tables;

  template <CpuSchedule, class Use>
  OUTGRAD_HD void with_gradients(i64, const u8* const* kept, float* scratch, const Use& use) const {
    for (int k = 0; k < kCodeBlock; k += 8) {
      const Fp4Table& table = tables.of_scale[kept[0][k / kBlock]];
      const u64 code = eight_numbers(kept[1], k, kFp4Bits),
                part = tables.bits > 0 ? eight_numbers(kept[2], k, tables.bits) : 0;
      for (int i = 0; i < 8; ++i) scratch[k + i] = table.values[part >> 8 * i & 0xff][code >> 8 * i & 0xff];
    }
    use([=](const auto& ops, int k) __attribute__((always_inline)) { return ops.load(scratch + k); });
  }
};

}  // namespace detail

template <class A, class B, class T, CpuSchedule S>
void activation_forward_fp4(const Fp4Tables& tables, const T* x, u8* codes, u8* scales, u8* parts, i64 n) {
  detail::keep<S>(detail::BlockEncoder<A, B>{tables}, x,
                  {detail::Plane<u8>{scales, 8, Format<B>::kBlock}, {codes, kFp4Bits}, {parts, tables.bits}},
                  n);
}

template <class B, class T, CpuSchedule S>
void activation_backward_fp4(const Fp4Tables& tables, const T* dy, const u8* codes, const u8* scales,
                             const u8* parts, T* dx, i64 n) {
  constexpr int kBlock = Format<B>::kBlock;
  detail::restore<S>(detail::BlockDecoder<kBlock>{tables}, dy,
                     {detail::Plane<const u8>{scales, 8, kBlock}, {codes, kFp4Bits}, {parts, tables.bits}},
                     dx, n);
}

// Stores in blocks of 4 bits.
template <StoreId kId>
  requires requires { typename StoreArithmetic<kId>::Block; }
struct HostStore<kId> {
  template <int kActivation, class>
  using Of = Fp8ActivationAt<kActivation>;
  using Block = typename StoreArithmetic<kId>::Block;

  template <class A, class T, CpuSchedule S>
  static void forward(const StoreCall& a, const T* x, i64 n) {
    activation_forward_fp4<A, Block, T, S>(*static_cast<const Fp4Tables*>(a.tables), x, a.codes, a.scales,
                                           a.parts, n);
  }
  template <class, class T, CpuSchedule S>
  static void backward(const StoreCall& a, const T* dy, T* dx, i64 n) {
    activation_backward_fp4<Block, T, S>(*static_cast<const Fp4Tables*>(a.tables), dy, a.codes, a.scales,
                                         a.parts, dx, n);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
