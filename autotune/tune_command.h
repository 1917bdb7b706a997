// `tune` on a device whose kernels run: a search of every problem, the database it leaves, the header of the winners.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/options.h"
#include "autotune/records/tuned_header.h"
#include "autotune/search/search.h"

namespace outgrad::autotune {

// The CPU, or a GPU: what the command needs of either.
class TuningDevice {
 public:
  virtual ~TuningDevice() = default;
  virtual std::string slug() const = 0;         // part of the names of what is left in --out
  virtual std::string description() const = 0;  // one line
  virtual const RunIdentity& run() const = 0;
  // How its kernels are run; the seed, the log and the size are the command's.
  virtual MeasureSettings measure() const = 0;
  virtual std::size_t batch() const { return 8; }  // points that share their rounds
  // Where --elements says nothing: what can be searched in so many seconds.
  virtual kernels::i64 elements_for(const Problem& problem, double seconds) const = 0;
  // Points out of the `shard`-th of `shards` parts.
  virtual std::unique_ptr<Tunable> space_of(const Problem& problem, std::size_t shard, std::size_t shards) = 0;
  virtual Backend backend() const = 0;
};

// One of `count` parts of every space.
struct Shard {
  std::size_t index = 0, count = 1;
};
// --shard i/n, i from 0; or "mpi": this process's rank among those that mpirun started.
Shard shard_of(const Options& options);

// --evaluations, --budget, --strategy, --seed, --fresh, --publish, --out, --json. Returns the exit status.
int tune_on(TuningDevice& device, const Options& options, const std::vector<Problem>& problems, const Shard& shard);

// Runs the `tune` command. Returns its exit status.
int tune_command(const std::vector<std::string>& args);

}  // namespace outgrad::autotune
