// The kernels' times beside a device copy's.
#pragma once

#include <functional>
#include <string>

namespace outgrad::tests::gpu {

struct TimeSettings {
  bool reduced = false;         // small arrays and few rounds: a look whether all runs
  double budget_seconds = 120;  // rounds end when it is spent, but for the fewest of each size
};

// Prints a line for each row, and gives `keep` the JSON rows so far after each size of each format.
void time_kernels(const TimeSettings& settings, const std::function<void(const std::string& rows)>& keep);

}  // namespace outgrad::tests::gpu
