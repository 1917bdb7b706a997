// The whole life cycle with planted offenders: each is rejected for what it did, and the run still ends with
// the right winner.
#include "autotune/search/tuner.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "autotune/cpu/cpu_device.h"
#include "autotune/cpu/executor.h"
#include "autotune/measure/isolate.h"
#include "autotune/measure/verify.h"
#include "autotune/space/reference.h"
#include "kernels/support/files.h"
#include "tests/autotune/captured.h"
#include "tests/autotune/scoped_variable.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::autotune {
namespace {

CompileSettings compile_settings(const kernels::ScratchFolder& folder) {
  CompileSettings settings;
  settings.cache_folder = folder / "variants";
  settings.jobs = 2;
  return settings;
}

// Four times the last cache, unless the time is too short for that; never so few that a call is too short to
// time.
TEST(Tuner, ArraysAreAsLargeAsTheCacheAsksForAndTheTimeAllows) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kF32};
  CpuIdentity cpu;
  cpu.threads = 2;
  cpu.l3_bytes = 480 << 20;
  constexpr int kCalls = 224;
  const auto seconds_of = [&](kernels::i64 elements) {
    return static_cast<double>(elements) * problem.bytes_per_element() * kCalls / (2 * 10e9);
  };
  const kernels::i64 patient = elements_for(problem, cpu, 1e6, kCalls);
  EXPECT_GE(static_cast<double>(patient) * problem.bytes_per_element(),
            4.0 * static_cast<double>(cpu.l3_bytes));
  for (const double seconds : {10.0, 20.0, 40.0}) {
    const kernels::i64 elements = elements_for(problem, cpu, seconds, kCalls);
    EXPECT_LT(elements, patient) << seconds;
    EXPECT_LE(seconds_of(elements), seconds / 2) << seconds;
  }
  EXPECT_EQ(elements_for(problem, cpu, 0, kCalls), 1 << 24);
}

// The CPU with a clock that shows what a kernel says it took: which one is the fastest is then the same on
// any machine, however busy.
class ToldTimes : public Executor {
 public:
  static std::string takes(int ms) {
    return "::setenv(\"OUTGRAD_TEST_MS\", \"" + std::to_string(ms) + "\", 1); ";
  }

  std::function<void(const Arguments&)> function(const Candidate& candidate) override {
    return cpu_->function(candidate);
  }
  void allocate(const Problem& problem, std::uint64_t seed) override { cpu_->allocate(problem, seed); }
  Workload ceiling() override { return cpu_->ceiling(); }
  Workload workload(const Candidate& candidate) override { return cpu_->workload(candidate); }
  Stopwatch stopwatch() const override {
    return [](const std::function<void()>& run) {
      const ScopedVariable told("OUTGRAD_TEST_MS", "1");
      run();
      return 1e6 * std::stod(std::getenv("OUTGRAD_TEST_MS"));
    };
  }

 private:
  std::unique_ptr<Executor> cpu_ = open_cpu();
};

TEST(Tuner, RejectsPlantedOffendersForTheRightReasonAndFindsTheWinner) {
  const kernels::ScratchFolder folder;
  const Problem problem{KernelId::kGeluBackward, FormatId::kF32, 1, 1 << 20};
  const Variant variant = default_variant(problem);
  const std::string good = variant.body();
  const std::string large = "if (a.elements() > 700000) ";  // beyond any length that verification uses
  // asleep: other tests have its core
  const std::string forever = "{ omp_lock_t l; omp_init_lock(&l); omp_set_lock(&l); omp_set_lock(&l); } ";

  struct Plant {
    const char* what;
    std::string body;
    std::optional<Stage> stage;
    Reason reason;
  };
  const std::vector<Plant> plants = {
      {"slow default", ToldTimes::takes(30) + good, {}, {}},
      {"winner", good, {}, {}},
      {"less slow", ToldTimes::takes(15) + good, {}, {}},
      {"one bit wrong", good + " if (a.elements() > 4000) a.at<unsigned>(3)[3999] ^= 1u;", Stage::kVerify,
       Reason::kWrongAnswer},
      {"writes to an input", good + " if (a.elements() > 0) a.at<unsigned>(1)[0] ^= 1u;", Stage::kVerify,
       Reason::kWrongAnswer},
      {"zero to negative zero",
       good + " for (long i = 0; i < a.elements(); ++i) if (a.at<unsigned>(3)[i] == 0) "
              "a.at<unsigned>(3)[i] = 0x80000000u;",
       Stage::kVerify, Reason::kWrongAnswer},
      {"reads past the end", good + " static volatile float sink; sink = a.at<const float>(0)[a.elements()];",
       Stage::kVerify, Reason::kCrashed},
      {"crashes", "*static_cast<volatile int*>(nullptr) = 1;", Stage::kVerify, Reason::kCrashed},
      {"leaves the process", "__builtin__exit(0);", Stage::kVerify, Reason::kCrashed},
      {"hangs", forever, Stage::kVerify, Reason::kHung},
      {"leaks when timed", large + "{ static char* volatile leaked; leaked = new char[4ull << 30]; } " + good,
       Stage::kTime, Reason::kOutOfMemory},
      {"crashes when timed", large + "__builtin_trap(); " + good, Stage::kTime, Reason::kCrashed},
      {"hangs when timed", large + forever + good, Stage::kTime, Reason::kHung},
      {"does not compile", "no_such_function(a);", Stage::kCompile, Reason::kCompilerError}};

  std::vector<Candidate> candidates;
  std::vector<Candidate*> pointers;
  for (const Plant& plant : plants)
    candidates.emplace_back(variant, "/* " + std::string(plant.what) + " */ " + plant.body);
  for (Candidate& candidate : candidates) pointers.push_back(&candidate);

  MeasureSettings settings;
  settings.open = [] { return std::make_unique<ToldTimes>(); };
  settings.screening_rounds = 3;
  settings.final_rounds = kLeastRounds;
  settings.memory_bytes = 14LL << 30;  // room for two of the leak's calls, not for the rounds
  settings.log_path = folder / "launches.log";
  compile(pointers, find_toolchain(), compile_settings(folder));
  verify(candidates, settings);
  const Measurement m = measure(candidates, settings);

  for (std::size_t i = 0; i < plants.size(); ++i) {
    SCOPED_TRACE(plants[i].what);
    const Rejected* why = candidates[i].as<Rejected>();
    if (!plants[i].stage) {
      EXPECT_NE(candidates[i].as<Timed>(), nullptr)
          << (why != nullptr ? why->detail : candidates[i].state_name());
      continue;
    }
    ASSERT_NE(why, nullptr) << candidates[i].state_name();
    EXPECT_EQ(why->stage, *plants[i].stage) << why->detail;
    EXPECT_EQ(why->reason, plants[i].reason) << why->detail;
    EXPECT_FALSE(why->detail.empty());
  }
  EXPECT_TRUE(m.gain);
  EXPECT_STREQ(plants[m.winner].what, "winner");
  EXPECT_EQ(m.discarded_rounds, 0);
  EXPECT_EQ(m.speedup[1].median, 30);
  EXPECT_EQ(m.speedup[1].low, 30);
  EXPECT_EQ(m.speedup[2].median, 2);
  EXPECT_NE(kernels::read_file(settings.log_path).find("verify gelu_backward f32."), std::string::npos);
}

// A kernel over rows, without a fit: dy, y, gamma, beta, rstd, dx, dgamma, dbeta, workspace.
TEST(Tuner, ANormLivesTheSameLifeNightly) {
  const kernels::ScratchFolder folder;
  const Problem problem{KernelId::kLayernormBackward, FormatId::kBf16, 64, 1024};
  const Variant variant = default_variant(problem);
  const std::string good = variant.body(),
                    reads =
                        " static volatile unsigned short sink; sink = a.at<unsigned short>(0)[a.elements()];";
  std::vector<Candidate> candidates = {
      Candidate(variant),
      Candidate(variant, good + " if (a.at<float>(6) != nullptr && a.rows > 1) a.at<unsigned>(6)[0] ^= 1u;"),
      Candidate(variant, good + " if (a.elements() > 0) a.at<unsigned short>(1)[0] ^= 1u;"),
      Candidate(variant, good + reads)};
  std::vector<Candidate*> pointers;
  for (Candidate& candidate : candidates) pointers.push_back(&candidate);
  MeasureSettings settings{.open = open_cpu};
  settings.screening_rounds = 2;
  settings.final_rounds = 1;
  settings.ceiling_share = 0;
  compile(pointers, find_toolchain(), compile_settings(folder));
  verify(candidates, settings);
  const auto reason = [&](std::size_t i) {
    const auto* why = candidates[i].as<Rejected>();
    return why == nullptr ? std::string(candidates[i].state_name())
                          : std::string(name_of(why->reason)) + ": " + why->detail;
  };
  EXPECT_EQ(reason(0), "verified");
  EXPECT_EQ(reason(1).find("wrong answer: dgamma[0]: got"), 0u) << reason(1);
  EXPECT_EQ(reason(2).find("wrong answer: wrote to the input y"), 0u) << reason(2);
  EXPECT_EQ(reason(3).find("crashed: "), 0u) << reason(3);
  const Measurement m = measure(candidates, settings);
  EXPECT_EQ(m.finals.ceiling.name, "triad");
  const Record record = record_of(candidates[0], 0, &m, RunIdentity{});
  EXPECT_EQ(record.rows, 64);
  EXPECT_EQ(record.cols, 1024);
  EXPECT_EQ(record.elements, 64 * 1024);
  EXPECT_EQ(record.bytes, problem.bytes());
  EXPECT_TRUE(record.fit.name.empty());
  EXPECT_FALSE(record.bytes_per_element);
}

TEST(Tuner, NoWinnerInsideTheNoise) {
  const kernels::ScratchFolder folder;
  const Variant variant = default_variant({KernelId::kGeluForward, FormatId::kBf16, 1, 1 << 18});
  std::vector<Candidate> candidates;
  for (int i = 0; i < 3; ++i)
    candidates.emplace_back(variant, "/* copy " + std::to_string(i) + " */ " + variant.body());
  std::vector<Candidate*> pointers;
  for (Candidate& candidate : candidates) pointers.push_back(&candidate);
  MeasureSettings settings{.open = open_cpu};
  settings.screening_rounds = 2;
  settings.ceiling_share = 0;
  compile(pointers, find_toolchain(), compile_settings(folder));
  verify(candidates, settings);
  settings.final_rounds = kLeastRounds - 1;  // too few to decide, whatever they say
  const Measurement m = measure(candidates, settings);
  EXPECT_EQ(m.speedup[0].median, 1);
  EXPECT_FALSE(m.gain);
  EXPECT_EQ(m.winner, 0u);
  // Nor do so few say what share of the ceiling it is.
  const Record record = record_of(candidates[0], 0, &m, RunIdentity{});
  EXPECT_TRUE(record.winner == true && !record.gb_per_s && !record.share_of_ceiling);
  Captured out(Captured::kStdout);
  print_problem(candidates, m);
  const std::string said = out.release();
  EXPECT_NE(said.find("kept the default: too noisy"), std::string::npos) << said;
  EXPECT_EQ(said.find('%'), std::string::npos) << said;
}

// A direct table is compiled and verified like any other fit: by the bits of its own scalar kernel, never
// another's.
TEST(Compile, ADirectTableIsAVariantLikeAnyOther) {
  using Table = kernels::synthetic::Direct<kernels::BF16, kernels::F16>;
  const kernels::ScratchFolder folder;
  Toolchain toolchain = find_toolchain();
  toolchain.flags.insert(toolchain.flags.end(),
                         {"-include", toolchain.source_root + "/tests/kernels/synthetic_fit.h"});
  Variant variant = default_variant({KernelId::kGeluBackward, FormatId::kBf16});
  variant.gelu().table = kernels::TablePlacement::memory;
  const auto body = [&](const std::string& entry) {
    return "using namespace outgrad::kernels; call<KernelId::kGeluBackward, BF16>(a, [](auto... x) { "
           "gelu_backward<synthetic::Direct<BF16, " +
           entry + ">, BF16, " + variant.schedule_text() + ">(x...); });";
  };
  std::vector<Candidate> candidates = {Candidate(variant, body("F16")), Candidate(variant, body("BF16"))};
  compile({&candidates[0], &candidates[1]}, toolchain, compile_settings(folder));
  const Verifier verifier(variant.problem, backward_choice<Table, kernels::BF16>().reference, 1);
  std::vector<std::string> differences(2, "not run");
  const auto body_of_child = [&](const Channel& channel) {
    for (const Candidate& candidate : candidates)
      channel.report(
          {{"difference",
            verifier.verdict(load(*candidate.code()), variant.block_elements()).mismatch.value_or("")}});
  };
  std::size_t reports = 0;
  for (const Candidate& candidate : candidates) ASSERT_NE(candidate.code(), nullptr);
  const ChildEnd end = run_isolated(
      body_of_child, [&](const nlohmann::json& report) { differences.at(reports++) = report["difference"]; },
      {60, 64LL << 30});
  EXPECT_EQ(end.kind, ChildEnd::Kind::kFinished) << end.detail;
  EXPECT_EQ(differences[0], "");
  EXPECT_NE(differences[1].find("dx["), std::string::npos) << differences[1];
}

// -march=native is another instruction set there: a cache that two machines share has objects for each.
TEST(Compile, AnObjectOfAnotherProcessorIsNotTaken) {
  const kernels::ScratchFolder folder;
  Toolchain toolchain = find_toolchain();
  EXPECT_NE(toolchain.processor, "");
  EXPECT_EQ(toolchain.processor, find_toolchain().processor);
  std::set<std::string> libraries;
  for (const char* processor : {"one", "another"}) {
    toolchain.processor = processor;
    libraries.insert(
        compile_source("extern \"C\" void f() {}\n", "f", "f", toolchain, compile_settings(folder)).library);
  }
  EXPECT_EQ(libraries.size(), 2u);
}

TEST(Compile, SecondTimeComesFromTheCacheAndFlagsAreInTheKey) {
  const kernels::ScratchFolder folder;
  const Variant variant = default_variant({KernelId::kGeluForward, FormatId::kF32});
  Toolchain toolchain = find_toolchain();
  std::vector<std::string> libraries;
  std::vector<double> times;
  for (int pass = 0; pass < 3; ++pass) {
    if (pass == 2) toolchain.flags.push_back("-DOUTGRAD_TEST_UNUSED");
    Candidate candidate(variant);
    compile({&candidate}, toolchain, compile_settings(folder));
    ASSERT_NE(candidate.as<Compiled>(), nullptr);
    libraries.push_back(candidate.code()->library);
    times.push_back(candidate.code()->compile_ms);
  }
  EXPECT_EQ(libraries[0], libraries[1]);
  EXPECT_GT(times[0], 0);
  EXPECT_EQ(times[1], 0);
  EXPECT_NE(libraries[0], libraries[2]);
}

// A German compiler has no "error" and no "No space left on device", by which a full disk is told from a
// variant that does not compile.
TEST(Compile, CompilersSpeakEnglish) {
  const kernels::ScratchFolder folder;
  kernels::write_file(folder / "german",
                      "#!/bin/sh\n[ \"$1\" = --version ] && echo german 1.0 && exit 0\n"
                      "[ \"$LC_ALL\" = C ] && echo 'fatal error: No space left on device' >&2 && exit 1\n"
                      "echo 'Fehler: Auf dem Geraet ist kein Speicherplatz mehr verfuegbar' >&2\nexit 1\n");
  std::filesystem::permissions(folder / "german", std::filesystem::perms::owner_all);
  const ScopedVariable compiler("CXX", folder / "german"), locale("LC_ALL", "de_DE.UTF-8");
  Candidate candidate(default_variant({KernelId::kGeluForward, FormatId::kF32}));
  EXPECT_THROW(compile({&candidate}, find_toolchain(), compile_settings(folder)), kernels::IoError);
}

TEST(Compile, WithoutACompilerNamesIt) {
  const ScopedVariable variable("CXX", "/no/such/compiler");
  try {
    find_toolchain();
    FAIL() << "found a compiler that is not there";
  } catch (const kernels::EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/compiler"), std::string::npos);
  }
}

TEST(Compile, AStuckCompilerIsKilledAndBlamed) {
  const kernels::ScratchFolder folder;
  kernels::write_file(folder / "stuck",
                      "#!/bin/sh\n[ \"$1\" = --version ] && echo stuck 1.0 && exit 0\nsleep 600 & wait\n");
  std::filesystem::permissions(folder / "stuck", std::filesystem::perms::owner_all);
  const ScopedVariable variable("CXX", folder / "stuck");
  CompileSettings settings = compile_settings(folder);
  settings.patience = std::make_shared<Patience>(10, 0.1, 0.5);
  Candidate candidate(default_variant({KernelId::kGeluForward, FormatId::kF32}));
  compile({&candidate}, find_toolchain(), settings);
  ASSERT_NE(candidate.as<Rejected>(), nullptr);
  EXPECT_EQ(candidate.as<Rejected>()->reason, Reason::kCompilerTimeout);
}

}  // namespace
}  // namespace outgrad::autotune
