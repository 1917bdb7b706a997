// The command's ways: search on a device, offline, replay, record.
#include "autotune/tune_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>

#include "autotune/compile.h"
#include "autotune/cpu.h"
#include "autotune/gpu/device_command.h"
#include "autotune/gpu/offline.h"
#include "autotune/gpu/variant.h"
#include "autotune/records/defaults.h"
#include "autotune/records/merge.h"
#include "autotune/search/recorder.h"
#include "autotune/search/replay.h"
#include "kernels/support/files.h"
#include "kernels/support/numbers.h"
#include "kernels/support/progress.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

// What the database says of a problem of this size on this device, with these sources.
std::vector<Record> known_of(const Database& database, const RunIdentity& run, const Problem& problem) {
  std::vector<Record> known;
  for (const Record& record : database.records) {
    if (record.kernel != name_of(problem.kernel) || record.format != name_of(problem.format)) continue;
    if (const auto other = device_key(record.run.device); !other || other != device_key(run.device)) continue;
    if (record.run.hashes != run.hashes || record.run.compiler != run.compiler) continue;
    const bool same_size = record.elements == problem.elements() && (!problem.over_rows() || record.cols == problem.cols);
    if (record.state == "rejected" || same_size) known.push_back(record);
  }
  return known;
}

json summary_of(const Problem& problem, const SearchResult& result) {
  return {{"problem", problem.sized_name()},
          {"evaluated", result.evaluated},
          {"known", result.known},
          {"rejected", result.rejected},
          {"seconds",
           {{"compile", result.seconds.compile}, {"verify", result.seconds.verify}, {"measure", result.seconds.measure}, {"total", result.total_seconds}}},
          {"overhead", result.overhead()}};
}

void print(const SearchResult& result) {
  print_problem(result.finalists, result.final);
  std::printf("  %zu evaluated, %zu known before, %zu rejected; %.1f s: compile %.1f, verify %.1f, measure %.1f, else %.1f%%\n", result.evaluated, result.known,
              result.rejected, result.total_seconds, result.seconds.compile, result.seconds.verify, result.seconds.measure, 100 * result.overhead());
  for (const Candidate& candidate : result.failures)
    if (const auto* why = candidate.as<Rejected>())
      std::printf("  rejected: %s at %s: %s: %s\n", candidate.variant().name().c_str(), name_of(why->stage), name_of(why->reason), why->detail.c_str());
  std::fflush(stdout);
}

// How accurate is what runs here from now on, of each backward of GELU: by the header's entries for this device, else the default's fit.
void print_accuracy(const std::vector<Problem>& problems, const std::vector<TunedChoice>& chosen, const std::optional<DeviceKey>& device) {
  for (const Problem& problem : problems) {
    if (!problem.has_fit() || !is_backward(problem.kernel)) continue;
    std::set<std::string> fits;
    for (const TunedChoice& choice : chosen)
      if (choice.problem.name() == problem.name() && choice.device == device) fits.insert(choice.fit + ": " + choice.claims);
    const FitChoice& standard = *fits_of(problem).front();
    if (fits.empty()) fits.insert(standard.name + ": " + claims_text(standard.accuracy, standard.bounds));
    for (const std::string& fit : fits) std::printf("%s runs %s\n", problem.name().c_str(), fit.c_str());
  }
}

// A line says which kernels are left out.
std::vector<Problem> with_space_on_gpus(const Options& options, std::vector<Problem> problems) {
  std::set<std::string> left_out;
  std::erase_if(problems, [&](const Problem& problem) {
    const bool absent = !gpu::has_space(problem.kernel);
    if (absent) left_out.insert(name_of(problem.kernel));
    return absent;
  });
  std::string names;
  for (const std::string& name : left_out) names += (names.empty() ? "" : ", ") + name;
  if (problems.empty()) throw options.bad("kernel", names + ": tuned on CPUs only");
  if (!names.empty()) kernels::print_error_line("warning: tune: " + names + ": tuned on CPUs only, left out");
  return problems;
}

int cpu_command(const Options& options, const std::vector<Problem>& problems) {
  CpuChoices choices;
  choices.out = options.text("out", "out/tuned");
  choices.accuracy = accuracy_of(options);
  if (options.has("headers")) choices.headers = read_generated_headers(options.text("headers", ""));
  for (const GeneratedHeader& header : choices.headers) {
    const auto takes = [&](const Problem& p) { return p.kernel == KernelId::kGeluBackward && header.format == name_of(p.format); };
    if (std::none_of(problems.begin(), problems.end(), takes))
      throw kernels::SpecError(header.path, "kFormat", "'" + header.format + "': --kernel and --format leave no problem that has it");
  }
  return tune_on(*open_cpu_device(choices, static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX))), options, problems, shard_of(options));
}

}  // namespace

Shard shard_of(const Options& options) {
  std::string text = options.text("shard", "0/1");
  const bool by_mpi = text == "mpi";
  if (by_mpi) {
    // Open MPI says these to what it starts (Open MPI 4 manual, mpirun, "Environment").
    const char *const rank = std::getenv("OMPI_COMM_WORLD_RANK"), *const size = std::getenv("OMPI_COMM_WORLD_SIZE");
    text = std::string(rank != nullptr ? rank : "") + "/" + (size != nullptr ? size : "");
  }
  const auto part = kernels::numbers_in<std::size_t>(text, '/');
  if (part && part->first < part->second) return {part->first, part->second};
  throw options.bad("shard", by_mpi ? "mpi: not started by Open MPI's mpirun" : "'" + text + "' is not i/n with 0 <= i < n, nor mpi");
}

int tune_on(TuningDevice& device, const Options& options, const std::vector<Problem>& problems, const Shard& shard) {
  const std::string out = options.text("out", "out/tuned");
  const std::string database_path = out + "/tune_" + device.slug() + ".jsonl", tuned_path = out + "/tuned_" + device.slug() + ".h";
  constexpr double kSecondsEach = 10;  // a few dozen points of a space, on two cores
  const double budget = options.number("budget", kSecondsEach * static_cast<double>(problems.size()), 1, 1e6);
  const bool as_json = options.has("json");
  const Accuracy accuracy = accuracy_of(options);
  SearchSettings settings;
  settings.strategy = options.one_of("strategy", strategy_names());
  // Of each problem; without it the budget alone decides.
  settings.evaluations = static_cast<std::size_t>(options.integer("evaluations", INT64_MAX, 1, INT64_MAX));
  settings.batch = device.batch();
  settings.measure = device.measure();
  settings.measure.seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  create_folder(out);
  settings.measure.log_path = out + "/tune_" + device.slug() + ".log";
  kernels::ProgressLine line;
  settings.progress = [&](const std::string& text) { line.draw(text); };

  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  // What is published of this device counts as its own; what is published of others says what to try first.
  const std::optional<DeviceKey> key = device_key(device.run().device);
  const Database database = load_database(database_path);
  const Database published = key ? known_records(*key, Rung::kFamily) : Database{};
  for (const Database* source : {&database, &published})
    for (const std::string& warning : source->warnings) kernels::print_error_line("warning: " + warning);
  if (!as_json) std::printf("%s\n", device.description().c_str());

  // What is to be searched, what nobody has searched before first: a run whose budget was short of some goes on with them.
  struct Part {
    Problem problem;
    std::vector<Record> known;
  };
  std::vector<Part> parts;
  for (const Problem& unsized : problems) {
    // By the whole budget, so that the next run knows what this one measured.
    const Problem problem = sized_within(unsized, device.elements_for(unsized, budget / static_cast<double>(problems.size())));
    Part& part = parts.emplace_back(Part{problem, {}});
    if (options.has("fresh")) continue;
    for (const Database* source : {&database, &published})
      for (Record& record : known_of(*source, device.run(), problem)) part.known.push_back(std::move(record));
  }
  std::stable_partition(parts.begin(), parts.end(), [](const Part& part) { return part.known.empty(); });

  constexpr std::size_t kSeeds = 4;  // of a problem, from other devices and sizes
  std::vector<Record> winners;
  json summaries = json::array(), won = json::array();
  std::size_t begun = 0;
  for (Part& part : parts) {
    const Problem& problem = part.problem;
    settings.seconds = (budget - elapsed()) / static_cast<double>(parts.size() - begun);
    if (settings.seconds <= 0 && begun > 0) break;
    ++begun;
    const std::unique_ptr<Tunable> space = device.space_of(problem, shard.index, shard.count);
    if (!as_json) std::printf("%s: space: %s\n", problem.sized_name().c_str(), size_report(space->points()).c_str());
    Known known{std::move(part.known), {}};
    if (key)
      known.seeds =
          seed_parameters(published.records, *key, device.run().hashes, name_of(problem.kernel), name_of(problem.format), problem.elements(), kSeeds, accuracy);
    const SearchResult result = search(*space, settings, known, device.run(), database_path, winners);
    line.erase();
    if (!as_json) print(result);
    summaries.push_back(summary_of(problem, result));
  }
  for (std::size_t p = begun; p < parts.size(); ++p)
    kernels::print_error_line("warning: tune: " + parts[p].problem.name() + ": not tuned, the budget is spent");
  // What the evidence chooses of this run's and earlier ones', and of what is published of other devices: the header is for whoever it is given to.
  if (options.has("publish")) publish_command(out, accuracy);
  std::vector<Record> records = load_database(database_path).records;
  if (key) {
    const std::vector<Record> all = known_records(*key, Rung::kDefault).records;
    records.insert(records.end(), all.begin(), all.end());
  }
  const std::vector<TunedChoice> chosen = winners_in(records, device.run().hashes, out, accuracy);
  kernels::write_file(tuned_path, tuned_header(chosen, device.backend(), "for " + device.description(), accuracy));
  if (as_json) {
    for (const Record& winner : winners) won.push_back(to_json(winner));
    const json summary = {{"schema", "outgrad.tune_summary/1"},
                          {"seconds", elapsed()},
                          {"database", database_path},
                          {"header", tuned_path},
                          {"problems", summaries},
                          {"winners", won}};
    std::printf("%s\n", summary.dump(2).c_str());
  } else {
    std::printf("%s and %s, in %.1f s\n", tuned_path.c_str(), database_path.c_str(), elapsed());
    print_accuracy(problems, chosen, key);
    if (begun < parts.size())
      std::printf("%zu of %zu problems were searched in the budget of %.0f s; the same command again%s goes on with the others\n", begun, parts.size(), budget,
                  options.has("fresh") ? ", without --fresh," : "");
  }
  return kernels::kExitHolds;
}

int tune_command(const std::vector<std::string>& args) {
  const Options options("tune", args,
                        {"device", "board", "kernel", "format", "budget", "out", "seed", "evaluations", "elements", "shape", "headers", "accuracy", "strategy",
                         "shard", "export-kernel-tuner", "export-t4", "record", "passes", "ranking"},
                        {"json", "fresh", "publish"}, {"merge", "defaults"});
  if (options.has("merge")) {
    options.refuse_all_but("--merge", {"merge", "out", "accuracy", "publish", "json"});
    return merge_command(options);
  }
  if (options.has("defaults")) {
    options.refuse_all_but("--defaults", {"defaults", "out", "json"});
    return defaults_command(options);
  }
  const std::string device = options.text("device", "cpu");
  if (device.rfind("replay:", 0) == 0) {
    if (options.has("ranking"))
      options.refuse_all_but("--ranking", {"device", "kernel", "format", "ranking", "shape", "seed", "out", "json"});
    else
      options.refuse_all_but("a replay",
                             {"device", "kernel", "format", "accuracy", "strategy", "evaluations", "seed", "export-kernel-tuner", "export-t4", "json"});
    return replay_command(options);
  }
  if (options.has("record")) {
    options.refuse_all_but("--record", {"record", "device", "kernel", "format", "accuracy", "budget", "evaluations", "elements", "shape", "passes", "seed"});
    require_cpu_device(options);
    return record_command(options, problems_of(options));
  }
  const std::vector<Problem> problems = problems_of(options);
  if (device.rfind("sm_", 0) == 0) {
    options.refuse_all_but("a device that is not there",
                           {"device", "board", "kernel", "format", "accuracy", "budget", "out", "seed", "evaluations", "elements", "shape", "json"});
    return gpu::offline_command(options, with_space_on_gpus(options, problems));
  }
  if (device.rfind("cuda:", 0) == 0) {
    options.refuse_all_but("a GPU", {"device", "kernel", "format", "accuracy", "budget", "out", "seed", "evaluations", "elements", "shape", "strategy", "shard",
                                     "fresh", "publish", "json"});
    return gpu::device_command(options, with_space_on_gpus(options, problems));
  }
  options.refuse_all_but("the CPU", {"device", "kernel", "format", "budget", "out", "seed", "evaluations", "elements", "shape", "headers", "accuracy",
                                     "strategy", "shard", "fresh", "publish", "json"});
  require_cpu_device(options);
  return cpu_command(options, problems);
}

}  // namespace outgrad::autotune
