// `tune` on a device whose kernels run, the CPU or a GPU: a search of every problem, the database it leaves,
// the header of the winners.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autotune/commands/options.h"
#include "autotune/measure/tunable.h"

namespace outgrad::autotune {

struct SearchOptions {
  std::string device = "cpu", out = "out/tuned", strategy, shard = "1/1";
  ProblemChoice problems{};
  std::optional<double> budget{};  // seconds; nothing: some for each problem
  std::int64_t evaluations = INT64_MAX;  // of each problem; without it the budget alone decides
  std::uint64_t seed = kSeed;
  Accuracy accuracy = Accuracy::kAsDefault;
  bool fresh = false, publish = false;
  kernels::ResultForm form;
};
void add_search_options(CLI::App& app, SearchOptions& options);

// "i/n", i from 0; or "mpi": this process's rank among those that mpirun started. Throws SpecError.
Shard shard_of(const std::string& text);

// Returns the exit status.
int search_on(TuningDevice& device, const SearchOptions& options, const std::vector<Problem>& problems,
              const Shard& shard);

}  // namespace outgrad::autotune
