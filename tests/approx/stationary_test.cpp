#include "approx/stationary.h"

#include "kernels/host/errors.h"

#include <gtest/gtest.h>

namespace outgrad::approx {
namespace {

Minimum minimum_of(const std::string& name) {
  Activation a = find_activation(name);
  return survey(a).minimum.value();
}

std::string refusal(const std::string& expression) {
  try {
    Activation a = activation_from_expression(expression);
    survey(a);
  } catch (const kernels::SpecError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Stationary, EnclosesTheMinimumOfGelu) {
  const Minimum m = minimum_of("gelu");
  // x phi(x) + Phi(x) = 0, to 30 digits by mpmath's findroot and ncdf.
  const Real x_star("-0.75179152469356437714839345977");
  EXPECT_LT(abs(m.x_star - Ball(x_star)).magnitude(), 1e-16);
  EXPECT_LT(m.y_star.upper() - m.y_star.lower(), 0x1p-50);
  EXPECT_GT(arb_rel_accuracy_bits(m.x_star.raw()), 200);
  const Series f = find_activation("gelu").value_series(Series::variable(m.x_star, 3));
  EXPECT_TRUE(f[1].holds_zero());
  EXPECT_TRUE(f[2].positive());
}

TEST(Stationary, ScalingTheArgumentScalesTheMinimum) {
  // f(x) = x sigmoid(b x) = g(b x)/b with g = silu.
  const Minimum silu = minimum_of("silu"), quick = minimum_of("quick_gelu");
  const Ball scale(Real("1.702"));
  EXPECT_LT(abs(quick.x_star * scale - silu.x_star).magnitude(), 1e-50);
  EXPECT_LT(abs(quick.y_star * scale - silu.y_star).magnitude(), 1e-50);
  // x = -1 - e^x... the stationary point of x/(1 + e^-x): 1 + e^-x + x e^-x = 0.
  const Ball e = exp(-silu.x_star);
  EXPECT_TRUE((Ball(1.0) + e + silu.x_star * e).holds_zero());
}

TEST(Stationary, IncreasingFunctionsHaveNone) {
  for (const char* name : {"tanh", "sigmoid", "softplus", "elu"}) {
    Activation a = find_activation(name);
    EXPECT_FALSE(survey(a).minimum.has_value()) << name;
  }
}

TEST(Stationary, AUsersOwnMishHasMishsMinimum) {
  Activation own = activation_from_expression("x*tanh(log(1+exp(x)))");
  const Minimum a = survey(own).minimum.value(), b = minimum_of("mish");
  EXPECT_TRUE(arb_overlaps(a.x_star.raw(), b.x_star.raw()));
  EXPECT_TRUE(arb_overlaps(a.y_star.raw(), b.y_star.raw()));
  EXPECT_EQ(own.left_limit_gradient, 0);
  EXPECT_EQ(own.right_limit_gradient, 1);
}

TEST(Stationary, WhatHasNoPlaceHereIsRefusedWithThePlace) {
  EXPECT_NE(refusal("sin(x)").find("stationary point"), std::string::npos) << refusal("sin(x)");
  for (const char* at_zero : {"1/x", "abs(x)", "x^3", "(x^2-1)^2", "log(x)"}) {
    const std::string why = refusal(at_zero);
    EXPECT_NE(why, "accepted") << at_zero;
    EXPECT_NE(why.find('['), std::string::npos) << why;
  }
  EXPECT_NE(refusal("abs(x)").find(": [-4.7"), std::string::npos) << refusal("abs(x)");  // next to 0
  EXPECT_NE(refusal("1/x").find(": [-4.7"), std::string::npos) << refusal("1/x");
  EXPECT_NE(refusal("exp(x)").find("settled"), std::string::npos) << refusal("exp(x)");
  EXPECT_NE(refusal("-x"), "accepted");
  // x sigmoid(x) is accepted: the refusals above are not of everything.
  EXPECT_EQ(refusal("x*sigmoid(x)"), "accepted");
}

}  // namespace
}  // namespace outgrad::approx
