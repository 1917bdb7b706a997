#include "autotune/gpu/offline.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"

namespace outgrad::autotune::gpu {
namespace {

constexpr Problem kBackward{KernelId::kGeluBackward, FormatId::kBf16};

GpuVariant plain(const Problem& problem = kBackward) {
  return {problem, fits_of(problem).front(), kernels::GpuSchedule{.octets = 1}};
}

class OfflineTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      Nvrtc::instance();
    } catch (const kernels::EnvironmentError& error) {
      GTEST_SKIP() << error.what();
    }
    settings_.cache_folder = folder_.path() + "/cache";
    settings_.jobs = 2;
    // on a busy machine a compiler is no sooner taken for stuck
    settings_.patience = std::make_shared<Patience>(1, 3600, 3600);
    settings_.progress = [this](std::size_t, std::size_t) { ++compiled_; };
  }
  kernels::ScratchFolder folder_;
  OfflineSettings settings_;
  int compiled_ = 0;
};

const Pruned* pruned(const Outcome& outcome) { return std::get_if<Pruned>(&outcome.result); }

// The problem in a size that tuning takes.
Problem sized(const Problem& problem) {
  constexpr kernels::i64 kElements = kernels::i64{1} << 26;
  return sized_within(problem, kElements);
}

// Every point of a space is a program that the compiler takes, and whose machine code tells its cost: a
// random sample, every kernel, every architecture that is compiled for; each kernel in one format, which
// takes its turn.
TEST_F(OfflineTest, NightlyPointsOfTheSpaceCompile) {
  constexpr int kPerProblem = 4;
  std::uint64_t seed = 7;
  std::size_t turn = 0;
  int rows_in_loops = 0;
  for (const char* name : {"sm_80", "sm_90", "sm_100"}) {
    const Architecture& architecture = architecture_of(name);
    std::vector<GpuVariant> variants;
    for (const KernelId kernel : kAllKernels) {
      if (!has_space(kernel)) continue;
      const Problem problem = sized({kernel, kAllFormats[turn++ % std::size(kAllFormats)]});
      const Space space = gpu_space(problem, fits_of(problem), architecture);
      const Points points = space.construct();
      variants.push_back(default_gpu_variant(problem, architecture));
      for (int i = 1; i < kPerProblem; ++i)
        variants.push_back(gpu_variant_at(problem, fits_of(problem), space,
                                          points[kernels::next_random(seed) % points.size()]));
    }
    ++turn;  // another format for each kernel on the next architecture
    const std::vector<Outcome> outcomes = evaluate(variants, architecture, settings_);
    ASSERT_EQ(outcomes.size(), variants.size());
    for (const Outcome& outcome : outcomes) {
      SCOPED_TRACE(std::string(name) + " " + outcome.variant.problem.name() + " " + outcome.variant.name());
      if (const Pruned* why = pruned(outcome)) {
        EXPECT_TRUE(why->reason == Reason::kSpills || why->reason == Reason::kNoBlockFits)
            << autotune::name_of(why->reason) << ": " << why->detail;
        continue;
      }
      const auto& predicted = std::get<Predicted>(outcome.result);
      EXPECT_TRUE(predicted.code.counted);
      EXPECT_GT(predicted.code.instructions_per_element, 5);
      EXPECT_LT(predicted.code.instructions_per_element, 100);
      EXPECT_GT(predicted.prediction.share_of_bandwidth, 0);
      EXPECT_LE(predicted.prediction.share_of_bandwidth, 1);
      EXPECT_EQ(predicted.helpers.empty(), outcome.variant.helper_source().empty());
      const bool loops =
          is_norm(outcome.variant.problem.kernel) && outcome.variant.norm.home != kernels::RowHome::registers;
      EXPECT_EQ(predicted.code.row_instructions > 0, loops) << "what a row costs beside its octets";
      rows_in_loops += loops ? 1 : 0;
    }
  }
  EXPECT_GT(rows_in_loops, 0) << "the sample has none";
}

// Kernels of the default schedule that a launch needs are in the two programs, each once.
TEST_F(OfflineTest, ProgramsHaveTheKernelsOfThePlan) {
  const Architecture& architecture = architecture_of("sm_90");
  std::vector<GpuVariant> variants;
  for (const KernelId kernel : kAllKernels)
    if (has_space(kernel))
      variants.push_back(default_gpu_variant(sized({kernel, FormatId::kBf16}), architecture));
  GpuVariant separate =
      default_gpu_variant(sized({KernelId::kLayernormBackward, FormatId::kBf16}), architecture);
  separate.norm.sums = kernels::ColumnSums::separate;
  separate.norm.rows_ahead = 0;
  variants.push_back(separate);
  for (const Outcome& outcome : evaluate(variants, architecture, settings_)) {
    SCOPED_TRACE(outcome.variant.problem.name());
    ASSERT_EQ(pruned(outcome), nullptr) << pruned(outcome)->detail;
    const auto& predicted = std::get<Predicted>(outcome.result);
    EXPECT_TRUE(is_symbol_of(predicted.code.symbol, outcome.variant.main_kernel())) << predicted.code.symbol;
    const kernels::cuda::LaunchPlan plan =
        outcome.variant.plan(outcome.variant.problem.rows, outcome.variant.problem.cols,
                             {.sms = 132, .shared_bytes = architecture.shared_per_block});
    for (int i = 0; i < plan.launches; ++i) {
      int found = 0;
      for (const CodeFacts& helper : predicted.helpers)
        found += is_symbol_of(helper.symbol, plan.launch[i].kernel) ? 1 : 0;
      EXPECT_EQ(found, plan.launch[i].kernel == outcome.variant.main_kernel() ? 0 : 1)
          << name_of(plan.launch[i].kernel);
    }
  }
}

// The norms' defaults on an H200, by their machine code and the model: bytes in flight that hide DRAM's
// latency, no spill; a backward of 8192 rows in two launches, its rows of sums a small part of the traffic.
TEST_F(OfflineTest, NightlyNormsKeepTheirDistanceFromTheLimit) {
  constexpr double kLeastInFlight = 32 * 1024, kMostOfSums = 0.08;
  const Architecture& architecture = architecture_of("sm_90");
  std::vector<GpuVariant> variants;
  for (const FormatId format : kAllFormats)
    for (const auto& [kernel, cols] :
         {std::pair{KernelId::kLayernormBackward, 1024}, std::pair{KernelId::kLayernormBackward, 4096},
          std::pair{KernelId::kResidualLayernormBackward, 8192}, std::pair{KernelId::kRmsnormBackward, 2048},
          std::pair{KernelId::kLayernormForward, 2048}, std::pair{KernelId::kResidualLayernormForward, 1024}})
      variants.push_back(default_gpu_variant(Problem{kernel, format}.sized(8192, cols), architecture));
  for (const Outcome& outcome : evaluate(variants, architecture, settings_)) {
    const Problem& problem = outcome.variant.problem;
    SCOPED_TRACE(problem.sized_name() + " " + outcome.variant.name());
    ASSERT_EQ(pruned(outcome), nullptr) << pruned(outcome)->detail;
    const Prediction& prediction = std::get<Predicted>(outcome.result).prediction;
    EXPECT_GE(prediction.bytes_in_flight, kLeastInFlight);
    if (is_forward(problem.kernel)) continue;
    const kernels::cuda::LaunchPlan plan = outcome.variant.plan(
        problem.rows, problem.cols, {.sms = architecture.sms, .shared_bytes = architecture.shared_per_block});
    EXPECT_EQ(plan.launches, 2);
    const Traffic traffic = traffic_of(problem);
    const double sums = sizeof(float) * kernels::cuda::column_sums(norm_kind(problem.kernel).norm) *
                        static_cast<double>(plan.launch[0].blocks);
    EXPECT_LE(sums / static_cast<double>(problem.rows), kMostOfSums * (traffic.read + traffic.written));
    if (problem.kernel != KernelId::kLayernormBackward) continue;
    // Measured there, of the board's 4.8 TB/s (timing.json): 0.62 and 0.67 in f32, 0.47 and 0.58 in 16 bits.
    const bool is_f32 = problem.format == FormatId::kF32;
    const double least = problem.cols == 1024 ? (is_f32 ? 0.58 : 0.45) : (is_f32 ? 0.63 : 0.54);
    EXPECT_GE(prediction.share_of_bandwidth, least);
  }
}

// What a launcher does with its own default is what the tuner's default does with everything written out.
TEST(GpuSpace, DefaultsArePlannedAsTheLaunchersDo) {
  for (const char* name : {"sm_80", "sm_89", "sm_90"}) {
    const Architecture& architecture = architecture_of(name);
    const kernels::cuda::PlanLimits limits{.sms = architecture.sms,
                                           .shared_bytes = architecture.shared_per_block};
    for (const KernelId kernel : kAllKernels) {
      if (!is_norm(kernel)) continue;
      for (const FormatId format : kAllFormats) {
        for (const kernels::i64 cols : {8, 264, 1024, 1001, 4096, 8192, 16384, 16392, 40000, 100000}) {
          const Problem problem = Problem{kernel, format}.sized(512, cols);
          const GpuVariant variant = default_gpu_variant(problem, architecture);
          GpuVariant open = variant;
          open.norm = {};
          const kernels::cuda::LaunchPlan own = variant.plan(512, cols, limits),
                                          launchers = open.plan(512, cols, limits);
          SCOPED_TRACE(problem.sized_name() + " " + variant.name());
          ASSERT_EQ(own.launches, launchers.launches);
          for (int i = 0; i < own.launches; ++i) {
            EXPECT_EQ(own.launch[i].kernel, launchers.launch[i].kernel);
            EXPECT_EQ(own.launch[i].blocks, launchers.launch[i].blocks);
            EXPECT_EQ(own.launch[i].threads, launchers.launch[i].threads);
            EXPECT_EQ(own.launch[i].shared_bytes, launchers.launch[i].shared_bytes);
          }
        }
      }
    }
  }
}

TEST(GpuSpace, VariantsComeBackFromTheirParameters) {
  const Architecture& architecture = architecture_of("sm_90");
  for (const KernelId kernel : kAllKernels) {
    if (!has_space(kernel)) continue;
    const Problem problem = sized({kernel, FormatId::kBf16});
    const Fits& fits = fits_of(problem);
    const Space space = gpu_space(problem, fits, architecture);
    const Points points = space.construct();
    for (std::size_t i = 0; i < points.size(); i += points.size() / 50 + 1) {
      const GpuVariant variant = gpu_variant_at(problem, fits, space, points[i]);
      EXPECT_EQ(gpu_variant_from(problem, fits, variant.parameters()).name(), variant.name());
    }
  }
  const Problem norm = sized({KernelId::kLayernormBackward, FormatId::kBf16});
  nlohmann::json parameters = default_gpu_variant(norm, architecture).parameters();
  parameters["home"] = "attic";
  EXPECT_THROW(gpu_variant_from(norm, {}, parameters), kernels::SpecError);
}

// The space of a norm follows the columns: every point launches what it says, and the launchers' default is
// one of the points.
TEST(GpuSpace, NormsHaveSchedulesThatTheirRowsTake) {
  const Architecture& architecture = architecture_of("sm_90");
  const kernels::cuda::PlanLimits limits{.sms = architecture.sms,
                                         .shared_bytes = architecture.shared_per_block};
  for (const KernelId kernel : {KernelId::kLayernormBackward, KernelId::kResidualRmsnormForward}) {
    for (const kernels::i64 cols : {256, 1001, 1024, 16384, 50000}) {
      const Problem problem = Problem{kernel, FormatId::kBf16}.sized(4096, cols);
      const Space space = gpu_space(problem, {}, architecture);
      const Points points = space.construct();
      SCOPED_TRACE(problem.sized_name() + ": " + size_report(points));
      ASSERT_GT(points.size(), 50u);
      const std::string wanted = default_gpu_variant(problem, architecture).name();
      bool found = false;
      for (std::size_t i = 0; i < points.size(); ++i) {
        const GpuVariant variant = gpu_variant_at(problem, {}, space, points[i]);
        found = found || variant.name() == wanted;
        const kernels::cuda::LaunchPlan plan = variant.plan(problem.rows, problem.cols, limits);
        ASSERT_EQ(plan.norm.home, variant.norm.home) << variant.name();
        ASSERT_EQ(plan.norm.row_warps, variant.norm.row_warps) << variant.name();
        ASSERT_EQ(plan.norm.block_rows, variant.norm.block_rows) << variant.name();
        ASSERT_EQ(plan.norm.octets, variant.norm.octets) << variant.name();
      }
      EXPECT_TRUE(found) << wanted;
    }
  }
}

// Warps with several rows have registers for them on every architecture: 20 bytes of a thread of LayerNorm's
// backward in f32 were spilled on an sm_100.
TEST_F(OfflineTest, NightlyShortRowsSpillNothing) {
  for (const char* name : {"sm_80", "sm_90", "sm_100"}) {
    const Architecture& architecture = architecture_of(name);
    std::vector<GpuVariant> variants;
    for (const KernelId kernel : kAllKernels) {
      if (!is_norm(kernel)) continue;
      for (const FormatId format : kAllFormats)
        for (const kernels::i64 cols : {64, 128, 256, 512})
          variants.push_back(default_gpu_variant(Problem{kernel, format}.sized(4096, cols), architecture));
    }
    for (const Outcome& outcome : evaluate(variants, architecture, settings_)) {
      const Pruned* const why = pruned(outcome);
      EXPECT_EQ(why, nullptr) << name << ' ' << outcome.variant.problem.name() << ' '
                              << outcome.variant.name() << ": " << why->detail;
    }
  }
}

// What the project asks of the elementwise defaults on an H100 or H200: requests that hide the memory's
// latency (800 ns of 4.8 TB/s are 29 KB an SM, of which a kernel's share is what it reads), and instructions
// that leave issue slots over under N(0, 1).
TEST_F(OfflineTest, DefaultsAreAtTheLimitOnPaper) {
  constexpr double kInFlight = 48 * 1024;
  const auto most_instructions = [](const Problem& problem) {
    const bool f32 = problem.format == FormatId::kF32;
    if (problem.kernel == KernelId::kGeluBackward)
      return f32 ? 35.0 : problem.format == FormatId::kF16 ? 28.0 : 26.0;
    if (problem.kernel == KernelId::kGeluForward && !f32) return 22.0;
    return 40.0;
  };
  const Architecture& architecture = architecture_of("sm_90");
  std::vector<GpuVariant> variants;
  for (const KernelId kernel : {KernelId::kGeluForward, KernelId::kGeluBackward, KernelId::kBiasGeluForward,
                                KernelId::kBiasGeluBackward})
    for (const FormatId format : kAllFormats)
      variants.push_back(default_gpu_variant(sized({kernel, format}), architecture));
  for (const Outcome& outcome : evaluate(variants, architecture, settings_)) {
    SCOPED_TRACE(outcome.variant.problem.name() + " " + outcome.variant.name());
    ASSERT_EQ(pruned(outcome), nullptr) << pruned(outcome)->detail;
    const auto& predicted = std::get<Predicted>(outcome.result);
    EXPECT_GE(predicted.prediction.bytes_in_flight, kInFlight);
    EXPECT_LE(predicted.code.instructions_per_element, most_instructions(outcome.variant.problem));
  }
}

TEST_F(OfflineTest, CompilesOnceWhatDiffersInItsLaunchAlone) {
  std::vector<GpuVariant> variants(3, plain());
  variants[1].schedule.blocks_per_sm = 0;
  variants[2].schedule.blocks_per_sm = 16;
  const auto outcomes = evaluate(variants, architecture_of("sm_90"), settings_);
  EXPECT_EQ(compiled_, 1);
  ASSERT_EQ(outcomes.size(), 3u);
  std::set<std::string> names;
  for (const Outcome& outcome : outcomes) names.insert(outcome.variant.name());
  EXPECT_EQ(names.size(), 3u);
  const auto& first = std::get<Predicted>(outcomes[0].result);
  EXPECT_GT(first.code.instructions_per_element, 20);
  EXPECT_LT(first.code.instructions_per_element, 60);
  EXPECT_GT(first.code.prologue_instructions, 10);
  EXPECT_GT(first.code.resources.registers, 16);
}

TEST_F(OfflineTest, RemembersAndRepairsItsCache) {
  const Architecture& architecture = architecture_of("sm_90");
  evaluate({plain()}, architecture, settings_);
  evaluate({plain()}, architecture, settings_);
  EXPECT_EQ(compiled_, 1);
  for (const auto& entry : std::filesystem::directory_iterator(settings_.cache_folder))
    if (entry.path().extension() == ".json") std::filesystem::resize_file(entry.path(), 10);
  const auto outcomes = evaluate({plain()}, architecture, settings_);
  EXPECT_EQ(compiled_, 2);
  EXPECT_EQ(pruned(outcomes.front()), nullptr);
  evaluate({plain()}, architecture_of("sm_80"), settings_);
  EXPECT_EQ(compiled_, 3) << "another architecture is other code";
}

// What does not compile, spills or fits nowhere is a row with its reason, and the rest goes on.
TEST_F(OfflineTest, PrunesWithReasons) {
  std::vector<GpuVariant> variants = {plain(), plain(), plain(), plain()};
  FitChoice broken = *variants[0].fit;
  broken.header = "#error planted";
  variants[1].fit = std::make_shared<const FitChoice>(broken);
  variants[2].schedule.octets = 8;
  variants[2].schedule.resident_blocks = 8;
  variants[3].schedule.access_bytes = 8;
  const auto outcomes = evaluate(variants, architecture_of("sm_90"), settings_);
  ASSERT_EQ(outcomes.size(), 4u);
  EXPECT_EQ(pruned(outcomes[0]), nullptr);
  ASSERT_NE(pruned(outcomes[1]), nullptr);
  EXPECT_EQ(pruned(outcomes[1])->reason, Reason::kCompilerError);
  EXPECT_NE(pruned(outcomes[1])->detail.find("planted"), std::string::npos);
  ASSERT_NE(pruned(outcomes[2]), nullptr);
  EXPECT_EQ(pruned(outcomes[2])->reason, Reason::kSpills);
  EXPECT_EQ(pruned(outcomes[3]), nullptr);
}

// A compiler that never ends is stopped, and blamed on the program it had.
TEST_F(OfflineTest, NightlyStopsACompilerThatHangs) {
  FitChoice endless = *plain().fit;
  // Constant evaluation within NVRTC's own limits on steps, repeated by instantiation: minutes of work.
  endless.header =
      "template <int N> struct Spin { static constexpr int value() { int s = 0; for (int i = 0; i < 900000; "
      "++i) s ^= i * N; return s; } "
      "static constexpr int v = value() + Spin<N - 1>::v; };\ntemplate <> struct Spin<0> { static constexpr "
      "int v = 0; };\n"
      "__device__ int spun = Spin<180>::v;\n";
  // As the first, the baseline, it has the whole limit; later ones have ten times what the baseline took, if
  // that is less.
  for (const std::size_t stuck : {0, 1}) {
    SCOPED_TRACE(stuck);
    // on a busy machine the other takes seconds
    settings_.patience = std::make_shared<Patience>(10, 0.1, stuck == 0 ? 20 : 120);
    settings_.cache_folder = folder_ / "cache" + std::to_string(stuck);
    std::vector<GpuVariant> variants = {plain(), plain()};
    variants[stuck].fit = std::make_shared<const FitChoice>(endless);
    settings_.jobs = 1;
    const auto outcomes = evaluate(variants, architecture_of("sm_90"), settings_);
    ASSERT_EQ(outcomes.size(), 2u);
    ASSERT_NE(pruned(outcomes[stuck]), nullptr);
    EXPECT_EQ(pruned(outcomes[stuck])->reason, Reason::kCompilerTimeout) << pruned(outcomes[stuck])->detail;
    EXPECT_EQ(pruned(outcomes[stuck])->detail.find("times the baseline's") != std::string::npos, stuck == 1)
        << pruned(outcomes[stuck])->detail;
    EXPECT_EQ(pruned(outcomes[1 - stuck]), nullptr);
  }
}

TEST_F(OfflineTest, CacheThatCannotBeWrittenIsAnError) {
  std::ofstream(folder_.path() + "/file") << "x";
  settings_.cache_folder = folder_.path() + "/file/cache";
  EXPECT_THROW(evaluate({plain()}, architecture_of("sm_90"), settings_), kernels::IoError);
}

TEST(GpuSpace, NamesAreUniqueAndConstraintsHold) {
  const Fits& fits = fits_of(kBackward);
  const Space space = gpu_space(kBackward, fits, architecture_of("sm_89"));
  std::set<std::string> names;
  const Points points = space.construct();
  ASSERT_GT(points.size(), 10'000u);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const GpuVariant variant = gpu_variant_at(kBackward, fits, space, points[i]);
    EXPECT_LE(variant.schedule.threads * variant.schedule.resident_blocks, 1536);
    names.insert(variant.name());
  }
  EXPECT_EQ(names.size(), points.size());
}

}  // namespace
}  // namespace outgrad::autotune::gpu
