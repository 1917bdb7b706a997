// The gates of gated MLPs: y = f(a) b, with the gradients da = dy b f'(a) and db = dy f(a) from a and b
// themselves (N. Shazeer, "GLU Variants Improve Transformer", 2020). One body in fp32 gives f(a) and f'(a),
// shared by the host, vectors and GPUs; y = RN_T(RN_f32(f(a) b)), da = RN_T(RN_f32(RN_f32(dy b) f'(a))), db =
// RN_T(RN_f32(dy f(a))).
//
// SiLU and tanh-GELU are f(a) = a sigma(u(a)), and so f'(a) = sigma + f (1 - sigma) u'(a), where with e =
// exp(-u) sigma is 1 / (1 + e) and 1 - sigma is e sigma: one exponential and one division give both, without
// a table and without cancellation. exp(v) is 2^k exp(r), v = k log 2 + r, |r| < 0.347, and exp(r) its Taylor
// polynomial of degree 7, whose remainder is below 2^-27. GELU has its own f32 fit, whose derivative gives
// f'. f(a) is within kGateError (1 + |f(a)|) and f'(a) within kGateSlopeError for every finite float a,
// counted over all of them (tests/kernels/gate_test.cpp).
//
// Specified cases: NaN in gives NaN out. f(-inf) is -0, or 0 for sigmoid, and f(+inf) is +inf or 1; f' is
// within 2^-125 of its limits there. f(-0) = -0 where f(0) = 0.
#pragma once

#include "kernels/activations.h"
#include "kernels/eval.h"
#include "kernels/fits.h"
#include "kernels/fitted_forward.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr double kGateError = 1.35e-7, kGateSlopeError = 2.3e-7;

// f(a) and f'(a).
template <class Value>
struct GateValue {
  Value f, slope;
};

// How a gate is computed: the kinds, which have its constants.
namespace gates {

// f(a) = a sigma(u(a)), u(a) = linear a.
struct LinearUnit {
  float linear;

  template <class Ops>
  OUTGRAD_HD typename Ops::Value argument(const Ops& ops, const typename Ops::Value& a) const {
    return ops.mul(a, ops.constant(linear));
  }
  template <class Ops>
  OUTGRAD_HD typename Ops::Value argument_slope(const Ops& ops, const typename Ops::Value&) const {
    return ops.constant(linear);
  }
};
// The same with u(a) = linear a + cubic a^3. With a cubic of 0 it has the bits of the above.
struct CubicUnit {
  float linear, cubic;

  OUTGRAD_HD constexpr CubicUnit(float of_a, float of_cube) : linear(of_a), cubic(of_cube) {}
  OUTGRAD_HD constexpr CubicUnit(const LinearUnit& unit) : linear(unit.linear), cubic(0) {}

  template <class Ops>
  OUTGRAD_HD typename Ops::Value argument(const Ops& ops, const typename Ops::Value& a) const {
    return ops.mul(a, ops.fma(ops.mul(a, a), ops.constant(cubic), ops.constant(linear)));
  }
  template <class Ops>
  OUTGRAD_HD typename Ops::Value argument_slope(const Ops& ops, const typename Ops::Value& a) const {
    return ops.fma(ops.mul(a, a), ops.constant(3.0f * cubic), ops.constant(linear));
  }
};
// f(a) = sigma(a).
struct SigmoidItself {};
// f' by the derivatives of the polynomials of f, whose tables it reads.
struct OwnForward {
  using Forward = ForwardFit<float>::Type;
};
template <class Kind>
inline constexpr bool kReadsTables = requires { typename Kind::Forward; };

// sigma(u), and 1 - sigma(u) where that matters: for u < -87 it is some number up to 1.
template <class Value>
struct SigmoidValue {
  Value sigma, rest;
};
template <class Ops>
OUTGRAD_HD SigmoidValue<typename Ops::Value> sigmoid_value(const Ops& ops, const typename Ops::Value& u) {
  using Value = typename Ops::Value;
  // From the first on e is infinite and sigma 0, from the second on e is far below what sigma has.
  constexpr float kInfinite = 89, kNothing = -87, kLargest = 0x1p126f;
  const Value v = ops.at_most(ops.at_least(ops.negate(u), ops.constant(kNothing)), ops.constant(kInfinite));
  // k + 127 in the lowest bits
  constexpr float kToInteger = 0x1.8p23f + 127, kLog2e = 0x1.715476p0f, kLog2High = 0x1.62e4p-1f,
                  kLog2Low = 0x1.7f7d1cp-20f;
  const Value t = ops.fma(v, ops.constant(kLog2e), ops.constant(kToInteger));
  const Value k = ops.sub(t, ops.constant(kToInteger));
  const Value r = ops.fma(k, ops.constant(-kLog2Low), ops.fma(k, ops.constant(-kLog2High), v));
  constexpr int kDegree = 7;
  constexpr float kOneOverFactorial[] = {1,         1,          1.0f / 2,   1.0f / 6,
                                         1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
  Value p = ops.constant(kOneOverFactorial[kDegree]);
  OUTGRAD_UNROLL
  for (int n = kDegree - 1; n >= 0; --n) p = ops.fma(p, r, ops.constant(kOneOverFactorial[n]));
  const Value e = ops.mul(ops.shifted(t, 23), p);
  const Value sigma = ops.div(ops.constant(1.0f), ops.sub(e, ops.constant(-1.0f)));
  return {sigma, ops.mul(ops.at_most(e, ops.constant(kLargest)), sigma)};
}

// The gates, each with its kind.
struct Silu {
  static constexpr const char* kActivation = "silu";
  using Kind = LinearUnit;
  static OUTGRAD_HD constexpr Kind kind() { return Kind{1}; }
};
// (1 + tanh(v)) / 2 = sigma(2 v): 2 sqrt(2 / pi), and 0.044715 of it
struct GeluTanh {
  static constexpr const char* kActivation = "gelu_tanh";
  using Kind = CubicUnit;
  static OUTGRAD_HD constexpr Kind kind() { return Kind{0x1.988454p0f, 0x1.2444f2p-4f}; }
};
// That of the first gated linear units.
struct Sigmoid {
  static constexpr const char* kActivation = "sigmoid";
  using Kind = SigmoidItself;
  static OUTGRAD_HD constexpr Kind kind() { return Kind{}; }
};
struct Gelu {
  static constexpr const char* kActivation = "gelu";
  using Kind = OwnForward;
  static OUTGRAD_HD constexpr Kind kind() { return Kind{}; }
};

// That of an activation, by its name; void if it is no gate.
template <int kActivation>
OUTGRAD_HD constexpr auto gate_at() {
  constexpr const char* kName = kActivationNames[kActivation];
  if constexpr (same_text(kName, Silu::kActivation)) {
    return Silu{};
  } else if constexpr (same_text(kName, GeluTanh::kActivation)) {
    return GeluTanh{};
  } else if constexpr (same_text(kName, Sigmoid::kActivation)) {
    return Sigmoid{};
  } else if constexpr (same_text(kName, Gelu::kActivation)) {
    return Gelu{};
  }
}

// a sigma, and its derivative.
template <class Unit, class Ops>
OUTGRAD_HD GateValue<typename Ops::Value> unit_value(const Ops& ops, const Unit& unit,
                                                     const typename Ops::Value& a) {
  using Value = typename Ops::Value;
  // So far out sigma is 0 or 1, and an infinity times 0 would be a NaN.
  constexpr float kFar = 128;
  const Value w = ops.at_least(a, ops.constant(-kFar)), v = ops.at_most(w, ops.constant(kFar));
  const SigmoidValue<Value> at = sigmoid_value(ops, unit.argument(ops, v));
  const Value rest = ops.mul(ops.mul(v, at.sigma), at.rest);
  return {ops.mul(w, at.sigma), ops.fma(rest, unit.argument_slope(ops, v), at.sigma)};
}

}  // namespace gates

template <int kActivation>
using GateAt = decltype(gates::gate_at<kActivation>());

template <class Gate>
inline constexpr bool kIsGate = true;
template <>
inline constexpr bool kIsGate<void> = false;

template <int kFirst = 0>
OUTGRAD_HD constexpr bool is_gate(int activation) {
  if constexpr (kFirst < kActivations) {
    return activation == kFirst ? kIsGate<GateAt<kFirst>> : is_gate<kFirst + 1>(activation);
  } else {
    return false;
  }
}

// f(a) and f'(a) in fp32 of a gate of this kind. `tables` are those of its Forward, if it has one.
template <class Ops, class Tables>
OUTGRAD_HD GateValue<typename Ops::Value> evaluate_gate(const Ops& ops, const gates::LinearUnit& kind,
                                                        const Tables&, const typename Ops::Value& a) {
  return gates::unit_value(ops, kind, a);
}
template <class Ops, class Tables>
OUTGRAD_HD GateValue<typename Ops::Value> evaluate_gate(const Ops& ops, const gates::CubicUnit& kind,
                                                        const Tables&, const typename Ops::Value& a) {
  return gates::unit_value(ops, kind, a);
}
template <class Ops, class Tables>
OUTGRAD_HD GateValue<typename Ops::Value> evaluate_gate(const Ops& ops, const gates::SigmoidItself&,
                                                        const Tables&, const typename Ops::Value& a) {
  const auto at = gates::sigmoid_value(ops, a);
  return {at.sigma, ops.mul(at.sigma, at.rest)};
}
template <class Ops, class Tables>
OUTGRAD_HD GateValue<typename Ops::Value> evaluate_gate(const Ops& ops, const gates::OwnForward&,
                                                        const Tables& tables, const typename Ops::Value& a) {
  constexpr gates::OwnForward::Forward kFit{};
  return {evaluate_forward(ops, kFit, tables.core, tables.tail, a),
          evaluate_forward_derivative(ops, kFit, tables.core, tables.tail, a)};
}

// What becomes of an element: y = f(a) b, and the gradients of a and of b.
template <class Value>
struct GateGradients {
  Value da, db;
};
template <class Ops>
OUTGRAD_HD GateGradients<typename Ops::Value> gate_gradients(const Ops& ops,
                                                             const GateValue<typename Ops::Value>& at,
                                                             const typename Ops::Value& dy,
                                                             const typename Ops::Value& b) {
  return {ops.mul(ops.mul(dy, b), at.slope), ops.mul(dy, at.f)};
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
