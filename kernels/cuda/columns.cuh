// Sums over rows on a GPU, one per column: the rows of a slot, and the tree of kernels/reduce.h from the slots' sums to the columns'.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// Adds Fan neighbours, `apart` slots from each other, of `left` that are left, into the first of them, or, where `result` is not null and
// they are all that is left, into it. A slot has `words` sums side by side. One thread to each word of each target.
template <int Fan = kSlotFan>
__global__ void __launch_bounds__(kColumnThreads) add_slots(float* sums, float* result, i64 words, i64 left, i64 apart) {
  const i64 index = static_cast<i64>(blockIdx.x) * kColumnThreads + threadIdx.x;
  const i64 target = index / words, j = index - target * words, first = target * Fan;
  if (first >= left) return;
  float* const into = sums + first * apart * words + j;
  float values[Fan];
  OUTGRAD_UNROLL
  for (int k = 0; k < Fan; ++k) values[k] = first + k < left ? into[k * apart * words] : kMissingTerm;
  OUTGRAD_UNROLL
  for (int pair = 1; pair < Fan; pair *= 2) {
    OUTGRAD_UNROLL
    for (int k = 0; k < Fan; k += 2 * pair) values[k] = add_rn(values[k], values[k + pair]);
  }
  if (result != nullptr && left <= Fan) {
    result[j] = values[0];
  } else {
    *into = values[0];
  }
}

#ifndef __CUDACC_RTC__
// One launch of a plan.
inline cudaError_t launch_add_slots(const PlannedLaunch& planned, float* sums, i64 words, cudaStream_t stream, float* result) {
  return launch(add_slots<>, static_cast<unsigned>(planned.blocks), planned.threads, 0, stream, sums, result, words, planned.left, planned.apart);
}

// Adds up `slots` (a power of two) times `words` sums, as the tree orders, into the first slot's, or into `result` where that is not null
// and there is more than one slot. At most a few kSlotSums sums in all, unless there is but one slot.
inline cudaError_t launch_add_slots(float* sums, i64 words, i64 slots, cudaStream_t stream, float* result = nullptr) {
  LaunchPlan plan;
  add_up_slots(plan, words, slots);
  for (int i = 0; i < plan.launches; ++i) {
    if (const cudaError_t status = launch_add_slots(plan.launch[i], sums, words, stream, result); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
