// What `bench` says of times: figures where rounds and intervals carry them, and otherwise that the machine
// was too busy.
#include "autotune/bench/group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "autotune/bench/stores.h"

namespace outgrad::autotune {
namespace {

// A triad and a copy of 3 and 2 bytes an element, one kernel of 2, and its peer; all rounds alike.
BenchGroup group_of(std::size_t rounds) {
  BenchGroup group;
  const auto add = [&](const char* name, double bytes, double ns) {
    group.cases.push_back({name, "v", "", {}, 1000, bytes, std::vector<double>(rounds, ns)});
  };
  add("triad", 3000, 300), add("copy", 2000, 200), add("gelu_backward", 2000, 250),
      add("torch_gelu_backward", 2000, 500);
  return group;
}

std::string line_of(const BenchGroup& group, const std::string& name) {
  const std::string text = text_of(group);
  const std::size_t begin = text.find("  " + name + " ");
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(BenchGroup, AQuietMachineHasFigures) {
  const BenchGroup group = group_of(20);
  const std::string line = line_of(group, "gelu_backward");
  EXPECT_NE(line.find("8.00 GB/s   80.0% of triad [80.0, 80.0]   4.000 G elements/s"), std::string::npos)
      << line;
  EXPECT_NE(line.find("2.00x [2.00, 2.00] torch"), std::string::npos) << line;
  const nlohmann::json json = to_json(group)["cases"][2];
  EXPECT_EQ(json["status"], "ok");
  EXPECT_EQ(json["gb_per_s"], 8);
  EXPECT_DOUBLE_EQ(json["share_of_triad"]["median"].get<double>(), 0.8);
  EXPECT_EQ(json["against_torch"]["median"], 2);
}

// Of kernels that take the same time, each as often disturbed as the other.
TEST(StoreSpeeds, AreNoneOfTheOrder) {
  constexpr std::size_t kRounds = 2000;
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 0.1);
  std::vector<std::vector<double>> ns(5, std::vector<double>(kRounds));
  for (std::vector<double>& times : ns)
    for (double& time : times) time = 1e6 * std::exp(noise(random));
  std::vector<StoreSpeed> stores = {{"plain"}, {"other"}};
  rate(stores, ns);
  for (const Interval& speed : {stores[1].forward, stores[1].backward}) {
    EXPECT_LE(speed.low, 1);
    EXPECT_GE(speed.high, 1);
    EXPECT_NEAR(speed.median, 1, 0.03);
  }
  EXPECT_EQ(stores[0].forward.median, 1);
}

// 24 of 30 rounds beside a load: 6 of them are kept, fewer than any 99% interval of a median takes.
TEST(BenchGroup, TooFewRoundsAreNoFigure) {
  BenchGroup group = group_of(30);
  for (std::size_t r = 6; r < 30; ++r) group.cases[0].ns[r] = 1000;
  ASSERT_EQ(count_of(group.kept()), 6u);
  const std::string line = line_of(group, "gelu_backward");
  EXPECT_NE(line.find("too noisy: 6 of 30 rounds usable, interval [80.00, 80.00]% of triad"),
            std::string::npos)
      << line;
  EXPECT_EQ(line.find("GB/s"), std::string::npos) << line;
  EXPECT_EQ(line.find("2.00x"), std::string::npos) << line;
  const nlohmann::json all = to_json(group), json = all["cases"][2];
  EXPECT_EQ(all["discarded_rounds"], 24);
  EXPECT_EQ(json["status"], "too noisy");
  EXPECT_TRUE(json["gb_per_s"].is_null());
  EXPECT_TRUE(json["share_of_triad"]["median"].is_null());
  EXPECT_DOUBLE_EQ(json["share_of_triad"]["low"].get<double>(), 0.8);
  EXPECT_TRUE(json["against_torch"]["median"].is_null());
  EXPECT_EQ(json["ns"].size(), 30u) << "what was measured stays";
  EXPECT_EQ(to_json(group_of(8))["cases"][2]["status"], "ok");
  EXPECT_EQ(to_json(group_of(7))["cases"][2]["status"], "too noisy");
}

// The ceiling was quiet, the kernel was not: half its rounds took 50 times as long. The other kernels keep
// their figures.
TEST(BenchGroup, TooWideAnIntervalIsNoFigure) {
  BenchGroup group = group_of(20);
  for (std::size_t r = 0; r < 10; ++r) group.cases[2].ns[r] *= 50;
  const std::string line = line_of(group, "gelu_backward");
  EXPECT_NE(line.find("too noisy: 20 of 20 rounds usable, interval [1.60, 80.00]% of triad"),
            std::string::npos)
      << line;
  EXPECT_EQ(line.find("GB/s"), std::string::npos) << line;
  EXPECT_NE(line_of(group, "copy").find("10.00 GB/s  100.0% of triad"), std::string::npos);
  const nlohmann::json cases = to_json(group)["cases"];
  EXPECT_EQ(cases[2]["status"], "too noisy");
  EXPECT_EQ(cases[2]["against_torch"]["status"], "too noisy");
  EXPECT_EQ(cases[1]["status"], "ok");
}

}  // namespace
}  // namespace outgrad::autotune
