// The range of f' by bisection over balls: a part is done where its enclosure is within 2^-30 of what f' is known to reach.
//
// The error of g = fit(y, m) against f'(x), y the library's f32 forward of x. Next to x* every f32 x is tried as deployed. Elsewhere y is
// within kForwardUlps of f(x), so g is that of a y' that differs from f(x) by no more than
//   move = kForwardUlps ulp(f(x)) + |y* - y_c|,
// up to the fit's proven A + B. y' = f(x') for an x' on the same branch, and f'(x') - f'(x) is bounded over a neighbourhood of x that is
// proven to hold x'; or, in a tail, by the range of f' from a point on that x' cannot pass.
#include "approx/search/code_fit.h"

#include "approx/function/composite.h"
#include "kernels/activations.h"
#include "kernels/code.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

/// How far the library's f32 forward is from f(x) at most, in ulp of f(x): `outgrad validate` tries every x. Of GELU it is 2 away from x*, of
/// the others 0.5 + 2^-20.
constexpr double kForwardUlps = 2;
/// Where every x is tried: |x - x*| up to here.
constexpr double kTried = 0x1p-8;
/// Sums of a few doubles below are rounded up by this.
constexpr double kRoomUp = 1 + 0x1p-40;

/// What the fitter has to know of a deployed f32 fit and its forward.
struct Deployed {
  const char* activation;
  const char* fit;
  const char* function;
  double error;                 ///< A + B
  double y_c;                   ///< of the deployed coordinate
  float (*gradient)(float x);
};

template <class Fit, class Forward>
Deployed deployed() {
  Deployed d{Fit::kActivation, Fit::kName, Fit::kFunction, Fit::kAB, 0, [](float x) { return kernels::gradient_at<Fit, Forward>(x); }};
  if constexpr (Fit::kMasked) d.y_c = static_cast<double>(Fit::kYHi) + static_cast<double>(Fit::kYLo);
  return d;
}

template <class... Fit, class... Forward>
std::vector<Deployed> list_of(kernels::FitList<Fit...>, kernels::ForwardList<Forward...>) {
  return [&]<class Gelu, class... Other>(kernels::FitList<Gelu, Other...>) {
    return std::vector<Deployed>{deployed<Gelu, kernels::ForwardFit<float>::Type>(), deployed<Other, Forward>()...};
  }(kernels::FitList<Fit...>{});
}

const Deployed& deployed_of(const Spec& spec) {
  static const std::vector<Deployed> all = list_of(kernels::ActivationFits<float>::Type{}, kernels::ActivationForwards{});
  for (const Deployed& d : all) {
    if (spec.activation.name != d.activation) continue;
    if (spec.code->fit != d.fit) throw kernels::SpecError(fmt::format("{}: fit: '{}' is not the library's f32 fit, {}", spec.name, spec.code->fit, d.fit));
    if (spec.activation.function != d.function) throw kernels::SpecError(fmt::format("{}: {} is fitted for {}", spec.name, d.fit, d.function));
    return d;
  }
  throw kernels::SpecError(fmt::format("{}: the library has no f32 fit of '{}'", spec.name, spec.activation.name));
}

Ball ball_of(double a, double b) { return Ball::hull(Ball(a), Ball(b)); }

/// sup of sign f'.
class Extreme {
 public:
  Extreme(const Composite& composite, double sign) : composite_(composite), sign_(sign) {
    const Activation& f = composite.activation();
    const double low = sign * f.left_limit_gradient, high = sign * f.right_limit_gradient;
    reached_ = std::max(low, high);
    bound_ = reached_ + f.beyond;
    constexpr int kParts = 1024;
    for (int k = 0; k < kParts; ++k) search(f.reach * (2.0 * k / kParts - 1), f.reach * (2.0 * (k + 1) / kParts - 1), 0);
  }
  [[nodiscard]] double bound() const { return bound_; }

 private:
  void search(double a, double b, int depth) {
    const Ball x = ball_of(a, b), middle = x.midpoint();
    const Series wide = composite_.gradient(x, 2);
    const Ball point = composite_.gradient(middle, 1)[0];
    reached_ = std::max(reached_, (Ball(sign_) * point).lower());
    const double direct = (Ball(sign_) * wide[0]).upper(), mean = (Ball(sign_) * (point + wide[1] * (x - middle))).upper();
    const double above = std::isfinite(direct) && std::isfinite(mean) ? std::min(direct, mean) : std::isfinite(mean) ? mean : direct;
    constexpr double kClose = 0x1p-30;
    if (above <= reached_ + kClose) {
      bound_ = std::max(bound_, above);
      return;
    }
    constexpr int kDeepest = 60;
    if (depth == kDeepest) throw kernels::SpecError(fmt::format("undecided: the range of f' near x = {:.6g}", a));
    search(a, middle.to_double(), depth + 1);
    search(middle.to_double(), b, depth + 1);
  }

  const Composite& composite_;
  double sign_, reached_ = 0, bound_ = 0;
};

/// Outwards on a grid of floats that holds every bound exactly, 2^-23 for |f'| < 2, with room for the enclosures of a second proof.
float outwards(double v, bool up) {
  constexpr double kGrid = 0x1p-23, kRoom = 0x1p-40;
  return static_cast<float>((up ? std::ceil((v + kRoom) / kGrid) : std::floor((v - kRoom) / kGrid)) * kGrid);
}

/// Every f32 x next to x*, in blocks over which f' is linear to far below any error.
double error_near_minimum(const Composite& composite, const Deployed& deployed) {
  constexpr int kBlock = 64;
  const double x_star = composite.x_star().to_double(), end = x_star + kTried;
  double worst = 0;
  for (auto x = static_cast<float>(x_star - kTried); static_cast<double>(x) <= end;) {
    float block[kBlock];
    for (float& each : block) {
      each = x;
      x = std::nextafter(x, INFINITY);
    }
    const Ball middle(0.5 * (static_cast<double>(block[0]) + static_cast<double>(block[kBlock - 1])));
    const Ball slope = composite.gradient(ball_of(static_cast<double>(block[0]), static_cast<double>(block[kBlock - 1])), 2)[1];
    const Ball value = composite.gradient(middle, 1)[0];
    for (const float each : block) {
      const Ball truth = value + slope * (Ball(static_cast<double>(each)) - middle);
      worst = std::max(worst, (Ball(static_cast<double>(deployed.gradient(each))) - truth).magnitude());
    }
  }
  return worst;
}

/// sup |f'(x') - f'(x)| over x from `start` outwards.
double change_from(const Composite& composite, double start, bool right, double shift) {
  const Activation& f = composite.activation();
  const double out = right ? 1 : -1;
  // Of all x of a part, whose |f| is at most `size`.
  const auto move_of = [&](double size) { return (kForwardUlps * std::max(0x1p-23 * size, 0x1p-149) + shift) * kRoomUp; };
  // In the tail from `at` on, reached from `step` further in: f moves more between the two than y' is off f(x). Where f grows without end, f'
  // is above 1/2 there: f moves by 2^-4 over 1/8, enough for x up to 2^17, and by x/4 over x/2, enough for all others.
  const auto tail_reached = [&](double at, double step) {
    const Ball inner(at - out * step);
    const Activation::TailRange range = f.gradient_tail_range(inner, right);
    const double limit = right ? f.right_limit_gradient : f.left_limit_gradient;
    const bool grows = limit != 0 && std::max(range.below, range.above) < 0.5 && std::abs(at) >= 4;
    const double size = std::max(f.value_ball(Ball(at)).magnitude(), std::abs(right ? composite.right_limit() : composite.left_limit()));
    const bool holds = grows ? shift < 0x1p-10 : (abs(f.value_ball(Ball(at)) - f.value_ball(inner))).lower() > move_of(size);
    return holds ? (range.below + range.above) * kRoomUp : INFINITY;
  };
  const auto tail = [&](double at) {
    double least = INFINITY;
    for (double step = 1; step >= 0.125; step *= 0.5) least = std::min(least, tail_reached(at, step));
    return least;
  };
  constexpr double kSettledTail = 0x1p-22, kWidest = 0x1p-4, kGrowth = 0.125;
  double worst = 0;
  for (double at = start; std::abs(at) < f.reach;) {
    const double rest = tail(at);
    if (rest <= kSettledTail) return std::max(worst, rest);
    const double width = composite.masked() ? std::min(kWidest, kGrowth * std::abs(at - composite.x_star().to_double())) : kWidest;
    const double next = at + out * width;
    const Ball x = ball_of(std::min(at, next), std::max(at, next));
    const double move = move_of(f.value_ball(x).magnitude()), least = abs(composite.gradient(x, 1)[0]).lower();
    const double radius = least > 0 ? 2 * move / least : 0;
    const Ball around = ball_of(std::min(at, next) - radius, std::max(at, next) + radius);
    const Series g = composite.gradient(around, 2);
    const double slope = abs(g[0]).lower();
    if (!(radius > 0 && slope * radius > move)) {  // f' is too small for that
      if (rest < 1) return std::max(worst, rest);
      throw kernels::SpecError(fmt::format("undecided: how far g moves with y near x = {:.6g}", at));
    }
    worst = std::max(worst, g[1].magnitude() * move / slope * kRoomUp);
    at = next;
  }
  throw kernels::SpecError("undecided: f' does not settle within its reach");
}

/// The largest |value - f'| over the f' that a code stands for. g in cells, a number below 512, is rounded by `rounding` at most.
double exact_error(const CodeModel& m, int bits) {
  const kernels::CodeRule rule = kernels::exact_code({m.kLo, m.kHi}, bits);
  const double lo = static_cast<double>(m.kLo), hi = static_cast<double>(m.kHi), rounding = 0x1p-16;
  const int parts = 1 << rule.shift;
  double worst = 0;
  for (int code = 0; code < 1 << bits; ++code) {
    const auto value = static_cast<double>(kernels::gradient_of_code(rule, static_cast<kernels::u8>(code)));
    const auto edge = [&](double cells) { return (cells - static_cast<double>(rule.offset)) / static_cast<double>(rule.scale); };
    const double first = edge(code * parts - 0.5 - rounding) - m.kG, last = edge((code + 1) * parts - 0.5 + rounding) + m.kG;
    worst = std::max({worst, value - std::max(first, lo), std::min(last, hi) - value});
  }
  return worst * kRoomUp;
}

/// What a dithered code's arithmetic adds to half a step: roundings of numbers below 8, in steps of `width`, and of the result.
double dithered_rounding(double width) { return 0x1p-19 * width + 0x1p-22; }

}  // namespace

CodeModel fit_code(const Composite& composite, const Spec& spec) {
  const Deployed& deployed = deployed_of(spec);
  CodeModel m;
  m.fit = deployed.fit;
  // A rising f has no f' < 0.
  m.kLo = composite.masked() ? outwards(-Extreme(composite, -1).bound(), false) : 0.0f;
  m.kHi = outwards(Extreme(composite, 1).bound(), true);
  const double shift = composite.masked() ? (composite.y_star() - Ball(deployed.y_c)).magnitude() : 0;
  const double left = composite.masked() ? composite.x_star().to_double() - kTried : 0,
               right = composite.masked() ? composite.x_star().to_double() + kTried : 0;
  m.kG = deployed.error + std::max(change_from(composite, left, false, shift), change_from(composite, right, true, shift));
  if (composite.masked()) m.kG = std::max(m.kG, error_near_minimum(composite, deployed));
  m.kG *= kRoomUp;
  if (!(m.kG <= spec.target)) {
    throw kernels::SpecError(fmt::format("{}: target {} is not reached: g is within 2^{:.2f} of f'", spec.name, spec.accuracy, std::log2(m.kG)));
  }
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits) m.kT[static_cast<size_t>(bits - 1)] = exact_error(m, bits);
  for (int bits = kernels::kLeastDitheredBits; bits <= kernels::kMostDitheredBits; ++bits) {
    const double width = (static_cast<double>(m.kHi) - static_cast<double>(m.kLo)) / ((1 << bits) - 1);
    m.kDithered[static_cast<size_t>(bits - kernels::kLeastDitheredBits)] = (0.5 * width + m.kG + dithered_rounding(width)) * kRoomUp;
    m.kBias = std::max(m.kBias, (m.kG + dithered_rounding(width)) * kRoomUp);
  }
  return m;
}

}  // namespace outgrad::approx
