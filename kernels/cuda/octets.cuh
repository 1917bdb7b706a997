// Moves octets between global memory and registers: 8 elements, which share one byte of the mask.
#pragma once

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/formats.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/saturated.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The unsigned word of 4, 8 or 16 bytes that one access moves.
template <int Bytes>
struct WordOf;
template <>
struct WordOf<4> {
  using Type = unsigned int;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// 8 stored values, as the 32-bit words that hold them; the first value is in the low bits.
template <class T>
struct alignas(smaller(16, 8 * sizeof(T))) Octet {
  static constexpr int kWords = 2 * sizeof(T);
  u32 w[kWords];
};

template <CacheHint Hint, class Word>
__device__ __forceinline__ Word load_word(const Word* from) {
  if constexpr (Hint == CacheHint::streaming) {
    return __ldcs(from);
  } else {
    return *from;
  }
}

// InOne: uses an instruction that the compiler cannot split. Otherwise, in loops over rows, nvcc (13.0) makes
// 4-byte stores from a word.
template <CacheHint Hint, bool InOne, class Word>
__device__ __forceinline__ void store_word(Word* to, Word word) {
  if constexpr (Hint == CacheHint::streaming) {
    __stcs(to, word);
  } else if constexpr (InOne) {
    __stwb(to, word);
  } else {
    *to = word;
  }
}

template <GpuSchedule S, class T>
inline constexpr int kAccessBytes = smaller(S.access_bytes, kOctet* static_cast<int>(sizeof(T)));

// Whether octets of all three arrays can be moved in words of the schedule's width.
template <GpuSchedule S, class T, class Y>
__device__ __forceinline__ bool is_aligned(const T* a, const Y* b, const T* c) {
  const u32 by_a = static_cast<u32>(reinterpret_cast<u64>(a)),
            by_b = static_cast<u32>(reinterpret_cast<u64>(b)),
            by_c = static_cast<u32>(reinterpret_cast<u64>(c));
  return (((by_a | by_c) & (kAccessBytes<S, T> - 1)) | (by_b & (kAccessBytes<S, Y> - 1))) == 0;
}

// Bit k. The AND is written out: for a shift and a mask the compiler uses two instructions, and one more to
// test the result.
__device__ __forceinline__ bool is_set(u32 bits, int k) {
#ifdef __CUDA_ARCH__
  u32 bit;
  asm("and.b32 %0, %1, %2;" : "=r"(bit) : "r"(bits), "r"(1u << k));
  return bit != 0;
#else
  return (bits & 1u << k) != 0;
#endif
}

// Apart: the distance from one access to the next, in words.
template <GpuSchedule S, int Apart = 1, class T>
__device__ __forceinline__ Octet<T> load_octet(const T* from) {
  constexpr int kBytes = kAccessBytes<S, T>;
  using Word = typename WordOf<kBytes>::Type;
  Octet<T> octet;
  OUTGRAD_UNROLL
  for (int k = 0; k < static_cast<int>(sizeof(octet)) / kBytes; ++k) {
    reinterpret_cast<Word*>(octet.w)[k] = load_word<S.loads>(reinterpret_cast<const Word*>(from) + k * Apart);
  }
  return octet;
}

template <GpuSchedule S, bool InOne = false, int Apart = 1, class T>
__device__ __forceinline__ void store_octet(T* to, const Octet<T>& octet) {
  constexpr int kBytes = kAccessBytes<S, T>;
  using Word = typename WordOf<kBytes>::Type;
  OUTGRAD_UNROLL
  for (int k = 0; k < static_cast<int>(sizeof(octet)) / kBytes; ++k) {
    store_word<S.stores, InOne>(reinterpret_cast<Word*>(to) + k * Apart,
                                reinterpret_cast<const Word*>(octet.w)[k]);
  }
}

// Which elements of its 32 octets the threads of a warp take. Normally each takes its own octet. If an octet
// takes two 16-byte accesses, a thread instead takes one quad of the first half and one of the second, so
// that each access of the warp covers 512 contiguous bytes. In the mask, a quad's bits are half a byte.
template <bool Quads>
struct Share {
  static constexpr int kWarp = 32, kQuad = kOctet / 2;
  static constexpr int kApart = Quads ? kWarp : 1;  // words from a thread's first access to its second
  static __device__ __forceinline__ u32 lane() { return threadIdx.x % kWarp; }

  // The first element of the thread whose own octet this is.
  static __device__ __forceinline__ u64 element(u64 octet) {
    return Quads ? octet * kOctet - lane() * kQuad : octet * kOctet;
  }
  // The byte with the bits of the thread's first quad. The byte of its second quad lies half a warp behind
  // it.
  static __device__ __forceinline__ u64 byte(u64 octet) {
    return Quads ? octet - lane() + lane() / 2 : octet;
  }

  // Element k's mask bit is bit `place(k)` of what this loads.
  static OUTGRAD_HD constexpr int place(int k) { return Quads && k >= kQuad ? k + kQuad : k; }
  static __device__ __forceinline__ u32 load_bits(const u8* mask, u64 octet) {
    const u8* const own = mask + byte(octet);
    if constexpr (Quads) {
      return (static_cast<u32>(own[kWarp / 2]) << kOctet | own[0]) >> lane() % 2 * kQuad;
    } else {
      return *own;
    }
  }
  // Bit k of `bits` is element k's. Two neighbours together have the halves of two bytes, and each thread
  // completes one of the bytes.
  static __device__ __forceinline__ void store_bits(u8* mask, u64 octet, u32 bits) {
    if constexpr (Quads) {
      const bool odd = lane() % 2 != 0;
      const u32 own = odd ? 0xf0u : 0x0fu;
      const u32 other = __shfl_xor_sync(0xffffffffu, bits, 1) << kQuad >> (odd ? kOctet : 0);
      mask[byte(octet) + (odd ? kWarp / 2 : 0)] = static_cast<u8>((bits & own) | (other & ~own));
    } else {
      mask[octet] = static_cast<u8>(bits);
    }
  }
};
template <GpuSchedule S, class T, class Y>
using ShareOf = Share<sizeof(T) == 4 && sizeof(Y) == 4 && S.access_bytes == 16>;

template <class T>
__device__ __forceinline__ T element_of(const Octet<T>& octet, int k) {
  if constexpr (sizeof(T) == 4) {
    return float_of(octet.w[k]);
  } else {
    constexpr int kPer = 4 / static_cast<int>(sizeof(T)), kBits = 8 * static_cast<int>(sizeof(T));
    return T{static_cast<decltype(T{}.bits)>(octet.w[k / kPer] >> (k % kPer * kBits))};
  }
}

// Element k, widened. For bf16, the upper of two elements needs no shift.
template <class T>
__device__ __forceinline__ float widened(const Octet<T>& octet, int k) {
  return widen(element_of(octet, k));
}
template <>
__device__ __forceinline__ float widened<BF16>(const Octet<BF16>& octet, int k) {
  return float_of(k % 2 == 0 ? octet.w[k / 2] << 16 : octet.w[k / 2] & 0xffff0000u);
}

// All elements, widened. e4m3's are numbers of f16, and the instruction for two of them is one that sm_89
// was the first to have.
template <class T>
__device__ __forceinline__ void widen_octet(const Octet<T>& octet, float (&wide)[kOctet]) {
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) wide[k] = widened(octet, k);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <>
__device__ __forceinline__ void widen_octet(const Octet<F8E4M3>& codes, float (&wide)[kOctet]) {
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; k += 2) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(codes.w[k / 4] >> k % 4 * 8)));
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide[k]) : "h"(static_cast<u16>(halves)));
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide[k + 1]) : "h"(static_cast<u16>(halves >> 16)));
  }
}
#endif

template <class T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<BF16> = true;

// The values rounded to nearest even, two at a time. The instructions keep subnormals, as narrow<T> does.
// They give a NaN of their own for every NaN, which is allowed because payloads are outside the contract.
template <class T>
__device__ __forceinline__ Octet<T> packed(const float (&value)[kOctet]) {
  Octet<T> octet;
  if constexpr (sizeof(T) == 4) {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) octet.w[k] = bits_of(value[k]);
  } else {
    static_assert(sizeof(T) == 2);
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet / 2; ++k) {
#ifdef __CUDA_ARCH__
      if constexpr (kIsBf16<T>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(octet.w[k]) : "f"(value[2 * k + 1]), "f"(value[2 * k]));
      } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(octet.w[k]) : "f"(value[2 * k + 1]), "f"(value[2 * k]));
      }
#else
      octet.w[k] = narrow<T>(value[2 * k]).bits | static_cast<u32>(narrow<T>(value[2 * k + 1]).bits) << 16;
#endif
    }
  }
  return octet;
}

// Of two magnitudes as bits.
__device__ __forceinline__ u32 larger_magnitude(u32 a, u32 b) { return a > b ? a : b; }

// Two values rounded to nearest even in e4m3 or e5m2 and saturated, the first in the low byte. The
// instruction, which sm_89 was the first to have, gives the canonical NaN for every NaN (PTX ISA, "cvt"), as
// narrow_saturated does.
template <class F>
__device__ __forceinline__ u16 saturated_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  u16 pair;
  if constexpr (kLargestOf<F> == kLargestOf<F8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return static_cast<u16>(narrow_saturated<F>(first).bits | narrow_saturated<F>(second).bits << 8);
#endif
}

template <class F>
__device__ __forceinline__ Octet<F> packed_saturated(const float (&value)[kOctet]) {
  constexpr int kPerWord = 4;
  Octet<F> octet;
  OUTGRAD_UNROLL
  for (int word = 0; word < kOctet / kPerWord; ++word) {
    const float* const own = value + kPerWord * word;
    octet.w[word] = saturated_pair<F>(own[0], own[1]) | static_cast<u32>(saturated_pair<F>(own[2], own[3]))
                                                            << 16;
  }
  return octet;
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
