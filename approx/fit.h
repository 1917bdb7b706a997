/// The fitter: from a specification to fp32 coefficients with proven bounds.
#pragma once

#include "approx/direct_table.h"
#include "approx/spec.h"

#include <nlohmann/json.hpp>

#include <functional>

namespace outgrad::approx {

struct Fit {
  std::string name, activation, function, accuracy, spec_sha256;  ///< function: text of the definition; accuracy: class and bound as in the spec
  double target = 0;
  std::optional<BackwardModel> backward;
  std::optional<ForwardModel> forward;
  std::optional<RoundedForwardModel> rounded;
  std::optional<TableModel> table;
  double expected_ratio = 0, expected_regret = 0;  ///< backward: T/O and R of the exact g with the chosen constants, next to y*
  double programme_reached = 0, programme_dual = 0;  ///< storage-aware fits: what the programme reached, and proved that none can
  double worst_ulp = 0;                              ///< 16-bit formats: regret in ulp of the format at the middle, at worst
};

/// Fits, rounds and certifies. The result does not depend on `threads` (0: all).
/// @throws kernels::SpecError when the target is out of reach, with the proven lower bound.
Fit fit(const Spec& spec, int threads);

/// Schema "outgrad.fit/2": numbers are hexadecimal floats in strings, so nothing is lost and the bytes are deterministic.
std::string to_json(const Fit& fit);
/// @throws kernels::SpecError "path: key: why".
Fit fit_from_json(const std::string& text, const std::string& path);

}  // namespace outgrad::approx
