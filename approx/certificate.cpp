#include "approx/certificate.h"

#include "kernels/eval.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace outgrad::approx {
namespace {

/// Terms of a Taylor model. At 10 a piece needs about 50 subintervals; fewer terms need more of them, more terms cost as much again.
constexpr slong kTerms = 10;
/// Relative excess of the certified over the observed maximum: the contract is 1%; the samples miss up to 0.1% of the maximum.
constexpr double kExcess = 1.008;
/// A point closer than this to a removable singularity is moved away by twice as much before the quotient is expanded there.
constexpr double kGuard = 0x1p-12;
/// Factor over every double operation on error bounds below; each expression rounds fewer than 16 times.
constexpr double kUp = 1 + 0x1p-48;

/// Maximum of bounds. std::max would drop a NaN, the magnitude of a ball that could not decide.
double larger(double worst, double bound) {
  if (!std::isfinite(bound)) throw std::runtime_error("undecided: a bound is not finite");
  return std::max(worst, bound);
}

/// E(X + t).
Series error_series(const Composite& composite, const Piece& piece, const Ball& x, slong length) {
  const bool at_zero = piece.target == Target::value_relative && piece.anchor.has_value();  // c0 = f(0) = 0: both sides are divided by x
  const Series u = composite.coordinate(piece.coordinate, x, length) - Series::constant(Ball(static_cast<double>(piece.centre)), length);
  Series p = Series::constant(Ball(static_cast<double>(piece.c.back())), length);
  for (size_t k = piece.c.size() - 1; k-- > (at_zero ? 1U : 0U);) {
    p = p * u + Series::constant(Ball(static_cast<double>(piece.c[k])), length);
  }
  if (piece.target == Target::gradient) return p - composite.gradient(x, length);
  const Series f = at_zero ? composite.quotient(x, Ball(0.0), 1, length) : composite.value(x, length);
  return p * Series::constant(Ball(piece.scale), length) / f - Series::constant(Ball(1.0), length);
}

/// Bound of |E| over [a, b], not yet compared with anything.
double model_bound(const Composite& composite, const Piece& piece, double a, double b) {
  double x0 = 0.5 * (a + b);
  const double singular = piece.coordinate == Coordinate::signed_root ? composite.x_star().to_double() : 0.0;
  if (piece.coordinate != Coordinate::identity && std::abs(x0 - singular) < kGuard) x0 = singular + 2 * kGuard;
  const double r = std::max(std::abs(b - x0), std::abs(x0 - a)) * kUp;
  const Series at_point = error_series(composite, piece, Ball(x0), kTerms);
  const Series over_all = error_series(composite, piece, Ball::hull(Ball::hull(Ball(a), Ball(b)), Ball(x0)), kTerms + 1);
  double bound = over_all[kTerms].magnitude();
  for (slong k = kTerms; k-- > 0;) bound = (bound * r + at_point[k].magnitude()) * kUp;
  return bound;
}

/// Value in real arithmetic (over a range of y) and a bound on how far the fp32 computation can be from it.
struct Tracked {
  Ball exact;
  double error = 0;
};

/// Half an ulp of fp32 at magnitudes up to m.
double half_ulp(double m) {
  if (!std::isfinite(m)) return m;
  return m < 0x1p-126 ? 0x1p-150 : std::ldexp(1.0, std::ilogb(m) - 24);
}

Tracked rounded(Ball exact, double error) {
  const double m = (exact.magnitude() + error) * kUp;
  return {std::move(exact), (error + half_ulp(m)) * kUp};
}

/// The operations of kernels/eval.h over a rounding-tracking ball, for y that are known to reach one row.
struct TrackingOps {
  using Value = Tracked;
  using Mask = bool;
  using Row = int;

  const Piece& piece;

  [[nodiscard]] Value constant(float c) const { return {Ball(static_cast<double>(c)), 0}; }
  [[nodiscard]] Value fma(const Value& a, const Value& b, const Value& c) const {
    const double error = a.exact.magnitude() * b.error + b.exact.magnitude() * a.error + a.error * b.error + c.error;
    return rounded(a.exact * b.exact + c.exact, error * kUp);
  }
  [[nodiscard]] Value sub(const Value& a, const Value& b) const {
    Ball exact = a.exact - b.exact;
    const double error = (a.error + b.error) * kUp;
    return exact_difference(a, b) ? Value{std::move(exact), error} : rounded(std::move(exact), error);
  }
  [[nodiscard]] Value mul(const Value& a, const Value& b) const { return fma(a, b, constant(0.0f)); }
  [[nodiscard]] Value sqrt(const Value& a) const {
    const double low = a.exact.lower() - a.error;
    if (!(low > 0)) throw std::runtime_error("undecided: square root of a ball that reaches 0");
    // |sqrt(t^) - sqrt(t)| = |t^ - t|/(sqrt(t^) + sqrt(t)) <= error/(2 sqrt(low))
    return rounded(approx::sqrt(a.exact), a.error / (2 * std::sqrt(low)) * kUp);
  }
  [[nodiscard]] Value negate(const Value& a) const { return {-a.exact, a.error}; }
  // max and min are 1-Lipschitz: the error does not grow.
  [[nodiscard]] Value at_least(const Value& a, const Value& lo) const {
    Ball r;
    arb_max(r.raw(), a.exact.raw(), lo.exact.raw(), kPrecisionBits);
    return {r, a.error};
  }
  [[nodiscard]] Value at_most(const Value& a, const Value& hi) const {
    Ball r;
    arb_min(r.raw(), a.exact.raw(), hi.exact.raw(), kPrecisionBits);
    return {r, a.error};
  }
  [[nodiscard]] Value non_positive(const Value& a) const { return a; }
  template <class T>
  [[nodiscard]] T select(bool mask, const T& a, const T& b) const {
    return mask ? a : b;
  }
  [[nodiscard]] bool less_equal(const Value&, const Value&) const { return piece.coordinate != Coordinate::identity; }  // y <= kLeftY
  [[nodiscard]] bool neither(bool p, bool q) const { return !p && !q; }
  [[nodiscard]] Row row_index(const Value&, int) const { return piece.row; }
  [[nodiscard]] Row octave_row(const Value&, int, int, int, int) const { return piece.row; }
  [[nodiscard]] Value lookup(const Piece& p, Row, int word) const {
    return constant(word == 0 ? p.centre : p.c[static_cast<size_t>(word) - 1]);
  }

 private:
  /// Sterbenz: y/2 <= x <= 2y makes x - y exact; and so does y = 0.
  static bool exact_difference(const Value& a, const Value& b) {
    const Ball &x = a.exact, &y = b.exact;
    if (arb_is_zero(y.raw())) return true;
    const double lo = std::min(std::abs(x.lower()), std::abs(x.upper())) - a.error, hi = x.magnitude() + a.error;
    const bool same_sign = (x.positive() && y.positive()) || (x.negative() && y.negative());
    return same_sign && a.error < lo && b.error == 0 && arb_is_exact(y.raw()) && 2 * lo >= y.magnitude() && hi <= 2 * y.magnitude();
  }
};

double evaluation_error(const BackwardModel& model, const Piece& piece, const Ball& y, bool m) {
  const TrackingOps ops{piece};
  return kernels::evaluate_backward(ops, model, piece, Tracked{y, 0}, m).error;
}

/// Spacing of the stored y next to y*, in the binade [1/8, 1/4) that holds |y*|.
double spacing_at_minimum(Format f) { return std::ldexp(1.0, -2 - precision_bits(f)); }

}  // namespace

double certify_approximation(const Composite& composite, const Piece& piece, double floor) {
  const double accept = std::max(piece.observed * kExcess, floor);
  // Outward to doubles: the certificate covers a little more than the piece.
  const double lo = std::nextafter(static_cast<double>(piece.x_lo), -INFINITY), hi = std::nextafter(static_cast<double>(piece.x_hi), INFINITY);
  double worst = 0;
  constexpr int kStart = 16;
  std::vector<std::pair<double, double>> pending;
  for (int i = kStart; i-- > 0;) pending.emplace_back(lo + (hi - lo) * i / kStart, i + 1 == kStart ? hi : lo + (hi - lo) * (i + 1) / kStart);
  while (!pending.empty()) {
    const auto [a, b] = pending.back();
    pending.pop_back();
    const double bound = model_bound(composite, piece, a, b);
    if (bound <= accept) {
      worst = larger(worst, bound);
      continue;
    }
    const double mid = 0.5 * (a + b);
    if (!(b - a >= (hi - lo) * 0x1p-20)) throw std::runtime_error("undecided: the bound of a piece does not come within 1% of its observed maximum");
    pending.emplace_back(mid, b);
    pending.emplace_back(a, mid);
  }
  const auto tail = [&](const Real& x, double limit, const Ball& gradient_bound) {
    const Ball v = Ball::hull(composite.coordinate(piece.coordinate, Ball(x), 1)[0], Ball(static_cast<double>(piece.centre)));
    const Ball u = v - Ball(static_cast<double>(piece.centre));
    Ball p(static_cast<double>(piece.c.back()));
    for (size_t k = piece.c.size() - 1; k-- > 0;) p = p * u + Ball(static_cast<double>(piece.c[k]));
    worst = larger(worst, ((p - Ball(limit)).magnitude() + gradient_bound.magnitude()) * kUp);
  };
  if (piece.left_tail) tail(piece.x_lo, 0.0, composite.activation().left_gradient_tail(Ball(lo)));
  if (piece.right_tail) tail(piece.x_hi, 1.0, composite.activation().right_gradient_tail(Ball(hi)));
  return worst;
}

double certify_evaluation(const BackwardModel& model, const Piece& piece) {
  double worst = 0;
  constexpr int kParts = 256;
  if (piece.coordinate == Coordinate::identity) {
    for (int i = 0; i < kParts; ++i) {
      const double a = piece.v_lo + (piece.v_hi - piece.v_lo) * i / kParts, b = piece.v_lo + (piece.v_hi - piece.v_lo) * (i + 1) / kParts;
      worst = larger(worst, evaluation_error(model, piece, Ball::hull(Ball(a), Ball(b)), false));
    }
    return worst;
  }
  // Next to y_c every stored y by itself (fp32's grid holds the grids of the 16-bit formats), beyond it intervals of s.
  constexpr int kPoints = 600, kBelow = 64;
  const double ulp = spacing_at_minimum(Format::f32);
  const double enumerated = std::sqrt((kPoints - 2) * ulp);
  const bool holds_zero = piece.v_lo < enumerated && piece.v_hi > -enumerated;
  if (holds_zero) {
    for (int j = -kBelow; j < kPoints; ++j) {
      const Ball y(static_cast<double>(model.kYHi) + j * ulp);
      for (const bool m : {false, true}) worst = larger(worst, evaluation_error(model, piece, y, m));
    }
  }
  const Ball y_c = Ball(static_cast<double>(model.kYHi)) + Ball(static_cast<double>(model.kYLo));
  for (int i = 0; i < kParts; ++i) {
    double a = piece.v_lo + (piece.v_hi - piece.v_lo) * i / kParts, b = piece.v_lo + (piece.v_hi - piece.v_lo) * (i + 1) / kParts;
    if (a > -enumerated && b < enumerated) continue;
    if (a < 0 && b > -enumerated) b = -enumerated;
    if (b > 0 && a < enumerated) a = enumerated;
    const Ball s = Ball::hull(Ball(a), Ball(b));
    Ball y = y_c + s * s;
    worst = larger(worst, evaluation_error(model, piece, y, a > 0));
  }
  return worst;
}

double certify_coordinate(const Composite& composite, const BackwardModel& model) {
  const Ball y_c = Ball(static_cast<double>(model.kYHi)) + Ball(static_cast<double>(model.kYLo));
  const double shift = (composite.y_star() - y_c).magnitude();
  const double h = spacing_at_minimum(model.format);
  double worst = 0;
  const auto gradient_of_root = [&](const Ball& t, bool right) {
    const Ball x = composite.enclose_argument_of(composite.y_star() + t, right);
    return composite.gradient(x, 1)[0];
  };
  // Next to y*, each stored y: x* itself stands for the exact coordinate of a y below y*.
  constexpr int kPoints = 256;
  const double lowest = std::floor(composite.y_star().to_double() / h) * h;
  double last = 0;
  for (int j = 0; j < kPoints; ++j) {
    const double y = lowest + j * h;
    if (y > -0.125) break;                                         // the grid coarsens; intervals take over
    if (y + 0.5 * h < composite.y_star().to_double()) continue;  // no f(x) rounds to it
    last = y;
    for (const bool right : {false, true}) {
      const Ball t = Ball(y) - composite.y_star();
      Ball t_c;
      arb_max(t_c.raw(), (Ball(y) - y_c).raw(), Ball(static_cast<double>(model.kTMin)).raw(), kPrecisionBits);
      const Ball exact = t.positive() ? gradient_of_root(t, right) : Ball(0.0);
      worst = larger(worst, (gradient_of_root(t_c, right) - exact).magnitude());
    }
  }
  // Beyond: s_c(y) = s(y + y* - y_c), so |g(s_c) - g(s)| <= |y* - y_c| sup |dg/dy| between the two, dg/dy = f''/f'.
  const auto slope_bound = [&](double y0, double y1, bool right) {
    const Ball x = Ball::hull(composite.enclose_argument_of(Ball(y0 - shift), right), composite.enclose_argument_of(Ball(y1 + shift), right));
    const Series g = composite.gradient(x, 2);
    return (abs(g[1]) / abs(g[0])).magnitude();
  };
  const double y_star = composite.y_star().to_double();
  constexpr double kRatio = 1.09;  // 8 cells an octave: the enclosures of f''/f' stay within a third of its range
  const double reach = 64;         // beyond, |g - 1| < 2^-1000
  for (double t = last - y_star; t < reach; t *= kRatio) worst = larger(worst, shift * slope_bound(y_star + t, y_star + t * kRatio, true) * kUp);
  worst = larger(worst, 2 * composite.activation().right_gradient_tail(Ball(reach + y_star)).magnitude());
  // Left: to the identity coordinate, or towards 0-, where |g| itself bounds the difference.
  const double end = model.kHasLeft ? static_cast<double>(model.kLeftY) : -8 * std::max(shift, 0x1p-60);
  for (double y = last; y < end;) {
    const double next = std::min(end, std::min(y_star + (y - y_star) * kRatio, y / kRatio));
    worst = larger(worst, shift * slope_bound(y, next, false) * kUp);
    y = next;
  }
  if (!model.kHasLeft) {
    const Ball x = composite.enclose_argument_of(Ball(end - shift), false);
    worst = larger(worst, composite.gradient(x, 1)[0].magnitude());  // |g| falls towards 0-: f' is monotone left of its minimum at -sqrt 2
    if (!(x + Ball(1.5)).negative()) throw std::runtime_error("undecided: the coordinate constants are too far from y*");
  }
  return worst;
}

}  // namespace outgrad::approx
