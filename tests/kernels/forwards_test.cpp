// The forwards of kernels/forwards.h against the second witness: every x of a 16-bit format, samples of f32
// (all of it in the exhaustive form), and every way to run them against the scalar one.
#include "kernels/host/forwards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "kernels/activations.h"
#include "tests/kernels/patterns.h"
#include "validation/exact/oracle.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::kernels {
namespace {

template <class T>
constexpr validation::FloatFormat kFormat = sizeof(T) == 4           ? validation::kF32
                                            : std::is_same_v<T, F16> ? validation::kF16
                                                                     : validation::kBf16;

const validation::SweptActivation& witness(const char* activation) {
  const validation::SweptActivation* const found = validation::swept_activation(activation);
  if (found == nullptr) throw std::runtime_error(activation);
  return *found;
}

template <class F>
class Forwards : public testing::Test {};

template <class List>
struct TypesOf;
template <class... F>
struct TypesOf<ForwardList<F...>> {
  using Type = testing::Types<F...>;
};
struct Names {
  template <class F>
  static std::string GetName(int) {
    return F::kActivation;
  }
};
TYPED_TEST_SUITE(Forwards, TypesOf<ActivationForwards>::Type, Names);

// --- Values --------------------------------------------------------------------------------------

TYPED_TEST(Forwards, TheMaskTurnsAtTheMinimum) {
  const validation::SweptActivation& of = witness(TypeParam::kActivation);
  ASSERT_EQ(of.masked(), TypeParam::kMasked);
  if constexpr (TypeParam::kMasked) {
    EXPECT_GT(double{TypeParam::kXStar}, of.x_star);
    EXPECT_LE(double{std::nextafter(TypeParam::kXStar, -1e9f)}, of.x_star);
  }
}

template <class F, class T>
void expect_correctly_rounded() {
  const auto oracle = witness(F::kActivation).oracle();
  int count = 0;
  for (const T x : patterns::all<T>()) {
    const double wide = widen(x);
    if (!std::isfinite(wide)) continue;
    const double want = oracle->value(wide, kFormat<T>), got = widen(forward_of<F>(x));
    ASSERT_TRUE(got == want && std::signbit(got) == std::signbit(want))
        << F::kActivation << "(" << wide << ") is " << want << ", not " << got;
    ++count;
  }
  EXPECT_GT(count, 60'000);
}

TYPED_TEST(Forwards, EveryValueOf16BitsIsCorrectlyRounded) {
  expect_correctly_rounded<TypeParam, F16>();
  expect_correctly_rounded<TypeParam, BF16>();
}

TYPED_TEST(Forwards, LimitsAndNans) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const validation::SweptActivation& of = witness(TypeParam::kActivation);
  const auto bits = [](float value) { return bits_of(value); };
  const float left = static_cast<float>(of.value_limit(false)),
              right = static_cast<float>(of.value_limit(true));
  EXPECT_EQ(bits(forward_of<TypeParam>(-kInfinity)), bits(TypeParam::kMasked ? -0.0f : left));
  EXPECT_EQ(forward_of<TypeParam>(kInfinity), right);
  EXPECT_EQ(bits(forward_of<TypeParam>(-std::numeric_limits<float>::max())),
            bits(TypeParam::kMasked ? -0.0f : left));
  EXPECT_TRUE(std::isnan(forward_of<TypeParam>(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(forward_of<TypeParam>(BF16{0xffc1}).bits, kCanonicalNanBf16);
  EXPECT_EQ(forward_of<TypeParam>(F16{0x7c00}).bits, narrow<F16>(right).bits);
}

// The error that the head of kernels/forwards.h derives.
TYPED_TEST(Forwards, DoublesKeepTheDerivedError) {
  const validation::SweptActivation& of = witness(TypeParam::kActivation);
  std::vector<float> x = patterns::f32_patterns(200);
  std::erase_if(x, [](float value) { return !std::isfinite(value); });
  for (int i = 0; i < 200'000; ++i) x.push_back(-112.0f + 0.001f * static_cast<float>(i));
  const size_t n = x.size();
  std::vector<double> value(n), low(n), high(n), slope(n);
  of.reference().evaluate(x.data(), value.data(), low.data(), high.data(), slope.data(), static_cast<i64>(n));
  double largest = 0;
  for (size_t i = 0; i < n; ++i) {
    if (std::fabs(value[i]) < 0x1p-150) continue;  // rounds to zero
    largest = std::max(
        largest, std::fabs(TypeParam::value(DoubleOps{}, double{x[i]}) - value[i]) / std::fabs(value[i]));
  }
  EXPECT_LE(largest, kForwardError + validation::Reference::kValueBound);
  EXPECT_GT(largest, 0);
  testing::Test::RecordProperty("largest_relative_error_log2", std::to_string(std::log2(largest)));
}

// Whether a midpoint of two floats lies within kForwardError of the value.
bool near_a_midpoint(double value) {
  const double magnitude = std::fabs(value);
  const double quantum = std::max(0x1p-149, std::ldexp(1.0, std::ilogb(std::max(magnitude, 0x1p-200)) - 23));
  const double units = magnitude / quantum;  // below 2^24, with 29 bits below the point at most: exact
  return std::fabs(units - std::floor(units) - 0.5) <= 2 * kForwardError * units;
}

// How many of the floats with these bits are not correctly rounded. Where no midpoint is near the value, the
// error that was derived decides.
template <class F>
i64 misrounded(u64 begin, u64 end) {
  const auto oracle = witness(F::kActivation).oracle();
  i64 count = 0;
  for (u64 bits = begin; bits < end; ++bits) {
    const float x = float_of(static_cast<u32>(bits));
    if (!std::isfinite(x)) continue;
    const double value = F::value(DoubleOps{}, double{x});
    if (!near_a_midpoint(value)) continue;
    count += static_cast<double>(static_cast<float>(value)) != oracle->value(x, validation::kF32);
  }
  return count;
}

template <class F>
class ForwardsExhaustive : public testing::Test {};
TYPED_TEST_SUITE(ForwardsExhaustive, TypesOf<ActivationForwards>::Type, Names);

// All 2^32 floats. The counts are what was found, by activation, in the catalogue's order; gelu has its
// sweeps.
TYPED_TEST(ForwardsExhaustive, FloatsThatAreNotCorrectlyRounded) {
  constexpr i64 kFound[] = {0, 2, 2, 15, 10, 1, 0, 66, 9, 0};
  const size_t index = static_cast<size_t>(
      std::find_if(std::begin(kActivationNames), std::end(kActivationNames),
                   [](const char* name) { return name == std::string(TypeParam::kActivation); }) -
      std::begin(kActivationNames));
  const u64 threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<i64> counts(threads);
  {
    std::vector<std::jthread> workers;
    for (u64 k = 0; k < threads; ++k) {
      workers.emplace_back(
          [&, k] { counts[k] = misrounded<TypeParam>((k << 32) / threads, ((k + 1) << 32) / threads); });
    }
  }
  i64 count = 0;
  for (const i64 part : counts) count += part;
  EXPECT_EQ(count, kFound[index]) << TypeParam::kActivation;
}

// --- Arrays --------------------------------------------------------------------------------------

template <class F, class T, int kVectorBits>
void expect_scalar_bits() {
  const std::vector<T> all = patterns::all<T>();
  for (const size_t size : {all.size(), size_t{0}, size_t{1}, size_t{31}, size_t{33}, size_t{2000}}) {
    const std::vector<T> x(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
    std::vector<T> want, y(size), in_place = x;
    std::vector<u32> want_mask((size + 31) / 32), mask((size + 31) / 32 + 1, 0x5eedca5eu);
    for (size_t i = 0; i < size; ++i) {
      want.push_back(forward_of<F>(x[i]));
      if constexpr (F::kMasked) want_mask[i / 32] |= static_cast<u32>(widen(x[i]) >= F::kXStar) << (i % 32);
    }
    u32* const words = F::kMasked ? mask.data() : nullptr;
    activation_forward<F, T, CpuSchedule{.vector_bits = kVectorBits, .block_elements = 1024}>(
        x.data(), y.data(), words, static_cast<i64>(size));
    EXPECT_EQ(patterns::first_difference(want, y), -1) << F::kActivation << " " << size;
    if constexpr (F::kMasked) {
      EXPECT_TRUE(std::equal(want_mask.begin(), want_mask.end(), mask.begin()))
          << F::kActivation << " " << size;
    }
    EXPECT_EQ(mask.back(), 0x5eedca5eu);
    activation_forward<F, T, CpuSchedule{.vector_bits = kVectorBits, .block_elements = 1024}>(
        in_place.data(), in_place.data(), words, static_cast<i64>(size));
    EXPECT_EQ(patterns::first_difference(want, in_place), -1) << F::kActivation << " in place";
    if constexpr (F::kMasked) {
      EXPECT_TRUE(std::equal(want_mask.begin(), want_mask.end(), mask.begin()))
          << F::kActivation << " in place";
    }
  }
}

TYPED_TEST(Forwards, EveryScheduleGivesTheScalarBits) {
  expect_scalar_bits<TypeParam, float, 0>();
  expect_scalar_bits<TypeParam, float, std::min(256, kBestVectorBits)>();
  expect_scalar_bits<TypeParam, float, kBestVectorBits>();
  expect_scalar_bits<TypeParam, F16, 0>();
  expect_scalar_bits<TypeParam, F16, std::min(256, kBestVectorBits)>();
  expect_scalar_bits<TypeParam, F16, kBestVectorBits>();
  expect_scalar_bits<TypeParam, BF16, 0>();
  expect_scalar_bits<TypeParam, BF16, std::min(256, kBestVectorBits)>();
  expect_scalar_bits<TypeParam, BF16, kBestVectorBits>();
}

TEST(RoundedToOdd, RoundsOnceInTheEnd) {
  EXPECT_EQ(rounded_to_odd(1.0), 1.0f);
  EXPECT_EQ(rounded_to_odd(1.0 + 0x1p-40), std::nextafter(1.0f, 2.0f));
  EXPECT_EQ(rounded_to_odd(-1.0 - 0x1p-40), std::nextafter(-1.0f, -2.0f));
  EXPECT_EQ(rounded_to_odd(1.0 - 0x1p-40), std::nextafter(1.0f, 0.0f));
  EXPECT_EQ(rounded_to_odd(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(rounded_to_odd(-1e-300), -std::numeric_limits<float>::denorm_min());
  // Just above a midpoint of two bf16: rounding to f32 first would lose the side.
  EXPECT_EQ(narrow<BF16>(rounded_to_odd(1.0 + 0x1p-8 + 0x1p-40)).bits, 0x3f81);
  EXPECT_EQ(narrow<BF16>(static_cast<float>(1.0 + 0x1p-8 + 0x1p-40)).bits, 0x3f80);
}

}  // namespace
}  // namespace outgrad::kernels
