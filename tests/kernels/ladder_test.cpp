// The lookup over random tables: total, deterministic, indifferent to the table's order, never on a farther
// rung than it has to be, and the nearest size of its rung. An oracle that shares no code with it says what
// is nearest.
#include "kernels/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/host/identity.h"

namespace outgrad::kernels {
namespace {

constexpr int kEntries = 12;
using Table = TunedEntry[kEntries];

// Devices of two families, each of two architectures of two devices.
struct Device {
  std::string device, architecture, family;
  DeviceKey key() const { return {device.c_str(), architecture.c_str(), family.c_str()}; }
};
std::vector<Device> devices() {
  std::vector<Device> all;
  for (const char family : {'f', 'g'})
    for (const char architecture : {'a', 'b'})
      for (const char device : {'1', '2'})
        all.push_back({std::string{family, architecture, device}, std::string{family, architecture},
                       std::string{family}});
  return all;
}
const std::vector<Device> kDevices = devices();

constexpr const char* kVariants[] = {"v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10"};

// The last entry is the one that every table has.
void fill(Table& table, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  const int first = below(kDevices.size());  // of the three owners of this table's entries
  for (int i = 0; i + 1 < kEntries; ++i) {
    TunedEntry& entry = table[i];
    const int owner = (first + below(3)) % static_cast<int>(kDevices.size() + 1);
    entry.device = owner < static_cast<int>(kDevices.size()) ? kDevices[static_cast<std::size_t>(owner)].key()
                                                             : DeviceKey{};
    if (below(4) == 0) entry.device.device = nullptr;  // as of a prediction
    entry.rows = i64{1} << below(5);
    entry.cols = below(8) == 0 ? 0 : i64{1} << below(5);
    entry.choice = below(3);
    entry.variant = kVariants[i];
    entry.evidence = below(2) == 0 ? Evidence::measured : Evidence::predicted;
    entry.speedup.low = static_cast<float>(below(3));
  }
  table[kEntries - 1] = {};
}

const auto kAll = [](const TunedEntry&) { return true; };

int rung_by_text(const TunedEntry& entry, const Device& device) {
  const auto is = [](const char* a, const std::string& b) { return a != nullptr && b == a; };
  if (is(entry.device.device, device.device)) return 0;
  if (is(entry.device.architecture, device.architecture)) return 1;
  if (is(entry.device.family, device.family)) return 2;
  return entry.device.device == nullptr && entry.device.architecture == nullptr &&
                 entry.device.family == nullptr
             ? 3
             : 9;
}

double distance(i64 asked, i64 tuned) {
  return std::abs(std::log2(static_cast<double>(asked)) - std::log2(static_cast<double>(tuned)));
}

TEST(Ladder, FindsTheNearestEntryOfTheNearestRung) {
  std::mt19937_64 random(1);
  std::array<int, 4> rungs = {};
  int exact = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    Table table;
    fill(table, random);
    const Device& device = kDevices[random() % kDevices.size()];
    const i64 rows = i64{1} << random() % 6, cols = i64{1} << random() % 6;
    const Found found = look_up(table, device.key(), rows, cols, kAll);
    ASSERT_GE(found.entry, 0);
    ASSERT_LT(found.entry, kEntries);
    const TunedEntry& chosen = table[found.entry];
    const int rung = rung_by_text(chosen, device);
    ASSERT_EQ(static_cast<int>(found.rung), rung);
    ++rungs[static_cast<std::size_t>(rung)];
    exact += is_exact(found);
    ASSERT_EQ(is_exact(found), rung == 0 && chosen.rows == rows && chosen.cols == cols);
    for (const TunedEntry& other : table) {
      ASSERT_GE(rung_by_text(other, device), rung);
      if (rung_by_text(other, device) != rung || other.cols == 0) continue;
      ASSERT_NE(chosen.cols, 0) << "an entry for every size yields to one with a size";
      ASSERT_GE(distance(cols, other.cols), distance(cols, chosen.cols));
      if (distance(cols, other.cols) == distance(cols, chosen.cols)) {
        ASSERT_GE(distance(rows, other.rows), distance(rows, chosen.rows));
      }
    }
    if (chosen.cols > 0) {
      ASSERT_DOUBLE_EQ(std::log2(found.cols_ratio), distance(cols, chosen.cols));
      ASSERT_DOUBLE_EQ(std::log2(found.rows_ratio), distance(rows, chosen.rows));
    } else {
      ASSERT_EQ(found.cols_ratio, 0);
    }
  }
  for (const int count : rungs) EXPECT_GT(count, 100);
  EXPECT_GT(exact, 100);
}

TEST(Ladder, OrderOfEntriesMeansNothing) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 5'000; ++trial) {
    Table table, shuffled;
    fill(table, random);
    std::array<int, kEntries> order;
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (int i = 0; i < kEntries; ++i) shuffled[i] = table[order[static_cast<std::size_t>(i)]];
    const Device& device = kDevices[random() % kDevices.size()];
    const i64 rows = i64{1} << random() % 6, cols = i64{1} << random() % 6;
    const Found one = look_up(table, device.key(), rows, cols, kAll),
                other = look_up(shuffled, device.key(), rows, cols, kAll);
    ASSERT_EQ(order[static_cast<std::size_t>(other.entry)], one.entry);
    ASSERT_EQ(other.rung, one.rung);
    ASSERT_EQ(other.cols_ratio, one.cols_ratio);
    ASSERT_EQ(other.rows_ratio, one.rows_ratio);
  }
}

TEST(Ladder, PassesOverWhatTheBuildCannotRun) {
  std::mt19937_64 random(3);
  const auto narrow = [](const TunedEntry& entry) { return entry.choice == 0; };
  for (int trial = 0; trial < 5'000; ++trial) {
    Table table;
    fill(table, random);
    const Device& device = kDevices[random() % kDevices.size()];
    const Found found = look_up(table, device.key(), 4, 8, narrow);
    ASSERT_EQ(table[found.entry].choice, 0);
    for (const TunedEntry& other : table) {
      if (!narrow(other)) continue;
      ASSERT_GE(rung_by_text(other, device), static_cast<int>(found.rung));
    }
  }
}

TEST(Ladder, SizesOfNothingAndOfEverythingAreFound) {
  constexpr TunedEntry kTable[] = {
      {{"d", "a", "f"}, 1, 4096, 1, "small"}, {{"d", "a", "f"}, 1, i64{1} << 40, 1, "large"}, {}};
  const DeviceKey device{"d", "a", "f"};
  EXPECT_EQ(look_up(kTable, device, 0, 0, kAll).entry, 0);
  EXPECT_EQ(look_up(kTable, device, -5, -5, kAll).entry, 0);
  EXPECT_EQ(look_up(kTable, device, INT64_MAX, INT64_MAX, kAll).entry, 1);
  EXPECT_EQ(look_up(kTable, {}, 1, 4096, kAll).entry, 2);  // a device that says nothing of itself
  static_assert(is_exact(look_up(kTable, DeviceKey{"d", "a", "f"}, 1, 4096, kAll)));
  EXPECT_STREQ(name_of(look_up(kTable, {"e", "a", "f"}, 1, 1, kAll).rung), "same architecture");
  EXPECT_STREQ(name_of(look_up(kTable, {"e", "b", "f"}, 1, 1, kAll).rung), "same family");
  EXPECT_STREQ(name_of(look_up(kTable, {"e", "b", "g"}, 1, 1, kAll).rung), "default");
}

TEST(Ladder, MeasuredGoesBeforePredictedAndTheSurerGainFirst) {
  constexpr DeviceKey kKey{nullptr, "a", "f"};
  constexpr TunedEntry kTable[] = {{kKey, 1, 8, 0, "a", Evidence::predicted, {9, 9, 9}},
                                   {kKey, 1, 8, 1, "c", Evidence::measured, {1.5f, 1.1f, 2}},
                                   {kKey, 1, 8, 2, "b", Evidence::measured, {1.4f, 1.3f, 2}},
                                   {}};
  EXPECT_EQ(look_up(kTable, {"x", "a", "f"}, 1, 8, kAll).entry, 2);
}

struct Wide {
  static constexpr int kSchedule = 512;
};
struct Narrow {
  static constexpr int kSchedule = 0;
};
struct Holds {
  using Choices = kernels::Choices<Wide, Narrow>;
  static constexpr TunedEntry kEntries[] = {{{"d", "a", "f"}, 1, 8, 0, "wide"}, {{}, 0, 0, 1}};
};
struct WithoutDefault : Holds {
  static constexpr TunedEntry kEntries[] = {{{"d", "a", "f"}, 1, 8, 0, "wide"}};
};
struct WithoutEverySize : Holds {
  static constexpr TunedEntry kEntries[] = {{{}, 1, 8, 1}};
};
struct WithAWrongDefault : Holds {
  static constexpr TunedEntry kEntries[] = {{{}, 0, 0, 0}};
};
struct WithAWrongChoice : Holds {
  static constexpr TunedEntry kEntries[] = {{{}, 0, 0, 1}, {{}, 0, 0, 2}};
};

TEST(Ladder, TablesWithoutAnAnswerForEveryoneAreRefused) {
  EXPECT_TRUE(table_holds<Holds>());
  EXPECT_FALSE(table_holds<WithoutDefault>());
  EXPECT_FALSE(table_holds<WithoutEverySize>());
  EXPECT_FALSE(table_holds<WithAWrongDefault>());
  EXPECT_FALSE(table_holds<WithAWrongChoice>());
}

TEST(CpuIdentity, KeysGoFromTheParticularToTheGeneral) {
  CpuFacts cpu;
  std::strcpy(cpu.model, "Some CPU @ 3 GHz");
  cpu.threads = 1;
  EXPECT_STREQ(key_of(cpu, 0).device.text(), "cpu: Some CPU @ 3 GHz, 1 thread, 0-bit vectors, no extensions");
  cpu.threads = 12;
  cpu.has[0] = cpu.has[6] = true;
  const CpuKey key = key_of(cpu, 256);
  EXPECT_STREQ(key.device.text(), "cpu: Some CPU @ 3 GHz, 12 threads, 256-bit vectors, avx2 fma");
  EXPECT_STREQ(key.architecture.text(), "cpu: 256-bit vectors, avx2 fma");
  EXPECT_STREQ(key.family.text(), "cpu: 256-bit vectors");
}

TEST(CpuIdentity, IsReadOnceAndFitsItsLine) {
  EXPECT_EQ(this_cpu().device, this_cpu().device);
  TextLine line;
  for (int i = 0; i < 100; ++i) line << "0123456789";
  EXPECT_EQ(std::string(line.text()).size(), 255u);
  TextLine numbers;
  numbers << 0LL << " " << -12LL << " " << INT64_MIN;
  EXPECT_STREQ(numbers.text(), "0 -12 -9223372036854775808");
}

}  // namespace
}  // namespace outgrad::kernels
