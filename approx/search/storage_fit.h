/// Storage-aware fits: coefficients chosen against the storage intervals of a 16-bit format, not against g.
///
/// A pair (y, bit) with the gradients [lo, hi] is served well enough if |p(v) - middle| <= w, with w =
/// min(rho O - half, R) for a total error T <= rho O and a regret R (class "stored"), or w = N ulp of the
/// format at the middle (class "ulp"). Row by row that is a weighted minimax problem on finitely many points:
/// its exchange finds the best coefficients, and its level proves what none reach. (RLIBM solves the same
/// constraints for correct rounding: Lim and Nagarakatte, PLDI 2021.)
#pragma once

#include "approx/function/storage.h"
#include "approx/search/constants.h"

namespace outgrad::approx {

/// What the programme says of a layout.
struct StorageProgramme {
  double reached = 0;  ///< class "stored": T/O of the real coefficients; "ulp": their largest error in ulp
  /// no coefficients of this degree, with these constants and rows, do better than that (proven by the
  /// exchange's level)
  double dual = 0;
};

/// Fits every row of the model; fills centre, c, observed of the pieces. @throws kernels::SpecError when some
/// row has no solution at all.
StorageProgramme fit_to_storage(BackwardModel& model, const std::vector<StorageInterval>& intervals,
                                const BackwardSpec& spec, double target);

struct ClampedConstants {
  CoordinateConstants constants;
  float y_max, s_min;  ///< the clamps: beyond them g is taken to be its limit
  /// error of the best coefficients in units of what the target allows, on a thinned set of pairs
  double cost;
};
/// Searches y_c, t_min and both clamps of a one-row fit for the least cost: a grid, then a descent along the
/// axes.
ClampedConstants search_constants(const Composite& composite, const std::vector<StorageInterval>& intervals,
                                  const BackwardSpec& spec, double target);

}  // namespace outgrad::approx
