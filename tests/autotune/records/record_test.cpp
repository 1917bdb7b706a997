// The codec: what is read is written again, to the byte; what is not of the schema is refused with its place.
#include "autotune/records/record.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "autotune/evidence/merge.h"
#include "autotune/records/database.h"
#include "autotune/space/problem.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/autotune/records/tuning_records.h"
#include "tests/refusal.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

TEST(Record, TheCommittedDatabasesAreWrittenAsTheyWereRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(OUTGRAD_SOURCE_DIR "/notebooks_data/tuned")) {
    const std::string path = entry.path().string(), text = kernels::read_file(path);
    const Database database = parse_database(path, text);
    EXPECT_TRUE(database.warnings.empty()) << database.warnings.at(0);
    EXPECT_EQ(published_text(database.records), text) << path;
    ++files;
  }
  EXPECT_GT(files, 0);
}

// A line with every key of the schema, and a foreign one beside the keys of every object.
json whole_line() {
  const json rounds = {{"ns", {1.5, 2.0}}, {"default_ns", json::array()}, {"ceiling_ns", {1.0}}, {"note", 1}};
  return {{"schema", kSchema},
          {"time", "2026-01-01T00:00:00Z"},
          {"seed", UINT64_MAX},
          {"device",
           {{"kind", "cuda"},
            {"model", "m"},
            {"isa", ""},
            {"threads", 2},
            {"sockets", 1},
            {"vector_bits", 0},
            {"l1d_bytes", 0},
            {"l2_bytes", 1},
            {"l3_bytes", 1LL << 40},
            {"name", "n"},
            {"architecture", "sm_90"},
            {"board", "b"},
            {"sms", 132},
            {"driver", 13000},
            {"threads_per_sm", 1},
            {"blocks_per_sm", 1},
            {"shared_per_sm", 1},
            {"shared_per_block", 1},
            {"clock_ghz", 1.5},
            {"memory_clock_ghz", 2.5},
            {"dram_gb_per_s", 4800.0},
            {"memory_bytes", 150754820096LL},
            {"stepping", 7}}},
          {"kernels_sha256", "k"},
          {"coefficients_sha256", "c"},
          {"compiler", "c++"},
          {"flags", "-O3"},
          {"toolkit", "13.0"},
          {"kernel", "gelu_backward"},
          {"format", "f32"},
          {"variant", "v"},
          {"baseline", "b"},
          {"parameters", {{"fit", "Gelu"}, {"unroll", 4}, {"streaming_stores", true}}},
          {"fit",
           {{"name", "gelu"},
            {"class", ""},
            {"a_plus_b", nullptr},
            {"t", 0x1p-6},
            {"r", 0.5},
            {"as_accurate", true},
            {"sha256", "h"},
            {"error", 0.0}}},
          {"default", false},
          {"finalist", true},
          {"winner", false},
          {"gain", false},
          {"state", "timed"},
          {"rejected", {{"stage", "verify"}, {"reason", "crashed"}, {"detail", ""}, {"signal", 11}}},
          {"rows", 2},
          {"cols", 3},
          {"elements", 6},
          {"ceiling", {{"name", "triad"}, {"bytes", 72.0}, {"streams", 3}}},
          {"screening", rounds},
          {"final", rounds},
          {"speedup",
           {{"median", 1.5}, {"low", 1.0}, {"high", 2.0}, {"confidence", 0.99}, {"method", "bootstrap"}}},
          {"compile_ms", 0.0},
          {"bytes", 72.0},
          {"bytes_per_element", 12.0},
          {"gb_per_s", nullptr},
          {"share_of_ceiling", 0.75},
          {"checked", 0},
          {"discarded_rounds", 0},
          {"rounds", 24},
          {"resources", {{"registers", 32}, {"shared_bytes", 0}, {"barriers", 1}}},
          {"instructions_per_element", nullptr},
          {"predicted",
           {{"ns_per_element", 0.5},
            {"memory_ns", 0.5},
            {"issue_ns", 0.25},
            {"shared_ns", 0.0},
            {"cache_ns", 0.125},
            {"others_ns", 0.0},
            {"launch_ns", 0.0},
            {"resident_blocks", 2},
            {"occupancy", 0.5},
            {"bytes_in_flight_per_sm", 1e5},
            {"share_of_bandwidth", 0.9},
            {"model", "of somebody"}}},
          {"note", {{"of", json::array({1, nullptr})}}}};
}

// A published line says how many there were, a whole one has them all.
TEST(Record, TheDefaultOfTooFewRoundsIsTooNoisy) {
  Record record;
  EXPECT_EQ(rounds_of(record), 0);
  record.final.ns = std::vector<double>(24, 1.0), record.discarded_rounds = 5;
  EXPECT_EQ(rounds_of(record), 19);
  record.discarded_rounds = 30;
  EXPECT_EQ(rounds_of(record), 0);
  record.rounds = 19;
  EXPECT_EQ(rounds_of(record), 19);
  EXPECT_FALSE(is_too_noisy(record));
  record.winner = record.is_default = true;
  EXPECT_TRUE(is_too_noisy(record));
  record.rounds = 20;
  EXPECT_FALSE(is_too_noisy(record));
  record.rounds = 19, record.is_default = false;
  EXPECT_FALSE(is_too_noisy(record));
}

TEST(Record, EveryKeyAndEveryForeignOneComesBack) {
  const json line = whole_line();
  const Record record = record_from(line);
  EXPECT_EQ(line_of(record), line_of(line));
  EXPECT_EQ(record.others, (json{{"note", line["note"]}})) << "all but this is the schema's";
  // Less of it is no less faithful: without any one key, at the top and one level down.
  for (const auto& [key, value] : line.items()) {
    if (key == "schema") continue;
    json less = line;
    less.erase(key);
    EXPECT_EQ(line_of(record_from(less)), line_of(less)) << key;
    if (!value.is_object() || key == "speedup") continue;
    for (const auto& [inner, ignored] : value.items()) {
      if (key == "fit" && inner == "name") continue;
      less = line;
      less[key].erase(inner);
      EXPECT_EQ(line_of(record_from(less)), line_of(less)) << key << "." << inner;
    }
  }
}

TEST(Record, AFaultIsOneLineWithItsPlace) {
  const auto refusal = [](const char* pointer, const json& value) {
    json line = whole_line();
    line[json::json_pointer(pointer)] = value;
    return refusal_of([&] { record_from(line); });
  };
  EXPECT_EQ(refusal("/kernel", 1), "kernel: is not a string");
  EXPECT_EQ(refusal("/winner", "yes"), "winner: is not true or false");
  EXPECT_EQ(refusal("/elements", -5), "elements: is not a count");
  EXPECT_EQ(refusal("/elements", 1.5), "elements: is not a count");
  EXPECT_EQ(refusal("/device/threads", 1LL << 40), "device.threads: is too large");
  EXPECT_EQ(refusal("/device", "cpu"), "device: is not an object");
  EXPECT_EQ(refusal("/parameters/unroll", {4}), "parameters: is not an object of numbers, truths and texts");
  EXPECT_EQ(refusal("/fit/name", ""), "fit.name: is empty");
  EXPECT_EQ(refusal("/fit/a_plus_b", "small"), "fit.a_plus_b: is not a number");
  EXPECT_EQ(refusal("/fit/a_plus_b", -1e-3), "fit.a_plus_b: is negative");
  EXPECT_EQ(refusal("/bytes", -1), "bytes: is negative");
  EXPECT_EQ(refusal("/final/ns", {1, 0}), "final.ns: is not a list of positive numbers");
  EXPECT_EQ(refusal("/speedup/low", 3), "speedup: is not an interval of positive numbers");
  EXPECT_EQ(refusal("/speedup", {{"median", 1}, {"low", 1}}),
            "speedup: is not an interval of positive numbers");
  EXPECT_EQ(refusal("/speedup/confidence", 1), "speedup: is not an interval of positive numbers");
}

// The database knows these two kernels by name.
TEST(Record, TheEarlierRuleIsOfTheKernelsWhoseFitIsAChoice) {
  for (const KernelId kernel : kAllKernels) {
    Record record;
    record.kernel = name_of(kernel);
    EXPECT_EQ(is_of_an_earlier_rule(record), is_backward(kernel) && Problem{kernel}.has_fit())
        << record.kernel;
    record.fit.as_accurate = false;
    EXPECT_FALSE(is_of_an_earlier_rule(record));
  }
}

}  // namespace
}  // namespace outgrad::autotune
