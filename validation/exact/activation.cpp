// The tails of the known activations, and the scan that isolates minima and inflections.
//
// Tails, for |x| >= 4 (and B |x| >= 2), t = B x, u(x) the argument of tanh in gelu_tanh doubled, p(x) =
// softplus(x), sg = sigmoid:
//   gelu       f' = Phi + x phi. x < -1: 0 < Phi < phi / |x| (Mills), so x phi < f' < 0;
//              x > 1: |f' - 1| = |x phi - Phi(-x)| < x phi.
//   swish      f' = sg(t) (1 + t sg(-t)). Left: sg(t) < e^t, and |t| sg(-t) >= 2 sg(2) > 1 gives f' < 0,
//              |f'| < (1 + |t|) e^t. Right: f' - 1 = -sg(-t) + t sg(t) sg(-t), so |f' - 1| < (1 + t) e^-t.
//              silu and quick_gelu are B = 1 and 1.702.
//   gelu_tanh  f = x sg(u), u odd and rising, u' >= 2 sqrt(2/pi): the same with |x| u' in place of |t|;
//              (1 + |x| u') e^-|u| falls with |x| because
//              (u' + |x| |u''|) / (1 + |x| u') <= 3 / |x| < 1 < u'.
//   mish       f' = tanh p + x sech^2(p) sg(x). Left: 0 < tanh p < p < e^x, so |f'| < (1 + |x|) e^x; f' < 0
//              as p < 0.0184 makes sech^2(p) sg(x) > 0.99 * 0.98 e^x. Right: p > x, so 1 - tanh p < 2 e^-2x
//              and sech^2 p < 4 e^-2x: |f' - 1| < (2 + 4 x) e^-2x.
//   tanh       f' = sech^2 x < 4 e^-2|x|.
//   sigmoid    f' = sg(x) sg(-x) < e^-|x|.
//   softplus   f' = sg(x) < e^x on the left, 1 - f' = sg(-x) < e^-x on the right.
//   elu        f' = A e^x on the left.
// Each bound decreases as |x| grows. On the left, every function with a minimum tends to 0 from below.
#include "validation/exact/activation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/host/errors.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

constexpr int kFirstTail = 4;  // the facts above hold from here on
constexpr int kLastTail = 4096;  // a swish so flat that its tails begin later is not supported
constexpr double kBracket = 0x1p-40;  // f' changes by about its square over a bracket
constexpr double kScanStep = 0.37109375;  // divides nothing, because zeros of f'' should not be cuts
constexpr int kMaxParts = 20000;  // the known activations take a few hundred
constexpr double kHole = 0.5;  // the literal that patterns leave open
constexpr double kIsolationRadius = 0x1p-200;
constexpr double kShortFraction = 0x1p-20;  // an x* that is exactly a number is one of few digits
// relative changes of f over it are small enough to tell f's sign in a tail that oscillates
constexpr double kTailPiece = 0x1p-7;
// relative: an inverse that Newton's steps leave farther off is searched for again with more care
constexpr double kClose = 0x1p-30;

struct Known {
  const char* name;
  const char* pattern;
  bool masked;
  bool parameter;  // whether the pattern's literal 0.5 stands for any positive one
  // sup |f' - limit| beyond |x|, for a given B or A.
  Interval (*left)(const Interval& x, const Interval& b);
  Interval (*right)(const Interval& x, const Interval& b);
  double right_slope;  // limit of f' at +inf
  double left_value, right_value;  // limits of f; on the left ELU has -A
};

Interval logistic(const Interval& t) { return (t + 1) * exp(-t); }
Interval tanh_argument(const Interval& x) {
  return sqrt(Interval(8) / Interval::pi()) * (x + Interval::parse("0.044715") * x * x * x);
}
Interval tanh_slope(const Interval& x) {
  return sqrt(Interval(8) / Interval::pi()) * (Interval::parse("0.134145") * x * x + 1);
}

// 1 / sqrt(2 pi) < 1/2
Interval tail_gelu(const Interval& x, const Interval&) { return x * exp(square(x) * -0.5) * 0.5; }
Interval tail_tanh_gelu(const Interval& x, const Interval&) {
  return (x * tanh_slope(x) + 1) * exp(-tanh_argument(x));
}
Interval tail_swish(const Interval& x, const Interval& b) {
  return (b * x).lower() < 2 ? Interval(1) : logistic(b * x);
}
Interval tail_quick(const Interval& x, const Interval&) { return logistic(Interval::parse("1.702") * x); }
Interval tail_silu(const Interval& x, const Interval&) { return logistic(x); }
Interval tail_mish_right(const Interval& x, const Interval&) { return (x * 4 + 2) * exp(x * -2); }
Interval tail_tanh(const Interval& x, const Interval&) { return exp(x * -2) * 4; }
Interval tail_exp(const Interval& x, const Interval&) { return exp(-x); }
Interval tail_elu(const Interval& x, const Interval& a) { return a * exp(-x); }

constexpr Known kKnown[] = {
    {"gelu", "x*normal_cdf(x)", true, false, tail_gelu, tail_gelu, 1, 0, kInfinity},
    {"gelu_tanh", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", true, false, tail_tanh_gelu, tail_tanh_gelu, 1,
     0, kInfinity},
    {"quick_gelu", "x*sigmoid(1.702*x)", true, false, tail_quick, tail_quick, 1, 0, kInfinity},
    {"silu", "x*sigmoid(x)", true, false, tail_silu, tail_silu, 1, 0, kInfinity},
    {"swish", "x*sigmoid(0.5*x)", true, true, tail_swish, tail_swish, 1, 0, kInfinity},
    {"mish", "x*tanh(softplus(x))", true, false, tail_silu, tail_mish_right, 1, 0, kInfinity},
    {"tanh", "tanh(x)", false, false, tail_tanh, tail_tanh, 0, -1, 1},
    {"sigmoid", "sigmoid(x)", false, false, tail_exp, tail_exp, 0, 0, 1},
    {"softplus", "softplus(x)", false, false, tail_exp, tail_exp, 1, 0, kInfinity},
    {"elu", "0.5*(exp(x)-1)", false, true, tail_elu, tail_elu, 1, 0, kInfinity},
};

const Known* known(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return name == k.name; });
  return found == std::end(kKnown) ? nullptr : found;
}

// The literal of a parametrised activation, or 0 if the text is another function.
std::optional<Interval> parameter_of(const Known& k, const Function& f) {
  const Function pattern = Function::parse(k.pattern);
  if (!k.parameter) return f == pattern ? std::optional<Interval>(1) : std::nullopt;
  const Interval* literal = f.match(pattern, kHole);
  return literal && literal->positive() ? std::optional<Interval>(*literal) : std::nullopt;
}

int far_end(Interval (*tail)(const Interval&, const Interval&), const Interval& parameter,
            double tail_slope) {
  int end = kFirstTail;
  while (end < kLastTail && !(tail(end, parameter).upper() <= tail_slope)) ++end;
  return end;
}

// f'' over [a, b] by its Taylor polynomial at the middle. What is small beside its own terms, as the f'' of
// log(1+exp(x)) is from x = 8 on, has an enclosure by plain evaluation that holds 0 unless b - a is as small.
Interval bend_by_polynomial(const Function& f, double a, double b) {
  constexpr int kOrder = 12;
  const double middle = a + (b - a) / 2;
  const auto at = f.taylor(MediumInterval(middle), kOrder - 1), rest = f.taylor(MediumInterval(a, b), kOrder);
  const MediumInterval shift = MediumInterval(a, b) - middle;
  MediumInterval sum = rest[kOrder] * static_cast<double>(kOrder * (kOrder - 1));
  for (int k = kOrder; k-- > 2;)
    sum = sum * shift + at[static_cast<size_t>(k)] * static_cast<double>(k * (k - 1));
  return Interval(sum);
}

void scan(Formula& formula, double a, double b, bool own) {
  if (formula.parts.size() > kMaxParts) return;
  auto d = formula.f.at<2>(Interval(a, b));
  if (own && !d[2].positive() && !d[2].negative()) {
    const Interval by_polynomial = bend_by_polynomial(formula.f, a, b);
    if (by_polynomial.positive() || by_polynomial.negative()) d[2] = by_polynomial;
  }
  const int bend = d[2].positive() ? 1 : d[2].negative() ? -1 : 0;
  const double middle = a + (b - a) / 2;
  if (bend == 0 && b - a > kBracket * std::max(1.0, std::fabs(a)) && a < middle && middle < b) {
    scan(formula, a, middle, own);
    scan(formula, middle, b, own);
    return;
  }
  // Computed over a bracket by the mean value, because f' evaluated there directly is as wide as the bracket
  // is long.
  const auto slope_at = [&](double x) { return formula.f.at<1>(Interval(x))[1]; };
  const Interval slopes =
      bend == 0 ? slope_at(middle) + d[2] * (Interval(a, b) - middle) : hull(slope_at(a), slope_at(b));
  formula.parts.push_back({a, b, bend, slopes});
}

// `own`: f is a user's own; the known ones do not cancel.
void scan_all(Formula& formula, std::string& problem, bool own) {
  for (double a = formula.far_low; a < formula.far_high;) {
    const double b = std::min(a + kScanStep, formula.far_high);
    scan(formula, a, b, own);
    a = b;
  }
  if (formula.parts.size() <= kMaxParts) return;
  problem = fmt::format("f'' could not be told from 0 near x = {:.6g}", formula.parts.back().low);
}

// The x with f(x) near y, by bisection from f(low) < y < f(high). Used where double loses the digits of f.
double bisect(const Function& f, double low, double high, const Interval& y) {
  for (int step = 0; step < 60; ++step) {
    const double middle = low + (high - low) / 2;
    (certainly_less(f.at<0>(Interval(middle))[0], y) ? low : high) = middle;
  }
  return low;
}

// Encloses f over [a, b], in parts where f's sign is not told from the whole.
Interval values_of_piece(const Function& f, double a, double b, const Interval& whole) {
  const double middle = a + (b - a) / 2;
  const auto straddles = [](const Interval& v) { return v.lower() < 0 && v.upper() > 0; };
  if (!straddles(whole) || b - a <= kTailPiece) return whole;
  const auto part = [&](double from, double to) {
    return values_of_piece(f, from, to, f.at<0>(Interval(from, to))[0]);
  };
  const Interval left = part(a, middle);
  return straddles(left) ? whole : hull(left, part(middle, b));
}

// Encloses f and f' over [a, b] in unit steps. f's sign matters: what stands for values beyond 0 stands for
// nothing if f stays on one side.
void enclose_tail(const Function& f, double a, double b, Interval& values, Interval& slopes) {
  values = f.at<0>(Interval(a))[0], slopes = f.at<1>(Interval(a))[1];
  for (double x = a; x < b; ++x) {
    const double end = std::min(x + 1, b);
    const auto d = f.at<1>(Interval(x, end));
    values = hull(values, values_of_piece(f, x, end, d[0])), slopes = hull(slopes, d[1]);
  }
}

Formula expression(const Function& f, double tail_slope) {
  Formula formula{f, -kInfinity, kInfinity, -kExpressionEnd, kExpressionEnd, 0, 0, 0, 0, true, {}};
  const auto slopes = [&](double a) { return f.at<1>(Interval(a, a + 1))[1]; };
  // Where a function is small everywhere, what is flat beside 1 need not be flat beside its own f'.
  double steepest = 0;
  for (double a = -kExpressionEnd; a < kExpressionEnd; ++a)
    steepest = std::max(steepest, slopes(a).magnitude());
  const double flat = tail_slope * std::min(1.0, 4 * steepest);
  // The tails of the domain where f' is practically constant and may be lost in the rounding of large
  // intermediate values.
  const auto is_flat = [&](double a, const Interval& limit) {
    return (slopes(a) - limit).magnitude() <= flat;
  };
  while (formula.far_low < 0 && is_flat(formula.far_low, 0)) ++formula.far_low;
  const Interval last = f.at<1>(Interval(kExpressionEnd))[1];
  while (formula.far_high > 0 && is_flat(formula.far_high - 1, last)) --formula.far_high;
  enclose_tail(f, -kExpressionEnd, formula.far_low, formula.low_values, formula.low_slopes);
  enclose_tail(f, formula.far_high, kExpressionEnd, formula.high_values, formula.high_slopes);
  return formula;
}

}  // namespace

Interval Formula::slopes(double a, double b) const {
  std::optional<Interval> range;
  const auto join = [&](const Interval& v) { range = range ? hull(*range, v) : v; };
  const auto at = [&](double x) {
    join(x <= far_low ? low_slopes : x >= far_high ? high_slopes : f.at<1>(Interval(x))[1]);
  };
  // Beyond the beginnings of the tails one enclosure serves all points. A point in a tail is evaluated only
  // for a tighter end.
  at(std::max(a, low)), at(std::min(b, high));
  if (a > far_high && std::isfinite(a) && a <= high) join(f.at<1>(Interval(a))[1]);
  if (a < far_low) join(low_slopes);
  if (b > far_high) join(high_slopes);
  for (const Part& part : parts) {
    if (part.bend == 0 && part.low <= b && a <= part.high) join(part.slopes);
  }
  return *range;
}

bool Formula::bends_upwards(double a, double b) const {
  if (a < far_low || b > far_high) return false;
  return std::all_of(parts.begin(), parts.end(),
                     [&](const Part& part) { return part.low > b || part.high < a || part.bend > 0; });
}

Interval Formula::inverse(const Interval& y) const {
  if (!certainly_less(f.at<0>(Interval(far_low))[0], y)) return {low, far_low};
  if (bounded_above && !certainly_less(y, f.at<0>(Interval(far_high))[0])) return {far_high, high};
  const double target = y.middle();
  double below = far_low, above = far_high;
  while (f.approximate(above)[0] < target && above < std::numeric_limits<double>::max() / 4)
    above += std::fabs(above) + 1;
  for (int step = 0; step < 80 && below < above; ++step) {
    const double x = below + (above - below) / 2;
    (f.approximate(x)[0] > target ? above : below) = x;
  }
  Interval x = below;
  for (const bool careful : {false, true}) {
    if (careful) x = bisect(f, far_low, std::max(above, far_high), y);
    const double scale = std::max(1.0, x.magnitude());
    for (int step = 0; step < 10; ++step) {
      const auto d = f.at<1>(x);
      const Interval next = (x - (d[0] - y) / d[1]).keep_lower();
      const double moved = (next - x).magnitude();
      if (!std::isfinite(moved)) break;
      x = next;
      if (moved < 0x1p-100 * scale) break;  // the next step would be below 2^-190
    }
    for (double radius = 0x1p-180 * scale; radius < kClose * scale; radius *= 16) {
      const Interval x_low = (x - radius).keep_lower(), x_high = (x + radius).keep_upper();
      if (certainly_less(f.at<0>(x_low)[0], y) && certainly_less(y, f.at<0>(x_high)[0]))
        return hull(x_low, x_high);
    }
  }
  return {low, high};
}

std::string name_problem(const std::string& name, const std::string& function, bool masked) {
  const Function f = Function::parse(function);
  if (name == "expression") return "";
  const Known* k = known(name);
  if (!k) return fmt::format("unknown activation {}", name);
  if (!parameter_of(*k, f)) return fmt::format("kFunction is not the function of {}", name);
  if (k->masked != masked) return fmt::format("{} {} a minimum", name, k->masked ? "has" : "has not");
  return "";
}

Activation::Activation(OnlyByActivationOf, const std::string& name, const std::string& function, bool masked,
                       double tail_slope)
    : problem_(name_problem(name, function, masked)) {
  const Function f = Function::parse(function);
  limited_ = name == "expression";
  if (!problem_.empty()) return;
  if (limited_) {
    formulas_.push_back(expression(f, tail_slope));
  } else {
    const Known& k = *known(name);
    const Interval parameter = *parameter_of(k, f);
    const bool is_elu = name == "elu";
    const int left = far_end(k.left, parameter, tail_slope), right = far_end(k.right, parameter, tail_slope);
    if (left >= kLastTail || right >= kLastTail) {
      problem_ = fmt::format("the tails of {} begin beyond |x| = {}", name, kLastTail);
      return;
    }
    Formula formula{f,
                    -kInfinity,
                    is_elu ? 0 : kInfinity,
                    -static_cast<double>(left),
                    is_elu ? 0 : static_cast<double>(right),
                    0,
                    0,
                    0,
                    0,
                    is_elu || std::isfinite(k.right_value),
                    {}};
    const Interval left_value = is_elu ? -parameter : Interval(k.left_value);
    formula.low_slopes = k.masked ? Interval(-tail_slope, 0) : Interval(0, tail_slope);
    formula.low_values = hull(left_value, f.at<0>(Interval(formula.far_low))[0]);
    if (is_elu) {
      formula.high_slopes = f.at<1>(Interval(0.0))[1], formula.high_values = 0;
    } else {
      formula.high_slopes = Interval(k.right_slope) + symmetric(Interval(tail_slope));
      const Interval at_far = f.at<0>(Interval(formula.far_high))[0];
      formula.high_values = std::isfinite(k.right_value) ? hull(at_far, k.right_value)
                                                         : hull(at_far, Interval(kInfinity, kInfinity));
    }
    formulas_.push_back(std::move(formula));
    if (is_elu)
      formulas_.push_back(
          {Function::parse("x"), 0, kInfinity, 0, 1, 1, 0, 1, Interval(1, kInfinity), false, {}});
  }
  for (Formula& formula : formulas_) {
    // A straight line has no zero of f'' to isolate.
    if (formula.f == Function::parse("x")) {
      formula.parts.push_back({formula.far_low, formula.far_high, -1, 1});
    } else {
      scan_all(formula, problem_, limited_);
    }
  }
  if (!problem_.empty()) return;
  if (masked) {
    prove_one_minimum();
  } else {
    prove_rising();
  }
}

void Activation::prove_rising() {
  for (const Formula& formula : formulas_) {
    for (const Formula::Part& part : formula.parts) {
      if (part.slopes.positive()) continue;
      problem_ = fmt::format("f does not rise at x = {:.6g}", part.low);
      problem_is_certain_ = formula.f.at<1>(Interval(part.low))[1].negative();
      return;
    }
  }
}

void Activation::prove_one_minimum() {
  const Formula& formula = only();
  const Formula::Part* turn = nullptr;
  for (const Formula::Part& part : formula.parts) {
    if (turn ? part.slopes.positive() : part.slopes.negative()) continue;
    const bool turns = !turn && part.bend > 0 && formula.f.at<1>(Interval(part.low))[1].negative() &&
                       formula.f.at<1>(Interval(part.high))[1].positive();
    if (!turns) {
      problem_ = fmt::format("f has not exactly one minimum: f' changes its sign near x = {:.6g}", part.low);
      // Right of the minimum f falls again; or f rises from the left end on, where it does not fall in the
      // tail that the parts leave out.
      problem_is_certain_ =
          turn ? part.slopes.negative() : part.slopes.positive() && formula.low_slopes.lower() >= 0;
      return;
    }
    turn = &part;
  }
  if (!turn) {
    problem_ = "f has no minimum";
    // f' < 0 on every part, and f does not rise in the tail
    problem_is_certain_ = formula.high_slopes.upper() <= 0;
    return;
  }
  double low = turn->low, high = turn->high;
  for (int step = 0; step < 40; ++step) {
    const double middle = low + (high - low) / 2;
    (formula.f.approximate(middle)[1] < 0 ? low : high) = middle;
  }
  Interval x = low + (high - low) / 2;
  const auto slope = [&](const Interval& at) { return formula.f.at<1>(at.keep_lower())[1]; };
  // Newton's method doubles the correct bits, so eight steps exceed the precision. The signs at the ends
  // decide: a wrong guess costs a retry, not soundness.
  for (int step = 0; step < 8; ++step) {
    const auto d = formula.f.at<2>(x);
    x = (x - d[1] / d[2]).keep_lower();
  }
  double radius = kIsolationRadius;
  while (radius < 1 && !(slope(x - radius).negative() && slope((x + radius).keep_upper()).positive()))
    radius *= 4;
  if (!(radius < kBracket)) {
    problem_ = fmt::format("the minimum near x = {:.6g} could not be isolated", low);
    return;
  }
  x_star_ = hull(x - radius, x + radius);
  // f is flat there: its values over the interval differ by about the square of its width.
  y_star_ =
      formula.f.at<0>(x)[0] + symmetric((absolute(formula.f.at<1>(x_star_)[1]) * (2 * radius)).keep_upper());
  // f' has one zero on the part, because f'' keeps its sign there.
  const double fraction = std::nearbyint(x.middle() / kShortFraction) * kShortFraction;
  const Interval at_fraction = formula.f.at<1>(Interval(fraction))[1];
  if (turn->low <= fraction && fraction <= turn->high && at_fraction.is_point() &&
      at_fraction.contains_zero()) {
    x_star_ = fraction, y_star_ = formula.f.at<0>(x_star_)[0];
  }
  slope_at_minimum_ = sqrt(formula.f.at<2>(x_star_)[2] * 0.5).middle();
  s_infimum_ = -sqrt(hull(formula.low_values, formula.low_values).keep_upper() - y_star_);
  s_far_low_ = signed_root(formula.far_low);
  s_far_high_ = signed_root(formula.far_high);
}

Interval Activation::signed_root(const Interval& x, const Interval& f_of_x) const {
  const Interval root = sqrt(f_of_x - y_star_);
  if (certainly_less(x_star_, x)) return root;
  if (certainly_less(x, x_star_)) return -root;
  return symmetric(root.keep_upper());
}

Interval Activation::inverse_at(const Interval& s) const {
  const Formula& formula = only();
  if (!certainly_less(s_far_low_, s)) return {-kInfinity, formula.far_low};
  if (limited_ && !certainly_less(s, s_far_high_)) return {formula.far_high, kInfinity};
  Interval x = x_star_.keep_lower();
  if (!s.contains_zero()) {
    const double target = s.middle(), y = y_star_.middle() + target * target, minimum = x_star_.middle();
    double below = target < 0 ? formula.far_low : minimum, above = target < 0 ? minimum : formula.far_high;
    while (target > 0 && formula.f.approximate(above)[0] < y && above < 0x1p500) above += above + 1;
    for (int step = 0; step < 64; ++step) {
      const double middle = below + (above - below) / 2;
      ((formula.f.approximate(middle)[0] > y) == (target > 0) ? above : below) = middle;
    }
    // There bisection gives x - x* to 2^-42 and the linear start to 2^-10, which is enough for Newton's
    // method.
    constexpr double kNear = 0x1p-10;
    x = std::fabs(target) < kNear ? (x_star_ + s / slope_at_minimum_).keep_lower() : Interval(below);
  }
  for (const bool careful : {false, true}) {
    if (careful && s.contains_zero()) break;
    if (careful)
      x = bisect(formula.f, x_star_.middle(),
                 s.positive() ? std::max(formula.far_high, 2 * x.magnitude()) : formula.far_low,
                 square(s) + y_star_);
    const double scale = std::max(1.0, x.magnitude());
    for (int step = 0; step < 10 && !s.contains_zero(); ++step) {
      const auto d = formula.f.at<1>(x);
      const Interval root = signed_root(x, d[0]).keep_lower();
      const Interval next = (x - (root - s) * root * 2 / d[1]).keep_lower();
      const double moved = (next - x).magnitude();
      if (!std::isfinite(moved)) break;
      x = next;
      if (moved < 0x1p-100 * scale) break;  // the next step would be below 2^-190
    }
    for (double radius = 0x1p-180 * scale; radius < kClose * scale; radius *= 16) {
      const Interval low = (x - radius).keep_lower(), high = (x + radius).keep_upper();
      if (certainly_less(signed_root(low), s) && certainly_less(s, signed_root(high))) return hull(low, high);
    }
  }
  return Interval::whole_line();
}

Interval Activation::inverse_signed_root(const Interval& s) const {
  const Interval low = inverse_at(s.keep_lower());
  return s.is_point() ? low : hull(low, inverse_at(s.keep_upper()));
}

Interval Activation::g_slope(const Interval& s) const {
  const Interval x = inverse_signed_root(s);
  if (!std::isfinite(x.magnitude())) return Interval::whole_line();
  // dx/ds = 2 s / f'(x). With f(x) - y* = (x - x*)^2 h and f'(x) = (x - x*) k, where h is a mean of f''/2 and
  // k is a mean of f'' between x* and x, dx/ds = 2 sqrt(h) / k, which has no 0/0 at x*.
  const auto d = only().f.at<2>(x);
  const Interval by_quotient = d[2] * s * 2 / d[1];
  if (std::isfinite(by_quotient.magnitude()) && s.mignitude() > 0x1p-6) return by_quotient;
  const Interval between = only().f.at<2>(hull(x, x_star_))[2];
  const Interval by_means = d[2] * sqrt(between * 2) / between;
  return by_means.width() < by_quotient.width() ? by_means : by_quotient;
}

const Activation& activation_of(const std::string& name, const std::string& function, bool masked,
                                double tail_slope) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, std::string, bool, double>, Activation> made;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(name, function, masked, tail_slope);
  return made.try_emplace(key, Activation::OnlyByActivationOf(), name, function, masked, tail_slope)
      .first->second;
}

}  // namespace outgrad::validation
