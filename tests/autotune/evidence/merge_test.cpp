// Merging: a union whatever the order, winners by evidence, published files that are small and name no place.
#include "autotune/evidence/merge.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "autotune/commands/commands.h"
#include "autotune/cpu/compile.h"
#include "autotune/measure/device.h"
#include "kernels/support/files.h"
#include "kernels/support/statistics.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/records/tuning_records.h"
#include "tests/autotune/scoped_variable.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

std::string merged(const std::vector<Record>& records) { return lines_of(united(records)); }

// A few hundred records with all that can differ, some of them twice, whole and published.
std::vector<Record> many_records(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Record> records;
  for (int i = 0; i < 300; ++i) {
    Measured m{pick(4) == 0 ? "default" : "variant " + std::to_string(pick(5))};
    m.time = "2026-01-0" + std::to_string(1 + pick(3)) + "T00:00:00Z";
    if (m.variant != "default")
      m.median = 1 + 0.01 * pick(20), m.low = m.median - 0.02, m.high = m.median + 0.02;
    m.kernels = "k" + std::to_string(pick(2));
    m.format = pick(2) == 0 ? "f32" : "bf16";
    m.device = cpu_device(1 + pick(2));
    if (pick(4) == 0)
      m.kernel = "layernorm_forward", m.rows = 128, m.cols = 64 << pick(2), m.elements = m.rows * m.cols;
    records.push_back(pick(10) == 0 ? rejected(m, pick(2) == 0 ? "wrong answer" : "out of memory")
                                    : m.record());
    if (pick(5) == 0)
      records.push_back(
          reviewable(records[static_cast<std::size_t>(pick(static_cast<int>(records.size())))]));
    if (pick(5) == 0)
      records.push_back(records[static_cast<std::size_t>(pick(static_cast<int>(records.size())))]);
  }
  Record foreign;
  foreign.others["note"] = "of somebody's own";
  records.push_back(foreign);
  return records;
}

TEST(Union, IsTheSameWhateverTheOrderAndTheGrouping) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    std::vector<Record> records = many_records(seed);
    const std::string once = merged(records);
    const auto weighed = weigh(united(records), Accuracy::kAsDefault);
    ASSERT_FALSE(once.empty());
    EXPECT_EQ(merged(united(records)), once) << "idempotent";
    std::shuffle(records.begin(), records.end(), random);
    EXPECT_EQ(merged(records), once) << "commutative";
    // A random tree of merges over a random split, with overlaps.
    std::vector<std::vector<Record>> parts(1 + random() % 6);
    for (const Record& record : records) {
      parts[random() % parts.size()].push_back(record);
      if (random() % 3 == 0) parts[random() % parts.size()].push_back(record);
    }
    while (parts.size() > 1) {
      const std::size_t at = random() % (parts.size() - 1);
      std::vector<Record> two = united(parts[at]);
      two.insert(two.end(), parts[at + 1].begin(), parts[at + 1].end());
      parts[at] = united(two);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    EXPECT_EQ(merged(parts.front()), once) << "associative";
    const auto again = weigh(parts.front(), Accuracy::kAsDefault);
    ASSERT_EQ(again.size(), weighed.size());
    for (std::size_t i = 0; i < again.size(); ++i) {
      EXPECT_EQ(again[i].name(), weighed[i].name());
      EXPECT_EQ(again[i].winner, weighed[i].winner);
      EXPECT_EQ(again[i].conflicts, weighed[i].conflicts);
      EXPECT_EQ(again[i].variants[again[i].winner].speedup.low,
                weighed[i].variants[weighed[i].winner].speedup.low)
          << "to the bit";
    }
  }
}

TEST(Union, LosesNothingAndCountsNothingTwice) {
  const Record one = Measured{"default"}.record(), other = Measured{"fast", 1.5, 1.4, 1.6}.record();
  EXPECT_EQ(united({one, other, one}).size(), 2u);
  const std::vector<Record> both = united({reviewable(other), one, other});
  ASSERT_EQ(both.size(), 2u) << "the published line of a record that is there says nothing new";
  EXPECT_TRUE(both[0].final.ns && both[1].final.ns);
  EXPECT_EQ(united({reviewable(other)}).size(), 1u);
  const auto problems =
      weigh({one, other, other, reviewable(other), reviewable(reviewable(other))}, Accuracy::kAsDefault);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].variants[problems[0].winner].runs, 1);
}

// Two shards of one search, each with the default that it measured against, are the search.
TEST(Union, OfShardsIsTheWhole) {
  std::vector<Record> whole, shards[3];
  for (int shard = 0; shard < 3; ++shard)
    for (int i = 0; i < 40; ++i) {
      Measured m{i == 0 ? "default" : "variant " + std::to_string(i)};
      if (i > 0) m.median = 1 + 0.001 * i, m.low = m.median - 1e-4, m.high = m.median + 1e-4;
      m.time = "2026-01-01T00:00:0" + std::to_string(shard) + "Z";
      if (i % 3 == shard || i == 0) shards[shard].push_back(m.record()), whole.push_back(m.record());
    }
  const kernels::ScratchFolder folder;
  std::vector<std::string> args = {"--merge"};
  for (int shard = 2; shard >= 0; --shard) {
    args.push_back(folder / ("shard" + std::to_string(shard) + ".jsonl"));
    append_records(args.back(), shards[shard]);
  }
  args.insert(args.end(), {"--json", "--out", folder / "all.jsonl"});
  ASSERT_EQ(tune_command(args), 0);
  EXPECT_EQ(kernels::read_file(folder / "all.jsonl"), merged(whole));
  const auto problems = weigh(load_database(folder / "all.jsonl").records, Accuracy::kAsDefault);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].variants[problems[0].winner].name(), "variant 39");
}

// ---- best

Contender contender(double low, double median, double error, int changes, const std::string& name) {
  return {{median, low, 2 * median - low}, error_order({error, 1, error}), changes, name};
}

TEST(Best, TheDefaultStaysUnlessBeatenBeyondTheNoise) {
  const Contender normal = contender(1, 1, 0x1p-10, 0, "default");
  EXPECT_EQ(best(std::vector{normal}), 0u);
  EXPECT_EQ(best(std::vector{normal, contender(0.999, 1.3, 0x1p-20, 1, "a")}), 0u);
  EXPECT_EQ(best(std::vector{normal, contender(1, 1.3, 0x1p-20, 1, "a")}), 0u);
  EXPECT_EQ(best(std::vector{normal, contender(1.001, 1.3, 0x1p-8, 1, "a")}), 1u);
}

TEST(Best, IsTheHighestLowerBoundNotTheHighestMedian) {
  const Contender normal = contender(1, 1, 0x1p-10, 0, "default"),
                  sure = contender(1.3, 1.4, 0x1p-10, 2, "sure");
  EXPECT_EQ(best(std::vector{normal, contender(1.01, 1.5, 0x1p-10, 2, "wild"), sure}), 2u);
  EXPECT_EQ(best(std::vector{normal, sure, contender(1.01, 1.29, 0x1p-20, 0, "not as fast")}), 1u);
}

TEST(Best, TiesGoToTheSmallerErrorThenTheSimpler) {
  const Contender normal = contender(1, 1, 0x1p-10, 0, "default"),
                  leader = contender(1.30, 1.32, 0x1p-10, 3, "leader");
  EXPECT_EQ(best(std::vector{normal, leader, contender(1.29, 1.31, 0x1p-13, 5, "finer")}), 2u);
  EXPECT_EQ(best(std::vector{normal, leader, contender(1.29, 1.31, 0x1p-10, 1, "simpler")}), 2u);
  EXPECT_EQ(best(std::vector{normal, leader, contender(1.29, 1.31, 0x1p-10, 1, "simpler"),
                             contender(1.29, 1.31, 0x1p-20, 6, "finest")}),
            3u);
  EXPECT_EQ(best(std::vector{normal, leader, contender(1.29, 1.31, 0x1p-8, 0, "coarser")}), 1u);
  EXPECT_EQ(best(std::vector{normal, leader, contender(1.25, 1.29, 0x1p-20, 0, "beaten beyond the noise")}),
            1u);
  EXPECT_EQ(
      best(std::vector{normal, leader, contender(0.9, 1.5, 0x1p-20, 0, "may be slower than the default")}),
      1u);
}

// ---- evidence

std::vector<Record> run_of(const std::string& time, const std::vector<Measured>& variants,
                           const std::string& winner = "") {
  std::vector<Record> records;
  Measured normal{"default"};
  normal.time = time;
  records.push_back(normal.record());
  for (Measured m : variants) {
    m.time = time;
    records.push_back(m.record());
    if (m.variant == winner) records.back().winner = records.back().gain = true;
  }
  return records;
}

std::vector<Record> operator+(std::vector<Record> a, const std::vector<Record>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ProblemEvidence only_problem(const std::vector<Record>& records) {
  auto problems = weigh(records, Accuracy::kAsDefault);
  EXPECT_EQ(problems.size(), 1u);
  return problems.empty() ? ProblemEvidence{} : std::move(problems.front());
}

// How often the interval holds what runs of this spread are drawn around, and lies above it: so often as the
// README says of so many runs. The spread of the rounds is 2%.
TEST(Evidence, NightlyTheIntervalOfSeveralRunsHoldsWhatTheyAreDrawnAround) {
  struct Claim {
    int runs;
    double held, above;
  };
  constexpr int kTrials = 1500, kRounds = 30;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const std::vector<bool> all(kRounds, true);
  const std::vector<double> one(kRounds, 1);
  for (const Claim& claim : {Claim{2, 0.91, 0.045},
                             {3, 0.97, 0.015},
                             {4, 0.98, 0.01},
                             {5, 0.98, 0.01},
                             {6, 0.98, 0.01},
                             {7, 0.98, 0.01},
                             {8, 0.98, 0.01}}) {
    for (const double spread : {0.0, 0.005, 0.01, 0.02, 0.05}) {
      std::vector<Record> records;
      for (int run = 0; run < claim.runs; ++run) {
        const std::string time = "t" + std::to_string(run);
        Measured m{"default"};
        m.time = time;
        records.push_back(m.record());
        for (int variant = 0; variant < kTrials; ++variant) {
          const double middle = spread * normal(random);
          std::vector<double> ratios(kRounds);
          for (double& ratio : ratios) ratio = std::exp(middle + 0.02 * normal(random));
          const Interval found = ratio_interval(ratios, one, all);
          m = {std::to_string(variant), found.median, found.low, found.high};
          m.time = time, m.rounds = kRounds;
          records.push_back(m.record());
        }
      }
      int held = 0, above = 0;
      for (const VariantEvidence& variant : only_problem(records).variants) {
        if (variant.record.is_default == true) continue;
        held += variant.speedup.low <= 1 && 1 <= variant.speedup.high;
        above += variant.speedup.low > 1;
      }
      EXPECT_GE(held, claim.held * kTrials) << claim.runs << " runs, " << spread;
      EXPECT_LE(above, claim.above * kTrials) << claim.runs << " runs, " << spread;
    }
  }
}

// That runs agree may be chance: together they are no surer than the surest. Where they differ by more than
// their rounds do, the result is as wide as so few runs say.
TEST(Evidence, RunsThatAgreeAreAsSureAsTheSurest) {
  const std::vector<Record> one = run_of("t1", {{"a", 1.10, 1.06, 1.14}}),
                            two = run_of("t2", {{"a", 1.10, 1.06, 1.14}});
  const Interval alone = only_problem(one).variants[1].speedup,
                 together = only_problem(one + two).variants[1].speedup;
  EXPECT_NEAR(alone.low, 1.06, 1e-9);
  EXPECT_NEAR(together.median, 1.10, 1e-3);
  EXPECT_NEAR(together.low, 1.06, 1e-6);
  EXPECT_NEAR(together.high, 1.14, 1e-6);
  EXPECT_TRUE(only_problem(one + two).conflicts.empty());
  EXPECT_EQ(only_problem(one + two).variants[1].runs, 2);
  const Interval apart = only_problem(one + run_of("t2", {{"a", 1.16, 1.12, 1.20}})).variants[1].speedup;
  // Two runs of equal weight: the estimate's deviation is half of what they are apart.
  EXPECT_NEAR(std::log(apart.high / apart.low), kernels::students_t(kConfidence, 1) * std::log(1.16 / 1.10),
              0.01);
}

TEST(Evidence, ThePreciseRunWeighsMore) {
  const Interval together =
      only_problem(run_of("t1", {{"a", 1.10, 1.09, 1.11}}) + run_of("t2", {{"a", 1.15, 1.00, 1.30}}))
          .variants[1]
          .speedup;
  EXPECT_NEAR(together.median, 1.10, 0.005);
}

// What is printed, and wins, is an interval at kConfidence.
TEST(Evidence, AnIntervalOfLessConfidenceIsTakenForAWiderOne) {
  std::vector<Record> records = run_of("t1", {{"a", 1.2, 1.1, 1.25}});
  for (Record& record : records)
    if (record.is_default != true) record.speedup->confidence = 0.5;
  const Interval wider = only_problem(records).variants[1].speedup;
  constexpr double kFactor = 2.5758293 / 0.6744898;  // of the normal quantiles
  EXPECT_NEAR(wider.median, 1.2, 1e-9);
  EXPECT_NEAR(std::log(1.2 / wider.low), kFactor * std::log(1.2 / 1.1), 1e-6);
  EXPECT_NEAR(std::log(wider.high / 1.2), kFactor * std::log(1.25 / 1.2), 1e-6);
  EXPECT_FALSE(only_problem(records).gain);
}

// Such as a busy machine's, with a few rounds. The other run's median is near an end of its interval: so far
// from the other end, as that run has it, the pooled one lies as well.
TEST(Evidence, ARunThatSaysNothingChangesNothing) {
  const std::vector<Record> nothing = run_of("t2", {{"a", 0.774, 0.0007, 2.5}});
  const ProblemEvidence high = only_problem(run_of("t1", {{"a", 1.195, 0.971, 1.231}}) + nothing),
                        low = only_problem(run_of("t1", {{"a", 1.01, 1.005, 1.231}}) + nothing);
  EXPECT_FALSE(high.gain) << interval_text(high.variants[1].speedup);
  EXPECT_NEAR(high.variants[1].speedup.low, 0.971, 0.005);
  EXPECT_NEAR(high.variants[1].speedup.high, 1.231, 0.005);
  EXPECT_NEAR(low.variants[1].speedup.low, 1.005, 0.005);
  EXPECT_NEAR(low.variants[1].speedup.high, 1.231, 0.005);
}

TEST(Evidence, RunsThatExcludeEachOtherWidenItAndAreReported) {
  // One says a gain, the other a loss: nobody knows, the default stays.
  const ProblemEvidence torn =
      only_problem(run_of("t1", {{"a", 1.20, 1.19, 1.21}}, "a") + run_of("t2", {{"a", 0.90, 0.89, 0.91}}));
  EXPECT_FALSE(torn.gain);
  EXPECT_TRUE(torn.variants[1].heterogeneous);
  ASSERT_EQ(torn.conflicts.size(), 1u);
  EXPECT_NE(torn.conflicts[0].find("2 runs exclude each other"), std::string::npos) << torn.conflicts[0];
  EXPECT_LE(torn.variants[1].speedup.low, 0.90);
  EXPECT_GE(torn.variants[1].speedup.high, 1.20);
  // Nor does a majority know.
  std::vector<Record> many = run_of("t0", {{"a", 0.90, 0.89, 0.91}});
  for (int i = 1; i <= 8; ++i) many = many + run_of("t" + std::to_string(i), {{"a", 1.20, 1.19, 1.21}});
  EXPECT_FALSE(only_problem(many).gain);
  EXPECT_NEAR(only_problem(many).variants[1].speedup.low, 0.89, 1e-6);
  EXPECT_GE(only_problem(many).variants[1].speedup.high, 1.21);
  // Two that both say a gain do not know how much runs differ; four do.
  const std::vector<Record> gain =
      run_of("t1", {{"a", 1.20, 1.19, 1.21}}) + run_of("t2", {{"a", 1.40, 1.39, 1.41}});
  EXPECT_FALSE(only_problem(gain).gain);
  EXPECT_TRUE(only_problem(gain).variants[1].heterogeneous);
  const ProblemEvidence four =
      only_problem(gain + run_of("t3", {{"a", 1.30, 1.29, 1.31}}) + run_of("t4", {{"a", 1.31, 1.30, 1.32}}));
  EXPECT_TRUE(four.gain);
  EXPECT_TRUE(four.variants[1].heterogeneous);
  EXPECT_LT(four.variants[1].speedup.low, 1.19);
  EXPECT_GT(four.variants[1].speedup.high, 1.41);
}

TEST(Evidence, DecidesBetweenTheWinnersOfRunsNotTheLast) {
  const std::vector<Record> noisy =
                                run_of("2026-06-01", {{"a", 1.50, 1.02, 2.00}, {"b", 1.21, 1.20, 1.22}}, "a"),
                            sharp =
                                run_of("2026-01-01", {{"a", 1.10, 1.09, 1.11}, {"b", 1.21, 1.20, 1.22}}, "b");
  for (const auto& records : {noisy + sharp, sharp + noisy}) {
    const ProblemEvidence problem = only_problem(records);
    EXPECT_EQ(problem.variants[problem.winner].name(), "b");
    ASSERT_FALSE(problem.conflicts.empty());
    EXPECT_NE(problem.conflicts.back().find("2 winners"), std::string::npos) << problem.conflicts.back();
  }
}

// A clock that runs ahead, or back, chooses nothing.
TEST(Evidence, DatesDecideNothing) {
  const std::vector<Measured> sure = {{"a", 1.20, 1.19, 1.21}}, unsure = {{"b", 1.30, 1.001, 1.6}};
  for (const auto& [now, then] : {std::pair("2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
                                  {"1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z"},
                                  {"", "x"}}) {
    for (const auto& records : {run_of(now, unsure, "b") + run_of(then, sure, "a"),
                                run_of(then, sure, "a") + run_of(now, unsure, "b")}) {
      const DeviceKey device = *device_key(cpu_device());
      const Record chosen = chosen_record(records, device, {"k1", "c1"}, "gelu_backward", "bf16", "default");
      EXPECT_EQ(chosen.variant, "a") << now;
    }
  }
}

TEST(Evidence, OtherSourcesDevicesShapesAndDefaultsNeverMix) {
  const auto changed = [](auto change) {
    std::vector<Record> records;
    for (Measured m : {Measured{"default"}, Measured{"a", 2.0, 1.9, 2.1}}) {
      m.time = "t2";
      change(m);
      records.push_back(m.record());
    }
    return records;
  };
  const std::vector<Record> present = run_of("t1", {{"a", 0.8, 0.79, 0.81}});
  const std::vector<std::pair<const char*, std::vector<Record>>> others = {
      {"kernels", changed([](Measured& m) { m.kernels = "k2"; })},
      {"coefficients", changed([](Measured& m) { m.coefficients = "c2"; })},
      {"device", changed([](Measured& m) { m.device = cpu_device(16); })},
      {"elements", changed([](Measured& m) { m.elements = 1 << 10; })},
      {"shape", changed([](Measured& m) { m.rows = 1 << 11, m.cols = 1 << 10, m.elements = 1 << 21; })},
      {"format", changed([](Measured& m) { m.format = "f32"; })},
      {"default", [&] {
         auto records = changed([](Measured&) {});
         records[0].variant = "another default";
         return records;
       }()}};
  for (const auto& [what, other] : others) {
    const auto problems = weigh(present + other, Accuracy::kAsDefault);
    EXPECT_EQ(problems.size(), 2u) << what;
    const Record chosen = chosen_record(present + other, *device_key(cpu_device()), {"k1", "c1"},
                                        "gelu_backward", "bf16", "default");
    // which shape decides is the larger's
    EXPECT_EQ(chosen.variant, std::string(what) == "shape" ? "a" : "default") << what;
  }
}

TEST(Evidence, DriversAndCompilersMixAndShow) {
  std::vector<Record> second = run_of("t2", {{"a", 1.40, 1.39, 1.41}});
  for (Record& record : second) record.run.compiler = "g++ 14", record.run.device.l3_bytes = 5;
  const ProblemEvidence problem = only_problem(run_of("t1", {{"a", 1.20, 1.19, 1.21}}) + second);
  EXPECT_EQ(problem.variants[1].runs, 2);
  EXPECT_TRUE(problem.variants[1].heterogeneous);
}

TEST(Evidence, PredictionsAndScreeningsAreNone) {
  Measured screened{"a", 3, 2.9, 3.1};
  screened.rounds = 0;
  Record prediction = Measured{"b", 9, 8.9, 9.1}.record();
  prediction.state = "predicted";
  Record offline = Measured{"c", 9, 8.9, 9.1}.record();
  offline.run.device = offline_device();
  Measured few{"d", 3, 2.9, 3.1};
  few.rounds = kLeastRounds - 1;
  const ProblemEvidence problem =
      only_problem(run_of("t1", {screened, few}) + std::vector<Record>{prediction, offline});
  EXPECT_FALSE(problem.gain);
  EXPECT_EQ(problem.variants.size(), 3u);
  // The rounds of two runs are enough together.
  EXPECT_TRUE(only_problem(run_of("t1", {few}) + run_of("t2", {few})).gain);
}

TEST(Evidence, AWrongAnswerAnywhereBarsAVariantABusyMachineDoesNot) {
  const Measured a{"a", 1.5, 1.4, 1.6}, b{"b", 1.2, 1.15, 1.25};
  for (const auto& [reason, is_barred] : {std::pair("wrong answer", true),
                                          {"crashed", true},
                                          {"hung", true},
                                          {"out of memory", false},
                                          {"compiler timeout", false}}) {
    Measured again = a;
    again.time = "t2";
    again.elements = 1 << 10;
    const ProblemEvidence problem =
        only_problem(run_of("t1", {a, b}) + std::vector<Record>{rejected(again, reason)});
    EXPECT_EQ(problem.variants[problem.winner].name(), is_barred ? "b" : "a") << reason;
    EXPECT_EQ(problem.conflicts.size(), is_barred ? 1u : 0u) << reason;
  }
}

TEST(Evidence, WithoutADefaultThereIsNothingToBeat) {
  const ProblemEvidence problem = only_problem({Measured{"a", 1.5, 1.4, 1.6}.record()});
  EXPECT_TRUE(problem.baseline.empty());
  EXPECT_FALSE(problem.gain);
}

// ---- publishing

TEST(Publish, KeepsWhatIsReviewableAndNamesNoPlace) {
  Record record = Measured{"a", 1.23456789, 1.2, 1.3}.record();
  record.run.compiler = "/home/somebody/bin/c++ 12.2.0";
  record.run.flags = "-O3 -I/home/somebody/include -DX=/home/somebody";
  record.rejected = {"verify", "crashed", "/home/somebody/a.cpp", {}};
  for (nlohmann::json* others :
       {&record.others, &record.run.device.others, &record.fit.others, &record.rejected.others,
        &record.ceiling.others, &record.speedup->others, &record.final.others})
    (*others)["host"] = "somebodys-machine";
  const Record kept = reviewable(record);
  EXPECT_EQ(line_of(kept).find("somebody"), std::string::npos) << line_of(kept);
  EXPECT_FALSE(kept.final.ns);
  EXPECT_EQ(kept.speedup->median, 1.23457);
  EXPECT_EQ(kept.rounds, kLeastRounds);
  EXPECT_EQ(line_of(reviewable(kept)), line_of(kept));
  for (const Record& any : many_records(5))
    EXPECT_EQ(line_of(reviewable(reviewable(any))), line_of(reviewable(any)));
}

TEST(Publish, ReadsBackAsTheSameEvidenceAndRepeatsItself) {
  const kernels::ScratchFolder folder;
  const std::vector<Record> records =
      run_of("t1", {{"a", 1.20, 1.19, 1.21}, {"b", 0.8, 0.7, 0.9}}, "a") +
      run_of("t2", {{"a", 1.40, 1.39, 1.41}}) +
      std::vector<Record>{rejected({.variant = "c", .time = "t1"}, "wrong answer")};
  const auto first = publish(records, {{"k1", "c1"}}, folder / "tuned", Accuracy::kAsDefault);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].changed);
  EXPECT_EQ(first[0].path, folder / "tuned/" + device_key(cpu_device())->slug() + ".jsonl");
  const std::string text = kernels::read_file(first[0].path);
  const Database there = load_database(first[0].path);
  EXPECT_TRUE(there.warnings.empty());
  EXPECT_EQ(there.records.size(), records.size());
  const ProblemEvidence before = only_problem(records), after = only_problem(there.records);
  EXPECT_EQ(after.variants[after.winner].name(), before.variants[before.winner].name());
  EXPECT_EQ(after.variants[1].speedup.low, before.variants[1].speedup.low);
  EXPECT_EQ(after.conflicts, before.conflicts);
  // Again, and in another order, and beside what is published: the same bytes.
  EXPECT_FALSE(publish(records, {{"k1", "c1"}}, folder / "tuned", Accuracy::kAsDefault)[0].changed);
  EXPECT_FALSE(
      publish({records.rbegin(), records.rend()}, {{"k1", "c1"}}, folder / "tuned", Accuracy::kAsDefault)[0]
          .changed);
  EXPECT_FALSE(publish(there.records, {{"k1", "c1"}}, folder / "tuned", Accuracy::kAsDefault)[0].changed);
  EXPECT_EQ(kernels::read_file(first[0].path), text);
  // Published and local together are no second run.
  EXPECT_EQ(only_problem(records + there.records).variants[1].runs, 2);
}

TEST(Publish, PresentSourcesTakeThePlaceOfOthers) {
  const kernels::ScratchFolder folder;
  std::vector<Record> old = run_of("t1", {{"a", 1.20, 1.19, 1.21}}), now = old;
  for (Record& record : now) record.run.hashes.kernels = "k2";
  Record elsewhere = Measured{"default"}.record();
  elsewhere.format = "f32";
  publish(old + std::vector<Record>{elsewhere}, {{"k1", "c1"}}, folder.path(), Accuracy::kAsDefault);
  const auto file = publish(now, {{"k2", "c1"}}, folder.path(), Accuracy::kAsDefault).front();
  int others = 0;
  for (const Record& record : load_database(file.path).records) others += record.run.hashes.kernels == "k1";
  EXPECT_EQ(file.records, 3u);
  EXPECT_EQ(others, 1) << "the problem that the present sources say nothing of";
  EXPECT_EQ(publish(old, {{"k2", "c1"}}, folder.path(), Accuracy::kAsDefault).front().changed, false);
}

TEST(Publish, StaysSmall) {
  const kernels::ScratchFolder folder;
  std::vector<Record> records;
  for (int run = 0; run < 6; ++run)
    for (int problem = 0; problem < 36; ++problem)
      for (int variant = 0; variant < 8; ++variant) {
        Measured m{variant == 0 ? "default"
                                : "bf16.gelu_bf16_stored_d7_1_even_odd.v512.u4.b65536.nt.memory.t" +
                                      std::to_string(variant)};
        m.kernel = "kernel_" + std::to_string(problem);
        m.time = "2026-01-0" + std::to_string(1 + run);
        if (variant > 0)
          m.median = 1 + 0.01 * variant + 1e-4 * run, m.low = m.median - 0.003, m.high = m.median + 0.003;
        records.push_back(m.record());
      }
  const Published file = publish(records, {{"k1", "c1"}}, folder.path(), Accuracy::kAsDefault).front();
  EXPECT_LT(file.bytes, kMostPublishedBytes);
  EXPECT_GT(file.bytes, kMostPublishedBytes / 2) << "more could have been kept";
  EXPECT_EQ(file.problems, 36u);
  EXPECT_EQ(file.records + file.left_out, records.size());
  const auto problems = weigh(load_database(file.path).records, Accuracy::kAsDefault);
  ASSERT_EQ(problems.size(), 36u);
  const std::string best_name = records.back().variant;
  for (const ProblemEvidence& problem : problems)
    EXPECT_EQ(problem.variants[problem.winner].name(), best_name);
}

// What runs found that had other finalists each, as searches of another seed have, and some a variant's wrong
// answer; in one run in six against another default.
std::vector<Record> searches(unsigned seed, int runs, int problems, int finalists) {
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Record> records;
  for (int run = 0; run < runs; ++run) {
    const bool another_default = seed % 2 == 0 && pick(6) == 0;
    for (int problem = 0; problem < problems; ++problem) {
      Measured m{another_default ? "wide" : "default"};
      m.kernel = "kernel_" + std::to_string(problem);
      m.time = "2026-01-01T00:00:" + std::to_string(10 + run) + "Z";
      m.rounds = static_cast<int>(kFewestRounds) + pick(23);
      records.push_back(m.record());
      records.back().is_default = true;
      records.back().gb_per_s = 27 + 0.01 * pick(100);
      for (int finalist = 0; finalist < finalists; ++finalist) {
        const int which = pick(9);
        m.variant = "bf16.gelu_bf16_stored_d7_1_even_odd.v512.u4.b65536.nt.memory.t" + std::to_string(which);
        m.median = 0.95 + 0.05 * which + 1e-4 * pick(100), m.low = m.median - 0.01, m.high = m.median + 0.01;
        records.push_back(pick(40) == 0 ? rejected(m, "wrong answer") : m.record());
      }
    }
  }
  return records;
}

// Every variant stays beside the default that its ratios are to, a wrong answer stays one, and what all runs
// are kept of is decided as before.
TEST(Publish, AVariantKeepsTheDefaultOfItsRunsAndWhatBarsIt) {
  for (unsigned seed = 1; seed <= 24; ++seed) {
    const kernels::ScratchFolder folder;
    const int runs = 1 + static_cast<int>(seed % 12),
              many = seed == 10 ? 20 : 2;  // beyond the size of a file
    const std::vector<Record> records = searches(seed, runs, many, 1 + static_cast<int>(seed % 4));
    const auto publish_all = [&](const std::vector<Record>& all) {
      return publish(all, {{"k1", "c1"}}, folder.path(), Accuracy::kAsDefault).at(0);
    };
    const Published file = publish_all(records);
    EXPECT_LT(file.bytes, kMostPublishedBytes);
    const Database there = load_database(file.path);
    EXPECT_FALSE(publish_all(records).changed) << seed;
    EXPECT_FALSE(publish_all(there.records).changed) << seed;
    const auto before = weigh(records, Accuracy::kAsDefault),
               after = weigh(there.records, Accuracy::kAsDefault);
    ASSERT_EQ(after.size(), before.size()) << seed;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const ProblemEvidence &was = before[i], &is = after[i];
      const std::string where = std::to_string(seed) + ": " + was.name();
      EXPECT_EQ(is.name(), was.name()) << where;
      EXPECT_FALSE(is.baseline.empty()) << where;
      EXPECT_EQ(is.baseline, was.baseline) << where;
      bool all_runs = true, has_winner = false;
      for (const VariantEvidence& one : was.variants) {
        const auto kept = std::ranges::find(is.variants, one.name(), &VariantEvidence::name);
        if (!one.barred.empty()) {
          ASSERT_NE(kept, is.variants.end()) << where << ' ' << one.name();
          EXPECT_EQ(kept->barred, one.barred) << where << ' ' << one.name();
        }
        has_winner |= kept != is.variants.end() && one.name() == was.variants[was.winner].name();
        if (kept != is.variants.end() && one.name() != was.baseline) all_runs &= kept->runs == one.runs;
      }
      EXPECT_TRUE(has_winner) << where;
      EXPECT_TRUE(!all_runs || is.variants[is.winner].name() == was.variants[was.winner].name()) << where;
    }
  }
}

TEST(Publish, RefusesAFileOfANewerProgram) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / device_key(cpu_device())->slug() + ".jsonl",
                    text = "{\"schema\":\"outgrad.tune/2\"}\n";
  kernels::write_file(path, text);
  EXPECT_THROW(publish(run_of("t1", {}), {{"k1", "c1"}}, folder.path(), Accuracy::kAsDefault),
               kernels::SpecError);
  EXPECT_EQ(kernels::read_file(path), text);
  const Database known = known_records(*device_key(cpu_device()), Rung::device, folder.path());
  EXPECT_TRUE(known.records.empty());
  ASSERT_EQ(known.warnings.size(), 1u) << "a search does without it";
}

// The sources without notebooks_data, in the test's folder: what is published of this machine is none of the
// test's, and what it publishes stays there.
class WithoutNotebooksData {
 public:
  explicit WithoutNotebooksData(const kernels::ScratchFolder& folder)
      : variable_("OUTGRAD_SOURCE_DIR", linked(folder)) {}

 private:
  static std::string linked(const kernels::ScratchFolder& folder) {
    std::filesystem::create_directories(folder / "sources");
    for (const char* name : {"kernels", "autotune"})
      std::filesystem::create_symlink(source_root() + "/" + name, folder / "sources/" + name);
    return folder / "sources";
  }
  ScopedVariable variable_;
};

TEST(Publish, IsWhatTuneDoesWithPublish) {
  const kernels::ScratchFolder folder;
  const WithoutNotebooksData sources(folder);
  Captured captured_out(Captured::kStdout);
  const int status =
      tune_command({"--publish", "--kernel", "gelu_backward", "--format", "bf16", "--evaluations", "3",
                    "--elements", "65536", "--budget", "300", "--out", folder / "out", "--json"});
  const Database known = known_records(*device_key(device_record(identify_cpu())));
  captured_out.release();
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(known.warnings.empty());
  ASSERT_FALSE(known.records.empty());
  for (const Record& record : known.records)
    EXPECT_EQ(line_of(record).find(folder.path()), std::string::npos);
  const auto local = weigh(load_database(folder / "out/tune_cpu.jsonl").records, Accuracy::kAsDefault),
             published = weigh(known.records, Accuracy::kAsDefault);
  ASSERT_EQ(published.size(), 1u);
  EXPECT_EQ(published[0].variants[published[0].winner].name(), local[0].variants[local[0].winner].name());
}

// What a borrowed machine measured is published where the sources are.
TEST(Publish, IsWhatMergeDoesWithPublish) {
  const kernels::ScratchFolder folder;
  const WithoutNotebooksData sources(folder);
  const std::vector<Record> records = run_of("t1", {{"a", 1.20, 1.19, 1.21}, {"b", 0.8, 0.7, 0.9}}, "a");
  append_records(folder / "there.jsonl", records);
  std::vector<std::string> merge = {"--merge", folder / "there.jsonl", "--out", folder / "all.jsonl",
                                    "--json"};
  Captured captured_err(Captured::kStderr);
  ASSERT_EQ(tune_command(merge), 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "sources/notebooks_data"));
  merge.emplace_back("--publish");
  ASSERT_EQ(tune_command(merge), 0);
  const std::string said = captured_err.release();
  const Published file = publish(records, {}, folder / "tuned", Accuracy::kAsDefault).front();
  EXPECT_EQ(kernels::read_file(folder / "sources/notebooks_data/tuned/" +
                               std::filesystem::path(file.path).filename().string()),
            kernels::read_file(file.path));
  EXPECT_NE(said.find("3 records of 1 problems"), std::string::npos) << said;
}

// The header that a run writes takes from a shared database what the evidence says: neither the newest date,
// nor the last line, nor a run's own verdict; and a line that somebody edited costs the default of its
// problem, not the run.
TEST(TunedHeader, TakesWhatTheEvidenceSaysWhateverTheDates) {
  const kernels::ScratchFolder folder;
  const WithoutNotebooksData nothing_published(folder);
  const SourceHashes sources = hash_sources(source_root());
  const Problem sure{KernelId::kGeluForward, FormatId::kF32}, edited{KernelId::kGeluForward, FormatId::kBf16};
  std::vector<Record> records;
  const auto add = [&](const Variant& variant, const Interval& speedup, const std::string& time,
                       bool is_default) {
    Measured m{variant.name(), speedup.median, speedup.low, speedup.high};
    m.time = time;
    m.device = device_record(identify_cpu());
    m.kernels = sources.kernels, m.coefficients = sources.coefficients;
    m.kernel = name_of(variant.problem.kernel), m.format = name_of(variant.problem.format);
    records.push_back(m.record());
    records.back().parameters = variant.parameters();
    records.back().is_default = is_default;
  };
  const auto with_unroll = [](const Problem& problem, int unroll) {
    Variant variant = default_variant(problem);
    std::get<kernels::CpuSchedule>(variant.schedule).unroll = unroll;
    return variant;
  };
  const int usual = std::get<kernels::CpuSchedule>(default_variant(sure).schedule).unroll;
  for (const char* time : {"1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z"})
    add(default_variant(sure), {}, time, true);
  add(with_unroll(sure, usual + 1), {1.2, 1.19, 1.21}, "1970-01-01T00:00:00Z", false);
  add(with_unroll(sure, usual + 2), {1.3, 0.9, 1.9}, "2999-01-01T00:00:00Z", false);
  records.back().winner = records.back().gain = true;
  add(default_variant(edited), {}, "2026-01-01T00:00:00Z", true);
  add(with_unroll(edited, usual + 1), {1.2, 1.19, 1.21}, "2026-01-01T00:00:00Z", false);
  records.back().parameters["fit"] = "NoSuchFit";
  append_records(folder / "tune_cpu.jsonl", records);

  Captured captured_out(Captured::kStdout);
  Captured captured_err(Captured::kStderr);
  const int status = tune_command({"--out", folder.path(), "--kernel", "gelu_backward", "--format", "f16",
                                   "--evaluations", "1", "--elements", "65536", "--budget", "300"});
  captured_out.release();
  const std::string said = captured_err.release(), header = kernels::read_file(folder / "tuned_cpu.h");
  EXPECT_EQ(status, 0);
  EXPECT_NE(header.find(with_unroll(sure, usual + 1).name()), std::string::npos) << header;
  EXPECT_EQ(header.find(with_unroll(sure, usual + 2).name()), std::string::npos) << header;
  EXPECT_EQ(header.find(with_unroll(edited, usual + 1).name()), std::string::npos) << header;
  EXPECT_NE(said.find("NoSuchFit"), std::string::npos) << said;
}

// ---- accuracy

std::vector<Record> with_a_coarse_winner() {
  Measured fast{"fast", 1.5, 1.45, 1.55}, sound{"sound", 1.2, 1.15, 1.25};
  fast.as_accurate = false;
  return run_of("t1", {fast, sound}, "fast");
}

TEST(Accuracy, NoLessAccurateVariantWinsUnasked) {
  const auto winner_of = [](Accuracy accuracy) {
    const auto problems = weigh(with_a_coarse_winner(), accuracy);
    return problems.at(0).variants.at(problems.at(0).winner).name();
  };
  EXPECT_EQ(winner_of(Accuracy::kAsDefault), "sound");
  EXPECT_EQ(winner_of(Accuracy::kAny), "fast");
}

TEST(Accuracy, NoLessAccurateVariantIsPublishedUnasked) {
  const kernels::ScratchFolder folder;
  const auto published = [&](Accuracy accuracy) {
    return kernels::read_file(
        publish(with_a_coarse_winner(), {{"k1", "c1"}}, folder.path(), accuracy).at(0).path);
  };
  EXPECT_EQ(published(Accuracy::kAsDefault).find("\"fast\""), std::string::npos);
  EXPECT_NE(published(Accuracy::kAny).find("\"fast\""), std::string::npos);
  EXPECT_EQ(published(Accuracy::kAsDefault).find("\"fast\""), std::string::npos) << "nor kept";
}

TEST(Accuracy, OfAMergeIsAskedFor) {
  const kernels::ScratchFolder folder;
  append_records(folder / "in.jsonl", with_a_coarse_winner());
  const auto winner = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"--merge", folder / "in.jsonl", "--out", folder / "out.jsonl", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    Captured captured_out(Captured::kStdout);
    const int status = tune_command(args);
    const json said = json::parse(captured_out.release());
    EXPECT_EQ(status, 0);
    return said["problems"][0]["winner"].get<std::string>();
  };
  EXPECT_EQ(winner({}), "sound");
  EXPECT_EQ(winner({"--accuracy", "any"}), "fast");
}

// Records as the tuner wrote them when T alone was the floor.
TEST(Accuracy, RecordsOfTheEarlierRuleAreNoEvidenceAndSaid) {
  std::vector<Record> records = with_a_coarse_winner();
  for (Record& record : records) record.fit = {"gelu", "abs:2^-10", {}, {}, {}, {}, "", {{"error", 0.01}}};
  Measured norm{"default"};
  norm.kernel = "layernorm_forward", norm.rows = 16, norm.cols = 1024, norm.elements = 16384;
  Measured forward{"default"};
  forward.kernel = "gelu_forward";
  Record of_forward = forward.record();
  of_forward.fit = {"gelu_forward", "", {}, {}, {}, {}, "", {{"error", 0}}};
  const std::vector<Record> others = {norm.record(), of_forward};
  const Database database = parse_database("db", lines_of(others) + lines_of(records));
  EXPECT_EQ(database.records.size(), 2u) << "what has no fit to choose is as it was";
  ASSERT_EQ(database.warnings.size(), 1u);
  EXPECT_EQ(database.warnings[0].rfind("db:3: the first of 3 records of an earlier rule of accuracy", 0), 0u)
      << database.warnings[0];
  for (const Accuracy accuracy : {Accuracy::kAsDefault, Accuracy::kAny})
    EXPECT_TRUE(weigh(records, accuracy).empty());
}

TEST(Accuracy, TheCommittedRecordsKeepTheRule) {
  int records = 0;
  for (const auto& entry : std::filesystem::directory_iterator(OUTGRAD_SOURCE_DIR "/notebooks_data/tuned")) {
    const Database database = load_database(entry.path().string());
    EXPECT_TRUE(database.warnings.empty()) << database.warnings.at(0);
    for (const Record& record : database.records)
      EXPECT_TRUE(is_eligible(record, Accuracy::kAsDefault)) << line_of(record);
    records += static_cast<int>(database.records.size());
  }
  EXPECT_GT(records, 0);
}

// ---- what a search starts from

TEST(Known, IsTheDeviceAndItsKinNearestFirst) {
  const kernels::ScratchFolder folder;
  const auto of = [](int threads, const std::string& isa) {
    DeviceRecord device = cpu_device(threads);
    device.isa = isa;
    return device;
  };
  const std::vector<DeviceRecord> devices = {of(8, "avx2 fma"), of(64, "avx2 fma"), of(8, "avx2"),
                                             gpu_device("G")};
  std::vector<Record> records;
  for (const DeviceRecord& device : devices) {
    Measured m{"default"};
    m.device = device;
    records.push_back(m.record());
  }
  EXPECT_EQ(publish(records, {{"k1", "c1"}}, folder.path(), Accuracy::kAsDefault).size(), 4u);
  const DeviceKey here = *device_key(devices[0]);
  EXPECT_EQ(known_records(here, Rung::device, folder.path()).records.size(), 1u);
  EXPECT_EQ(known_records(here, Rung::architecture, folder.path()).records.size(), 2u);
  const auto family = known_records(here, Rung::family, folder.path()).records;
  ASSERT_EQ(family.size(), 3u);
  EXPECT_EQ(family[1].run.device.threads, 64);
  EXPECT_EQ(known_records(here, Rung::all_devices, folder.path()).records.size(), 4u);
  EXPECT_TRUE(known_records(here, Rung::all_devices, folder / "absent").records.empty());
}

TEST(Known, SeedsAreTheNearestDevicesWinnersFirst) {
  const auto measured = [](const std::string& name, double median, int unroll, int threads,
                           const std::string& kernels = "k1") {
    Measured m{name, median, median - 0.01, median + 0.01};
    m.unroll = unroll;
    m.device = cpu_device(threads);
    m.kernels = kernels;
    return m.record();
  };
  std::vector<Record> records;
  for (const auto& [threads, kernels] : {std::pair(8, "k1"), {8, "k0"}, {64, "k1"}})
    records.push_back(measured("default", 1.01, 4, threads, kernels));
  records.push_back(measured("far winner", 2.0, 1, 64));
  records.push_back(measured("old winner", 3.0, 2, 8, "k0"));
  records.push_back(measured("runner-up", 1.2, 3, 8));
  records.push_back(measured("winner", 1.4, 5, 8));
  records.push_back(rejected(Measured{.variant = "bad", .unroll = 9}, "wrong answer"));
  Record predicted = measured("predicted", 1, 7, 8);
  predicted.run.device = offline_device();
  predicted.state = "predicted";
  predicted.predicted.ns_per_element = 0.5;
  records.push_back(predicted);
  std::vector<int> unrolls;
  const auto seeds = [&](const std::string& format, std::size_t count) {
    return seed_parameters(records, {*device_key(cpu_device(8)),
                                     {"k1", "c1"},
                                     "gelu_backward",
                                     format,
                                     1 << 20,
                                     count,
                                     Accuracy::kAsDefault});
  };
  for (const json& seed : seeds("bf16", 9)) unrolls.push_back(seed["unroll"]);
  EXPECT_EQ(unrolls, (std::vector<int>{5, 3, 4, 2, 1, 7}));
  EXPECT_EQ(seeds("bf16", 2).size(), 2u);
  EXPECT_TRUE(seeds("f32", 9).empty());
}

// ---- the command

template <class Error>
std::string refusal(const std::vector<std::string>& args) {
  try {
    tune_command(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MergeCommand, RefusesInOneLineAndLeavesTheOutputAlone) {
  const kernels::ScratchFolder folder;
  append_records(folder / "good.jsonl", run_of("t1", {}));
  kernels::write_file(folder / "newer.jsonl",
                      lines_of(run_of("t1", {})) + "{\"schema\":\"outgrad.tune/2\",\"kernel\":\"x\"}\n");
  kernels::write_file(folder / "empty.jsonl", "");
  kernels::write_file(folder / "other.txt", "a letter\n");
  const std::string out = folder / "out.jsonl", good = folder / "good.jsonl";
  EXPECT_NE(refusal<kernels::IoError>({"--merge", good, folder / "absent.jsonl", "--out", out})
                .find("absent.jsonl"),
            std::string::npos);
  EXPECT_NE(refusal<kernels::IoError>({"--merge", folder.path(), "--out", out}), "");
  EXPECT_NE(
      refusal<kernels::SpecError>({"--merge", folder / "empty.jsonl", folder / "other.txt", "--out", out})
          .find("no record"),
      std::string::npos);
  EXPECT_NE(refusal<kernels::SpecError>({"--merge", good}).find("--out"), std::string::npos);
  EXPECT_NE(refusal<kernels::SpecError>({"--merge", good, "--out", folder.path()}).find("folder"),
            std::string::npos);
  EXPECT_NE(refusal<kernels::SpecError>({"--merge", good, "--out", out, "--budget", "3"})
                .find("does not go with --merge"),
            std::string::npos);
  const std::string newer =
      refusal<kernels::SpecError>({"--merge", good, folder / "newer.jsonl", "--out", out});
  EXPECT_NE(newer.find("newer.jsonl:2"), std::string::npos) << newer;
  EXPECT_NE(newer.find("outgrad.tune/2"), std::string::npos) << newer;
  EXPECT_FALSE(std::filesystem::exists(out));
  kernels::write_file(folder / "cut.jsonl", lines_of(run_of("t1", {})) + "{\"schema\":");
  for (const char* name : {"newer.jsonl", "other.txt", "cut.jsonl"}) {
    const std::string before = kernels::read_file(folder / name);
    EXPECT_NE(refusal<kernels::SpecError>({"--merge", good, "--out", folder / name}), "") << name;
    EXPECT_EQ(kernels::read_file(folder / name), before);
  }
  EXPECT_NE(refusal<kernels::IoError>({"--merge", good, "--out", good + "/out.jsonl"}), "");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files += entry.exists();
  EXPECT_EQ(files, 5u) << "nothing half-written";
}

TEST(MergeCommand, AFullDiskLeavesNothing) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full to stand for a full disk";
  const kernels::ScratchFolder folder;
  append_records(folder / "good.jsonl", run_of("t1", {}));
  try {
    tune_command({"--merge", folder / "good.jsonl", "--out", "/dev/full"});
    FAIL() << "wrote to a full disk";
  } catch (const kernels::IoError& error) {
    EXPECT_EQ(error.exit_status(), kernels::kExitEnvironment);
  }
}

TEST(MergeCommand, AddsToWhatIsThereWhileATunerAppends) {
  const kernels::ScratchFolder folder;
  const std::string input = folder / "in.jsonl", out = folder / "out.jsonl";
  append_records(input, run_of("in", {{"a", 1.2, 1.1, 1.3}}));
  append_records(out, run_of("out", {{"b", 1.2, 1.1, 1.3}}));
  constexpr int kAppends = 200, kMerges = 20;
  const pid_t tuner = ::fork();
  if (tuner == 0) {
    for (int i = 0; i < kAppends; ++i)
      append_records(out, {Measured{"appended " + std::to_string(i)}.record()});
    ::_exit(0);
  }
  Captured captured_out(Captured::kStdout);
  for (int i = 0; i < kMerges; ++i) EXPECT_EQ(tune_command({"--merge", input, "--out", out}), 0);
  captured_out.release();
  int status = 1;
  ASSERT_EQ(::waitpid(tuner, &status, 0), tuner);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(load_database(out).records.size(), std::size_t{4 + kAppends});
}

TEST(MergeCommand, SaysWhoWonAndWhatRunsDisagreedIn) {
  const kernels::ScratchFolder folder;
  append_records(folder / "one.jsonl",
                 run_of("t1", {{"a", 1.20, 1.19, 1.21}}, "a") + run_of("t2", {{"a", 1.21, 1.20, 1.22}}, "a"));
  append_records(folder / "two.jsonl", run_of("t3", {{"a", 1.24, 1.23, 1.25}}, "a"));
  const auto said = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"--merge", folder / "one.jsonl", folder / "two.jsonl", "--out",
                                     folder / "out.jsonl"};
    args.insert(args.end(), more.begin(), more.end());
    Captured captured_out(Captured::kStdout);
    EXPECT_EQ(tune_command(args), 0);
    return captured_out.release();
  };
  const std::string table = said({});
  for (const char* word : {"gelu_backward.bf16.1048576", "A CPU 9000", "[1.", "3 runs",
                           "conflict: a: 3 runs exclude each other"})
    EXPECT_NE(table.find(word), std::string::npos) << word << " in\n" << table;
  const json summary = json::parse(said({"--json"}));
  EXPECT_EQ(summary["schema"], "outgrad.merge/1");
  ASSERT_EQ(summary["problems"].size(), 1u);
  EXPECT_EQ(summary["problems"][0]["winner"], "a");
  EXPECT_EQ(summary["problems"][0]["runs"], 3);
  EXPECT_EQ(summary["problems"][0]["conflicts"].size(), 1u);
}

// Its figures would be those of some variant that it does not name.
TEST(MergeCommand, SaysNothingOfAWinnerWithoutADefault) {
  const kernels::ScratchFolder folder;
  append_records(folder / "one.jsonl", {Measured{"a", 1.20, 1.19, 1.21}.record()});
  Captured captured_out(Captured::kStdout);
  EXPECT_EQ(tune_command({"--merge", folder / "one.jsonl", "--out", folder / "out.jsonl", "--json"}), 0);
  const json problem = json::parse(captured_out.release())["problems"].at(0);
  for (const char* key : {"winner", "speedup", "runs", "rounds"})
    EXPECT_TRUE(problem.at(key).is_null()) << key << ": " << problem.at(key);
}

}  // namespace
}  // namespace outgrad::autotune
