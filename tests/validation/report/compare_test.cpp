// Two results side by side: what is exact changes with its last bit, what is timed only beyond its intervals.
#include "validation/report/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::ordered_json;

const std::string kData = OUTGRAD_SOURCE_DIR "/notebooks_data/";

class Compare : public testing::Test {
 protected:
  std::string write(const std::string& name, const Json& json) const {
    kernels::write_file(folder_ / name, json.dump());
    return folder_ / name;
  }
  static Json committed(const std::string& name) { return Json::parse(kernels::read_file(kData + name)); }
  /// How often each change occurs between the file that is committed and what `edit` makes of it.
  std::map<Change, int> changes(const std::string& name, const std::function<void(Json&)>& edit) const {
    Json json = committed(name);
    edit(json);
    std::map<Change, int> count;
    for (const Difference& one : compare(read_compared(kData + name), read_compared(write("b.json", json))))
      ++count[one.change];
    return count;
  }

  /// A line of the tuner: a variant that won by this ratio over the default or did not; by 1, the default.
  static Json tuned(const std::string& time, int seed, bool winner, double ratio, int rounds) {
    return {{"schema", "outgrad.tune/1"},
            {"time", time},
            {"seed", seed},
            {"device", {{"kind", "cpu"}, {"model", "a processor"}, {"threads", 2}}},
            {"kernel", "gelu_forward"},
            {"format", "f32"},
            {"variant", winner ? "best" : "other"},
            {"state", "timed"},
            {"elements", 65536},
            {"default", ratio == 1},
            {"finalist", true},
            {"winner", winner},
            {"gain", winner && ratio > 1},
            {"final", {{"ns", std::vector<double>(30, 1e6)}}},
            {"discarded_rounds", 30 - rounds},
            {"speedup", {{"median", ratio}, {"low", ratio}, {"high", ratio}, {"confidence", 0.99}}}};
  }

  kernels::ScratchFolder folder_;
};

TEST_F(Compare, AResultIsTheSameAsItself) {
  for (const char* name : {"sweeps/gelu_bf16.json", "sweeps/gelu_code_bf16.json", "bench/cpu.json",
                           "bench/cpu_amd_epyc.json", "bench/stores.json"}) {
    const std::map<Change, int> found = changes(name, [](Json&) {});
    EXPECT_EQ(found.size(), 1u) << name;
    EXPECT_GT(found.count(Change::same) ? found.at(Change::same) : 0, 5) << name;
  }
}

// Of a sweep every input was counted: the least difference is a change.
TEST_F(Compare, WhatIsExactChangesWithItsLastBit) {
  const auto with = [&](double factor) {
    return changes("sweeps/gelu_bf16.json", [&](Json& sweep) {
      Json& bound = sweep["domains"][0]["T"]["bound"];
      bound = std::nextafter(bound.get<double>(), factor * bound.get<double>());
    });
  };
  EXPECT_EQ(with(2)[Change::worse], 1);
  EXPECT_EQ(with(2)[Change::better], 0);
  EXPECT_EQ(with(0)[Change::better], 1);
  EXPECT_EQ(with(0)[Change::worse], 0);
  EXPECT_EQ(changes("sweeps/gelu_bf16.json",
                    [](Json& sweep) { sweep["domains"][1]["counts"]["wrong_mask"] = 1; })[Change::worse],
            1);
}

// The same machine again, a little slower than its rounds differ, and much slower.
TEST_F(Compare, WhatIsTimedChangesBeyondItsIntervals) {
  const auto scaled = [&](double factor) {
    return changes("bench/cpu.json", [&](Json& bench) {
      for (Json& ns : bench["groups"][0]["cases"][2]["ns"]) ns = factor * ns.get<double>();
    });
  };
  EXPECT_EQ(scaled(1.001)[Change::noise], 1);
  EXPECT_EQ(scaled(2)[Change::worse], 1);
  EXPECT_EQ(scaled(0.5)[Change::better], 1);
  EXPECT_EQ(scaled(2)[Change::same], scaled(1)[Change::same] - 1);
  EXPECT_EQ(changes("bench/cpu.json",
                    [](Json& bench) {
                      Json& ns = bench["groups"][0]["cases"][2]["ns"];
                      ns = Json::array({1.0, 2.0, 3.0});
                    })[Change::undecided],
            1);
}

// Two runs differ by more than the rounds of each: whose verdict it is stands below what was timed.
TEST_F(Compare, WhatIsTimedSaysThatItsIntervalsAreOfOneRun) {
  const auto of = [&](const std::string& name) {
    const ComparedFile a = read_compared(kData + name);
    const std::vector<Difference> found = compare(a, a);
    return std::pair(to_text(a, a, found), to_json(a, a, found).at("intervals_of"));
  };
  for (const char* name : {"bench/cpu.json", "bench/stores.json", "tuned/cuda_nvidia_h200_7e14bd12.jsonl"}) {
    const auto [text, intervals_of] = of(name);
    EXPECT_NE(text.find("Each interval is of the rounds of one run"), std::string::npos) << name;
    EXPECT_EQ(intervals_of, "the rounds of one run") << name;
  }
  const auto [text, intervals_of] = of("sweeps/gelu_bf16.json");
  EXPECT_EQ(text.find("interval"), std::string::npos);
  EXPECT_TRUE(intervals_of.is_null());
}

TEST_F(Compare, WhatOneAloneHasIsSaid) {
  const auto found =
      changes("bench/stores.json", [](Json& bench) { bench["groups"][0]["stores"][0]["store"] = "another"; });
  EXPECT_EQ(found.at(Change::only_a), 2);
  EXPECT_EQ(found.at(Change::only_b), 2);
}

TEST_F(Compare, TheTunersDatabasesByTheirWinners) {
  const std::string file = kData + "tuned/cuda_nvidia_h200_7e14bd12.jsonl";
  const ComparedFile a = read_compared(file);
  EXPECT_EQ(a.machine, "cuda: NVIDIA H200, sm_90, 132 SMs, 140 GiB");
  EXPECT_GT(a.figures.size(), 5u);
  for (const Difference& one : compare(a, a)) EXPECT_EQ(one.change, Change::same) << one.of;
  ComparedFile b = a;
  b.figures[0].value *= 2, b.figures[0].interval = ConfidenceInterval{b.figures[0].value, b.figures[0].value};
  EXPECT_EQ(compare(a, b)[0].change, Change::better);
  EXPECT_EQ(compare(b, a)[0].change, Change::worse);
}

// Two runs of one second, and an earlier one: of the same lines the same run counts, whatever their order.
TEST_F(Compare, TheLatestRunIsTheSameInAnyOrderOfLines) {
  std::vector<std::string> lines;
  for (const auto& [time, seed] : {std::pair("2026-01-01T00:00:00Z", 6), std::pair("2026-01-01T00:00:00Z", 5),
                                   std::pair("2025-01-01T00:00:00Z", 7)})
    for (const bool winner : {true, false})
      lines.push_back(tuned(time, seed, winner, 0.25 * seed, 24).dump());
  const auto read = [&] {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    kernels::write_file(folder_ / "tuned.jsonl", text);
    return read_compared(folder_ / "tuned.jsonl");
  };
  const ComparedFile first = read();
  ASSERT_EQ(first.figures.size(), 1u);
  EXPECT_EQ(first.figures[0].value, 1.5);
  std::mt19937 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    std::ranges::shuffle(lines, random);
    lines.push_back(lines.front());  // as of a database that was appended to another
    const std::vector<Difference> found = compare(first, read());
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].change, Change::same) << trial;
  }
}

// A default that was kept because the machine was too busy is no figure that another run could be beside.
TEST_F(Compare, ADefaultKeptInTooFewRoundsIsUndecided) {
  const auto read = [&](const std::string& name, double ratio, int rounds) {
    kernels::write_file(folder_ / name, tuned("2026-01-01T00:00:00Z", 1, true, ratio, rounds).dump() + "\n");
    return read_compared(folder_ / name);
  };
  const ComparedFile noisy = read("noisy.jsonl", 1, 19), certain = read("certain.jsonl", 1, 20),
                     gain = read("gain.jsonl", 2, 20);
  EXPECT_FALSE(noisy.figures[0].interval);
  EXPECT_TRUE(certain.figures[0].interval);
  EXPECT_EQ(compare(noisy, gain)[0].change, Change::undecided);
  EXPECT_EQ(compare(gain, noisy)[0].change, Change::undecided);
  EXPECT_EQ(compare(noisy, certain)[0].change, Change::undecided);
  EXPECT_EQ(compare(certain, gain)[0].change, Change::better);
  EXPECT_EQ(compare(certain, certain)[0].change, Change::same);
}

// The interval is the one of order statistics: of 8 values the ends, of 20 the 4th from either end. Of
// medians of samples of anything, it holds the true one as often as it says.
TEST_F(Compare, TheIntervalHoldsTheMedian) {
  const auto of = [](int n) {
    std::vector<double> values(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = n - i;
    return median_of(values).interval;
  };
  EXPECT_FALSE(of(0) || of(7));
  EXPECT_EQ(std::pair(of(8)->low, of(8)->high), std::pair(1.0, 8.0));
  EXPECT_EQ(std::pair(of(20)->low, of(20)->high), std::pair(4.0, 17.0));
  std::mt19937 random(1);
  std::exponential_distribution<double> skewed(1);
  int held = 0;
  constexpr int kTrials = 4000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(25);
    for (double& value : values) value = skewed(random);
    const ConfidenceInterval interval = *median_of(values).interval;
    held += interval.low <= std::log(2.0) && std::log(2.0) <= interval.high;
  }
  EXPECT_GE(held, 0.985 * kTrials);
}

TEST_F(Compare, TheTableFitsATerminalAndItsJsonHasTheSame) {
  const ComparedFile a = read_compared(kData + "bench/cpu.json"),
                     b = read_compared(kData + "bench/cpu_amd_epyc.json");
  const std::vector<Difference> found = compare(a, b);
  const std::string text = to_text(a, b, found);
  EXPECT_NE(text.find("The machines differ"), std::string::npos);
  std::size_t begin = text.find("The machines");
  for (std::size_t end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
  }
  const Json json = to_json(a, b, found);
  EXPECT_EQ(json["differences"].size(), found.size());
  EXPECT_EQ(json["differences"][0]["change"], to_string(found[0].change));
}

// Two boards of one name, as with fewer multiprocessors, and processors of one that have other instructions.
TEST_F(Compare, MachinesAreToldApartAsTheTunerDoes) {
  Json one = tuned("2026-01-01T00:00:00Z", 1, true, 1.5, 24), other = one;
  one["device"] = {{"kind", "cuda"},
                   {"name", "NVIDIA X"},
                   {"architecture", "sm_90"},
                   {"sms", 132},
                   {"memory_bytes", 85899345920}};
  other["device"] = one["device"], other["device"]["sms"] = 114;
  kernels::write_file(folder_ / "two.jsonl", one.dump() + "\n" + other.dump() + "\n");
  EXPECT_NE(refusal_of([&] { read_compared(folder_ / "two.jsonl"); })
                .find("records are of two, 'cuda: NVIDIA X, sm_90, 132 SMs, 80 GiB' and "
                      "'cuda: NVIDIA X, sm_90, 114 SMs, 80 GiB'"),
            std::string::npos);
  Json bench = committed("bench/cpu.json");
  const auto machine = [&] { return read_compared(write("bench.json", bench)).machine; };
  const std::string before = machine();
  bench["device"]["isa"] = "avx2 fma";
  EXPECT_NE(machine(), before);
  bench["device"].erase("isa");
  EXPECT_EQ(machine(), "Intel(R) Xeon(R) Processor, 2 threads") << "all that the file says";
  bench["device"]["threads"] = "two";
  EXPECT_NE(refusal_of(machine).find("bench.json: device"), std::string::npos);
}

TEST_F(Compare, OtherFilesAreRefusedWithTheirPlace) {
  const auto read = [&](const std::string& file) { return refusal_of([&] { read_compared(file); }); };
  const std::string fit = kData + "fits/gelu_bf16.json";
  EXPECT_TRUE(read(fit).starts_with(fit + ": schema: is none of outgrad.sweep/1"));
  for (const std::string name : {"absent", "absent.jsonl", ""})
    EXPECT_THROW(read_compared(folder_ / name), kernels::IoError) << name;
  kernels::write_file(folder_ / "half.json", "{");
  EXPECT_NE(read(folder_ / "half.json").find("half.json: line 1, column 2: is not JSON"), std::string::npos);
  kernels::write_file(folder_ / "empty.jsonl", "");
  EXPECT_NE(read(folder_ / "empty.jsonl").find("has no records"), std::string::npos);
  kernels::write_file(folder_ / "cut.jsonl", "{\"schema\": \"outgrad.tune/1\", \"ker\n{\n");
  EXPECT_NE(read(folder_ / "cut.jsonl").find("none of the tuner: " + (folder_ / "cut.jsonl") + ":1: "),
            std::string::npos);
  EXPECT_TRUE(read(folder_ / "cut.jsonl").ends_with(", and 1 more such line"));
  const std::string whole = kernels::read_file(kData + "tuned/cpu_amd_epyc_8d15751e.jsonl");
  kernels::write_file(folder_ / "half.jsonl", whole.substr(0, whole.size() - 9));
  testing::internal::CaptureStderr();
  read(folder_ / "half.jsonl");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("outgrad: warning: " + (folder_ / "half.jsonl") + ":") &&
              said.find('\n') == said.size() - 1)
      << said;
  std::string both_devices;
  for (const char* device : {"cuda_nvidia_h200_7e14bd12", "cpu_amd_epyc_8d15751e"})
    both_devices += kernels::read_file(kData + "tuned/" + device + ".jsonl");
  kernels::write_file(folder_ / "merged.jsonl", both_devices);
  EXPECT_TRUE(read(folder_ / "merged.jsonl")
                  .find("device: records are of two, 'cuda: NVIDIA H200, sm_90, 132 SMs, 140 GiB' and "
                        "'cpu: AMD EPYC, 2 threads, ") != std::string::npos);
  const auto both = [&](const std::string& one, const std::string& other) {
    return refusal_of([&] { compare(read_compared(kData + one), read_compared(kData + other)); });
  };
  EXPECT_NE(both("sweeps/gelu_bf16.json", "bench/cpu.json").find("cpu.json: schema: is not that of"),
            std::string::npos);
  EXPECT_NE(both("sweeps/gelu_bf16.json", "sweeps/gelu_f16.json").find("is of gelu, y in f16, and"),
            std::string::npos);
  Json sweep = committed("sweeps/gelu_bf16.json");
  sweep["domains"][1]["T"]["bound"] = "x";
  EXPECT_NE(read(write("wrong.json", sweep)).find("wrong.json: domains[1].T.bound: "), std::string::npos);
}

}  // namespace
}  // namespace outgrad::validation
