// Defaults over several devices: the least worst loss, by an oracle of its own; ties to the simpler; what was
// not measured everywhere is out.
#include "autotune/evidence/defaults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "autotune/commands/commands.h"
#include "autotune/cpu/compile.h"
#include "autotune/evidence/merge.h"
#include "autotune/records/database.h"
#include "kernels/support/files.h"
#include "tests/autotune/records/tuning_records.h"
#include "tests/refusal.h"

namespace outgrad::autotune {
namespace {

const SourceHashes kSources{"k1", "c1"};

DeviceRecord device_of(int number) {
  DeviceRecord device = cpu_device();
  device.model = "CPU " + std::to_string(number);
  return device;
}

// One run on one device at one size; speedups by variant, the default among them with 1. `unroll` differs
// from the default's by name.
std::vector<Record> run(const DeviceRecord& device, long long elements,
                        const std::map<std::string, double>& speedups) {
  std::vector<Record> records;
  for (const auto& [variant, speedup] : speedups) {
    Measured m{variant, speedup, speedup * 0.999, speedup * 1.001};
    m.device = device;
    m.elements = elements;
    if (variant != "default")
      m.unroll = 1 + static_cast<int>(variant.size() % 7), m.block = variant.back() == '*' ? 8192 : 4096;
    records.push_back(m.record());
  }
  return records;
}

std::vector<Record> joined(std::vector<Record> a, const std::vector<Record>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Defaults, MinimiseTheWorstLossNotTheMean) {
  // "a" is the best on one and bad on the other, "b" is a little behind on both; "c" was measured on one
  // alone.
  const std::vector<Record> records =
      joined(run(device_of(1), 4096, {{"default", 1}, {"a", 2.0}, {"b", 1.9}, {"c", 2.0}}),
             run(device_of(2), 4096, {{"default", 1}, {"a", 1.0}, {"b", 1.4}}));
  const auto choices = choose_defaults(records, kSources);
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].choice().variant, "b");
  EXPECT_NEAR(choices[0].choice().worst, 2.0 / 1.9 - 1, 1e-6);
  EXPECT_EQ(choices[0].places.size(), 2u);
  EXPECT_TRUE(std::none_of(choices[0].table.begin(), choices[0].table.end(),
                           [](const Loss& loss) { return loss.variant == "c"; }));
  const auto standard = std::find_if(choices[0].table.begin(), choices[0].table.end(),
                                     [](const Loss& loss) { return loss.variant == "default"; });
  ASSERT_NE(standard, choices[0].table.end());
  EXPECT_NEAR(standard->worst, 1, 1e-6);

  const std::vector<TunedChoice> entries = default_entries(choices);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_TRUE(entries[0].device.device.empty());
  EXPECT_EQ(entries[0].problem.cols, 0);
  EXPECT_NEAR(entries[0].speedup.low, 1.4 * 0.999, 1e-4);
}

TEST(Defaults, TiesGoToTheSimpler) {
  const auto chosen = [](const std::map<std::string, double>& speedups) {
    return choose_defaults(run(device_of(1), 4096, speedups), kSources).at(0).choice().variant;
  };
  EXPECT_EQ(chosen({{"default", 1}, {"a", 1.0 + 0.9 * kLossTie}}), "default");
  EXPECT_EQ(chosen({{"default", 1}, {"a", 1.0 + 2 * kLossTie}}), "a");
  EXPECT_EQ(chosen({{"default", 1}, {"a*", 1.5}, {"bb", 1.499}}), "bb")
      << "a block of another size is one parameter more";
  EXPECT_EQ(chosen({{"default", 1}, {"a*", 1.5}, {"bb", 1.4}}), "a*");
}

// As on its own device, where such a variant does not win either.
TEST(Defaults, AreNotReplacedByNoise) {
  const auto chosen = [](double low, int rounds) {
    std::vector<Record> records;
    for (Measured m : {Measured{"default"}, Measured{"a", 1.05, low, 1.22}}) {
      m.rounds = rounds;
      if (m.variant == "a") m.unroll = 2;
      records.push_back(m.record());
    }
    return choose_defaults(records, kSources).at(0).choice().variant;
  };
  EXPECT_EQ(chosen(1.01, kLeastRounds), "a");
  EXPECT_EQ(chosen(0.90, kLeastRounds), "default");
  EXPECT_EQ(chosen(1.01, kLeastRounds - 1), "default");
}

TEST(Defaults, AreTheOraclesOnRandomDatabasesInWhateverOrder) {
  std::mt19937_64 random(1);
  int explicit_ones = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<Record> records;
    std::map<std::string, std::vector<double>> losses;
    const int places = 1 + static_cast<int>(random() % 3);
    for (int place = 0; place < places; ++place) {
      std::map<std::string, double> speedups = {{"default", 1}};
      for (int v = 0; v < 6; ++v)
        if (random() % 5 > 0)
          speedups["v" + std::string(static_cast<std::size_t>(v), 'x')] =
              0.5 + static_cast<double>(random() % 1000) / 500;
      double best = 1;
      for (const auto& [name, speedup] : speedups) best = std::max(best, speedup);
      for (const auto& [name, speedup] : speedups) losses[name].push_back(best / speedup - 1);
      records = joined(records, run(device_of(place / 2), 4096 << place, speedups));
    }
    double least = 1e9;
    for (const auto& [name, all] : losses)
      if (static_cast<int>(all.size()) == places)
        least = std::min(least, *std::max_element(all.begin(), all.end()));
    const DefaultChoice choice = choose_defaults(records, kSources).at(0);
    ASSERT_NEAR(choice.table.front().worst, least, 1e-6);
    const std::vector<double>& own = losses.at(choice.choice().variant);
    ASSERT_EQ(static_cast<int>(own.size()), places);
    ASSERT_LE(*std::max_element(own.begin(), own.end()), least + kLossTie + 1e-6);
    explicit_ones += !choice.is_default();

    std::shuffle(records.begin(), records.end(), random);
    const DefaultChoice again = choose_defaults(records, kSources).at(0);
    ASSERT_EQ(again.choice().variant, choice.choice().variant);
    ASSERT_EQ(again.places, choice.places);
    ASSERT_EQ(again.choice().losses, choice.choice().losses);
  }
  EXPECT_GT(explicit_ones, 10);
}

TEST(Defaults, OtherFitsOtherSourcesAndBarredVariantsAreOut) {
  std::vector<Record> records = run(device_of(1), 4096, {{"default", 1}, {"a", 1.5}});
  std::vector<Record> other_fit = run(device_of(1), 4096, {{"fast fit", 3}});
  other_fit[0].parameters["fit"] = "GeluFast";
  records = joined(records, other_fit);
  EXPECT_EQ(choose_defaults(records, kSources).at(0).choice().variant, "a");
  EXPECT_NEAR(choose_defaults(records, kSources).at(0).choice().worst, 0, 1e-9);
  EXPECT_TRUE(choose_defaults(records, {"k2", "c1"}).empty());
  Record wrong = run(device_of(1), 4096, {{"a", 1.5}})[0];
  wrong.state = "rejected";
  wrong.run.time = "2026-02-01T00:00:00Z";
  wrong.rejected = {"verify", "wrong answer", "dx[0]", {}};
  records.push_back(wrong);
  EXPECT_EQ(choose_defaults(records, kSources).at(0).choice().variant, "default");
}

TEST(Defaults, AreOfCpusOrOfGpus) {
  const kernels::ScratchFolder folder;
  const std::string database = folder / "both.jsonl";
  append_records(
      database, joined(run(device_of(1), 4096, {{"default", 1}}), run(gpu_device(), 4096, {{"default", 1}})));
  EXPECT_EQ(refusal_of([&] { tune_command({"--defaults", database}); }),
            "tune: --defaults: there are records of CPUs and of GPUs: a header has schedules of one of them");
}

// What is published of real machines gives a table, too.
TEST(Defaults, OfTheCommittedRecords) {
  const std::string folder = source_root() + "/notebooks_data/tuned";
  std::vector<Record> records;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    const std::string path = file->path().string();
    if (!path.ends_with(".jsonl")) continue;
    for (Record& record : load_database(path).records) {
      const auto key = device_key(record.run.device);
      if (key && key->family.starts_with("cpu:")) records.push_back(std::move(record));
    }
  }
  ASSERT_FALSE(records.empty()) << folder;
  for (const ProblemEvidence& evidence : weigh(records, Accuracy::kAsDefault)) {
    for (const DefaultChoice& choice : choose_defaults(records, evidence.sources)) {
      EXPECT_GE(choice.choice().worst, 0);
      const auto least = std::find_if(choice.table.begin(), choice.table.end(), [](const Loss& loss) {
        return loss.gains || loss.variant == kDefaultName;
      });
      EXPECT_LE(choice.choice().worst, least->worst + kLossTie);
      for (const double loss : choice.choice().losses) EXPECT_LE(loss, choice.choice().worst);
    }
  }
}

}  // namespace
}  // namespace outgrad::autotune
