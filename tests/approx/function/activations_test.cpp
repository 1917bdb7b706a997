#include "approx/function/activations.h"

#include "kernels/host/errors.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outgrad::approx {
namespace {

TEST(Activations, OneDefinitionAgreesOverItsScalars) {
  const Activation gelu = find_activation("gelu");
  for (const double x : {-13.5, -4.0, -0.75, -0x1p-30, 0.0, 0.3, 2.0, 9.0}) {
    const Ball ball = gelu.value_ball(Ball(x));
    EXPECT_LT((ball - Ball(gelu.value_real(Real(x)))).magnitude(), 0x1p-150 + std::abs(x) * 0x1p-150) << x;
    // erfc's condition number grows as x^2
    EXPECT_LE(std::abs(gelu.value(x) - ball.to_double()), 1e-15 * (1 + x * x) * std::abs(gelu.value(x))) << x;
    EXPECT_TRUE((gelu.value_series(Series::variable(Ball(x), 3))[0] - ball).holds_zero()) << x;
  }
}

TEST(Activations, SeriesOverABallEnclosesTheSeriesAtItsPoints) {
  const Activation gelu = find_activation("gelu");
  const Series wide = gelu.value_series(Series::variable(Ball::hull(Ball(-1.25), Ball(-0.75)), 8));
  for (const double x : {-1.25, -1.1, -0.9, -0.75}) {
    const Series point = gelu.value_series(Series::variable(Ball(x), 8));
    for (slong k = 0; k < 8; ++k) EXPECT_TRUE(arb_overlaps(wide[k].raw(), point[k].raw())) << x << " " << k;
  }
}

TEST(Activations, TailBoundsHoldAndAreTight) {
  for (const std::string& name : activation_names()) {
    const Activation f = find_activation(name);
    const Ball left_limit(f.left_limit_gradient), right_limit(f.right_limit_gradient);
    for (double x = 3; x < 14; x += 0.37) {
      const Ball right = f.gradient_tail(Ball(x), true), left = f.gradient_tail(Ball(-x), false);
      // The bound speaks for all points beyond; these fall, so the first is the largest.
      for (double z = x; z < x + 3; z += 0.5) {
        EXPECT_LE((f.value_series(Series::variable(Ball(z), 2))[1] - right_limit).magnitude(), right.upper())
            << name << " " << x;
        EXPECT_LE((f.value_series(Series::variable(Ball(-z), 2))[1] - left_limit).magnitude(), left.upper())
            << name << " " << x;
      }
      const double there = (f.value_series(Series::variable(Ball(-x), 2))[1] - left_limit).magnitude();
      EXPECT_LE(left.upper(), 1.05 * there + 0x1p-160) << name << " " << x;
    }
    EXPECT_LE(f.gradient_tail(Ball(-1e30), false), 0x1p-160) << name;
  }
}

TEST(Activations, EluIsLinearFromZeroOn) {
  const Activation elu = find_activation("elu", {.beta = 1, .alpha = 1.5});
  EXPECT_EQ(elu.value(2.5), 2.5);
  EXPECT_LT(abs(elu.value_ball(Ball(-1.0)) - Ball(1.5 * std::expm1(-1.0))).magnitude(), 1e-15);
  const Series joint = elu.value_series(Series::variable(Ball::hull(Ball(-0.5), Ball(0.5)), 2));
  EXPECT_TRUE(arb_contains_si(joint[1].raw(), 1));
  EXPECT_LE(joint[1].lower(), 1.5 * std::exp(-0.5));
}

// exp of a ball some octaves wide may hold 0 or what lies below it, and 1/(1 + exp) then has no enclosure:
// the formula's T was infinite.
TEST(Activations, TailsDoNotDependOnHowAGateIsWritten) {
  const Activation written_out = activation_from_expression("x*1/(1+exp(-(x+0.168*x^3)))"),
                   by_name = activation_from_expression("x*sigmoid(x+0.168*x^3)");
  for (const bool right : {false, true}) {
    for (double x = -1; x < 8; x += 0.37) {
      const Activation::TailRange a = written_out.gradient_tail_range(Ball(right ? x : -x), right),
                                  b = by_name.gradient_tail_range(Ball(right ? x : -x), right);
      EXPECT_NEAR(a.below, b.below, 0.02 * b.below + 0x1p-45) << x;
      EXPECT_NEAR(a.above, b.above, 0.02 * b.above + 0x1p-45) << x;
    }
  }
}

TEST(Activations, UnknownNameIsRefused) { EXPECT_THROW(find_activation("relu"), kernels::SpecError); }

// The f'' of log(1 + exp(x)) is e^-12.4 here, of terms of size 1: plain evaluation finds its sign in parts of
// 2^-20, a Taylor model at once.
TEST(Activations, TaylorModelsTellTheSignWherePlainEvaluationDoesNot) {
  const Activation f = activation_from_expression("log(1+exp(x))");
  for (const double x : {12.375, -7.0}) {
    const Ball around = Ball::hull(Ball(x - 0x1p-5), Ball(x + 0x1p-5));
    const Series plain = f.value_series(Series::variable(around, 3)), model = f.expand(around, 3);
    EXPECT_TRUE(plain[2].holds_zero() || x < 0) << x;
    EXPECT_TRUE(model[2].positive()) << x;
    for (const double at : {x - 0x1p-5, x, x + 0x1p-5}) {
      const Ball e = exp(-Ball(at)), sigma = Ball(1.0) / (Ball(1.0) + e);
      EXPECT_TRUE(arb_contains(model[0].raw(), (Ball(at) + log(Ball(1.0) + e)).midpoint().raw()) != 0) << at;
      EXPECT_TRUE(arb_contains(model[1].raw(), sigma.midpoint().raw()) != 0) << at;
      EXPECT_TRUE(arb_contains(model[2].raw(), (sigma * sigma * e * Ball(0.5)).midpoint().raw()) != 0) << at;
    }
    // Within a tenth: sigma (1 - sigma) changes by 3% over the part.
    const double size = 0.5 * std::exp(-std::abs(x));
    EXPECT_LT(model[2].upper() - model[2].lower(), 0.15 * size) << x;
  }
}

}  // namespace
}  // namespace outgrad::approx
