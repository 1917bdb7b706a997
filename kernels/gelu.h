// GELU's forward body, the same on host, in vectors and on a GPU: x -> (y, mask bit). Backward: kernels/activation.h.
//
// Specified cases (m the mask bit): NaN in gives NaN out, and m = 0 for x = NaN; x = -0 gives y = -0, m = 1, while (y = -0, m = 0) is
// the left tail, g = 0; x = -inf gives y = -0; y = +inf gives g = 1.
#pragma once

#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Below it, 16-bit formats take f(x) = x/2 + x^2/sqrt(2 pi) + O(x^4) in place of the table: there fp32 loses the second term, while x/2
// may be a tie of the format.
inline constexpr float kSmallArgument = 0x1p-9f;
// 1/sqrt(2 pi) less 3e-6 of itself. The shift moves y by less than 1/30 ulp of fp32, and off the two f16 ties, at x = +-0x1.5fp-10, that
// f comes within 1/40 ulp of fp32 of; that every f16 and bf16 is then rounded correctly is proven by exhaustion (outgrad validate).
inline constexpr float kSmallCurvature = 0x1.988402p-2f;  // 0.39894108

// f(x) for abs(x) < kSmallArgument, as a body for `where`. Not a lambda: NVRTC takes those of a host-and-device template for host code.
struct SmallBody {
  template <class Ops>
  OUTGRAD_HD typename Ops::Value operator()(const Ops& ops, const typename Ops::Value& x) const {
    const auto zero = ops.constant(0.0f);
    const auto half = ops.mul(x, ops.constant(0.5f));
    // At least an ulp of fp32, also where x^2 vanishes: f lies above x/2 on both sides of 0. +-0 stay as they are.
    const auto size = ops.select(ops.less(x, zero), ops.negate(x), x);
    const auto ulp = ops.fma(size, ops.constant(0x1p-24f), ops.constant(0x1p-149f));
    const auto square = ops.mul(ops.mul(x, x), ops.constant(kSmallCurvature));
    const auto above = ops.sub(half, ops.negate(ops.select(ops.less(square, ulp), ulp, square)));
    return ops.select(ops.neither(ops.less(x, zero), ops.less(zero, x)), half, above);
  }
};

// f(x) in fp32, fit to be narrowed to T.
template <class T, class Ops, class Forward, class CoreView, class TailView>
OUTGRAD_HD typename Ops::Value gelu_forward_value(const Ops& ops, const Forward& fit, const CoreView& core, const TailView& tail,
                                                  typename Ops::Value x) {
  const typename Ops::Value y = evaluate_forward(ops, fit, core, tail, x);
  if constexpr (sizeof(T) < sizeof(float)) {
    const auto small = ops.neither(ops.less_equal(x, ops.constant(-kSmallArgument)), ops.less_equal(ops.constant(kSmallArgument), x));
    return ops.where(small, y, x, SmallBody{});
  } else {
    return y;
  }
}

template <class T>
struct GeluForwardElement {
  T y;
  bool m;
};

template <class T, class Forward, class CoreView, class TailView>
OUTGRAD_HD GeluForwardElement<T> gelu_forward_element(const Forward& fit, const CoreView& core, const TailView& tail, T x) {
  const float wide = widen(x);
  return {narrow<T>(gelu_forward_value<T>(FloatOps{}, fit, core, tail, wide)), evaluate_mask(FloatOps{}, fit, wide)};
}

}  // namespace outgrad::kernels
