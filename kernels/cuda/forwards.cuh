// The forwards of kernels/forwards.h on a GPU, with the host's bits: by the fits of kernels/forward_fits.h,
// or, where a 16-bit format has none, computed in double precision and rounded once. Consumer GPUs run double
// precision at a 64th of the rate of single precision, and that rate limits the kernel there.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/forward_fits.h"
#include "kernels/forwards.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The schedule of F's forward for T where none is given.
template <class F, class T>
struct ForwardsScheduleOf {
  static constexpr GpuSchedule kSchedule = forwards_schedule(kHasForwardFit<F, T>, sizeof(T));
};

// y[i] = f(x[i]) and, if f has a minimum, the mask; otherwise the mask is null. The contract is that of
// kernels/host/forwards.h. y may equal x.
template <class F, class T, class Schedule = ForwardsScheduleOf<F, T>>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    activation_forward(const T* x, T* y, u32* mask, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  if constexpr (kHasForwardFit<F, T>) {
    fitted_forward<ForwardFitOf<F, T>, kSchedule>(x, y, mask, n);
  } else {
    const auto is_right = [](float value) {
      if constexpr (F::kMasked) {
        return value >= F::kXStar;
      } else {
        return false;
      }
    };
    forward_over_octets<kSchedule, F::kMasked>(
        x, y, mask, n,
        [&](const Octet<T>& input, u32& bits) {
          float result[kOctet];
          bits = 0;
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) {
            const float value = widened(input, k);
            result[k] = forward_in_f32<F>(value);
            bits |= static_cast<u32>(is_right(value)) << k;
          }
          return packed<T>(result);
        },
        [&](T value) { return ForwardElement<T>{forward_of<F>(value), is_right(widen(value))}; });
  }
}

#ifndef __CUDACC_RTC__
// Like launch_gelu_forward. The mask is ignored if f has no minimum.
template <class F, class T, class Schedule = ForwardsScheduleOf<F, T>>
cudaError_t launch_activation_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_forward<kForwardSchedule<Schedule, T>, F::kMasked>(
      {DeviceKernel::activation_forward, resident, n, stream}, activation_forward<F, T, Schedule>, x, y,
      mask);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
