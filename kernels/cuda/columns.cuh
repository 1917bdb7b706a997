// Sums over rows on a GPU, one per column: the upper part of the tree of kernels/reduce.h, from the slots' sums to the columns'.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/portable.h"
#include "kernels/reduce.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// Threads of a block of the kernels that work by column: enough for full occupancy at any register count these kernels need.
inline constexpr int kColumnThreads = 256;
// Slots that one thread adds up in one launch: the tree's depth per launch is 4, so 2^21 slots take 6.
inline constexpr int kSlotFan = 16;

// Adds Fan neighbours, `apart` slots from each other, of `left` that are left, into the first of them. A slot has `words` sums side by side.
// Block b has words kColumnThreads (b % blocks_across) + threadIdx.x of target b / blocks_across.
template <int Fan = kSlotFan>
__global__ void __launch_bounds__(kColumnThreads) add_slots(float* sums, i64 words, i64 left, i64 apart) {
  const i64 blocks_across = (words + kColumnThreads - 1) / kColumnThreads;
  const i64 j = blockIdx.x % blocks_across * kColumnThreads + threadIdx.x;
  const i64 first = blockIdx.x / blocks_across * Fan;
  if (j >= words) return;
  const int fan = left - first < Fan ? static_cast<int>(left - first) : Fan;  // a power of two, as `left` is
  float values[Fan];
  OUTGRAD_UNROLL
  for (int k = 0; k < Fan; ++k) values[k] = k < fan ? sums[(first + k) * apart * words + j] : kMissingTerm;
  for (int pair = 1; pair < fan; pair *= 2) {
    OUTGRAD_UNROLL
    for (int k = 0; k < Fan / 2; ++k) values[k] = add_rn(values[2 * k], values[2 * k + 1]);
  }
  sums[first * apart * words + j] = values[0];
}

#ifndef __CUDACC_RTC__
inline i64 column_blocks(i64 words) { return (words + kColumnThreads - 1) / kColumnThreads; }

// Adds up `slots` (a power of two) times `words` sums, as the tree orders, into the first slot's. slots words is at most a few kSlotSums.
inline cudaError_t launch_add_slots(float* sums, i64 words, i64 slots, cudaStream_t stream) {
  i64 apart = 1;
  for (i64 left = slots; left > 1; left = (left + kSlotFan - 1) / kSlotFan) {
    const i64 targets = (left + kSlotFan - 1) / kSlotFan;
    const cudaError_t status =
        launch(add_slots<>, static_cast<unsigned>(column_blocks(words) * targets), kColumnThreads, 0, stream, sums, words, left, apart);
    if (status != cudaSuccess) return status;
    apart *= kSlotFan;
  }
  return cudaSuccess;
}
#endif

}  // namespace outgrad::kernels::cuda
