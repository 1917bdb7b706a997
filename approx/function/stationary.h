/// What f does between its tails: certified isolation of its minimum, or the proof that it has none.
#pragma once

#include "approx/function/activations.h"

#include "kernels/host/errors.h"

#include <cstddef>
#include <optional>
#include <string>

namespace outgrad::approx {

/// A stationary point and its value.
struct Minimum {
  Ball x_star;
  Ball y_star;
};

/// f' is 1 on the left and 0 on the right, and -f(-x) can be fitted in place of f(x).
struct FallsToRight : kernels::SpecError {
  FallsToRight(const std::string& why, std::string of_mirror)
      : SpecError(why), mirror(std::move(of_mirror)) {}
  std::string mirror;  ///< -f(-x) as an expression, which has the derivative of f at -x
};

/// Operations over series of balls that survey() takes before it gives up: some seconds.
inline constexpr size_t kSurveyWork = size_t{1} << 19;

/// The minimum of f, which falls to it and rises from there; none where f rises everywhere.
/// Covers [-reach, reach] with balls on which f' has one sign, or f'' has and f' changes sign at most once;
/// the minimum is then enclosed to over 200 bits. Beyond the reach only |f' - limit| <= beyond is used, never
/// its sign. At its two ends, where |f| is below 2^-150, less than any stored y but 0, the sign of f' is not
/// asked for either.
/// A user's own activation also has its limits of f' settled here: 0 or 1 to 2^-20 at both ends.
/// @throws kernels::SpecError "function: [lo, hi]: what was found there": several stationary points, a
/// maximum, a kink or jump, a pole, or that it cannot be decided; FallsToRight.
std::optional<Minimum> survey(Activation& activation, size_t most_work = kSurveyWork);

}  // namespace outgrad::approx
