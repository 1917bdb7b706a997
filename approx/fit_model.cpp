// Names and shapes of formats, and the evaluator of kernels/eval.h over a scalar that counts.
#include "approx/fit_model.h"

#include "kernels/eval.h"
#include "kernels/host/errors.h"

#include <cmath>
#include <limits>

namespace outgrad::approx {
namespace {

struct Nothing {};

struct CountingOps {
  using Value = Nothing;
  using Mask = Nothing;
  using Row = Nothing;

  Cost& cost;

  [[nodiscard]] Nothing constant(float) const { return {}; }
  [[nodiscard]] Nothing fma(Nothing, Nothing, Nothing) const { return arithmetic(); }
  [[nodiscard]] Nothing sub(Nothing, Nothing) const { return arithmetic(); }
  [[nodiscard]] Nothing mul(Nothing, Nothing) const { return arithmetic(); }
  [[nodiscard]] Nothing sqrt(Nothing) const { return count(cost.roots); }
  [[nodiscard]] Nothing negate(Nothing) const { return {}; }  // a sign bit, taken into the select or the next operation
  [[nodiscard]] Nothing at_least(Nothing, Nothing) const { return count(cost.selects); }
  [[nodiscard]] Nothing at_most(Nothing, Nothing) const { return count(cost.selects); }
  [[nodiscard]] Nothing non_positive(Nothing) const { return count(cost.selects); }
  [[nodiscard]] Nothing select(Nothing, Nothing, Nothing) const { return count(cost.selects); }
  [[nodiscard]] Nothing less(Nothing, Nothing) const { return count(cost.selects); }
  [[nodiscard]] Nothing less_equal(Nothing, Nothing) const { return count(cost.selects); }
  [[nodiscard]] Nothing neither(Nothing, Nothing) const { return count(cost.integer); }
  [[nodiscard]] Nothing first_row() const { return {}; }
  [[nodiscard]] Nothing next_row(Nothing, Nothing) const { return count(cost.integer); }
  [[nodiscard]] Nothing row_index(Nothing, int) const { return count(cost.integer); }
  [[nodiscard]] Nothing octave_row(Nothing, int, int, int, int) const {
    cost.integer += 8;  // shift, and, max, add, shift, subtract, max, add
    return {};
  }
  template <class Table>
  [[nodiscard]] Nothing lookup(const Table&, Nothing, int) const {
    return count(cost.loads);
  }

 private:
  static Nothing count(int& counter) {
    ++counter;
    return {};
  }
  [[nodiscard]] Nothing arithmetic() const { return count(cost.arithmetic); }
};

}  // namespace

const char* to_string_scheme(int scheme) {
  return scheme == kernels::kEstrin ? "estrin" : scheme == kernels::kEvenOdd ? "even_odd" : "horner";
}

const char* to_string(Region r) {
  switch (r) {
    case Region::core: return "core";
    case Region::right: return "right";
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
  kernels::evaluate_backward(CountingOps{cost}, model, Nothing{}, Nothing{}, Nothing{});
  if (model.kRows == 1) cost.loads = 0;  // immediates
  const int words = model.kDegree + 1 + (model.kCentred ? 1 : 0);
  cost.table_bytes = model.kRows == 1 ? 0 : static_cast<int>(sizeof(float)) * model.kRows * words;
  return cost;
}

float deployed_coordinate(const BackwardModel& model, float y, bool m) {
  return kernels::evaluate_coordinate(kernels::FloatOps{}, model, kernels::FloatOps{}.at_most(y, model.kYMax), m);
}

}  // namespace outgrad::approx
