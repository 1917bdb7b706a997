// The double reference; reference.h has the derivation and the proof.

#include "validation/exact/reference.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "kernels/support/parallel.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr double kUnit = 0x1p-53;
// Covers second-order terms of the rounding bound, and the rounding of the few double operations that add it
// up.
constexpr double kSecondOrder = 1 + 0x1p-40;
constexpr float kTiny = 0x1p-53f;
constexpr double kFlat = 0x1p-52;       // f' beyond L and R
constexpr double kInvisible = 0x1p-151;  // |f(L)| is below half the least midpoint of every format
constexpr double kSaturated = 0x1p-54;
constexpr float kWidestCell = 1, kWidestZeroCell = 0x1p-2f, kNarrowestCell = 0x1p-20f;
constexpr double kFarthest = 4096;  // tails begin before that (activation.cpp)

template <std::size_t N>
double horner(const double (&c)[N], double d) {
  double p = c[N - 1];
  for (std::size_t k = N - 1; k-- > 0;) p = std::fma(p, d, c[k]);
  return p;
}

/// sum (1 + n) u |c_n| D^n + sum sup |C_n - c_n| D^n, where c_n is the double nearest to the middle of
/// `exact[n]`.
template <std::size_t N>
double round_coefficients(const MediumInterval* exact, double reach, double (&c)[N]) {
  double sum = 0, power = 1;
  for (std::size_t n = 0; n < N; ++n, power *= reach) {
    c[n] = exact[n].middle();
    sum += ((exact[n] - c[n]).magnitude() + (1 + static_cast<double>(n)) * kUnit * std::fabs(c[n])) * power;
  }
  return sum;
}

/// The integer nearest to 0 in direction `sign` from which on `holds` is true.
template <class Holds>
float first_integer(int sign, const char* what, const Holds& holds) {
  for (double x = sign; std::fabs(x) <= kFarthest; x += sign) {
    if (holds(x)) return static_cast<float>(x);
  }
  throw std::logic_error(fmt::format("reference: no {} tail found", what));
}

}  // namespace

double Ends::beyond_left() const {
  return left_limit == 0 ? left_side * 0x1p-163 : left_limit + left_side * 0x1p-53;
}

double Ends::beyond_right(double x) const {
  switch (right) {
    case Right::below_x: return x - x * 0x1p-52;
    case Right::above_x: return x + x * 0x1p-52;
    case Right::below_one: return 1 - 0x1p-53;
    default: return x;
  }
}

double Ends::near_zero(double x) const {
  // If p / q is not a power of two, the product is off by a relative 2^-52 at most, and the sum by 2^-53. For
  // 3/5, the step of 2^-52 / (3/5) outweighs both. If p / q is a power of two, the product is exact, and the
  // step is more than half an ulp.
  return std::copysign(x * (slope_p / slope_q) + (next_even * std::fabs(x) + next_odd * x) * 0x1p-52, x);
}

int Reference::prove(const Function& f, float from, float to, bool at_zero, Cell& cell) {
  const double a = at_zero ? 0 : (static_cast<double>(from) + to) / 2, reach = std::max(to - a, a - from);
  const auto over = f.taylor(CoarseInterval(from, to), at_zero ? kValueDegree + 2 : kValueDegree + 1);
  const double least = over[at_zero ? 1 : 0].mignitude();
  const double truncation = over.back().magnitude() * std::pow(reach, kValueDegree + 1);
  const double derivative_truncation = (kDerivativeDegree + 2) * over[kDerivativeDegree + 2].magnitude() *
                                       std::pow(reach, kDerivativeDegree + 1);
  const double excess =
      std::max(truncation / (kValueBound / 2 * least), derivative_truncation / kDerivativeBound);
  // Half the width divides the truncation by 2^9 or 2^7. Enclosures over wide cells overestimate it, so not
  // all of the halvings are skipped at once.
  constexpr double kMostSkipped = 3;
  if (!(excess <= 1))
    return std::isfinite(excess)
               ? static_cast<int>(std::clamp(std::log2(excess) / (kValueDegree + 1), 1.0, kMostSkipped))
               : 1;

  const auto exact = f.taylor(MediumInterval(a), kValueDegree + 1);
  std::vector<MediumInterval> slopes;
  for (int n = 0; n <= kDerivativeDegree; ++n)
    slopes.push_back(exact[static_cast<std::size_t>(n) + 1] * (n + 1));
  cell = {from, to, at_zero, a, {}, {}, 0, 0};
  const double value_rounding = round_coefficients(exact.data() + at_zero, reach, cell.value);
  const double derivative_rounding = round_coefficients(slopes.data(), reach, cell.derivative);
  cell.value_bound = ((truncation + value_rounding) / least + (at_zero ? kUnit : 0)) * kSecondOrder;
  cell.derivative_bound = (derivative_truncation + derivative_rounding) * kSecondOrder;
  // Half of the claim, because evaluate() brackets f by the whole claim, which also covers the rounding of
  // the bracket's ends.
  return cell.value_bound <= kValueBound / 2 && cell.derivative_bound <= kDerivativeBound ? 0 : 1;
}

void Reference::cover(const Function& f, float from, float to, std::vector<Cell>& cells) {
  Cell cell;
  const int halvings = prove(f, from, to, false, cell);
  if (halvings == 0) {
    cells.push_back(cell);
    return;
  }
  if (to - from <= kNarrowestCell)
    throw std::logic_error(fmt::format("reference: no cell at x = {:a} keeps the claimed bounds", from));
  const float width = std::ldexp(to - from, -halvings);
  for (float at = from; at < to; at += width) cover(f, at, at + width, cells);
}

Reference::Reference(const Activation& activation, const Ends& ends) : ends_(ends) {
  if (!activation.problem().empty()) throw std::logic_error("reference: " + activation.problem());
  const Formula& formula = activation.formulas().front();
  const Function& f = formula.f;
  const auto value = [&](double x) { return f.at<0>(Interval(x))[0]; };

  left_ = first_integer(-1, "left", [&](double x) {
    const double distance = (value(x) - ends.left_limit).magnitude();
    return distance <= (ends.left_limit == 0 ? kInvisible : kSaturated) &&
           formula.slopes(-kInfinity, x).magnitude() <= kFlat;
  });
  if (ends.right != Ends::Right::is_x) {
    const double limit = ends.right == Ends::Right::below_one ? 0 : 1;
    right_ = first_integer(1, "right", [&](double x) {
      // 2^-53 of x
      const double distance = limit == 0 ? (value(x) - 1).magnitude() : (value(x) - x).magnitude() / x / 2;
      return distance <= kSaturated && (formula.slopes(x, kInfinity) - limit).magnitude() <= kFlat;
    });
  }
  const float end = right_;

  // The cell at 0; from there outwards, intervals whose length doubles; then units.
  std::vector<std::pair<float, float>> stretches;
  float inner = 0;
  if (ends.zero_at_zero) {
    const Interval slope = f.at<1>(Interval(0.0))[1],
                   about(-kTiny, ends.right == Ends::Right::is_x ? 0 : kTiny);
    if (!(slope * ends.slope_q - ends.slope_p).contains_zero())
      throw std::logic_error("reference: f'(0) is not as said");
    // Between 0 and x, |f - x f'(0)| <= x^2 sup |f''| / 2, which is below 2^-52 relative to f' about 0.
    if (!((f.at<2>(about)[2] * kTiny).magnitude() <= 0x1p-52 * f.at<1>(about)[1].mignitude()))
      throw std::logic_error("reference: f bends too much at 0");
    Cell cell;
    for (inner = kWidestZeroCell; prove(f, -inner, end == 0 ? 0 : inner, true, cell) != 0; inner /= 2) {
      if (inner <= kNarrowestCell) throw std::logic_error("reference: no cell at 0 keeps the claimed bounds");
    }
    cells_.push_back(cell);
    for (float at = inner; at < kWidestCell; at *= 2) {
      stretches.emplace_back(-2 * at, -at);
      if (end > 0) stretches.emplace_back(at, 2 * at);
    }
  }
  for (float at = left_; at < end; at += kWidestCell) {
    if (inner == 0 || at >= kWidestCell || at < -kWidestCell) stretches.emplace_back(at, at + kWidestCell);
  }
  std::vector<std::vector<Cell>> found(stretches.size());
  kernels::for_each_task(stretches.size(), 0,
                         [&](std::size_t i) { cover(f, stretches[i].first, stretches[i].second, found[i]); });
  for (const std::vector<Cell>& cells : found) cells_.insert(cells_.end(), cells.begin(), cells.end());
  std::sort(cells_.begin(), cells_.end(), [](const Cell& a, const Cell& b) { return a.from < b.from; });

  constexpr float kEnd = std::numeric_limits<float>::infinity();
  pieces_.push_back({-kEnd, left_, Kind::left_tail, 0});
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    const Cell& cell = cells_[i];
    if (cell.from != pieces_.back().to) throw std::logic_error("reference: the cells leave a gap");
    proven_value_bound_ = std::max(proven_value_bound_, cell.value_bound);
    proven_derivative_bound_ = std::max(proven_derivative_bound_, cell.derivative_bound);
    if (!cell.times_d) {
      pieces_.push_back({cell.from, cell.to, Kind::cell, i});
      continue;
    }
    const float above = std::nextafter(-kTiny, 0.0f);
    pieces_.push_back({cell.from, above, Kind::cell, i});
    pieces_.push_back({above, std::min(kTiny, cell.to), Kind::near_zero, i});
    if (cell.to > kTiny) pieces_.push_back({kTiny, cell.to, Kind::cell, i});
  }
  if (pieces_.back().to != right_) throw std::logic_error("reference: the cells leave a gap");
  pieces_.push_back({right_, kEnd, Kind::right_tail, 0});
  for (const Piece& piece : pieces_) starts_.push_back(piece.from);
}

std::vector<float> Reference::edges() const { return {starts_.begin() + 1, starts_.end()}; }

const Reference::Piece& Reference::piece_of(float x) const {
  return pieces_[static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), x) -
                                          starts_.begin()) -
                 1];
}

void Reference::evaluate(const float* x, double* value, double* value_lo, double* value_hi,
                         double* derivative, std::int64_t n) const {
  for (std::int64_t begin = 0; begin < n;) {
    const Piece& piece = piece_of(x[begin]);
    const float from = piece.from, to = piece.to;
    std::int64_t others = 0;
#pragma omp simd reduction(+ : others)
    for (std::int64_t i = begin; i < n; ++i) others += !(x[i] >= from && x[i] < to);
    std::int64_t end = others == 0 ? n : begin + 1;
    while (end < n && x[end] >= from && x[end] < to) ++end;

    if (piece.kind == Kind::left_tail) {
      const double proxy = ends_.beyond_left();
      std::fill(value + begin, value + end, proxy);
      std::fill(value_lo + begin, value_lo + end, proxy);
      std::fill(value_hi + begin, value_hi + end, proxy);
      std::fill(derivative + begin, derivative + end, 0.0);
    } else if (piece.kind == Kind::right_tail) {
      const double limit = ends_.right == Ends::Right::below_one ? 0 : 1;
      for (std::int64_t i = begin; i < end; ++i) {
        value[i] = value_lo[i] = value_hi[i] = ends_.beyond_right(x[i]);
        derivative[i] = limit;
      }
    } else if (piece.kind == Kind::near_zero) {
      const Cell& cell = cells_[piece.cell];
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        value[i] = value_lo[i] = value_hi[i] = ends_.near_zero(wide);
        derivative[i] = horner(cell.derivative, wide);
      }
    } else {
      const Cell cell = cells_[piece.cell];
      const bool times_d = cell.times_d;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double d = x[i] - cell.centre;
        const double p = horner(cell.value, d);
        const double v = times_d ? d * p : p;
        const double margin = std::fabs(v) * kValueBound;
        value[i] = v;
        value_lo[i] = v - margin;
        value_hi[i] = v + margin;
        derivative[i] = horner(cell.derivative, d);
      }
    }
    begin = end;
  }
}

ReferenceValues Reference::at(std::span<const float> x) const {
  const std::vector<double> room(x.size());
  ReferenceValues found{room, room, room, room};
  evaluate(x.data(), found.value.data(), found.low.data(), found.high.data(), found.slope.data(),
           std::ssize(x));
  return found;
}

double Reference::slope_at(float x) const {
  double value = 0, low = 0, high = 0, slope = 0;
  evaluate(&x, &value, &low, &high, &slope, 1);
  return slope;
}

std::int64_t round_values(const EnclosedValues& values, float* y, const FloatFormat& format, Oracle& oracle) {
  const float* const x = values.x;
  const double *const value_lo = values.low, *const value_hi = values.high;
  const std::int64_t n = values.n;
  const FloatFormat local = format;  // a local copy, which no store to y can alias
  std::int64_t undecided = 0;
#pragma omp simd reduction(+ : undecided)
  for (std::int64_t i = 0; i < n; ++i) {
    const double lo = round_to_format(value_lo[i], local);
    const double hi = round_to_format(value_hi[i], local);
    undecided += lo != hi;
    y[i] = static_cast<float>(lo);
  }
  if (undecided == 0) return 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (round_to_format(value_lo[i], format) != round_to_format(value_hi[i], format)) {
      y[i] = static_cast<float>(oracle.value(x[i], format));
    }
  }
  return undecided;
}

}  // namespace outgrad::validation
