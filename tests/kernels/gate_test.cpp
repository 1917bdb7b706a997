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

#include "kernels/host/parallel.h"
#include "kernels/tuned.h"
#include "tests/kernels/gate_truth.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

// The errors at a in units of what gate.h says: at most 1.
template <class Gate>
double excess_at(float a) {
  const ValueAndSlope<float> at = value_at<Gate>(a);
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

TEST(GateKinds, ALinearUnitHasTheBitsOfACubicOne) {
  for (u64 bits = 0; bits < u64{1} << 32; bits += 10'007) {
    const float a = float_of(static_cast<u32>(bits));
    const auto one = evaluate_gate(FloatOps{}, gates::Silu::kind(), NoTail{}, a),
               other = evaluate_gate(FloatOps{}, gates::CubicUnit{1, 0}, NoTail{}, a);
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
      const ValueAndSlope<float> gate = value_at<Gate>(widen(given.a[at]));
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

// --- From codes of 8 bits ------------------------------------------------------------------------

// What is kept of [rows, n], dense.
template <class T>
struct Kept {
  std::vector<u8> codes[2], blocks[2];
  float scales[2] = {};

  explicit Kept(i64 elements) {
    for (int k = 0; k < 2; ++k)
      codes[k].resize(static_cast<size_t>(elements)),
          blocks[k].resize(static_cast<size_t>((elements + 31) / 32));
  }
  GatedCodes<T> as(const TensorFormat<T>& format) {
    const auto scale = [&](int k) -> void* {
      return format.scale != nullptr ? static_cast<void*>(&scales[k]) : blocks[k].data();
    };
    return {&format, codes[0].data(), scale(0), codes[1].data(), scale(1)};
  }
};

template <class T>
std::vector<T> dense_of(const std::vector<T>& all, const GatedShape& shape) {
  std::vector<T> result;
  for (i64 row = 0; row < shape.rows; ++row)
    for (i64 j = 0; j < shape.n; ++j) result.push_back(all[static_cast<size_t>(row * shape.stride + j)]);
  return result;
}

// The forward's y and the codes are those of the loops by themselves, and the backward's results those of
// what the codes stand for.
template <class Gate, class T, CpuSchedule S>
void expect_from_codes(const TensorFormat<T>& format, i64 rows, i64 n, i64 stride) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    SCOPED_TRACE(std::string(Gate::kActivation) + " [" + std::to_string(rows) + ", " + std::to_string(n) +
                 "] of rows of " + std::to_string(stride) + ", vectors of " + std::to_string(S.vector_bits));
    const Pair<T> given = random_pair<T>(rows, n, stride);
    const GatedShape shape{rows, n, stride}, dense{rows, n, n};
    Pair<T> found = given, expected = given, read = given;
    Kept<T> kept(rows * n), by_themselves(rows * n);
    const GatedCodes<T> to = kept.as(format), own = by_themselves.as(format);
    gated_forward<Gate, T, S>(given.a.data(), given.b.data(), shape, expected.y.data());
    gated_forward<Gate, T, S>(given.a.data(), given.b.data(), shape, found.y.data(), &to);
    EXPECT_EQ(patterns::first_difference(found.y, expected.y), -1);

    for (const bool second : {false, true}) {
      const std::vector<T> all = dense_of(second ? given.b : given.a, shape);
      void *const codes = second ? own.codes_of_b : own.codes_of_a, *const scales = second ? own.scales_of_b
                                                                                           : own.scales_of_a;
      if (format.scale != nullptr)
        *static_cast<float*>(scales) =
            format.scale(detail::largest_magnitude(all.data(), rows * n), kLeastOfTensors);
      format.encode(all.data(), codes, scales, 0, rows * n);
      std::vector<T>& decoded = second ? read.b : read.a;
      decoded.resize(all.size());
      format.decode(codes, scales, 0, decoded.data(), rows * n);
      EXPECT_EQ(kept.codes[second], by_themselves.codes[second]);
      EXPECT_EQ(kept.blocks[second], by_themselves.blocks[second]);
      EXPECT_EQ(kept.scales[second], by_themselves.scales[second]);
    }

    gated_backward<Gate, T, S>(given.dy.data(), read.a.data(), read.b.data(), dense, expected.da.data(),
                               expected.db.data(), expected.y.data());
    gated_backward<Gate, T, S>(given.dy.data(), nullptr, nullptr, shape, found.da.data(), found.db.data(),
                               found.y.data(), &to);
    EXPECT_EQ(patterns::first_difference(dense_of(found.da, shape), dense_of(expected.da, dense)), -1);
    EXPECT_EQ(patterns::first_difference(dense_of(found.db, shape), dense_of(expected.db, dense)), -1);
    EXPECT_EQ(patterns::first_difference(found.y, expected.y), -1);
  }
}

TYPED_TEST(GatedLoops, FromCodesAreThoseOfWhatTheyStandFor) {
  using T = TypeParam;
  const auto expect = []<class Gate>(Gate, i64 rows, i64 n, i64 stride) {
    for (const TensorFormat<T>* format :
         {&kTensorAtScale<F8E4M3, T>, &kTensorAtScale<F8E5M2, T>, &kTensorInBlocks<T>}) {
      if (format->scale == nullptr && stride != n && n % 32 != 0) continue;
      expect_from_codes<Gate, T, CpuSchedule{}>(*format, rows, n, stride);
      expect_from_codes<Gate, T, kSmallBlocks>(*format, rows, n, stride);
      expect_from_codes<Gate, T, kWide>(*format, rows, n, stride);
    }
  };
  for (const i64 n : {1, 31, 32, 100, 1024, 1056, 5000}) {
    expect(gates::Silu{}, 1, n, n);
    expect(gates::Silu{}, 3, n, n);
    expect(gates::Silu{}, 3, n, 2 * n);
  }
  expect(gates::Silu{}, 0, 64, 64);
  expect(gates::GeluTanh{}, 5, 352, 704), expect(gates::Sigmoid{}, 5, 352, 704);
  expect(gates::Gelu{}, 5, 352, 704), expect(gates::Gelu{}, 70, 1024, 2048);
}

// Past the cache: what is larger than that, and aligned.
TYPED_TEST(GatedLoops, LargeArraysAreTheDefinition) {
  using T = TypeParam;
  expect_loops<gates::Silu, T, kSmallBlocks>(1, (i64{1} << 20) + 3, (i64{1} << 20) + 3);
  expect_loops<gates::Silu, T, kSmallBlocks>(512, 2048, 4096);
  expect_loops<gates::Gelu, T, kSmallBlocks>(1, (i64{1} << 16) + 3, (i64{1} << 16) + 3);
}

}  // namespace
}  // namespace outgrad::kernels
