// `bench --tuned HEADER`: the same entry points built without the header and with it, in the same rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autotune/cpu/compile.h"
#include "autotune/measure/timing.h"
#include "autotune/space/accuracy.h"
#include "autotune/space/problem.h"

namespace outgrad::autotune {

// What a build runs for a problem.
struct Choice {
  std::string variant, rung;  // the rung: how near to this device and size it was found
  std::string claims;         // claims_text() of its fit; empty where there is none
  nlohmann::json fit;         // fit_record() of it; null
};

// One kernel at one size, before and after.
struct Comparison {
  Problem problem;
  Choice choice;                    // what the header's build runs
  std::string ceiling;              // "triad" or "copy"
  double ceiling_bytes = 0;
  std::vector<double> ceiling_ns, before_ns, after_ns;  // one per round

  std::vector<bool> kept() const { return kept_rounds(ceiling_ns); }
  Interval gain() const;      // the default's time over the header's
  double gb_per_s(const std::vector<double>& ns) const;  // median over the rounds kept
};

// As those of a BenchGroup (autotune/bench/group.h).
std::string text_of(const Comparison& comparison);
nlohmann::json to_json(const Comparison& comparison);
// {"status": "ok", "median", "low", "high", "confidence"}; without a figure "too noisy" and null.
nlohmann::json to_json(const Interval& interval, const std::vector<bool>& kept);

// The entry points of `problems`, compiled without a header (empty path) or with it: those of one format are
// one unit. Throws as compile_source does.
class EntryPoints {
 public:
  EntryPoints(const std::string& header, const std::vector<Problem>& problems, const Toolchain& toolchain,
              const CompileSettings& settings);

  VariantFunction function(const Problem& problem) const;
  Choice choice(const Problem& problem) const;

 private:
  Compiled unit_of(const Problem& problem) const;

  std::vector<std::pair<FormatId, Compiled>> units_;
};

// The problems that a tuned header has a table for. Throws SpecError when it has none, or is no tuned header
// for a CPU; IoError.
std::vector<Problem> tuned_problems(const std::string& header);

// Runs rounds until `rounds` are kept (three times as many at most). The problem is sized. Throws
// std::bad_alloc.
Comparison compare(const Problem& problem, const EntryPoints& before, const EntryPoints& after, int rounds,
                   std::uint64_t seed);

// Elements for `wanted` per array, halved until the arrays fit a quarter of the free memory.
kernels::i64 bench_elements(FormatId format, kernels::i64 wanted);

}  // namespace outgrad::autotune
