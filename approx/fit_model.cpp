// Names and shapes of formats, and the evaluator of kernels/eval.h over a scalar that counts.
#include "approx/fit_model.h"

#include "kernels/direct.h"
#include "kernels/eval.h"
#include "kernels/host/errors.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace outgrad::approx {
namespace {

/// A value of the counted sequence: how many counted operations stand one behind the other to make it.
struct Chain {
  int depth = 0;
};

struct CountingOps {
  using Value = Chain;
  using Mask = Chain;
  using Row = Chain;

  Cost& cost;
  bool immediate;  ///< one row: its coefficients are constants of the code

  [[nodiscard]] Chain constant(float) const { return {}; }
  [[nodiscard]] Chain fma(Chain a, Chain b, Chain c) const { return count(cost.arithmetic, a, b, c); }
  [[nodiscard]] Chain sub(Chain a, Chain b) const { return count(cost.arithmetic, a, b); }
  [[nodiscard]] Chain mul(Chain a, Chain b) const { return count(cost.arithmetic, a, b); }
  [[nodiscard]] Chain sqrt(Chain a) const { return count(cost.roots, a); }
  [[nodiscard]] Chain negate(Chain a) const { return a; }  // a sign bit, taken into the select or the next operation
  [[nodiscard]] Chain at_least(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain at_most(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain non_positive(Chain a) const { return count(cost.selects, a); }
  [[nodiscard]] Chain select(Chain m, Chain a, Chain b) const { return count(cost.selects, m, a, b); }
  [[nodiscard]] Chain less(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain less_equal(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain neither(Chain a, Chain b) const { return count(cost.integer, a, b); }
  [[nodiscard]] Chain first_row() const { return {}; }
  [[nodiscard]] Chain next_row(Chain row, Chain m) const { return count(cost.integer, row, m); }
  [[nodiscard]] Chain row_index(Chain q, int) const { return count(cost.integer, q); }
  [[nodiscard]] Chain octave_row(Chain z, int, int, int, int, int) const {
    constexpr int kSteps = 8;  // shift, and, max, add, shift, subtract, max, add: each on the one before
    cost.integer += kSteps;
    return {z.depth + kSteps};
  }
  template <class Table>
  [[nodiscard]] Chain lookup(const Table&, Chain row, int) const {
    return immediate ? Chain{} : count(cost.loads, row);
  }

  // Direct tables: operations on codes and places are integer ones, selects among them.
  [[nodiscard]] Chain low_bits(Chain row, int) const { return count(cost.integer, row); }
  [[nodiscard]] Chain above(Chain row, int) const { return count(cost.integer, row); }
  [[nodiscard]] Chain constant_row(int) const { return {}; }
  [[nodiscard]] Chain row_in(Chain row, Chain first, Chain last, Chain shift) const {
    return count(cost.integer, count(cost.integer, count(cost.integer, row, first), last), shift);
  }
  template <class Entry, class Table>
  [[nodiscard]] Chain entry(const Table&, Chain row) const {
    return count(cost.loads, row);
  }

 private:
  static Chain count(int& counter, Chain a, Chain b = {}, Chain c = {}) {
    ++counter;
    return {1 + std::max({a.depth, b.depth, c.depth})};
  }
};

/// What evaluate_direct asks of a header; the numbers do not change what it does.
template <bool kIsMasked>
struct DirectShape {
  static constexpr bool kMasked = kIsMasked;
  static constexpr const char* kEntryFormat = kernels::Format<kernels::F16>::kName;
  int kUpperFirst = 0, kUpperLast = 0, kUpperBase = 0, kLowerFirst = 0, kLowerLast = 0, kLowerBase = 0, kLeftFirst = 0, kLeftLast = 0, kLeftBase = 0;
};

template <bool kMasked>
Cost direct_cost() {
  Cost cost;
  constexpr int kNoTable = 0;
  cost.depth = kernels::evaluate_direct<kernels::F16>(CountingOps{cost, false}, DirectShape<kMasked>{}, kNoTable, Chain{}, Chain{}, Chain{}).depth;
  return cost;
}

}  // namespace

const char* to_string_scheme(int scheme) {
  return scheme == kernels::kEstrin ? "estrin" : scheme == kernels::kEvenOdd ? "even_odd" : "horner";
}

const char* to_string(Region r) {
  switch (r) {
    case Region::core: return "core";
    case Region::right: return "right";
    case Region::right_mirrored: return "right_mirrored";
    case Region::left: return "left";
  }
  return "";
}

const char* to_string(Format f) {
  switch (f) {
    case Format::f32: return "f32";
    case Format::f16: return "f16";
    case Format::bf16: return "bf16";
    case Format::e4m3: return "e4m3";
    case Format::e5m2: return "e5m2";
  }
  return "";
}

Format format_of(const std::string& name) {
  for (const Format f : kFormats) {
    if (name == to_string(f)) return f;
  }
  throw kernels::SpecError("format '" + name + "' is unknown; known: f32, f16, bf16, e4m3, e5m2");
}

FormatShape shape_of(Format f) {
  switch (f) {
    case Format::f32: return {8, 23, true};
    case Format::f16: return {5, 10, true};
    case Format::bf16: return {8, 7, true};
    case Format::e4m3: return {4, 3, false};
    case Format::e5m2: return {5, 2, true};
  }
  return {};
}

int precision_bits(Format f) { return shape_of(f).fraction_bits + 1; }

double decode(Format f, std::uint32_t code) {
  const FormatShape shape = shape_of(f);
  const std::uint32_t fraction = code & ((1U << shape.fraction_bits) - 1), most = (1U << shape.exponent_bits) - 1;
  const std::uint32_t exponent = (code >> shape.fraction_bits) & most;
  const double sign = (code >> (shape.exponent_bits + shape.fraction_bits) & 1U) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (shape.exponent_bits - 1)) - 1;
  if (exponent == most && shape.has_infinity) return fraction == 0 ? sign * INFINITY : std::numeric_limits<double>::quiet_NaN();
  if (exponent == most && fraction == (1U << shape.fraction_bits) - 1) return std::numeric_limits<double>::quiet_NaN();
  const double significand = exponent == 0 ? fraction : fraction + (1U << shape.fraction_bits);
  return sign * std::ldexp(significand, std::max<int>(static_cast<int>(exponent), 1) - bias - shape.fraction_bits);
}

Cost cost_of(const BackwardModel& model) {
  Cost cost;
  constexpr int kNoTable = 0;  // the counting lookup does not look at it
  cost.depth = kernels::evaluate_backward(CountingOps{cost, model.kRows == 1}, model, kNoTable, Chain{}, Chain{}).depth;
  const int words = model.words() - (model.kCentred ? 0 : 1);
  cost.table_bytes = model.kRows == 1 ? 0 : static_cast<int>(sizeof(float)) * model.kRows * words;
  return cost;
}

Cost cost_of_direct(bool masked) { return masked ? direct_cost<true>() : direct_cost<false>(); }

float deployed_coordinate(const BackwardModel& model, float y, bool m) {
  return kernels::evaluate_coordinate(kernels::FloatOps{}, model, kernels::FloatOps{}.at_most(y, model.kYMax), m);
}

}  // namespace outgrad::approx
