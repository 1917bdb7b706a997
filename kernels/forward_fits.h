// The catalogue of the fitted forwards of the activations other than GELU, whose own are ForwardFit's. Every
// activation has one in f32, which is within an ulp of f(x), but for the left tail of tanh-GELU (within 1.2).
// Those of a 16-bit format round every x correctly; an activation that has none is computed there in double
// precision (kernels/forwards.h), with the same bits.
//
// Swish has none in f16. f(2^-9) and f(-2^-10) lie a relative 2^-30 and 2^-33 from a tie whose even neighbour
// is the wrong one, and f(+-0x1.4a8p-9) a relative 2^-24 from one on its other side: what serves the former
// costs the latter. The fitter finds no polynomial for the row of 0 in cells of 1/4, 1/8, 1/16 and 1/32.
#pragma once

#include "kernels/fitted_forward.h"
#include "kernels/formats.h"
#include "kernels/forwards.h"
#include "kernels/generated/elu_forward.h"
#include "kernels/generated/elu_forward_bf16.h"
#include "kernels/generated/elu_forward_f16.h"
#include "kernels/generated/gelu_tanh_forward.h"
#include "kernels/generated/gelu_tanh_forward_bf16.h"
#include "kernels/generated/gelu_tanh_forward_f16.h"
#include "kernels/generated/mish_forward.h"
#include "kernels/generated/mish_forward_bf16.h"
#include "kernels/generated/mish_forward_f16.h"
#include "kernels/generated/quick_gelu_forward.h"
#include "kernels/generated/quick_gelu_forward_bf16.h"
#include "kernels/generated/quick_gelu_forward_f16.h"
#include "kernels/generated/sigmoid_forward.h"
#include "kernels/generated/sigmoid_forward_bf16.h"
#include "kernels/generated/sigmoid_forward_f16.h"
#include "kernels/generated/silu_forward.h"
#include "kernels/generated/silu_forward_bf16.h"
#include "kernels/generated/silu_forward_f16.h"
#include "kernels/generated/softplus_forward.h"
#include "kernels/generated/softplus_forward_bf16.h"
#include "kernels/generated/softplus_forward_f16.h"
#include "kernels/generated/swish_forward.h"
#include "kernels/generated/swish_forward_bf16.h"
#include "kernels/generated/tanh_forward.h"
#include "kernels/generated/tanh_forward_bf16.h"
#include "kernels/generated/tanh_forward_f16.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Forward fits in any order.
template <class... Fit>
struct ForwardFitList {};

template <class T>
struct ForwardFits {
  using Type = ForwardFitList<>;
};
template <>
struct ForwardFits<float> {
  using Type = ForwardFitList<generated::GeluTanhForward, generated::QuickGeluForward, generated::SiluForward,
                              generated::SwishForward, generated::MishForward, generated::TanhForward,
                              generated::SigmoidForward, generated::SoftplusForward, generated::EluForward>;
};
template <>
struct ForwardFits<F16> {
  using Type =
      ForwardFitList<generated::GeluTanhForwardF16, generated::QuickGeluForwardF16, generated::SiluForwardF16,
                     generated::MishForwardF16, generated::TanhForwardF16, generated::SigmoidForwardF16,
                     generated::SoftplusForwardF16, generated::EluForwardF16>;
};
template <>
struct ForwardFits<BF16> {
  using Type =
      ForwardFitList<generated::GeluTanhForwardBf16, generated::QuickGeluForwardBf16,
                     generated::SiluForwardBf16, generated::SwishForwardBf16, generated::MishForwardBf16,
                     generated::TanhForwardBf16, generated::SigmoidForwardBf16,
                     generated::SoftplusForwardBf16, generated::EluForwardBf16>;
};

// tanh-GELU in bf16 takes its rows about 0 from f16: there they are twice as wide, for those of bf16 are as
// its left tail asks for. With bf16's kTie they round every x of theirs correctly in bf16, too, so that the
// bits are those of its own rows (tests/kernels/forwards_test.cpp tries all of them).
struct GeluTanhNearBf16 : generated::GeluTanhForwardF16 {
  static constexpr float kTie = generated::GeluTanhForwardBf16::kTie;
};
template <>
struct NearFit<generated::GeluTanhForwardBf16> {
  using Type = GeluTanhNearBf16;
};

namespace detail {

template <class F>
OUTGRAD_HD void fit_for(ForwardFitList<>) {}
template <class F, class Fit, class... More>
OUTGRAD_HD auto fit_for(ForwardFitList<Fit, More...>) {
  if constexpr (same_text(F::kActivation, Fit::kActivation)) {
    return Fit{};
  } else {
    return fit_for<F>(ForwardFitList<More...>{});
  }
}

template <class... Fit>
OUTGRAD_HD constexpr bool names_one(ForwardFitList<Fit...>, [[maybe_unused]] const char* activation) {
  return (same_text(activation, Fit::kActivation) || ...);
}

}  // namespace detail

// The fit of the forward for T of F's activation, where F is one of kernels/forwards.h, or another header's
// struct; void if there is none.
template <class F, class T>
using ForwardFitOf = decltype(detail::fit_for<F>(typename ForwardFits<T>::Type{}));

// Whether there is one for T, by the activation's name.
template <class T>
OUTGRAD_HD constexpr bool has_forward_fit(const char* activation) {
  return detail::names_one(typename ForwardFits<T>::Type{}, activation);
}
template <class F, class T>
inline constexpr bool kHasForwardFit = has_forward_fit<T>(F::kActivation);

namespace detail {

template <class Forward, bool kIsFit>
struct F32Fit {
  using Type = Forward;
};
template <class Forward>
struct F32Fit<Forward, false> {
  using Type = ForwardFitOf<Forward, float>;
};

}  // namespace detail

// The f32 fit of a forward: GELU's is one itself.
template <class Forward>
using F32FitOf = typename detail::F32Fit<Forward, requires { Forward::table(); }>::Type;

// f(x) in f32.
template <class Forward>
OUTGRAD_HD float forward_at(float x) {
  using Fit = F32FitOf<Forward>;
  static constexpr auto kTables = forward_tables<Fit>();
  return fitted_forward_value<float>(FloatOps{}, Fit{}, kTables, x);
}

// f(x) as stored, for F of kernels/forwards.h. In a 16-bit format a fit gives the same.
template <class F, class T>
OUTGRAD_HD T forward_of(T x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return forward_at<F>(x);
  } else {
    return narrow<T>(forward_in_f32<F>(widen(x)));
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
