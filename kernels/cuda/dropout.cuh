// Dropout by counter on a GPU: kernels/dropout.h element by element, and hence with the host's bits. An octet
// uses the words of two counters.
//
// A seed in device memory, where a generator put it, is read by each launch, a graph's included. A seed that
// the host knows saves that generator's launch.
#pragma once

#include "kernels/cuda/dropped.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/dropout.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The contract is that of kernels/host/dropout.h, with rule = dropout_rule(p). y may equal x.
template <class T, class Schedule = DropoutSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    dropout(const T* x, T* y, i64 n, Seed seed, DropoutRule rule) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  using Own = ShareOf<kSchedule, T, T>;
  const Dropping dropping = {seed.at != nullptr ? *seed.at : seed.value, rule};
  over_octets<kSchedule>(
      n, is_aligned<kSchedule, T, T>(x, x, y),
      [&](u64 first) {
        constexpr u64 kApart = kSchedule.threads;
        Octet<T> input[kSchedule.octets];
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u)
          input[u] = load_octet<kSchedule, Own::kApart>(x + Own::element(first) + u * kApart * kOctet);
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          const u64 begin = Own::element(first) + u * kApart * kOctet;
          store_octet<kSchedule, false, Own::kApart>(
              y + begin, dropping.octet(input[u], begin / Dropping::kWords, Own::kApart));
        }
      },
      [&](u64 octet, u32 count) {
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + count; i += Dropping::kWords) {
          const PhiloxWords words = philox(i / Dropping::kWords, dropping.key);
          OUTGRAD_UNROLL
          for (u32 k = 0; k < Dropping::kWords; ++k) {
            if (i + k < octet * kOctet + count) y[i + k] = dropout_element(rule, words.word[k], x[i + k]);
          }
        }
      });
}

#ifndef __CUDACC_RTC__
// Takes device pointers, aligned to their element. n = 0 launches nothing. y may equal x. The result is
// cudaErrorInvalidValue for any other overlap, a null pointer, a negative or overflowing n, and a p that is
// NaN or outside [0, 1].
template <class T, class Schedule = DropoutSchedule>
cudaError_t launch_dropout(const T* x, T* y, i64 n, const u64* seed, double p, cudaStream_t stream) {
  if (!dropout_holds(p)) return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::dropout, resident, n, stream}, dropout<T, Schedule>,
      [&] {
        return detail::operands_hold(
            {detail::operand(x, n), detail::operand(seed, 1), detail::written(y, n, x)});
      },
      x, y, n, Seed{seed}, dropout_rule(p));
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
