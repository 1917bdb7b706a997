// The kernels of a gated pair's product, z = f(a) b, with one fit, as the subject of product_sweep.h.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/host/elementwise.h"
#include "kernels/host/gated.h"
#include "kernels/product.h"
#include "validation/sweep/product_sweep.h"
#include "validation/sweep/subject.h"

namespace outgrad::validation {
namespace detail {

constexpr int gate_number(const char* activation) {
  int number = 0;
  while (!kernels::same_text(kernels::kActivationNames[number], activation)) ++number;
  return number;
}

template <class Gate>
kernels::ValueAndSlope<float> gate_at(float a) {
  const auto& tables = kernels::detail::gate_tables<typename Gate::Kind, false>();
  return kernels::evaluate_gate(kernels::FloatOps{}, Gate::kind(), tables, a);
}

/// f in fp32 and as a T, of n numbers a.
template <class Gate, class T>
void product_gates(const float* a, float* f, float* stored, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    f[i] = gate_at<Gate>(a[i]).f;
    stored[i] = kernels::widen(kernels::narrow<T>(f[i]));
  }
}

template <class Gate>
void product_slopes(const float* a, float* slope, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) slope[i] = gate_at<Gate>(a[i]).slope;
}

/// What is kept of one block's products with b, and what the backward pass makes of it at dz = 1.
template <class Fit, class T>
void product_pairs(const float* f, const float* stored, const std::uint8_t* mask, float b, PairBlock& to) {
  T number[PairBlock::kSize];
  const auto pairs = [&](const auto& ops, const auto& table, const auto& m,
                         int i) __attribute__((always_inline)) {
    kernels::detail::store_value<false>(ops, number + i, ops.mul(ops.load(f + i), ops.constant(b)));
    const auto kept = kernels::keep_product(ops, ops.load(number + i), ops.load(stored + i), ops.constant(b));
    const auto gradients =
        kernels::product_gradients(ops, Fit{}, table, ops.constant(1.0f), kept.z, kept.slot, m);
    const auto put = [&](float* at, const auto& value) {
      kernels::detail::store_value<false>(ops, at + i, value);
    };
    put(to.z, kept.z), put(to.s, gradients.db), put(to.da, gradients.da);
    put(to.g, kernels::evaluate_backward(ops, Fit{}, table, gradients.db, m));
  };
  int i = 0;
  if constexpr (kSweepSchedule.vector_bits > 0) {
    constexpr kernels::detail::LanesOf<kSweepSchedule, 2> kPair{};
    static_assert(PairBlock::kSize % kPair.kElements == 0);
    for (; i < PairBlock::kSize; i += kPair.kElements)
      pairs(kPair, kernels::detail::kVectorTable<Fit>, kPair.load_mask(mask + i / 8), i);
  }
  for (; i < PairBlock::kSize; ++i)
    pairs(kernels::FloatOps{}, kernels::detail::kRowTable<Fit>, (mask[i / 8] >> i % 8 & 1) != 0, i);
}

}  // namespace detail

/// The fit's claims, and the gate of its activation.
template <class Fit>
ProductSubject make_product_subject() {
  using T = std::conditional_t<kernels::same_text(Fit::kProduct, "f16"), kernels::F16, kernels::BF16>;
  using Gate = kernels::GateAt<detail::gate_number(Fit::kActivation)>;
  ProductSubject subject{Fit::kName,
                         std::is_same_v<T, kernels::F16> ? kF16 : kBf16,
                         swept_activation(Fit::kActivation),
                         {Fit::kT, Fit::kO, Fit::kRelative, Fit::kAbsolute},
                         {},
                         detail::product_gates<Gate, T>,
                         detail::product_slopes<Gate>,
                         detail::product_pairs<Fit, T>};
  subject.identity = identity_of(subject);
  return subject;
}

}  // namespace outgrad::validation
