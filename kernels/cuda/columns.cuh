// Sums over rows on a GPU, one per column: the rows of a slot, and the tree of kernels/reduce.h that leads
// from the slots' sums to the columns' sums.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// Adds neighbours first: values 2k and 2k + 1, then pairs of these, and so on.
template <int Count, class V>
__device__ __forceinline__ V fold_neighbours(V (&values)[Count]) {
  OUTGRAD_UNROLL
  for (int pair = 1; pair < Count; pair *= 2) {
    OUTGRAD_UNROLL
    for (int k = 0; k < Count; k += 2 * pair) values[k] = add_rn(values[k], values[k + pair]);
  }
  return values[0];
}

// `left` slots remain, `apart` slots from each other, with `words` sums side by side. Adds up every Fan
// neighbouring slots into the first of them. One thread computes each word of each target.
template <int Fan = kSlotFan>
__global__ void __launch_bounds__(kColumnThreads) add_slots(float* sums, i64 words, i64 left, i64 apart) {
  const i64 index = static_cast<i64>(blockIdx.x) * kColumnThreads + threadIdx.x;
  const i64 target = index / words, j = index - target * words, first = target * Fan;
  if (first >= left) return;
  float* const into = sums + first * apart * words + j;
  float values[Fan];
  OUTGRAD_UNROLL
  for (int k = 0; k < Fan; ++k) values[k] = first + k < left ? into[k * apart * words] : kMissingTerm;
  *into = fold_neighbours(values);
}

// The end of sums over rows. Adds `left` rows of sums in the tree's order, and makes the columns' results
// from them. Its parameters are called after a norm's; if a column has one result, that is dgamma. There are
// at most kFinishFan rows, `apart` from each other, with `words` words each. The divisor of dgamma is
// `divisor`, which norm_prepare made, or else `gamma`, or else 1. gamma, dgamma and dbeta are in the format
// P; the latter two may be null. A block has kFinishColumns columns of one of the sums; the threads of a
// warp have neighbouring columns, and the warps have neighbouring rows.
template <ParameterFormat P = ParameterFormat::f32>
__global__ void __launch_bounds__(kColumnThreads)
    finish_columns(const float* sums, const float* divisor, const void* gamma, i64 n, i64 stride, i64 words,
                   i64 left, i64 apart, void* dgamma, void* dbeta) {
  using Parameter = typename ParameterIn<P>::Type;
  constexpr int kWarps = kColumnThreads / kFinishColumns, kOwn = kFinishFan / kWarps;
  static_assert(kFinishColumns == kTreeLanes, "a warp reads a line at a time");
  __shared__ float of_warps[kWarps][kFinishColumns];
  const i64 blocks_across = (n + kFinishColumns - 1) / kFinishColumns, sum = blockIdx.x / blocks_across;
  const int lane = threadIdx.x % kFinishColumns, warp = threadIdx.x / kFinishColumns;
  const i64 j = (blockIdx.x - sum * blocks_across) * kFinishColumns + lane;
  auto* const result = static_cast<Parameter*>(sum == 0 ? dgamma : dbeta);
  if (result == nullptr) return;  // holds for the whole block
  const float* const from = sums + sum * stride + j;
  float values[kOwn];
  OUTGRAD_UNROLL
  for (int k = 0; k < kOwn; ++k)
    values[k] = j < n && warp * kOwn + k < left ? from[(warp * kOwn + k) * apart * words] : kMissingTerm;
  of_warps[warp][lane] = fold_neighbours(values);
  __syncthreads();
  if (warp > 0 || j >= n) return;
  float totals[kWarps];
  OUTGRAD_UNROLL
  for (int k = 0; k < kWarps; ++k) totals[k] = of_warps[k][lane];
  const float total = fold_neighbours(totals);
  const bool is_divided = sum == 0 && (divisor != nullptr || gamma != nullptr);
  if (is_divided) {
    result[j] = narrow<Parameter>(
        div_rn(total, divisor != nullptr ? divisor[j] : widen(static_cast<const Parameter*>(gamma)[j])));
  } else {
    result[j] = narrow<Parameter>(total);
  }
}

#ifndef __CUDACC_RTC__
inline cudaError_t launch_add_slots(const PlannedLaunch& planned, float* sums, i64 words,
                                    cudaStream_t stream) {
  return launch(add_slots<>, static_cast<unsigned>(planned.blocks), planned.threads, 0, stream, sums, words,
                planned.left, planned.apart);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
