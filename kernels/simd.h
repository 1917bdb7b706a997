// Vector lanes for the evaluators: one struct an instruction set (AVX2 + FMA + F16C, AVX-512), and the
// operations object over them.
//
// Every operation equals its scalar counterpart in portable.h and formats.h bit for bit (payloads of fp32
// NaNs apart), so a vector width is a matter of speed alone. Two points need care:
//   - MAXPS and MINPS return their second operand when one is a NaN, so `at_least(a, lo)` is max(lo, a), in
//     this order;
//   - g++ fuses _mm512_mul_ps with a following add, as it does for plain products: mul hides its result (see
//     mul_rn).
#pragma once

#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/stored.h"
#include "kernels/table.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define OUTGRAD_AVX2 1
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define OUTGRAD_AVX512 1
#endif
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The widest vectors this translation unit is compiled for; 0 = scalar code only.
#if defined(OUTGRAD_AVX512)
inline constexpr int kBestVectorBits = 512;
#elif defined(OUTGRAD_AVX2)
inline constexpr int kBestVectorBits = 256;
#else
inline constexpr int kBestVectorBits = 0;
#endif

#ifdef OUTGRAD_AVX2
struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr int kPermuteRows = 32;  // beyond, a gather costs less than the tree of permutes and blends
  template <class T>
  static constexpr bool kEvenOdd = false;
  using Float = __m256;
  using Int = __m256i;
  using Mask = __m256;  // all bits of a lane set or clear
  using MaskBits = u8;  // one bit a lane

  static OUTGRAD_HD Float splat(float value) { return _mm256_set1_ps(value); }
  static OUTGRAD_HD Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static OUTGRAD_HD Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static OUTGRAD_HD Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static OUTGRAD_HD Float mul(Float a, Float b) {
    Float product = _mm256_mul_ps(a, b);
    asm("" : "+x"(product));
    return product;
  }
  static OUTGRAD_HD Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static OUTGRAD_HD Float sqrt(Float a) { return _mm256_sqrt_ps(a); }
  static OUTGRAD_HD Float negate(Float a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static OUTGRAD_HD Float at_least(Float a, Float lo) { return _mm256_max_ps(lo, a); }
  static OUTGRAD_HD Float at_most(Float a, Float hi) { return _mm256_min_ps(hi, a); }

  static OUTGRAD_HD Mask less(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static OUTGRAD_HD Mask less_equal(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
  static OUTGRAD_HD Mask neither(Mask p, Mask q) {
    return _mm256_andnot_ps(_mm256_or_ps(p, q), _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
  }
  static OUTGRAD_HD bool any(Mask mask) { return _mm256_movemask_ps(mask) != 0; }
  static OUTGRAD_HD Float select(Mask mask, Float a, Float b) { return _mm256_blendv_ps(b, a, mask); }
  static OUTGRAD_HD Int select(Mask mask, Int a, Int b) {
    return _mm256_blendv_epi8(b, a, _mm256_castps_si256(mask));
  }
  static OUTGRAD_HD Mask mask_of(MaskBits bits) {
    const Int lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), lane_bit), lane_bit));
  }
  static OUTGRAD_HD MaskBits bits_of_mask(Mask mask) {
    return static_cast<MaskBits>(_mm256_movemask_ps(mask));
  }

  static OUTGRAD_HD Int bits(Float a) { return _mm256_castps_si256(a); }
  static OUTGRAD_HD Int splat(int value) { return _mm256_set1_epi32(value); }
  static OUTGRAD_HD Int bit_and(Int a, Int b) { return _mm256_and_si256(a, b); }
  static OUTGRAD_HD Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static OUTGRAD_HD Int sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  static OUTGRAD_HD Int min(Int a, Int b) { return _mm256_min_epi32(a, b); }
  static OUTGRAD_HD Int max(Int a, Int b) { return _mm256_max_epi32(a, b); }
  // a set lane is -1
  static OUTGRAD_HD Int increment(Int a, Mask mask) { return _mm256_sub_epi32(a, _mm256_castps_si256(mask)); }
  static OUTGRAD_HD Mask greater(Int a, Int b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
  static OUTGRAD_HD Int shift_right(Int a, int count) { return _mm256_srli_epi32(a, count); }

  static OUTGRAD_HD Float shifted(Float a, int count) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits(a), count));
  }
  static OUTGRAD_HD Float signed_as(Float a, Float b) {
    const Float sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
  }

  static OUTGRAD_HD Float nudged(Float a, float tie) {
    const Int exponent = _mm256_and_si256(bits(a), _mm256_set1_epi32(static_cast<int>(kNudgedExponents)));
    const Mask small = _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponent, _mm256_setzero_si256()));
    if (__builtin_expect(!any(small), 1)) return a;
    const Mask nudge = _mm256_and_ps(small, _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_UQ));
    return any(nudge) ? select(nudge, add(a, splat(tie)), a) : a;
  }

  static OUTGRAD_HD Float gather(const float* column, Int row) {
    return _mm256_i32gather_ps(column, row, sizeof(float));
  }
  // The same by single loads.
  static OUTGRAD_HD Float loaded(const float* column, Int row) {
    const auto pair = [=](u64 rows) __attribute__((always_inline)) {
      constexpr int kIntoSecond = 0x10;
      return _mm_insert_ps(_mm_load_ss(column + static_cast<u32>(rows)), _mm_load_ss(column + (rows >> 32)),
                           kIntoSecond);
    };
    const auto four = [=](__m128i rows) __attribute__((always_inline)) {
      return _mm_movelh_ps(pair(static_cast<u64>(_mm_cvtsi128_si64(rows))),
                           pair(static_cast<u64>(_mm_extract_epi64(rows, 1))));
    };
    return _mm256_set_m128(four(_mm256_extracti128_si256(row, 1)), four(_mm256_castsi256_si128(row)));
  }
  // column[row mod kRows] for a 32-byte aligned column of kRows >= 8 floats.
  template <int kRows>
  static OUTGRAD_HD Float permute(const float* column, Int row) {
    if constexpr (kRows <= 8) {
      return _mm256_permutevar8x32_ps(_mm256_load_ps(column), row);
    } else {
      // the row bit that picks the half, moved to where blendv looks
      constexpr int kHalfBit = __builtin_ctz(kRows) - 1;
      const Mask upper = _mm256_castsi256_ps(_mm256_slli_epi32(row, 31 - kHalfBit));
      return _mm256_blendv_ps(permute<kRows / 2>(column, row), permute<kRows / 2>(column + kRows / 2, row),
                              upper);
    }
  }

  // The word of each lane's row, mod kRows. The loads and most of the steps are those of four words, and the
  // compiler takes them once for all of these, where a gather loads each word by itself.
  template <int kRows, int kStride>
  static OUTGRAD_HD Float word_of_rows(const float (&rows)[kRows][kStride], Int row, int word) {
    const Int index = bit_and(row, splat(kRows - 1));
    const auto four = [&](int of) { return _mm_load_ps(rows[0] + of * kStride + word / 4 * 4); };
    const auto pair = [](__m128 a, __m128 b) {
      return _mm256_insertf128_ps(_mm256_castps128_ps256(a), b, 1);
    };
    const Float a = pair(four(_mm256_extract_epi32(index, 0)), four(_mm256_extract_epi32(index, 4)));
    const Float b = pair(four(_mm256_extract_epi32(index, 1)), four(_mm256_extract_epi32(index, 5)));
    const Float c = pair(four(_mm256_extract_epi32(index, 2)), four(_mm256_extract_epi32(index, 6)));
    const Float d = pair(four(_mm256_extract_epi32(index, 3)), four(_mm256_extract_epi32(index, 7)));
    const bool late = word % 4 >= 2;
    const __m256d ab = _mm256_castps_pd(late ? _mm256_unpackhi_ps(a, b) : _mm256_unpacklo_ps(a, b));
    const __m256d cd = _mm256_castps_pd(late ? _mm256_unpackhi_ps(c, d) : _mm256_unpacklo_ps(c, d));
    return _mm256_castpd_ps(word % 2 == 0 ? _mm256_unpacklo_pd(ab, cd) : _mm256_unpackhi_pd(ab, cd));
  }

  static OUTGRAD_HD Float load(const float* from) { return _mm256_loadu_ps(from); }
  static OUTGRAD_HD Float load(const F16* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static OUTGRAD_HD Float load(const BF16* from) {
    const Int wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }

  // Of pairs of bf16, one to a word: the first or the second, widened.
  static OUTGRAD_HD Float first_of_pairs(Float pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits(pairs), 16));
  }
  static OUTGRAD_HD Float second_of_pairs(Float pairs) {
    return _mm256_castsi256_ps(bit_and(bits(pairs), splat(static_cast<int>(0xffff0000u))));
  }

  static OUTGRAD_HD Float load(const F8E5M2* from) { return _mm256_cvtph_ps(_mm_slli_epi16(octet(from), 8)); }
  static OUTGRAD_HD Float load(const F8E4M3* from) {
    // As an f16 of the same fields, which is 2^-8 of the value, subnormals included; NaN is the largest
    // magnitude.
    const __m128i magnitude = _mm_and_si128(octet(from), _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(octet(from), _mm_set1_epi16(0x80)), 8);
    const __m128i nan =
        _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(kCanonicalNanF16));
    return mul(_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7))),
               splat(0x1p8f));
  }
  // The bits of stored values, one to a lane.
  template <class T>
  static OUTGRAD_HD Int load_codes(const T* from) {
    if constexpr (sizeof(T) == 1) {
      return _mm256_cvtepu16_epi32(octet(from));
    } else {
      return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
  }
  // entries[index] as a stored E, widened. Reads 16 bits beyond the entry.
  template <class E>
  static OUTGRAD_HD Float gather_entries(const u16* entries, Int index) {
    // the entry is the low half
    const Int pair = _mm256_i32gather_epi32(reinterpret_cast<const int*>(entries), index, sizeof(u16));
    if constexpr (Format<E>::kCanonicalNan == kCanonicalNanBf16) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
    } else {
      const Int low = _mm256_and_si256(pair, _mm256_set1_epi32(0xffff));
      return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
    }
  }

  // kStreaming: `to` is aligned to the bytes of the stored vector, and the store goes past the cache.
  template <bool kStreaming>
  static OUTGRAD_HD void store(float* to, Float value) {
    if constexpr (kStreaming) {
      _mm256_stream_ps(to, value);
    } else {
      _mm256_storeu_ps(to, value);
    }
  }
  template <bool kStreaming>
  static OUTGRAD_HD void store(F16* to, Float value) {
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    const Int nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m128i nan_halves = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    store_half<kStreaming>(to, _mm_blendv_epi8(halves, _mm_set1_epi16(kCanonicalNanF16), nan_halves));
  }
  template <bool kStreaming>
  static OUTGRAD_HD void store(BF16* to, Float value) {
    const Int result = select(_mm256_cmp_ps(value, value, _CMP_UNORD_Q), _mm256_set1_epi32(kCanonicalNanBf16),
                              rounded_to_bf16(value));
    store_half<kStreaming>(
        to, _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1)));
  }
  // The low byte of each lane.
  static OUTGRAD_HD void store_bytes(u8* to, Int codes) {
    const Int low = bit_and(codes, splat(0xff));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
  // The first `bytes` of a vector, not all 64, and zeros behind them; and back.
  static OUTGRAD_HD void load_part(u8 (&part)[64], const void* from, int bytes) {
    Int words = _mm256_setzero_si256();
    if (bytes % 2 == 0) {
      words = _mm256_maskload_epi32(static_cast<const int*>(from), first_words(bytes / 4));
      if (bytes % 4 == 2) {
        u16 last;
        __builtin_memcpy(&last, static_cast<const u8*>(from) + bytes - 2, 2);
        const Int behind = _mm256_andnot_si256(first_words(bytes / 4), first_words(bytes / 4 + 1));
        words = _mm256_blendv_epi8(words, _mm256_set1_epi32(last), behind);
      }
    } else {
      __builtin_memcpy(&words, from, static_cast<unsigned>(bytes));
    }
    _mm256_storeu_si256(reinterpret_cast<Int*>(part), words);
  }
  static OUTGRAD_HD void store_part(void* to, const u8 (&part)[64], int bytes) {
    if (bytes % 2 == 0) {
      _mm256_maskstore_epi32(static_cast<int*>(to), first_words(bytes / 4),
                             _mm256_loadu_si256(reinterpret_cast<const Int*>(part)));
      if (bytes % 4 == 2) __builtin_memcpy(static_cast<u8*>(to) + bytes - 2, part + bytes - 2, 2);
    } else {
      __builtin_memcpy(to, part, static_cast<unsigned>(bytes));
    }
  }
  // Two vectors of 16-bit elements, a first. kOrdinary: none is a NaN.
  template <bool kStreaming, bool kOrdinary = false, class T>
  static OUTGRAD_HD void store_pair(T* to, Float a, Float b) {
    if (!kOrdinary && __builtin_expect(any(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)), 0)) {
      store<kStreaming>(to, a);
      store<kStreaming>(to + kLanes, b);
      return;
    }
    Int both;
    if constexpr (Format<T>::kCanonicalNan == kCanonicalNanF16) {
      both = _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT),
                              _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    } else {
      constexpr int kInOrder = 0b11011000;  // packing takes a half of each in turn
      both = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded_to_bf16(a), rounded_to_bf16(b)), kInOrder);
    }
    if constexpr (kStreaming) {
      _mm256_stream_si256(reinterpret_cast<Int*>(to), both);
    } else {
      _mm256_storeu_si256(reinterpret_cast<Int*>(to), both);
    }
  }

 private:
  static OUTGRAD_HD Int first_words(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // The 16 bits of each that is no NaN, in 32.
  static OUTGRAD_HD Int rounded_to_bf16(Float value) {
    const Int odd = _mm256_and_si256(_mm256_srli_epi32(bits(value), 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(add(add(bits(value), _mm256_set1_epi32(0x7fff)), odd), 16);
  }
  // 8 stored bytes, each in 16 bits.
  static OUTGRAD_HD __m128i octet(const void* from) {
    return _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
  }
  template <bool kStreaming, class T>
  static OUTGRAD_HD void store_half(T* to, __m128i value) {
    if constexpr (kStreaming) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), value);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
    }
  }
};

// Doubles, for the forwards of kernels/forwards.h: the operations of DoubleOps, bit for bit. The order of
// operands of max and min is as above.
struct Avx2Doubles {
  using Value = __m256d;
  static constexpr int kLanes = 4;

  static OUTGRAD_HD Value constant(double value) { return _mm256_set1_pd(value); }
  static OUTGRAD_HD Value add(Value a, Value b) { return _mm256_add_pd(a, b); }
  static OUTGRAD_HD Value sub(Value a, Value b) { return _mm256_sub_pd(a, b); }
  static OUTGRAD_HD Value fma(Value a, Value b, Value c) { return _mm256_fmadd_pd(a, b, c); }
  static OUTGRAD_HD Value mul(Value a, Value b) {
    Value product = _mm256_mul_pd(a, b);
    asm("" : "+x"(product));
    return product;
  }
  static OUTGRAD_HD Value div(Value a, Value b) { return _mm256_div_pd(a, b); }
  static OUTGRAD_HD Value at_least(Value a, Value lo) { return _mm256_max_pd(lo, a); }
  static OUTGRAD_HD Value at_most(Value a, Value hi) { return _mm256_min_pd(hi, a); }
  static OUTGRAD_HD Value negate(Value a) { return _mm256_xor_pd(a, _mm256_set1_pd(-0.0)); }
  static OUTGRAD_HD Value magnitude(Value a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
  static OUTGRAD_HD Value signed_as(Value a, Value b) {
    return _mm256_or_pd(magnitude(a), _mm256_and_pd(_mm256_set1_pd(-0.0), b));
  }
  static OUTGRAD_HD Value power_of_two(Value t) {
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_slli_epi64(_mm256_castpd_si256(t), 52),
                                                _mm256_castpd_si256(_mm256_set1_pd(1))));
  }

  static OUTGRAD_HD Value first(__m256 floats) { return _mm256_cvtps_pd(_mm256_castps256_ps128(floats)); }
  static OUTGRAD_HD Value second(__m256 floats) { return _mm256_cvtps_pd(_mm256_extractf128_ps(floats, 1)); }
  static OUTGRAD_HD __m256 joined(Value first, Value second) {
    return _mm256_set_m128(_mm256_cvtpd_ps(second), _mm256_cvtpd_ps(first));
  }
  static OUTGRAD_HD Value load(const float* from) { return _mm256_cvtps_pd(_mm_loadu_ps(from)); }
  static OUTGRAD_HD void store(float* to, Value value) { _mm_storeu_ps(to, _mm256_cvtpd_ps(value)); }
};
#endif

#ifdef OUTGRAD_AVX512
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
// g++ 12 takes its own _mm512_undefined_ps() for a mistake (PR 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
struct Avx512 {
  static constexpr int kLanes = 16;
  // beyond, a gather costs less than the tree of permutes and blends
  static constexpr int kPermuteRows = 128;
  // Whether two vectors of T may be taken as the even and the odd elements of one line: of bf16 they are
  // widened by one operation each.
  template <class T>
  static constexpr bool kEvenOdd = false;
  using Float = __m512;
  using Int = __m512i;
  using Mask = __mmask16;
  using MaskBits = u16;

  static OUTGRAD_HD Float splat(float value) { return _mm512_set1_ps(value); }
  static OUTGRAD_HD Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static OUTGRAD_HD Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static OUTGRAD_HD Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static OUTGRAD_HD Float mul(Float a, Float b) {
    Float product = _mm512_mul_ps(a, b);
    asm("" : "+v"(product));
    return product;
  }
  static OUTGRAD_HD Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static OUTGRAD_HD Float sqrt(Float a) { return _mm512_sqrt_ps(a); }
  static OUTGRAD_HD Float negate(Float a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static OUTGRAD_HD Float signed_by(Mask mask, Float a) {
    return _mm512_mask_xor_ps(a, _knot_mask16(mask), a, splat(-0.0f));
  }
  static OUTGRAD_HD Float at_least(Float a, Float lo) { return _mm512_max_ps(lo, a); }
  static OUTGRAD_HD Float at_most(Float a, Float hi) { return _mm512_min_ps(hi, a); }

  static OUTGRAD_HD Mask less(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static OUTGRAD_HD Mask less_equal(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  static OUTGRAD_HD Mask neither(Mask p, Mask q) { return _knot_mask16(_kor_mask16(p, q)); }
  static OUTGRAD_HD Mask beyond(Mask m, Float a, Float limit) {
    return _mm512_mask_cmp_ps_mask(_knot_mask16(m), a, limit, _CMP_NLE_UQ);
  }
  static OUTGRAD_HD bool any(Mask mask) { return mask != 0; }
  static OUTGRAD_HD Float select(Mask mask, Float a, Float b) { return _mm512_mask_blend_ps(mask, b, a); }
  static OUTGRAD_HD Int select(Mask mask, Int a, Int b) { return _mm512_mask_blend_epi32(mask, b, a); }
  static OUTGRAD_HD Mask mask_of(MaskBits bits) { return bits; }
  static OUTGRAD_HD MaskBits bits_of_mask(Mask mask) { return mask; }

  static OUTGRAD_HD Int bits(Float a) { return _mm512_castps_si512(a); }
  static OUTGRAD_HD Int splat(int value) { return _mm512_set1_epi32(value); }
  static OUTGRAD_HD Int bit_and(Int a, Int b) { return _mm512_and_si512(a, b); }
  static OUTGRAD_HD Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static OUTGRAD_HD Int sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  static OUTGRAD_HD Int min(Int a, Int b) { return _mm512_min_epi32(a, b); }
  static OUTGRAD_HD Int max(Int a, Int b) { return _mm512_max_epi32(a, b); }
  static OUTGRAD_HD Int increment(Int a, Mask mask) { return _mm512_mask_add_epi32(a, mask, a, splat(1)); }
  static OUTGRAD_HD Mask greater(Int a, Int b) { return _mm512_cmpgt_epi32_mask(a, b); }
  static OUTGRAD_HD Int shift_right(Int a, int count) {
    return _mm512_srli_epi32(a, static_cast<unsigned>(count));
  }

  static OUTGRAD_HD Float shifted(Float a, int count) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits(a), static_cast<unsigned>(count)));
  }
  static OUTGRAD_HD Float signed_as(Float a, Float b) {
    constexpr int kByMask = 0xca;  // mask ? a : b, bit by bit
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(splat(0x7fffffff), bits(a), bits(b), kByMask));
  }

  static OUTGRAD_HD Float nudged(Float a, float tie) {
    const Mask small = _mm512_testn_epi32_mask(bits(a), splat(static_cast<int>(kNudgedExponents)));
    if (__builtin_expect(!any(small), 1)) return a;
    const Mask nudge = _mm512_mask_cmp_ps_mask(small, a, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    return any(nudge) ? _mm512_mask_add_ps(a, nudge, a, splat(tie)) : a;
  }

  static OUTGRAD_HD Int or_different(Int so_far, Int a, Int b) {
    constexpr int kOrXor = 0xf6;  // so_far | (a ^ b), bit by bit
    return _mm512_ternarylogic_epi32(so_far, a, b, kOrXor);
  }
  static OUTGRAD_HD bool any_bit(Int a, Int of) { return _mm512_test_epi32_mask(a, of) != 0; }
  // The smaller |a|; of a NaN and a number the number.
  static OUTGRAD_HD Float smaller_magnitude(Float a, Float b) {
    constexpr int kLeastMagnitude = 0b1010;
    return _mm512_range_ps(a, b, kLeastMagnitude);
  }

  static OUTGRAD_HD Float gather(const float* column, Int row) {
    return _mm512_i32gather_ps(row, column, sizeof(float));
  }
  // column[row mod kRows] for a 64-byte aligned column of kRows >= 16 floats.
  template <int kRows>
  static OUTGRAD_HD Float permute(const float* column, Int row) {
    if constexpr (kRows <= 16) {
      return _mm512_permutexvar_ps(row, _mm512_load_ps(column));
    } else if constexpr (kRows == 32) {
      return _mm512_permutex2var_ps(_mm512_load_ps(column), row, _mm512_load_ps(column + 16));
    } else {
      const Mask upper = _mm512_test_epi32_mask(row, splat(kRows / 2));
      return select(upper, permute<kRows / 2>(column + kRows / 2, row), permute<kRows / 2>(column, row));
    }
  }

  // rows[index mod 16], rows[index mod 32]
  static OUTGRAD_HD Int pick(const i32 (&rows)[16], Int index) {
    return _mm512_permutexvar_epi32(index, _mm512_load_si512(rows));
  }
  static OUTGRAD_HD Int pick(const i32 (&rows)[32], Int index) {
    return _mm512_permutex2var_epi32(_mm512_load_si512(rows), index, _mm512_load_si512(rows + 16));
  }

  static OUTGRAD_HD Float load(const float* from) { return _mm512_loadu_ps(from); }
  static OUTGRAD_HD Float load(const F16* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static OUTGRAD_HD Float load(const BF16* from) {
    const Int wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }

  static OUTGRAD_HD Float first_of_pairs(Float pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits(pairs), 16));
  }
  static OUTGRAD_HD Float second_of_pairs(Float pairs) {
    return _mm512_castsi512_ps(bit_and(bits(pairs), splat(static_cast<int>(0xffff0000u))));
  }

#ifdef __BMI2__
  static OUTGRAD_HD void load_even_odd(const BF16* from, Float& even, Float& odd) {
    const Float both = _mm512_castsi512_ps(_mm512_loadu_si512(from));
    even = first_of_pairs(both);
    odd = second_of_pairs(both);
  }
  // The line's first and second half, from its even and its odd elements.
  static OUTGRAD_HD void interleave(Float& even_to_first, Float& odd_to_second) {
    const Int first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Float even = even_to_first;
    even_to_first = _mm512_permutex2var_ps(even, first, odd_to_second);
    odd_to_second = _mm512_permutex2var_ps(even, add(first, splat(8)), odd_to_second);
  }
  static OUTGRAD_HD void mask_even_odd(u32 bits, Mask& even, Mask& odd) {
    even = static_cast<Mask>(_pext_u32(bits, 0x55555555u));
    odd = static_cast<Mask>(_pext_u32(bits, 0xaaaaaaaau));
  }
#endif
  static OUTGRAD_HD Float load(const F8E5M2* from) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(sixteen(from), 8));
  }
  static OUTGRAD_HD Float load(const F8E4M3* from) {
    const __m256i magnitude = _mm256_and_si256(sixteen(from), _mm256_set1_epi16(0x7f));  // as Avx2's
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(sixteen(from), _mm256_set1_epi16(0x80)), 8);
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)),
                                         _mm256_set1_epi16(kCanonicalNanF16));
    return mul(_mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7))),
               splat(0x1p8f));
  }
  template <class T>
  static OUTGRAD_HD Int load_codes(const T* from) {
    if constexpr (sizeof(T) == 1) {
      return _mm512_cvtepu16_epi32(sixteen(from));
    } else {
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
  }
  template <class E>
  static OUTGRAD_HD Float gather_entries(const u16* entries, Int index) {
    const Int pair = _mm512_i32gather_epi32(index, entries, sizeof(u16));
    if constexpr (Format<E>::kCanonicalNan == kCanonicalNanBf16) {
      return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    } else {
      return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair));
    }
  }

  // kStreaming: `to` is aligned to the bytes of the stored vector, and the store goes past the cache.
  template <bool kStreaming>
  static OUTGRAD_HD void store(float* to, Float value) {
    if constexpr (kStreaming) {
      _mm512_stream_ps(to, value);
    } else {
      _mm512_storeu_ps(to, value);
    }
  }
  template <bool kStreaming, class T>
  static OUTGRAD_HD void store(T* to, Float value) {
    if constexpr (kStreaming) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), narrowed(to, value));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed(to, value));
    }
  }
  static OUTGRAD_HD void store_bytes(u8* to, Int codes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, codes));
  }
  static OUTGRAD_HD void load_part(u8 (&part)[64], const void* from, int bytes) {
    _mm512_storeu_si512(part, _mm512_maskz_loadu_epi8(first_bits(bytes), from));
  }
  static OUTGRAD_HD void store_part(void* to, const u8 (&part)[64], int bytes) {
    _mm512_mask_storeu_epi8(to, first_bits(bytes), _mm512_loadu_si512(part));
  }
  // Two vectors of 16-bit elements, a first: one whole cache line to stream. kOrdinary: none is a NaN or
  // subnormal in fp32.
  template <bool kStreaming, bool kOrdinary = false, class T>
  static OUTGRAD_HD void store_pair(T* to, Float a, Float b) {
    store_line<kStreaming>(to, narrowed_pair<kOrdinary>(to, a, b));
  }
  template <bool kStreaming, class T>
  static OUTGRAD_HD void store_even_odd(T* to, Float even, Float odd) {
    const Int order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                       22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    store_line<kStreaming>(to, _mm512_permutexvar_epi16(order, narrowed_pair<false>(to, even, odd)));
  }

 private:
  static OUTGRAD_HD u64 first_bits(int count) { return (u64{1} << count) - 1; }
  template <bool kStreaming>
  static OUTGRAD_HD void store_line(void* to, Int line) {
    if constexpr (kStreaming) {
      _mm512_stream_si512(static_cast<__m512i*>(to), line);
    } else {
      _mm512_storeu_si512(to, line);
    }
  }
  // 16 stored bytes, each in 16 bits.
  static OUTGRAD_HD __m256i sixteen(const void* from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  // The format is that of the pointer's element, which is not accessed.
  static OUTGRAD_HD __m256i narrowed(const F16*, Float value) {
    const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    const Mask nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm256_mask_blend_epi16(nan, halves, _mm256_set1_epi16(kCanonicalNanF16));
  }
  static OUTGRAD_HD __m256i narrowed(const BF16*, Float value) {
    const Int wide = _mm512_castps_si512(value);
    const Int odd = _mm512_and_si512(_mm512_srli_epi32(wide, 16), splat(1));
    const Int rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(wide, splat(0x7fff)), odd), 16);
    const Mask nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(select(nan, splat(kCanonicalNanBf16), rounded));
  }
  template <bool kOrdinary, class T>
  static OUTGRAD_HD __m512i narrowed_pair(const T* format, Float a, Float b) {
#ifdef __AVX512BF16__
    if constexpr (sizeof(T) == 2 && Format<T>::kCanonicalNan == kCanonicalNanBf16) {
      // One instruction for both where it rounds to nearest even: it flushes subnormals and keeps NaN
      // payloads, both rare.
      constexpr int kNanOrSubnormal = 0x01 | 0x80 | 0x20;
      const auto special = [](Float v) { return _mm512_fpclass_ps_mask(v, kNanOrSubnormal); };
      if (kOrdinary || __builtin_expect(_kortestz_mask16_u8(special(a), special(b)), 1))
        return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(b, a));
    }
#endif
    if constexpr (Format<T>::kCanonicalNan == kCanonicalNanF16) {
      // One comparison tells whether either has a NaN, which is rare.
      if (kOrdinary || __builtin_expect(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) == 0, 1)) {
        const __m256i low = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT),
                      high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      }
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrowed(format, a)), narrowed(format, b), 1);
  }
};
#ifdef __BMI2__
template <>
inline constexpr bool Avx512::kEvenOdd<BF16> = true;
#endif

struct Avx512Doubles {
  using Value = __m512d;
  static constexpr int kLanes = 8;
  static constexpr __mmask8 kAll = 0xff;  // g++ 12 takes the forms without a mask for a mistake, as above

  static OUTGRAD_HD Value constant(double value) { return _mm512_set1_pd(value); }
  static OUTGRAD_HD Value add(Value a, Value b) { return _mm512_add_pd(a, b); }
  static OUTGRAD_HD Value sub(Value a, Value b) { return _mm512_sub_pd(a, b); }
  static OUTGRAD_HD Value fma(Value a, Value b, Value c) { return _mm512_fmadd_pd(a, b, c); }
  static OUTGRAD_HD Value mul(Value a, Value b) {
    Value product = _mm512_mul_pd(a, b);
    asm("" : "+v"(product));
    return product;
  }
  static OUTGRAD_HD Value div(Value a, Value b) { return _mm512_div_pd(a, b); }
  static OUTGRAD_HD Value at_least(Value a, Value lo) { return _mm512_maskz_max_pd(kAll, lo, a); }
  static OUTGRAD_HD Value at_most(Value a, Value hi) { return _mm512_maskz_min_pd(kAll, hi, a); }
  static OUTGRAD_HD Value negate(Value a) { return _mm512_xor_pd(a, _mm512_set1_pd(-0.0)); }
  static OUTGRAD_HD Value magnitude(Value a) { return _mm512_andnot_pd(_mm512_set1_pd(-0.0), a); }
  static OUTGRAD_HD Value signed_as(Value a, Value b) {
    return _mm512_or_pd(magnitude(a), _mm512_and_pd(_mm512_set1_pd(-0.0), b));
  }
  static OUTGRAD_HD Value power_of_two(Value t) {
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_maskz_slli_epi64(kAll, _mm512_castpd_si512(t), 52),
                                                _mm512_castpd_si512(_mm512_set1_pd(1))));
  }

  static OUTGRAD_HD Value first(__m512 floats) {
    return _mm512_maskz_cvtps_pd(kAll, _mm512_castps512_ps256(floats));
  }
  static OUTGRAD_HD Value second(__m512 floats) {
    return _mm512_maskz_cvtps_pd(kAll, _mm512_maskz_extractf32x8_ps(kAll, floats, 1));
  }
  static OUTGRAD_HD __m512 joined(Value first, Value second) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_maskz_cvtpd_ps(kAll, first)),
                              _mm512_maskz_cvtpd_ps(kAll, second), 1);
  }
  static OUTGRAD_HD Value load(const float* from) {
    return _mm512_maskz_cvtps_pd(kAll, _mm256_loadu_ps(from));
  }
  static OUTGRAD_HD void store(float* to, Value value) {
    _mm256_storeu_ps(to, _mm512_maskz_cvtpd_ps(kAll, value));
  }
};
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// The lanes of doubles for a vector width.
template <int kBits>
struct DoublesOf;
#ifdef OUTGRAD_AVX2
template <>
struct DoublesOf<256> : Avx2Doubles {};
#endif
#ifdef OUTGRAD_AVX512
template <>
struct DoublesOf<512> : Avx512Doubles {};
#endif

#ifdef OUTGRAD_AVX2
// kCount vectors side by side. Each operation runs over all of them before the next one starts, which covers
// its latency, and a column of the table is read once for all. Order names how elements lie in them where
// that is not as in memory.
template <class Isa, int kCount, class Order = void>
struct FloatPack {
  typename Isa::Float v[kCount];
};
template <class Isa, int kCount>
struct IntPack {
  typename Isa::Int v[kCount];
};
template <class Isa, int kCount>
struct MaskPack {
  typename Isa::Mask v[kCount];
};

// octave_row of a fit as a table: entry h mod kEntries is the row of h, for the kEntries h that end with that
// of kLeftY, beyond which the left segment does not go. kHolds: all h below them have the first row, too.
template <class Fit, int kEntries>
struct OctaveRows {
  static constexpr int row_of(int h) {
    const int above = ((h + (h > Fit::kLeftKnee ? h : Fit::kLeftKnee)) >> 1) - Fit::kLeftBase;
    return Fit::kLeftRow + (above > 0 ? above : 0);
  }
  static constexpr int kHighest =
      static_cast<int>((__builtin_bit_cast(u32, Fit::kLeftY) & 0x7fffffffu) >> (23 - Fit::kLeftBits));
  static constexpr int kLowest = kHighest > kEntries ? kHighest - kEntries + 1 : 1;
  static constexpr bool kHolds = row_of(kLowest) == Fit::kLeftRow;
  alignas(64) i32 row[kEntries];

  constexpr OctaveRows() : row() {
    for (int h = kLowest; h < kLowest + kEntries; ++h) row[h % kEntries] = row_of(h);
  }
};
template <class Fit, int kEntries>
inline constexpr OctaveRows<Fit, kEntries> kOctaveRows{};

// The operations object of eval.h over kCount vectors of an instruction set. Stored, where it is not void, is
// the one format of all arrays that are loaded and stored: the order of elements in the vectors of a pack may
// then be one of its own.
template <class Isa, int kCount, TablePlacement kPlacement, class Stored = void>
struct LaneOps {
  using Whole = LaneOps;  // of a part, see PartOps
  using Value = FloatPack<Isa, kCount>;
  using Mask = MaskPack<Isa, kCount>;
  using Row = IntPack<Isa, kCount>;
  static constexpr int kElements = kCount * Isa::kLanes;
  static constexpr bool kEvenOdd = kCount % 2 == 0 && Isa::template kEvenOdd<Stored>;

  OUTGRAD_HD Value constant(float value) const {
    return each<Value>([&](int) { return Isa::splat(value); });
  }
  OUTGRAD_HD Value fma(const Value& a, const Value& b, const Value& c) const {
    return each<Value>([&](int i) { return Isa::fma(a.v[i], b.v[i], c.v[i]); });
  }
  OUTGRAD_HD Value add(const Value& a, const Value& b) const {
    return each<Value>([&](int i) { return Isa::add(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Value sub(const Value& a, const Value& b) const {
    return each<Value>([&](int i) { return Isa::sub(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Value mul(const Value& a, const Value& b) const {
    return each<Value>([&](int i) { return Isa::mul(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Value div(const Value& a, const Value& b) const {
    return each<Value>([&](int i) { return Isa::div(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Value sqrt(const Value& a) const {
    return each<Value>([&](int i) { return Isa::sqrt(a.v[i]); });
  }
  OUTGRAD_HD Value negate(const Value& a) const {
    return each<Value>([&](int i) { return Isa::negate(a.v[i]); });
  }
  OUTGRAD_HD Value signed_by(const Mask& mask, const Value& a) const
    requires requires { Isa::signed_by(mask.v[0], a.v[0]); }
  {
    return each<Value>([&](int i) { return Isa::signed_by(mask.v[i], a.v[i]); });
  }
  OUTGRAD_HD Value at_least(const Value& a, const Value& lo) const {
    return each<Value>([&](int i) { return Isa::at_least(a.v[i], lo.v[i]); });
  }
  OUTGRAD_HD Value at_most(const Value& a, const Value& hi) const {
    return each<Value>([&](int i) { return Isa::at_most(a.v[i], hi.v[i]); });
  }
  // MINPS: -0 < a ? -0 : a
  OUTGRAD_HD Value non_positive(const Value& a) const { return at_most(a, constant(-0.0f)); }
  OUTGRAD_HD Value shifted(const Value& a, int count) const {
    return each<Value>([&](int i) { return Isa::shifted(a.v[i], count); });
  }
  OUTGRAD_HD Value nudged(const Value& a, float tie) const {
    return each<Value>([&](int i) { return Isa::nudged(a.v[i], tie); });
  }
  OUTGRAD_HD Value signed_as(const Value& a, const Value& b) const {
    return each<Value>([&](int i) { return Isa::signed_as(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Value exponent(const Value& a) const {
    return each<Value>([&](int i) {
      const typename Isa::Int field = Isa::shift_right(from_root_half(a.v[i]), 23);
      return Isa::sub(floats(Isa::add(field, Isa::bits(Isa::splat(kIntegerBase)))),
                      Isa::splat(kExponentBase));
    });
  }
  OUTGRAD_HD Value significand(const Value& a) const {
    return each<Value>([&](int i) {
      const typename Isa::Int fraction =
          Isa::bit_and(from_root_half(a.v[i]), Isa::splat(static_cast<int>(kFractionBits)));
      return floats(Isa::add(fraction, Isa::splat(static_cast<int>(kRootHalfBits))));
    });
  }
  template <class Pack>
  OUTGRAD_HD Pack select(const Mask& mask, const Pack& a, const Pack& b) const {
    return each<Pack>([&](int i) { return Isa::select(mask.v[i], a.v[i], b.v[i]); });
  }
  // kFew: about as many scalar bodies as the gathers of one vector's words take; a matter of speed alone.
  // AVX-512 replaces lanes by blends: a vector that is stored lane by lane can be loaded only after a wait.
  template <class Body>
  OUTGRAD_HD Value where(const Mask& mask, const Value& y, const Value& x, const Body& body) const {
    constexpr int kFew = 4;
    return each<Value>([&](int i) {
      if (!Isa::any(mask.v[i])) return y.v[i];
      u32 lanes = Isa::bits_of_mask(mask.v[i]);
      if (__builtin_popcount(lanes) > kFew) {
        const LaneOps<Isa, 1, kPlacement> single;
        return Isa::select(mask.v[i], body(single, FloatPack<Isa, 1>{{x.v[i]}}).v[0], y.v[i]);
      }
      alignas(64) float from[Isa::kLanes];
      Isa::template store<false>(from, x.v[i]);
      if constexpr (requires { u32{mask.v[i]}; }) {
        typename Isa::Float result = y.v[i];
        for (; lanes != 0; lanes &= lanes - 1) {
          const auto lane = static_cast<typename Isa::Mask>(lanes & -lanes);
          result = Isa::select(lane, Isa::splat(body(FloatOps{}, from[__builtin_ctz(lanes)])), result);
        }
        return result;
      } else {
        alignas(64) float to[Isa::kLanes];
        Isa::template store<false>(to, y.v[i]);
        for (; lanes != 0; lanes &= lanes - 1) {
          const int lane = __builtin_ctz(lanes);
          to[lane] = body(FloatOps{}, from[lane]);
        }
        return Isa::load(to);
      }
    });
  }

  OUTGRAD_HD Mask less(const Value& a, const Value& b) const {
    return each<Mask>([&](int i) { return Isa::less(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Mask less_equal(const Value& a, const Value& b) const {
    return each<Mask>([&](int i) { return Isa::less_equal(a.v[i], b.v[i]); });
  }
  OUTGRAD_HD Mask beyond(const Mask& m, const Value& a, const Value& limit) const
    requires requires { Isa::beyond(m.v[0], a.v[0], limit.v[0]); }
  {
    return each<Mask>([&](int i) { return Isa::beyond(m.v[i], a.v[i], limit.v[i]); });
  }
  OUTGRAD_HD Mask neither(const Mask& p, const Mask& q) const {
    return each<Mask>([&](int i) { return Isa::neither(p.v[i], q.v[i]); });
  }

  OUTGRAD_HD Row first_row() const {
    return each<Row>([&](int) { return Isa::splat(0); });
  }
  OUTGRAD_HD Row next_row(const Row& row, const Mask& mask) const {
    return each<Row>([&](int i) { return Isa::increment(row.v[i], mask.v[i]); });
  }
  // Bits above the row's own stay in: permutes ignore them, and a gather masks them off.
  OUTGRAD_HD Row row_index(const Value& q, int) const {
    return each<Row>([&](int i) { return Isa::bits(q.v[i]); });
  }
  OUTGRAD_HD Row octave_row(const Value& z, int bits, int knee, int base, int first_row, int) const {
    return each<Row>([&](int i) {
      const typename Isa::Int h =
          Isa::shift_right(Isa::bit_and(Isa::bits(z.v[i]), Isa::splat(0x7fffffff)), 23 - bits);
      const typename Isa::Int twice = Isa::add(h, Isa::max(h, Isa::splat(knee)));
      const typename Isa::Int above =
          Isa::max(Isa::sub(Isa::shift_right(twice, 1), Isa::splat(base)), Isa::splat(0));
      return Isa::add(above, Isa::splat(first_row));
    });
  }
  // A permute of a constant in place of most of octave_row's arithmetic, where the h are few enough.
  template <class Fit>
    requires requires(const i32 (&rows)[32], typename Isa::Int h) { Isa::pick(rows, h); }
  OUTGRAD_HD Row left_row(const Fit& fit, const Value& y) const {
    constexpr int kEntries = OctaveRows<Fit, 16>::kHolds ? 16 : 32;
    if constexpr (OctaveRows<Fit, kEntries>::kHolds) {
      // The sign bit, which y <= -0 has above h, stays in; y >= +0, without it, is brought to the first row
      // like all that is near 0.
      constexpr int kLowest = (256 << Fit::kLeftBits) + OctaveRows<Fit, kEntries>::kLowest;
      return each<Row>([&](int i) {
        const typename Isa::Int h =
            Isa::max(Isa::shift_right(Isa::bits(y.v[i]), 23 - Fit::kLeftBits), Isa::splat(kLowest));
        return Isa::pick(kOctaveRows<Fit, kEntries>.row, h);
      });
    } else {
      return octave_row(non_positive(y), fit.kLeftBits, fit.kLeftKnee, fit.kLeftBase, fit.kLeftRow,
                        fit.kRows);
    }
  }
  template <int Words, int Rows>
  OUTGRAD_HD Value lookup(const Columns<Words, Rows>& table, const Row& row, int word) const {
    constexpr int kStored = Columns<Words, Rows>::kStored;
    if constexpr (Rows == 1) {
      return constant(table.w[word][0]);
    } else if constexpr (kPlacement == TablePlacement::permute && kStored <= Isa::kPermuteRows) {
      return each<Value>([&](int i) { return Isa::template permute<kStored>(table.w[word], row.v[i]); });
    } else {
      return each<Value>(
          [&](int i) { return Isa::gather(table.w[word], Isa::bit_and(row.v[i], Isa::splat(kStored - 1))); });
    }
  }

  template <int Words, int Rows>
  OUTGRAD_HD Value lookup(const AlignedRows<Words, Rows>& table, const Row& row, int word) const {
    return each<Value>([&](int i) { return Isa::word_of_rows(table.w, row.v[i], word); });
  }

  OUTGRAD_HD bool any(const Mask& mask) const {
    bool found = false;
    OUTGRAD_UNROLL
    for (int i = 0; i < kCount; ++i) found |= Isa::any(mask.v[i]);
    return found;
  }
  // Whether all q are of 2^23, ..., 2^23 + rows - 1, rows a power of two.
  OUTGRAD_HD bool all_rows(const Value& q, int rows) const
    requires requires { Isa::or_different(Isa::bits(q.v[0]), Isa::bits(q.v[0]), Isa::bits(q.v[0])); }
  {
    typename Isa::Int different = Isa::splat(0);
    OUTGRAD_UNROLL
    for (int i = 0; i < kCount; ++i)
      different = Isa::or_different(different, Isa::bits(q.v[i]), Isa::bits(Isa::splat(0x1p23f)));
    return !Isa::any_bit(different, Isa::splat(-rows));
  }
  // Whether no number is of a magnitude below `least`.
  OUTGRAD_HD bool none_below(const Value& a, float least) const {
    typename Isa::Float smallest = a.v[0];
    OUTGRAD_UNROLL
    for (int i = 1; i < kCount; ++i) smallest = Isa::smaller_magnitude(smallest, a.v[i]);
    if constexpr (kCount == 1) smallest = Isa::smaller_magnitude(smallest, smallest);
    return !Isa::any(Isa::less(smallest, Isa::splat(least)));
  }

  OUTGRAD_HD Row row_behind(const Row& row, const Mask& mask, int behind) const {
    return each<Row>(
        [&](int i) { return Isa::add(row.v[i], Isa::select(mask.v[i], Isa::splat(behind), Isa::splat(0))); });
  }
  // column[row], by single loads or by a gather, as a schedule says of the words of rows: which of them is
  // quicker depends on the processor.
  OUTGRAD_HD Value looked_up(const float* column, const Row& row) const {
    return each<Value>([&](int i) {
      if constexpr (kPlacement == TablePlacement::permute && requires { Isa::loaded(column, row.v[i]); }) {
        return Isa::loaded(column, row.v[i]);
      } else {
        return Isa::gather(column, row.v[i]);
      }
    });
  }

  // Direct tables (kernels/direct.h).
  OUTGRAD_HD Row low_bits(const Row& row, int bits) const {
    return each<Row>([&](int i) { return Isa::bit_and(row.v[i], Isa::splat(bits)); });
  }
  OUTGRAD_HD Mask above(const Row& row, int limit) const {
    return each<Mask>([&](int i) { return Isa::greater(row.v[i], Isa::splat(limit)); });
  }
  OUTGRAD_HD Row constant_row(int value) const {
    return each<Row>([&](int) { return Isa::splat(value); });
  }
  OUTGRAD_HD Row row_in(const Row& row, const Row& first, const Row& last, const Row& shift) const {
    return each<Row>(
        [&](int i) { return Isa::add(Isa::min(Isa::max(row.v[i], first.v[i]), last.v[i]), shift.v[i]); });
  }
  template <class E, int Count>
  OUTGRAD_HD Value entry(const PaddedEntries<Count>& entries, const Row& row) const {
    return each<Value>([&](int i) { return Isa::template gather_entries<E>(entries.w, row.v[i]); });
  }

  template <class T>
  OUTGRAD_HD Value load(const T* from) const {
    if constexpr (kEvenOdd) {
      Value result;
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; i += 2)
        Isa::load_even_odd(from + i * Isa::kLanes, result.v[i], result.v[i + 1]);
      return result;
    } else {
      return each<Value>([&](int i) { return Isa::load(from + i * Isa::kLanes); });
    }
  }
  template <class Y>
  OUTGRAD_HD Value load(const BlockScaled<Y>& from) const {
    static_assert(!kEvenOdd);
    return each<Value>([&](int i) {
      const BlockScaled<Y> vector = from + i * Isa::kLanes;
      return Isa::mul(Isa::load(codes_of(vector)), Isa::splat(scale_of(vector)));
    });
  }
  template <class T>
  OUTGRAD_HD Row load_codes(const T* from) const {
    static_assert(!kEvenOdd);
    return each<Row>([&](int i) { return Isa::load_codes(from + i * Isa::kLanes); });
  }
  template <bool kStreaming, bool kOrdinary = false, class T>
  OUTGRAD_HD void store(T* to, const Value& value) const {
    if constexpr (kEvenOdd) {
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; i += 2)
        Isa::template store_even_odd<kStreaming>(to + i * Isa::kLanes, value.v[i], value.v[i + 1]);
    } else if constexpr (sizeof(T) == 2 && kCount % 2 == 0 &&
                         requires { Isa::template store_pair<kStreaming>(to, value.v[0], value.v[1]); }) {
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; i += 2)
        Isa::template store_pair<kStreaming, kOrdinary>(to + i * Isa::kLanes, value.v[i], value.v[i + 1]);
    } else {
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; ++i) Isa::template store<kStreaming>(to + i * Isa::kLanes, value.v[i]);
    }
  }
  // The low byte of each number's bits.
  OUTGRAD_HD void store_bytes(u8* to, const Value& q) const {
    static_assert(!kEvenOdd);
    OUTGRAD_UNROLL
    for (int i = 0; i < kCount; ++i) Isa::store_bytes(to + i * Isa::kLanes, Isa::bits(q.v[i]));
  }
  // Masks as stored: element i's bit is bit i % 8 of byte i / 8 (32-bit words, little-endian).
  OUTGRAD_HD Mask load_mask(const u8* from) const {
    if constexpr (kEvenOdd) {
      Mask result;
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; i += 2) {
        u32 bits;
        __builtin_memcpy(&bits, from + i * (Isa::kLanes / 8), sizeof(bits));
        Isa::mask_even_odd(bits, result.v[i], result.v[i + 1]);
      }
      return result;
    } else {
      return each<Mask>([&](int i) {
        typename Isa::MaskBits bits;
        __builtin_memcpy(&bits, from + i * (Isa::kLanes / 8), sizeof(bits));
        return Isa::mask_of(bits);
      });
    }
  }
  OUTGRAD_HD void store_mask(u8* to, const Mask& mask) const {
    static_assert(!kEvenOdd);
    OUTGRAD_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const typename Isa::MaskBits bits = Isa::bits_of_mask(mask.v[i]);
      __builtin_memcpy(to + i * (Isa::kLanes / 8), &bits, sizeof(bits));
    }
  }

 private:
  template <class Pack, class Function>
  static OUTGRAD_HD Pack each(const Function& function) {
    Pack result;
    OUTGRAD_UNROLL
    for (int i = 0; i < kCount; ++i) result.v[i] = function(i);
    return result;
  }
  static OUTGRAD_HD typename Isa::Float floats(typename Isa::Int bits) {
    return __builtin_bit_cast(typename Isa::Float, bits);
  }
  static OUTGRAD_HD typename Isa::Int from_root_half(typename Isa::Float a) {
    return Isa::add(Isa::bits(a), Isa::splat(static_cast<int>(kRootHalfToOne)));
  }
};

// One vector of which the first `count` lanes are elements, the last of an array: no others are read or
// written. In the lanes behind them +0 is loaded.
template <class Isa, TablePlacement kPlacement>
struct PartOps : LaneOps<Isa, 1, kPlacement> {
  using Whole = LaneOps<Isa, 1, kPlacement>;
  int count;

  OUTGRAD_HD explicit PartOps(i64 elements) : count(static_cast<int>(elements)) {}

  template <class T>
  OUTGRAD_HD typename Whole::Value load(const T* from) const {
    alignas(64) u8 part[64];
    Isa::load_part(part, from, count * static_cast<int>(sizeof(T)));
    return Whole::load(reinterpret_cast<const T*>(part));
  }
  template <class T>
  OUTGRAD_HD typename Whole::Row load_codes(const T* from) const {
    alignas(64) u8 part[64];
    Isa::load_part(part, from, count * static_cast<int>(sizeof(T)));
    return Whole::load_codes(reinterpret_cast<const T*>(part));
  }
  template <bool kStreaming, bool kOrdinary = false, class T>
  OUTGRAD_HD void store(T* to, const typename Whole::Value& value) const {
    alignas(64) u8 part[64];
    Whole::template store<false, kOrdinary>(reinterpret_cast<T*>(part), value);
    Isa::store_part(to, part, count * static_cast<int>(sizeof(T)));
  }
  OUTGRAD_HD void store_bytes(u8* to, const typename Whole::Value& q) const {
    alignas(64) u8 part[64];
    Whole::store_bytes(part, q);
    Isa::store_part(to, part, count);
  }
};
template <class Isa, TablePlacement kPlacement>
PartOps<Isa, kPlacement> part_of(const LaneOps<Isa, 1, kPlacement>&, i64 elements) {
  return PartOps<Isa, kPlacement>(elements);
}
#endif

// What was streamed before is visible to other threads after this.
template <bool kStreaming>
OUTGRAD_HD void end_streaming() {
#ifdef OUTGRAD_AVX2
  if constexpr (kStreaming) _mm_sfence();
#endif
}

// Lanes for values that are neither NaN nor subnormal nor so small that `nudged` would change them, nor will
// their results be.
template <class Lanes>
struct OrdinaryLanes : Lanes {
  using Value = typename Lanes::Value;
  OUTGRAD_HD Value nudged(const Value& a, float) const { return a; }
  template <bool kStreaming, class T>
  OUTGRAD_HD void store(T* to, const Value& value) const {
    Lanes::template store<kStreaming, true>(to, value);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
