// A median is what lies in the middle; quantiles are those of the tables.
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

// Of 1, 2 and 4 degrees there are formulas, the others are Abramowitz and Stegun's table 26.10.
TEST(Statistics, StudentsT) {
  EXPECT_NEAR(students_t(0.99, 1), std::tan(0.99 * std::acos(0.0)), 1e-9);
  EXPECT_NEAR(students_t(0.99, 2), 0.99 * std::sqrt(2 / (1 - 0.99 * 0.99)), 1e-12);
  const auto of_four = [](double t) {
    const double sine = t / std::sqrt(4 + t * t);
    return sine * (1 + (1 - sine * sine) / 2);
  };
  EXPECT_NEAR(of_four(students_t(0.99, 4)), 0.99, 1e-14);
  EXPECT_NEAR(students_t(0.99, 3), 5.841, 5e-4);
  EXPECT_NEAR(students_t(0.99, 7), 3.499, 5e-4);
  EXPECT_NEAR(students_t(0.95, 10), 2.228, 5e-4);
  EXPECT_NEAR(students_t(0.99, 30), 2.750, 5e-4);
  EXPECT_NEAR(students_t(0.99, 100'000), 2.5758293 * (1 + (2.5758293 * 2.5758293 + 1) / 4e5), 1e-6);
}

}  // namespace
}  // namespace outgrad::kernels
