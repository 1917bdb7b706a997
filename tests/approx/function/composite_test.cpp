#include "approx/function/composite.h"

#include "tests/approx/shared.h"

#include <gtest/gtest.h>

namespace outgrad::approx {
namespace {

TEST(Composite, SignedRootSquaresToTheDistanceFromTheMinimum) {
  for (const double x : {-8.0, -2.0, -1.0, -0.7518, -0.7517, -0.5, 0.0, 3.0}) {
    const Ball s = gelu().coordinate(Coordinate::signed_root, Ball(x), 1)[0];
    const Ball distance = gelu().activation().value_ball(Ball(x)) - gelu().y_star();
    // Within 2^-13 of x* the quotient is an enclosure over the gap, not a division: still a few digits.
    EXPECT_LT((s * s - distance).magnitude(), 1e-3 * distance.magnitude()) << x;
    EXPECT_TRUE((s * s - distance).holds_zero()) << x;
    EXPECT_EQ(s.negative(), x < gelu().x_star().to_double()) << x;
  }
}

TEST(Composite, ArgumentOfRootInverts) {
  for (const double s : {-0.412, -0.3, -0.06, -0.01, 0.01, 0.06, 0.5, 2.5}) {
    const Real x = gelu().argument_of_root(Real(s));
    EXPECT_LT(abs(gelu().coordinate_at(Coordinate::signed_root, x) - Real(s)), 1e-24) << s;
  }
  for (const double y : {-0x1p-40, -0x1p-10, -0.1, -0.169}) {
    const Ball x = gelu().enclose_argument_of(Ball(y), false);
    EXPECT_TRUE((gelu().activation().value_ball(x) - Ball(y)).holds_zero()) << y;
  }
}

// Of a minimum of -2^-15 all s on the left are small, and the local expansion serves the least of them alone.
TEST(Composite, ArgumentsNextToAShallowMinimumAreEnclosed) {
  for (const char* expression : {"x*sigmoid(x-9)", "x*sigmoid(x-12)", "x*sigmoid(x-20)"}) {
    SCOPED_TRACE(expression);
    const Composite f(activation_from_expression(expression));
    for (const double share : {0.999, 0.9, 0.5, 0.1, 1e-3}) {
      const Ball y = Ball(share) * f.y_star();
      for (const bool right : {false, true})
        EXPECT_TRUE((f.activation().value_ball(f.enclose_argument_of(y, right)) - y).holds_zero())
            << share << ' ' << right;
    }
  }
}

TEST(Composite, QuotientEnclosesAcrossItsRoot) {
  // Over a ball that holds x*, every coefficient of h must overlap those at points of the ball.
  const Ball wide = Ball::hull(gelu().x_star() - Ball(0.01), gelu().x_star() + Ball(0.02));
  const Series h = gelu().quotient(wide, gelu().x_star(), 2, 6);
  for (const double w : {-0.01, 0.005, 0.02}) {
    const Series at = gelu().quotient((gelu().x_star() + Ball(w)).midpoint(), gelu().x_star(), 2, 6);
    for (slong k = 0; k < 6; ++k) EXPECT_TRUE(arb_overlaps(h[k].raw(), at[k].raw())) << w << " " << k;
  }
  // h(x*) = f''(x*)/2.
  const Ball curvature = gelu().value(gelu().x_star(), 3)[2];
  EXPECT_TRUE(arb_overlaps(h[0].raw(), curvature.raw()));
}

}  // namespace
}  // namespace outgrad::approx
