// The search against a recording, and its command.
#include "autotune/search/replay.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "autotune/search/ranking.h"
#include "autotune/variant.h"
#include "kernels/support/files.h"

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
  const auto fit =
      static_cast<std::size_t>(std::find_if(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.name == "fit"; }) - parameters.begin());
  const std::optional<Problem> problem = problem_named(recording.kernel);
  if (accuracy == Accuracy::kAny || fit == parameters.size() || !problem || !problem->has_fit()) return recording;
  const Fits eligible = fits_within(*problem, accuracy);
  std::vector<std::uint64_t> ranks;
  std::vector<Evaluation> evaluations;
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    const nlohmann::json& label = recording.labels[fit][recording.points.position(i, fit)];
    if (std::none_of(eligible.begin(), eligible.end(), [&](const auto& each) { return label == each->type; })) continue;
    ranks.push_back(recording.points.rank(i));
    evaluations.push_back(std::move(recording.evaluations[i]));
  }
  recording.points = Points(parameters, std::move(ranks));
  recording.evaluations = std::move(evaluations);
  return recording;
}

int replay_command(const Options& options) {
  const std::string path = options.text("device", "").substr(std::string("replay:").size());
  const std::string kernel = options.text("kernel", ""), format = options.text("format", "");
  if (kernel.empty() != format.empty()) throw options.bad(kernel.empty() ? "kernel" : "format", "a database's problem takes both, --kernel and --format");
  Recording recording = read_recording(path, kernel.empty() ? "" : kernel + "." + format);

  if (options.has("ranking")) return ranking_command(options, recording, path);

  bool exported = false;
  for (const auto& [option, text_of] : {std::pair("export-kernel-tuner", &kernel_tuner_cache), std::pair("export-t4", &t4_results)}) {
    if (!options.has(option)) continue;
    kernels::write_file(options.text(option, ""), text_of(recording));
    std::printf("%s: %zu points of %s\n", options.text(option, "").c_str(), recording.points.size(), path.c_str());
    exported = true;
  }
  if (exported) return kernels::kExitHolds;

  const std::size_t recorded = recording.points.size();
  recording = eligible_part(std::move(recording), accuracy_of(options));
  if (const std::size_t left_out = recorded - recording.points.size(); left_out > 0)
    kernels::print_error_line("warning: " + path + ": " + std::to_string(left_out) + " of " + std::to_string(recorded) +
                              " points left out: their fit is less accurate than the default's (--accuracy any searches them)");
  if (recording.points.empty()) throw kernels::SpecError(path, "fit", "every recorded point's is less accurate than the default's");
  const std::string name = options.one_of("strategy", strategy_names());
  constexpr double kShare = 0.05;  // of the space: the budget at which strategies are compared (notebooks_data/study)
  const auto usual = static_cast<std::int64_t>(std::max(1.0, kShare * static_cast<double>(recording.points.size())));
  const auto evaluations = static_cast<std::size_t>(options.integer("evaluations", usual, 1, INT64_MAX));
  const auto seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  const auto strategy = make_strategy(name, recording.points, seed);
  const Replay run = replay(recording, *strategy, evaluations);
  const auto found = static_cast<std::size_t>(std::find(run.best_ms.begin(), run.best_ms.end(), run.best_ms.back()) - run.best_ms.begin()) + 1;
  const double share = share_of_optimum(recording, run, run.best_ms.size());
  if (options.has("json")) {
    nlohmann::json result = {{"schema", "outgrad.replay/1"},
                             {"file", path},
                             {"device", recording.device},
                             {"kernel", recording.kernel},
                             {"points", recording.points.size()},
                             {"raw_points", recording.points.raw_size()},
                             {"strategy", name},
                             {"seed", seed},
                             {"evaluations", run.best_ms.size()},
                             {"share_of_optimum", share},
                             {"found_after", found},
                             {"best", nullptr},
                             {"best_ms", nullptr}};
    if (run.best) {
      result["best"] = recording.name_of(*run.best);
      result["best_ms"] = run.best_ms.back();
    }
    std::printf("%s\n", result.dump(2).c_str());
    return kernels::kExitHolds;
  }
  std::printf("%s: %s on %s, %.0f raw points, %zu recorded\n", path.c_str(), recording.kernel.c_str(), recording.device.c_str(), recording.points.raw_size(),
              recording.points.size());
  if (run.best)
    std::printf("%s: %.6g ms, %.2f%% of the optimum (%.6g ms), found after %zu of %zu evaluations: %s\n", name.c_str(), run.best_ms.back(), 100 * share,
                *recording.best_ms(), found, run.best_ms.size(), recording.name_of(*run.best).c_str());
  else
    std::printf("%s: all of %zu evaluations failed\n", name.c_str(), run.best_ms.size());
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
