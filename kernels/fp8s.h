// The catalogue of activations whose y may be kept in 8 bits at a scale (kernels/fp8.h): those with a
// minimum.
#pragma once

#include "kernels/codes.h"
#include "kernels/fp8.h"
#include "kernels/generated/gelu_fp8.h"
#include "kernels/generated/gelu_tanh_fp8.h"
#include "kernels/generated/mish_fp8.h"
#include "kernels/generated/quick_gelu_fp8.h"
#include "kernels/generated/silu_fp8.h"
#include "kernels/generated/swish_fp8.h"

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

// An activation whose y is kept in 8 bits: its header, and the codes, the f32 fit and the forward that this
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

// The scales of a format for which a header claims its kT, and kT of 0, 1 and 2 bits.
struct Fp8Claims {
  float least, most;
  double total[kMostPartBits + 1];
};
template <class Header, class F>
OUTGRAD_HD constexpr Fp8Claims fp8_claims() {
  if constexpr (kLargestOf<F> == kLargestOf<F8E4M3>) {
    return {Header::kE4m3Least, Header::kE4m3Most, {Header::kE4m3T0, Header::kE4m3T1, Header::kE4m3T2}};
  } else if constexpr (kLargestOf<F> == kLargestOf<I8>) {
    return {Header::kInt8Least, Header::kInt8Most, {Header::kInt8T0, Header::kInt8T1, Header::kInt8T2}};
  } else {
    return {Header::kE5m2Least, Header::kE5m2Most, {Header::kE5m2T0, Header::kE5m2T1, Header::kE5m2T2}};
  }
}

// The proven bound of |what is kept stands for - f'(x)| at the scale that the table was made for.
template <class S, int kCodes>
OUTGRAD_HD double fp8_error(const PartTable<kCodes>& table) {
  return 0.5 * static_cast<double>(table.widest) + S::Header::kRoom;
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
