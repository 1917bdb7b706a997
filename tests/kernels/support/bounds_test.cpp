// What is shown is no less than the bound, and no further above than a unit of its last digit.
#include "kernels/support/bounds.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace outgrad::kernels {
namespace {

TEST(Bounds, AreRoundedUpByLessThanAUnit) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-290, 290);
  for (int round = 0; round < 20000; ++round) {
    const double bound = (round % 2 == 0 ? 1 : -1) * std::pow(10, exponent(random));
    for (const int digits : {1, 3, 6}) {
      const double shown = digits_up(bound, digits);
      ASSERT_GE(shown, bound - kUnseen * std::fabs(bound)) << digits;
      ASSERT_LE(shown - bound, std::pow(10, 1.001 - digits) * std::fabs(bound)) << bound << " " << digits;
    }
    const double small = std::fmod(bound, 1e3), shown = decimals_up(small, 4);
    ASSERT_GE(shown, small - kUnseen * std::fabs(small));
    ASSERT_LE(shown - small, 1.0001e-4) << small;
  }
}

TEST(Bounds, DecimalsStay) {
  EXPECT_EQ(decimals_up(1 + 0x1p-46, 4), 1);
  EXPECT_EQ(decimals_up(1 + 0x1p-25, 4), 1.0001);
  for (const double decimal : {0.1, 1.05, 0.0116, 99.9, 1e-30, -0.3, 0.0}) {
    EXPECT_EQ(digits_up(decimal, 3), decimal);
    if (std::fabs(decimal) > 1e-4 || decimal == 0) {
      EXPECT_EQ(decimals_up(decimal, 4), decimal);
    }
  }
  EXPECT_EQ(digits_up(0.99991, 3), 1.0);
  EXPECT_EQ(digits_up(9.991e-5, 3), 1e-4);
  EXPECT_EQ(-digits_up(-0.0116999, 3), 0.0116);
}

TEST(Bounds, AsPowersOfTwo) {
  EXPECT_EQ(power_up(0x1p-12), "2^-12.00");
  EXPECT_EQ(power_up(0x1.0001p-12), "2^-11.99");
  EXPECT_EQ(power_up(std::exp2(-10.8049)), "2^-10.80");
  EXPECT_EQ(power_up(std::exp2(-10.7951), 3), "2^-10.795");
  EXPECT_EQ(power_up(0), "0");
}

TEST(Bounds, WhatIsNoNumberStaysWhatItIs) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(digits_up(infinity, 3), infinity);
  EXPECT_EQ(decimals_up(infinity, 3), infinity);
  EXPECT_TRUE(std::isnan(digits_up(std::nan(""), 3)));
  EXPECT_EQ(power_up(std::nan("")), "nan");
  EXPECT_EQ(power_up(infinity), "2^inf");
}

}  // namespace
}  // namespace outgrad::kernels
