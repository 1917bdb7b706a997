// The specified cases of the GELU kernels, for each format and for every way to run them.
#include "kernels/fitted_forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#include "kernels/fits.h"
#include "kernels/host/elementwise.h"
#include "kernels/simd.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class StoredT, class FitT, class ForwardT, int kBits>
struct Case {
  using T = StoredT;
  using Fit = FitT;
  using Forward = ForwardT;
  static constexpr CpuSchedule kSchedule{.vector_bits = kBits};
};

template <class Case>
class Gelu : public testing::Test {
 protected:
  using T = typename Case::T;

  // One value at every place of a vector and of the tail after it.
  static T dx_of(float dy, float y, bool m) {
    constexpr i64 kSize = 37;
    const std::vector<T> gradient(kSize, narrow<T>(dy)), output(kSize, narrow<T>(y));
    const std::vector<u32> mask(2, m ? ~0u : 0u);
    std::vector<T> dx(kSize);
    gelu_backward<typename Case::Fit, T, Case::kSchedule>(gradient.data(), output.data(), mask.data(),
                                                          dx.data(), kSize);
    for (const T& value : dx) EXPECT_EQ(canonical_bits(value), canonical_bits(dx[0]));
    return dx[0];
  }
  static float g_of(float y, bool m) { return widen(dx_of(1.0f, y, m)); }

  static ForwardElement<T> forward_of(float x) {
    constexpr i64 kSize = 37;
    const std::vector<T> input(kSize, narrow<T>(x));
    std::vector<T> y(kSize);
    std::vector<u32> mask(2);
    gelu_forward<typename Case::Forward, T, Case::kSchedule>(input.data(), y.data(), mask.data(), kSize);
    for (const T& value : y) EXPECT_EQ(canonical_bits(value), canonical_bits(y[0]));
    EXPECT_EQ(mask[0], mask[0] & 1 ? ~0u : 0u);
    EXPECT_EQ(mask[1], mask[0] & 1 ? 0x1fu : 0u);  // bits beyond the 37 elements are 0
    return {y[0], (mask[0] & 1) != 0};
  }
};

template <class T, int kBits>
using Real = Case<T, typename DefaultFit<T>::Type, typename ForwardFit<T>::Type, kBits>;
using Cases = testing::Types<
    Real<float, 0>, Real<F16, 0>, Real<BF16, 0>, Real<float, kBestVectorBits>, Real<F16, kBestVectorBits>,
    Real<BF16, kBestVectorBits>, Case<float, synthetic::WithLeft, synthetic::Forward<64>, 0>,
    Case<F16, synthetic::WithLeft, synthetic::ForwardOf<F16, 64>, kBestVectorBits>,
    Case<BF16, synthetic::WithoutLeft<16, 4>, synthetic::ForwardOf<BF16, 128>, kBestVectorBits>>;
TYPED_TEST_SUITE(Gelu, Cases);

TYPED_TEST(Gelu, NanGivesNan) {
  for (const bool m : {false, true}) {
    EXPECT_TRUE(std::isnan(this->g_of(kNan, m)));
    EXPECT_TRUE(std::isnan(this->g_of(-kNan, m)));
    EXPECT_TRUE(std::isnan(widen(this->dx_of(kNan, 1.0f, m))));
  }
  for (const float x : {kNan, -kNan}) {
    EXPECT_TRUE(std::isnan(widen(this->forward_of(x).y)));
    EXPECT_FALSE(this->forward_of(x).m);
  }
}

TYPED_TEST(Gelu, ZerosAndInfinitiesForward) {
  EXPECT_EQ(canonical_bits(this->forward_of(0.0f).y) & 0x7fffffffu, 0u);
  EXPECT_EQ(bits_of(widen(this->forward_of(-0.0f).y)), 0x80000000u);
  EXPECT_TRUE(this->forward_of(0.0f).m);
  EXPECT_TRUE(this->forward_of(-0.0f).m);
  EXPECT_EQ(bits_of(widen(this->forward_of(-kInfinity).y)), 0x80000000u);
  EXPECT_FALSE(this->forward_of(-kInfinity).m);
  EXPECT_EQ(widen(this->forward_of(kInfinity).y), kInfinity);
  EXPECT_TRUE(this->forward_of(kInfinity).m);
}

TYPED_TEST(Gelu, TailsOfTheDerivativeAreExact) {
  EXPECT_EQ(this->g_of(kInfinity, true), 1.0f);
  EXPECT_EQ(this->g_of(100.0f, true), 1.0f);
  EXPECT_EQ(this->g_of(-0.0f, false), 0.0f);
}

TYPED_TEST(Gelu, InfiniteGradientTimesZeroIsNan) {
  EXPECT_TRUE(std::isnan(widen(this->dx_of(kInfinity, -0.0f, false))));
  EXPECT_EQ(widen(this->dx_of(-kInfinity, 100.0f, true)), -kInfinity);
}

TYPED_TEST(Gelu, ForeignOutputsAreClampedToTheNearestEnd) {
  EXPECT_EQ(this->g_of(2.0f, false), 0.0f);
  EXPECT_EQ(this->g_of(kInfinity, false), 0.0f);
  for (const bool m : {false, true}) {
    // Below y* the coordinate is its floor, sqrt(t_min).
    const float lowest = this->g_of(-1.0f, m);
    EXPECT_TRUE(std::isfinite(lowest));
    EXPECT_EQ(this->g_of(-50.0f, m), lowest);
    EXPECT_EQ(this->g_of(-kInfinity, m), lowest);
  }
}

// dx = RN_format(RN_f32(dy g)): the product is rounded to fp32 first.
TYPED_TEST(Gelu, ProductIsRoundedToFp32ThenStored) {
  using Stored = typename TypeParam::T;
  for (const float y : {-0.16f, -0.1f, 0.3f, 1.7f}) {
    for (const float dy : {1.0f, -3.25f, 0.007f, 1000.0f}) {
      for (const bool m : {false, true}) {
        const float g = evaluate_backward<typename TypeParam::Fit>(FloatOps{}, widen(narrow<Stored>(y)), m);
        const volatile float product = widen(narrow<Stored>(dy)) * g;
        EXPECT_EQ(canonical_bits(this->dx_of(dy, y, m)), canonical_bits(narrow<Stored>(product)));
      }
    }
  }
}

// A tie of the 16-bit format is decided by f(x) > x/2, not by evenness.
TYPED_TEST(Gelu, TinyTiesRoundAsTheExactValue) {
  using Stored = typename TypeParam::T;
  if constexpr (sizeof(Stored) == 2 &&
                std::is_same_v<typename TypeParam::Forward, typename ForwardFit<Stored>::Type>) {
    const float least = widen(Stored{1});
    EXPECT_EQ(this->forward_of(least).y.bits, 1u);            // f = least/2 + more, rounds up
    EXPECT_EQ(this->forward_of(-least).y.bits, 0x8000u);      // -least/2 + more, rounds towards 0
    EXPECT_EQ(this->forward_of(3 * least).y.bits, 2u);
    EXPECT_EQ(this->forward_of(-3 * least).y.bits, 0x8001u);
  }
}

// The k-th value of T from 0 upwards or downwards.
template <class T>
double value_at(int k) {
  const double magnitude = widen(T{static_cast<u16>(std::abs(k))});
  return k < 0 ? -magnitude : magnitude;
}

// Where abs(x) <= 2^-5 the series of f ends soon: f(x) - x/2 = (x^2 - x^4/6 + x^6/40 - x^8/336) / sqrt(2 pi),
// the next term less than 2^-51 of it. x/2 and the midpoints of the format are short, so which side of a
// midpoint f lies on is decided without a rounding that matters.
TYPED_TEST(Gelu, SmallArgumentsAreRoundedCorrectly) {
  using Stored = typename TypeParam::T;
  if constexpr (sizeof(Stored) == 2 &&
                std::is_same_v<typename TypeParam::Forward, typename ForwardFit<Stored>::Type>) {
    std::vector<Stored> x;
    for (int k = 0; value_at<Stored>(k) <= 0x1p-5; ++k) {
      for (const int sign : {0, 0x8000}) x.push_back(Stored{static_cast<u16>(k | sign)});
    }
    std::vector<Stored> y(x.size());
    std::vector<u32> mask(x.size() / 32 + 1);
    gelu_forward<typename TypeParam::Forward, Stored, TypeParam::kSchedule>(x.data(), y.data(), mask.data(),
                                                                            static_cast<i64>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = widen(x[i]), square = v * v;
      const double above_half = square *
                                (1 - square / 6 + square * square / 40 - square * square * square / 336) /
                                std::sqrt(2 * std::numbers::pi);
      const int magnitude = y[i].bits & 0x7fff, k = y[i].bits == magnitude ? magnitude : -magnitude;
      const auto midpoint_less_half = [&](int neighbour) {
        return (value_at<Stored>(k) + value_at<Stored>(neighbour)) / 2 - v / 2;
      };
      ASSERT_LE(midpoint_less_half(k - 1), above_half) << std::hexfloat << v;
      ASSERT_LE(above_half, midpoint_less_half(k + 1)) << std::hexfloat << v;
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
