/// The inputs at which the deployed sequence was found to err most.
///
/// B, A + B and the bound in ulp are proven for all y at once, by enclosures, and no y is looked at. Here y
/// are: of a 16-bit format every stored one, of f32 a fixed number of each row, evenly spread over its
/// coordinate, whose low bits differ enough for the roundings to add up now and then. Double arithmetic tells
/// which y is worst, and balls what the error is there.
#pragma once

#include "approx/function/storage.h"
#include "approx/model/fit_model.h"

namespace outgrad::approx {

/// Whether the deployed sequence asks for the row where its coordinate is v. Pieces are wider: by what
/// rounding can do, and by where the constants of the coordinate put its ends.
bool asks_for(const BackwardModel& model, const Piece& piece, double v);

/// Fills model.found for B and, in f32, for AB and ulp. The same on any number of threads. `intervals`: those
/// of the model's format.
void find_worst_inputs(const Composite& composite, BackwardModel& model,
                       const std::vector<StorageInterval>& intervals);

}  // namespace outgrad::approx
