// Parts of a run, one after the other; what is printed and written at its end.
#include "autotune/commands/search_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "autotune/commands/publish.h"
#include "autotune/evidence/merge.h"
#include "autotune/evidence/tuned_header.h"
#include "autotune/search/search.h"
#include "kernels/support/files.h"
#include "kernels/support/numbers.h"
#include "kernels/support/shard.h"
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
    const bool same_size =
        record.elements == problem.elements() && (!problem.over_rows() || record.cols == problem.cols);
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
           {{"compile", result.seconds.compile},
            {"verify", result.seconds.verify},
            {"measure", result.seconds.measure},
            {"total", result.total_seconds}}},
          {"overhead", result.overhead()}};
}

void print(const SearchResult& result) {
  print_problem(result.finalists, result.final);
  std::printf(
      "  %zu evaluated, %zu known before, %zu rejected; %.1f s: compile %.1f, verify %.1f, measure %.1f, "
      "else %.1f%%\n",
      result.evaluated, result.known, result.rejected, result.total_seconds, result.seconds.compile,
      result.seconds.verify, result.seconds.measure, 100 * result.overhead());
  print_rejected(result.failures);
  std::fflush(stdout);
}

// How accurate is what runs here from now on, of each backward of GELU: by the header's entries for this
// device, else the default's fit.
void print_accuracy(const std::vector<Problem>& problems, const std::vector<TunedChoice>& chosen,
                    const std::optional<DeviceKey>& device) {
  for (const Problem& problem : problems) {
    if (!problem.has_fit() || !is_backward(problem.kernel)) continue;
    std::set<std::string> fits;
    for (const TunedChoice& choice : chosen)
      if (choice.problem.name() == problem.name() && choice.device == device)
        fits.insert(choice.fit + ": " + choice.claims);
    const FitChoice& standard = *fits_of(problem).front();
    if (fits.empty()) fits.insert(standard.name + ": " + claims_text(standard.accuracy, standard.bounds));
    for (const std::string& fit : fits) std::printf("%s runs %s\n", problem.name().c_str(), fit.c_str());
  }
}

// A problem of its size, and what is known of it.
struct Part {
  Problem problem;
  std::vector<Record> known;
};

// One run of the command.
class SearchRun {
 public:
  SearchRun(TuningDevice& device, const SearchOptions& options, const std::vector<Problem>& problems,
            const Shard& shard)
      : device_(device), options_(options), problems_(problems), shard_(shard),
        key_(device_key(device.run().device)),
        database_path_(options.out + "/tune_" + device.slug() + ".jsonl"),
        tuned_path_(options.out + "/tuned_" + device.slug() + ".h") {
    constexpr double kSecondsEach = 10;  // a few dozen points of a space, on two cores
    budget_ = options.budget.value_or(kSecondsEach * static_cast<double>(problems.size()));
    settings_.strategy = options.strategy;
    settings_.evaluations = static_cast<std::size_t>(options.evaluations);
    settings_.batch = device.batch();
    settings_.measure = device.measure();
    settings_.measure.seed = options.seed;
    kernels::create_folder(options.out);
    kernels::require_writable(tuned_path_);
    if (options.publish && key_)
      kernels::require_writable(published_folder() + "/" + key_->slug() + ".jsonl");
    settings_.measure.log_path = options.out + "/tune_" + device.slug() + ".log";
    settings_.progress = [this](const std::string& text) { line_.draw(text); };
  }

  void run() {
    database_ = load_database(database_path_);
    // What is published of this device counts as its own; what is published of others says what to try first.
    if (key_) published_ = known_records(*key_, Rung::family);
    for (const Database* source : {&database_, &published_})
      for (const std::string& warning : source->warnings) kernels::print_error_line("warning: " + warning);
    if (!options_.form) std::printf("%s\n", device_.description().c_str());
    std::vector<Part> parts = parts_of_run();
    for (Part& part : parts) {
      settings_.seconds = (budget_ - elapsed()) / static_cast<double>(parts.size() - begun_);
      if (settings_.seconds <= 0 && begun_ > 0) break;
      ++begun_;
      search_part(part);
    }
    for (std::size_t p = begun_; p < parts.size(); ++p)
      kernels::print_error_line("warning: tune: " + parts[p].problem.name() +
                                ": not tuned, the budget is spent");
    finish(parts.size());
  }

 private:
  double elapsed() const { return seconds_since(began_); }

  // What is to be searched, what nobody has searched before first: a run whose budget was short of some goes
  // on with them.
  std::vector<Part> parts_of_run() {
    const int calls = calls_of_search(device_.batch(), device_.measure());
    std::vector<Part> parts;
    for (const Problem& unsized : problems_) {
      // By the whole budget, so that the next run knows what this one measured.
      const double seconds = budget_ / static_cast<double>(problems_.size());
      const Problem problem = sized_within(unsized, device_.elements_for(unsized, seconds, calls));
      Part& part = parts.emplace_back(Part{problem, {}});
      if (options_.fresh) continue;
      for (const Database* source : {&database_, &published_})
        for (Record& record : known_of(*source, device_.run(), problem))
          part.known.push_back(std::move(record));
    }
    std::stable_partition(parts.begin(), parts.end(), [](const Part& part) { return part.known.empty(); });
    return parts;
  }

  void search_part(Part& part) {
    constexpr std::size_t kSeeds = 4;  // of a problem, from other devices and sizes
    const Problem& problem = part.problem;
    const std::unique_ptr<Tunable> space = device_.space_of(problem, shard_);
    if (!options_.form)
      std::printf("%s: space: %s\n", problem.sized_name().c_str(), size_report(space->points()).c_str());
    Known known{std::move(part.known), {}};
    if (key_)
      known.seeds = seed_parameters(published_.records, {.device = *key_,
                                                         .sources = device_.run().hashes,
                                                         .kernel = name_of(problem.kernel),
                                                         .format = name_of(problem.format),
                                                         .elements = problem.elements(),
                                                         .count = kSeeds,
                                                         .accuracy = options_.accuracy});
    const SearchResult result = search(*space, settings_, known, device_.run(), database_path_, winners_);
    line_.erase();
    if (!options_.form) print(result);
    summaries_.push_back(summary_of(problem, result));
  }

  // What the evidence chooses of this run's and earlier ones', and of what is published of other devices: the
  // header is for whoever it is given to.
  void finish(std::size_t parts) {
    if (options_.publish) publish_folder(options_.out, options_.accuracy);
    std::vector<Record> records = load_database(database_path_).records;
    if (key_) {
      const std::vector<Record> all = known_records(*key_, Rung::all_devices).records;
      records.insert(records.end(), all.begin(), all.end());
    }
    const std::vector<TunedChoice> chosen =
        winners_in(records, device_.run().hashes, options_.out, options_.accuracy);
    kernels::write_file(tuned_path_, tuned_header(chosen, device_.backend(), "for " + device_.description(),
                                                  options_.accuracy));
    if (options_.form) {
      json won = json::array();
      for (const Record& winner : winners_) won.push_back(to_json(winner));
      const json summary{{"schema", "outgrad.tune_summary/1"},
                         {"seconds", elapsed()},
                         {"database", database_path_},
                         {"header", tuned_path_},
                         {"problems", summaries_},
                         {"winners", won}};
      return kernels::print_result(options_.form, summary, "winners");
    }
    std::printf("%s and %s, in %.1f s\n", tuned_path_.c_str(), database_path_.c_str(), elapsed());
    print_accuracy(problems_, chosen, key_);
    if (begun_ < parts)
      std::printf(
          "%zu of %zu problems were searched in the budget of %.0f s; the same command again%s goes on with "
          "the others\n",
          begun_, parts, budget_, options_.fresh ? ", without --fresh," : "");
  }

  TuningDevice& device_;
  const SearchOptions& options_;
  const std::vector<Problem>& problems_;
  const Shard shard_;
  const std::optional<DeviceKey> key_;
  const std::string database_path_, tuned_path_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double budget_ = 0;
  SearchSettings settings_;
  kernels::ProgressLine line_;
  Database database_, published_;
  std::vector<Record> winners_;
  json summaries_ = json::array();
  std::size_t begun_ = 0;  // parts
};

}  // namespace

void add_search_options(CLI::App& app, SearchOptions& options) {
  options.strategy = strategy_names().front();
  add_text(app, "--device", options.device);
  add_problems(app, options.problems);
  add_number<double>(app, "--budget", options.budget, 1, 1e6);
  add_number<std::int64_t>(app, "--evaluations", options.evaluations, 1, INT64_MAX);
  add_choice(app, "--strategy", options.strategy, strategy_names());
  add_text(app, "--shard", options.shard);
  add_accuracy(app, options.accuracy);
  add_text(app, "--out", options.out);
  add_seed(app, options.seed);
  add_flag(app, "--fresh", options.fresh);
  add_flag(app, "--publish", options.publish);
  kernels::add_result_form(app, options.form, "the result");
}

Shard shard_of(const std::string& text) {
  if (text != "mpi") {
    const kernels::Shard part = kernels::read_shard(text, "tune");
    return {static_cast<std::size_t>(part.index) - 1, static_cast<std::size_t>(part.count)};
  }
  // Open MPI says these to what it starts (Open MPI 4 manual, mpirun, "Environment"). Ranks count from 0.
  const auto said = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const auto part = kernels::numbers_in<std::size_t>(
      said("OMPI_COMM_WORLD_RANK") + "/" + said("OMPI_COMM_WORLD_SIZE"), '/');
  if (part && part->first < part->second) return {part->first, part->second};
  throw kernels::SpecError("tune", "--shard", "mpi: not started by Open MPI's mpirun");
}

int search_on(TuningDevice& device, const SearchOptions& options, const std::vector<Problem>& problems,
              const Shard& shard) {
  SearchRun(device, options, problems, shard).run();
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
