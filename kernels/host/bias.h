// GELU of x + bias on the host, forward and backward from the output: the step after a linear layer, in one
// pass.
//
// x, y, dy, dx are [rows, n], row-major, in format T. bias [n] is fp32 or T, and dbias [n] is fp32. Mask bit
// i belongs to element i of the whole matrix, as without a bias. z = RN_f32(x + bias) is never stored: y =
// RN_T(GELU(z)), m = [z >= x*].
// Errors: an fp32 z is an f32 argument, so everything that holds for y and g over every f32 x (T, O and R of
// the sweeps over all 2^32 of them) holds here. A 16-bit y is then GELU(z) rounded twice, through fp32, and
// those figures include this. dbias is the sum of the fp32 products dy g before they are rounded to T, in the
// order of the fixed tree over rows, so its bits are equal for every schedule and thread count.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "kernels/host/columns.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/errors.h"
#include "kernels/host/refusal.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// y may equal x; nothing else may overlap. mask has ceil(rows n / 32) words, and its bits beyond rows n are
// set to 0. If rows n = 0, nothing is done. Throws SpecError for a negative shape and for one whose size
// overflows.
template <class Forward, class T, CpuSchedule S, class B = float>
void bias_gelu_forward(const T* x, const B* bias, i64 rows, i64 n, T* y, u32* mask);

// Number of fp32 words of scratch that bias_gelu_backward needs.
inline i64 bias_backward_workspace(i64 rows, i64 n) {
  return rows > 0 && n > 0 ? detail::column_words(rows, n) : 0;
}

// dx = RN_T(dy g(y, m)), and dbias[j] = the sum of dy g over column j. dx may equal dy. `workspace` holds
// bias_backward_workspace(rows, n) words; an empty one is allocated, and nothing else. rows = 0 sets dbias to
// 0. Throws SpecError as above, and for a workspace that is too small, before anything is written.
template <class Fit, class T, CpuSchedule S>
void bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx, float* dbias,
                        std::span<float> workspace = {});

// -------------------------------------------------------------------------------------------------

namespace detail {

inline void require_matrix(const char* function, i64 rows, i64 n) {
  const auto shape = [&] { return "[" + std::to_string(rows) + ", " + std::to_string(n) + "]"; };
  if (rows < 0 || n < 0) refuse(refusal(function) + "a negative shape, " + shape());
  i64 size = 0;
  if (__builtin_mul_overflow(rows, n, &size) || size > INT64_MAX / 4)
    refuse(refusal(function) + shape() + " overflows");
}

// A vector of columns of sums, for column_sums.
template <CpuSchedule S>
struct ColumnIo {
  static constexpr int kWidth = 1;
  static OUTGRAD_HD float load(const float* from) { return *from; }
  static OUTGRAD_HD void store(float* to, float value) { *to = value; }
  static OUTGRAD_HD float add(float a, float b) { return add_rn(a, b); }
};
#ifdef OUTGRAD_AVX2
template <class Isa>
struct IsaColumnIo {
  static constexpr int kWidth = Isa::kLanes;
  static OUTGRAD_HD typename Isa::Float load(const float* from) { return Isa::load(from); }
  static OUTGRAD_HD void store(float* to, typename Isa::Float value) {
    Isa::template store<false>(to, value);
  }
  static OUTGRAD_HD typename Isa::Float add(typename Isa::Float a, typename Isa::Float b) {
    return Isa::add(a, b);
  }
};
template <CpuSchedule S>
  requires(S.vector_bits == 256)
struct ColumnIo<S> : IsaColumnIo<Avx2> {};
#endif
#ifdef OUTGRAD_AVX512
template <CpuSchedule S>
  requires(S.vector_bits == 512)
struct ColumnIo<S> : IsaColumnIo<Avx512> {};
#endif

// The elements from i on, which begins a byte of the mask; j is its column, of n, that are no fewer than a
// pack has elements. Processes whole packs of kCount vectors and returns where it stopped. A pack may end in
// the next row.
template <class Forward, class T, CpuSchedule S, int kCount, bool kStreaming, class B>
OUTGRAD_HD i64 bias_forward_packs(const T* x, const B* bias, i64 n, i64 i, i64& j, i64 end, T* y, u8* mask) {
  constexpr LanesOf<S, kCount> kOps{};
  constexpr i64 kElements = kOps.kElements;
  for (; i + kElements <= end; i += kElements) {
    fetch_ahead<kStreaming>(x + i, kElements);
    const B* addends = bias + j;
    B of_two_rows[kElements];
    j += kElements;
    if (j >= n) {
      j -= n;
      if (j > 0) {
        std::copy_n(bias, j, std::copy(addends, bias + n, of_two_rows));
        addends = of_two_rows;
      }
    }
    forward_pack<Forward, T, kStreaming>(kOps, kOps.add(kOps.load(x + i), kOps.load(addends)), y + i,
                                         mask + i / 8);
  }
  return i;
}

// Elements [i, end).
template <class Forward, class T, CpuSchedule S, bool kStreaming, class B>
void bias_forward_range(const T* x, const B* bias, i64 n, i64 i, i64 end, T* y, u8* mask) {
  i64 j = i % n;
  // Several short rows, as one.
  constexpr i64 kTogether = 1024;
  B together[kTogether];
  if constexpr (S.vector_bits > 0) {
    constexpr int kUnroll = kUnrollOf<Forward, S>;
    constexpr i64 kElements = LanesOf<S, kUnroll>::kElements;
    if (n % kElements != 0 && 2 * n <= kTogether) {
      const i64 columns = kTogether / n * n;
      std::copy_n(bias, n, together);
      for (i64 k = n; k < columns; ++k) together[k] = together[k - n];
      bias = together, n = columns;
    }
    i = bias_forward_packs<Forward, T, S, kUnroll, kStreaming>(x, bias, n, i, j, end, y, mask);
    if constexpr (kUnroll > 1)
      i = bias_forward_packs<Forward, T, S, 1, kStreaming>(x, bias, n, i, j, end, y, mask);
  }
  for (; i < end; ++i, j = j + 1 < n ? j + 1 : 0) {
    const float z = add_rn(widen(x[i]), widen(bias[j]));
    const u32 earlier = i % 8 == 0 ? 0 : mask[i / 8];
    mask[i / 8] =
        static_cast<u8>(earlier | static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, z)) << (i % 8));
    y[i] = narrow<T>(fitted_forward_value<T>(FloatOps{}, Forward{}, kForwardTables<Forward>, z));
  }
}

template <class Forward, class T, CpuSchedule S, bool kStreaming, class B>
void bias_forward(const T* x, const B* bias, i64 elements, i64 n, T* y, u8* mask) {
  over_blocks<S>(elements, [=](i64 begin, i64 end) {  // blocks are whole words of the mask
    bias_forward_range<Forward, T, kLoopOf<S>, kStreaming>(x, bias, n, begin, end, y, mask);
    if (end == elements) {
      for (i64 byte = (end + 7) / 8; byte % 4 != 0; ++byte) mask[byte] = 0;
    }
    end_streaming<kStreaming>();
  });
}

// Whether every row of the output begins on a cache line and the output is large.
template <CpuSchedule S, class T>
bool streams_rows(const T* output, i64 rows, i64 n) {
  return n * static_cast<i64>(sizeof(T)) % 64 == 0 && streams<S>(output, rows * n);
}

// The mask bits of `count` elements from i on, at most 32, in the low bits.
inline u32 bits_at(const u32* mask, i64 i, i64 count) {
  const i64 word = i / 32, first = i % 32;
  return static_cast<u32>((first + count > 32 ? u64{mask[word + 1]} << 32 | mask[word] : mask[word]) >>
                          first);
}

#ifdef OUTGRAD_AVX2
// Adds products to `sums`, which are in the order of memory.
template <class Ops, class Isa, int kCount>
OUTGRAD_HD void add_products(const Ops&, float* sums, FloatPack<Isa, kCount> products) {
  if constexpr (Ops::kEvenOdd) {
    OUTGRAD_UNROLL
    for (int i = 0; i < kCount; i += 2) Isa::interleave(products.v[i], products.v[i + 1]);
  }
  OUTGRAD_UNROLL
  for (int i = 0; i < kCount; ++i) {
    float* const to = sums + i * Isa::kLanes;
    Isa::template store<false>(to, Isa::add(Isa::load(to), products.v[i]));
  }
}
#endif

// Elements [i, i + count) of a row whose first element need not begin a byte of the mask: dx, and their
// products onto sums, of which a whole vector may be written.
template <class Fit, bool kStreaming, class Ops, class T>
OUTGRAD_HD void bias_backward_pack(const Ops& ops, i64 count, const T* dy, const T* y, const u32* mask, i64 i,
                                   T* dx, float* sums) {
  fetch_ahead<kStreaming>(y + i, count);
  fetch_ahead<kStreaming>(dy + i, count);
  u32 bits[(Ops::kElements + 31) / 32];
  for (i64 k = 0; k < count; k += 32) bits[k / 32] = bits_at(mask, i + k, std::min<i64>(32, count - k));
  const auto products = activation_backward_value<Fit>(ops, kVectorTable<Fit>, dy + i, y + i,
                                                       ops.load_mask(reinterpret_cast<const u8*>(bits)));
  add_products(ops, sums, products);
  ops.template store<kStreaming>(dx + i, products);
}

// One row: writes dx and adds its products to sums.
template <class Fit, class T, CpuSchedule S, bool kStreaming>
void bias_backward_row([[maybe_unused]] const float* slopes, const T* dy, const T* y, const u32* mask, i64 i,
                       i64 end, T* dx, float* sums) {
  if constexpr (S.vector_bits > 0) {
    const i64 begin = i;
    if (i % 8 == 0) {
      const auto finish = [=](const auto& ops, i64 at, const auto& products) __attribute__((always_inline)) {
        add_products(ops, sums + (at - begin), products);
        ops.template store<kStreaming>(dx + at, products);
      };
      i = backward_vectors<Fit, T, T, S, kStreaming>(slopes, dy, y, reinterpret_cast<const u8*>(mask), i, end,
                                                     finish);
    }
    constexpr LanesOf<S, kUnrollOf<Fit, S>> kPack{};
    constexpr LanesOf<S, 1> kSingle{};
    for (; end - i >= kPack.kElements; i += kPack.kElements)
      bias_backward_pack<Fit, kStreaming>(kPack, kPack.kElements, dy, y, mask, i, dx, sums + (i - begin));
    for (; end - i >= kSingle.kElements; i += kSingle.kElements)
      bias_backward_pack<Fit, kStreaming>(kSingle, kSingle.kElements, dy, y, mask, i, dx, sums + (i - begin));
    if (i < end)
      bias_backward_pack<Fit, kStreaming>(part_of(kSingle, end - i), end - i, dy, y, mask, i, dx,
                                          sums + (i - begin));
    return;
  }
  for (; i < end; ++i, ++sums) {
    const float product = activation_backward_value<Fit>(FloatOps{}, kRowTable<Fit>, dy + i, y + i,
                                                         bits_at(mask, i, 1) % 2 != 0);
    *sums = add_rn(*sums, product);
    dx[i] = narrow<T>(product);
  }
}

}  // namespace detail

template <class Forward, class T, CpuSchedule S, class B>
void bias_gelu_forward(const T* x, const B* bias, i64 rows, i64 n, T* y, u32* mask) {
  static_assert(detail::schedule_holds<S>());
  detail::require_matrix("bias_gelu_forward", rows, n);
  if (rows * n == 0) return;
  u8* const bytes = reinterpret_cast<u8*>(mask);
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams_rows<S>(y, rows, n))
      return detail::bias_forward<Forward, T, S, true>(x, bias, rows * n, n, y, bytes);
  }
  detail::bias_forward<Forward, T, S, false>(x, bias, rows * n, n, y, bytes);
}

template <class Fit, class T, CpuSchedule S>
void bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx, float* dbias,
                        std::span<float> workspace) {
  static_assert(detail::schedule_holds<S>() && Fit::kMasked);
  detail::require_matrix("bias_gelu_backward", rows, n);
  const detail::Workspace own("bias_gelu_backward", workspace, bias_backward_workspace(rows, n));
  if (rows == 0) std::fill(dbias, dbias + n, 0.0f);
  if (rows * n == 0) return;
  float* const words = own.words();
  const float* const slopes = detail::slopes_by_code<Fit, T, T, S>(rows * n);
  const auto row_of = [=]<bool kStreaming>(std::bool_constant<kStreaming>) {
    detail::column_sums<detail::ColumnIo<S>, kStreaming>(
        rows, n, S.threads, words, dbias, [=](i64 row, float* sums) {
          detail::bias_backward_row<Fit, T, detail::kLoopOf<S>, kStreaming>(slopes, dy, y, mask, row * n,
                                                                            row * n + n, dx, sums);
        });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams_rows<S>(dx, rows, n)) return row_of(std::true_type{});
  }
  row_of(std::false_type{});
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
