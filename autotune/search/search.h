// The search of one problem's space on a device: batches that a strategy asks for, each compiled, verified
// and timed beside the default, then the fastest of all once more, in fresh rounds that decide.
//
// What is told to the strategy is a point's time over the default's in the same rounds, so that points of
// different batches, runs and hours compare. Every batch is in the database before the next is asked for: a
// run that is killed goes on where it was.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/search/strategy.h"
#include "autotune/search/tuner.h"

namespace outgrad::autotune {

struct SearchSettings {
  std::string strategy;     // a name of strategy_names()
  std::size_t evaluations = 0;     // points with an outcome, those of earlier runs included
  double seconds = 1e9;     // batches and finals; the default and one batch are run whatever it is
  std::size_t batch = 8;    // points that share their rounds; fewer where the seconds are few
  MeasureSettings measure;  // batches take its screening rounds, the finals its final ones
  std::function<void(const std::string&)> progress;  // one line, several times a second at most
};

// Calls of a search's first batch and finals, the ceiling's and the default's among them.
int calls_of_search(std::size_t batch, const MeasureSettings& measure);

struct SearchResult {
  std::vector<Candidate> finalists;  // the default first
  Measurement final;
  // points of this run, of earlier ones, and those of this run that failed
  std::size_t evaluated = 0, known = 0, rejected = 0;
  std::vector<Candidate> failures;
  PhaseSeconds seconds;
  double total_seconds = 0;
  // The share of the wall time that was neither compilation nor verification nor measurement.
  double overhead() const {
    return total_seconds > 0 ? 1 - (seconds.compile + seconds.verify + seconds.measure) / total_seconds : 0;
  }
};

// Outcomes of earlier runs: of records of the same device, sources, compiler and problem. `seeds`: parameters
// to try before others, what won on another device.
struct Known {
  std::vector<Record> records;
  std::vector<nlohmann::json> seeds;
};

// Appends records of every batch to the database, those of the finals too. Throws as tune_problem() does.
SearchResult search(Tunable& space, const SearchSettings& settings, const Known& known,
                    const RunIdentity& run, const std::string& database_path, std::vector<Record>& winners);

}  // namespace outgrad::autotune
