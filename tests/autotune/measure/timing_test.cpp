// Rounds, the discard rule, intervals, ceilings.
#include "autotune/measure/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numbers>
#include <set>
#include <utility>

#include "autotune/measure/isolate.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

TEST(Rounds, EachRunsEveryWorkloadOnceInChangingOrder) {
  std::vector<int> order;
  std::vector<Workload> workloads;
  for (int i = 0; i < 5; ++i)
    workloads.push_back({std::to_string(i), 1, [&order, i] { order.push_back(i); }});
  Rounds rounds(workloads, 3);
  rounds.run(/*warm_up=*/true);
  order.clear();
  std::set<std::vector<int>> orders;
  for (int round = 0; round < 20; ++round) {
    rounds.run();
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 5u);
    EXPECT_EQ(order.size(), 5u);
    orders.insert(order);
    order.clear();
  }
  EXPECT_GT(orders.size(), 10u);                                                            // of 120
  // the warm-up left none
  for (const std::vector<double>& times : rounds.times_ns()) EXPECT_EQ(times.size(), 20u);
}

TEST(Rounds, StopAtTheLimitWhenTheCeilingIsNeverSteady) {
  long long spin = 1000;
  volatile long long sink = 0;
  // Each call takes twice as long as the one before: all rounds but the first fall under the ceiling.
  const auto times = timed_until({{"ceiling", 1,
                                   [&] {
                                     for (long long i = 0; i < spin; ++i) sink = sink + i;
                                     spin *= 2;
                                   }}},
                                 4, 1);
  EXPECT_EQ(times[0].size(), 12u);
}

TEST(KeptRounds, DiscardsUnderTheSharePreciselyAndKeepsAllAtZero) {
  const std::vector<double> times = {90, 100, 100.1, 89, 1000};  // best 89: kept up to 98.88
  EXPECT_EQ(kept_rounds(times), (std::vector<bool>{true, false, false, true, false}));
  EXPECT_EQ(kept_rounds({9, 10}), (std::vector<bool>{true, true}));
  EXPECT_EQ(kept_rounds(times, 0), std::vector<bool>(5, true));
  EXPECT_TRUE(kept_rounds({}).empty());
}

// One lucky round in ten must not discard the nine that tell what the machine does.
TEST(KeptRounds, ALuckyRoundDoesNotJudgeTheOthers) {
  std::vector<double> times(20, 100);
  times[3] = times[17] = 60;
  times[5] = 130;
  std::vector<bool> expected(20, true);
  expected[5] = false;
  EXPECT_EQ(kept_rounds(times), expected);
  times[4] = 60;  // three of twenty: the machine can do it
  EXPECT_EQ(std::ranges::count(kept_rounds(times), true), 3);
}

// Ratios of every spread, with outliers and aslant: each is a quantile function of uniform numbers, and the
// median its value at 1/2. Of 8 rounds 0.78% of the intervals miss it, of 24 0.66%.
TEST(RatioInterval, HoldsTheMedianWithItsConfidence) {
  std::uint64_t random = 5;
  constexpr int kTrials = 20000;
  for (const std::size_t rounds : {kFewestRounds, std::size_t{24}}) {
    const std::vector<double> ones(rounds, 1);
    const std::vector<bool> all(rounds, true);
    for (double (*quantile)(double) : {+[](double u) { return 1 + 0.03 * std::log(u / (1 - u)); },
                                       +[](double u) { return std::sqrt(u / (1 - u)); },
                                       +[](double u) { return std::tan(3.14159 * (u - 0.5)); }}) {
      int missed = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::vector<double> ratios(rounds);
        for (double& ratio : ratios)
          ratio = quantile(static_cast<double>(kernels::next_random(random) >> 11) * 0x1p-53);
        const Interval interval = ratio_interval(ratios, ones, all);
        EXPECT_LE(interval.low, interval.median);
        EXPECT_LE(interval.median, interval.high);
        missed += quantile(0.5) < interval.low || interval.high < quantile(0.5);
      }
      EXPECT_LE(missed, (1 - kConfidence) * kTrials) << rounds << " rounds";
      EXPECT_GE(missed, (1 - kConfidence) * kTrials / 2) << rounds << " rounds: wider than need be";
    }
  }
}

TEST(RatioInterval, SeesPastDrift) {
  std::uint64_t random = 5;
  const auto noise = [&] {
    return 0.97 + 0.06 * static_cast<double>(kernels::next_random(random) >> 11) * 0x1p-53;
  };
  std::vector<double> slow, fast;
  for (int round = 0; round < 24; ++round) {
    const double drift = 1 + (round % 7);  // what plain means of times would drown in
    slow.push_back(1.05 * drift * noise());
    fast.push_back(drift * noise());
  }
  const Interval speedup = ratio_interval(slow, fast, std::vector<bool>(24, true));
  EXPECT_GT(speedup.low, 1.01);
  EXPECT_LT(speedup.high, 1.09);
}

TEST(RatioInterval, UsesKeptRoundsOnly) {
  const Interval interval = ratio_interval({2, 100, 2}, {1, 1, 1}, {true, false, true});
  EXPECT_EQ(interval.median, 2);
  EXPECT_EQ(interval.high, 2);
  EXPECT_EQ(ratio_interval({1}, {1}, {false}).median, 1);
}

TEST(Spearman, IsOfRanksAndSharesThoseOfTies) {
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {10, 100, 1000, 1e9}), 1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {4, 3, 2, 1}), -1);
  // Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: 4.5 / sqrt(4.5 x 5).
  EXPECT_DOUBLE_EQ(spearman({1, 7, 7, 9}, {1, 2, 3, 4}), 4.5 / std::sqrt(4.5 * 5));
  EXPECT_DOUBLE_EQ(spearman({9, 7, 1, 7}, {4, 2, 1, 3}), 4.5 / std::sqrt(4.5 * 5))
      << "the order of pairs is nobody's";
  // Without ties 1 - 6 sum d^2 / (n^3 - n): d = 1, 1, 1, 1, 0.
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4, 5}, {2, 1, 4, 3, 5}), 1 - 6.0 * 4 / 120);
  EXPECT_TRUE(std::isnan(spearman({1}, {1})));
  EXPECT_TRUE(std::isnan(spearman({1, 2}, {3, 3})));
  EXPECT_TRUE(std::isnan(spearman({1, 2}, {3, 4, 5})));
}

double uniform(std::uint64_t& state) {
  return static_cast<double>(kernels::next_random(state) >> 11) * 0x1p-53;
}

double normal(std::uint64_t& state) {
  const double radius = std::sqrt(-2 * std::log1p(-uniform(state)));
  return radius * std::cos(2 * std::numbers::pi * uniform(state));
}

// How a prediction and its measured time come about.
using Pair = std::function<std::pair<double, double>(std::uint64_t& state)>;

Pair normal_pair(double correlation) {
  return [=](std::uint64_t& state) {
    const double x = normal(state);
    return std::pair(x, correlation * x + std::sqrt(1 - correlation * correlation) * normal(state));
  };
}

std::pair<std::vector<double>, std::vector<double>> sample(const Pair& pair, std::size_t n,
                                                           std::uint64_t& state) {
  std::vector<double> a, b;
  for (std::size_t i = 0; i < n; ++i) {
    const auto [x, y] = pair(state);
    a.push_back(x), b.push_back(y);
  }
  return {a, b};
}

double correlation_of_many(const Pair& pair) {
  std::uint64_t state = 5;
  const auto [a, b] = sample(pair, 500'000, state);
  return spearman(a, b);
}

// The share of samples of n pairs whose interval holds the true correlation.
double coverage(const Pair& pair, double truth, std::size_t n, int samples) {
  std::uint64_t state = n;
  int held = 0;
  for (int i = 0; i < samples; ++i) {
    const auto [a, b] = sample(pair, n, state);
    const Interval interval = spearman_interval(a, b);
    held += interval.low <= truth && truth <= interval.high;
  }
  return static_cast<double>(held) / samples;
}

// autotune/README.md and timing.h state what is asserted here.
TEST(Spearman, HasAnIntervalThatHoldsThatOfAllPairs) {
  const Pair slow_scatter = [](std::uint64_t& state) {
    const double x = uniform(state);
    return std::pair(x, x * (1 + 0.2 * normal(state)));
  };
  const Pair heavy_tails = [](std::uint64_t& state) {
    const auto [x, y] = normal_pair(0.8)(state);
    const double spread = 1 / std::abs(normal(state));
    return std::pair(spread * x, spread * y);
  };
  const Pair few_predictions = [](std::uint64_t& state) {
    const auto [x, y] = normal_pair(0.8)(state);
    return std::pair(std::floor(2 * x), y);
  };
  const std::pair<const char*, Pair> pairs[] = {
      {"normal, 0", normal_pair(0)},       {"normal, 0.8", normal_pair(0.8)},
      {"normal, 0.99", normal_pair(0.99)}, {"slow points scatter", slow_scatter},
      {"heavy tails", heavy_tails},        {"few predictions", few_predictions}};
  for (const auto& [name, pair] : pairs) {
    const double truth = correlation_of_many(pair);
    for (const auto& [n, samples] : {std::pair{8U, 2000}, {16U, 2000}, {32U, 2000}, {96U, 500}, {384U, 100}})
      EXPECT_GE(coverage(pair, truth, n, samples), 0.96) << name << ", " << n << " pairs";
  }
  // One prediction in twenty means nothing: of 32, one sample in five has none of these.
  const Pair rare_blunders = [](std::uint64_t& state) {
    const double x = uniform(state), y = x + 0.05 * normal(state), other = uniform(state);
    return std::pair(x, uniform(state) < 0.05 ? other : y);
  };
  const double of_blunders = coverage(rare_blunders, correlation_of_many(rare_blunders), 32, 2000);
  EXPECT_GE(of_blunders, 0.85);
  EXPECT_LT(of_blunders, 0.96) << "the pages say that it is less";
}

TEST(Spearman, HasAnIntervalThatNarrowsWithMorePairs) {
  const auto width = [](std::size_t n) {
    std::uint64_t state = 5;
    const auto [a, b] = sample(normal_pair(0.7), n, state);
    const Interval interval = spearman_interval(a, b);
    EXPECT_DOUBLE_EQ(interval.median, spearman(a, b));
    EXPECT_LT(interval.low, interval.median);
    EXPECT_GT(interval.high, interval.median);
    return interval.high - interval.low;
  };
  EXPECT_LT(width(1000), 0.5 * width(50));
  EXPECT_TRUE(std::isnan(spearman_interval({1, 1}, {1, 2}).median));
}

TEST(Spearman, OfFewPairsOrThoseInOneOrderIsNotCertain) {
  const auto expect = [](const Interval& interval, double low, double median, double high) {
    EXPECT_DOUBLE_EQ(interval.low, low);
    EXPECT_DOUBLE_EQ(interval.median, median);
    EXPECT_DOUBLE_EQ(interval.high, high);
  };
  expect(spearman_interval({1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 5, 6, 7}), -1, 1, 1);
  expect(spearman_interval({0, 0, 0, 0, 0, 0, 0, 1}, {1, 2, 3, 4, 5, 6, 7, 8}), -1,
         spearman({0, 0, 0, 0, 0, 0, 0, 1}, {1, 2, 3, 4, 5, 6, 7, 8}), 1);
  std::vector<double> up, down;
  for (int i = 0; i < 96; ++i) up.push_back(i), down.push_back(-i);
  // 48 pairs of points in one order: with a chance above 1% where a pair is so with 0.01^(1/48).
  const double end = 3 * std::pow(0.01, 1.0 / 48) - 2;
  expect(spearman_interval(up, up), end, 1, 1);
  expect(spearman_interval(up, down), -1, -1, -end);
}

// In a child, like all code that enters OpenMP here (autotune/measure/isolate.h says why).
TEST(Ceilings, ComputeWhatTheySayForAnyLength) {
  const auto body = [](const Channel& channel) {
    constexpr std::size_t kMost = 1024;
    const auto array = [] { return static_cast<float*>(std::aligned_alloc(64, kMost * sizeof(float))); };
    float *a = array(), *b = array(), *sum = array(), *same = array();
    for (std::size_t i = 0; i < kMost; ++i)
      a[i] = static_cast<float>(i), b[i] = static_cast<float>(2 * i + 1);
    int wrong = 0;
    for (const long long n : {0, 1, 15, 16, 17, 1000, 1024}) {
      std::fill(sum, sum + kMost, -1.0f);
      std::fill(same, same + kMost, -1.0f);
      triad(a, b, sum, n);
      copy(a, same, n);
      for (std::size_t i = 0; i < kMost; ++i) {
        const bool inside = i < static_cast<std::size_t>(n);
        wrong += sum[i] != (inside ? a[i] + 3 * b[i] : -1) || same[i] != (inside ? a[i] : -1);
      }
    }
    channel.report({{"wrong", wrong}});
  };
  int wrong = -1;
  const ChildEnd end =
      run_isolated(body, [&](const nlohmann::json& report) { wrong = report["wrong"].get<int>(); }, {});
  EXPECT_EQ(end.kind, ChildEnd::Kind::kFinished) << end.detail;
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace outgrad::autotune
