// The steps of the tuner that run untrusted code: candidates verified and timed in child processes, and what
// is recorded of them.
#pragma once

#include <string>
#include <vector>

#include "autotune/measure/candidate.h"
#include "autotune/measure/timing.h"
#include "autotune/measure/tunable.h"
#include "autotune/records/record.h"

namespace outgrad::autotune {

// Rounds as the children report them; times in ns, one per round.
struct RoundSamples {
  Record::Ceiling ceiling{};  // "triad" or "copy"
  std::vector<double> ceiling_ns{};
  std::vector<std::vector<double>> ns;  // per candidate, the default first

  explicit RoundSamples(std::size_t candidates = 0) : ns(candidates) {}
  void add(const nlohmann::json& report);
};

// What was measured of one problem.
struct Measurement {
  RoundSamples screening, finals;
  double ceiling_share = kCeilingShare;  // rounds below it were discarded
  int discarded_rounds = 0;              // of the final ones
  // per candidate: default's time / its time; final rounds, else screening rounds
  std::vector<Interval> speedup;
  // per candidate: median of its bandwidth / the ceiling's; NaN when not timed
  std::vector<double> share_of_ceiling;
  // best() of autotune/evidence/merge.h among the default and those in the final rounds.
  std::size_t winner = 0;
  bool gain = false;
  bool too_noisy = false;  // too few of the final rounds were kept: the default stays
  bool decided = false;  // there were final rounds
};

// Takes the compiled candidates of one problem to verified or rejected, in child processes; where the first
// of them, the default, crashes or hangs, the others stay as they are. Throws EnvironmentError when a child
// fails with no candidate to blame.
void verify(std::vector<Candidate>& candidates, const MeasureSettings& settings);

// Takes the verified candidates of one sized problem to timed or rejected; candidates[0] is the default.
// Throws EnvironmentError when it is not verified.
Measurement measure(std::vector<Candidate>& candidates, const MeasureSettings& settings);

// Takes the verified candidates to timed, with these times; candidates[0] is the default.
Measurement evaluate(std::vector<Candidate>& candidates, RoundSamples screening, RoundSamples finals,
                     const MeasureSettings& settings);
// The record of a candidate, as far as it came. m: of the candidates among which it has this index, or null.
Record record_of(const Candidate& candidate, std::size_t index, const Measurement* m, const RunIdentity& run);

// Wall time by what it went to.
struct PhaseSeconds {
  double compile = 0, verify = 0, measure = 0;
};

// Verifies and measures the compiled candidates of one problem, appends a record of each to the database, the
// winner's to `winners` too. Throws as verify() and measure() do, after the records are written.
// Adds to `spent` what either took.
Measurement tune_problem(std::vector<Candidate>& candidates, const MeasureSettings& settings,
                         const RunIdentity& run, const std::string& database_path,
                         std::vector<Record>& winners, PhaseSeconds& spent);
void print_rejected(const std::vector<Candidate>& candidates);
void print_problem(const std::vector<Candidate>& candidates, const Measurement& m);
}  // namespace outgrad::autotune
