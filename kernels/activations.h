// The catalogue of activations: their names and, for each, the fit that the library uses for y stored in a
// format. To add an activation, add it at the end of each list here, and to outgrad_activation in
// kernels/c/outgrad.h. The definition of f stands in three other places: approx/function/activations.cpp fits
// it, validation/exact/activation.cpp checks fit and forward against it, and kernels/forwards.h computes y.
#pragma once

#include "kernels/direct.h"
#include "kernels/fits.h"
#include "kernels/generated/elu_bf16.h"
#include "kernels/generated/elu_f16.h"
#include "kernels/generated/elu_f32.h"
#include "kernels/generated/gelu_bf16_parity.h"
#include "kernels/generated/gelu_f16_parity.h"
#include "kernels/generated/gelu_tanh_bf16.h"
#include "kernels/generated/gelu_tanh_bf16_parity.h"
#include "kernels/generated/gelu_tanh_f16.h"
#include "kernels/generated/gelu_tanh_f16_parity.h"
#include "kernels/generated/gelu_tanh_f32.h"
#include "kernels/generated/mish_bf16.h"
#include "kernels/generated/mish_bf16_parity.h"
#include "kernels/generated/mish_f16.h"
#include "kernels/generated/mish_f16_parity.h"
#include "kernels/generated/mish_f32.h"
#include "kernels/generated/quick_gelu_bf16.h"
#include "kernels/generated/quick_gelu_bf16_parity.h"
#include "kernels/generated/quick_gelu_f16.h"
#include "kernels/generated/quick_gelu_f16_parity.h"
#include "kernels/generated/quick_gelu_f32.h"
#include "kernels/generated/sigmoid_bf16.h"
#include "kernels/generated/sigmoid_f16.h"
#include "kernels/generated/sigmoid_f32.h"
#include "kernels/generated/silu_bf16.h"
#include "kernels/generated/silu_bf16_parity.h"
#include "kernels/generated/silu_f16.h"
#include "kernels/generated/silu_f16_parity.h"
#include "kernels/generated/silu_f32.h"
#include "kernels/generated/softplus_bf16.h"
#include "kernels/generated/softplus_f16.h"
#include "kernels/generated/softplus_f32.h"
#include "kernels/generated/swish_bf16.h"
#include "kernels/generated/swish_bf16_parity.h"
#include "kernels/generated/swish_f16.h"
#include "kernels/generated/swish_f16_parity.h"
#include "kernels/generated/swish_f32.h"
#include "kernels/generated/tanh_bf16.h"
#include "kernels/generated/tanh_f16.h"
#include "kernels/generated/tanh_f32.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// In the order of outgrad_activation.
inline constexpr const char* kActivationNames[] = {"gelu", "gelu_tanh", "quick_gelu", "silu",     "swish",
                                                   "mish", "tanh",      "sigmoid",    "softplus", "elu"};
inline constexpr int kActivations = sizeof(kActivationNames) / sizeof(*kActivationNames);

namespace detail {

template <class... Fit>
OUTGRAD_HD constexpr bool follow_the_names() {
  int index = 0;
  return (same_text(Fit::kActivation, kActivationNames[index++]) && ...);
}

}  // namespace detail

// The fits of all activations, in the order of the names.
template <class... Fit>
struct FitList {
  static_assert(sizeof...(Fit) == kActivations, "a fit of each activation");
  static_assert(detail::follow_the_names<Fit...>(), "fits in the order of the activations");
};

// The fits for y stored as T: ActivationFits<T>::Type.
template <class T>
struct ActivationFits;
template <>
struct ActivationFits<float> {
  using Type = FitList<DefaultFit<float>::Type, generated::GeluTanhF32, generated::QuickGeluF32,
                       generated::SiluF32, generated::SwishF32, generated::MishF32, generated::TanhF32,
                       generated::SigmoidF32, generated::SoftplusF32, generated::EluF32>;
};
template <>
struct ActivationFits<F16> {
  using Type = FitList<DefaultFit<F16>::Type, generated::GeluTanhF16, generated::QuickGeluF16,
                       generated::SiluF16, generated::SwishF16, generated::MishF16, generated::TanhF16,
                       generated::SigmoidF16, generated::SoftplusF16, generated::EluF16>;
};
template <>
struct ActivationFits<BF16> {
  using Type = FitList<DefaultFit<BF16>::Type, generated::GeluTanhBf16, generated::QuickGeluBf16,
                       generated::SiluBf16, generated::SwishBf16, generated::MishBf16, generated::TanhBf16,
                       generated::SigmoidBf16, generated::SoftplusBf16, generated::EluBf16>;
};

// The fits for y in a parity format, of the activations with a minimum, in any order.
template <class... Fit>
struct ParityFitList {};
template <class Y>
struct ParityFits;
template <>
struct ParityFits<ParityF16> {
  using Type =
      ParityFitList<generated::GeluF16Parity, generated::GeluTanhF16Parity, generated::QuickGeluF16Parity,
                    generated::SiluF16Parity, generated::SwishF16Parity, generated::MishF16Parity>;
};
template <>
struct ParityFits<ParityBf16> {
  using Type =
      ParityFitList<generated::GeluBf16Parity, generated::GeluTanhBf16Parity, generated::QuickGeluBf16Parity,
                    generated::SiluBf16Parity, generated::SwishBf16Parity, generated::MishBf16Parity>;
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
