/// The pieces of a fit: which row the deployed index arithmetic picks where, and so what each row must be
/// good for.
#pragma once

#include "approx/search/constants.h"
#include "kernels/host/errors.h"

#include <utility>
#include <vector>

namespace outgrad::approx {

/// y keeps so far from 0 that so many cells of equal width cannot be counted from there.
struct TooFarFromZero : kernels::SpecError {
  using SpecError::SpecError;
};

/// Fills every constant of the model and lays out its pieces, not yet fitted. A piece's interval holds every
/// coordinate value that can reach its row, the rounding of s and of the index included.
/// `breaks` cut the core where the spec does not ask for uniform cells; none: one row.
/// @throws TooFarFromZero, and kernels::SpecError for a specification that does not suit f.
BackwardModel lay_out(const Composite& composite, const BackwardSpec& spec,
                      const CoordinateConstants& constants, double target,
                      const std::vector<float>& breaks = {});

/// The ends of the core's coordinate.
std::pair<double, double> core_range(const Composite& composite, const BackwardSpec& spec,
                                     const CoordinateConstants& constants, double target);

/// The largest edge_log2 of a left segment: 2 to it is the largest power of two below |y*|.
int greatest_edge_log2(const Composite& composite);

/// The least float with m = 1: from x* on.
float least_with_bit(const Composite& composite);

ForwardModel lay_out(const Composite& composite, const ForwardSpec& spec);

}  // namespace outgrad::approx
