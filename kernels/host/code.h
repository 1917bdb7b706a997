// Codes for f'(x) over arrays on the CPU (kernels/stores/code.h): the forward that writes y and the codes,
// and the backward that reads the codes alone. Every schedule gives the same bits. Codes are packed as
// kernels/host/stores.h says; n of k bits take ceil(k n / 8) bytes.
#pragma once

#include "kernels/catalogue/codes.h"
#include "kernels/host/call.h"
#include "kernels/host/dropout.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/forwards.h"
#include "kernels/host/stores.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The rule of a call, whatever rounding mode its caller is in. Not inlined, so that its operands are loaded
// behind the change of the mode.
__attribute__((noinline)) inline CodeRule rule_of(const CodeChoice& choice, const CodeRange& range) {
  const DefaultFloatEnvironment environment;
  return choice.seed != nullptr ? dithered_code(range, choice.bits) : exact_code(range, choice.bits);
}

// Sets y[i] = f(x[i]), as gelu_forward does with ForwardFit<T> or activation_forward, and code i to that of
// x[i], for i in [0, n). y may equal x; codes overlaps neither. A is a CodedActivation of
// kernels/catalogue/codes.h. For a 16-bit T the first call fills a static table of 256 KiB, and the first
// with dithered codes another one, which later calls read. Element i has the dither of word i % 4 of
// Philox(counter = i / 4, key = seed), as in kernels/dropout.h. Of the schedule, unroll and table matter only
// to GELU's forward in f32, whose y and g come from polynomials.
template <class A, class T, CpuSchedule S>
void activation_forward_code(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 n);

// Sets dx[i] = dy[i] g, where g is what code i stands for, as dx = RN_T(RN_f32(dy g)). The range is that of
// the forward's A::Code. dx may equal dy and overlaps nothing otherwise.
template <class T, CpuSchedule S>
void activation_backward_code(const CodeRange& range, const CodeChoice& choice, const T* dy, const u8* codes,
                              T* dx, i64 n);

// The codes alone, of n gradients that the caller has computed by a function of its own: code i is that of
// g[i], as if it were the g of kernels/stores/code.h. Its header's kG is what the caller promises of g, the
// rounding to T included. Nothing overlaps.
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

// -d of the elements from `first` on, a multiple of kCodeBlock.
inline void negative_dithers(u64 seed, i64 first, float* minus_d) {
  for (int k = 0; k < kCodeBlock; k += kDropoutPack) {
    u32 words[kDropoutPack];
    philox_pack(static_cast<u64>(first + k) / 4, seed, words,
                [](auto word) __attribute__((always_inline)) { return word; });
    for (int i = 0; i < kDropoutPack; ++i) minus_d[k + i] = -dither_of(words[i]);
  }
}

// The codes from `first` on as numbers, of as many elements as ops handles at once (`first` is a multiple of
// that). Reads up to 8 bytes beyond them where they are less than a byte.
template <class Ops>
OUTGRAD_HD typename Ops::Value load_numbers(const Ops&, const u8* packed, int first, int bits) {
  if constexpr (std::is_same_v<Ops, FloatOps>) {
    const u8* const at = packed + first * bits / 8;
    const u32 two = at[0] | (bits < 8 ? static_cast<u32>(at[1]) << 8 : 0u);
    return static_cast<float>(two >> first * bits % 8 & ((1u << bits) - 1));
  } else {
    typename Ops::Value numbers;
    constexpr int kPacks = sizeof(numbers.v) / sizeof(*numbers.v), kLanes = Ops::kElements / kPacks;
    OUTGRAD_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      [[maybe_unused]] const int at = first + i * kLanes;
#ifdef OUTGRAD_AVX512
      if constexpr (kLanes == 16)
        numbers.v[i] = _mm512_maskz_cvtepi32_ps(0xffff, sixteen_numbers(packed, at, bits));
#endif
#ifdef OUTGRAD_AVX2
      if constexpr (kLanes == 8) {
        const u64 eight = eight_numbers(packed, at, bits);
        numbers.v[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<i64>(eight))));
      }
#endif
    }
    return numbers;
  }
}

template <class A>
constexpr CodeRange range_of() {
  return {A::Code::kLo, A::Code::kHi};
}

// Codes before the shift, of kCodeBlock g; minus_d is null for exact codes.
template <CpuSchedule S, class T>
void code_block(const CodeRule& rule, const T* g, const float* minus_d, u8* numbers) {
  if (minus_d == nullptr) {
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      ops.store_bytes(numbers + k, coded(ops, rule, in_cells(ops, rule, ops.load(g + k))));
    });
  } else {
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      ops.store_bytes(numbers + k,
                      coded(ops, rule, ops.sub(in_cells(ops, rule, ops.load(g + k)), ops.load(minus_d + k))));
    });
  }
}

// y and mask bits of kCodeBlock f32 x, by the loops over arrays; y may equal x.
template <class Forward, CpuSchedule S>
void value_block(const float* x, float* y, u32* mask) {
  fitted_forward<F32FitOf<Forward>, float, S>(x, y, mask, kCodeBlock);
}

// y and g by a fit, from element k of a block on as far as whole packs of kCount vectors reach; returns where
// it stopped.
template <class Forward, CpuSchedule S, int kCount, bool kStreaming>
OUTGRAD_HD int fitted_packs(const float* x, float* y, float* g, int k) {
  constexpr LanesOf<S, kCount> kOps{};
  constexpr auto& kColumns = kForwardColumns<Forward>;
  for (; k + kOps.kElements <= kCodeBlock; k += kOps.kElements) {
    fetch_ahead<kStreaming>(x + k, kOps.kElements);
    const auto at =
        evaluate_forward_and_slope(kOps, Forward{}, kColumns.core, kColumns.tail, kOps.load(x + k));
    kOps.template store<kStreaming>(y + k, at.f);
    store_value<false>(kOps, g + k, at.slope);
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

// y of one x.
template <class Forward, class T>
OUTGRAD_HD T forward_element(T x) {
  if constexpr (requires { Forward::table(); }) {
    return fitted_forward_element(Forward{}, kForwardTables<Forward>, x).y;
  } else {
    return forward_of<Forward>(x);
  }
}

// y and, above it, the code of 8 bits of each 16-bit x, and g.
template <class A, class T>
const u32* codes_by_code() {
  return table_by_code<T>([](T x) {
    using Wide = typename A::template Forward<float>;
    constexpr CodeRule kRule = exact_code(range_of<A>(), kMostCodeBits);
    return forward_element<typename A::template Forward<T>>(x).bits |
           static_cast<u32>(coded_gradient(kRule, gradient_at<Wide>(widen(x)))) << 16;
  });
}
template <class A, class T>
const float* gradients_by_code() {
  return table_by_code<T>([](T x) { return gradient_at<typename A::template Forward<float>>(widen(x)); });
}

// The codes alone, of gradients.
struct GradientEncoder {
  static constexpr int kInPlace = 0;
  static constexpr bool kStreams = false, kStagedStreams = false;
  CodeChoice choice;
  CodeRule rule;

  template <CpuSchedule S, bool, class T>
  void encode(i64 first, const T* g, u8* const* to) const {
    alignas(64) u8 numbers[kCodeBlock];
    alignas(64) float minus_d[kCodeBlock];
    const bool dithered = choice.seed != nullptr;
    if (dithered) negative_dithers(*choice.seed, first, minus_d);
    code_block<S>(rule, g, dithered ? minus_d : nullptr, numbers);
    pack_codes(numbers, choice.bits, rule.shift, to[0]);
  }
};

// y, which may be x, and the codes.
template <class A>
struct CodeEncoder {
  static constexpr int kInPlace = 1;
  static constexpr bool kStreams = true, kStagedStreams = true;
  GradientEncoder codes;

  template <CpuSchedule S, bool kStreaming, class T>
  void encode(i64 first, const T* x, u8* const* to) const {
    T* const y = reinterpret_cast<T*>(to[0]);
    alignas(64) float g[kCodeBlock];
    if constexpr (sizeof(T) == 2) {
      const bool dithered = codes.choice.seed != nullptr;
      if (dithered) {
        const float* const gradients = gradients_by_code<A, T>();
        for (int k = 0; k < kCodeBlock; ++k) g[k] = gradients[x[k].bits];
      }
      alignas(64) u8 numbers[kCodeBlock];
      look_up<S, kStreaming>(codes_by_code<A, T>(), x, y, numbers);
      if (!dithered) return pack_codes(numbers, codes.choice.bits, codes.rule.shift, to[1]);
    } else {
      forward_block<typename A::template Forward<float>, S, kStreaming>(x, y, g);
    }
    keep_block<S, false>(codes, first, g, to + 1);
  }
};

struct CodeDecoder {
  static constexpr bool kStreams = true;
  CodeChoice choice;
  CodeRule rule;

  template <CpuSchedule, class Use>
  OUTGRAD_HD void with_gradients(i64 first, const u8* const* kept, float* scratch, const Use& use) const {
    // Copies, for the compiler takes dx for something that may alias the members.
    const CodeRule by = rule;
    const int bits = choice.bits;
    const u8* const packed = kept[0];
    if (choice.seed == nullptr) {
      return use([=](const auto& ops, int k) __attribute__((always_inline)) {
        return decoded(ops, by, load_numbers(ops, packed, k, bits));
      });
    }
    negative_dithers(*choice.seed, first, scratch);
    use([=](const auto& ops, int k) __attribute__((always_inline)) {
      const auto number = load_numbers(ops, packed, k, bits);
      return decoded(ops, by, ops.sub(number, ops.negate(ops.load(scratch + k))));
    });
  }
};

}  // namespace detail

template <class A, class T, CpuSchedule S>
void activation_forward_code(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 n) {
  const detail::CodeEncoder<A> encoder{{choice, rule_of(choice, detail::range_of<A>())}};
  detail::keep<S>(encoder, x,
                  {detail::Plane<u8>{reinterpret_cast<u8*>(y), 8 * sizeof(T)}, {codes, choice.bits}}, n);
}

template <class T, CpuSchedule S>
void encode_gradients(const CodeRange& range, const CodeChoice& choice, const T* g, u8* codes, i64 n) {
  detail::keep<S>(detail::GradientEncoder{choice, rule_of(choice, range)}, g,
                  {detail::Plane<u8>{codes, choice.bits}}, n);
}

template <class T, CpuSchedule S>
void activation_backward_code(const CodeRange& range, const CodeChoice& choice, const T* dy, const u8* codes,
                              T* dx, i64 n) {
  detail::restore<S>(detail::CodeDecoder{choice, rule_of(choice, range)}, dy,
                     {detail::Plane<const u8>{codes, choice.bits}}, dx, n);
}

// y is kept by the caller for whatever reads it next, not for the backward.
template <>
struct HostStore<StoreId::kCode> {
  template <int kActivation, class>
  using Of = CodedActivationAt<kActivation>;

  template <class A, class T, CpuSchedule S>
  static void forward(const StoreCall& a, const T* x, i64 n) {
    activation_forward_code<A, T, S>(a.choice, x, static_cast<T*>(a.y), a.codes, n);
  }
  template <class, class T, CpuSchedule S>
  static void backward(const StoreCall& a, const T* dy, T* dx, i64 n) {
    activation_backward_code<T, S>(a.range, a.choice, dy, a.codes, dx, n);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
