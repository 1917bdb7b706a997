// The command from outside: what it leaves, what it refuses, what it goes on with after a kill.
#include "autotune/commands/commands.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autotune/commands/search_command.h"
#include "autotune/evidence/merge.h"
#include "autotune/records/database.h"
#include "kernels/support/files.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/scoped_variable.h"

namespace outgrad::autotune {
namespace {

TEST(TuneCommand, WithoutACompilerLeavesNothing) {
  const kernels::ScratchFolder folder;
  const ScopedVariable variable("CXX", "/no/such/compiler");
  EXPECT_THROW(tune_command({"--out", folder / "out"}), kernels::EnvironmentError);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(TuneCommand, RefusesAnOutputFolderItCannotMake) {
  const kernels::ScratchFolder folder;
  kernels::write_file(folder / "file", "");
  EXPECT_THROW(tune_command({"--out", folder / "file/out"}), kernels::IoError);
}

// The space for GPUs has no kernels of codes.
TEST(TuneCommand, NoOutputReplacesWhatItIsMadeOf) {
  const kernels::ScratchFolder folder;
  const std::string records = folder / "records.jsonl", other = folder / "other";
  const std::string text = kernels::read_file(published_folder() + "/cuda_nvidia_h200_7e14bd12.jsonl");
  kernels::write_file(records, text);
  const auto refuses = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    try {
      tune_command(words);
      ADD_FAILURE() << words.back() << " is written over";
    } catch (const kernels::SpecError& error) {
      EXPECT_NE(std::string(error.what()).find("give another"), std::string::npos) << error.what();
    }
  };
  const std::vector<std::string> replay = {"--device",      "replay:" + records, "--kernel",
                                           "gelu_backward", "--format",          "bf16"};
  refuses({"--defaults", records}, {"--out", folder / "./records.jsonl"});
  refuses(replay, {"--export-t4", records});
  refuses(replay, {"--export-kernel-tuner", other, "--export-t4", other});
  EXPECT_EQ(kernels::read_file(records), text);
  EXPECT_FALSE(std::filesystem::exists(other));
  // That the header cannot be written, or what is to be published, is told before the search, not after it.
  for (const char* name : {"kernels", "autotune"})
    std::filesystem::create_symlink(source_root() + "/" + name, folder / name);
  kernels::write_file(folder / "notebooks_data", "");
  {
    const ScopedVariable sources("OUTGRAD_SOURCE_DIR", folder.path());
    EXPECT_THROW(tune_command({"--out", folder / "out", "--kernel", "gelu_backward", "--format", "bf16",
                               "--evaluations", "1", "--elements", "4096", "--budget", "1", "--publish"}),
                 kernels::IoError);
    EXPECT_FALSE(std::filesystem::exists(folder / "out/tune_cpu.jsonl"));
  }
  std::filesystem::create_directories(folder / "tuned_cpu.h");
  EXPECT_THROW(tune_command({"--out", folder.path(), "--kernel", "gelu_backward", "--format", "bf16"}),
               kernels::IoError);
  EXPECT_FALSE(std::filesystem::exists(folder / "tune_cpu.jsonl"));
}

// A record names a device of so many threads, and so does a table's entry.
TEST(TuneCommand, RefusesToMeasureWithFewerThreadsThanItNames) {
  const kernels::ScratchFolder folder;
  const int all = omp_get_max_threads();
  omp_set_num_threads(all + 1);
  for (const char* out : {"--out", "--record"}) {
    try {
      tune_command({out, folder / "out", "--kernel", "gelu_forward", "--format", "bf16"});
      ADD_FAILURE() << out;
    } catch (const kernels::SpecError& error) {
      EXPECT_NE(std::string(error.what()).find("OMP_NUM_THREADS"), std::string::npos) << error.what();
    }
  }
  omp_set_num_threads(all);
  EXPECT_FALSE(std::filesystem::exists(folder / "out/tune_cpu.jsonl"));
}

// An export is no search, and prints one line.
TEST(TuneCommand, AnExportRefusesTheOptionsOfASearch) {
  const kernels::ScratchFolder folder;
  const std::string records = published_folder() + "/cuda_nvidia_h200_7e14bd12.jsonl";
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--json"},
                                               {"--csv"},
                                               {"--strategy", "random"},
                                               {"--evaluations", "3"},
                                               {"--seed", "2"},
                                               {"--accuracy", "any"}}) {
    std::vector<std::string> words = {"--device",      "replay:" + records, "--kernel",
                                      "gelu_backward", "--format",          "bf16",
                                      "--export-t4",   folder / "t4.json"};
    words.insert(words.end(), more.begin(), more.end());
    try {
      tune_command(words);
      ADD_FAILURE() << more.front();
    } catch (const kernels::SpecError& error) {
      EXPECT_EQ(error.what(), "tune: " + more.front() + ": does not go with an export") << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "t4.json"));
  }
}

TEST(TuneCommand, KernelsOfCodesAreTunedOnCpusAlone) {
  for (const char* device : {"sm_90", "cuda:0"}) {
    try {
      tune_command({"--device", device, "--kernel", "gelu_backward_code,gelu_forward_code"});
      ADD_FAILURE() << device;
    } catch (const kernels::SpecError& error) {
      EXPECT_STREQ(error.what(), "tune: --kernel: gelu_backward_code, gelu_forward_code: tuned on CPUs only");
    }
  }
}

// The second run begins with what the first one's budget was too short for.
TEST(TuneCommand, NightlyGoesOnWithWhatTheBudgetWasTooShortFor) {
  const kernels::ScratchFolder folder;
  // A compiler that takes longer than the budget on any machine.
  const std::string compiler = folder / "slow-compiler";
  kernels::write_file(compiler, "#!/bin/sh\nsleep 1.1\nexec c++ \"$@\"\n");
  std::filesystem::permissions(compiler, std::filesystem::perms::owner_all);
  const ScopedVariable variable("CXX", compiler);
  const auto tune = [&](const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"--out",      folder.path(), "--kernel",      "gelu_forward",
                                      "--format",   "f32,bf16",    "--evaluations", "1",
                                      "--elements", "65536",       "--budget",      "1"};
    words.insert(words.end(), more.begin(), more.end());
    Captured captured_out(Captured::kStdout);
    EXPECT_EQ(tune_command(words), 0);
    return captured_out.release();
  };
  const auto formats = [&] {
    std::set<std::string> found;
    for (const Record& record : load_database(folder / "tune_cpu.jsonl").records) found.insert(record.format);
    return found;
  };
  const std::string first = tune();
  EXPECT_NE(first.find("1 of 2 problems were searched in the budget of 1 s; the same command again goes on "
                       "with the others\n"),
            std::string::npos)
      << first;
  EXPECT_EQ(formats(), (std::set<std::string>{"f32"}));
  const std::string second = tune();
  EXPECT_EQ(formats(), (std::set<std::string>{"bf16", "f32"})) << second;
  // It would begin with the first one again; what is compiled already would take no time.
  std::filesystem::remove_all(folder / "variants");
  const std::string fresh = tune({"--fresh"});
  EXPECT_NE(fresh.find("the same command again, without --fresh, goes on"), std::string::npos) << fresh;
}

TEST(TuneCommand, LeavesRecordsOfEveryCandidateAndAHeaderThatKeepsEarlierWinners) {
  const kernels::ScratchFolder folder;
  const auto tune = [&](const std::string& format) {
    return tune_command({"--out", folder.path(), "--kernel", "gelu_backward", "--format", format,
                         "--evaluations", "2", "--elements", "1048576", "--budget", "300", "--json"});
  };
  ASSERT_EQ(tune("f32"), 0);
  const std::string first = kernels::read_file(folder / "tuned_cpu.h");
  ASSERT_EQ(tune("bf16"), 0);
  const Database database = load_database(folder / "tune_cpu.jsonl");
  EXPECT_TRUE(database.warnings.empty());
  std::map<std::string, std::string> winners;
  std::map<std::string, std::set<std::string>> variants;
  for (const Record& record : database.records) {
    const nlohmann::json line = to_json(record);
    for (const char* key : {"time", "device", "kernels_sha256", "coefficients_sha256", "compiler", "flags",
                            "parameters", "variant", "state"})
      EXPECT_TRUE(line.contains(key)) << key;
    EXPECT_EQ(record.state, "timed") << line;
    EXPECT_FALSE((record.finalist == true ? record.final : record.screening).ns.value().empty());
    variants[record.format].insert(record.variant);
    if (record.winner == true) winners[record.format] = record.variant;
  }
  ASSERT_EQ(winners.size(), 2u);
  EXPECT_EQ(variants["f32"].size(), 3u);  // the default, and what was evaluated
  EXPECT_EQ(variants["bf16"].size(), 3u);
  const std::string header = kernels::read_file(folder / "tuned_cpu.h");
  for (const auto& [format, variant] : winners) EXPECT_NE(header.find(variant), std::string::npos) << header;
  EXPECT_NE(first.find(winners["f32"]), std::string::npos);
}

TEST(TuneCommand, AKilledRunLosesOneBatchAtMostAndIsResumed) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "tune_cpu.jsonl";
  const auto tune = [&](const std::string& evaluations) {
    return tune_command({"--out", folder.path(), "--kernel", "gelu_backward", "--format", "bf16",
                         "--evaluations", evaluations, "--elements", "65536", "--budget", "300", "--json"});
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setpgid(0, 0);
    if (::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
    tune("4000");
    ::_exit(0);
  }
  ::setpgid(child, child);
  for (int tenths = 0; tenths < 6000 && load_database(path).records.size() < 9; ++tenths) ::usleep(100'000);
  ::kill(-child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::set<std::string> known;
  for (const Record& record : load_database(path).records)
    if (record.is_default == false) known.insert(record.variant);
  ASSERT_GE(known.size(), 8u);
  Captured captured_out(Captured::kStdout);
  ASSERT_EQ(tune(std::to_string(known.size() + 2)), 0);
  const nlohmann::json summary = nlohmann::json::parse(captured_out.release());
  EXPECT_EQ(summary["problems"][0]["known"], known.size());
  EXPECT_EQ(summary["problems"][0]["evaluated"], 2);
  EXPECT_EQ(summary["winners"].size(), 1u);
}

// A coarser fit that a caller brings is said to be one, and is tried, recorded and taken along only where any
// accuracy is asked for. The records of that run choose nothing for the next one, which does not ask.
TEST(TuneCommand, NightlyAccuracyIsAskedFor) {
  const kernels::ScratchFolder folder;
  std::string header = kernels::read_file(OUTGRAD_SOURCE_DIR "/kernels/generated/gelu_bf16_fast.h");
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"struct GeluBf16Fast ", "struct Mine "},
                                 {"\"gelu_bf16_fast\"", "\"mine\""}})
    header.replace(header.find(from), from.size(), to);
  std::filesystem::create_directories(folder / "headers");
  kernels::write_file(folder / "headers/mine.h", header);
  struct Said {
    std::string out, err;
  };
  const auto tune = [&](const std::string& evaluations, const std::string& accuracy) {
    const std::vector<std::string> args = {"--out",         folder / "out", "--kernel",   "gelu_backward",
                                           "--format",      "bf16",         "--headers",  folder / "headers",
                                           "--evaluations", evaluations,    "--accuracy", accuracy,
                                           "--elements",    "65536",        "--budget",   "300"};
    Captured captured_out(Captured::kStdout);
    Captured captured_err(Captured::kStderr);
    EXPECT_EQ(tune_command(args), 0);
    const std::string out = captured_out.release();
    return Said{out, captured_err.release()};
  };
  const auto coarse = [&] {
    int count = 0;
    for (const Record& record : load_database(folder / "out/tune_cpu.jsonl").records)
      count += record.fit.as_accurate == false;
    return count;
  };
  const Said unasked = tune("6", "default");
  EXPECT_NE(
      unasked.err.find("headers/mine.h: not tried: its A + B 2^-5.99 is larger than the default's 2^-10.80"),
      std::string::npos)
      << unasked.err;
  EXPECT_NE(unasked.out.find("gelu_backward.bf16 runs gelu_bf16: abs:2^-10, A + B 2^-10.80, R 2^-10.26\n"),
            std::string::npos)
      << unasked.out;
  EXPECT_EQ(coarse(), 0);

  const Said asked = tune("12", "any");
  EXPECT_EQ(asked.err.find("not tried"), std::string::npos) << asked.err;
  EXPECT_GT(coarse(), 0);
  EXPECT_NE(kernels::read_file(folder / "out/tuned_cpu.h").find("kAnyAccuracy = true"), std::string::npos);

  tune("7", "default");
  const std::string last = kernels::read_file(folder / "out/tuned_cpu.h");
  EXPECT_EQ(last.find("kAnyAccuracy"), std::string::npos);
  EXPECT_EQ(last.find("Fast"), std::string::npos) << last;
  EXPECT_EQ(last.find("Mine"), std::string::npos) << last;
}

// What a run by the earlier rule has left is neither known nor chosen.
TEST(TuneCommand, NightlySearchesAgainWhatTheEarlierRuleHasTuned) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "tune_cpu.jsonl";
  const auto tune = [&] {
    Captured captured_out(Captured::kStdout);
    Captured captured_err(Captured::kStderr);
    EXPECT_EQ(tune_command({"--out", folder.path(), "--kernel", "gelu_backward", "--format", "f32",
                            "--evaluations", "3", "--elements", "65536", "--budget", "300", "--json"}),
              0);
    const nlohmann::json said = nlohmann::json::parse(captured_out.release());
    return std::pair(said["problems"][0], captured_err.release());
  };
  EXPECT_EQ(tune().first["evaluated"], 3);
  EXPECT_EQ(tune().first["known"], 3);
  std::vector<Record> records = load_database(path).records;
  for (Record& record : records)
    record.fit = {record.fit.name, record.fit.accuracy, {}, {}, {}, {}, "", {{"error", 1e-7}}};
  std::filesystem::remove(path);
  append_records(path, records);
  const auto [again, said] = tune();
  EXPECT_EQ(again["known"], 0);
  EXPECT_EQ(again["evaluated"], 3);
  EXPECT_NE(said.find("records of an earlier rule of accuracy"), std::string::npos) << said;
}

TEST(TuneCommand, AShardIsGivenOrMpis) {
  const auto shard = [](const std::string& text) {
    const Shard found = shard_of(text);
    return std::pair(found.index, found.count);
  };
  EXPECT_EQ(shard("2/5"), std::pair(std::size_t{1}, std::size_t{5}));
  const ScopedVariable rank("OMPI_COMM_WORLD_RANK", "3"), size("OMPI_COMM_WORLD_SIZE", "4");
  EXPECT_EQ(shard("mpi"), std::pair(std::size_t{3}, std::size_t{4}));
}

TEST(TuneCommand, RefusesAShardThatIsNone) {
  const kernels::ScratchFolder folder;
  for (const char* shard : {"3/2", "0/2", "0/0", "-1/2", "1", "1/2/3", "a/b", "0/2x", "", "mpi"})
    EXPECT_THROW(tune_command({"--out", folder / "out", "--shard", shard}), kernels::SpecError) << shard;
}

TEST(TuneCommand, ABoardIsOneOfItsArchitectures) {
  try {
    tune_command({"--device", "sm_90", "--board", "A10"});
    FAIL() << "accepted";
  } catch (const kernels::SpecError& error) {
    EXPECT_NE(std::string(error.what()).find("sm_90, A10: no model of it: "), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace outgrad::autotune
