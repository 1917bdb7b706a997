/// The storage intervals: for every value that a 16- or 8-bit format can store, the range of true gradients
/// that it may stand for.
///
/// A stored y stands for the real x with RN_format(f(x)) = y on its branch (parity formats: see
/// carries_branch); their f'(x) fill an interval [lo, hi]. No function of (y, mask bit) errs by less than
/// half its length: the oracle O. Everything about a 16-bit kernel follows from these intervals by
/// enumeration: its total error T, its regret R (distance to the middles), and which coefficients can reach a
/// target at all. An x whose y is stored as a NaN (see overflow_of) has no gradient, and no part in them.
#pragma once

#include "approx/function/composite.h"
#include "approx/function/format.h"
#include "approx/function/found.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace outgrad::approx {

struct StorageInterval {
  std::uint32_t code;  ///< the bits of y in the format
  float y;
  bool m;  ///< the branch: right of x*; true for an increasing f
  double lo, hi;  ///< encloses f' over the preimage
  /// either end may lie this much further out than f' comes, beside the brackets' 2^-45 times `scale`
  double slack = 0;
  /// by how much f' is smaller or larger than usual: tolerances are multiplied by it (storage.cpp, scale_of)
  double scale = 1;
  [[nodiscard]] double middle() const { return 0.5 * (lo + hi); }
  [[nodiscard]] double half() const { return 0.5 * (hi - lo); }
};

/// f32: this many numbers from y* on have their intervals listed.
inline constexpr int kNearMinimum = 2048;

/// 1 for an f' of ordinary size, less where f' is small, more where it is so large that doubles are coarse.
/// From points of f' all over its reach and, closer and closer, around x*: for choices, not for bounds. A
/// scale that is too small costs time, and may end in a refusal.
double gradient_scale(const Composite& composite);

/// All pairs (y, bit) that some real x reaches, each branch in ascending y; zeros of both signs count apart.
/// f32 has only the first above y*. An infinity is listed where f comes to it within its reach; where it does
/// so only beyond, the largest number stands for that too. The ends are proven: an argument is bracketed by
/// the signs of f - boundary in balls, and f' is enclosed over the bracket.
/// @throws kernels::SpecError for a range that cannot be enclosed, and where every f(x) is stored as a NaN.
std::vector<StorageInterval> storage_intervals(const Composite& composite, Format format);

/// O in double, not rounded up.
double oracle_of(const std::vector<StorageInterval>& intervals);

/// Proven by enumeration, rounded up; and which y has the largest of each.
struct StorageErrors {
  double total = 0;  ///< T = max |g(y, m) - f'(x)|
  double oracle = 0;  ///< O
  double regret = 0;  ///< R = max |g(y, m) - middle|
  /// max over the pairs of regret in ulp of the format at the middle; (y = -0, m = 0), whose g is 0 by
  /// contract, left out
  double worst_ulp = 0;
  Found worst_total, worst_oracle, worst_regret;
};
StorageErrors measure_storage(const std::vector<StorageInterval>& intervals, Format format,
                              const std::function<float(const StorageInterval&)>& gradient);

}  // namespace outgrad::approx
