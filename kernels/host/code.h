// Codes for f'(x) over arrays on the CPU (kernels/code.h): the forward that writes y and the codes, and the
// backward that reads the codes alone. Every schedule gives the same bits.
//
// Codes of k bits are packed without gaps: element i has the bits k i to k i + k - 1 of the array, where bit
// b is bit b % 8 of byte b / 8. n codes take ceil(k n / 8) bytes, and the bits beyond the last one are 0.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/host/call.h"
#include "kernels/host/dropout.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/forwards.h"

#ifdef __BMI2__
#include <immintrin.h>
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The rule of a call, whatever rounding mode its caller is in. Not inlined, so that its operands are loaded
// behind the change of the mode.
__attribute__((noinline)) inline CodeRule rule_of(const CodeChoice& choice, const CodeRange& range) {
  const DefaultFloatEnvironment environment;
  return choice.seed != nullptr ? dithered_code(range, choice.bits) : exact_code(range, choice.bits);
}

// Sets y[i] = f(x[i]), as gelu_forward does with ForwardFit<T> or activation_forward, and code i to that of
// x[i], for i in [0, n). y may equal x; codes overlaps neither. A is a CodedActivation of kernels/codes.h.
// For a 16-bit T the first call fills a static table of 256 KiB, and the first with dithered codes another
// one, which later calls read. Element i has the dither of word i % 4 of Philox(counter = i / 4, key = seed),
// as in kernels/dropout.h. Of the schedule, unroll and table matter only to GELU's forward in f32, whose y
// and g come from polynomials.
template <class A, class T, CpuSchedule S>
void activation_forward_code(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 n);

// Sets dx[i] = dy[i] g, where g is what code i stands for, as dx = RN_T(RN_f32(dy g)). The range is that of
// the forward's A::Code. dx may equal dy and overlaps nothing otherwise.
template <class T, CpuSchedule S>
void activation_backward_code(const CodeRange& range, const CodeChoice& choice, const T* dy, const u8* codes,
                              T* dx, i64 n);

// The codes alone, of n gradients that the caller has computed by a function of its own: code i is that of
// g[i], as if it were the g of kernels/code.h. Its header's kG is what the caller promises of g, the rounding
// to T included. Nothing overlaps.
template <class T, CpuSchedule S>
void encode_gradients(const CodeRange& range, const CodeChoice& choice, const T* g, u8* codes, i64 n);

// GELU's, in the order of the catalogue.
template <class T, CpuSchedule S>
void gelu_forward_code(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 n) {
  activation_forward_code<CodedGelu, T, S>(choice, x, y, codes, n);
}
template <class T, CpuSchedule S>
void gelu_backward_code(const CodeChoice& choice, const T* dy, const u8* codes, T* dx, i64 n) {
  activation_backward_code<T, S>({CodedGelu::Code::kLo, CodedGelu::Code::kHi}, choice, dy, codes, dx, n);
}

// -------------------------------------------------------------------------------------------------

namespace detail {

// Elements that go through the steps below together: each step's arrays stay in the first-level cache, and
// whole blocks begin on whole bytes.
inline constexpr int kCodeBlock = 1024;
static_assert(kCodeBlock % kDropoutPack == 0);

inline constexpr u64 kEachByte = 0x0101010101010101u;

// The same k bits of each of 8 bytes, side by side, and back: `field` has the k bits set in each byte, at the
// lowest bits for expanded().
#ifdef __BMI2__
OUTGRAD_HD u64 compressed(u64 bytes, u64 field, int) { return _pext_u64(bytes, field); }
OUTGRAD_HD u64 expanded(u64 bits, u64 field, int) { return _pdep_u64(bits, field); }
#else
// Neighbours are joined: bytes to pairs, pairs to quartets, quartets to one.
OUTGRAD_HD u64 compressed(u64 bytes, u64 field, int k) {
  const u64 ones = (u64{1} << k) - 1;
  u64 v = (bytes & field) >> __builtin_ctzll(field);
  v = (v & ones * 0x0001000100010001u) | (v & (ones << 8) * 0x0001000100010001u) >> (8 - k);
  const u64 pair = (u64{1} << 2 * k) - 1;
  v = (v & pair * 0x0000000100000001u) | (v & (pair << 16) * 0x0000000100000001u) >> (16 - 2 * k);
  const u64 quartet = (u64{1} << 4 * k) - 1;
  return (v & quartet) | (v & quartet << 32) >> (32 - 4 * k);
}
OUTGRAD_HD u64 expanded(u64 bits, u64, int k) {
  const u64 quartet = (u64{1} << 4 * k) - 1, pair = (u64{1} << 2 * k) - 1, ones = (u64{1} << k) - 1;
  u64 v = (bits & quartet) | (bits & quartet << 4 * k) << (32 - 4 * k);
  v = (v & pair * 0x0000000100000001u) | (v & (pair << 2 * k) * 0x0000000100000001u) << (16 - 2 * k);
  return (v & ones * 0x0001000100010001u) | (v & (ones << k) * 0x0001000100010001u) << (8 - k);
}
#endif

// The k bits from `shift` on of each of kCodeBlock bytes; writes as many bytes as that many codes have, and 8
// more.
OUTGRAD_HD void pack_codes(const u8* numbers, int bits, int shift, u8* packed) {
  const u64 field = kEachByte * (((1u << bits) - 1) << shift);
  for (int k = 0; k < kCodeBlock; k += 8, packed += bits) {
    u64 eight;
    std::memcpy(&eight, numbers + k, sizeof eight);
    eight = compressed(eight, field, bits);
    std::memcpy(packed, &eight, sizeof eight);
  }
}

// -d of the elements from `first` on, a multiple of kCodeBlock.
inline void negative_dithers(u64 seed, i64 first, float* minus_d) {
  for (int k = 0; k < kCodeBlock; k += kDropoutPack) {
    u32 words[kDropoutPack];
    philox_pack(static_cast<u64>(first + k) / 4, seed, words,
                [](auto word) __attribute__((always_inline)) { return word; });
    for (int i = 0; i < kDropoutPack; ++i) minus_d[k + i] = -dither_of(words[i]);
  }
}

// body(ops, k) for k = 0, ..., kCodeBlock in steps of what ops handles at once.
template <CpuSchedule S, class Body>
OUTGRAD_HD void over_code_block(const Body& body) {
  if constexpr (S.vector_bits > 0) {
    constexpr LanesOf<S, 2> kOps{};
    for (int k = 0; k < kCodeBlock; k += kOps.kElements) body(kOps, k);
  } else {
    for (int k = 0; k < kCodeBlock; ++k) body(FloatOps{}, k);
  }
}

template <bool kStreaming, class Ops, class T>
OUTGRAD_HD void store_value(const Ops& ops, T* to, const typename Ops::Value& value) {
  if constexpr (std::is_same_v<Ops, FloatOps>) {
    *to = narrow<T>(value);
  } else {
    ops.template store<kStreaming>(to, value);
  }
}

// The codes from `first` on as numbers, of as many elements as ops handles at once (`first` is a multiple of
// that), with `field` as in expanded(). Reads up to 8 bytes beyond them.
template <class Ops>
OUTGRAD_HD typename Ops::Value load_numbers(const Ops&, const u8* packed, int first, int bits, u64 field) {
  if constexpr (std::is_same_v<Ops, FloatOps>) {
    u16 two;
    std::memcpy(&two, packed + first * bits / 8, sizeof two);
    return static_cast<float>(static_cast<u64>(two >> first * bits % 8) & (field & 0xff));
  } else {
    typename Ops::Value numbers;
    constexpr int kPacks = sizeof(numbers.v) / sizeof(*numbers.v), kLanes = Ops::kElements / kPacks;
    const auto eight = [=](int group) __attribute__((always_inline)) {
      u64 word;
      std::memcpy(&word, packed + (first / 8 + group) * bits, sizeof word);
      return static_cast<i64>(expanded(word, field, bits));
    };
    OUTGRAD_UNROLL
    for (int i = 0; i < kPacks; ++i) {
#ifdef OUTGRAD_AVX512
      // with a mask of all lanes, for g++ 12 takes the forms without one for a mistake, as in kernels/simd.h
      if constexpr (kLanes == 16) {
        const __m512i wide =
            _mm512_maskz_cvtepu8_epi32(0xffff, _mm_set_epi64x(eight(2 * i + 1), eight(2 * i)));
        numbers.v[i] = _mm512_maskz_cvtepi32_ps(0xffff, wide);
      }
#endif
#ifdef OUTGRAD_AVX2
      if constexpr (kLanes == 8)
        numbers.v[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight(i))));
#endif
    }
    return numbers;
  }
}

// Whether the next of `left` elements are a block whose packed codes have the 8 bytes behind them that
// load_numbers may read. Otherwise they are copied first.
OUTGRAD_HD bool block_is_readable(int bits, i64 left) {
  return left >= kCodeBlock && (bits == 0 || code_bytes(bits, left) >= kCodeBlock / 8 * bits + 8);
}

template <class A>
constexpr CodeRange range_of() {
  return {A::Code::kLo, A::Code::kHi};
}

inline bool is_line_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0;
}

// Codes before the shift, of kCodeBlock g; minus_d is null for exact codes.
template <CpuSchedule S, class T>
void code_block(const CodeRule& rule, const T* g, const float* minus_d, u8* numbers) {
  alignas(64) float q[kCodeBlock];
  if (minus_d == nullptr) {
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      store_value<false>(ops, q + k, coded(ops, rule, in_cells(ops, rule, ops.load(g + k))));
    });
  } else {
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      store_value<false>(
          ops, q + k, coded(ops, rule, ops.sub(in_cells(ops, rule, ops.load(g + k)), ops.load(minus_d + k))));
    });
  }
  for (int k = 0; k < kCodeBlock; ++k) numbers[k] = static_cast<u8>(bits_of(q[k]));
}

// y and mask bits of kCodeBlock f32 x, by the loops over arrays; y may equal x.
template <class Forward, CpuSchedule S>
void value_block(const float* x, float* y, u32* mask) {
  if constexpr (requires { Forward::table(); }) {
    gelu_forward<Forward, float, S>(x, y, mask, kCodeBlock);
  } else {
    activation_forward<Forward, float, S>(x, y, mask, kCodeBlock);
  }
}

// y and g by a fit, from element k of a block on as far as whole packs of kCount vectors reach; returns where
// it stopped.
template <class Forward, CpuSchedule S, int kCount, bool kStreaming>
OUTGRAD_HD int fitted_packs(const float* x, float* y, float* g, int k) {
  constexpr LanesOf<S, kCount> kOps{};
  constexpr auto& kColumns = kForwardColumns<Forward>;
  u8 mask[kOps.kElements / 8];  // nobody asks for it
  for (; k + kOps.kElements <= kCodeBlock; k += kOps.kElements) {
    fetch_ahead<kStreaming>(x + k, kOps.kElements);
    const auto pack = kOps.load(x + k);
    store_value<false>(kOps, g + k,
                       evaluate_forward_derivative(kOps, Forward{}, kColumns.core, kColumns.tail, pack));
    forward_pack<Forward, float, kStreaming>(kOps, pack, y + k, mask);
  }
  return k;
}

// y and g of kCodeBlock f32 x; y may equal x. A fit's y goes past the cache if kStreaming.
template <class Forward, CpuSchedule S, bool kStreaming>
void forward_block(const float* x, float* y, float* g) {
  if constexpr (S.vector_bits > 0 && requires { Forward::table(); }) {
    fitted_packs<Forward, S, 1, kStreaming>(x, y, g,
                                            fitted_packs<Forward, S, S.unroll, kStreaming>(x, y, g, 0));
  } else {
    if constexpr (S.vector_bits > 0) {
      using Doubles = DoublesOf<S.vector_bits>;
      for (int k = 0; k < kCodeBlock; k += Doubles::kLanes)
        Doubles::store(g + k, slope_of<Forward>(Doubles{}, Doubles::load(x + k)));
    } else {
      for (int k = 0; k < kCodeBlock; ++k) g[k] = gradient_at<Forward>(x[k]);
    }
    u32 mask[kCodeBlock / 32];
    value_block<Forward, S>(x, y, mask);
  }
}

// What follows from a 16-bit x, by its bits: y and, above it, the code of 8 bits; and g.
template <class Forward, class T>
OUTGRAD_HD T forward_element(T x) {
  if constexpr (requires { Forward::table(); }) {
    return gelu_forward_element(Forward{}, kForwardTables<Forward>, x).y;
  } else {
    return forward_of<Forward>(x);
  }
}

template <class A, class T>
struct GradientsByCode {
  float g[kCodes];

  GradientsByCode() {
    const DefaultFloatEnvironment environment;
    for (i64 code = 0; code < kCodes; ++code)
      g[code] = gradient_at<typename A::template Forward<float>>(widen(T{static_cast<u16>(code)}));
  }
};
template <class A, class T>
const float* gradients_by_code() {
  static const GradientsByCode<A, T> table;
  return table.g;
}

template <class A, class T>
struct CodesByCode {
  u32 entry[kCodes];

  CodesByCode() {
    const DefaultFloatEnvironment environment;
    const CodeRule rule = exact_code(range_of<A>(), kMostCodeBits);
    for (i64 code = 0; code < kCodes; ++code) {
      const T x{static_cast<u16>(code)};
      entry[code] =
          forward_element<typename A::template Forward<T>>(x).bits |
          static_cast<u32>(coded_gradient(rule, gradient_at<typename A::template Forward<float>>(widen(x))))
              << 16;
    }
  }
};
template <class A, class T>
const u32* codes_by_code() {
  static const CodesByCode<A, T> table;
  return table.entry;
}

// The entries of kCodeBlock x, split into y and numbers.
template <CpuSchedule S, bool kStreaming, class T>
OUTGRAD_HD void look_up(const u32* entries, const T* x, T* y, u8* numbers) {
#ifdef OUTGRAD_AVX512
  if constexpr (S.vector_bits == 512) {
    constexpr __mmask16 kAll = 0xffff;  // see load_numbers
    for (int k = 0; k < kCodeBlock; k += 16) {
      fetch_ahead<kStreaming>(x + k, 16);
      const __m512i entry = entries_at(entries, x + k);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + k),
                       _mm512_maskz_cvtepi32_epi8(kAll, _mm512_maskz_srli_epi32(kAll, entry, 16)));
      const __m256i lower = _mm512_maskz_cvtepi32_epi16(kAll, entry);
      __m256i* const to = reinterpret_cast<__m256i*>(y + k);
      if constexpr (kStreaming) {
        _mm256_stream_si256(to, lower);
      } else {
        _mm256_storeu_si256(to, lower);
      }
    }
    return;
  }
#endif
  for (int k = 0; k < kCodeBlock; ++k) {
    const u32 entry = entries[x[k].bits];
    y[k].bits = static_cast<u16>(entry);
    numbers[k] = static_cast<u8>(entry >> 16);
  }
}

// The codes of a block of g. Codes are left in `packed`, which has 8 bytes more than they take.
template <CpuSchedule S, class T>
void encode_block(const CodeChoice& choice, const CodeRule& rule, i64 first, const T* g, u8* packed) {
  alignas(64) u8 numbers[kCodeBlock];
  alignas(64) float minus_d[kCodeBlock];
  const bool dithered = choice.seed != nullptr;
  if (dithered) negative_dithers(*choice.seed, first, minus_d);
  code_block<S>(rule, g, dithered ? minus_d : nullptr, numbers);
  pack_codes(numbers, choice.bits, rule.shift, packed);
}

// One block of whole size, as above; y may equal x.
template <class A, class T, CpuSchedule S, bool kStreaming>
void forward_code_block(const CodeChoice& choice, const CodeRule& rule, i64 first, const T* x, T* y,
                        u8* packed) {
  alignas(64) float g[kCodeBlock];
  if constexpr (sizeof(T) == 2) {
    const bool dithered = choice.seed != nullptr;
    if (dithered) {
      const float* const gradients = gradients_by_code<A, T>();
      for (int k = 0; k < kCodeBlock; ++k) g[k] = gradients[x[k].bits];
    }
    alignas(64) u8 numbers[kCodeBlock];
    look_up<S, kStreaming>(codes_by_code<A, T>(), x, y, numbers);
    if (!dithered) return pack_codes(numbers, choice.bits, rule.shift, packed);
  } else {
    forward_block<typename A::template Forward<float>, S, kStreaming>(x, y, g);
  }
  encode_block<S>(choice, rule, first, g, packed);
}

// Whole lines, past the cache if kStreaming.
template <bool kStreaming>
OUTGRAD_HD void copy_lines(const u8* from, u8* to, int bytes) {
#ifdef OUTGRAD_AVX2
  if constexpr (kStreaming) {
    for (int k = 0; k < bytes; k += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + k),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(from + k)));
    }
    return;
  }
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// The codes of [begin, end) of `from`, by blocks: block(first, elements, packed) leaves those of a block of
// whole size in `packed`, as above, and part(first, count, elements, packed) those of one that only begins
// with `count` elements, of a copy that does not end there.
template <bool kStreaming, class T, class Block, class Part>
OUTGRAD_HD void write_codes(int bits, const T* from, u8* codes, i64 begin, i64 end, const Block& block,
                            const Part& part) {
  alignas(64) u8 packed[kCodeBlock + 8];
  i64 i = begin;
  for (; i + kCodeBlock <= end; i += kCodeBlock) {
    block(i, from + i, packed);
    copy_lines<kStreaming>(packed, codes + i / 8 * bits, kCodeBlock / 8 * bits);
  }
  if (i < end) {
    const i64 count = end - i;
    alignas(64) T whole[kCodeBlock] = {};
    std::copy_n(from + i, count, whole);
    part(i, count, whole, packed);
    const i64 bytes = code_bytes(bits, count), rest = count * bits % 8;
    if (rest != 0) packed[bytes - 1] = static_cast<u8>(packed[bytes - 1] & ((1u << rest) - 1));
    std::copy_n(packed, bytes, codes + i / 8 * bits);
  }
  end_streaming<kStreaming>();
}

template <class A, class T, CpuSchedule S, bool kStreaming>
void forward_code_range(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 begin, i64 end) {
  const CodeRule rule = rule_of(choice, range_of<A>());
  write_codes<kStreaming>(
      choice.bits, x, codes, begin, end,
      [&](i64 first, const T* from, u8* packed) {
        forward_code_block<A, T, S, kStreaming>(choice, rule, first, from, y + first, packed);
      },
      [&](i64 first, i64 count, const T* from, u8* packed) {
        alignas(64) T to[kCodeBlock];
        forward_code_block<A, T, S, false>(choice, rule, first, from, to, packed);
        std::copy_n(to, count, y + first);
      });
}

// dx of a block of codes, of which the bytes up to 8 beyond the last are readable.
template <class T, CpuSchedule S, bool kStreaming>
void backward_code_block(const CodeChoice& choice, const CodeRule& rule, i64 first, const T* dy,
                         const u8* packed, T* dx) {
  const u64 field = kEachByte * ((1u << choice.bits) - 1);
  if (choice.seed == nullptr) {
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      fetch_ahead<kStreaming>(dy + k, sizeof(ops.load(dy)) / sizeof(float));
      store_value<kStreaming>(
          ops, dx + k,
          ops.mul(ops.load(dy + k), decoded(ops, rule, load_numbers(ops, packed, k, choice.bits, field))));
    });
  } else {
    alignas(64) float minus_d[kCodeBlock];
    negative_dithers(*choice.seed, first, minus_d);
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      const auto number =
          ops.sub(load_numbers(ops, packed, k, choice.bits, field), ops.negate(ops.load(minus_d + k)));
      store_value<kStreaming>(ops, dx + k, ops.mul(ops.load(dy + k), decoded(ops, rule, number)));
    });
  }
}

template <class T, CpuSchedule S, bool kStreaming>
void backward_code_range(const CodeRange& range, const CodeChoice& choice, const T* dy, const u8* codes,
                         T* dx, i64 begin, i64 end) {
  const CodeRule rule = rule_of(choice, range);
  i64 i = begin;
  for (; block_is_readable(choice.bits, end - i); i += kCodeBlock) {
    fetch_ahead<kStreaming>(codes + i / 8 * choice.bits, kCodeBlock / 8 * choice.bits);
    backward_code_block<T, S, kStreaming>(choice, rule, i, dy + i, codes + i / 8 * choice.bits, dx + i);
  }
  for (; i < end; i += kCodeBlock) {
    const i64 count = std::min<i64>(end - i, kCodeBlock);
    u8 packed[kCodeBlock + 8] = {};
    alignas(64) T from[kCodeBlock] = {}, to[kCodeBlock];
    std::copy_n(codes + i / 8 * choice.bits, code_bytes(choice.bits, count), packed);
    std::copy_n(dy + i, count, from);
    backward_code_block<T, S, false>(choice, rule, i, from, packed, to);
    std::copy_n(to, count, dx + i);
  }
  end_streaming<kStreaming>();
}

}  // namespace detail

template <class A, class T, CpuSchedule S>
void activation_forward_code(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 n) {
  static_assert(detail::schedule_holds<S>());
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams<S>(y, n) && detail::is_line_aligned(codes)) {
      detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
        detail::forward_code_range<A, T, detail::kLoopOf<S>, true>(choice, x, y, codes, begin, end);
      });
      return;
    }
  }
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    detail::forward_code_range<A, T, detail::kLoopOf<S>, false>(choice, x, y, codes, begin, end);
  });
}

template <class T, CpuSchedule S>
void encode_gradients(const CodeRange& range, const CodeChoice& choice, const T* g, u8* codes, i64 n) {
  static_assert(detail::schedule_holds<S>());
  const CodeRule rule = rule_of(choice, range);
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    const auto block = [&](i64 first, const T* from, u8* packed) {
      detail::encode_block<detail::kLoopOf<S>>(choice, rule, first, from, packed);
    };
    detail::write_codes<false>(
        choice.bits, g, codes, begin, end, block,
        [&](i64 first, i64, const T* from, u8* packed) { block(first, from, packed); });
  });
}

template <class T, CpuSchedule S>
void activation_backward_code(const CodeRange& range, const CodeChoice& choice, const T* dy, const u8* codes,
                              T* dx, i64 n) {
  static_assert(detail::schedule_holds<S>());
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams<S>(dx, n)) {
      detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
        detail::backward_code_range<T, detail::kLoopOf<S>, true>(range, choice, dy, codes, dx, begin, end);
      });
      return;
    }
  }
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    detail::backward_code_range<T, detail::kLoopOf<S>, false>(range, choice, dy, codes, dx, begin, end);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
