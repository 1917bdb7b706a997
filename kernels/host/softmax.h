// Softmax over rows on the CPU, with a code of 8 bits for each p, and its backward from these codes alone
// (kernels/softmax.h). Every schedule gives the same bits.
//
// Arrays are [rows, n], row-major, with 1 <= n <= kMostSoftmax; rows may be 0. Pointers need only be aligned
// to their element. Nothing is allocated: exp is evaluated once for the sum and once more for p.
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

// What a vector's worth of elements is, from its first element on: the elements of an array in fp32, p' of
// codes, or exp(x - greatest).
template <class T>
struct WidenedElements {
  const T* from;

  OUTGRAD_HD float one(i64 j) const { return widen(from[j]); }
#ifdef OUTGRAD_AVX2
  template <class Isa>
  OUTGRAD_HD typename Isa::Float vector(i64 j) const {
    return Isa::load(from + j);
  }
#endif
};

struct DecodedElements {
  const u8* codes;

  OUTGRAD_HD float one(i64 j) const { return softmax_of_code(codes[j]); }
#ifdef OUTGRAD_AVX2
  template <class Isa>
  OUTGRAD_HD typename Isa::Float vector(i64 j) const {
    static constexpr SoftmaxTable kTable{};
    const auto code = Isa::load_codes(codes + j);
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
  float greatest;

  OUTGRAD_HD float one(i64 j) const { return softmax_exp(widen(x[j]), greatest); }
#ifdef OUTGRAD_AVX2
  template <class Isa>
  OUTGRAD_HD typename Isa::Float vector(i64 j) const {
    using Doubles = DoublesOf<Isa::kLanes * 32>;
    alignas(64) float wide[Isa::kLanes];
    Isa::template store<false>(wide, Isa::load(x + j));
    OUTGRAD_UNROLL
    for (int k = 0; k < Isa::kLanes; k += Doubles::kLanes) {
      Doubles::store(
          wide + k,
          forwards::exp_of(Doubles{}, Doubles::sub(Doubles::load(wide + k),
                                                   Doubles::constant(static_cast<double>(greatest)))));
    }
    return Isa::load(wide);
  }
#endif
};

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
    return {{elements.template vector<Isa>(j)}};
  }
};
template <class Isa, int kPart>
struct InTreeOrder<FloatPack<Isa, 2, ChunkPart<float, kPart>>> {
  template <class Elements>
  static OUTGRAD_HD FloatPack<Isa, 2, ChunkPart<float, kPart>> read(const Elements& elements, i64 j) {
    const Vector<Isa> a{{elements.template vector<Isa>(j + 2 * kPart * Isa::kLanes)}};
    const Vector<Isa> b{{elements.template vector<Isa>(j + (2 * kPart + 1) * Isa::kLanes)}};
    return {{shuffled<HalfChunks<Isa::kLanes, false>>(a, b).v[0],
             shuffled<HalfChunks<Isa::kLanes, true>>(a, b).v[0]}};
  }
};
#endif

// sum(exp(x - greatest)).
template <class T>
struct ExponentialTerms {
  static constexpr int kOperands = 1, kSums = 1;
  ExponentialElements<T> e;

  template <class Lane>
  OUTGRAD_HD Tuple<Lane, 1> operands(i64 j) const {
    return {{InTreeOrder<Lane>::read(e, j)}};
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

  template <class Lane>
  OUTGRAD_HD Tuple<Lane, 2> operands(i64 j) const {
    return {{InTreeOrder<Lane>::read(p, j), InTreeOrder<Lane>::read(dy, j)}};
  }
  // -0 is neutral in both sums: -0 * 0 = -0
  static OUTGRAD_HD Tuple<float, 2> missing() { return {{kMissingTerm, 0.0f}}; }
  template <class Lane>
  static OUTGRAD_HD Tuple<Lane, 2> first_fold(const Tuple<Lane, 2>& low, const Tuple<Lane, 2>& high) {
    return {{add_rn(low.v[0], high.v[0]), fma_rn(low.v[0], low.v[1], mul_rn(high.v[0], high.v[1]))}};
  }
};

// What ops handles at once, from element j on.
template <class Elements>
OUTGRAD_HD float elements_at(const FloatOps&, const Elements& elements, i64 j) {
  return elements.one(j);
}
#ifdef OUTGRAD_AVX2
template <class Isa, int kCount, TablePlacement kPlacement, class Elements>
OUTGRAD_HD FloatPack<Isa, kCount> elements_at(const LaneOps<Isa, kCount, kPlacement>&,
                                              const Elements& elements, i64 j) {
  return each_vector<Isa, kCount>([&](int i) { return elements.template vector<Isa>(j + i * Isa::kLanes); });
}
#endif

// body(ops, j) for the elements of a row in order, as many at once as ops handles.
template <CpuSchedule S, class Body>
OUTGRAD_HD void over_row(i64 n, const Body& body) {
  i64 j = 0;
  if constexpr (S.vector_bits > 0) {
    constexpr LanesOf<S, 2> kPair{};
    constexpr LanesOf<S, 1> kSingle{};
    for (; j + kPair.kElements <= n; j += kPair.kElements) body(kPair, j);
    if (j + kSingle.kElements <= n) body(kSingle, j), j += kSingle.kElements;
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
    store_value<false>(ops, most, ops.select(ops.less(so_far, value), value, so_far));
  });
  return *std::max_element(most, most + kMost);
}

// The codes of the p that ops handles at once.
template <class Ops>
OUTGRAD_HD void store_codes(const Ops& ops, u8* codes, const typename Ops::Value& p) {
  constexpr int kCount = sizeof(typename Ops::Value) / sizeof(float);
  alignas(64) float q[kCount];
  store_value<false>(ops, q, softmax_coded(ops, p));
  for (int k = 0; k < kCount; ++k) codes[k] = static_cast<u8>(bits_of(q[k]));
}

template <CpuSchedule S>
using SoftmaxLane = typename LaneOfBits<S.vector_bits>::Lane;

template <class T, CpuSchedule S>
void softmax_forward_row(const T* x, T* y, u8* codes, i64 n) {
  const ExponentialElements<T> e{x, greatest_of<S>(x, n)};
  const float sum = row_sums<SoftmaxLane<S>>(ExponentialTerms<T>{e}, n).v[0];
  over_row<S>(n, [&](const auto& ops, i64 j) __attribute__((always_inline)) {
    const auto p = ops.div(elements_at(ops, e, j), ops.constant(sum));
    store_codes(ops, codes + j, p);
    store_value<false>(ops, y + j, p);
  });
}

template <class T, CpuSchedule S>
void softmax_backward_row(const T* dy, const u8* codes, T* dx, i64 n) {
  const DecodedElements p{codes};
  const WidenedElements<T> gradient{dy};
  const auto sums = row_sums<SoftmaxLane<S>>(GradientTerms<T>{p, gradient}, n);
  const float mean = div_rn(sums.v[1], sums.v[0]);
  over_row<S>(n, [&](const auto& ops, i64 j) __attribute__((always_inline)) {
    store_value<false>(
        ops, dx + j,
        ops.mul(elements_at(ops, p, j), ops.sub(elements_at(ops, gradient, j), ops.constant(mean))));
  });
}

}  // namespace detail

template <class T, CpuSchedule S>
void softmax_forward_code(const T* x, T* y, u8* codes, i64 rows, i64 n) {
  static_assert(detail::schedule_holds<S>());
  parallel_for(rows, S.threads, [=](i64 row) {
    detail::softmax_forward_row<T, detail::kLoopOf<S>>(x + row * n, y + row * n, codes + row * n, n);
  });
}

template <class T, CpuSchedule S>
void softmax_encode(const T* p, u8* codes, i64 n) {
  static_assert(detail::schedule_holds<S>());
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    detail::over_row<detail::kLoopOf<S>>(
        end - begin, [=](const auto& ops, i64 j) __attribute__((always_inline)) {
          detail::store_codes(ops, codes + begin + j,
                              detail::elements_at(ops, detail::WidenedElements<T>{p + begin}, j));
        });
  });
}

template <class T, CpuSchedule S>
void softmax_backward_code(const T* dy, const u8* codes, T* dx, i64 rows, i64 n) {
  static_assert(detail::schedule_holds<S>());
  parallel_for(rows, S.threads, [=](i64 row) {
    detail::softmax_backward_row<T, detail::kLoopOf<S>>(dy + row * n, codes + row * n, dx + row * n, n);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
