// Dropout by counter over arrays on the CPU. kernels/dropout.h says what it computes, and why nothing is kept
// for a backward pass.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/dropout.h"
#include "kernels/host/errors.h"
#include "kernels/host/parallel.h"
#include "kernels/host/refusal.h"
#include "kernels/simd.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

// y[i] = x[i] scaled, or +0 if this seed drops element i, for i in [0, n). The same function of dy is the
// backward pass. Pointers are aligned to their element type. y may equal x but must not overlap it otherwise.
// Bits depend neither on the number of threads (0 = all) nor on the instruction set. Allocates nothing.
// Throws SpecError, before anything is written, if n is negative, or if p is NaN or outside [0, 1].
template <class T>
void dropout(const T* x, T* y, i64 n, u64 seed, double p, int threads = 0);

// -------------------------------------------------------------------------------------------------

namespace detail {

// The operations of philox_rounds on vectors. One x86 instruction multiplies the lower halves of 64-bit
// lanes. g++ 12 does not use it for a product of its own vector types. For a loop over arrays of words it
// does so only by moving every word there and back: such a loop takes 1.6 times as long in the baseline, and
// 2.5 to 3 times with AVX2 or AVX-512. even_lanes gives the even lanes of a and of b in turn, and odd_lanes
// the odd ones.
#if defined(__SSE2__) && !defined(__CUDACC__)
#if defined(OUTGRAD_AVX512)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // as in kernels/simd.h
#endif
struct PhiloxVectors {
  using Lanes = u64 __attribute__((vector_size(64)));
  static OUTGRAD_HD Lanes product(Lanes a, u32 b) {
    return reinterpret_cast<Lanes>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
  }
  static OUTGRAD_HD Lanes splat(u64 value) {
    return reinterpret_cast<Lanes>(_mm512_set1_epi64(static_cast<i64>(value)));
  }
  static OUTGRAD_HD Lanes even_lanes(Lanes a, Lanes b) {
    return reinterpret_cast<Lanes>(
        _mm512_unpacklo_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  }
  static OUTGRAD_HD Lanes odd_lanes(Lanes a, Lanes b) {
    return reinterpret_cast<Lanes>(
        _mm512_unpackhi_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  }
};
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif defined(OUTGRAD_AVX2)
struct PhiloxVectors {
  using Lanes = u64 __attribute__((vector_size(32)));
  static OUTGRAD_HD Lanes product(Lanes a, u32 b) {
    return reinterpret_cast<Lanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
  }
  static OUTGRAD_HD Lanes splat(u64 value) {
    return reinterpret_cast<Lanes>(_mm256_set1_epi64x(static_cast<i64>(value)));
  }
  static OUTGRAD_HD Lanes even_lanes(Lanes a, Lanes b) {
    return reinterpret_cast<Lanes>(
        _mm256_unpacklo_epi64(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  }
  static OUTGRAD_HD Lanes odd_lanes(Lanes a, Lanes b) {
    return reinterpret_cast<Lanes>(
        _mm256_unpackhi_epi64(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  }
};
#else
struct PhiloxVectors {
  using Lanes = u64 __attribute__((vector_size(16)));
  static OUTGRAD_HD Lanes product(Lanes a, u32 b) {
    return reinterpret_cast<Lanes>(
        _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(splat(b))));
  }
  static OUTGRAD_HD Lanes splat(u64 value) { return Lanes{value, value}; }
  static OUTGRAD_HD Lanes even_lanes(Lanes a, Lanes b) { return Lanes{a[0], b[0]}; }
  static OUTGRAD_HD Lanes odd_lanes(Lanes a, Lanes b) { return Lanes{a[1], b[1]}; }
};
#endif

// The number of elements whose words are computed together. Four vectors of counters cover the latency of
// products that depend on each other. On Zen 4, two vectors are a seventh to a fifth slower; eight are slower
// in the baseline and hardly faster elsewhere.
inline constexpr int kDropoutVectors = 4;
// in one vector
inline constexpr int kDropoutCounters = static_cast<int>(sizeof(PhiloxVectors::Lanes) / sizeof(u64));
inline constexpr int kDropoutPack = kDropoutVectors * kDropoutCounters * 4;

// Sets results[k] to what `of` makes of the word of element 4 counter + k. `of` takes vectors of words as it
// takes vectors of lanes: a function of each word by itself. counter is a multiple of kDropoutPack / 4, so
// that all counters of the pack have the same upper half.
template <class Of>
OUTGRAD_HD void philox_pack(u64 counter, u64 seed, u32 (&results)[kDropoutPack], const Of& of) {
  using Lanes = PhiloxVectors::Lanes;
  using Words = u32 __attribute__((vector_size(sizeof(Lanes))));
  constexpr int kHalf = kDropoutCounters / 2;
  Lanes order{};  // even_lanes, then odd_lanes give the elements in order
  for (int lane = 0; lane < kDropoutCounters; ++lane)
    order[lane] = static_cast<u64>(lane / 2 + lane % 2 * kHalf);
  Lanes c[kDropoutVectors][4];
  OUTGRAD_UNROLL
  for (int k = 0; k < kDropoutVectors; ++k) {
    c[k][0] = order + PhiloxVectors::splat(counter + static_cast<u64>(k * kDropoutCounters));
    c[k][1] = PhiloxVectors::splat(counter >> 32);
    c[k][2] = c[k][3] = Lanes{};
  }
  philox_rounds<PhiloxVectors>(c, seed);
  OUTGRAD_UNROLL
  for (int k = 0; k < kDropoutVectors; ++k) {
    const Lanes lower_words = PhiloxVectors::splat(0xffffffffu);
    const Lanes first = (c[k][0] & lower_words) | c[k][1] << 32,
                second = (c[k][2] & lower_words) | c[k][3] << 32;
    const Words low = of(reinterpret_cast<Words>(PhiloxVectors::even_lanes(first, second))),
                high = of(reinterpret_cast<Words>(PhiloxVectors::odd_lanes(first, second)));
    std::memcpy(results + k * 4 * kDropoutCounters, &low, sizeof low);
    std::memcpy(results + k * 4 * kDropoutCounters + 2 * kDropoutCounters, &high, sizeof high);
  }
}

// Sets kept[k] to ~0 if element 4 counter + k is kept, and to 0 otherwise.
OUTGRAD_HD void dropout_masks(const DropoutRule& rule, u64 counter, u64 seed, u32 (&kept)[kDropoutPack]) {
  using Words = u32 __attribute__((vector_size(sizeof(PhiloxVectors::Lanes))));
  // No word reaches a threshold of 2^32, whose lower half is 0. In that case `some` lets no bit of a mask
  // through.
  const Words threshold = Words{} + static_cast<u32>(rule.threshold),
              some = Words{} + (rule.threshold >> 32 == 0 ? ~0u : 0u);
  philox_pack(counter, seed, kept, [&](Words words) __attribute__((always_inline)) {
    return reinterpret_cast<Words>(words >= threshold) & some;
  });
}

#else
// For other processors, and for nvcc, which does not accept vector types of the host compiler.
inline constexpr int kDropoutPack = 64;

template <class Of>
OUTGRAD_HD void philox_pack(u64 counter, u64 seed, u32 (&results)[kDropoutPack], const Of& of) {
  for (int k = 0; k < kDropoutPack; k += 4) {
    const PhiloxWords words = philox(counter + static_cast<u64>(k / 4), seed);
    for (int word = 0; word < 4; ++word) results[k + word] = of(words.word[word]);
  }
}

OUTGRAD_HD void dropout_masks(const DropoutRule& rule, u64 counter, u64 seed, u32 (&kept)[kDropoutPack]) {
  philox_pack(counter, seed, kept, [&](u32 word) { return dropout_keeps(rule, word) ? ~0u : 0u; });
}
#endif

// dropout_element for the elements of a pack. The product is masked before it is narrowed, which is the same
// because +0 narrows to +0.
template <class T>
OUTGRAD_HD void dropout_pack(const u32 (&kept)[kDropoutPack], float scale, const T* x, T* y) {
#ifdef OUTGRAD_AVX2
#ifdef OUTGRAD_AVX512
  using Isa = Avx512;
#else
  using Isa = Avx2;
#endif
  OUTGRAD_UNROLL
  for (int k = 0; k < kDropoutPack; k += Isa::kLanes) {
    typename Isa::Int mask;
    std::memcpy(&mask, kept + k, sizeof mask);
    const typename Isa::Int product = Isa::bits(Isa::mul(Isa::load(x + k), Isa::splat(scale)));
    Isa::template store<false>(y + k, __builtin_bit_cast(typename Isa::Float, Isa::bit_and(product, mask)));
  }
#else
  // The loop runs over local arrays, none of which overlaps another, so that it is vectorised (except for
  // f16, because of its branches). With mul_rn's barrier it would not be. The barrier is not needed, because
  // only the bits of the product are used.
  T from[kDropoutPack], to[kDropoutPack];
  std::memcpy(from, x, sizeof from);
  for (int k = 0; k < kDropoutPack; ++k)
    to[k] = narrow<T>(float_of(bits_of(widen(from[k]) * scale) & kept[k]));
  std::memcpy(y, to, sizeof to);
#endif
}

// Elements [begin, end), where begin is a multiple of kDropoutPack.
template <class T>
void dropout_range(const T* x, T* y, i64 begin, i64 end, u64 seed, const DropoutRule& rule) {
  u32 kept[kDropoutPack];
  for (i64 i = begin; i < end; i += kDropoutPack) {
    dropout_masks(rule, static_cast<u64>(i / 4), seed, kept);
    if (end - i >= kDropoutPack) {
      dropout_pack(kept, rule.scale, x + i, y + i);
    } else {
      for (i64 k = 0; k < end - i; ++k)
        y[i + k] = kept[k] != 0 ? narrow<T>(mul_rn(widen(x[i + k]), rule.scale)) : T{};
    }
  }
}

}  // namespace detail

template <class T>
void dropout(const T* x, T* y, i64 n, u64 seed, double p, int threads) {
  static_assert(sizeof(T) > 1, "x and y are f32, f16 or bf16");
  if (n < 0) detail::refuse(detail::refusal("dropout") + "n must be at least 0");
  if (!dropout_holds(p)) detail::refuse(detail::refusal("dropout") + "p must lie in [0, 1]");
  const DropoutRule rule = dropout_rule(p);
  constexpr i64 kBlock = i64{1} << 14;  // a task takes some microseconds and has whole packs
  static_assert(kBlock % detail::kDropoutPack == 0);
  parallel_for(n / kBlock + (n % kBlock != 0), threads, [=](i64 block) {
    detail::dropout_range(x, y, block * kBlock, std::min(n - block * kBlock, kBlock) + block * kBlock, seed,
                          rule);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
