// A recorded search as a device: a point's time is the recorded one, a recorded failure fails again.
#pragma once

#include <optional>
#include <vector>

#include "autotune/accuracy.h"
#include "autotune/options.h"
#include "autotune/records/exchange.h"
#include "autotune/search/strategy.h"

namespace outgrad::autotune {

struct Replay {
  std::vector<double> best_ms;      // after each evaluation; infinite before the first that did not fail
  std::optional<std::size_t> best;  // the point
};

// Lets the strategy, which is over the recording's points, evaluate so many of them (fewer when there are no more), `batch` at a time.
Replay replay(const Recording& recording, Strategy& strategy, std::size_t evaluations, std::size_t batch = 1);

// Share of the recorded optimum that the best of the first n evaluations reaches, 0 where all of them failed.
double share_of_optimum(const Recording& recording, const Replay& run, std::size_t n);

// Without the points whose fit may not be chosen; of a kernel that is not this program's, all of them.
Recording eligible_part(Recording recording, Accuracy accuracy);

// `tune --device replay:FILE`: one search and how near to the recorded optimum it came; or, with --export-kernel-tuner and --export-t4,
// the recording in another format; or, with --ranking, how well predictions agree with it (ranking.h). Returns the exit status.
int replay_command(const Options& options);

}  // namespace outgrad::autotune
