// y that carries its branch: in the formats ParityF16 and ParityBf16 the lowest bit of a negative y says on
// which side of the minimum x lay, and a backward pass needs no mask.
//
// Of y < 0, the even codes stand right of the minimum (m = 1) and the odd ones left of it (m = 0); -0, whose
// code is even, is right of it. Between two neighbours of a branch lies one code of the other. It parts them:
// f(x) goes to the neighbour on its own side. So, from the magnitude of f(x) cut off to the format's codes,
//
//   m = 0   the lowest bit is set. The last of these codes stands for all f(x) up to 0, and x = -inf gives
//           it, 0x8001.
//   m = 1   an odd code goes up to the even one where something was cut off, and down where f(x) is the odd
//           code itself: f(x) = x / 2 + O(x^2) lies above such an x / 2 wherever fp32 cannot tell them apart.
//
// Hence y is less than one unit in the last place off f(x) left of the minimum, and at most one right of it.
// y >= 0 is correctly rounded as ever. A NaN is the canonical one, which has m = 1. What backward passes make
// of it is proven in the headers of the fits, over all real x.
#pragma once

#include "kernels/activations.h"
#include "kernels/direct.h"
#include "kernels/formats.h"
#include "kernels/forwards.h"
#include "kernels/fitted_forward.h"
#include "kernels/portable.h"
#include "kernels/stores/store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The magnitude of a number without its sign bit, cut off to the codes of a format, and whether that took
// anything off it.
struct CutMagnitude {
  u32 code;
  bool inexact;
};
OUTGRAD_HD CutMagnitude cut_magnitude(BF16, u32 bits) { return {bits >> 16, (bits & 0xffffu) != 0}; }
OUTGRAD_HD CutMagnitude cut_magnitude(F16, u32 bits) {
  constexpr u32 kLeastNormalF16 = 113u << 23;
  if (bits >= kLeastNormalF16) {
    const u32 rebiased = bits - (112u << 23);
    return {rebiased >> 13, (rebiased & 0x1fffu) != 0};
  }
  // In units of 2^-24, f16's least: the significand moved right by 14 places at 2^-15, by one more in each
  // binade below.
  const u32 exponent = bits >> 23, significand = (bits & 0x7fffffu) | 0x800000u;
  const u32 places = 126u - exponent;
  const u32 code = exponent == 0 || places > 24u ? 0 : significand >> places;
  return {code, bits != 0 && (code == 0 || code << places != significand)};
}

// f(x) in fp32 on the branch m, stored as Y.
template <CarriesBranch Y>
OUTGRAD_HD Y narrow_to_branch(float value, bool m) {
  using Carrier = typename Format<Y>::Carrier;
  constexpr u32 kSign = 0x80000000u;
  const u32 bits = bits_of(value);
  if ((bits & kSign) == 0 || value != value) return {narrow<Carrier>(value)};
  constexpr u32 kLargest = Format<Y>::kCanonicalNan == kCanonicalNanF16 ? 0x7bffu : 0x7f7fu;
  CutMagnitude cut = cut_magnitude(Carrier{}, bits & ~kSign);
  if (cut.code > kLargest) cut = {kLargest, true};
  const u32 code = m ? (cut.code + static_cast<u32>(cut.inexact)) & ~1u : cut.code | 1u;
  return {Carrier{static_cast<u16>(0x8000u | code)}};
}

// f(x) in fp32, such that narrowing it to a branch is narrowing f(x): tests/kernels/parity_test.cpp tries
// every x of the format T. GELU's forward of T gives correctly rounded y, which is what y >= 0 takes; its
// forward of f32 is on f(x)'s side of the codes, or on them, for every x < 0.
//
// gelu_parity_value is told how these two are computed, of_format(x) and of_f32(x).
template <class OfFormat, class OfF32>
OUTGRAD_HD float gelu_parity_value(float x, const OfFormat& of_format, const OfF32& of_f32) {
  return (bits_of(x) >> 31) == 0 ? of_format(x) : of_f32(x);
}

template <class F, class T>
OUTGRAD_HD float parity_value(float x) {
  if constexpr (same_text(F::kActivation, "gelu")) {
    using Rounded = typename ForwardFit<T>::Type;
    static constexpr auto kTables = forward_tables<F>();
    static constexpr auto kRoundedTables = forward_tables<Rounded>();
    return gelu_parity_value(
        x, [](float each) { return fitted_forward_value<T>(FloatOps{}, Rounded{}, kRoundedTables, each); },
        [](float each) { return fitted_forward_value<float>(FloatOps{}, F{}, kTables, each); });
  } else {
    return forward_in_f32<F>(x);
  }
}

// F: a forward of kernels/forwards.h that has a minimum, or ForwardFit<float>::Type, GELU's.
template <class F, CarriesBranch Y>
OUTGRAD_HD Y forward_to_branch(typename Format<Y>::Carrier x) {
  const float wide = widen(x);
  return narrow_to_branch<Y>(parity_value<F, typename Format<Y>::Carrier>(wide), F::kXStar <= wide);
}

namespace detail {

template <class Fit, class F, class... More>
OUTGRAD_HD auto forward_named() {
  if constexpr (same_text(Fit::kActivation, F::kActivation)) {
    return F{};
  } else {
    return forward_named<Fit, More...>();
  }
}
template <class Fit, class... F>
OUTGRAD_HD auto parity_forward(ForwardList<F...>) {
  return forward_named<Fit, ForwardFit<float>::Type, F...>();
}

}  // namespace detail

// The forward whose y a fit of a parity format takes.
template <class Fit>
using ParityForward = decltype(detail::parity_forward<Fit>(ActivationForwards{}));

template <class T>
struct WithBranch;
template <>
struct WithBranch<F16> {
  using Type = ParityF16;
};
template <>
struct WithBranch<BF16> {
  using Type = ParityBf16;
};

template <>
struct StoreArithmetic<StoreId::kParity> {
  template <class T>
  using Kept = typename WithBranch<T>::Type;
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
