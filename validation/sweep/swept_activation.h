// The activations that can be swept: for each one its definition, its double reference, its oracle, and the
// constants on which a sweep's shortcuts rest.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "validation/exact/oracle.h"
#include "validation/exact/reference.h"

namespace outgrad::validation {

/// Established at first use, by intervals and by runs that are exhibited.
struct SweptFacts {
  // at least 2 |f''|, except in the tails of Formula, where f' is within 2^-80 of its limit
  double bend;
  // from this y on, f' is within 2^-17 of 1 wherever y may come from, so that two values of f' differ by at
  // most 2^-16; inf: never
  double flat_from;
  // Lower bounds on O for either branch and domain, from runs of x of the format itself: f32, f16, bf16.
  std::array<double, 3> floor;
};

struct SweptActivation {
  std::string_view name;
  std::string_view function;  // kFunction of its headers
  // the greatest double with f' < 0; -inf if f rises, so that every x is on the right branch
  double x_star;
  Ends ends;
  /// For a rising f: g[i] = f'(f^-1(y[i])), within 2^-51, for y that are correctly rounded values of f. Null
  /// if f has a minimum.
  void (*slope_of_value)(const float* y, double* g, std::int64_t n) = nullptr;

  const Activation& analysis() const;  // of `function`
  const Reference& reference() const;
  std::unique_ptr<Oracle> oracle() const;
  const SweptFacts& facts() const;
  /// Whether f has a minimum and a mask. If not, f rises, and the mask is never read.
  bool masked() const { return ends.left_side < 0 && ends.left_limit == 0; }
  double oracle_floor(const FloatFormat& format) const;
  /// f and f' at -inf and at +inf.
  double value_limit(bool right) const;
  double slope_limit(bool right) const;
};

extern const SweptActivation &kGelu, &kSilu;
const std::vector<const SweptActivation*>& swept_activations();
/// Null if the name cannot be swept.
const SweptActivation* swept_activation(std::string_view name);

}  // namespace outgrad::validation
