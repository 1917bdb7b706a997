// The plain entry points on the CPU: outgrad's kernels with the fit and schedule chosen for this build.
//
// T is float, F16 or BF16. The LayerNorm and RMSNorm functions of kernels/host/layernorm.h are entry points as they stand.
#pragma once

#include "kernels/host/elementwise.h"
#include "kernels/host/layernorm.h"
#include "kernels/tuned.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// y[i] = GELU(x[i]) and bit i % 32 of mask[i / 32] = [x[i] >= x*], for i in [0, n); mask has ceil(n / 32) words, whose bits beyond n
// are written 0. y may equal x.
template <class T>
void gelu_forward(const T* x, T* y, u32* mask, i64 n) {
  using Choice = tuned::GeluForward<T>;
  gelu_forward<typename Choice::Fit, T, Choice::kSchedule>(x, y, mask, n);
}

// dx[i] = dy[i] GELU'(x[i]) from the outputs of gelu_forward. dx may equal dy.
template <class T>
void gelu_backward(const T* dy, const T* y, const u32* mask, T* dx, i64 n) {
  using Choice = tuned::GeluBackward<T>;
  gelu_backward<typename Choice::Fit, T, Choice::kSchedule>(dy, y, mask, dx, n);
}

// Names of the variants that the two functions run, as the tuner gave them; "default" without tuning.
template <class T>
const char* gelu_forward_variant_name() {
  return tuned::GeluForward<T>::kVariant;
}

template <class T>
const char* gelu_backward_variant_name() {
  return tuned::GeluBackward<T>::kVariant;
}

}  // namespace outgrad::kernels
