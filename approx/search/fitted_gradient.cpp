// Bounds how far the g of a deployed f32 fit is from f'(x).
//
// Next to x* every f32 x is tried as deployed. Elsewhere y is within kForwardUlps of f(x), so g is that of a
// y' that differs from f(x) by no more than
//   move = kForwardUlps ulp(f(x)) + |y* - y_c|,
// up to the fit's proven A + B. y' = f(x') for an x' on the same branch, and f'(x') - f'(x) is bounded over a
// neighbourhood of x that is proven to hold x'; or, in a tail, by the range of f' from a point on that x'
// cannot pass.
#include "approx/search/fitted_gradient.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

/// How far the library's f32 forward is from f(x) at most, in ulp of f(x): `outgrad validate` tries every x.
/// GELU's is 2 away from x*, the others are within 0.5 + 2^-20.
constexpr double kForwardUlps = 2;
/// Where every x is tried: |x - x*| up to here.
constexpr double kTried = 0x1p-8;

/// Every f32 x next to x*, in blocks over which f' is linear to far below any error.
double error_near_minimum(const Composite& composite, float (*gradient)(float x)) {
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
    const Ball slope = composite.gradient(Ball::hull(block[0], block[kBlock - 1]), 2)[1];
    const Ball value = composite.gradient(middle, 1)[0];
    for (const float each : block) {
      const Ball truth = value + slope * (Ball(each) - middle);
      worst = std::max(worst, (Ball(gradient(each)) - truth).magnitude());
    }
  }
  return worst;
}

/// sup |f'(x') - f'(x)| over x from `start` outwards.
double change_from(const Composite& composite, double start, bool right, double shift) {
  const Activation& f = composite.activation();
  const double out = right ? 1 : -1;
  // How far y' may be off for any x of a part, whose |f| is at most `size`.
  const auto move_of = [&](double size) {
    return (kForwardUlps * std::max(0x1p-23 * size, 0x1p-149) + shift) * kSumsUp;
  };
  // In the tail from `at` on, reached from `step` further in: f moves more between the two than y' is off
  // f(x). Where f grows without end, f' is above 1/2 there: f moves by 2^-4 over 1/8, enough for x up to
  // 2^17, and by x/4 over x/2, enough for all others.
  const auto tail_reached = [&](double at, double step) {
    const Ball inner(at - out * step);
    const Activation::TailRange range = f.gradient_tail_range(inner, right);
    const double limit = right ? f.right_limit_gradient : f.left_limit_gradient;
    const bool grows = limit != 0 && std::max(range.below, range.above) < 0.5 && std::abs(at) >= 4;
    const double size = std::max(f.value_ball(Ball(at)).magnitude(),
                                 std::abs(right ? composite.right_limit() : composite.left_limit()));
    const bool holds =
        grows ? shift < 0x1p-10 : (abs(f.value_ball(Ball(at)) - f.value_ball(inner))).lower() > move_of(size);
    return holds ? (range.below + range.above) * kSumsUp : INFINITY;
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
    const double width = std::min(kWidest, kGrowth * std::abs(at - composite.x_star().to_double()));
    const double next = at + out * width;
    const Ball x = Ball::hull(at, next);
    const double move = move_of(f.value_ball(x).magnitude()),
                 least = abs(composite.gradient(x, 1)[0]).lower();
    const double radius = least > 0 ? 2 * move / least : 0;
    const Ball around = Ball::hull(std::min(at, next) - radius, std::max(at, next) + radius);
    const Series g = composite.gradient(around, 2);
    const double slope = abs(g[0]).lower();
    if (!(radius > 0 && slope * radius > move)) {  // f' is too small for that
      if (rest < 1) return std::max(worst, rest);
      throw kernels::SpecError(fmt::format("undecided: how far g moves with y near x = {:.6g}", at));
    }
    worst = std::max(worst, g[1].magnitude() * move / slope * kSumsUp);
    at = next;
  }
  throw kernels::SpecError("undecided: f' does not settle within its reach");
}

}  // namespace

double fitted_gradient_error(const Composite& composite, const FittedGradient& deployed) {
  const double x_star = composite.x_star().to_double(),
               shift = (composite.y_star() - Ball(deployed.y_c)).magnitude();
  const double left = change_from(composite, x_star - kTried, false, shift),
               right = change_from(composite, x_star + kTried, true, shift);
  return std::max(deployed.error + std::max(left, right), error_near_minimum(composite, deployed.gradient)) *
         kSumsUp;
}

}  // namespace outgrad::approx
