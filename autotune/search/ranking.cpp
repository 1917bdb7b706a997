// Predictions for the points of a recording, and what they are worth.
#include "autotune/search/ranking.h"

#include <algorithm>

#include "autotune/gpu/offline.h"
#include "autotune/measure/device.h"
#include "kernels/support/errors.h"

namespace outgrad::autotune {
namespace {

// The variants of a recording's points; of parameters that are no variant's, why is counted.
std::vector<std::optional<gpu::GpuVariant>> variants_of(const Recording& recording, const Problem& problem,
                                                        PredictedPoints& predicted) {
  std::vector<std::optional<gpu::GpuVariant>> variants;
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    try {
      variants.push_back(gpu::gpu_variant_from(problem, fits_of(problem), recording.configuration(i)));
    } catch (const kernels::SpecError& error) {
      variants.push_back(std::nullopt);
      ++predicted.left_out[error.what()];
    }
  }
  return variants;
}

}  // namespace

PredictedPoints predicted_points(const std::string& architecture_name, const Recording& recording,
                                 const Problem& problem, const std::string& path, const std::string& folder) {
  const gpu::Architecture& architecture = gpu::architecture_of(architecture_name);
  if (recording.device.find(", " + architecture_name + ",") == std::string::npos)
    throw kernels::SpecError(path, "device",
                             "recorded on '" + recording.device + "', which is no " + architecture_name);
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
  settings.cache_folder = folder + "/" + architecture_name;
  settings.jobs = identify_cpu().threads;
  for (const gpu::Outcome& outcome : gpu::evaluate(wanted, architecture, settings)) {
    const std::vector<std::size_t>& same = points.at(outcome.variant.name());
    if (const auto* pruned = std::get_if<gpu::Pruned>(&outcome.result)) {
      predicted.left_out[std::string("pruned: ") + name_of(pruned->reason)] += same.size();
      continue;
    }
    ++predicted.compiled;
    for (const std::size_t point : same)
      predicted.time[point] = std::get<gpu::Predicted>(outcome.result).prediction.ns;
  }
  return predicted;
}

RankingCheck check_ranking(const Recording& recording, const std::vector<std::optional<double>>& predicted,
                           const std::string& path) {
  std::vector<double> model, measured;
  std::vector<std::size_t> order;  // points that did not fail, as measured
  for (std::size_t i = 0; i < recording.evaluations.size(); ++i) {
    if (!recording.evaluations[i].time_ms) continue;
    order.push_back(i);
    if (!predicted[i]) continue;
    model.push_back(*predicted[i]);
    measured.push_back(*recording.evaluations[i].time_ms);
  }
  if (model.size() < 2)
    throw kernels::SpecError(path, "points", "fewer than two have both a measured time and a prediction");
  const auto is_faster = [&](std::size_t a, std::size_t b) {
    return *recording.evaluations[a].time_ms < *recording.evaluations[b].time_ms;
  };
  std::stable_sort(order.begin(), order.end(), is_faster);
  RankingCheck check;
  check.points = model.size();
  check.spearman = spearman_interval(model, measured);
  const double least = *recording.evaluations[order.front()].time_ms;
  std::vector<double> near_model, near_measured;
  for (std::size_t i = 0; i < model.size(); ++i)
    if (least >= kNearShare * measured[i])
      near_model.push_back(model[i]), near_measured.push_back(measured[i]);
  check.near = near_model.size();
  check.near_spearman = spearman(near_model, near_measured);
  const auto share_at = [&](std::size_t point) {
    const auto before =
        std::count_if(model.begin(), model.end(), [&](double time) { return time <= *predicted[point]; });
    return static_cast<double>(before) / static_cast<double>(model.size());
  };
  check.best = order.front();
  if (predicted[check.best]) check.best_at = share_at(check.best);
  check.top = std::min(kTop, order.size());
  for (std::size_t i = 0; i < check.top; ++i)
    if (predicted[order[i]] && share_at(order[i]) <= kTopShare) ++check.top_found;
  std::vector<std::pair<double, double>> as_predicted;  // and the measured times, the longest first
  for (std::size_t i = 0; i < model.size(); ++i) as_predicted.emplace_back(model[i], -measured[i]);
  std::sort(as_predicted.begin(), as_predicted.end());
  for (std::size_t k = 0; k < kFirst.size(); ++k) {
    double found = 0;
    for (std::size_t i = 0; i < std::min(kFirst[k], as_predicted.size()); ++i)
      found = std::max(found, least / -as_predicted[i].second);
    check.reached[k] = found;
  }
  return check;
}

}  // namespace outgrad::autotune
