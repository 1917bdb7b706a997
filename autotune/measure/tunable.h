// A device, and the space of one problem on it, as a search sees them: the CPU (autotune/cpu/) and GPUs
// (autotune/gpu/) are behind these.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autotune/measure/candidate.h"
#include "autotune/measure/executor.h"
#include "autotune/measure/timing.h"
#include "autotune/records/record.h"
#include "autotune/space/space.h"
#include "autotune/space/variant.h"

namespace outgrad::autotune {

// How candidates are verified and timed.
struct MeasureSettings {
  OpenExecutor open{};         // of what runs the kernels: open_cpu (autotune/cpu/executor.h), a GPU's
  // address space of a child; 0: what is free now and room for stacks and the program itself
  long long memory_bytes = 0;
  std::uint64_t seed = 1;
  int screening_rounds = 8;   // all candidates; they pick the finalists, and nothing else
  // kept rounds of finalists and default, fresh samples, so that picking does not bias them
  int final_rounds = 24;
  int finalists = 4;
  double ceiling_share = kCeilingShare;
  double seconds = 1e9;         // after so long no disturbed round is made up for any more
  // of the default, and the most for the others, which have 50 times what it takes; a call takes milliseconds
  double silence_seconds = 20;
  std::string log_path{};  // parameters are written here before each launch; empty: nowhere
};

// One problem on one device, as its search sees it.
class Tunable {
 public:
  virtual ~Tunable() = default;
  virtual const Points& points() const = 0;
  virtual std::shared_ptr<const AnyVariant> variant(std::size_t point) const = 0;
  // the default; whether it is a point does not matter
  virtual std::shared_ptr<const AnyVariant> baseline() const = 0;
  // Candidates of these variants, in their order: compiled or rejected; what could not be started within the
  // seconds is still proposed.
  virtual std::vector<Candidate> compile(const std::vector<std::shared_ptr<const AnyVariant>>& variants,
                                         double seconds) = 0;
  // What to try first, best first: neighbours of the default, a ranking. Of all points no more than
  // `evaluations` will be tried.
  virtual std::vector<std::size_t> first(std::size_t evaluations, std::uint64_t seed, double seconds) = 0;
};

// One of `count` parts of a space.
struct Shard {
  std::size_t index = 0, count = 1;
};

// The CPU, or a GPU: what a search needs of either.
class TuningDevice {
 public:
  virtual ~TuningDevice() = default;
  virtual std::string slug() const = 0;  // part of the names of what a search leaves
  virtual std::string description() const = 0;  // one line
  virtual const RunIdentity& run() const = 0;
  // How its kernels are run; the seed, the log and the size are the caller's.
  virtual MeasureSettings measure() const = 0;
  virtual std::size_t batch() const { return 8; }  // points that share their rounds
  // Where the caller says nothing: what can be searched in so many seconds, in which a kernel is called so
  // many times.
  virtual kernels::i64 elements_for(const Problem& problem, double seconds, int calls) const = 0;
  virtual std::unique_ptr<Tunable> space_of(const Problem& problem, const Shard& shard) = 0;
  virtual Backend backend() const = 0;
};

}  // namespace outgrad::autotune
