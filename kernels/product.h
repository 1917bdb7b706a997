// What a gated pair z = f(a) b keeps where the next product keeps z: one number of T beside z, and a bit; and
// the gradients from these. One body for the host, vectors and GPUs.
//
// z is RN_T(RN_f32(f(a) b)), and the number beside it, in the slot, is b, so that s = RN_f32(z / b) is near
// f(a): |s - f(a)| <= kRelative |f(a)| + kAbsolute of the fit, as long as z is finite and above the least
// normal number, or |b| >= 1/2. f'(a) is g(s, m) of that fit, within its kT.
//
// A product that is 0, or rounds to it, says nothing of its factors. The larger of both is in the slot then,
// and the sign of z tells which: it is free, for what multiplies or adds z tells zeros apart only by the sign
// of another zero. z = +0 stands beside b, z = -0 beside RN_T(f(a)), also where the two are equal. The other
// factor is taken for 0. So b = 0 loses nothing, nor does f(a) = 0; of factors whose product underflows the
// one that is lost is at most sqrt(h) + h, h half the least subnormal of T.
//
// With a z that is subnormal, or the least normal number, to which a product below it may round, s is off by
// up to h / |b| more, and da by up to sqrt(2.01 h |b| max |f''|) |dz| (docs/how_it_works.md). A z that
// overflows gives s = +-inf: db is infinite or NaN, and da has the limit of f' for f'(a).
#pragma once

#include "kernels/eval.h"
#include "kernels/gate.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

template <class Value>
struct KeptProduct {
  Value z, slot;
};

// What is kept of z = RN_T(RN_f32(f(a) b)), f = RN_T(f(a)) and b, all of them numbers of T.
template <class Ops>
OUTGRAD_HD KeptProduct<typename Ops::Value> keep_product(const Ops& ops, const typename Ops::Value& z,
                                                         const typename Ops::Value& f,
                                                         const typename Ops::Value& b) {
  const auto one = ops.constant(1.0f), zero = ops.constant(0.0f);
  const auto is_zero = ops.less_equal(ops.signed_as(z, one), zero);
  const auto holds_b = ops.less(ops.signed_as(f, one), ops.signed_as(b, one));
  return {ops.select(is_zero, ops.select(holds_b, zero, ops.constant(-0.0f)), z),
          ops.select(is_zero, ops.select(holds_b, b, f), b)};
}

// The gradients of a and of b, not yet rounded to T. m = [a >= x*].
template <class Ops, class Fit, class TableView>
OUTGRAD_HD GateGradients<typename Ops::Value> product_gradients(
    const Ops& ops, const Fit& fit, const TableView& table, const typename Ops::Value& dz,
    const typename Ops::Value& z, const typename Ops::Value& slot, const typename Ops::Mask& m) {
  const auto one = ops.constant(1.0f), zero = ops.constant(0.0f);
  // -1 for z = -0 alone
  const auto sign = ops.select(ops.less_equal(ops.signed_as(z, one), zero), ops.signed_as(one, z), one);
  const auto holds_f = ops.less(sign, zero);
  const auto b = ops.select(holds_f, zero, slot), s = ops.select(holds_f, slot, ops.div(z, slot));
  return gate_gradients(ops, ValueAndSlope<typename Ops::Value>{s, evaluate_backward(ops, fit, table, s, m)},
                        dz, b);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
