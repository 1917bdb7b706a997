// Exhaustive recordings: the time of every point of a space, for strategies to be compared on (`tune
// --record`, `--device replay:`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autotune/space/accuracy.h"
#include "autotune/space/problem.h"

namespace outgrad::autotune {

struct RecorderSettings {
  std::string folder;
  double budget = 600;                  // seconds of compilation and verification, of all problems
  std::size_t evaluations = SIZE_MAX;   // of each problem, in this run
  int passes = 5;                       // in which each point is timed
  std::uint64_t seed = 1;
  Accuracy accuracy = Accuracy::kAsDefault;
};

// Every point of the fine space of each problem into FOLDER/PROBLEM.jsonl, a database. First all are compiled
// and verified, until the budget is spent; then those that passed are timed, several times over, each time in
// other company. A recording may take several runs: points that it has for this device, these sources and
// this array length are not run again.
void record_spaces(const std::vector<Problem>& problems, const RecorderSettings& settings);

}  // namespace outgrad::autotune
