#include "approx/proof/coq_activation.h"

#include "approx/function/composite.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"

#include <gtest/gtest.h>

#include <regex>

namespace outgrad::approx::coq {
namespace {

const std::string kLibrary = kRoot + "/approx/proof/coq/";

TEST(CoqActivation, IsKnownByItsText) {
  EXPECT_EQ(known("x*normal_cdf(x)").module, "Gelu");
  EXPECT_EQ(known("x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))").module, "TanhGelu");
  for (const char* const swish : {"x*sigmoid(x)", "x * sigmoid(1.2 * x)", "x*sigmoid(1.702*x)",
                                  "x*sigmoid(0x1.8p+0*x)", "x*sigmoid(32*x)", "x*sigmoid(0.25*x)"})
    EXPECT_EQ(known(swish).module, "Swish") << swish;
  for (const char* const other :
       {"x*tanh(softplus(x))", "x*sigmoid(-1.2*x)", "x*sigmoid(1.2*x+0)", "x*sigmoid(1e1*x)",
        "sigmoid(1.2*x)", "x*sigmoid(33*x)", "x*sigmoid(0.249*x)", "x*sigmoid(0*x)", "x*sigmoid(0x1p-62*x)",
        "x*sigmoid(*x)", "x*sigmoid(99999999999999999999*x)", "x*sigmoid(1.2*x)*1"}) {
    EXPECT_FALSE(known_activation(other)) << other;
    EXPECT_NE(no_theory_of(other).find(other), std::string::npos);
  }
}

/// phi is the derivative of Phi, and curve what f'' is beside it: by quotients of differences of 60 digits.
TEST(CoqActivation, HasTheDerivativesOfItsPhi) {
  const Real h = ldexp(Real(1), -60);
  for (const char* const function :
       {"x*normal_cdf(x)", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", "x*sigmoid(x)", "x*sigmoid(1.3*x)"}) {
    const KnownActivation of = known(function);
    const auto slope = [&](const Real& x) { return Real(of.cdf(x) + x * of.density(x)); };
    for (const double at : {-3.0, -0.7, 0.1, 2.5}) {
      const Real x = at, density = (of.cdf(x + h) - of.cdf(x - h)) / (2 * h),
                 curve = (slope(x + h) - slope(x - h)) / (2 * h);
      EXPECT_LT(abs(density - of.density(x)), 1e-30) << function << at;
      EXPECT_LT(abs(curve - of.density(x) * of.curve(x)), 1e-30) << function << at;
    }
  }
}

TEST(CoqActivation, WritesTheConstantsOfASteepness) {
  EXPECT_EQ(known("x*sigmoid(x)").steepness, kernels::read_file(kLibrary + "SwishSteepness.v"));
  EXPECT_EQ(known("x*sigmoid(0x1.8p+0*x)").steepness, known("x*sigmoid(1.50*x)").steepness);
  for (const std::string steepness : {"0.25", "0.7", "1.2", "1.702", "16", "31.9"}) {
    const std::string function = "x*sigmoid(" + steepness + "*x)", text = known(function).steepness;
    const Composite composite(activation_from_expression(function));
    for (const auto& [name, value] :
         {std::pair("x", composite.x_star()), std::pair("y", composite.y_star())}) {
      std::smatch m;
      const std::regex enclosure(std::string(name) + R"(_low := (-\d+) / 2 \^ 50\.\nDefinition )" + name +
                                 R"(_high := (-\d+) / 2 \^ 50\.)");
      ASSERT_TRUE(std::regex_search(text, m, enclosure)) << text;
      const Real low(m[1].str()), high(m[2].str()), unit = ldexp(value.mid(), 50);
      EXPECT_LE(low, unit) << steepness << name;
      EXPECT_GE(high, unit) << steepness << name;
      EXPECT_LE(high - low, 2) << steepness << name;
    }
  }
}

}  // namespace
}  // namespace outgrad::approx::coq
