// Proves A, K and B by Taylor models and rounding-tracking balls, row by row.
#include "approx/proof/certificate.h"

#include "approx/function/storage.h"
#include "kernels/eval.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

/// Terms of a Taylor model. At 10 a piece needs about 50 subintervals; fewer terms need more of them, more
/// terms cost as much again.
constexpr slong kTerms = 10;
/// Relative excess of the certified over the observed maximum: the contract is 1%; the samples miss up to
/// 0.1% of the maximum.
constexpr double kExcess = 1.008;
/// A point closer than this to a removable singularity is moved away by twice as much before the quotient is
/// expanded there.
constexpr double kGuard = 0x1p-15;

/// Maximum of bounds. std::max would drop a NaN, the magnitude of a ball that could not decide.
double larger_bound(double worst, double bound) {
  if (!std::isfinite(bound)) throw kernels::SpecError("undecided: a bound is not finite");
  return std::max(worst, bound);
}

/// The polynomial whose error is certified.
struct Polynomial {
  Ball centre;
  std::vector<Ball> c;
};

Polynomial rounded_of(const Piece& piece) {
  Polynomial p{Ball(piece.centre), {}};
  for (const float c : piece.c) p.c.emplace_back(static_cast<double>(c));
  p.c[0] = p.c[0] + Ball(piece.c0_low);
  if (piece.c1_low != 0) p.c[1] = p.c[1] + Ball(piece.c1_low);
  return p;
}

/// E(X + t).
Series error_series(const Composite& composite, const Piece& piece, const Polynomial& polynomial,
                    const Ball& x, slong length) {
  // A common zero of both sides, at the anchor with c0 = 0, is divided out: f(0) = 0 and g(s = 0) = 0.
  const bool at_zero =
      piece.target != Target::gradient && piece.anchor && piece.anchor->c0 == 0 && piece.anchor->centre == 0;
  const Series u =
      composite.coordinate(piece.coordinate, x, length) - Series::constant(polynomial.centre, length);
  Series p = Series::constant(polynomial.c.back(), length);
  for (size_t k = polynomial.c.size() - 1; k-- > (at_zero ? 1U : 0U);)
    p = p * u + Series::constant(polynomial.c[k], length);
  if (piece.target == Target::gradient) return p - composite.gradient(x, length);
  if (piece.target == Target::gradient_relative) {
    // f = y* + s^2, so that f' = 2 s s' and g/s = 2 s'.
    const Series two = Series::constant(Ball(2.0), length);
    const Series g = at_zero && piece.coordinate == Coordinate::signed_root
                         ? composite.coordinate(piece.coordinate, x, length + 1).derivative() * two
                         : composite.gradient(x, length);
    return p / g - Series::constant(Ball(1.0), length);
  }
  if (piece.target == Target::ratio_relative)
    return p / composite.quotient(x, Ball(0.0), 1, length) - Series::constant(Ball(1.0), length);
  const Series f = at_zero ? composite.quotient(x, Ball(0.0), 1, length) : composite.value(x, length);
  return p * Series::constant(Ball(piece.scale), length) / f - Series::constant(Ball(1.0), length);
}

/// Bound of |E| over [a, b], not yet compared with anything.
double model_bound(const Composite& composite, const Piece& piece, const Polynomial& polynomial, double a,
                   double b) {
  double x0 = 0.5 * (a + b);
  const bool root = piece.coordinate == Coordinate::signed_root;
  const double singular = root ? composite.x_star().to_double() : 0.0;
  const bool at_root_of_f = piece.target == Target::value_relative || piece.target == Target::ratio_relative;
  if ((root || at_root_of_f) && std::abs(x0 - singular) < kGuard) x0 = singular + 2 * kGuard;
  const double r = std::max(std::abs(b - x0), std::abs(x0 - a)) * kUp;
  const Series at_point = error_series(composite, piece, polynomial, Ball(x0), kTerms);
  const Series over_all =
      error_series(composite, piece, polynomial, Ball::hull(Ball::hull(a, b), Ball(x0)), kTerms + 1);
  double bound = over_all[kTerms].magnitude();
  for (slong k = kTerms; k-- > 0;) bound = (bound * r + at_point[k].magnitude()) * kUp;
  return bound;
}

/// Value in real arithmetic (over a range of y) and a bound on how far the fp32 computation can be from it.
struct Tracked {
  Ball exact;
  double error = 0;
  double inherited = 0;  ///< the part of `error` that was there before the last operation was rounded
};

/// Half an ulp of fp32 at magnitudes up to m.
double half_ulp(double m) {
  if (!std::isfinite(m)) return m;
  return m < 0x1p-126 ? 0x1p-150 : std::ldexp(1.0, std::ilogb(m) - 24);
}

Tracked rounded(Ball exact, double error) {
  const double m = (exact.magnitude() + error) * kUp;
  return {std::move(exact), (error + half_ulp(m)) * kUp, error};
}

/// The operations of kernels/eval.h over a rounding-tracking ball, for y that are known to reach one row.
struct TrackingOps {
  using Value = Tracked;
  using Mask = bool;
  using Row = int;

  const Piece& piece;

  [[nodiscard]] Value constant(float c) const { return {Ball(c), 0}; }
  [[nodiscard]] Value fma(const Value& a, const Value& b, const Value& c) const {
    const double error =
        a.exact.magnitude() * b.error + b.exact.magnitude() * a.error + a.error * b.error + c.error;
    return rounded(a.exact * b.exact + c.exact, error * kUp);
  }
  [[nodiscard]] Value sub(const Value& a, const Value& b) const {
    Ball exact = a.exact - b.exact;
    const double error = (a.error + b.error) * kUp;
    return exact_difference(a, b) ? Value{std::move(exact), error, error} : rounded(std::move(exact), error);
  }
  [[nodiscard]] Value mul(const Value& a, const Value& b) const { return fma(a, b, constant(0.0f)); }
  [[nodiscard]] Value sqrt(const Value& a) const {
    const double low = a.exact.lower() - a.error;
    if (!(low > 0)) throw kernels::SpecError("undecided: square root of a ball that reaches 0");
    // |sqrt(t^) - sqrt(t)| = |t^ - t|/(sqrt(t^) + sqrt(t)) <= error/(2 sqrt(low))
    return rounded(approx::sqrt(a.exact), a.error / (2 * std::sqrt(low)) * kUp);
  }
  [[nodiscard]] Value negate(const Value& a) const { return {-a.exact, a.error}; }
  // max and min are 1-Lipschitz: the error does not grow.
  [[nodiscard]] Value at_least(const Value& a, const Value& lo) const {
    return {max(a.exact, lo.exact), a.error};
  }
  [[nodiscard]] Value at_most(const Value& a, const Value& hi) const {
    return {min(a.exact, hi.exact), a.error};
  }
  [[nodiscard]] Value non_positive(const Value& a) const { return a; }
  template <class T>
  [[nodiscard]] T select(bool mask, const T& a, const T& b) const {
    return mask ? a : b;
  }
  // The two comparisons that pick a region: y <= kLeftY, s < kRightS.
  [[nodiscard]] bool less_equal(const Value&, const Value&) const { return piece.region != Region::left; }
  [[nodiscard]] bool less(const Value&, const Value&) const {
    return piece.region != Region::right && piece.region != Region::right_mirrored;
  }
  [[nodiscard]] bool neither(bool p, bool q) const { return !p && !q; }
  [[nodiscard]] Row first_row() const { return piece.row; }
  [[nodiscard]] Row next_row(Row row, bool) const { return row; }
  [[nodiscard]] Row row_index(const Value&, int) const { return piece.row; }
  [[nodiscard]] Row octave_row(const Value&, int, int, int, int, int) const { return piece.row; }
  [[nodiscard]] Value lookup(const Piece& p, Row, int word) const { return constant(p.word(word)); }

 private:
  /// Sterbenz: y/2 <= x <= 2y makes x - y exact; and so does y = 0.
  static bool exact_difference(const Value& a, const Value& b) {
    const Ball &x = a.exact, &y = b.exact;
    if (arb_is_zero(y.raw())) return true;
    const double lo = std::min(std::abs(x.lower()), std::abs(x.upper())) - a.error,
                 hi = x.magnitude() + a.error;
    const bool same_sign = (x.positive() && y.positive()) || (x.negative() && y.negative());
    return same_sign && a.error < lo && b.error == 0 && arb_is_exact(y.raw()) && 2 * lo >= y.magnitude() &&
           hi <= 2 * y.magnitude();
  }
};

Tracked tracked_evaluation(const BackwardModel& model, const Piece& piece, const Ball& y, bool m) {
  const TrackingOps ops{piece};
  return kernels::evaluate_backward(ops, model, piece, Tracked{y, 0}, m);
}

double certify(const Composite& composite, const Piece& piece, const Polynomial& polynomial, double accept) {
  const auto [lo, hi] = piece.outer_range();
  double worst = 0;
  constexpr int kStart = 16;
  int parts = 1 << 16;  // that are halved: those of a row whose bound comes to an end are some hundreds
  std::vector<std::pair<double, double>> pending;
  for (int i = kStart; i-- > 0;)
    pending.emplace_back(lo + (hi - lo) * i / kStart,
                         i + 1 == kStart ? hi : lo + (hi - lo) * (i + 1) / kStart);
  while (!pending.empty()) {
    const auto [a, b] = pending.back();
    pending.pop_back();
    const double bound = model_bound(composite, piece, polynomial, a, b);
    if (bound <= accept) {
      worst = larger_bound(worst, bound);
      continue;
    }
    const double mid = 0.5 * (a + b);
    if (--parts == 0 || !(b - a >= (hi - lo) * 0x1p-20))
      throw kernels::SpecError(
          fmt::format("undecided: the bound of row {} does not come within 1% of its observed maximum "
                      "{:.4g}: x in [{}, {}] gives {:.4g}",
                      piece.row, piece.observed, a, b, bound));
    pending.emplace_back(mid, b);
    pending.emplace_back(a, mid);
  }
  // Between the coordinate of x and the end that the clamp leads to.
  const auto tail = [&](const Real& x, double end, double limit, double gradient_bound) {
    const Ball u =
        Ball::hull(composite.coordinate(piece.coordinate, Ball(x), 1)[0], Ball(end)) - polynomial.centre;
    Ball p = polynomial.c.back();
    for (size_t k = polynomial.c.size() - 1; k-- > 0;) p = p * u + polynomial.c[k];
    worst = larger_bound(worst, ((p - Ball(limit)).magnitude() + gradient_bound) * kUp);
  };
  const Activation& f = composite.activation();
  // Beyond the tail's start a relative error has no meaning for stored y: they are below the least normal
  // number, and the limit is 0.
  if (piece.left_tail && piece.target != Target::gradient_relative)
    tail(piece.x_lo, piece.region == Region::left ? piece.v_hi : piece.v_lo, f.left_limit_gradient,
         f.gradient_tail(lo, false));
  if (piece.right_tail) tail(piece.x_hi, piece.v_hi, f.right_limit_gradient, f.gradient_tail(hi, true));
  return worst;
}

/// Bounds below it are not pursued: a polynomial that equals g has no larger error than its enclosure's.
constexpr double kExact = 0x1p-60;
/// Room for a second proof to reach the claim with its own tolerances: a bound taken at the end of a piece is
/// the maximum to its last bits.
constexpr double kWitnessRoom = 1 + 0x1p-12;

/// Calls visitor(Tracked) for the value of the deployed sequence over parts of the piece that cover every y
/// that can reach its row.
template <class Visitor>
void over_evaluations(const BackwardModel& model, const Piece& piece, Visitor&& visitor) {
  // Many rows are narrow ones.
  const int kParts = model.kRows <= 256 ? 1024 : 64;
  const auto visit = [&](const Ball& y, bool m) { visitor(tracked_evaluation(model, piece, y, m)); };
  if (piece.coordinate == Coordinate::identity) {
    for (int i = 0; i < kParts; ++i) {
      const double a = piece.v_lo + (piece.v_hi - piece.v_lo) * i / kParts,
                   b = piece.v_lo + (piece.v_hi - piece.v_lo) * (i + 1) / kParts;
      visit(Ball::hull(a, b), piece.region == Region::right);
    }
    if (model.greatest_y(piece) > piece.v_hi)
      visit(Ball::hull(piece.v_hi, model.greatest_y(piece)), piece.region == Region::right);
    return;
  }
  // Next to y_c every stored y by itself (fp32's grid holds the grids of the 16-bit formats), beyond it
  // intervals of s.
  constexpr int kPoints = 600, kBelow = 64;
  float lowest = model.kYHi, highest = model.kYHi;
  for (int j = 0; j < kBelow; ++j) lowest = std::nextafter(lowest, -INFINITY);
  for (int j = 0; j < kPoints; ++j) highest = std::nextafter(highest, INFINITY);
  const Ball y_c = model.y_c();
  // Intervals begin a number before the enumeration ends, so that none lies between the two.
  const double enumerated = approx::sqrt(Ball(std::nextafter(highest, -INFINITY)) - y_c).lower();
  if (!(enumerated > 0)) throw kernels::SpecError("undecided: kYLo is not small beside kYHi");
  if (piece.v_lo < enumerated && piece.v_hi > -enumerated) {
    for (float y = lowest; y <= highest; y = std::nextafter(y, INFINITY)) {
      for (const bool m : {false, true}) visit(Ball(y), m);
    }
  }
  const auto visit_between = [&](double a, double b) {
    if (!(a < b)) return;
    const Ball s = Ball::hull(a, b);
    visit(y_c + s * s, a > 0);
  };
  for (int i = 0; i < kParts; ++i) {
    const double a = piece.v_lo + (piece.v_hi - piece.v_lo) * i / kParts,
                 b = piece.v_lo + (piece.v_hi - piece.v_lo) * (i + 1) / kParts;
    visit_between(a, std::min(b, -enumerated));
    visit_between(std::max(a, enumerated), b);
  }
}

/// sup of |y* - y_c| |dg/dy| over the stored y from `last` on, dg/dy = f''/f'; with `storage` = 1 also half a
/// spacing of y times that.
double certify_beyond(const Composite& composite, const BackwardModel& model, double last, double storage) {
  const Ball y_c = model.y_c();
  const double shift = (composite.y_star() - y_c).magnitude();
  double worst = 0;
  // s_c(y) = s(y + y* - y_c), so |g(s_c) - g(s)| <= |y* - y_c| sup |dg/dy| between the two.
  const auto change = [&](double y0, double y1, bool right) {
    const double move =
        shift + storage * 0x1p-24 * std::ldexp(1.0, std::ilogb(std::max(std::abs(y0), std::abs(y1))) + 1);
    const Ball x = Ball::hull(composite.enclose_argument_of(Ball(y0 - move), right),
                              composite.enclose_argument_of(Ball(y1 + move), right));
    const Series g = composite.gradient(x, 2);
    return move * (abs(g[1]) / abs(g[0])).magnitude() * kUp;
  };
  const double y_star = composite.y_star().to_double();
  // 8 cells an octave: the enclosures of f''/f' stay within a third of its range
  constexpr double kRatio = 1.09;
  // beyond, the tail bound speaks
  const double reach = composite.activation().value(composite.activation().reach);
  for (double t = last - y_star; t < reach; t *= kRatio)
    worst = larger_bound(worst, change(y_star + t, y_star + t * kRatio, true));
  worst = larger_bound(
      worst, 2 * composite.activation().gradient_tail(Ball(composite.activation().reach * 0.99), true));
  // Left: to the identity coordinate, or towards 0-, where |g| itself bounds the difference.
  const bool to_edge = model.kHasLeft && storage == 0;
  const double end = to_edge ? static_cast<double>(model.kLeftY) : -8 * std::max(shift, 0x1p-60);
  for (double y = last; y < end;) {
    const double next = std::min(end, std::min(y_star + (y - y_star) * kRatio, y / kRatio));
    worst = larger_bound(worst, change(y, next, false));
    y = next;
  }
  if (!to_edge) {
    // Between there and 0- both g lie within the tail's bound of their limit 0.
    const Ball x = composite.enclose_argument_of(Ball(end - shift), false);
    worst = larger_bound(worst, 2 * composite.activation().gradient_tail(x, false));
  }
  return worst;
}

}  // namespace

double certify_approximation(const Composite& composite, const Piece& piece, double floor) {
  return certify(composite, piece, rounded_of(piece), std::max({piece.observed * kExcess, floor, kExact})) *
         kWitnessRoom;
}

double absolute_bound(const Composite& composite, const Piece& piece) {
  if (piece.target != Target::gradient_relative) return piece.certified;
  constexpr int kParts = 256;
  const auto lo = static_cast<double>(piece.x_lo), hi = static_cast<double>(piece.x_hi);
  const Activation& f = composite.activation();
  double steepest =
      piece.right_tail ? std::abs(f.right_limit_gradient) + f.gradient_tail(Ball(piece.x_hi), true) : 0;
  for (int i = 0; i < kParts; ++i) {
    const double from = lo + (hi - lo) * i / kParts,
                 to = i + 1 == kParts ? hi : lo + (hi - lo) * (i + 1) / kParts;
    const Ball x = Ball::hull(std::nextafter(from, -INFINITY), std::nextafter(to, INFINITY));
    steepest = larger_bound(steepest, composite.gradient(x, 1)[0].magnitude());
  }
  return piece.certified * steepest * kUp;
}

double certify_minimax(const Composite& composite, const Piece& piece) {
  Polynomial p{Ball(piece.real_centre), {}};
  for (const Real& c : piece.real) p.c.emplace_back(c);
  return certify(composite, piece, p, std::max(piece.minimax * kExcess, kExact)) * kWitnessRoom;
}

double certify_evaluation(const BackwardModel& model, const Piece& piece) {
  // Room for a second proof to round its own sums in: many a bound here is a half ulp to the last bit.
  constexpr double kRoom = 1 + 0x1p-20;
  double worst = 0;
  over_evaluations(model, piece, [&](const Tracked& p) { worst = larger_bound(worst, p.error); });
  return worst * kRoom;
}

Ball exact_evaluation(const BackwardModel& model, const Piece& piece, float y, bool m) {
  return tracked_evaluation(model, piece, Ball(y), m).exact;
}

double certify_ulp(const BackwardModel& model, const Piece& piece) {
  // With x the value before the last rounding, |x - g| <= e = A + inherited: if x and g share a binade, that
  // rounding adds half an ulp of g at most; if not, either x is in the lower one, or RN(x) is the power of
  // two between them, which is nearer to g than x is, unless e is an ulp of g or more.
  double worst = 0;
  over_evaluations(model, piece, [&](const Tracked& p) {
    // not a number is not skipped: it is undecided below
    if (p.exact.magnitude() + piece.certified < kUlpFrom) return;
    const double least =
        std::max({p.exact.lower() - piece.certified, -p.exact.upper() - piece.certified, kUlpFrom});
    const double ulp = std::ldexp(1.0, std::ilogb(least) - 23), e = (piece.certified + p.inherited) * kUp;
    worst = larger_bound(worst, std::max(0.5, e < ulp ? 0.0 : (p.error - p.inherited) / ulp) + e / ulp);
  });
  constexpr double kRoom = 1 + 0x1p-12;  // for the second proof, as for A
  return worst * kRoom;
}

CoordinateBound certify_coordinate(const Composite& composite, const BackwardModel& model) {
  if (!model.kMasked) return {};
  const Ball y_c = model.y_c();
  const double h = composite.spacing_at_minimum(precision_bits(model.format));
  CoordinateBound result;
  const auto gradient_of_root = [&](const Ball& t, bool right) {
    const Ball x = composite.enclose_argument_of(composite.y_star() + t, right);
    return composite.gradient(x, 1)[0];
  };
  // Next to y*, each stored y: x* itself stands for the exact coordinate of a y below y*. Where a power of
  // two is crossed, the finer grid is followed. A branch of a parity format has every second number, parted
  // by the other's.
  // kShare is one of the left branch's height: near its end an argument has no enclosure
  constexpr double kPoints = 256, kShare = 0.25;
  const bool carries = carries_branch(model.format);
  const double y_star = composite.y_star().to_double(), below = std::floor(y_star / h) * h;
  // the grid is coarser from a power of two on
  const double lowest = carries ? below - ulp_of(model.format, below) : below;
  const double end = std::min(lowest + kPoints * h, y_star + kShare * (composite.left_limit() - y_star));
  double last = lowest;
  for (double y = lowest, above = 0; y <= end; y = above) {
    above = next_number(model.format, y);
    // no f(x) rounds to it, but y* may
    if (!(Ball(carries ? above : 0.5 * (y + above)) - composite.y_star()).positive()) continue;
    last = y;
    for (const bool right : {false, true}) {
      if (!holds_branch(model.format, y, right)) continue;
      const Ball t = Ball(y) - composite.y_star(), t_c = max(Ball(y) - y_c, Ball(model.kTMin));
      const Ball exact = t.positive() ? gradient_of_root(t, right) : Ball(0.0);
      const double moved = (gradient_of_root(t_c, right) - exact).magnitude();
      result.bound = larger_bound(result.bound, moved);
      result.found.see(moved, y, right);
    }
  }
  result.bound = larger_bound(result.bound, certify_beyond(composite, model, last, 0));
  return result;
}

double certify_storage_beyond(const Composite& composite, const BackwardModel& model) {
  if (!model.kMasked) {
    // f' changes by |f''| per unit of x, so by |f''|/f' per unit of y: with ulp(y) <= 2^-23 |y| and the
    // tails' bounds beyond the reach.
    double worst = 0;
    constexpr int kParts = 4096;
    const double reach = composite.activation().reach;
    for (int i = 0; i < kParts; ++i) {
      const Ball x = Ball::hull(reach * (2.0 * i / kParts - 1), reach * (2.0 * (i + 1) / kParts - 1));
      const Series g = composite.gradient(x, 2);
      const double spacing = 0x1p-23 * composite.activation().value_ball(x).magnitude();
      // Either the change over half a spacing, or, where f has all but settled, the whole range of f' there.
      worst =
          larger_bound(worst, std::min((abs(g[1]) / abs(g[0])).magnitude() * spacing, 2 * g[0].magnitude()));
    }
    return worst;
  }
  // A few numbers before the listed ones end, so that none lies between the two; the grid may have become
  // finer on the way.
  const double y_star = composite.y_star().to_double(),
               first = static_cast<double>(static_cast<float>(y_star));
  double listed = first;
  for (int k = 0; k < kNearMinimum - 8; ++k) listed = next_number(Format::f32, listed);
  const double last = y_star + (listed - first);
  return certify_beyond(composite, model, last, 1);
}

}  // namespace outgrad::approx
