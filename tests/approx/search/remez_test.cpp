#include "approx/search/remez.h"

#include "approx/function/scalars.h"

#include <boost/multiprecision/eigen.hpp>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/softmax.h"

namespace outgrad::approx {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;

Matrix powers(const Vector& x, int degree, int first = 0) {
  Matrix m(x.size(), degree + 1 - first);
  for (int k = first; k <= degree; ++k) m.col(k - first) = x.array().pow(k);
  return m;
}

TEST(Remez, ChebyshevPolynomialIsTheErrorOfTheNextPower) {
  // The best approximation of x^(n+1) from degree n on [-1, 1] errs by 2^-n.
  const Vector x = Vector::LinSpaced(2001, -1, 1);
  for (int n = 1; n <= 8; ++n) {
    const auto best = exchange<double>(powers(x, n), x.array().pow(n + 1).matrix());
    EXPECT_TRUE(best.settled);
    EXPECT_NEAR(best.error, std::ldexp(1.0, -n), 1e-5 * std::ldexp(1.0, -n)) << n;
    EXPECT_LE(best.level, std::ldexp(1.0, -n) * (1 + 1e-9)) << n;
  }
}

TEST(Remez, NoCoefficientsUndercutTheLevel) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> unit(-1, 1);
  const Vector x = Vector::LinSpaced(300, -0.4, 0.9);
  for (int trial = 0; trial < 30; ++trial) {
    const Vector target = x.unaryExpr([&](double) { return unit(random); });
    const Matrix columns = powers(x, 4);
    const auto best = exchange<double>(columns, target);
    ASSERT_TRUE(best.settled);
    for (int other = 0; other < 200; ++other) {
      const Vector c =
          best.coefficients + Vector::NullaryExpr(5, [&](Eigen::Index) { return 0.05 * unit(random); });
      EXPECT_GE((target - columns * c).cwiseAbs().maxCoeff(), best.level * (1 - 1e-12));
    }
  }
}

TEST(Remez, MissingPowersAndVanishingWeightsSettle) {
  // sin(x) = x (...): only odd freedom matters, and the columns vanish at 0.
  const Vector x = Vector::LinSpaced(400, 1e-3, 1);
  const auto best = exchange<double>(powers(x, 5, 1), x.array().sin().matrix());
  EXPECT_TRUE(best.settled);
  EXPECT_LT(best.error, 2e-5);
  EXPECT_GT(best.level, 1e-8);
}

TEST(Remez, MakesThePolynomialOfSoftmaxsExp) {
  const Vector r = Vector::LinSpaced(2001, -0.3466, 0.3466), weight = r.array().square() * (-r).array().exp();
  const Matrix columns = weight.asDiagonal() * powers(r, kernels::kSoftmaxDegree);
  const Vector target = (r.array().expm1() - r.array()) * (-r).array().exp();
  const auto best = exchange<double>(columns, target);
  EXPECT_TRUE(best.settled);
  EXPECT_NEAR(best.error, 0.0513 * 0x1p-24, 1e-4 * 0x1p-24);
  Vector rounded = best.coefficients;
  for (Eigen::Index k = 0; k <= kernels::kSoftmaxDegree; ++k) {
    const float coefficient = kernels::kSoftmaxQ.c[k];
    EXPECT_EQ(static_cast<float>(rounded[k]), coefficient) << k;
    rounded[k] = static_cast<double>(coefficient);
  }
  EXPECT_NEAR((columns * rounded - target).cwiseAbs().maxCoeff(), 0.0637 * 0x1p-24, 1e-4 * 0x1p-24);
}

TEST(Remez, MakesThePolynomialOfSoftmaxsLog2) {
  const double root = std::sqrt(0.5);
  const Vector t = Vector::LinSpaced(4001, root - 1, 1 / root - 1);
  const Matrix columns = powers(t, kernels::kSoftmaxLog2Degree + 1, 1);
  const Vector target = t.array().log1p() / std::log(2.0);
  const auto best = exchange<double>(columns, target);
  EXPECT_TRUE(best.settled);
  EXPECT_NEAR(best.error, 0.630 * 0x1p-21, 1e-3 * 0x1p-21);
  Vector rounded = best.coefficients;
  for (Eigen::Index k = 0; k <= kernels::kSoftmaxLog2Degree; ++k) {
    EXPECT_EQ(static_cast<float>(rounded[k]), kernels::kSoftmaxLog2.c[k]) << k;
    rounded[k] = static_cast<double>(kernels::kSoftmaxLog2.c[k]);
  }
  EXPECT_NEAR((columns * rounded - target).cwiseAbs().maxCoeff(), 0.680 * 0x1p-21, 1e-3 * 0x1p-21);
}

TEST(Remez, MultiPrecisionSeesBelowDouble) {
  const int degree = 12, samples = 200;
  Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic> columns(samples, degree + 1);
  Eigen::Matrix<Real, Eigen::Dynamic, 1> target(samples);
  for (int i = 0; i < samples; ++i) {
    const Real x = (Real(i) / (samples - 1) - Real(0.5)) / 4;
    Real power = 1;
    for (int k = 0; k <= degree; ++k, power *= x) columns(i, k) = power;
    target[i] = exp(x);
  }
  const auto best = exchange<Real>(columns, target);
  EXPECT_TRUE(best.settled);
  // (1/8)^13 / (2^12 13!) = 2^-83.5.
  EXPECT_LT(best.error, std::exp2(-82.5));
  EXPECT_GT(best.level, std::exp2(-84.5));
}

// What is left of a target that is a combination of the columns is noise: exchanges of it never settle, and
// each costs three factorisations.
TEST(Remez, ATargetThatIsACombinationIsReachedAtOnce) {
  using RealMatrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;
  using RealVector = Eigen::Matrix<Real, Eigen::Dynamic, 1>;
  RealMatrix columns(200, 8);
  RealVector target(200);
  for (Eigen::Index i = 0; i < 200; ++i) {
    const Real u = Real(i - 100) / 100;
    Real power = 1;
    for (int k = 0; k < 8; ++k, power *= u) columns(i, k) = power;
    target[i] = u * (1 - u) / 3;
  }
  const auto best = exchange<Real>(columns, target, 1e-6, 3, 1e-40);
  EXPECT_TRUE(best.settled);
  EXPECT_LT(best.error, Real(1e-40));
}

TEST(Remez, AsManySamplesAsCoefficientsAreRefused) {
  const Vector x = Vector::LinSpaced(4, -1, 1);
  EXPECT_THROW(exchange<double>(powers(x, 3), x.array().exp().matrix()), std::logic_error);
  EXPECT_NO_THROW(exchange<double>(powers(x, 2), x.array().exp().matrix()));
}

}  // namespace
}  // namespace outgrad::approx
