// Verification and measurement in children, and the records they leave.
#include "autotune/search/tuner.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "autotune/cpu/compile.h"
#include "autotune/evidence/merge.h"
#include "autotune/measure/device.h"
#include "autotune/measure/isolate.h"
#include "autotune/measure/verify.h"
#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;

// Names the variant in the log file before it runs: what a machine that froze leaves behind.
class LaunchLog {
 public:
  explicit LaunchLog(const std::string& path)
      : file_(path.empty() ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    if (!path.empty() && file_.get() < 0) throw kernels::IoError(path, "open", errno);
  }
  void launching(const char* step, const AnyVariant& variant) const {
    const std::string line =
        std::string(step) + " " + name_of(variant.problem.kernel) + " " + variant.name() + "\n";
    // a full disk must not stop the tuning
    if (file_.get() >= 0 && ::write(file_.get(), line.data(), line.size()) < 0) return;
  }

 private:
  kernels::Descriptor file_;
};

IsolationLimits limits_of(const MeasureSettings& settings, Patience& patience) {
  constexpr long long kRoom = 8LL << 30;
  return {settings.silence_seconds,
          settings.memory_bytes != 0 ? settings.memory_bytes : available_memory_bytes() + kRoom, &patience};
}
// With candidates other than the default, which is the baseline.
Patience patience_of(const MeasureSettings& settings) {
  constexpr double kTimes = 50, kLeastSeconds = 5;
  return {kTimes, kLeastSeconds, settings.silence_seconds};
}

// Rejects whom a failed child blames. Throws EnvironmentError when that is nobody.
void blame(std::vector<Candidate>& candidates, const ChildEnd& end, Stage stage) {
  const bool known =
      end.last_launched >= 0 && static_cast<std::size_t>(end.last_launched) < candidates.size();
  Candidate* candidate = known ? &candidates[static_cast<std::size_t>(end.last_launched)] : nullptr;
  if (candidate == nullptr || candidate->code() == nullptr)
    throw kernels::EnvironmentError("tune: the " + std::string(name_of(stage)) +
                                    " process ended early: " + end.detail);
  const Reason reason = end.kind == ChildEnd::Kind::kHung          ? Reason::kHung
                        : end.kind == ChildEnd::Kind::kOutOfMemory ? Reason::kOutOfMemory
                                                                   : Reason::kCrashed;
  candidate->reject(stage, reason, end.detail);
}

// The body of a timing child: warm-up, screening of all, then fresh rounds of the finalists and the default.
class TimingSession {
 public:
  TimingSession(const std::vector<Candidate>& candidates, const MeasureSettings& settings,
                const Channel& channel)
      : candidates_(candidates), settings_(settings), channel_(channel), executor_(settings.open()) {
    executor_->allocate(candidates.front().variant().problem, settings.seed);
  }

  void run() {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].as<Verified>() != nullptr) all.push_back(i);
    const LaunchLog log(settings_.log_path);
    for (const std::size_t i : all) log.launching("time", candidates_[i].variant());

    const std::vector<std::size_t> finalists =
        pick(all, rounds("screening", all, settings_.screening_rounds, settings_.seed));
    rounds("final", finalists, settings_.final_rounds, settings_.seed + 1);
  }

 private:
  bool in_time() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count() <
           settings_.seconds;
  }

  Rounds rounds(const char* phase, const std::vector<std::size_t>& items, int wanted, std::uint64_t seed) {
    std::vector<Workload> workloads = {executor_->ceiling()};
    channel_.report(
        {{"phase", phase}, {"ceiling", workloads.front().name}, {"ceiling_bytes", workloads.front().bytes}});
    for (const std::size_t i : items) workloads.push_back(executor_->workload(candidates_[i]));
    Rounds measured(std::move(workloads), seed, executor_->stopwatch());
    const auto announce = [&](std::size_t workload) {
      channel_.launching(workload == 0 ? -1 : static_cast<int>(items[workload - 1]));
    };
    measured.run(/*warm_up=*/true, announce);
    // Disturbed rounds are made up for, within reason: a machine that is never quiet yields no winner.
    constexpr int kPatience = 3;
    for (int round = 0, kept = 0; kept < wanted && round < (in_time() ? kPatience : 1) * wanted; ++round) {
      measured.run(/*warm_up=*/false, announce);
      const auto& times = measured.times_ns();
      json ns = json::object();
      for (std::size_t i = 0; i < items.size(); ++i) ns[std::to_string(items[i])] = times[i + 1].back();
      channel_.report({{"phase", phase}, {"ceiling_ns", times[0].back()}, {"ns", ns}});
      kept = static_cast<int>(count_of(kept_rounds(times[0], settings_.ceiling_share)));
    }
    return measured;
  }

  // The default and the fastest others by median ratio to it.
  std::vector<std::size_t> pick(const std::vector<std::size_t>& items, const Rounds& screening) const {
    const std::vector<bool> keep = kept_rounds(screening.times_ns()[0], settings_.ceiling_share);
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t i = 1; i < items.size(); ++i)  // items[0] is the default
      ranked.push_back(
          {ratio_interval(screening.times_ns()[i + 1], screening.times_ns()[1], keep).median, items[i]});
    std::sort(ranked.begin(), ranked.end());
    std::vector<std::size_t> finalists = {items.front()};
    for (std::size_t i = 0; i < ranked.size() && i < static_cast<std::size_t>(settings_.finalists); ++i)
      finalists.push_back(ranked[i].second);
    return finalists;
  }

  const std::vector<Candidate>& candidates_;
  const MeasureSettings& settings_;
  const Channel& channel_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::unique_ptr<Executor> executor_;
};

}  // namespace

void RoundSamples::add(const json& report) {
  if (report.contains("ceiling")) {
    ceiling = {report["ceiling"].get<std::string>(), report["ceiling_bytes"].get<double>(), {}};
    return;
  }
  const auto ns_of = [](const json& told) {  // JSON has a null for what is not finite
    if (!told.is_number() || told.get<double>() <= 0)
      throw kernels::EnvironmentError("tune: the device's clock tells " + told.dump() + " ns of a run");
    return told.get<double>();
  };
  ceiling_ns.push_back(ns_of(report["ceiling_ns"]));
  for (const auto& [item, time] : report["ns"].items())
    ns[static_cast<std::size_t>(std::stoul(item))].push_back(ns_of(time));
}

Measurement evaluate(std::vector<Candidate>& candidates, RoundSamples screening, RoundSamples finals,
                     const MeasureSettings& settings) {
  const Problem problem = candidates.front().variant().problem;
  Measurement m;
  m.ceiling_share = settings.ceiling_share;
  const std::vector<bool> keep_screening = kept_rounds(screening.ceiling_ns, m.ceiling_share);
  const std::vector<bool> keep_final = kept_rounds(finals.ceiling_ns, m.ceiling_share);
  const int kept_final = static_cast<int>(count_of(keep_final));
  m.discarded_rounds = static_cast<int>(keep_final.size()) - kept_final;
  m.too_noisy = are_too_few(kept_final);
  const double bytes = problem.bytes();

  std::vector<Contender> contenders;  // the default, and who was in enough final rounds
  std::vector<std::size_t> index;
  m.speedup.resize(candidates.size());
  m.share_of_ceiling.assign(candidates.size(), std::nan(""));
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].as<Verified>() == nullptr) continue;
    const bool final = !finals.ns[i].empty();
    const RoundSamples& source = final ? finals : screening;
    const std::vector<bool>& keep = final ? keep_final : keep_screening;
    m.speedup[i] = ratio_interval(source.ns[0], source.ns[i], keep);
    m.share_of_ceiling[i] = ratio_interval(source.ceiling_ns, source.ns[i], keep).median * bytes /
                            finals.ceiling.bytes.value_or(0);
    if (i > 0 && (!final || m.too_noisy)) continue;
    const AnyVariant& variant = candidates[i].variant();
    contenders.push_back(
        {m.speedup[i], variant.fit != nullptr ? error_order(variant.fit->bounds) : ErrorOrder{},
         changes_between(variant.parameters(), candidates.front().variant().parameters()), variant.name()});
    index.push_back(i);
  }
  m.winner = index[best(contenders)];
  m.gain = m.winner > 0;
  m.decided = !finals.ns.front().empty();
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (candidates[i].as<Verified>() != nullptr) candidates[i].timed(screening.ns[i], finals.ns[i]);
  m.screening = std::move(screening), m.finals = std::move(finals);
  return m;
}

Record record_of(const Candidate& candidate, std::size_t index, const Measurement* m,
                 const RunIdentity& run) {
  const AnyVariant& variant = candidate.variant();
  const Problem& problem = variant.problem;
  Record record;
  record.run = run;
  record.kernel = name_of(problem.kernel), record.format = name_of(problem.format),
  record.elements = problem.elements();
  if (problem.over_rows()) record.rows = problem.rows, record.cols = problem.cols;
  record.variant = variant.name(), record.parameters = variant.parameters(), record.is_default = index == 0,
  record.state = candidate.state_name();
  if (variant.fit) record.fit = fit_record(problem, *variant.fit);
  if (const Compiled* code = candidate.code()) record.compile_ms = code->compile_ms;
  if (const auto* rejected = candidate.as<Rejected>())
    record.rejected = {name_of(rejected->stage), name_of(rejected->reason), rejected->detail, {}};
  const auto* timed = candidate.as<Timed>();
  if (timed == nullptr || m == nullptr) return record;
  record.finalist = !timed->final_ns.empty();
  const std::vector<double>& ns = *record.finalist ? timed->final_ns : timed->screening_ns;
  const std::vector<bool> keep =
      kept_rounds((*record.finalist ? m->finals : m->screening).ceiling_ns, m->ceiling_share);
  record.checked = timed->verified.checked;
  record.bytes = problem.bytes();
  if (!problem.over_rows()) record.bytes_per_element = problem.bytes_per_element();
  record.ceiling = m->finals.ceiling;
  record.screening = {timed->screening_ns, m->screening.ns.front(), m->screening.ceiling_ns, {}};
  record.final = {timed->final_ns, m->finals.ns.front(), m->finals.ceiling_ns, {}};
  record.discarded_rounds = m->discarded_rounds;
  record.speedup = {m->speedup[index],
                    count_of(keep) < kFewestRounds ? std::nullopt : std::optional(kConfidence)};
  if (!*record.finalist || !m->too_noisy) {
    record.gb_per_s = *record.bytes / kernels::median(kept_of(ns, keep));
    record.share_of_ceiling = m->share_of_ceiling[index];
  }
  record.winner = m->decided && index == m->winner;
  record.gain = index == m->winner && m->gain;
  return record;
}

void print_rejected(const std::vector<Candidate>& candidates) {
  for (const Candidate& candidate : candidates)
    if (const auto* why = candidate.as<Rejected>())
      std::printf("  rejected: %s at %s: %s: %s\n", candidate.variant().name().c_str(), name_of(why->stage),
                  name_of(why->reason), why->detail.c_str());
}

void print_problem(const std::vector<Candidate>& candidates, const Measurement& m) {
  const AnyVariant &best = candidates[m.winner].variant(), &normal = candidates[0].variant();
  const auto rejected = std::count_if(candidates.begin(), candidates.end(),
                                      [](const Candidate& c) { return c.as<Rejected>() != nullptr; });
  const auto timed = std::count_if(candidates.begin(), candidates.end(),
                                   [](const Candidate& c) { return c.as<Timed>() != nullptr; });
  const Interval& speedup = m.speedup[m.winner];
  char share[32] = "   -";
  if (!m.too_noisy)
    std::snprintf(share, sizeof share, "%4.0f%% of %s", 100 * m.share_of_ceiling[m.winner],
                  m.finals.ceiling.name.c_str());
  std::printf("%-13s %-34s %-14s ", name_of(best.problem.kernel), best.name().c_str(), share);
  if (m.gain)
    std::printf("%.3fx [%.3f, %.3f] the default %s", speedup.median, speedup.low, speedup.high,
                normal.name().c_str());
  else if (m.too_noisy)
    std::printf("kept the default: too noisy");
  else
    std::printf("no gain over the default");
  std::printf("  (%td timed, %td rejected, %d of %zu rounds discarded)\n", timed, rejected,
              m.discarded_rounds, m.finals.ceiling_ns.size());
  print_rejected(candidates);
}

namespace {

// Loads the one of a caller's header: in a child process only.
VariantFunction reference_of(const AnyVariant& variant) {
  if (!variant.fit) return fitless_reference(variant.problem);
  return variant.fit->header.empty() ? variant.fit->reference : load(variant.fit->compiled_reference);
}

}  // namespace

void verify(std::vector<Candidate>& candidates, const MeasureSettings& settings) {
  std::vector<int> waiting;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (candidates[i].as<Compiled>() != nullptr) waiting.push_back(static_cast<int>(i));
  const LaunchLog log(settings.log_path);
  Patience patience = patience_of(settings);
  while (!waiting.empty()) {
    const auto body = [&](const Channel& channel) {
      const std::unique_ptr<Executor> executor = settings.open();
      const FitChoice* fit = nullptr;  // of the verifier
      std::optional<Verifier> verifier;
      for (const int item : waiting) {
        const Candidate& candidate = candidates[static_cast<std::size_t>(item)];
        const AnyVariant& variant = candidate.variant();
        if (!verifier || fit != variant.fit.get()) {
          fit = variant.fit.get();
          verifier.emplace(variant.problem, reference_of(variant), settings.seed);
        }
        log.launching("verify", variant);
        channel.launching(item);
        Verifier::Verdict verdict;
        try {
          verdict = verifier->verdict(executor->function(candidate), variant.block_elements(),
                                      [&](i64 cols) { return variant.takes(cols); });
        } catch (const WroteOutside& wrote) {
          verdict.mismatch = wrote.what();
        }
        channel.report(
            {{"item", item}, {"mismatch", verdict.mismatch.value_or("")}, {"checked", verdict.checked}});
      }
    };
    const auto on_report = [&](const json& report) {
      const int item = report["item"].get<int>();
      Candidate& candidate = candidates[static_cast<std::size_t>(item)];
      const auto difference = report["mismatch"].get<std::string>();
      const auto checked = report["checked"].get<long long>();
      if (!difference.empty())
        candidate.reject(Stage::kVerify, Reason::kWrongAnswer, difference);
      else if (checked == 0)  // a comparison of nothing proves nothing
        candidate.reject(Stage::kVerify, Reason::kNotUnderstood,
                         "takes none of the shapes that it would be verified on");
      else
        candidate.verified(checked);
      waiting.erase(std::find(waiting.begin(), waiting.end(), item));
    };
    const ChildEnd end = run_isolated(body, on_report, limits_of(settings, patience));
    if (end.kind == ChildEnd::Kind::kFinished) break;
    blame(candidates, end, Stage::kVerify);
    if (end.last_launched == 0) break;  // without the default nobody will be timed
    waiting.erase(std::find(waiting.begin(), waiting.end(), end.last_launched));
  }
}

Measurement tune_problem(std::vector<Candidate>& candidates, const MeasureSettings& settings,
                         const RunIdentity& run, const std::string& database_path,
                         std::vector<Record>& winners, PhaseSeconds& spent) {
  const auto seconds_of = [](double& sum, const auto& phase) {
    const auto began = std::chrono::steady_clock::now();
    phase();
    sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  seconds_of(spent.verify, [&] { verify(candidates, settings); });
  const auto keep_records = [&](const Measurement* m) {
    std::vector<Record> records;
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (candidates[i].as<Proposed>() == nullptr && (m != nullptr || i == 0))
        records.push_back(record_of(candidates[i], i, m, run));
    append_records(database_path, records);
  };
  try {
    Measurement m;
    seconds_of(spent.measure, [&] { m = measure(candidates, settings); });
    keep_records(&m);
    if (m.decided) winners.push_back(record_of(candidates[m.winner], m.winner, &m, run));
    return m;
  } catch (const kernels::EnvironmentError&) {
    // Why the default does not run is worth a row; what befell others on a device that fails would bar them.
    keep_records(nullptr);
    throw;
  }
}

Measurement measure(std::vector<Candidate>& candidates, const MeasureSettings& settings) {
  Patience patience = patience_of(settings);
  while (true) {
    if (candidates.front().as<Verified>() == nullptr) {
      const auto* why = candidates.front().as<Rejected>();
      throw kernels::EnvironmentError("tune: the default variant of " +
                                      candidates.front().variant().problem.name() + " does not run here: " +
                                      (why != nullptr ? std::string(name_of(why->reason)) + ": " + why->detail
                                                      : candidates.front().state_name()));
    }
    RoundSamples screening(candidates.size()), finals(candidates.size());
    const auto body = [&](const Channel& channel) { TimingSession(candidates, settings, channel).run(); };
    const auto on_report = [&](const json& report) {
      (report["phase"] == "final" ? finals : screening).add(report);
    };
    const ChildEnd end = run_isolated(body, on_report, limits_of(settings, patience));
    if (end.kind == ChildEnd::Kind::kFinished)
      return evaluate(candidates, std::move(screening), std::move(finals), settings);
    blame(candidates, end, Stage::kTime);  // and once more without it: rounds that had it are not comparable
  }
}

}  // namespace outgrad::autotune
