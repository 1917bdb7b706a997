// y in 8 bits at a scale with 0 to 2 bits beside it, over arrays on the CPU (kernels/fp8.h): the forward that
// writes the codes and the parts, and the backward that reads them. Every schedule gives the same bits.
//
// Parts of one and two bits are packed as codes of as many bits (kernels/host/code.h): parts of one bit lie
// as a mask does.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/fp8s.h"
#include "kernels/host/code.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Codes and parts of f(x[i]), for i in [0, n), at the scale and with the bits of `table`, which
// fill_fp8_table<A, F> made for them. parts has code_bytes(table.bits, n) bytes and is not written without
// bits. No array overlaps another. With a 16-bit T and an n from 2^18 on it allocates 256 KiB, if it can, for
// a table of the results of all x.
template <class A, class F, class T, CpuSchedule S>
void activation_forward_fp8(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts, i64 n);

// Sets dx[i] = dy[i] g, where g is what code i and part i stand for, as dx = RN_T(RN_f32(dy g)). dx may equal
// dy and overlaps nothing otherwise.
template <class T, CpuSchedule S>
void activation_backward_fp8(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx,
                             i64 n);

// -------------------------------------------------------------------------------------------------

namespace detail {

// y of kCodeBlock x, and g unless it is null.
template <class A, class T, CpuSchedule S>
void fitted_block(const T* x, float* y, float* g) {
  alignas(64) float wide[kCodeBlock];
  u32 mask[kCodeBlock / 32];
  for (int k = 0; k < kCodeBlock; ++k) wide[k] = widen(x[k]);
  value_block<typename A::template Forward<float>, S>(wide, y, mask);
  if (g == nullptr) return;
  std::fill_n(g, kCodeBlock, 1.0f);  // as dy: the product by 1 is g
  activation_backward<typename A::Fit, float, S>(g, y, mask, g, kCodeBlock);
}

// Codes and parts of a block of whole size. Without bits parts are not written.
template <class A, class F, class T, CpuSchedule S>
void fp8_block(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts) {
  alignas(64) float y[kCodeBlock], g[kCodeBlock];
  fitted_block<A, T, S>(x, y, table.bits > 0 ? g : nullptr);
  for (int k = 0; k < kCodeBlock; ++k) codes[k] = fp8_code<F>(y[k], scale);
  if (table.bits == 0) return;
  for (int k = 0; k < kCodeBlock; ++k) parts[k] = static_cast<u8>(part_of(table, codes[k].bits, g[k]));
}

// The same for each 16-bit x, by its bits: the code and, in the second byte, the part. Null if there is no
// memory for it.
template <class A, class F, class T, CpuSchedule S>
std::unique_ptr<u32[]> fp8_entries(const Fp8Table& table, float scale) {
  std::unique_ptr<u32[]> entries(new (std::nothrow) u32[kCodes]);
  for (i64 first = 0; entries != nullptr && first < kCodes; first += kCodeBlock) {
    T x[kCodeBlock];
    F codes[kCodeBlock];
    u8 parts[kCodeBlock] = {};
    for (int k = 0; k < kCodeBlock; ++k) x[k].bits = static_cast<u16>(first + k);
    fp8_block<A, F, T, S>(table, scale, x, codes, parts);
    for (int k = 0; k < kCodeBlock; ++k) entries[first + k] = codes[k].bits | static_cast<u32>(parts[k]) << 8;
  }
  return entries;
}

template <CpuSchedule S, class F, class T>
OUTGRAD_HD void look_up_fp8(const u32* entries, const T* x, F* codes, u8* parts) {
#ifdef OUTGRAD_AVX512
  if constexpr (S.vector_bits == 512) {
    constexpr __mmask16 kAll = 0xffff;  // see load_numbers
    for (int k = 0; k < kCodeBlock; k += 16) {
      const __m512i entry = entries_at(entries, x + k);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + k), _mm512_maskz_cvtepi32_epi8(kAll, entry));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(parts + k),
                       _mm512_maskz_cvtepi32_epi8(kAll, _mm512_maskz_srli_epi32(kAll, entry, 8)));
    }
    return;
  }
#endif
  for (int k = 0; k < kCodeBlock; ++k) {
    const u32 entry = entries[x[k].bits];
    codes[k].bits = static_cast<u8>(entry);
    parts[k] = static_cast<u8>(entry >> 8);
  }
}

// One block of whole size. Parts are left in `packed`, which has 8 bytes more than they take.
template <class A, class F, class T, CpuSchedule S>
void forward_fp8_block(const Fp8Table& table, float scale, [[maybe_unused]] const u32* entries, const T* x,
                       F* codes, u8* packed) {
  alignas(64) u8 parts[kCodeBlock];
  if constexpr (sizeof(T) == 2) {
    if (entries != nullptr) {
      look_up_fp8<S>(entries, x, codes, parts);
    } else {
      fp8_block<A, F, T, S>(table, scale, x, codes, parts);
    }
  } else {
    fp8_block<A, F, T, S>(table, scale, x, codes, parts);
  }
  if (table.bits > 0) pack_codes(parts, table.bits, 0, packed);
}

template <class A, class F, class T, CpuSchedule S>
void forward_fp8_range(const Fp8Table& table, float scale, const u32* entries, const T* x, F* codes,
                       u8* parts, i64 begin, i64 end) {
  u8 packed[kCodeBlock / 8 * kMostPartBits + 8] = {};
  i64 i = begin;
  for (; i + kCodeBlock <= end; i += kCodeBlock) {
    forward_fp8_block<A, F, T, S>(table, scale, entries, x + i, codes + i, packed);
    if (table.bits > 0)
      std::memcpy(parts + i / 8 * table.bits, packed, static_cast<std::size_t>(kCodeBlock / 8 * table.bits));
  }
  if (i < end) {
    const i64 count = end - i;
    T from[kCodeBlock] = {};
    F to[kCodeBlock];
    std::copy_n(x + i, count, from);
    forward_fp8_block<A, F, T, S>(table, scale, entries, from, to, packed);
    std::copy_n(to, count, codes + i);
    if (table.bits == 0) return;
    const i64 bytes = code_bytes(table.bits, count), rest = count * table.bits % 8;
    if (rest != 0) packed[bytes - 1] = static_cast<u8>(packed[bytes - 1] & ((1u << rest) - 1));
    std::copy_n(packed, bytes, parts + i / 8 * table.bits);
  }
}

#if defined(OUTGRAD_AVX512) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // as in kernels/simd.h
#endif
// What codes and parts stand for. `packed`: the parts, of which the 8 bytes from each on are readable.
template <CpuSchedule S>
OUTGRAD_HD void fp8_gradients(const Fp8Table& table, const u8* codes, const u8* packed, float* g) {
#ifdef OUTGRAD_AVX512
  if constexpr (S.vector_bits == 512) {
    constexpr __mmask16 kAll = 0xffff;  // see load_numbers
    const u64 field = kEachByte * ((1u << table.bits) - 1);
    const auto eight = [&](int k) __attribute__((always_inline)) {
      u64 word;
      std::memcpy(&word, packed + k / 8 * table.bits, sizeof word);
      return static_cast<i64>(expanded(word, field, table.bits));
    };
    for (int k = 0; k < kCodeBlock; k += 16) {
      __m512i at =
          _mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k)));
      if (table.bits > 0) {
        const __m512i part = _mm512_maskz_cvtepu8_epi32(kAll, _mm_set_epi64x(eight(k + 8), eight(k)));
        static_assert(kFp8Codes == 1 << 8);
        at = _mm512_or_si512(at, _mm512_maskz_slli_epi32(kAll, part, 8));
      }
      _mm512_store_ps(
          g + k, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), kAll, at, &table.values[0][0], sizeof(float)));
    }
    return;
  }
#endif
  if (table.bits == 0) {
    for (int k = 0; k < kCodeBlock; ++k) g[k] = table.values[0][codes[k]];
  } else {
    const u64 field = kEachByte * ((1u << table.bits) - 1);
    for (int k = 0; k < kCodeBlock; k += 8) {
      u64 word;
      std::memcpy(&word, packed + k / 8 * table.bits, sizeof word);
      word = expanded(word, field, table.bits);
      for (int i = 0; i < 8; ++i) g[k + i] = table.values[word >> 8 * i & 0xff][codes[k + i]];
    }
  }
}

template <class T, CpuSchedule S>
void backward_fp8_block(const Fp8Table& table, const T* dy, const u8* codes, const u8* packed, T* dx) {
  alignas(64) float g[kCodeBlock];
  fp8_gradients<S>(table, codes, packed, g);
  over_code_block<S>([&](const auto& ops, int k) __attribute__((always_inline)) {
    store_value<false>(ops, dx + k, ops.mul(ops.load(dy + k), ops.load(g + k)));
  });
}

#if defined(OUTGRAD_AVX512) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

template <class T, CpuSchedule S>
void backward_fp8_range(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx,
                        i64 begin, i64 end) {
  i64 i = begin;
  for (; block_is_readable(table.bits, end - i); i += kCodeBlock)
    backward_fp8_block<T, S>(table, dy + i, codes + i, parts + i / 8 * table.bits, dx + i);
  for (; i < end; i += kCodeBlock) {
    const i64 count = std::min<i64>(end - i, kCodeBlock);
    u8 packed[kCodeBlock / 8 * kMostPartBits + 8] = {}, some[kCodeBlock] = {};
    alignas(64) T from[kCodeBlock] = {}, to[kCodeBlock];
    if (table.bits > 0) std::copy_n(parts + i / 8 * table.bits, code_bytes(table.bits, count), packed);
    std::copy_n(codes + i, count, some);
    std::copy_n(dy + i, count, from);
    backward_fp8_block<T, S>(table, from, some, packed, to);
    std::copy_n(to, count, dx + i);
  }
}

}  // namespace detail

template <class A, class F, class T, CpuSchedule S>
void activation_forward_fp8(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts, i64 n) {
  static_assert(detail::schedule_holds<S>());
  std::unique_ptr<u32[]> entries;
  if constexpr (sizeof(T) == 2) {
    if (n >= 4 * detail::kCodes) entries = detail::fp8_entries<A, F, T, detail::kLoopOf<S>>(table, scale);
  }
  detail::over_blocks<S>(n, [=, &table, &entries](i64 begin, i64 end) {
    detail::forward_fp8_range<A, F, T, detail::kLoopOf<S>>(table, scale, entries.get(), x, codes, parts,
                                                           begin, end);
  });
}

template <class T, CpuSchedule S>
void activation_backward_fp8(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx,
                             i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_blocks<S>(n, [=, &table](i64 begin, i64 end) {
    detail::backward_fp8_range<T, detail::kLoopOf<S>>(table, dy, codes, parts, dx, begin, end);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
