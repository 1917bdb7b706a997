// The long double reference against MPFR intervals, the lattice of a format, and what the peers' formulas do
// to gamma = 0.
#include "tests/attack/gradients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/host/errors.h"
#include "validation/exact/mp.h"
#include "validation/norms/stability.h"

namespace outgrad::validation {
namespace {

using kernels::Norm;

// long double to an interval: two doubles hold its 64 bits.
Interval enclosed(long double value) {
  const double high = static_cast<double>(value);
  return Interval(high) + Interval(static_cast<double>(value - high));
}

struct Case {
  NormLayer layer;
  NormBatch batch;
};

Case sample(Norm norm, kernels::i64 n, float mean, float scale, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Case c;
  c.layer = {
      .norm = norm, .format = "f32", .rows = 2, .n = n, .gamma = {}, .beta = {}, .eps = 1e-5f, .side = {}};
  for (kernels::i64 j = 0; j < n; ++j) {
    c.layer.gamma.push_back(static_cast<float>(normal(engine)));
    if (norm == Norm::layer) c.layer.beta.push_back(static_cast<float>(normal(engine)));
  }
  for (kernels::i64 e = 0; e < 2 * n; ++e) {
    c.batch.x.push_back(mean + scale * static_cast<float>(normal(engine)));
    c.batch.dy.push_back(static_cast<float>(std::tanh(normal(engine))));
  }
  return c;
}

TEST(NormGradients, TheReferenceIsWithinItsBound) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const kernels::i64 n : {1, 2, 7, 300}) {
      for (const auto& [mean, scale] :
           {std::pair{0.0f, 1.0f}, {1000.0f, 1.0f}, {3.0f, 0.0f}, {0.0f, 1e-30f}, {0.0f, 1e15f}}) {
        const Case c = sample(norm, n, mean, scale, static_cast<unsigned>(n));
        NormReference reference;
        exact_gradients(c.layer, c.batch, reference);
        StabilityOptions options;
        options.norm = norm;
        options.format = storage_format("f32");
        options.rows = 2;
        options.mean_ratio = std::max({reference.mean_ratio[0], reference.mean_ratio[1], 1.0});
        const NormBounds bounds = reference_bounds(analyse_stability(c.layer.gamma, c.layer.beta, options));
        const size_t columns = static_cast<size_t>(n);
        const Interval count(static_cast<double>(n));
        std::vector<Interval> dgamma(columns, Interval(0));
        for (size_t i = 0; i < 2; ++i) {
          Interval sum(0), squares(0), m1(0), m2(0);
          const auto x = [&](size_t j) { return Interval(static_cast<double>(c.batch.x[i * columns + j])); };
          const auto a = [&](size_t j) {
            return Interval(static_cast<double>(c.batch.dy[i * columns + j])) *
                   Interval(static_cast<double>(c.layer.gamma[j]));
          };
          for (size_t j = 0; j < columns; ++j) sum = sum + x(j);
          const Interval row_mean = norm == Norm::layer ? sum / count : Interval(0);
          for (size_t j = 0; j < columns; ++j) squares = squares + square(x(j) - row_mean);
          const Interval rstd =
              Interval(1) / sqrt(squares / count + Interval(static_cast<double>(c.layer.eps)));
          const auto x_hat = [&](size_t j) { return (x(j) - row_mean) * rstd; };
          for (size_t j = 0; j < columns; ++j) {
            if (norm == Norm::layer) m1 = m1 + a(j) / count;
            m2 = m2 + a(j) * x_hat(j) / count;
            dgamma[j] = dgamma[j] + Interval(static_cast<double>(c.batch.dy[i * columns + j])) * x_hat(j);
          }
          const double r = rstd.upper();
          EXPECT_LE((enclosed(reference.rstd[i]) - rstd).magnitude(), bounds.rstd * r);
          for (size_t j = 0; j < columns; ++j) {
            EXPECT_LE((enclosed(reference.x_hat[i * columns + j]) - x_hat(j)).magnitude(),
                      bounds.channels[j].x_hat.worst);
            const Interval dx = rstd * (a(j) - m1 - x_hat(j) * m2);
            EXPECT_LE((enclosed(reference.dx[i * columns + j]) - dx).magnitude(),
                      bounds.channels[j].dx.worst * r)
                << n << " " << mean << " " << scale;
          }
        }
        for (size_t j = 0; j < columns; ++j) {
          EXPECT_LE((enclosed(reference.dgamma[j]) - dgamma[j]).magnitude(),
                    2 * bounds.channels[j].dgamma.worst);
        }
      }
    }
  }
}

TEST(NormGradients, StepsAreThoseOfTheFormat) {
  const auto kernels_of = [](const char* format) {
    static NormLayer layer;
    layer = {.norm = Norm::rms,
             .format = format,
             .rows = 1,
             .n = 1,
             .gamma = {1},
             .beta = {},
             .eps = 1e-5f,
             .side = {}};
    return norm_kernels(layer);
  };
  EXPECT_EQ(kernels_of("bf16")->stepped(1, 1), 1 + 0x1p-7f);
  EXPECT_EQ(kernels_of("bf16")->stepped(1, -1), 1 - 0x1p-8f);
  EXPECT_EQ(kernels_of("f16")->stepped(-1, 1), -1 + 0x1p-11f);
  EXPECT_EQ(kernels_of("f16")->stepped(0x1p-24f, -2), -0x1p-24f);
  EXPECT_EQ(kernels_of("f16")->stepped(65504, 5), 65504);
  EXPECT_EQ(kernels_of("f32")->stepped(1, -1), 1 - 0x1p-24f);
  EXPECT_EQ(kernels_of("bf16")->rounded(1e39), 0x1.fep127f);
  EXPECT_THROW(kernels_of("f8"), kernels::SpecError);
}

// What the library has a side buffer for.
TEST(NormGradients, PeersLoseAChannelWithGammaZero) {
  Case c = sample(Norm::layer, 8, 0, 1, 5);
  c.layer.gamma[3] = 0;
  NormReference exact;
  exact_gradients(c.layer, c.batch, exact);
  NormGradients input, clamped, unguarded;
  peer_gradients(c.layer, c.batch, NormPeer::kFromInput, input);
  peer_gradients(c.layer, c.batch, NormPeer::kClampedGamma, clamped);
  peer_gradients(c.layer, c.batch, NormPeer::kUnguarded, unguarded);
  EXPECT_NEAR(input.dgamma[3], static_cast<double>(exact.dgamma[3]), 1e-5);
  EXPECT_EQ(clamped.dgamma[3], 0);
  EXPECT_TRUE(std::isnan(unguarded.dgamma[3]));
  EXPECT_NEAR(clamped.dgamma[4], static_cast<double>(exact.dgamma[4]), 1e-5);
}

}  // namespace
}  // namespace outgrad::validation
