// The plain entry points behind the tuner's calling convention: what a build runs, with a tuned header or
// without. Compiled twice by autotune/bench/compare.cpp, each function under a name of its own.
#pragma once

#include "autotune/space/arguments.h"
#include "kernels/host/functions.h"

namespace outgrad::autotune {

// What an entry point runs for a shape: the variant's name, its rung as a number, what its fit claims, where
// the first three arrays point.
template <class Table>
void tell_choice(const Arguments& a) {
  const kernels::tuned::Tuning tuning = kernels::tuned::tuning_of<Table>(a.rows, a.cols);
  *a.at<const char*>(0) = tuning.entry->variant;
  *a.at<int>(1) = static_cast<int>(tuning.found.rung);
  *a.at<kernels::FitClaims>(2) = tuning.fit;
}

}  // namespace outgrad::autotune
