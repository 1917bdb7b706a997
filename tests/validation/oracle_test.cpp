// The MPFR witness against series and identities that use neither erfc nor exp, and its rounding against exhaustive small formats.

#include "validation/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "validation/function.h"

namespace outgrad::validation {
namespace {

/// Phi(x) = 1/2 + phi(x) (x + x^3/3 + x^5/15 + ...) for x >= 0, whose terms are all positive; the left side by its continued fraction. In
/// long double: another formula and another arithmetic than the oracle's.
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
    const long double density = std::exp(-static_cast<long double>(x) * x / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
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
  // Every adjacent pair of the f16 grid near some arguments: no grid point may be nearer to the enclosure than the one returned.
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

// Another parser, another interval arithmetic and derivatives by jets: validation/function.h.
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
