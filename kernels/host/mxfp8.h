// GELU's forward that stores y in MXFP8 alone, for a next product that reads MXFP8, on the CPU.
//
// The backward is activation_backward<generated::GeluMxfp8, T, schedule, MxFp8> of
// kernels/host/elementwise.h.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/eval.h"
#include "kernels/fits.h"
#include "kernels/host/stores.h"
#include "kernels/stores/mxfp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// codes[i], scales[i / 32]: GELU(x[i]) in MXFP8; mask as gelu_forward's. The number that is stored is the
// forward's before it is narrowed to T, so it is rounded once. scales has scales_of<MxFp8>(n) elements. No
// array overlaps another. Allocates nothing. In vectors of 512 bits the first call with a 16-bit T and n >=
// 2^16 fills a table of static storage, 256 KiB, which later ones read.
template <class Forward, class T, CpuSchedule S>
void gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n);

// -------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr i64 kBlock = Format<MxFp8>::kBlock;

// A whole block.
template <class Forward, class T>
void mxfp8_block(const T* x, F8E4M3* codes, E8M0* scale, u8* mask) {
  float y[kBlock];
  u32 amax = 0, bits = 0;
  for (i64 k = 0; k < kBlock; ++k) {
    const float wide = widen(x[k]);
    y[k] = gelu_forward_value<T>(FloatOps{}, Forward{}, kForwardTables<Forward>, wide);
    bits |= static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, wide)) << k;
    amax = std::max(amax, magnitude_in_block(y[k]));
  }
  __builtin_memcpy(mask, &bits, sizeof(bits));
  *scale = shared_scale(amax);
  for (i64 k = 0; k < kBlock; ++k) codes[k] = block_element(y[k], *scale);
}

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

// The code of y in a block, in the lowest seven bits; factor is 2^-9 / scale. 2^-9 |y| / scale, saturated, is
// rounded by adding a grid whose ulp is the distance of e4m3's numbers there, and the number n of its ulps is
// left in the lowest byte. The code is n + 8 (E - 112) for the exponent E of 2^-9 |y| / scale, as it is
// stored; and 112, the least of e4m3, is a multiple of 16.
template <class Isa>
OUTGRAD_HD typename Isa::Int e4m3_magnitude(typename Isa::Float magnitude, typename Isa::Float factor) {
  constexpr int kLeastNormal = 112 << 23;
  constexpr float kLargest = kLargestOf<F8E4M3> * 0x1p-9f;
  const auto v = Isa::at_most(Isa::mul(magnitude, factor), Isa::splat(kLargest));
  const auto exponent =
      Isa::max(Isa::bit_and(Isa::bits(v), Isa::splat(0x7f800000)), Isa::splat(kLeastNormal));
  const auto on_grid = Isa::fma(std::bit_cast<typename Isa::Float>(exponent), Isa::splat(0x1p20f), v);
  return Isa::add(Isa::bits(on_grid), Isa::shift_right(exponent, 20));
}

// Codes and scales of the blocks in four vectors. Where a block has a NaN, an infinity or a y beyond 2^126,
// nothing is written, and the result is false.
template <class Isa, bool kStreaming>
OUTGRAD_HD bool mxfp8_blocks(const typename Isa::Float (&y)[4], F8E4M3* codes, E8M0* scales) {
  using Vectors = BlockVectors<Isa>;
  // the bits of the last below 2^126: up to there 2^-9 / scale is a normal number
  constexpr int kMost = 0x7e7fffff;
  typename Isa::Int magnitude[4], code[4];
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) magnitude[k] = Isa::bit_and(Isa::bits(y[k]), Isa::splat(0x7fffffff));
  const auto amax = Vectors::largest(magnitude[0], magnitude[1], magnitude[2], magnitude[3]);
  if (__builtin_expect(Isa::any(Isa::greater(amax, Isa::splat(kMost))), 0)) return false;
  const auto exponent = Isa::max(Isa::shift_right(amax, 23), Isa::splat(8));
  Vectors::store_scales(scales, Isa::sub(exponent, Isa::splat(8)));
  const auto factors =
      Isa::shifted(std::bit_cast<typename Isa::Float>(Isa::sub(Isa::splat(253), exponent)), 23);
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const auto wide = std::bit_cast<typename Isa::Float>(magnitude[k]);
    code[k] = Vectors::signed_code(e4m3_magnitude<Isa>(wide, Vectors::of_vector(factors, k)), y[k]);
  }
  Vectors::template store<kStreaming>(codes, code[0], code[1], code[2], code[3]);
  return true;
}

// A 16-bit x has so few y that a gather from the table of them all is less work than the polynomial, where an
// instruction gathers a vector of 16.
template <class T, CpuSchedule S>
inline constexpr bool kValuesByCode = sizeof(T) == 2 && S.vector_bits == 512;

// 256 KiB for each Forward and T.
template <class Forward, class T>
const float* values_by_code() {
  return table_by_code<T>(
      [](T x) { return gelu_forward_value<T>(FloatOps{}, Forward{}, kForwardTables<Forward>, widen(x)); });
}

template <class Forward>
struct Mxfp8Encoder {
  static constexpr int kInPlace = 2;
  static constexpr bool kStreams = true, kStagedStreams = false;
  const float* values = nullptr;  // of values_by_code

  template <CpuSchedule S, bool kStreaming, class T>
  void encode(i64, const T* x, u8* const* to) const {
    F8E4M3* const codes = reinterpret_cast<F8E4M3*>(to[0]);
    E8M0* const scales = reinterpret_cast<E8M0*>(to[1]);
#ifdef OUTGRAD_AVX2
    if constexpr (S.vector_bits > 0) return encode_packs<S, kStreaming>(x, codes, scales, to[2]);
#endif
    for (i64 i = 0; i < kCodeBlock; i += kBlock)
      mxfp8_block<Forward>(x + i, codes + i, scales + i / kBlock, to[2] + i / 8);
  }

#ifdef OUTGRAD_AVX2
 private:
  template <CpuSchedule S, bool kStreaming, class T>
  void encode_packs(const T* x, F8E4M3* codes, E8M0* scales, u8* mask) const {
    constexpr LanesOf<S, 4> kOps{};
    for (i64 i = 0; i < kCodeBlock; i += kOps.kElements) {
      fetch_ahead<kStreaming>(x + i, kOps.kElements);
      const auto store = [=]<class Isa>(const auto&, FloatPack<Isa, 4> y) __attribute__((always_inline)) {
        if (mxfp8_blocks<Isa, kStreaming>(y.v, codes + i, scales + i / kBlock)) return;
        for (i64 at = i; at < i + kOps.kElements; at += kBlock)
          mxfp8_block<Forward>(x + at, codes + at, scales + at / kBlock, mask + at / 8);
      };
      const auto z = kOps.load(x + i);
#ifdef OUTGRAD_AVX512
      if constexpr (kValuesByCode<T, S>) {
        if (values != nullptr) {
          kOps.store_mask(mask + i / 8, evaluate_mask(kOps, Forward{}, z));
          typename decltype(kOps)::Value y;
          OUTGRAD_UNROLL
          for (int k = 0; k < 4; ++k)
            y.v[k] = _mm512_castsi512_ps(entries_at(values, x + i + k * kOps.kElements / 4));
          store(kOps, y);
          continue;
        }
      }
#endif
      forward_pack<Forward, T>(kOps, z, mask + i / 8, store);
    }
  }
#endif
};

}  // namespace detail

template <class Forward, class T, CpuSchedule S>
void gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n) {
  detail::Mxfp8Encoder<Forward> encoder;
  if constexpr (detail::kValuesByCode<T, S>) {
    if (n >= detail::kCodes) encoder.values = detail::values_by_code<Forward, T>();
  }
  detail::keep<S>(encoder, x,
                  {detail::Plane<u8>{reinterpret_cast<u8*>(codes), 8},
                   {reinterpret_cast<u8*>(scales), 8, detail::kBlock},
                   {reinterpret_cast<u8*>(mask), 1, 1, sizeof(u32)}},
                  n);
}

// GELU's.
template <>
struct HostStore<StoreId::kMxFp8> {
  template <int kActivation, class>
  using Of = std::conditional_t<kActivation == 0, generated::GeluMxfp8, void>;

  template <class, class T, CpuSchedule S>
  static void forward(const StoreCall& a, const T* x, i64 n) {
    gelu_forward_mxfp8<typename ForwardFit<T>::Type, T, S>(x, reinterpret_cast<F8E4M3*>(a.codes),
                                                           reinterpret_cast<E8M0*>(a.scales), a.mask, n);
  }
  template <class Fit, class T, CpuSchedule S>
  static void backward(const StoreCall& a, const T* dy, T* dx, i64 n) {
    using Kept = typename StoreArithmetic<StoreId::kMxFp8>::Kept<T>;
    activation_backward<Fit, T, S, Kept>(dy, stored<Kept>(a.codes, a.scales), a.mask, dx, n);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
