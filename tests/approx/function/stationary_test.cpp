#include "approx/function/stationary.h"

#include "tests/refusal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

namespace outgrad::approx {
namespace {

Minimum minimum_of(const std::string& name) {
  Activation a = find_activation(name);
  return survey(a).value();
}

std::string refusal_of_survey(const std::string& expression) {
  return refusal_of([&] {
    Activation a = activation_from_expression(expression);
    survey(a);
  });
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

TEST(Stationary, ANarrowMinimumIsEnclosedToo) {
  const Minimum silu = minimum_of("silu");
  for (const double beta : {16.0, 1000.0, 20000.0}) {
    Activation narrow = activation_from_expression("x*sigmoid(" + std::to_string(beta) + "*x)");
    const Minimum m = survey(narrow).value();
    EXPECT_LT(abs(m.x_star * Ball(beta) - silu.x_star).magnitude(), 1e-50) << beta;
  }
}

TEST(Stationary, ParametersKeepTheShape) {
  const Minimum silu = minimum_of("silu");
  for (const double beta : {1e-3, 0.3, 1e3}) {
    Activation swish = find_activation("swish", {.beta = beta});
    EXPECT_TRUE((survey(swish).value().x_star * Ball(beta) - silu.x_star).holds_zero()) << beta;
  }
  for (const double alpha : {1e-3, 0.5, 1e3}) {  // f' jumps at 0 and stays positive
    Activation elu = find_activation("elu", {.alpha = alpha});
    EXPECT_FALSE(survey(elu).has_value()) << alpha;
  }
}

TEST(Stationary, IncreasingFunctionsHaveNone) {
  for (const char* name : {"tanh", "sigmoid", "softplus", "elu"}) {
    Activation a = find_activation(name);
    EXPECT_FALSE(survey(a).has_value()) << name;
  }
}

TEST(Stationary, AUsersOwnMishHasMishsMinimum) {
  Activation own = activation_from_expression("x*tanh(log(1+exp(x)))");
  const Minimum a = survey(own).value(), b = minimum_of("mish");
  EXPECT_TRUE(arb_overlaps(a.x_star.raw(), b.x_star.raw()));
  EXPECT_TRUE(arb_overlaps(a.y_star.raw(), b.y_star.raw()));
  EXPECT_EQ(own.left_limit_gradient, 0);
  EXPECT_EQ(own.right_limit_gradient, 1);
}

TEST(Stationary, WhatHasNoPlaceHereIsRefusedWithThePlace) {
  const auto expect = [](const std::string& text, const std::string& why) {
    const std::string message = refusal_of_survey(text);
    EXPECT_NE(message.find(why), std::string::npos) << text << ": " << message;
    EXPECT_EQ(message.rfind(text + ": [", 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  // the first two from the left: -39 pi/2 and -37 pi/2
  expect("sin(x)", "several stationary points: a maximum in [-61.2");
  expect("cos(x)", "several stationary points: a ");
  expect("(x^2-1)^2", "several stationary points: a minimum in [-1.0");
  expect("x*sigmoid(x)+2*exp(-(x-8)^2)", "several stationary points: a minimum in [-1.2");
  expect("1/x", "a pole");
  expect("log(abs(x))", "a pole");
  expect("1/(x-0.3)^2", "a pole");
  expect("abs(x)", "a kink: f' is -1 left of it and 1 right of it");
  expect("sqrt(x^2)", "a kink: f' is -1 left of it and 1 right of it");
  expect("x+abs(x-1.5)/2", "a kink: f' is 0.5 left of it and 1.5 right of it");
  // Flat on one side: what is met first says less than the kink.
  expect("abs(x)+x", "a kink: f' is 0 left of it and 2 right of it");
  expect("0.5*(abs(x)+x)*sigmoid(x)", "a kink: f' is 0 left of it and 0.500");
  expect("x*abs(x)", "cannot be decided: f or f' cannot be enclosed here");  // f' = 2 |x| is continuous
  expect("x+sigmoid(1/x)", "a jump: f is ");
  expect("log(x)", "f is not defined");
  expect("sqrt(x)", "f is not defined");
  expect("-x", "f falls");
  expect("exp(-x^2)", "a maximum");
  expect("x^3", "cannot be decided: f' and f'' both come near 0");
  // A plateau of 2^-232 that oscillates, between two rises.
  expect("softplus(8*(x-32))/8-sigmoid(-8*(x+40))+1e-70*sin(x)*exp(-x^2/64)", "of either sign");
  expect("1", "cannot be decided");
  expect("exp(x)", "settled");
  expect("x^2", "settled");
  expect("0.999*x", "settled");
  // The subintervals hold the place, closely.
  for (const auto& [text, place] :
       {std::pair("1/x", 0.0), std::pair("1/(x-0.3)^2", 0.3), std::pair("abs(x+1/7)", -1.0 / 7),
        std::pair("x^3", 0.0), std::pair("x+sigmoid(1/(x-40.3))", 40.3)}) {
    double lo = NAN, hi = NAN;
    const std::string message = refusal_of_survey(text);
    ASSERT_EQ(std::sscanf(message.c_str() + std::string(text).size(), ": [%lf, %lf]", &lo, &hi), 2)
        << message;
    EXPECT_LT(lo, place) << message;
    EXPECT_GT(hi, place) << message;
    EXPECT_LT(hi - lo, 0x1p-14) << message;
  }
  // Those that settle at 1 on the left, with what serves instead.
  expect("-softplus(-x)",
         "f' is 1 on the left and 0 on the right; fit its mirror image, \"expression\": "
         "\"-(-softplus(-(-x)))\", and store -f(x) in place of f(x)");
  expect("-log(1+exp(-x))", "\"expression\": \"-(-log(1+exp(-(-x))))\"");
  expect("x+sigmoid(x)", "f' is 1 on both sides; on the left it must settle at 0");
  EXPECT_EQ(refusal_of_survey("-(-softplus(-(-x)))"), "");
  // The refusals are not of everything. f' of the last two is small and their terms are not.
  for (const char* text :
       {"x*sigmoid(x)", "-exp(-x^2)", "sigmoid(x-3)", "x/(1+exp(-x))", "0.5*x*(1+erf(x/sqrt(2)))",
        "log(1+exp(x))", "x/sqrt(1+x*x)", "-0.01*exp(-(300*x)^2)", "-0.5*exp(-(300*x)^2)"}) {
    EXPECT_EQ(refusal_of_survey(text), "");
  }
}

TEST(Stationary, GivesUpInsteadOfHanging) {
  // 122,000 extrema, each of which could be decided: more than are looked at; and the same with each
  // evaluation some 50 times as dear.
  std::string long_text = "sin(3000*x)";
  for (int i = 0; i < 48; ++i) long_text += "+exp(x/" + std::to_string(100 + i) + ")";
  for (const std::string& text : {std::string("sin(3000*x)"), long_text}) {
    const std::string message = refusal_of_survey(text);
    EXPECT_NE(message.find("cannot be decided: gave up after"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace outgrad::approx
