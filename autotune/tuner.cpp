// Verification and measurement in children, the records they leave, the `tune` command.
#include "autotune/tuner.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <set>

#include "autotune/defaults.h"
#include "autotune/gpu/device_command.h"
#include "autotune/gpu/offline.h"
#include "autotune/header.h"
#include "autotune/isolate.h"
#include "autotune/merge.h"
#include "autotune/replay.h"
#include "autotune/study.h"
#include "autotune/tuned_header.h"
#include "autotune/verify.h"
#include "kernels/host/files.h"

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
    const std::string line = std::string(step) + " " + name_of(variant.problem.kernel) + " " + variant.name() + "\n";
    if (file_.get() >= 0 && ::write(file_.get(), line.data(), line.size()) < 0) return;  // a full disk must not stop the tuning
  }

 private:
  kernels::detail::Descriptor file_;
};

IsolationLimits limits_of(const MeasureSettings& settings) {
  constexpr long long kRoom = 8LL << 30;
  return {settings.silence_seconds, settings.memory_bytes != 0 ? settings.memory_bytes : available_memory_bytes() + kRoom};
}

// Rejects whom a failed child blames. Throws EnvironmentError when that is nobody.
void blame(std::vector<Candidate>& candidates, const ChildEnd& end, Stage stage) {
  const bool known = end.last_launched >= 0 && static_cast<std::size_t>(end.last_launched) < candidates.size();
  Candidate* candidate = known ? &candidates[static_cast<std::size_t>(end.last_launched)] : nullptr;
  if (candidate == nullptr || candidate->code() == nullptr)
    throw kernels::EnvironmentError("tune: the " + std::string(name_of(stage)) + " process ended early: " + end.detail);
  const Reason reason = end.kind == ChildEnd::Kind::kHung          ? Reason::kHung
                        : end.kind == ChildEnd::Kind::kOutOfMemory ? Reason::kOutOfMemory
                                                                   : Reason::kCrashed;
  candidate->reject(stage, reason, end.detail);
}

// What the children report of one round, and where the parent keeps it.
struct RoundSamples {
  std::string ceiling_name;
  double ceiling_bytes = 0;
  std::vector<double> ceiling_ns;
  std::vector<std::vector<double>> ns;  // per candidate

  explicit RoundSamples(std::size_t candidates = 0) : ns(candidates) {}
  void add(const json& report) {
    if (report.contains("ceiling")) {
      ceiling_name = report["ceiling"].get<std::string>();
      ceiling_bytes = report["ceiling_bytes"].get<double>();
      return;
    }
    ceiling_ns.push_back(report["ceiling_ns"].get<double>());
    for (const auto& [item, time] : report["ns"].items()) ns[static_cast<std::size_t>(std::stoul(item))].push_back(time.get<double>());
  }
};

// The body of a timing child: warm-up, screening of all, then fresh rounds of the finalists and the default.
class TimingSession {
 public:
  TimingSession(const std::vector<Candidate>& candidates, const MeasureSettings& settings, const Channel& channel)
      : candidates_(candidates),
        settings_(settings),
        channel_(channel),
        executor_(settings.open()) {
    executor_->allocate(candidates.front().variant().problem, settings.seed);
  }

  void run() {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].as<Verified>() != nullptr) all.push_back(i);
    const LaunchLog log(settings_.log_path);
    for (const std::size_t i : all) log.launching("time", candidates_[i].variant());

    const std::vector<std::size_t> finalists = pick(all, rounds("screening", all, settings_.screening_rounds, settings_.seed));
    rounds("final", finalists, settings_.final_rounds, settings_.seed + 1);
  }

 private:
  bool in_time() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count() < settings_.seconds; }

  Rounds rounds(const char* phase, const std::vector<std::size_t>& items, int wanted, std::uint64_t seed) {
    std::vector<Workload> workloads = {executor_->ceiling()};
    channel_.report({{"phase", phase}, {"ceiling", workloads.front().name}, {"ceiling_bytes", workloads.front().bytes}});
    for (const std::size_t i : items) workloads.push_back(executor_->workload(candidates_[i]));
    Rounds measured(std::move(workloads), 0, seed, executor_->stopwatch());
    const auto announce = [&](std::size_t workload) { channel_.launching(workload == 0 ? -1 : static_cast<int>(items[workload - 1])); };
    measured.run(/*warm_up=*/true, announce);
    // Disturbed rounds are made up for, within reason: a machine that is never quiet yields no winner.
    constexpr int kPatience = 3;
    for (int round = 0, kept = 0; kept < wanted && round < (in_time() ? kPatience : 1) * wanted; ++round) {
      measured.run(/*warm_up=*/false, announce);
      const auto& times = measured.times_ns();
      json ns = json::object();
      for (std::size_t i = 0; i < items.size(); ++i) ns[std::to_string(items[i])] = times[i + 1].back();
      channel_.report({{"phase", phase}, {"ceiling_ns", times[0].back()}, {"ns", ns}});
      const std::vector<bool> keep = kept_rounds(times[0], settings_.ceiling_share);
      kept = static_cast<int>(std::count(keep.begin(), keep.end(), true));
    }
    return measured;
  }

  // The default and the fastest others by median ratio to it.
  std::vector<std::size_t> pick(const std::vector<std::size_t>& items, const Rounds& screening) const {
    const std::vector<bool> keep = kept_rounds(screening.times_ns()[0], settings_.ceiling_share);
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t i = 1; i < items.size(); ++i)  // items[0] is the default
      ranked.push_back({ratio_interval(screening.times_ns()[i + 1], screening.times_ns()[1], keep, settings_.seed).median, items[i]});
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

Measurement evaluate(std::vector<Candidate>& candidates, RoundSamples screening, RoundSamples finals, const MeasureSettings& settings) {
  const Problem problem = candidates.front().variant().problem;
  Measurement m;
  m.ceiling_name = finals.ceiling_name;
  m.ceiling_bytes = finals.ceiling_bytes;
  m.ceiling_share = settings.ceiling_share;
  const std::vector<bool> keep_screening = kept_rounds(screening.ceiling_ns, m.ceiling_share);
  const std::vector<bool> keep_final = kept_rounds(finals.ceiling_ns, m.ceiling_share);
  m.discarded_rounds = static_cast<int>(std::count(keep_final.begin(), keep_final.end(), false));
  const auto kept_final = std::count(keep_final.begin(), keep_final.end(), true);
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
    m.speedup[i] = ratio_interval(source.ns[0], source.ns[i], keep, settings.seed + i);
    m.share_of_ceiling[i] = ratio_interval(source.ceiling_ns, source.ns[i], keep, settings.seed).median * bytes / m.ceiling_bytes;
    candidates[i].timed(screening.ns[i], finals.ns[i]);
    if (i > 0 && (!final || kept_final < kLeastRounds)) continue;
    const AnyVariant& variant = candidates[i].variant();
    contenders.push_back({m.speedup[i], error_rank(variant.fit != nullptr ? variant.fit->accuracy : ""),
                          changes_between(variant.parameters(), candidates.front().variant().parameters()), variant.name()});
    index.push_back(i);
  }
  m.winner = index[best(contenders)];
  m.gain = m.winner > 0;
  m.baseline_ns = finals.ns.front();
  m.screening_ceiling_ns = std::move(screening.ceiling_ns);
  m.final_ceiling_ns = std::move(finals.ceiling_ns);
  return m;
}

json to_json(const Interval& interval) {
  return {{"median", interval.median}, {"low", interval.low}, {"high", interval.high}, {"confidence", kConfidence}};
}

json record_of(const Candidate& candidate, std::size_t index, const Measurement* m, const RunIdentity& run) {
  const AnyVariant& variant = candidate.variant();
  json record = {{"schema", kSchema},
                 {"time", run.time},
                 {"seed", run.seed},
                 {"device", run.device},
                 {"kernels_sha256", run.hashes.kernels},
                 {"coefficients_sha256", run.hashes.coefficients},
                 {"compiler", run.compiler},
                 {"flags", run.flags},
                 {"kernel", name_of(variant.problem.kernel)},
                 {"format", name_of(variant.problem.format)},
                 {"variant", variant.name()},
                 {"parameters", variant.parameters()},
                 {"default", index == 0},
                 {"state", candidate.state_name()}};
  if (variant.fit) {
    record["fit"] = {{"name", variant.fit->name}, {"class", variant.fit->accuracy}};
    if (!variant.fit->header.empty()) record["fit"]["sha256"] = sha256(variant.fit->header);
  }
  if (const Compiled* code = candidate.code()) record["compile_ms"] = code->compile_ms;
  if (const auto* rejected = candidate.as<Rejected>()) {
    record["rejected"] = {{"stage", name_of(rejected->stage)}, {"reason", name_of(rejected->reason)}, {"detail", rejected->detail}};
  }
  const auto* timed = candidate.as<Timed>();
  if (timed == nullptr || m == nullptr) return record;
  const bool final = !timed->final_ns.empty();
  const std::vector<double>& ns = final ? timed->final_ns : timed->screening_ns;
  const std::vector<bool> keep = kept_rounds(final ? m->final_ceiling_ns : m->screening_ceiling_ns, m->ceiling_share);
  const double bytes = variant.problem.bytes();
  record.update({{"checked", timed->verified.checked},
                 {"elements", variant.problem.elements()},
                 {"bytes", bytes},
                 {"ceiling", {{"name", m->ceiling_name}, {"bytes", m->ceiling_bytes}}},
                 {"screening", {{"ns", timed->screening_ns}, {"ceiling_ns", m->screening_ceiling_ns}}},
                 {"final", {{"ns", timed->final_ns}, {"default_ns", m->baseline_ns}, {"ceiling_ns", m->final_ceiling_ns}}},
                 {"discarded_rounds", m->discarded_rounds},
                 {"finalist", final},
                 {"speedup", to_json(m->speedup[index])},
                 {"gb_per_s", bytes / median(kept_of(ns, keep))},
                 {"share_of_ceiling", m->share_of_ceiling[index]},
                 {"winner", index == m->winner},
                 {"gain", index == m->winner && m->gain}});
  if (variant.problem.over_rows())
    record.update({{"rows", variant.problem.rows}, {"cols", variant.problem.cols}});
  else
    record["bytes_per_element"] = variant.problem.bytes_per_element();
  return record;
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

namespace {

void create_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw kernels::IoError(path, "create", error.value());
}

}  // namespace

void print_problem(const std::vector<Candidate>& candidates, const Measurement& m) {
  const AnyVariant &best = candidates[m.winner].variant(), &normal = candidates[0].variant();
  const auto rejected = std::count_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.as<Rejected>() != nullptr; });
  const auto timed = std::count_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.as<Timed>() != nullptr; });
  const Interval& speedup = m.speedup[m.winner];
  std::printf("%-13s %-34s %4.0f%% of %-5s ", name_of(best.problem.kernel), best.name().c_str(), 100 * m.share_of_ceiling[m.winner],
              m.ceiling_name.c_str());
  if (m.gain)
    std::printf("%.3fx [%.3f, %.3f] the default %s", speedup.median, speedup.low, speedup.high, normal.name().c_str());
  else
    std::printf("no gain over the default");
  std::printf("  (%td timed, %td rejected, %d of %zu rounds discarded)\n", timed, rejected, m.discarded_rounds, m.final_ceiling_ns.size());
  for (const Candidate& candidate : candidates)
    if (const auto* why = candidate.as<Rejected>())
      std::printf("  rejected: %s at %s: %s: %s\n", candidate.variant().name().c_str(), name_of(why->stage), name_of(why->reason),
                  why->detail.c_str());
}

i64 elements_for(const Problem& problem, const CpuIdentity& cpu) {
  constexpr i64 kLeast = i64{1} << 24;  // tens of milliseconds even where no cache size is known
  constexpr i64 kFloor = i64{1} << 20;  // below this a call is too short to time, whatever the memory
  const double bytes = problem.bytes_per_element();
  const double wanted = 4 * static_cast<double>(cpu.l3_bytes) * cpu.sockets_seen / bytes;
  const double affordable = static_cast<double>(available_memory_bytes()) / 4 / bytes;
  i64 elements = kLeast;
  while (static_cast<double>(elements) < wanted) elements *= 2;
  while (elements > kFloor && static_cast<double>(elements) > affordable) elements /= 2;
  return elements;
}

Problem sized_for(const Problem& problem, const CpuIdentity& cpu) { return sized_within(problem, elements_for(problem, cpu)); }

namespace {

// Loads the one of a caller's header: in a child process only.
VariantFunction reference_of(const AnyVariant& variant) {
  if (!variant.fit) return norm_reference(variant.problem);
  return variant.fit->header.empty() ? variant.fit->reference : load(variant.fit->compiled_reference);
}

}  // namespace

void verify(std::vector<Candidate>& candidates, const MeasureSettings& settings) {
  std::vector<int> waiting;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (candidates[i].as<Compiled>() != nullptr) waiting.push_back(static_cast<int>(i));
  const LaunchLog log(settings.log_path);
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
        std::optional<std::string> difference;
        try {
          difference = verifier->mismatch(executor->function(candidate), variant.block_elements());
        } catch (const WroteOutside& wrote) {
          difference = wrote.what();
        }
        channel.report({{"item", item}, {"mismatch", difference.value_or("")}, {"checked", verifier->checked(variant.block_elements())}});
      }
    };
    const auto on_report = [&](const json& report) {
      const int item = report["item"].get<int>();
      Candidate& candidate = candidates[static_cast<std::size_t>(item)];
      if (const auto difference = report["mismatch"].get<std::string>(); difference.empty())
        candidate.verified(report["checked"].get<long long>());
      else
        candidate.reject(Stage::kVerify, Reason::kWrongAnswer, difference);
      waiting.erase(std::find(waiting.begin(), waiting.end(), item));
    };
    const ChildEnd end = run_isolated(body, on_report, limits_of(settings));
    if (end.kind == ChildEnd::Kind::kFinished) break;
    blame(candidates, end, Stage::kVerify);
    waiting.erase(std::find(waiting.begin(), waiting.end(), end.last_launched));
  }
}

Measurement tune_problem(std::vector<Candidate>& candidates, const MeasureSettings& settings, const RunIdentity& run,
                         const std::string& database_path, std::vector<json>& winners) {
  verify(candidates, settings);
  const auto keep_records = [&](const Measurement* m) {
    std::vector<json> records;
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (candidates[i].as<Proposed>() == nullptr) records.push_back(record_of(candidates[i], i, m, run));
    append_records(database_path, records);
  };
  try {
    const Measurement m = measure(candidates, settings);
    keep_records(&m);
    winners.push_back(record_of(candidates[m.winner], m.winner, &m, run));
    return m;
  } catch (const kernels::EnvironmentError&) {
    keep_records(nullptr);  // why the default does not run is worth a row
    throw;
  }
}

Measurement measure(std::vector<Candidate>& candidates, const MeasureSettings& settings) {
  while (true) {
    if (candidates.front().as<Verified>() == nullptr) {
      const auto* why = candidates.front().as<Rejected>();
      throw kernels::EnvironmentError(
          "tune: the default variant of " + candidates.front().variant().problem.name() + " does not run here: " +
          (why != nullptr ? std::string(name_of(why->reason)) + ": " + why->detail : candidates.front().state_name()));
    }
    RoundSamples screening(candidates.size()), finals(candidates.size());
    const auto body = [&](const Channel& channel) { TimingSession(candidates, settings, channel).run(); };
    const auto on_report = [&](const json& report) { (report["phase"] == "final" ? finals : screening).add(report); };
    const ChildEnd end = run_isolated(body, on_report, limits_of(settings));
    if (end.kind == ChildEnd::Kind::kFinished)
      return evaluate(candidates, std::move(screening), std::move(finals), settings);
    blame(candidates, end, Stage::kTime);  // and once more without it: rounds that had it are not comparable
  }
}

namespace {

RunIdentity identify_run(const Toolchain& toolchain, const CpuIdentity& cpu, std::uint64_t seed) {
  RunIdentity run{
      to_json(cpu), hash_sources(toolchain.source_root), toolchain.version.substr(0, toolchain.version.find('\n')), "", utc_now(), seed};
  for (const std::string& flag : toolchain.flags)
    if (flag.rfind("-I", 0) != 0) run.flags += (run.flags.empty() ? "" : " ") + flag;  // a path would tie the record to a folder
  return run;
}

// `tune --record DIR`: every point of the fine space of each problem, compiled, verified and timed in batches beside the default, until the
// budget is spent; DIR/PROBLEM.jsonl is a database that `--device replay:` reads. Points that it has for this device, these sources and
// this array length are not run again, so that a recording may take several runs.
int record_command(const Options& options, const std::vector<Problem>& problems) {
  // Times of one batch come from the same rounds as the default's: more candidates make a round longer and a drift within it larger.
  constexpr std::size_t kBatch = 24;
  constexpr i64 kElements = i64{1} << 18;  // in the last cache level: in memory every schedule waits for the same bytes, and the space is flat
  const std::string out = options.text("record", "");
  const double budget = options.number("budget", 600, 1, 1e6);
  const auto most = static_cast<std::size_t>(options.integer("evaluations", INT64_MAX, 1, INT64_MAX));  // of each problem, in this run
  MeasureSettings settings;
  settings.seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  settings.screening_rounds = kLeastRounds;
  settings.final_rounds = settings.finalists = 0;
  create_folder(out);
  settings.log_path = out + "/record.log";
  const auto began = std::chrono::steady_clock::now();
  const auto left = [&] { return budget - std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  const Toolchain toolchain = find_toolchain();
  const CpuIdentity cpu = identify_cpu();
  RunIdentity run = identify_run(toolchain, cpu, settings.seed);
  CompileSettings compiling;
  compiling.cache_folder = out + "/variants";
  compiling.jobs = cpu.threads;

  for (std::size_t p = 0; p < problems.size(); ++p) {
    const Problem problem = sized_within(problems[p], kElements);
    const Fits& fits = fits_of(problem);
    const Space space = cpu_space(problem, fits, cpu.vector_bits, cpu.threads, Grid::kFine);
    const Points points = space.construct();
    const std::string path = out + "/" + problem.name() + ".jsonl";
    std::set<std::string> done;
    for (const json& record : load_database(path).records) {
      const auto is = [&](const char* key, const auto& value) { return record.contains(key) && record[key] == value; };
      const bool ended = is("state", "rejected") || (is("state", "timed") && is("elements", problem.elements()) && (!problem.over_rows() || is("rows", problem.rows)));
      const auto of_device = record.contains("device") ? device_key(record["device"]) : std::nullopt;
      if (ended && of_device == device_key(run.device) && is("kernels_sha256", run.hashes.kernels) &&
          is("coefficients_sha256", run.hashes.coefficients) && record.contains("parameters"))
        done.insert(record["parameters"].dump());
    }
    std::vector<Variant> waiting;
    for (std::size_t i = 0; i < points.size(); ++i)
      if (Variant variant = variant_at(problem, fits, space, points[i]); done.count(variant.parameters().dump()) == 0)
        waiting.push_back(std::move(variant));
    std::uint64_t state = settings.seed;
    for (std::size_t i = waiting.size(); i > 1; --i) std::swap(waiting[i - 1], waiting[next_random(state) % i]);
    std::printf("%-18s space: %s; %zu to record\n", problem.name().c_str(), size_report(points).c_str(), waiting.size());
    std::fflush(stdout);

    const double until = left() - left() / static_cast<double>(problems.size() - p);  // what the problems after this one are left
    const std::size_t stop = waiting.size() - std::min(most, waiting.size());
    while (waiting.size() > stop && left() > until) {
      std::vector<Candidate> candidates = {Candidate(default_variant(problem))};
      for (; candidates.size() <= kBatch && waiting.size() > stop; waiting.pop_back()) candidates.emplace_back(waiting.back());
      std::vector<Candidate*> proposed;
      for (Candidate& candidate : candidates) proposed.push_back(&candidate);
      compile(proposed, toolchain, compiling);
      run.time = utc_now();
      std::vector<json> winners;
      tune_problem(candidates, settings, run, path, winners);
      std::error_code error;
      std::filesystem::remove_all(compiling.cache_folder, error);  // thousands of objects that nobody asks for again
    }
    std::printf("%-18s %zu of %zu points left\n", problem.name().c_str(), waiting.size(), points.size());
  }
  return kernels::kExitHolds;
}

}  // namespace


int tune_command(const std::vector<std::string>& args) {
  const Options options("tune", args,
                        {"device", "kernel", "format", "budget", "out", "seed", "evaluations", "elements", "shape", "headers", "strategy", "seeds", "shares",
                         "kernel-tuner", "export-kernel-tuner", "export-t4", "record"},
                        {"json", "publish"}, {"study", "merge", "defaults"});
  if (options.has("merge")) {
    options.refuse_all_but("--merge", {"merge", "out", "json"});
    return merge_command(options);
  }
  if (options.has("defaults")) {
    options.refuse_all_but("--defaults", {"defaults", "out", "json"});
    return defaults_command(options);
  }
  const bool study = options.has("study"), replayed = options.text("device", "").rfind("replay:", 0) == 0;
  if (study)
    options.refuse_all_but("--study", {"study", "seeds", "shares", "strategy", "kernel-tuner", "out", "json"});
  else if (replayed)
    options.refuse_all_but("a replay",
                           {"device", "kernel", "format", "strategy", "evaluations", "seed", "export-kernel-tuner", "export-t4", "json"});
  else if (options.has("record"))
    options.refuse_all_but("--record", {"record", "device", "kernel", "format", "budget", "evaluations", "elements", "shape", "seed"});
  else
    options.refuse_all_but("a device of kernels",
                           {"device", "kernel", "format", "budget", "out", "seed", "evaluations", "elements", "shape", "headers", "json", "publish"});
  if (study) return study_command(options);
  if (replayed) return replay_command(options);
  const std::string device = options.text("device", "cpu");
  const bool offline = device.rfind("sm_", 0) == 0, cuda = device.rfind("cuda:", 0) == 0;
  std::vector<Problem> problems = cuda ? problems_of(options, kGeluKernels) : problems_of(options);
  if (offline) {
    options.refuse_all_but("a device that is not there", {"device", "kernel", "format", "budget", "out", "seed", "evaluations", "elements", "shape", "json"});
    return gpu::offline_command(options, problems);
  }
  if (device.rfind("cuda:", 0) == 0) {
    options.refuse_all_but("a GPU", {"device", "kernel", "format", "budget", "out", "seed", "evaluations", "elements", "shape", "json", "publish"});
    const int status = gpu::device_command(options, problems);
    if (options.has("publish")) publish_command(options.text("out", "out/tuned"));
    return status;
  }
  require_cpu_device(options);
  if (options.has("record")) return record_command(options, problems);
  const double budget = options.number("budget", 60, 1, 1e6);
  const std::string out = options.text("out", "out/tuned");
  // Twelve of about a hundred points: the default, its neighbours and a few at random; compiling them fits the default budget on 2 cores.
  // Headers of the caller's come on top: each is a neighbour of the default.
  const std::vector<GeneratedHeader> headers =
      options.has("headers") ? read_generated_headers(options.text("headers", "")) : std::vector<GeneratedHeader>{};
  for (const GeneratedHeader& header : headers) {
    const auto takes = [&](const Problem& p) { return p.kernel == KernelId::kGeluBackward && header.format == name_of(p.format); };
    if (std::none_of(problems.begin(), problems.end(), takes))
      throw kernels::SpecError(header.path, "kFormat", "'" + header.format + "': --kernel and --format leave no problem that has it");
  }
  const auto evaluations = static_cast<std::size_t>(options.integer("evaluations", 12 + static_cast<i64>(headers.size()), 1, 100'000));
  MeasureSettings settings;
  settings.seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  settings.log_path = out + "/tune_cpu.log";
  create_folder(headers.empty() ? out : out + "/fits");
  const std::string database_path = out + "/tune_cpu.jsonl", tuned_path = out + "/tuned_cpu.h";

  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const Toolchain toolchain = find_toolchain();
  const CpuIdentity cpu = identify_cpu();
  const RunIdentity run = identify_run(toolchain, cpu, settings.seed);
  const Database known = load_database(database_path);
  for (const std::string& warning : known.warnings) kernels::print_error_line("warning: " + warning);

  CompileSettings compiling;
  compiling.cache_folder = out + "/variants";
  compiling.jobs = cpu.threads;
  std::vector<std::vector<Candidate>> all;
  std::vector<Candidate*> proposed;
  const bool as_json = options.has("json");
  for (Problem& problem : problems) {
    problem = sized_for(problem, cpu);
    Fits fits = fits_of(problem);
    if (problem.kernel == KernelId::kGeluBackward) {
      for (const auto& fit : header_fits(headers, problem.format, toolchain, compiling)) {
        kernels::write_file(out + "/" + header_path(*fit), fit->header);  // where the tuned header finds it
        fits.push_back(fit);
      }
    }
    const Space space = cpu_space(problem, fits, cpu.vector_bits, cpu.threads);
    const Points points = space.construct();
    if (!as_json) std::printf("%-18s space: %s\n", problem.name().c_str(), size_report(points).c_str());
    all.emplace_back();
    for (const Variant& variant : choose_variants(problem, fits, space, points, evaluations, settings.seed))
      all.back().emplace_back(variant);
  }
  for (auto& candidates : all)
    for (Candidate& candidate : candidates) proposed.push_back(&candidate);

  compiling.budget_seconds = 0.5 * budget;  // the other half is for running
  if (terminal)
    compiling.progress = [&](std::size_t done, std::size_t units) {
      std::fprintf(stderr, "\rcompiling: %zu of %zu units, %.0f s ", done, units, elapsed());
    };
  compile(proposed, toolchain, compiling);
  if (terminal) std::fprintf(stderr, "\r\033[K");

  std::vector<json> results;
  for (std::size_t p = 0; p < problems.size(); ++p) {
    if (elapsed() > budget && p > 0) {
      std::fprintf(stderr, "outgrad: warning: tune: %s: not tuned, the budget of %.0f s is spent\n", problems[p].name().c_str(), budget);
      continue;
    }
    std::vector<Candidate>& candidates = all[p];
    constexpr double kLeastSeconds = 4;  // a problem's rounds take about two on a quiet machine
    settings.seconds = std::max(kLeastSeconds, (budget - elapsed()) / static_cast<double>(problems.size() - p));
    const Measurement m = tune_problem(candidates, settings, run, database_path, results);
    if (!as_json) print_problem(candidates, m);
  }
  std::vector<json> records = load_database(database_path).records;
  if (options.has("publish")) publish_command(out);
  // Entries of other devices too: the header is for whoever it is given to.
  const Database published = known_records(cpu_key(cpu.model, cpu.threads, cpu.vector_bits, cpu.isa), Rung::kDefault);
  for (const std::string& warning : published.warnings) kernels::print_error_line("warning: " + warning);
  records.insert(records.end(), published.records.begin(), published.records.end());
  kernels::write_file(tuned_path, tuned_header(winners_in(records, run.hashes, out), Backend::kCpu,
                                               "for " + cpu.model + ", " + std::to_string(cpu.threads) + " threads"));
  if (as_json) {
    const json summary = {{"schema", "outgrad.tune_summary/1"},
                          {"seconds", elapsed()},
                          {"database", database_path},
                          {"header", tuned_path},
                          {"winners", results}};
    std::printf("%s\n", summary.dump(2).c_str());
  } else {
    std::printf("%s and %s, in %.1f s\n", tuned_path.c_str(), database_path.c_str(), elapsed());
  }
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
