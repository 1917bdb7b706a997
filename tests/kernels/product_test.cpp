// What is kept of a gated pair beside z, and the gradients from it: every a of 16 bits with every significand
// of b, and factors whose product is 0, subnormal or too large, against double precision; the loops over
// arrays against one element after the other.
#include "kernels/host/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/host/parallel.h"
#include "kernels/tuned.h"
#include "tests/kernels/gate_truth.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

template <class Gate, class T>
constexpr float kXStarOf = ProductFit<Gate, T>::Forward::kXStar;

// The errors of s and of g(s, m) at their largest, in units of what the header says.
struct Quotients {
  double ball = 0, slope = 0;
};

// All finite a of T with all significands of b, or one in `step`. A power of two that multiplies b multiplies
// z, and s = z / b stays, as long as z and b are normal: b is scaled to make z about 1, as far as the format
// reaches. Its sign is z's.
template <class Gate, class T>
Quotients quotients_of_all(int step) {
  using Fit = typename ProductFit<Gate, T>::Type;
  static constexpr auto kTable = table_of<Fit>();
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
      const float g = evaluate_backward(FloatOps{}, Fit{}, kTable, s, a >= kXStarOf<Gate, T>);
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
  using Fit = typename ProductFit<Gate, T>::Type;
  static constexpr auto kTable = table_of<Fit>();
  const Kept<T> k = kept<Gate, T>(a, b);
  return product_gradients(FloatOps{}, Fit{}, kTable, dz, k.z, k.slot, a >= kXStarOf<Gate, T>);
}

// By what da and db may be off, as product.h says it, where z is finite.
template <class Gate, class T>
void expect_bounded(float dz, float a, float b) {
  using Fit = typename ProductFit<Gate, T>::Type;
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

// --- Loops ---------------------------------------------------------------------------------------

template <class T>
struct Arrays {
  std::vector<T> a, b, dz, z, slot, da, db;
  std::vector<u32> mask;
};

template <class T>
Arrays<T> random_arrays(const GatedShape& shape) {
  patterns::Random random(static_cast<u64>(shape.rows * 1000 + shape.n));
  const i64 elements = shape.rows * shape.n, span = shape.rows * shape.stride;
  const auto values = [&](i64 count, float scale) {
    constexpr float kOthers[] = {0.0f, -0.0f, 0x1p-24f, std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN()};
    std::vector<T> all(static_cast<size_t>(count));
    for (T& each : all) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * scale);
    for (const float other : kOthers) {
      if (!all.empty()) all[random.next() % all.size()] = narrow<T>(other);
    }
    return all;
  };
  const std::vector<T> nothing(static_cast<size_t>(elements), narrow<T>(7)),
      nowhere(static_cast<size_t>(span), narrow<T>(7));
  return {values(span, 0x1p-27f),
          values(span, 0x1p-30f),
          values(elements, 0x1p-30f),
          nothing,
          nothing,
          nowhere,
          nowhere,
          std::vector<u32>(static_cast<size_t>((elements + 31) / 32), ~u32{0})};
}

template <class Gate, class T>
Arrays<T> by_definition(const Arrays<T>& given, const GatedShape& shape) {
  using Fit = typename ProductFit<Gate, T>::Type;
  static constexpr auto kTable = table_of<Fit>();
  Arrays<T> result = given;
  std::ranges::fill(result.mask, 0);
  for (i64 dense = 0; dense < shape.rows * shape.n; ++dense) {
    const auto i = static_cast<size_t>(dense),
               at = static_cast<size_t>(dense / shape.n * shape.stride + dense % shape.n);
    const float a = widen(given.a[at]), b = widen(given.b[at]), f = value_at<Gate>(a).f;
    const bool m = a >= kXStarOf<Gate, T>;
    const auto kept = keep_product(FloatOps{}, widen(narrow<T>(mul_rn(f, b))), widen(narrow<T>(f)), b);
    const auto gradients =
        product_gradients(FloatOps{}, Fit{}, kTable, widen(given.dz[i]), kept.z, kept.slot, m);
    result.z[i] = narrow<T>(kept.z), result.slot[i] = narrow<T>(kept.slot);
    result.mask[i / 32] |= u32{m} << i % 32;
    result.da[at] = narrow<T>(gradients.da), result.db[at] = narrow<T>(gradients.db);
  }
  return result;
}

template <class Gate, class T, CpuSchedule S>
void expect_loops(const GatedShape& shape) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    SCOPED_TRACE(std::string(Gate::kActivation) + " " + Format<T>::kName + " [" + std::to_string(shape.rows) +
                 ", " + std::to_string(shape.n) + "] of rows of " + std::to_string(shape.stride) +
                 ", vectors of " + std::to_string(S.vector_bits));
    const Arrays<T> given = random_arrays<T>(shape), expected = by_definition<Gate>(given, shape);
    Arrays<T> found = given;
    product_forward<Gate, T, S>(found.a.data(), found.b.data(), shape, found.z.data(), found.slot.data(),
                                found.mask.data());
    EXPECT_EQ(patterns::first_difference(found.z, expected.z), -1);
    EXPECT_EQ(patterns::first_difference(found.slot, expected.slot), -1);
    EXPECT_EQ(found.mask, expected.mask);
    product_backward<Gate, T, S>(found.dz.data(), found.z.data(), found.slot.data(), found.mask.data(), shape,
                                 found.da.data(), found.db.data());
    EXPECT_EQ(patterns::first_difference(found.da, expected.da), -1);
    EXPECT_EQ(patterns::first_difference(found.db, expected.db), -1);
    if (shape.stride != shape.n) return;
    product_forward<Gate, T, S>(found.a.data(), found.b.data(), shape, found.a.data(), found.b.data(),
                                found.mask.data());
    EXPECT_EQ(patterns::first_difference(found.a, expected.z), -1);
    EXPECT_EQ(patterns::first_difference(found.b, expected.slot), -1);
    product_backward<Gate, T, S>(found.dz.data(), found.a.data(), found.b.data(), found.mask.data(), shape,
                                 found.dz.data(), found.b.data());
    EXPECT_EQ(patterns::first_difference(found.dz, expected.da), -1);
    EXPECT_EQ(patterns::first_difference(found.b, expected.db), -1);
  }
}

constexpr CpuSchedule kSmallBlocks{.vector_bits = 256, .block_elements = 1024, .streaming_stores = true};
constexpr CpuSchedule kWide{.vector_bits = 512, .unroll = 4, .streaming_stores = true};

template <class T>
class ProductLoops : public testing::Test {};
using SixteenBits = testing::Types<F16, BF16>;
TYPED_TEST_SUITE(ProductLoops, SixteenBits);

TYPED_TEST(ProductLoops, EveryScheduleLayoutAndLengthIsTheDefinition) {
  using T = TypeParam;
  const auto expect = [](i64 rows, i64 n, i64 stride) {
    expect_loops<gates::Silu, T, CpuSchedule{}>({rows, n, stride});
    expect_loops<gates::Silu, T, kSmallBlocks>({rows, n, stride});
    expect_loops<gates::Silu, T, kWide>({rows, n, stride});
  };
  for (const i64 n : {1, 7, 8, 15, 16, 17, 31, 32, 33, 100, 1000, 1024, 1025, 5000}) {
    expect(1, n, n);
    expect(3, n, n);
    expect(3, n, 2 * n);
    expect(2, n, n + 5);
  }
  expect(0, 5, 5);
}

TYPED_TEST(ProductLoops, EveryGateIsTheDefinition) {
  using T = TypeParam;
  const auto expect = []<class Gate>(Gate) {
    expect_loops<Gate, T, CpuSchedule{}>({5, 333, 666});
    expect_loops<Gate, T, kSmallBlocks>({5, 333, 666});
    expect_loops<Gate, T, kWide>({5, 333, 666});
  };
  expect(gates::GeluTanh{}), expect(gates::Gelu{});
}

// Past the cache: what is larger than that, and aligned.
TYPED_TEST(ProductLoops, LargeArraysAreTheDefinition) {
  constexpr i64 n = (i64{1} << 20) + 3;
  expect_loops<gates::Silu, TypeParam, kSmallBlocks>({1, n, n});
}

TEST(ProductFits, AreThoseOfGatesInSixteenBits) {
  static_assert(has_product(0) && has_product(1) && has_product(3));
  static_assert(!has_product(7) && !has_product(5) && !has_product(-1) && !has_product(kActivations));
  static_assert(!kHasProduct<gates::Silu, float> && !kHasProduct<gates::Sigmoid, BF16>);
}

}  // namespace
}  // namespace outgrad::kernels
