// Recordings through each format and back; the real Kernel Tuner on our export; damaged files.
#include "autotune/evidence/exchange.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <map>

#include "autotune/records/database.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"
#include "tests/autotune/search/synthetic_recording.h"
#include "tests/refusal.h"

namespace outgrad::autotune {
namespace {

void expect_same(const Recording& a, const Recording& b) {
  ASSERT_EQ(a.points.size(), b.points.size());
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.kernel, b.kernel);
  EXPECT_EQ(a.problem_size, b.problem_size);
  std::map<std::string, const Evaluation*> theirs;
  for (std::size_t i = 0; i < b.points.size(); ++i) theirs[b.name_of(i)] = &b.evaluations[i];
  for (std::size_t i = 0; i < a.points.size(); ++i) {
    ASSERT_EQ(theirs.count(a.name_of(i)), 1u) << a.name_of(i);
    const Evaluation &left = a.evaluations[i], &right = *theirs[a.name_of(i)];
    EXPECT_EQ(left.time_ms, right.time_ms);
    EXPECT_EQ(left.failure, right.failure);
    EXPECT_EQ(left.times_ms, right.times_ms);
    EXPECT_EQ(left.compile_ms, right.compile_ms);
    EXPECT_EQ(left.timestamp, right.timestamp);
  }
}

TEST(Exchange, KernelTunerAndT4RoundTrip) {
  const kernels::ScratchFolder folder;
  const Recording recording = synthetic_recording();
  kernels::write_file(folder / "cache.json", kernel_tuner_cache(recording));
  kernels::write_file(folder / "t4.json", t4_results(recording));
  expect_same(recording, read_recording(folder / "cache.json"));
  expect_same(recording, read_recording(folder / "t4.json"));
  const Recording again = read_recording(folder / "cache.json");
  EXPECT_EQ(kernel_tuner_cache(again), kernel_tuner_cache(recording));
}

// Kernel Tuner appends while it tunes and closes the file at the end.
TEST(Exchange, AnOpenKernelTunerCacheIsReadAsFarAsItGoes) {
  const kernels::ScratchFolder folder;
  const std::string whole = kernel_tuner_cache(synthetic_recording());
  const std::size_t cut = whole.find(",\n", whole.size() / 2);
  kernels::write_file(folder / "cache.json", whole.substr(0, cut) + ",");
  const Recording part = read_recording(folder / "cache.json");
  EXPECT_GT(part.points.size(), 100u);
  EXPECT_LT(part.points.size(), synthetic_recording().points.size());
}

// Kernel Tuner's own words (kernel_tuner/cache/file.py): properly open, where the last two braces are a
// comma; improperly open, where they are missing.
TEST(Exchange, AnOpenKernelTunerCacheMayLackItsComma) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "cache.json", whole = kernel_tuner_cache(synthetic_recording());
  ASSERT_TRUE(whole.ends_with("}\n}"));
  const std::string open = whole.substr(0, whole.size() - 3);
  for (const std::string end : {"", "\n", ",", ",\n", " , \n"}) {
    kernels::write_file(path, open + end);
    expect_same(synthetic_recording(), read_recording(path));
  }
}

// What Kernel Tuner writes with Python's json module, which knows NaN and Infinity, and of parameters that
// are no numbers.
constexpr const char* kPythonCache =
    R"({"device_name": "d", "kernel_name": "NaN Infinity \"-Infinity", "problem_size": 1,
 "tune_params_keys": ["b", "t"], "tune_params": {"b": [1, 2], "t": [null, [8, 4], ["x", true]]},
 "objective": "time", "cache": {
 "1,None": {"b": 1, "t": null, "time": 2.0, "times": [1.0, NaN, 3.0], "GFLOP/s": NaN, "power": Infinity},
 "1,[8, 4]": {"b": 1, "t": [8, 4], "time": 1.5, "compile_time": -Infinity},
 "2,['x', True]": {"b": 2, "t": ["x", true], "time": NaN},
 "2,None": {"b": 2, "t": null, "time": Infinity}}})";

TEST(Exchange, KernelTunerWritesWhatJsonHasNoWordFor) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "cache.json";
  kernels::write_file(path, kPythonCache);
  const Recording recording = read_recording(path);
  EXPECT_EQ(recording.kernel, "NaN Infinity \"-Infinity");  // a text keeps its words
  ASSERT_EQ(recording.points.size(), 4u);
  std::map<std::string, const Evaluation*> by_name;
  for (std::size_t i = 0; i < 4; ++i) by_name[recording.name_of(i)] = &recording.evaluations[i];
  for (const char* name : {"b=1,t=None", "b=1,t=[8, 4]", "b=2,t=['x', True]", "b=2,t=None"})
    ASSERT_EQ(by_name.count(name), 1u) << name;
  EXPECT_EQ(by_name["b=1,t=None"]->time_ms, 2.0);
  EXPECT_EQ(by_name["b=1,t=None"]->times_ms, (std::vector<double>{1, 3}));
  EXPECT_EQ(by_name["b=1,t=[8, 4]"]->time_ms, 1.5);
  EXPECT_EQ(by_name["b=1,t=[8, 4]"]->compile_ms, 0);
  for (const char* name : {"b=2,t=['x', True]", "b=2,t=None"}) {
    EXPECT_FALSE(by_name[name]->time_ms) << name;
    EXPECT_EQ(by_name[name]->failure, "runtime") << name;
  }
  kernels::write_file(path, kernel_tuner_cache(recording));
  expect_same(recording, read_recording(path));
  // the key that Kernel Tuner looks for
  EXPECT_NE(kernel_tuner_cache(recording).find("\"2,['x', True]\""), std::string::npos);
}

// A NUL ends no document: what stands behind it is read, and refused.
TEST(Exchange, NothingIsHiddenBehindANul) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "cache.json";
  for (const std::string& whole :
       {kernel_tuner_cache(synthetic_recording()), t4_results(synthetic_recording())}) {
    kernels::write_file(path, whole + std::string("\0 this is not JSON {{{", 22));
    EXPECT_THROW(read_recording(path), kernels::SpecError);
  }
}

// 2 ms, as each writer says it. The schema gives each measurement its unit; Kernel Tuner gives the file one
// beside that.
TEST(Exchange, UnitsOfT4AreRead) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "t4.json";
  const auto read = [&](const std::string& metadata, double sample, double time, const std::string& unit) {
    const std::string measurement = R"({"name": "time", "value": )" + std::to_string(time) + unit + "}";
    kernels::write_file(path, R"({"schema_version": "1.0.0", "metadata": {)" + metadata +
                                  R"(}, "results": [{"configuration": {"b": 1}, "objectives": ["time"],
      "times": {"compilation_time": 7, "runtimes": [)" +
                                  std::to_string(sample) + R"(]}, "invalidity": "correct", "measurements": [
      {"name": "power", "value": 3, "unit": "W"}, )" +
                                  measurement + "]}]}");
    return read_recording(path).evaluations[0];
  };
  const auto own = [](const std::string& unit) { return ", \"unit\": \"" + unit + "\""; };
  const std::vector<std::pair<double, std::vector<std::string>>> spellings = {
      {2e6, {"ns", "nanoseconds"}},
      {2e3, {"us", "\xc2\xb5s", "\xce\xbcs", "microseconds"}},
      {2, {"", "ms", "milliseconds", "miliseconds"}},
      {2e-3, {"s", "sec", "seconds"}}};
  for (const auto& [value, units] : spellings)
    for (const std::string& unit : units) {
      SCOPED_TRACE(unit);
      const Evaluation alone = read("", value, value, own(unit));
      EXPECT_DOUBLE_EQ(*alone.time_ms, 2);
      EXPECT_DOUBLE_EQ(alone.times_ms.at(0), 2);
      EXPECT_EQ(alone.compile_ms, 7);
      const Evaluation beside = read(R"("timeunit": "us")", 2e3, value, unit.empty() ? own("ms") : own(unit));
      EXPECT_DOUBLE_EQ(*beside.time_ms, 2);
      EXPECT_DOUBLE_EQ(beside.times_ms.at(0), 2);
      EXPECT_DOUBLE_EQ(beside.compile_ms, 7e-3);
    }
  EXPECT_DOUBLE_EQ(*read(R"("timeunit": "us")", 2e3, 2e3, "").time_ms, 2);
  EXPECT_NE(t4_results(read_recording(path)).find(R"("unit": "ms")"), std::string::npos);
}

std::string refusal(const std::string& path, std::string_view problem = {}) {
  return refusal_of([&] { read_recording(path, problem); });
}

TEST(Exchange, EveryDamageIsOneLineWithFileAndPlace) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "cache.json";
  const Recording recording = synthetic_recording();
  const nlohmann::json cache = nlohmann::json::parse(kernel_tuner_cache(recording)),
                       t4 = nlohmann::json::parse(t4_results(recording));
  const std::string entry = cache["cache"].begin().key();
  const auto with = [&](nlohmann::json document, const std::string& pointer, const nlohmann::json& value) {
    document[nlohmann::json::json_pointer(pointer)] = value;
    return document;
  };
  const std::vector<std::pair<nlohmann::json, std::string>> damages = {
      {1, "line 1"},
      {nlohmann::json::object(), "neither"},
      {with(cache, "/cache", 1), "cache"},
      {with(cache, "/cache", nlohmann::json::object()), "there are none"},
      {with(cache, "/tune_params_keys", {"block", "block"}), "'block' occurs twice"},
      {with(cache, "/tune_params_keys", {1}), "tune_params_keys"},
      {with(cache, "/tune_params/tile", nlohmann::json::array()), "'tile' has no list"},
      {with(cache, "/tune_params/tile", {1, 1}), "occurs twice"},
      {with(cache, "/tune_params/tile", {1, {{"two", 2}}}), "neither a number nor a text"},
      {with(cache, "/tune_params/tile", {1, {2, {{"two", 2}}}}), "neither a number nor a text"},
      {with(cache, "/tune_params/tile", {77}), "is not in its list"},
      {with(cache, "/objective", "GFLOP/s"), "objective"},
      {with(cache, "/cache/" + entry, "x"), entry},
      {with(cache, "/cache/" + entry + "/time", -1), "not positive"},
      {with(cache, "/cache/" + entry + "/time", 0), "not positive"},
      {with(cache, "/cache/" + entry + "/time", "Surprise"), "unknown failure 'Surprise'"},
      {with(cache, "/cache/" + entry + "/time", nullptr), "neither a time nor a failure"},
      {with(cache, "/cache/other", cache["cache"][entry]), "occurs twice"},
      {with(t4, "/results", 5), "results"},
      {with(t4, "/results", nlohmann::json::array()), "results"},
      {with(t4, "/results/3", 5), "results[3]"},
      {with(t4, "/results/3/configuration", {{"block", 16}}), "results[3]: has no value of parameter"},
      {with(t4, "/results/3/invalidity", "tired"), "unknown invalidity 'tired'"},
      {with(t4, "/results/3", t4["results"][2]), "results[3]: this configuration occurs twice"},
      {with(t4, "/schema_version", "2.0.0"), "schema_version"},
      {with(t4, "/metadata/timeunit", "fortnights"), "fortnights"},
      {with(t4, "/results/3/measurements/0/unit", "fortnights"),
       "results[3].measurements[0].unit: unknown unit of time 'fortnights'; known: ns, us, ms, s"},
      {with(t4, "/results/3/measurements/0/unit", 1), "unknown unit of time '1'"},
      {with(t4, "/results/3/objectives", {"energy"}), "objective"},
  };
  for (const auto& [document, expected] : damages) {
    kernels::write_file(path, document.dump(1));
    const std::string said = refusal(path);
    EXPECT_EQ(said.rfind(path + ": ", 0), 0u) << said;
    EXPECT_NE(said.find(expected), std::string::npos) << said << "\nexpected: " << expected;
  }
  // A product beyond 2^64 raw points.
  nlohmann::json wide = cache;
  for (int i = 0; i < 9; ++i) {
    const std::string name = "p" + std::to_string(i);
    wide["tune_params_keys"].push_back(name);
    for (int v = 0; v < 256; ++v) wide["tune_params"][name].push_back(v);
  }
  kernels::write_file(path, wide.dump());
  EXPECT_NE(refusal(path).find("2^64"), std::string::npos);
  EXPECT_THROW(read_recording(folder / "none.json"), kernels::IoError);
}

TEST(Exchange, NoCutAndNoFlippedByteEscapesTheReader) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "damaged.json";
  Recording recording = synthetic_recording();
  const std::vector<std::uint64_t> few = {0, 5, 8, 100};
  recording.points = Points(recording.points.parameters(), few);
  recording.evaluations.resize(few.size());
  recording.evaluations.back() = {std::nullopt, "runtime", {}, 0, 0, 0, 0, 0, ""};
  for (const std::string& whole : {kernel_tuner_cache(recording), t4_results(recording)}) {
    const auto read = [&](const std::string& text) {
      std::ofstream(path, std::ios::binary) << text;
      try {
        read_recording(path);
      } catch (const kernels::SpecError& error) {  // anything else fails the test
        EXPECT_EQ(std::string(error.what()).rfind(path + ": ", 0), 0u) << error.what();
      }
    };
    for (std::size_t size = 0; size < whole.size(); size += 7) read(whole.substr(0, size));
    std::uint64_t state = 1;
    for (int i = 0; i < 1000; ++i) {
      std::string text = whole;
      for (std::uint64_t flips = 1 + kernels::next_random(state) % 3; flips > 0; --flips)
        text[kernels::next_random(state) % text.size()] =
            "\"{}[],:0-9eE.\\xnt\0"[kernels::next_random(state) % 18];
      read(text);
    }
  }
}

Record row(int unroll, double speedup, const char* format = "f32", const char* model = "cpu x") {
  Record record;
  record.kernel = "gelu_backward", record.format = format, record.run.device.model = model,
  record.state = "timed", record.elements = 1000;
  record.parameters = {{"unroll", unroll}, {"streaming", unroll > 2}};
  record.fit.name = "gelu", record.fit.as_accurate = true;
  record.is_default = unroll == 1;
  record.screening.ns = {2e6 / speedup, 2e6 / speedup};
  record.speedup = {{speedup, speedup, speedup}};
  return record;
}

TEST(Exchange, ADatabaseOfOneProblemIsARecordingRelativeToTheDefault) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "tune.jsonl";
  Record rejected = row(8, 1);
  rejected.state = "rejected";
  rejected.rejected = {"compile", "compiler error", {}, {}};
  append_records(path, {row(1, 1), row(2, 1.25), row(4, 0.5), row(4, 0.4), row(4, 0.5), rejected});
  const Recording recording = read_recording(path);
  EXPECT_EQ(recording.kernel, "gelu_backward.f32");
  EXPECT_EQ(recording.device, "cpu x");
  ASSERT_EQ(recording.points.size(), 4u);
  EXPECT_DOUBLE_EQ(*recording.best_ms(), 2 / 1.25);  // the default takes 2 ms
  int failures = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    failures += recording.evaluations[i].failure == "compile";
    if (recording.name_of(i).find("unroll=4") != std::string::npos) {
      EXPECT_DOUBLE_EQ(*recording.evaluations[i].time_ms, 4);
    }
  }
  EXPECT_EQ(failures, 1);
  append_records(path, {row(1, 1, "bf16")});
  EXPECT_NE(refusal(path).find("several problems"), std::string::npos);
  EXPECT_EQ(read_recording(path, "gelu_backward.f32").points.size(), 4u);
  EXPECT_NE(refusal(path, "gelu_forward.f16").find("none of gelu_forward.f16"), std::string::npos);
  Record larger = row(1, 1);
  larger.elements = 2000;
  append_records(folder / "sizes.jsonl", {row(1, 1), larger});
  EXPECT_NE(refusal(folder / "sizes.jsonl").find("of several sizes"), std::string::npos);
  append_records(path, {row(1, 1, "f32", "cpu y")});
  EXPECT_NE(refusal(path, "gelu_backward.f32").find("two devices"), std::string::npos);
}

// Of other sources or of another shape a ratio says something else, of as many elements, too.
TEST(Exchange, ADatabaseOfTwoVersionsOrShapesIsRefused) {
  const kernels::ScratchFolder folder;
  Record other = row(2, 1.25);
  other.run.hashes.kernels = "changed";
  append_records(folder / "versions.jsonl", {row(1, 1), other});
  EXPECT_NE(refusal(folder / "versions.jsonl").find("of two versions of the sources"), std::string::npos);
  std::vector<Record> shapes = {row(1, 1), row(2, 1.25)};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].kernel = "layernorm_forward";
    shapes[i].rows = i == 0 ? 10 : 100, shapes[i].cols = i == 0 ? 100 : 10;
  }
  append_records(folder / "shapes.jsonl", shapes);
  EXPECT_NE(refusal(folder / "shapes.jsonl").find("of several sizes, 10x100 and 100x10"), std::string::npos);
}

TEST(Exchange, ADatabaseWithoutAReadableLineNamesItsFileOnce) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "foreign.jsonl";
  kernels::write_file(path, "{\"schema\": \"outgrad.other/1\"}\n");
  const std::string why = refusal(path);
  EXPECT_EQ(why.find(path), why.rfind(path)) << why;
  EXPECT_NE(why.find(":1: schema is \"outgrad.other/1\""), std::string::npos) << why;
}

// What `tune --record` writes has no record of the default; a published one has no samples.
TEST(Exchange, ADatabaseSaysHowLongTheDefaultTook) {
  const kernels::ScratchFolder folder;
  Record recorded = row(2, 1.25);
  recorded.screening.default_ns = {2e6, 4e6, 3e6};
  append_records(folder / "recorded.jsonl", {recorded});
  EXPECT_DOUBLE_EQ(*read_recording(folder / "recorded.jsonl").best_ms(), 3 / 1.25);
  Record standard = row(1, 1), other = row(2, 1.25);
  standard.screening = other.screening = {};
  append_records(folder / "ratios.jsonl", {standard, other});
  EXPECT_NE(refusal(folder / "ratios.jsonl").find("how long the default took"), std::string::npos);
  standard.gb_per_s = 4;
  append_records(folder / "published.jsonl", {standard, other});
  const double bytes = Problem{KernelId::kGeluBackward, FormatId::kF32}.sized(1, standard.elements).bytes();
  EXPECT_DOUBLE_EQ(*read_recording(folder / "published.jsonl").best_ms(), bytes / 4 * 1e-6 / 1.25);
}

struct Output {
  int status;
  std::string text;
};
Output run(const std::string& command) {
  Output output{-1, {}};
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  for (std::size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.text.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  return output;
}

TEST(Exchange, NightlyTheRealKernelTunerSimulatesOurExport) {
  const std::string here = OUTGRAD_SOURCE_DIR "/tests/autotune/evidence/";
  Output package = run(here + "kernel_tuner.sh " OUTGRAD_BINARY_DIR "/tests 2>&1");
  while (!package.text.empty() && package.text.back() == '\n') package.text.pop_back();
  if (package.status == 77) GTEST_SKIP() << package.text;
  ASSERT_EQ(package.status, 0) << package.text;

  const kernels::ScratchFolder folder;
  const Recording recording = synthetic_recording();
  kernels::write_file(folder / "cache.json", kernel_tuner_cache(recording));
  kernels::write_file(folder / "t4.json", t4_results(recording));
  const Output output = run("PYTHONPATH='" + package.text + "' python3 " + here + "kernel_tuner_check.py '" +
                            (folder / "cache.json") + "' '" + (folder / "t4.json") + "'");
  ASSERT_EQ(output.status, 0) << output.text;
  const auto said = nlohmann::json::parse(output.text.substr(output.text.rfind('{')));
  std::size_t failed = 0;
  for (const Evaluation& evaluation : recording.evaluations) failed += !evaluation.time_ms;
  EXPECT_EQ(said["evaluated"], recording.points.size());
  EXPECT_EQ(said["failed"], failed);
  EXPECT_GT(failed, 0u);
  EXPECT_EQ(said["best"], *recording.best_ms());
  EXPECT_EQ(said["device"], recording.device);
  EXPECT_EQ(said["t4_results"], recording.points.size());
}

}  // namespace
}  // namespace outgrad::autotune
