// The fixed summation trees of the row kernels: one order of additions for every machine, thread count,
// vector width and grid.
//
// A row of n terms t_0 .. t_(n-1) is summed as follows. `fold` of 2^k values: while more than one is left,
// value i becomes (value i) + (value i + half) for every i < half. Each addition rounds once.
//   1. Chunk c is the fold of the 8 consecutive terms t_(8c) .. t_(8c+7).
//   2. Chunk c belongs to lane c % 32 at step c / 32, so one step is 256 consecutive terms.
//   3. Within a lane, steps 64 g .. 64 g + 63 form group g, which is folded over q % 64 (step 0 with step 32
//      first, step 0 with step 1 last); the groups are added one after the other, group 0 first.
//   4. The 32 lanes are folded.
// A missing term (beyond n) is -0, the neutral element of rounded addition: -0 + x is x to the bit, also for
// x = -0. So padding and skipping give the same result.
// For a sum of products, the first fold of step 1 is fused: fma(a_i, b_i, round(a_(i+4) b_(i+4))), i < 4.
// W = 1, 2, .. 32 warps can share a row: the steps q % W == w form a subtree (that of warp w), and the low
// bits of q fold last.
//
// Sums over rows (one per column) use slots. The number of slots is a power of two that depends only on the
// shape. Slot s holds consecutive rows, which are added one after the other from +0 upwards. Slots are added
// neighbours first (2k with 2k + 1), so that the owner of consecutive slots never needs more than log2 of
// them at a time.
#pragma once

#include "kernels/formats.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr int kChunkTerms = 8;
inline constexpr int kTreeLanes = 32;
inline constexpr int kStepTerms = kChunkTerms * kTreeLanes;
inline constexpr int kGroupSteps = 64;
// 2^21 slot sums are 8 MiB of fp32. This is enough slots to fill a device at any width, and small beside the
// tensors that have so many rows.
inline constexpr i64 kSlotSums = i64{1} << 21;

inline constexpr float kMissingTerm = -0.0f;

// Values summed side by side in trees of the same shape.
template <class V, int Count>
struct Tuple {
  V v[Count];
};

template <class V, int Count>
OUTGRAD_HD Tuple<V, Count> add_rn(Tuple<V, Count> a, const Tuple<V, Count>& b) {
  OUTGRAD_UNROLL
  for (int k = 0; k < Count; ++k) a.v[k] = add_rn(a.v[k], b.v[k]);
  return a;
}

// The fold of values[0 .. Count).
template <int Count, int Stride = 1, class V>
OUTGRAD_HD V fold(const V* values) {
  if constexpr (Stride == Count) {
    return *values;
  } else {
    return add_rn(fold<Count, 2 * Stride>(values), fold<Count, 2 * Stride>(values + Stride));
  }
}

// How a kernel body reads memory into a scalar or a vector: `Lane` is float or a SIMD type of kWidth floats.
template <class Lane>
struct LaneIo;

template <>
struct LaneIo<float> {
  using Value = float;
  static constexpr int kWidth = 1;
  static OUTGRAD_HD float splat(float value) { return value; }
  template <class T>
  static OUTGRAD_HD float load(const T* source) {
    return widen(*source);
  }
  template <class T>
  static OUTGRAD_HD void store(T* target, float value) {
    *target = narrow<T>(value);
  }
};

// What is summed: `Terms` has
//   kOperands, kSums                     operands of one element, sums formed from them
//   operands<Lane>(j)                    Tuple<Lane, kOperands> of elements j .. j + kWidth - 1
//   operands<Lane>(j, io)                the same of those that `io` reads in place of LaneIo<Lane>
//   missing()                            Tuple<float, kOperands> that makes every missing term neutral
//   first_fold(low, high)                Tuple<Lane, kSums>: the first fold of a chunk, fused where the terms
//                                        are products.

// Chunk `chunk` of a row of `n` elements, by one thread.
template <class Terms>
OUTGRAD_HD Tuple<float, Terms::kSums> chunk_sum(const Terms& terms, i64 chunk, i64 n) {
  const i64 first = chunk * kChunkTerms;
  Tuple<float, Terms::kOperands> operands[kChunkTerms];
  OUTGRAD_UNROLL
  for (int k = 0; k < kChunkTerms; ++k) {
    operands[k] = first + k < n ? terms.template operands<float>(first + k) : Terms::missing();
  }
  Tuple<float, Terms::kSums> sums[kChunkTerms / 2];
  OUTGRAD_UNROLL
  for (int k = 0; k < kChunkTerms / 2; ++k)
    sums[k] = Terms::first_fold(operands[k], operands[k + kChunkTerms / 2]);
  return fold<kChunkTerms / 2>(sums);
}

OUTGRAD_HD constexpr i64 row_steps(i64 n) { return (n + kStepTerms - 1) / kStepTerms; }

// The fold of the steps first, first + Stride, first + 2 Stride, .. below `end`, all within one group.
// step(q) gives step q's value, of any type with add_rn, and `neutral` is that type's -0. One loop with two
// rounds replaces two calls, so that there is only one copy of step's code.
template <int Stride, class V, class Step>
OUTGRAD_HD V fold_steps(i64 first, i64 end, const V& neutral, const Step& step) {
  if constexpr (Stride == kGroupSteps) {
    return step(first);
  } else {
    V sum = neutral;
    const i64 stop = first + 2 * Stride < end ? first + 2 * Stride : end;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (i64 q = first; q < stop; q += Stride) {
      sum = add_rn(sum, fold_steps<2 * Stride>(q, end, neutral, step));
    }
    return sum;
  }
}

template <int Sums>
OUTGRAD_HD Tuple<float, Sums> neutral_sums() {
  Tuple<float, Sums> neutral;
  for (int k = 0; k < Sums; ++k) neutral.v[k] = kMissingTerm;
  return neutral;
}

// Number of slots for the sums over `rows` rows of `n` columns: the greatest power of two that leaves each
// slot at least one row and makes at most kSlotSums sums in all; at least 1.
OUTGRAD_HD i64 slot_count(i64 rows, i64 n) {
  i64 slots = 1;
  while (2 * slots <= rows && 2 * slots * n <= kSlotSums) slots *= 2;
  return slots;
}

// The first row of slot `slot`. For slot + 1 this is one past the last row of `slot`.
OUTGRAD_HD i64 slot_begin(i64 rows, i64 slots, i64 slot) {
  return rows / slots * slot + rows % slots * slot / slots;
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
