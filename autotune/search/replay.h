// A recorded search as a device: a point's time is the recorded one, a recorded failure fails again.
#pragma once

#include <optional>
#include <vector>

#include "autotune/evidence/exchange.h"
#include "autotune/search/strategy.h"
#include "autotune/space/accuracy.h"

namespace outgrad::autotune {

struct Replay {
  std::vector<double> best_ms;      // after each evaluation; infinite before the first that did not fail
  std::optional<std::size_t> best;  // the point
};

// Lets the strategy, which is over the recording's points, evaluate so many of them (fewer when there are no
// more), `batch` at a time.
Replay replay(const Recording& recording, Strategy& strategy, std::size_t evaluations, std::size_t batch = 1);

// Share of the recorded optimum that the best of the first n evaluations reaches, 0 where all of them failed.
double share_of_optimum(const Recording& recording, const Replay& run, std::size_t n);

// Without the points whose fit may not be chosen; of a kernel that is not this program's, all of them.
Recording eligible_part(Recording recording, Accuracy accuracy);

}  // namespace outgrad::autotune
