// Compiled together with every mutant: the kernels' own templates run its header in fp32 and, at the traced
// points, also in exact arithmetic.
//
// The trace is kernels/eval.h over pairs: the fp32 value, which alone decides comparisons and rows, and the
// same operations without rounding (long double, 2^-64). The difference between the two is what the header
// calls B. A second trace uses the root of y - y* itself for every square root, in both parts. Its unrounded
// part is the row's polynomial at the true coordinate, and its difference from f' is what the header calls A.
#pragma once

#include "kernels/activation.h"
#include "kernels/fitted_forward.h"
#include "tests/attack/probe_types.h"

namespace outgrad::validation::gate {

namespace k = outgrad::kernels;

struct Traced {
  float v = 0;
  long double exact = 0;
};

struct TracedOps {
  using Value = Traced;
  using Mask = bool;
  using Row = k::u32;

  k::FloatOps fp32{};
  bool at_truth = false;  // the second trace
  long double root = 0;  // the coordinate of the second trace,
  float row_root = 0;  // and the value that chooses the row
  // the terms that decide a forward's ties and are not part of its polynomial
  float tie = __builtin_nanf(""), pull = __builtin_nanf("");
  mutable int operations = 0;
  mutable Row last_row = 0;

  Value constant(float value) const {
    return {value, at_truth && (value == tie || value == pull) ? 0 : static_cast<long double>(value)};
  }
  Value fma(const Value& a, const Value& b, const Value& c) const {
    ++operations;
    const float v = fp32.fma(a.v, b.v, c.v);
    // A sum of 2^22 or more is an index, whose rounding is intended.
    return {v, c.v >= 0x1p22f ? v : a.exact * b.exact + c.exact};
  }
  Value sub(const Value& a, const Value& b) const {
    ++operations;
    return {fp32.sub(a.v, b.v), a.exact - b.exact};
  }
  Value mul(const Value& a, const Value& b) const {
    ++operations;
    return {fp32.mul(a.v, b.v), a.exact * b.exact};
  }
  Value sqrt(const Value& a) const {
    if (at_truth) return {row_root, root};
    return {fp32.sqrt(a.v), __builtin_sqrtl(a.exact)};
  }
  Value negate(const Value& a) const { return {-a.v, -a.exact}; }
  Value at_least(const Value& a, const Value& lo) const {
    return {fp32.at_least(a.v, lo.v), a.exact < lo.exact ? lo.exact : a.exact};
  }
  Value at_most(const Value& a, const Value& hi) const {
    return {fp32.at_most(a.v, hi.v), hi.exact < a.exact ? hi.exact : a.exact};
  }
  Value non_positive(const Value& a) const { return a.v > 0 ? Value{-0.0f, 0} : a; }
  Value shifted(const Value& a, int bits) const { return constant(fp32.shifted(a.v, bits)); }
  Value nudged(const Value& a, float by) const {
    return {fp32.nudged(a.v, by), at_truth ? a.exact : a.exact + by};
  }
  Value signed_as(const Value& a, const Value& b) const {
    return {fp32.signed_as(a.v, b.v), __builtin_copysignl(a.exact, b.exact)};
  }
  Value select(bool mask, const Value& a, const Value& b) const { return mask ? a : b; }
  Row select(bool mask, Row a, Row b) const { return mask ? a : b; }
  bool less(const Value& a, const Value& b) const { return a.v < b.v; }
  bool less_equal(const Value& a, const Value& b) const { return a.v <= b.v; }
  bool neither(bool p, bool q) const { return !p && !q; }
  template <class Body>
  Value where(bool mask, const Value& y, const Value& x, const Body& body) const {
    return mask ? body(*this, x) : y;
  }
  Row first_row() const { return 0; }
  Row next_row(Row row, bool mask) const { return fp32.next_row(row, mask); }
  Row row_index(const Value& q, int rows) const { return fp32.row_index(q.v, rows); }
  Row octave_row(const Value& z, int bits, int knee, int base, int first, int rows) const {
    return fp32.octave_row(z.v, bits, knee, base, first, rows);
  }
  template <class TableView>
  Value lookup(const TableView& table, Row row, int word) const {
    last_row = row;
    const float v = table.at(row, word);
    return {v, v};
  }
};

template <class Fit>
void claims_of(Claims* claims) {
  using Kind = Claims::Kind;
  claims->kind = requires { Fit::kBias; }    ? Kind::code
                 : requires { Fit::kCode; }  ? Kind::fp8
                 : k::kIsDirect<Fit>         ? Kind::table
                 : k::kIsRoundedForward<Fit> ? Kind::rounded
                 : requires { Fit::kXMin; }  ? Kind::forward
                                             : Kind::backward;
#define OUTGRAD_CLAIM(member, kConstant) \
  if constexpr (requires { Fit::kConstant; }) claims->member = Fit::kConstant
  OUTGRAD_CLAIM(name, kName);
  OUTGRAD_CLAIM(activation, kActivation);
  OUTGRAD_CLAIM(function, kFunction);
  OUTGRAD_CLAIM(format, kFormat);
  OUTGRAD_CLAIM(accuracy, kClass);
  OUTGRAD_CLAIM(entry_format, kEntryFormat);
  OUTGRAD_CLAIM(masked, kMasked);
  if constexpr (requires { Fit::kXMin; }) claims->masked = k::kHasMask<Fit>;
  claims->has_tail = requires { Fit::kTailX; };
  OUTGRAD_CLAIM(levels, kLevels);
  OUTGRAD_CLAIM(plain, kPlain);
  OUTGRAD_CLAIM(end, kEnd);
  OUTGRAD_CLAIM(exact_limits, kExactLimits);
  OUTGRAD_CLAIM(has_left, kHasLeft);
  OUTGRAD_CLAIM(has_right, kHasRight);
  OUTGRAD_CLAIM(right_both, kRightBoth);
  OUTGRAD_CLAIM(operations, kOperations);
  OUTGRAD_CLAIM(index_operations, kIndexOperations);
  OUTGRAD_CLAIM(core_first, kCoreFirst);
  OUTGRAD_CLAIM(y_hi, kYHi);
  OUTGRAD_CLAIM(y_lo, kYLo);
  OUTGRAD_CLAIM(t_min, kTMin);
  OUTGRAD_CLAIM(s_min, kSMin);
  OUTGRAD_CLAIM(y_max, kYMax);
  OUTGRAD_CLAIM(left_y, kLeftY);
  OUTGRAD_CLAIM(right_s, kRightS);
  OUTGRAD_CLAIM(x_star, kXStar);
  OUTGRAD_CLAIM(x_min, kXMin);
  OUTGRAD_CLAIM(x_max, kXMax);
  OUTGRAD_CLAIM(a, kA);
  OUTGRAD_CLAIM(k, kK);
  OUTGRAD_CLAIM(b, kB);
  OUTGRAD_CLAIM(ab, kAB);
  OUTGRAD_CLAIM(t, kT);
  OUTGRAD_CLAIM(o, kO);
  OUTGRAD_CLAIM(r, kR);
  OUTGRAD_CLAIM(ulp, kUlp);
  OUTGRAD_CLAIM(ulp_from, kUlpFrom);
  OUTGRAD_CLAIM(core_a, kCoreA);
  OUTGRAD_CLAIM(product, kProduct);
  OUTGRAD_CLAIM(relative, kRelative);
  OUTGRAD_CLAIM(absolute, kAbsolute);
  OUTGRAD_CLAIM(fit, kFit);
  OUTGRAD_CLAIM(lo, kLo);
  OUTGRAD_CLAIM(hi, kHi);
  OUTGRAD_CLAIM(g, kG);
  OUTGRAD_CLAIM(exact[0], kT1);
  OUTGRAD_CLAIM(exact[1], kT2);
  OUTGRAD_CLAIM(exact[2], kT3);
  OUTGRAD_CLAIM(exact[3], kT4);
  OUTGRAD_CLAIM(exact[4], kT5);
  OUTGRAD_CLAIM(exact[5], kT6);
  OUTGRAD_CLAIM(exact[6], kT7);
  OUTGRAD_CLAIM(exact[7], kT8);
  OUTGRAD_CLAIM(dithered[0], kDithered2);
  OUTGRAD_CLAIM(dithered[1], kDithered3);
  OUTGRAD_CLAIM(bias, kBias);
  OUTGRAD_CLAIM(code, kCode);
  OUTGRAD_CLAIM(room, kRoom);
  OUTGRAD_CLAIM(least_at, kLeastAt);
  OUTGRAD_CLAIM(greatest_at, kGreatestAt);
  OUTGRAD_CLAIM(e4m3.least, kE4m3Least);
  OUTGRAD_CLAIM(e4m3.most, kE4m3Most);
  OUTGRAD_CLAIM(e4m3.total[0], kE4m3T0);
  OUTGRAD_CLAIM(e4m3.total[1], kE4m3T1);
  OUTGRAD_CLAIM(e4m3.total[2], kE4m3T2);
  OUTGRAD_CLAIM(e5m2.least, kE5m2Least);
  OUTGRAD_CLAIM(e5m2.most, kE5m2Most);
  OUTGRAD_CLAIM(e5m2.total[0], kE5m2T0);
  OUTGRAD_CLAIM(e5m2.total[1], kE5m2T1);
  OUTGRAD_CLAIM(e5m2.total[2], kE5m2T2);
  OUTGRAD_CLAIM(int8.least, kInt8Least);
  OUTGRAD_CLAIM(int8.most, kInt8Most);
  OUTGRAD_CLAIM(int8.total[0], kInt8T0);
  OUTGRAD_CLAIM(int8.total[1], kInt8T1);
  OUTGRAD_CLAIM(int8.total[2], kInt8T2);
  OUTGRAD_CLAIM(mxfp4.least, kMxfp4Least);
  OUTGRAD_CLAIM(mxfp4.most, kMxfp4Most);
  OUTGRAD_CLAIM(mxfp4.total[0], kMxfp4T0);
  OUTGRAD_CLAIM(mxfp4.total[1], kMxfp4T1);
  OUTGRAD_CLAIM(mxfp4.total[2], kMxfp4T2);
  OUTGRAD_CLAIM(nvfp4.least, kNvfp4Least);
  OUTGRAD_CLAIM(nvfp4.most, kNvfp4Most);
  OUTGRAD_CLAIM(nvfp4.total[0], kNvfp4T0);
  OUTGRAD_CLAIM(nvfp4.total[1], kNvfp4T1);
  OUTGRAD_CLAIM(nvfp4.total[2], kNvfp4T2);
  OUTGRAD_CLAIM(sign[0], kSignT0);
  OUTGRAD_CLAIM(sign[1], kSignT1);
  OUTGRAD_CLAIM(sign[2], kSignT2);
#undef OUTGRAD_CLAIM
}

template <class Y, class Fit, class Tables>
float direct_value(const Tables& table, const Point& point) {
  const float one = 1;
  const Y y{static_cast<typename k::Format<Y>::Bits>(point.code)};
  return k::activation_backward_value<Fit>(k::FloatOps{}, table, &one, &y, point.m);
}

// Both traces of one point; evaluate(ops) runs the header.
template <class Evaluate>
void trace(TracedOps ops, Outcome& outcome, Evaluate&& evaluate) {
  const Traced deployed = evaluate(ops);
  outcome.rounding = static_cast<double>(__builtin_fabsl(deployed.v - deployed.exact));
  outcome.operations = ops.operations;
  ops.at_truth = true;
  outcome.star = evaluate(ops).exact;
  outcome.row = ops.last_row;
}

// The true root, except at the ends of the rows in s, which the header's own constants decide. Arguments
// beyond kYMax are clamped. Next to the left segment, the true root may lie an ulp beyond the last one that
// chooses a row.
template <class Fit>
void set_root(TracedOps& ops, const Point& point) {
  ops.root = point.root, ops.row_root = static_cast<float>(point.root);
  if constexpr (requires { Fit::kYHi; }) {
    const float clamped = k::evaluate_coordinate(k::FloatOps{}, Fit{}, Fit::kYMax, true);
    if (ops.root > clamped) ops.root = ops.row_root = clamped;
    if constexpr (requires { Fit::kLeftY; }) {
      const float last = -k::evaluate_coordinate(k::FloatOps{}, Fit{}, Fit::kLeftY, false);
      if (!point.m && ops.row_root > last) ops.row_root = last;
    }
  }
}

template <class Fit>
void probe(const Point* points, std::size_t count, Outcome* outcomes) {
  for (std::size_t i = 0; i < count; ++i) {
    const Point& point = points[i];
    Outcome& outcome = outcomes[i];
    outcome = Outcome{};
    TracedOps ops;
    const Traced at{point.at, point.at};
    if constexpr (requires { Fit::kBias; } || requires { Fit::kCode; }) {
      // A header of codes or of 8-bit y has no arithmetic of its own: what it claims is judged with the
      // library's kernels.
    } else if constexpr (k::kIsDirect<Fit>) {
      static constexpr auto kTable = k::table_of<Fit>();
      if constexpr (k::same_text(Fit::kFormat, "f16")) {
        outcome.got = direct_value<k::F16, Fit>(kTable, point);
      } else if constexpr (k::same_text(Fit::kFormat, "bf16")) {
        outcome.got = direct_value<k::BF16, Fit>(kTable, point);
      } else if constexpr (k::same_text(Fit::kFormat, "e5m2")) {
        outcome.got = direct_value<k::F8E5M2, Fit>(kTable, point);
      } else {
        outcome.got = direct_value<k::F8E4M3, Fit>(kTable, point);
      }
    } else if constexpr (k::kIsRoundedForward<Fit>) {
      static constexpr auto kTable = k::forward_tables<Fit>();
      outcome.got = k::evaluate_forward(k::FloatOps{}, Fit{}, kTable, point.at);
      if constexpr (k::kHasMask<Fit>) outcome.bit = k::evaluate_mask(k::FloatOps{}, Fit{}, point.at);
      if constexpr (requires { Fit::kTie; }) ops.tie = Fit::kTie;
      if constexpr (requires { Fit::kPull; }) ops.pull = -Fit::kPull;
      if (point.traced)
        trace(ops, outcome,
              [&](const TracedOps& traced) { return k::evaluate_forward(traced, Fit{}, kTable, at); });
    } else if constexpr (requires { Fit::kXMin; }) {
      static constexpr auto kTables = k::forward_tables<Fit>();
      outcome.got = k::fitted_forward_value<float>(k::FloatOps{}, Fit{}, kTables, point.at);
      if constexpr (k::kHasMask<Fit>) outcome.bit = k::evaluate_mask(k::FloatOps{}, Fit{}, point.at);
      if (point.traced)
        trace(ops, outcome, [&](const TracedOps& traced) {
          return k::fitted_forward_value<float>(traced, Fit{}, kTables, at);
        });
    } else {
      static constexpr auto kTable = k::table_of<Fit>();
      const float one = 1;
      outcome.got = k::activation_backward_value<Fit>(k::FloatOps{}, kTable, &one, &point.at, point.m);
      set_root<Fit>(ops, point);
      if (point.traced)
        trace(ops, outcome, [&](const TracedOps& traced) {
          return k::evaluate_backward(traced, Fit{}, kTable, at, point.m);
        });
    }
  }
}

}  // namespace outgrad::validation::gate

// All other symbols are hidden: a symbol that other libraries could share would keep this library loaded.
#define OUTGRAD_ATTACK_PROBE(number, Fit)                                                        \
  extern "C" __attribute__((visibility("default"))) void outgrad_attack_claims_##number(         \
      outgrad::validation::gate::Claims* claims) {                                               \
    outgrad::validation::gate::claims_of<outgrad::kernels::generated::Fit>(claims);              \
  }                                                                                              \
  extern "C" __attribute__((visibility("default"))) void outgrad_attack_probe_##number(          \
      const outgrad::validation::gate::Point* points, std::size_t count,                         \
      outgrad::validation::gate::Outcome* outcomes) {                                            \
    outgrad::validation::gate::probe<outgrad::kernels::generated::Fit>(points, count, outcomes); \
  }
