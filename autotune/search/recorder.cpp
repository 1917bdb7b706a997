// Two phases: compile and verify, then time.
#include "autotune/search/recorder.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "autotune/records/database.h"
#include "autotune/records/identity.h"
#include "autotune/timing.h"
#include "autotune/tuner.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using Clock = std::chrono::steady_clock;

// The parameters of points that the file has already.
std::set<std::string> recorded(const std::string& path, const RunIdentity& run, const Problem& problem) {
  std::set<std::string> done;
  for (const Record& record : load_database(path).records) {
    const bool ended = record.state == "rejected" ||
                       (record.state == "timed" && record.elements == problem.elements() && (!problem.over_rows() || record.cols == problem.cols));
    if (ended && device_key(record.run.device) == device_key(run.device) && record.run.hashes == run.hashes) done.insert(record.parameters.dump());
  }
  return done;
}

template <class Item>
void shuffle(std::vector<Item>& items, std::uint64_t& state) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[kernels::next_random(state) % i]);
}

void append(std::vector<double>& all, const std::vector<double>& more) { all.insert(all.end(), more.begin(), more.end()); }

class Recorder {
 public:
  Recorder(const Problem& problem, const MeasureSettings& settings, const RunIdentity& run, std::string path)
      : problem_(problem), settings_(settings), run_(run), path_(std::move(path)), random_(settings.seed) {}

  // Compiles and verifies the default and the variants until the seconds are spent; rejected ones are recorded at once. How many variants
  // it left out.
  std::size_t prepare(std::vector<Variant> variants, const Toolchain& toolchain, CompileSettings compiling, double seconds) {
    constexpr std::size_t kChunk = 48;
    const auto began = Clock::now();
    compiling.variants_per_unit = static_cast<int>(kChunk) / compiling.jobs;
    // In a random order, but points that share a loop side by side: together they cost little more to compile than one.
    std::map<std::string, std::uint64_t> order;
    for (const Variant& variant : variants) order.try_emplace(variant.loop_name(), kernels::next_random(random_));
    std::stable_sort(variants.begin(), variants.end(), [&](const Variant& a, const Variant& b) { return order.at(a.loop_name()) < order.at(b.loop_name()); });
    std::vector<Candidate> chunk = {Candidate(default_variant(problem_))};
    auto next = variants.begin();
    do {
      for (; chunk.size() < kChunk && next != variants.end(); ++next) chunk.emplace_back(*next);
      std::vector<Candidate*> proposed;
      for (Candidate& candidate : chunk) proposed.push_back(&candidate);
      compile(proposed, toolchain, compiling);
      verify(chunk, settings_);
      std::vector<Record> records;
      for (std::size_t i = 0; i < chunk.size(); ++i) {
        if (chunk[i].as<Verified>() != nullptr) {
          verified_.push_back(std::move(chunk[i]));
        } else {
          if (verified_.empty()) throw kernels::EnvironmentError("tune: the default of " + problem_.name() + " does not run here");
          records.push_back(record_of(chunk[i], verified_.size(), nullptr, run_));
        }
      }
      append_records(path_, records);
      chunk.clear();
    } while (next != variants.end() && seconds_since(began) < seconds);
    return static_cast<std::size_t>(variants.end() - next);
  }

  std::size_t verified() const { return verified_.size() - 1; }

  // In every pass each point runs beside the default and other points, drawn anew. One disturbance, of a core or of where the
  // system has put the arrays, lasts for a batch: the median over passes outlives it.
  void time(int passes) {
    constexpr std::size_t kBatch = 48;
    std::vector<RoundSamples> pooled(verified_.size(), RoundSamples(2));  // of all passes: the default beside the point, and the point
    std::vector<std::size_t> order;
    for (std::size_t i = 1; i < verified_.size(); ++i) order.push_back(i);
    for (int pass = 0; pass < passes; ++pass) {
      shuffle(order, random_);
      for (std::size_t begin = 0; begin < order.size(); begin += kBatch) {
        const std::vector<std::size_t> members(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                               order.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kBatch, order.size())));
        std::vector<Candidate> batch = {verified_.front()};
        for (const std::size_t i : members) batch.push_back(verified_[i]);
        const Measurement m = measure(batch, settings_);
        for (std::size_t k = 0; k < members.size(); ++k) {
          RoundSamples& all = pooled[members[k]];
          if (const auto* timed = batch[k + 1].as<Timed>()) {
            append(all.ns[0], m.screening.ns.front());
            append(all.ns[1], timed->screening_ns);
            append(all.ceiling_ns, m.screening.ceiling_ns);
            all.ceiling = m.finals.ceiling;
          } else {
            verified_[members[k]] = batch[k + 1];  // rejected while timed
          }
        }
      }
      std::fprintf(stderr, "%s: pass %d of %d\n", problem_.name().c_str(), pass + 1, passes);
    }
    std::vector<Record> records;
    for (std::size_t i = 1; i < verified_.size(); ++i) {
      if (verified_[i].as<Verified>() == nullptr) {
        records.push_back(record_of(verified_[i], i, nullptr, run_));
        continue;
      }
      RoundSamples none(2);
      none.ceiling = pooled[i].ceiling;
      std::vector<Candidate> pair = {verified_.front(), verified_[i]};
      const Measurement m = evaluate(pair, std::move(pooled[i]), std::move(none), settings_);
      records.push_back(record_of(pair.back(), 1, &m, run_));
    }
    append_records(path_, records);
  }

 private:
  Problem problem_;
  MeasureSettings settings_;
  const RunIdentity& run_;
  std::string path_;
  std::uint64_t random_;
  std::vector<Candidate> verified_;  // the default first
};

}  // namespace

int record_command(const Options& options, const std::vector<Problem>& problems) {
  constexpr i64 kElements = i64{1} << 18;  // in the last cache level: in memory every schedule waits for the same bytes, and the space is flat
  constexpr int kRounds = 5;               // of each pass
  const std::string out = options.text("record", "");
  const double budget = options.number("budget", 600, 1, 1e6);
  const auto passes = static_cast<int>(options.integer("passes", 5, 1, 1000));
  const auto most = static_cast<std::size_t>(options.integer("evaluations", INT64_MAX, 1, INT64_MAX));  // of each problem, in this run
  MeasureSettings settings;
  settings.seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  settings.screening_rounds = kRounds;
  settings.final_rounds = settings.finalists = 0;
  const Accuracy accuracy = accuracy_of(options);
  create_folder(out);
  settings.log_path = out + "/record.log";
  const auto began = Clock::now();
  const Toolchain toolchain = find_toolchain();
  const CpuIdentity cpu = identify_cpu();
  const RunIdentity run = identify_run(toolchain, cpu, settings.seed);
  CompileSettings compiling;
  compiling.cache_folder = out + "/variants";
  compiling.jobs = cpu.threads;

  for (std::size_t p = 0; p < problems.size(); ++p) {
    const Problem problem = sized_within(problems[p], kElements);
    const Fits fits = fits_within(problem, accuracy);
    const Space space = cpu_space(problem, fits, cpu.vector_bits, cpu.threads);
    const Points points = space.construct();
    const std::string path = out + "/" + problem.name() + ".jsonl";
    const std::set<std::string> done = recorded(path, run, problem);
    std::vector<Variant> waiting;
    for (std::size_t i = 0; i < points.size(); ++i)
      if (Variant variant = variant_at(problem, fits, space, points[i]); done.count(variant.parameters().dump()) == 0) waiting.push_back(std::move(variant));
    std::printf("%s: space: %s; %zu to record\n", problem.name().c_str(), size_report(points).c_str(), waiting.size());
    std::uint64_t state = settings.seed;
    shuffle(waiting, state);
    const std::size_t all = waiting.size();
    waiting.resize(std::min(most, all), default_variant(problem));
    const std::size_t asked = waiting.size();
    Recorder recorder(problem, settings, run, path);
    const double seconds = (budget - seconds_since(began)) / static_cast<double>(problems.size() - p);
    const std::size_t left = recorder.prepare(std::move(waiting), toolchain, compiling, seconds);
    std::printf("%s: timing %zu points, %d times\n", problem.name().c_str(), recorder.verified(), passes);
    std::fflush(stdout);
    recorder.time(passes);
    std::error_code error;
    std::filesystem::remove_all(compiling.cache_folder, error);  // thousands of objects that nobody asks for again
    std::printf("%s: %zu of %zu points left, %.0f s\n", problem.name().c_str(), left + all - asked, points.size(), seconds_since(began));
  }
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
