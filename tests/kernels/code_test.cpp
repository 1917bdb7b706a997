// Codes for f'(x) against the second witness and against their definition, worded once more here: every x of
// a 16-bit format and samples of every binade of f32 within the header's bounds, the packing, the dither, and
// every way to run them against the scalar one.
#include "kernels/host/code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/tuned.h"
#include "tests/kernels/page_end.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"
#include "validation/exact/reference.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::kernels {
namespace {

template <class A>
class Codes : public testing::Test {};

template <class List>
struct TypesOfCodes;
template <class... A>
struct TypesOfCodes<CodedList<A...>> {
  using Type = testing::Types<A...>;
};
struct CodeNames {
  template <class A>
  static std::string GetName(int) {
    return A::Code::kActivation;
  }
};
TYPED_TEST_SUITE(Codes, TypesOfCodes<CodedActivations>::Type, CodeNames);

template <class A>
constexpr CodeRange kRangeOf{A::Code::kLo, A::Code::kHi};

template <class A>
constexpr bool has_minimum() {
  return requires { A::template Forward<float>::kXStar; };
}

template <class A>
float gradient(float x) {
  return gradient_at<typename A::template Forward<float>>(x);
}

// f'(x) within Reference::kDerivativeBound.
template <class A>
std::vector<double> slopes(const std::vector<float>& x) {
  const validation::SweptActivation* const witness = validation::swept_activation(A::Code::kActivation);
  if (witness == nullptr) throw std::runtime_error(A::Code::kActivation);
  std::vector<double> value(x.size()), low(x.size()), high(x.size()), slope(x.size());
  witness->reference().evaluate(x.data(), value.data(), low.data(), high.data(), slope.data(),
                                static_cast<i64>(x.size()));
  return slope;
}

// --- Errors --------------------------------------------------------------------------------------

template <class T>
std::vector<float> finite_values(int random_per_binade) {
  std::vector<float> x;
  for (const T value : patterns::all<T>(random_per_binade)) {
    if (std::isfinite(widen(value))) x.push_back(widen(value));
  }
  return x;
}

template <class A>
void expect_within_bounds(const std::vector<float>& x, double reached) {
  constexpr double kMargin = 2 * validation::Reference::kDerivativeBound;
  const std::vector<double> want = slopes<A>(x);
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    const CodeRule rule = exact_code(kRangeOf<A>, bits);
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const u8 code = coded_gradient(rule, gradient<A>(x[i]));
      ASSERT_LT(code, 1 << bits);
      largest = std::max(largest, std::fabs(double{gradient_of_code(rule, code)} - want[i]));
    }
    EXPECT_LE(largest, code_error<typename A::Code>(bits, false) + kMargin) << bits << " bits";
    EXPECT_GE(largest, reached * code_error<typename A::Code>(bits, false)) << bits << " bits";
  }
  patterns::Random random(3);
  for (int bits = kLeastDitheredBits; bits <= kMostDitheredBits; ++bits) {
    const CodeRule rule = dithered_code(kRangeOf<A>, bits);
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      for (const u32 word : {0u, ~0u, random.next()}) {
        const float d = dither_of(word);
        const u8 code = coded_gradient(rule, gradient<A>(x[i]), d);
        ASSERT_LT(code, 1 << bits);
        largest = std::max(largest, std::fabs(double{gradient_of_code(rule, code, d)} - want[i]));
      }
    }
    EXPECT_LE(largest, code_error<typename A::Code>(bits, true) + kMargin) << bits << " bits, dithered";
    EXPECT_GE(largest, 0.9 * code_error<typename A::Code>(bits, true)) << bits << " bits, dithered";
  }
}

// By exhaustion, with a reference whose error is proven.
TYPED_TEST(Codes, EveryXOf16BitsIsWithinTheHeadersBounds) {
  expect_within_bounds<TypeParam>(finite_values<BF16>(0), 0.5);
  expect_within_bounds<TypeParam>(finite_values<F16>(0), 0.5);
}

TYPED_TEST(Codes, XInEveryBinadeOfF32AreWithinTheHeadersBounds) {
  expect_within_bounds<TypeParam>(finite_values<float>(300), 0.9);
}

// Next to x*, and over the cells in between.
TYPED_TEST(Codes, XAboutTheMinimumAreWithinTheHeadersBounds) {
  std::vector<float> x;
  for (int i = -160'000; i < 160'000; ++i) x.push_back(1e-4f * static_cast<float>(i));
  if constexpr (has_minimum<TypeParam>()) {
    float near = TypeParam::template Forward<float>::kXStar;
    for (int i = 0; i < 20'000; ++i) near = std::nextafter(near, -10.0f);
    for (int i = 0; i < 40'000; ++i) x.push_back(near = std::nextafter(near, 10.0f));
  }
  expect_within_bounds<TypeParam>(x, 0.97);
}

TYPED_TEST(Codes, InfinitiesHaveTheLimitsAndNansCode0) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const validation::SweptActivation& witness = *validation::swept_activation(TypeParam::Code::kActivation);
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    for (const bool dithered : {false, true}) {
      if (!code_bits_hold(bits, dithered)) continue;
      const CodeRule rule =
          dithered ? dithered_code(kRangeOf<TypeParam>, bits) : exact_code(kRangeOf<TypeParam>, bits);
      const float d = dithered ? dither_of(0x12345678u) : 0.0f;
      for (const bool right : {false, true}) {
        const float g = gradient<TypeParam>(right ? kInfinity : -kInfinity);
        EXPECT_LE(std::fabs(double{gradient_of_code(rule, coded_gradient(rule, g, d), d)} -
                            witness.slope_limit(right)),
                  code_error<typename TypeParam::Code>(bits, dithered));
      }
      for (const float nan : {kNan, -kNan, float_of(0x7fffffffu), float_of(0xff800001u)}) {
        EXPECT_EQ(coded_gradient(rule, gradient<TypeParam>(nan), d), 0);
      }
    }
  }
}

// --- Dither --------------------------------------------------------------------------------------

TEST(Dither, IsSymmetricAndWithinHalfAStep) {
  EXPECT_EQ(dither_of(0u), -0.5f + 0x1p-24f);
  EXPECT_EQ(dither_of(~0u), 0.5f - 0x1p-24f);
  patterns::Random random(5);
  for (int i = 0; i < 100'000; ++i) {
    const u32 word = random.next();
    ASSERT_EQ(dither_of(word), -dither_of(~word));
    ASSERT_EQ(double{dither_of(word)}, (static_cast<double>(word >> 9) + 0.5) * 0x1p-23 - 0.5);
  }
}

// Over a million counters: the error is uniform over +-w/2, so a mean of n of them is within 5 w / sqrt(12 n)
// of the true one in all but one of two million cases (which is one of none with these seeds).
TEST(Dither, TheMeanIsTheGradientAndTheErrorUniform) {
  using Gelu = CodedGelu;
  constexpr i64 kCount = i64{1} << 20;
  const std::vector<float> points = {-3.0f, -1.5f, -0.75179f, -0.3f, 0.0f, 0.4f, 1.0f, 1.414f, 2.5f, 8.0f};
  const std::vector<double> want = slopes<Gelu>(points);
  for (int bits = kLeastDitheredBits; bits <= kMostDitheredBits; ++bits) {
    const double width =
        (double{generated::GeluCode::kHi} - double{generated::GeluCode::kLo}) / ((1 << bits) - 1);
    for (size_t p = 0; p < points.size(); ++p) {
      const u64 seed = 1000 * static_cast<u64>(bits) + p;
      const CodeChoice choice{bits, &seed};
      std::vector<float> x(kCount, points[p]), y(kCount), dx(kCount, 1.0f);
      std::vector<u8> codes(static_cast<size_t>(code_bytes(bits, kCount)));
      activation_forward_code<Gelu, float, tuned::kDefaultSchedule>(choice, x.data(), y.data(), codes.data(),
                                                                    kCount);
      activation_backward_code<float, tuned::kDefaultSchedule>(kRangeOf<Gelu>, choice, dx.data(),
                                                               codes.data(), dx.data(), kCount);
      double sum = 0, squares = 0;
      for (const float g : dx) {
        const double error = double{g} - want[p];
        ASSERT_LE(std::fabs(error), code_error<generated::GeluCode>(bits, true));
        sum += error, squares += error * error;
      }
      EXPECT_LE(std::fabs(sum / kCount), generated::GeluCode::kBias + 5 * width / std::sqrt(12.0 * kCount))
          << points[p];
      EXPECT_NEAR(std::sqrt(squares / kCount), width / std::sqrt(12.0), 0.01 * width) << points[p];
    }
  }
}

// --- Arrays --------------------------------------------------------------------------------------

// Bit by bit.
std::vector<u8> packed(const std::vector<u8>& numbers, int bits) {
  std::vector<u8> bytes((numbers.size() * static_cast<size_t>(bits) + 7) / 8);
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (int bit = 0; bit < bits; ++bit) {
      const size_t at = i * static_cast<size_t>(bits) + static_cast<size_t>(bit);
      bytes[at / 8] = static_cast<u8>(bytes[at / 8] | (numbers[i] >> bit & 1) << at % 8);
    }
  }
  return bytes;
}

template <class A, class T>
T plain_forward(T x) {
  using F = typename A::template Forward<T>;
  if constexpr (requires { F::table(); }) {
    static const auto tables = forward_tables<F>();
    return fitted_forward_element(F{}, tables, x).y;
  } else {
    return forward_of<F>(x);
  }
}

constexpr u8 kCanary = 0xa5;

template <class A, class T, CpuSchedule S>
void expect_definition(const std::vector<T>& x, const std::vector<T>& dy, const CodeChoice& choice) {
  const auto n = static_cast<i64>(x.size());
  const CodeRule rule = rule_of(choice, kRangeOf<A>);
  std::vector<T> want_y, want_dx;
  std::vector<u8> numbers;
  for (i64 i = 0; i < n; ++i) {
    const auto k = static_cast<size_t>(i);
    const float d =
        choice.seed == nullptr ? 0.0f : dither_of(philox(static_cast<u64>(i / 4), *choice.seed).word[i % 4]);
    numbers.push_back(coded_gradient(rule, gradient<A>(widen(x[k])), d));
    want_y.push_back(plain_forward<A>(x[k]));
    want_dx.push_back(narrow<T>(mul_rn(widen(dy[k]), gradient_of_code(rule, numbers.back(), d))));
  }
  std::vector<u8> want = packed(numbers, choice.bits);
  ASSERT_EQ(static_cast<i64>(want.size()), code_bytes(choice.bits, n));
  want.push_back(kCanary);
  const std::string where = std::string(A::Code::kName) + " " + std::to_string(n) + " " +
                            std::to_string(choice.bits) + (choice.seed ? " dithered" : "");
  for (const bool in_place : {false, true}) {
    std::vector<T> y = x;
    std::vector<u8> codes(want.size(), kCanary);
    activation_forward_code<A, T, S>(choice, in_place ? y.data() : x.data(), y.data(), codes.data(), n);
    ASSERT_EQ(patterns::first_difference(want_y, y), -1) << where;
    ASSERT_EQ(codes, want) << where;
    codes.pop_back();
    const PageEnd last(codes);
    std::vector<T> dx = dy;
    activation_backward_code<T, S>(kRangeOf<A>, choice, in_place ? dx.data() : dy.data(), last.data(),
                                   dx.data(), n);
    ASSERT_EQ(patterns::first_difference(want_dx, dx), -1) << where;
  }
}

template <class A, class T, int kVectorBits, int kUnroll = 1>
void expect_definition_for_all() {
  constexpr CpuSchedule kSchedule{.vector_bits = kVectorBits, .unroll = kUnroll, .block_elements = 2048};
  std::vector<T> all = patterns::all<T>(20), dy;
  patterns::Random random(7);
  for (size_t i = 0; i < all.size(); ++i) {
    std::swap(all[i], all[i + random.next() % (all.size() - i)]);
    dy.push_back(narrow<T>(float_of((random.next() & 0x80ffffffu) | 0x3f000000u)));
  }
  const u64 seed = 0x123456789abcdef0u;
  const auto check = [&](size_t size, const CodeChoice& choice) {
    const std::vector<T> x(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size)),
        by(dy.begin(), dy.begin() + static_cast<std::ptrdiff_t>(size));
    expect_definition<A, T, kSchedule>(x, by, choice);
  };
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    for (const size_t size : {0, 1, 2, 7, 8, 9, 1023, 1024, 1025, 3333}) check(size, {bits, nullptr});
  }
  for (int bits = kLeastDitheredBits; bits <= kMostDitheredBits; ++bits) {
    for (const size_t size : {0, 1, 9, 1025, 3333}) check(size, {bits, &seed});
  }
  check(all.size(), {5, nullptr});
  check(all.size(), {3, &seed});
}

// By day one activation whose y and g are polynomials, and one that is computed in doubles.
TYPED_TEST(Codes, EveryScheduleGivesTheDefinition) {
  expect_definition_for_all<TypeParam, float, kBestVectorBits>();
  expect_definition_for_all<TypeParam, BF16, kBestVectorBits>();
  if constexpr (kAtNight || std::is_same_v<TypeParam, CodedGelu> ||
                same_text(TypeParam::Code::kActivation, "silu")) {
    expect_definition_for_all<TypeParam, float, 0>();
    expect_definition_for_all<TypeParam, float, std::min(256, kBestVectorBits)>();
    expect_definition_for_all<TypeParam, float, kBestVectorBits, 3>();  // packs that do not divide a block
    expect_definition_for_all<TypeParam, F16, 0>();
    expect_definition_for_all<TypeParam, F16, kBestVectorBits>();
    expect_definition_for_all<TypeParam, BF16, std::min(256, kBestVectorBits)>();
  }
}

// --- Gradients of the caller's own ---------------------------------------------------------------

template <class T, int kVectorBits>
void expect_encoded_as_defined(const CodeRange& range) {
  constexpr CpuSchedule kSchedule{.vector_bits = kVectorBits, .block_elements = 2048};
  const std::vector<T> all = patterns::all<T>(20);
  const u64 seed = 0xfedcba9876543210u;
  const auto check = [&](size_t size, const CodeChoice& choice) {
    const std::vector<T> g(all.end() - static_cast<std::ptrdiff_t>(size), all.end());
    const CodeRule rule = rule_of(choice, range);
    std::vector<u8> numbers;
    for (size_t i = 0; i < size; ++i) {
      const float d = choice.seed == nullptr ? 0.0f : dither_of(philox(i / 4, *choice.seed).word[i % 4]);
      numbers.push_back(coded_gradient(rule, widen(g[i]), d));
    }
    std::vector<u8> want = packed(numbers, choice.bits), codes(want.size() + 1, kCanary);
    want.push_back(kCanary);
    encode_gradients<T, kSchedule>(range, choice, g.data(), codes.data(), static_cast<i64>(size));
    ASSERT_EQ(codes, want) << size << " " << choice.bits << (choice.seed ? " dithered" : "");
  };
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    for (const size_t size : {size_t{0}, size_t{7}, size_t{1024}, size_t{3333}, all.size()})
      check(size, {bits, nullptr});
    if (code_bits_hold(bits, true)) check(all.size(), {bits, &seed});
  }
}

// Every bit pattern of 16 bits and those of f32's binades, NaNs among them, in a range of a user's own and in
// the widest one.
TEST(EncodedGradients, AreThoseOfTheDefinition) {
  for (const CodeRange& range : {CodeRange{-0.10001f, 1.0873f}, CodeRange{-2, 2}}) {
    expect_encoded_as_defined<float, 0>(range);
    expect_encoded_as_defined<float, kBestVectorBits>(range);
    expect_encoded_as_defined<F16, kBestVectorBits>(range);
    expect_encoded_as_defined<BF16, std::min(256, kBestVectorBits)>(range);
  }
}

// What follows from the choice alone is computed before the loops, which set the rounding mode of their own.
TEST(EncodedGradients, TheCallersRoundingModeChangesNothing) {
  const int mode = std::fegetround();
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    for (const CodeRange& range : {CodeRange{-0.125f, 1.25f}, CodeRange{-0.3f, 0.7f}, CodeRange{0, 1}}) {
      const CodeRule expected = rule_of({bits, nullptr}, range);
      for (const int other : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
        ASSERT_EQ(std::fesetround(other), 0);
        const CodeRule rule = rule_of({bits, nullptr}, range);
        std::fesetround(mode);
        EXPECT_EQ(rule.scale, expected.scale) << bits;
        EXPECT_EQ(rule.offset, expected.offset) << bits;
        EXPECT_EQ(rule.step, expected.step) << bits;
        EXPECT_EQ(rule.first, expected.first) << bits;
      }
    }
  }
}

TEST(EncodedGradients, RangesWithoutAProofDoNotHold) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(code_range_holds({-2, 2}));
  EXPECT_TRUE(code_range_holds({0, 1}));
  for (const CodeRange& range :
       {CodeRange{kNan, 1}, {0, kNan}, {1, 0}, {0, 0.125f}, {0.25f, 1}, {0, 2.0001f}, {-2.0001f, 1}}) {
    EXPECT_FALSE(code_range_holds(range)) << range.lo << " " << range.hi;
  }
}

// Arrays large enough for stores past the cache, aligned and not, against the same elements in small calls.
template <class T, int kUnroll>
void expect_streaming_to_change_no_bit() {
  constexpr CpuSchedule kStreaming{
      .vector_bits = kBestVectorBits, .unroll = kUnroll, .streaming_stores = true},
      kPlain{};
  constexpr i64 kCount = (i64{1} << 20) + 777;
  patterns::Random random(11);
  std::vector<T> store(kCount + 64), want_y(kCount), out(kCount + 64), want_dx(kCount);
  for (T& each : store) each = narrow<T>(float_of((random.next() & 0x81ffffffu) | 0x3e000000u));
  for (const int offset : {0, 1}) {
    // Elements from a cache line's begin on, or one later.
    const auto aligned = [&](std::vector<T>& v) {
      return v.data() + (64 - reinterpret_cast<std::uintptr_t>(v.data()) % 64) % 64 / sizeof(T) +
             static_cast<size_t>(offset);
    };
    for (const int bits : {4, 5}) {
      const CodeChoice choice{bits, nullptr};
      const i64 bytes = code_bytes(bits, kCount);
      std::vector<u8> codes(static_cast<size_t>(bytes) + 64), want(static_cast<size_t>(bytes));
      u8* const to = codes.data() + (64 - reinterpret_cast<std::uintptr_t>(codes.data()) % 64) % 64;
      activation_forward_code<CodedGelu, T, kPlain>(choice, aligned(store), want_y.data(), want.data(),
                                                    kCount);
      activation_forward_code<CodedGelu, T, kStreaming>(choice, aligned(store), aligned(out), to, kCount);
      EXPECT_EQ(patterns::first_difference(want_y, std::vector<T>(aligned(out), aligned(out) + kCount)), -1);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), to));
      activation_backward_code<T, kPlain>(kRangeOf<CodedGelu>, choice, aligned(store), want.data(),
                                          want_dx.data(), kCount);
      activation_backward_code<T, kStreaming>(kRangeOf<CodedGelu>, choice, aligned(store), to, aligned(out),
                                              kCount);
      EXPECT_EQ(patterns::first_difference(want_dx, std::vector<T>(aligned(out), aligned(out) + kCount)), -1);
      std::copy_n(aligned(store), kCount, aligned(out));
      activation_forward_code<CodedGelu, T, kStreaming>(choice, aligned(out), aligned(out), to, kCount);
      EXPECT_EQ(patterns::first_difference(want_y, std::vector<T>(aligned(out), aligned(out) + kCount)), -1)
          << "in place";
      EXPECT_TRUE(std::equal(want.begin(), want.end(), to)) << "in place";
    }
  }
}

TEST(CodeArrays, StreamingChangesNoBit) {
  expect_streaming_to_change_no_bit<BF16, 2>();
  expect_streaming_to_change_no_bit<float, 2>();
  expect_streaming_to_change_no_bit<float, 5>();
}

}  // namespace
}  // namespace outgrad::kernels
