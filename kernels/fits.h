// The generated fits: which one a storage format uses by default, and all of them for tools that walk the
// list.
#pragma once

#include "kernels/formats.h"
#include "kernels/generated/gelu_bf16.h"
#include "kernels/generated/gelu_f16.h"
#include "kernels/generated/gelu_f32.h"
#include "kernels/generated/gelu_forward.h"
#include "kernels/generated/gelu_forward_bf16.h"
#include "kernels/generated/gelu_forward_f16.h"
#ifndef __CUDACC_RTC__  // a program for a GPU includes the one that it names
#include "kernels/generated/gelu_bf16_fast.h"
#include "kernels/generated/gelu_bf16_oracle.h"
#include "kernels/generated/gelu_bf16_stored.h"
#include "kernels/generated/gelu_bf16_ulp.h"
#include "kernels/generated/gelu_e4m3_oracle.h"
#include "kernels/generated/gelu_e5m2_oracle.h"
#include "kernels/generated/gelu_f16_fast.h"
#include "kernels/generated/gelu_f16_oracle.h"
#include "kernels/generated/gelu_f16_stored.h"
#include "kernels/generated/gelu_f16_ulp.h"
#include "kernels/generated/gelu_f32_ulp.h"
#include "kernels/generated/gelu_mxfp8.h"
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

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

// The forward for x and y stored as T: ForwardFit<T>::Type.
template <class T>
struct ForwardFit;

template <>
struct ForwardFit<float> {
  using Type = generated::GeluForward;
};

template <>
struct ForwardFit<F16> {
  using Type = generated::GeluForwardF16;
};

template <>
struct ForwardFit<BF16> {
  using Type = generated::GeluForwardBf16;
};

#ifndef __CUDACC_RTC__
// Calls visitor(fit) with an object of every backward fit's struct, direct tables among them.
template <class Visitor>
void for_each_fit(Visitor&& visitor) {
  visitor(generated::GeluF32{});
  visitor(generated::GeluF32Ulp{});
  visitor(generated::GeluF16{});
  visitor(generated::GeluF16Fast{});
  visitor(generated::GeluF16Stored{});
  visitor(generated::GeluF16Ulp{});
  visitor(generated::GeluF16Oracle{});
  visitor(generated::GeluBf16{});
  visitor(generated::GeluBf16Fast{});
  visitor(generated::GeluBf16Stored{});
  visitor(generated::GeluBf16Ulp{});
  visitor(generated::GeluBf16Oracle{});
  visitor(generated::GeluE4m3Oracle{});
  visitor(generated::GeluE5m2Oracle{});
  visitor(generated::GeluMxfp8{});
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
