// Codes of k bits for f'(x): what a layer may keep for its backward pass in place of the output and a mask
// bit. A code depends on x alone, so that it serves every format of y.
//
// g is f'(x) of an fp32 x, computed from x itself: GELU's by the derivatives of its fp32 forward's
// polynomials, the others' in double precision, rounded once. All f'(x) lie in [lo, hi] (CodeRange; the
// generated code headers prove it).
// A code is one of two kinds:
//   exact     1 to 8 bits: cells of equal width w = (hi - lo) / 2^k; the code is the number of g's cell, and
//             stands for the cell's middle. A code of k bits is the upper k bits of the code of 8.
//   dithered  2 or 3 bits: w = (hi - lo) / (2^k - 1), and with a dither d in (-1/2, 1/2) of each element's
//             own code = RN((g - lo) / w + d), which stands for lo + w (code - d).
//             This subtractive dither makes the error uniform over +-w/2 and independent of g (L. Schuchman,
//             "Dither signals and their effect on quantization noise", IEEE Trans. Commun. Technol. 12,
//             1964): no bias, and an RMS of w / sqrt(12). d follows from a seed and the element's index
//             (dither_of), so nothing else is kept.
// f' of every finite x is met within the header's kT, whose proof covers each step below. At the infinities g
// is within 2^-80 of its limit. A NaN has no code of its own: it gets code 0.
#pragma once

#include "kernels/dropout.h"
#include "kernels/eval.h"
#include "kernels/forwards.h"
#include "kernels/fitted_forward.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr int kMostCodeBits = 8, kLeastDitheredBits = 2, kMostDitheredBits = 3;

OUTGRAD_HD constexpr bool code_bits_hold(int bits, bool dithered) {
  return dithered ? bits >= kLeastDitheredBits && bits <= kMostDitheredBits
                  : bits >= 1 && bits <= kMostCodeBits;
}

// Bytes of n codes, packed without gaps.
OUTGRAD_HD constexpr i64 code_bytes(int bits, i64 n) { return n / 8 * bits + (n % 8 * bits + 7) / 8; }

// lo <= f'(x) <= hi for every x.
struct CodeRange {
  float lo, hi;
};

// Whether the rounding of a code of this range is within what the proofs allow: lo <= 0, and neither huge nor
// narrow. False for a NaN.
inline constexpr float kLargestGradient = 2, kLeastWidth = 0x1p-3f;
OUTGRAD_HD constexpr bool code_range_holds(const CodeRange& range) {
  return range.lo >= -kLargestGradient && range.lo <= 0 && range.hi <= kLargestGradient &&
         range.hi - range.lo > kLeastWidth;
}

// How a code is made and read. Each constant is computed in double precision and rounded once.
struct CodeRule {
  float scale, offset, top;  // code = RN(min(max(g scale + offset [+ d], 0), top))
  int shift;  // of which the lowest bits are dropped
  float step, first;  // the code stands for (code [- d]) step + first
};

OUTGRAD_HD constexpr CodeRule exact_code(const CodeRange& range, int bits) {
  const double lo = range.lo, width = static_cast<double>(range.hi) - lo, cells = 1 << kMostCodeBits,
               step = width / (1 << bits);
  return {static_cast<float>(cells / width), static_cast<float>(-lo * cells / width - 0.5),
          static_cast<float>(cells - 1),     kMostCodeBits - bits,
          static_cast<float>(step),          static_cast<float>(lo + 0.5 * step)};
}

OUTGRAD_HD constexpr CodeRule dithered_code(const CodeRange& range, int bits) {
  const double lo = range.lo, width = static_cast<double>(range.hi) - lo, steps = (1 << bits) - 1;
  return {static_cast<float>(steps / width), static_cast<float>(-lo * steps / width),
          static_cast<float>(steps),         0,
          static_cast<float>(width / steps), range.lo};
}

// d of an element from its word (kernels/dropout.h says which that is): (r + 1/2) 2^-23 - 1/2 for the upper
// 23 bits r. Each step is exact, and the mean over all words is 0.
OUTGRAD_HD float dither_of(u32 word) {
  return add_rn(sub_rn(float_of((word >> 9) | 0x3f800000u), 1.5f), 0x1p-24f);
}

// g in cells of the rule, from which a dithered code's -d is then subtracted.
template <class Ops>
OUTGRAD_HD typename Ops::Value in_cells(const Ops& ops, const CodeRule& rule, const typename Ops::Value& g) {
  return ops.fma(g, ops.constant(rule.scale), ops.constant(rule.offset));
}

// 2^23 + the code before the shift. A comparison with a NaN is false.
template <class Ops>
OUTGRAD_HD typename Ops::Value coded(const Ops& ops, const CodeRule& rule, const typename Ops::Value& v) {
  const typename Ops::Value zero = ops.constant(0.0f);
  return ops.sub(ops.at_most(ops.select(ops.less(zero, v), v, zero), ops.constant(rule.top)),
                 ops.constant(-0x1p23f));
}

OUTGRAD_HD u8 coded_gradient(const CodeRule& rule, float g, float d = 0.0f) {
  return static_cast<u8>(
      (bits_of(coded(FloatOps{}, rule, sub_rn(in_cells(FloatOps{}, rule, g), -d))) & 0xffu) >> rule.shift);
}

// What a code stands for, from the code as a number, less d if it is dithered.
template <class Ops>
OUTGRAD_HD typename Ops::Value decoded(const Ops& ops, const CodeRule& rule,
                                       const typename Ops::Value& number) {
  return ops.fma(number, ops.constant(rule.step), ops.constant(rule.first));
}

OUTGRAD_HD float gradient_of_code(const CodeRule& rule, u8 code, float d = 0.0f) {
  return decoded(FloatOps{}, rule, sub_rn(static_cast<float>(code), d));
}

// g of x, by an activation's fp32 forward; of GELU's, which is a fit, also by its tables.
template <class Forward, class Tables>
OUTGRAD_HD float gradient_at(const Tables& tables, float x) {
  return evaluate_forward_derivative(FloatOps{}, Forward{}, tables.core, tables.tail, x);
}
template <class Forward>
OUTGRAD_HD float gradient_at(float x) {
  if constexpr (requires { Forward::table(); }) {
    static constexpr auto kTables = forward_tables<Forward>();
    return gradient_at<Forward>(kTables, x);
  } else {
    return static_cast<float>(slope_of<Forward>(DoubleOps{}, static_cast<double>(x)));
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
