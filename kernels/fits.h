// The generated fits: which one a storage format uses by default, and all of them for tools that walk the list.
#pragma once

#include "kernels/formats.h"
#include "kernels/generated/gelu_bf16.h"
#include "kernels/generated/gelu_bf16_left.h"
#include "kernels/generated/gelu_f16.h"
#include "kernels/generated/gelu_f32.h"
#include "kernels/generated/gelu_forward.h"

namespace outgrad::kernels {

// The backward fit for y stored as T: DefaultFit<T>::Type.
template <class T>
struct DefaultFit;

template <>
struct DefaultFit<float> {
  using Type = generated::GeluF32;
};

template <>
struct DefaultFit<F16> {
  using Type = generated::GeluF16;
};

template <>
struct DefaultFit<BF16> {
  using Type = generated::GeluBf16;
};

#ifndef __CUDACC_RTC__
// Calls visitor(fit) with an object of every backward fit's struct.
template <class Visitor>
void for_each_fit(Visitor&& visitor) {
  visitor(generated::GeluF32{});
  visitor(generated::GeluF16{});
  visitor(generated::GeluBf16{});
  visitor(generated::GeluBf16Left{});
}
#endif

}  // namespace outgrad::kernels
