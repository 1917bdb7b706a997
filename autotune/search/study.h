// How near to a recorded optimum each strategy comes within a share of the space: ours by replay, Kernel Tuner's in its simulation mode.
#pragma once

#include <string>
#include <vector>

#include "autotune/options.h"

namespace outgrad::autotune {

// A median over seeds and its distribution-free interval: order statistics that enclose the median of the distribution with at least this
// probability (from five seeds on the extremes do; with fewer, less).
inline constexpr double kSeedConfidence = 0.95;
struct SeedMedian {
  double median = 0, low = 0, high = 0;
};
SeedMedian median_over_seeds(std::vector<double> values);  // at least one

// `tune --study FILE...`: every strategy on every recording, `--seeds` times, at the budgets of `--shares` percent of the space; study.json
// and study.csv in `--out`. Returns the exit status.
int study_command(const Options& options);

}  // namespace outgrad::autotune
