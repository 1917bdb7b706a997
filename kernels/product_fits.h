// Which gated pairs can be had from their product (kernels/product.h): of each gate and 16-bit format, the
// fit of f' from z / b, and the forward whose kXStar the bit beside z is about. f32 has none, because z, b
// and a bit are as much as a and b there; sigmoid has none, because it has no minimum and its pair is not
// common.
#pragma once

#include "kernels/formats.h"
#include "kernels/gate.h"
#include "kernels/generated/gelu_bf16_product.h"
#include "kernels/generated/gelu_f16_product.h"
#include "kernels/generated/gelu_forward.h"
#include "kernels/generated/gelu_tanh_bf16_product.h"
#include "kernels/generated/gelu_tanh_f16_product.h"
#include "kernels/generated/gelu_tanh_forward.h"
#include "kernels/generated/silu_bf16_product.h"
#include "kernels/generated/silu_f16_product.h"
#include "kernels/generated/silu_forward.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

template <class Gate, class T>
struct ProductFit {};
template <>
struct ProductFit<gates::Silu, BF16> {
  using Type = generated::SiluBf16Product;
  using Forward = generated::SiluForward;
};
template <>
struct ProductFit<gates::Silu, F16> {
  using Type = generated::SiluF16Product;
  using Forward = generated::SiluForward;
};
template <>
struct ProductFit<gates::GeluTanh, BF16> {
  using Type = generated::GeluTanhBf16Product;
  using Forward = generated::GeluTanhForward;
};
template <>
struct ProductFit<gates::GeluTanh, F16> {
  using Type = generated::GeluTanhF16Product;
  using Forward = generated::GeluTanhForward;
};
template <>
struct ProductFit<gates::Gelu, BF16> {
  using Type = generated::GeluBf16Product;
  using Forward = generated::GeluForward;
};
template <>
struct ProductFit<gates::Gelu, F16> {
  using Type = generated::GeluF16Product;
  using Forward = generated::GeluForward;
};

template <class Gate, class T>
inline constexpr bool kHasProduct = requires { typename ProductFit<Gate, T>::Type; };

// Whether the gate of an activation has them in f16 and bf16.
template <int kFirst = 0>
OUTGRAD_HD constexpr bool has_product(int activation) {
  if constexpr (kFirst < kActivations) {
    return activation == kFirst ? kHasProduct<GateAt<kFirst>, BF16> : has_product<kFirst + 1>(activation);
  } else {
    return false;
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
