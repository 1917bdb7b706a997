// Valid headers made on the spot, so that the checker's tests depend neither on the fitter nor on committed
// coefficients.
//
// Rows interpolate g at Chebyshev points and are rounded to fp32; A, K and B are measured: largest error on a
// dense grid plus 1%, from closed forms in 113 bits that share nothing with validation/.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "validation/certificate/deployed.h"
#include "validation/certificate/header_reader.h"
#include "validation/certificate/storage_bound.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {

/// What stands in kernels/generated/.
template <class H = BackwardHeader>
H committed(const std::string& name) {
  return std::get<H>(read_header(OUTGRAD_SOURCE_DIR "/kernels/generated/" + name + ".h"));
}

using Quad = _Float128;

/// One activation in closed form.
struct ReferenceFunction {
  std::string name, function;
  bool masked;
  Quad (*f)(Quad x);
  Quad (*d1)(Quad x);
};

namespace reference {
inline const Quad kRootOf2 = sqrtf128(2), kRootOf2Pi = sqrtf128(2 * acosf128(-1)),
                  kRootOf2ByPi = sqrtf128(2 / acosf128(-1));
inline const Quad kCubic = Quad(44715) / 1000000;
inline Quad sigmoid(Quad x) { return 1 / (1 + expf128(-x)); }
inline Quad sech2(Quad x) {
  const Quad t = tanhf128(x);
  return 1 - t * t;
}
inline Quad cdf(Quad x) { return erfcf128(-x / kRootOf2) / 2; }
inline Quad softplus(Quad x) { return log1pf128(expf128(x)); }
inline Quad tanh_argument(Quad x) { return kRootOf2ByPi * (x + kCubic * x * x * x); }
inline Quad tanh_slope(Quad x) { return kRootOf2ByPi * (1 + 3 * kCubic * x * x); }
}  // namespace reference

/// Those of the known activations that the tests use.
inline const ReferenceFunction& reference_function(const std::string& name) {
  using namespace reference;
  static const ReferenceFunction functions[] = {
      {"gelu", "x*normal_cdf(x)", true, [](Quad x) -> Quad { return x * cdf(x); },
       [](Quad x) -> Quad { return cdf(x) + x * expf128(-x * x / 2) / kRootOf2Pi; }},
      {"gelu_tanh", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", true,
       [](Quad x) -> Quad { return x * sigmoid(2 * tanh_argument(x)); },
       [](Quad x) -> Quad {
         const Quad u = 2 * tanh_argument(x);
         return sigmoid(u) * (1 + x * 2 * tanh_slope(x) * sigmoid(-u));
       }},
      {"quick_gelu", "x*sigmoid(1.702*x)", true, [](Quad x) -> Quad { return x * sigmoid(x * 1702 / 1000); },
       [](Quad x) -> Quad {
         return sigmoid(x * 1702 / 1000) * (1 + x * 1702 / 1000 * sigmoid(-x * 1702 / 1000));
       }},
      {"silu", "x*sigmoid(x)", true, [](Quad x) -> Quad { return x * sigmoid(x); },
       [](Quad x) -> Quad { return sigmoid(x) * (1 + x * sigmoid(-x)); }},
      {"swish", "x*sigmoid(0.75*x)", true, [](Quad x) -> Quad { return x * sigmoid(x * 3 / 4); },
       [](Quad x) -> Quad { return sigmoid(x * 3 / 4) * (1 + x * 3 / 4 * sigmoid(-x * 3 / 4)); }},
      {"mish", "x*tanh(softplus(x))", true, [](Quad x) -> Quad { return x * tanhf128(softplus(x)); },
       [](Quad x) -> Quad { return tanhf128(softplus(x)) + x * sech2(softplus(x)) * sigmoid(x); }},
      {"tanh", "tanh(x)", false, [](Quad x) -> Quad { return tanhf128(x); },
       [](Quad x) -> Quad { return sech2(x); }},
      {"sigmoid", "sigmoid(x)", false, [](Quad x) -> Quad { return sigmoid(x); },
       [](Quad x) -> Quad { return sigmoid(x) * sigmoid(-x); }},
      {"softplus", "softplus(x)", false, [](Quad x) -> Quad { return softplus(x); },
       [](Quad x) -> Quad { return sigmoid(x); }},
      {"elu", "1.5*(exp(x)-1)", false, [](Quad x) -> Quad { return x < 0 ? expm1f128(x) * 3 / 2 : x; },
       [](Quad x) -> Quad { return x < 0 ? expf128(x) * 3 / 2 : Quad(1); }},
      {"expression", "x*tanh(log(1+exp(x)))", true, [](Quad x) -> Quad { return x * tanhf128(softplus(x)); },
       [](Quad x) -> Quad { return tanhf128(softplus(x)) + x * sech2(softplus(x)) * sigmoid(x); }},
  };
  for (const ReferenceFunction& f : functions) {
    if (f.name == name) return f;
  }
  throw std::invalid_argument(name);
}

/// One point of the curve: x, s(x), f(x), f'(x), each within a few 2^-53; s only where there is a minimum.
struct CurvePoint {
  double x, s, y, g;
};

class Curve {
 public:
  explicit Curve(const ReferenceFunction& f) : f_(f) {
    Quad low = -8, high = 0;
    for (int step = 0; f.masked && step < 120; ++step) {
      const Quad middle = (low + high) / 2;
      (f.d1(middle) < 0 ? low : high) = middle;
    }
    x_star_ = low, y_star_ = f.f(x_star_);
  }

  CurvePoint at(double x) const {
    const Quad y = f_.f(x), t = y - y_star_, root = sqrtf128(t > 0 ? t : Quad(0));
    return {x, static_cast<double>(x < x_star_ ? -root : root), static_cast<double>(y),
            static_cast<double>(f_.d1(x))};
  }
  double y_star() const { return static_cast<double>(y_star_); }
  bool right_of_minimum(double x) const { return !(x < x_star_); }

 private:
  const ReferenceFunction& f_;
  Quad x_star_ = 0, y_star_ = 0;
};

/// Made once: finding a minimum to so many digits takes longer than a cell's points.
inline const Curve& curve_of(const std::string& name) {
  static std::map<std::string, Curve> made;
  return made.try_emplace(name, reference_function(name)).first->second;
}

inline const Activation& activation_of(const BackwardHeader& h) {
  return activation_of(h.activation, h.function, h.masked);
}

/// x where a cell's coordinate is v; only to place points, and infinite in the tails.
inline Interval argument_of(const BackwardHeader& h, const Cell& cell, double v) {
  const Activation& activation = activation_of(h);
  if (!h.masked)
    return v < 0 || activation.formulas().size() == 1 ? activation.formulas().front().inverse(v)
                                                      : activation.formulas().back().inverse(v);
  if (cell.left) return activation.inverse_signed_root(-sqrt(Interval(v) - activation.y_star()));
  return activation.inverse_signed_root(v);
}

/// Points whose coordinate lies strictly within a cell, dense and with both ends nearly reached.
inline std::vector<CurvePoint> points_of_cell(const BackwardHeader& h, const Cell& cell, int count) {
  const Curve& curve = curve_of(h.activation);
  const double reach = h.activation == "gelu" ? 12 : 40;
  const auto within = [&](double x, double otherwise) {
    return std::isfinite(x) && std::fabs(x) < reach ? x : otherwise;
  };
  double a = argument_of(h, cell, cell.low).middle(), b = argument_of(h, cell, cell.high).middle();
  if (cell.left) std::swap(a, b);
  a = within(a, -reach), b = within(b, reach);
  std::vector<CurvePoint> points;
  for (int i = 0; i <= count; ++i) {
    const CurvePoint p = curve.at(a + (b - a) * (0.5 - 0.5 * std::cos(std::numbers::pi * i / count)));
    const double v = cell.left || !h.masked ? p.y : p.s;
    if (v >= cell.low && v <= cell.high) points.push_back(p);
  }
  return points;
}

/// |p(v) - g| in double.
inline double error_at(const BackwardHeader& h, const Cell& cell, const CurvePoint& point) {
  const auto row = h.table.row(cell.row);
  const double u = (cell.evaluated == Coordinate::root ? point.s : point.y) - (h.centred ? row[0] : 0.0f);
  double p = 0;
  for (int word = h.degree + 1; word >= 1; --word) p = p * u + row[word];
  return std::fabs(p - point.g);
}

inline double largest_error(const BackwardHeader& h, const Cell& cell,
                            const std::vector<CurvePoint>& points) {
  double largest = 0;
  for (const CurvePoint& point : points) largest = std::max(largest, error_at(h, cell, point));
  return largest;
}

/// Fills a row with the polynomial about `centre` that interpolates g at Chebyshev points; c0 is pinned where
/// `pinned` is finite.
inline void fit_row(BackwardHeader& h, const Cell& cell, float centre, float pinned) {
  const bool free_c0 = !std::isfinite(pinned);
  const int unknowns = h.degree + (free_c0 ? 1 : 0);
  const Activation& activation = activation_of(h);
  if (!h.centred) centre = 0;
  std::vector<double> u, divided;
  for (int i = 0; i < unknowns; ++i) {
    const double middle = 0.5 * (static_cast<double>(cell.low) + cell.high),
                 radius = 0.5 * (static_cast<double>(cell.high) - cell.low);
    const double v = middle + radius * std::cos(std::numbers::pi * (i + 0.5) / unknowns);
    const Interval x = argument_of(h, cell, v);
    const Formula& formula = v < 0 ? activation.formulas().front() : activation.formulas().back();
    const double g = (std::isfinite(x.magnitude()) ? formula.f.at<1>(x)[1]
                      : x.upper() < 0              ? formula.low_slopes
                                                   : formula.high_slopes)
                         .middle();
    const double argument =
        cell.evaluated == Coordinate::output && h.masked ? activation.only().f.at<0>(x)[0].middle() : v;
    u.push_back(argument - centre);
    divided.push_back(free_c0 ? g : (g - pinned) / u.back());
  }
  for (int order = 1; order < unknowns; ++order) {
    for (int i = unknowns - 1; i >= order; --i)
      divided[i] = (divided[i] - divided[i - 1]) / (u[i] - u[i - order]);
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

/// What a sample is to have. Without a left segment all rows are in s (y); with one, half of them are for y >
/// -1/8 in octaves.
struct SampleShape {
  std::string activation = "gelu", format = "bf16";
  int degree = 6, rows = 16;
  bool has_left = false;
  int scheme = kHorner;
  bool centred = true, has_breaks = false, has_right = false;
  double bound_b = 0x1p-20;  // above the truth; wide cells need more
};

inline int operations_of(const BackwardHeader& h) {
  const int powers = h.scheme == kEstrin    ? (h.degree < 2   ? 0
                                               : h.degree < 4 ? 1
                                               : h.degree < 8 ? 2
                                                              : 3)
                     : h.scheme == kEvenOdd ? 1
                                            : 0;
  return h.degree + powers + (h.centred ? 1 : 0) + (h.has_breaks ? 0 : 1) +
         (!h.masked     ? 0
          : h.y_lo == 0 ? 1
                        : 2);
}

inline BackwardHeader make_sample(const SampleShape& shape) {
  BackwardHeader h;
  const ReferenceFunction& f = reference_function(shape.activation);
  const Curve& curve = curve_of(shape.activation);
  const std::string& format = shape.format;
  const int degree = shape.degree, rows = shape.rows;
  h.file = "sample.h", h.fit_path = "sample.json", h.spec_sha256 = std::string(64, '0'),
  h.name = "sample_" + format, h.activation = f.name, h.function = f.function, h.format = format;
  h.accuracy = "abs:1";
  if (h.activation == "expression") h.x_limit = kExpressionEnd;
  h.degree = degree, h.rows = rows, h.has_left = shape.has_left, h.scheme = shape.scheme,
  h.centred = shape.centred, h.has_breaks = shape.has_breaks;
  h.has_right = shape.has_right, h.masked = f.masked, h.exact_limits = shape.centred;
  const double y_star_value = curve.y_star();
  // Where f' is near its limit.
  double x_end = 2;
  const double limit = curve.at(60).g;
  while (std::fabs(curve.at(x_end).g - limit) > (format == "f32" ? 1e-6 : 1e-4) && x_end < 30) x_end += 0.25;
  h.y_max =
      h.activation == "tanh" || h.activation == "sigmoid" ? 1.0f : static_cast<float>(curve.at(x_end).y);
  h.table = {rows, degree + 2, std::vector<float>(static_cast<size_t>(rows) * (degree + 2)), {}};
  int s_rows = rows;
  float low;
  if (h.masked) {
    h.y_hi = static_cast<float>(y_star_value);
    h.y_lo = format == "f32" ? static_cast<float>(y_star_value - h.y_hi) : 0.0f;
    h.t_min = format == "f32" ? 0x1p-27f : 0x1p-13f;  // above the first stored y, so that the floor acts
    h.s_min = -std::sqrt(0.0f - h.y_hi);
    s_rows = shape.has_left ? rows / 2 : rows;
    if (shape.has_left) {
      h.left_y = -0.125f;
      h.left_row = s_rows;
      h.left_knee = 2 * 123;  // 2^-4: the last octave is halved
      h.left_base = 2 * 123 + 1 - (rows - s_rows - 1);  // the outer half octave has the last row
    }
    low = shape.has_left ? deployed_s(h, h.left_y, false) : h.s_min;
  } else {
    h.y_min = h.activation == "tanh" ? -1.0f : h.activation == "elu" ? -1.5f : 0.0f;
    low = h.y_min;
  }
  const float high = deployed_s(h, h.y_max, true);
  // The leftmost centre is the lowest number, the rightmost the highest.
  const int left_cells = static_cast<int>(std::lround(-low / (high - low) * static_cast<float>(s_rows - 1)));
  const float width = std::max(-low / (static_cast<float>(left_cells) + 0.4f),
                               high / (static_cast<float>(s_rows - 1 - left_cells) + 0.4f));
  if (h.has_breaks) {
    for (int k = 1; k < rows; ++k)
      h.breaks.push_back(k == 1 && h.activation == "elu"
                             ? 0.0f
                             : low + (high - low) * static_cast<float>(k) / static_cast<float>(rows));
  } else {
    h.index_scale = 1 / width;
    // the low bits count, and below 2^23 an ulp would be 1/2
    h.index_bias = 0x1p23f + static_cast<float>(rows + left_cells);
  }
  if (h.has_right)
    h.right_s = h.has_breaks ? h.breaks[static_cast<size_t>(rows) * 3 / 4]
                             : static_cast<float>((0.5 + std::floor(1.0 / width)) * width);
  h.operations = operations_of(h);

  constexpr float kFree = std::numeric_limits<float>::quiet_NaN();
  const float low_limit = 0.0f, high_limit = static_cast<float>(std::nearbyint(limit));
  for (const Cell& cell : backward_cells(h)) {
    const bool pinned = h.centred && !(rows == 1);
    if (!cell.left && cell.high == high && pinned) {
      fit_row(h, cell, cell.evaluated == Coordinate::output ? h.y_max : high, high_limit);
    } else if (!cell.left && !h.has_left && cell.low == low && pinned) {
      fit_row(h, cell, low, low_limit);
    } else if (cell.left && cell.high == 0 && pinned) {
      fit_row(h, cell, 0.0f, 0.0f);
    } else {
      const double middle = argument_of(h, cell, 0.5 * (cell.low + cell.high)).middle();
      fit_row(h, cell,
              cell.evaluated == Coordinate::output && h.masked ? static_cast<float>(curve.at(middle).y)
                                                               : 0.5f * (cell.low + cell.high),
              kFree);
    }
    h.bound_a = std::max(h.bound_a, 1.01 * largest_error(h, cell, points_of_cell(h, cell, 200)));
    // What the first and the last row say where they stand for a tail.
    const auto row = h.table.row(cell.row);
    const auto at = [&](double v) {
      double p = 0;
      for (int word = h.degree + 1; word >= 1; --word) p = p * (v - (h.centred ? row[0] : 0.0f)) + row[word];
      return p;
    };
    if (!cell.left && cell.high == high) {
      const double end = at(cell.evaluated == Coordinate::output ? h.y_max : high);
      h.bound_a = std::max({h.bound_a, 1.01 * std::fabs(end - limit),
                            1.01 * std::fabs(end - curve.at(argument_of(h, cell, cell.high).lower()).g)});
    }
    if (!cell.left && !h.has_left && cell.low == low)
      h.bound_a = std::max(h.bound_a, 1.01 * std::fabs(at(low)));
    if (cell.left && cell.high == 0) h.bound_a = std::max(h.bound_a, 1.01 * std::fabs(at(0)));
  }
  h.bound_a += 0x1p-60;  // a row may be g itself
  h.table.log2_fit_errors.assign(static_cast<size_t>(rows), std::ceil(std::log2(h.bound_a) * 100) / 100);
  if (h.masked) {
    // The stored y next to y*, RN(y*) first, move g most; what is stored below y* stands for s = 0.
    const double grid = std::ldexp(1.0, std::ilogb(y_star_value) - (format == "f32"   ? 23
                                                                    : format == "f16" ? 10
                                                                                      : 7));
    const Activation& activation = activation_of(h);
    const auto g_at = [&](const Interval& s) {
      return activation.only().f.at<1>(activation.inverse_signed_root(s))[1].middle();
    };
    for (int j = 0; j < 20; ++j) {
      const double y = (std::nearbyint(y_star_value / grid) + j) * grid,
                   t = std::max(y - h.y_hi - h.y_lo, static_cast<double>(h.t_min));
      for (const double sign : {1.0, -1.0}) {
        const double moved = g_at(sign * std::sqrt(t));
        const double still = y < y_star_value ? 0.0 : g_at(sqrt(Interval(y) - activation.y_star()) * sign);
        h.bound_k = std::max(h.bound_k, 1.01 * std::fabs(moved - still));
      }
    }
  }
  h.bound_b = shape.bound_b;
  if (h.format == "f32") h.bound_ab = h.bound_a + h.bound_b;
  if (format != "f32") {
    // Claims as the fitter makes them: what enumeration gives, rounded up a little. Their truth is
    // storage_bound_test's subject.
    const std::vector<Finding> proven = prove_storage(h);
    h.storage = {proven[0].proven * (1 + 0x1p-30), proven[1].proven * (1 + 0x1p-30),
                 proven[2].proven * (1 + 0x1p-30)};
  }
  return h;
}

/// GELU, all other choices as they used to be.
inline BackwardHeader make_sample(const std::string& format, int degree, int rows, bool has_left) {
  SampleShape shape;
  shape.format = format, shape.degree = degree, shape.rows = rows, shape.has_left = has_left;
  return make_sample(shape);
}

}  // namespace outgrad::validation
