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

template <class Fit, class T, kernels::CpuSchedule kSchedule>
void run_backward(const Arguments& a) {
  kernels::gelu_backward<Fit, T, kSchedule>(static_cast<const T*>(a.first), static_cast<const T*>(a.second), a.mask, static_cast<T*>(a.out),
                                            a.elements);
}

template <class Forward, class T, kernels::CpuSchedule kSchedule>
void run_forward(const Arguments& a) {
  kernels::gelu_forward<Forward, T, kSchedule>(static_cast<const T*>(a.first), static_cast<T*>(a.out), a.mask, a.elements);
}

}  // namespace outgrad::autotune
