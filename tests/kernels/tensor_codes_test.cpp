// Any tensor in 8 bits against its definition, worded once more here in double precision: scales of every
// magnitude, every code at scales of every significand, blocks, what is no number, lengths and threads.
#include "kernels/host/tensor_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"
#include "tests/refusal.h"

namespace outgrad::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr i64 kLengths[] = {0, 1, 31, 32, 33, 63, 64, 65, 200, (i64{1} << 15) - 1, (i64{1} << 15) + 77};

// The largest finite magnitude.
template <class T>
double largest_of(const std::vector<T>& x) {
  double most = 0;
  for (const T value : x) {
    const double wide = std::abs(static_cast<double>(widen(value)));
    if (std::isfinite(wide)) most = std::max(most, wide);
  }
  return most;
}

// The code of F that is nearest to v, ties to the even one, saturated; the canonical NaN of a NaN.
template <class F>
u8 nearest_code(double v) {
  if (std::isnan(v)) return kCanonicalNanF8;
  static const std::vector<double> kValues = [] {
    std::vector<double> values;
    for (u32 code = 0; code < 128; ++code) {
      const double value = static_cast<double>(widen(F{static_cast<u8>(code)}));
      if (std::isfinite(value)) values.push_back(value);
    }
    return values;
  }();
  const double magnitude = std::abs(v);
  const auto above = std::lower_bound(kValues.begin(), kValues.end(), magnitude);
  u32 code = static_cast<u32>(above - kValues.begin());
  if (above == kValues.end()) {
    code = static_cast<u32>(kValues.size()) - 1;
  } else if (code > 0) {
    const double down = magnitude - above[-1], up = *above - magnitude;
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<u8>(code | (std::signbit(v) ? 0x80u : 0u));
}

template <class F>
float defined_scale(double largest, double least) {
  const double counted = std::min(std::max(largest, least), 0x1p127);
  return static_cast<float>(static_cast<double>(static_cast<float>(4 / counted)) *
                            static_cast<double>(kLargestOf<F>) / 4);
}

// Numbers of every binade, in an order that mixes them, some of them no numbers.
template <class T>
std::vector<T> mixed(i64 n, u32 seed, int top) {
  patterns::Random random(seed);
  std::vector<T> x;
  for (i64 i = 0; i < n; ++i) {
    const u32 kind = random.next() % 400;
    const float some = std::ldexp(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f,
                                  top - static_cast<int>(random.next() % 30));
    x.push_back(narrow<T>(kind == 0 ? kNan : kind == 1 ? INFINITY : kind == 2 ? -INFINITY : some));
  }
  return x;
}

template <class F, class T>
void expect_at_one_scale(const std::vector<T>& x, float least) {
  const i64 n = static_cast<i64>(x.size());
  const float scale = scale_of_tensor<F>(x.data(), n, least, 1 + static_cast<int>(n % 2));
  ASSERT_EQ(scale, defined_scale<F>(largest_of(x), static_cast<double>(least)));
  std::vector<F> codes(x.size());
  encode_tensor(x.data(), codes.data(), n, scale, 1 + static_cast<int>(n % 2));
  std::vector<T> back(x.size());
  decode_tensor(codes.data(), scale, back.data(), n, 1 + static_cast<int>(n % 2));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float product = mul_rn(widen(x[i]), scale);
    ASSERT_EQ(codes[i].bits, nearest_code<F>(static_cast<double>(product))) << i << ": " << widen(x[i]);
    const float stands =
        static_cast<float>(static_cast<double>(widen(codes[i])) / static_cast<double>(scale));
    ASSERT_EQ(canonical_bits(back[i]), canonical_bits(narrow<T>(stands))) << i << ": " << widen(x[i]);
  }
}

template <class T>
void expect_blocks(const std::vector<T>& x) {
  constexpr std::size_t kBlock = 32;
  const i64 n = static_cast<i64>(x.size());
  std::vector<F8E4M3> codes(x.size());
  std::vector<E8M0> scales((x.size() + kBlock - 1) / kBlock);
  encode_tensor_blocks(x.data(), codes.data(), scales.data(), n, 1 + static_cast<int>(n % 2));
  std::vector<T> back(x.size());
  decode_tensor_blocks(codes.data(), scales.data(), back.data(), n, 1 + static_cast<int>(n % 2));
  for (std::size_t first = 0; first < x.size(); first += kBlock) {
    const std::size_t end = std::min(first + kBlock, x.size());
    const double largest = largest_of(std::vector<T>(x.begin() + static_cast<std::ptrdiff_t>(first),
                                                     x.begin() + static_cast<std::ptrdiff_t>(end)));
    int power = -126;
    while (largest > 448 * std::ldexp(1.0, power)) ++power;
    ASSERT_EQ(scales[first / kBlock].bits, power + 127) << first;
    for (std::size_t i = first; i < end; ++i) {
      const double wide = static_cast<double>(widen(x[i]));
      ASSERT_EQ(codes[i].bits, nearest_code<F8E4M3>(std::ldexp(wide, -power))) << i << ": " << wide;
      const double most = static_cast<double>(kMostOf<T>);
      const double stands = std::ldexp(static_cast<double>(widen(codes[i])), power);
      const float kept = static_cast<float>(std::isnan(stands) ? stands : std::clamp(stands, -most, most));
      ASSERT_EQ(canonical_bits(back[i]), canonical_bits(narrow<T>(kept))) << i << ": " << wide;
    }
  }
}

template <class T>
class TensorCodes : public testing::Test {};
TYPED_TEST_SUITE(TensorCodes, TestedFormats);

TYPED_TEST(TensorCodes, LengthsAndMagnitudes) {
  using T = TypeParam;
  u32 seed = 0;
  for (const i64 n : kLengths) {
    for (const int top :
         std::is_same_v<T, F16> ? std::vector{-20, -3, 16} : std::vector{-140, -120, -3, 100, 128}) {
      SCOPED_TRACE("n = " + std::to_string(n) + ", up to 2^" + std::to_string(top));
      const std::vector<T> x = mixed<T>(n, ++seed, top);
      expect_at_one_scale<F8E4M3>(x, kLeastOfTensors);
      expect_at_one_scale<F8E5M2>(x, kLeastOfTensors);
      expect_at_one_scale<F8E4M3>(x, 1.0f);
      expect_blocks(x);
    }
  }
}

// In the order of their bits, so that what lies in one block is alike, and shuffled.
TYPED_TEST(TensorCodes, EveryPattern) {
  using T = TypeParam;
  std::vector<T> x = patterns::all<T>(20);
  for (int pass = 0; pass < 2; ++pass) {
    expect_at_one_scale<F8E4M3>(x, 1.0f);
    expect_at_one_scale<F8E5M2>(x, 1.0f);
    expect_blocks(x);
    patterns::Random random(9);
    for (std::size_t i = 0; i < x.size(); ++i) std::swap(x[i], x[i + random.next() % (x.size() - i)]);
  }
}

// One large number among small ones, at every place of a block and of a task.
TYPED_TEST(TensorCodes, TheLargestIsFoundWhereverItIs) {
  using T = TypeParam;
  std::vector<T> x(200, narrow<T>(0.5f));
  for (std::size_t at = 0; at < x.size(); ++at) {
    for (const float large : {3.0f, -3.0f, kNan, INFINITY}) {
      x[at] = narrow<T>(large);
      const float found = std::isfinite(large) ? 3.0f : 0.5f;
      ASSERT_EQ(scale_of_tensor<F8E4M3>(x.data(), 200, kLeastOfTensors), defined_scale<F8E4M3>(found, 0));
      expect_blocks(x);
    }
    x[at] = narrow<T>(0.5f);
  }
}

// Codes of every number of f32 that a task's vectors take, and of those beside and midway between codes.
TEST(TensorCodesOfF32, EveryCodeAndItsNeighbours) {
  std::vector<float> x;
  const auto add = [&]<class F>(F) {
    for (u32 code = 0; code < 256; ++code) {
      const float value = widen(F{static_cast<u8>(code)});
      const float next = widen(F{static_cast<u8>((code & 0x80u) | std::min(0x7eu, (code & 0x7fu) + 1))});
      for (const float of : {value, value / 2 + next / 2})
        for (const float near :
             {std::nextafter(of, 0.0f), of, std::nextafter(of, of < 0 ? -INFINITY : INFINITY)})
          x.push_back(near);
    }
  };
  add(F8E4M3{});
  add(F8E5M2{});
  std::vector<u8> codes(x.size());
  const auto expect = [&]<class F>(F) {
    encode_tensor(x.data(), reinterpret_cast<F*>(codes.data()), static_cast<i64>(x.size()), 1.0f);
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(codes[i], nearest_code<F>(static_cast<double>(x[i]))) << std::hexfloat << x[i];
  };
  expect(F8E4M3{});
  expect(F8E5M2{});
}

// Every significand that a scale can have, with every one that a code can have: a quotient's bits do not
// depend on the powers of two, so this is all there is but for the ends of the range, which the last loop
// tries.
TEST(CodeDivisor, GivesTheQuotientOfEveryCodeAndSignificand) {
  std::vector<float> all = {0.0f, -0.0f};
  for (int eighths = 8; eighths < 16; ++eighths)
    for (const float v : {static_cast<float>(eighths) / 8, -static_cast<float>(eighths) / 8})
      all.push_back(v);
  for (u32 significand = 0; significand < 1u << 23; ++significand) {
    const CodeDivisor by = CodeDivisor::of(float_of(127u << 23 | significand));
    for (const float v : all)
      ASSERT_EQ(bits_of(by.quotient(v)), bits_of(v / by.scale)) << std::hexfloat << v << " / " << by.scale;
  }
  patterns::Random random(4);
  for (int k = 0; k < 1'000'000; ++k) {
    const u32 exponent = 127 - 92 + random.next() % (92 + 96);
    const CodeDivisor by = CodeDivisor::of(float_of(exponent << 23 | random.next() >> 9));
    ASSERT_TRUE(by.is_usual());
    for (const float v : {widen(F8E4M3{static_cast<u8>(random.next() % 127)}),
                          widen(F8E5M2{static_cast<u8>(random.next() % 124)})})
      ASSERT_EQ(bits_of(by.quotient(v)), bits_of(v / by.scale)) << std::hexfloat << v << " / " << by.scale;
  }
}

template <class Action>
void expect_refusal(const Action& action, const std::string& why) {
  const std::string found = refusal_of(action);
  EXPECT_NE(found.find(why), std::string::npos) << "'" << found << "'";
}

TEST(TensorCodesArguments, WhatBreaksTheContractIsRefused) {
  float x[4] = {1, 2, 3, 4};
  F8E4M3 codes[4] = {};
  E8M0 scales[1] = {};
  expect_refusal([&] { scale_of_tensor<F8E4M3>(x, -1, 1.0f); }, "n must be at least 0");
  for (const float least : {0.0f, -1.0f, 0x1p-101f, 0x1.8p127f, kNan})
    expect_refusal([&] { scale_of_tensor<F8E4M3>(x, 4, least); }, "least must lie in");
  for (const float scale : {0.0f, -1.0f, 0x1p-127f, INFINITY, kNan}) {
    expect_refusal([&] { encode_tensor(x, codes, 4, scale); }, "positive, finite and normal");
    expect_refusal([&] { decode_tensor(codes, scale, x, 4); }, "positive, finite and normal");
  }
  expect_refusal([&] { encode_tensor(x, codes, -1, 1.0f); }, "n must be at least 0");
  expect_refusal([&] { encode_tensor_blocks(x, codes, scales, -1); }, "n must be at least 0");
  expect_refusal([&] { decode_tensor_blocks(codes, scales, x, -1); }, "n must be at least 0");
}

}  // namespace
}  // namespace outgrad::kernels
