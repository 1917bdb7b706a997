// What a quantiser of x (or of y) costs in f': the figures of `outgrad validate --foreign` for the kind
// "quantiser".
//
// For a group with given min and max, and every x of a format from which the group may have its elements:
//   T      max |g - f'(x)| over x and u, where g = f'(x^) (or g_m(y^)) without error, and the code has not
//          wrapped
//   wraps  the same over x and u for which it has wrapped
//   O      the largest half range of f' over the x that may get one code without wrapping: the least T of any
//          g(code)
//   bias   the largest |E z^ - z| over the elements z in [min, max], where E is the exact mean over u, wraps
//          included
//   rms    of g - f' over u and a distribution of x
//
// How. z^ rises with z and u until it wraps. In 16 bits every x is evaluated, and the figures are exact to
// the reference's bound. f32 x are cut into cells at min, at max, at every x where the least or the greatest
// r (that of the least or greatest u) changes, and finely between. All x of a cell get the same codes. f' is
// monotone on a cell, so the error is greatest at its ends, unless a zero of f'' lies in it; then intervals
// enclose f' there. P(r >= k) rises with z, so its values at the ends bound E z^ over a cell. Bounds are
// therefore proven, and what was found is attained by an x. rms is by Simpson's rule on cells, with the exact
// probabilities at its nodes; it is no bound.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "validation/sweep/distribution.h"
#include "validation/sweep/foreign.h"
#include "validation/sweep/quantiser.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {

inline constexpr const char* kQuantiserSchema = "outgrad.quantiser/1";

/// One group's [min, max].
struct QuantiserErrors {
  double min = 0, max = 0, step = 0;  // step: as QuantisedGroup has it
  double x_from = 0, x_to = 0;
  Maximum total, wrapped;  // y: z^; wrapped.value < 0: no x wraps
  double total_bound = 0, wrapped_bound = 0;
  double oracle = 0;
  double bias = 0, bias_at = 0, bias_bound = 0;  // signed, as found; at this z
  double maximum_wraps = 0;  // the probability that an element z = max wraps
  struct Under {
    std::string x;
    double mass, rms;
  };
  std::vector<Under> under;
};

/// Throws kernels::SpecError "file: ranges[index]: why" if the format cannot hold the range.
QuantiserErrors quantiser_errors(const ForeignFunction& function, std::size_t index,
                                 const FloatFormat& format, const std::vector<Distribution>& distributions,
                                 const std::string& file);

/// rms of g - f' over groups of independent x of N(0, sigma^2), each with its own min and max: by quadrature
/// over the joint distribution of these two and over x, for a quantiser of x.
double quantiser_group_rms(const ForeignFunction& function, const FloatFormat& format, double sigma);

/// How often the maximum of a group wraps if min and max are the group's own, over every number c = max - min
/// of the arithmetic in [from, 2 from) alike and every u.
struct MaximumWraps {
  double from = 0;
  std::int64_t numbers = 0, wrapping = 0;  // wrapping: c for which it can happen
  double mean = 0, greatest = 0, greatest_at = 0;
};
/// Over one binade without an epsilon (then all binades are alike), otherwise those of [1/4, 64). Empty if
/// codes saturate.
std::vector<MaximumWraps> maximum_wraps(const Quantiser& quantiser, const FloatFormat& format);

/// Where the range is a running mean: how often a step wraps an element, of steps whose elements are
/// independent and of N(0, 1). Simulated from a fixed seed, from the step on at which the mean has forgotten
/// its beginning: no bound.
struct RunningWraps {
  std::int64_t steps = 0, wrapping = 0;
  double share() const { return static_cast<double>(wrapping) / static_cast<double>(steps); }
};
RunningWraps running_wraps(const Quantiser& quantiser, const FloatFormat& format, std::int64_t steps);

/// All of these as JSON of schema kQuantiserSchema.
nlohmann::ordered_json audit_quantiser(const ForeignFunction& function, const FloatFormat& format,
                                       const std::vector<Distribution>& distributions,
                                       const std::string& file);

}  // namespace outgrad::validation
