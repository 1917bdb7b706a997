// What the loops over arrays on the CPU share, whatever they compute: the vectors that a schedule names, its
// blocks, streaming stores, and tables of what every number of 16 bits becomes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/formats.h"
#include "kernels/host/parallel.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace detail {

template <CpuSchedule S>
constexpr bool schedule_holds() {
  static_assert(S.vector_bits == 0 || S.vector_bits == 256 || S.vector_bits == 512,
                "vector_bits is 0, 256 or 512");
  static_assert(S.vector_bits <= kBestVectorBits,
                "vector_bits is wider than the instruction set compiled for (-march)");
  static_assert(S.unroll >= 1 && S.unroll <= 8,
                "8 vectors in flight already exceed the registers of any width");
  // Whole mask words, whole cache lines and whole loop bodies per task.
  static_assert(S.block_elements > 0 && S.block_elements % 1024 == 0,
                "block_elements is a positive multiple of 1024");
  static_assert(S.threads >= 0, "threads is 0 (all) or positive");
  return true;
}

// The part of a schedule that the loop over a block is compiled for: schedules that differ in the rest share
// that loop.
template <CpuSchedule S>
inline constexpr CpuSchedule kLoopOf = {.vector_bits = S.vector_bits, .unroll = S.unroll, .table = S.table};

template <CpuSchedule S, int kCount, class Stored = void>
struct LanesOf;
#ifdef OUTGRAD_AVX2
template <CpuSchedule S, int kCount, class Stored>
  requires(S.vector_bits == 256)
struct LanesOf<S, kCount, Stored> : LaneOps<Avx2, kCount, S.table, Stored> {};
#endif
#ifdef OUTGRAD_AVX512
template <CpuSchedule S, int kCount, class Stored>
  requires(S.vector_bits == 512)
struct LanesOf<S, kCount, Stored> : LaneOps<Avx512, kCount, S.table, Stored> {};
#endif

// Of an input that is read in packs of `elements`: what comes later, beyond the page that the hardware's own
// fetching ends with. For streaming stores alone, which wait for a core's few buffers of whole lines together
// with the loads that miss. Measured with pages of 4 KiB on Zen 4, forward: 4 KiB ahead about the same, 1 KiB
// a little worse, 6 KiB clearly; on Sapphire Rapids, backward: 1 to 4 KiB about the same, without it two
// fifths to three quarters of the speed.
template <bool kStreaming, i64 kBytes = 2048, class T>
OUTGRAD_HD void fetch_ahead(const T* input, i64 elements) {
  constexpr i64 kLine = 64;
  if constexpr (kStreaming) {
    OUTGRAD_UNROLL
    for (i64 byte = 0; byte < elements * static_cast<i64>(sizeof(T)); byte += kLine) {
      __builtin_prefetch(reinterpret_cast<const u8*>(input) + kBytes + byte);
    }
  }
}

// Streaming needs aligned vectors, and pays once the output would not stay in a core's own cache until it is
// read again: 2 MiB is the largest private L2 in common use.
template <CpuSchedule S, class T>
bool streams(const T* output, i64 n) {
  constexpr i64 kPrivateCacheBytes = i64{2} << 20;
  return S.streaming_stores && S.vector_bits > 0 && reinterpret_cast<std::uintptr_t>(output) % 64 == 0 &&
         n * static_cast<i64>(sizeof(T)) >= kPrivateCacheBytes;
}

// range(begin, end) over blocks of the schedule's size.
template <CpuSchedule S, class Range>
void over_blocks(i64 n, Range&& range) {
  const i64 blocks = (n + S.block_elements - 1) / S.block_elements;
  parallel_for(blocks, S.threads, [&](i64 block) {
    const i64 begin = block * S.block_elements;
    range(begin, std::min(n, begin + S.block_elements));
  });
}

// How many numbers a format of 16 bits has.
inline constexpr i64 kCodes = 1 << 16;

template <class T>
struct OutputsByCode {
  u16 y[kCodes];

  // range(x, y, mask, 0, n) is the loop of a forward, hence the table has its bits.
  explicit OutputsByCode(void (*range)(const T*, T*, u8*, i64, i64)) {
    const DefaultFloatEnvironment environment;
    constexpr i64 kPart = 1024;
    for (i64 code = 0; code < kCodes; code += kPart) {
      T from[kPart], to[kPart];
      u8 mask[kPart / 8];
      for (i64 k = 0; k < kPart; ++k) from[k].bits = static_cast<u16>(code + k);
      range(from, to, mask, 0, kPart);
      for (i64 k = 0; k < kPart; ++k) y[code + k] = to[k].bits;
    }
  }
};

// Filled by the first call, 128 KiB for each Forward and T.
template <class Forward, class T>
const u16* outputs_by_code(void (*range)(const T*, T*, u8*, i64, i64)) {
  static const OutputsByCode<T> outputs(range);
  return outputs.y;
}

// entry(x) for every x of a format of 16 bits, by its bits, and some bytes more, for a gather reads four at a
// time. The first call fills static storage.
template <class T, class Entry>
const auto* table_by_code(const Entry&) {
  struct Table {
    decltype(Entry{}(T{})) of[kCodes + 2] = {};

    Table() {
      const DefaultFloatEnvironment environment;
      for (i64 code = 0; code < kCodes; ++code) of[code] = Entry{}(T{static_cast<u16>(code)});
    }
  };
  static const Table table;
  return table.of;
}

#ifdef OUTGRAD_AVX512
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // as in kernels/simd.h
#endif
// entries[code] for the codes of 16 x. An entry has 32 bits.
template <class Entry, class T>
OUTGRAD_HD __m512i entries_at(const Entry* entries, const T* x) {
  // g++ 12 takes the forms without a mask for a mistake, as in kernels/simd.h
  constexpr __mmask16 kAll = 0xffff;
  const __m512i code =
      _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), kAll, code, entries, sizeof(Entry));
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

}  // namespace detail

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
