// The evaluators: GELU's derivative from its output, and GELU itself, each written once for every kind of scalar.
//
// The same template runs as the kernel (fp32 on host and device, SIMD lanes) and inside its own proof (balls that track rounding),
// so what is proved is what runs. A scalar enters through an operations object `ops`:
//
//   types   Value, Mask, Row
//   Value   constant(float)   fma(a, b, c) = a b + c, rounded once   sub(a, b)   mul(a, b)   sqrt(a)   negate(a)
//   Value   at_least(a, lo) = a < lo ? lo : a        at_most(a, hi) = hi < a ? hi : a          both keep a NaN a; lo, hi not zero
//   Value   non_positive(a) = a > 0 ? -0 : a         keeps NaN and +0
//   Value   select(mask, a, b) = mask ? a : b, without a branch; the same for Row
//   Value   where(mask, y, x, body) = mask ? body(ops, x) : y, skipping the work where no element needs it; body sees any x
//   Mask    less(a, b)   less_equal(a, b)   both false on NaN        neither(p, q) = !p and !q
//   Row     row_index(q, rows) = bits(q) mod rows, rows a power of two
//   Row     octave_row(z, knee, base, first_row, rows) = (first_row + max(((h + max(h, knee)) >> 1) - base, 0)) mod rows,
//           h = (bits(z) >> 22) mod 2^9, the half octave of |z|: below the knee a row is an octave, from it on half of one
//   Value   lookup(table, row, word)
//
// Rows come from the fraction bits of q = fma(s, scale, 2^23 + offset): at that magnitude an fp32 ulp is 1, so q is the index of the
// cell of s rounded to nearest. A row is {centre, c0, ..., c_degree}: centred arguments keep u small, hence the rounding of Horner's
// steps too. `fit` may be an object of a generated header's struct (all members static) or any object with the same members.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/table.h"

namespace outgrad::kernels {

// p(u) for the row's polynomial, u = v - centre, by Horner's rule in fused steps.
template <class Ops, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_row(const Ops& ops, const TableView& table, typename Ops::Row row, int degree,
                                            typename Ops::Value v) {
  const typename Ops::Value u = ops.sub(v, ops.lookup(table, row, 0));
  typename Ops::Value p = ops.lookup(table, row, degree + 1);
  OUTGRAD_UNROLL
  for (int word = degree; word >= 1; --word) p = ops.fma(p, u, ops.lookup(table, row, word));
  return p;
}

// g = f'(x) from y = f(x) and m = [x >= x*].
//
// The coordinate is s = +-sqrt(y - y*), positive for m; y* is split into two floats, and y - y_hi is exact near y*. Outside the range
// of the table s is clamped to its ends, which are centres of rows with c0 = 0 and c0 = 1: both limits are exact. With a left segment, m = 0 and y > kLeftY is
// evaluated in y itself, which is exact, and its row is taken from y's exponent: that end is logarithmic.
template <class Ops, class Fit, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_backward(const Ops& ops, const Fit& fit, const TableView& table, typename Ops::Value y,
                                                 typename Ops::Mask m) {
  using Value = typename Ops::Value;
  using Row = typename Ops::Row;
  Value t = ops.sub(y, ops.constant(fit.kYHi));
  if (fit.kYLo != 0.0f) t = ops.sub(t, ops.constant(fit.kYLo));
  t = ops.at_least(t, ops.constant(fit.kTMin));
  const Value r = ops.sqrt(t);
  Value s = ops.select(m, r, ops.negate(r));
  s = ops.at_most(s, ops.constant(fit.kSMax));
  if (!fit.kHasLeft) s = ops.at_least(s, ops.constant(fit.kSMin));
  const Value q = ops.fma(s, ops.constant(fit.kIndexScale), ops.constant(fit.kIndexBias));
  Row row = ops.row_index(q, fit.kRows);
  Value v = s;
  if constexpr (requires { fit.kLeftY; }) {
    if (fit.kHasLeft) {
      const auto left = ops.neither(m, ops.less_equal(y, ops.constant(fit.kLeftY)));
      const Value z = ops.non_positive(y);  // foreign data: y > 0 with m = 0 is taken to the nearest end
      row = ops.select(left, ops.octave_row(z, fit.kLeftKnee, fit.kLeftBase, fit.kLeftRow, fit.kRows), row);
      v = ops.select(left, z, v);
    }
  }
  return evaluate_row(ops, table, row, fit.kDegree, v);
}

// The same from a generated header alone.
template <class Fit, class Ops>
OUTGRAD_HD typename Ops::Value evaluate_backward(const Ops& ops, typename Ops::Value y, typename Ops::Mask m) {
  static constexpr auto kTable = Fit::table();
  return evaluate_backward(ops, Fit{}, kTable, y, m);
}

// f(x) for x < kTailX. The last word of a tail row is a power-of-two factor, so a subnormal result is rounded once, by the last
// multiplication.
template <class Ops, class Forward, class TailView>
OUTGRAD_HD typename Ops::Value evaluate_tail(const Ops& ops, const Forward& fit, const TailView& tail, typename Ops::Value x) {
  const typename Ops::Value v = ops.at_least(x, ops.constant(fit.kXMin));
  const typename Ops::Value q = ops.fma(v, ops.constant(fit.kTailIndexScale), ops.constant(fit.kTailIndexBias));
  const typename Ops::Row row = ops.row_index(q, fit.kTailRows);
  return ops.mul(evaluate_row(ops, tail, row, fit.kTailDegree, v), ops.lookup(tail, row, fit.kTailDegree + 2));
}

// For `where`. Not a lambda: NVRTC takes those of a host-and-device template for host code.
template <class Forward, class TailView>
struct TailBody {
  const Forward& fit;
  const TailView& tail;

  template <class Ops>
  OUTGRAD_HD typename Ops::Value operator()(const Ops& ops, const typename Ops::Value& x) const {
    return evaluate_tail(ops, fit, tail, x);
  }
};

// f(x), in fp32: uniform cells in x, those of the left tail apart. From kXMax on f(x) rounds to x.
template <class Ops, class Forward, class CoreView, class TailView>
OUTGRAD_HD typename Ops::Value evaluate_forward(const Ops& ops, const Forward& fit, const CoreView& core, const TailView& tail,
                                                typename Ops::Value x) {
  using Value = typename Ops::Value;
  const Value q = ops.fma(x, ops.constant(fit.kIndexScale), ops.constant(fit.kIndexBias));
  Value y = evaluate_row(ops, core, ops.row_index(q, fit.kRows), fit.kDegree, x);
  y = ops.where(ops.less(x, ops.constant(fit.kTailX)), y, x, TailBody<Forward, TailView>{fit, tail});
  return ops.select(ops.less(x, ops.constant(fit.kXMax)), y, x);
}

template <class Forward, class Ops>
OUTGRAD_HD typename Ops::Value evaluate_forward(const Ops& ops, typename Ops::Value x) {
  static constexpr auto kCore = Forward::table();
  static constexpr auto kTail = Forward::tail();
  return evaluate_forward(ops, Forward{}, kCore, kTail, x);
}

// m = [x >= x*]; 0 for a NaN.
template <class Ops, class Forward>
OUTGRAD_HD typename Ops::Mask evaluate_mask(const Ops& ops, const Forward& fit, typename Ops::Value x) {
  return ops.less_equal(ops.constant(fit.kXStar), x);
}

// One fp32 value, on host and device.
struct FloatOps {
  using Value = float;
  using Mask = bool;
  using Row = u32;

  OUTGRAD_HD float constant(float value) const { return value; }
  OUTGRAD_HD float fma(float a, float b, float c) const { return fma_rn(a, b, c); }
  OUTGRAD_HD float sub(float a, float b) const { return sub_rn(a, b); }
  OUTGRAD_HD float mul(float a, float b) const { return mul_rn(a, b); }
  OUTGRAD_HD float sqrt(float a) const { return sqrt_rn(a); }
  OUTGRAD_HD float negate(float a) const { return -a; }
  OUTGRAD_HD float at_least(float a, float lo) const {
#ifdef __CUDA_ARCH__
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(lo));  // fmaxf would lose a NaN
    return a;
#else
    return a < lo ? lo : a;
#endif
  }
  OUTGRAD_HD float at_most(float a, float hi) const {
#ifdef __CUDA_ARCH__
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(hi));
    return a;
#else
    return hi < a ? hi : a;
#endif
  }
  OUTGRAD_HD float non_positive(float a) const { return a > 0.0f ? -0.0f : a; }
  OUTGRAD_HD float select(bool mask, float a, float b) const { return mask ? a : b; }
  OUTGRAD_HD u32 select(bool mask, u32 a, u32 b) const { return mask ? a : b; }
  OUTGRAD_HD bool less(float a, float b) const { return a < b; }
  OUTGRAD_HD bool less_equal(float a, float b) const { return a <= b; }
  OUTGRAD_HD bool neither(bool p, bool q) const { return !p && !q; }
  template <class Body>
  OUTGRAD_HD float where(bool mask, float y, float x, const Body& body) const {
    return mask ? body(*this, x) : y;
  }
  OUTGRAD_HD u32 row_index(float q, int rows) const { return bits_of(q) & static_cast<u32>(rows - 1); }
  OUTGRAD_HD u32 octave_row(float z, int knee, int base, int first_row, int rows) const {
    const int half_octave = static_cast<int>((bits_of(z) >> 22) & 0x1ffu);
    const int above = ((half_octave + (half_octave > knee ? half_octave : knee)) >> 1) - base;
    return static_cast<u32>(first_row + (above > 0 ? above : 0)) & static_cast<u32>(rows - 1);
  }
  template <class TableView>
  OUTGRAD_HD float lookup(const TableView& table, u32 row, int word) const {
    return table.at(row, word);
  }
};

}  // namespace outgrad::kernels
