// The forwards of kernels/forwards.h against the second witness: every x of a 16-bit format; those of f32,
// which are fits, against them (all x in the exhaustive form); every way to run them against the scalar one.
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

// Of every x that vectors take to a fit's rows about 0, where bf16's subnormals are far.
template <class F, class T>
void expect_near_rows_round_correctly() {
  if constexpr (kHasForwardFit<F, T>) {
    using Near = NearRows<ForwardFitOf<F, T>>;
    static constexpr auto kTable = Near::table();
    int count = 0;
    for (const T x : patterns::all<T>()) {
      const float z = widen(x), w = Near::kClamps ? std::min(z, Near::kXMax) : z;
      const float q = forward_index(FloatOps{}, Near{}, w);
      if (!(q >= 0x1p23f && q < 0x1p23f + Near::kRows && std::fabs(z) >= 0x1p-100f)) continue;
      ASSERT_EQ(narrow<T>(evaluate_near(FloatOps{}, Near{}, kTable, q, w, z)).bits, forward_of<F>(x).bits)
          << F::kActivation << "(" << z << ")";
      ++count;
    }
    EXPECT_GT(count, 20'000);
  }
}

TYPED_TEST(Forwards, TheRowsAboutZeroRoundCorrectly) {
  expect_near_rows_round_correctly<TypeParam, F16>();
  expect_near_rows_round_correctly<TypeParam, BF16>();
}

TYPED_TEST(Forwards, LimitsAndNans) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const validation::SweptActivation& of = witness(TypeParam::kActivation);
  const auto bits = [](float value) { return bits_of(value); };
  const float left = static_cast<float>(of.value_limit(false)),
              right = static_cast<float>(of.value_limit(true));
  EXPECT_EQ(bits(forward_of<TypeParam>(-kInfinity)), bits(TypeParam::kMasked ? -0.0f : left));
  EXPECT_EQ(forward_of<TypeParam>(kInfinity), right);
  const bool vanishes = TypeParam::value(DoubleOps{}, 0.0) == 0;
  for (const float zero : {0.0f, -0.0f}) {
    EXPECT_EQ(bits(forward_of<TypeParam>(zero)), bits(vanishes ? zero : forward_of<TypeParam>(0.0f)));
    EXPECT_EQ(std::signbit(widen(forward_of<TypeParam>(narrow<F16>(zero)))), vanishes && std::signbit(zero));
  }
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

// --- f32, by fits --------------------------------------------------------------------------------

// The largest error of f32 forwards in ulp of f(x), right of the tail and in it. 2^-149 is an ulp of what is
// below the least normal float.
struct F32Errors {
  double core = 0, tail = 0;
  i64 wrong_signs = 0;

  template <class F>
  void see(float x) {
    using Fit = ForwardFitOf<F, float>;
    if (!std::isfinite(x)) return;
    const float y = forward_of<F>(x);
    const double want = F::value(DoubleOps{}, double{x});
    wrong_signs += std::signbit(y) != std::signbit(x == 0 && want == 0 ? x : want);
    const int exponent = std::max(std::ilogb(want), -126);
    const double error = std::fabs(double{y} - want) * std::ldexp(1.0, 23 - exponent);
    bool in_tail = false;
    if constexpr (requires { Fit::kTailX; }) in_tail = x < Fit::kTailX;
    double& most = in_tail ? tail : core;
    most = std::max(most, error);
  }
  void join(const F32Errors& other) {
    core = std::max(core, other.core);
    tail = std::max(tail, other.tail);
    wrong_signs += other.wrong_signs;
  }
};

template <class F>
void expect_within_an_ulp(const F32Errors& errors) {
  constexpr bool kSteep = same_text(F::kActivation, "gelu_tanh");  // its tail falls fastest
  EXPECT_LE(errors.core, 1 + 0x1p-20) << F::kActivation;  // mish, for an x of 2^-125
  EXPECT_LE(errors.tail, kSteep ? 1.2 : 1.0) << F::kActivation;
  EXPECT_GE(errors.core, 0.5) << F::kActivation;
  EXPECT_EQ(errors.wrong_signs, 0) << F::kActivation;
}

// The x next to where a fit changes rows.
template <class Fit>
std::vector<float> row_ends() {
  std::vector<float> all;
  const auto add = [&](float scale, float bias, int rows) {
    const float first = bias - 0x1p23f - static_cast<float>(rows);
    for (int row = -1; row <= 2 * rows; ++row) {
      float x = (static_cast<float>(row) - 0.5f - first) / scale;
      for (int k = 0; k < 4; ++k) x = std::nextafter(x, -1e30f);
      for (int k = 0; k < 8; ++k, x = std::nextafter(x, 1e30f)) all.push_back(x);
    }
  };
  add(Fit::kIndexScale, Fit::kIndexBias, Fit::kRows);
  if constexpr (requires { Fit::kTailX; }) {
    add(Fit::kTailIndexScale, Fit::kTailIndexBias, Fit::kTailRows);
    for (const float x : {Fit::kTailX, Fit::kXMin}) {
      all.push_back(std::nextafter(x, -1e30f));
      all.push_back(x);
    }
  }
  return all;
}

TYPED_TEST(Forwards, F32IsWithinAnUlp) {
  F32Errors errors;
  constexpr u64 kStep = 4099;  // a prime: all exponents, and fractions of all kinds
  for (u64 bits = 0; bits < u64{1} << 32; bits += kStep)
    errors.see<TypeParam>(float_of(static_cast<u32>(bits)));
  for (const float x : row_ends<ForwardFitOf<TypeParam, float>>()) errors.see<TypeParam>(x);
  expect_within_an_ulp<TypeParam>(errors);
}

template <class F>
class ForwardsExhaustive : public testing::Test {};
TYPED_TEST_SUITE(ForwardsExhaustive, TypesOf<ActivationForwards>::Type, Names);

TYPED_TEST(ForwardsExhaustive, F32IsWithinAnUlp) {
  const u64 threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<F32Errors> parts(threads);
  {
    std::vector<std::jthread> workers;
    for (u64 k = 0; k < threads; ++k) {
      workers.emplace_back([&, k] {
        for (u64 bits = (k << 32) / threads; bits < ((k + 1) << 32) / threads; ++bits)
          parts[k].see<TypeParam>(float_of(static_cast<u32>(bits)));
      });
    }
  }
  F32Errors errors;
  for (const F32Errors& part : parts) errors.join(part);
  expect_within_an_ulp<TypeParam>(errors);
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
