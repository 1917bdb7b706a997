// Every strategy: no point twice, all points in the end, the same from the same seed, failures survived; the
// guided ones beat chance.
#include "autotune/search/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "autotune/search/replay.h"
#include "kernels/support/statistics.h"
#include "tests/autotune/search/synthetic_recording.h"

namespace outgrad::autotune {
namespace {

class EveryStrategy : public testing::TestWithParam<std::string> {};

std::vector<std::size_t> asked_points(const std::string& name, const Recording& recording, std::uint64_t seed,
                                      std::size_t batch, std::size_t most) {
  const auto strategy = make_strategy(name, recording.points, seed);
  std::vector<std::size_t> points;
  while (points.size() < most) {
    const std::vector<std::size_t> asked = strategy->ask(std::min(batch, most - points.size()));
    if (asked.empty()) break;
    for (const std::size_t point : asked) strategy->tell(point, recording.evaluations[point].time_ms);
    points.insert(points.end(), asked.begin(), asked.end());
  }
  return points;
}

TEST_P(EveryStrategy, AsksForEachPointOnceAndRepeatsFromItsSeed) {
  const Recording recording = synthetic_recording();
  for (const std::size_t batch : {1, 7}) {
    const std::vector<std::size_t> points = asked_points(GetParam(), recording, 3, batch, 120);
    EXPECT_EQ(points.size(), 120u);
    EXPECT_EQ(std::set<std::size_t>(points.begin(), points.end()).size(), points.size());
    EXPECT_EQ(asked_points(GetParam(), recording, 3, batch, 120), points);
    if (GetParam() != "exhaustive") {
      EXPECT_NE(asked_points(GetParam(), recording, 4, batch, 120), points);
    }
  }
}

TEST_P(EveryStrategy, ExhaustsASmallSpace) {
  Space space;
  space.parameter("a", {1, 2, 3, 4, 5, 6, 7}).parameter("b", {0, 1, 2});
  space.constraint("odd", {"a", "b"}, [](const Point& p) { return (p[0] + p[1]) % 2 == 1; });
  const Points points = space.construct();
  for (const bool all_fail : {false, true}) {
    const auto strategy = make_strategy(GetParam(), points, 1);
    std::set<std::size_t> seen;
    for (std::vector<std::size_t> asked = strategy->ask(4); !asked.empty(); asked = strategy->ask(4))
      for (const std::size_t point : asked) {
        seen.insert(point);
        strategy->tell(point, all_fail ? std::nullopt : Outcome(1.0 + static_cast<double>(point)));
      }
    EXPECT_EQ(seen.size(), points.size());
  }
}

TEST_P(EveryStrategy, ASpaceOfOnePointAndOneOfNone) {
  Space one;
  one.parameter("a", {5});
  const Points points = one.construct();
  const auto strategy = make_strategy(GetParam(), points, 1);
  EXPECT_EQ(strategy->ask(3), std::vector<std::size_t>{0});
  EXPECT_TRUE(strategy->ask(3).empty());
  strategy->tell(0, 1.0);
  const Points none({{"a", {1}}}, {});
  EXPECT_TRUE(make_strategy(GetParam(), none, 1)->ask(1).empty());
}

TEST_P(EveryStrategy, ProposesOutsideSeedsFirstAndTakesWhatItDidNotAskFor) {
  const Recording recording = synthetic_recording();
  const auto strategy = make_strategy(GetParam(), recording.points, 1, {40, 17, 40});
  strategy->tell(17, 2.0);
  const std::vector<std::size_t> asked = strategy->ask(30);
  EXPECT_EQ(asked.front(), 40u);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), 17u), 0);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), 40u), 1);
  EXPECT_THROW(strategy->tell(17, 1.0), std::logic_error);
  EXPECT_THROW(strategy->tell(asked[1], 0.0), std::logic_error);
  EXPECT_THROW(strategy->tell(asked[1], INFINITY), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(All, EveryStrategy, testing::ValuesIn(strategy_names()),
                         [](const auto& chosen) { return chosen.param; });

TEST(Strategy, RandomIsUniform) {
  Space space;
  space.parameter("a", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Points points = space.construct();
  std::vector<int> first(10), last(10);
  constexpr int kRuns = 4000;
  for (int seed = 0; seed < kRuns; ++seed) {
    const auto strategy = make_strategy("random", points, static_cast<std::uint64_t>(seed));
    const std::vector<std::size_t> asked = strategy->ask(10);
    ++first[asked.front()], ++last[asked.back()];
  }
  // 400 expected of each, standard deviation 19: six of them.
  for (const auto& counts : {first, last})
    for (const int count : counts) EXPECT_NEAR(count, kRuns / 10, 114);
}

double median_share(const std::string& name, const Recording& recording, std::size_t evaluations,
                    std::size_t batch = 1) {
  std::vector<double> shares;
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    const auto strategy = make_strategy(name, recording.points, seed);
    shares.push_back(
        share_of_optimum(recording, replay(recording, *strategy, evaluations, batch), evaluations));
  }
  return kernels::median(std::move(shares));
}

TEST(Strategy, GuidedOnesBeatChanceAndTheDefaultReachesTheOptimum) {
  const Recording recording = synthetic_recording();
  const std::size_t budget = recording.points.size() / 20;
  const double random = median_share("random", recording, budget);
  EXPECT_LT(random, 0.95);
  EXPECT_GT(median_share("local", recording, budget), random);
  EXPECT_GT(median_share("evolutionary", recording, budget), random);
  EXPECT_GE(median_share("model", recording, budget), 0.98);
  EXPECT_GE(median_share("model", recording, budget, 4), 0.98) << "in batches";
}

// Above its limits the model works on samples of the space and of what it observed.
TEST(Strategy, TheModelSearchesASpaceLargerThanItsPool) {
  Space space;
  std::vector<std::int64_t> values;
  for (std::int64_t i = 1; i <= 40; ++i) values.push_back(i);
  space.parameter("a", values).parameter("b", values).parameter("c", values);
  const Points points = space.construct();
  const auto strategy = make_strategy("model", points, 1);
  double best = INFINITY;
  for (int i = 0; i < 120; ++i)
    for (const std::size_t point : strategy->ask(1)) {
      const Point p = points[point];
      const double time =
          1 + 0.01 * static_cast<double>((p[0] - 11) * (p[0] - 11) + (p[1] - 30) * (p[1] - 30) +
                                         (p[2] - 20) * (p[2] - 20));
      strategy->tell(point, time);
      best = std::min(best, time);
    }
  EXPECT_LE(best, 1.05);  // chance would find 1.4: 120 of 64,000 points
}

TEST(Strategy, UnknownNamesAreRefused) {
  EXPECT_THROW(make_strategy("tabu", Points({{"a", {1}}}, {0}), 1), std::invalid_argument);
  EXPECT_EQ(strategy_names().front(), "model");
}

}  // namespace
}  // namespace outgrad::autotune
