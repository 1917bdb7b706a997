// The search on kernels of known times: what it finds, what it keeps, what it does not run twice; on the real
// life cycle, with a stand-in for the machine that times them.
#include "autotune/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "autotune/measure/device.h"
#include "autotune/measure/executor.h"
#include "autotune/records/database.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

const Problem kProblem{KernelId::kGeluBackward, FormatId::kBf16, 1, 1 << 16};

// Microseconds of a call: least at unroll 5 in blocks of 24 Ki; the default takes 200.
double microseconds_of(const kernels::CpuSchedule& schedule) {
  const double far =
      std::fabs(schedule.unroll - 5.0) * 12 + std::fabs(std::log2(schedule.block_elements / 24576.0)) * 20;
  return 100 + far;
}

// Runs the scalar kernel, whatever the candidate, but with plants; a call takes what microseconds_of() says.
class StandIn : public Executor {
 public:
  std::function<void(const Arguments&)> function(const Candidate& candidate) override {
    const Variant& variant = candidate.variant_as<Variant>();
    if (variant.gelu().unroll == 8) return [](const Arguments&) { __builtin_trap(); };
    if (variant.gelu().unroll == 7)
      return [reference = variant.fit->reference](const Arguments& a) {
        reference(a);
        if (a.elements() > 0) a.at<kernels::u16>(3)[0] ^= 1;
      };
    return variant.fit->reference;
  }
  void allocate(const Problem&, std::uint64_t) override {}
  Workload ceiling() override {
    return {"copy", 1, [this] { now_ns_ = 1000; }};
  }
  Workload workload(const Candidate& candidate) override {
    return {candidate.variant().name(), 1,
            [this, ns = 1e3 * microseconds_of(candidate.variant_as<Variant>().gelu())] { now_ns_ = ns; }};
  }
  Stopwatch stopwatch() const override {
    return [this](const std::function<void()>& run) {
      run();
      return now_ns_;
    };
  }

 private:
  double now_ns_ = 0;
};

class Fake : public Tunable {
 public:
  Fake() {
    space_.parameter("unroll", {1, 2, 3, 4, 5, 6, 7, 8}).parameter("kibi", {4, 8, 12, 16, 24, 32, 48, 64});
    points_ = space_.construct();
  }
  const Points& points() const override { return points_; }
  std::shared_ptr<const AnyVariant> variant(std::size_t point) const override {
    const Point values = points_[point];
    return made(static_cast<int>(values[0]), static_cast<int>(values[1]) << 10);
  }
  std::shared_ptr<const AnyVariant> baseline() const override { return made(1, 1 << 16); }
  std::vector<Candidate> compile(const std::vector<std::shared_ptr<const AnyVariant>>& variants,
                                 double) override {
    std::vector<Candidate> candidates;
    sizes.push_back(variants.size());
    for (const auto& variant : variants) {
      candidates.emplace_back(variant, "");
      if (unroll_of(*variant) == 6)
        candidates.back().reject(Stage::kCompile, Reason::kSpills, "planted");
      else
        candidates.back().compiled({"", "", 1});
      ++compilations[variant->name()];
    }
    return candidates;
  }
  std::vector<std::size_t> first(std::size_t evaluations, std::uint64_t, double) override {
    first_for = evaluations;
    return first_points;
  }

  std::map<std::string, int> compilations;
  std::vector<std::size_t> sizes;  // of what was compiled together
  std::vector<std::size_t> first_points;
  std::size_t first_for = 0;  // evaluations, as the search said

 private:
  static int unroll_of(const AnyVariant& variant) {
    return dynamic_cast<const Variant&>(variant).gelu().unroll;
  }
  static std::shared_ptr<const AnyVariant> made(int unroll, int block) {
    kernels::CpuSchedule schedule;
    schedule.unroll = unroll;
    schedule.block_elements = block;
    return std::make_shared<const Variant>(kProblem, fits_of(kProblem).front(), schedule);
  }
  Space space_;
  Points points_;
};

struct Trial {
  Fake space;
  SearchSettings settings;
  Known known;
  RunIdentity identity{{}, {"k", "c"}, "none", "", utc_now(), 1};
  std::vector<Record> winners;

  Trial() {
    settings.strategy = "model";
    settings.evaluations = 40;
    settings.measure.open = [] { return std::make_unique<StandIn>(); };
    settings.measure.screening_rounds = 2;
    settings.measure.silence_seconds = 30;
  }
  SearchResult operator()(const std::string& database) {
    return search(space, settings, known, identity, database, winners);
  }
};

TEST(Search, FindsTheFastestAmongOffendersAndRecordsEach) {
  const kernels::ScratchFolder folder;
  Trial run;
  const SearchResult result = run(folder / "db.jsonl");
  EXPECT_EQ(result.evaluated, 40u);
  EXPECT_EQ(result.known, 0u);
  ASSERT_TRUE(result.final.gain);
  const auto& best = result.finalists[result.final.winner].variant_as<Variant>().gelu();
  EXPECT_EQ(best.unroll, 5);
  EXPECT_EQ(best.block_elements, 24 << 10);
  ASSERT_EQ(run.winners.size(), 1u);
  EXPECT_EQ(run.winners[0].variant, result.finalists[result.final.winner].variant().name());

  std::map<std::string, std::set<std::string>> reasons;
  std::set<std::string> seen;
  int winners = 0;
  for (const Record& record : load_database(folder / "db.jsonl").records) {
    seen.insert(record.variant);
    if (record.state == "rejected")
      reasons[record.rejected.reason].insert(record.parameters["unroll"].dump());
    if (record.winner == true) ++winners;
  }
  EXPECT_EQ(winners, 1);
  // the default too, unless it was asked for: it is a point, and known from the start
  EXPECT_EQ(seen.size(), 41u);
  for (const auto& [reason, unrolls] : reasons) EXPECT_EQ(unrolls.size(), 1u) << reason;
  EXPECT_EQ(reasons["spills"], std::set<std::string>{"6"});
  EXPECT_EQ(reasons["wrong answer"], std::set<std::string>{"7"});
  EXPECT_EQ(reasons["crashed"], std::set<std::string>{"8"});
  EXPECT_EQ(result.rejected, result.failures.size());
}

// What fails beside a device that is gone bars no variant, and a clock that tells no times leaves no records.
TEST(Search, ADeviceThatFailsBlamesNobody) {
  struct Vanishing : StandIn {
    explicit Vanishing(const std::string& path) : flag(path) {
      if (std::filesystem::exists(flag)) throw kernels::CudaError("no device");
    }
    Workload workload(const Candidate& candidate) override {
      if (candidate.variant_as<Variant>().gelu().unroll == 1) return StandIn::workload(candidate);
      return {"", 1, [this] {
                kernels::write_file(flag, "");
                throw kernels::CudaError("gone");
              }};
    }
    std::string flag;
  };
  struct Clock : StandIn {
    explicit Clock(double told) : ns(told) {}
    Stopwatch stopwatch() const override {
      return [this](const std::function<void()>&) { return ns; };
    }
    double ns;
  };
  const kernels::ScratchFolder folder;
  std::vector<std::function<std::unique_ptr<Executor>()>> all = {
      [&] { return std::make_unique<Vanishing>(folder / "gone"); }};
  for (const double ns : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)})
    all.push_back([ns] { return std::make_unique<Clock>(ns); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    Trial run;
    run.settings.measure.open = all[i];
    const std::string path = folder / std::to_string(i);
    EXPECT_THROW(run(path), kernels::EnvironmentError) << i;
    const Database database = load_database(path);
    EXPECT_TRUE(database.warnings.empty()) << i << ": " << database.warnings.front();
    for (const Record& record : database.records) EXPECT_EQ(record.is_default, true) << i << record.variant;
  }
}

TEST(Search, GoesOnWhereAnEarlierRunStopped) {
  const kernels::ScratchFolder folder;
  std::set<std::string> evaluated;
  for (const std::size_t evaluations : {8u, 20u, 64u}) {
    Trial run;
    run.settings.evaluations = evaluations;
    run.known.records = load_database(folder / "db.jsonl").records;
    const SearchResult result = run(folder / "db.jsonl");
    EXPECT_EQ(result.known, evaluated.size());
    EXPECT_EQ(run.space.first_for, evaluations - evaluated.size());
    for (const auto& [name, count] : run.space.compilations) {
      if (name == run.space.baseline()->name()) continue;
      const bool finalist = std::any_of(result.finalists.begin(), result.finalists.end(),
                                        [&](const Candidate& c) { return c.variant().name() == name; });
      EXPECT_LE(count, finalist ? 2 : 1) << name;
      if (!finalist) {
        EXPECT_EQ(evaluated.count(name), 0u) << name;
      }
      evaluated.insert(name);
    }
    // 64 points, the default one of them
    EXPECT_EQ(result.known + result.evaluated, std::min<std::size_t>(evaluations, 63));
  }
}

TEST(Search, TriesFirstWhatItIsToldTo) {
  const kernels::ScratchFolder folder;
  Trial run;
  run.settings.evaluations = run.settings.batch = 3;
  run.space.first_points = {5, 9, 5};
  run.known.seeds = {run.space.variant(20)->parameters(), {{"no", "such"}}};
  run(folder / "db.jsonl");
  for (const std::size_t point : {20u, 5u, 9u})
    EXPECT_EQ(run.space.compilations[run.space.variant(point)->name()] > 0, true) << point;
}

TEST(Search, ASmallBudgetStillRunsABatchAndTheFinals) {
  const kernels::ScratchFolder folder;
  Trial run;
  run.settings.seconds = 1e-3;
  run.settings.evaluations = 1000;
  const SearchResult result = run(folder / "db.jsonl");
  EXPECT_EQ(result.evaluated, 2u);
  EXPECT_TRUE(result.final.decided);
}

// What takes long to compile would not come to its rounds in a short share.
TEST(Search, AShortShareHasSmallBatches) {
  for (const auto& [seconds, points] : {std::pair(6.0, 4u), {12.0, 8u}, {1e9, 8u}}) {
    const kernels::ScratchFolder folder;
    Trial run;
    run.settings.seconds = seconds;
    run.settings.evaluations = 8;
    run(folder / "db.jsonl");
    EXPECT_EQ(run.space.sizes.front(), points + 1) << seconds << " s: with the default";
  }
}

// Records of nothing, without a time or of another fit are no evidence.
TEST(Search, RecordsOfNoPointAreNoEvidence) {
  const kernels::ScratchFolder folder;
  Trial run;
  run.settings.evaluations = 4;
  Record of_the_point;
  of_the_point.parameters = run.space.variant(3)->parameters();
  Record without_a_time = of_the_point, of_another_fit = of_the_point;
  without_a_time.state = of_another_fit.state = "timed";
  of_another_fit.speedup = {{2, 2, 2}};
  of_another_fit.fit.sha256 = "another's";
  run.known.records = {Record{}, of_the_point, without_a_time, of_another_fit};
  const SearchResult result = run(folder / "db.jsonl");
  EXPECT_EQ(result.known, 0u);
  EXPECT_EQ(result.evaluated, 4u);
}

// A busy machine's rejections are tried again; those that say something of the variant are not.
TEST(Search, WhatLackedTimeOrMemoryIsTriedAgain) {
  for (const auto& [reason, known] : {std::pair(Reason::kCompilerTimeout, 0u),
                                      {Reason::kOutOfMemory, 0u},
                                      {Reason::kCompilerError, 1u},
                                      {Reason::kWrongAnswer, 1u}}) {
    const kernels::ScratchFolder folder;
    Trial run;
    run.settings.evaluations = 4;
    Record rejected;
    rejected.parameters = run.space.variant(3)->parameters();
    rejected.state = "rejected", rejected.rejected.reason = name_of(reason);
    run.known.records = {rejected};
    EXPECT_EQ(run(folder / "db.jsonl").known, known) << name_of(reason);
  }
}

// The winner of two that are as fast is the one whose error is smaller, else the one nearer to the default.
TEST(Search, NearTiesGoToTheSmallerErrorThenToTheSimplerVariant) {
  const auto timed =
      [](std::vector<std::pair<std::shared_ptr<const FitChoice>, kernels::CpuSchedule>> variants) {
        std::vector<Candidate> candidates;
        for (const auto& [fit, schedule] : variants) {
          candidates.emplace_back(Variant{kProblem, fit, schedule}, "");
          candidates.back().compiled({});
          candidates.back().verified(1);
        }
        RoundSamples screening(candidates.size()), finals(candidates.size());
        for (int round = 0; round < kLeastRounds; ++round) {
          finals.ceiling_ns.push_back(100);
          for (std::size_t i = 0; i < candidates.size(); ++i)
            finals.ns[i].push_back(i == 0 ? 200 : 100 + (round + static_cast<int>(i)) % 3);
        }
        return evaluate(candidates, screening, finals, {}).winner;
      };
  const auto fit = [](double error) {
    FitChoice choice = *fits_of(kProblem).front();
    choice.bounds = {error, 1, error};
    return std::make_shared<const FitChoice>(choice);
  };
  kernels::CpuSchedule one, two;
  one.unroll = two.unroll = 4;
  two.block_elements = 1 << 12;
  EXPECT_EQ(timed({{fit(1), {}}, {fit(1), one}, {fit(0.5), two}}), 2u);
  EXPECT_EQ(timed({{fit(1), {}}, {fit(0.5), one}, {fit(1), two}}), 1u);
  EXPECT_EQ(timed({{fit(1), {}}, {fit(1), one}, {fit(1), two}}), 1u);
  EXPECT_EQ(timed({{fit(1), {}}, {fit(1), two}, {fit(1), one}}), 2u);
}

// What takes no shape cannot be compared with anything, and is not accepted for that.
TEST(Search, WhatTakesNoShapeIsNotVerified) {
  struct TakesNothing : Variant {
    explicit TakesNothing(const Variant& variant) : Variant(variant) {}
    bool takes(kernels::i64) const override { return false; }
  };
  std::vector<Candidate> candidates = {
      Candidate(std::make_shared<const TakesNothing>(default_variant(kProblem)), "")};
  candidates.front().compiled({"", "", 1});
  MeasureSettings settings;
  settings.open = [] { return std::make_unique<StandIn>(); };
  verify(candidates, settings);
  ASSERT_NE(candidates.front().as<Rejected>(), nullptr);
  EXPECT_EQ(candidates.front().as<Rejected>()->reason, Reason::kNotUnderstood);
}

TEST(Accuracy, TuningTakesNoLooserFitThanTheDefaultUnasked) {
  for (const KernelId kernel : {KernelId::kGeluBackward, KernelId::kBiasGeluBackward})
    for (const FormatId format : kAllFormats) {
      const Problem problem{kernel, format};
      const Fits all = fits_of(problem), allowed = fits_within(problem, Accuracy::kAsDefault);
      ASSERT_FALSE(allowed.empty());
      EXPECT_EQ(allowed.front(), all.front());
      const kernels::FitBounds& most = all.front()->bounds;
      for (const auto& fit : all) {
        const kernels::FitBounds& own = fit->bounds;
        EXPECT_TRUE(own.direct || own.a_plus_b < kernels::FitBounds::kNone) << fit->name;
        const bool larger = (!own.direct && own.a_plus_b > most.a_plus_b) || own.t > most.t || own.r > most.r;
        EXPECT_EQ(std::find(allowed.begin(), allowed.end(), fit) == allowed.end(), larger) << fit->name;
        const FitRecord record = fit_record(problem, *fit);
        EXPECT_EQ(record.as_accurate, !larger) << fit->name;
        EXPECT_EQ(record.r, own.r) << fit->name;
        EXPECT_EQ(to_json(record)["r"].is_null(), own.r == kernels::FitBounds::kNone) << fit->name;
      }
      EXPECT_EQ(fits_within(problem, Accuracy::kAny), all);
    }
}

TEST(Accuracy, IsSaidRoundedUp) {
  EXPECT_EQ(claims_text("abs:2^-10", {0x1.0001p-10, 1, 0x1p-9}), "abs:2^-10, A + B 2^-9.99, R 2^-9.00");
  EXPECT_EQ(claims_text("abs:2^-26", {.a_plus_b = 0x1p-23}), "abs:2^-26, A + B 2^-23.00, R not stated");
  EXPECT_EQ(claims_text("oracle", {.t = 1, .r = 0x1p-9, .direct = true}), "oracle, A + B none, R 2^-9.00");
  EXPECT_EQ(claims_text(kernels::FitClaims{}), "");
  const kernels::FitBounds standard{0x1p-10, 0x1p-6, 0x1p-9};
  EXPECT_EQ(why_less_accurate({0x1p-9, 1, 1}, standard),
            "A + B 2^-9.00 is larger than the default's 2^-10.00");
  EXPECT_EQ(why_less_accurate({0x1p-10, 1, 1}, standard), "T 2^0.00 is larger than the default's 2^-6.00");
  EXPECT_EQ(why_less_accurate({0x1p-10, 0x1p-6}, standard), "R not stated, the default's is 2^-9.00");
  EXPECT_EQ(why_less_accurate(standard, standard), std::nullopt);
}

}  // namespace
}  // namespace outgrad::autotune
