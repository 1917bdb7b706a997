// What is kept of a gated pair beside z, and the gradients from it: every a of 16 bits with every significand
// of b, and factors whose product is 0, subnormal or too large, against double precision.
#include "kernels/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/generated/gelu_bf16_product.h"
#include "kernels/generated/gelu_f16_product.h"
#include "kernels/generated/gelu_forward.h"
#include "kernels/generated/gelu_tanh_bf16_product.h"
#include "kernels/generated/gelu_tanh_f16_product.h"
#include "kernels/generated/gelu_tanh_forward.h"
#include "kernels/generated/silu_bf16_product.h"
#include "kernels/generated/silu_f16_product.h"
#include "kernels/generated/silu_forward.h"
#include "kernels/host/parallel.h"
#include "tests/kernels/gate_truth.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

// Fits of f' from z / b, and the forward whose kXStar the bit is about.
template <class Gate, class T>
struct ProductOf;
template <>
struct ProductOf<gates::Silu, BF16> : generated::SiluBf16Product {
  using Forward = generated::SiluForward;
};
template <>
struct ProductOf<gates::Silu, F16> : generated::SiluF16Product {
  using Forward = generated::SiluForward;
};
template <>
struct ProductOf<gates::GeluTanh, BF16> : generated::GeluTanhBf16Product {
  using Forward = generated::GeluTanhForward;
};
template <>
struct ProductOf<gates::GeluTanh, F16> : generated::GeluTanhF16Product {
  using Forward = generated::GeluTanhForward;
};
template <>
struct ProductOf<gates::Gelu, BF16> : generated::GeluBf16Product {
  using Forward = generated::GeluForward;
};
template <>
struct ProductOf<gates::Gelu, F16> : generated::GeluF16Product {
  using Forward = generated::GeluForward;
};

// The errors of s and of g(s, m) at their largest, in units of what the header says.
struct Quotients {
  double ball = 0, slope = 0;
};

// All finite a of T with all significands of b, or one in `step`. A power of two that multiplies b multiplies
// z, and s = z / b stays, as long as z and b are normal: b is scaled to make z about 1, as far as the format
// reaches. Its sign is z's.
template <class Gate, class T>
Quotients quotients_of_all(int step) {
  using Fit = ProductOf<Gate, T>;
  constexpr auto kTable = table_of<Fit>();
  constexpr int kSignificands = std::is_same_v<T, F16> ? 1024 : 128, kMostExponent = 15;
  const std::vector<T> all = patterns::all<T>(1);
  std::vector<Quotients> worst(all.size());
  parallel_for(static_cast<i64>(all.size()), 0, [&](i64 k) {
    const float a = widen(all[static_cast<size_t>(k)]), f = value_at<Gate>(a).f;
    if (!std::isfinite(a)) return;
    const double true_f = TruthOf<Gate>::f(a), slope = TruthOf<Gate>::slope(a),
                 ball = Fit::kRelative * std::abs(true_f) + Fit::kAbsolute;
    const int exponent = f == 0 ? 0 : std::clamp(-std::ilogb(f), 1 - kMostExponent, kMostExponent);
    for (int i = 0; i < kSignificands; i += step) {
      const float b = std::ldexp(1 + static_cast<float>(i) / kSignificands, exponent);
      const float z = widen(narrow<T>(mul_rn(f, b)));
      if (std::isinf(z)) continue;
      const float s = div_rn(z, b);
      const float g = evaluate_backward(FloatOps{}, Fit{}, kTable, s, a >= Fit::Forward::kXStar);
      Quotients& most = worst[static_cast<size_t>(k)];
      most.ball = std::max(most.ball, std::abs(s - true_f) / ball);
      most.slope = std::max(most.slope, std::abs(g - slope) / Fit::kT);
    }
  });
  Quotients most;
  for (const Quotients& one : worst) most = {std::max(most.ball, one.ball), std::max(most.slope, one.slope)};
  return most;
}

// z / b is within the header's ball of f(a), which nearly all of it is needed for, and g(z / b, m) is within
// T of f'(a). The a next to x*, where T is reached, are sparse in 16 bits.
template <class T>
void expect_within_claims(int step) {
  const auto expect = [&]<class Gate>(Gate) {
    const Quotients most = quotients_of_all<Gate, T>(step);
    SCOPED_TRACE(std::string(Gate::kActivation) + " " + Format<T>::kName);
    EXPECT_LE(most.ball, 1);
    EXPECT_GE(most.ball, 0.98);
    EXPECT_LE(most.slope, 1);
    EXPECT_GE(most.slope, 0.9);
  };
  expect(gates::Silu{}), expect(gates::GeluTanh{}), expect(gates::Gelu{});
}

TEST(Products, QuotientsAreWithinTheClaimsOfTheirFits) {
  expect_within_claims<BF16>(1);
  expect_within_claims<F16>(31);
}
TEST(ProductsExhaustive, QuotientsAreWithinTheClaimsOfTheirFits) { expect_within_claims<F16>(1); }

// kRelative and kAbsolute have room for what stands between f(a) and s: the rounding of z, to T and before to
// fp32, that of the quotient, f(a) in fp32, and a subnormal z for |b| >= 1/2.
template <class Fit>
void expect_room(double unit_roundoff, double half_least) {
  constexpr double kSingle = 0x1p-24;
  const double rounded = (1 + unit_roundoff / (1 + unit_roundoff)) * (1 + kSingle) * (1 + kSingle) - 1;
  EXPECT_GE(Fit::kRelative, rounded + kGateError * (1 + rounded));
  EXPECT_GE(Fit::kAbsolute, kGateError * (1 + rounded) + half_least / 0.5 * (1 + kSingle));
}
TEST(Products, TheirBallsHaveRoomForEveryRounding) {
  expect_room<generated::SiluBf16Product>(0x1p-8, 0x1p-134);
  expect_room<generated::SiluF16Product>(0x1p-11, 0x1p-25);
}

// --- What is kept --------------------------------------------------------------------------------

template <class T>
constexpr double kHalfLeast = std::is_same_v<T, F16> ? 0x1p-25 : 0x1p-134;

// max |f''|, rounded up.
template <class Gate>
constexpr double kMostBend = std::is_same_v<Gate, gates::Silu> ? 0.5 : 0.8;

template <class T>
struct Kept {
  float z, slot;
};
template <class Gate, class T>
Kept<T> kept(float a, float b) {
  const float f = value_at<Gate>(a).f, z = widen(narrow<T>(mul_rn(f, b)));
  const auto k = keep_product(FloatOps{}, z, widen(narrow<T>(f)), b);
  EXPECT_TRUE(k.z == z || std::isnan(z)) << "what the next product reads";
  return {k.z, k.slot};
}
template <class Gate, class T>
GateGradients<float> gradients(float dz, float a, float b) {
  using Fit = ProductOf<Gate, T>;
  constexpr auto kTable = table_of<Fit>();
  const Kept<T> k = kept<Gate, T>(a, b);
  return product_gradients(FloatOps{}, Fit{}, kTable, dz, k.z, k.slot, a >= Fit::Forward::kXStar);
}

// By what da and db may be off, as product.h says it, where z is finite.
template <class Gate, class T>
void expect_bounded(float dz, float a, float b) {
  using Fit = ProductOf<Gate, T>;
  constexpr double kSingle = 0x1p-22, h = kHalfLeast<T>;  // the roundings of da and db to fp32
  constexpr double kMostSlope = 1.13;
  const double f = TruthOf<Gate>::f(a), slope = TruthOf<Gate>::slope(a), most = std::abs(dz),
               size = std::abs(b);
  const auto found = gradients<Gate, T>(dz, a, b);
  const Kept<T> k = kept<Gate, T>(a, b);
  const bool holds_f = k.z == 0 && std::signbit(k.z);
  if (holds_f) {
    EXPECT_LE(std::abs(f) * size, 1.01 * h) << std::hexfloat << a << " " << b;
    EXPECT_LE(size, std::sqrt(h) + h) << std::hexfloat << a << " " << b;
  }
  const double of_a = size * (Fit::kT + kSingle + (holds_f ? kMostSlope : 0)) +
                      std::sqrt(2.01 * h * size * kMostBend<Gate>),
               of_b = (Fit::kRelative + kSingle) * std::abs(f) + Fit::kAbsolute + (holds_f ? h : h / size);
  EXPECT_LE(std::abs(found.da - dz * static_cast<double>(b) * slope), most * of_a)
      << std::hexfloat << a << " " << b;
  EXPECT_LE(std::abs(found.db - dz * f), most * of_b) << std::hexfloat << a << " " << b;
}

template <class Gate, class T>
void expect_bounded_for_all() {
  SCOPED_TRACE(std::string(Gate::kActivation) + " " + Format<T>::kName);
  std::vector<float> factors{0.0f, -0.0f, 1.0f, -3.0f};
  for (int k = -24; k < 16; k += 3) factors.push_back(widen(narrow<T>(1.37f * std::ldexp(1.0f, k))));
  for (int k = -24; k < 0; ++k) factors.push_back(-widen(narrow<T>(std::ldexp(1.0f, k))));
  for (const T each : patterns::all<T>(1)) {
    const float a = widen(each);
    if (!std::isfinite(a)) continue;
    for (const float b : factors) {
      if (std::isinf(widen(narrow<T>(mul_rn(value_at<Gate>(a).f, b))))) continue;
      expect_bounded<Gate, T>(0.75f, a, b);
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(KeptProducts, GradientsAreWithinTheirBoundsForEveryA) {
  expect_bounded_for_all<gates::Silu, F16>();
  expect_bounded_for_all<gates::Silu, BF16>();
  expect_bounded_for_all<gates::GeluTanh, F16>();
  expect_bounded_for_all<gates::Gelu, BF16>();
}

// A zero-initialised b, an a of 0, both: as from a and b themselves, f(a) being of T.
TEST(KeptProducts, NoGradientOfAZeroIsLost) {
  for (const float zero : {0.0f, -0.0f}) {
    for (const float a : {-20.0f, -1.28125f, -0.5f, 0.25f, 3.0f}) {
      const auto found = gradients<gates::Silu, BF16>(1, a, zero);
      EXPECT_EQ(found.da, 0);
      EXPECT_EQ(found.db, widen(narrow<BF16>(value_at<gates::Silu>(a).f))) << a;
    }
    for (const float b : {-3.0f, 0x1p-100f, 1.0f}) {
      const auto found = gradients<gates::Silu, BF16>(1, zero, b);
      EXPECT_NEAR(found.da / b, 0.5, generated::SiluBf16Product::kT);
      EXPECT_EQ(found.db, 0);
    }
    const auto both = gradients<gates::Silu, BF16>(1, zero, zero);
    EXPECT_EQ(both.da, 0);
    EXPECT_EQ(both.db, 0);
  }
}

TEST(KeptProducts, WhatIsNoNumberStaysSo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [a, b] : {std::pair{kNan, 1.0f}, {1.0f, kNan}, {kNan, 0.0f}, {kInfinity, 0.0f}}) {
    const auto found = gradients<gates::Silu, F16>(1, a, b);
    EXPECT_TRUE(std::isnan(found.da) && std::isnan(found.db)) << a << " " << b;
  }
  // z overflows: no gradient of b that looks like one
  for (const float b : {60000.0f, -60000.0f}) {
    const auto found = gradients<gates::Silu, F16>(1, 3, b);
    EXPECT_EQ(found.db, kInfinity);
    EXPECT_NEAR(found.da / b, 1, 0.1);
  }
}

}  // namespace
}  // namespace outgrad::kernels
