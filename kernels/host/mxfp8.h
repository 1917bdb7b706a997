// GELU's forward that stores y in MXFP8 alone, for a next product that reads MXFP8, on the CPU.
//
// The backward is activation_backward<generated::GeluMxfp8, T, schedule, MxFp8> of kernels/host/elementwise.h.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/eval.h"
#include "kernels/host/elementwise.h"
#include "kernels/mxfp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// codes[i], scales[i / 32]: GELU(x[i]) in MXFP8; mask as gelu_forward's. The number that is stored is the forward's before it is
// narrowed to T, so it is rounded once. scales has scales_of<MxFp8>(n) elements. No array overlaps another. Allocates nothing.
template <class Forward, class T, CpuSchedule S>
void gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr i64 kBlock = Format<MxFp8>::kBlock;

// A block of `count` elements.
template <class Forward, class T>
void mxfp8_block(const T* x, F8E4M3* codes, E8M0* scale, u8* mask, i64 count) {
  float y[kBlock];
  u32 amax = 0, bits = 0;
  for (i64 k = 0; k < count; ++k) {
    const float wide = widen(x[k]);
    y[k] = gelu_forward_value<T>(FloatOps{}, Forward{}, kForwardTables<Forward>, wide);
    bits |= static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, wide)) << k;
    amax = std::max(amax, magnitude_in_block(y[k]));
  }
  __builtin_memcpy(mask, &bits, sizeof(bits));
  *scale = shared_scale(amax);
  for (i64 k = 0; k < count; ++k) codes[k] = block_element(y[k], *scale);
}

// What vectors do with four at once, which are whole blocks: the operations of kernels/mxfp8.h for finite y below 2^127.
//
//   largest(a, b, c, d)      in every lane of the result, the bits of the largest magnitude of a block; of a NaN they are beyond an
//                            infinity's. As many blocks, one behind the other, as the four vectors are
//   of_vector(factors, k)    the lanes of `factors` that belong to the block of vector k, in every lane
//   round_saturated(v)       2^-8 of the number of e4m3 next to 2^8 v, -0 and +0 apart; not yet saturated
//   store(to, a, b, c, d)    the codes of four such vectors, saturated
//   store_scales(to, s)      the scales of the blocks, from words laid out as in `largest`
template <class Isa>
struct BlockVectors;
#ifdef OUTGRAD_AVX2
// v + grid - grid is v rounded to e4m3, since the grid's ulp is the distance of e4m3's numbers next to v; the least exponent is e4m3's.
template <class Isa>
OUTGRAD_HD typename Isa::Float e4m3_rounded(typename Isa::Float v) {
  constexpr int kLeastNormal = (127 - 6 - 8) << 23, kWords = 20 << 23;
  const auto exponent = Isa::max(Isa::bit_and(Isa::bits(v), Isa::splat(0x7f800000)), Isa::splat(kLeastNormal));
  const auto grid = Isa::signed_as(reinterpret_cast<typename Isa::Float>(Isa::add(exponent, Isa::splat(kWords))), v);
  return Isa::signed_as(Isa::sub(Isa::add(v, grid), grid), v);
}
// Of 2^-8 times a number, an f16 has the same fields as e4m3 (kernels/simd.h), and this is its largest.
inline constexpr short kLargestAsF16 = 0x3f00;

template <>
struct BlockVectors<Avx2> {
  using Float = Avx2::Float;
  using Int = Avx2::Int;

  static OUTGRAD_HD Int largest(Int a, Int b, Int c, Int d) {
    Int most = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    most = _mm256_max_epi32(most, _mm256_permute2x128_si256(most, most, 1));
    most = _mm256_max_epi32(most, _mm256_shuffle_epi32(most, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm256_max_epi32(most, _mm256_shuffle_epi32(most, _MM_SHUFFLE(2, 3, 0, 1)));
  }
  static OUTGRAD_HD Float of_vector(Float factors, int) { return factors; }
  static OUTGRAD_HD void store_scales(E8M0* to, Int scales) { to->bits = static_cast<u8>(_mm256_cvtsi256_si32(scales)); }
  template <bool kStreaming>
  static OUTGRAD_HD void store(F8E4M3* to, Float a, Float b, Float c, Float d) {
    // Packing goes by halves of a vector: the codes of a, c, b and d in turn.
    const Int line = _mm256_permute4x64_epi64(_mm256_packus_epi16(codes(a, b), codes(c, d)), _MM_SHUFFLE(3, 1, 2, 0));
    if constexpr (kStreaming) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), line);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), line);
    }
  }

 private:
  static OUTGRAD_HD Int codes(Float low, Float high) {
    const Int both = _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    const Int magnitude = _mm256_min_epu16(_mm256_and_si256(both, _mm256_set1_epi16(0x7fff)), _mm256_set1_epi16(kLargestAsF16));
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 8), _mm256_set1_epi16(0x80)), _mm256_srli_epi16(magnitude, 7));
  }
};
#endif
#ifdef OUTGRAD_AVX512
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // as in kernels/simd.h
#endif
template <>
struct BlockVectors<Avx512> {
  using Float = Avx512::Float;
  using Int = Avx512::Int;

  static OUTGRAD_HD Int largest(Int a, Int b, Int c, Int d) {
    const Int first = _mm512_max_epi32(a, b), second = _mm512_max_epi32(c, d);
    Int most = _mm512_max_epi32(_mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(1, 0, 1, 0)), _mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(3, 2, 3, 2)));
    most = _mm512_max_epi32(most, _mm512_shuffle_i64x2(most, most, _MM_SHUFFLE(2, 3, 0, 1)));
    most = _mm512_max_epi32(most, _mm512_shuffle_epi32(most, _MM_PERM_BADC));
    return _mm512_max_epi32(most, _mm512_shuffle_epi32(most, _MM_PERM_CDAB));
  }
  static OUTGRAD_HD Float of_vector(Float factors, int k) {
    return k < 2 ? _mm512_shuffle_f32x4(factors, factors, 0) : _mm512_shuffle_f32x4(factors, factors, _MM_SHUFFLE(3, 3, 3, 3));
  }
  static OUTGRAD_HD void store_scales(E8M0* to, Int scales) {
    const __m128i bytes = _mm512_cvtepi32_epi8(scales);
    to[0].bits = static_cast<u8>(_mm_extract_epi8(bytes, 0));
    to[1].bits = static_cast<u8>(_mm_extract_epi8(bytes, 8));
  }
  template <bool kStreaming>
  static OUTGRAD_HD void store(F8E4M3* to, Float a, Float b, Float c, Float d) {
    // Packing goes by quarters of a vector: eight codes of a and b alternate with eight of c and d.
    const Int order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const Int line = _mm512_permutexvar_epi64(order, _mm512_packus_epi16(codes(a, b), codes(c, d)));
    if constexpr (kStreaming) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    } else {
      _mm512_storeu_si512(to, line);
    }
  }

 private:
  static OUTGRAD_HD Int codes(Float low, Float high) {
    const Int both =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT)), _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), 1);
    const Int magnitude = _mm512_min_epu16(_mm512_and_si512(both, _mm512_set1_epi16(0x7fff)), _mm512_set1_epi16(kLargestAsF16));
    constexpr int kByMask = 0xca;  // mask ? a : b, bit by bit
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x80), _mm512_srli_epi16(both, 8), _mm512_srli_epi16(magnitude, 7), kByMask);
  }
};
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// Packs of whole blocks from `begin` on; returns where it stopped.
template <class Forward, class T, class Isa, CpuSchedule S, bool kStreaming>
i64 mxfp8_packs(const T* x, F8E4M3* codes, E8M0* scales, u8* mask, i64 begin, i64 end) {
  using Vectors = BlockVectors<Isa>;
  constexpr LanesOf<S, 4> kOps{};
  constexpr int kMost = 0x7effffff;  // the bits of the last below 2^127: up to there 2^-8 / scale is a normal number
  i64 i = begin;
  for (; i + kOps.kElements <= end; i += kOps.kElements) {
    fetch_ahead<kStreaming>(x + i, kOps.kElements);
    forward_pack<Forward, T>(kOps, kOps.load(x + i), mask + i / 8, [=](const auto&, auto y) __attribute__((always_inline)) {
      const auto magnitude = [&](int k) { return Isa::bit_and(Isa::bits(y.v[k]), Isa::splat(0x7fffffff)); };
      const auto amax = Vectors::largest(magnitude(0), magnitude(1), magnitude(2), magnitude(3));
      if (__builtin_expect(Isa::any(Isa::greater(amax, Isa::splat(kMost))), 0)) {
        for (i64 at = i; at < i + kOps.kElements; at += kBlock) mxfp8_block<Forward>(x + at, codes + at, scales + at / kBlock, mask + at / 8, kBlock);
        return;
      }
      const auto exponent = Isa::max(Isa::shift_right(amax, 23), Isa::splat(8));
      Vectors::store_scales(scales + i / kBlock, Isa::sub(exponent, Isa::splat(8)));
      const auto factors = Isa::shifted(std::bit_cast<typename Isa::Float>(Isa::sub(Isa::splat(254), exponent)), 23);
      OUTGRAD_UNROLL
      for (int k = 0; k < 4; ++k) y.v[k] = e4m3_rounded<Isa>(Isa::mul(y.v[k], Vectors::of_vector(factors, k)));
      Vectors::template store<kStreaming>(codes + i, y.v[0], y.v[1], y.v[2], y.v[3]);
    });
  }
  return i;
}

template <class Forward, class T, CpuSchedule S, bool kStreaming>
void mxfp8_range(const T* x, F8E4M3* codes, E8M0* scales, u8* mask, i64 begin, i64 end) {
  i64 i = begin;
#ifdef OUTGRAD_AVX2
  if constexpr (S.vector_bits == 256) i = mxfp8_packs<Forward, T, Avx2, S, kStreaming>(x, codes, scales, mask, i, end);
#endif
#ifdef OUTGRAD_AVX512
  if constexpr (S.vector_bits == 512) i = mxfp8_packs<Forward, T, Avx512, S, kStreaming>(x, codes, scales, mask, i, end);
#endif
  for (; i < end; i += kBlock) {
    mxfp8_block<Forward>(x + i, codes + i, scales + i / kBlock, mask + i / 8, std::min(kBlock, end - i));
  }
  end_streaming<kStreaming>();
}

}  // namespace detail

template <class Forward, class T, CpuSchedule S>
void gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n) {
  static_assert(detail::schedule_holds<S>());
  u8* const bytes = reinterpret_cast<u8*>(mask);
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams<S>(codes, n)) {
      return detail::over_blocks<S>(
          n, [=](i64 begin, i64 end) { detail::mxfp8_range<Forward, T, detail::kLoopOf<S>, true>(x, codes, scales, bytes, begin, end); });
    }
  }
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) { detail::mxfp8_range<Forward, T, detail::kLoopOf<S>, false>(x, codes, scales, bytes, begin, end); });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
