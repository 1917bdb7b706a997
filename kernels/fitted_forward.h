// The body of the forwards that have a fit, shared by the host, vectors and GPUs: x -> (y, mask bit). They
// are GELU's, and those of kernels/forward_fits.h. The backward is in kernels/activation.h.
//
// Specified cases (m is the mask bit of an f with a minimum): NaN in gives NaN out, and m = 0 for x = NaN. If
// f(0) is 0, x = -0 gives y = -0; m is 1, while (y = -0, m = 0) is the left tail, with g = 0. x = -inf gives
// y = -0 where f has a minimum; y = +inf gives g = 1.
#pragma once

#include "kernels/direct.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The tables of a forward fit in one object: for f32 a core and a tail table, for a rounded forward one
// table.
template <class Core, class Tail>
struct ForwardTables {
  Core core;
  Tail tail;
};

template <class Forward>
OUTGRAD_HD constexpr auto forward_tables() {
  if constexpr (kIsRoundedForward<Forward>) {
    return Forward::table();
  } else {
    return ForwardTables<decltype(Forward::table()), decltype(forward_tail<Forward>())>{
        Forward::table(), forward_tail<Forward>()};
  }
}

// f(x) in fp32, ready to be narrowed to T.
template <class T, class Ops, class Forward, class Tables>
OUTGRAD_HD typename Ops::Value fitted_forward_value(const Ops& ops, const Forward& fit, const Tables& tables,
                                                    const typename Ops::Value& x) {
  if constexpr (kIsRoundedForward<Forward>) {
    static_assert(same_text(Forward::kFormat, Format<T>::kName),
                  "a rounded forward is for the one format of its header");
    return evaluate_forward(ops, fit, tables, x);
  } else {
    static_assert(sizeof(T) == 4, "a 16-bit format has a forward of its own");
    return evaluate_forward(ops, fit, tables.core, tables.tail, x);
  }
}

template <class T>
struct ForwardElement {
  T y;
  bool m;
};

template <class T, class Forward, class Tables>
OUTGRAD_HD ForwardElement<T> fitted_forward_element(const Forward& fit, const Tables& tables, T x) {
  const float wide = widen(x);
  const T y = narrow<T>(fitted_forward_value<T>(FloatOps{}, fit, tables, wide));
  if constexpr (kHasMask<Forward>) {
    return {y, evaluate_mask(FloatOps{}, fit, wide)};
  } else {
    return {y, false};
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
