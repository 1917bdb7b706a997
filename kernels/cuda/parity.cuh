// The forwards of activations with a minimum whose 16-bit y carries its branch (kernels/stores/parity.h), on
// a GPU. The backward is activation_backward of kernels/cuda/elementwise.cuh with Y = ParityF16 or ParityBf16
// and no mask.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/fits.h"
#include "kernels/forwards.h"
#include "kernels/stores/parity.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// y of n elements x: value(x) of each, widened, is f(x) in fp32, such that narrowing it to a branch is
// narrowing f(x).
template <GpuSchedule S, class F, class Y, class Value>
__device__ __forceinline__ void parity_over_octets(const typename Format<Y>::Carrier* x, Y* y, i64 n,
                                                   const Value& value) {
  using T = typename Format<Y>::Carrier;
  const auto code_at = [&](float wide) { return narrow_to_branch<Y>(value(wide), F::kXStar <= wide).bits; };
  forward_over_octets<S, false, T>(
      x, y, nullptr, n,
      [&](const Octet<T>& input, u32&) {
        Octet<T> output;
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet / 2; ++k) {
          output.w[k] = code_at(widened(input, 2 * k)) | static_cast<u32>(code_at(widened(input, 2 * k + 1)))
                                                             << 16;
        }
        return output;
      },
      [&](T each) { return ForwardElement<T>{T{code_at(widen(each))}, false}; });
}

// y[i] = f(x[i]) on its branch, for i in [0, n); x is in the format that carries Y's codes, and y may be x
// itself. F is ForwardFit<float>::Type for GELU, otherwise a forward of kernels/forwards.h that has a
// minimum. The contract is that of kernels/host/parity.h.
template <class F, CarriesBranch Y, class Schedule = StoreSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, Y>.threads,
                                  kForwardSchedule<Schedule, Y>.resident_blocks)
    activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n) {
  using T = typename Format<Y>::Carrier;
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, Y>;
  if constexpr (same_text(F::kActivation, "gelu")) {
    using Rounded = typename ForwardFit<T>::Type;
    const auto& rounded = resident_forward<Rounded, kSchedule.table, kSchedule.threads>();
    const auto& exact = resident_forward<F, kSchedule.table, kSchedule.threads>();
    parity_over_octets<kSchedule, F>(x, y, n, [&](float wide) {
      return gelu_parity_value(
          wide, [&](float each) { return forward_value<T, Rounded, false>(rounded, each); },
          [&](float each) { return forward_value<float, F, false>(exact, each); });
    });
  } else {
    parity_over_octets<kSchedule, F>(x, y, n, [](float wide) { return forward_in_f32<F>(wide); });
  }
}

#ifndef __CUDACC_RTC__
// Takes device pointers, aligned to their element. n = 0 launches nothing. y may be x. The result is
// cudaErrorInvalidValue for any other overlap, a null pointer, and a negative or overflowing n.
template <class F, CarriesBranch Y, class Schedule = StoreSchedule>
cudaError_t launch_activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n,
                                             cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, Y>>(
      {DeviceKernel::activation_forward_parity, resident, n, stream},
      activation_forward_parity<F, Y, Schedule>,
      [&] { return detail::operands_hold({detail::operand(x, n), detail::written(y, n, x)}); }, x, y, n);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
