#include "approx/activations.h"

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
    EXPECT_LE(std::abs(gelu.value(x) - ball.to_double()), 1e-15 * (1 + x * x) * std::abs(gelu.value(x))) << x;  // erfc's condition number grows as x^2
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

TEST(Activations, TailBoundsHoldAndAreNotEmpty) {
  const Activation gelu = find_activation("gelu");
  for (double x = 2; x < 14; x += 0.25) {
    const Series right = gelu.value_series(Series::variable(Ball(x), 2)), left = gelu.value_series(Series::variable(Ball(-x), 2));
    EXPECT_LT((right[1] - Ball(1.0)).magnitude(), gelu.right_gradient_tail(Ball(x)).lower());
    EXPECT_LT(left[1].magnitude(), gelu.left_gradient_tail(Ball(-x)).lower());
    EXPECT_GT((right[1] - Ball(1.0)).magnitude() * 2, gelu.right_gradient_tail(Ball(x)).upper() * 0.9);
  }
}

TEST(Activations, UnknownNameIsRefused) { EXPECT_THROW(find_activation("relu"), kernels::SpecError); }

}  // namespace
}  // namespace outgrad::approx
