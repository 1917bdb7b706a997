// Codes for f'(x) on a GPU (kernels/stores/code.h): the forward that writes y and the codes, the codes of
// gradients that the caller has computed, and the backward that reads the codes alone. Codes are packed as
// kernels/host/code.h says, and every bit is the host's.
//
// The codes of an octet are as many bytes as a code has bits, so that octets share no byte. 1, 2, 4 or 8 of
// them are a word, which its thread stores. Other numbers are no word; the lanes of a warp, whose octets fill
// whole words of 4 bytes, then pass their codes on, and each stores words. Where the arrays are not aligned,
// and at a ragged end, a thread moves its octet's codes byte by byte.
#pragma once

#include "kernels/catalogue/codes.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/dropout.h"
#include "kernels/forward_fits.h"
#include "kernels/forwards.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

template <int Bits>
inline constexpr bool kCodesAreWord = is_power_of_two(Bits);

// Whether octets of codes can be moved in words.
template <int Bits>
__device__ __forceinline__ bool codes_aligned(const u8* codes) {
  return reinterpret_cast<u64>(codes) % (kCodesAreWord<Bits> ? Bits : 4) == 0;
}

// The schedule of the kernels below that evaluate no function, with nothing left open: they have no table, so
// no rows to pick.
template <class Schedule, class T>
inline constexpr GpuSchedule kPlainCodeSchedule = completed(
    Schedule::kSchedule, {.forward = false, .bias = false, .element_bytes = sizeof(T), .rows = false});

// The word of Bytes bytes, in the low bits of a u64.
template <int Bytes>
__device__ __forceinline__ u64 load_bytes(const u8* from) {
  if constexpr (Bytes == 8) {
    const uint2 word = *reinterpret_cast<const uint2*>(from);
    return word.x | static_cast<u64>(word.y) << 32;
  } else if constexpr (Bytes == 4) {
    return *reinterpret_cast<const u32*>(from);
  } else if constexpr (Bytes == 2) {
    return *reinterpret_cast<const u16*>(from);
  } else {
    return *from;
  }
}
template <int Bytes>
__device__ __forceinline__ void store_bytes(u8* to, u64 word) {
  if constexpr (Bytes == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(static_cast<u32>(word), static_cast<u32>(word >> 32));
  } else if constexpr (Bytes == 4) {
    *reinterpret_cast<u32*>(to) = static_cast<u32>(word);
  } else if constexpr (Bytes == 2) {
    *reinterpret_cast<u16*>(to) = static_cast<u16>(word);
  } else {
    *to = static_cast<u8>(word);
  }
}

// Stores the codes of the octet, all lanes of a warp together, each for its own of 32 octets in a row.
template <int Bits>
__device__ __forceinline__ void store_codes(u8* codes, u64 octet, u64 own) {
  if constexpr (kCodesAreWord<Bits>) {
    store_bytes<Bits>(codes + octet * Bits, own);
  } else {
    // Word w of the warp begins with octet 4 w / Bits, of which the first bytes may belong to the word
    // before. Two octets are enough for a word: where a code has three bits, the first has at least one byte
    // of it and the second three.
    constexpr u32 kWarp = 32, kWordBytes = 4, kWords = kWarp * Bits / kWordBytes;
    const u32 lane = threadIdx.x % kWarp;
    auto* const words = reinterpret_cast<u32*>(codes + (octet - lane) * Bits);
    OUTGRAD_UNROLL
    for (u32 trip = 0; trip * kWarp < kWords; ++trip) {
      const u32 word = trip * kWarp + lane, source = kWordBytes * word / Bits,
                gone = 8 * (kWordBytes * word % Bits);
      u64 first, second;
      if constexpr (8 * Bits <= 32) {
        first = __shfl_sync(0xffffffffu, static_cast<u32>(own), static_cast<int>(source));
        second = __shfl_sync(0xffffffffu, static_cast<u32>(own), static_cast<int>(source + 1));
      } else {
        first = __shfl_sync(0xffffffffu, own, static_cast<int>(source));
        second = __shfl_sync(0xffffffffu, own, static_cast<int>(source + 1));
      }
      if (word < kWords) words[word] = static_cast<u32>(first >> gone | second << (8 * Bits - gone));
    }
  }
}

// The codes of the octet, one of those of a warp whose octets are whole.
template <int Bits>
__device__ __forceinline__ u64 load_codes(const u8* codes, u64 octet) {
  const u64 byte = octet * Bits;
  if constexpr (kCodesAreWord<Bits>) {
    return load_bytes<Bits>(codes + byte);
  } else {
    // No word beyond the octet's own last byte, hence none beyond the warp's octets, is read.
    const auto* const words = reinterpret_cast<const u32*>(codes) + byte / 4;
    const u32 gone = byte % 4, last = (gone + Bits - 1) / 4;
    const u64 both = words[0] | static_cast<u64>(words[smaller(1, static_cast<int>(last))]) << 32;
    u64 own = both >> 8 * gone;
    if constexpr (8 * Bits + 24 > 64) own |= static_cast<u64>(words[last]) << 32 << (32 - 8 * gone);
    return own;
  }
}

// The same for `count` codes of an octet of any place, byte by byte.
template <int Bits>
__device__ __forceinline__ void store_codes_apart(u8* codes, u64 octet, u32 count, u64 own) {
  const u32 bytes = static_cast<u32>(code_bytes(Bits, count));
#pragma unroll 1
  for (u32 byte = 0; byte < bytes; ++byte, own >>= 8) codes[octet * Bits + byte] = static_cast<u8>(own);
}
template <int Bits>
__device__ __forceinline__ u64 load_codes_apart(const u8* codes, u64 octet, u32 count) {
  const u32 bytes = static_cast<u32>(code_bytes(Bits, count));
  u64 own = 0;
#pragma unroll 1
  for (u32 byte = 0; byte < bytes; ++byte) own |= static_cast<u64>(codes[octet * Bits + byte]) << 8 * byte;
  return own;
}

// Dithers of an octet and of an element (kernels/dropout.h says which words these have); 0 for exact codes.
// key: the seed.
template <bool Dithered>
__device__ __forceinline__ void octet_dithers(u64 octet, u64 key, float (&d)[kOctet]) {
  constexpr int kWords = 4;  // of one counter
  OUTGRAD_UNROLL
  for (int first = 0; first < kOctet; first += kWords) {
    PhiloxWords words{};
    if constexpr (Dithered) words = philox((octet * kOctet + first) / kWords, key);
    OUTGRAD_UNROLL
    for (int k = 0; k < kWords; ++k) d[first + k] = Dithered ? dither_of(words.word[k]) : 0.0f;
  }
}
template <bool Dithered>
__device__ __forceinline__ float dither_at(u64 i, u64 key) {
  if constexpr (Dithered) {
    const PhiloxWords words = philox(i / 4, key);
    const u32 even = i % 4 < 2 ? words.word[0] : words.word[2],
              odd = i % 4 < 2 ? words.word[1] : words.word[3];
    return dither_of(i % 2 == 0 ? even : odd);
  } else {
    return 0.0f;
  }
}

template <int Bits, bool Dithered>
OUTGRAD_HD constexpr CodeRule code_rule(const CodeRange& range) {
  static_assert(code_bits_hold(Bits, Dithered), "an exact code has 1 to 8 bits, a dithered one 2 or 3");
  return Dithered ? dithered_code(range, Bits) : exact_code(range, Bits);
}

// f(x) in fp32, ready to be narrowed to the format, and g of x.
struct ValueAndGradient {
  float value, gradient;
};

// Whether octets of Bits a number, perhaps none, can be moved in words.
template <int Bits>
__device__ __forceinline__ bool packed_aligned(const u8* packed) {
  if constexpr (Bits == 0) {
    return true;
  } else {
    return codes_aligned<Bits>(packed);
  }
}

// Packs numbers of Bits, perhaps none, for n elements of `from`: whole(octet, elements) gives those of an
// octet side by side, and one(i) that of one element.
template <GpuSchedule S, int Bits, class T, class Whole, class One>
__device__ __forceinline__ void pack_over_octets(const T* from, bool aligned, u8* packed, i64 n,
                                                 const Whole& whole, const One& one) {
  static_assert(schedule_holds<S>());
  over_input_octets<S>(
      from, n, aligned && packed_aligned<Bits>(packed),
      [&](u64 octet, const Octet<T>& input) {
        const u64 own = whole(octet, input);
        if constexpr (Bits > 0) store_codes<Bits>(packed, octet, own);
      },
      [&](u64 octet, u32 count) {
        u64 own = 0;
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) own |= static_cast<u64>(one(octet * kOctet + k)) << Bits * k;
        if constexpr (Bits > 0) store_codes_apart<Bits>(packed, octet, count, own);
      });
}

// What a backward reads beside dy: packed numbers of Bits, perhaps none, and codes of 8 bits if WithCodes.
template <int Bits, bool WithCodes>
struct KeptCodes {
  const u8* packed;
  const u8* codes = nullptr;
};

// dx = dy g of n elements: whole(octet, numbers, codes, g) leaves what an octet stands for in g, and one(i,
// k, numbers) is that of element i, the k-th of its octet.
template <GpuSchedule S, int Bits, bool WithCodes, class T, class Whole, class One>
__device__ __forceinline__ void multiply_over_octets(const T* dy, const KeptCodes<Bits, WithCodes>& kept,
                                                     T* dx, i64 n, const Whole& whole, const One& one) {
  static_assert(schedule_holds<S>());
  const bool aligned = WithCodes ? is_aligned<S, T, u8>(dy, kept.codes, dx) : is_aligned<S, T, T>(dy, dy, dx);
  over_octets<S>(
      n, aligned && packed_aligned<Bits>(kept.packed),
      [&](u64 first) {
        constexpr u64 kApart = S.threads;
        Octet<T> gradient[S.octets];
        Octet<u8> codes[S.octets] = {};
        u64 own[S.octets] = {};
        OUTGRAD_UNROLL
        for (int u = 0; u < S.octets; ++u) {
          const u64 octet = first + u * kApart;
          gradient[u] = load_octet<S>(dy + octet * kOctet);
          if constexpr (WithCodes) codes[u] = load_octet<S>(kept.codes + octet * kOctet);
          if constexpr (Bits > 0) own[u] = load_codes<Bits>(kept.packed, octet);
        }
        OUTGRAD_UNROLL
        for (int u = 0; u < S.octets; ++u) {
          float g[kOctet], result[kOctet];
          whole(first + u * kApart, own[u], codes[u], g);
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) result[k] = mul_rn(widened(gradient[u], k), g[k]);
          store_octet<S>(dx + (first + u * kApart) * kOctet, packed<T>(result));
        }
      },
      [&](u64 octet, u32 count) {
        u64 own = 0;
        if constexpr (Bits > 0) own = load_codes_apart<Bits>(kept.packed, octet, count);
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const u64 i = octet * kOctet + k;
          dx[i] = narrow<T>(mul_rn(widen(dy[i]), one(i, static_cast<int>(k), own)));
        }
      });
}

// n codes that a kernel writes, by this rule and with this seed.
template <int Bits, bool Dithered>
struct CodesTo {
  CodeRule rule;
  u8* codes;
  i64 n;
  const u64* seed;
};

// The codes of the elements of `from`: whole(octet, elements, g) leaves the gradients of an octet in g, and
// one(i) is that of one element.
template <GpuSchedule S, int Bits, bool Dithered, class T, class Whole, class One>
__device__ __forceinline__ void codes_over_octets(const CodesTo<Bits, Dithered>& to, const T* from,
                                                  bool aligned, const Whole& whole, const One& one) {
  const u64 key = Dithered ? *to.seed : 0;
  const CodeRule rule = to.rule;
  pack_over_octets<S, Bits>(
      from, aligned, to.codes, to.n,
      [&](u64 octet, const Octet<T>& input) {
        float g[kOctet], d[kOctet];
        u64 own = 0;
        octet_dithers<Dithered>(octet, key, d);
        whole(octet, input, g);
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k)
          own |= static_cast<u64>(coded_gradient(rule, g[k], d[k])) << Bits * k;
        return own;
      },
      [&](u64 i) { return coded_gradient(rule, one(i), dither_at<Dithered>(i, key)); });
}

// y and codes of the elements x: evaluated(x) of each, widened.
template <GpuSchedule S, int Bits, bool Dithered, class T, class Evaluated>
__device__ __forceinline__ void values_and_codes(const CodesTo<Bits, Dithered>& to, const T* x, T* y,
                                                 const Evaluated& evaluated) {
  codes_over_octets<S>(
      to, x, is_aligned<S, T, T>(x, x, y),
      [&](u64 octet, const Octet<T>& input, float (&g)[kOctet]) {
        float value[kOctet];
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) {
          const ValueAndGradient at = evaluated(widened(input, k));
          value[k] = at.value;
          g[k] = at.gradient;
        }
        store_octet<S>(y + octet * kOctet, packed<T>(value));
      },
      [&](u64 i) {
        const ValueAndGradient at = evaluated(widen(x[i]));
        y[i] = narrow<T>(at.value);
        return at.gradient;
      });
}

// The tables of a forward for T, where `wide` are those for fp32.
template <class Narrow, class T, GpuSchedule S, class Wide>
__device__ __forceinline__ decltype(auto) resident_beside(const Wide& wide) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return (wide);
  } else {
    return resident_forward<Narrow, S.table, S.threads>();
  }
}

// Sets y[i] = f(x[i]) and code i to that of x[i], for i in [0, n). y may be x; codes, of code_bytes(Bits, n)
// bytes, overlaps neither. A is a CodedActivation of kernels/catalogue/codes.h. The seed of dithered codes
// lies in device memory, as that of dropout does; for exact ones it is null. The contract is that of
// kernels/host/code.h.
template <class A, class T, int Bits, bool Dithered = false, class Schedule = StoreSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    activation_forward_code(const T* x, T* y, u8* codes, i64 n, const u64* seed) {
  using Wide = typename A::template Forward<float>;
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  constexpr CodeRule kRule = code_rule<Bits, Dithered>({A::Code::kLo, A::Code::kHi});
  const CodesTo<Bits, Dithered> to{kRule, codes, n, seed};
  if constexpr (requires { Wide::table(); }) {
    using Narrow = typename A::template Forward<T>;
    const auto& wide = resident_forward<Wide, kSchedule.table, kSchedule.threads>();
    const auto& own = resident_beside<Narrow, T, kSchedule>(wide);
    values_and_codes<kSchedule>(to, x, y, [&](float each) {
      return ValueAndGradient{forward_value<T, Narrow, false>(own, each), gradient_at<Wide>(wide, each)};
    });
  } else if constexpr (kHasForwardFit<Wide, T>) {
    using Narrow = ForwardFitOf<Wide, T>;
    const auto& own = resident_forward<Narrow, kSchedule.table, kSchedule.threads>();
    values_and_codes<kSchedule>(to, x, y, [&](float each) {
      return ValueAndGradient{forward_value<T, Narrow, false>(own, each), gradient_at<Wide>(each)};
    });
  } else {
    values_and_codes<kSchedule>(to, x, y, [&](float each) {
      return ValueAndGradient{forward_in_f32<Wide>(each), gradient_at<Wide>(each)};
    });
  }
}

// Sets code i to that of g[i], a gradient that the caller has computed. The contract is that of
// kernels/host/code.h, and the rule is that of the range. The seed is as above.
template <class T, int Bits, bool Dithered = false, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kPlainCodeSchedule<Schedule, T>.threads,
                                  kPlainCodeSchedule<Schedule, T>.resident_blocks)
    encode_gradients(const T* g, u8* codes, i64 n, const u64* seed, CodeRule rule) {
  constexpr GpuSchedule kSchedule = kPlainCodeSchedule<Schedule, T>;
  static_assert(code_bits_hold(Bits, Dithered));
  codes_over_octets<kSchedule>(
      CodesTo<Bits, Dithered>{rule, codes, n, seed}, g, is_aligned<kSchedule, T, T>(g, g, g),
      [&](u64, const Octet<T>& input, float (&gradient)[kOctet]) {
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) gradient[k] = widened(input, k);
      },
      [&](u64 i) { return widen(g[i]); });
}

// Sets dx[i] = dy[i] g, where g is what code i stands for, as dx = RN_T(RN_f32(dy g)). The rule is that of
// the forward's range. dx may be dy, and overlaps nothing otherwise. The seed is the forward's.
template <class T, int Bits, bool Dithered = false, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kPlainCodeSchedule<Schedule, T>.threads,
                                  kPlainCodeSchedule<Schedule, T>.resident_blocks)
    activation_backward_code(const T* dy, const u8* codes, T* dx, i64 n, const u64* seed, CodeRule rule) {
  constexpr GpuSchedule kSchedule = kPlainCodeSchedule<Schedule, T>;
  static_assert(code_bits_hold(Bits, Dithered));
  constexpr u32 kField = (1u << Bits) - 1;
  const u64 key = Dithered ? *seed : 0;
  const auto gradient = [&](u64 own, int k, float d) {
    return gradient_of_code(rule, static_cast<u8>(own >> Bits * k & kField), d);
  };
  multiply_over_octets<kSchedule>(
      dy, KeptCodes<Bits, false>{codes}, dx, n,
      [&](u64 octet, u64 own, const Octet<u8>&, float (&g)[kOctet]) {
        float d[kOctet];
        octet_dithers<Dithered>(octet, key, d);
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) g[k] = gradient(own, k, d[k]);
      },
      [&](u64 i, int k, u64 own) { return gradient(own, k, dither_at<Dithered>(i, key)); });
}

#ifndef __CUDACC_RTC__
// Takes device pointers, aligned to their element; the seed of exact codes is not read. n = 0 launches
// nothing. y may be x. The result is cudaErrorInvalidValue for any other overlap, a null pointer, and a
// negative or overflowing n.
template <class A, class T, int Bits, bool Dithered = false, class Schedule = StoreSchedule>
cudaError_t launch_activation_forward_code(const T* x, T* y, u8* codes, i64 n, const u64* seed,
                                           cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::activation_forward_code, resident, n, stream},
      activation_forward_code<A, T, Bits, Dithered, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(x, n), detail::operand(seed, Dithered ? 1 : 0),
                                      detail::written(y, n, x), detail::written(codes, code_bytes(Bits, n))});
      },
      x, y, codes, n, seed);
}

// The same of gradients g and their codes. range: one for which code_range_holds, else the result is
// cudaErrorInvalidValue too.
template <class T, int Bits, bool Dithered = false, class Schedule = DefaultGpuSchedule>
cudaError_t launch_encode_gradients(const CodeRange& range, const T* g, u8* codes, i64 n, const u64* seed,
                                    cudaStream_t stream) {
  if (!code_range_holds(range)) return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident;
  return launch_octets<kPlainCodeSchedule<Schedule, T>>(
      {DeviceKernel::encode_gradients, resident, n, stream}, encode_gradients<T, Bits, Dithered, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(g, n), detail::operand(seed, Dithered ? 1 : 0),
                                      detail::written(codes, code_bytes(Bits, n))});
      },
      g, codes, n, seed, code_rule<Bits, Dithered>(range));
}

// The same of dy, dx and codes that are read. range: of the forward's A::Code, or of the codes' own g.
template <class T, int Bits, bool Dithered = false, class Schedule = DefaultGpuSchedule>
cudaError_t launch_activation_backward_code(const CodeRange& range, const T* dy, const u8* codes, T* dx,
                                            i64 n, const u64* seed, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kPlainCodeSchedule<Schedule, T>>(
      {DeviceKernel::activation_backward_code, resident, n, stream},
      activation_backward_code<T, Bits, Dithered, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(dy, n), detail::operand(codes, code_bytes(Bits, n)),
                                      detail::operand(seed, Dithered ? 1 : 0), detail::written(dx, n, dy)});
      },
      dy, codes, dx, n, seed, code_rule<Bits, Dithered>(range));
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
