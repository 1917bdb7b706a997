// The search against a recording.
#include "autotune/search/replay.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autotune/space/variant.h"

namespace outgrad::autotune {

Replay replay(const Recording& recording, Strategy& strategy, std::size_t evaluations, std::size_t batch) {
  Replay run;
  double best = INFINITY;
  while (run.best_ms.size() < evaluations) {
    const std::vector<std::size_t> asked = strategy.ask(std::min(batch, evaluations - run.best_ms.size()));
    if (asked.empty()) break;
    for (const std::size_t point : asked) {
      const Outcome& time = recording.evaluations[point].time_ms;
      strategy.tell(point, time);
      if (time && *time < best) best = *time, run.best = point;
      run.best_ms.push_back(best);
    }
  }
  return run;
}

double share_of_optimum(const Recording& recording, const Replay& run, std::size_t n) {
  const Outcome optimum = recording.best_ms();
  n = std::min(n, run.best_ms.size());
  return optimum && n > 0 ? *optimum / run.best_ms[n - 1] : 0;
}

Recording eligible_part(Recording recording, Accuracy accuracy) {
  const auto& parameters = recording.points.parameters();
  const auto fit = static_cast<std::size_t>(
      std::find_if(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.name == "fit"; }) -
      parameters.begin());
  const std::optional<Problem> problem = problem_named(recording.kernel);
  if (accuracy == Accuracy::kAny || fit == parameters.size() || !problem || !problem->has_fit())
    return recording;
  const Fits eligible = fits_within(*problem, accuracy);
  std::vector<std::uint64_t> ranks;
  std::vector<Evaluation> evaluations;
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    const nlohmann::json& label = recording.labels[fit][recording.points.position(i, fit)];
    if (std::none_of(eligible.begin(), eligible.end(), [&](const auto& each) { return label == each->type; }))
      continue;
    ranks.push_back(recording.points.rank(i));
    evaluations.push_back(std::move(recording.evaluations[i]));
  }
  recording.points = Points(parameters, std::move(ranks));
  recording.evaluations = std::move(evaluations);
  return recording;
}

}  // namespace outgrad::autotune
