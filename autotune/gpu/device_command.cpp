// The life cycle of autotune/tuner.h with a GPU as the executor.
#include "autotune/gpu/device_command.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "autotune/gpu/offline.h"
#include "autotune/gpu/session.h"
#include "autotune/isolate.h"
#include "autotune/tuned_header.h"
#include "autotune/tuner.h"
#include "kernels/host/files.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::i64;
using nlohmann::json;

int index_of(const Options& options) {
  const std::string text = options.text("device", "").substr(5);
  if (text.empty() || text.size() > 4 || !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    throw options.bad("device", "'cuda:" + text + "' names no device (cuda:0, cuda:1, ...)");
  return std::stoi(text);
}

// In a child: this process compiles and forks, which no process with an open device may.
DeviceIdentity identify(int index) {
  std::optional<DeviceIdentity> device;
  std::string refusal;
  const auto body = [&](const Channel& channel) {
    try {
      channel.report({{"device", to_json(Device(index).identity())}});
    } catch (const kernels::CudaError& error) {
      channel.report({{"refused", error.what()}});
    }
  };
  const auto on_report = [&](const json& report) {
    if (report.contains("refused"))
      refusal = report["refused"].get<std::string>();
    else
      device = device_from(report["device"]);
  };
  constexpr double kPatienceSeconds = 60;  // the first use of a device starts its driver
  const ChildEnd end = run_isolated(body, on_report, {kPatienceSeconds, IsolationLimits::kNoLimit});
  if (!refusal.empty()) throw kernels::CudaError("--device cuda:" + std::to_string(index) + ": " + refusal);
  if (!device) throw kernels::CudaError("--device cuda:" + std::to_string(index) + ": the driver fails: " + end.detail);
  return *device;
}

// "nvidia_h200" for "NVIDIA H200": part of names of files and namespaces.
std::string slug_of(const std::string& name) {
  std::string slug;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!slug.empty() && slug.back() != '_')
      slug += '_';
  }
  while (!slug.empty() && slug.back() == '_') slug.pop_back();
  return slug.empty() || std::isdigit(static_cast<unsigned char>(slug.front())) != 0 ? "device_" + slug : slug;
}

// Elements per array so that one call touches far more than the last cache, within a quarter of the memory.
i64 elements_for(const Problem& problem, const DeviceIdentity& device) {
  constexpr i64 kLeast = i64{1} << 20, kMost = i64{1} << 28;
  constexpr double kCaches = 8;
  const double bytes = problem.bytes_per_element(), wanted = kCaches * static_cast<double>(device.l2_bytes) / bytes;
  const double affordable = static_cast<double>(device.memory_bytes) / 4 / bytes;
  i64 elements = kLeast;
  while (elements < kMost && (static_cast<double>(elements) < wanted || elements < (i64{1} << 26)) && 2.0 * static_cast<double>(elements) <= affordable)
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

}  // namespace

int device_command(const Options& options, const std::vector<Problem>& problems) {
  const int index = index_of(options);
  const DeviceIdentity device = identify(index);
  const Nvrtc& nvrtc = Nvrtc::instance();
  nvrtc.require(device.limits.name);
  const std::string out = options.text("out", "out/tuned"), slug = slug_of(device.name);
  const std::string database_path = out + "/tune_" + slug + ".jsonl", tuned_path = out + "/tuned_" + slug + ".h";
  // Compiled, all of them, to be ranked; run, the best of the ranking and the default.
  constexpr i64 kCompiledPerRun = 4;
  const i64 evaluations = options.integer("evaluations", 48, 1, 100'000);
  const double budget = options.number("budget", 60, 1, 1e6);
  const bool as_json = options.has("json"), terminal = ::isatty(STDERR_FILENO) != 0;
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };

  MeasureSettings settings;
  settings.open = [index] { return open_device(index); };
  settings.memory_bytes = IsolationLimits::kNoLimit;  // a driver reserves more addresses than there is memory
  settings.seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  settings.log_path = out + "/tune_" + slug + ".log";
  OfflineSettings compiling;
  compiling.cache_folder = out + "/" + device.limits.name;
  compiling.jobs = identify_cpu().threads;
  if (terminal)
    compiling.progress = [&](std::size_t done, std::size_t programs) {
      std::fprintf(stderr, "\rcompiling for %s: %zu of %zu, %.0f s ", device.limits.name.c_str(), done, programs, elapsed());
    };
  const RunIdentity run{to_json(device), hash_of_embedded(), "NVRTC " + nvrtc.version(), "--std=c++20", utc_now(), settings.seed};

  std::vector<json> winners;
  if (!as_json) std::printf("%s, %s, %d SMs, %.0f GB/s by its clocks\n", device.name.c_str(), device.limits.name.c_str(), device.limits.sms, device.limits.dram_gb_per_s);
  for (std::size_t p = 0; p < problems.size(); ++p) {
    const Problem problem = sized_within(problems[p], elements_for(problems[p], device));
    const double share = (budget - elapsed()) / static_cast<double>(problems.size() - p);
    if (share <= 0 && p > 0) {
      std::fprintf(stderr, "outgrad: warning: tune: %s: not tuned, the budget of %.0f s is spent\n", problem.name().c_str(), budget);
      continue;
    }
    const Space space = gpu_space(problem, gpu_fits_of(problem), device.limits);
    compiling.budget_seconds = share / 2;  // the other half is for running
    std::vector<Outcome> outcomes = evaluate(
        choose_gpu_variants(problem, gpu_fits_of(problem), device.limits, space, space.construct(), static_cast<std::size_t>(kCompiledPerRun * evaluations), settings.seed),
        device.limits, compiling);
    if (terminal) std::fprintf(stderr, "\r\033[K");
    // The default first, then by prediction; what was pruned comes last, and is recorded.
    if (outcomes.empty() || outcomes.front().variant.name() != default_gpu_variant(problem, device.limits).name()) throw kernels::EnvironmentError("tune: " + problem.name() + ": the default was not compiled within the budget");
    std::stable_sort(outcomes.begin() + 1, outcomes.end(), [](const Outcome& a, const Outcome& b) {
      const auto *left = std::get_if<Predicted>(&a.result), *right = std::get_if<Predicted>(&b.result);
      if (left == nullptr || right == nullptr) return left != nullptr;
      return left->prediction.ns < right->prediction.ns;
    });
    std::vector<Candidate> candidates;
    for (const Outcome& outcome : outcomes)
      if (candidates.size() < static_cast<std::size_t>(evaluations) || std::holds_alternative<Pruned>(outcome.result)) candidates.push_back(candidate_of(outcome));
    settings.seconds = std::max(4.0, (budget - elapsed()) / static_cast<double>(problems.size() - p));
    const Measurement m = tune_problem(candidates, settings, run, database_path, winners);
    if (!as_json) print_problem(candidates, m);
  }
  kernels::write_file(tuned_path, tuned_header(winners_in(load_database(database_path).records, run.hashes, out), Backend::kCuda,
                                               "for " + device.name + ", " + device.limits.name));
  if (as_json)
    std::printf("%s\n", json{{"schema", "outgrad.tune_summary/1"}, {"seconds", elapsed()}, {"database", database_path}, {"header", tuned_path}, {"winners", winners}}.dump(2).c_str());
  else
    std::printf("%s and %s, in %.1f s\n", tuned_path.c_str(), database_path.c_str(), elapsed());
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune::gpu
