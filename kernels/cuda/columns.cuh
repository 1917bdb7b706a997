// Sums over rows on a GPU, one per column: the rows of a slot, and the tree of kernels/reduce.h from the slots' sums to the columns'.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/portable.h"
#include "kernels/reduce.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// Threads of a block of the kernels that work by column: enough for full occupancy at any register count these kernels need.
inline constexpr int kColumnThreads = 256;

// The rows of slots, as slot_begin has them, without a division: for kernels, made by the host.
struct SlotRows {
  i64 each;  // rows / slots
  i64 left;  // rows % slots
  int log_slots;

  OUTGRAD_HD i64 begin(i64 slot) const { return each * slot + (left * slot >> log_slots); }
};

// Slots that one thread adds up: two launches for up to 4096 slots, four for 2^21.
inline constexpr int kSlotFan = 64;

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
inline SlotRows slot_rows(i64 rows, i64 slots) {
  SlotRows result{rows / slots, rows % slots, 0};
  while (i64{1} << result.log_slots < slots) ++result.log_slots;
  return result;
}

inline i64 column_blocks(i64 words) { return (words + kColumnThreads - 1) / kColumnThreads; }

// Adds up `slots` (a power of two) times `words` sums, as the tree orders, into the first slot's, or into `result` where that is not null
// and there is more than one slot. At most a few kSlotSums sums in all, unless there is but one slot.
inline cudaError_t launch_add_slots(float* sums, i64 words, i64 slots, cudaStream_t stream, float* result = nullptr) {
  i64 apart = 1;
  for (i64 left = slots; left > 1; left = (left + kSlotFan - 1) / kSlotFan) {
    const i64 targets = (left + kSlotFan - 1) / kSlotFan;
    const cudaError_t status = launch(add_slots<>, static_cast<unsigned>(column_blocks(words * targets)), kColumnThreads, 0, stream, sums,
                                      result, words, left, apart);
    if (status != cudaSuccess) return status;
    apart *= kSlotFan;
  }
  return cudaSuccess;
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
