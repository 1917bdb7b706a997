// y in 8 bits at a scale with 0 to 2 bits beside it, over arrays on the CPU (kernels/fp8.h): the forward that writes the codes and the parts,
// and the backward that reads them. Every schedule gives the same bits.
//
// Parts of one and two bits are packed as codes of as many bits (kernels/host/code.h): parts of one bit lie as a mask does.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/fp8s.h"
#include "kernels/host/code.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Codes and parts of f(x[i]), for i in [0, n), at the scale and with the bits of `table`, which fill_fp8_table<A, F> made for them. parts has
// code_bytes(table.bits, n) bytes and is not written without bits. No array overlaps another.
template <class A, class F, class T, CpuSchedule S>
void activation_forward_fp8(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts, i64 n);

// Sets dx[i] = dy[i] g, where g is what code i and part i stand for, as dx = RN_T(RN_f32(dy g)). dx may equal dy and overlaps nothing otherwise.
template <class T, CpuSchedule S>
void activation_backward_fp8(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx, i64 n);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

// One block of whole size. Parts are left in `packed`, which has 8 bytes more than they take.
template <class A, class F, class T, CpuSchedule S>
void forward_fp8_block(const Fp8Table& table, float scale, const T* x, F* codes, u8* packed) {
  alignas(64) float wide[kCodeBlock], y[kCodeBlock], g[kCodeBlock];
  alignas(64) u8 numbers[kCodeBlock];
  u32 mask[kCodeBlock / 32];
  for (int k = 0; k < kCodeBlock; ++k) wide[k] = widen(x[k]);
  value_block<typename A::template Forward<float>, S>(wide, y, mask);
  for (int k = 0; k < kCodeBlock; ++k) codes[k] = fp8_code<F>(y[k], scale);
  if (table.bits == 0) return;
  std::fill_n(g, kCodeBlock, 1.0f);  // as dy: the product by 1 is g
  activation_backward<typename A::Fit, float, S>(g, y, mask, g, kCodeBlock);
  for (int k = 0; k < kCodeBlock; ++k) numbers[k] = static_cast<u8>(part_of(table, codes[k].bits, g[k]));
  pack_codes(numbers, table.bits, 0, packed);
}

template <class A, class F, class T, CpuSchedule S>
void forward_fp8_range(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts, i64 begin, i64 end) {
  u8 packed[kCodeBlock / 8 * kMostPartBits + 8] = {};
  i64 i = begin;
  for (; i + kCodeBlock <= end; i += kCodeBlock) {
    forward_fp8_block<A, F, T, S>(table, scale, x + i, codes + i, packed);
    if (table.bits > 0) std::memcpy(parts + i / 8 * table.bits, packed, static_cast<std::size_t>(kCodeBlock / 8 * table.bits));
  }
  if (i < end) {
    const i64 count = end - i;
    T from[kCodeBlock] = {};
    F to[kCodeBlock];
    std::copy_n(x + i, count, from);
    forward_fp8_block<A, F, T, S>(table, scale, from, to, packed);
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
// `packed`: the parts, of which the 8 bytes from each on are readable.
template <class T, CpuSchedule S>
void backward_fp8_block(const Fp8Table& table, const T* dy, const u8* codes, const u8* packed, T* dx) {
  alignas(64) float g[kCodeBlock];
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
  over_code_block<S>([&](const auto& ops, int k)
                         __attribute__((always_inline)) { store_value<false>(ops, dx + k, ops.mul(ops.load(dy + k), ops.load(g + k))); });
}

#if defined(OUTGRAD_AVX512) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

template <class T, CpuSchedule S>
void backward_fp8_range(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx, i64 begin, i64 end) {
  i64 i = begin;
  // The last block is copied, for nothing beyond the parts may be read.
  for (; i + kCodeBlock < end; i += kCodeBlock) backward_fp8_block<T, S>(table, dy + i, codes + i, parts + i / 8 * table.bits, dx + i);
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
  detail::over_blocks<S>(
      n, [=, &table](i64 begin, i64 end) { detail::forward_fp8_range<A, F, T, detail::kLoopOf<S>>(table, scale, x, codes, parts, begin, end); });
}

template <class T, CpuSchedule S>
void activation_backward_fp8(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_blocks<S>(n, [=, &table](i64 begin, i64 end) { detail::backward_fp8_range<T, detail::kLoopOf<S>>(table, dy, codes, parts, dx, begin, end); });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
