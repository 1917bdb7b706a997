// The loops over arrays that all stores of few bits go through on the CPU: one that keeps what a store keeps
// of an activation, one that multiplies dy by what this stands for. Every schedule gives the same bits.
//
// What is kept lies in planes: arrays of numbers of k bits, packed without gaps. Number i of a plane has the
// bits k i to k i + k - 1, where bit b is bit b % 8 of byte b / 8, and the bits beyond the last number are 0.
// A y in its own format is such a plane, too.
//
// A store brings an encoder, which makes the numbers of a block of kCodeBlock elements,
//
//   encode<S, kStreaming>(first, x, to)
//     to[p] are the bytes of plane p, and of a plane from kInPlace on 8 more
//   kInPlace
//     how many planes, the first ones, encode() writes where they belong, since their numbers are whole
//     bytes; the others are copied from the cache, past it again if kStagedStreams
//   kStreams
//     whether a large plane 0 goes past the cache
//
// and a decoder, which says how the gradients of a block are computed,
//
//   with_gradients<S>(first, kept, scratch, use)
//     calls use(g), where g(ops, k) are those from element k of the block on, as many as ops handles; kept[p]
//     are the bytes of plane p, and 8 more where its numbers are less than a byte; scratch has room for
//     kCodeBlock numbers
//   kStreams
//     whether a large dx goes past the cache
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/host/blocks.h"
#include "kernels/host/call.h"
#include "kernels/stores/code.h"
#include "kernels/stores/store.h"

#ifdef __BMI2__
#include <immintrin.h>
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

// A store's arrays and what it is told beside them, as far as it has them.
struct StoreCall {
  void* y = nullptr;
  u32* mask = nullptr;
  u8 *codes = nullptr, *scales = nullptr, *parts = nullptr;
  CodeChoice choice{};
  CodeRange range{};  // of what codes are for
  float scale = 1;
  const void* tables = nullptr;  // StoreArithmetic's
};

// How a store runs on the host. Of<kActivation, T> is what it needs to know of an activation, void if that is
// not kept so. A backward from codes alone is the same for all activations, and looks at no Of.
//
//   forward<Of, T, S>(call, x, n)
//   backward<Of, T, S>(call, dy, dx, n)
template <StoreId kId>
struct HostStore;

namespace detail {

// Elements that go through the steps of a store together: each step's arrays stay in the first-level cache,
// and whole blocks begin on whole bytes.
inline constexpr int kCodeBlock = 1024;

// Room for what a block has in a plane: at most an f32 an element, and what is written beyond it.
inline constexpr int kPlaneRoom = kCodeBlock * 4 + 64;

// each and word are powers of two.
template <class Byte>
struct Plane {
  Byte* array;
  int bits;
  int each = 1;  // elements that share a number
  int word = 1;  // bytes of which a whole number is written

  i64 numbers(i64 n) const { return (n + each - 1) >> __builtin_ctz(static_cast<unsigned>(each)); }
  i64 bytes(i64 n) const { return (code_bytes(bits, numbers(n)) + word - 1) & -word; }
  // from a whole block on
  Byte* from(i64 first) const {
    return array == nullptr ? nullptr : array + code_bytes(bits, numbers(first));
  }
};

inline bool is_line_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0;
}

// Whole lines, past the cache if kStreaming.
template <bool kStreaming>
OUTGRAD_HD void copy_lines(const u8* from, u8* to, i64 bytes) {
#ifdef OUTGRAD_AVX2
  if constexpr (kStreaming) {
    for (i64 k = 0; k < bytes; k += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + k),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(from + k)));
    }
    return;
  }
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
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

// Not inlined, so that whole blocks, with and without streaming, and the last part share it.
template <CpuSchedule S, bool kStreaming, class Encoder, class T>
__attribute__((noinline)) void keep_block(const Encoder& encoder, i64 first, const T* x, u8* const* to) {
  encoder.template encode<S, kStreaming>(first, x, to);
}

// Copies the first `count` elements of the blocks in `room`, one a plane, to where element `first` belongs.
__attribute__((noinline)) inline void copy_part(const Plane<u8>* planes, int plane_count,
                                                u8 (*room)[kPlaneRoom], i64 first, i64 count) {
  for (int p = 0; p < plane_count; ++p) {
    const Plane<u8>& plane = planes[p];
    if (plane.bits == 0) continue;
    const i64 numbers = plane.numbers(count), used = code_bytes(plane.bits, numbers),
              rest = numbers * plane.bits % 8;
    if (rest != 0) room[p][used - 1] = static_cast<u8>(room[p][used - 1] & ((1u << rest) - 1));
    std::fill(room[p] + used, room[p] + plane.bytes(count), u8{0});
    std::copy_n(room[p], plane.bytes(count), plane.from(first));
  }
}

// The last `count` elements of an array, from `first` on, which are less than a block: the block is filled
// with the last element, which changes nothing that elements share.
template <CpuSchedule S, class Encoder, class T, int kPlanes>
void keep_part(const Encoder& encoder, const T* x, const Plane<u8> (&planes)[kPlanes], i64 first, i64 count) {
  alignas(64) T whole[kCodeBlock];
  std::fill(std::copy_n(x + first, count, whole), whole + kCodeBlock, x[first + count - 1]);
  alignas(64) u8 room[kPlanes][kPlaneRoom];
  u8* to[kPlanes];
  for (int p = 0; p < kPlanes; ++p) to[p] = room[p];
  keep_block<S, false>(encoder, first, whole, to);
  copy_part(planes, kPlanes, room, first, count);
}

template <CpuSchedule S, bool kStreaming, class Encoder, class T, int kPlanes>
void keep_range(const Encoder& encoder, const T* x, const Plane<u8> (&planes)[kPlanes], i64 begin, i64 end) {
  alignas(64) u8 room[kPlanes][kPlaneRoom];
  u8* to[kPlanes];
  i64 i = begin;
  for (; i + kCodeBlock <= end; i += kCodeBlock) {
    for (int p = 0; p < kPlanes; ++p) to[p] = p < Encoder::kInPlace ? planes[p].from(i) : room[p];
    keep_block<S, kStreaming>(encoder, i, x + i, to);
    for (int p = Encoder::kInPlace; p < kPlanes; ++p) {
      if (planes[p].bits == 0) continue;
      copy_lines<kStreaming && Encoder::kStagedStreams>(room[p], planes[p].from(i),
                                                        planes[p].bytes(kCodeBlock));
    }
  }
  if (i < end) keep_part<S>(encoder, x, planes, i, end - i);
  end_streaming<kStreaming>();
}

// What `encoder` makes of x, in these planes.
template <CpuSchedule S, class Encoder, class T, int kPlanes>
void keep(const Encoder& encoder, const T* x, const Plane<u8> (&planes)[kPlanes], i64 n) {
  static_assert(schedule_holds<S>());
  if constexpr (Encoder::kStreams && S.streaming_stores && S.vector_bits > 0) {
    bool streaming = streams<S>(planes[0].array, planes[0].bytes(n));
    if constexpr (Encoder::kStagedStreams) {
      for (const Plane<u8>& plane : planes) streaming = streaming && is_line_aligned(plane.array);
    }
    if (streaming) {
      return over_blocks<S>(
          n, [&](i64 begin, i64 end) { keep_range<kLoopOf<S>, true>(encoder, x, planes, begin, end); });
    }
  }
  over_blocks<S>(n,
                 [&](i64 begin, i64 end) { keep_range<kLoopOf<S>, false>(encoder, x, planes, begin, end); });
}

// dx of a block.
template <CpuSchedule S, bool kStreaming, class Decoder, class T>
OUTGRAD_HD void restore_block(const Decoder& decoder, i64 first, const T* dy, const u8* const* kept, T* dx) {
  alignas(64) float scratch[kCodeBlock];
  decoder.template with_gradients<S>(first, kept, scratch, [&](const auto& gradients) {
    over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
      fetch_ahead<kStreaming>(dy + k, sizeof(ops.load(dy)) / sizeof(float));
      store_value<kStreaming>(ops, dx + k, ops.mul(ops.load(dy + k), gradients(ops, k)));
    });
  });
}

// dx of `count` elements from `first` on, at most a block, through copies that may be read beyond.
template <CpuSchedule S, class Decoder, class T, int kPlanes>
__attribute__((noinline)) void restore_copied(const Decoder& decoder, const T* dy,
                                              const Plane<const u8> (&planes)[kPlanes], T* dx, i64 first,
                                              i64 count) {
  u8 room[kPlanes][kCodeBlock + 8] = {};
  const u8* kept[kPlanes];
  for (int p = 0; p < kPlanes; ++p) {
    if (planes[p].bits > 0) std::copy_n(planes[p].from(first), planes[p].bytes(count), room[p]);
    kept[p] = room[p];
  }
  const bool whole = count == kCodeBlock;
  alignas(64) T from[kCodeBlock], to[kCodeBlock];
  if (!whole) std::fill(std::copy_n(dy + first, count, from), from + kCodeBlock, T{});
  restore_block<S, false>(decoder, first, whole ? dy + first : from, kept, whole ? dx + first : to);
  if (!whole) std::copy_n(to, count, dx + first);
}

template <CpuSchedule S, bool kStreaming, class Decoder, class T, int kPlanes>
void restore_range(const Decoder& decoder, const T* dy, const Plane<const u8> (&planes)[kPlanes], T* dx,
                   i64 begin, i64 end) {
  const u8* kept[kPlanes];
  i64 readable = (end - begin) / kCodeBlock, i = begin;
  for (int p = 0; p < kPlanes; ++p) {
    const Plane<const u8>& plane = planes[p];
    kept[p] = plane.from(begin);
    if (readable > 0 && plane.bits % 8 != 0 &&
        plane.bytes(end - begin) < plane.bytes(readable * kCodeBlock) + 8)
      --readable;
  }
  for (; readable > 0; --readable, i += kCodeBlock) {
    for (int p = 0; p < kPlanes; ++p) fetch_ahead<kStreaming>(kept[p], planes[p].bytes(kCodeBlock));
    restore_block<S, kStreaming>(decoder, i, dy + i, kept, dx + i);
    for (int p = 0; p < kPlanes; ++p) kept[p] += planes[p].bytes(kCodeBlock);
  }
  for (; i < end; i += kCodeBlock)
    restore_copied<S>(decoder, dy, planes, dx, i, std::min<i64>(end - i, kCodeBlock));
  end_streaming<kStreaming>();
}

// dx[i] = RN_T(RN_f32(dy[i] g)), where g is what `decoder` reads in these planes. dx may equal dy.
template <CpuSchedule S, class Decoder, class T, int kPlanes>
void restore(const Decoder& decoder, const T* dy, const Plane<const u8> (&planes)[kPlanes], T* dx, i64 n) {
  static_assert(schedule_holds<S>());
  if constexpr (Decoder::kStreams && S.streaming_stores && S.vector_bits > 0) {
    if (streams<S>(dx, n)) {
      return over_blocks<S>(n, [&](i64 begin, i64 end) {
        restore_range<kLoopOf<S>, true>(decoder, dy, planes, dx, begin, end);
      });
    }
  }
  over_blocks<S>(
      n, [&](i64 begin, i64 end) { restore_range<kLoopOf<S>, false>(decoder, dy, planes, dx, begin, end); });
}

// --- Packed numbers ------------------------------------------------------------------------------
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

// The k bits from `shift` on of each of kCodeBlock bytes; writes up to 8 bytes more than these have.
OUTGRAD_HD void pack_codes(const u8* numbers, int bits, int shift, u8* packed) {
  const u64 field = kEachByte * (((1u << bits) - 1) << shift);
  for (int k = 0; k < kCodeBlock; k += 8, packed += bits) {
    u64 eight;
    std::memcpy(&eight, numbers + k, sizeof eight);
    eight = compressed(eight, field, bits);
    std::memcpy(packed, &eight, sizeof eight);
  }
}

// Numbers k to k + 7 of packed ones, a byte each; k is a multiple of 8. Reads up to 8 bytes beyond them.
OUTGRAD_HD u64 eight_numbers(const u8* packed, int k, int bits) {
  u64 word;
  std::memcpy(&word, packed + k / 8 * bits, sizeof word);
  return expanded(word, kEachByte * ((1u << bits) - 1), bits);
}

#ifdef OUTGRAD_AVX512
// Numbers k to k + 15 of packed ones, with a mask of all lanes, for g++ 12 takes the forms without one for a
// mistake, as in kernels/simd.h.
OUTGRAD_HD __m512i sixteen_numbers(const u8* packed, int k, int bits) {
  return _mm512_maskz_cvtepu8_epi32(0xffff,
                                    _mm_set_epi64x(static_cast<i64>(eight_numbers(packed, k + 8, bits)),
                                                   static_cast<i64>(eight_numbers(packed, k, bits))));
}
#endif

// What 16-bit x have in a table, split into the lower half, as a Value, and the byte above it.
template <CpuSchedule S, bool kStreaming, class T, class Value>
OUTGRAD_HD void look_up(const u32* entries, const T* x, Value* to, u8* above) {
#ifdef OUTGRAD_AVX512
  if constexpr (S.vector_bits == 512) {
    constexpr __mmask16 kAll = 0xffff;  // see sixteen_numbers
    for (int k = 0; k < kCodeBlock; k += 16) {
      fetch_ahead<kStreaming>(x + k, 16);
      const __m512i entry = entries_at(entries, x + k);
      if constexpr (sizeof(Value) == 1) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), _mm512_maskz_cvtepi32_epi8(kAll, entry));
      } else if constexpr (kStreaming) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + k), _mm512_maskz_cvtepi32_epi16(kAll, entry));
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), _mm512_maskz_cvtepi32_epi16(kAll, entry));
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(above + k),
                       _mm512_maskz_cvtepi32_epi8(kAll, _mm512_maskz_srli_epi32(kAll, entry, 16)));
    }
    return;
  }
#endif
  for (int k = 0; k < kCodeBlock; ++k) {
    const u32 entry = entries[x[k].bits];
    to[k].bits = static_cast<decltype(Value{}.bits)>(entry);
    above[k] = static_cast<u8>(entry >> 16);
  }
}

}  // namespace detail

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
