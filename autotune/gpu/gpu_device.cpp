// A GPU as a device of the tuner.
#include "autotune/gpu/gpu_device.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <functional>
#include <map>

#include "autotune/gpu/offline.h"
#include "autotune/gpu/session.h"
#include "autotune/measure/device.h"
#include "autotune/measure/isolate.h"
#include "kernels/support/errors.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::i64;
using nlohmann::json;

// What the driver answers to a question, in a child: this process compiles and forks, which no process with
// an open device may.
json asked(const std::string& device, const std::function<json()>& question) {
  json answer;
  std::string refusal;
  const auto body = [&](const Channel& channel) {
    try {
      channel.report({{"answer", question()}});
    } catch (const kernels::CudaError& error) {
      channel.report({{"refused", error.what()}});
    }
  };
  const auto on_report = [&](const json& report) {
    if (report.contains("refused"))
      refusal = report["refused"].get<std::string>();
    else
      answer = report["answer"];
  };
  constexpr double kPatienceSeconds = 60;  // the first use of a device starts its driver
  const ChildEnd end = run_isolated(body, on_report, {kPatienceSeconds, IsolationLimits::kNoLimit});
  if (!refusal.empty()) throw kernels::CudaError("--device " + device + ": " + refusal);
  if (answer.is_null()) throw kernels::CudaError("--device " + device + ": the driver fails: " + end.detail);
  return answer;
}

// Elements per array so that one call touches far more than the last cache, within a quarter of the memory.
i64 elements_for(const Problem& problem, const DeviceRecord& device) {
  constexpr i64 kLeast = i64{1} << 20, kMost = i64{1} << 28;
  constexpr double kCaches = 8;
  const double bytes = problem.bytes_per_element(),
               wanted = kCaches * static_cast<double>(*device.l2_bytes) / bytes;
  const double affordable = static_cast<double>(*device.memory_bytes) / 4 / bytes;
  i64 elements = kLeast;
  while (elements < kMost && (static_cast<double>(elements) < wanted || elements < (i64{1} << 26)) &&
         2.0 * static_cast<double>(elements) <= affordable)
    elements *= 2;
  return elements;
}

Candidate candidate_of(const Outcome& outcome) {
  Candidate candidate(std::make_shared<const GpuVariant>(outcome.variant), outcome.variant.source());
  if (const auto* pruned = std::get_if<Pruned>(&outcome.result))
    candidate.reject(Stage::kCompile, pruned->reason, pruned->detail);
  else
    candidate.compiled(std::get<Predicted>(outcome.result).compiled);
  return candidate;
}

class GpuTunable : public Tunable {
 public:
  GpuTunable(const Problem& problem, Accuracy accuracy, const Architecture& limits, OfflineSettings compiling,
             const Shard& shard)
      : problem_(problem), fits_(fits_within(problem, accuracy)), space_(gpu_space(problem, fits_, limits)),
        points_(space_.construct().part(shard.index, shard.count)), limits_(limits),
        compiling_(std::move(compiling)) {}

  const Points& points() const override { return points_; }
  std::shared_ptr<const AnyVariant> variant(std::size_t point) const override {
    return std::make_shared<const GpuVariant>(gpu_variant_at(problem_, fits_, space_, points_[point]));
  }
  std::shared_ptr<const AnyVariant> baseline() const override {
    return std::make_shared<const GpuVariant>(default_gpu_variant(problem_, limits_));
  }

  std::vector<Candidate> compile(const std::vector<std::shared_ptr<const AnyVariant>>& variants,
                                 double seconds) override {
    std::vector<GpuVariant> wanted;
    for (const auto& variant : variants) wanted.push_back(dynamic_cast<const GpuVariant&>(*variant));
    OfflineSettings settings = compiling_;
    settings.budget_seconds = seconds;
    std::map<std::string, const Outcome*> outcomes;
    const std::vector<Outcome> all = evaluate(wanted, limits_, settings);
    for (const Outcome& outcome : all) outcomes.emplace(outcome.variant.name(), &outcome);
    std::vector<Candidate> candidates;
    for (const auto& variant : variants) {
      const auto found = outcomes.find(variant->name());
      if (found != outcomes.end())
        candidates.push_back(candidate_of(*found->second));
      else
        candidates.emplace_back(variant, "");  // the budget left it out
    }
    return candidates;
  }

  // Points near the default, compiled and ranked by the model: several for each that is tried, and not many
  // more, since compiling one takes longer than running it.
  std::vector<std::size_t> first(std::size_t evaluations, std::uint64_t seed, double seconds) override {
    constexpr std::size_t kCompiled = 96, kForOne = 4;
    constexpr double kShare = 0.3;  // of the time, at most
    OfflineSettings settings = compiling_;
    settings.budget_seconds = kShare * seconds;
    const std::size_t compiled = evaluations < kCompiled / kForOne ? kForOne * evaluations : kCompiled;
    std::map<std::string, std::size_t> numbers;
    std::vector<GpuVariant> chosen;
    for (const std::size_t point :
         near_default({problem_, fits_, limits_, space_, points_}, compiled, seed)) {
      chosen.push_back(gpu_variant_at(problem_, fits_, space_, points_[point]));
      numbers.emplace(chosen.back().name(), point);
    }
    std::vector<std::pair<double, std::size_t>> ranked;
    for (const Outcome& outcome : evaluate(chosen, limits_, settings))
      if (const auto* predicted = std::get_if<Predicted>(&outcome.result))
        ranked.push_back({predicted->prediction.ns, numbers.at(outcome.variant.name())});
    std::sort(ranked.begin(), ranked.end());
    std::vector<std::size_t> first;
    for (const auto& [ns, point] : ranked) first.push_back(point);
    return first;
  }

 private:
  Problem problem_;
  Fits fits_;
  Space space_;
  Points points_;
  const Architecture& limits_;
  OfflineSettings compiling_;
};

class GpuDevice : public TuningDevice {
 public:
  GpuDevice(int index, const std::string& out, std::uint64_t seed, Accuracy accuracy)
      : index_(index), device_(identify_gpu(index)), limits_(limits_of(device_)), accuracy_(accuracy) {
    const Nvrtc& nvrtc = Nvrtc::instance();
    nvrtc.require(limits_.name);
    compiling_.cache_folder = out + "/" + limits_.name;
    compiling_.jobs = identify_cpu().threads;
    run_ = {device_, hash_of_embedded(), "NVRTC " + nvrtc.version(), "--std=c++20", utc_now(), seed};
  }

  // part of names of files and namespaces
  std::string slug() const override {
    const std::string slug = slug_of(limits_.board);
    const bool named = !slug.empty() && std::isdigit(static_cast<unsigned char>(slug.front())) == 0;
    return named ? slug : "device_" + slug;
  }
  std::string description() const override {
    char text[256];
    std::snprintf(text, sizeof text, "%s, %s, %d SMs, %.0f GB/s by its clocks", limits_.board.c_str(),
                  limits_.name.c_str(), limits_.sms, limits_.dram_gb_per_s);
    return text;
  }
  Backend backend() const override { return Backend::kCuda; }
  const RunIdentity& run() const override { return run_; }
  MeasureSettings measure() const override {
    MeasureSettings settings;
    settings.open = [index = index_] { return open_device(index); };
    // a driver reserves more addresses than there is memory
    settings.memory_bytes = IsolationLimits::kNoLimit;
    return settings;
  }
  // runs are short, and a process with an open device costs a second
  std::size_t batch() const override { return 16; }
  i64 elements_for(const Problem& problem, double /*seconds: a call takes milliseconds at most*/,
                   int /*calls*/) const override {
    return gpu::elements_for(problem, device_);
  }
  std::unique_ptr<Tunable> space_of(const Problem& problem, const Shard& shard) override {
    return std::make_unique<GpuTunable>(problem, accuracy_, limits_, compiling_, shard);
  }

 private:
  int index_;
  DeviceRecord device_;
  Architecture limits_;
  Accuracy accuracy_;
  OfflineSettings compiling_;
  RunIdentity run_;
};

}  // namespace

int count_gpus() {
  return asked("cuda:all", [] { return json(device_count()); }).get<int>();
}

DeviceRecord identify_gpu(int index) {
  return device_record_from(
      asked("cuda:" + std::to_string(index), [index] { return to_json(Device(index).record()); }));
}

std::unique_ptr<TuningDevice> open_gpu_device(int index, const std::string& out, std::uint64_t seed,
                                              Accuracy accuracy) {
  return std::make_unique<GpuDevice>(index, out, seed, accuracy);
}

}  // namespace outgrad::autotune::gpu
