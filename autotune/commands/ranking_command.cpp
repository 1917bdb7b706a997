// `tune --device replay:FILE --ranking sm_XX`: how well predictions, for which nothing runs, agree with a
// recording.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "autotune/commands/tune_modes.h"
#include "autotune/search/ranking.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

struct RankingOptions {
  std::string device, kernel, format, ranking, out = "out/tuned";
  std::vector<Shape> shapes{};
  kernels::ResultForm form;
};

RankingOptions ranking_options(const Words& words) {
  RankingOptions o;
  read_options(tune_mode("--ranking"), words, [&](CLI::App& app) {
    add_recording(app, o.device, o.kernel, o.format);
    add_text(app, "--ranking", o.ranking);
    add_shapes(app, o.shapes);
    add_text(app, "--out", o.out);
    kernels::add_result_form(app, o.form, "the result");
  });
  return o;
}

// The problem that a recording is of, with its size: --shape where it is given, else the recorded number of
// elements in the shape that the tuner gives those.
Problem problem_of(const Recording& recording, const std::vector<Shape>& shapes, const std::string& path) {
  const std::optional<Problem> found = problem_named(recording.kernel);
  if (!found)
    throw kernels::SpecError(path, "kernel",
                             "'" + recording.kernel + "' is none of this program's, which a ranking is of");
  if (!shapes.empty() && !found->over_rows())
    throw kernels::SpecError("tune", "--shape", recording.kernel + " has no rows");
  if (shapes.size() > 1) throw kernels::SpecError("tune", "--shape", "a recording is of one");
  if (!shapes.empty()) return found->sized(shapes.front().rows, shapes.front().cols);
  if (!recording.problem_size.is_number_integer() || recording.problem_size.get<std::int64_t>() < 1) {
    const char* const hint = found->over_rows() ? " (--shape says rows and columns)" : "";
    throw kernels::SpecError(path, "problem_size", "not a number of elements" + std::string(hint));
  }
  return sized_within(*found, recording.problem_size.get<std::int64_t>());
}

struct RankingResult {
  Problem problem;
  PredictedPoints predicted;
  RankingCheck check;
  std::ptrdiff_t failed = 0;  // points, when they were recorded
  double seconds = 0;
};

RankingResult rank(const Recording& recording, const RankingOptions& options, const std::string& path) {
  const auto began = std::chrono::steady_clock::now();
  RankingResult result;
  result.problem = problem_of(recording, options.shapes, path);
  kernels::create_folder(options.out);
  const PredictedPoints& predicted = result.predicted =
      predicted_points(options.ranking, recording, result.problem, path, options.out);
  if (std::none_of(predicted.time.begin(), predicted.time.end(),
                   [](const auto& time) { return time.has_value(); }))
    throw kernels::SpecError(
        path, "points",
        "none has a prediction: " +
            (predicted.left_out.empty() ? "there are none" : predicted.left_out.begin()->first));
  result.check = check_ranking(recording, predicted.time, path);
  result.failed = std::count_if(recording.evaluations.begin(), recording.evaluations.end(),
                                [](const Evaluation& e) { return !e.time_ms; });
  result.seconds = seconds_since(began);
  return result;
}

json ranking_json(const RankingResult& r, const Recording& recording, const RankingOptions& options,
                  const std::string& path) {
  const Interval& spearman = r.check.spearman;
  return {{"schema", "outgrad.ranking/1"},
          {"file", path},
          {"device", recording.device},
          {"problem", r.problem.sized_name()},
          {"ranking", options.ranking},
          {"model", r.predicted.model},
          {"recorded", recording.points.size()},
          {"failed", r.failed},
          {"points", r.check.points},
          {"left_out", r.predicted.left_out},
          {"spearman",
           {{"value", spearman.median},
            {"low", spearman.low},
            {"high", spearman.high},
            {"confidence", kConfidence}}},
          {"near_fastest", {{"points", r.check.near}, {"spearman", r.check.near_spearman}}},
          {"best", recording.name_of(r.check.best)},
          {"best_at", r.check.best_at ? json(*r.check.best_at) : json()},
          {"top", r.check.top},
          {"top_in_first_tenth", r.check.top_found},
          {"first", kFirst},
          {"reached", r.check.reached},
          {"compiled", r.predicted.compiled},
          {"seconds", r.seconds}};
}

void print_ranking(const RankingResult& r, const Recording& recording, const RankingOptions& options) {
  std::printf("%s on %s: ranked by %s (%s), nothing run\n", r.problem.sized_name().c_str(),
              recording.device.c_str(), options.ranking.c_str(), r.predicted.model.c_str());
  std::printf("  %zu of %zu points predicted and measured, %td failed when recorded\n", r.check.points,
              recording.points.size(), r.failed);
  for (const auto& [why, count] : r.predicted.left_out)
    std::printf("  no prediction for %zu: %s\n", count, why.c_str());
  std::printf("  Spearman's correlation of predicted and measured times: %.3f [%.3f, %.3f]\n",
              r.check.spearman.median, r.check.spearman.low, r.check.spearman.high);
  std::printf("  of the %zu points that reach %.0f%% of the fastest's speed: %.2f\n", r.check.near,
              100 * kNearShare, r.check.near_spearman);
  if (r.check.best_at)
    std::printf("  the fastest as measured is within the first %.1f%% as predicted: %s\n",
                100 * *r.check.best_at, recording.name_of(r.check.best).c_str());
  else
    std::printf("  the fastest as measured has no prediction: %s\n", recording.name_of(r.check.best).c_str());
  std::printf("  of the %zu fastest as measured, %zu are within the first %.0f%% as predicted\n", r.check.top,
              r.check.top_found, 100 * kTopShare);
  std::printf(
      "  the best of the first %zu, %zu and %zu as predicted reach %.1f%%, %.1f%% and %.1f%% of the "
      "fastest's speed\n",
      kFirst[0], kFirst[1], kFirst[2], 100 * r.check.reached[0], 100 * r.check.reached[1],
      100 * r.check.reached[2]);
  std::printf("  %zu programs compiled or taken from the cache, in %.1f s\n", r.predicted.compiled,
              r.seconds);
}

}  // namespace

int ranking_command(const Words& words) {
  const RankingOptions options = ranking_options(words);
  const std::string path = recorded_path(options.device);
  if (!options.ranking.starts_with("sm_"))
    throw kernels::SpecError("tune", "--ranking", "'" + options.ranking + "' is no architecture, sm_XX");
  const Recording recording = recording_of(options.device, options.kernel, options.format);
  const RankingResult result = rank(recording, options, path);
  if (options.form)
    kernels::print_result(options.form, ranking_json(result, recording, options, path), "");
  else
    print_ranking(result, recording, options);
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
