// LayerNorm and RMSNorm on the host: forward, and backward from the output, on all cores.
//
// x, y, dy, dx are [rows, n], row-major, in format T; gamma, beta, dgamma, dbeta [n] and rstd [rows] are
// fp32. gamma and beta may be null, which means 1 and 0. Pointers need only be aligned to their element. rows
// may be 0, and n is at least 1. y may alias x in the forward, and dx may alias dy in the backward; nothing
// else may overlap. Every schedule gives the same bits, those of the formulas in kernels/layernorm.h summed
// by the trees of kernels/reduce.h. The caller's floating-point environment is neither used nor changed.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/host/columns.h"
#include "kernels/host/errors.h"
#include "kernels/host/parallel.h"
#include "kernels/host/refusal.h"
#include "kernels/layernorm.h"
#include "kernels/params.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr CpuSchedule kWidestSchedule{.vector_bits = kBestVectorBits, .streaming_stores = true};

// The arrays of a forward: residual and z are of the residual forms, beta is of LayerNorm, and others do not
// read them. With a side buffer, x^ of its channels is also written there.
template <class T>
struct NormForward {
  const T *x = nullptr, *residual = nullptr;
  const float *gamma = nullptr, *beta = nullptr;
  i64 rows = 0, n = 0;
  float eps = 1e-5f;
  T *z = nullptr, *y = nullptr;
  float* rstd = nullptr;
  SideBuffer<float> side{};
};

// Those of a backward: dz_next is of the residual forms, whose dz is dx here, and beta and dbeta are of
// LayerNorm. dgamma and dbeta may be null if they are not wanted. `workspace` has norm_backward_workspace
// words, whose content does not matter; an empty one is allocated.
template <class T>
struct NormBackward {
  const T *dy = nullptr, *y = nullptr, *dz_next = nullptr;
  const float *gamma = nullptr, *beta = nullptr, *rstd = nullptr;
  i64 rows = 0, n = 0;
  T* dx = nullptr;
  float *dgamma = nullptr, *dbeta = nullptr;
  SideBuffer<const float> side{};
  std::span<float> workspace{};
};

// y and rstd from x. Throws SpecError if the shape is negative, n = 0, eps is negative or NaN, or the
// channels do not ascend within [0, n).
template <class T, CpuNormForwardSchedule S = kWidestSchedule>
void layernorm_forward(const NormForward<T>& of);
template <class T, CpuNormForwardSchedule S = kWidestSchedule>
void rmsnorm_forward(const NormForward<T>& of);

// z = RN_T(RN_f32(x + residual)), to which the next block adds, and then the norm of z. One pass gives the
// bits of the two steps. z may equal x or residual. y may also equal one of them, but not z.
template <class T, CpuNormForwardSchedule S = kWidestSchedule>
void residual_layernorm_forward(const NormForward<T>& of);
template <class T, CpuNormForwardSchedule S = kWidestSchedule>
void residual_rmsnorm_forward(const NormForward<T>& of);

// Number of fp32 words of scratch that a backward of this shape needs.
i64 norm_backward_workspace(i64 rows, i64 n);

// dx, dgamma and dbeta from dy and the output y. Allocates nothing but a workspace that is not given. Throws
// SpecError, before anything is written, for the same reasons as the forward, for a workspace that is too
// small, and for a gamma outside the side buffer whose reciprocal is infinite (0, or below 2^-128 in
// magnitude); the error names its channel.
template <class T, CpuNormBackwardSchedule S = kWidestSchedule>
void layernorm_backward(const NormBackward<T>& of);
template <class T, CpuNormBackwardSchedule S = kWidestSchedule>
void rmsnorm_backward(const NormBackward<T>& of);

// dz = RN_T(RN_f32(g + dz_next)), where g is the norm's gradient before it is rounded to T, and dz_next is
// the gradient from z's other use. dz is the gradient of both x and residual, and may equal dy or dz_next.
template <class T, CpuNormBackwardSchedule S = kWidestSchedule>
void residual_layernorm_backward(const NormBackward<T>& of);
template <class T, CpuNormBackwardSchedule S = kWidestSchedule>
void residual_rmsnorm_backward(const NormBackward<T>& of);

// -------------------------------------------------------------------------------------------------

#ifdef OUTGRAD_AVX2
template <class Isa>
using Vector = FloatPack<Isa, 1>;

template <class Isa, int kCount, class Order = void, class Operation>
OUTGRAD_HD FloatPack<Isa, kCount, Order> each_vector(const Operation& operation) {
  FloatPack<Isa, kCount, Order> result;
  OUTGRAD_UNROLL
  for (int i = 0; i < kCount; ++i) result.v[i] = operation(i);
  return result;
}
template <class Isa, int kCount, class Order>
OUTGRAD_HD FloatPack<Isa, kCount, Order> fma_rn(const FloatPack<Isa, kCount, Order>& a,
                                                const FloatPack<Isa, kCount, Order>& b,
                                                const FloatPack<Isa, kCount, Order>& c) {
  return each_vector<Isa, kCount, Order>([&](int i) { return Isa::fma(a.v[i], b.v[i], c.v[i]); });
}
template <class Isa, int kCount, class Order>
OUTGRAD_HD FloatPack<Isa, kCount, Order> add_rn(const FloatPack<Isa, kCount, Order>& a,
                                                const FloatPack<Isa, kCount, Order>& b) {
  return each_vector<Isa, kCount, Order>([&](int i) { return Isa::add(a.v[i], b.v[i]); });
}
template <class Isa, int kCount, class Order>
OUTGRAD_HD FloatPack<Isa, kCount, Order> sub_rn(const FloatPack<Isa, kCount, Order>& a,
                                                const FloatPack<Isa, kCount, Order>& b) {
  return each_vector<Isa, kCount, Order>([&](int i) { return Isa::sub(a.v[i], b.v[i]); });
}
template <class Isa, int kCount, class Order>
OUTGRAD_HD FloatPack<Isa, kCount, Order> mul_rn(const FloatPack<Isa, kCount, Order>& a,
                                                const FloatPack<Isa, kCount, Order>& b) {
  return each_vector<Isa, kCount, Order>([&](int i) { return Isa::mul(a.v[i], b.v[i]); });
}

template <class Isa, int kCount>
struct LaneIo<FloatPack<Isa, kCount>> {
  using Value = FloatPack<Isa, kCount>;
  static constexpr int kWidth = kCount * Isa::kLanes;
  static OUTGRAD_HD Value splat(float value) {
    return each_vector<Isa, kCount>([&](int) { return Isa::splat(value); });
  }
  template <class T>
  static OUTGRAD_HD Value load(const T* source) {
    return each_vector<Isa, kCount>([&](int i) { return Isa::load(source + i * Isa::kLanes); });
  }
  // With kStreaming, `target` is aligned to the number of bytes stored, and the store bypasses the cache.
  template <bool kStreaming, class T>
  static OUTGRAD_HD void store_as(T* target, const Value& value) {
    if constexpr (sizeof(T) == 2 && kCount % 2 == 0 &&
                  requires { Isa::template store_pair<kStreaming>(target, value.v[0], value.v[0]); }) {
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; i += 2)
        Isa::template store_pair<kStreaming>(target + i * Isa::kLanes, value.v[i], value.v[i + 1]);
    } else {
      OUTGRAD_UNROLL
      for (int i = 0; i < kCount; ++i) Isa::template store<kStreaming>(target + i * Isa::kLanes, value.v[i]);
    }
  }
  template <class T>
  static OUTGRAD_HD void store(T* target, const Value& value) {
    store_as<false>(target, value);
  }
  template <class Pick, int... Words>
  static OUTGRAD_HD Value shuffled(const Value& a, const Value& b, Pick,
                                   std::integer_sequence<int, Words...>) {
    static_assert(kCount == 1, "words move within one vector or a pair");
    return {{__builtin_shufflevector(a.v[0], b.v[0], Pick{}(Words)...)}};
  }
};

// The last elements of a row, fewer than a vector holds. No others are read or written. In the lanes behind
// them +0 is loaded.
template <class Isa>
struct PartIo : PartOps<Isa, TablePlacement::permute> {
  using Value = Vector<Isa>;
  static constexpr int kWidth = Isa::kLanes;

  using PartOps<Isa, TablePlacement::permute>::PartOps;
  static OUTGRAD_HD Value splat(float value) { return LaneIo<Value>::splat(value); }
  template <class T>
  OUTGRAD_HD void store(T* target, const Value& value) const {
    store_as<false>(target, value);
  }
  // Rows that are streamed are whole vectors.
  template <bool kStreaming, class T>
  OUTGRAD_HD void store_as(T* target, const Value& value) const {
    PartOps<Isa, TablePlacement::permute>::template store<false>(target, value);
  }
  // With `others` in the lanes behind them.
  OUTGRAD_HD Value filled(const Value& value, const Value& others) const {
    const auto mask = Isa::mask_of(static_cast<typename Isa::MaskBits>((1u << this->count) - 1));
    return {{Isa::select(mask, value.v[0], others.v[0])}};
  }
};
#endif

namespace detail {

// --- The tree in vectors -------------------------------------------------------------------------

// The parameters for which the loops over a row are compiled. Schedules that differ only in other members
// share these loops.
struct RowLoops {
  int vector_bits;
  int vectors;
  int rows;
  Prefetch prefetch;
};
template <auto S>
inline constexpr RowLoops kRowLoops{S.vector_bits, S.vectors, S.rows, S.prefetch};

template <auto S>
constexpr bool norm_schedule_holds() {
  static_assert(S.vector_bits == 0 || S.vector_bits == 256 || S.vector_bits == 512,
                "vector_bits is 0, 256 or 512");
  static_assert(S.vector_bits <= kBestVectorBits,
                "vector_bits is wider than the instruction set compiled for (-march)");
  static_assert(S.vectors >= 1 && S.vectors <= 8,
                "8 vectors of each tensor already exceed the registers of any width");
  static_assert(S.rows >= 1 && S.rows <= 8, "8 rows keep most of the registers that there are busy");
  static_assert(S.threads >= 0, "threads is 0 (all) or positive");
  static_assert(S.rows_ahead >= 1, "rows ahead of this one");
  return true;
}

template <int kVectorBits>
struct LaneOfBits {
  using Lane = float;
};
#ifdef OUTGRAD_AVX2
template <>
struct LaneOfBits<256> {
  using Lane = Vector<Avx2>;
};
#endif
#ifdef OUTGRAD_AVX512
template <>
struct LaneOfBits<512> {
  using Lane = Vector<Avx512>;
};
#endif
template <RowLoops L>
using LaneOf = typename LaneOfBits<L.vector_bits>::Lane;

// Rows of fp32 take twice as much cache, so half as many are processed together, unless they are short.
template <RowLoops L, class T>
inline constexpr int kRowsTogether = sizeof(T) == sizeof(float) ? (L.rows + 1) / 2 : L.rows;

// Whether the schedule's rows stay in 32 KiB, the smallest first-level cache in common use, with what becomes
// of them.
template <RowLoops L, class T>
bool rows_are_short(i64 n) {
  return 2 * L.rows * n * static_cast<i64>(sizeof(T)) <= i64{32} << 10;
}

// Word i of the result is word Pick{}(i) of a and b, placed side by side.
template <class Pick, class Lane>
OUTGRAD_HD Lane shuffled(const Lane& a, const Lane& b) {
  return LaneIo<Lane>::shuffled(a, b, Pick{}, std::make_integer_sequence<int, LaneIo<Lane>::kWidth>{});
}

// The first four words of each chunk (with Second, the other four), a's chunks before b's.
template <int Width, bool Second>
struct HalfChunks {
  constexpr int operator()(int i) const { return i / 4 * kChunkTerms + i % 4 + (Second ? 4 : 0); }
};
// The first two words (with Second, the other two) of each 128-bit part of a, then of b.
template <int Width, bool Second>
struct Pairs {
  constexpr int operator()(int i) const {
    return i / 4 * 4 + i % 2 + (i % 4 < 2 ? 0 : Width) + (Second ? 2 : 0);
  }
};
// The even words (with Second, the odd ones) of each 128-bit part of a, then of b.
template <int Width, bool Second>
struct Alternate {
  constexpr int operator()(int i) const {
    return i / 4 * 4 + i % 2 * 2 + (i % 4 < 2 ? 0 : Width) + (Second ? 1 : 0);
  }
};

// The folds below leave chunk c of a vector of kWidth chunk sums in word ChunkWord<Width>{}(c). It permutes
// the bits of c, so chunks whose numbers differ in one bit lie in words whose numbers also differ in one bit.
template <int Width>
struct ChunkWord {
  constexpr int operator()(int chunk) const {
    if constexpr (Width < 4) {
      return chunk;
    } else {
      return chunk % (Width / 4) * 4 + chunk / (Width / 4);
    }
  }
};
// The word at distance Distance, a power of two.
template <int Distance>
struct Across {
  constexpr int operator()(int i) const { return i ^ Distance; }
};

// The sums over a row of T hold whole chunks, as many as a vector has words, in eight vectors. Vector k + 4
// has the elements that the first fold adds to those of vector k, at the same places. For bf16, vector k
// holds element k of every chunk. This takes eight shuffles of words, each word a pair of elements, and makes
// the other folds additions of whole vectors. For other formats, a vector holds four elements of each of a
// few chunks.
template <class T>
struct ByChunks {
  static constexpr bool kTransposed = sizeof(T) == 2 && Format<T>::kCanonicalNan == kCanonicalNanBf16;

  // The place of element i of kWidth chunks.
  template <int kWidth>
  static constexpr int place(int i) {
    const int chunk = i / kChunkTerms;
    const int k = i % kChunkTerms;
    if constexpr (kTransposed) {
      return k * kWidth + ChunkWord<kWidth>{}(chunk);
    } else {
      return (k / 4 * 4 + chunk / (kWidth / 4)) * kWidth + chunk % (kWidth / 4) * 4 + k % 4;
    }
  }
};

// The pair of vectors kPart and kPart + 4.
template <class T, int kPart>
struct ChunkPart {};

template <class Lane, class T, int kPart>
struct ChunkPartOf;

// body(std::integral_constant<int, part>) for each of the four parts.
template <class Body>
OUTGRAD_HD void for_parts(const Body& body) {
  [&]<int... kParts>(std::integer_sequence<int, kParts...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, kParts>{}), ...);
  }(std::make_integer_sequence<int, kChunkTerms / 2>{});
}

#ifdef OUTGRAD_AVX2
template <class Isa, class T, int kPart>
struct ChunkPartOf<Vector<Isa>, T, kPart> {
  using Pack = FloatPack<Isa, 2, ChunkPart<T, kPart>>;
};

}  // namespace detail

// Reads T as it lies in a row. The other operands are all fp32 and already lie in this order.
template <class Isa, class T, int kPart>
struct LaneIo<FloatPack<Isa, 2, detail::ChunkPart<T, kPart>>> {
  using Order = detail::ChunkPart<T, kPart>;
  using Value = FloatPack<Isa, 2, Order>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kApart = kChunkTerms / 2 * kLanes;

  static OUTGRAD_HD Value splat(float value) {
    return each_vector<Isa, 2, Order>([&](int) { return Isa::splat(value); });
  }
  static OUTGRAD_HD Value load(const float* ordered)
    requires(!std::is_same_v<T, float>)
  {
    return each_vector<Isa, 2, Order>(
        [&](int i) { return Isa::load(ordered + kPart * kLanes + i * kApart); });
  }
  static OUTGRAD_HD void store(float* ordered, const Value& value) {
    OUTGRAD_UNROLL
    for (int i = 0; i < 2; ++i) Isa::template store<false>(ordered + kPart * kLanes + i * kApart, value.v[i]);
  }
  // A row of T; fp32's order serves for rows of any format.
  template <class U>
    requires(std::is_same_v<T, U> || std::is_same_v<T, float>)
  static OUTGRAD_HD Value load(const U* row) {
    if constexpr (detail::ByChunks<T>::kTransposed) {
      return {{element<false>(row), element<true>(row)}};
    } else {
      const Vector<Isa> a{{Isa::load(row + 2 * kPart * kLanes)}};
      const Vector<Isa> b{{Isa::load(row + (2 * kPart + 1) * kLanes)}};
      return {{detail::shuffled<detail::HalfChunks<kLanes, false>>(a, b).v[0],
               detail::shuffled<detail::HalfChunks<kLanes, true>>(a, b).v[0]}};
    }
  }

 private:
  static OUTGRAD_HD Vector<Isa> pairs(const T* row, int line) {
    return {{Isa::load(reinterpret_cast<const float*>(row + 2 * line * kLanes))}};
  }
  // Element kPart (with kSecond, kPart + 4) of every chunk. The parts use the same loads and shuffles, which
  // the compiler can share.
  template <bool kSecond>
  static OUTGRAD_HD typename Isa::Float element(const T* row) {
    const Vector<Isa> a = detail::shuffled<detail::Pairs<kLanes, kSecond>>(pairs(row, 0), pairs(row, 1));
    const Vector<Isa> b = detail::shuffled<detail::Pairs<kLanes, kSecond>>(pairs(row, 2), pairs(row, 3));
    const Vector<Isa> column = detail::shuffled<detail::Alternate<kLanes, (kPart >= 2)>>(a, b);
    return kPart % 2 == 0 ? Isa::first_of_pairs(column.v[0]) : Isa::second_of_pairs(column.v[0]);
  }
};

namespace detail {

// The sums of chunks from their first folds, in ChunkWord's order.
template <class Lane, class T, int kSums>
OUTGRAD_HD Tuple<Lane, kSums> folded_parts(const Tuple<Lane, kSums> (&p)[kChunkTerms / 2]) {
  constexpr int kWidth = LaneIo<Lane>::kWidth;
  if constexpr (ByChunks<T>::kTransposed) {
    return fold<kChunkTerms / 2>(p);
  } else {
    Tuple<Lane, kSums> sums;
    OUTGRAD_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const Lane c = add_rn(shuffled<Pairs<kWidth, false>>(p[0].v[s], p[1].v[s]),
                            shuffled<Pairs<kWidth, true>>(p[0].v[s], p[1].v[s]));
      const Lane d = add_rn(shuffled<Pairs<kWidth, false>>(p[2].v[s], p[3].v[s]),
                            shuffled<Pairs<kWidth, true>>(p[2].v[s], p[3].v[s]));
      sums.v[s] = add_rn(shuffled<Alternate<kWidth, false>>(c, d), shuffled<Alternate<kWidth, true>>(c, d));
    }
    return sums;
  }
}

// The sums of whole chunks, as many as a vector has words, from element `first` on.
template <class Lane, class T, class Terms>
OUTGRAD_HD Tuple<Lane, Terms::kSums> whole_chunk_sums(const Terms& terms, i64 first) {
  Tuple<Lane, Terms::kSums> p[kChunkTerms / 2];
  for_parts([&](auto part) __attribute__((always_inline)) {
    const auto operands = terms.template operands<typename ChunkPartOf<Lane, T, part>::Pack>(first);
    Tuple<Lane, Terms::kOperands> low;
    Tuple<Lane, Terms::kOperands> high;
    OUTGRAD_UNROLL
    for (int o = 0; o < Terms::kOperands; ++o) {
      low.v[o] = {{operands.v[o].v[0]}};
      high.v[o] = {{operands.v[o].v[1]}};
    }
    p[part] = Terms::first_fold(low, high);
  });
  return folded_parts<Lane, T>(p);
}
#endif

#ifdef OUTGRAD_AVX2
template <class Isa>
OUTGRAD_HD PartIo<Isa> part_of(const Vector<Isa>&, i64 elements) {
  return PartIo<Isa>(elements);
}
#endif

// kCount vectors side by side; one if they are scalars.
template <class Lane, int kCount>
struct StripOf {
  using Strip = Lane;
};
#ifdef OUTGRAD_AVX2
template <class Isa, int kCount>
struct StripOf<Vector<Isa>, kCount> {
  using Strip = FloatPack<Isa, kCount>;
};
#endif

// Not inlined: a strip's loop has the registers for itself.
template <class Io, class Body>
__attribute__((noinline)) void for_last_columns(const Io& io, i64 j, const Body& body) {
  body(io, j);
}

// Calls body(io, j) over the columns [j, end): for strips of kCount vectors, then for vectors, then for the
// part of one that is left.
template <class Lane, int kCount, class Body>
OUTGRAD_HD void for_columns(i64 j, i64 end, const Body& body) {
  using Strip = typename StripOf<Lane, kCount>::Strip;
  for (; end - j >= LaneIo<Strip>::kWidth; j += LaneIo<Strip>::kWidth) body(LaneIo<Strip>{}, j);
  if constexpr (LaneIo<Strip>::kWidth > LaneIo<Lane>::kWidth) {
    for (; end - j >= LaneIo<Lane>::kWidth; j += LaneIo<Lane>::kWidth) body(LaneIo<Lane>{}, j);
  }
  if constexpr (LaneIo<Lane>::kWidth > 1) {
    if (j < end) for_last_columns(part_of(Lane{}, end - j), j, body);
  }
}

template <class Lane, int kSums>
OUTGRAD_HD Tuple<Lane, kSums> missing_sums() {
  Tuple<Lane, kSums> missing;
  for (int s = 0; s < kSums; ++s) missing.v[s] = LaneIo<Lane>::splat(kMissingTerm);
  return missing;
}

#ifdef OUTGRAD_AVX2
// A vector of operands from element j on, with missing ones behind the row's last element.
template <class Lane, class Terms>
OUTGRAD_HD Tuple<Lane, Terms::kOperands> last_operands(const Terms& terms, i64 j, i64 n) {
  if (n - j >= LaneIo<Lane>::kWidth) return terms.template operands<Lane>(j);
  const auto part = part_of(Lane{}, std::max<i64>(n - j, 0));
  auto operands = terms.template operands<Lane>(j, part);
  OUTGRAD_UNROLL
  for (int o = 0; o < Terms::kOperands; ++o)
    operands.v[o] = part.filled(operands.v[o], LaneIo<Lane>::splat(Terms::missing().v[o]));
  return operands;
}

// The same of a row's last elements, which are fewer, from `first` on.
template <class Lane, class Terms>
__attribute__((noinline)) Tuple<Lane, Terms::kSums> last_chunk_sums(const Terms& terms, i64 first, i64 n) {
  constexpr int kWidth = LaneIo<Lane>::kWidth;
  Tuple<Lane, Terms::kSums> p[kChunkTerms / 2];
  for_parts([&](auto part) __attribute__((always_inline)) {
    const i64 j = first + 2 * part * kWidth;
    p[part] = missing_sums<Lane, Terms::kSums>();
    if (j >= n) return;
    const auto a = last_operands<Lane>(terms, j, n), b = last_operands<Lane>(terms, j + kWidth, n);
    Tuple<Lane, Terms::kOperands> low, high;
    OUTGRAD_UNROLL
    for (int o = 0; o < Terms::kOperands; ++o) {
      low.v[o] = shuffled<HalfChunks<kWidth, false>>(a.v[o], b.v[o]);
      high.v[o] = shuffled<HalfChunks<kWidth, true>>(a.v[o], b.v[o]);
    }
    p[part] = Terms::first_fold(low, high);
  });
  return folded_parts<Lane, float>(p);
}
#endif

// The sums of a step's chunks, [kSums, kTreeLanes], in ChunkWord's order.
template <class Lane, class T, class Terms>
OUTGRAD_HD void step_sums(const Terms& terms, i64 n, i64 step, float* sums) {
  constexpr int kWidth = LaneIo<Lane>::kWidth;
  const i64 first = step * kStepTerms;
  int lane = 0;
  const auto store = [&](const auto& chunks) __attribute__((always_inline)) {
    OUTGRAD_UNROLL
    for (int s = 0; s < Terms::kSums; ++s) LaneIo<Lane>::store(sums + s * kTreeLanes + lane, chunks.v[s]);
    lane += kWidth;
  };
  if constexpr (kWidth > 1) {
    while (lane < kTreeLanes && n - first >= (lane + kWidth) * kChunkTerms)
      store(whole_chunk_sums<Lane, T>(terms, first + lane * kChunkTerms));
    if (lane < kTreeLanes && n - first > lane * kChunkTerms)
      store(last_chunk_sums<Lane>(terms, first + lane * kChunkTerms, n));
  } else {
    while (lane < kTreeLanes && n - first > lane * kChunkTerms)
      store(chunk_sum(terms, step * kTreeLanes + lane, n));
  }
  for (int s = 0; s < Terms::kSums; ++s)
    std::fill(sums + s * kTreeLanes + lane, sums + (s + 1) * kTreeLanes, kMissingTerm);
}

// sum[i] += term[i] for i < kWords, where kWords is a multiple of the widest vector.
template <class Lane, int kWords>
OUTGRAD_HD void add_words(float* sum, const float* term) {
  using Io = LaneIo<Lane>;
  for (int i = 0; i < kWords; i += Io::kWidth)
    Io::store(sum + i, add_rn(Io::load(sum + i), Io::load(term + i)));
}

// Word 0 of the fold over chunks, which folds those that are kHalf apart first.
template <int kHalf, class Lane>
OUTGRAD_HD Lane fold_words(const Lane& values) {
  if constexpr (kHalf == 0) {
    return values;
  } else {
    return fold_words<kHalf / 2>(
        add_rn(values, shuffled<Across<ChunkWord<LaneIo<Lane>::kWidth>{}(kHalf)>>(values, values)));
  }
}

// Word 0 of the fold over chunks, of each of the sums.
template <class Lane, int kSums>
OUTGRAD_HD Tuple<float, kSums> fold_chunks(const Tuple<Lane, kSums>& chunks) {
  constexpr int kWidth = LaneIo<Lane>::kWidth;
  Tuple<float, kSums> result;
  if constexpr (kWidth == 1) {
    result = chunks;
  } else if constexpr (kSums == 2 && ChunkWord<kWidth>{}(kWidth / 2) == 2) {
    // the first level adds words two apart, and leaves room for both sums in one vector
    const Lane both = fold_words<kWidth / 4>(add_rn(shuffled<Pairs<kWidth, false>>(chunks.v[0], chunks.v[1]),
                                                    shuffled<Pairs<kWidth, true>>(chunks.v[0], chunks.v[1])));
    result = {{both.v[0][0], both.v[0][2]}};
  } else {
    OUTGRAD_UNROLL
    for (int s = 0; s < kSums; ++s) result.v[s] = fold_words<kWidth / 2>(chunks.v[s]).v[0][0];
  }
  return result;
}

// The fold of the tree's lanes, which are kept in ChunkWord's order.
template <class Lane, int kSums>
OUTGRAD_HD Tuple<float, kSums> fold_lanes(const float* sums) {
  constexpr int kParts = kTreeLanes / LaneIo<Lane>::kWidth;
  Tuple<Lane, kSums> parts[kParts];
  OUTGRAD_UNROLL
  for (int i = 0; i < kParts; ++i) {
    OUTGRAD_UNROLL
    for (int s = 0; s < kSums; ++s)
      parts[i].v[s] = LaneIo<Lane>::load(sums + s * kTreeLanes + i * LaneIo<Lane>::kWidth);
  }
  return fold_chunks(fold<kParts>(parts));
}

// Prefetches the elements that one strip covers.
template <Prefetch kPrefetch, class Io, class T>
OUTGRAD_HD void prefetch(Io, const T* source) {
  constexpr int kLine = 64;
  constexpr int kBytes = Io::kWidth * static_cast<int>(sizeof(T));
  constexpr int kRead = 0;
  // the argument of __builtin_prefetch: the first level or the second
  constexpr int kLocality = kPrefetch == Prefetch::first_level ? 3 : 2;
  if constexpr (kPrefetch != Prefetch::none && Io::kWidth > 1) {
    OUTGRAD_UNROLL
    for (int byte = 0; byte < kBytes; byte += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(source) + byte, kRead, kLocality);
  }
}

struct Nothing {
  OUTGRAD_HD void operator()() const {}
};

// The tree's sums over one row of n elements of T. The steps of a group are stored and then folded in place.
// This needs at most 16 KiB, all of it at the function's own level, because g++ 12 lets arrays of inlined
// inner scopes share stack while both are in use. meanwhile() is called during the sums, because they read
// only from the caches and would leave memory idle. It is called after each step, because its first action
// may wait for the end of the previous sums.
template <class Lane, class T = float, class Terms, class Meanwhile = Nothing>
Tuple<float, Terms::kSums> row_sums(const Terms& terms, i64 n, Meanwhile&& meanwhile = {}) {
  constexpr i64 kVectorTerms = kChunkTerms * LaneIo<Lane>::kWidth;
  if constexpr (LaneIo<Lane>::kWidth > 1) {
    if (n <= kVectorTerms) {  // the other lanes are missing
      const auto chunks =
          n == kVectorTerms ? whole_chunk_sums<Lane, T>(terms, 0) : last_chunk_sums<Lane>(terms, 0, n);
      meanwhile();
      return fold_chunks(chunks);
    }
  }
  constexpr int kWords = Terms::kSums * kTreeLanes;
  alignas(64) float values[kGroupSteps * kWords];
  alignas(64) float sums[kWords];
  const i64 steps = row_steps(n);
  for (i64 group = 0; group < steps; group += kGroupSteps) {
    int count = static_cast<int>(std::min<i64>(kGroupSteps, steps - group));
    for (int q = 0; q < count; ++q) {
      step_sums<Lane, T>(terms, n, group + q, values + q * kWords);
      meanwhile();
    }
    for (int half = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)) / 2); half > 0; half /= 2) {
      for (int q = 0; q + half < count; ++q)
        add_words<Lane, kWords>(values + q * kWords, values + (q + half) * kWords);
      count = half;
    }
    if (group > 0) {
      add_words<Lane, kWords>(sums, values);
    } else if (steps > kGroupSteps) {
      std::copy(values, values + kWords, sums);
    }
  }
  return fold_lanes<Lane, Terms::kSums>(steps > kGroupSteps ? sums : values);
}

// Whether rows are written while the sums over the next rows are taken. This is done where stores wait for
// memory. For single rows, and from cache to cache, measurements showed that it costs more than it saves.
template <bool kStreaming, int kRows>
inline constexpr bool kWritesMeanwhile = kStreaming && kRows > 1;

// Writes groups of kRows rows whose sums are complete: at once, or a part of their columns at each call. The
// calls come with the steps of the next group's sums, kRows calls for every 256 columns, so that memory and
// arithmetic work at the same time. Rows::write(from, to) writes columns [from, to), where `from` is a whole
// number of strips of kCount vectors.
template <class Rows, class Lane, int kCount, bool kStreaming, int kRows>
class RowWriter {
 public:
  explicit RowWriter(i64 n) : n_(n), next_(n) {}

  void begin(const Rows& rows) {
    if constexpr (kWritesMeanwhile<kStreaming, kRows>) {
      rows_ = rows;
      next_ = 0;
    } else {
      write(rows, 0, n_);
    }
  }
  OUTGRAD_HD void operator()() {
    if constexpr (kWritesMeanwhile<kStreaming, kRows>) {
      if (n_ - next_ < kPart) return;
      rows_.write(next_, next_ + kPart);
      next_ += kPart;
    }
  }
  // What the sums over the next rows call. They are the same, and compiled once, for all writers that write
  // nothing meanwhile.
  auto& meanwhile() {
    if constexpr (kWritesMeanwhile<kStreaming, kRows>) {
      return *this;
    } else {
      return nothing_;
    }
  }
  OUTGRAD_HD void rest() {
    if constexpr (kWritesMeanwhile<kStreaming, kRows>) {
      if (next_ == n_) return;
      write(rows_, next_, n_);
      next_ = n_;
    }
  }

 private:
  __attribute__((noinline)) static void write(const Rows& rows, i64 from, i64 to) { rows.write(from, to); }

  static constexpr i64 kStrip = LaneIo<typename StripOf<Lane, kCount>::Strip>::kWidth;
  static constexpr i64 kPart = (kStepTerms / kRows + kStrip - 1) / kStrip * kStrip;

  [[no_unique_address]] Nothing nothing_;
  Rows rows_{};
  i64 n_;
  i64 next_;
};

// While some rows are read, as many others are prefetched. This is how far ahead of row r and column j
// the corresponding share lies. Reading two rows of one 4 KiB page side by side confuses the hardware
// prefetcher (Sapphire Rapids), so rows that short are prefetched in their order in memory.
template <class T, class Io>
OUTGRAD_HD i64 place_ahead(const Io&, i64 rows, int r, i64 j, i64 n) {
  constexpr i64 kPageBytes = 4096;
  return n * static_cast<i64>(sizeof(T)) < kPageBytes ? rows * j + r * Io::kWidth : r * n + j;
}

template <bool kStreaming, class Io, class T>
OUTGRAD_HD void store_as(const Io& io, T* target, const typename Io::Value& value) {
  if constexpr (kStreaming && Io::kWidth > 1) {
    io.template store_as<true>(target, value);
  } else {
    io.store(target, value);
  }
}

// Whether rows of `output` are written past the cache. They must start on cache lines, and streaming pays
// only if the output would not stay in a core's own cache until it is read again. The limit is 2 MiB, the
// largest private L2 in common use.
template <auto S, class T>
bool rows_stream(const T* output, i64 rows, i64 n) {
  constexpr i64 kLine = 64;
  constexpr i64 kPrivateCacheBytes = i64{2} << 20;
  const i64 row_bytes = n * static_cast<i64>(sizeof(T));
  return S.streaming_stores && S.vector_bits > 0 && reinterpret_cast<std::uintptr_t>(output) % kLine == 0 &&
         row_bytes % kLine == 0 && rows * row_bytes >= kPrivateCacheBytes;
}

// --- Contracts -----------------------------------------------------------------------------------

template <class Float>
void require_shape(const char* function, i64 rows, i64 n, const SideBuffer<Float>& side) {
  const auto fail = [&](const std::string& why) { refuse(refusal(function) + why); };
  if (rows < 0) fail("rows = " + std::to_string(rows) + " is negative");
  if (n < 1) fail("n = " + std::to_string(n) + ": a row needs at least one element");
  if (side.count < 0 || side.count > n)
    fail("side buffer: " + std::to_string(side.count) + " channels of " + std::to_string(n));
  for (i64 k = 0; k < side.count; ++k) {
    const i64 channel = side.channels[k];
    if (channel < (k > 0 ? i64{side.channels[k - 1]} + 1 : 0) || channel >= n) {
      fail("side buffer: channel " + std::to_string(channel) + ": channels must ascend within [0, " +
           std::to_string(n) + ")");
    }
  }
}

inline void require_forward(const char* function, i64 rows, i64 n, float eps, const SideBuffer<float>& side) {
  require_shape(function, rows, n, side);
  if (!eps_holds(eps)) refuse(refusal(function) + "eps must be at least 0");
}

inline void require_reciprocals(const char* function, const float* gamma, i64 n,
                                const SideBuffer<const float>& side) {
  if (!gamma) return;
  i64 next = 0;
  for (i64 j = 0; j < n; ++j) {
    if (next < side.count && side.channels[next] == j) {
      ++next;
    } else if (std::isinf(div_rn(1.0f, gamma[j]))) {
      refuse(refusal(function) + "channel " + std::to_string(j) +
             ": gamma = " + (gamma[j] == 0.0f ? "0" : "about 0") +
             " has no finite reciprocal, so the output does not hold its x^: keep the channel in the side "
             "buffer");
    }
  }
}

// --- Forward -------------------------------------------------------------------------------------

// How the rows of a matrix are shared among threads.
struct RowTasks {
  int threads;
  i64 task_rows;
};

// The first of the rows to prefetch while `count` rows from `row` on are written.
template <bool kStreaming, int kRows, class Arrays>
OUTGRAD_HD i64 rows_to_fetch(const Arrays& a, i64 row, i64 count = kRows) {
  const i64 groups = a.rows_ahead + (kWritesMeanwhile<kStreaming, kRows> ? 1 : 0);
  return std::min(row + groups * count, a.rows - count);
}

// What the tasks of a forward share. Where nothing is added to x, residual is null.
template <class T>
struct ForwardArrays : NormForward<T> {
  i64 rows_ahead;
};

// Rows row .. row + kRows - 1 of a forward, whose sums are complete.
template <class T, RowLoops L, bool kStreaming, int kRows>
struct NormedRows {
  const ForwardArrays<T>* a;
  const T* x;  // the input of the norm; in a residual form this is z
  T* y;
  i64 ahead;  // from the arrays' first element to the first of the rows that are prefetched meanwhile
  float mean[kRows];
  float rstd[kRows];

  OUTGRAD_HD void write(i64 from, i64 to) const {
    const NormedRows rows = *this;
    const i64 n = a->n;
    const float* const gamma = a->gamma;
    const float* const beta = a->beta;
    const T* const x_ahead = a->x + ahead;
    const T* const residual_ahead = a->residual ? a->residual + ahead : nullptr;
    for_columns<LaneOf<L>, L.vectors>(from, to, [=](auto io, i64 j) __attribute__((always_inline)) {
      using Value = typename decltype(io)::Value;
      const Value g = gamma ? io.load(gamma + j) : io.splat(1.0f);
      const Value b = beta ? io.load(beta + j) : io.splat(kMissingTerm);
      OUTGRAD_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const i64 place = place_ahead<T>(io, kRows, r, j, n);
        prefetch<L.prefetch>(io, x_ahead + place);
        if (residual_ahead) prefetch<L.prefetch>(io, residual_ahead + place);
        store_as<kStreaming>(io, rows.y + r * n + j,
                             forward_output<Value>(io.load(rows.x + r * n + j), io.splat(rows.mean[r]),
                                                   io.splat(rows.rstd[r]), g, b));
      }
    });
  }
};

// Computes the sums over rows row .. row + kRows - 1, and those results that are not written column by
// column. Each step is done for all rows before the next step. So the end of one row's sum (a chain of folds,
// a division and a root) overlaps with work on the other rows.
template <Norm N, class T, RowLoops L, bool kStreaming, int kRows, class Meanwhile>
NormedRows<T, L, kStreaming, kRows> norm_rows(const ForwardArrays<T>& a, i64 row, Meanwhile& meanwhile) {
  using Lane = LaneOf<L>;
  const i64 n = a.n;
  const i64 at = row * n;
  NormedRows<T, L, kStreaming, kRows> rows{
      &a, (a.residual ? a.z : a.x) + at, a.y + at, rows_to_fetch<kStreaming, kRows>(a, row) * n, {}, {}};
  for (int r = 0; r < kRows; ++r) {
    const T* const x = rows.x + r * n;
    if (a.residual) {
      const i64 first = at + r * n;
      // stored through the caches: it is read at once
      for_columns<Lane, L.vectors>(
          0, n,
          [=, from = a.x, residual = a.residual, z = a.z](auto io, i64 j) __attribute__((always_inline)) {
            io.store(z + first + j, add_rn(io.load(from + first + j), io.load(residual + first + j)));
          });
    }
    if constexpr (N == Norm::layer) rows.mean[r] = mean_of(row_sums<Lane, T>(MeanTerms<T>{x}, n).v[0], n);
  }
  for (int r = 0; r < kRows; ++r) {
    const VarianceTerms<T> terms{rows.x + r * n, rows.mean[r]};
    a.rstd[row + r] = rows.rstd[r] = rstd_of(row_sums<Lane, T>(terms, n, meanwhile).v[0], n, a.eps);
  }
  for (int r = 0; r < kRows; ++r) {
    for (i64 k = 0; k < a.side.count; ++k) {
      a.side.x_hat[(row + r) * a.side.count + k] =
          normalised(widen(rows.x[r * n + a.side.channels[k]]), rows.mean[r], rows.rstd[r]);
    }
  }
  return rows;
}

// take<kRows>(row, end) processes rows [row, end) in whole groups of kRows, and returns where it stopped.
template <RowLoops L, bool kStreaming, class T, class Take>
void over_rows(const RowTasks& how, const ForwardArrays<T>& a, const Take& take) {
  parallel_for((a.rows + how.task_rows - 1) / how.task_rows, how.threads, [&](i64 task) {
    i64 row = task * how.task_rows;
    const i64 end = std::min(a.rows, row + how.task_rows);
    constexpr int kTogether = kRowsTogether<L, T>;
    if constexpr (kTogether < L.rows) {
      if (rows_are_short<L, T>(a.n)) row = take.template operator()<L.rows>(row, end);
    }
    row = take.template operator()<kTogether>(row, end);
    if constexpr (kTogether > 1) take.template operator()<1>(row, end);
    end_streaming<kStreaming>();
  });
}

template <Norm N, class T, RowLoops L, bool kStreaming>
void forward_of_rows(const RowTasks& how, const ForwardArrays<T>& a) {
  over_rows<L, kStreaming>(how, a, [&a]<int kRows>(i64 row, i64 end) {
    RowWriter<NormedRows<T, L, kStreaming, kRows>, LaneOf<L>, L.vectors, kStreaming, kRows> writer(a.n);
    for (; end - row >= kRows; row += kRows) {
      const auto rows = norm_rows<N, T, L, kStreaming, kRows>(a, row, writer.meanwhile());
      writer.rest();
      writer.begin(rows);
    }
    writer.rest();
    return row;
  });
}

// What this norm reads of the arrays.
template <Norm N, bool kResidual, class T>
NormForward<T> arrays_of(NormForward<T> of) {
  if constexpr (N == Norm::rms) of.beta = nullptr;
  if constexpr (!kResidual) of.residual = nullptr;
  return of;
}

template <Norm N, bool kResidual, class T, CpuNormForwardSchedule S>
void norm_forward(const char* function, const NormForward<T>& of) {
  static_assert(norm_schedule_holds<S>() && S.task_elements > 0, "task_elements is positive");
  require_forward(function, of.rows, of.n, of.eps, of.side);
  const RowTasks how{S.threads, std::max<i64>(S.task_elements / of.n, 1)};
  const ForwardArrays<T> arrays{arrays_of<N, kResidual>(of), S.rows_ahead};
  if (rows_stream<S>(of.y, of.rows, of.n)) {
    if constexpr (S.streaming_stores && S.vector_bits > 0)
      forward_of_rows<N, T, kRowLoops<S>, true>(how, arrays);
  } else {
    forward_of_rows<N, T, kRowLoops<S>, false>(how, arrays);
  }
}

// --- Backward ------------------------------------------------------------------------------------

// gamma and beta are stored a second time, in the order of the sums
inline constexpr i64 kHostColumnArrays = kColumnArrays + 2;
// the most that a schedule may have; the workspace is large enough for them
inline constexpr i64 kMostTasks = 128;

// A task's scratch, if `tasks` share the slots: the pending sums of complete subtrees of its slots, at most
// one per level, the sum that is growing, and two rows of c. More tasks need more scratch in total.
inline i64 backward_task_words(i64 slots, i64 tasks, i64 n) {
  const i64 pending = std::bit_width(static_cast<u64>(slots / tasks));
  return (pending * 2 + 2) * column_stride(n);
}

// What the pass that writes dx needs to know about one row.
template <class Centred>
struct GradientRow {
  Centred output;
  NegatedMeans means;
  float rstd;
};

// Sums over rows, one per column: those of dgamma, [n], and `stride` words further on those of dbeta.
struct ColumnSums {
  const float* from;  // the sums before these rows; null: +0
  // complete sums of the even neighbour if these rows complete an odd slot or subtree of slots; else null
  const float* onto;
  float* to;  // where the result goes: may be `from` or `onto`
  i64 stride;
};

// The y that a backward reads: here in the format of dy. Another Output has the same members, and its rows
// are staged whether there are side channels or not (kernels/host/norm_store.h).
template <class T>
struct PlainOutput {
  using Order = T;  // the sums over a row are in the order of ByChunks<Order>
  static constexpr bool kStaged = false;
  const T* y;

  const T* elements() const { return y; }
};

// What the tasks of a backward share.
template <class T, class Output>
struct BackwardArrays {
  const T* dy;
  Output y;
  const float* rstd;
  const T* dz_next;
  T* dx;
  i64 rows;
  i64 n;
  NormColumns columns;
  const float* ordered_gamma;  // in the order in which the sums over a row read it
  const float* ordered_beta;
  SideBuffer<const float> side;
  float* scratch;
  // How the rows are shared.
  int threads;
  i64 slots;
  i64 tasks;  // divides slots
  i64 rows_ahead;
};

// Whether the factors of a row in its sums are stored in an order of their own. In fp32's order they are not:
// they are put in order as they are read, like the row itself.
template <class Lane, class Order>
inline constexpr bool kOrdered = LaneIo<Lane>::kWidth > 1 && !std::is_same_v<Order, float>;

// The place of element j of n in the order in which the sums over a row read it. Whole chunks, as many as a
// vector has words, have the order of ByChunks.
template <class Lane, class Order>
i64 ordered_place(i64 j, i64 n) {
  if constexpr (kOrdered<Lane, Order>) {
    constexpr int kWidth = LaneIo<Lane>::kWidth;
    constexpr int kBlock = kChunkTerms * kWidth;
    if (j < n - n % kBlock)
      return j - j % kBlock + ByChunks<Order>::template place<kWidth>(static_cast<int>(j % kBlock));
  }
  return j;
}

// The rows of c that are needed if there are side channels: one in the columns' order, and one with their
// weights in the order of the sums.
struct StagedRow {
  float* c;
  float* weighted;
};

template <class Lane, class T>
void stage_output(const BackwardArrays<T, PlainOutput<T>>& a, i64 row, const StagedRow& staged) {
  const T* const y = a.y.y + row * a.n;
  const auto stage = [=](auto io, i64 j, const float* beta, float* to) __attribute__((always_inline)) {
    io.store(to + j, CentredOutput<T>{y, beta}.template centred<typename decltype(io)::Value>(j, io));
  };
  for_columns<Lane, 1>(
      0, a.n, [=](auto io, i64 j) __attribute__((always_inline)) { stage(io, j, a.columns.beta, staged.c); });
  i64 begin = 0;
  if constexpr (kOrdered<Lane, T>) {
    constexpr int kBlock = kChunkTerms * LaneIo<Lane>::kWidth;
    for (; a.n - begin >= kBlock; begin += kBlock) {
      for_parts([&](auto part) __attribute__((always_inline)) {
        stage(LaneIo<typename ChunkPartOf<Lane, T, part>::Pack>{}, begin, a.ordered_beta, staged.weighted);
      });
    }
  }
  std::copy(staged.c + begin, staged.c + a.n, staged.weighted + begin);
}

template <class Lane, class T, class Output>
void stage_row(const BackwardArrays<T, Output>& a, i64 row, const StagedRow& staged) {
  stage_output<Lane>(a, row, staged);
  for (i64 s = 0; s < a.side.count; ++s) {
    const i32 channel = a.side.channels[s];
    const float x_hat = a.side.x_hat[row * a.side.count + s];
    staged.c[channel] = x_hat;
    staged.weighted[ordered_place<Lane, typename Output::Order>(channel, a.n)] =
        mul_rn(a.columns.weight[channel], x_hat);
  }
}

// sum[j] += term[j] for j < n, over words of scratch.
template <class Lane>
OUTGRAD_HD void add_columns(float* sum, const float* term, i64 n) {
  for_columns<Lane, 1>(0, n, [=](auto io, i64 j) __attribute__((always_inline)) {
    io.store(sum + j, add_rn(io.load(sum + j), io.load(term + j)));
  });
}

// The fold of values of consecutive slots: neighbours first.
template <int kCount, class Value>
OUTGRAD_HD Value fold_neighbours(const Value* values) {
  if constexpr (kCount == 1) {
    return *values;
  } else {
    return add_rn(fold_neighbours<kCount / 2>(values), fold_neighbours<kCount / 2>(values + kCount / 2));
  }
}

// The rows from `first` on of a backward, whose sums are complete: kRows rows of one slot, or those of kSlots
// slots, a subtree, each of which has one or two. Writes their dx and adds their terms to the sums over rows,
// one row after the other. All elements of a column are loaded before any is stored.
template <Norm N, class T, class Output, RowLoops L, class Centred, bool kStreaming, bool kResidual,
          int kRows, int kSlots>
struct GradientRows {
  static constexpr bool kPairs = kSlots > 1;
  static_assert(!kPairs || kRows == 2 * kSlots);
  const BackwardArrays<T, Output>* a;
  i64 first;
  ColumnSums over_rows;
  i64 count;  // of the rows
  bool is_pair[kSlots];
  GradientRow<Centred> of[kRows];

  OUTGRAD_HD void write(i64 from, i64 to) const {
    const i64 n = a->n;
    const i64 at = first * n;
    const i64 ahead = rows_to_fetch<kStreaming, kRows>(*a, first, kPairs ? count : kRows) * n;
    const T* const dy = a->dy + at;
    const T* const dz_next = kResidual ? a->dz_next + at : nullptr;
    T* const dx = a->dx + at;
    const T* const dy_ahead = a->dy + ahead;
    const auto* const y_ahead = a->y.elements() + ahead;
    const T* const dz_next_ahead = kResidual ? a->dz_next + ahead : nullptr;
    const float* const gammas = a->columns.gamma;
    const float* const reciprocals = a->columns.reciprocal;
    const GradientRows rows = *this;
    for_columns<LaneOf<L>, L.vectors>(from, to, [=](auto io, i64 j) __attribute__((always_inline)) {
      using Value = typename decltype(io)::Value;
      constexpr bool kShift = N == Norm::layer;
      const Value gamma = io.load(gammas + j);
      const Value reciprocal = io.load(reciprocals + j);
      const ColumnSums& sums = rows.over_rows;
      const auto take = [&](int r, Value& dgamma, Value& dbeta) __attribute__((always_inline)) {
        const i64 place = place_ahead<T>(io, kPairs ? rows.count : kRows, r, j, n);
        prefetch<L.prefetch>(io, dy_ahead + place);
        prefetch<L.prefetch>(io, y_ahead + place);
        if constexpr (kResidual) prefetch<L.prefetch>(io, dz_next_ahead + place);
        const GradientRow<Centred>& row = rows.of[r];
        const Value d = io.load(dy + r * n + j);
        const Value c = row.output.template centred<Value>(j, io);
        dgamma = fma_rn(d, c, dgamma);
        if constexpr (kShift) dbeta = add_rn(dbeta, d);
        Value gradient = input_gradient(d, c, gamma, reciprocal, io.splat(row.means.m1),
                                        io.splat(row.means.m2), io.splat(row.rstd));
        if constexpr (kResidual) gradient = add_rn(gradient, io.load(dz_next + r * n + j));
        store_as<kStreaming>(io, dx + r * n + j, gradient);
      };
      Value dgammas[kSlots], dbetas[kSlots];
      int r = 0;
      OUTGRAD_UNROLL
      for (int k = 0; k < kSlots; ++k) {
        dgammas[k] = sums.from ? io.load(sums.from + j) : io.splat(0.0f);
        dbetas[k] = kShift && sums.from ? io.load(sums.from + sums.stride + j) : io.splat(0.0f);
        OUTGRAD_UNROLL
        for (int i = 0; i < (kPairs ? 1 : kRows); ++i) take(r++, dgammas[k], dbetas[k]);
        if (kPairs && rows.is_pair[k]) take(r++, dgammas[k], dbetas[k]);
      }
      Value dgamma = fold_neighbours<kSlots>(dgammas);
      if (sums.onto) dgamma = add_rn(io.load(sums.onto + j), dgamma);
      io.store(sums.to + j, dgamma);
      if constexpr (kShift) {
        Value dbeta = fold_neighbours<kSlots>(dbetas);
        if (sums.onto) dbeta = add_rn(io.load(sums.onto + sums.stride + j), dbeta);
        io.store(sums.to + sums.stride + j, dbeta);
      }
    });
  }
};

// What the pass that writes a row needs to know about it, including its sums.
template <Norm N, class Lane, class Centred, class T, class Output, class Meanwhile>
GradientRow<Centred> gradient_row(const BackwardArrays<T, Output>& a, i64 row, const StagedRow& staged,
                                  Meanwhile& meanwhile) {
  const i64 at = row * a.n;
  GradientRow<Centred> result{{}, {}, a.rstd[row]};
  Centred summed;
  if constexpr (std::is_same_v<Centred, CentredStaged>) {
    stage_row<Lane>(a, row, staged);
    result.output = {staged.c};
    summed = {a.side.count == 0 ? staged.c : staged.weighted};
  } else {
    result.output = {a.y.y + at, a.columns.beta};
    summed = {a.y.y + at, a.ordered_beta};
  }
  const GradientTerms<N, T, Centred> terms{a.dy + at, a.ordered_gamma, summed};
  result.means = negated_means<N>(row_sums<Lane, typename Output::Order>(terms, a.n, meanwhile), a.n);
  return result;
}

// Takes the rows together that GradientRows does.
template <Norm N, class T, RowLoops L, class Centred, bool kStreaming, bool kResidual, int kRows, int kSlots,
          class Output>
void backward_passes(const BackwardArrays<T, Output>& a) {
  using Lane = LaneOf<L>;
  const i64 n = a.n;
  const i64 stride = column_stride(n);
  const i64 slots = a.slots;
  const i64 task_slots = slots / a.tasks;
  const i64 task_words = backward_task_words(slots, a.tasks, n);
  parallel_for(a.tasks, a.threads, [&](i64 task) {
    // a stack of pairs of arrays: dgamma's sums, dbeta's sums
    float* const pending = a.scratch + task * task_words;
    float* const staged = pending + task_words - 2 * stride;
    float* top = pending;
    for (i64 k = 0; k < task_slots / kSlots; ++k) {  // of slots, or of subtrees of kSlots of them
      const i64 slot = task * task_slots + k * kSlots;
      const i64 begin = slot_begin(a.rows, slots, slot);
      const i64 end = slot_begin(a.rows, slots, slot + kSlots);
      float* const before = top - 2 * stride;  // for an odd one: the sums of its even neighbour
      if (begin == end) std::fill(top, top + 2 * stride, 0.0f);
      const auto take_rows = [&]<int kCount>(std::integral_constant<int, kCount>, i64 row) {
        using Rows = GradientRows<N, T, Output, L, Centred, kStreaming, kResidual, kCount, kSlots>;
        RowWriter<Rows, Lane, L.vectors, kStreaming, kCount> writer(n);
        const i64 count = kSlots == 1 ? kCount : end - begin;
        for (; end - row >= count && row < end; row += count) {
          const bool completes_pair = k % 2 == 1 && row + count == end;
          Rows rows{&a,
                    row,
                    {row > begin ? top : nullptr, completes_pair ? before : nullptr,
                     completes_pair ? before : top, stride},
                    count,
                    {},
                    {}};
          for (int s = 0; kSlots > 1 && s < kSlots; ++s)
            rows.is_pair[s] =
                slot_begin(a.rows, slots, slot + s + 1) - slot_begin(a.rows, slots, slot + s) == 2;
          for (int r = 0; r < count; ++r)
            rows.of[r] =
                gradient_row<N, Lane, Centred>(a, row + r, {staged, staged + stride}, writer.meanwhile());
          writer.rest();
          writer.begin(rows);
        }
        writer.rest();
        return row;
      };
      const i64 row = take_rows(std::integral_constant<int, kRows>{}, begin);
      if constexpr (kRows > 1 && kSlots == 1) take_rows(std::integral_constant<int, 1>{}, row);
      if (k % 2 == 0) top += 2 * stride;
      // two neighbours of equal size are complete
      for (i64 complete = (k + 1) / 2; k % 2 == 1 && complete % 2 == 0; complete /= 2) {
        top -= 2 * stride;
        add_columns<Lane>(top - 2 * stride, top, n);
        if constexpr (N == Norm::layer) add_columns<Lane>(top - stride, top + stride, n);
      }
    }
    end_streaming<kStreaming>();
  });
}

template <Norm N, class T, RowLoops L, class Centred, bool kStreaming, bool kResidual, class Output>
void backward_together(const BackwardArrays<T, Output>& a) {
  // there is room for only one staged row
  constexpr bool kStaged = std::is_same_v<Centred, CentredStaged>;
  // With a residual, rows that are streamed gain least, which is not worth the code.
  if constexpr (!kStaged && !(kStreaming && kResidual) && L.rows > 1 &&
                std::has_single_bit(static_cast<unsigned>(L.rows))) {
    constexpr int kSlots = L.rows;
    if (a.slots / a.tasks >= kSlots && a.slots <= a.rows && a.rows <= 2 * a.slots)
      return backward_passes<N, T, L, Centred, kStreaming, kResidual, 2 * kSlots, kSlots>(a);
  }
  constexpr int kRows = kStaged ? 1 : kRowsTogether<L, T>;
  backward_passes<N, T, L, Centred, kStreaming, kResidual, kRows, 1>(a);
}

template <Norm N, class T, RowLoops L, bool kStreaming, bool kResidual, class Output>
void backward_of_rows(const BackwardArrays<T, Output>& a) {
  if constexpr (!Output::kStaged) {
    if (a.side.count == 0) return backward_together<N, T, L, CentredOutput<T>, kStreaming, kResidual>(a);
  }
  backward_together<N, T, L, CentredStaged, kStreaming, kResidual>(a);
}

// The layout of the tasks' sums in the scratch, and how they are added up.
struct TaskFold {
  int threads;
  i64 columns;  // for each task of this pass
  i64 tasks;
  i64 task_words;
};

// The upper levels of the slots' tree, with a block of columns for each task, and then dgamma and dbeta.
template <Norm N, class Lane>
void fold_tasks(const TaskFold& how, i64 n, float* scratch, const NormColumns& columns, float* dgamma,
                float* dbeta) {
  const i64 stride = column_stride(n);
  parallel_for((n + how.columns - 1) / how.columns, how.threads, [=](i64 block) {
    const i64 begin = block * how.columns;
    const i64 end = std::min(n, begin + how.columns);
    for (i64 apart = 1; apart < how.tasks; apart *= 2) {
      for (i64 task = 0; task < how.tasks; task += 2 * apart) {
        float* const sum = scratch + task * how.task_words + begin;
        const float* const term = sum + apart * how.task_words;
        add_columns<Lane>(sum, term, end - begin);
        if constexpr (N == Norm::layer) add_columns<Lane>(sum + stride, term + stride, end - begin);
      }
    }
    for (i64 j = begin; j < end; ++j) {
      if (dgamma) dgamma[j] = div_rn(scratch[j], columns.divisor[j]);
      if (dbeta) dbeta[j] = scratch[stride + j];
    }
  });
}

// y: of.y, or what stands in its place.
template <Norm N, bool kResidual, CpuNormBackwardSchedule S, class T, class Output>
void norm_backward(const char* function, const NormBackward<T>& of, const Output& y) {
  static_assert(norm_schedule_holds<S>() && S.fold_columns > 0 && S.fold_columns % kLineWords == 0,
                "fold_columns is whole cache lines");
  static_assert(S.tasks > 0 && S.tasks <= kMostTasks && std::has_single_bit(static_cast<unsigned>(S.tasks)),
                "tasks is a power of two up to 128");
  constexpr RowLoops kLoops = kRowLoops<S>;
  using Lane = LaneOf<kLoops>;
  const i64 rows = of.rows, n = of.n;
  const SideBuffer<const float>& side = of.side;
  require_shape(function, rows, n, side);
  const Workspace workspace(function, of.workspace, norm_backward_workspace(rows, n));
  const i64 stride = column_stride(n);
  float* const aligned = workspace.words() + line_offset(workspace.words());
  const NormColumns columns = columns_at(aligned, stride);
  const float* const beta = N == Norm::layer ? of.beta : nullptr;
  {
    const DefaultFloatEnvironment environment;
    require_reciprocals(function, of.gamma, n, side);
    i64 next = 0;
    for (i64 j = 0; j < n; ++j) {
      const bool is_side = next < side.count && side.channels[next] == j;
      prepare_column(columns, of.gamma, beta, j, is_side);
      next += is_side;
    }
  }
  float* const ordered_gamma = aligned + kColumnArrays * stride;
  float* const ordered_beta = ordered_gamma + stride;
  for (i64 j = 0; j < n; ++j) {
    const i64 place = ordered_place<Lane, typename Output::Order>(j, n);
    ordered_gamma[place] = columns.gamma[j];
    ordered_beta[place] = columns.beta[j];
  }
  float* const scratch = aligned + kHostColumnArrays * stride;
  const i64 slots = slot_count(rows, n);
  const i64 tasks = tasks_for(std::min<i64>(slots, S.tasks), S.threads);
  const BackwardArrays<T, Output> arrays{of.dy,     y,       of.rstd,       of.dz_next,   of.dx, rows,
                                         n,         columns, ordered_gamma, ordered_beta, side,  scratch,
                                         S.threads, slots,   tasks,         S.rows_ahead};
  if (rows_stream<S>(of.dx, rows, n)) {
    if constexpr (S.streaming_stores && S.vector_bits > 0)
      backward_of_rows<N, T, kLoops, true, kResidual>(arrays);
  } else {
    backward_of_rows<N, T, kLoops, false, kResidual>(arrays);
  }

  fold_tasks<N, Lane>({S.threads, S.fold_columns, tasks, backward_task_words(slots, tasks, n)}, n, scratch,
                      columns, of.dgamma, N == Norm::layer ? of.dbeta : nullptr);
}

}  // namespace detail

template <class T, CpuNormForwardSchedule S>
void layernorm_forward(const NormForward<T>& of) {
  detail::norm_forward<Norm::layer, false, T, S>("layernorm_forward", of);
}
template <class T, CpuNormForwardSchedule S>
void rmsnorm_forward(const NormForward<T>& of) {
  detail::norm_forward<Norm::rms, false, T, S>("rmsnorm_forward", of);
}
template <class T, CpuNormForwardSchedule S>
void residual_layernorm_forward(const NormForward<T>& of) {
  detail::norm_forward<Norm::layer, true, T, S>("residual_layernorm_forward", of);
}
template <class T, CpuNormForwardSchedule S>
void residual_rmsnorm_forward(const NormForward<T>& of) {
  detail::norm_forward<Norm::rms, true, T, S>("residual_rmsnorm_forward", of);
}

inline i64 norm_backward_workspace(i64 rows, i64 n) {
  const i64 slots = slot_count(rows, n);
  const i64 tasks = std::min(slots, detail::kMostTasks);
  return detail::kLineWords - 1 + detail::kHostColumnArrays * detail::column_stride(n) +
         tasks * detail::backward_task_words(slots, tasks, n);
}

template <class T, CpuNormBackwardSchedule S>
void layernorm_backward(const NormBackward<T>& of) {
  detail::norm_backward<Norm::layer, false, S>("layernorm_backward", of, detail::PlainOutput<T>{of.y});
}
template <class T, CpuNormBackwardSchedule S>
void rmsnorm_backward(const NormBackward<T>& of) {
  detail::norm_backward<Norm::rms, false, S>("rmsnorm_backward", of, detail::PlainOutput<T>{of.y});
}
template <class T, CpuNormBackwardSchedule S>
void residual_layernorm_backward(const NormBackward<T>& of) {
  detail::norm_backward<Norm::layer, true, S>("residual_layernorm_backward", of,
                                              detail::PlainOutput<T>{of.y});
}
template <class T, CpuNormBackwardSchedule S>
void residual_rmsnorm_backward(const NormBackward<T>& of) {
  detail::norm_backward<Norm::rms, true, S>("residual_rmsnorm_backward", of, detail::PlainOutput<T>{of.y});
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
