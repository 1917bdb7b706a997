// A made-up landscape with what makes tuning hard: cliffs by divisibility, interaction, failures. For tests
// of mechanics only: it says nothing of any machine.
#pragma once

#include <cmath>

#include "autotune/evidence/exchange.h"

namespace outgrad::autotune {

inline Recording synthetic_recording() {
  Space space;
  std::vector<std::int64_t> widths;
  for (std::int64_t width = 16; width <= 256; width += 16) widths.push_back(width);
  space.parameter("block", widths)
      .parameter("tile", {1, 2, 3, 4, 5, 6})
      .parameter("vector", {1, 2, 4, 8})
      .parameter("cache", {0, 1});
  space.parameter("order", {0, 1, 2});
  space.constraint("a tile of whole vectors", {"tile", "vector"},
                   [](const Point& p) { return p[1] <= p[0] * 2; });
  Recording recording;
  recording.device = "made up";
  recording.kernel = "landscape";
  recording.problem_size = 4096;
  recording.points = space.construct();
  for (const Parameter& parameter : recording.points.parameters()) {
    recording.labels.emplace_back();
    for (const std::int64_t value : parameter.values) recording.labels.back().push_back(value);
  }
  recording.labels[3] = {false, true};
  recording.labels[4] = {"row", "column", "morton"};
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    const Point p = recording.points[i];
    Evaluation evaluation;
    if (p[0] * p[1] > 1000) {
      evaluation.failure = p[3] == 1 ? "runtime" : "compile";
    } else {
      const double size = std::log2(static_cast<double>(p[0] * p[2]) / 512),
                   tile = static_cast<double>(p[1]) - 3;
      evaluation.time_ms = 1 + 0.2 * size * size + 0.15 * tile * tile +
                           (p[0] % 64 == 0   ? 0.0
                            : p[0] % 32 == 0 ? 0.3
                                             : 0.9) +
                           (p[3] == 1 ? 0.0 : 0.25) +
                           0.4 * static_cast<double>(p[4] == 2 ? 0 : p[4] + 1) * static_cast<double>(p[3]);
      evaluation.times_ms = {*evaluation.time_ms * 1.01, *evaluation.time_ms * 0.99};
      evaluation.compile_ms = 12.5;
    }
    evaluation.timestamp = "2024-01-01 00:00:00.000000+00:00";
    recording.evaluations.push_back(evaluation);
  }
  return recording;
}

}  // namespace outgrad::autotune
