// A median is what lies in the middle.
#include "kernels/support/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outgrad::kernels {
namespace {

TEST(Statistics, Median) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

}  // namespace
}  // namespace outgrad::kernels
