/// The pieces of a fit: which row the deployed index arithmetic picks where, and so what each row must be good for.
#pragma once

#include "approx/spec.h"

namespace outgrad::approx {

/// Fills every constant of the model and lays out its pieces, not yet fitted. A piece's interval holds every coordinate value that can
/// reach its row, the rounding of s and of the index included.
BackwardModel lay_out(const Composite& composite, const BackwardSpec& spec, const CoordinateConstants& constants, double target);

ForwardModel lay_out(const Composite& composite, const ForwardSpec& spec);

}  // namespace outgrad::approx
