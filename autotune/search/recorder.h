// Exhaustive recordings: the time of every point of a space, for strategies to be compared on (`tune --record`, `--device replay:`).
#pragma once

#include <vector>

#include "autotune/options.h"
#include "autotune/variant.h"

namespace outgrad::autotune {

// `tune --record DIR`: every point of the fine space of each problem into DIR/PROBLEM.jsonl, a database. First all are compiled and verified,
// until the budget is spent; then those that passed are timed, several times over, each time in other company. A recording may take
// several runs: points that it has for this device, these sources and this array length are not run again. Returns the exit status.
int record_command(const Options& options, const std::vector<Problem>& problems);

}  // namespace outgrad::autotune
