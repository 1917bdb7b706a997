/// The fitter: from a specification to fp32 coefficients with proven bounds.
#pragma once

#include "approx/spec.h"

#include <nlohmann/json.hpp>

#include <functional>

namespace outgrad::approx {

struct Fit {
  std::string name, activation, spec_sha256;
  double target = 0;
  std::optional<BackwardModel> backward;
  std::optional<ForwardModel> forward;
  double expected_ratio = 0, expected_regret = 0;  ///< backward: T/O and R of the exact g with the chosen constants, next to y*
};

/// Fits, rounds and certifies. The result does not depend on `threads` (0: all).
/// @throws kernels::SpecError when the target is out of reach, with the proven lower bound.
Fit fit(const Spec& spec, int threads, const std::function<void(int done, int all)>& progress = {});

/// Schema "outgrad.fit/1": numbers are hexadecimal floats in strings, so nothing is lost and the bytes are deterministic.
std::string to_json(const Fit& fit);
/// @throws kernels::SpecError "path: key: why".
Fit fit_from_json(const std::string& text, const std::string& path);

}  // namespace outgrad::approx
