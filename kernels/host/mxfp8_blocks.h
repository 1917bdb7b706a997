// The blocks of MXFP8 in vectors: codes and scales of numbers in fp32.
#pragma once

#include <bit>

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/simd.h"
#include "kernels/stores/mxfp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace detail {

// What vectors do with four at once, which are whole blocks: the operations of kernels/stores/mxfp8.h for
// finite y below 2^126.
//
//   largest(a, b, c, d)      in every lane of the result, the bits of the largest magnitude of a block; of a
//                            NaN they are beyond an infinity's. As many blocks, one behind the other, as the
//                            four vectors are
//   of_vector(factors, k)    the lanes of `factors` that belong to the block of vector k, in every lane
//   signed_code(code, y)     the lowest seven bits of code, and above them the sign of y
//   store(to, a, b, c, d)    the lowest bytes of words that are below 2^8
//   store_scales(to, s)      the scales of the blocks, from words laid out as in `largest`
//   rounded(v)               v rounded to nearest even; -2^31 where it is beyond 2^31 or NaN
template <class Isa>
struct BlockVectors;
#ifdef OUTGRAD_AVX2
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
  static OUTGRAD_HD Int rounded(Float v) { return _mm256_cvtps_epi32(v); }
  static OUTGRAD_HD Int signed_code(Int code, Float y) {
    return _mm256_or_si256(
        _mm256_and_si256(code, _mm256_set1_epi32(0x7f)),
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(y), 24), _mm256_set1_epi32(0x80)));
  }
  static OUTGRAD_HD void store_scales(E8M0* to, Int scales) {
    to->bits = static_cast<u8>(_mm256_cvtsi256_si32(scales));
  }
  template <bool kStreaming>
  static OUTGRAD_HD void store(F8E4M3* to, Int a, Int b, Int c, Int d) {
    // Packing goes by halves of a vector: four codes of a, b, c and d in turn, twice.
    const Int packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    const Int line = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    if constexpr (kStreaming) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), line);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), line);
    }
  }
};
#endif
#ifdef OUTGRAD_AVX512
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // as in kernels/simd.h
#endif
template <>
struct BlockVectors<Avx512> {
  using Float = Avx512::Float;
  using Int = Avx512::Int;

  static OUTGRAD_HD Int largest(Int a, Int b, Int c, Int d) {
    const Int first = _mm512_max_epi32(a, b), second = _mm512_max_epi32(c, d);
    Int most = _mm512_max_epi32(_mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(1, 0, 1, 0)),
                                _mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(3, 2, 3, 2)));
    most = _mm512_max_epi32(most, _mm512_shuffle_i64x2(most, most, _MM_SHUFFLE(2, 3, 0, 1)));
    most = _mm512_max_epi32(most, _mm512_shuffle_epi32(most, _MM_PERM_BADC));
    return _mm512_max_epi32(most, _mm512_shuffle_epi32(most, _MM_PERM_CDAB));
  }
  static OUTGRAD_HD Int rounded(Float v) { return _mm512_cvtps_epi32(v); }
  static OUTGRAD_HD Float of_vector(Float factors, int k) {
    return k < 2 ? _mm512_shuffle_f32x4(factors, factors, 0)
                 : _mm512_shuffle_f32x4(factors, factors, _MM_SHUFFLE(3, 3, 3, 3));
  }
  static OUTGRAD_HD Int signed_code(Int code, Float y) {
    constexpr int kByMask = 0xca;  // mask ? a : b, bit by bit
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7f), code,
                                     _mm512_srli_epi32(_mm512_castps_si512(y), 24), kByMask);
  }
  static OUTGRAD_HD void store_scales(E8M0* to, Int scales) {
    to[0].bits = static_cast<u8>(_mm_cvtsi128_si32(_mm512_castsi512_si128(scales)));
    to[1].bits = static_cast<u8>(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32(scales, 2)));
  }
  template <bool kStreaming>
  static OUTGRAD_HD void store(F8E4M3* to, Int a, Int b, Int c, Int d) {
    // Packing goes by quarters of a vector: four codes of a, b, c and d in turn, four times.
    const Int order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const Int line = _mm512_permutexvar_epi32(
        order, _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d)));
    if constexpr (kStreaming) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    } else {
      _mm512_storeu_si512(to, line);
    }
  }
};
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// Of a format of 8 bits: the bits of its codes' significands, and a power of two with the exponent that the
// least normal number has when it is multiplied by that, as fp32 stores it. The power is chosen so that
// 2^kBits kLeastNormal is a multiple of 2^7.
template <class F>
struct Float8Grid {
  static constexpr int kBits = 3, kLeastNormal = 112;
  static constexpr float kDown = 0x1p-9f;
};
template <>
struct Float8Grid<F8E5M2> {
  static constexpr int kBits = 2, kLeastNormal = 96;
  static constexpr float kDown = 0x1p-17f;
};

// The code of a number of this magnitude times `factor` / kDown, in the lowest seven bits. v, the product
// with `factor`, saturated, is rounded by adding a grid whose ulp is the distance of the format's numbers
// there, and the number n of its ulps is left in the lowest byte. The code is n + 2^kBits (E - kLeastNormal)
// for the exponent E of v, as it is stored, and what is subtracted there has no part in seven bits.
template <class Isa, class F = F8E4M3>
OUTGRAD_HD typename Isa::Int float8_magnitude(typename Isa::Float magnitude, typename Isa::Float factor) {
  using Grid = Float8Grid<F>;
  constexpr int kShift = 23 - Grid::kBits;
  static_assert((Grid::kLeastNormal << Grid::kBits) % 128 == 0);
  const auto v = Isa::at_most(Isa::mul(magnitude, factor), Isa::splat(kLargestOf<F> * Grid::kDown));
  const auto exponent =
      Isa::max(Isa::bit_and(Isa::bits(v), Isa::splat(0x7f800000)), Isa::splat(Grid::kLeastNormal << 23));
  const auto on_grid =
      Isa::fma(std::bit_cast<typename Isa::Float>(exponent), Isa::splat(static_cast<float>(1 << kShift)), v);
  return Isa::add(Isa::bits(on_grid), Isa::shift_right(exponent, kShift));
}

// The scale of the specification (kernels/stores/mxfp8.h): what Power is to mxfp8_blocks.
struct SharedPower {
  static constexpr u32 kCarry = 0;  // is added to the bits of the largest magnitude
  static constexpr u32 kLeastExponent = 8;  // what the exponent counts as at least, of which 8 are taken away
};

// Codes and scales of the blocks in four vectors. Where a block has a NaN, an infinity or a y beyond 2^126,
// nothing is written, and the result is false.
template <class Isa, bool kStreaming, class Power = SharedPower>
OUTGRAD_HD bool mxfp8_blocks(const typename Isa::Float (&y)[4], F8E4M3* codes, E8M0* scales) {
  using Vectors = BlockVectors<Isa>;
  // the bits of the last below 2^126, which carry no further: up to there 2^-9 / scale is a normal number
  constexpr int kMost = 0x7e7fffff - static_cast<int>(Power::kCarry);
  typename Isa::Int magnitude[4], code[4];
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) magnitude[k] = Isa::bit_and(Isa::bits(y[k]), Isa::splat(0x7fffffff));
  const auto amax = Vectors::largest(magnitude[0], magnitude[1], magnitude[2], magnitude[3]);
  if (__builtin_expect(Isa::any(Isa::greater(amax, Isa::splat(kMost))), 0)) return false;
  const auto carried =
      Power::kCarry == 0 ? amax : Isa::add(amax, Isa::splat(static_cast<int>(Power::kCarry)));
  const auto exponent =
      Isa::max(Isa::shift_right(carried, 23), Isa::splat(static_cast<int>(Power::kLeastExponent)));
  Vectors::store_scales(scales, Isa::sub(exponent, Isa::splat(8)));
  const auto factors =
      Isa::shifted(std::bit_cast<typename Isa::Float>(Isa::sub(Isa::splat(253), exponent)), 23);
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const auto wide = std::bit_cast<typename Isa::Float>(magnitude[k]);
    code[k] = Vectors::signed_code(float8_magnitude<Isa>(wide, Vectors::of_vector(factors, k)), y[k]);
  }
  Vectors::template store<kStreaming>(codes, code[0], code[1], code[2], code[3]);
  return true;
}

}  // namespace detail

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
