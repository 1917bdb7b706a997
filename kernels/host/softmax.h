// Softmax over rows on the CPU, with a code of 8 bits for each p, and its backward from these codes alone
// (kernels/softmax.h). Every schedule gives the same bits.
//
// Arrays are [rows, n], row-major, with 1 <= n <= kMostSoftmax; rows may be 0. Pointers need only be aligned
// to their element. Nothing is allocated. Rows of up to kKeptExponentials keep their exp between the sum and
// p; in longer rows it is evaluated for both.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/host/blocks.h"
#include "kernels/host/forwards.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/stores.h"
#include "kernels/softmax.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Sets y = softmax(x) and the codes of y before it is rounded to T. y may equal x; codes overlaps neither.
template <class T, CpuSchedule S>
void softmax_forward_code(const T* x, T* y, u8* codes, i64 rows, i64 n);

// Sets codes[i] to the code of p[i], for a p of [n] numbers that somebody else has computed.
template <class T, CpuSchedule S>
void softmax_encode(const T* p, u8* codes, i64 n);

// Sets dx = p' (dy - sum(p' dy) / sum(p')), row by row, with p' from the codes. dx may equal dy and overlaps
// nothing otherwise.
template <class T, CpuSchedule S>
void softmax_backward_code(const T* dy, const u8* codes, T* dx, i64 rows, i64 n);

// -------------------------------------------------------------------------------------------------

namespace detail {

// What an element, or those of a vector, become after they are loaded: themselves in fp32, p' of codes, or
// softmax_exp.
template <class T>
struct WidenedElements {
  const T* from;

  OUTGRAD_HD float one(i64 j) const { return widen(from[j]); }
#ifdef OUTGRAD_AVX2
  template <class Ops>
  OUTGRAD_HD auto load(const Ops& ops, i64 j) const {
    return ops.load(from + j);
  }
  template <class Isa>
  OUTGRAD_HD typename Isa::Float vector(typename Isa::Float value) const {
    return value;
  }
#endif
};

struct DecodedElements {
  const u8* codes;

  OUTGRAD_HD float one(i64 j) const { return softmax_of_code(codes[j]); }
#ifdef OUTGRAD_AVX2
  template <class Ops>
  OUTGRAD_HD auto load(const Ops& ops, i64 j) const {
    return ops.load_codes(codes + j);
  }
  template <class Isa>
  OUTGRAD_HD typename Isa::Float vector(typename Isa::Int code) const {
    static constexpr SoftmaxTable kTable{};
    const auto triples = Isa::shift_right(code, std::countr_zero(static_cast<unsigned>(kSoftmaxRows)));
    const auto octaves = Isa::add(Isa::add(triples, triples), triples);
    static_assert(kSoftmaxOctaves == 3);
    const auto raised = Isa::add(Isa::bits(Isa::template permute<kSoftmaxRows>(kTable.w, code)),
                                 Isa::bits(Isa::shifted(floats<Isa>(octaves), 23)));
    return Isa::select(Isa::greater(code, Isa::splat(0)), floats<Isa>(raised), Isa::splat(0.0f));
  }

 private:
  template <class Isa>
  static OUTGRAD_HD typename Isa::Float floats(typename Isa::Int bits) {
    return std::bit_cast<typename Isa::Float>(bits);
  }
#endif
};

template <class T>
struct ExponentialElements {
  const T* x;
  SoftmaxExp row;

  OUTGRAD_HD float one(i64 j) const { return softmax_exp(FloatOps{}, row, widen(x[j])); }
#ifdef OUTGRAD_AVX2
  template <class Ops>
  OUTGRAD_HD auto load(const Ops& ops, i64 j) const {
    return ops.load(x + j);
  }
  template <class Isa>
  OUTGRAD_HD typename Isa::Float vector(typename Isa::Float value) const {
    return softmax_exp(LaneOps<Isa, 1, TablePlacement::permute>{}, row, {{value}}).v[0];
  }
#endif
};

// What ops handles at once, from element j on.
template <class Elements>
OUTGRAD_HD float elements_at(const FloatOps&, const Elements& elements, i64 j) {
  return elements.one(j);
}
#ifdef OUTGRAD_AVX2
template <class Isa, int kCount, TablePlacement kPlacement, class Stored>
OUTGRAD_HD auto made_of(const LaneOps<Isa, kCount, kPlacement>&, const auto& elements, const Stored& stored) {
  return each_vector<Isa, kCount>([&](int i) { return elements.template vector<Isa>(stored.v[i]); });
}
template <class Ops, class Elements>
OUTGRAD_HD auto elements_at(const Ops& ops, const Elements& elements, i64 j) {
  return made_of(ops, elements, elements.load(ops, j));
}
#endif

// Elements in the places where row_sums<Lane, float> wants them.
template <class Lane>
struct InTreeOrder {
  template <class Elements>
  static OUTGRAD_HD float read(const Elements& elements, i64 j) {
    return elements.one(j);
  }
};
#ifdef OUTGRAD_AVX2
template <class Isa>
struct InTreeOrder<Vector<Isa>> {
  template <class Elements>
  static OUTGRAD_HD Vector<Isa> read(const Elements& elements, i64 j) {
    return elements_at(LaneOps<Isa, 1, TablePlacement::permute>{}, elements, j);
  }
  template <class Elements>
  static OUTGRAD_HD Vector<Isa> read(const Elements& elements, i64 j, const PartIo<Isa>& part) {
    return elements_at(part, elements, j);
  }
};
template <class Isa, int kPart>
struct InTreeOrder<FloatPack<Isa, 2, ChunkPart<float, kPart>>> {
  template <class Elements>
  static OUTGRAD_HD FloatPack<Isa, 2, ChunkPart<float, kPart>> read(const Elements& elements, i64 j) {
    const auto [a, b] =
        elements_at(LaneOps<Isa, 2, TablePlacement::permute>{}, elements, j + 2 * kPart * Isa::kLanes).v;
    const Vector<Isa> first{{a}}, second{{b}};
    return {{shuffled<HalfChunks<Isa::kLanes, false>>(first, second).v[0],
             shuffled<HalfChunks<Isa::kLanes, true>>(first, second).v[0]}};
  }
};
#endif

// The sum of softmax_exp.
template <class Elements>
struct ExponentialTerms {
  static constexpr int kOperands = 1, kSums = 1;
  Elements e;

  template <class Lane, class... Part>
  OUTGRAD_HD Tuple<Lane, 1> operands(i64 j, const Part&... part) const {
    return {{InTreeOrder<Lane>::read(e, j, part...)}};
  }
  static OUTGRAD_HD Tuple<float, 1> missing() { return {{kMissingTerm}}; }
  template <class Lane>
  static OUTGRAD_HD Tuple<Lane, 1> first_fold(const Tuple<Lane, 1>& low, const Tuple<Lane, 1>& high) {
    return {{add_rn(low.v[0], high.v[0])}};
  }
};

// sum(p'), sum(p' dy).
template <class T>
struct GradientTerms {
  static constexpr int kOperands = 2, kSums = 2;
  DecodedElements p;
  WidenedElements<T> dy;

  template <class Lane, class... Part>
  OUTGRAD_HD Tuple<Lane, 2> operands(i64 j, const Part&... part) const {
    return {{InTreeOrder<Lane>::read(p, j, part...), InTreeOrder<Lane>::read(dy, j, part...)}};
  }
  // -0 is neutral in both sums: -0 * 0 = -0
  static OUTGRAD_HD Tuple<float, 2> missing() { return {{kMissingTerm, 0.0f}}; }
  template <class Lane>
  static OUTGRAD_HD Tuple<Lane, 2> first_fold(const Tuple<Lane, 2>& low, const Tuple<Lane, 2>& high) {
    return {{add_rn(low.v[0], high.v[0]), fma_rn(low.v[0], low.v[1], mul_rn(high.v[0], high.v[1]))}};
  }
};

// body(ops, j) for the elements of a row in order, as many at once as ops handles.
template <CpuSchedule S, class Body>
OUTGRAD_HD void over_row(i64 n, const Body& body) {
  i64 j = 0;
  if constexpr (S.vector_bits > 0) {
    constexpr LanesOf<S, 2> kPair{};
    constexpr LanesOf<S, 1> kSingle{};
    for (; j + kPair.kElements <= n; j += kPair.kElements) body(kPair, j);
    if (j + kSingle.kElements <= n) body(kSingle, j), j += kSingle.kElements;
    if (j < n) body(part_of(kSingle, n - j), j);
    return;
  }
  for (; j < n; ++j) body(FloatOps{}, j);
}

// Not a NaN, unless all are.
template <CpuSchedule S, class T>
float greatest_of(const T* x, i64 n) {
  constexpr int kMost = 32;
  alignas(64) float most[kMost];
  std::fill_n(most, kMost, -std::numeric_limits<float>::infinity());
  over_row<S>(n, [&](const auto& ops, i64 j) __attribute__((always_inline)) {
    const WidenedElements<T> elements{x};
    const auto value = elements_at(ops, elements, j), so_far = ops.load(static_cast<const float*>(most));
    store_value<false>(ops, most, ops.at_least(so_far, value));
  });
  for (int half = kMost / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) most[k] = std::max(most[k], most[k + half]);
  }
  return most[0];
}

template <CpuSchedule S>
using SoftmaxLane = typename LaneOfBits<S.vector_bits>::Lane;

inline constexpr i64 kKeptExponentials = 8192;
// Of a row the next step waits for the one before, and short rows are over before a core sees the next one:
// each step is done for several.
inline constexpr i64 kSoftmaxRowsTogether = 4;

// The terms of a row's sum with the missing ones that make whole vectors of chunks of them.
template <CpuSchedule S>
constexpr i64 softmax_terms(i64 n) {
  constexpr i64 kWhole = kChunkTerms * LaneIo<SoftmaxLane<S>>::kWidth;
  return (n + kWhole - 1) / kWhole * kWhole;
}

// body(row, rows) for groups of rows: as many as have room, but one of those that have none.
template <CpuSchedule S, class Body>
void over_softmax_rows(i64 rows, i64 n, const Body& body) {
  const i64 together = std::clamp<i64>(kKeptExponentials / softmax_terms<S>(n), 1, kSoftmaxRowsTogether);
  parallel_for((rows + together - 1) / together, S.threads, [=](i64 group) {
    const i64 row = group * together;
    body(row, std::min(together, rows - row));
  });
}

template <class T, CpuSchedule S>
void softmax_forward_rows(const T* x, T* y, u8* codes, i64 rows, i64 n) {
  SoftmaxExp of[kSoftmaxRowsTogether];
  float sums[kSoftmaxRowsTogether];
  for (i64 r = 0; r < rows; ++r) of[r] = softmax_exp_of(greatest_of<S>(x + r * n, n));
  const auto exponentials = [&](i64 r) { return ExponentialElements<T>{x + r * n, of[r]}; };
  const auto finish = [&](const auto& elements_of, i64 terms) __attribute__((always_inline)) {
    for (i64 r = 0; r < rows; ++r)
      sums[r] =
          row_sums<SoftmaxLane<S>>(ExponentialTerms<decltype(elements_of(r))>{elements_of(r)}, terms).v[0];
    for (i64 r = 0; r < rows; ++r) {
      over_row<S>(n, [=, e = elements_of(r), sum = SoftmaxSum(sums[r])](const auto& ops, i64 j)
                         __attribute__((always_inline)) {
                           const auto p = softmax_quotient(ops, elements_at(ops, e, j), sum);
                           ops.store_bytes(codes + r * n + j, softmax_coded(ops, p));
                           store_value<false>(ops, y + r * n + j, p);
                         });
    }
  };
  if (n > kKeptExponentials) return finish(exponentials, n);
  alignas(64) float kept[kKeptExponentials];
  const i64 terms = softmax_terms<S>(n);
  for (i64 r = 0; r < rows; ++r) {
    float* const e = kept + r * terms;
    over_row<S>(n, [=, from = exponentials(r)](const auto& ops, i64 j) __attribute__((always_inline)) {
      store_value<false>(ops, e + j, elements_at(ops, from, j));
    });
    std::fill(e + n, e + terms, kMissingTerm);
  }
  finish([&](i64 r) { return WidenedElements<float>{kept + r * terms}; }, terms);
}

template <class T, CpuSchedule S>
void softmax_backward_rows(const T* dy, const u8* codes, T* dx, i64 rows, i64 n) {
  float means[kSoftmaxRowsTogether];
  for (i64 r = 0; r < rows; ++r) {
    const GradientTerms<T> terms{{codes + r * n}, {dy + r * n}};
    const auto sums = row_sums<SoftmaxLane<S>>(terms, n);
    means[r] = div_rn(sums.v[1], sums.v[0]);
  }
  for (i64 r = 0; r < rows; ++r) {
    const DecodedElements p{codes + r * n};
    const WidenedElements<T> gradient{dy + r * n};
    over_row<S>(
        n, [=, mean = means[r], to = dx + r * n](const auto& ops, i64 j) __attribute__((always_inline)) {
          store_value<false>(
              ops, to + j,
              ops.mul(elements_at(ops, p, j), ops.sub(elements_at(ops, gradient, j), ops.constant(mean))));
        });
  }
}

}  // namespace detail

template <class T, CpuSchedule S>
void softmax_forward_code(const T* x, T* y, u8* codes, i64 rows, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_softmax_rows<S>(rows, n, [=](i64 row, i64 count) {
    detail::softmax_forward_rows<T, detail::kLoopOf<S>>(x + row * n, y + row * n, codes + row * n, count, n);
  });
}

template <class T, CpuSchedule S>
void softmax_encode(const T* p, u8* codes, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    detail::over_row<detail::kLoopOf<S>>(
        end - begin, [=](const auto& ops, i64 j) __attribute__((always_inline)) {
          const auto of = detail::elements_at(ops, detail::WidenedElements<T>{p + begin}, j);
          ops.store_bytes(codes + begin + j, softmax_coded(ops, of));
        });
  });
}

template <class T, CpuSchedule S>
void softmax_backward_code(const T* dy, const u8* codes, T* dx, i64 rows, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_softmax_rows<S>(rows, n, [=](i64 row, i64 count) {
    detail::softmax_backward_rows<T, detail::kLoopOf<S>>(dy + row * n, codes + row * n, dx + row * n, count,
                                                         n);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
