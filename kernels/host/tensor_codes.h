// Any tensor in 8 bits, on the CPU (kernels/tensor_codes.h): its largest magnitude, its codes, and what they
// stand for.
//
// T is the format of x: f32, f16 or bf16. Pointers are aligned to their element type, and no array overlaps
// another. Bits depend neither on the number of threads (0 = all) nor on the instruction set. Nothing here
// allocates. All throw SpecError, before anything is written, if n is negative.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/host/errors.h"
#include "kernels/host/mxfp8_blocks.h"
#include "kernels/host/parallel.h"
#include "kernels/host/refusal.h"
#include "kernels/simd.h"
#include "kernels/tensor_codes.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The scale of x[0..n) for codes in F. SpecError also if `least` is no number from 2^-100 to 2^127.
template <class F, class T>
float scale_of_tensor(const T* x, i64 n, float least, int threads = 0);

// codes[i] of x[i] at a scale; SpecError also for one that is not positive, finite and normal. The same holds
// for the way back.
template <class F, class T>
void encode_tensor(const T* x, F* codes, i64 n, float scale, int threads = 0);
template <class F, class T>
void decode_tensor(const F* codes, float scale, T* x, i64 n, int threads = 0);

// In MXFP8. scales has scales_of<MxFp8>(n) elements; none of those that are read is 255, which is NaN.
template <class T>
void encode_tensor_blocks(const T* x, F8E4M3* codes, E8M0* scales, i64 n, int threads = 0);
template <class T>
void decode_tensor_blocks(const F8E4M3* codes, const E8M0* scales, T* x, i64 n, int threads = 0);

// A format of 8 bits, for kernels that have parts of a tensor at hand: [first, first + n), where first is a
// multiple of 32. x is the part, codes and scales are of the tensor.
template <class T>
struct TensorFormat {
  // of the tensor, from the bits of its largest magnitude; null where blocks have scales
  float (*scale)(u32 largest, float least);
  void (*encode)(const T* x, void* codes, void* scales, i64 first, i64 n);
  void (*decode)(const void* codes, const void* scales, i64 first, T* x, i64 n);
};

// -------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr i64 kTensorTask = i64{1} << 15;  // some microseconds; a multiple of every step below
inline constexpr int kTensorBlock = Format<MxFp8>::kBlock;

#ifdef OUTGRAD_AVX512
using TensorIsa = Avx512;
#elif defined(OUTGRAD_AVX2)
using TensorIsa = Avx2;
#endif

// over(begin, end) of all elements, in tasks.
template <class Over>
void over_tensor(const char* kernel, i64 n, int threads, const Over& over) {
  if (n < 0) refuse(refusal(kernel) + "n must be at least 0");
  parallel_for(n / kTensorTask + (n % kTensorTask != 0), threads, [=](i64 task) {
    const i64 begin = task * kTensorTask;
    over(begin, std::min(n, begin + kTensorTask));
  });
}

// A vector of words as wide as a format's codes. They are signed: magnitudes fit, and are compared faster.
#if defined(__GNUC__) && !defined(__CUDACC__)
// g++ makes no vectors of a loop over elements by itself, and of longer ones than the processor has slow
// code.
inline constexpr int kMagnitudeBytes = kBestVectorBits > 0 ? kBestVectorBits / 8 : 16;
template <int Bytes>
struct MagnitudeLanes {
  using Word = i32;
  using Type = i32 __attribute__((vector_size(kMagnitudeBytes)));
};
template <>
struct MagnitudeLanes<2> {
  using Word = std::int16_t;
  using Type = std::int16_t __attribute__((vector_size(kMagnitudeBytes)));
};
template <class Lanes, class Word>
OUTGRAD_HD void include_magnitudes(Lanes& most, const Lanes& codes, Word infinity) {
  const Lanes magnitude = codes & std::numeric_limits<Word>::max(),
              finite = magnitude & (magnitude < infinity);
  most = finite > most ? finite : most;
}
#else
template <int Bytes>
struct MagnitudeLanes {
  using Word = std::conditional_t<Bytes == 2, std::int16_t, i32>;
  struct Type {
    Word lane[64 / Bytes];
  };
};
template <class Lanes, class Word>
OUTGRAD_HD void include_magnitudes(Lanes& most, const Lanes& codes, Word infinity) {
  for (int k = 0; k < static_cast<int>(sizeof(Lanes) / sizeof(Word)); ++k) {
    const Word magnitude = codes.lane[k] & std::numeric_limits<Word>::max();
    if (magnitude < infinity && magnitude > most.lane[k]) most.lane[k] = magnitude;
  }
}
#endif

// The bits of the largest finite magnitude. Magnitudes of a format are in the order of their bits, so that
// these are compared as T stores them, and the largest alone is widened.
template <class T>
u32 largest_magnitude(const T* x, i64 n) {
  using Lanes = typename MagnitudeLanes<sizeof(T)>::Type;
  using Word = typename MagnitudeLanes<sizeof(T)>::Word;
  constexpr Word kInfinity = static_cast<Word>(std::is_same_v<T, float> ? kInfinityBits
                                               : std::is_same_v<T, F16> ? 0x7c00u
                                                                        : 0x7f80u);
  constexpr i64 kStep = sizeof(Lanes) / sizeof(Word);
  Lanes most{}, some{};
  i64 i = 0;
  for (; n - i >= kStep; i += kStep) {
    std::memcpy(&some, x + i, sizeof some);
    include_magnitudes(most, some, kInfinity);
  }
  some = Lanes{};
  if (n > i) std::memcpy(&some, x + i, static_cast<std::size_t>(n - i) * sizeof(T));
  include_magnitudes(most, some, kInfinity);
  Word lanes[kStep], largest = 0;
  std::memcpy(lanes, &most, sizeof lanes);
  for (const Word one : lanes) largest = one > largest ? one : largest;
  return bits_of(widen(__builtin_bit_cast(T, largest)));
}

// Elements [begin, end) of an array: whole steps by vectors, where they hold what vectors are made for
// (step(i)), and all others by element(i).
template <int kStep, class Step, class Element>
OUTGRAD_HD void in_steps(i64 begin, i64 end, const Step& step, const Element& element) {
  i64 i = begin;
  for (; end - i >= kStep; i += kStep) {
    if (__builtin_expect(step(i), 1)) continue;
    for (i64 k = i; k < i + kStep; ++k) element(k);
  }
  for (; i < end; ++i) element(i);
}

#ifdef OUTGRAD_AVX2
// Four vectors of codes; false, and nothing is written, where one of the numbers is NaN.
template <class Isa, class F, class T>
OUTGRAD_HD bool encode_vectors_at_scale(const T* x, typename Isa::Float scale, F* codes) {
  typename Isa::Float product[4];
  typename Isa::Int magnitude[4], code[4];
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) {
    product[k] = Isa::mul(Isa::load(x + k * Isa::kLanes), scale);
    magnitude[k] = Isa::bit_and(Isa::bits(product[k]), Isa::splat(0x7fffffff));
  }
  const auto most = Isa::max(Isa::max(magnitude[0], magnitude[1]), Isa::max(magnitude[2], magnitude[3]));
  if (Isa::any(Isa::greater(most, Isa::splat(static_cast<int>(kInfinityBits))))) return false;
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k)
    code[k] = BlockVectors<Isa>::signed_code(
        float8_magnitude<Isa, F>(std::bit_cast<typename Isa::Float>(magnitude[k]),
                                 Isa::splat(Float8Grid<F>::kDown)),
        product[k]);
  BlockVectors<Isa>::template store<false>(reinterpret_cast<F8E4M3*>(codes), code[0], code[1], code[2],
                                           code[3]);
  return true;
}
#endif

template <class T>
OUTGRAD_HD void encode_tensor_block(const T* x, F8E4M3* codes, E8M0& power, i64 count) {
  u32 most = 0;
  for (i64 k = 0; k < count; ++k) most = std::max(most, finite_magnitude(widen(x[k])));
  power = least_power(most);
  for (i64 k = 0; k < count; ++k) codes[k] = block_element(widen(x[k]), power);
}

template <class F, class T>
void encode_part_at_scale(const T* x, void* all, void* scales, i64 first, i64 n) {
  F* const codes = static_cast<F*>(all) + first;
  const float scale = *static_cast<const float*>(scales);
  const auto one = [=](i64 i) { codes[i] = narrow_saturated<F>(mul_rn(widen(x[i]), scale)); };
#ifdef OUTGRAD_AVX2
  using Isa = TensorIsa;
  const auto factor = Isa::splat(scale);
  in_steps<4 * Isa::kLanes>(
      0, n,
      [&](i64 i)
          __attribute__((always_inline)) { return encode_vectors_at_scale<Isa>(x + i, factor, codes + i); },
      one);
#else
  for (i64 i = 0; i < n; ++i) one(i);
#endif
}

template <class F, class T>
void decode_part_at_scale(const void* all, const void* scales, i64 first, T* x, i64 n) {
  const F* const codes = static_cast<const F*>(all) + first;
  const float scale = *static_cast<const float*>(scales);
  const auto one = [=](i64 i) { x[i] = narrow<T>(tensor_value(codes[i], scale)); };
#ifdef OUTGRAD_AVX2
  using Isa = TensorIsa;
  const auto divisor = Isa::splat(scale);
  in_steps<Isa::kLanes>(
      0, n,
      [&](i64 i) __attribute__((always_inline)) {
        Isa::template store<false>(x + i, Isa::div(Isa::load(codes + i), divisor));
        return true;
      },
      one);
#else
  for (i64 i = 0; i < n; ++i) one(i);
#endif
}

template <class T>
void encode_part_in_blocks(const T* x, void* all, void* scales, i64 first, i64 n) {
  auto* const codes = static_cast<F8E4M3*>(all) + first;
  auto* const powers = static_cast<E8M0*>(scales) + first / kTensorBlock;
  i64 i = 0;
#ifdef OUTGRAD_AVX2
  using Isa = TensorIsa;
  constexpr i64 kStep = 4 * Isa::kLanes;
  for (; n - i >= kStep; i += kStep) {
    typename Isa::Float y[4];
    OUTGRAD_UNROLL
    for (int k = 0; k < 4; ++k) y[k] = Isa::load(x + i + k * Isa::kLanes);
    if (mxfp8_blocks<Isa, false, LeastPower>(y, codes + i, powers + i / kTensorBlock)) continue;
    for (i64 k = i; k < i + kStep; k += kTensorBlock)
      encode_tensor_block(x + k, codes + k, powers[k / kTensorBlock], kTensorBlock);
  }
#endif
  for (; i < n; i += kTensorBlock)
    encode_tensor_block(x + i, codes + i, powers[i / kTensorBlock], std::min<i64>(kTensorBlock, n - i));
}

template <class T>
void decode_part_in_blocks(const void* all, const void* scales, i64 first, T* x, i64 n) {
  const auto* const codes = static_cast<const F8E4M3*>(all) + first;
  const auto* const powers = static_cast<const E8M0*>(scales) + first / kTensorBlock;
  for (i64 i = 0; i < n; i += kTensorBlock) {
    const E8M0 power = powers[i / kTensorBlock];
    const auto one = [=](i64 k) { x[k] = narrow<T>(block_value<T>(codes[k], power)); };
    const i64 last = std::min(n, i + kTensorBlock);
#ifdef OUTGRAD_AVX2
    using Isa = TensorIsa;
    // elsewhere a code may stand for more than T has
    const bool usual = mul_rn(kLargestOf<F8E4M3>, widen(power)) <= kMostOf<T>;
    const auto factor = Isa::splat(widen(power));
    in_steps<Isa::kLanes>(
        i, last,
        [&](i64 k) __attribute__((always_inline)) {
          if (usual) Isa::template store<false>(x + k, Isa::mul(Isa::load(codes + k), factor));
          return usual;
        },
        one);
#else
    for (i64 k = i; k < last; ++k) one(k);
#endif
  }
}

// What any number of threads find a larger number in.
inline void raise_to(std::atomic<u32>& most, u32 found) {
  u32 known = most.load(std::memory_order_relaxed);
  while (found > known && !most.compare_exchange_weak(known, found, std::memory_order_relaxed)) continue;
}

inline void require_scale(const char* kernel, float scale) {
  if (!scale_holds(scale)) refuse(refusal(kernel) + "a scale is positive, finite and normal");
}

}  // namespace detail

template <class F, class T>
inline constexpr TensorFormat<T> kTensorAtScale = {
    [](u32 largest, float least) { return tensor_scale<F>(largest, least); },
    detail::encode_part_at_scale<F, T>, detail::decode_part_at_scale<F, T>};
template <class T>
inline constexpr TensorFormat<T> kTensorInBlocks = {nullptr, detail::encode_part_in_blocks<T>,
                                                    detail::decode_part_in_blocks<T>};

template <class F, class T>
float scale_of_tensor(const T* x, i64 n, float least, int threads) {
  constexpr const char* kName = "scale_of_tensor";
  if (!(kLeastOfTensors <= least && least <= kMostOfTensors))
    detail::refuse(detail::refusal(kName) + "least must lie in [2^-100, 2^127]");
  std::atomic<u32> all = 0;
  detail::over_tensor(kName, n, threads, [x, &all](i64 begin, i64 end) {
    detail::raise_to(all, detail::largest_magnitude(x + begin, end - begin));
  });
  const DefaultFloatEnvironment environment;
  return tensor_scale<F>(all.load(std::memory_order_relaxed), least);
}

template <class F, class T>
void encode_tensor(const T* x, F* codes, i64 n, float scale, int threads) {
  constexpr const char* kName = "encode_tensor";
  detail::require_scale(kName, scale);
  detail::over_tensor(kName, n, threads, [=](i64 begin, i64 end) {
    float own = scale;
    detail::encode_part_at_scale<F>(x + begin, codes, &own, begin, end - begin);
  });
}

template <class F, class T>
void decode_tensor(const F* codes, float scale, T* x, i64 n, int threads) {
  constexpr const char* kName = "decode_tensor";
  detail::require_scale(kName, scale);
  detail::over_tensor(kName, n, threads, [=](i64 begin, i64 end) {
    detail::decode_part_at_scale<F>(codes, &scale, begin, x + begin, end - begin);
  });
}

template <class T>
void encode_tensor_blocks(const T* x, F8E4M3* codes, E8M0* scales, i64 n, int threads) {
  detail::over_tensor("encode_tensor_blocks", n, threads, [=](i64 begin, i64 end) {
    detail::encode_part_in_blocks(x + begin, codes, scales, begin, end - begin);
  });
}

template <class T>
void decode_tensor_blocks(const F8E4M3* codes, const E8M0* scales, T* x, i64 n, int threads) {
  detail::over_tensor("decode_tensor_blocks", n, threads, [=](i64 begin, i64 end) {
    detail::decode_part_in_blocks(codes, scales, begin, x + begin, end - begin);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
