// The device side of the tuner against a libcuda of the tests' own. The driver is loaded in child processes only, as the tuner does it: what
// a child says comes back as text.
#include "autotune/gpu/session.h"

#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "autotune/database.h"
#include "autotune/gpu/nvrtc.h"
#include "autotune/isolate.h"
#include "autotune/tune_command.h"
#include "autotune/verify.h"
#include "kernels/host/errors.h"
#include "kernels/host/files.h"
#include "tests/autotune/temporary_folder.h"

namespace outgrad::autotune::gpu {
namespace {

struct Answer {
  ChildEnd end;
  std::string text;
};

// What body() says in a child whose driver is `library`, with `plants`; an exception's text where it throws.
Answer in_child(const std::string& library, const std::string& plants, const std::function<std::string()>& body) {
  Answer answer;
  answer.end = run_isolated(
      [&](const Channel& channel) {
        ::setenv("OUTGRAD_LIBCUDA", library.c_str(), 1);
        ::setenv("OUTGRAD_STAND_IN_PLANTS", plants.c_str(), 1);
        channel.launching(0);
        try {
          channel.report(body());
        } catch (const std::exception& error) {
          channel.report(std::string("threw: ") + error.what());
        }
      },
      [&](const nlohmann::json& report) { answer.text = report.get<std::string>(); }, {5, 8LL << 30});
  return answer;
}

std::string symbol_of(const GpuVariant& variant) {
  const std::string type = std::to_string(variant.fit->type.size()) + variant.fit->type;
  const char* format = variant.problem.format == FormatId::kF32 ? "f" : variant.problem.format == FormatId::kF16 ? "NS0_3F16E" : "NS0_4BF16E";
  return (variant.problem.kernel == KernelId::kGeluForward ? "12gelu_forwardINS0_9generated" : "19activation_backwardINS0_9generated") + type + "E" + format;
}

GpuVariant variant_of(const Problem& problem, int threads = 256) {
  kernels::GpuSchedule schedule;
  schedule.threads = threads;
  schedule.octets = 2;
  return {problem, fits_of(problem).front(), schedule};
}

std::string verified(const GpuVariant& variant) {
  const Device device(0);
  const Verifier verifier(variant.problem, variant.fit->reference, 1);
  return verifier.mismatch(on_host_arrays(device, load(device, variant, "", symbol_of(variant))), 1 << 12).value_or("equal");
}

TEST(DriverTest, AbsentDriverIsAnError) {
  const Answer answer = in_child("/nowhere/libcuda.so.1", "", [] { return std::to_string(device_count()); });
  EXPECT_EQ(answer.text, "threw: /nowhere/libcuda.so.1 cannot be loaded: no NVIDIA driver on this machine");
}

TEST(DriverTest, DeviceDescribesItself) {
  const Answer answer = in_child(OUTGRAD_STAND_IN_DRIVER, "", [] { return to_json(Device(0).identity()).dump(); });
  const DeviceIdentity device = device_from(nlohmann::json::parse(answer.text));
  EXPECT_EQ(device.name, "Stand-in GPU");
  EXPECT_EQ(device.limits.name, "sm_90");
  EXPECT_EQ(device.limits.sms, 2);
  EXPECT_DOUBLE_EQ(device.limits.dram_gb_per_s, 51.2);  // 1.6 GHz, twice, 16 bytes
  EXPECT_EQ(to_json(device).dump(), answer.text);
}

TEST(DriverTest, DeviceThatIsNotThereIsNamed) {
  const Answer answer = in_child(OUTGRAD_STAND_IN_DRIVER, "", [] { return Device(3).identity().name; });
  EXPECT_EQ(answer.text, "threw: cuda:3: this machine has 1 devices");
}

TEST(SessionTest, EveryProblemIsVerifiedThroughTheDevice) {
  for (const KernelId kernel : kGeluKernels)
    for (const FormatId format : kAllFormats) {
      const Problem problem{kernel, format};
      EXPECT_EQ(in_child(OUTGRAD_STAND_IN_DRIVER, "", [&] { return verified(variant_of(problem)); }).text, "equal") << problem.name();
    }
}

TEST(SessionTest, PlantedFaultsAreSeen) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16};
  const auto with = [&](const std::string& plant) {
    return in_child(OUTGRAD_STAND_IN_DRIVER, "128:" + plant, [&] { return verified(variant_of(problem, 128)); });
  };
  EXPECT_EQ(with("bit").text.find("dx[0]: got"), 0u) << with("bit").text;
  EXPECT_NE(with("late").text.find("(1000 elements)"), std::string::npos) << with("late").text;
  EXPECT_EQ(with("write").text, "threw: wrote past the end of an array");
  EXPECT_EQ(with("fault").text, "threw: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(with("memory").text, "threw: cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(with("crash").end.kind, ChildEnd::Kind::kCrashed);
  EXPECT_EQ(in_child(OUTGRAD_STAND_IN_DRIVER, "128:bit", [&] { return verified(variant_of(problem, 256)); }).text, "equal");
}

// One run of the tuner with planted variants of every kind: each is a row with its reason, and the right winner is found.
TEST(DeviceCommandTest, SurvivesEveryPlantAndFindsTheWinner) {
  try {
    Nvrtc::instance();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  const TemporaryFolder folder;
  ::setenv("OUTGRAD_LIBCUDA", OUTGRAD_STAND_IN_DRIVER, 1);
  ::setenv("OUTGRAD_STAND_IN_PLANTS", "64:bit,512:fault,1024:memory", 1);
  testing::internal::CaptureStdout();
  const int status = tune_command({"--device", "cuda:0", "--kernel", "gelu_backward", "--format", "bf16", "--evaluations", "24", "--elements", "65536", "--budget", "60",
                                   "--out", folder.path()});
  const std::string printed = testing::internal::GetCapturedStdout();
  ::unsetenv("OUTGRAD_LIBCUDA");
  ::unsetenv("OUTGRAD_STAND_IN_PLANTS");
  EXPECT_EQ(status, kernels::kExitHolds);
  std::map<std::string, int> reasons;
  int winners = 0, timed = 0;
  for (const nlohmann::json& record : load_database(folder / "tune_stand_in_gpu.jsonl").records) {
    const int threads = record["parameters"]["threads"].get<int>();
    if (record.contains("rejected")) ++reasons[record["rejected"]["reason"].get<std::string>()];
    if (record["state"] == "timed") {
      ++timed;
      EXPECT_TRUE(threads == 128 || threads == 256) << record["variant"];
    }
    if (record.contains("winner") && record["winner"].get<bool>()) ++winners;
  }
  EXPECT_GT(reasons["wrong answer"], 0);
  EXPECT_GT(reasons["crashed"], 0);
  EXPECT_GT(reasons["out of memory"], 0);
  EXPECT_GT(timed, 2);
  EXPECT_EQ(winners, 1);
  const std::string header = kernels::read_file(folder / "tuned_stand_in_gpu.h");
  EXPECT_NE(header.find("Evidence::measured"), std::string::npos);
  const auto use = Nvrtc::instance().compile(
      "#include \"kernels/cuda/elementwise.cuh\"\n" + header +
          "using namespace outgrad::kernels;\nusing B = cuda::tuned::GeluBackward<BF16>;\n"
          "template __global__ void cuda::activation_backward<B::Fit, BF16, BF16, B>(const BF16*, const BF16*, const u32*, BF16*, i64);\n",
      "sm_90");
  if (const auto* error = std::get_if<CompileError>(&use)) ADD_FAILURE() << error->message;
  EXPECT_NE(printed.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << printed;
}

TEST(SessionTest, GridsAreTheLaunchers) {
  LoadedVariant loaded{variant_of({KernelId::kGeluBackward, FormatId::kF32}), nullptr, 132};
  EXPECT_EQ(loaded.blocks(1), 1u);
  EXPECT_EQ(loaded.blocks(4096), 1u);
  EXPECT_EQ(loaded.blocks(4097), 2u);
  EXPECT_EQ(loaded.blocks(kernels::i64{1} << 40), 132u * 8);
  loaded.variant.schedule.blocks_per_sm = 0;
  EXPECT_EQ(loaded.blocks(kernels::i64{1} << 28), 1u << 16);
  EXPECT_EQ(loaded.blocks(kernels::i64{1} << 50), 0x7fffffffu);
}

}  // namespace
}  // namespace outgrad::autotune::gpu
