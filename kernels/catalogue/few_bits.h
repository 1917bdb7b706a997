// The catalogue of activations whose y may be kept in few bits at a scale (kernels/stores/parts.h): those
// with a minimum.
#pragma once

#include "kernels/catalogue/codes.h"
#include "kernels/generated/gelu_fp8.h"
#include "kernels/generated/gelu_tanh_fp8.h"
#include "kernels/generated/mish_fp8.h"
#include "kernels/generated/quick_gelu_fp8.h"
#include "kernels/generated/silu_fp8.h"
#include "kernels/generated/swish_fp8.h"
#include "kernels/stores/fp4.h"
#include "kernels/stores/fp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace detail {

template <class Header, class A, class... Rest>
OUTGRAD_HD constexpr auto coded_of(CodedList<A, Rest...>) {
  if constexpr (same_text(A::Code::kName, Header::kCode)) {
    return A{};
  } else {
    return coded_of<Header>(CodedList<Rest...>{});
  }
}

template <class Header, class Fit, class... Rest>
OUTGRAD_HD constexpr auto fit_of() {
  if constexpr (same_text(Fit::kName, Header::kFit)) {
    return Fit{};
  } else {
    return fit_of<Header, Rest...>();
  }
}
template <class Header, class... Fit>
OUTGRAD_HD constexpr auto fit_of(FitList<Fit...>) {
  return fit_of<Header, Fit...>();
}

}  // namespace detail

// An activation whose y is kept in few bits: its header, and the codes, the f32 fit and the forward that this
// is made with.
template <class Fp8Header>
struct Fp8Activation : decltype(detail::coded_of<Fp8Header>(CodedActivations{})) {
  using Header = Fp8Header;
  using Fit = decltype(detail::fit_of<Fp8Header>(ActivationFits<float>::Type{}));
};

template <class... S>
struct Fp8List {};

// In the order of the names.
using Fp8Activations = Fp8List<Fp8Activation<generated::GeluFp8>, Fp8Activation<generated::GeluTanhFp8>,
                               Fp8Activation<generated::QuickGeluFp8>, Fp8Activation<generated::SiluFp8>,
                               Fp8Activation<generated::SwishFp8>, Fp8Activation<generated::MishFp8>>;

namespace detail {

template <int kActivation>
OUTGRAD_HD constexpr void few_bits_at(Fp8List<>) {}
template <int kActivation, class S, class... Rest>
OUTGRAD_HD constexpr auto few_bits_at(Fp8List<S, Rest...>) {
  if constexpr (same_text(S::Header::kActivation, kActivationNames[kActivation])) {
    return S{};
  } else {
    return few_bits_at<kActivation>(Fp8List<Rest...>{});
  }
}

}  // namespace detail

// That of one activation, by its place among the names; void if its y is not kept so.
template <int kActivation>
using Fp8ActivationAt = decltype(detail::few_bits_at<kActivation>(Fp8Activations{}));

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
