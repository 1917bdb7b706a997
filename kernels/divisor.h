// A number s by which many v >= 0 are divided, correctly rounded, without a division for each.
//
// RN(v / s) takes a division, or a product and three fma. With r = RN(1 / s) and r' = RN(RN(1 - s r) r), r + r'
// is 1 / s within a relative 2^-46, so that q = RN(v r + RN(v r')) is within an ulp of v / s. Then RN(q + RN(v -
// q s) r) is RN(v / s) (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", IBM J. Res. Dev. 34, 1990: r is correctly rounded, q within an ulp, and nothing underflows). v - q
// s is a whole number of units of 2^-46 q s, so that it is exact for v = 0 and for v >= 2^-102; and v / s has to
// be a normal number. Of a smaller v, norms need only that its code is that of 0 (kernels/norm_store.h).
#pragma once

#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

struct Divisor {
  static constexpr float kLeast = 0x1p-92f, kMost = 0x1p96f;
  static constexpr float kMostQuotient = 0x1p10f;  // that norms need: beyond it a code is saturated
  float scale, reciprocal, rest;

  static OUTGRAD_HD Divisor of(float scale) {
    const float reciprocal = div_rn(1.0f, scale);
    return {scale, reciprocal, mul_rn(fma_rn(-scale, reciprocal, 1.0f), reciprocal)};
  }
  OUTGRAD_HD bool is_usual() const { return kLeast <= scale && scale <= kMost; }
  // RN(v / scale); the divisor is usual.
  OUTGRAD_HD float quotient(float v) const {
    const float near = fma_rn(v, reciprocal, mul_rn(v, rest));
    return fma_rn(fma_rn(-near, scale, v), reciprocal, near);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
