// The one call that every compiled variant exports, and the bodies it is made of.
#pragma once

#include "kernels/host/elementwise.h"
#include "kernels/params.h"

namespace outgrad::autotune {

// The arrays of one call, `elements` long; mask words are ceil(elements / 32). Backward: first = dy, second = y, the mask is read,
// out = dx. Forward: first = x, second is unused, the mask is written, out = y.
struct Arguments {
  const void* first = nullptr;
  const void* second = nullptr;
  kernels::u32* mask = nullptr;
  void* out = nullptr;
  kernels::i64 elements = 0;
};

using VariantFunction = void (*)(const Arguments&);

// Y: the format of y, where it is not that of dy and dx.
template <class Fit, class T, kernels::CpuSchedule kSchedule, class Y = T>
void run_backward(const Arguments& a) {
  kernels::activation_backward<Fit, T, kSchedule, Y>(static_cast<const T*>(a.first), static_cast<const Y*>(a.second), a.mask,
                                                     static_cast<T*>(a.out), a.elements);
}

template <class Forward, class T, kernels::CpuSchedule kSchedule>
void run_forward(const Arguments& a) {
  kernels::gelu_forward<Forward, T, kSchedule>(static_cast<const T*>(a.first), static_cast<T*>(a.out), a.mask, a.elements);
}

}  // namespace outgrad::autotune
