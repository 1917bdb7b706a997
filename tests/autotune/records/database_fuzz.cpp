// Mutational fuzzing of everything that reads records: whatever the bytes, a line is a record, a warning or,
// of a newer schema, a SpecError.
//
// As a test it runs a fixed number of mutations from a fixed seed. With -DOUTGRAD_LIBFUZZER it is a libFuzzer
// target (outgrad-database-fuzz, OUTGRAD_FUZZ).
#include <cstdint>
#include <string>

#include "autotune/evidence/merge.h"
#include "kernels/host/errors.h"

namespace {

// Takes a text through every reader. Returns how many records it had; -1: refused.
int read_everything(const std::string& text) {
  using namespace outgrad::autotune;
  try {
    const Database database = parse_database("fuzz", text);
    const std::vector<Record> all = united(database.records);
    if (all.size() > database.records.size()) __builtin_trap();
    std::string lines;
    for (const Record& record : all) {
      const Record kept = reviewable(record);
      if (line_of(reviewable(kept)) != line_of(kept) || line_of(record_from(to_json(kept))) != line_of(kept))
        __builtin_trap();
      lines += line_of(record) + '\n';
    }
    // What was written is read again, whole and without a word.
    const Database again = parse_database("fuzz", lines);
    std::string lines_again;
    for (const Record& record : again.records) lines_again += line_of(record) + '\n';
    if (!again.warnings.empty() || lines_again != lines) __builtin_trap();
    for (const ProblemEvidence& problem : weigh(all, Accuracy::kAsDefault)) {
      const VariantEvidence& winner = problem.variants.at(problem.winner);
      if (problem.gain && !(winner.speedup.low > 1 && winner.barred.empty())) __builtin_trap();
      for (const VariantEvidence& evidence : problem.variants)
        if (!(evidence.speedup.low <= evidence.speedup.median &&
              evidence.speedup.median <= evidence.speedup.high))
          __builtin_trap();
      seed_parameters(all, {problem.device, problem.sources, problem.kernel, problem.format, problem.elements,
                            3, Accuracy::kAsDefault});
    }
    return static_cast<int>(database.records.size());
  } catch (const outgrad::kernels::SpecError&) {
    return -1;
  }
}

}  // namespace

#ifdef OUTGRAD_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_everything(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "autotune/evidence/exchange.h"
#include "kernels/support/files.h"
#include "tests/autotune/records/tuning_records.h"
#include "tests/mutator.h"

namespace {

using namespace outgrad::autotune;
using nlohmann::json;

// Also the readers that want a file.
void read_as_recording(const std::string& text) {
  static const outgrad::kernels::ScratchFolder folder;
  std::ofstream(folder / "db.jsonl", std::ios::binary) << text;
  try {
    read_recording(folder / "db.jsonl");
  } catch (const outgrad::kernels::SpecError&) {
  }
}

std::vector<Record> samples() {
  Measured a{"a", 1.2, 1.1, 1.3}, norm{"default"};
  norm.kernel = "layernorm_forward", norm.rows = 128, norm.cols = 64, norm.elements = 128 * 64;
  const std::vector<Record> records = {Measured{"default"}.record(), a.record(), rejected({"b"}, "crashed"),
                                       norm.record()};
  return records;
}

std::string published_lines() {
  const Record record = reviewable(samples()[1]);
  return lines_of<json>({run_line(record.run, "abc"), line_of_run(record, "abc")});
}

TEST(DatabaseFuzz, AFileCutAtEveryByteLosesItsLastLineAtMost) {
  const std::string text = lines_of(samples()) + published_lines();
  ASSERT_EQ(read_everything(text), 5);
  const std::ptrdiff_t all = std::count(text.begin(), text.end(), '\n');
  for (std::size_t size = 0; size < text.size(); ++size) {
    const Database database = parse_database("fuzz", text.substr(0, size));
    const std::ptrdiff_t whole =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size), '\n');
    const std::ptrdiff_t records = whole - (whole >= all - 1 ? 1 : 0);  // one line describes a run
    const auto read = static_cast<std::ptrdiff_t>(database.records.size());
    // the newline alone may be missing
    ASSERT_TRUE(read == records || read == records + 1) << "cut at " << size;
    ASSERT_LE(database.warnings.size(), 1u);
  }
}

// Every key of a record replaced by a value of every type, at the top and one level down.
TEST(DatabaseFuzz, AnyTypeUnderAnyKeyIsARecordOrAWarning) {
  const std::vector<json> values = {
      nullptr,       true,           -1,         0,           UINT64_MAX, 1e308, 5e-324, "", "\n\x01 text",
      json::array(), json::object(), {1, "two"}, {{"a", {1}}}};
  std::vector<json> whole;
  for (const Record& record : samples()) whole.push_back(to_json(record));
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const auto& [key, value] : whole[at].items())
      for (const json& other : values) {
        std::vector<json> records = whole;
        records[at][key] = other;
        const int read = read_everything(lines_of(records));
        ASSERT_TRUE(read == 4 || read == 3) << key << " = " << other;
        read_as_recording(lines_of(records));
        if (!value.is_object()) continue;
        for (const auto& [inner, ignored] : value.items()) {
          records[at] = whole[at];
          records[at][key][inner] = other;
          ASSERT_GE(read_everything(lines_of(records)), 3) << key << "." << inner << " = " << other;
          read_as_recording(lines_of(records));
        }
      }
}

TEST(DatabaseFuzz, WrongTypesAreWarningsWithTheirPlace) {
  const json sound = to_json(samples()[1]);
  for (const auto& [key, value] : {std::pair<const char*, json>{"speedup", "fast"},
                                   {"speedup", {{"median", 1}, {"low", 2}, {"high", 1}}},
                                   {"speedup", {{"median", 0}, {"low", 0}, {"high", 0}}},
                                   {"parameters", {1, 2}},
                                   {"parameters", {{"unroll", {4}}}},
                                   {"device", 1},
                                   {"kernel", 1},
                                   {"winner", "yes"},
                                   {"elements", -5},
                                   {"elements", 1.5},
                                   {"final", {{"ns", {1, "two"}}}},
                                   {"final", {{"ns", {0}}}},
                                   {"fit", "gelu"},
                                   {"rejected", {{"reason", 1}}},
                                   {"time", 2026},
                                   {"fit", {{"class", "abs:2^-10"}}},
                                   {"device", {{"threads", "8"}}},
                                   {"gb_per_s", "1"}}) {
    json record = sound;
    record[key] = value;
    const Database database = parse_database("path", lines_of<json>({sound, record}));
    EXPECT_EQ(database.records.size(), 1u) << key << value;
    ASSERT_EQ(database.warnings.size(), 1u) << key << value;
    EXPECT_EQ(database.warnings[0].rfind("path:2: " + std::string(key), 0), 0u) << database.warnings[0];
    EXPECT_NE(database.warnings[0].find(" is "), std::string::npos) << database.warnings[0];
  }
}

TEST(DatabaseFuzz, DepthLengthAndBytesThatAreNoText) {
  const std::string sound = lines_of<Record>({samples()[1]});
  const auto warned = [&](const std::string& line) {
    const Database database = parse_database("path", sound + line + "\n" + sound);
    EXPECT_EQ(database.records.size(), 2u);
    ASSERT_EQ(database.warnings.size(), 1u);
    EXPECT_EQ(database.warnings[0].rfind("path:2: ", 0), 0u);
    EXPECT_LT(database.warnings[0].size(), 300u);
  };
  constexpr std::size_t kDeep = 1'000'000;  // beyond any stack
  warned(std::string(kDeep, '['));
  warned(std::string(kDeep, '[') + std::string(kDeep, ']'));
  std::string objects;
  for (std::size_t i = 0; i < kDeep; ++i) objects += "{\"a\":";
  warned("{\"schema\":\"outgrad.tune/1\",\"x\":" + objects + "1" + std::string(kDeep + 1, '}'));
  warned("{\"schema\":" + std::string(100, '[') + std::string(100, ']') + "}");
  warned("{\"schema\":\"" + std::string(1 << 24, 'x') + "\"}");
  warned(std::string("{\"schema\":\"outgrad.tune/1\"") + '\0' + "}");
  warned(std::string(1000, '\0'));
  warned("{\"schema\":\"outgrad.tune/1\",\"kernel\":\"\xff\xfe\"}");
  warned("{\"schema\":\"outgrad.tune/1\",\"elements\":1e999}");
  warned("{\"schema\":\"outgrad.tune/1\",\"kernel\":\"\\ud800\"}");
  warned("{\"schema\":\"outgrad.tune/1\",\"of_run\":\"never described\"}");
  warned("{\"schema\":\"outgrad.tune/1\",\"of_run\":{}}");
  // A long line of ours is a record like any other.
  Record record = samples()[1];
  record.others["note"] = std::string(1 << 24, 'x');
  EXPECT_EQ(read_everything(lines_of<Record>({record})), 1);
}

TEST(DatabaseFuzz, MutantsOfGoodFilesAreReadOrRefused) {
  constexpr int kMutants = 2000;
  const auto version = [](outgrad::Mutator& mutator, std::string& text, std::size_t at) {
    const std::string_view schema = "outgrad.tune/";
    if (const std::size_t found = text.find(schema, at); found != text.npos && mutator.below(8) == 0)
      text[found + schema.size()] = static_cast<char>('0' + mutator.below(10));
  };
  const auto replace = [](outgrad::Mutator& mutator, std::string& text, std::size_t at) {
    text.replace(at, std::min(text.size() - at, mutator.below(40)), mutator.token());
  };
  outgrad::Mutator mutator(
      20261121,
      {"outgrad.tune/2", "outgrad.tune/1", "null", "true", "-1", "1e308", "18446744073709551615", "[", "{",
       "}", "]", "\"", "\n", ",", "\\u0000", "\"run\":\"abc\","},
      {version, replace});
  const std::string good = lines_of(samples()) + published_lines();
  int survived = 0, refused = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutator.mutate(good, good);
    const int read = read_everything(text);
    survived += read > 0;
    refused += read < 0;
    if (i % 20 == 0) read_as_recording(text);
  }
  // The mutants reach both sides.
  EXPECT_GT(survived, kMutants / 2);
  EXPECT_GT(refused, 0);
}

}  // namespace

#endif
