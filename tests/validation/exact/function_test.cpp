// The parser accepts the grammar and nothing else; values and derivatives agree with closed forms; discs
// bound what they hold.
#include "validation/exact/function.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <random>

#include "kernels/host/errors.h"
#include "tests/validation/certificate/sample_header.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

double value(const char* text, double x) { return Function::parse(text).at<0>(Interval(x))[0].middle(); }

TEST(Function, ParsesByTheGrammar) {
  EXPECT_EQ(value("-x^2", 3), -9);
  EXPECT_EQ(value("(-x)^2", 3), 9);
  EXPECT_EQ(value("2^3^2", 0), 512);
  EXPECT_EQ(value("x^-2", 2), 0.25);
  EXPECT_EQ(value("8/4/2-1-1", 0), -1);
  EXPECT_EQ(value("2*-x", 3), -6);
  EXPECT_EQ(value("0x1.8p1 + 1e2", 0), 103);
  EXPECT_EQ(value(" abs( x ) ", -2), 2);
  EXPECT_NEAR(value("sin(pi/6)+cos(pi/3)+exp(0)+log(1)+sqrt(4)+erf(0)+normal_cdf(0)", 0), 4.5, 1e-15);
  // A decimal literal is the real number, not its double.
  const Interval third_of_three = Function::parse("0.1*10-1").at<0>(Interval(0.0))[0];
  EXPECT_TRUE(third_of_three.contains_zero());
  EXPECT_LT(third_of_three.width(), 0x1p-200);
}

TEST(Function, RejectsEverythingElse) {
  for (const char* text : {"", "x+", "*x", "(x", "x)", "x x", "x^2.5", "x^y", "y", "exp x", "exp()", "1.2.3",
                           "0x", "1e", "x^999", "2^2^2^2^2", "exp(x,2)", "x;", "\x80"}) {
    EXPECT_THROW(Function::parse(text), SpecError) << text;
  }
  EXPECT_THROW(Function::parse(std::string(5000, '(')), SpecError);
  EXPECT_THROW(Function::parse(std::string(900, '-') + "x"), SpecError);
  std::string terms = "x";
  for (int i = 0; i < 400; ++i) terms += "+x";
  EXPECT_THROW(Function::parse(terms), SpecError);
  std::mt19937 random(11);
  const std::string alphabet = "x+-*/^() 0123456789.epi tanhlogsqrt";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto n = random() % 30; n > 0; --n) text += alphabet[random() % alphabet.size()];
    try {
      Function::parse(text).approximate(0.5);
    } catch (const SpecError&) {
    }
  }
}

TEST(Function, ComparesTrees) {
  EXPECT_TRUE(Function::parse("x*sigmoid(1.702*x)") == Function::parse(" x * sigmoid( 1.70200 * x )"));
  EXPECT_FALSE(Function::parse("x*sigmoid(1.702*x)") == Function::parse("x*sigmoid(x*1.702)"));
  EXPECT_FALSE(Function::parse("x*sigmoid(1.702*x)") == Function::parse("x*sigmoid(1.7020000001*x)"));
  EXPECT_FALSE(Function::parse("x^2") == Function::parse("x^3"));
}

TEST(Function, DerivativesAgreeWithClosedForms) {
  for (const char* name : {"gelu", "gelu_tanh", "quick_gelu", "silu", "swish", "mish", "tanh", "sigmoid",
                           "softplus", "expression"}) {
    const ReferenceFunction& r = reference_function(name);
    const Function f = Function::parse(r.function);
    for (double x = -12; x < 12; x += 0.171875) {
      const auto d = f.at<2>(Interval(x));
      const auto expect_near = [&](const Interval& got, Quad want, double slack) {
        EXPECT_NEAR(got.middle(), static_cast<double>(want), slack * (1 + std::fabs(x))) << name << " " << x;
        EXPECT_LT(got.width(), 1e-50) << name << " " << x;
      };
      expect_near(d[0], r.f(x), 1e-15);
      expect_near(d[1], r.d1(x), 1e-15);
      const Quad step = 0x1p-40;
      expect_near(d[2], (r.d1(x + step) - r.d1(x - step)) / (2 * step), 1e-15);
      EXPECT_NEAR(f.approximate(x)[0], static_cast<double>(r.f(x)), 1e-14 * (1 + std::fabs(x)));
      EXPECT_NEAR(f.approximate(x)[1], static_cast<double>(r.d1(x)), 1e-14 * (1 + std::fabs(x)));
      const MediumInterval medium = f.at<1>(MediumInterval(x))[1];
      EXPECT_LE(medium.lower(), d[1].upper());
      EXPECT_GE(medium.upper(), d[1].lower());
    }
  }
}

// An interval's image holds the values of its members.
TEST(Function, IntervalsHoldTheirMembers) {
  std::mt19937_64 random(12);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const char* text : {"x*normal_cdf(x)", "x*tanh(softplus(x))", "exp(-x^2)*sin(3*x)", "1/(2+cos(x))",
                           "x^3-2*x^-2", "sqrt(1+x^2)*erf(x)", "log(1+exp(x))"}) {
    const Function f = Function::parse(text);
    for (int round = 0; round < 300; ++round) {
      const double a = 8 * uniform(random) - 4, b = a + std::pow(uniform(random), 4);
      const auto range = f.at<2>(Interval(a, b)), inside = f.at<2>(Interval(a + (b - a) * uniform(random)));
      for (int k = 0; k <= 2; ++k) {
        EXPECT_LE(range[k].lower(), inside[k].upper()) << text << " " << a << " " << b;
        EXPECT_GE(range[k].upper(), inside[k].lower()) << text << " " << a << " " << b;
      }
    }
  }
}

// The series gives back f at a distance, its first terms are the derivatives, and those of an interval hold
// those of its members.
TEST(Function, TaylorCoefficientsOfAnyOrder) {
  std::mt19937_64 random(13);
  std::uniform_real_distribution<double> uniform(0, 1);
  constexpr int kOrder = 24;
  for (const char* text :
       {"x*normal_cdf(x)", "x*tanh(softplus(x))", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", "tanh(x)",
        "0.5*(exp(x)-1)", "exp(-x^2)*sin(3*x)", "1/(2+cos(x))", "(x+9)^3-2*(x+9)^-2", "sqrt(9+x^2)*erf(x)",
        "log(10+x)-abs(x-20)", "softplus(-x)/(x^2+9)"}) {
    const Function f = Function::parse(text);
    for (int round = 0; round < 40; ++round) {
      const double a = 6 * uniform(random) - 3, h = 0x1p-5 * (uniform(random) - 0.5);
      const auto c = f.taylor(MediumInterval(a), kOrder);
      const auto d = f.at<2>(MediumInterval(a));
      EXPECT_LE((c[0] - d[0]).magnitude(), 0x1p-90) << text << ' ' << a;
      EXPECT_LE((c[1] - d[1]).magnitude(), 0x1p-90) << text << ' ' << a;
      EXPECT_LE((c[2] * 2 - d[2]).magnitude(), 0x1p-80) << text << ' ' << a;
      MediumInterval sum = 0;
      for (int k = kOrder; k >= 0; --k) sum = sum * h + c[static_cast<size_t>(k)];
      EXPECT_LE((sum - f.at<0>(MediumInterval(a) + h)[0]).magnitude(), 0x1p-80)
          << text << ' ' << a << ' ' << h;
      const auto over = f.taylor(CoarseInterval(a - std::fabs(h), a + std::fabs(h)), 9),
                 inside = f.taylor(CoarseInterval(a + h * uniform(random)), 9);
      for (size_t k = 0; k <= 9; ++k) {
        EXPECT_LE(over[k].lower(), inside[k].upper()) << text << ' ' << a << ' ' << k;
        EXPECT_GE(over[k].upper(), inside[k].lower()) << text << ' ' << a << ' ' << k;
      }
    }
  }
}

// |f| and |f'| on circles within the disc, by complex arithmetic in double.
TEST(Function, DiscsBoundTheirMembers) {
  using Complex = std::complex<double>;
  const auto sigmoid = [](Complex z) { return 1.0 / (1.0 + std::exp(-z)); };
  const std::pair<const char*, std::function<Complex(Complex)>> functions[] = {
      {"x*sigmoid(x)", [&](Complex z) { return z * sigmoid(z); }},
      {"x*tanh(softplus(x))", [](Complex z) { return z * std::tanh(std::log(1.0 + std::exp(z))); }},
      {"0.5*x*(1+tanh(x+0.1*x^3))",
       [](Complex z) { return 0.5 * z * (1.0 + std::tanh(z + 0.1 * z * z * z)); }},
      {"sqrt(4+x)/(3+sin(x))*cos(x)",
       [](Complex z) { return std::sqrt(4.0 + z) / (3.0 + std::sin(z)) * std::cos(z); }},
  };
  std::mt19937_64 random(13);
  std::uniform_real_distribution<double> uniform(0, 1);
  int bounded = 0;
  for (const auto& [text, exact] : functions) {
    const Function f = Function::parse(text);
    for (int round = 0; round < 100; ++round) {
      const double middle = 6 * uniform(random) - 3, radius = 0.4 * uniform(random);
      const auto sup = f.over_disc(middle, radius);
      bounded += std::isfinite(sup[1]);
      for (int i = 0; i < 24; ++i) {
        const Complex z = middle + std::polar(radius * 0.999, 0.2618 * i);
        EXPECT_LE(std::abs(exact(z)), sup[0] * (1 + 1e-12)) << text;
        EXPECT_LE(std::abs((exact(z + 1e-5) - exact(z - 1e-5)) / 2e-5), sup[1] * (1 + 1e-6) + 1e-9) << text;
      }
    }
  }
  EXPECT_GT(bounded, 350);
  // erf and Phi by the mean value, an entire function's largest modulus on the imaginary axis.
  EXPECT_GE(Function::parse("erf(x)").over_disc(0, 1)[0], 1.6503);  // |erf(i)|
  EXPECT_LT(Function::parse("erf(x)").over_disc(0, 1)[0], 20);
  EXPECT_EQ(Function::parse("1/x").over_disc(0.5, 0.6)[0], std::numeric_limits<double>::infinity());
  // poles at +-i pi/2
  EXPECT_EQ(Function::parse("tanh(x)").over_disc(0, 1.6)[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(Function::parse("log(x)").over_disc(0.5, 0.6)[1], std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace outgrad::validation
