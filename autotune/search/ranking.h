// How well a ranking that nothing was run for agrees with measurements: `tune --device replay:FILE --ranking
// sm_XX`.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autotune/evidence/exchange.h"
#include "autotune/measure/timing.h"
#include "autotune/space/problem.h"

namespace outgrad::autotune {

// A prediction for each point of a recording, in any unit; nothing where there is none, and then why, by
// point.
struct PredictedPoints {
  std::vector<std::optional<double>> time;
  std::map<std::string, std::size_t> left_out;  // points by reason
  std::string model;                            // "sm_90 as on H200 SXM"
  std::size_t compiled = 0;                     // programs
};

// By the model of this architecture (autotune/gpu/model.h), for whose GPUs the recording must be, of this
// problem. `folder`: of the programs that are compiled. Throws SpecError(`path`, ...) for another device's
// recording.
PredictedPoints predicted_points(const std::string& architecture, const Recording& recording,
                                 const Problem& problem, const std::string& path, const std::string& folder);

struct RankingCheck {
  std::size_t points = 0;  // with a prediction and a measured time
  Interval spearman;
  std::size_t near = 0;        // of these, those that reach kNearShare of the speed of the fastest of all
  double near_spearman = 0;    // of those alone; NaN of fewer than two
  std::size_t best = 0;           // the point that is fastest as measured, of all that did not fail
  // how many are predicted to be no slower than it, itself included, over `points`; nothing: it has no
  // prediction
  std::optional<double> best_at;
  // of the measured top 10 those within the first kTopShare of the predicted order; ties count against them
  std::size_t top = 0, top_found = 0;
  // the share of the fastest's speed that the best of the first kFirst points as predicted reaches: what a
  // search finds that measures no more; of equal predictions the slowest come first
  std::array<double, 3> reached{};
};
inline constexpr std::array<std::size_t, 3> kFirst = {1, 4, 16};
inline constexpr double kTopShare = 0.1, kNearShare = 0.9;
inline constexpr std::size_t kTop = 10;

// Throws SpecError(`path`, ...) where fewer than two points have both.
RankingCheck check_ranking(const Recording& recording, const std::vector<std::optional<double>>& predicted,
                           const std::string& path);

}  // namespace outgrad::autotune
