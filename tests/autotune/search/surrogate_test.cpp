// The Gaussian process against its textbook formulas, dense and in double; what its hyperparameters learn.
#include "autotune/search/surrogate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

Points grid() {
  Space space;
  space.parameter("size", {1, 2, 4, 8, 16, 32})
      .parameter("count", {1, 2, 3, 4, 5, 6})
      .parameter("fixed", {7})
      .parameter("flag", {0, 1});
  return space.construct();
}

TEST(Features, SizesAreLogarithmicAndDivisibilityIsACoordinate) {
  const Points points = grid();
  const Features features(points);
  ASSERT_EQ(features.dimensions(), 4u);  // size, count and how even it is, flag
  const auto at = [&](std::size_t dimension, const Point& point) {
    return features.at(dimension, *points.find(point));
  };
  EXPECT_FLOAT_EQ(at(0, {1, 1, 7, 0}), 0);
  EXPECT_FLOAT_EQ(at(0, {4, 1, 7, 0}), 0.4F);
  EXPECT_FLOAT_EQ(at(0, {32, 1, 7, 0}), 1);
  EXPECT_FLOAT_EQ(at(1, {1, 6, 7, 0}), 1);
  EXPECT_FLOAT_EQ(at(2, {1, 3, 7, 0}), 0);
  EXPECT_FLOAT_EQ(at(2, {1, 6, 7, 0}), 0.5F);
  EXPECT_FLOAT_EQ(at(2, {1, 4, 7, 0}), 1);
  EXPECT_FLOAT_EQ(at(3, {1, 1, 7, 1}), 1);
}

double matern(const Features& features, const Hyperparameters& h, std::size_t a, std::size_t b) {
  double square = 0;
  for (std::size_t d = 0; d < features.dimensions(); ++d)
    square += std::pow((features.at(d, a) - features.at(d, b)) * std::exp(-h.log_length[d]), 2);
  const double r = std::sqrt(5 * square);
  return (1 + r + r * r / 3) * std::exp(-r);
}

// Solves a x = b by Gaussian elimination; a is positive definite.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t k = 0; k < n; ++k)
    for (std::size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (std::size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t j = i + 1; j < n; ++j) b[i] -= a[i][j] * b[j];
    b[i] /= a[i][i];
  }
  return b;
}

TEST(GaussianProcess, PredictsWhatTheFormulasGive) {
  const Points points = grid();
  const Features features(points);
  const Hyperparameters h{{-0.5, 0.2, 0.9, -0.1}, -4};
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < points.size(); i += 2) candidates.push_back(i);
  GaussianProcess process(features, candidates, h);
  std::uint64_t state = 5;
  std::vector<std::size_t> at;
  std::vector<double> y;
  for (int i = 0; i < 20; ++i) {
    // repeats are allowed: the noise tells them apart
    at.push_back(kernels::next_random(state) % points.size());
    y.push_back(std::sin(static_cast<double>(at.back())) + 0.01 * i);
    process.observe(at.back(), y.back());
  }
  process.observe(3, 100);
  process.forget_last();
  std::vector<std::vector<double>> covariance(at.size(), std::vector<double>(at.size()));
  for (std::size_t i = 0; i < at.size(); ++i)
    for (std::size_t j = 0; j < at.size(); ++j)
      covariance[i][j] = matern(features, h, at[i], at[j]) + (i == j ? std::exp(h.log_noise) : 0);
  const std::vector<double> alpha = solve(covariance, y);
  double scale = 0;
  for (std::size_t i = 0; i < at.size(); ++i) scale += alpha[i] * y[i] / static_cast<double>(at.size());
  EXPECT_NEAR(process.scale(), scale, 1e-3 * scale);
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    std::vector<double> k;
    for (const std::size_t i : at) k.push_back(matern(features, h, i, candidates[c]));
    const std::vector<double> weights = solve(covariance, k);
    double mean = 0, variance = 1;
    for (std::size_t i = 0; i < at.size(); ++i) mean += weights[i] * y[i], variance -= weights[i] * k[i];
    EXPECT_NEAR(process.at(c).mean, mean, 2e-3);
    EXPECT_NEAR(process.at(c).variance, variance, 2e-3);
    EXPECT_NEAR(process.predict(candidates[c]).mean, mean, 2e-3);
    EXPECT_NEAR(process.predict(candidates[c]).variance, variance, 2e-3);
  }
}

TEST(Hyperparameters, LengthsTellWhatMatters) {
  const Points points = grid();
  const Features features(points);
  std::vector<std::size_t> at;
  std::vector<double> y;
  for (std::size_t i = 0; i < points.size(); i += 1) {
    at.push_back(i);
    // of count only its evenness; the flag does nothing
    y.push_back(std::cos(6 * features.at(0, i)) + 0.5 * features.at(2, i));
  }
  double mean = 0;
  for (const double value : y) mean += value / static_cast<double>(y.size());
  for (double& value : y) value -= mean;
  const Hyperparameters fitted = fit_hyperparameters(features, at, y, {});
  EXPECT_LT(fitted.log_length[0] + 1, fitted.log_length[1]);
  EXPECT_LT(fitted.log_length[2] + 1, fitted.log_length[1]);
  EXPECT_LT(fitted.log_length[2] + 1, fitted.log_length[3]);
  EXPECT_LT(fitted.log_noise, -5);
  // Steps that end at a maximum: starting there again goes nowhere better by much.
  const Hyperparameters again = fit_hyperparameters(features, at, y, fitted);
  EXPECT_NEAR(again.log_length[0], fitted.log_length[0], 0.1);
}

// Which number a thing has says nothing: things are all as far from each other.
TEST(Features, ThingsHaveNoOrder) {
  Space space;
  space.nominal_parameter("fit", {0, 1, 2, 3, 4}).parameter("unroll", {1, 2, 4});
  const Points points = space.construct();
  const Features features(points);
  EXPECT_EQ(features.dimensions(), 5u + 1u);
  const auto at = [&](std::int64_t fit, std::int64_t unroll) { return *points.find(Point{fit, unroll}); };
  for (std::int64_t a = 0; a < 5; ++a)
    for (std::int64_t b = 0; b < 5; ++b)
      EXPECT_EQ(features.square_distance(at(a, 2), at(b, 2)), a == b ? 0 : 2);
  EXPECT_EQ(points.neighbours(at(0, 1)).size(), 4u + 2u);
}

}  // namespace
}  // namespace outgrad::autotune
