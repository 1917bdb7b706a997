// Valid headers made on the spot, so that the checker's tests depend neither on the fitter nor on committed coefficients.
//
// Rows interpolate g at Chebyshev points and are rounded to fp32; the claims are measured: largest error on a dense grid plus 1%.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "validation/deployed.h"
#include "validation/gelu_interval.h"
#include "validation/header_reader.h"
#include "validation/oracle.h"

namespace outgrad::validation {

/// One point of the curve: x, s(x), f(x), f'(x), each within a few 2^-53, from the oracle alone.
struct CurvePoint {
  double x, s, y, g;
};

class Curve {
 public:
  CurvePoint at(double x) {
    // f is flat at x*, so x* to 2^-52 gives y* to 2^-104.
    constexpr double kXStar = -0.75179152469356447;
    oracle_.enclose_value(kXStar, low_, high_);
    mpfr_set(minimum_.get(), low_.get(), MPFR_RNDN);
    oracle_.enclose_value(x, low_, high_);
    const double y = mpfr_get_d(low_.get(), MPFR_RNDN);
    mpfr_sub(low_.get(), low_.get(), minimum_.get(), MPFR_RNDN);
    if (mpfr_sgn(low_.get()) < 0) mpfr_set_zero(low_.get(), 1);
    mpfr_sqrt(low_.get(), low_.get(), MPFR_RNDN);
    const double s = mpfr_get_d(low_.get(), MPFR_RNDN);
    return {x, x < kXStar ? -s : s, y, oracle_.derivative(x)};
  }

 private:
  GeluOracle oracle_;
  Real low_{200}, high_{200}, minimum_{200};
};

/// Points whose coordinate lies strictly within a cell, dense and with both ends nearly reached.
inline std::vector<CurvePoint> points_of_cell(const Cell& cell, int count) {
  Curve curve;
  const auto argument = [&](double v) { return cell.left ? inverse_signed_root(-sqrt(Interval(v) - y_star())) : inverse_signed_root(v); };
  constexpr double kFarLeft = -12;
  double a = cell.left ? argument(cell.high).upper() : argument(cell.low).upper();
  double b = cell.left ? argument(cell.low).lower() : argument(cell.high).lower();
  if (!(a > kFarLeft)) a = kFarLeft;
  std::vector<CurvePoint> points;
  for (int i = 0; i <= count; ++i) {
    const CurvePoint p = curve.at(a + (b - a) * (0.5 - 0.5 * std::cos(std::numbers::pi * i / count)));
    const double v = cell.left ? p.y : p.s;
    if (v >= cell.low && v <= cell.high) points.push_back(p);
  }
  return points;
}

/// |p(v) - g| in double.
inline double error_at(const BackwardHeader& h, const Cell& cell, const CurvePoint& point) {
  const auto row = h.table.row(cell.row);
  const double u = (cell.left ? point.y : point.s) - row[0];
  double p = 0;
  for (int word = h.degree + 1; word >= 1; --word) p = p * u + row[word];
  return std::fabs(p - point.g);
}

inline double largest_error(const BackwardHeader& h, const Cell& cell, const std::vector<CurvePoint>& points) {
  double largest = 0;
  for (const CurvePoint& point : points) largest = std::max(largest, error_at(h, cell, point));
  return largest;
}

/// Fills a row with the polynomial about `centre` that interpolates g at Chebyshev points; c0 is pinned where `pinned` is finite.
inline void fit_row(BackwardHeader& h, const Cell& cell, float centre, float pinned) {
  const bool free_c0 = !std::isfinite(pinned);
  const int unknowns = h.degree + (free_c0 ? 1 : 0);
  std::vector<double> u, divided;
  for (int i = 0; i < unknowns; ++i) {
    const double middle = 0.5 * (static_cast<double>(cell.low) + cell.high), radius = 0.5 * (static_cast<double>(cell.high) - cell.low);
    const double v = middle + radius * std::cos(std::numbers::pi * (i + 0.5) / unknowns);
    const Interval root = cell.left ? -sqrt(Interval(v) - y_star()) : Interval(v);
    u.push_back(v - centre);
    const double g = certainly_less(s_infimum(), root) ? gelu_d1(inverse_signed_root(root)).middle() : 0.0;
    divided.push_back(free_c0 ? g : (g - pinned) / u.back());
  }
  for (int order = 1; order < unknowns; ++order) {
    for (int i = unknowns - 1; i >= order; --i) divided[i] = (divided[i] - divided[i - 1]) / (u[i] - u[i - order]);
  }
  // Newton's form, expanded from the innermost factor outwards.
  std::vector<double> c(unknowns, 0.0);
  for (int i = unknowns - 1; i >= 0; --i) {
    for (int k = unknowns - 1; k >= 1; --k) c[k] = c[k - 1] - u[i] * c[k];
    c[0] = divided[i] - u[i] * c[0];
  }
  auto row = h.table.row(cell.row);
  row[0] = centre;
  if (!free_c0) row[1] = pinned;
  for (int k = 0; k < unknowns; ++k) row[(free_c0 ? 1 : 2) + k] = static_cast<float>(c[k]);
}

/// A header of `rows` rows for one format: s alone, or half of the rows for the left segment y > -1/8 in octaves.
inline BackwardHeader make_sample(const std::string& format, int degree, int rows, bool has_left) {
  BackwardHeader h;
  h.file = "sample.h", h.struct_name = "Sample", h.name = "sample_" + format, h.activation = "gelu", h.format = format;
  h.degree = degree, h.rows = rows, h.has_left = has_left;
  const double y_star_value = y_star().middle();
  h.y_hi = static_cast<float>(y_star_value);
  h.y_lo = format == "f32" ? static_cast<float>(y_star_value - h.y_hi) : 0.0f;
  h.operations = degree + (h.y_lo == 0 ? 3 : 4);
  h.t_min = format == "f32" ? 0x1p-27f : 0x1p-13f;  // above the first stored y, so that the floor acts
  h.s_max = 2.3f;
  const int s_rows = has_left ? rows / 2 : rows;
  if (has_left) {
    h.left_y = -0.125f;
    h.left_row = s_rows;
    h.left_knee = 2 * 123;  // 2^-4: the last octave is halved
    h.left_base = 2 * 123 + 1 - (rows - s_rows - 1);  // the outer half octave has the last row
    h.s_min = deployed_s(h, h.left_y, false);
  } else {
    h.s_min = -std::sqrt(0.0f - h.y_hi);
  }
  // The leftmost centre is s_min, the rightmost s_max.
  const int left_cells = static_cast<int>(std::lround(-h.s_min / (h.s_max - h.s_min) * static_cast<float>(s_rows - 1)));
  const float width = std::max(-h.s_min / (static_cast<float>(left_cells) + 0.4f), h.s_max / (static_cast<float>(s_rows - 1 - left_cells) + 0.4f));
  h.index_scale = 1 / width;
  h.index_bias = 0x1p23f + static_cast<float>(rows + left_cells);  // the low bits count, and below 2^23 an ulp would be 1/2
  h.table = {rows, degree + 2, std::vector<float>(static_cast<size_t>(rows) * (degree + 2))};

  constexpr float kFree = std::numeric_limits<float>::quiet_NaN();
  for (const Cell& cell : backward_cells(h)) {
    if (!cell.left && cell.high == h.s_max) {
      fit_row(h, cell, h.s_max, 1.0f);
    } else if (!cell.left && !has_left && cell.low == h.s_min) {
      fit_row(h, cell, h.s_min, 0.0f);
    } else if (cell.left && cell.high == 0) {
      fit_row(h, cell, 0.0f, 0.0f);
    } else {
      fit_row(h, cell, 0.5f * (cell.low + cell.high), kFree);
    }
    h.bound_a = std::max(h.bound_a, 1.01 * largest_error(h, cell, points_of_cell(cell, 200)));
  }
  // |g(s_max) - 1| stands for the right tail, and the sample keeps clear of it.
  h.bound_a = std::max(h.bound_a, 1.01 * std::fabs(Curve().at(inverse_signed_root(static_cast<double>(h.s_max)).middle()).g - 1));
  // The stored y next to y*, RN(y*) first, move g most; what is stored below y* stands for s = 0.
  const double grid = format == "f32" ? 0x1p-26 : format == "f16" ? 0x1p-13 : 0x1p-10;
  for (int j = 0; j < 20; ++j) {
    const double y = (std::nearbyint(y_star_value / grid) + j) * grid, t = std::max(y - h.y_hi - h.y_lo, static_cast<double>(h.t_min));
    for (const double sign : {1.0, -1.0}) {
      const double moved = gelu_d1(inverse_signed_root(sign * std::sqrt(t))).middle();
      const double still = y < y_star_value ? 0.0 : gelu_d1(inverse_signed_root(sqrt(Interval(y) - y_star()) * sign)).middle();
      h.bound_k = std::max(h.bound_k, 1.01 * std::fabs(moved - still));
    }
  }
  h.bound_b = 0x1p-20;
  return h;
}

/// The header's text as the emitter writes it.
inline std::string header_text(const BackwardHeader& h) {
  std::string t = "// GENERATED by outgrad emit. DO NOT EDIT.\n// command: ./outgrad emit sample.json\n// spec sha256: 00\n#pragma once\n\n";
  t += fmt::format("#include \"kernels/table.h\"\n\nnamespace outgrad::kernels::generated {{\n\nstruct {} {{\n", h.struct_name);
  const auto text = [&](const char* name, const std::string& v) { t += fmt::format("  static constexpr const char* {} = \"{}\";\n", name, v); };
  const auto integer = [&](const char* name, int v) { t += fmt::format("  static constexpr int {} = {};\n", name, v); };
  const auto real = [&](const char* name, float v) { t += fmt::format("  static constexpr float {} = {:a}f;  // {}\n", name, v, v); };
  const auto bound = [&](const char* name, double v) { t += fmt::format("  static constexpr double {} = {:a};\n", name, v); };
  text("kName", h.name), text("kActivation", h.activation), text("kFormat", h.format);
  integer("kDegree", h.degree), integer("kRows", h.rows), integer("kOperations", h.operations);
  real("kYHi", h.y_hi), real("kYLo", h.y_lo), real("kTMin", h.t_min), real("kSMin", h.s_min), real("kSMax", h.s_max);
  real("kIndexScale", h.index_scale), real("kIndexBias", h.index_bias);
  t += fmt::format("  static constexpr bool kHasLeft = {};\n", h.has_left);
  if (h.has_left) real("kLeftY", h.left_y), integer("kLeftRow", h.left_row), integer("kLeftKnee", h.left_knee), integer("kLeftBase", h.left_base);
  bound("kA", h.bound_a), bound("kK", h.bound_k), bound("kB", h.bound_b);
  t += "  static OUTGRAD_HD constexpr Table<kRows, kDegree + 2> table() {\n    return {{\n";
  for (int row = 0; row < h.table.rows; ++row) {
    std::string words;
    for (const float word : h.table.row(row)) words += fmt::format("{}{:a}f", words.empty() ? "" : ", ", word);
    t += fmt::format("      {{{}}},  // row {}\n", words, row);
  }
  return t + "    }};\n  }\n};\n\n}  // namespace outgrad::kernels::generated\n";
}

}  // namespace outgrad::validation
