// What the gates of gated MLPs are measured by.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/forwards.h"
#include "kernels/host/gated.h"

namespace outgrad::kernels {

// That of kernels/forwards.h, whose errors are far below what is looked for; f' has its limits from there on.
template <class F>
struct Forward {
  static double f(double a) { return F::value(DoubleOps{}, a); }
  static double slope(double a) {
    return F::slope(DoubleOps{}, std::clamp(a, -F::kSlopeReach, F::kSlopeReach));
  }
};
struct Phi {
  static double f(double a) { return a * 0.5 * std::erfc(-a / std::sqrt(2.0)); }
  static double slope(double a) {
    return 0.5 * std::erfc(-a / std::sqrt(2.0)) + a * std::exp(-a * a / 2) / std::sqrt(2 * M_PI);
  }
};
template <class Gate>
struct TruthOf;
template <>
struct TruthOf<gates::Silu> : Forward<forwards::Silu> {};
template <>
struct TruthOf<gates::GeluTanh> : Forward<forwards::GeluTanh> {};
template <>
struct TruthOf<gates::Sigmoid> : Forward<forwards::Sigmoid> {};
template <>
struct TruthOf<gates::Gelu> : Phi {};

template <class Gate>
ValueAndSlope<float> value_at(float a) {
  return evaluate_gate(FloatOps{}, Gate::kind(), detail::gate_tables<typename Gate::Kind, false>(), a);
}

}  // namespace outgrad::kernels
