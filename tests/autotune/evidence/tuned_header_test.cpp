// A tuned header is really what a build with it runs: by the name and the rung it reports, and by what it
// visibly does. Its text depends on the choices alone.
#include "autotune/evidence/tuned_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "autotune/commands/commands.h"
#include "autotune/cpu/compile.h"
#include "autotune/measure/device.h"
#include "autotune/records/database.h"
#include "kernels/host/errors.h"
#include "kernels/host/identity.h"
#include "kernels/support/files.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/records/tuning_records.h"
#include "tests/refusal.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;

const DeviceKey kHere = device_key(device_record(identify_cpu())).value();

// The parameters of a norm's forward where there is no fit.
json cpu_parameters(int threads, const char* fit, int vector_bits = kernels::kBestVectorBits) {
  if (fit == nullptr)
    return {{"threads", threads},
            {"vector_bits", vector_bits},
            {"task_elements", 4096},
            {"prefetch", "second_level"}};
  json parameters = {{"threads", threads},         {"vector_bits", vector_bits}, {"unroll", 1},
                     {"block_elements", 3 * 1024}, {"streaming_stores", false},  {"table", "memory"}};
  parameters["fit"] = fit;
  return parameters;
}

// The parameters of kernels of 16-bit codes.
json code_parameters(int threads) {
  return {{"threads", threads},
          {"vector_bits", kernels::kBestVectorBits},
          {"block_elements", 2 * 1024},
          {"streaming_stores", false}};
}

TunedChoice choice(const Problem& problem, const DeviceKey& device, const std::string& name,
                   const json& parameters) {
  return {problem, device, name, parameters, "", kernels::Evidence::measured, {1.5, 1.25, 2}, "", ""};
}

// For each size in turn, in a process of its own (threads that a smaller team leaves behind end when they
// like): the variant's name, the rung, and how many threads the process has once the kernel has run.
constexpr const char* kProgram = R"(
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/host/api.h"
using namespace outgrad::kernels;

int tasks() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

template <class Table>
void say(i64 rows, i64 n) {
  const tuned::Tuning tuning = tuned::tuning_of<Table>(rows, n);
  std::printf("%s, %s, %d\n", tuning.entry->variant, name_of(tuning.found.rung), tasks());
}

template <class T>
void gelu(i64 n) {
  std::vector<T> dy(static_cast<std::size_t>(n)), y(dy.size());
  std::vector<u32> mask(static_cast<std::size_t>(n / 32));
  gelu_backward<T>(dy.data(), y.data(), mask.data(), dy.data(), n);
  say<tuned::GeluBackward<T>>(1, n);
}

constexpr i64 kRows = 512, kCols = 1024;
void layernorm() {
  std::vector<F16> x(kRows * kCols);
  std::vector<float> rstd(kRows);
  tuned::layernorm_forward<F16>(
      {.x = x.data(), .rows = kRows, .n = kCols, .y = x.data(), .rstd = rstd.data()});
  say<tuned::LayernormForward<F16>>(kRows, kCols);
}

void alone(void (*work)()) {
  if (fork() == 0) {
    work();
    std::fflush(stdout);
    _exit(0);
  }
  int status;
  wait(&status);
}

int main() {
  alone([] { gelu<float>(1 << 18); });
  alone([] { gelu<float>(1 << 20); });
  alone([] { gelu<BF16>(1 << 20); });
  alone(layernorm);
  alone([] { say<tuned::RmsnormForward<F16>>(kRows, kCols); });
}
)";

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> block;
  while (pipe != nullptr && std::fgets(block.data(), block.size(), pipe) != nullptr) text += block.data();
  return pipe != nullptr && ::pclose(pipe) == 0 ? text : "failed: " + text;
}

class Program {
 public:
  explicit Program(const std::string& header, const char* text = kProgram) {
    kernels::write_file(folder_ / "tuned.h", header);
    kernels::write_file(folder_ / "program.cpp", text);
  }
  // What the compiler says.
  std::string compile(const std::string& flags, bool tuned = true) const {
    const Toolchain toolchain = find_toolchain();
    std::string compile;
    for (const std::string& word : toolchain.compiler) compile += word + " ";
    compile +=
        "-std=c++20 -O1 -fopenmp -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror "
        "-I" +
        toolchain.source_root + " " + folder_ / "program.cpp" + " " + flags + " -o " + folder_ / "program";
    if (tuned)
      for (const char* macro : {"OUTGRAD_TUNED_HEADER", "OUTGRAD_TUNED_CUDA_HEADER"})
        compile += std::string(" -D") + macro + "='\"" + folder_ / "tuned.h" + "\"'";
    return output_of(compile + " 2>&1");
  }
  std::string run(const std::string& flags, bool tuned = true) const {
    EXPECT_EQ(compile(flags, tuned), "");
    return output_of("OMP_NUM_THREADS=2 " + folder_ / "program");
  }

 private:
  kernels::ScratchFolder folder_;
};

// Schedules that nobody would choose, told apart by their threads; the last line is of a kernel that does not
// run.
TEST(TunedHeader, IsWhatABuildWithItRuns) {
  const Problem gelu32{KernelId::kGeluBackward, FormatId::kF32},
      gelu16{KernelId::kGeluBackward, FormatId::kBf16}, norm{KernelId::kLayernormForward, FormatId::kF16};
  DeviceKey relative = kHere, cousin = kHere, stranger = kHere;
  relative.device = cousin.device = stranger.device = "cpu: another \"processor\" \\ with many threads";
  cousin.architecture = stranger.architecture = "cpu: another instruction set";
  stranger.family = "cpu: 64-bit vectors";
  const std::vector<TunedChoice> choices = {
      choice(gelu32.sized(1, 1 << 17), kHere, "small", cpu_parameters(3, "GeluF32")),
      choice(gelu32.sized(1, 1 << 21), kHere, "large", cpu_parameters(4, "GeluF32Ulp")),
      choice(gelu32.sized(1, 1 << 20), relative, "not mine", cpu_parameters(2, "GeluF32")),
      choice(gelu16.sized(1, 1 << 20), relative, "a relative's", cpu_parameters(5, "GeluBf16")),
      choice(gelu16.sized(1, 1 << 20), stranger, "a stranger's", cpu_parameters(2, "GeluBf16")),
      choice(norm.sized(16, 1024), cousin, "a cousin's", cpu_parameters(6, nullptr))};
  const Program program(tuned_header(choices, Backend::kCpu, "for a test", Accuracy::kAsDefault));
  EXPECT_EQ(program.run("-march=native"),
            "small, exact device, 3\nlarge, exact device, 4\na relative's, same architecture, 5\na cousin's, "
            "same family, 6\ndefault, default, 1\n");
  EXPECT_EQ(program.run("-march=native", /*tuned=*/false),
            "default, default, 2\ndefault, default, 2\ndefault, default, 2\ndefault, default, 2\ndefault, "
            "default, 1\n");
}

#if defined(__x86_64__)
// On another instruction set the same processor is another device; what this unit cannot run is not compiled,
// and passed over.
TEST(TunedHeader, NightlyUnitsOfANarrowerInstructionSetPassOverWiderVectors) {
  if (kernels::kBestVectorBits < 512) GTEST_SKIP() << "needs a build with AVX-512";
  const Problem gelu32{KernelId::kGeluBackward, FormatId::kF32},
      gelu16{KernelId::kGeluBackward, FormatId::kBf16};
  const std::vector<TunedChoice> choices = {choice(gelu32, {}, "wide", cpu_parameters(3, "GeluF32", 512)),
                                            choice(gelu16, {}, "narrow", cpu_parameters(4, "GeluBf16", 256))};
  const Program program(tuned_header(choices, Backend::kCpu, "for a test", Accuracy::kAsDefault));
  EXPECT_EQ(program.run("-mavx2 -mfma -mf16c"),
            "default, default, 2\ndefault, default, 2\nnarrow, default, 4\ndefault, default, 2\ndefault, "
            "default, 1\n");
  EXPECT_EQ(
      program.run("-march=native"),
      "wide, default, 3\nwide, default, 3\nnarrow, default, 4\ndefault, default, 2\ndefault, default, 1\n");
}
#endif

// Both kernels of codes, through their entry points and through the catalogue, in the schedule of the header;
// what the parameters do not have keeps the schedule's own default.
TEST(TunedHeader, KernelsOfCodesRunByItsTables) {
  const Problem forward{KernelId::kGeluForwardCode, FormatId::kBf16},
      backward{KernelId::kGeluBackwardCode, FormatId::kBf16};
  const std::vector<TunedChoice> choices = {
      choice(forward.sized(1, 4096), kHere, "short", code_parameters(3)),
      choice(forward, {}, "long", code_parameters(1)), choice(backward, {}, "back", code_parameters(4))};
  const std::string header = tuned_header(choices, Backend::kCpu, "for a test", Accuracy::kAsDefault);
  EXPECT_NE(
      header.find(
          "Choices = kernels::Choices<GeluForwardCodeBf16Choice0, GeluForwardCodeBf16Choice1, DefaultCode>;"),
      std::string::npos)
      << header;
  const Program program(header, R"(
#include <algorithm>
#include <cstdio>
#include "kernels/host/functions.h"
using namespace outgrad::kernels;
template <KernelId K>
void say(i64 n) {
  using Table = typename HostKernel<K>::template Table<BF16>;
  const tuned::Tuning tuning = tuned::tuning_of<Table>(1, n);
  const int threads = tuned::run<Table>(1, n, []<class Choice>(Choice) { return Choice::kSchedule.threads; });
  std::printf("%s, %s, %d\n", tuning.entry->variant, name_of(tuning.found.rung), threads);
}
int main() {
  BF16 x[5]{{0x3f80}, {0xbf80}, {0x4000}, {0}, {0xc000}}, y[5], dx[5];
  u8 codes[3] = {}, again[3] = {};
  tuned::gelu_forward_code<BF16>({4, nullptr}, x, y, codes, 5);
  Arguments a{{x, y, again}, 1, 5};
  enter<KernelId::kGeluForwardCode, BF16>(a);
  tuned::gelu_backward_code<BF16>({4, nullptr}, x, codes, dx, 5);
  std::printf("%x %x %x %d\n", codes[0], codes[1], codes[2], std::equal(codes, codes + 3, again));
  say<KernelId::kGeluForwardCode>(4096);
  say<KernelId::kGeluForwardCode>(1 << 20);
  say<KernelId::kGeluBackwardCode>(4096);
}
)");
  // f' is 1.083, -0.083, 1.085, 0.5 and -0.085, in 16 cells over [-0.129, 1.129].
  EXPECT_EQ(program.run("-march=native"),
            "f 8f 0 1\nshort, exact device, 3\nshort, exact device, 3\nback, default, 4\n");
}

// The gate stands in the library: a header of whatever tuner, or of somebody's hand, that takes a coarser fit
// along does not compile.
TEST(TunedHeader, OfALessAccurateFitCompilesOnlyWhereAnyAccuracyWasAskedForNightly) {
  const std::vector<TunedChoice> choices = {
      choice({KernelId::kGeluBackward, FormatId::kBf16}, {}, "coarse", cpu_parameters(4, "GeluBf16Fast")),
      choice({KernelId::kGeluForward, FormatId::kBf16}, {}, "forward", cpu_parameters(4, "GeluForwardBf16"))};
  const auto text = [&](Accuracy accuracy) {
    return tuned_header(choices, Backend::kCpu, "for a test", accuracy);
  };
  const auto asks = [](const std::string& header) {
    std::size_t times = 0;
    for (std::size_t at = header.find("kAnyAccuracy"); at != std::string::npos;
         at = header.find("kAnyAccuracy", at + 1))
      ++times;
    return times;
  };
  EXPECT_EQ(asks(text(Accuracy::kAsDefault)), 0u);
  EXPECT_EQ(asks(text(Accuracy::kAny)), 1u) << "a forward has nothing to choose";
  const std::string refusal = Program(text(Accuracy::kAsDefault)).compile("-march=native");
  EXPECT_NE(refusal.find("is larger than the default's: tune again, or with --accuracy any"),
            std::string::npos)
      << refusal;
  EXPECT_EQ(Program(text(Accuracy::kAny)).run("-march=native"),
            "default, default, 2\ndefault, default, 2\ncoarse, default, 4\ndefault, default, 2\ndefault, "
            "default, 1\n");
}

// What holds a row of 1024 columns in registers holds no longer one, and the default is better than what then
// happens. Where the default won, the entry is the default itself, which a call's own size completes.
TEST(TunedHeader, OfAGpuIsTheDefaultAtOtherLengthsOfANormAndForSmallArrays) {
  const Problem norm{KernelId::kLayernormForward, FormatId::kBf16},
      gelu{KernelId::kGeluForward, FormatId::kBf16}, kept{KernelId::kRmsnormForward, FormatId::kBf16},
      bias{KernelId::kBiasGeluForward, FormatId::kBf16};
  const DeviceKey gpu{"cuda: A GPU, sm_90, 2 SMs, 1 GiB", "cuda: sm_90", "cuda: sm_9x"};
  const json rows = {{"row_warps", 1}, {"octets", 4}, {"home", "registers"}},
             elements = {{"octets", 6}, {"fit", "GeluForwardBf16"}};
  TunedChoice standard = choice(kept.sized(4096, 1024), gpu, "the default's", rows);
  standard.standard = true;
  const std::vector<TunedChoice> choices = {choice(norm.sized(4096, 1024), gpu, "of 1024", rows),
                                            choice(norm.sized(4096, 512), gpu, "of 512", rows),
                                            choice(gelu.sized(1, 1 << 27), gpu, "large", elements),
                                            choice(bias.sized(4096, 1024), gpu, "with a bias", elements),
                                            standard};
  const std::string header = tuned_header(choices, Backend::kCuda, "for a test", Accuracy::kAsDefault);
  const Program program(header, R"(
#include <cstdio>
#include "kernels/cuda/choice.h"
using namespace outgrad::kernels;
template <class Table>
void say(i64 rows, i64 n, const char* device) {
  const Found found = cuda::tuned::find<Table>({device, "cuda: sm_90", "cuda: sm_9x"}, rows, n);
  const TunedEntry& entry = Table::kEntries[found.entry];
  std::printf("%s, %d of %d\n", entry.variant, entry.choice, Table::Choices::kCount);
}
int main() {
  for (const char* device : {"cuda: A GPU, sm_90, 2 SMs, 1 GiB", "cuda: Another, sm_90, 2 SMs, 1 GiB"}) {
    for (const i64 n : {256, 512, 768, 1024, 1025, 4096})
      say<cuda::tuned::LayernormForward<BF16>>(64, n, device);
    for (const int log : {14, 20, 23, 28}) say<cuda::tuned::GeluForward<BF16>>(1, i64{1} << log, device);
  }
  say<cuda::tuned::BiasGeluForward<BF16>>(64, 4096, "another");
  say<cuda::tuned::RmsnormForward<BF16>>(64, 4096, "another");
  static_assert(cuda::tuned::RmsnormForward<BF16>::kSchedule.row_warps == 0);
}
)");
  const std::string each =
      "default, 1 of 2\nof 512, 0 of 2\nof 1024, 0 of 2\nof 1024, 0 of 2\ndefault, 1 of 2\ndefault, 1 of 2\n"
      "default, 1 of 2\ndefault, 1 of 2\nlarge, 0 of 2\nlarge, 0 of 2\n";
  EXPECT_EQ(program.run("-march=native"), each + each + "with a bias, 0 of 2\ndefault, 0 of 1\n") << header;
}

TEST(TunedHeader, TextIsAFunctionOfTheChoicesWhateverTheirOrder) {
  std::vector<TunedChoice> choices;
  DeviceKey other = kHere;
  other.device += " (2)";
  for (const KernelId kernel : kAllKernels)
    for (const i64 rows : {1, 64})
      for (const DeviceKey& device : {kHere, other, DeviceKey{}}) {
        const Problem problem{kernel, FormatId::kBf16};
        const char* fit = !problem.has_fit() ? nullptr : is_backward(kernel) ? "GeluBf16" : "GeluForwardBf16";
        json parameters = cpu_parameters(1, fit);
        if (kernels::has_codes(kernel)) parameters = code_parameters(1);
        if (is_norm(kernel) && is_backward(kernel)) parameters = {{"tasks", 16}, {"fold_columns", 512}};
        choices.push_back(
            choice(problem.over_rows() ? problem.sized(rows, 1024) : problem.sized(1, 1024 * rows), device,
                   "v", parameters));
      }
  const std::string text = tuned_header(choices, Backend::kCpu, "for a test", Accuracy::kAsDefault);
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(choices.begin(), choices.end(), random);
    ASSERT_EQ(tuned_header(choices, Backend::kCpu, "for a test", Accuracy::kAsDefault), text);
  }
  // A device may call itself what it likes.
  EXPECT_EQ(tuned_header({}, Backend::kCuda, "for A\nB", Accuracy::kAsDefault),
            tuned_header({}, Backend::kCuda, "for A B", Accuracy::kAsDefault));
  // One schedule, however many entries have it.
  EXPECT_NE(text.find("struct LayernormBackwardBf16Choice0 {"), std::string::npos) << text;
  EXPECT_EQ(text.find("Choice1"), std::string::npos) << text;
}

TEST(TunedHeader, RefusesWhatNoScheduleCanBe) {
  const Problem problem = Problem{KernelId::kGeluBackward, FormatId::kF32}.sized(1, 1024),
                norm = Problem{KernelId::kRmsnormForward, FormatId::kF32}.sized(4, 8);
  const auto refusal = [](const Problem& of, json parameters, const json& change,
                          Backend backend = Backend::kCpu) {
    if (parameters.is_object()) parameters.update(change);
    return refusal_of(
        [&] { tuned_header({choice(of, kHere, "v", parameters)}, backend, "", Accuracy::kAsDefault); });
  };
  const json good = cpu_parameters(1, "GeluF32");
  EXPECT_EQ(refusal(problem, good, json::object()), "");
  EXPECT_EQ(refusal(problem, good, {{"table", "moon"}}),
            "tuned variant v: parameters: table: unknown value \"moon\"");
  EXPECT_NE(refusal(problem, good, {{"table", 1}}).find("table: unknown value 1"), std::string::npos);
  EXPECT_NE(refusal(problem, good, {{"threads", 1.5}}).find("threads: unknown value 1.5"), std::string::npos);
  EXPECT_NE(refusal(problem, good, {{"warps", 4}}).find("has no member"), std::string::npos);
  EXPECT_NE(refusal(problem, good, {{"fit", "GeluF99"}}).find("unknown fit 'GeluF99'"), std::string::npos);
  EXPECT_NE(refusal(problem, {{"threads", 1}}, json::object()).find("no fit"), std::string::npos);
  EXPECT_NE(refusal(problem, json(3), json::object()).find("no parameters"), std::string::npos);
  EXPECT_EQ(refusal(norm, {{"row_warps", 2}, {"home", "shared"}, {"sums", "fused"}, {"loads", "streaming"}},
                    json::object(), Backend::kCuda),
            "");
  EXPECT_NE(refusal(norm, {{"row_warps", 2}}, json::object()).find("a CpuNormForwardSchedule has no member"),
            std::string::npos);
}

TEST(Winners, AreWhatTheEvidenceChoosesForEachDeviceAndSizeOfTheseSources) {
  const DeviceRecord device = device_record(identify_cpu());
  DeviceRecord elsewhere = device;
  elsewhere.model = "another";
  std::vector<Record> records;
  const auto measured = [&](const std::string& variant, double speedup, const DeviceRecord& on,
                            long long elements, const std::string& kernels) {
    Measured m{variant, speedup, speedup - 0.05, speedup + 0.05};
    m.device = on, m.elements = elements, m.kernels = kernels;
    if (variant == "default") m.low = m.high = 1;
    Record record = m.record();
    record.parameters = cpu_parameters(1, "GeluBf16");
    return record;
  };
  for (const DeviceRecord& on : {device, elsewhere})
    for (const long long elements : {4096, 8192})
      for (const std::string kernels : {"k1", "older"}) {
        records.push_back(measured("default", 1, on, elements, kernels));
        records.push_back(measured("fast", elements == 4096 ? 1.5 : 0.5, on, elements, kernels));
      }
  Record with_header = measured("brought", 3, device, 4096, "k1"),
         damaged = measured("damaged", 4, elsewhere, 8192, "k1");
  with_header.fit.sha256 = "0123";
  damaged.parameters["table"] = "moon";
  const kernels::ScratchFolder folder;
  const auto name_at = [&](const std::vector<TunedChoice>& found, const std::string& key,
                           i64 elements) -> std::string {
    for (const TunedChoice& choice : found)
      if (choice.device.device == key && choice.problem.cols == elements) return choice.variant;
    return "none";
  };
  std::vector<TunedChoice> found = winners_in(records, {"k1", "c1"}, folder.path(), Accuracy::kAsDefault);
  const std::string there = device_key(elsewhere)->device;
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(name_at(found, kHere.device, 4096), "fast");
  EXPECT_EQ(name_at(found, kHere.device, 8192), "default");
  EXPECT_EQ(name_at(found, there, 4096), "fast");
  for (const TunedChoice& choice : found) {
    EXPECT_EQ(choice.evidence, kernels::Evidence::measured);
    EXPECT_FALSE(choice.standard) << "on a CPU a variant names all that its default leaves open";
  }
  EXPECT_TRUE(winners_in(records, {"k2", "c1"}, folder.path(), Accuracy::kAsDefault).empty());

  records.push_back(with_header);
  records.push_back(damaged);
  Captured captured_err(Captured::kStderr);
  found = winners_in(records, {"k1", "c1"}, folder.path(), Accuracy::kAsDefault);
  EXPECT_NE(captured_err.release().find("table: unknown value \"moon\": the default stays"),
            std::string::npos);
  EXPECT_EQ(name_at(found, kHere.device, 4096), "none") << "its fit's header is not there";
  EXPECT_EQ(name_at(found, there, 8192), "none");
  EXPECT_EQ(found.size(), 2u);
}

// The default as a choice is one that leaves its schedule open. Without a record of it, what there is stays
// what it is called.
TEST(Winners, OfAGpuAreTheDefaultOnlyWhereItWasMeasuredAndWon) {
  const auto found = [](const std::vector<std::pair<std::string, double>>& speedups) {
    std::vector<Record> records;
    for (const auto& [variant, speedup] : speedups) {
      Measured m{variant, speedup, speedup - 0.05, speedup + 0.05};
      m.device = gpu_device();
      if (variant == "default") m.low = m.high = 1;
      records.push_back(m.record());
      records.back().parameters = {{"octets", 4}, {"fit", "GeluBf16"}};
    }
    const std::vector<TunedChoice> winners = winners_in(records, {"k1", "c1"}, "", Accuracy::kAsDefault);
    return winners.size() == 1 ? winners.front().variant + (winners.front().standard ? ", open" : "")
                               : "none";
  };
  EXPECT_EQ(found({{"default", 1}, {"slow", 0.5}}), "default, open");
  EXPECT_EQ(found({{"default", 1}, {"fast", 1.5}}), "fast");
  EXPECT_EQ(found({{"alone", 1.5}}), "none") << "whatever it is better than, or a barred one";
}

// Of each problem the present sources' records, else those of the sources with the most rounds, and the entry
// says so.
TEST(Winners, OfEarlierSourcesSaySo) {
  std::vector<Record> records;
  const auto run = [&](const char* sources, kernels::i64 elements, const char* winner) {
    for (const char* variant : {"default", winner}) {
      const double speedup = variant == winner ? 1.5 : 1;
      Measured m{variant, speedup, speedup, speedup};
      m.elements = elements, m.kernels = sources;
      records.push_back(m.record());
      records.back().parameters = {{"unroll", 4}, {"fit", "GeluBf16"}};
    }
  };
  run("k0", 1024, "old"), run("k0", 4096, "older"), run("k1", 1024, "new");
  const auto found = [&](bool earlier_too) {
    std::string all;
    for (const TunedChoice& choice : winners_in(records, {"k1", "c1"}, "", Accuracy::kAsDefault, earlier_too))
      all += choice.variant + " " + name_of(choice.evidence) + ";";
    return all;
  };
  EXPECT_EQ(found(false), "new measured;");
  EXPECT_EQ(found(true), "older measured_earlier;new measured;");
}

TEST(Winners, OfThePublishedRecordsOfGpusAreTheDefaultsThere) {
  std::vector<std::string> args = {"--defaults"};
  for (const std::string& path : databases_in(source_root() + "/notebooks_data/tuned"))
    if (path.find("/cuda_") != std::string::npos) args.push_back(path);
  const kernels::ScratchFolder folder;
  args.insert(args.end(), {"--out", folder / "tuned.h"});
  Captured captured_out(Captured::kStdout);
  const int status = tune_command(args);
  captured_out.release();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(kernels::read_file(folder / "tuned.h"),
            kernels::read_file(source_root() + "/kernels/generated/tuned_default_cuda.h"))
      << "./outgrad tune --defaults notebooks_data/tuned/cuda_*.jsonl --out that header";
}

TEST(Identity, OfARecordIsTheOneThatTheKernelsFind) {
  const kernels::DeviceKey found = kernels::this_cpu();
  EXPECT_EQ(kHere.device, found.device);
  EXPECT_EQ(kHere.architecture, found.architecture);
  EXPECT_EQ(kHere.family, found.family);
}

}  // namespace
}  // namespace outgrad::autotune
