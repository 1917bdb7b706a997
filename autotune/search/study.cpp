// Runs in parallel, the table, the verdict, the files.
#include "autotune/search/study.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "autotune/compile.h"
#include "autotune/search/replay.h"
#include "kernels/support/json.h"
#include "kernels/support/parallel.h"
#include "kernels/support/process.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

constexpr const char* kRunsSchema = "outgrad.kernel_tuner_runs/1";  // of autotune/search/kernel_tuner_study.py

struct Cache {
  std::string name;  // of the file, without folder and suffix
  Recording recording;
};

// A line of the table: one strategy on one recording at one budget.
struct Entry {
  std::string cache, source, strategy;  // source: "outgrad" or "kernel_tuner"
  double percent = 0;
  std::size_t budget = 0;
  std::vector<double> shares;  // of the optimum, by seed
  double seconds = 0;          // of all runs
  std::string error;           // what ended a run early, of the latest that did
  SeedMedian result{};
};

std::size_t budget_of(const Recording& recording, double percent) {  // as kernel_tuner_study.py rounds it
  return static_cast<std::size_t>(std::max(1.0, std::floor(static_cast<double>(recording.points.size()) * percent / 100)));
}

std::vector<Entry> run_ours(const Cache& cache, const std::vector<std::string>& strategies, std::size_t seeds, const std::vector<double>& percents) {
  const std::size_t most = budget_of(cache.recording, *std::max_element(percents.begin(), percents.end()));
  std::vector<std::vector<Replay>> runs(strategies.size(), std::vector<Replay>(seeds));
  std::vector<std::atomic<double>> seconds(strategies.size());
  kernels::for_each_task(strategies.size() * seeds, 0, [&](std::size_t i) {
    const auto began = std::chrono::steady_clock::now();
    const auto strategy = make_strategy(strategies[i / seeds], cache.recording.points, 1 + i % seeds);
    runs[i / seeds][i % seeds] = replay(cache.recording, *strategy, most);
    seconds[i / seeds] += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  });
  std::vector<Entry> entries;
  for (std::size_t s = 0; s < strategies.size(); ++s)
    for (const double percent : percents) {
      Entry entry{cache.name, "outgrad", strategies[s], percent, budget_of(cache.recording, percent), {}, seconds[s], {}};
      for (const Replay& run : runs[s]) entry.shares.push_back(share_of_optimum(cache.recording, run, entry.budget));
      entries.push_back(std::move(entry));
    }
  return entries;
}

// Kernel Tuner's runs of these caches and budgets, from the file that its script writes and resumes.
std::vector<Entry> read_kernel_tuner_runs(const std::string& path, const std::vector<Cache>& caches, std::size_t seeds, const std::vector<double>& percents) {
  std::vector<Entry> entries;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return entries;
  std::map<std::tuple<std::string, std::string, std::size_t>, std::size_t> places;  // cache, strategy, budget
  std::istringstream lines(kernels::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const json run = kernels::parse_json_line(line);
    try {
      if (!run.is_object() || run.at("schema") != kRunsSchema) continue;  // a line that a kill cut short
      const auto cache = std::find_if(caches.begin(), caches.end(), [&](const Cache& c) { return run.at("cache") == c.name; });
      const auto budget = run.at("budget").get<std::size_t>();
      if (cache == caches.end() || run.at("seed").get<std::size_t>() > seeds) continue;
      const auto percent = std::find_if(percents.begin(), percents.end(), [&](double p) { return budget_of(cache->recording, p) == budget; });
      if (percent == percents.end()) continue;
      const auto strategy = run.at("strategy").get<std::string>();
      const auto [place, added] = places.emplace(std::tuple(cache->name, strategy, budget), entries.size());
      if (added) entries.push_back({cache->name, "kernel_tuner", strategy, *percent, budget, {}, 0, {}});
      Entry& entry = entries[place->second];
      entry.shares.push_back(run.at("best").is_number() ? *cache->recording.best_ms() / run.at("best").get<double>() : 0);
      entry.seconds += run.at("seconds").get<double>();
      if (run.at("error").is_string()) entry.error = run.at("error").get<std::string>();
    } catch (const json::exception&) {
      continue;
    }
  }
  return entries;
}

// "model" and the strategies of the other source: is the default as good as each, and better than their median?
json verdict_of(const std::vector<Entry>& entries, const std::string& cache, double percent) {
  const Entry* ours = nullptr;
  std::vector<const Entry*> peers;
  double random = 0;
  for (const Entry& entry : entries) {
    if (entry.cache != cache || entry.percent != percent) continue;
    if (entry.source == "kernel_tuner") peers.push_back(&entry);
    if (entry.source == "outgrad" && entry.strategy == strategy_names().front()) ours = &entry;
    if (entry.strategy.rfind("random", 0) == 0) random = std::max(random, entry.result.median);
  }
  if (ours == nullptr) return nullptr;
  json better = json::array();
  std::vector<double> medians;
  for (const Entry* peer : peers) {
    medians.push_back(peer->result.median);
    if (peer->result.low > ours->result.high) better.push_back(peer->strategy);
  }
  json verdict = {{"cache", cache},
                  {"percent", percent},
                  {"default_share", ours->result.median},
                  {"reaches_98_percent", ours->result.median >= 0.98},
                  {"beats_random", ours->result.median > random},
                  {"kernel_tuner_strategies", peers.size()},
                  {"kernel_tuner_better_beyond_intervals", better}};
  if (!medians.empty()) {
    const double middle = median_over_seeds(medians).median;
    verdict["kernel_tuner_median_strategy"] = middle;
    verdict["better_than_median_strategy"] = ours->result.median > middle;
  }
  return verdict;
}

std::string percent_text(double percent) {
  char text[32];
  std::snprintf(text, sizeof text, "%g%%", percent);
  return text;
}

void print_table(const std::vector<Entry>& entries, const std::vector<Cache>& caches, const std::vector<double>& percents) {
  for (const Cache& cache : caches) {
    std::printf("\n%s: %s on %s, %zu points\n  %-12s %-24s", cache.name.c_str(), cache.recording.kernel.c_str(), cache.recording.device.c_str(),
                cache.recording.points.size(), "", "median share of optimum");
    for (const double percent : percents) std::printf("  %-21s", percent_text(percent).c_str());
    std::printf("\n");
    std::map<std::pair<std::string, std::string>, std::map<double, const Entry*>> rows;
    for (const Entry& entry : entries)
      if (entry.cache == cache.name) rows[{entry.source, entry.strategy}][entry.percent] = &entry;
    std::vector<std::pair<double, std::pair<std::string, std::string>>> order;  // by the largest budget that was run
    for (const auto& [name, row] : rows) order.push_back({-row.rbegin()->second->result.median, name});
    std::sort(order.begin(), order.end());
    for (const auto& [share, name] : order) {
      std::printf("  %-12s %-24s", name.first.c_str(), name.second.c_str());
      std::string error;
      for (const double percent : percents) {
        const auto entry = rows[name].find(percent);
        if (entry == rows[name].end()) {
          std::printf("  %-21s", "-");
          continue;
        }
        const SeedMedian& r = entry->second->result;
        std::printf("  %.3f [%.3f, %.3f]", r.median, r.low, r.high);
        if (!entry->second->error.empty()) error = entry->second->error;
      }
      std::printf("%s%s\n", error.empty() ? "" : "  ", error.c_str());
    }
  }
}

std::string csv_of(const std::vector<Entry>& entries) {
  std::string text = "cache,source,strategy,percent,evaluations,seeds,median,low,high,seconds_per_run,error\n";
  for (const Entry& e : entries) {
    char numbers[256];
    std::snprintf(numbers, sizeof numbers, "%g,%zu,%zu,%.6f,%.6f,%.6f,%.4f", e.percent, e.budget, e.shares.size(), e.result.median, e.result.low, e.result.high,
                  e.seconds / static_cast<double>(e.shares.size()));
    std::string error = e.error;
    std::replace(error.begin(), error.end(), '"', '\'');
    text += e.cache + "," + e.source + "," + e.strategy + "," + numbers + ",\"" + error + "\"\n";
  }
  return text;
}

}  // namespace

SeedMedian median_over_seeds(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  // The k-th smallest lies above the median with the probability that fewer than k of n fall below it: sums of binomial(n, 1/2).
  double tail = 0, term = std::pow(0.5, static_cast<double>(n));
  std::size_t k = 0;
  while (k < n / 2 && tail + term <= (1 - kSeedConfidence) / 2) {
    tail += term;
    ++k;
    term *= static_cast<double>(n - k + 1) / static_cast<double>(k);
  }
  const std::size_t low = k == 0 ? 0 : k - 1;
  return {0.5 * (values[(n - 1) / 2] + values[n / 2]), values[low], values[n - 1 - low]};
}

int study_command(const Options& options) {
  const auto seeds = static_cast<std::size_t>(options.integer("seeds", 50, 1, 10'000));
  const std::string out = options.text("out", "out/study");
  std::vector<double> percents;
  for (std::istringstream words(options.text("shares", "1,2,5,10")); words;) {
    std::string word;
    if (!std::getline(words, word, ',')) break;
    char* end = nullptr;
    percents.push_back(std::strtod(word.c_str(), &end));
    if (word.empty() || *end != '\0' || !(percents.back() > 0 && percents.back() <= 100)) throw options.bad("shares", "'" + word + "' is not a percentage");
  }
  if (percents.empty()) throw options.bad("shares", "names no percentage");
  std::vector<std::string> strategies = strategy_names();
  std::erase(strategies, "exhaustive");  // the reference itself
  if (options.has("strategy")) strategies = {options.one_of("strategy", strategy_names())};

  std::vector<Cache> caches;
  for (const std::string& path : options.words("study")) {
    Cache cache{std::filesystem::path(path).stem().string(), read_recording(path)};
    if (!cache.recording.best_ms()) throw kernels::SpecError(path, "results", "every point failed: there is no optimum");
    for (const Cache& other : caches)
      if (other.name == cache.name) throw options.bad("study", "two files are called " + cache.name);
    caches.push_back(std::move(cache));
  }
  std::error_code error;
  std::filesystem::create_directories(out + "/caches", error);
  if (error) throw kernels::IoError(out, "create", error.value());

  std::vector<Entry> entries;
  for (const Cache& cache : caches)
    for (Entry& entry : run_ours(cache, strategies, seeds, percents)) entries.push_back(std::move(entry));

  const std::string runs = out + "/kernel_tuner_runs.jsonl", chosen = options.text("kernel-tuner", "");
  std::string skipped;
  if (chosen != "none") {
    const char* named = std::getenv("OUTGRAD_PYTHON");
    const std::string python = named != nullptr && *named != '\0' ? named : "python3";
    const std::string script = source_root() + "/autotune/search/kernel_tuner_study.py",
                      jobs = std::to_string(std::max(1U, std::thread::hardware_concurrency()));
    std::vector<std::string> command = {python,   script, "--out", runs, "--seeds", std::to_string(seeds), "--shares", options.text("shares", "1,2,5,10"),
                                        "--jobs", jobs};
    if (!chosen.empty() && chosen != "all") command.insert(command.end(), {"--strategies", chosen});
    for (const Cache& cache : caches) {
      command.push_back(out + "/caches/" + cache.name + ".json");
      kernels::write_file(command.back(), kernel_tuner_cache(cache.recording));
    }
    kernels::Launch launch{command};
    launch.out = launch.err = STDERR_FILENO;
    const int status = kernels::run(launch).status;
    if (status == kernels::kExitEnvironment || status == kernels::Ending::kNotStarted)
      skipped = python + " does not import kernel_tuner (OUTGRAD_PYTHON names another)";
    else if (status != 0)
      throw kernels::EnvironmentError("tune --study: " + script + " ended with status " + std::to_string(status));
  }
  for (Entry& entry : read_kernel_tuner_runs(runs, caches, seeds, percents)) entries.push_back(std::move(entry));

  json document = {{"schema", "outgrad.study/1"}, {"seeds", seeds},           {"confidence", kSeedConfidence},
                   {"caches", json::array()},     {"entries", json::array()}, {"verdicts", json::array()}};
  for (const Cache& cache : caches) {
    const double best = *cache.recording.best_ms();
    const auto near = std::count_if(cache.recording.evaluations.begin(), cache.recording.evaluations.end(),
                                    [&](const Evaluation& e) { return e.time_ms && best / *e.time_ms >= 0.98; });
    document["caches"].push_back({{"name", cache.name},
                                  {"device", cache.recording.device},
                                  {"kernel", cache.recording.kernel},
                                  {"points", cache.recording.points.size()},
                                  {"raw_points", cache.recording.points.raw_size()},
                                  {"best_ms", best},
                                  {"points_within_2_percent", near}});
  }
  for (Entry& e : entries) {
    e.result = median_over_seeds(e.shares);
    document["entries"].push_back({{"cache", e.cache},
                                   {"source", e.source},
                                   {"strategy", e.strategy},
                                   {"percent", e.percent},
                                   {"evaluations", e.budget},
                                   {"shares", e.shares},
                                   {"median", e.result.median},
                                   {"low", e.result.low},
                                   {"high", e.result.high},
                                   {"seconds", e.seconds},
                                   {"error", e.error}});
  }
  for (const Cache& cache : caches)
    for (const double percent : percents)
      if (json verdict = verdict_of(entries, cache.name, percent); !verdict.is_null()) document["verdicts"].push_back(std::move(verdict));
  kernels::write_file(out + "/study.json", document.dump(1) + "\n");
  kernels::write_file(out + "/study.csv", csv_of(entries));
  if (options.has("json")) {
    std::printf("%s\n", document.dump(1).c_str());
    return kernels::kExitHolds;
  }
  print_table(entries, caches, percents);
  if (!skipped.empty()) std::printf("\nskipped: Kernel Tuner's strategies: %s\n", skipped.c_str());
  std::printf("\n%s/study.csv, study.json\n", out.c_str());
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
