// Batches, then finals.
#include "autotune/search/search.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <unordered_map>

#include "autotune/measure/timing.h"
#include "kernels/support/digest.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// What ties a record to a point: its parameters, and the text of a fit that is not the program's own.
std::string key_of(const json& parameters, const std::string& header_sha256) {
  return parameters.dump() + header_sha256;
}
std::string key_of(const AnyVariant& variant) {
  return key_of(variant.parameters(), variant.fit == nullptr || variant.fit->header.empty()
                                          ? ""
                                          : kernels::sha256(variant.fit->header));
}

// Whether a rejection is the variant's own, rather than of a machine that was busy, or full, that day.
bool says_something(const std::string& reason) {
  return reason != name_of(Reason::kCompilerTimeout) && reason != name_of(Reason::kOutOfMemory);
}

class Search {
 public:
  Search(Tunable& space, const SearchSettings& settings, const Known& known, const RunIdentity& run,
         const std::string& database_path)
      : space_(space), settings_(settings), run_(run), database_path_(database_path),
        baseline_(space.baseline()) {
    for (std::size_t i = 0; i < space.points().size(); ++i) points_.emplace(key_of(*space.variant(i)), i);
    const std::optional<std::size_t> origin = find(key_of(*baseline_));
    std::map<std::size_t, Outcome> earlier;
    for (const Record& record : known.records) take(record, earlier);
    if (origin) earlier[*origin] = 1.0;
    result_.known = earlier.size() - (origin ? 1 : 0);

    std::vector<std::size_t> first;
    for (const json& parameters : known.seeds)
      if (const auto point = find(key_of(parameters, ""))) first.push_back(*point);
    const std::size_t wanted = settings.evaluations - std::min(settings.evaluations, result_.known);
    if (wanted > 0) {
      const auto began = Clock::now();
      for (const std::size_t point : space.first(wanted, settings.measure.seed, settings.seconds))
        first.push_back(point);
      result_.seconds.compile += seconds_since(began);  // a ranking is made of machine code
    }
    std::vector<std::size_t> fresh;  // each once, and none that is known
    for (const std::size_t point : first)
      if (earlier.count(point) == 0 && std::find(fresh.begin(), fresh.end(), point) == fresh.end())
        fresh.push_back(point);
    strategy_ = make_strategy(settings.strategy, space.points(), settings.measure.seed, fresh);
    for (const auto& [point, outcome] : earlier) {
      strategy_->tell(point, outcome);
      if (outcome && point != origin) ranked_.push_back({*outcome, point});
    }
  }

  SearchResult run(std::vector<Record>& winners) {
    std::size_t left = settings_.evaluations - std::min(settings_.evaluations, result_.known);
    double longest = 0;  // of the batches so far, each with its rounds
    do {
      if (left == 0) break;
      const auto began = Clock::now();
      const std::size_t done = batch(std::min(left, most_at_once()));
      if (done == 0) break;
      left -= done;
      longest = std::max(longest, seconds_since(began));
    } while (seconds_since(began_) + longest + finals_seconds() < settings_.seconds);
    finals(winners);
    result_.total_seconds = seconds_since(began_);
    return std::move(result_);
  }

 private:
  std::optional<std::size_t> find(const std::string& key) const {
    const auto found = points_.find(key);
    return found == points_.end() ? std::nullopt : std::optional(found->second);
  }

  // What a record says of a point of this space, if it does.
  void take(const Record& record, std::map<std::size_t, Outcome>& earlier) const {
    const auto point = find(key_of(record.parameters, record.fit.sha256));
    if (!point) return;
    if (record.state == "timed" && record.speedup)
      earlier[*point] = 1 / record.speedup->median;
    else if (record.state == "rejected" && says_something(record.rejected.reason))
      earlier.try_emplace(*point, std::nullopt);
  }

  // Compiles the default and these. At least so many seconds may pass, else half of those that are left,
  // because what is compiled has to be run, too.
  std::vector<Candidate> compiled(std::vector<std::shared_ptr<const AnyVariant>> variants,
                                  double least_seconds) {
    const auto began = Clock::now();
    variants.insert(variants.begin(), baseline_);
    std::vector<Candidate> candidates =
        space_.compile(variants, std::max(least_seconds, (settings_.seconds - seconds_since(began_)) / 2));
    result_.seconds.compile += seconds_since(began);
    return candidates;
  }

  void say(const std::string& what) const {
    if (!settings_.progress) return;
    char text[256];
    const auto best = std::min_element(ranked_.begin(), ranked_.end());
    std::snprintf(text, sizeof text, "%s: %zu evaluated, best %.3fx the default, %.0f s: %s",
                  baseline_->problem.name().c_str(), result_.evaluated + result_.known,
                  best == ranked_.end() ? 1.0 : std::max(1.0, 1 / best->first), seconds_since(began_),
                  what.c_str());
    settings_.progress(text);
  }

  // Points of a batch: fewer where the seconds are few, so that a kernel that takes long to compile is
  // searched all the same. Eight points of a norm take 8 to 12 s on two cores.
  std::size_t most_at_once() const {
    constexpr double kWholeBatchSeconds = 12;
    constexpr std::size_t kLeast = 2;
    const double share =
        static_cast<double>(settings_.batch) * std::min(1.0, settings_.seconds / kWholeBatchSeconds);
    return std::max(kLeast, static_cast<std::size_t>(share));
  }

  // How many points it took further.
  std::size_t batch(std::size_t most) {
    const std::vector<std::size_t> asked = strategy_->ask(most);
    if (asked.empty()) return 0;
    say("compiling " + std::to_string(asked.size()));
    std::vector<std::shared_ptr<const AnyVariant>> variants;
    for (const std::size_t point : asked) variants.push_back(space_.variant(point));
    std::vector<Candidate> candidates = compiled(std::move(variants), kLeastBatchSeconds);
    say("running " + std::to_string(asked.size()));
    MeasureSettings screening = settings_.measure;
    screening.final_rounds = screening.finalists = 0;
    screening.seconds = std::max(0.0, settings_.seconds - seconds_since(began_));
    std::vector<Record> none;
    const double before = result_.seconds.measure;
    last_points_ = asked.size();
    const Measurement m = tune_problem(candidates, screening, run_, database_path_, none, result_.seconds);
    last_measured_ = result_.seconds.measure - before;
    std::size_t done = 0;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      Candidate& candidate = candidates[i + 1];
      if (candidate.as<Proposed>() != nullptr) continue;  // the budget's end; asked for, and nobody's answer
      ++done;
      if (candidate.as<Timed>() != nullptr) {
        const double ratio = 1 / m.speedup[i + 1].median;
        strategy_->tell(asked[i], ratio);
        ranked_.push_back({ratio, asked[i]});
      } else {
        strategy_->tell(asked[i], std::nullopt);
        ++result_.rejected;
        result_.failures.push_back(std::move(candidate));
      }
    }
    result_.evaluated += done;
    return done;
  }

  // From the last batch: its rounds had as many workloads as it had points and two more.
  double finals_seconds() const {
    const MeasureSettings& m = settings_.measure;
    const double rounds = static_cast<double>(m.final_rounds) / m.screening_rounds;
    return last_measured_ * rounds * (m.finalists + 2) / static_cast<double>(last_points_ + 2);
  }

  void finals(std::vector<Record>& winners) {
    std::sort(ranked_.begin(), ranked_.end());
    std::vector<std::shared_ptr<const AnyVariant>> variants;
    for (std::size_t i = 0; i < ranked_.size() && i < static_cast<std::size_t>(settings_.measure.finalists);
         ++i)
      variants.push_back(space_.variant(ranked_[i].second));
    // those of an earlier run have no code yet
    result_.finalists = compiled(std::move(variants), kLeastFinalSeconds);
    say("finals");
    MeasureSettings deciding = settings_.measure;
    deciding.screening_rounds = 0;
    deciding.seconds = std::max(kLeastFinalSeconds, settings_.seconds - seconds_since(began_));
    result_.final = tune_problem(result_.finalists, deciding, run_, database_path_, winners, result_.seconds);
  }

  // A problem's rounds take about two on a quiet machine.
  static constexpr double kLeastFinalSeconds = 4;
  // no compilation starts later: of a first batch at least the default has to
  static constexpr double kLeastBatchSeconds = 1;

  Tunable& space_;
  const SearchSettings& settings_;
  const RunIdentity& run_;
  const std::string& database_path_;
  const Clock::time_point began_ = Clock::now();
  const std::shared_ptr<const AnyVariant> baseline_;
  std::unordered_map<std::string, std::size_t> points_;
  std::unique_ptr<Strategy> strategy_;
  std::vector<std::pair<double, std::size_t>> ranked_;  // ratio to the default, point
  double last_measured_ = 0;  // seconds of the last batch
  std::size_t last_points_ = 0;
  SearchResult result_;
};

}  // namespace

int calls_of_search(std::size_t batch, const MeasureSettings& measure) {
  return static_cast<int>(batch + 2) * measure.screening_rounds +
         (measure.finalists + 2) * measure.final_rounds;
}

SearchResult search(Tunable& space, const SearchSettings& settings, const Known& known,
                    const RunIdentity& run, const std::string& database_path, std::vector<Record>& winners) {
  return Search(space, settings, known, run, database_path).run(winners);
}

}  // namespace outgrad::autotune
