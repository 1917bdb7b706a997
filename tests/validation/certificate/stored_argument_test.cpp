// The numbers of a format and the x behind them, beside what f is there in double.
#include "validation/certificate/stored_argument.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outgrad::validation {
namespace {

double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

TEST(StoredArgument, EachNumberStandsForWhatRoundsToIt) {
  const StoredGrid bf16("bf16"), parity("bf16_parity"), f16("f16");
  // Below 1 the numbers are twice as dense as above.
  EXPECT_EQ(bf16.range(1), std::pair(1 - 0x1p-9, 1 + 0x1p-8));
  EXPECT_EQ(bf16.range(-1), std::pair(-1 - 0x1p-8, -1 + 0x1p-9));
  // In a parity format the neighbours of a number below 0 are the other branch's.
  EXPECT_EQ(parity.range(-1), std::pair(-1 - 0x1p-7, -1 + 0x1p-8));
  EXPECT_EQ(parity.range(1), bf16.range(1));
  EXPECT_EQ(f16.range(0), std::pair(-0x1p-25, 0x1p-25));
}

TEST(StoredArgument, OnABranchSomeNumbersStandForNothing) {
  const Activation& activation = activation_of("gelu", "x*normal_cdf(x)", true);
  const Interval& y_star = activation.y_star();  // -0.16997...
  const StoredGrid grid("bf16");
  using Reach = StoredGrid::Reach;
  EXPECT_EQ(grid.reach(0.5, true, y_star), Reach::yes);
  EXPECT_EQ(grid.reach(0.5, false, y_star), Reach::no);
  EXPECT_EQ(grid.reach(-0.125, false, y_star), Reach::yes);
  EXPECT_EQ(grid.reach(-0.25, true, y_star), Reach::no);
  // the end of -0.25's range lies within
  EXPECT_EQ(grid.reach(-0.25, true, Interval(-0.2505, -0.2485)), Reach::unclear);
}

TEST(StoredArgument, TheArgumentIsStoredAsTheNumber) {
  const Activation& activation = activation_of("gelu", "x*normal_cdf(x)", true);
  const StoredGrid grid("bf16");
  for (const double y : {-0.125, -0x1p-20, 0x1p-30, 0.5, 3.0, 0x1.fep100}) {
    for (const bool m : {true, false}) {
      const std::optional<double> x = argument_of(activation, true, grid, y, m);
      ASSERT_EQ(x.has_value(), m || y < 0) << y << " " << m;
      if (!x) continue;
      EXPECT_EQ(*x > activation.x_star().middle(), m);
      EXPECT_EQ(grid.nearest(gelu(*x)), y);
    }
  }
  // -0 stands for what is below 0 and +0 for what is above, which left of the minimum is nothing.
  for (const bool m : {true, false}) EXPECT_LT(argument_of(activation, true, grid, -0.0, m).value(), 0) << m;
  EXPECT_GT(gelu(argument_of(activation, true, grid, 0.0, true).value()), 0);
  EXPECT_FALSE(argument_of(activation, true, grid, 0.0, false));
  EXPECT_FALSE(argument_of(activation, true, grid, 0.1, true));  // no number of the format
}

}  // namespace
}  // namespace outgrad::validation
