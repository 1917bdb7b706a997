// The backward body of every activation, the same on host, in vectors and on a GPU: (dy, y, mask bit) -> dx.
//
// The fit decides what it is the derivative of and how: a polynomial (kernels/eval.h) or a direct table
// (kernels/direct.h).
// Specified cases: NaN in gives NaN out; dx = RN_format(RN_f32(dy g)); dy infinite with g = 0 gives NaN. With
// a mask, y = +inf gives the right limit of g, and foreign y (below the minimum, or positive with m = 0) is
// clamped to the nearest end of its branch. Without one (kMasked is false: f increases) the mask is never
// read, and y beyond f's range, infinities among it, is clamped to kYMin or kYMax. There g is the limit of f'
// where the fit says so (kExactLimits), else within kA of it.
#pragma once

#include "kernels/direct.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/stored.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Whether a backward reads a mask: f has a minimum, and y does not carry its branch.
template <class Fit, class Y>
inline constexpr bool kReadsMask = Fit::kMasked && !CarriesBranch<Y>;

// The mask bits that the codes of a parity format carry (kernels/stores/parity.h), as one Mask of an
// operations object (kernels/direct.h).
template <class Ops>
OUTGRAD_HD typename Ops::Mask carried_mask(const Ops& ops, const typename Ops::Row& codes) {
  constexpr int kSign = 0x8000, kLowest = 1;
  const typename Ops::Mask left = ops.above(ops.low_bits(codes, kSign | kLowest), kSign);
  return ops.neither(left, left);
}

// Compiles where the fit can be run on a y stored as Y.
template <class Fit, class Y>
OUTGRAD_HD constexpr bool fit_holds() {
  static_assert(Fit::kMasked || !CarriesBranch<Y>, "an increasing f has no branches for y to carry");
  if constexpr (kIsDirect<Fit>) {
    return direct_table_holds<Fit, Y>();
  } else {
    static_assert(Fit::kRows > 0 && Fit::kDegree >= 0 && Fit::kDegree <= kLargestDegree);
    static_assert((Fit::kRows & (Fit::kRows - 1)) == 0 || (Fit::kHasBreaks && !Fit::kHasLeft),
                  "rows are picked by the low bits of an index");
    return true;
  }
}

// dy g in fp32, for the elements that dy and the view y begin with: one, or as many as the operations object
// handles at once.
template <class Fit, class Ops, class TableView, class T, class View>
OUTGRAD_HD typename Ops::Value activation_backward_value(const Ops& ops, const TableView& table, const T* dy,
                                                         const View& y, typename Ops::Mask m) {
  using Y = FormatOf<View>;
  static_assert(fit_holds<Fit, Y>());
  if constexpr (kIsDirect<Fit>) {
    return ops.mul(ops.load(dy), evaluate_direct<Y>(ops, Fit{}, table, ops.load_codes(y), ops.load(y), m));
  } else {
    return ops.mul(ops.load(dy), evaluate_backward(ops, Fit{}, table, ops.load(y), m));
  }
}

template <class Fit, class TableView, class T, class View>
OUTGRAD_HD T activation_backward_element(const TableView& table, T dy, const View& y, bool m) {
  return narrow<T>(activation_backward_value<Fit>(FloatOps{}, table, &dy, y, m));
}

// The table of a fit as its header has it, rows or entries.
template <class Fit>
OUTGRAD_HD constexpr auto table_of() {
  if constexpr (kIsDirect<Fit>) {
    return Fit::entries();
  } else {
    return Fit::table();
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
