// Activations over arrays on the CPU: all cores, vectors, streaming stores, as a schedule says; every
// schedule gives the same bits.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/direct.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/fitted_forward.h"
#include "kernels/host/blocks.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/simd.h"
#include "kernels/stored.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// dx[i] = dy[i] g(y[i], m[i]) for i in [0, n). Bit i % 32 of mask[i / 32] is m[i]. Pointers are aligned to
// their element; dx may equal dy, and overlaps no input otherwise. Allocates nothing. Source of g: the Fit's
// header, a polynomial or a direct table of any activation; the mask of a fit without one (kMasked is false)
// is not read and may be null. Y is the format y is stored in: e4m3 and e5m2 too, while dy and dx are f32,
// f16 or bf16. Of a y that carries its branch (ParityF16, ParityBf16) no mask is read either. A direct table
// takes y in the one format it was made for. In vectors of 256 bits the first call with a 16-bit y, a
// polynomial and n >= 2^17 fills a table of static storage, at most 512 KiB, which later ones read.
template <class Fit, class T, CpuSchedule S, class Y = T>
void activation_backward(const T* dy, Stored<Y> y, const u32* mask, T* dx, i64 n);

// The same under GELU's name.
template <class Fit, class T, CpuSchedule S, class Y = T>
void gelu_backward(const T* dy, Stored<Y> y, const u32* mask, T* dx, i64 n) {
  activation_backward<Fit, T, S, Y>(dy, y, mask, dx, n);
}

// y[i] = f(x[i]) of a forward fit, mask as above with m = [x >= x*] if f has a minimum, else not written;
// bits of the last word beyond n are written 0. y may equal x. In vectors of 256 bits the first call with a
// 16-bit T and n >= 2^16 fills a table of static storage, 128 KiB, which later ones read.
template <class Forward, class T, CpuSchedule S>
void fitted_forward(const T* x, T* y, u32* mask, i64 n);

// The same under GELU's name.
template <class Forward, class T, CpuSchedule S>
void gelu_forward(const T* x, T* y, u32* mask, i64 n) {
  fitted_forward<Forward, T, S>(x, y, mask, n);
}

namespace detail {

static_assert(std::endian::native == std::endian::little, "mask bytes are addressed within 32-bit words");

// Tables as scalar code and as vectors read them.
template <class Fit>
inline constexpr auto kRowTable = table_of<Fit>();

// Whether AVX2 loads the rows of a fit's table, and does not pick words from its columns: from so many rows
// on that a permute for every 8 of them costs more. One vector at a time, for its words fill the registers.
template <class Fit>
constexpr bool by_rows() {
  if constexpr (kBestVectorBits == 256 && !kIsDirect<Fit> && !kIsRoundedForward<Fit>) {
    return Fit::kRows > 16;
  } else {
    return false;
  }
}
template <class Fit, int Rows, int Words>
constexpr auto in_vectors(const Table<Rows, Words>& table) {
  if constexpr (by_rows<Fit>()) {
    return aligned_rows_of(table);
  } else {
    return columns_of(table);
  }
}
template <class Fit, CpuSchedule S>
inline constexpr int kUnrollOf = by_rows<Fit>() ? 1 : S.unroll;

template <class Fit>
constexpr auto vector_table_of() {
  if constexpr (kIsDirect<Fit>) {
    return padded(Fit::entries());
  } else {
    return in_vectors<Fit>(Fit::table());
  }
}
template <class Fit>
inline constexpr auto kVectorTable = vector_table_of<Fit>();

// The same of a forward.
template <class Forward>
inline constexpr auto kForwardTables = forward_tables<Forward>();

template <class Forward>
constexpr auto forward_columns() {
  if constexpr (kIsRoundedForward<Forward>) {
    constexpr auto kAll = Forward::table();
    Table<Forward::kCoreRows, 4> core{};
    for (int row = Forward::kCoreFirst; row < Forward::kCoreFirst + Forward::kCoreRows; ++row) {
      for (int word = 0; word < 4; ++word) core.w[row % Forward::kCoreRows][word] = kAll.w[row][word];
    }
    constexpr auto kNear = NearRows<Forward>::table();
    return SplitRows<decltype(columns_of(core)), decltype(columns_of(kAll)), decltype(columns_of(kNear))>{
        columns_of(core), columns_of(kAll), columns_of(kNear)};
  } else {
    constexpr auto kCore = in_vectors<Forward>(Forward::table());
    if constexpr (requires { Forward::tail(); }) {
      constexpr auto kTail = columns_of(Forward::tail());
      return ForwardTables<std::remove_const_t<decltype(kCore)>, std::remove_const_t<decltype(kTail)>>{kCore,
                                                                                                       kTail};
    } else {
      return ForwardTables<std::remove_const_t<decltype(kCore)>, NoTail>{kCore, {}};
    }
  }
}
template <class Forward>
inline constexpr auto kForwardColumns = forward_columns<Forward>();

// A number of 16 bits has so few values that AVX2 has the outputs of a large array, or its g, for less by the
// table of them all, of which a core's own cache holds what data ask for: a few loads an element in place of
// the polynomial. That of AVX-512 takes less than they do.
template <class T, CpuSchedule S>
inline constexpr bool kGoesByCode = sizeof(T) == 2 && S.vector_bits == 256;

// dx of packs of kCount vectors.
template <class Fit, class T, class Y, CpuSchedule S, int kCount>
struct BackwardPack {
  using Lanes = LanesOf<S, kCount, std::conditional_t<std::is_same_v<T, Y> && !kIsDirect<Fit>, T, void>>;
  static constexpr Lanes kOps{};
  static constexpr i64 kElements = Lanes::kElements;
  static_assert(fit_holds<Fit, Y>());

  static OUTGRAD_HD typename Lanes::Mask mask_at(Stored<Y> y, const u8* mask, i64 i) {
    if constexpr (CarriesBranch<Y>) {
      return carried_mask(kOps, kOps.load_codes(y + i));
    } else if constexpr (kReadsMask<Fit, Y>) {
      return kOps.load_mask(mask + i / 8);
    } else {
      return {};
    }
  }
  // Of a polynomial, in two steps: where to evaluate which row, and the rest.
  static OUTGRAD_HD Place<Lanes> place_at(Stored<Y> y, const u8* mask, i64 i) {
    return evaluate_place(kOps, Fit{}, kOps.load(y + i), mask_at(y, mask, i));
  }
  static OUTGRAD_HD typename Lanes::Value product_at(const T* dy, i64 i, const Place<Lanes>& place) {
    bool two_word = false;
    if constexpr (requires { Fit::kTwoWord; }) two_word = Fit::kTwoWord;
    return kOps.mul(kOps.load(dy + i), evaluate_row(kOps, kVectorTable<Fit>, place.row, Fit::kDegree, place.v,
                                                    Fit::kScheme, Fit::kCentred, two_word));
  }
  static OUTGRAD_HD typename Lanes::Value product_at(const T* dy, Stored<Y> y, const u8* mask, i64 i) {
    return activation_backward_value<Fit>(kOps, kVectorTable<Fit>, dy + i, y + i, mask_at(y, mask, i));
  }
};

// g of every y of a format of 16 bits, by its code: where a mask is read, of m = 0 and then of m = 1.
template <class Fit, class T, class Y, CpuSchedule S>
struct SlopesByCode {
  using Pack = BackwardPack<Fit, T, Y, S, 1>;
  static constexpr i64 kEntries = kReadsMask<Fit, Y> ? 2 * kCodes : kCodes;
  alignas(64) float of[kEntries];

  SlopesByCode() {
    const DefaultFloatEnvironment environment;
    for (i64 at = 0; at < kEntries; at += Pack::kElements) {
      Y y[Pack::kElements];
      for (i64 k = 0; k < Pack::kElements; ++k) y[k].bits = static_cast<u16>(at + k);
      const u8 m[4] = {static_cast<u8>(at < kCodes ? 0 : -1)};
      const auto g =
          evaluate_backward(Pack::kOps, Fit{}, kVectorTable<Fit>, Pack::kOps.load(y), Pack::mask_at(y, m, 0));
      Pack::kOps.template store<false>(of + at, g);
    }
  }
};

// That of a call on n elements; null where it evaluates the fit.
template <class Fit, class T, class Y, CpuSchedule S>
const float* slopes_by_code([[maybe_unused]] i64 n) {
  if constexpr (kGoesByCode<Y, S> && !kIsDirect<Fit>) {
    if (n >= 2 * kCodes) {
      static const SlopesByCode<Fit, T, Y, kLoopOf<S>> all;
      return all.of;
    }
  }
  return nullptr;
}

// The elements from `begin` on that fill whole packs of kCount vectors; returns where it stopped. finish(ops,
// i, products) takes those of the pack at i, whose lanes are those of `ops`.
template <class Fit, class T, class Y, CpuSchedule S, int kCount, bool kStreaming, class Finish>
OUTGRAD_HD i64 backward_packs(const T* dy, Stored<Y> y, const u8* mask, i64 begin, i64 end,
                              const Finish& finish) {
  using Pack = BackwardPack<Fit, T, Y, S, kCount>;
  i64 i = begin;
  for (; i + Pack::kElements <= end; i += Pack::kElements) {
    fetch_ahead<kStreaming>(codes_of(y + i), Pack::kElements);
    fetch_ahead<kStreaming>(dy + i, Pack::kElements);
    finish(Pack::kOps, i, Pack::product_at(dy, y, mask, i));
  }
  return i;
}

// The same for runs of kDepth packs of a polynomial. While a pack is finished, the places of the one kDepth
// further on are found: an element's two chains, the root's and the polynomial's, one behind the other are
// longer than a core looks ahead.
template <class Fit, class T, class Y, CpuSchedule S, int kCount, int kDepth, bool kStreaming, class Finish>
OUTGRAD_HD i64 backward_runs(const T* dy, Stored<Y> y, const u8* mask, i64 begin, i64 end,
                             const Finish& finish) {
  using Pack = BackwardPack<Fit, T, Y, S, kCount>;
  constexpr i64 kRun = kDepth * Pack::kElements;
  i64 i = begin;
  if (end - begin < kRun) return i;
  Place<typename Pack::Lanes> places[kDepth];
  OUTGRAD_UNROLL
  for (int k = 0; k < kDepth; ++k) places[k] = Pack::place_at(y, mask, i + k * Pack::kElements);
  for (; i + 2 * kRun <= end; i += kRun) {
    OUTGRAD_UNROLL
    for (int k = 0; k < kDepth; ++k) {
      const i64 at = i + k * Pack::kElements;
      fetch_ahead<kStreaming>(codes_of(y + at), Pack::kElements);
      fetch_ahead<kStreaming>(dy + at, Pack::kElements);
      const Place<typename Pack::Lanes> ahead = Pack::place_at(y, mask, at + kRun);
      finish(Pack::kOps, at, Pack::product_at(dy, at, places[k]));
      places[k] = ahead;
    }
  }
  OUTGRAD_UNROLL
  for (int k = 0; k < kDepth; ++k) {
    const i64 at = i + k * Pack::kElements;
    finish(Pack::kOps, at, Pack::product_at(dy, at, places[k]));
  }
  return i + kRun;
}

// The same by the table of all g.
template <class Fit, class T, class Y, CpuSchedule S, bool kStreaming, class Finish>
OUTGRAD_HD i64 backward_packs_by_code(const float* slopes, const T* dy, Stored<Y> y, const u8* mask,
                                      i64 begin, i64 end, const Finish& finish) {
  constexpr LanesOf<S, 2> kOps{};
  i64 i = begin;
  for (; i + kOps.kElements <= end; i += kOps.kElements) {
    fetch_ahead<kStreaming>(codes_of(y + i), kOps.kElements);
    fetch_ahead<kStreaming>(dy + i, kOps.kElements);
    auto row = kOps.load_codes(y + i);
    if constexpr (kReadsMask<Fit, Y>) row = kOps.row_behind(row, kOps.load_mask(mask + i / 8), kCodes);
    finish(kOps, i, kOps.mul(kOps.load(dy + i), kOps.looked_up(slopes, row)));
  }
  return i;
}

// The elements from `begin` on, which begins a byte of the mask, that fill whole vectors; as above. slopes:
// what slopes_by_code gave.
template <class Fit, class T, class Y, CpuSchedule S, bool kStreaming, class Finish>
OUTGRAD_HD i64 backward_vectors([[maybe_unused]] const float* slopes, const T* dy, Stored<Y> y,
                                const u8* mask, i64 begin, i64 end, const Finish& finish) {
  i64 i = begin;
  if constexpr (kGoesByCode<Y, S> && !kIsDirect<Fit>) {
    if (slopes != nullptr)
      i = backward_packs_by_code<Fit, T, Y, S, kStreaming>(slopes, dy, y, mask, i, end, finish);
  }
  if constexpr (kIsDirect<Fit>) {
    i = backward_packs<Fit, T, Y, S, S.unroll, kStreaming>(dy, y, mask, i, end, finish);
  } else if constexpr (S.unroll > 1) {
    constexpr int kCount = by_rows<Fit>() ? 1 : 2;  // 2: of 16-bit elements the line that AVX-512 stores
    i = backward_runs<Fit, T, Y, S, kCount, S.unroll / kCount, kStreaming>(dy, y, mask, i, end, finish);
  }
  return backward_packs<Fit, T, Y, S, 1, kStreaming>(dy, y, mask, i, end, finish);
}

template <class Fit, class T, class Y, CpuSchedule S, bool kStreaming>
void backward_range([[maybe_unused]] const float* slopes, const T* dy, Stored<Y> y, const u8* mask, T* dx,
                    i64 begin, i64 end) {
  i64 i = begin;
  if constexpr (S.vector_bits > 0) {
    const auto write = [=](const auto& ops, i64 at, const auto& products) __attribute__((always_inline)) {
      ops.template store<kStreaming>(dx + at, products);
    };
    i = backward_vectors<Fit, T, Y, S, kStreaming>(slopes, dy, y, mask, begin, end, write);
  }
  for (; i < end; ++i) {
    bool m = false;
    if constexpr (CarriesBranch<Y>) {
      m = carried_mask(FloatOps{}, code_of(*codes_of(y + i)));
    } else if constexpr (kReadsMask<Fit, Y>) {
      m = (mask[i / 8] >> (i % 8) & 1) != 0;
    }
    dx[i] = activation_backward_element<Fit>(kRowTable<Fit>, dy[i], y + i, m);
  }
  end_streaming<kStreaming>();
}

// What becomes of a pack's z: the mask bits, and finish(ops, y), where y is in fp32, ready to be narrowed to
// T. Where all of them are near, as almost always, nothing is to be clamped, no row to be fetched from
// elsewhere, no value to be rounded in another way than most.
template <class Forward, class T, class Lanes, class Finish>
OUTGRAD_HD void forward_pack(const Lanes& ops, const typename Lanes::Value& z, u8* mask,
                             const Finish& finish) {
  if constexpr (kHasMask<Forward>) ops.store_mask(mask, evaluate_mask(ops, Forward{}, z));
  if constexpr (kIsRoundedForward<Forward> && requires { ops.all_rows(z, 1); }) {
    using Near = NearRows<Forward>;
    // Far above what kTie decides and, by as much as p is below 1 in a near row, above bf16's subnormals.
    constexpr float kLeast = 0x1p-100f;
    constexpr bool kMayBeTiny = std::is_same_v<T, BF16> && !kIsPlain<Forward>;
    auto w = z;
    if constexpr (Near::kClamps) w = ops.at_most(z, ops.constant(Near::kXMax));
    const auto q = forward_index(ops, Near{}, w);
    if (__builtin_expect(ops.all_rows(q, Near::kRows) && (!kMayBeTiny || ops.none_below(z, kLeast)), 1)) {
      constexpr OrdinaryLanes<Lanes> kOrdinary{};
      return finish(kOrdinary, evaluate_near(kOrdinary, Near{}, kForwardColumns<Forward>.near, q, w, z));
    }
  }
  finish(ops, fitted_forward_value<T>(ops, Forward{}, kForwardColumns<Forward>, z));
}

// The same with y stored, as T or in fp32.
template <class Forward, class T, bool kStreaming, class Lanes, class Y>
OUTGRAD_HD void forward_pack(const Lanes& ops, const typename Lanes::Value& z, Y* y, u8* mask) {
  forward_pack<Forward, T>(ops, z, mask,
                           [=](const auto& lanes, const auto& value) __attribute__((always_inline)) {
                             lanes.template store<kStreaming>(y, value);
                           });
}

template <class Forward, class T, CpuSchedule S, int kCount, bool kStreaming>
OUTGRAD_HD i64 forward_packs(const T* x, T* y, u8* mask, i64 begin, i64 end) {
  constexpr LanesOf<S, kCount> kOps{};
  i64 i = begin;
  for (; i + kOps.kElements <= end; i += kOps.kElements) {
    fetch_ahead<kStreaming>(x + i, kOps.kElements);
    forward_pack<Forward, T, kStreaming>(kOps, kOps.load(x + i), y + i, mask + i / 8);
  }
  return i;
}

template <class Forward, class T, CpuSchedule S, bool kStreaming>
void forward_range(const T* x, T* y, u8* mask, i64 begin, i64 end) {
  i64 i = begin;
  if constexpr (S.vector_bits > 0) {
    constexpr int kUnroll = kUnrollOf<Forward, S>;
    i = forward_packs<Forward, T, S, kUnroll, kStreaming>(x, y, mask, i, end);
    if constexpr (kUnroll > 1) i = forward_packs<Forward, T, S, 1, kStreaming>(x, y, mask, i, end);
  }
  // What is left starts on a byte of the mask and ends the last word, whose unused bits are 0.
  const i64 last = kHasMask<Forward> ? (end + 31) / 32 * 32 : end;
  for (; i < last; i += 8) {
    u32 byte = 0;
    for (i64 k = i; k < std::min(i + 8, end); ++k) {
      const auto element = fitted_forward_element(Forward{}, kForwardTables<Forward>, x[k]);
      y[k] = element.y;
      byte |= static_cast<u32>(element.m) << (k - i);
    }
    if constexpr (kHasMask<Forward>) mask[i / 8] = static_cast<u8>(byte);
  }
  end_streaming<kStreaming>();
}

#ifdef OUTGRAD_AVX2
// table[code] for 8 codes.
OUTGRAD_HD __m128i looked_up(const u16* table, const void* codes) {
  u64 low, high;
  __builtin_memcpy(&low, codes, sizeof(low));
  __builtin_memcpy(&high, static_cast<const u8*>(codes) + sizeof(low), sizeof(high));
  __m128i y = _mm_cvtsi32_si128(table[static_cast<u16>(low)]);
  y = _mm_insert_epi16(y, table[static_cast<u16>(low >> 16)], 1);
  y = _mm_insert_epi16(y, table[static_cast<u16>(low >> 32)], 2);
  y = _mm_insert_epi16(y, table[low >> 48], 3);
  y = _mm_insert_epi16(y, table[static_cast<u16>(high)], 4);
  y = _mm_insert_epi16(y, table[static_cast<u16>(high >> 16)], 5);
  y = _mm_insert_epi16(y, table[static_cast<u16>(high >> 32)], 6);
  return _mm_insert_epi16(y, table[high >> 48], 7);
}

// Whole packs of the elements from `begin` on, by a table of all outputs; returns where it stopped. The mask
// is that of evaluate_mask.
template <class Activation, class T, CpuSchedule S, bool kStreaming>
i64 forward_packs_by_code(const u16* table, const T* x, T* y, u8* mask, i64 begin, i64 end) {
  constexpr LanesOf<S, 2> kOps{};
  i64 i = begin;
  for (; i + kOps.kElements <= end; i += kOps.kElements) {
    fetch_ahead<kStreaming>(x + i, kOps.kElements);
    if constexpr (kHasMask<Activation>)
      kOps.store_mask(mask + i / 8, kOps.less_equal(kOps.constant(Activation::kXStar), kOps.load(x + i)));
    OUTGRAD_UNROLL
    for (int k = 0; k < kOps.kElements; k += 8) {
      const __m128i eight = looked_up(table, x + i + k);
      __m128i* const to = reinterpret_cast<__m128i*>(y + i + k);
      if constexpr (kStreaming) {
        _mm_stream_si128(to, eight);
      } else {
        _mm_storeu_si128(to, eight);
      }
    }
  }
  return i;
}
#endif

}  // namespace detail

template <class Fit, class T, CpuSchedule S, class Y>
void activation_backward(const T* dy, Stored<Y> y, const u32* mask, T* dx, i64 n) {
  static_assert(sizeof(T) > 1, "dy and dx are f32, f16 or bf16");
  static_assert(detail::schedule_holds<S>());
  const u8* const bytes = reinterpret_cast<const u8*>(mask);
  const float* const slopes = detail::slopes_by_code<Fit, T, Y, S>(n);
  const auto all = [=]<bool kStreaming>() {
    detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
      detail::backward_range<Fit, T, Y, detail::kLoopOf<S>, kStreaming>(slopes, dy, y, bytes, dx, begin, end);
    });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams<S>(dx, n)) return all.template operator()<true>();
  }
  all.template operator()<false>();
}

namespace detail {

template <class Forward, class T, CpuSchedule S, bool kStreaming>
void forward_all(const T* x, T* y, u8* mask, i64 n) {
#ifdef OUTGRAD_AVX2
  if constexpr (kGoesByCode<T, S>) {
    if (n >= kCodes) {
      const u16* const table = outputs_by_code<Forward, T>(forward_range<Forward, T, kLoopOf<S>, false>);
      over_blocks<S>(n, [=](i64 begin, i64 end) {
        const i64 i =
            forward_packs_by_code<Forward, T, kLoopOf<S>, kStreaming>(table, x, y, mask, begin, end);
        forward_range<Forward, T, kLoopOf<S>, kStreaming>(x, y, mask, i, end);
      });
      return;
    }
  }
#endif
  over_blocks<S>(n, [=](i64 begin, i64 end) {
    forward_range<Forward, T, kLoopOf<S>, kStreaming>(x, y, mask, begin, end);
  });
}

}  // namespace detail

template <class Forward, class T, CpuSchedule S>
void fitted_forward(const T* x, T* y, u32* mask, i64 n) {
  static_assert(detail::schedule_holds<S>());
  u8* const bytes = reinterpret_cast<u8*>(mask);
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams<S>(y, n)) return detail::forward_all<Forward, T, S, true>(x, y, bytes, n);
  }
  detail::forward_all<Forward, T, S, false>(x, y, bytes, n);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
