// The specified cases that hold for every activation's fit: NaN, infinities, values beyond f's range, the
// mask.
#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/host/elementwise.h"
#include "kernels/simd.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class FitT, int kBits>
struct Case {
  using Fit = FitT;
  static constexpr CpuSchedule kSchedule{.vector_bits = kBits, .unroll = kBits > 0 ? 2 : 1};
};

template <class Case>
class Activation : public testing::Test {
 protected:
  // One value at every place of the vectors and of the tail after them; the mask is given only where the fit
  // has one.
  static float dx_of(float dy, float y, bool m) {
    constexpr i64 kSize = 67;
    const std::vector<float> gradient(kSize, dy), output(kSize, y);
    const std::vector<u32> mask(3, m ? ~0u : 0u);
    std::vector<float> dx(kSize);
    activation_backward<typename Case::Fit, float, Case::kSchedule>(
        gradient.data(), output.data(), Case::Fit::kMasked ? mask.data() : nullptr, dx.data(), kSize);
    for (const float value : dx) EXPECT_EQ(canonical_bits(value), canonical_bits(dx[0]));
    return dx[0];
  }
};

using Cases =
    testing::Types<Case<synthetic::Unmasked<16, 4>, 0>, Case<synthetic::Unmasked<16, 4>, kBestVectorBits>,
                   Case<synthetic::Unmasked<8, 5, kEvenOdd>, kBestVectorBits>, Case<synthetic::OneRow<6>, 0>,
                   Case<synthetic::OneRow<6>, kBestVectorBits>, Case<synthetic::WithBreaks<5, 4>, 0>,
                   Case<synthetic::WithBreaks<5, 4>, kBestVectorBits>,
                   Case<synthetic::WithLeftAndRight, kBestVectorBits>,
                   Case<synthetic::TwoWord, kBestVectorBits>>;
TYPED_TEST_SUITE(Activation, Cases);

TYPED_TEST(Activation, NanGivesNan) {
  for (const bool m : {false, true}) {
    for (const float nan : {kNan, -kNan}) {
      EXPECT_TRUE(std::isnan(this->dx_of(1.0f, nan, m)));
      EXPECT_TRUE(std::isnan(this->dx_of(nan, 0.25f, m)));
    }
  }
}

TYPED_TEST(Activation, BeyondTheRangeTheDerivativeIsThatOfTheEnd) {
  using Fit = typename TypeParam::Fit;
  const float right = this->dx_of(1.0f, Fit::kYMax, true);
  for (const float y : {std::nextafterf(Fit::kYMax, kInfinity), 2 * Fit::kYMax, 1e30f, kInfinity})
    EXPECT_EQ(this->dx_of(1.0f, y, true), right) << y;
  for (const bool m : {false, true}) {
    const float low = this->dx_of(1.0f, -2.0f, m);
    EXPECT_TRUE(std::isfinite(low));
    for (const float y : {-3.0f, -1e30f, -kInfinity}) EXPECT_EQ(this->dx_of(1.0f, y, m), low) << y;
  }
  if constexpr (!Fit::kMasked) {
    EXPECT_EQ(right, 0.0f);  // the limits that the ends of this fit are pinned to
    EXPECT_EQ(this->dx_of(1.0f, -kInfinity, false), 0.0f);
    EXPECT_TRUE(std::isnan(this->dx_of(kInfinity, kInfinity, false)));
  }
}

}  // namespace
}  // namespace outgrad::kernels
