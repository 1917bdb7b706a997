// MXFP8 as what GELU's forward stores: scales and codes against the specification's words, every schedule
// against the definition, and the header's T for every x of f16 and bf16 at every scale that its y can have.
#include "kernels/stores/mxfp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "kernels/activation.h"
#include "kernels/fits.h"
#include "kernels/host/mxfp8.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

constexpr int kBlock = Format<MxFp8>::kBlock;

TEST(Mxfp8, TheScaleIsTheLargestMagnitudesPowerOfTwoByThatOfE4m3) {
  for (const float y : patterns::f32_patterns(200)) {
    if (!std::isfinite(y)) continue;
    const double expected = y == 0 ? 0x1p-127 : std::max(std::ldexp(1.0, std::ilogb(y) - 8), 0x1p-127);
    const E8M0 scale = shared_scale(magnitude_in_block(y));
    ASSERT_EQ(static_cast<double>(widen(scale)), expected) << std::hexfloat << y;
    ASSERT_EQ(static_cast<double>(reciprocal_of(scale)) * expected, 1.0);
  }
}

// The code whose value is nearest to y, ties to the even code, among the finite ones.
u8 nearest_code(double y, double scale) {
  const double wanted = std::abs(y) / scale;
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double there = std::abs(static_cast<double>(widen(F8E4M3{static_cast<u8>(code)})) - wanted);
    const double here = std::abs(static_cast<double>(widen(F8E4M3{static_cast<u8>(best)})) - wanted);
    if (there < here || (there == here && code % 2 == 0)) best = code;
  }
  return static_cast<u8>(best | (std::signbit(y) ? 0x80 : 0));
}

TEST(Mxfp8, AnElementIsTheNearestCodeAndSaturates) {
  patterns::Random random(5);
  for (const int exponent : {-126, -20, 0, 3, 100}) {
    const double scale = std::exp2(exponent);
    const E8M0 stored{static_cast<u8>(exponent + 127)};
    for (int k = 0; k < 20000; ++k) {
      // From far below e4m3's least number to the power of two beyond its largest.
      float y = float_of(
          (random.next() & 0x807fffffu) |
          static_cast<u32>(std::max(1, 127 + exponent - 14 + static_cast<int>(random.next() % 23))) << 23);
      // a number of e4m3's grid, or midway between two
      if (k % 3 == 0) y = float_of(bits_of(y) & 0xfff80000u);
      ASSERT_EQ(block_element(y, stored).bits, nearest_code(static_cast<double>(y), scale))
          << std::hexfloat << y << " / 2^" << exponent;
    }
  }
  const E8M0 one{127};
  EXPECT_EQ(block_element(INFINITY, one).bits, 0x7e);
  EXPECT_EQ(block_element(-1e30f, one).bits, 0xfe);
  EXPECT_EQ(block_element(-0.0f, one).bits, 0x80);
  EXPECT_EQ(block_element(std::numeric_limits<float>::quiet_NaN(), one).bits & 0x7f, 0x7f);
}

// Rows of one block each: their largest magnitudes are in every binade, and some hold what is no number.
template <class T>
std::vector<T> blocks() {
  std::vector<T> x = patterns::all<T>();
  x.resize(x.size() / kBlock * kBlock);
  patterns::Random random(11);
  for (int row = 0; row < 400; ++row) {
    for (int k = 0; k < kBlock; ++k) {
      const float value = std::ldexp(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f,
                                     row % 2 == 0 ? 3 : row % 140 - 130);
      x.push_back(narrow<T>(row % 19 == 0 && k == row % kBlock
                                ? (row % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : INFINITY)
                                : value));
    }
  }
  for (int k = 0; k < kBlock; ++k) x.push_back(T{});  // a block of zeros
  for (int k = 0; k < kBlock; ++k) x.push_back(narrow<T>(std::numeric_limits<float>::quiet_NaN()));
  for (int k = 0; k < 21; ++k) x.push_back(narrow<T>(-0.75f + 0.01f * static_cast<float>(k)));
  return x;
}

template <class T>
struct Kept {
  std::vector<F8E4M3> codes;
  std::vector<E8M0> scales;
  std::vector<u32> mask;
  explicit Kept(size_t n) : codes(n), scales((n + kBlock - 1) / kBlock), mask((n + 31) / 32, ~0u) {}
};

template <class T, CpuSchedule S>
void expect_forward() {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    using Forward = typename ForwardFit<T>::Type;
    static constexpr auto kTables = forward_tables<Forward>();
    const std::vector<T> x = blocks<T>();
    Kept<T> kept(x.size()), in_parts(x.size());
    const auto run = [&](Kept<T>& to, size_t first, size_t end) {
      gelu_forward_mxfp8<Forward, T, S>(x.data() + first, to.codes.data() + first,
                                        to.scales.data() + first / kBlock, to.mask.data() + first / 32,
                                        static_cast<i64>(end - first));
    };
    run(kept, 0, x.size());
    // Parts that are too short for a table of all codes, where a schedule takes one.
    constexpr size_t kPart = 0x8000;
    for (size_t first = 0; first < x.size(); first += kPart)
      run(in_parts, first, std::min(first + kPart, x.size()));
    EXPECT_EQ(std::memcmp(in_parts.codes.data(), kept.codes.data(), x.size()), 0);
    EXPECT_EQ(std::memcmp(in_parts.scales.data(), kept.scales.data(), kept.scales.size()), 0);
    EXPECT_EQ(in_parts.mask, kept.mask);
    for (size_t first = 0; first < x.size(); first += kBlock) {
      const size_t end = std::min(first + kBlock, x.size());
      u32 amax = 0, mask = 0;
      std::vector<float> y;
      for (size_t i = first; i < end; ++i) {
        y.push_back(fitted_forward_value<T>(FloatOps{}, Forward{}, kTables, widen(x[i])));
        amax = std::max(amax, magnitude_in_block(y.back()));
        mask |= static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, widen(x[i]))) << (i - first);
      }
      const E8M0 scale = shared_scale(amax);
      ASSERT_EQ(kept.scales[first / kBlock].bits, scale.bits) << first;
      ASSERT_EQ(kept.mask[first / kBlock], mask) << first;
      for (size_t i = first; i < end; ++i) {
        ASSERT_EQ(canonical_bits(kept.codes[i]), canonical_bits(block_element(y[i - first], scale)))
            << Format<T>::kName << " x[" << i << "] = " << widen(x[i]);
      }
    }
  }
}

template <class T>
void expect_forward_everywhere() {
  expect_forward<T, CpuSchedule{.threads = 1}>();
  expect_forward<T, CpuSchedule{.vector_bits = 256, .unroll = 1, .block_elements = 1024}>();
  expect_forward<T, CpuSchedule{.threads = 2, .vector_bits = 512, .unroll = 4, .block_elements = 1024}>();
}

TEST(Mxfp8, EveryScheduleOfTheForwardIsTheDefinitionF32) { expect_forward_everywhere<float>(); }
TEST(Mxfp8, EveryScheduleOfTheForwardIsTheDefinitionF16) { expect_forward_everywhere<F16>(); }
TEST(Mxfp8, EveryScheduleOfTheForwardIsTheDefinitionBf16) { expect_forward_everywhere<BF16>(); }

// Past the cache too, which takes an output of megabytes.
TEST(Mxfp8, StreamingStoresGiveTheSameBits) {
  if constexpr (kBestVectorBits > 0) {
    constexpr i64 n = (i64{4} << 20) + 77;
    std::vector<BF16> x(n);
    patterns::Random random(3);
    for (BF16& each : x) each = narrow<BF16>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f);
    Kept<BF16> plain(n), streamed(n + 64);
    auto* const aligned =
        reinterpret_cast<F8E4M3*>((reinterpret_cast<std::uintptr_t>(streamed.codes.data()) + 63) / 64 * 64);
    using Forward = ForwardFit<BF16>::Type;
    gelu_forward_mxfp8<Forward, BF16, CpuSchedule{.vector_bits = kBestVectorBits}>(
        x.data(), plain.codes.data(), plain.scales.data(), plain.mask.data(), n);
    gelu_forward_mxfp8<Forward, BF16, CpuSchedule{.vector_bits = kBestVectorBits, .streaming_stores = true}>(
        x.data(), aligned, streamed.scales.data(), streamed.mask.data(), n);
    EXPECT_EQ(std::memcmp(plain.codes.data(), aligned, n), 0);
    EXPECT_EQ(std::memcmp(plain.scales.data(), streamed.scales.data(), plain.scales.size()), 0);
    EXPECT_EQ(std::memcmp(plain.mask.data(), streamed.mask.data(), plain.mask.size() * 4), 0);
  } else {
    GTEST_SKIP() << "no vectors";
  }
}

TEST(Mxfp8, AnElementThatIsNoNumberLeavesItsBlockAlone) {
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    std::vector<float> x(kBlock, 1.5f);
    Kept<float> without(kBlock), with(kBlock);
    using Forward = ForwardFit<float>::Type;
    gelu_forward_mxfp8<Forward, float, CpuSchedule{}>(x.data(), without.codes.data(), without.scales.data(),
                                                      without.mask.data(), kBlock);
    x[7] = odd;
    gelu_forward_mxfp8<Forward, float, CpuSchedule{}>(x.data(), with.codes.data(), with.scales.data(),
                                                      with.mask.data(), kBlock);
    std::vector<float> dy(kBlock, 1.0f), dx(kBlock);
    activation_backward<generated::GeluMxfp8, float, CpuSchedule{}, MxFp8>(
        dy.data(), stored<MxFp8>(with.codes.data(), with.scales.data()), with.mask.data(), dx.data(), kBlock);
    if (std::isnan(odd)) {
      EXPECT_TRUE(std::isnan(dx[7]));
    } else {
      EXPECT_NEAR(dx[7], odd > 0 ? 1.0f : 0.0f, generated::GeluMxfp8::kT);
    }
    for (int k = 0; k < kBlock; ++k) EXPECT_TRUE(k == 7 || std::isfinite(dx[static_cast<size_t>(k)]));
    if (!(odd > 0)) {  // f(-inf) is 0
      EXPECT_EQ(with.scales[0].bits, without.scales[0].bits);
    }
  }
}

// The largest error of each scale 2^exponent over every x of a 16-bit format whose y fits in its blocks.
template <class T>
std::map<int, double> errors_by_scale(int first, int last) {
  using Forward = typename ForwardFit<T>::Type;
  static constexpr auto kTables = forward_tables<Forward>();
  std::map<int, double> worst;
  for (u32 bits = 0; bits < 0x10000; ++bits) {
    const float x = widen(T{static_cast<u16>(bits)});
    if (!std::isfinite(x)) continue;
    const double wide = x, slope = 0.5 * std::erfc(-wide * M_SQRT1_2) +
                                   wide * std::exp(-wide * wide / 2) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
    const float y = fitted_forward_value<T>(FloatOps{}, Forward{}, kTables, x);
    const bool m = evaluate_mask(FloatOps{}, Forward{}, x);
    for (int exponent = first; exponent <= last; ++exponent) {
      if (std::abs(static_cast<double>(y)) >= std::ldexp(512.0, exponent)) continue;
      const E8M0 scale{static_cast<u8>(exponent + 127)};
      const float kept = mul_rn(widen(block_element(y, scale)), widen(scale));
      double& error = worst[exponent];
      error = std::max(
          error, std::abs(static_cast<double>(evaluate_backward<generated::GeluMxfp8>(FloatOps{}, kept, m)) -
                          slope));
    }
  }
  return worst;
}

// The claim is over all real x whose y is rounded once. The forward rounds f(x) before, to fp32 or less: so
// every x of a 16-bit format is looked at, at every scale of a block below 2^12 that holds its y.
template <class T>
void expect_total_error() {
  const std::map<int, double> errors = errors_by_scale<T>(-127, 3);
  double worst = 0;
  for (const auto& [exponent, error] : errors) worst = std::max(worst, error);
  EXPECT_GE(errors.size(), 60u);  // those that hold some y
  EXPECT_LE(worst, generated::GeluMxfp8::kT) << Format<T>::kName;
  EXPECT_GT(worst, 0.9 * generated::GeluMxfp8::kT);
}

TEST(Mxfp8, TheTotalErrorHoldsForEveryF16AtEveryScale) { expect_total_error<F16>(); }
TEST(Mxfp8, TheTotalErrorHoldsForEveryBf16AtEveryScale) { expect_total_error<BF16>(); }

// Blocks whose largest |y| is 2^12 or more are not claimed, and need not be: the error leaves the bound at
// once. docs/how_few_bits.md has these figures.
TEST(Mxfp8, BeyondTheClaimTheErrorIsLarger) {
  const std::map<int, double> errors = errors_by_scale<BF16>(4, 13);
  EXPECT_GT(errors.at(4), 2 * generated::GeluMxfp8::kT);
  EXPECT_NEAR(errors.at(4), 0.117, 5e-4);
  EXPECT_NEAR(errors.at(8), 0.500, 5e-4);
  EXPECT_NEAR(errors.at(10), 0.610, 5e-4);
  for (const int last : {11, 12, 13}) EXPECT_NEAR(errors.at(last), 0.628, 5e-4) << last;
}

}  // namespace
}  // namespace outgrad::kernels
