// The brute force's functions: values and derivatives beside each other's differences, and beside the names
// they go by.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/host/errors.h"
#include "tests/attack/formula.h"

namespace outgrad::validation::gate {
namespace {

// Differences over 2^-40 in 200 bits are within 2^-64 of derivatives here: the fourth ones are below 2^17.
TEST(Formula, DerivativesAreTheLimitsOfDifferences) {
  for (const char* text :
       {"x*normal_cdf(x)", "x*tanh(softplus(x))", "erf(x)/(2+cos(x))", "sqrt(1+x^2)", "log(1+exp(x))-x^-2",
        "sigmoid(1.5*x)*sin(x)", "abs(x)^3-pi*x", "0x1.8p+0*(exp(x)-1)"}) {
    const Formula f(text);
    for (const double x : {-2.75, -0.5, 0.375, 1.25}) {
      const Real step = ldexp(Real(1), -40), at(x);
      const Jet<Real> here = f.at(at), right = f.at(Real(at + step)), left = f.at(Real(at - step));
      EXPECT_NEAR(static_cast<double>((right.value - left.value) / (2 * step) - here.slope), 0, 0x1p-64)
          << text << " at " << x;
      EXPECT_NEAR(static_cast<double>((right.slope - left.slope) / (2 * step) - here.bend), 0, 0x1p-64)
          << text << " at " << x;
      EXPECT_NEAR(f.at(x).bend, static_cast<double>(here.bend), 0x1p-40 * (1 + std::fabs(f.at(x).bend)))
          << text << " at " << x;
    }
  }
}

TEST(Formula, PrecedenceIsTheLanguages) {
  EXPECT_EQ(Formula("-x^2").at(3.0).value, -9);
  EXPECT_EQ(Formula("2-3-4*x/2").at(5.0).value, -11);
  EXPECT_EQ(Formula("(x+1)^2*3").at(1.0).value, 12);
  EXPECT_EQ(Formula("0x1.8p+1*x").at(2.0).value, 6);
  EXPECT_EQ(Formula("2e-1*x").at(10.0).value, 2);
}

TEST(Formula, OtherTextsAreRefused) {
  for (const char* text :
       {"", "x+", "y", "sin x", "x^", "x^65", "(x", "x)", "1.2.3", "0x", "tanh(x", "x**2", "\"x\""})
    EXPECT_THROW(Formula{text}, kernels::SpecError) << text;
  EXPECT_THROW(Formula{std::string(1000, '(')}, kernels::SpecError);
}

TEST(Formula, ANameGoesWithItsOwnFunctionAlone) {
  const std::vector<std::pair<std::string, std::string>> all{
      {"gelu", "x*normal_cdf(x)"},
      {"gelu_tanh", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))"},
      {"quick_gelu", "x*sigmoid(1.702*x)"},
      {"silu", "x*sigmoid(x)"},
      {"swish", "x*sigmoid(0x1.8p+0*x)"},
      {"mish", "x*tanh(softplus(x))"},
      {"tanh", "tanh(x)"},
      {"sigmoid", "sigmoid(x)"},
      {"softplus", "softplus(x)"},
      {"elu", "0x1p+0*(exp(x)-1)"}};
  for (const auto& [name, text] : all) {
    EXPECT_TRUE(name_fits(name, formula_of(name, text))) << name;
    for (const auto& [other, other_text] : all) {
      // of another beta
      const bool both_swish = name == "swish" && (other == "silu" || other == "quick_gelu");
      if (other != name && !both_swish) {
        EXPECT_FALSE(name_fits(name, formula_of(name, other_text))) << name << " by " << other;
      }
    }
  }
  EXPECT_FALSE(name_fits("gelu", formula_of("gelu", "x*normal_cdf(1.000001*x)")));
  EXPECT_FALSE(name_fits("relu", formula_of("relu", "x")));
}

}  // namespace
}  // namespace outgrad::validation::gate
