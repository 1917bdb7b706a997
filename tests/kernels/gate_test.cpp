// The gates of gated MLPs and their loops on the CPU: f and f' against double precision, every schedule,
// layout and length against the definition, worded once more here.
#include "kernels/host/gated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/forwards.h"
#include "kernels/generated/gelu_bf16_product.h"
#include "kernels/generated/gelu_f16_product.h"
#include "kernels/generated/gelu_tanh_bf16_product.h"
#include "kernels/generated/gelu_tanh_f16_product.h"
#include "kernels/generated/gelu_tanh_forward.h"
#include "kernels/generated/silu_bf16_product.h"
#include "kernels/generated/silu_f16_product.h"
#include "kernels/generated/silu_forward.h"
#include "kernels/host/parallel.h"
#include "kernels/tuned.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

// --- Truth ---------------------------------------------------------------------------------------

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
GateValue<float> value_at(float a) {
  return evaluate_gate(FloatOps{}, Gate::kind(), detail::gate_tables<typename Gate::Kind, false>(), a);
}

// The errors at a in units of what gate.h says: at most 1.
template <class Gate>
double excess_at(float a) {
  const GateValue<float> at = value_at<Gate>(a);
  const double f = TruthOf<Gate>::f(a), slope = TruthOf<Gate>::slope(a);
  return std::max(std::abs(at.f - f) / (kGateError * (1 + std::abs(f))),
                  std::abs(at.slope - slope) / kGateSlopeError);
}

template <class Gate>
class Gates : public testing::Test {};
using All = testing::Types<gates::Silu, gates::GeluTanh, gates::Sigmoid, gates::Gelu>;
struct Names {
  template <class Gate>
  static std::string GetName(int) {
    return Gate::kActivation;
  }
};
TYPED_TEST_SUITE(Gates, All, Names);
template <class Gate>
class GatesExhaustive : public testing::Test {};
TYPED_TEST_SUITE(GatesExhaustive, All, Names);

template <class Gate, class T>
void expect_near_for_every_pattern() {
  for (const T x : patterns::all<T>(1)) {
    const float a = widen(x);
    if (std::isfinite(a)) {
      ASSERT_LE(excess_at<Gate>(a), 1) << Format<T>::kName << " " << std::hexfloat << a;
    }
  }
}

TYPED_TEST(Gates, AreNearForEveryNumberOf16Bits) {
  expect_near_for_every_pattern<TypeParam, F16>();
  expect_near_for_every_pattern<TypeParam, BF16>();
}

// Where errors are largest: the ends of cells of the fit, and what lies between; every 1009th float.
TYPED_TEST(Gates, AreNearForFloats) {
  for (u64 bits = 0; bits < u64{1} << 32; bits += 100'003) {
    const float a = float_of(static_cast<u32>(bits));
    if (std::isfinite(a)) {
      ASSERT_LE(excess_at<TypeParam>(a), 1) << std::hexfloat << a;
    }
  }
  for (float a = -20; a < 20; a += 0x1p-12f) ASSERT_LE(excess_at<TypeParam>(a), 1) << std::hexfloat << a;
}

TYPED_TEST(GatesExhaustive, AreNearForEveryFloat) {
  constexpr i64 kParts = 4096, kEach = (i64{1} << 32) / kParts;
  std::vector<double> most(kParts);
  parallel_for(kParts, 0, [&](i64 part) {
    double& found = most[static_cast<size_t>(part)];
    for (i64 k = part * kEach; k < (part + 1) * kEach; ++k) {
      const float a = float_of(static_cast<u32>(k));
      if (std::isfinite(a)) found = std::max(found, excess_at<TypeParam>(a));
    }
  });
  const double found = *std::ranges::max_element(most);
  EXPECT_LE(found, 1);
  testing::Test::RecordProperty("excess", std::to_string(found));
}

// The host runs both units as cubic ones.
TEST(GateKinds, ALinearUnitHasTheBitsOfACubicOne) {
  for (u64 bits = 0; bits < u64{1} << 32; bits += 10'007) {
    const float a = float_of(static_cast<u32>(bits));
    const auto one = evaluate_gate(FloatOps{}, gates::Silu::kind(), NoTail{}, a),
               other = evaluate_gate(FloatOps{}, gates::CubicUnit(gates::Silu::kind()), NoTail{}, a);
    if (!std::isnan(a)) {
      ASSERT_EQ(bits_of(one.f), bits_of(other.f)) << std::hexfloat << a;
      ASSERT_EQ(bits_of(one.slope), bits_of(other.slope)) << std::hexfloat << a;
    }
  }
}

TYPED_TEST(Gates, HaveTheirLimits) {
  const bool saturates = std::is_same_v<TypeParam, gates::Sigmoid>;
  const auto at = [](float a) { return value_at<TypeParam>(a); };
  EXPECT_TRUE(std::isnan(at(kNan).f) && std::isnan(at(kNan).slope));
  for (const float a : {kInfinity, 3.4e38f}) {
    EXPECT_EQ(at(a).f, saturates ? 1 : a);
    EXPECT_NEAR(at(a).slope, saturates ? 0 : 1, 1e-37);
  }
  for (const float a : {-kInfinity, -3.4e38f}) {
    EXPECT_EQ(at(a).f, 0);
    EXPECT_EQ(std::signbit(at(a).f), !saturates);
    EXPECT_NEAR(at(a).slope, 0, 1e-37);
  }
  if (!saturates) {
    EXPECT_EQ(bits_of(at(-0.0f).f), bits_of(-0.0f));
  }
}

TEST(GateList, IsOfActivations) {
  static_assert(is_gate(0) && is_gate(3) && !is_gate(5) && !is_gate(-1) && !is_gate(kActivations));
  static_assert(std::is_same_v<GateAt<3>, gates::Silu> && std::is_void_v<GateAt<5>>);
}

// --- What a product says of its factors ----------------------------------------------------------

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

// --- Loops ---------------------------------------------------------------------------------------

template <class T>
struct Pair {
  std::vector<T> dy, a, b, y, da, db;
};

// By the definition, element by element, of a matrix [rows, n] whose a and b lie `stride` apart.
template <class Gate, class T>
Pair<T> by_definition(const Pair<T>& given, const GatedShape& shape) {
  Pair<T> result = given;
  for (i64 row = 0; row < shape.rows; ++row) {
    for (i64 j = 0; j < shape.n; ++j) {
      const auto at = static_cast<size_t>(row * shape.stride + j),
                 dense = static_cast<size_t>(row * shape.n + j);
      const GateValue<float> gate = value_at<Gate>(widen(given.a[at]));
      const float dy = widen(given.dy[dense]), b = widen(given.b[at]);
      result.y[dense] = narrow<T>(mul_rn(gate.f, b));
      result.da[at] = narrow<T>(mul_rn(mul_rn(dy, b), gate.slope));
      result.db[at] = narrow<T>(mul_rn(dy, gate.f));
    }
  }
  return result;
}

template <class T>
Pair<T> random_pair(i64 rows, i64 n, i64 stride) {
  patterns::Random random(static_cast<u64>(rows * 1000 + n));
  const auto values = [&](i64 count, float scale) {
    std::vector<T> all(static_cast<size_t>(count));
    for (T& each : all) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * scale);
    if (!all.empty()) all[random.next() % all.size()] = narrow<T>(kInfinity);
    if (!all.empty()) all[random.next() % all.size()] = narrow<T>(kNan);
    return all;
  };
  const i64 span = rows * stride;
  return {values(rows * n, 0x1p-30f), values(span, 0x1p-27f), values(span, 0x1p-30f),
          values(rows * n, 0x1p-30f), values(span, 0x1p-30f), values(span, 0x1p-30f)};
}

template <class Gate, class T, CpuSchedule S>
void expect_loops(i64 rows, i64 n, i64 stride) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    SCOPED_TRACE(std::string(Gate::kActivation) + " " + Format<T>::kName + " [" + std::to_string(rows) +
                 ", " + std::to_string(n) + "] of rows of " + std::to_string(stride) + ", vectors of " +
                 std::to_string(S.vector_bits));
    const Pair<T> given = random_pair<T>(rows, n, stride);
    const GatedShape shape{rows, n, stride};
    const Pair<T> expected = by_definition<Gate>(given, shape);
    Pair<T> found = given;
    gated_forward<Gate, T, S>(found.a.data(), found.b.data(), shape, found.y.data());
    EXPECT_EQ(patterns::first_difference(found.y, expected.y), -1);
    std::ranges::fill(found.y, narrow<T>(7));
    gated_backward<Gate, T, S>(found.dy.data(), found.a.data(), found.b.data(), shape, found.da.data(),
                               found.db.data(), nullptr);
    EXPECT_EQ(patterns::first_difference(found.da, expected.da), -1);
    EXPECT_EQ(patterns::first_difference(found.db, expected.db), -1);
    gated_backward<Gate, T, S>(found.dy.data(), found.a.data(), found.b.data(), shape, found.a.data(),
                               found.b.data(), found.dy.data());
    if (stride == n) {
      EXPECT_EQ(patterns::first_difference(found.a, expected.da), -1);
      EXPECT_EQ(patterns::first_difference(found.b, expected.db), -1);
    }
    EXPECT_EQ(patterns::first_difference(found.dy, expected.y), -1);
  }
}

template <class T>
class GatedLoops : public testing::Test {};
TYPED_TEST_SUITE(GatedLoops, TestedFormats);

constexpr CpuSchedule kSmallBlocks{.vector_bits = 256, .block_elements = 1024, .streaming_stores = true};
constexpr CpuSchedule kWide{.vector_bits = 512, .unroll = 4, .streaming_stores = true};

TYPED_TEST(GatedLoops, EveryScheduleLayoutAndLengthIsTheDefinition) {
  using T = TypeParam;
  const auto expect = [](i64 rows, i64 n, i64 stride) {
    expect_loops<gates::Silu, T, CpuSchedule{}>(rows, n, stride);
    expect_loops<gates::Silu, T, kSmallBlocks>(rows, n, stride);
    expect_loops<gates::Silu, T, kWide>(rows, n, stride);
  };
  for (const i64 n : {1, 7, 8, 15, 16, 17, 31, 32, 33, 100, 1000, 1024, 1025, 5000}) {
    expect(1, n, n);
    expect(3, n, n);
    expect(3, n, 2 * n);
    expect(2, n, n + 5);
  }
  expect(0, 5, 5);
}

TYPED_TEST(GatedLoops, EveryGateIsTheDefinition) {
  using T = TypeParam;
  const auto expect = []<class Gate>(Gate) {
    expect_loops<Gate, T, CpuSchedule{}>(5, 333, 666);
    expect_loops<Gate, T, kSmallBlocks>(5, 333, 666);
    expect_loops<Gate, T, kWide>(5, 333, 666);
  };
  expect(gates::GeluTanh{}), expect(gates::Sigmoid{}), expect(gates::Gelu{});
}

// Past the cache: what is larger than that, and aligned.
TYPED_TEST(GatedLoops, LargeArraysAreTheDefinition) {
  using T = TypeParam;
  expect_loops<gates::Silu, T, kSmallBlocks>(1, (i64{1} << 20) + 3, (i64{1} << 20) + 3);
  expect_loops<gates::Silu, T, kSmallBlocks>(512, 2048, 4096);
}

}  // namespace
}  // namespace outgrad::kernels
