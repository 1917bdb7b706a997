#include "approx/search/programme.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outgrad::approx {
namespace {

double value(const ProgrammeSolution& s, double u) {
  double p = 0;
  for (size_t k = s.c.size(); k-- > 0;) p = p * u + s.c[k];
  return p;
}

TEST(Programme, WeighsErrorsByTheirTolerances) {
  // A constant between 0 +- 1 and 1 +- 3 errs by 1/4 of each.
  const auto s = solve_programme({{0, 0, 1}, {1, 1, 3}}, 0, 0);
  ASSERT_TRUE(s);
  EXPECT_NEAR(s->c[0], 0.25, 1e-4);
  EXPECT_NEAR(s->error, 0.25, 1e-4);
  EXPECT_LE(s->level, s->error);
}

TEST(Programme, ServesEveryRangeAboutItsCentreOrProvesThatNothingDoes) {
  std::vector<Range> ranges;
  for (int k = -20; k <= 20; ++k) ranges.push_back({0.7 + 0.05 * k, std::sin(0.7 + 0.05 * k), 0.01});
  const auto s = solve_programme(ranges, 4, 0.7);
  ASSERT_TRUE(s);
  EXPECT_LE(s->error, 1);
  for (const Range& r : ranges)
    EXPECT_LE(std::abs(value(*s, r.v - 0.7) - r.middle), r.tolerance * s->error * (1 + 1e-9));
  for (Range& r : ranges) r.tolerance = 1e-7;
  const auto tight = solve_programme(ranges, 4, 0.7);
  ASSERT_TRUE(tight);
  EXPECT_GT(tight->level, 1);
}

TEST(Programme, RangesThatShareACoordinateMeetOrAreRefused) {
  const auto s = solve_programme({{0, 0, 1}, {0, 1.5, 1}, {1, 1, 0.25}}, 0, 0);
  ASSERT_TRUE(s);
  EXPECT_LE(s->error, 1);
  EXPECT_GE(s->c[0], 0.5);
  EXPECT_LE(s->c[0], 1);
  EXPECT_FALSE(solve_programme({{0, 0, 1}, {0, 2.5, 1}}, 3, 0));
  // fewer ranges than coefficients: the least degree that meets them
  const auto two = solve_programme({{0, 3, 1}, {1, 5, 1}}, 3, 0);
  ASSERT_TRUE(two);
  EXPECT_NEAR(value(*two, 1), 5, 1e-12);
  EXPECT_EQ(two->c[2], 0);
}

}  // namespace
}  // namespace outgrad::approx
