// The device side of the tuner against a libcuda of the tests' own. The driver is loaded in child processes
// only, as the tuner does it: what a child says comes back as text.
#include "autotune/gpu/session.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <stdexcept>

#include <gtest/gtest.h>

#include "autotune/commands/commands.h"
#include "autotune/measure/isolate.h"
#include "autotune/measure/verify.h"
#include "autotune/measure/workload.h"
#include "autotune/records/database.h"
#include "kernels/fits.h"
#include "kernels/host/functions.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/nvrtc.h"
#include "kernels/support/random.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/scoped_variable.h"

namespace outgrad::autotune::gpu {
namespace {

struct Answer {
  ChildEnd end;
  std::string text;
};

// What body() says in a child whose driver is `library`, with `plants`; an exception's text where it throws.
Answer in_child(const std::string& library, const std::string& plants,
                const std::function<std::string()>& body) {
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

// Cubins without code, whose kernels have the names of the variant's.
std::vector<Cubin> cubins_of(const GpuVariant& variant) {
  using kernels::cuda::DeviceKernel;
  const auto mangled = [](const std::string& name) { return std::to_string(name.size()) + name; };
  const std::string format = variant.problem.format == FormatId::kF32   ? "f"
                             : variant.problem.format == FormatId::kF16 ? "NS0_3F16E"
                                                                        : "NS0_4BF16E";
  const auto symbol = [&](DeviceKernel kernel) {
    const std::string name = mangled(name_of(kernel)) + "I";
    if (!is_norm(variant.problem.kernel))
      return name + (kernel == DeviceKernel::add_slots ? "Li64E"
                     : kernel == DeviceKernel::finish_columns
                         ? "NS0_15ParameterFormatE0E"
                         : "NS0_9generated" + mangled(variant.fit->type) + "E" + format);
    const NormKind kind = norm_kind(variant.problem.kernel);
    // The last of the template's arguments say that nothing is dropped, of a forward whether the sum is
    // stored, and that y itself is kept.
    const std::string last =
        kernel == DeviceKernel::norm_forward ? (kind.residual ? "Lb0ELb1EvEEv" : "Lb0ELb0EvEEv") : "Lb0EvEEv";
    return name + "NS0_4NormE" + (kind.norm == kernels::Norm::layer ? "0E" : "1E") + format + last;
  };
  std::vector<Cubin> cubins = {{"", {symbol(variant.main_kernel())}}, {"", {}}};
  for (const DeviceKernel kernel : {DeviceKernel::add_slots, DeviceKernel::norm_prepare,
                                    DeviceKernel::norm_slot_sums, DeviceKernel::finish_columns})
    if (variant.helper_source().find(std::string(name_of(kernel)) + "<") != std::string::npos)
      cubins.back().symbols.push_back(symbol(kernel));
  return cubins;
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
  return verifier.verdict(on_host_arrays(device, load(device, variant, cubins_of(variant))), 1 << 12)
      .mismatch.value_or("equal");
}

TEST(DriverTest, AbsentDriverIsAnError) {
  const Answer answer = in_child("/nowhere/libcuda.so.1", "", [] { return std::to_string(device_count()); });
  EXPECT_EQ(answer.text, "threw: /nowhere/libcuda.so.1 cannot be loaded: no NVIDIA driver on this machine");
}

TEST(DriverTest, DeviceDescribesItself) {
  const Answer answer =
      in_child(OUTGRAD_STAND_IN_DRIVER, "", [] { return to_json(Device(0).record()).dump(); });
  const DeviceRecord device = device_record_from(nlohmann::json::parse(answer.text));
  const Architecture limits = limits_of(device);
  EXPECT_EQ(limits.board, "Stand-in GPU");
  EXPECT_EQ(limits.name, "sm_90");
  EXPECT_EQ(limits.sms, 2);
  EXPECT_DOUBLE_EQ(limits.dram_gb_per_s, 51.2);  // 1.6 GHz, twice, 16 bytes
  EXPECT_EQ(to_json(device).dump(), answer.text);
}

TEST(DriverTest, DeviceThatIsNotThereIsNamed) {
  const Answer answer = in_child(OUTGRAD_STAND_IN_DRIVER, "", [] { return Device(3).limits().name; });
  EXPECT_EQ(answer.text, "threw: cuda:3: this machine has 1 devices");
}

TEST(SessionTest, EveryProblemIsVerifiedThroughTheDevice) {
  for (const KernelId kernel : {KernelId::kGeluBackward, KernelId::kGeluForward})
    for (const FormatId format : kAllFormats) {
      const Problem problem{kernel, format};
      EXPECT_EQ(in_child(OUTGRAD_STAND_IN_DRIVER, "", [&] { return verified(variant_of(problem)); }).text,
                "equal")
          << problem.name();
    }
}

TEST(SessionTest, PlantedFaultsAreSeen) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16};
  const auto with = [&](const std::string& plant) {
    return in_child(OUTGRAD_STAND_IN_DRIVER, "128:" + plant,
                    [&] { return verified(variant_of(problem, 128)); });
  };
  EXPECT_EQ(with("bit").text.find("dx[0]: got"), 0u) << with("bit").text;
  EXPECT_NE(with("late").text.find("(1000 elements)"), std::string::npos) << with("late").text;
  EXPECT_EQ(with("write").text, "threw: wrote past the end of an array");
  EXPECT_EQ(with("fault").text, "threw: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(with("memory").text, "threw: cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(with("crash").end.kind, ChildEnd::Kind::kCrashed);
  EXPECT_EQ(
      in_child(OUTGRAD_STAND_IN_DRIVER, "128:bit", [&] { return verified(variant_of(problem, 256)); }).text,
      "equal");
}

// Runs of the tuner with planted variants of every kind: each is a row with its reason, and the right winner
// is found. Of blocks beside those of 256 threads the first variants that are tried are of 64 and of 128. The
// second run finds the programs that the first has compiled, and no record. The evaluations end a search, not
// its budget: beside busy processes four minutes were over before the variant that hangs had its turn.
TEST(DeviceCommandTest, NightlySurvivesEveryPlantAndFindsTheWinner) {
  try {
    Nvrtc::instance();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  std::map<std::string, int> reasons;
  std::string printed;
  const kernels::ScratchFolder folder;
  const std::string database = folder / "tune_stand_in_gpu.jsonl", tuned = folder / "tuned_stand_in_gpu.h";
  for (const char* plants : {"64:bit,128:hang", "64:fault,128:memory"}) {
    SCOPED_TRACE(plants);
    std::remove(database.c_str());
    std::remove(tuned.c_str());
    const ScopedVariable driver("OUTGRAD_LIBCUDA", OUTGRAD_STAND_IN_DRIVER),
        planted("OUTGRAD_STAND_IN_PLANTS", plants);
    Captured captured_out(Captured::kStdout);
    const int status =
        tune_command({"--device", "cuda:0", "--kernel", "gelu_backward", "--format", "bf16", "--evaluations",
                      "24", "--elements", "65536", "--budget", "3600", "--out", folder.path()});
    printed += captured_out.release();
    EXPECT_EQ(status, kernels::kExitHolds);
    int winners = 0, timed = 0;
    for (const Record& record : load_database(database).records) {
      const int threads = record.parameters["threads"].get<int>();
      if (record.state == "rejected") ++reasons[record.rejected.reason];
      if (record.state == "timed") {
        ++timed;
        EXPECT_TRUE(threads != 64 && threads != 128) << record.variant;
      }
      if (record.winner == true) ++winners;
    }
    EXPECT_GT(timed, 2);
    EXPECT_EQ(winners, 1);
    const std::string header = kernels::read_file(tuned);
    EXPECT_NE(header.find("Evidence::measured"), std::string::npos);
    const auto use = Nvrtc::instance().compile(
        "#include \"kernels/cuda/elementwise.cuh\"\n" + header +
            "using namespace outgrad::kernels;\nusing B = cuda::tuned::GeluBackward<BF16>;\n"
            "template __global__ void cuda::activation_backward<B::Fit, BF16, BF16, B>(const BF16*, const "
            "BF16*, const u32*, BF16*, i64);\n",
        "sm_90");
    if (const auto* error = std::get_if<CompileError>(&use)) ADD_FAILURE() << error->message;
  }
  EXPECT_GT(reasons["wrong answer"], 0);
  EXPECT_GT(reasons["crashed"], 0);
  EXPECT_GT(reasons["out of memory"], 0);
  EXPECT_GT(reasons["hung"], 0);
  EXPECT_NE(printed.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << printed;
}

// Nobody waits for the others where the default itself hangs.
TEST(DeviceCommandTest, NightlyADefaultThatHangsEndsTheSearch) {
  try {
    Nvrtc::instance();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  const kernels::ScratchFolder folder;
  const ScopedVariable driver("OUTGRAD_LIBCUDA", OUTGRAD_STAND_IN_DRIVER),
      plants("OUTGRAD_STAND_IN_PLANTS", "256:hang");
  try {
    tune_command({"--device", "cuda:0", "--kernel", "gelu_backward", "--format", "bf16", "--evaluations", "8",
                  "--elements", "65536", "--budget", "60", "--out", folder.path()});
    FAIL() << "tuned beside a default that hangs";
  } catch (const kernels::EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("hung"), std::string::npos) << error.what();
  }
  EXPECT_EQ(load_database(folder / "tune_stand_in_gpu.jsonl").records.at(0).rejected.reason, "hung");
}

// Kernels of several launches go the same way: compiled, verified in every shape that their code takes,
// timed, recorded; a planted fault in blocks that the default does not have is a row with its reason.
TEST(DeviceCommandTest, NightlyKernelsOverRowsAreTuned) {
  try {
    Nvrtc::instance();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  for (const std::string kernel : {"layernorm_backward", "bias_gelu_backward"}) {
    SCOPED_TRACE(kernel);
    const kernels::ScratchFolder folder;
    ::setenv("OUTGRAD_LIBCUDA", OUTGRAD_STAND_IN_DRIVER, 1);
    ::setenv("OUTGRAD_STAND_IN_PLANTS", "128:bit", 1);
    Captured captured_out(Captured::kStdout);
    const int status =
        tune_command({"--device", "cuda:0", "--kernel", kernel, "--format", "bf16", "--evaluations", "6",
                      "--shape", "96x1024", "--budget", "3600", "--out", folder.path()});
    const std::string printed = captured_out.release();
    ::unsetenv("OUTGRAD_LIBCUDA");
    ::unsetenv("OUTGRAD_STAND_IN_PLANTS");
    EXPECT_EQ(status, kernels::kExitHolds) << printed;
    int timed = 0, winners = 0;
    for (const Record& record : load_database(folder / "tune_stand_in_gpu.jsonl").records) {
      EXPECT_EQ(record.rows, 96);
      EXPECT_EQ(record.cols, 1024);
      const nlohmann::json& parameters = record.parameters;
      const bool norm = parameters.contains("row_warps");
      const int threads = norm ? 32 * parameters["row_warps"].get<int>() * parameters["block_rows"].get<int>()
                               : parameters["threads"].get<int>();
      if (record.state == "timed") {
        ++timed;
        EXPECT_NE(threads, 128) << record.variant;
        EXPECT_GT(record.checked.value(), 100'000);
      }
      if (record.rejected.stage == "verify") {
        EXPECT_EQ(record.rejected.reason, "wrong answer") << line_of(record);
        EXPECT_EQ(threads, 128) << line_of(record);
      }
      if (record.winner == true) ++winners;
    }
    EXPECT_GT(timed, 1) << printed;
    EXPECT_EQ(winners, 1);
  }
}

// --- Kernels over rows ---------------------------------------------------------------------------

constexpr kernels::CpuSchedule kScalar{.threads = 1};

// The host's scalar kernel of a problem, in the order of its operands.
template <class T>
void run_reference(const Problem& problem, const Arguments& a) {
  std::vector<float> scratch;
  Arguments all = a;
  for (std::size_t k = 0; k < operands(problem.kernel).size(); ++k) {
    const Operand& operand = operands(problem.kernel)[k];
    if (operand.role != Role::kScratch) continue;
    scratch.resize(static_cast<std::size_t>(problem.sized(a.rows, a.cols).count_of(operand)));
    all.array[k] = scratch.data();
  }
  kernels::with_kernel(problem.kernel, [&](auto kernel) {
    kernels::run<kernel(), kernels::StandardFit<kernel(), T>, T, kScalar>(all);
  });
}

struct Call {
  kernels::i64 rows, cols;
  bool in_place = false;  // the first output over the first input
  bool optional = true;  // whether what may be absent is there
};

// The arrays of a call, host memory aligned as the device's is.
class Arrays {
 public:
  Arrays(const Problem& problem, const Call& call) {
    arguments_.rows = call.rows, arguments_.cols = call.cols;
    const std::span<const Operand> all = operands(problem.kernel);
    const Problem sized = problem.sized(call.rows, call.cols);
    std::uint64_t random = 11;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k].role == Role::kScratch || (all[k].optional && !call.optional)) continue;
      const auto bytes = sized.array_bytes(all[k]);
      memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64)));
      arguments_.array[k] = memory_.back().get();
      for (kernels::i64 i = 0; i < sized.count_of(all[k]); ++i) {
        const std::uint64_t drawn = kernels::next_random(random);
        const float value = all[k].role == Role::kOutput
                                ? 0
                                : static_cast<float>((drawn & 1) != 0 ? 0.5 : -0.5) *
                                      (1 + static_cast<float>(drawn >> 40) * 0x1p-23f);
        const std::uint32_t word = all[k].element == Element::kMaskWord
                                       ? static_cast<std::uint32_t>(drawn >> 32)
                                       : kernels::bits_of(value);
        const std::uint32_t bits =
            all[k].element != Element::kFormat || problem.format == FormatId::kF32 ? word
            : problem.format == FormatId::kF16 ? kernels::narrow<kernels::F16>(value).bits
                                               : kernels::narrow<kernels::BF16>(value).bits;
        std::memcpy(memory_.back().get() + i * problem.element_bytes(all[k]), &bits,
                    static_cast<std::size_t>(problem.element_bytes(all[k])));
      }
    }
    for (std::size_t k = 0; k < all.size() && call.in_place; ++k) {
      if (all[k].may_alias[0] == kNoOperand) continue;
      arguments_.array[k] = arguments_.array[all[k].may_alias[0]];
      break;
    }
  }
  const Arguments& arguments() const { return arguments_; }

 private:
  std::vector<Array> memory_;
  Arguments arguments_;
};

// "equal", or the first output that the device computes otherwise than the host.
std::string compared(const GpuVariant& variant, const Call& call) {
  const Device device(0);
  const Problem& problem = variant.problem;
  const Arrays device_arrays(problem, call), host_arrays(problem, call);
  on_host_arrays(device, load(device, variant, cubins_of(variant)))(device_arrays.arguments());
  const Arguments& a = host_arrays.arguments();
  problem.format == FormatId::kF32   ? run_reference<float>(problem, a)
  : problem.format == FormatId::kF16 ? run_reference<kernels::F16>(problem, a)
                                     : run_reference<kernels::BF16>(problem, a);
  const std::span<const Operand> all = operands(problem.kernel);
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (a.array[k] == nullptr) continue;
    if (std::memcmp(a.array[k], device_arrays.arguments().array[k],
                    problem.sized(call.rows, call.cols).array_bytes(all[k])) != 0)
      return std::string(all[k].name) + " differs";
  }
  return "equal";
}

std::vector<GpuVariant> variants_over_rows(const Problem& problem) {
  const Architecture& architecture = architecture_of("sm_90");
  std::vector<GpuVariant> variants = {default_gpu_variant(problem, architecture)};
  if (!is_norm(problem.kernel)) return variants;
  GpuVariant other = variants.front();
  other.norm.octets = other.norm.block_rows = 1;
  other.norm.rows_ahead = 0;
  if (!is_forward(problem.kernel)) other.norm.sums = kernels::ColumnSums::separate;
  for (const kernels::RowHome home : {kernels::RowHome::shared, kernels::RowHome::memory}) {
    other.norm.home = home;
    variants.push_back(other);
  }
  return variants;
}

// Rows that slots share unevenly, none, one; in place; without what may be absent; columns that need
// permission for their shared memory.
TEST(SessionTest, KernelsOverRowsAreTheHosts) {
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats) {
      const Problem problem{kernel, format, 64, 1024};
      if (!problem.over_rows()) continue;
      for (const GpuVariant& variant : variants_over_rows(problem))
        for (const Call& call : {Call{1, 1024}, Call{300, 1024}, Call{17, 1024, true},
                                 Call{5, 1024, false, false}, Call{0, 1024}, Call{40, 256}}) {
          SCOPED_TRACE(problem.name() + " " + variant.name() + " " + std::to_string(call.rows) + " rows");
          EXPECT_EQ(in_child(OUTGRAD_STAND_IN_DRIVER, "", [&] { return compared(variant, call); }).text,
                    "equal");
        }
    }
  const Problem wide{KernelId::kLayernormBackward, FormatId::kBf16, 64, 24'000},
      narrow{KernelId::kBiasGeluBackward, FormatId::kF32, 64, 1001};
  for (const Problem& problem : {wide, narrow})
    EXPECT_EQ(in_child(OUTGRAD_STAND_IN_DRIVER, "",
                       [&] {
                         return compared(default_gpu_variant(problem, architecture_of("sm_90")),
                                         {3, problem.cols});
                       })
                  .text,
              "equal");
}

TEST(SessionTest, FaultsOfKernelsOverRowsAreSeen) {
  const Problem problem{KernelId::kResidualLayernormBackward, FormatId::kF16, 64, 1024};
  GpuVariant variant = default_gpu_variant(problem, architecture_of("sm_90"));
  const auto with = [&](const std::string& plant) {
    return in_child(OUTGRAD_STAND_IN_DRIVER, std::to_string(block_threads(variant)) + ":" + plant,
                    [&] { return compared(variant, {9, 1024}); })
        .text;
  };
  EXPECT_EQ(with("bit"), "dz differs");
  EXPECT_EQ(with("late"), "dz differs");
  EXPECT_EQ(with("write"), "threw: wrote past the end of an array");
  // at the next launch of the plan
  EXPECT_NE(with("fault").find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << with("fault");
  EXPECT_NE(in_child(OUTGRAD_STAND_IN_DRIVER, "", [&] { return compared(variant, {9, 1001}); })
                .text.find("does not take rows of 1001 columns"),
            std::string::npos);
}

// Two alike share the space and the database; what either found is in the header.
TEST(DeviceCommandTest, AllDevicesAtOnceShareTheSpace) {
  try {
    Nvrtc::instance();
  } catch (const kernels::EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  const kernels::ScratchFolder folder;
  const ScopedVariable driver("OUTGRAD_LIBCUDA", OUTGRAD_STAND_IN_DRIVER),
      devices("OUTGRAD_STAND_IN_DEVICES", "2");
  Captured captured_out(Captured::kStdout);
  const int status =
      tune_command({"--device", "cuda:all", "--kernel", "gelu_forward", "--format", "bf16", "--evaluations",
                    "2", "--elements", "65536", "--budget", "3600", "--out", folder.path(), "--json"});
  const nlohmann::json summaries = nlohmann::json::parse(captured_out.release());
  EXPECT_EQ(status, kernels::kExitHolds);
  ASSERT_EQ(summaries.size(), 2u);
  for (const nlohmann::json& summary : summaries)
    EXPECT_EQ(summary["problems"][0]["evaluated"], 2) << summary;
  // by variant, screening rounds: the samples say which process it was
  std::map<std::string, std::set<std::string>> runs;
  for (const Record& record : load_database(folder / "tune_stand_in_gpu.jsonl").records)
    if (record.is_default == false && record.state == "timed" && record.finalist == false)
      runs[record.variant].insert(to_json(record)["screening"].dump());
  EXPECT_EQ(runs.size(), 4u);
  for (const auto& [variant, once] : runs) EXPECT_EQ(once.size(), 1u) << variant << " is in both parts";
  // For two evaluations either device ranks eight points, and compiles the default besides.
  const auto compiled = std::count_if(std::filesystem::recursive_directory_iterator(folder.path()),
                                      std::filesystem::recursive_directory_iterator(),
                                      [](const auto& entry) { return entry.path().extension() == ".cubin"; });
  EXPECT_GT(compiled, 8);
  EXPECT_LE(compiled, 2 * 8 + 1);
}

}  // namespace
}  // namespace outgrad::autotune::gpu
