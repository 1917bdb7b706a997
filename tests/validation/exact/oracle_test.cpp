// The MPFR witness against series and identities that use neither erfc nor exp, and its rounding against
// exhaustive small formats.

#include "validation/exact/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

#include "validation/exact/function.h"
#include "validation/exact/function_oracle.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {
namespace {

/// Phi(x) = 1/2 + phi(x) (x + x^3/3 + x^5/15 + ...) for x >= 0, whose terms are all positive; the left side
/// by its continued fraction. In long double: another formula and another arithmetic than the oracle's.
long double cdf_by_series(long double x) {
  const long double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
  if (x < -3) {
    long double fraction = 0;
    for (int k = 400; k >= 1; --k) fraction = static_cast<long double>(k) / (-x + fraction);
    return density / (-x + fraction);
  }
  long double term = x, sum = 0;
  for (int k = 1; std::fabs(term) > 1e-25L; ++k) {
    sum += term;
    term *= x * x / (2 * k + 1);
  }
  return 0.5L + density * sum;
}

TEST(Oracle, AgreesWithSeriesInLongDouble) {
  GeluOracle oracle;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-20, 8);
  for (int i = 0; i < 2000; ++i) {
    const double x = uniform(random);
    const long double cdf = cdf_by_series(x);
    const long double density =
        std::exp(-static_cast<long double>(x) * x / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
    const double value = oracle.value_bounds(x).lo, derivative = oracle.derivative(x);
    // exp of a square of up to 200 loses 8 bits of the 64, the series below -1 another 8.
    EXPECT_NEAR(static_cast<double>(value / (x * cdf)), 1.0, 0x1p-46) << x;
    EXPECT_NEAR(derivative, static_cast<double>(cdf + x * density), 0x1p-51) << x;
  }
}

TEST(Oracle, BoundsAreNarrowAndHoldTheNearest) {
  GeluOracle oracle;
  for (double x : {-30.0, -1.4142135623730951, -0.75, -1e-30, 1e-300, 0.3, 5.0, 700.0}) {
    for (const DoubleBounds b : {oracle.value_bounds(x), oracle.derivative_bounds(x)}) {
      EXPECT_LE(b.lo, b.hi) << x;
      EXPECT_LE(b.hi - b.lo, 0x1p-51 * std::fabs(b.lo)) << x;
    }
    const double nearest = oracle.derivative(x);
    EXPECT_TRUE(nearest >= oracle.derivative_bounds(x).lo && nearest <= oracle.derivative_bounds(x).hi) << x;
  }
}

TEST(Oracle, RoundsToTheNearestOfTheGrid) {
  // Every adjacent pair of the f16 grid near some arguments: no grid point may be nearer to the enclosure
  // than the one returned.
  GeluOracle oracle;
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(-6, 6);
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    for (int i = 0; i < 500; ++i) {
      const double x = static_cast<float>(uniform(random));
      const double y = oracle.value(x, format);
      const DoubleBounds f = oracle.value_bounds(x);
      int exponent = 0;
      std::frexp(f.lo, &exponent);
      const double ulp = std::ldexp(1.0, std::max(exponent - format.precision, format.quantum_exponent));
      EXPECT_LE(std::fabs(y - f.lo), ulp / 2 * (1 + 1e-9)) << format.name << ' ' << x;
      EXPECT_EQ(y / ulp, std::nearbyint(y / ulp)) << format.name << ' ' << x;
    }
  }
}

TEST(Oracle, DecidesTheHardestRoundings) {
  GeluOracle oracle;
  const double least = 0x1p-149;
  EXPECT_EQ(oracle.value(least, kF32), least);  // x/2 is a tie, and f lies 2^-149 (relative) above it
  EXPECT_TRUE(oracle.value(-least, kF32) == 0 && std::signbit(oracle.value(-least, kF32)));
  EXPECT_EQ(oracle.value(3 * least, kF32), 2 * least);
  EXPECT_EQ(oracle.value(-3 * least, kF32), -least);
  // Ties of the narrow formats at large x: f lies below x by less than a relative 2^-60.
  EXPECT_EQ(oracle.value(20.0625, kBf16), 20.0);
  EXPECT_EQ(oracle.value(20.1875, kBf16), 20.125);
  EXPECT_EQ(oracle.value(65519.99609375, kF16), 65504.0);
  EXPECT_EQ(oracle.value(65520.0, kF16), 65504.0) << "f(65520) is below the tie to infinity";
  EXPECT_EQ(oracle.value(65520.00390625, kF16), std::numeric_limits<double>::infinity());
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    EXPECT_TRUE(std::signbit(oracle.value(-0.0, format)));
    EXPECT_FALSE(std::signbit(oracle.value(0.0, format)));
    EXPECT_TRUE(oracle.value(-1e30, format) == 0 && std::signbit(oracle.value(-1e30, format)));
  }
  EXPECT_THROW(oracle.value(std::numeric_limits<double>::infinity(), kF32), std::invalid_argument);
}

// Another parser, another interval arithmetic and derivatives by jets: validation/exact/function.h.
TEST(Oracle, SiluAgreesWithTheFunctionItIsNamedAfter) {
  SiluOracle oracle;
  const Function silu = Function::parse("x*sigmoid(x)");
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> uniform(-130, 60);
  for (int i = 0; i < 1000; ++i) {
    const double x = i % 2 ? uniform(random) : uniform(random) / 16;
    const auto [f, slope] = silu.approximate(x);
    const DoubleBounds value = oracle.value_bounds(x), derivative = oracle.derivative_bounds(x);
    EXPECT_LE(value.lo, value.hi);
    EXPECT_NEAR(value.lo / f, 1, 0x1p-48) << x;
    EXPECT_NEAR(derivative.lo, slope, 0x1p-49) << x;
    EXPECT_LE(derivative.lo, derivative.hi);
    EXPECT_EQ(oracle.derivative(x), oracle.derivative(x) < derivative.hi ? derivative.lo : derivative.hi);
  }
  EXPECT_LT(oracle.derivative(kSiluXStar), 0);
  EXPECT_GT(oracle.derivative(std::nextafter(kSiluXStar, 0)), 0);
  EXPECT_EQ(oracle.derivative(0), 0.5);
  EXPECT_TRUE(oracle.value(-1e30, kF32) == 0 && std::signbit(oracle.value(-1e30, kF32)));
  EXPECT_EQ(oracle.value(65520.0, kF16), 65504.0) << "f(65520) is below the tie to infinity";
  for (double x : {-12.0, -1.3, -1.2, 0.5, 30.0}) {
    const double y = oracle.value_bounds(x).lo, g = oracle.derivative(x);
    EXPECT_NEAR(oracle.derivative_at_value(y, x > kSiluXStar), g, 0x1p-50 + 0x1p-53 / std::fabs(g)) << x;
  }
}

// Two formulations of the same functions: mpfr_erfc and mpfr_exp under directed rounding, and intervals
// through the parsed text.
TEST(FunctionOracle, AgreesWithTheOraclesByHand) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const SweptActivation* of : {&kGelu, &kSilu}) {
    const std::unique_ptr<Oracle> by_hand = of->oracle();
    FunctionOracle generic(of->analysis(), of->ends, of->x_star);
    std::vector<double> arguments{0.0,     -0.0,    0x1p-149,       -0x1p-149, 3 * 0x1p-149,   -3 * 0x1p-149,
                                  20.0625, 20.1875, 65519.99609375, 65520.0,   65520.00390625, 1e30,
                                  -1e30};
    for (int i = 0; i < 1500; ++i)
      arguments.push_back(std::ldexp(uniform(random), i % 3 == 0   ? 7
                                                      : i % 3 == 1 ? 2
                                                                   : -static_cast<int>(random() % 140)));
    for (const double x : arguments) {
      for (const FloatFormat& format : {kF32, kF16, kBf16}) {
        const double a = generic.value(x, format), b = by_hand->value(x, format);
        EXPECT_TRUE(a == b && std::signbit(a) == std::signbit(b))
            << of->name << ' ' << format.name << ' ' << x << ": " << a << ' ' << b;
      }
      EXPECT_EQ(generic.derivative(x), by_hand->derivative(x)) << of->name << ' ' << x;
    }
    for (int i = 0; i < 200; ++i) {
      const double x = 6 * uniform(random), y = by_hand->value_bounds(x).lo, g = by_hand->derivative(x);
      EXPECT_NEAR(generic.derivative_at_value(y, x > of->x_star),
                  by_hand->derivative_at_value(y, x > of->x_star), 0x1p-50)
          << of->name << ' ' << x;
      EXPECT_NEAR(generic.derivative_at_value(y, x > of->x_star), g, 0x1p-50 + 0x1p-53 / std::fabs(g))
          << of->name << ' ' << x;
    }
    for (const auto& [y, right] :
         {std::pair(-0.0, false), {0.5, false}, {-0.5, true}, {-0.5, false}, {1e30, true}, {0.0, true}}) {
      EXPECT_NEAR(generic.derivative_at_value(y, right), by_hand->derivative_at_value(y, right), 0x1p-50)
          << of->name << ' ' << y << ' ' << right;
    }
  }
}

// Functions that rise: libm's long double, and what is known of tails and of the least subnormals.
TEST(FunctionOracle, RisingFunctionsAgreeWithLongDouble) {
  using Long = long double;
  const auto sigmoid = [](Long x) { return 1 / (1 + std::exp(-x)); };
  const auto check = [](const char* name, auto value, auto slope) {
    const SweptActivation& of = *swept_activation(name);
    const std::unique_ptr<Oracle> oracle = of.oracle();
    std::mt19937_64 random(8);
    std::uniform_real_distribution<double> uniform(-40, 30);
    for (int i = 0; i < 1000; ++i) {
      const double x = i % 2 ? uniform(random) : uniform(random) / 16;
      const DoubleBounds f = oracle->value_bounds(x), g = oracle->derivative_bounds(x);
      EXPECT_NEAR(static_cast<double>(f.lo / value(x)), 1, 0x1p-50) << name << ' ' << x;
      EXPECT_NEAR(static_cast<double>(g.lo - slope(x)), 0, 0x1p-52) << name << ' ' << x;
      EXPECT_LE(f.lo, f.hi);
      EXPECT_LE(g.lo, g.hi);
      const double y = oracle->value(x, kF32);  // f' rises or falls by 2 |f''| / f' an y: at most 2^-23 here
      EXPECT_NEAR(oracle->derivative_at_value(y, true), oracle->derivative(x), 0x1p-23) << name << ' ' << x;
    }
  };
  check(
      "tanh", [](Long x) { return std::tanh(x); }, [](Long x) { return 1 / (std::cosh(x) * std::cosh(x)); });
  check("sigmoid", sigmoid, [&](Long x) { return sigmoid(x) * sigmoid(-x); });
  check(
      "softplus", [](Long x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); },
      sigmoid);
  check(
      "elu", [](Long x) { return x >= 0 ? x : std::expm1(x); },
      [](Long x) { return x >= 0 ? Long(1) : std::exp(x); });
}

TEST(FunctionOracle, DecidesTheHardestRoundings) {
  const double least = 0x1p-149;
  const auto value = [](const char* name, double x, const FloatFormat& format) {
    return swept_activation(name)->oracle()->value(x, format);
  };
  for (const double sign : {-1.0, 1.0}) {
    EXPECT_EQ(value("tanh", sign * least, kF32), sign * least);
    EXPECT_EQ(value("elu", sign * least, kF32), sign * least);
    EXPECT_EQ(value("tanh", sign * 1e30, kF32), sign);
    // A tie of bf16: tanh lies towards 0 from it, elu above. The f32 above it are not ties.
    EXPECT_EQ(value("tanh", sign * 0x1.01p-60, kBf16), sign * 0x1p-60);
    EXPECT_EQ(value("tanh", sign * 0x1.03p-60, kBf16), sign * 0x1.02p-60);
  }
  EXPECT_EQ(value("elu", -0x1.01p-60, kBf16), -0x1p-60);
  EXPECT_EQ(value("elu", -0x1.03p-60, kBf16), -0x1.02p-60);
  EXPECT_EQ(value("elu", 0x1.03p-60, kBf16), 0x1.04p-60) << "x itself, to even";
  EXPECT_EQ(value("elu", -1e30, kF16), -1);
  EXPECT_EQ(value("sigmoid", 1e30, kF16), 1);
  EXPECT_TRUE(value("sigmoid", -1e30, kF32) == 0 && !std::signbit(value("sigmoid", -1e30, kF32)));
  EXPECT_EQ(value("sigmoid", -103.0, kF32), least) << "1.3 of the least subnormal";
  EXPECT_EQ(value("sigmoid", 0, kF32), 0.5);
  EXPECT_EQ(value("softplus", 65520.0, kF16), std::numeric_limits<double>::infinity())
      << "above the tie to infinity";
  EXPECT_EQ(value("softplus", 65519.99609375, kF16), 65504.0);
  EXPECT_EQ(value("softplus", 1e30, kF32), static_cast<double>(1e30f));
  EXPECT_EQ(value("mish", 5 * least, kF32), 3 * least);
  EXPECT_EQ(value("mish", -5 * least, kF32), -3 * least);
  // 3/5 of 15/2 least subnormals of bf16 is a tie, and mish lies above it.
  EXPECT_EQ(value("mish", 0x1p-134 * 15, kBf16), 0x1p-133 * 5);
  EXPECT_EQ(value("mish", -0x1p-134 * 15, kBf16), -0x1p-133 * 4);
  EXPECT_TRUE(std::signbit(value("tanh", -0.0, kF32)) && std::signbit(value("elu", -0.0, kF32)));
  EXPECT_THROW(value("tanh", std::numeric_limits<double>::infinity(), kF32), std::invalid_argument);
}

TEST(Oracle, InvertsBothBranches) {
  GeluOracle oracle;
  // The double nearest x* that derivative_at_value starts from.
  EXPECT_LT(oracle.derivative(kGeluXStar), 0.0);
  EXPECT_GT(oracle.derivative(std::nextafter(kGeluXStar, 0)), 0.0);
  for (double x : {-12.0, -5.0, -1.5, -0.8, -0.7518, -0.7, -0.1, 0.5, 2.0, 30.0}) {
    // y is f(x) rounded to binary64: next to x* that alone moves g by 2^-53 |y| f'' / |f'|.
    const double y = oracle.value_bounds(x).lo, g = oracle.derivative(x);
    EXPECT_NEAR(oracle.derivative_at_value(y, x > -0.75179), g, 0x1p-50 + 0x1p-53 / std::fabs(g)) << x;
  }
  EXPECT_NEAR(oracle.derivative_at_value(-0.17, true), 0, 0x1p-50) << "below y*";
  EXPECT_EQ(oracle.derivative_at_value(-0.0, false), 0);
  EXPECT_EQ(oracle.derivative_at_value(1e30, true), 1);
}

}  // namespace
}  // namespace outgrad::validation
