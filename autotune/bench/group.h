// What `bench` measured of one format, and what it says of it: figures, or that the machine was too busy for
// one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/measure/timing.h"
#include "autotune/space/problem.h"
#include "kernels/accuracy.h"

namespace outgrad::autotune {

struct BenchCase {
  // "gelu_backward", "layernorm_forward", "triad", "libm_gelu_backward", "torch_gelu_backward", ...
  std::string name;
  std::string variant;  // which schedule runs, or PyTorch's version; empty for others
  // how near to this device the schedule was tuned (kernels/ladder.h); empty for what is not ours
  std::string rung;
  kernels::FitClaims fit;  // of our backward
  double elements = 0, bytes = 0;  // of one run
  std::vector<double> ns;  // one per round
};

// The cases of one format, timed together; cases[0] is the triad that judges the rounds.
struct BenchGroup {
  FormatId format = FormatId::kF32;
  std::vector<BenchCase> cases;
  std::string no_torch;  // why PyTorch is not among them

  std::vector<bool> kept() const { return kept_rounds(cases.front().ns); }
  double gb_per_s(const BenchCase& which) const;  // median over the rounds kept
  Interval share_of_triad(const BenchCase& which) const;  // of bandwidth, per round
  // Elements a second, as a ratio of the case named `peer`; all 0 when there is none.
  Interval speed_against(const BenchCase& which, const std::string& peer) const;
};

// The text has a line a case. Where a median is no figure (is_figure), the line says so, and in JSON `status`
// is "too noisy" and the figure null; the times of all rounds are there in any case.
std::string text_of(const BenchGroup& group);
nlohmann::json to_json(const BenchGroup& group);

}  // namespace outgrad::autotune
