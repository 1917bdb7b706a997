// The evaluators compute an activation's derivative from its output, and the activation itself. Each is
// written once for all kinds of scalar.
//
// The same template runs as the kernel (fp32 on host and device, SIMD lanes) and inside its own proof (balls
// that track rounding), so what is proved is what runs. An operations object `ops` defines what a scalar is
// and does:
//
//   types   Value, Mask, Row
//   Value   constant(float)   negate(a)   sub(a, b)   mul(a, b)   div(a, b)   sqrt(a)
//           for gates alone: add(a, b)
//   Value   fma(a, b, c) = a b + c, rounded once
//   Value   at_least(a, lo) = a < lo ? lo : a        at_most(a, hi) = hi < a ? hi : a
//           a NaN a stays NaN in both; of two zeros, either may result
//   Value   non_positive(a) = a > 0 ? -0 : a         keeps NaN and +0
//   Value   select(mask, a, b) = mask ? a : b, without a branch; the same for Row
//   Value   shifted(a, bits) = the float whose bits are those of a, shifted left
//   Value   signed_as(a, b) = |a| with b's sign
//   Value   nudged(a, tie) = a + tie, for tie = 2^-149; equals a for |a| >= 2^-123; for a = 0 either a or tie
//   Value   exponent(a), significand(a): a = 2^exponent significand, significand in [sqrt(1/2), sqrt(2));
//           a is positive and normal
//   Value   where(mask, y, x, body) = mask ? body(ops, x) : y, skipping the work where no element needs it;
//           body may be called with any x
//   Mask    less(a, b)   less_equal(a, b)   both false on NaN        neither(p, q) = !p and !q
//   Row     first_row() = 0     next_row(row, mask) = mask ? row + 1 : row
//   Row     row_index(q, rows) = bits(q) mod rows, rows a power of two
//   Row     octave_row(z, bits, knee, base, first_row, rows) =
//           (first_row + max(((h + max(h, knee)) >> 1) - base, 0)) mod rows,
//           h = exponent and first `bits` fraction bits of z as one integer; from the knee on, each h has its
//           own row, and below the knee two h share a row
//   Value   lookup(table, row, word)
//
// An object may have faster forms, which equal these by definition:
//   signed_by(m, a) = select(m, a, negate(a))
//   beyond(m, y, limit) = neither(m, less_equal(y, limit))
//   left_row(fit, y) = octave_row(non_positive(y), the fit's constants)
//   indexed_row(fit, v) = the row of v as given by its index
//   take_left(fit, left, y, row, v): where `left` is set, row and v become those of the left segment
//
// Rows come from the fraction bits of q = fma(v, scale, 2^23 + offset). At that magnitude an fp32 ulp is 1,
// so q is the index of v's cell, rounded to nearest. With `breaks`, rows come instead from counting the break
// points at or below v. A row is {centre, c0, ..., c_degree}. Centred arguments keep u small, and with it the
// rounding errors of the steps. With kTwoWord a last word follows, which is the low part of c0: the result is
// then c0 plus something small, and only its last rounding matters. `fit` may be an object of a generated
// header's struct (all members static) or any object with the same members. Members for parts that the fit
// lacks may be absent.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/stored.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Orders of evaluation of a row's polynomial, kScheme of a fit.
inline constexpr int kHorner = 0;  // fewest operations, one chain
inline constexpr int kEstrin = 1;  // pairs of coefficients combined by u, u^2, u^4: the shortest chain
inline constexpr int kEvenOdd = 2;  // even and odd part by Horner in u^2: two chains, one operation more

// No table here has a larger degree.
inline constexpr int kLargestDegree = 16;

// p(u), the row's polynomial at u = v - centre, or at u = v if the fit is not centred.
template <class Ops, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_row(const Ops& ops, const TableView& table, typename Ops::Row row,
                                            int degree, typename Ops::Value v, int scheme = kHorner,
                                            bool centred = true, bool two_word = false) {
  using Value = typename Ops::Value;
  const Value u = centred ? ops.sub(v, ops.lookup(table, row, 0)) : v;
  if (two_word) {
    Value p = ops.lookup(table, row, degree + 1);
    OUTGRAD_UNROLL
    for (int word = degree; word >= 2; --word) p = ops.fma(p, u, ops.lookup(table, row, word));
    p = ops.fma(p, u, ops.lookup(table, row, degree + 2));
    return ops.sub(ops.lookup(table, row, 1), ops.negate(p));
  }
  if (scheme == kEstrin) {
    // Neighbours are joined in place, 1, 2, 4, ... apart. Every element is set before it is read.
    Value part[kLargestDegree / 2 + 1] = {};
    const int parts = degree / 2 + 1;
    OUTGRAD_UNROLL
    for (int k = 0; k < parts; ++k) {
      const Value low = ops.lookup(table, row, 2 * k + 1);
      part[k] = 2 * k < degree ? ops.fma(ops.lookup(table, row, 2 * k + 2), u, low) : low;
    }
    Value power = u;
    OUTGRAD_UNROLL
    for (int apart = 1; apart < parts; apart *= 2) {
      power = ops.mul(power, power);
      OUTGRAD_UNROLL
      for (int k = 0; k + apart < parts; k += 2 * apart) part[k] = ops.fma(part[k + apart], power, part[k]);
    }
    return part[0];
  }
  if (scheme == kEvenOdd && degree >= 2) {
    const Value square = ops.mul(u, u);
    const int even_top = degree / 2 * 2, odd_top = (degree - 1) / 2 * 2 + 1;
    Value even = ops.lookup(table, row, even_top + 1), odd = ops.lookup(table, row, odd_top + 1);
    OUTGRAD_UNROLL
    for (int k = even_top - 2; k >= 0; k -= 2) even = ops.fma(even, square, ops.lookup(table, row, k + 1));
    OUTGRAD_UNROLL
    for (int k = odd_top - 2; k >= 1; k -= 2) odd = ops.fma(odd, square, ops.lookup(table, row, k + 1));
    return ops.fma(odd, u, even);
  }
  Value p = ops.lookup(table, row, degree + 1);
  OUTGRAD_UNROLL
  for (int word = degree; word >= 1; --word) p = ops.fma(p, u, ops.lookup(table, row, word));
  return p;
}

// The coordinate that picks the row, for a y already clamped at kYMax: s, or y itself if f has no minimum.
template <class Ops, class Fit>
OUTGRAD_HD typename Ops::Value evaluate_coordinate(const Ops& ops, const Fit& fit, typename Ops::Value y,
                                                   typename Ops::Mask m) {
  using Value = typename Ops::Value;
  Value v = y;
  if constexpr (requires { fit.kYMin; }) {
    if (!fit.kMasked) v = ops.at_least(v, ops.constant(fit.kYMin));
  }
  if constexpr (requires { fit.kYHi; }) {
    if (fit.kMasked) {
      Value t = ops.sub(y, ops.constant(fit.kYHi));
      if (fit.kYLo != 0.0f) t = ops.sub(t, ops.constant(fit.kYLo));
      t = ops.at_least(t, ops.constant(fit.kTMin));
      const Value r = ops.sqrt(t);
      if constexpr (requires { ops.signed_by(m, r); }) {
        v = ops.signed_by(m, r);
      } else {
        v = ops.select(m, r, ops.negate(r));
      }
      if (!fit.kHasLeft) v = ops.at_least(v, ops.constant(fit.kSMin));
    }
  }
  return v;
}

// g = f'(x) from y = f(x) and, if f has a minimum (kMasked), m = [x >= x*].
//
// y is clamped at kYMax, from where on g has its limit. If kMasked, the coordinate is s = +-sqrt(y - y*),
// positive for m. y* is split into two floats, and y - y_hi is exact near y*. Without a mask f is increasing
// and the coordinate is y.
//
// With a left segment, the values with m = 0 and y > kLeftY are evaluated in y itself, which is exact. Their
// row is taken from y's exponent, because that end is logarithmic. With a right segment, from s = kRightS on
// (with kRightBoth from |s| = kRightS on), the row's polynomial is one in y, because s carries the rounding
// of a subtraction and of a root.
template <class Ops>
struct Place {
  typename Ops::Row row;
  typename Ops::Value v;  // the argument of the row's polynomial
};

template <class Ops, class Fit>
OUTGRAD_HD Place<Ops> evaluate_place(const Ops& ops, const Fit& fit, typename Ops::Value y,
                                     typename Ops::Mask m) {
  using Value = typename Ops::Value;
  using Row = typename Ops::Row;
  y = ops.at_most(y, ops.constant(fit.kYMax));
  Value v = evaluate_coordinate(ops, fit, y, m);
  Row row = ops.first_row();
  if constexpr (requires { fit.kIndexScale; }) {
    if constexpr (requires { ops.indexed_row(fit, v); }) {
      row = ops.indexed_row(fit, v);
    } else if (!fit.kHasBreaks) {
      row = ops.row_index(ops.fma(v, ops.constant(fit.kIndexScale), ops.constant(fit.kIndexBias)), fit.kRows);
    }
  }
  if constexpr (requires { fit.break_at(0); }) {
    if (fit.kHasBreaks) {
      OUTGRAD_UNROLL
      for (int k = 0; k + 1 < fit.kRows; ++k)
        row = ops.next_row(row, ops.less_equal(ops.constant(fit.break_at(k)), v));
    }
  }
  if constexpr (requires { fit.kRightS; }) {
    if (fit.kHasRight) {
      Value distance = v;
      if constexpr (requires { fit.kRightBoth; }) {
        if (fit.kRightBoth) distance = ops.select(m, v, ops.negate(v));
      }
      v = ops.select(ops.less(distance, ops.constant(fit.kRightS)), v, y);
    }
  }
  if constexpr (requires { fit.kLeftY; }) {
    if (fit.kHasLeft) {
      typename Ops::Mask left;
      if constexpr (requires { ops.beyond(m, y, y); }) {
        left = ops.beyond(m, y, ops.constant(fit.kLeftY));
      } else {
        left = ops.neither(m, ops.less_equal(y, ops.constant(fit.kLeftY)));
      }
      // No forward gives y > 0 with m = 0. Such a y is treated as the nearest end of the range.
      if constexpr (requires { ops.take_left(fit, left, y, row, v); }) {
        ops.take_left(fit, left, y, row, v);
      } else {
        const Value z = ops.non_positive(y);
        if constexpr (requires { ops.left_row(fit, y); }) {
          row = ops.select(left, ops.left_row(fit, y), row);
        } else {
          row = ops.select(
              left, ops.octave_row(z, fit.kLeftBits, fit.kLeftKnee, fit.kLeftBase, fit.kLeftRow, fit.kRows),
              row);
        }
        v = ops.select(left, z, v);
      }
    }
  }
  return {row, v};
}

template <class Ops, class Fit, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_backward(const Ops& ops, const Fit& fit, const TableView& table,
                                                 typename Ops::Value y, typename Ops::Mask m) {
  const Place<Ops> place = evaluate_place(ops, fit, y, m);
  bool two_word = false;
  if constexpr (requires { fit.kTwoWord; }) two_word = fit.kTwoWord;
  return evaluate_row(ops, table, place.row, fit.kDegree, place.v, fit.kScheme, fit.kCentred, two_word);
}

// The same, given only a generated header.
template <class Fit, class Ops>
OUTGRAD_HD typename Ops::Value evaluate_backward(const Ops& ops, typename Ops::Value y,
                                                 typename Ops::Mask m) {
  static constexpr auto kTable = Fit::table();
  return evaluate_backward(ops, Fit{}, kTable, y, m);
}

// f(x) and f'(x) of one x, or of several.
template <class Value>
struct ValueAndSlope {
  Value f, slope;
};

// p(v - centre) and p'(v - centre), where p is the polynomial of a centred row in Horner's scheme: side by
// side, by the same coefficients.
template <class Ops, class TableView>
OUTGRAD_HD ValueAndSlope<typename Ops::Value> evaluate_row_and_slope(const Ops& ops, const TableView& table,
                                                                     const typename Ops::Row& row, int degree,
                                                                     const typename Ops::Value& v) {
  using Value = typename Ops::Value;
  const Value u = ops.sub(v, ops.lookup(table, row, 0));
  Value p = ops.lookup(table, row, degree + 1), slope = p;
  OUTGRAD_UNROLL
  for (int word = degree; word >= 2; --word) {
    p = ops.fma(p, u, ops.lookup(table, row, word));
    slope = ops.fma(slope, u, p);
  }
  return {ops.fma(p, u, ops.lookup(table, row, 1)), slope};
}

// f(x) for x < kTailX. The last word of a tail row is a power-of-two factor, so a subnormal result is rounded
// once, by the last multiplication.
template <class Ops, class Forward, class TailView>
OUTGRAD_HD typename Ops::Value evaluate_tail(const Ops& ops, const Forward& fit, const TailView& tail,
                                             typename Ops::Value x) {
  const typename Ops::Value v = ops.at_least(x, ops.constant(fit.kXMin));
  const typename Ops::Value q =
      ops.fma(v, ops.constant(fit.kTailIndexScale), ops.constant(fit.kTailIndexBias));
  const typename Ops::Row row = ops.row_index(q, fit.kTailRows);
  return ops.mul(evaluate_row(ops, tail, row, fit.kTailDegree, v),
                 ops.lookup(tail, row, fit.kTailDegree + 2));
}

// The body of a `where`. It is not a lambda, because NVRTC takes the lambdas of a host-and-device template
// for host code.
template <class Forward, class TailView>
struct TailBody {
  const Forward& fit;
  const TailView& tail;

  template <class Ops>
  OUTGRAD_HD typename Ops::Value operator()(const Ops& ops, const typename Ops::Value& x) const {
    return evaluate_tail(ops, fit, tail, x);
  }
};

// f(x) in fp32, with uniform cells in x except in the left tail, which has its own. From kXMax on, f(x)
// rounds to x.
// An f32 forward's tail table, and what stands for it where there is none.
struct NoTail {};
template <class Forward>
OUTGRAD_HD constexpr auto forward_tail() {
  if constexpr (requires { Forward::tail(); }) {
    return Forward::tail();
  } else {
    return NoTail{};
  }
}

// p(u) = c0 + (c1 + slope_low) u + c2 u^2 + ..., where u = v - centre, such that little more than the last
// sum rounds. What fma(c1, u, c0) loses is computed too, and added to the terms from u^2 on.
template <class Ops, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_compensated(const Ops& ops, const TableView& table,
                                                    const typename Ops::Row& row, int degree,
                                                    const typename Ops::Value& v, float slope_low) {
  using Value = typename Ops::Value;
  const Value u = ops.sub(v, ops.lookup(table, row, 0));
  Value t = ops.lookup(table, row, degree + 1);
  OUTGRAD_UNROLL
  for (int word = degree; word >= 3; --word) t = ops.fma(t, u, ops.lookup(table, row, word));
  const Value c0 = ops.lookup(table, row, 1), c1 = ops.lookup(table, row, 2);
  // The low part and the rest are negated, so that p(-0) is -0 where c0 is.
  const Value minus_u = ops.negate(u);
  const Value high = ops.fma(c1, u, c0), low = ops.fma(c1, minus_u, ops.sub(high, c0));
  const Value rest = slope_low == 0 ? ops.mul(t, u) : ops.fma(t, u, ops.constant(slope_low));
  return ops.sub(high, ops.fma(rest, minus_u, low));
}

// Members of an f32 forward that may be absent, and are then false or 0: kTailX, below which the tail's table
// serves an f that tends to 0 at the left, where without it f has its limit from kXMin down; kLevels, where f
// has its limit from kXMax on, and not x; kCompensated, and with it kSlopeLow.
template <class Forward>
struct ForwardShape {
  const Forward& fit;

  OUTGRAD_HD constexpr bool has_tail() const {
    if constexpr (requires { fit.kTailX; }) {
      return fit.kTailX != 0;
    } else {
      return false;
    }
  }
  OUTGRAD_HD constexpr bool levels() const {
    if constexpr (requires { fit.kLevels; }) {
      return fit.kLevels;
    } else {
      return false;
    }
  }
  OUTGRAD_HD constexpr bool compensated() const {
    if constexpr (requires { fit.kCompensated; }) {
      return fit.kCompensated;
    } else {
      return false;
    }
  }
  OUTGRAD_HD constexpr float slope_low() const {
    if constexpr (requires { fit.kSlopeLow; }) {
      return fit.kSlopeLow;
    } else {
      return 0;
    }
  }
};

// f(x) in fp32, for x right of the tail.
template <class Ops, class Forward, class CoreView>
OUTGRAD_HD typename Ops::Value evaluate_core(const Ops& ops, const Forward& fit, const CoreView& core,
                                             const typename Ops::Value& x) {
  using Value = typename Ops::Value;
  const ForwardShape<Forward> shape{fit};
  Value v = x;
  if (!shape.has_tail()) v = ops.at_least(v, ops.constant(fit.kXMin));
  if (shape.levels()) v = ops.at_most(v, ops.constant(fit.kXMax));
  const Value q = ops.fma(v, ops.constant(fit.kIndexScale), ops.constant(fit.kIndexBias));
  const typename Ops::Row row = ops.row_index(q, fit.kRows);
  return shape.compensated() ? evaluate_compensated(ops, core, row, fit.kDegree, v, shape.slope_low())
                             : evaluate_row(ops, core, row, fit.kDegree, v);
}

template <class Ops, class Forward, class CoreView, class TailView>
OUTGRAD_HD typename Ops::Value evaluate_forward(const Ops& ops, const Forward& fit, const CoreView& core,
                                                const TailView& tail, typename Ops::Value x) {
  using Value = typename Ops::Value;
  const ForwardShape<Forward> shape{fit};
  Value y = evaluate_core(ops, fit, core, x);
  if constexpr (requires { fit.kTailX; }) {
    if (shape.has_tail())
      y = ops.where(ops.less(x, ops.constant(fit.kTailX)), y, x, TailBody<Forward, TailView>{fit, tail});
  }
  return shape.levels() ? y : ops.select(ops.less(x, ops.constant(fit.kXMax)), y, x);
}

template <class Forward, class Ops>
OUTGRAD_HD typename Ops::Value evaluate_forward(const Ops& ops, typename Ops::Value x) {
  static constexpr auto kCore = Forward::table();
  static constexpr auto kTail = forward_tail<Forward>();
  return evaluate_forward(ops, Forward{}, kCore, kTail, x);
}

// f'(x) of GELU for |x| > -kTailX. Left of it by the derivative of the tail's polynomials; right of it as 1 -
// f'(-x), because there the core's polynomials follow f itself within an ulp that says little of f'.
template <class Forward, class TailView>
struct TailSlopeBody {
  const Forward& fit;
  const TailView& tail;

  template <class Ops>
  OUTGRAD_HD typename Ops::Value operator()(const Ops& ops, const typename Ops::Value& x) const {
    using Value = typename Ops::Value;
    const Value v = ops.at_least(ops.signed_as(x, ops.constant(-1.0f)), ops.constant(fit.kXMin));
    const Value q = ops.fma(v, ops.constant(fit.kTailIndexScale), ops.constant(fit.kTailIndexBias));
    const typename Ops::Row row = ops.row_index(q, fit.kTailRows);
    const Value left = ops.mul(evaluate_row_and_slope(ops, tail, row, fit.kTailDegree, v).slope,
                               ops.lookup(tail, row, fit.kTailDegree + 2));
    return ops.select(ops.less(x, ops.constant(0.0f)), left, ops.sub(ops.constant(1.0f), left));
  }
};

// f(x) of GELU as evaluate_forward has it, to the bit, and f'(x) by the derivatives of the same polynomials:
// the core's words are looked up once for both.
template <class Ops, class Forward, class CoreView, class TailView>
OUTGRAD_HD ValueAndSlope<typename Ops::Value> evaluate_forward_and_slope(const Ops& ops, const Forward& fit,
                                                                         const CoreView& core,
                                                                         const TailView& tail,
                                                                         const typename Ops::Value& x) {
  using Value = typename Ops::Value;
  const Value q = ops.fma(x, ops.constant(fit.kIndexScale), ops.constant(fit.kIndexBias));
  const ValueAndSlope<Value> at =
      evaluate_row_and_slope(ops, core, ops.row_index(q, fit.kRows), fit.kDegree, x);
  const Value left = ops.signed_as(x, ops.constant(-1.0f)), tail_x = ops.constant(fit.kTailX);
  const Value slope =
      ops.where(ops.less(left, tail_x), at.slope, x, TailSlopeBody<Forward, TailView>{fit, tail});
  const Value y = ops.where(ops.less(x, tail_x), at.f, x, TailBody<Forward, TailView>{fit, tail});
  return {ops.select(ops.less(x, ops.constant(fit.kXMax)), y, x), slope};
}

// f'(x) alone.
template <class Ops, class Forward, class CoreView, class TailView>
OUTGRAD_HD typename Ops::Value evaluate_forward_derivative(const Ops& ops, const Forward& fit,
                                                           const CoreView& core, const TailView& tail,
                                                           const typename Ops::Value& x) {
  return evaluate_forward_and_slope(ops, fit, core, tail, x).slope;
}

// Forward fits for one 16-bit format: f(x) = x p(u), where p approximates f(x)/x, or f(x) = p(u) where f(0)
// is not 0 (kPlain). A row is four words, {c0, c1, c2, c3}. The bits of c3, shifted left by kQuarticShift,
// are those of c4, and the centre follows from the row's number. kIsRoundedForward tells whether a fit is of
// this kind. Members may be absent: kXStar of an f without a minimum; kTie of a plain fit; kPlain, then
// false; kEnd, the largest x that enters the result; kPull, a step of x against its sign, then none.
template <class Forward>
inline constexpr bool kIsRoundedForward = requires { Forward::kQuarticShift; };

// Whether a forward fit is of an f with a minimum, and so has a mask bit.
template <class Forward>
inline constexpr bool kHasMask = requires { Forward::kXStar; };

// Whether it is one whose f(0) is not 0.
template <class Forward>
inline constexpr bool kIsPlain = requires { Forward::kPlain; };

inline constexpr float kLeastNormal = 0x1p-126f;

// q = 2^23 + the row of w.
template <class Ops, class Forward>
OUTGRAD_HD typename Ops::Value forward_index(const Ops& ops, const Forward& fit,
                                             const typename Ops::Value& w) {
  return ops.fma(w, ops.constant(fit.kIndexScale), ops.constant(fit.kIndexBias));
}

// x less kPull |x|.
template <class Ops, class Forward>
OUTGRAD_HD typename Ops::Value pulled(const Ops& ops, const Forward& fit, const typename Ops::Value& x) {
  if constexpr (requires { fit.kPull; }) {
    if (fit.kPull != 0) return ops.fma(ops.constant(-fit.kPull), ops.signed_as(x, ops.constant(1.0f)), x);
  }
  return x;
}

// v p, or of a plain fit p, for v >= kXMin, where w is v or kXMax, and q = forward_index(w). The product is
// computed in two parts, v c0 + kTie and the rest. At 0, where c0 is 1/2 and the first part is exact, the sum
// is therefore rounded once. kTie lies far below every value of the format. It decides the ties x/2 where
// fp32 cannot hold the rest of f(x), which is positive on both sides of 0. A subnormal kTie is added last,
// and only where it matters, because a subnormal operand costs some CPUs a hundred cycles. kPull, about one
// last place of fp32, does the same where f passes ties next to x = 0 nearer than fp32 tells apart, with one
// sign left of 0 and the other right of it.
template <class Ops, class Forward, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_product(const Ops& ops, const Forward& fit, const TableView& table,
                                                const typename Ops::Value& q, const typename Ops::Value& w,
                                                const typename Ops::Value& v) {
  using Value = typename Ops::Value;
  const typename Ops::Row row = ops.row_index(q, fit.kRows);
  // Three exact steps: the cell's number, its centre as a product, and w less that centre.
  bool plain = false;
  if constexpr (requires { fit.kPlain; }) plain = fit.kPlain;
  const Value u =
      ops.fma(ops.sub(q, ops.constant(fit.kIndexBias)), ops.constant(-1.0f / fit.kIndexScale), plain ? v : w);
  const Value c3 = ops.lookup(table, row, 3);
  Value t = ops.fma(ops.shifted(c3, fit.kQuarticShift), u, c3);
  t = ops.fma(t, u, ops.lookup(table, row, 2));
  t = ops.fma(t, u, ops.lookup(table, row, 1));
  const Value c0 = ops.lookup(table, row, 0);
  if (plain) return ops.fma(u, t, c0);
  const Value x = pulled(ops, fit, v);
  float tie = 0;
  if constexpr (requires { fit.kTie; }) tie = fit.kTie;
  if (tie >= kLeastNormal) return ops.fma(ops.mul(w, u), t, ops.fma(x, c0, ops.constant(tie)));
  const Value y = ops.fma(ops.mul(w, u), t, ops.mul(x, c0));
  return tie == 0 ? y : ops.nudged(y, tie);
}

// y with the sign of x, which kTie may have taken from a zero; a plain y has its own.
template <class Ops, class Forward>
OUTGRAD_HD typename Ops::Value with_sign_of(const Ops& ops, const Forward& fit, const typename Ops::Value& y,
                                            const typename Ops::Value& x) {
  if constexpr (requires { fit.kPlain; }) {
    if (fit.kPlain) return y;
  }
  if constexpr (requires { ops.restored(y, x); }) {
    return ops.restored(y, x);
  } else {
    return ops.signed_as(y, x);
  }
}

// The body of a `where` over w.
template <class Forward, class TableView>
struct ProductBody {
  const Forward& fit;
  const TableView& table;

  template <class Ops>
  OUTGRAD_HD typename Ops::Value operator()(const Ops& ops, const typename Ops::Value& w) const {
    return evaluate_product(ops, fit, table, forward_index(ops, fit, w), w, w);
  }
};

// A rounded forward's rows for vectors: the kCoreRows common rows from kCoreFirst on, which the low bits of
// the row number find; all rows; and those of NearRows.
template <class Core, class All, class Near>
struct SplitRows {
  Core core;
  All all;
  Near near;
};

// The fit that gives vectors the rows of a forward about x = 0: itself, unless kernels/forward_fits.h names
// one of wider cells.
template <class Forward>
struct NearFit {
  using Type = Forward;
};

// Those rows, 32 of them, as a fit whose q are 2^23 to 2^23 + kRows - 1. It serves x in their cells, where
// nothing is clamped but, if f is x from 0 on (kClamps), w at 0. kFirst is even, so that q rounds to even in
// the same cases as in the whole fit.
template <class Forward>
struct NearRows : NearFit<Forward>::Type {
  using Fit = typename NearFit<Forward>::Type;
  static constexpr int kRows = 32;
  // the row of x = 0
  static constexpr int kMiddle = static_cast<int>(Fit::kIndexBias - 0x1p23f);
  // the row of kXMax, where x is clamped
  static constexpr int kEndRow = kMiddle + static_cast<int>(Fit::kXMax * Fit::kIndexScale);
  static constexpr bool kClamps = Fit::kXMax == 0;
  static constexpr int kFirst = (kClamps                         ? kEndRow - kRows + 2
                                 : kMiddle + kRows / 2 < kEndRow ? kMiddle - kRows / 2
                                                                 : kEndRow - kRows) /
                                2 * 2;
  static constexpr float kIndexBias = Fit::kIndexBias - static_cast<float>(kFirst);
  static_assert(kFirst >= 0 &&
                (static_cast<float>(kFirst - kMiddle) - 0.5f) / Fit::kIndexScale >= Forward::kXMin);

  static OUTGRAD_HD constexpr auto table() {
    constexpr auto kAll = Fit::table();
    Table<kRows, 4> rows{};
    for (int row = 0; row < kRows; ++row) {
      for (int word = 0; word < 4; ++word) rows.w[row][word] = kAll.w[kFirst + row][word];
    }
    return rows;
  }
};

// f(x) in fp32, ready to be narrowed to the format. From kXMax on p is 1, or f has its limit; at kXMin and
// below, too. An object whose row indices must not be made of a NaN has number_at_most, which of a NaN gives
// some number up to `hi`; and one that restores the sign of x itself has restored.
template <class Ops, class Forward, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_forward(const Ops& ops, const Forward& fit, const TableView& table,
                                                const typename Ops::Value& x) {
  using Value = typename Ops::Value;
  const Value v = ops.at_least(x, ops.constant(fit.kXMin));
  Value w, enters = v;
  if constexpr (requires { ops.number_at_most(v, fit.kXMax); }) {
    w = ops.number_at_most(v, fit.kXMax);
  } else {
    w = ops.at_most(v, ops.constant(fit.kXMax));
  }
  if constexpr (requires { fit.kEnd; }) enters = ops.at_most(v, ops.constant(fit.kEnd));
  const Value q = forward_index(ops, fit, w);
  Value y;
  if constexpr (requires { table.core; }) {
    y = evaluate_product(ops, fit, table.core, q, w, enters);
    const auto left = ops.less(q, ops.constant(0x1p23f + static_cast<float>(fit.kCoreFirst)));
    y = ops.where(left, y, w, ProductBody<Forward, decltype(table.all)>{fit, table.all});
  } else {
    y = evaluate_product(ops, fit, table, q, w, enters);
  }
  return with_sign_of(ops, fit, y, x);
}

// The same, for use where every x is in a cell of NearRows and q = forward_index(w), where w is x, or the
// smaller of x and kXMax if the fit kClamps.
template <class Ops, class Forward, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_near(const Ops& ops, const NearRows<Forward>& fit,
                                             const TableView& table, const typename Ops::Value& q,
                                             const typename Ops::Value& w, const typename Ops::Value& x) {
  return with_sign_of(ops, fit, evaluate_product(ops, fit, table, q, w, x), x);
}

// m = [x >= x*]; 0 for a NaN.
template <class Ops, class Forward>
OUTGRAD_HD typename Ops::Mask evaluate_mask(const Ops& ops, const Forward& fit, typename Ops::Value x) {
  return ops.less_equal(ops.constant(fit.kXStar), x);
}

// No bit of an exponent below that of 2^-123.
inline constexpr u32 kNudgedExponents = 0x7e000000u;

// How a positive normal number is split into 2^k and a significand in [sqrt(1/2), sqrt(2)). Once its bits are
// moved so that those of sqrt(1/2) become those of 1, its exponent field holds k + 127, and its fraction is
// the distance from 2^k sqrt(1/2).
inline constexpr u32 kRootHalfBits = 0x3f3504f3u;  // sqrt(1/2), rounded to nearest
inline constexpr u32 kRootHalfToOne = 0x3f800000u - kRootHalfBits, kFractionBits = 0x007fffffu;
// the integer in the fraction bits of a number from here on is what it is above this one
inline constexpr float kIntegerBase = 0x1p23f;
inline constexpr float kExponentBase = kIntegerBase + 127;

// One fp32 value, on host and device.
struct FloatOps {
  using Value = float;
  using Mask = bool;
  using Row = u32;

  OUTGRAD_HD float constant(float value) const { return value; }
  OUTGRAD_HD float fma(float a, float b, float c) const { return fma_rn(a, b, c); }
  OUTGRAD_HD float add(float a, float b) const { return add_rn(a, b); }
  OUTGRAD_HD float sub(float a, float b) const { return sub_rn(a, b); }
  OUTGRAD_HD float mul(float a, float b) const { return mul_rn(a, b); }
  OUTGRAD_HD float div(float a, float b) const { return div_rn(a, b); }
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
  OUTGRAD_HD float shifted(float a, int bits) const { return float_of(bits_of(a) << bits); }
  OUTGRAD_HD float nudged(float a, float tie) const {
#ifdef __CUDA_ARCH__
    return add_rn(a, tie);
#else
    return (bits_of(a) & kNudgedExponents) == 0 && a != 0.0f ? add_rn(a, tie) : a;
#endif
  }
  OUTGRAD_HD float signed_as(float a, float b) const {
    return float_of((bits_of(a) & 0x7fffffffu) | (bits_of(b) & 0x80000000u));
  }
  OUTGRAD_HD float select(bool mask, float a, float b) const { return mask ? a : b; }
  OUTGRAD_HD u32 select(bool mask, u32 a, u32 b) const { return mask ? a : b; }
  OUTGRAD_HD bool less(float a, float b) const { return a < b; }
  OUTGRAD_HD bool less_equal(float a, float b) const { return a <= b; }
  OUTGRAD_HD bool neither(bool p, bool q) const { return !p && !q; }
  OUTGRAD_HD bool any(bool mask) const { return mask; }
  template <class Body>
  OUTGRAD_HD float where(bool mask, float y, float x, const Body& body) const {
    return mask ? body(*this, x) : y;
  }
  OUTGRAD_HD u32 first_row() const { return 0; }
  OUTGRAD_HD u32 next_row(u32 row, bool mask) const { return row + static_cast<u32>(mask); }
  OUTGRAD_HD u32 row_index(float q, int rows) const { return bits_of(q) & static_cast<u32>(rows - 1); }
  OUTGRAD_HD u32 octave_row(float z, int bits, int knee, int base, int first_row, int rows) const {
    const int h = static_cast<int>((bits_of(z) & 0x7fffffffu) >> (23 - bits));
    const int above = ((h + (h > knee ? h : knee)) >> 1) - base;
    return static_cast<u32>(first_row + (above > 0 ? above : 0)) & static_cast<u32>(rows - 1);
  }
  template <class TableView>
  OUTGRAD_HD float lookup(const TableView& table, u32 row, int word) const {
    return table.at(row, word);
  }

  OUTGRAD_HD float exponent(float a) const {
    return sub_rn(float_of(((bits_of(a) + kRootHalfToOne) >> 23) + bits_of(kIntegerBase)), kExponentBase);
  }
  OUTGRAD_HD float significand(float a) const {
    return float_of(((bits_of(a) + kRootHalfToOne) & kFractionBits) + kRootHalfBits);
  }

  // Direct tables (kernels/direct.h).
  template <class View>
  OUTGRAD_HD float load(const View& from) const {
    return first_value(from);
  }
  template <class T>
  OUTGRAD_HD u32 load_codes(const T* from) const {
    return code_of(*from);
  }
  OUTGRAD_HD void store_bytes(u8* to, float q) const { *to = static_cast<u8>(bits_of(q)); }
  OUTGRAD_HD u32 low_bits(u32 row, int bits) const { return row & static_cast<u32>(bits); }
  OUTGRAD_HD bool above(u32 row, int limit) const { return row > static_cast<u32>(limit); }
  OUTGRAD_HD u32 constant_row(int value) const { return static_cast<u32>(value); }
  OUTGRAD_HD u32 row_in(u32 row, u32 first, u32 last, u32 shift) const {
    return (row < first ? first : row > last ? last : row) + shift;
  }
  template <class E, class TableView>
  OUTGRAD_HD float entry(const TableView& entries, u32 row) const {
    return widen(E{entries.at(row)});
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
