/// What the fitter makes of a specification, and the file that holds it.
#pragma once

#include "approx/model/fit_model.h"

#include <optional>
#include <string>

namespace outgrad::approx {

struct Fit {
  /// function: text of the definition; accuracy: class and bound as in the spec
  std::string name, activation, function, accuracy, spec_sha256;
  double target = 0;
  std::optional<BackwardModel> backward;
  std::optional<ForwardModel> forward;
  std::optional<RoundedForwardModel> rounded;
  std::optional<TableModel> table;
  std::optional<CodeModel> code;
  std::optional<Fp8Model> fp8;
  /// backward: T/O and R of the exact g with the chosen constants, next to y*
  double expected_ratio = 0, expected_regret = 0;
  /// storage-aware fits: what the programme reached, and proved that none can
  double programme_reached = 0, programme_dual = 0;
  /// 16-bit formats: regret in ulp of the format at the middle, at worst
  double worst_ulp = 0;
};

/// Schema "outgrad.fit/3": numbers are hexadecimal floats in strings, so nothing is lost and the bytes are
/// deterministic.
std::string to_json(const Fit& fit);
/// @throws kernels::SpecError "path: key: why".
Fit fit_from_json(const std::string& text, const std::string& path);

}  // namespace outgrad::approx
