// The catalogue of forwards that a fit rounds correctly for every x of a 16-bit format. GELU's are its own
// (ForwardFit). An activation that has none in a format is computed there in double precision
// (kernels/forwards.h), with the same bits.
//
// Swish has none in f16. f(2^-9) and f(-2^-10) lie a relative 2^-30 and 2^-33 from a tie whose even neighbour
// is the wrong one, and f(+-0x1.4a8p-9) a relative 2^-24 from one on its other side: what serves the former
// costs the latter. The fitter finds no polynomial for the row of 0 in cells of 1/4, 1/8, 1/16 and 1/32.
#pragma once

#include "kernels/formats.h"
#include "kernels/generated/elu_forward_bf16.h"
#include "kernels/generated/elu_forward_f16.h"
#include "kernels/generated/gelu_tanh_forward_bf16.h"
#include "kernels/generated/gelu_tanh_forward_f16.h"
#include "kernels/generated/mish_forward_bf16.h"
#include "kernels/generated/mish_forward_f16.h"
#include "kernels/generated/quick_gelu_forward_bf16.h"
#include "kernels/generated/quick_gelu_forward_f16.h"
#include "kernels/generated/sigmoid_forward_bf16.h"
#include "kernels/generated/sigmoid_forward_f16.h"
#include "kernels/generated/silu_forward_bf16.h"
#include "kernels/generated/silu_forward_f16.h"
#include "kernels/generated/softplus_forward_bf16.h"
#include "kernels/generated/softplus_forward_f16.h"
#include "kernels/generated/swish_forward_bf16.h"
#include "kernels/generated/tanh_forward_bf16.h"
#include "kernels/generated/tanh_forward_f16.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Forward fits in any order.
template <class... Fit>
struct RoundedForwardList {};

template <class T>
struct RoundedForwards {
  using Type = RoundedForwardList<>;
};
template <>
struct RoundedForwards<F16> {
  using Type = RoundedForwardList<generated::GeluTanhForwardF16, generated::QuickGeluForwardF16,
                                  generated::SiluForwardF16, generated::MishForwardF16,
                                  generated::TanhForwardF16, generated::SigmoidForwardF16,
                                  generated::SoftplusForwardF16, generated::EluForwardF16>;
};
template <>
struct RoundedForwards<BF16> {
  using Type =
      RoundedForwardList<generated::GeluTanhForwardBf16, generated::QuickGeluForwardBf16,
                         generated::SiluForwardBf16, generated::SwishForwardBf16, generated::MishForwardBf16,
                         generated::TanhForwardBf16, generated::SigmoidForwardBf16,
                         generated::SoftplusForwardBf16, generated::EluForwardBf16>;
};

namespace detail {

template <class F>
OUTGRAD_HD void fit_for(RoundedForwardList<>) {}
template <class F, class Fit, class... More>
OUTGRAD_HD auto fit_for(RoundedForwardList<Fit, More...>) {
  if constexpr (same_text(F::kActivation, Fit::kActivation)) {
    return Fit{};
  } else {
    return fit_for<F>(RoundedForwardList<More...>{});
  }
}

template <class... Fit>
OUTGRAD_HD constexpr bool names_one(RoundedForwardList<Fit...>, [[maybe_unused]] const char* activation) {
  return (same_text(activation, Fit::kActivation) || ...);
}

}  // namespace detail

// The fit that rounds F's f(x) to T, where F is one of kernels/forwards.h; void if there is none.
template <class F, class T>
using RoundedForward = decltype(detail::fit_for<F>(typename RoundedForwards<T>::Type{}));

// Whether there is one for T, by the activation's name.
template <class T>
OUTGRAD_HD constexpr bool has_rounded_forward(const char* activation) {
  return detail::names_one(typename RoundedForwards<T>::Type{}, activation);
}
template <class F, class T>
inline constexpr bool kHasRoundedForward = has_rounded_forward<T>(F::kActivation);

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
