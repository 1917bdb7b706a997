// y in MXFP4 or NVFP4 with 0 to 2 bits beside it, over arrays on the CPU (kernels/fp4.h): the forward that
// writes the codes, the blocks' scales and the parts, and the backward that reads them. Every schedule gives
// the same bits.
//
// Two codes are a byte, the earlier in its lower half. Parts are packed as those of kernels/host/fp8.h. The
// last block may be a part of one.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/fp4.h"
#include "kernels/host/fp8.h"

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

// One block of whole size. Codes and parts are left in `packed_codes` and `packed`, which have 8 bytes more
// than they take.
template <class A, class B, class T, CpuSchedule S>
void forward_fp4_block(const Fp4Tables& tables, const T* x, u8* scales, u8* packed_codes, u8* packed) {
  constexpr int kBlock = Format<B>::kBlock;
  alignas(64) float y[kCodeBlock], g[kCodeBlock];
  alignas(64) u8 codes[kCodeBlock], parts[kCodeBlock];
  fitted_block<A, T, S>(x, y, tables.bits > 0 ? g : nullptr);
  for (int first = 0; first < kCodeBlock; first += kBlock) {
    u32 amax = 0;
    // a NaN's are the largest
    for (int k = first; k < first + kBlock; ++k) amax = std::max(amax, bits_of(y[k]) & 0x7fffffffu);
    const u8 scale = amax < kBeyondInfinity
                         ? BlockScale<B>::of(std::min(amax, kLargestFiniteBits), tables.tensor)
                         : BlockScale<B>::kNan;
    const Fp4Table& table = tables.of_scale[scale];
    *scales++ = scale;
    for (int k = first; k < first + kBlock; ++k)
      codes[k] = scale == BlockScale<B>::kNan ? u8{0} : fp8_code<F4E2M1>(y[k], tables.multiplier[scale]).bits;
    if (tables.bits == 0) continue;
    for (int k = first; k < first + kBlock; ++k) parts[k] = static_cast<u8>(part_of(table, codes[k], g[k]));
  }
  pack_codes(codes, kFp4Bits, 0, packed_codes);
  if (tables.bits > 0) pack_codes(parts, tables.bits, 0, packed);
}

template <class A, class B, class T, CpuSchedule S>
void forward_fp4_range(const Fp4Tables& tables, const T* x, u8* codes, u8* scales, u8* parts, i64 begin,
                       i64 end) {
  constexpr int kBlock = Format<B>::kBlock;
  u8 packed_codes[kCodeBlock / 8 * kFp4Bits + 8] = {}, packed[kCodeBlock / 8 * kMostPartBits + 8] = {},
                                              some[kCodeBlock / kBlock];
  const int bits = tables.bits;
  for (i64 i = begin; i < end; i += kCodeBlock) {
    const i64 count = std::min<i64>(end - i, kCodeBlock);
    if (count == kCodeBlock) {
      forward_fp4_block<A, B, T, S>(tables, x + i, some, packed_codes, packed);
    } else {
      T from[kCodeBlock] = {};  // zeros leave amax as it is
      std::copy_n(x + i, count, from);
      forward_fp4_block<A, B, T, S>(tables, from, some, packed_codes, packed);
      const auto clear = [&](u8* of, int each) {
        if (const i64 rest = count * each % 8; rest != 0)
          of[count * each / 8] = static_cast<u8>(of[count * each / 8] & ((1u << rest) - 1));
      };
      clear(packed_codes, kFp4Bits);
      if (bits > 0) clear(packed, bits);
    }
    std::copy_n(packed_codes, code_bytes(kFp4Bits, count), codes + i / 8 * kFp4Bits);
    std::copy_n(some, blocks_of<B>(count), scales + i / kBlock);
    if (bits > 0) std::copy_n(packed, code_bytes(bits, count), parts + i / 8 * bits);
  }
}

#if defined(OUTGRAD_AVX512) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // as in kernels/simd.h
#endif
template <class B, class T, CpuSchedule S>
void backward_fp4_range(const Fp4Tables& tables, const T* dy, const u8* codes, const u8* scales,
                        const u8* parts, T* dx, i64 begin, i64 end) {
  constexpr int kBlock = Format<B>::kBlock;
  const int bits = tables.bits, field = (1 << bits) - 1;
  alignas(64) float g[kCodeBlock];
  alignas(64) T from[kCodeBlock] = {}, to[kCodeBlock];
  for (i64 i = begin; i < end; i += kCodeBlock) {
    const i64 count = std::min<i64>(end - i, kCodeBlock);
    for (i64 k = 0; k < count; ++k) {
      const i64 at = i + k;
      const int code = codes[at / 2] >> at % 2 * kFp4Bits & 15,
                part = bits > 0 ? parts[at * bits / 8] >> at * bits % 8 & field : 0;
      g[k] = tables.of_scale[scales[at / kBlock]].values[part][code];
    }
    const auto multiply = [&](const T* of, T* into) {
      over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
        store_value<false>(ops, into + k, ops.mul(ops.load(of + k), ops.load(g + k)));
      });
    };
    if (count == kCodeBlock) {
      multiply(dy + i, dx + i);
    } else {
      std::copy_n(dy + i, count, from);
      std::fill(g + count, g + kCodeBlock, 0.0f);
      multiply(from, to);
      std::copy_n(to, count, dx + i);
    }
  }
}
#if defined(OUTGRAD_AVX512) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace detail

template <class A, class B, class T, CpuSchedule S>
void activation_forward_fp4(const Fp4Tables& tables, const T* x, u8* codes, u8* scales, u8* parts, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_blocks<S>(n, [=, &tables](i64 begin, i64 end) {
    detail::forward_fp4_range<A, B, T, detail::kLoopOf<S>>(tables, x, codes, scales, parts, begin, end);
  });
}

template <class B, class T, CpuSchedule S>
void activation_backward_fp4(const Fp4Tables& tables, const T* dy, const u8* codes, const u8* scales,
                             const u8* parts, T* dx, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_blocks<S>(n, [=, &tables](i64 begin, i64 end) {
    detail::backward_fp4_range<B, T, detail::kLoopOf<S>>(tables, dy, codes, scales, parts, dx, begin, end);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
