#include "approx/proof/product.h"

#include "tests/approx/shared.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace outgrad::approx {
namespace {

/// The least T of any function of (y, m), found in doubles by an independent program for balls without their
/// absolute part and with d = u / (1 + u) + 2^-22.
struct Least {
  const char* fit;
  double error;
};
constexpr Least kLeast[] = {{"silu_bf16_product", 0.01627},     {"silu_f16_product", 0.00556},
                            {"gelu_tanh_bf16_product", 0.0176}, {"gelu_tanh_f16_product", 0.00607},
                            {"gelu_bf16_product", 0.01762},     {"gelu_f16_product", 0.00608}};

/// The largest error that a search sees: x all over the line and, closer and closer, about x*; y at both ends
/// of the ball of each, and at random within it.
double seen(const Composite& composite, const BackwardModel& m) {
  const Activation& f = composite.activation();
  const ProductBall ball = product_ball(m.product);
  const double x_star = composite.x_star().to_double();
  std::mt19937 random(5);
  std::uniform_real_distribution<double> within(-1, 1);
  double worst = 0;
  constexpr int kLooks = 8000;
  for (int k = 0; k < kLooks; ++k) {
    const double far = std::exp2(-16 + 21.0 * k / kLooks), x = x_star + (k % 2 == 0 ? far : -far);
    const double y = f.value(x), slope = static_cast<double>(composite.gradient_at(Real(x)));
    for (const double d : {-1.0, 1.0, within(random)}) {
      // Rounding to fp32 must not lead out of the ball: it is nothing beside it.
      const auto s = static_cast<float>(y + 0.9999 * d * (ball.relative * std::abs(y) + ball.absolute));
      worst = std::max(worst, std::abs(static_cast<double>(deployed_gradient(m, s, k % 2 == 0)) - slope));
    }
  }
  return worst;
}

TEST(Product, TIsWithinAHundredthOfTheLeastOfAnyFunction) {
  for (const Least& least : kLeast) {
    const Fit fit = committed(least.fit);
    const BackwardModel& m = *fit.as<BackwardModel>();
    EXPECT_NEAR(m.kO, least.error, 0.003 * least.error) << least.fit;
    EXPECT_LE(m.kT, 1.01 * m.kO) << least.fit;
    EXPECT_GE(m.kT, m.kO) << least.fit;
  }
}

TEST(Product, TIsAboveWhatASearchSeesAndNear) {
  for (const Least& least : {kLeast[0], kLeast[3]}) {
    const Fit fit = committed(least.fit);
    const Composite composite(find_activation(fit.activation));
    const BackwardModel& m = *fit.as<BackwardModel>();
    const double found = seen(composite, m);
    EXPECT_LE(found, m.kT) << least.fit;
    EXPECT_GE(found, 0.99 * m.kT) << least.fit;
  }
}

/// Wherever a row is damaged so that a search sees it, T rises with it.
TEST(Product, DamageRaisesT) {
  const Fit fit = committed("silu_bf16_product");
  const Composite composite(find_activation(fit.activation));
  BackwardModel original = *fit.as<BackwardModel>();
  for (size_t row = 0; row < original.pieces.size(); ++row) {
    BackwardModel m = original;
    m.pieces[row].c[0] += 0.05f;
    const double found = seen(composite, m);
    EXPECT_GT(found, 1.2 * original.kT) << row;
    EXPECT_GE(certify_product(composite, m).total, found) << row;
  }
  for (const float factor : {0.5f, 2.0f}) {
    BackwardModel m = original;
    m.kTMin *= factor;
    EXPECT_GE(certify_product(composite, m).total, std::max(seen(composite, m), 1.02 * original.kT));
  }
}

}  // namespace
}  // namespace outgrad::approx
