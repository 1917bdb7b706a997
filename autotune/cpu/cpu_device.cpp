// Spaces compiled by the host compiler; the winners' header.
#include "autotune/cpu/cpu_device.h"

#include <omp.h>

#include <algorithm>
#include <map>

#include "autotune/cpu/executor.h"
#include "autotune/space/sources.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;

class CpuTunable : public Tunable {
 public:
  CpuTunable(const Problem& problem, Fits fits, const CpuIdentity& cpu, const Toolchain& toolchain,
             CompileSettings compiling, const Shard& shard)
      : problem_(problem), fits_(std::move(fits)),
        space_(cpu_space(problem, fits_, cpu.vector_bits, cpu.threads)),
        points_(space_.construct().part(shard.index, shard.count)), toolchain_(toolchain),
        compiling_(std::move(compiling)) {}

  const Points& points() const override { return points_; }
  std::shared_ptr<const AnyVariant> variant(std::size_t point) const override {
    return std::make_shared<const Variant>(at(point));
  }
  std::shared_ptr<const AnyVariant> baseline() const override {
    return std::make_shared<const Variant>(default_variant(problem_));
  }

  std::vector<Candidate> compile(const std::vector<std::shared_ptr<const AnyVariant>>& variants,
                                 double seconds) override {
    std::vector<Candidate> candidates;
    for (const auto& variant : variants)
      candidates.emplace_back(variant, dynamic_cast<const Variant&>(*variant).body());
    std::vector<Candidate*> fresh;
    for (Candidate& candidate : candidates) {
      if (const auto known = objects_.find(candidate.variant().name()); known != objects_.end())
        candidate.compiled({known->second.library, known->second.symbol, 0});
      else
        fresh.push_back(&candidate);
    }
    CompileSettings settings = compiling_;
    settings.budget_seconds = seconds;
    // As many units as compilers, but the default, which comes first and once, by itself.
    settings.variants_per_unit =
        std::max(1, (static_cast<int>(fresh.size()) + settings.jobs - 1) / settings.jobs);
    autotune::compile(fresh, toolchain_, settings);
    for (const Candidate* candidate : fresh)
      if (const Compiled* code = candidate->code()) objects_.emplace(candidate->variant().name(), *code);
    return candidates;
  }

  // The other fits in the default's schedule, the caller's own before all, then points that differ from it in
  // one parameter: a few, at random.
  std::vector<std::size_t> first(std::size_t, std::uint64_t seed, double) override {
    constexpr std::size_t kNeighbours = 8;
    const Variant origin = default_variant(problem_);
    const json wanted = origin.parameters();
    std::vector<std::pair<std::uint64_t, std::size_t>> own, fits, neighbours;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const Variant variant = at(i);
      const json parameters = variant.parameters();
      const auto differing =
          std::count_if(parameters.items().begin(), parameters.items().end(), [&](const auto& item) {
            // Where the fit leaves no choice of the placement, that is no difference.
            return wanted.at(item.key()) != item.value() &&
                   (item.key() != "table" || variant.fit == nullptr || variant.fit->has_rows);
          });
      if (differing == 1)
        (variant.fit == origin.fit     ? neighbours
         : variant.fit->header.empty() ? fits
                                       : own)
            .push_back({kernels::next_random(seed), i});
    }
    std::sort(neighbours.begin(), neighbours.end());
    neighbours.resize(std::min(neighbours.size(), kNeighbours));
    std::vector<std::size_t> first;
    for (const auto* group : {&own, &fits, &neighbours})
      for (const auto& [order, point] : *group) first.push_back(point);
    return first;
  }

 private:
  Variant at(std::size_t point) const { return variant_at(problem_, fits_, space_, points_[point]); }

  Problem problem_;
  Fits fits_;
  Space space_;
  Points points_;
  const Toolchain& toolchain_;
  CompileSettings compiling_;
  std::map<std::string, Compiled> objects_;
};

RunIdentity identify_run(const Toolchain& toolchain, const CpuIdentity& cpu, std::uint64_t seed) {
  RunIdentity run{device_record(cpu),
                  hash_sources(toolchain.source_root),
                  toolchain.version.substr(0, toolchain.version.find('\n')),
                  "",
                  utc_now(),
                  seed};
  for (const std::string& flag : toolchain.flags)
    // a path would tie the record to a folder
    if (flag.rfind("-I", 0) != 0) run.flags += (run.flags.empty() ? "" : " ") + flag;
  return run;
}

class CpuDevice : public TuningDevice {
 public:
  CpuDevice(const CpuChoices& choices, std::uint64_t seed)
      : choices_(choices), toolchain_(find_toolchain()), cpu_(identify_cpu()),
        run_(identify_run(toolchain_, cpu_, seed)) {
    // Records name a device of so many threads, and so does a process that looks its schedules up.
    const int used = std::min(omp_get_max_threads(), omp_get_thread_limit()), may = omp_get_num_procs();
    if (used != may)
      throw kernels::SpecError("tune", "OMP_NUM_THREADS",
                               "OpenMP runs " + std::to_string(used) + " threads on " + std::to_string(may) +
                                   " processors: what is measured so is not this device's; unset it");
    compiling_.cache_folder = choices.out + "/variants";
    compiling_.jobs = cpu_.threads;
  }

  std::string slug() const override { return "cpu"; }
  std::string description() const override {
    return cpu_.model + ", " + std::to_string(cpu_.threads) + " threads";
  }
  Backend backend() const override { return Backend::kCpu; }
  const RunIdentity& run() const override { return run_; }
  MeasureSettings measure() const override {
    MeasureSettings settings;
    settings.open = open_cpu;
    return settings;
  }
  i64 elements_for(const Problem& problem, double seconds, int calls) const override {
    return autotune::elements_for(problem, cpu_, seconds, calls);
  }

  std::unique_ptr<Tunable> space_of(const Problem& problem, const Shard& shard) override {
    Fits fits = fits_within(problem, choices_.accuracy);  // a norm's are none
    if (problem.kernel == KernelId::kGeluBackward && !choices_.headers.empty()) {
      kernels::create_folder(choices_.out + "/fits");
      std::vector<GeneratedHeader> headers;
      for (const GeneratedHeader& header : choices_.headers) {
        if (header.format != name_of(problem.format)) continue;
        if (const auto why = why_too_coarse(problem, header.bounds, choices_.accuracy))
          kernels::print_error_line("warning: " + header.path + ": not tried: its " + *why +
                                    " (--accuracy any tries it)");
        else
          headers.push_back(header);
      }
      for (const auto& fit : header_fits(headers, problem.format, toolchain_, compiling_)) {
        // where the tuned header finds it
        kernels::write_file(choices_.out + "/" + header_path(*fit), fit->header);
        fits.push_back(fit);
      }
    }
    return std::make_unique<CpuTunable>(problem, std::move(fits), cpu_, toolchain_, compiling_, shard);
  }

 private:
  CpuChoices choices_;
  Toolchain toolchain_;
  CpuIdentity cpu_;
  RunIdentity run_;
  CompileSettings compiling_;
};

}  // namespace

i64 elements_for(const Problem& problem, const CpuIdentity& cpu, double seconds, int calls) {
  constexpr i64 kLeast = i64{1} << 24;  // tens of milliseconds even where no cache size is known
  constexpr double kBytesPerThread = 10e9;
  constexpr i64 kFloor = i64{1} << 20;  // below this a call is too short to time, whatever the memory
  const double bytes = problem.bytes_per_element();
  const double wanted = 4 * static_cast<double>(cpu.l3_bytes) * cpu.sockets_seen / bytes;
  const double affordable = static_cast<double>(available_memory_bytes()) / 4 / bytes;
  const double in_time = seconds / 2 / calls * kBytesPerThread * cpu.threads / bytes;
  i64 elements = kLeast;
  while (static_cast<double>(elements) < std::min(wanted, in_time / 2)) elements *= 2;
  while (elements > kFloor && static_cast<double>(elements) > affordable) elements /= 2;
  return elements;
}

std::unique_ptr<TuningDevice> open_cpu_device(const CpuChoices& choices, std::uint64_t seed) {
  return std::make_unique<CpuDevice>(choices, seed);
}

}  // namespace outgrad::autotune
