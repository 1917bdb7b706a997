#include "approx/function/expression.h"

#include "tests/refusal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace outgrad::approx {
namespace {

bool finite(const Ball& b) { return arb_is_finite(b.raw()) != 0; }

std::string refusal(const std::string& text) {
  return refusal_of([&] { const Expression e(text); });
}

TEST(Expression, PrecedenceAndAssociativity) {
  EXPECT_EQ(Expression("1+2*x")(3.0), 7);
  EXPECT_EQ(Expression("10-4-3")(0.0), 3);
  EXPECT_EQ(Expression("16/4/2")(0.0), 2);
  EXPECT_EQ(Expression("-x^2")(3.0), -9);
  EXPECT_EQ(Expression("(-x)^2")(3.0), 9);
  EXPECT_EQ(Expression("2*-x")(3.0), -6);
  EXPECT_EQ(Expression("--x")(3.0), 3);
  EXPECT_EQ(Expression("x^-2")(2.0), 0.25);
  EXPECT_EQ(Expression(" 0x1.8p+1 * x ")(2.0), 6);
  EXPECT_DOUBLE_EQ(Expression("sqrt(2/pi)")(0.0), std::sqrt(2 / M_PI));
}

TEST(Expression, DecimalLiteralsAreTheRealNumberWritten) {
  const Ball tenth = Expression("0.1")(Ball(0.0)), ten = Expression("10")(Ball(0.0));
  EXPECT_TRUE((tenth * ten - Ball(1.0)).holds_zero());
  EXPECT_LT((tenth * ten - Ball(1.0)).magnitude(), 0x1p-300);  // the double 0.1 is off by 2^-57
}

TEST(Expression, AllScalarsAgree) {
  for (const char* text :
       {"x*normal_cdf(x)", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", "x*tanh(softplus(x))", "exp(x)-1",
        "erf(x)/(1+x^2)", "log(1+exp(x))", "sin(x)*cos(x)"}) {
    const Expression f(text);
    for (const double x : {-7.5, -1.25, -0.125, 0.5, 3.0, 20.0}) {
      const Ball ball = f(Ball(x));
      EXPECT_LT((ball - Ball(f(Real(x)))).magnitude(), 1e-50 * (1 + std::abs(x))) << text << " " << x;
      EXPECT_LE(std::abs(f(x) - ball.to_double()), 1e-13 * (1 + std::abs(x)) * std::max(1e-3, std::abs(f(x))))
          << text << " " << x;
      EXPECT_TRUE((f(Series::variable(Ball(x), 3))[0] - ball).holds_zero()) << text << " " << x;
    }
  }
}

TEST(Expression, BallsAndSeriesEncloseTheirPoints) {
  for (const char* text : {"x*normal_cdf(x)", "x*sigmoid(x)", "tanh(x)", "softplus(x)",
                           "x*tanh(log(1+exp(x)))", "abs(x)*exp(-x)"}) {
    const Expression f(text);
    for (const double left : {-9.0, -1.0, 0.25, 6.0}) {
      const Ball wide_x = Ball::hull(Ball(left), Ball(left + 0.5));
      const Series wide = f(Series::variable(wide_x, 6));
      const Ball value = f(wide_x);
      for (const double step : {0.0, 0.1, 0.37, 0.5}) {
        const Series point = f(Series::variable(Ball(left + step), 6));
        EXPECT_TRUE(arb_overlaps(value.raw(), point[0].raw())) << text;
        for (slong k = 0; k < 6; ++k)
          EXPECT_TRUE(arb_overlaps(wide[k].raw(), point[k].raw())) << text << " " << left << " " << k;
      }
    }
  }
}

TEST(Expression, AnInexactLargeArgumentIsAsGoodAsAWideOne) {
  // -x - x^52 + x at -800 is known to 320 bits and yet to +-2^181: exp of that ball would be anything.
  const Expression f("sigmoid(-x-x^52+x)"), huge("sigmoid(1e279*1e279*x)");
  EXPECT_TRUE(finite(huge(Ball(-1.0))));
  EXPECT_TRUE(finite(huge(Ball(1.0))));
  EXPECT_TRUE(finite(f(Ball(-800.0))));
  EXPECT_TRUE(finite(f(Ball::hull(Ball(-800.5), Ball(-800.0)))));
}

TEST(Expression, WhereThereIsNoDerivativeTheSeriesIsNotFinite) {
  const Ball around = Ball::hull(Ball(-0.125), Ball(0.125));
  for (const char* text : {"abs(x)", "log(x)", "sqrt(x)", "1/x"}) {
    EXPECT_FALSE(arb_is_finite(Expression(text)(Series::variable(around, 2))[1].raw())) << text;
  }
}

TEST(Expression, SingularBallsAreUndecidedNeverWrong) {
  const Ball zero(0.0), around = Ball::hull(Ball(-0.5), Ball(0.25)),
                        touching = Ball::hull(Ball(0.0), Ball(1.0));
  // Truncated to two terms, x^2 at 0 looks like the constant 0; and an exact 0 is a factor that must not hide
  // the other one.
  for (const char* text :
       {"1/x", "log(x)", "log(x^2)", "x/x", "x^2/x", "0/x", "0*(1/x)", "0/(1+1/x)", "(1/x)^0", "x^-2",
        "1/(x*x)", "1/(x-x)", "sin(x)/x", "exp(1/x)", "x*log(abs(x))"}) {
    const Expression f(text);
    for (const Ball& x : {zero, around, touching}) {
      EXPECT_FALSE(finite(f(x))) << text;
      for (const slong length : {1, 2, 4}) {
        const Series s = f(Series::variable(x, length));
        for (slong k = 0; k < length; ++k) EXPECT_FALSE(finite(s[k])) << text << " " << length << " " << k;
      }
    }
  }
  // Values that exist without a derivative.
  for (const char* text :
       {"abs(x)", "sqrt(x^2)", "x*abs(x)", "abs(x)-abs(x)", "0*abs(x)", "abs(x)^0", "sqrt(0*x)"}) {
    const Expression f(text);
    EXPECT_TRUE(finite(f(zero))) << text;
    EXPECT_TRUE(finite(f(Series::variable(zero, 2))[0])) << text;
    for (const Ball& x : {zero, around, touching}) {
      for (slong k = 1; k < 4; ++k) EXPECT_FALSE(finite(f(Series::variable(x, 4))[k])) << text << " " << k;
    }
  }
}

TEST(Expression, EveryFormOfALiteralIsReadOverEveryScalar) {
  const std::pair<const char*, double> cases[] = {
      {"5", 5},       {"5.", 5},       {".5", 0.5},     {"5.e1", 50},     {".5E+1", 5},      {"25e-2", 0.25},
      {"0x10", 16},   {"0X.8p0", 0.5}, {"0x1.8p+1", 3}, {"0x1.P-1", 0.5}, {"0", 0},          {"0x0", 0},
      {"0.000e5", 0}, {"00012", 12},   {"1.500", 1.5},  {"0x.4", 0.25},   {"1e279/1e279", 1}};
  for (const auto& [text, value] : cases) {
    const Expression f(text);
    EXPECT_EQ(f(1.0), value) << text;
    EXPECT_EQ(f(Real(1)), Real(value)) << text;
    EXPECT_TRUE((f(Ball(1.0)) - Ball(value)).holds_zero()) << text;
    EXPECT_EQ(f(Ball(1.0)).to_double(), value) << text;
    EXPECT_EQ(f(Series::variable(Ball(1.0), 2))[0].to_double(), value) << text;
  }
}

TEST(Expression, TheWorkOfAnEvaluationIsBounded) {
  std::string sum = "x", nested = "x", powers = "x^64";
  for (int k = 1; k < 128; ++k) sum += "+x";
  for (int k = 0; k < 60; ++k) nested = "(" + nested + ")^64";
  for (int k = 1; k < 85; ++k) powers += "*x^64";
  EXPECT_EQ(Expression(sum)(1.0), 128);
  EXPECT_EQ(Expression(sum).size(), 255U);
  EXPECT_EQ(refusal(sum + "+x"),
            "column 258: an expression has at most 256 numbers, variables and operations");
  EXPECT_TRUE(finite(Expression(nested)(Series::variable(Ball(2.0), 3))[2]));
  EXPECT_EQ(Expression(powers).size(), 85 * 66 + 84U);  // x, its power and 64 multiplications
  EXPECT_TRUE(finite(Expression(powers)(Series::variable(Ball(2.0), 3))[2]));
}

TEST(Expression, KnowsAQuotientOfExponentials) {
  for (const char* text : {"exp(x)/(1+exp(x))", "x*exp(x)/(1+exp(x))", "1+(exp(x)-exp(-x))/(2*-exp(x)^2)",
                           "sqrt(exp(x))/abs(x+exp(x))"})
    EXPECT_TRUE(Expression(text).divides_exponentials()) << text;
  for (const char* text :
       {"x/(1+exp(-x))", "exp(x)*exp(x)", "exp(x)/x+x/exp(x)", "sigmoid(x)/tanh(x)", "exp(x/2)"})
    EXPECT_FALSE(Expression(text).divides_exponentials()) << text;
}

TEST(Expression, SaysColumnAndReason) {
  EXPECT_EQ(refusal("x*"), "column 3: the expression ends here");
  EXPECT_EQ(refusal("x y"), "column 3: 'y' is not expected here");
  EXPECT_EQ(refusal("gelu(x)").substr(0, 30), "column 1: 'gelu' is unknown; k");
  EXPECT_EQ(refusal("exp x"), "column 5: '(' is missing after exp");
  EXPECT_EQ(refusal("(x"), "column 3: ')' is missing");
  EXPECT_EQ(refusal("x^0.5"), "column 4: '.' is not expected here");
  EXPECT_EQ(refusal("x^65"), "column 3: an exponent is at most 64");
  EXPECT_EQ(refusal("1e999"), "column 1: 1e999 is beyond 1e-280 .. 1e280");
  EXPECT_EQ(refusal("x * 1e-400"), "column 5: 1e-400 is beyond 1e-280 .. 1e280");
  EXPECT_EQ(refusal(std::string(5000, 'x')), "column 4097: an expression has at most 4096 characters");
  EXPECT_NE(refusal(std::string(200, '(') + "x" + std::string(200, ')')).find("64 deep"), std::string::npos);
  EXPECT_EQ(refusal(std::string(4000, '-') + "x"), "");
}

TEST(Expression, AnyTextIsParsedOrRefused) {
  const std::string alphabet = "x.0123456789+-*/^() epilogtanhsqrmodfuc_0x1p";
  std::mt19937 random(17);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = i % 2 == 0 ? "x*sigmoid(1.702*x)" : std::string();
    for (int k = 0; k < 1 + i % 12; ++k) {
      const char ch = alphabet[random() % alphabet.size()];
      if (text.empty() || i % 2 != 0) {
        text += ch;
      } else {
        text[random() % text.size()] = ch;
      }
    }
    const std::string result = refusal(text);
    accepted += result.empty();
    if (!result.empty()) {
      EXPECT_EQ(result.substr(0, 7), "column ") << text;
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace outgrad::approx
