// Predictions for the points of a recording, and what they are worth.
#include "autotune/search/ranking.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "autotune/compile.h"
#include "autotune/device.h"
#include "autotune/gpu/offline.h"
#include "autotune/records/identity.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

json parameters_of(const Recording& recording, std::size_t point) {
  json parameters = json::object();
  for (std::size_t p = 0; p < recording.labels.size(); ++p)
    parameters[recording.points.parameters()[p].name] = recording.labels[p][recording.points.position(point, p)];
  return parameters;
}

// The variants of a recording's points; of parameters that are no variant's, why is counted.
std::vector<std::optional<gpu::GpuVariant>> variants_of(const Recording& recording, const Problem& problem, PredictedPoints& predicted) {
  std::vector<std::optional<gpu::GpuVariant>> variants;
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    try {
      variants.push_back(gpu::gpu_variant_from(problem, gpu::gpu_fits_of(problem), parameters_of(recording, i)));
    } catch (const kernels::SpecError& error) {
      variants.push_back(std::nullopt);
      ++predicted.left_out[error.what()];
    }
  }
  return variants;
}

PredictedPoints predicted_by(const std::string& architecture_name, const Recording& recording, const Problem& problem, const std::string& path,
                             const std::string& out) {
  const gpu::Architecture& architecture = gpu::architecture_of(architecture_name);
  if (recording.device.find(", " + architecture_name + ",") == std::string::npos)
    throw kernels::SpecError(path, "device", "recorded on '" + recording.device + "', which is no " + architecture_name);
  PredictedPoints predicted;
  predicted.model = architecture.name + " as on " + architecture.board;
  predicted.time.resize(recording.points.size());
  const std::vector<std::optional<gpu::GpuVariant>> variants = variants_of(recording, problem, predicted);
  std::vector<gpu::GpuVariant> wanted;
  std::map<std::string, std::vector<std::size_t>> points;  // by the variant's name
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (!variants[i]) continue;
    std::vector<std::size_t>& same = points[variants[i]->name()];
    if (same.empty()) wanted.push_back(*variants[i]);
    same.push_back(i);
  }
  gpu::OfflineSettings settings;
  settings.cache_folder = out + "/" + architecture_name;
  settings.jobs = identify_cpu().threads;
  for (const gpu::Outcome& outcome : gpu::evaluate(wanted, architecture, settings)) {
    const std::vector<std::size_t>& same = points.at(outcome.variant.name());
    if (const auto* pruned = std::get_if<gpu::Pruned>(&outcome.result)) {
      predicted.left_out[std::string("pruned: ") + name_of(pruned->reason)] += same.size();
      continue;
    }
    ++predicted.compiled;
    for (const std::size_t point : same) predicted.time[point] = std::get<gpu::Predicted>(outcome.result).prediction.ns;
  }
  return predicted;
}

}  // namespace

RankingCheck check_ranking(const Recording& recording, const std::vector<std::optional<double>>& predicted, const std::string& path, std::uint64_t seed) {
  std::vector<double> model, measured;
  std::vector<std::size_t> order;  // points that did not fail, as measured
  for (std::size_t i = 0; i < recording.evaluations.size(); ++i) {
    if (!recording.evaluations[i].time_ms) continue;
    order.push_back(i);
    if (!predicted[i]) continue;
    model.push_back(*predicted[i]);
    measured.push_back(*recording.evaluations[i].time_ms);
  }
  if (model.size() < 2) throw kernels::SpecError(path, "points", "fewer than two have both a measured time and a prediction");
  const auto is_faster = [&](std::size_t a, std::size_t b) { return *recording.evaluations[a].time_ms < *recording.evaluations[b].time_ms; };
  std::stable_sort(order.begin(), order.end(), is_faster);
  RankingCheck check;
  check.points = model.size();
  check.spearman = spearman_interval(model, measured, seed);
  const double least = *recording.evaluations[order.front()].time_ms;
  std::vector<double> near_model, near_measured;
  for (std::size_t i = 0; i < model.size(); ++i)
    if (least >= kNearShare * measured[i]) near_model.push_back(model[i]), near_measured.push_back(measured[i]);
  check.near = near_model.size();
  check.near_spearman = spearman(near_model, near_measured);
  const auto share_at = [&](std::size_t point) {
    const auto before = std::count_if(model.begin(), model.end(), [&](double time) { return time <= *predicted[point]; });
    return static_cast<double>(before) / static_cast<double>(model.size());
  };
  check.best = order.front();
  if (predicted[check.best]) check.best_at = share_at(check.best);
  check.top = std::min(kTop, order.size());
  for (std::size_t i = 0; i < check.top; ++i)
    if (predicted[order[i]] && share_at(order[i]) <= kTopShare) ++check.top_found;
  return check;
}

Problem problem_of(const Recording& recording, const Options& options, const std::string& path) {
  const std::optional<Problem> found = problem_named(recording.kernel);
  if (!found) throw kernels::SpecError(path, "kernel", "'" + recording.kernel + "' is none of this program's, which a ranking is of");
  const std::vector<Shape> shapes = options.shapes("shape");
  if (!shapes.empty() && !found->over_rows()) throw options.bad("shape", recording.kernel + " has no rows");
  if (shapes.size() > 1) throw options.bad("shape", "a recording is of one");
  if (!shapes.empty()) return found->sized(shapes.front().rows, shapes.front().cols);
  if (!recording.problem_size.is_number_integer() || recording.problem_size.get<i64>() < 1)
    throw kernels::SpecError(path, "problem_size", "not a number of elements" + std::string(found->over_rows() ? " (--shape says rows and columns)" : ""));
  return sized_within(*found, recording.problem_size.get<i64>());
}

int ranking_command(const Options& options, const Recording& recording, const std::string& path) {
  const std::string ranking = options.required("ranking"), out = options.text("out", "out/tuned");
  const auto seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  const auto began = Clock::now();
  if (ranking.rfind("sm_", 0) != 0) throw options.bad("ranking", "'" + ranking + "' is no architecture, sm_XX");
  const Problem problem = problem_of(recording, options, path);
  create_folder(out);
  const PredictedPoints predicted = predicted_by(ranking, recording, problem, path, out);
  if (std::none_of(predicted.time.begin(), predicted.time.end(), [](const auto& time) { return time.has_value(); }))
    throw kernels::SpecError(path, "points", "none has a prediction: " + (predicted.left_out.empty() ? "there are none" : predicted.left_out.begin()->first));
  const RankingCheck check = check_ranking(recording, predicted.time, path, seed);
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  const auto failed = std::count_if(recording.evaluations.begin(), recording.evaluations.end(), [](const Evaluation& e) { return !e.time_ms; });

  if (options.has("json")) {
    const Interval& spearman = check.spearman;
    const json result = {{"schema", "outgrad.ranking/1"},
                         {"file", path},
                         {"device", recording.device},
                         {"problem", problem.sized_name()},
                         {"ranking", ranking},
                         {"model", predicted.model},
                         {"recorded", recording.points.size()},
                         {"failed", failed},
                         {"points", check.points},
                         {"left_out", predicted.left_out},
                         {"spearman", {{"value", spearman.median}, {"low", spearman.low}, {"high", spearman.high}, {"confidence", kConfidence}}},
                         {"near_fastest", {{"points", check.near}, {"spearman", check.near_spearman}}},
                         {"best", recording.name_of(check.best)},
                         {"best_at", check.best_at ? json(*check.best_at) : json()},
                         {"top", check.top},
                         {"top_in_first_tenth", check.top_found},
                         {"compiled", predicted.compiled},
                         {"seconds", seconds}};
    std::printf("%s\n", result.dump(2).c_str());
    return kernels::kExitHolds;
  }
  std::printf("%s on %s: ranked by %s (%s), nothing run\n", problem.sized_name().c_str(), recording.device.c_str(), ranking.c_str(), predicted.model.c_str());
  std::printf("  %zu of %zu points predicted and measured, %td failed when recorded\n", check.points, recording.points.size(), failed);
  for (const auto& [why, count] : predicted.left_out) std::printf("  no prediction for %zu: %s\n", count, why.c_str());
  std::printf("  Spearman's correlation of predicted and measured times: %.3f [%.3f, %.3f]\n", check.spearman.median, check.spearman.low, check.spearman.high);
  std::printf("  of the %zu points that reach %.0f%% of the fastest's speed: %.2f\n", check.near, 100 * kNearShare, check.near_spearman);
  if (check.best_at)
    std::printf("  the fastest as measured is within the first %.1f%% as predicted: %s\n", 100 * *check.best_at, recording.name_of(check.best).c_str());
  else
    std::printf("  the fastest as measured has no prediction: %s\n", recording.name_of(check.best).c_str());
  std::printf("  of the %zu fastest as measured, %zu are within the first %.0f%% as predicted\n", check.top, check.top_found, 100 * kTopShare);
  std::printf("  %zu programs compiled or taken from the cache, in %.1f s\n", predicted.compiled, seconds);
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
