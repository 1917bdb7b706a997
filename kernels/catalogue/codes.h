// The catalogue of codes for f'(x): the generated header of each activation, and its proven errors.
#pragma once

#include "kernels/activations.h"
#include "kernels/generated/elu_code.h"
#include "kernels/generated/gelu_code.h"
#include "kernels/generated/gelu_tanh_code.h"
#include "kernels/generated/mish_code.h"
#include "kernels/generated/quick_gelu_code.h"
#include "kernels/generated/sigmoid_code.h"
#include "kernels/generated/silu_code.h"
#include "kernels/generated/softplus_code.h"
#include "kernels/generated/swish_code.h"
#include "kernels/generated/tanh_code.h"
#include "kernels/stores/code.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The code headers of all activations, in the order of the names.
using ActivationCodes =
    FitList<generated::GeluCode, generated::GeluTanhCode, generated::QuickGeluCode, generated::SiluCode,
            generated::SwishCode, generated::MishCode, generated::TanhCode, generated::SigmoidCode,
            generated::SoftplusCode, generated::EluCode>;

// An activation whose derivative is coded: its code header, and its forward for T.
template <class CodeHeader, class Forwards>
struct CodedActivation {
  static_assert(same_text(CodeHeader::kActivation, Forwards::template Of<float>::kActivation));
  using Code = CodeHeader;
  template <class T>
  using Forward = typename Forwards::template Of<T>;
};

struct FittedForwards {  // GELU's
  template <class T>
  using Of = typename ForwardFit<T>::Type;
};
template <class F>
struct ComputedForwards {
  template <class T>
  using Of = F;
};

template <class... A>
struct CodedList {};

namespace detail {

template <class GeluCode, class... Code, class... F>
OUTGRAD_HD constexpr auto coded_list(FitList<GeluCode, Code...>, ForwardList<F...>) {
  return CodedList<CodedActivation<GeluCode, FittedForwards>,
                   CodedActivation<Code, ComputedForwards<F>>...>{};
}

}  // namespace detail

// All activations, in the order of the names.
using CodedActivations = decltype(detail::coded_list(ActivationCodes{}, ActivationForwards{}));

namespace detail {

template <int kIndex, class First, class... More>
OUTGRAD_HD constexpr auto coded_activation(CodedList<First, More...>) {
  if constexpr (kIndex == 0) {
    return First{};
  } else {
    return coded_activation<kIndex - 1>(CodedList<More...>{});
  }
}

}  // namespace detail

// That of one activation, by its place among the names.
template <int kIndex>
using CodedActivationAt = decltype(detail::coded_activation<kIndex>(CodedActivations{}));

using CodedGelu = CodedActivationAt<0>;

// The proven bound of |g - f'(x)| for what a code stands for; code_bits_hold(bits, dithered).
template <class Code>
OUTGRAD_HD constexpr double code_error(int bits, bool dithered) {
  constexpr double kExact[] = {Code::kT1, Code::kT2, Code::kT3, Code::kT4,
                               Code::kT5, Code::kT6, Code::kT7, Code::kT8};
  constexpr double kDithered[] = {Code::kDithered2, Code::kDithered3};
  return dithered ? kDithered[bits - kLeastDitheredBits] : kExact[bits - 1];
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
