// How accurate a fit must be for the tuner to choose it, and the words and keys that say how accurate it is.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>

#include "autotune/records/record.h"
#include "kernels/accuracy.h"

namespace outgrad::autotune {

// Which fits may be chosen, published, and taken along by a tuned header: those of which no proven bound is
// larger than the default's (kernels::is_as_accurate), or all of them.
enum class Accuracy { kAsDefault, kAny };

// What a record, and the output of a command, says of a fit.
FitRecord fit_record(const std::string& name, const std::string& accuracy, const kernels::FitBounds& bounds);
kernels::FitBounds bounds_from(const FitRecord& fit);
// {"fit": {...}}, or nothing where there is no backward fit.
nlohmann::json claims_json(const kernels::FitClaims& claims);
// "abs:2^-10, A + B 2^-10.80, R 2^-10.27", rounded up.
std::string claims_text(const std::string& accuracy, const kernels::FitBounds& bounds);
std::string claims_text(const kernels::FitClaims& claims);  // empty where there is no backward fit

// The first bound that is larger than the standard's, in words: "A + B 2^-6.00 is larger than the default's
// 2^-10.80". Nothing where none is.
std::optional<std::string> why_less_accurate(const kernels::FitBounds& fit,
                                             const kernels::FitBounds& standard);

// What decides between fits that are as fast: R, then A + B, then T, for R tells fits of a 16-bit format
// apart and A + B those of f32.
using ErrorOrder = std::tuple<double, double, double>;
inline ErrorOrder error_order(const kernels::FitBounds& bounds) {
  return {bounds.r, bounds.a_plus_b, bounds.t};
}

}  // namespace outgrad::autotune
