// Rankings are measured against recordings: by hand on small ones, by the command on one of this project's machine, reduced.
#include "autotune/search/ranking.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "autotune/compile.h"
#include "autotune/cpu/model.h"
#include "autotune/device.h"
#include "autotune/gpu/model.h"
#include "autotune/gpu/variant.h"
#include "autotune/records/identity.h"
#include "autotune/tune_command.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/nvrtc.h"
#include "tests/autotune/scoped_variable.h"
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
  RankingCheck check = check_ranking(line_of_points(times), predicted, "file", 1);
  EXPECT_DOUBLE_EQ(check.spearman.median, 1);
  EXPECT_EQ(check.points, 100U);
  EXPECT_EQ(check.best, 0U);
  EXPECT_DOUBLE_EQ(*check.best_at, 0.01);
  EXPECT_EQ(check.top_found, 10U);
  EXPECT_EQ(check.near, 2U);  // 1 and 1.1
  EXPECT_DOUBLE_EQ(check.near_spearman, 1);
  // The best is predicted behind 14 others, two of the measured top 10 among the last.
  predicted[0] = 7.0 * 14.5 * 14.5, predicted[3] = predicted[4] = 1e9;
  check = check_ranking(line_of_points(times), predicted, "file", 1);
  EXPECT_DOUBLE_EQ(*check.best_at, 0.13);  // 1 to 14 without 3 and 4, and itself
  EXPECT_EQ(check.top_found, 7U);
  EXPECT_LT(check.spearman.median, 1);
  EXPECT_LE(check.spearman.low, check.spearman.median);
  EXPECT_GE(check.spearman.high, check.spearman.median);
  // Failures and points without a prediction take no part; a best without one has no place.
  times[1] = std::nullopt, predicted[0] = std::nullopt;
  check = check_ranking(line_of_points(times), predicted, "file", 1);
  EXPECT_EQ(check.points, 98U);
  EXPECT_EQ(check.best, 0U);
  EXPECT_FALSE(check.best_at);
  // A ranking that does not tell points apart finds nothing.
  predicted.assign(100, 1.0);
  check = check_ranking(line_of_points(times), predicted, "file", 1);
  EXPECT_EQ(check.top_found, 0U);
  EXPECT_EQ(*check.best_at, 1);
  EXPECT_TRUE(std::isnan(check.spearman.median));
  predicted.assign(100, std::nullopt);
  EXPECT_THROW(check_ranking(line_of_points(times), predicted, "file", 1), kernels::SpecError);
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
  EXPECT_EQ(refused({"--ranking", "cpu"}), path + ": kernel: 'landscape' is none of this program's, which a ranking is of");
  EXPECT_NE(refused({"--ranking", "tpu"}).find("'tpu' is neither cpu nor an architecture"), std::string::npos);
  EXPECT_NE(refused({"--ranking", "cpu", "--strategy", "random"}).find("--strategy"), std::string::npos);
  EXPECT_NE(refusal_of({"--device", "replay:" + path, "--shape", "2x4"}).find("--shape: does not go with a replay"), std::string::npos);
  recording.kernel = "gelu_forward.f32";
  EXPECT_NE(refused({"--ranking", "cpu"}).find(": device: recorded on 'made up'"), std::string::npos);
  EXPECT_NE(refused({"--ranking", "sm_90"}).find(": device: recorded on 'made up', which is no sm_90"), std::string::npos);
  EXPECT_NE(refused({"--ranking", "sm_13"}).find("no model of it"), std::string::npos);
  EXPECT_NE(refused({"--ranking", "cpu", "--shape", "2x4"}).find("no rows"), std::string::npos);
  recording.problem_size = "many";
  EXPECT_NE(refused({"--ranking", "cpu"}).find(": problem_size: not a number of elements"), std::string::npos);
}

// The command's answer to a recording of this machine, none of whose points has a prediction.
std::string refusal_here() {
  const kernels::ScratchFolder folder;
  const CpuIdentity here = identify_cpu();
  Recording recording = synthetic_recording();
  recording.kernel = "gelu_forward.f32";
  recording.device = cpu_key(here.model, here.threads, here.vector_bits, here.isa).device;
  kernels::write_file(folder / "cache.json", kernel_tuner_cache(recording));
  return refusal_of({"--device", "replay:" + (folder / "cache.json"), "--ranking", "cpu", "--out", folder / "out"});
}

TEST(RankingCommand, SaysThatThereIsNoModelOfThisMachine) {
  const ScopedVariable zen5("OUTGRAD_CPU_MODEL", "26,2");
  EXPECT_EQ(refusal_here(), "environment: no model of this CPU's cores (family 26, model 2; there is one of Zen 4)");
  const ScopedVariable nonsense("OUTGRAD_CPU_MODEL", "Zen 5");
  EXPECT_EQ(refusal_here(), "environment: OUTGRAD_CPU_MODEL: 'Zen 5' is not FAMILY,MODEL");
}

TEST(RankingCommand, RefusesARecordingOfWhichNoPointHasAPrediction) {
  const ScopedVariable zen4("OUTGRAD_CPU_MODEL", "25,17");  // of which there is a model, whatever this machine is
  const std::string why = refusal_here();
  EXPECT_NE(why.find("points: none has a prediction: tuning record: parameters:"), std::string::npos) << why;
}

json ranked(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  std::string why;
  try {
    EXPECT_EQ(tune_command(args), 0);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(why, "");
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// 56 of the 2240 points of notebooks_data/study/recordings/gelu_forward.f32.json.gz, chosen by their parameters alone: unroll 1 and 2; all threads in blocks of
// 16, 128 and 192 Ki elements, one thread in streamed blocks of 128 Ki. Of all points the correlation is 0.89.
TEST(RankingCommand, AgreesWithARecordingOfThisMachine) {
  const std::string path = source_root() + "/tests/autotune/search/gelu_forward_56_points.json";
  const CpuIdentity here = identify_cpu();
  const std::string recorded = read_recording(path).device;
  if (cpu_key(here.model, here.threads, here.vector_bits, here.isa).device != recorded) GTEST_SKIP() << "recorded on " << recorded;
  try {
    cpu::this_core();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();  // a virtual machine may hide which processor of that name it has
  }
  const kernels::ScratchFolder folder;
  const std::vector<std::string> args = {"--device", "replay:" + path, "--ranking", "cpu", "--out", folder.path(), "--json"};
  const json check = ranked(args);
  EXPECT_EQ(check["points"], 56);
  EXPECT_EQ(check["recorded"], 56);
  EXPECT_TRUE(check["left_out"].empty()) << check["left_out"];
  EXPECT_EQ(check["compiled"], 8);
  EXPECT_GE(check["spearman"]["value"], 0.6);
  EXPECT_LE(check["best_at"], 0.25);  // 12 of 56 points are of the fastest kind
  EXPECT_TRUE(std::filesystem::exists(folder / "ranking_gelu_forward.f32.csv"));
  // Nothing is compiled again, and the prediction is the same.
  const auto objects = [&] {
    std::map<std::string, std::filesystem::file_time_type> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "variants"))
      if (entry.path().extension() == ".so") found.emplace(entry.path().string(), entry.last_write_time());
    return found;
  };
  const auto before = objects();
  EXPECT_EQ(before.size(), 8U);
  const json again = ranked(args);
  EXPECT_EQ(again["spearman"], check["spearman"]);
  EXPECT_EQ(objects(), before);
}

// A recording of a GPU, made up from the model's own ranking: the command reads it as one, compiles and agrees with itself.
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
                  {"device", {{"kind", "cuda"}, {"name", "NVIDIA H200"}, {"architecture", "sm_90"}, {"sms", 132}, {"memory_bytes", 150000000000}}},
                  {"kernel", "gelu_forward"},
                  {"format", "bf16"},
                  {"elements", problem.elements()},
                  {"parameters", variant.parameters()},
                  {"state", "timed"},
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
  EXPECT_NE(refusal_of({"--device", device, "--ranking", "sm_80", "--out", folder.path()}).find("which is no sm_80"), std::string::npos);
  EXPECT_NE(refusal_of({"--device", device, "--ranking", "cpu", "--out", folder.path()}).find(": device: recorded on 'cuda: NVIDIA H200"), std::string::npos);
}

}  // namespace
}  // namespace outgrad::autotune
