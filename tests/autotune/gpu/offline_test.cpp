#include "autotune/gpu/offline.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "autotune/timing.h"
#include "kernels/host/errors.h"
#include "tests/autotune/temporary_folder.h"

namespace outgrad::autotune::gpu {
namespace {

constexpr Problem kBackward{KernelId::kGeluBackward, FormatId::kBf16};

GpuVariant plain(const Problem& problem = kBackward) { return {problem, fits_of(problem).front(), kernels::GpuSchedule{.octets = 1}}; }

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
    settings_.progress = [this](std::size_t, std::size_t) { ++compiled_; };
  }
  TemporaryFolder folder_;
  OfflineSettings settings_;
  int compiled_ = 0;
};

const Pruned* pruned(const Outcome& outcome) { return std::get_if<Pruned>(&outcome.result); }

// Every point of a space is a program that the compiler takes: a random sample, every problem, every architecture that is compiled for.
TEST_F(OfflineTest, PointsOfTheSpaceCompile) {
  constexpr int kPerProblem = 3;
  std::uint64_t seed = 7;
  for (const char* name : {"sm_80", "sm_90", "sm_100"}) {
    const Architecture& architecture = architecture_of(name);
    std::vector<GpuVariant> variants;
    for (const KernelId kernel : kGeluKernels)
      for (const FormatId format : kAllFormats) {
        const Problem problem{kernel, format};
        const Space space = gpu_space(problem, fits_of(problem), architecture.threads_per_sm);
        const Points points = space.construct();
        for (int i = 0; i < kPerProblem; ++i)
          variants.push_back(gpu_variant_at(problem, fits_of(problem), space, points[next_random(seed) % points.size()]));
      }
    for (const Outcome& outcome : evaluate(variants, architecture, settings_)) {
      if (const Pruned* why = pruned(outcome)) {
        EXPECT_TRUE(why->reason == Reason::kSpills || why->reason == Reason::kNoBlockFits) << outcome.variant.name() << ": " << autotune::name_of(why->reason) << ": " << why->detail;
      }
    }
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
TEST_F(OfflineTest, StopsACompilerThatHangs) {
  FitChoice endless = *plain().fit;
  // Constant evaluation within NVRTC's own limits on steps, repeated by instantiation: minutes of work.
  endless.header =
      "template <int N> struct Spin { static constexpr int value() { int s = 0; for (int i = 0; i < 900000; ++i) s ^= i * N; return s; } "
      "static constexpr int v = value() + Spin<N - 1>::v; };\ntemplate <> struct Spin<0> { static constexpr int v = 0; };\n"
      "__device__ int spun = Spin<180>::v;\n";
  settings_.limit_seconds = 3;
  std::vector<GpuVariant> variants = {plain(), plain()};
  variants[0].fit = std::make_shared<const FitChoice>(endless);
  settings_.jobs = 1;
  const auto outcomes = evaluate(variants, architecture_of("sm_90"), settings_);
  ASSERT_EQ(outcomes.size(), 2u);
  ASSERT_NE(pruned(outcomes[0]), nullptr);
  EXPECT_EQ(pruned(outcomes[0])->reason, Reason::kCompilerTimeout) << pruned(outcomes[0])->detail;
  EXPECT_EQ(pruned(outcomes[1]), nullptr);
}

TEST_F(OfflineTest, CacheThatCannotBeWrittenIsAnError) {
  std::ofstream(folder_.path() + "/file") << "x";
  settings_.cache_folder = folder_.path() + "/file/cache";
  EXPECT_THROW(evaluate({plain()}, architecture_of("sm_90"), settings_), kernels::IoError);
}

TEST(GpuSpace, NamesAreUniqueAndConstraintsHold) {
  const Fits& fits = fits_of(kBackward);
  const Space space = gpu_space(kBackward, fits, 1536);
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
