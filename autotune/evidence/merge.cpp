// Union, meta-analysis, published files.
#include "autotune/evidence/merge.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <sstream>
#include <tuple>

#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;

// ---- records as published

// Six significant digits, of which an interval of a ratio has three that mean something.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::strtod(text, nullptr);
}

void round_off(std::optional<double>& figure) {
  if (figure) figure = std::isfinite(*figure) ? std::optional(rounded(*figure)) : std::nullopt;
}

// The words that are no paths.
std::string without_paths(const std::string& words) {
  std::istringstream text(words);
  std::string kept;
  for (std::string word; text >> word;)
    if (word.find('/') == std::string::npos) kept += (kept.empty() ? "" : " ") + word;
  return kept;
}

// ---- the union

// Where a record stands among others: by problem, then variant, then content.
using Place = std::tuple<std::string, SourceHashes, ProblemRecord, std::string, std::string>;
Place place_of(const Record& r, const std::string& line) {
  return {line_of(to_json(r.run.device)), r.run.hashes, r, r.variant, line};
}

// ---- intervals

// z such that a normal variable lies within z deviations of its mean with this probability, by bisection of
// erf.
double normal_quantile(double confidence) {
  double low = 0, high = 10;  // beyond any confidence below 1 that a double holds
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (std::erf(middle / std::sqrt(2.0)) < confidence ? low : high) = middle;
  }
  return (low + high) / 2;
}

struct Estimate {
  double median, low, high, deviation;  // of the logarithm
  double below, above;  // deviations to either side: an interval of order statistics is not symmetric
  i64 rounds;
};

Estimate estimate_of(const Record& record) {
  const SpeedupRecord& speedup = *record.speedup;
  // Two runs of one binary differ by more than this, by where its pages lie: an interval cannot be trusted to
  // be narrower.
  constexpr double kLeastDeviation = 1e-3;
  double low = std::log(speedup.low), high = std::log(speedup.high);
  // A bootstrap's interval, which earlier records have, need not hold the median of few rounds.
  const double median = std::clamp(std::log(speedup.median), low, high);
  const double z = normal_quantile(kConfidence),
               wider = std::max(1.0, z / normal_quantile(speedup.confidence.value_or(kConfidence)));
  low = median - wider * (median - low), high = median + wider * (high - median);
  const auto deviation = [&](double reach) { return std::max(reach / z, kLeastDeviation); };
  return {median,
          low,
          high,
          deviation((high - low) / 2),
          deviation(median - low),
          deviation(high - median),
          rounds_of(record)};
}

bool exclude_each_other(const std::vector<Estimate>& estimates) {
  double highest_low = -INFINITY, lowest_high = INFINITY;
  for (const Estimate& e : estimates)
    highest_low = std::max(highest_low, e.low), lowest_high = std::min(lowest_high, e.high);
  return highest_low > lowest_high;
}

Interval pooled(const std::vector<Estimate>& estimates) {
  const auto& first = estimates.front();
  if (estimates.size() == 1) return {std::exp(first.median), std::exp(first.low), std::exp(first.high)};
  const auto mean = [&](double between) {  // and its deviations to either side
    double weights = 0, sum = 0, below = 0, above = 0;
    for (const Estimate& e : estimates) {
      const double weight = 1 / (e.deviation * e.deviation + between);
      weights += weight;
      sum += weight * e.median;
      below += weight * weight * (e.below * e.below + between);
      above += weight * weight * (e.above * e.above + between);
    }
    return std::tuple(sum / weights, std::sqrt(below) / weights, std::sqrt(above) / weights);
  };
  const double fixed = std::get<0>(mean(0));
  double q = 0, weights = 0, squares = 0;
  for (const Estimate& e : estimates) {
    const double weight = 1 / (e.deviation * e.deviation);
    q += weight * (e.median - fixed) * (e.median - fixed);
    weights += weight;
    squares += weight * weight;
  }
  const double between =
      std::max(0.0, (q - static_cast<double>(estimates.size() - 1)) / (weights - squares / weights));
  const auto [centre, below, above] = mean(between);
  double low, high;
  if (between > 0) {
    const double t = kernels::students_t(kConfidence, static_cast<int>(estimates.size()) - 1);
    low = centre - t * below, high = centre + t * above;
  } else {  // by chance, maybe: runs that differ do agree now and then
    const Estimate& surest = *std::ranges::min_element(estimates, {}, &Estimate::deviation);
    const double z = normal_quantile(kConfidence);
    low = centre - z * surest.below, high = centre + z * surest.above;
  }
  if (exclude_each_other(estimates))  // what one run has excluded, no majority knows
    for (const Estimate& e : estimates) low = std::min(low, e.low), high = std::max(high, e.high);
  return {std::exp(centre), std::exp(low), std::exp(high)};
}

// A variant of whatever device, fits of headers included, which have names of their own choice.
std::string identity_of(const Record& record) {
  return record.variant + (record.fit.sha256.empty() ? "" : " " + record.fit.sha256);
}

// Whether a rejection says something of the variant itself, rather than of a compiler, a budget or the memory
// that was free that day.
bool bars(const Record& record) {
  const std::string& reason = record.rejected.reason;
  return record.state == "rejected" && (reason == "wrong answer" || reason == "crashed" || reason == "hung");
}

// One problem's records, as published, and what is known of the runs they are of.
ProblemEvidence weigh_problem(std::vector<Record> records) {
  const Record& any = records.front();
  ProblemEvidence problem;
  static_cast<ProblemRecord&>(problem) = any;
  problem.device = *device_key(any.run.device), problem.sources = any.run.hashes;
  problem.records = records;
  // rejected ones have none
  for (const Record& record : records) problem.elements = std::max(problem.elements, record.elements);

  std::map<std::string, std::vector<Record>> by_variant;
  std::set<std::string> claimed;
  std::string first;  // the default's identity
  for (Record& record : records) {
    const std::string identity = identity_of(record);
    if (record.is_default == true) problem.baseline = record.variant, first = identity;
    if (record.winner == true) claimed.insert(identity);
    by_variant[identity].push_back(std::move(record));
  }
  for (auto& [identity, measurements] : by_variant) {
    VariantEvidence evidence;
    std::vector<Estimate> estimates;
    i64 most = -1;
    bool timed = false;
    for (const Record& record : measurements) {
      const bool measured =
          record.state == "timed" && record.speedup && rounds_of(record) >= i64{kFewestRounds};
      if (measured) estimates.push_back(estimate_of(record));
      timed |= record.state == "timed";
      if (bars(record)) evidence.barred = record.rejected.reason;
      if (const i64 rounds = measured ? rounds_of(record) : 0; rounds > most)
        most = rounds, evidence.record = record;
    }
    if (!estimates.empty()) {
      evidence.speedup = pooled(estimates);
      evidence.heterogeneous = exclude_each_other(estimates);
      evidence.runs = static_cast<int>(estimates.size());
      for (const Estimate& estimate : estimates) evidence.rounds += static_cast<int>(estimate.rounds);
    }
    if (evidence.heterogeneous)
      problem.conflicts.push_back(evidence.name() + ": " + std::to_string(evidence.runs) +
                                  " runs exclude each other: together " + interval_text(evidence.speedup));
    if (timed && !evidence.barred.empty())
      problem.conflicts.push_back(evidence.name() + ": timed in one run, rejected in another (" +
                                  evidence.barred + "): barred");
    const bool is_default = identity == first && !first.empty();
    problem.variants.insert(is_default ? problem.variants.begin() : problem.variants.end(),
                            std::move(evidence));
  }

  // Without a default there is nothing to be better than.
  if (first.empty()) return problem;
  const json& normal = problem.variants.front().record.parameters;
  std::vector<Contender> contenders;
  std::vector<std::size_t> index;
  for (std::size_t i = 0; i < problem.variants.size(); ++i) {
    const VariantEvidence& evidence = problem.variants[i];
    if (i > 0 && (!evidence.barred.empty() || are_too_few(evidence.rounds))) continue;
    contenders.push_back({evidence.speedup, error_order(bounds_from(evidence.record.fit)),
                          changes_between(evidence.record.parameters, normal), evidence.name()});
    index.push_back(i);
  }
  problem.winner = index[best(contenders)];
  problem.gain = problem.winner > 0;
  if (claimed.size() > 1)
    problem.conflicts.push_back(
        std::to_string(claimed.size()) + " winners in as many runs: by evidence " +
        (problem.gain ? problem.variants[problem.winner].name() : std::string("the default stays")));
  return problem;
}

}  // namespace

// ---- published files

Record reviewable(const Record& record) {
  Record kept;
  kept.run = record.run;
  kept.run.device.others = nullptr;
  for (std::string* words : {&kept.run.compiler, &kept.run.flags}) *words = without_paths(*words);
  static_cast<ProblemRecord&>(kept) = record;
  kept.variant = record.variant, kept.state = record.state, kept.baseline = record.baseline,
  kept.parameters = record.parameters;
  if (record.is_default == true) kept.is_default = true;
  if (record.winner == true) kept.winner = true;
  if (record.gain == true) kept.gain = true;
  kept.fit = record.fit;
  kept.fit.others = nullptr;
  kept.rejected.stage = record.rejected.stage, kept.rejected.reason = record.rejected.reason;
  kept.ceiling.name = record.ceiling.name;
  if (const i64 rounds = rounds_of(record); rounds > 0) kept.rounds = rounds;
  kept.gb_per_s = record.gb_per_s, kept.share_of_ceiling = record.share_of_ceiling;
  for (std::optional<double>* figure : {&kept.gb_per_s, &kept.share_of_ceiling}) round_off(*figure);
  if (const auto& speedup = record.speedup) {
    kept.speedup = {{rounded(speedup->median), rounded(speedup->low), rounded(speedup->high)},
                    speedup->confidence};
    round_off(kept.speedup->confidence);
  }
  return kept;
}

std::string published_text(const std::vector<Record>& records) {
  constexpr std::size_t kNameDigits = 12;
  std::map<std::string, std::vector<Record>> runs;  // by what they share
  for (const Record& record : records) runs[line_of(to_json(record.run))].push_back(record);
  std::string text;
  for (const auto& [shared, own] : runs) {
    const std::string name = kernels::sha256(shared).substr(0, kNameDigits);
    text += line_of(run_line(own.front().run, name)) + '\n';
    for (const Record& record : own) text += line_of(line_of_run(record, name)) + '\n';
  }
  return text;
}

std::vector<Record> united(std::vector<Record> records) {
  std::map<Place, Record> all;
  for (Record& record : records) {
    const std::string line = line_of(record);
    const Place place = place_of(record, line);
    all.emplace(place, std::move(record));
  }
  std::set<std::string> whole;  // what lines that are more than published would be published as
  std::vector<std::string> published;
  for (const auto& [place, record] : all) {
    published.push_back(record.is_of_a_variant() ? line_of(reviewable(record)) : std::string());
    if (!published.back().empty() && published.back() != std::get<4>(place)) whole.insert(published.back());
  }
  std::vector<Record> kept;
  std::size_t i = 0;
  for (auto& [place, record] : all) {
    const bool is_published = std::get<4>(place) == published[i];
    if (!is_published || whole.count(published[i]) == 0) kept.push_back(std::move(record));
    ++i;
  }
  return kept;
}

int changes_between(const json& parameters, const json& default_parameters) {
  int changes = 0;
  for (const auto& [key, value] : parameters.items()) {
    const auto usual = default_parameters.find(key);
    changes += usual == default_parameters.end() || *usual != value ? 1 : 0;
  }
  return changes;
}

std::size_t best(std::span<const Contender> contenders) {
  std::size_t leader = 0;
  for (std::size_t i = 1; i < contenders.size(); ++i)
    if (const double low = contenders[i].speedup.low;
        low > 1 && (leader == 0 || low > contenders[leader].speedup.low))
      leader = i;
  if (leader == 0) return 0;
  const auto merit = [&](std::size_t i) {
    const Contender& c = contenders[i];
    return std::tuple(c.error, c.changes, -c.speedup.low, std::string_view(c.name));
  };
  std::size_t chosen = leader;
  for (std::size_t i = 1; i < contenders.size(); ++i) {
    const bool ties =
        contenders[i].speedup.low > 1 && contenders[i].speedup.median >= contenders[leader].speedup.low;
    if (ties && merit(i) < merit(chosen)) chosen = i;
  }
  return chosen;
}

std::string interval_text(const Interval& interval) {
  char text[80];
  std::snprintf(text, sizeof text, "%.3fx [%.3f, %.3f]", interval.median, interval.low, interval.high);
  return text;
}

std::string VariantEvidence::name() const { return one_line(record.variant); }

std::string ProblemEvidence::name() const {
  const std::string size =
      rows > 0 && cols > 0 ? std::to_string(rows) + "x" + std::to_string(cols) : std::to_string(elements);
  return one_line(kernel + "." + format + "." + size);
}

bool is_eligible(const Record& record, Accuracy accuracy) {
  return !is_of_an_earlier_rule(record) &&
         (accuracy == Accuracy::kAny || record.fit.as_accurate.value_or(true));
}

std::vector<ProblemEvidence> weigh(const std::vector<Record>& records, Accuracy accuracy) {
  // and problem, whatever its length
  using Run = std::tuple<std::string, std::string, std::string, i64, i64>;
  struct Weighed {
    Record record;
    Run run;
  };
  std::set<std::string> seen;  // one measurement counts once, published or whole
  std::vector<Weighed> all;
  std::map<Run, std::string> baselines;  // the default's name, by run and problem
  for (const Record& record : records) {
    if (!record.is_of_a_variant() || record.state == "predicted" || !is_eligible(record, accuracy)) continue;
    const auto key = device_key(record.run.device);
    if (!key || key->predicted) continue;
    Record kept = reviewable(record);
    if (!seen.insert(line_of(kept)).second) continue;
    const Run run{line_of(to_json(kept.run)), kept.kernel, kept.format, kept.rows, kept.cols};
    if (kept.is_default == true) baselines[run] = kept.variant;
    all.push_back({std::move(kept), run});
  }
  // A rejected variant has no array length: it is of every length that its run measured, and those of one run
  // are the same.
  std::map<Run, i64> lengths;
  for (const Weighed& one : all)
    if (one.record.elements > 0) lengths[one.run] = one.record.elements;

  using Key = std::tuple<std::string, SourceHashes, ProblemRecord, std::string>;  // device, and the default
  std::map<Key, std::vector<Record>> problems;
  for (Weighed& one : all) {
    const Record& r = one.record;
    ProblemRecord sized = r;
    if (sized.elements == 0) sized.elements = lengths[one.run];
    const Key key{device_key(r.run.device)->device, r.run.hashes, sized,
                  r.baseline.empty() ? baselines[one.run] : r.baseline};
    problems[key].push_back(std::move(one.record));
  }
  // What a variant did in one length bars it in every one.
  std::map<std::pair<Key, std::string>, Record> barred;
  const auto any_length = [](const Key& key) {
    const auto& [device, sources, problem, baseline] = key;
    return Key{device, sources, {problem.kernel, problem.format}, ""};
  };
  for (const auto& [key, members] : problems)
    for (const Record& record : members)
      if (bars(record)) barred.emplace(std::pair(any_length(key), identity_of(record)), record);
  std::vector<ProblemEvidence> weighed;
  for (auto& [key, members] : problems) {
    if (std::none_of(members.begin(), members.end(), [](const Record& r) { return r.state == "timed"; }))
      continue;
    std::set<std::string> there;
    for (const Record& record : members) there.insert(identity_of(record));
    for (const std::string& identity : there)
      if (const auto found = barred.find({any_length(key), identity}); found != barred.end())
        members.push_back(found->second);
    std::multimap<std::string, Record> by_line;  // sums in one order
    for (Record& record : members) by_line.emplace(line_of(record), std::move(record));
    members.clear();
    for (auto& [line, record] : by_line) members.push_back(std::move(record));
    weighed.push_back(weigh_problem(std::move(members)));
  }
  return weighed;
}

std::vector<ProblemEvidence> of_one_version(std::vector<ProblemEvidence> problems,
                                            std::span<const SourceHashes> present) {
  const auto place_of = [](const ProblemEvidence& p) {
    return std::pair(p.device.device, static_cast<const ProblemRecord&>(p));
  };
  std::map<std::pair<std::string, ProblemRecord>, std::tuple<bool, int, SourceHashes>> best;
  for (const ProblemEvidence& problem : problems) {
    int rounds = 0;
    for (const VariantEvidence& evidence : problem.variants) rounds += evidence.rounds;
    const bool is_present = std::ranges::find(present, problem.sources) != present.end();
    auto& found = best[place_of(problem)];
    found = std::max(found, {is_present, rounds, problem.sources});
  }
  std::erase_if(problems, [&](const ProblemEvidence& problem) {
    return std::get<SourceHashes>(best.at(place_of(problem))) != problem.sources;
  });
  return problems;
}

std::vector<std::string> databases_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().extension() == ".jsonl") paths.push_back(entry->path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string published_folder() { return source_root() + "/notebooks_data/tuned"; }

namespace {

// The default, the winner, what is barred, and so many more, by lower bound.
std::set<std::string> wanted_of(const ProblemEvidence& problem, std::size_t variants) {
  std::vector<std::pair<double, std::string>> ranked;  // highest first
  std::set<std::string> wanted;
  for (std::size_t i = 0; i < problem.variants.size(); ++i) {
    const VariantEvidence& evidence = problem.variants[i];
    const std::string identity = identity_of(evidence.record);
    if (i == 0 || i == problem.winner || !evidence.barred.empty())
      wanted.insert(identity);
    else if (evidence.rounds > 0)
      ranked.push_back({-evidence.speedup.low, identity});
  }
  std::sort(ranked.begin(), ranked.end());
  for (std::size_t i = 0; i < ranked.size() && i < variants; ++i) wanted.insert(ranked[i].second);
  return wanted;
}

// So many runs of so many variants of each problem. All variants take them in one order, so that they keep
// the same ones where they can, and the default stays of every run that is kept: without it nobody knew what
// the others' ratios are to.
std::vector<Record> selection(const std::vector<ProblemEvidence>& problems, std::size_t variants,
                              std::size_t runs) {
  using Rank =
      std::tuple<bool, i64, std::string, std::string>;  // does not bar, -rounds of its run, run, line
  std::vector<Record> kept;
  for (const ProblemEvidence& problem : problems) {
    const std::set<std::string> wanted = wanted_of(problem, variants);
    std::map<std::string, i64> rounds;  // of what is wanted, by run
    std::vector<std::pair<std::string, const Record*>> lines;  // with their runs
    for (const Record& record : problem.records) {
      if (!bars(record) && rounds_of(record) == 0) continue;
      if (wanted.count(identity_of(record)) == 0) continue;
      lines.emplace_back(line_of(to_json(record.run)), &record);
      rounds[lines.back().first] += rounds_of(record);
    }
    std::map<std::string, std::map<Rank, const Record*>> by_variant;
    for (const auto& [run, record] : lines)
      by_variant[identity_of(*record)].emplace(Rank{!bars(*record), -rounds[run], run, line_of(*record)},
                                               record);
    const auto normal = problem.baseline.empty()
                            ? by_variant.end()
                            : by_variant.find(identity_of(problem.variants.front().record));
    std::set<std::string> kept_runs;
    const auto keep = [&](const std::map<Rank, const Record*>& ranked) {
      for (const auto& [rank, record] : ranked | std::views::take(runs))
        kept.push_back(*record), kept_runs.insert(std::get<2>(rank));
    };
    for (auto variant = by_variant.begin(); variant != by_variant.end(); ++variant)
      if (variant != normal) keep(variant->second);
    if (kept_runs.empty() && normal != by_variant.end()) keep(normal->second);
    for (const Record& record : problem.records)
      if (record.is_default == true && kept_runs.count(line_of(to_json(record.run))) != 0)
        kept.push_back(record);
  }
  return united(std::move(kept));
}

}  // namespace

std::vector<Published> publish(const std::vector<Record>& records, const std::vector<SourceHashes>& present,
                               const std::string& folder, Accuracy accuracy) {
  kernels::create_folder(folder);
  std::error_code error;
  const kernels::Descriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) throw kernels::IoError(folder, "open", errno);
  while (::flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) throw kernels::IoError(folder, "lock", errno);

  std::map<std::string, std::vector<Record>> devices;  // by slug
  for (const Record& record : records) {
    const auto key = record.is_of_a_variant() ? device_key(record.run.device) : std::nullopt;
    if (key && !key->predicted) devices[key->slug()].push_back(reviewable(record));
  }
  std::vector<Published> files;
  for (auto& [slug, own] : devices) {
    Published file{folder + "/" + slug + ".jsonl"};
    const std::string before = std::filesystem::exists(file.path, error) ? kernels::read_file(file.path) : "";
    for (const Record& record : parse_database(file.path, before).records) own.push_back(reviewable(record));
    const std::vector<Record> all = united(std::move(own));
    const std::vector<ProblemEvidence> problems = of_one_version(weigh(all, accuracy), present);
    constexpr std::size_t kMostVariants = 4, kMostRuns = 8;  // beside the default and the winner
    std::string text;
    for (std::size_t variants = kMostVariants, runs = kMostRuns;;) {
      const std::vector<Record> kept = selection(problems, variants, runs);
      text = published_text(kept);
      file.records = kept.size();
      if (text.size() < kMostPublishedBytes || (variants == 0 && runs == 1)) break;
      if (runs > 2 || variants == 0)
        --runs;
      else
        --variants;
    }
    file.problems = problems.size();
    constexpr std::size_t kAll = std::numeric_limits<int>::max();
    file.left_out = selection(problems, kAll, kAll).size() - file.records;
    file.bytes = text.size();
    file.changed = text != before;
    if (file.changed) kernels::write_file(file.path, text);
    files.push_back(std::move(file));
  }
  return files;
}

Database known_records(const DeviceKey& device, Rung farthest, const std::string& folder) {
  Database known;
  std::map<Rung, std::vector<Record>> rungs;
  for (const std::string& path : databases_in(folder)) {
    try {
      Database file = load_database(path);
      known.warnings.insert(known.warnings.end(), file.warnings.begin(), file.warnings.end());
      for (Record& record : file.records) {
        const auto key = device_key(record.run.device);
        if (!key) continue;
        if (const Rung rung = rung_of(device, *key); rung <= farthest)
          rungs[rung].push_back(std::move(record));
      }
    } catch (const kernels::SpecError& newer) {
      known.warnings.push_back(newer.what());
    } catch (const kernels::IoError& unreadable) {
      known.warnings.push_back(unreadable.what());
    }
  }
  for (auto& [rung, records] : rungs)
    std::move(records.begin(), records.end(), std::back_inserter(known.records));
  return known;
}

Database known_records(const DeviceKey& device, Rung farthest) {
  try {
    return known_records(device, farthest, published_folder());
  } catch (const kernels::EnvironmentError&) {  // a program away from its sources has nothing published
    return {};
  }
}

std::vector<json> seed_parameters(const std::vector<Record>& records, const SeedQuestion& asked) {
  struct Seed {
    // rung, other sources, predicted, distance in size, slowness, text
    std::tuple<int, bool, bool, double, double, std::string> rank;
    json parameters;
  };
  const auto distance = [&](i64 size) {
    return size > 0 && asked.elements > 0
               ? std::fabs(std::log2(static_cast<double>(size) / static_cast<double>(asked.elements)))
               : 0.0;
  };
  std::vector<Seed> seeds;
  for (const ProblemEvidence& problem : weigh(records, asked.accuracy)) {
    if (problem.kernel != asked.kernel || problem.format != asked.format) continue;
    const bool others = problem.sources != asked.sources;
    const int rung = static_cast<int>(rung_of(asked.device, problem.device));
    for (std::size_t i = 0; i < problem.variants.size(); ++i) {
      const VariantEvidence& evidence = problem.variants[i];
      const json& parameters = evidence.record.parameters;
      if (!evidence.barred.empty() || evidence.rounds == 0 || parameters.empty()) continue;
      const double slowness =
          i == problem.winner && !problem.baseline.empty() ? -INFINITY : -evidence.speedup.low;
      seeds.push_back(
          {{rung, others, false, distance(problem.elements), slowness, line_of(parameters)}, parameters});
    }
  }
  for (const Record& record : records) {
    const auto key = device_key(record.run.device);
    const auto& ns = record.predicted.ns_per_element;
    if (!key || !key->predicted || record.parameters.empty() || !ns || record.kernel != asked.kernel ||
        record.format != asked.format)
      continue;
    seeds.push_back(
        {{static_cast<int>(rung_of(asked.device, *key)), false, true, 0, *ns, line_of(record.parameters)},
         record.parameters});
  }
  std::sort(seeds.begin(), seeds.end(), [](const Seed& a, const Seed& b) { return a.rank < b.rank; });
  std::vector<json> chosen;
  std::set<std::string> there;
  for (Seed& seed : seeds)
    if (chosen.size() < asked.count && there.insert(std::get<std::string>(seed.rank)).second)
      chosen.push_back(std::move(seed.parameters));
  return chosen;
}

}  // namespace outgrad::autotune
