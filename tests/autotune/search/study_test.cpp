// The table of strategies: order statistics, Kernel Tuner's runs merged by cache, seed and budget, the files.
#include "autotune/search/study.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <filesystem>

#include "autotune/tune_command.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"
#include "tests/autotune/search/synthetic_recording.h"

namespace outgrad::autotune {
namespace {

TEST(MedianOverSeeds, OrderStatisticsOfTheTables) {
  std::vector<double> values;
  for (int i = 50; i >= 1; --i) values.push_back(i);
  const SeedMedian fifty = median_over_seeds(values);  // ranks 18 and 33 of 50: the tables' interval at 95%
  EXPECT_EQ(fifty.median, 25.5);
  EXPECT_EQ(fifty.low, 18);
  EXPECT_EQ(fifty.high, 33);
  const SeedMedian ten = median_over_seeds({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});  // ranks 2 and 9
  EXPECT_EQ(ten.low, 2);
  EXPECT_EQ(ten.high, 9);
  const SeedMedian one = median_over_seeds({3});
  EXPECT_EQ(one.median, 3);
  EXPECT_EQ(one.low, 3);
  EXPECT_EQ(one.high, 3);
}

// The interval covers the true median as often as it says.
TEST(MedianOverSeeds, CoversTheMedian) {
  std::uint64_t state = 9;
  int covered = 0;
  constexpr int kTrials = 4000;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<double> values;
    for (int i = 0; i < 21; ++i) values.push_back(static_cast<double>(kernels::next_random(state) >> 11) * 0x1p-53);
    const SeedMedian m = median_over_seeds(values);
    covered += m.low <= 0.5 && 0.5 <= m.high;
  }
  EXPECT_GE(covered, static_cast<int>(kTrials * kSeedConfidence));
  EXPECT_LE(covered, static_cast<int>(kTrials * 0.99));
}

TEST(StudyCommand, ComparesEveryStrategyAndMergesKernelTunersRuns) {
  const kernels::ScratchFolder folder;
  const Recording recording = synthetic_recording();
  kernels::write_file(folder / "made_up.json", kernel_tuner_cache(recording));
  const std::string out = folder / "study";
  std::filesystem::create_directories(out);
  const std::size_t budget = recording.points.size() / 20;
  std::string runs;
  for (int seed = 1; seed <= 3; ++seed)
    runs += nlohmann::json{{"schema", "outgrad.kernel_tuner_runs/1"},
                           {"cache", "made_up"},
                           {"strategy", "pso"},
                           {"seed", seed},
                           {"budget", budget},
                           {"evaluations", budget},
                           {"best", seed == 3 ? nlohmann::json() : nlohmann::json(2 * *recording.best_ms())},
                           {"error", seed == 3 ? nlohmann::json("ValueError: \"x\"") : nlohmann::json()},
                           {"seconds", 1}}
                .dump() +
            "\n";
  kernels::write_file(out + "/kernel_tuner_runs.jsonl", runs + runs.substr(0, 40));
  testing::internal::CaptureStdout();
  EXPECT_EQ(tune_command({"--study", folder / "made_up.json", "--seeds", "3", "--shares", "5,10", "--kernel-tuner", "none", "--out", out}), 0);
  const std::string table = testing::internal::GetCapturedStdout();
  for (const char* name : {"model", "evolutionary", "local", "random", "pso"}) EXPECT_NE(table.find(name), std::string::npos) << table;
  const auto study = nlohmann::json::parse(kernels::read_file(out + "/study.json"));
  EXPECT_EQ(study["schema"], "outgrad.study/1");
  EXPECT_EQ(study["entries"].size(), 2 * 4 + 1u);
  const auto& pso = study["entries"].back();
  EXPECT_EQ(pso["source"], "kernel_tuner");
  EXPECT_EQ(pso["shares"], (nlohmann::json{0.5, 0.5, 0.0}));
  EXPECT_EQ(pso["percent"], 5);
  const auto& verdict = study["verdicts"][0];
  EXPECT_EQ(verdict["kernel_tuner_strategies"], 1);
  EXPECT_EQ(verdict["better_than_median_strategy"], true);
  EXPECT_TRUE(verdict["kernel_tuner_better_beyond_intervals"].empty());
  EXPECT_NE(kernels::read_file(out + "/study.csv").find("made_up,kernel_tuner,pso,5," + std::to_string(budget) + ",3,0.500000"), std::string::npos);
}

}  // namespace
}  // namespace outgrad::autotune
