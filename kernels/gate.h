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

// How a gate is computed: the kinds, which have its constants.
namespace gates {

// Where u is bounded: at one end e is infinite and sigma 0, at the other e is far below what sigma has.
inline constexpr float kLeast = -89, kMost = 87;

// A kind has u of v, which is a between kFrom and kTo, and what becomes of sigma(u) and rest = 1 - sigma(u),
// which where u is bounded is some number up to 1. w is a that is not below kFrom: +inf times rest, which may
// be 0, would be a NaN.

// u(a) = a
struct LinearUnit {
  static constexpr float kFrom = kLeast, kTo = kMost;

  template <class Ops, class Value = typename Ops::Value>
  OUTGRAD_HD Value argument(const Ops&, const Value& v) const {
    return v;
  }
  template <class Ops, class Value = typename Ops::Value>
  OUTGRAD_HD ValueAndSlope<Value> value(const Ops& ops, const Value& w, const Value& v, const Value& sigma,
                                        const Value& rest) const {
    return {ops.mul(w, sigma), ops.add(ops.mul(ops.mul(v, sigma), rest), sigma)};
  }
};
// u(a) = linear a + cubic a^3. With 1 and 0 it has the bits of the above.
struct CubicUnit {
  float linear, cubic;
  static constexpr float kFrom = -128, kTo = 128;

  template <class Ops, class Value = typename Ops::Value>
  OUTGRAD_HD Value argument(const Ops& ops, const Value& v) const {
    const Value u = ops.mul(v, ops.fma(ops.mul(v, v), ops.constant(cubic), ops.constant(linear)));
    return ops.at_most(ops.at_least(u, ops.constant(kLeast)), ops.constant(kMost));
  }
  template <class Ops, class Value = typename Ops::Value>
  OUTGRAD_HD ValueAndSlope<Value> value(const Ops& ops, const Value& w, const Value& v, const Value& sigma,
                                        const Value& rest) const {
    const Value slope = ops.fma(ops.mul(v, v), ops.constant(3.0f * cubic), ops.constant(linear));
    return {ops.mul(w, sigma), ops.fma(ops.mul(ops.mul(v, sigma), rest), slope, sigma)};
  }
};
// f(a) = sigma(a).
struct SigmoidItself : LinearUnit {
  template <class Ops, class Value = typename Ops::Value>
  OUTGRAD_HD ValueAndSlope<Value> value(const Ops& ops, const Value&, const Value&, const Value& sigma,
                                        const Value& rest) const {
    return {sigma, ops.mul(sigma, rest)};
  }
};
// f' by the derivatives of the polynomials of f, whose tables it reads.
struct OwnForward {
  using Forward = ForwardFit<float>::Type;
};
template <class Kind>
inline constexpr bool kReadsTables = requires { typename Kind::Forward; };

// e = exp(-u), u within its bounds.
template <class Ops>
OUTGRAD_HD typename Ops::Value exponential(const Ops& ops, const typename Ops::Value& u) {
  using Value = typename Ops::Value;
  // k + 127 in the lowest bits
  constexpr float kToInteger = 0x1.8p23f + 127, kLog2e = 0x1.715476p0f, kLog2High = 0x1.62e4p-1f,
                  kLog2Low = 0x1.7f7d1cp-20f;
  const Value t = ops.fma(u, ops.constant(-kLog2e), ops.constant(kToInteger));
  const Value k = ops.sub(t, ops.constant(kToInteger));
  const Value minus_r = ops.fma(k, ops.constant(kLog2Low), ops.fma(k, ops.constant(kLog2High), u));
  constexpr int kDegree = 7;
  constexpr float kOneOverFactorial[] = {1,         -1,          1.0f / 2,   -1.0f / 6,
                                         1.0f / 24, -1.0f / 120, 1.0f / 720, -1.0f / 5040};
  Value p = ops.constant(kOneOverFactorial[kDegree]);
  OUTGRAD_UNROLL
  for (int n = kDegree - 1; n >= 0; --n) p = ops.fma(p, minus_r, ops.constant(kOneOverFactorial[n]));
  return ops.mul(ops.shifted(t, 23), p);
}

// The gates, each with its kind.
struct Silu {
  static constexpr const char* kActivation = "silu";
  using Kind = LinearUnit;
  static OUTGRAD_HD constexpr Kind kind() { return Kind{}; }
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

// f(a) and f'(a) in fp32 of a gate that has a sigma, in two steps: e, and what is made of it. A loop over
// arrays takes each step by itself, for a core does not look far enough ahead to hide the chain of both.
template <class Ops, class Kind>
OUTGRAD_HD typename Ops::Value gate_exponential(const Ops& ops, const Kind& kind,
                                                const typename Ops::Value& a) {
  const auto w = ops.at_least(a, ops.constant(Kind::kFrom));
  return gates::exponential(ops, kind.argument(ops, ops.at_most(w, ops.constant(Kind::kTo))));
}
template <class Ops, class Kind>
OUTGRAD_HD ValueAndSlope<typename Ops::Value> gate_value(const Ops& ops, const Kind& kind,
                                                         const typename Ops::Value& a,
                                                         const typename Ops::Value& e) {
  constexpr float kLargest = 0x1p126f;  // for an infinity times 0 would be a NaN
  const auto w = ops.at_least(a, ops.constant(Kind::kFrom)), v = ops.at_most(w, ops.constant(Kind::kTo));
  const auto sigma = ops.div(ops.constant(1.0f), ops.add(e, ops.constant(1.0f)));
  return kind.value(ops, w, v, sigma, ops.mul(ops.at_most(e, ops.constant(kLargest)), sigma));
}

// The same of every gate. `tables` are those of its Forward, if it has one.
template <class Ops, class Kind, class Tables>
OUTGRAD_HD ValueAndSlope<typename Ops::Value> evaluate_gate(const Ops& ops, const Kind& kind,
                                                            const Tables& tables,
                                                            const typename Ops::Value& a) {
  if constexpr (gates::kReadsTables<Kind>) {
    constexpr typename Kind::Forward kFit{};
    return evaluate_forward_and_slope(ops, kFit, tables.core, tables.tail, a);
  } else {
    return gate_value(ops, kind, a, gate_exponential(ops, kind, a));
  }
}

// What becomes of an element: y = f(a) b, and the gradients of a and of b.
template <class Value>
struct GateGradients {
  Value da, db;
};
template <class Ops>
OUTGRAD_HD GateGradients<typename Ops::Value> gate_gradients(const Ops& ops,
                                                             const ValueAndSlope<typename Ops::Value>& at,
                                                             const typename Ops::Value& dy,
                                                             const typename Ops::Value& b) {
  return {ops.mul(ops.mul(dy, b), at.slope), ops.mul(dy, at.f)};
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
