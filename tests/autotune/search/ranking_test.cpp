// Rankings are measured against recordings: by hand on small ones, by the command on one that is made up.
#include "autotune/search/ranking.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autotune/commands/commands.h"
#include "autotune/gpu/model.h"
#include "autotune/gpu/variant.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/nvrtc.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/search/synthetic_recording.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

Recording line_of_points(const std::vector<Outcome>& times) {
  Space space;
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < times.size(); ++i) values.push_back(static_cast<std::int64_t>(i));
  space.parameter("i", values);
  Recording recording;
  recording.points = space.construct();
  recording.labels.emplace_back();
  for (const std::int64_t value : values) recording.labels.back().push_back(value);
  for (const Outcome& time : times) recording.evaluations.emplace_back().time_ms = time;
  return recording;
}

TEST(RankingCheck, ByHand) {
  std::vector<Outcome> times;
  std::vector<std::optional<double>> predicted;
  for (int i = 0; i < 100; ++i) times.push_back(1 + 0.1 * i), predicted.push_back(7.0 * i * i);
  RankingCheck check = check_ranking(line_of_points(times), predicted, "file");
  EXPECT_DOUBLE_EQ(check.spearman.median, 1);
  EXPECT_EQ(check.points, 100U);
  EXPECT_EQ(check.best, 0U);
  EXPECT_DOUBLE_EQ(*check.best_at, 0.01);
  EXPECT_EQ(check.top_found, 10U);
  EXPECT_EQ(check.near, 2U);  // 1 and 1.1
  EXPECT_EQ(check.reached, (std::array{1.0, 1.0, 1.0}));
  EXPECT_DOUBLE_EQ(check.near_spearman, 1);
  // The best is predicted behind 14 others, two of the measured top 10 among the last.
  predicted[0] = 7.0 * 14.5 * 14.5, predicted[3] = predicted[4] = 1e9;
  check = check_ranking(line_of_points(times), predicted, "file");
  EXPECT_DOUBLE_EQ(*check.best_at, 0.13);  // 1 to 14 without 3 and 4, and itself
  EXPECT_EQ(check.top_found, 7U);
  EXPECT_DOUBLE_EQ(check.reached[0], 1 / 1.1);
  EXPECT_DOUBLE_EQ(check.reached[1], 1 / 1.1);
  EXPECT_DOUBLE_EQ(check.reached[2], 1);  // the 13th
  EXPECT_LT(check.spearman.median, 1);
  EXPECT_LE(check.spearman.low, check.spearman.median);
  EXPECT_GE(check.spearman.high, check.spearman.median);
  // Failures and points without a prediction take no part; a best without one has no place.
  times[1] = std::nullopt, predicted[0] = std::nullopt;
  check = check_ranking(line_of_points(times), predicted, "file");
  EXPECT_EQ(check.points, 98U);
  EXPECT_EQ(check.best, 0U);
  EXPECT_FALSE(check.best_at);
  // A ranking that does not tell points apart finds nothing.
  predicted.assign(100, 1.0);
  check = check_ranking(line_of_points(times), predicted, "file");
  EXPECT_EQ(check.top_found, 0U);
  EXPECT_EQ(*check.best_at, 1);
  EXPECT_TRUE(std::isnan(check.spearman.median));
  EXPECT_DOUBLE_EQ(check.reached[0], 1 / 10.9) << "of equal predictions the slowest come first";
  predicted.assign(100, std::nullopt);
  EXPECT_THROW(check_ranking(line_of_points(times), predicted, "file"), kernels::SpecError);
}

// The text of what the command refuses.
std::string refusal_of(const std::vector<std::string>& args) {
  try {
    tune_command(args);
  } catch (const kernels::SpecError& error) {
    return error.what();
  } catch (const kernels::EnvironmentError& error) {
    return std::string("environment: ") + error.what();
  }
  return "nothing refused";
}

TEST(RankingCommand, RefusesWhatDoesNotFitTheRecording) {
  const kernels::ScratchFolder folder;
  Recording recording = synthetic_recording();
  const std::string path = folder / "cache.json";
  const auto refused = [&](const std::vector<std::string>& more) {
    kernels::write_file(path, kernel_tuner_cache(recording));
    std::vector<std::string> args = {"--device", "replay:" + path, "--out", folder / "out"};
    args.insert(args.end(), more.begin(), more.end());
    return refusal_of(args);
  };
  EXPECT_EQ(refused({"--ranking", "sm_90"}),
            path + ": kernel: 'landscape' is none of this program's, which a ranking is of");
  EXPECT_NE(refused({"--ranking", "cpu"}).find("'cpu' is no architecture"), std::string::npos);
  EXPECT_NE(refused({"--ranking", "sm_90", "--strategy", "random"}).find("--strategy"), std::string::npos);
  EXPECT_NE(
      refusal_of({"--device", "replay:" + path, "--shape", "2x4"}).find("--shape: does not go with a replay"),
      std::string::npos);
  recording.kernel = "gelu_forward.f32";
  EXPECT_NE(refused({"--ranking", "sm_90"}).find(": device: recorded on 'made up', which is no sm_90"),
            std::string::npos);
  EXPECT_NE(refused({"--ranking", "sm_13"}).find("no model of it"), std::string::npos);
  EXPECT_NE(refused({"--ranking", "sm_90", "--shape", "2x4"}).find("no rows"), std::string::npos);
  recording.device = "cuda: GPU, sm_90, 132 SMs";
  const std::string none = refused({"--ranking", "sm_90"});
  EXPECT_NE(none.find("points: none has a prediction: "), std::string::npos) << none;
  recording.problem_size = "many";
  EXPECT_NE(refused({"--ranking", "sm_90"}).find(": problem_size: not a number of elements"),
            std::string::npos);
}

json ranked(const std::vector<std::string>& args) {
  Captured captured_out(Captured::kStdout);
  std::string why;
  try {
    EXPECT_EQ(tune_command(args), 0);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  const std::string text = captured_out.release();
  EXPECT_EQ(why, "");
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// A recording of a GPU, made up from the model's own ranking: the command reads it as one, compiles and
// agrees with itself.
TEST(RankingCommand, RanksRecordingsOfCudaDevices) {
  try {
    kernels::jit::Nvrtc::instance();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  const kernels::ScratchFolder folder;
  const gpu::Architecture& architecture = gpu::architecture_of("sm_90");
  const Problem problem{KernelId::kGeluForward, FormatId::kBf16, 1, 1 << 26};
  const gpu::GpuVariant standard = gpu::default_gpu_variant(problem, architecture);
  std::string lines;
  double faster = 0.5;
  for (const int blocks : {1, 3}) {  // of one octet a trip: one block has asked for too little
    gpu::GpuVariant variant = standard;
    variant.schedule.octets = 1;
    variant.schedule.blocks_per_sm = blocks;
    lines += json{{"schema", "outgrad.tune/1"},
                  {"device",
                   {{"kind", "cuda"},
                    {"name", "NVIDIA H200"},
                    {"architecture", "sm_90"},
                    {"sms", 132},
                    {"memory_bytes", 150000000000}}},
                  {"kernel", "gelu_forward"},
                  {"format", "bf16"},
                  {"elements", problem.elements()},
                  {"parameters", variant.parameters()},
                  {"state", "timed"},
                  {"final", {{"ns", {1e5 / faster}}, {"default_ns", {1e5}}}},
                  {"speedup", {{"median", faster}, {"low", faster}, {"high", faster}, {"confidence", 0.99}}}}
                 .dump() +
             "\n";
    faster = 1;
  }
  kernels::write_file(folder / "tune_h200.jsonl", lines);
  const std::string device = "replay:" + (folder / "tune_h200.jsonl");
  const json check = ranked({"--device", device, "--ranking", "sm_90", "--out", folder.path(), "--json"});
  EXPECT_EQ(check["points"], 2) << check;
  EXPECT_EQ(check["model"], "sm_90 as on H200 SXM");
  EXPECT_EQ(check["spearman"]["value"], 1) << "one block for each SM leaves most of them empty";
  EXPECT_NE(refusal_of({"--device", device, "--ranking", "sm_80", "--out", folder.path()})
                .find("which is no sm_80"),
            std::string::npos);
  EXPECT_NE(refusal_of({"--device", device, "--ranking", "cpu"}).find("'cpu' is no architecture"),
            std::string::npos);
}

}  // namespace
}  // namespace outgrad::autotune
