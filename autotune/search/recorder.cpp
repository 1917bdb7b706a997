// Two phases: compile and verify, then time.
#include "autotune/search/recorder.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "autotune/cpu/cpu_device.h"
#include "autotune/evidence/identity.h"
#include "autotune/measure/timing.h"
#include "autotune/records/database.h"
#include "autotune/search/tuner.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using Clock = std::chrono::steady_clock;
using SharedVariant = std::shared_ptr<const AnyVariant>;

// The parameters of points that the file has already.
std::set<std::string> recorded(const std::string& path, const RunIdentity& run, const Problem& problem) {
  std::set<std::string> done;
  for (const Record& record : load_database(path).records) {
    if (record.state == "timed" && record.elements != problem.elements())
      throw kernels::SpecError(path, "records",
                               "are of " + std::to_string(record.elements) + " elements, not of " +
                                   std::to_string(problem.elements()) + ": a recording is of one size");
    const bool ended = record.state == "rejected" ||
                       (record.state == "timed" && (!problem.over_rows() || record.cols == problem.cols));
    if (ended && device_key(record.run.device) == device_key(run.device) && record.run.hashes == run.hashes)
      done.insert(record.parameters.dump());
  }
  return done;
}

void append(std::vector<double>& all, const std::vector<double>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

class Recorder {
 public:
  Recorder(const Problem& problem, const MeasureSettings& settings, const RunIdentity& run, std::string path)
      : problem_(problem), settings_(settings), run_(run), path_(std::move(path)), random_(settings.seed) {}

  // Compiles and verifies the default and the variants until the seconds are spent; rejected ones are
  // recorded at once. How many variants it left out.
  std::size_t prepare(std::vector<SharedVariant> variants, Tunable& space, double seconds) {
    constexpr std::size_t kChunk = 48;
    const auto began = Clock::now();
    // In a random order, but points that share a loop side by side: together they cost little more to compile
    // than one.
    std::map<std::string, std::uint64_t> order;
    const auto loop_of = [](const SharedVariant& variant) {
      return dynamic_cast<const Variant&>(*variant).loop_name();
    };
    for (const SharedVariant& variant : variants)
      order.try_emplace(loop_of(variant), kernels::next_random(random_));
    std::ranges::stable_sort(variants, {}, [&](const SharedVariant& v) { return order.at(loop_of(v)); });
    std::vector<SharedVariant> wanted = {space.baseline()};
    auto next = variants.begin();
    do {
      for (; wanted.size() < kChunk && next != variants.end(); ++next) wanted.push_back(*next);
      std::vector<Candidate> chunk = space.compile(wanted, /*seconds=*/1e9);
      verify(chunk, settings_);
      std::vector<Record> records;
      for (std::size_t i = 0; i < chunk.size(); ++i) {
        if (chunk[i].as<Verified>() != nullptr) {
          verified_.push_back(std::move(chunk[i]));
        } else {
          if (verified_.empty())
            throw kernels::EnvironmentError("tune: the default of " + problem_.name() + " does not run here");
          records.push_back(record_of(chunk[i], verified_.size(), nullptr, run_));
        }
      }
      append_records(path_, records);
      wanted.clear();
    } while (next != variants.end() && seconds_since(began) < seconds);
    return static_cast<std::size_t>(variants.end() - next);
  }

  std::size_t verified() const { return verified_.size() - 1; }

  // In every pass each point runs beside the default and other points, drawn anew. One disturbance, of a core
  // or of where the system has put the arrays, lasts for a batch: the median over passes outlives it.
  void time(int passes) {
    constexpr std::size_t kBatch = 48;
    // of all passes: the default beside the point, and the point
    std::vector<RoundSamples> pooled(verified_.size(), RoundSamples(2));
    std::vector<std::size_t> order;
    for (std::size_t i = 1; i < verified_.size(); ++i) order.push_back(i);
    for (int pass = 0; pass < passes; ++pass) {
      kernels::shuffle(order, random_);
      for (std::size_t begin = 0; begin < order.size(); begin += kBatch) {
        const std::vector<std::size_t> members(
            order.begin() + static_cast<std::ptrdiff_t>(begin),
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

// Records the space of one problem in so many seconds.
void record_space(const Problem& problem, const RecorderSettings& settings, TuningDevice& device,
                  const MeasureSettings& measure, double seconds, Clock::time_point began) {
  const std::unique_ptr<Tunable> space = device.space_of(problem, {});
  const Points& points = space->points();
  const std::string path = settings.folder + "/" + problem.name() + ".jsonl";
  const std::set<std::string> done = recorded(path, device.run(), problem);
  std::vector<SharedVariant> waiting;
  for (std::size_t i = 0; i < points.size(); ++i)
    if (SharedVariant variant = space->variant(i); !done.contains(variant->parameters().dump()))
      waiting.push_back(std::move(variant));
  std::printf("%s: space: %s; %zu to record\n", problem.name().c_str(), size_report(points).c_str(),
              waiting.size());
  std::uint64_t state = settings.seed;
  kernels::shuffle(waiting, state);
  const std::size_t all = waiting.size(), asked = std::min(settings.evaluations, all);
  waiting.resize(asked);
  Recorder recorder(problem, measure, device.run(), path);
  const std::size_t left = recorder.prepare(std::move(waiting), *space, seconds);
  std::printf("%s: timing %zu points, %d times\n", problem.name().c_str(), recorder.verified(),
              settings.passes);
  std::fflush(stdout);
  recorder.time(settings.passes);
  std::error_code error;
  // thousands of objects that nobody asks for again
  std::filesystem::remove_all(settings.folder + "/variants", error);
  std::printf("%s: %zu of %zu points left, %.0f s\n", problem.name().c_str(), left + all - asked,
              points.size(), seconds_since(began));
}

}  // namespace

void record_spaces(const std::vector<Problem>& problems, const RecorderSettings& settings) {
  // In the last cache level: in memory every schedule waits for the same bytes, and the space is flat.
  constexpr i64 kElements = i64{1} << 18;
  constexpr int kRounds = 5;  // of each pass
  kernels::create_folder(settings.folder);
  const auto began = Clock::now();
  const auto device = open_cpu_device({.out = settings.folder, .accuracy = settings.accuracy}, settings.seed);
  MeasureSettings measure = device->measure();
  measure.seed = settings.seed;
  measure.screening_rounds = kRounds;
  measure.final_rounds = measure.finalists = 0;
  measure.log_path = settings.folder + "/record.log";
  for (std::size_t p = 0; p < problems.size(); ++p) {
    const double seconds =
        (settings.budget - seconds_since(began)) / static_cast<double>(problems.size() - p);
    record_space(sized_within(problems[p], kElements), settings, *device, measure, seconds, began);
  }
}

}  // namespace outgrad::autotune
