// A replay counts, remembers and repeats; its command says how near it came, and what does not go together.
#include "autotune/search/replay.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autotune/commands/commands.h"
#include "autotune/space/variant.h"
#include "kernels/support/files.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/search/synthetic_recording.h"

namespace outgrad::autotune {
namespace {

TEST(Replay, TellsTheBestSoFarAfterEachEvaluation) {
  const Recording recording = synthetic_recording();
  const auto strategy = make_strategy("exhaustive", recording.points, 1);
  const Replay run = replay(recording, *strategy, recording.points.size() + 10, 9);
  ASSERT_EQ(run.best_ms.size(), recording.points.size());
  double best = INFINITY;
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    best = std::min(best, recording.evaluations[i].time_ms.value_or(INFINITY));
    ASSERT_EQ(run.best_ms[i], best);
  }
  EXPECT_EQ(recording.evaluations[*run.best].time_ms, recording.best_ms());
  EXPECT_EQ(share_of_optimum(recording, run, run.best_ms.size()), 1);
  EXPECT_EQ(share_of_optimum(recording, run, 0), 0);
}

std::string output_of(const std::vector<std::string>& args) {
  Captured captured_out(Captured::kStdout);
  const int status = tune_command(args);
  const std::string text = captured_out.release();
  EXPECT_EQ(status, 0);
  return text;
}

TEST(ReplayCommand, PrintsTheShareOfTheOptimumAndExports) {
  const kernels::ScratchFolder folder;
  const Recording recording = synthetic_recording();
  kernels::write_file(folder / "cache.json", kernel_tuner_cache(recording));
  const std::string device = "replay:" + (folder / "cache.json");
  const auto summary = nlohmann::json::parse(output_of(
      {"--device", device, "--strategy", "random", "--evaluations", "30", "--seed", "4", "--json"}));
  EXPECT_EQ(summary["evaluations"], 30);
  EXPECT_EQ(summary["points"], recording.points.size());
  EXPECT_GT(summary["share_of_optimum"], 0.1);
  EXPECT_LE(summary["share_of_optimum"], 1);
  EXPECT_LE(summary["found_after"], 30);
  EXPECT_DOUBLE_EQ(summary["share_of_optimum"].get<double>() * summary["best_ms"].get<double>(),
                   *recording.best_ms());
  EXPECT_NE(output_of({"--device", device}).find("% of the optimum"), std::string::npos);
  output_of({"--device", device, "--export-t4", folder / "t4.json", "--export-kernel-tuner",
             folder / "again.json"});
  EXPECT_EQ(kernels::read_file(folder / "again.json"), kernels::read_file(folder / "cache.json"));
  EXPECT_EQ(read_recording(folder / "t4.json").points.size(), recording.points.size());
  EXPECT_THROW(tune_command({"--device", device, "--export-t4", folder / "cache.json"}), kernels::SpecError);
  EXPECT_EQ(kernels::read_file(folder / "again.json"), kernels::read_file(folder / "cache.json"))
      << "a recording is not written over";
}

// A recording of this machine grows from run to run, and is a device itself.
TEST(RecordCommand, GoesOnWhereItStoppedAndReplaysNightly) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "gelu_backward.bf16.jsonl";
  std::size_t left = 0;
  for (int run = 1; run <= 2; ++run) {
    const std::string said = output_of({"--record", folder / "", "--kernel", "gelu_backward", "--format",
                                        "bf16", "--evaluations", "2", "--elements", "4096"});
    const std::size_t at =
        said.find(" to record") == std::string::npos ? 0 : said.rfind(' ', said.find(" to record") - 1);
    const auto waiting = static_cast<std::size_t>(std::stoul(said.substr(at + 1)));
    if (run == 2) {  // the two of the first run, and the default where the space has it
      EXPECT_GE(left - waiting, 2u) << said;
      EXPECT_LE(left - waiting, 3u) << said;
    }
    left = waiting;
  }
  const Recording recording = read_recording(path);
  EXPECT_THROW(tune_command({"--record", folder / "", "--kernel", "gelu_backward", "--format", "bf16",
                             "--evaluations", "2", "--elements", "8192"}),
               kernels::SpecError);
  EXPECT_GE(recording.points.size(), 4u);
  EXPECT_LE(recording.points.size(), 5u);
  EXPECT_TRUE(recording.best_ms().has_value());
  EXPECT_EQ(recording.kernel, "gelu_backward.bf16");
}

// One point of each fit of bf16, each faster than the one before.
TEST(Replay, LeavesOutPointsOfLessAccurateFitsUnlessAsked) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16};
  const Fits all = fits_of(problem);
  Recording recording;
  recording.kernel = problem.name();
  recording.labels = {{}, {1}};
  std::vector<std::int64_t> numbers;
  std::vector<std::uint64_t> ranks;
  for (const auto& fit : all) {
    recording.labels[0].push_back(fit->type);
    numbers.push_back(static_cast<std::int64_t>(numbers.size()));
    ranks.push_back(ranks.size());
    recording.evaluations.emplace_back().time_ms = 10.0 - static_cast<double>(ranks.size());
  }
  recording.points = Points({{"fit", numbers, true}, {"unroll", {1}}}, ranks);
  ASSERT_GT(all.size(), 1u);
  EXPECT_EQ(eligible_part(recording, Accuracy::kAny).points.size(), all.size());
  const Recording left = eligible_part(recording, Accuracy::kAsDefault);
  ASSERT_EQ(left.points.size(), 1u);
  EXPECT_EQ(left.evaluations.size(), 1u);
  EXPECT_EQ(left.name_of(0), recording.name_of(0));
  EXPECT_EQ(left.labels[0][left.points.position(0, 0)], all.front()->type);
  EXPECT_EQ(left.best_ms(), recording.evaluations[0].time_ms);
  recording.kernel = "somebody's";
  EXPECT_EQ(eligible_part(recording, Accuracy::kAsDefault).points.size(), all.size());
}

TEST(ReplayCommand, RefusesWhatDoesNotGoTogether) {
  const kernels::ScratchFolder folder;
  kernels::write_file(folder / "cache.json", kernel_tuner_cache(synthetic_recording()));
  const std::string device = "replay:" + (folder / "cache.json");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--device", device, "--elements", "7"}, "--elements: does not go with a replay"},
      {{"--device", device, "--strategy", "tabu"}, "--strategy: tabu not in {model,"},
      {{"--device", device, "--evaluations", "0"}, "--evaluations"},
      {{"--device", device, "--kernel", "gelu_backward"}, "--format"},
      {{"--device", device, "--kernel", "gelu_backward", "--format", "f32"}, "only a database"},
      {{"--device", "cpu", "--passes", "5"}, "--passes: does not go with"},
      {{"--merge"}, "--merge: 1 required VALUE missing"},
  };
  for (const auto& [args, expected] : wrong) {
    try {
      tune_command(args);
      ADD_FAILURE() << "accepted, expected: " << expected;
    } catch (const kernels::SpecError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(tune_command({"--device", "replay:" + (folder / "none.json")}), kernels::IoError);
}

}  // namespace
}  // namespace outgrad::autotune
