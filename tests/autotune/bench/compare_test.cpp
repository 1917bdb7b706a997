// `bench --tuned`: the header's build is timed beside the default's, says what it runs, and a gain that is
// there is seen.
#include "autotune/bench/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>

#include "autotune/evidence/tuned_header.h"
#include "autotune/measure/device.h"
#include "autotune/measure/isolate.h"
#include "autotune/measure/workload.h"
#include "kernels/fits.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

constexpr Problem kGelu{KernelId::kGeluBackward, FormatId::kBf16, 1, kernels::i64{1} << 20};

TunedChoice choice(const Problem& problem, const std::string& name, int vector_bits) {
  const nlohmann::json parameters = {{"fit", "GeluBf16"},          {"threads", 1},
                                     {"vector_bits", vector_bits}, {"unroll", 1},
                                     {"block_elements", 1 << 16},  {"streaming_stores", false},
                                     {"table", "memory"}};
  return {problem, device_key(device_record(identify_cpu())).value(),
          name,    parameters,
          "",      kernels::Evidence::measured,
          {}};
}

class Compare : public testing::Test {
 protected:
  void SetUp() override { settings_.cache_folder = folder_ / "variants"; }
  std::string header(const std::vector<TunedChoice>& choices) const {
    const std::string path = folder_ / "tuned.h";
    kernels::write_file(path, tuned_header(choices, Backend::kCpu, "for a test", Accuracy::kAsDefault));
    return path;
  }
  EntryPoints entries(const std::string& path) const {
    return EntryPoints(path, {kGelu}, find_toolchain(), settings_);
  }

  // What enters OpenMP does so in a child: other tests of this process fork (isolate.h).
  template <class Body, class OnReport>
  static void in_child(const Body& body, const OnReport& on_report) {
    const ChildEnd end = run_isolated(body, on_report, {/*silence_seconds=*/120, IsolationLimits::kNoLimit});
    ASSERT_EQ(end.kind, ChildEnd::Kind::kFinished) << end.detail;
  }

  kernels::ScratchFolder folder_;
  CompileSettings settings_;
};

// A header of scalar code: what its build runs is named, and timed in the rounds of the default. That a loss
// is one, the arithmetic below shows.
TEST_F(Compare, NightlyTheHeadersBuildIsTimedBesideTheDefaults) {
  const EntryPoints before = entries(""), after = entries(header({choice(kGelu, "scalar", 0)}));
  Comparison c;
  in_child(
      [&](const Channel& channel) {
        // on a busy machine threads wait for one another longer than either kernel takes
        omp_set_num_threads(1);
        const Comparison own = compare(kGelu, before, after, 20, 1);
        channel.report({{"variant", own.choice.variant},
                        {"rung", own.choice.rung},
                        {"ceiling", own.ceiling},
                        {"ceiling_ns", own.ceiling_ns},
                        {"before", own.before_ns},
                        {"after", own.after_ns}});
      },
      [&](const nlohmann::json& report) {
        c = {kGelu,
             {report["variant"], report["rung"], "", nullptr},
             report["ceiling"],
             1,
             report["ceiling_ns"],
             report["before"],
             report["after"]};
      });
  EXPECT_EQ(c.choice.variant, "scalar");
  EXPECT_EQ(c.choice.rung, "exact device");
  EXPECT_EQ(c.before_ns.size(), c.after_ns.size());
  EXPECT_GE(c.before_ns.size(), 20u);
  EXPECT_EQ(c.ceiling, "triad");
}

TEST(Comparison, GainIsTheDefaultsTimeOverTheHeaders) {
  Comparison c;
  c.problem = kGelu;
  c.ceiling_ns = std::vector<double>(24, 1000);
  c.before_ns = std::vector<double>(24, 3000);
  c.after_ns = std::vector<double>(24, 1500);
  EXPECT_DOUBLE_EQ(c.gain().median, 2);
  EXPECT_DOUBLE_EQ(c.gain().low, 2);
  EXPECT_DOUBLE_EQ(c.gb_per_s(c.after_ns), kGelu.bytes() / 1500);
  c.ceiling_ns[0] = 5000, c.before_ns[0] = 1e9;  // a disturbed round is left out
  EXPECT_DOUBLE_EQ(c.gain().high, 2);
}

// 5 of 20 rounds are left, and then the kernels of one build waited for others in half of the rounds.
TEST(Comparison, ABusyMachineHasNoGain) {
  Comparison c;
  c.problem = kGelu;
  c.choice = {"v", "default", "", nullptr};
  c.ceiling_ns = std::vector<double>(20, 1000);
  c.before_ns = c.after_ns = std::vector<double>(20, 3000);
  EXPECT_NE(text_of(c).find("1.000x [1.000, 1.000]  20 of 20 rounds  v (default)"), std::string::npos)
      << text_of(c);
  EXPECT_EQ(to_json(c)["gain"]["status"], "ok");
  for (std::size_t r = 0; r < 10; ++r) c.after_ns[r] = 60'000;
  EXPECT_NE(text_of(c).find("too noisy: 20 of 20 rounds usable, interval [0.05, 1.00]"), std::string::npos)
      << text_of(c);
  EXPECT_TRUE(to_json(c)["gain"]["median"].is_null());
  c.after_ns = c.before_ns;
  for (std::size_t r = 5; r < 20; ++r) c.ceiling_ns[r] = 5000;
  EXPECT_NE(text_of(c).find("too noisy: 5 of 20 rounds usable, interval [1.00, 1.00]"), std::string::npos)
      << text_of(c);
  EXPECT_EQ(to_json(c)["gain"]["status"], "too noisy");
  EXPECT_EQ(to_json(c)["discarded_rounds"], 15);
}

TEST_F(Compare, NightlyBothBuildsGiveTheSameBitsAndAnotherHeaderIsCompiledAnew) {
  const EntryPoints before = entries("");
  EXPECT_EQ(before.choice(kGelu).variant, "default");
  EXPECT_EQ(before.choice(kGelu).rung, "default");
  EXPECT_EQ(before.choice(kGelu).fit["class"], kernels::generated::GeluBf16::kClass);
  for (const char* name : {"first", "second"}) {
    const EntryPoints after = entries(header({choice(kGelu.sized(1, 4096), name, 0)}));
    const Choice chosen = after.choice(kGelu);
    EXPECT_EQ(chosen.variant, name);
    EXPECT_EQ(chosen.rung, "exact device");
    EXPECT_EQ(chosen.fit["r"], kernels::generated::GeluBf16::kR);
    EXPECT_NE(chosen.claims.find(", A + B 2^-"), std::string::npos) << chosen.claims;
    const Problem small = kGelu.sized(1, 10'007);
    int differences = -1;
    in_child(
        [&](const Channel& channel) {
          const Workspace ours(small, 1), theirs(small, 1);
          before.function(small)(ours.arguments());
          after.function(small)(theirs.arguments());
          channel.report(std::memcmp(ours.arguments().array[3], theirs.arguments().array[3], 2 * 10'007) !=
                         0);
        },
        [&](const nlohmann::json& report) { differences = report.get<bool>(); });
    EXPECT_EQ(differences, 0);
  }
  // So is one whose text is the same, but not that of a fit that it includes.
  const std::string fit = folder_ / "fits/own.h", with_fit = folder_ / "with_fit.h";
  kernels::write_file(fit, "");
  kernels::write_file(with_fit, kernels::read_file(folder_ / "tuned.h") + "#include \"fits/own.h\"\n");
  entries(with_fit);
  kernels::write_file(fit, "#error another\n");
  EXPECT_THROW(entries(with_fit), kernels::SpecError);
}

TEST_F(Compare, ProblemsAreThoseOfTheTables) {
  const Problem forward{KernelId::kGeluForward, FormatId::kF16, 1, 1024};
  TunedChoice other = choice(forward, "v", 0);
  other.parameters["fit"] = "GeluForwardF16";
  const std::vector<Problem> found = tuned_problems(header({choice(kGelu, "v", 0), other}));
  EXPECT_EQ(found, (std::vector<Problem>{{KernelId::kGeluBackward, FormatId::kBf16},
                                         {KernelId::kGeluForward, FormatId::kF16}}));
  EXPECT_THROW(tuned_problems(header({})), kernels::SpecError);
  kernels::write_file(folder_ / "other.h", "#pragma once\n");
  EXPECT_THROW(tuned_problems(folder_ / "other.h"), kernels::SpecError);
  EXPECT_THROW(tuned_problems(folder_ / "absent.h"), kernels::IoError);
  kernels::write_file(folder_ / "broken.h", kernels::read_file(folder_ / "tuned.h") +
                                                "#include \"kernels/generated/tuned_default.h\"\nstruct {\n");
  EXPECT_THROW(entries(folder_ / "broken.h"), kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::autotune
