// The attack on softmax's bounds: nothing breaks them, it comes near to each, and it sees a gradient that is
// wrong.
#include "validation/softmax/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/host/softmax.h"
#include "kernels/support/random.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {
namespace {

TEST(SoftmaxRows, TheDoubleReferenceIsMpfrs) {
  kernels::Random random(3);
  for (const std::size_t n : {1u, 5u, 200u}) {
    std::vector<float> x, dp;
    for (std::size_t i = 0; i < n; ++i)
      x.push_back(static_cast<float>(8 * random.normal())), dp.push_back(static_cast<float>(random.normal()));
    if (n > 1) x[1] = -std::numeric_limits<float>::infinity();
    const ExactSoftmax exact = exact_softmax(x, dp);
    std::vector<Interval> p;
    Interval sum(0), mean(0);
    for (const float s : x)
      p.push_back(std::isinf(s) ? Interval(0) : exp(Interval(static_cast<double>(s)))), sum = sum + p.back();
    for (std::size_t i = 0; i < n; ++i)
      p[i] = p[i] / sum, mean = mean + p[i] * Interval(static_cast<double>(dp[i]));
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_LE(std::abs(exact.p[i] - p[i].middle()), 0x1p-49 * exact.p[i]);
      const double ds = (p[i] * (Interval(static_cast<double>(dp[i])) - mean)).middle();
      EXPECT_LE(std::abs(exact.ds[i] - ds),
                exact.p[i] * exact.greatest * (0x1p-48 + static_cast<double>(n) * 0x1p-52));
    }
  }
}

TEST(SoftmaxRows, TheAttackFindsNoViolationAndComesNear) {
  const SoftmaxAttack attack = attack_softmax(1'000'000, 2);
  EXPECT_GE(attack.evaluations, 1'000'000u);
  EXPECT_EQ(attack.violations, 0u) << to_text(attack);
  for (const SoftmaxTightness& worst : {attack.e1, attack.sum, attack.element}) {
    EXPECT_LE(worst.ratio, 1);
    EXPECT_GT(worst.ratio, 0.85) << worst.row;
  }
  EXPECT_EQ(to_json(attack)["sum"]["of_bound"], attack.sum.ratio);
}

// D as the sum of p' dp, which is not divided by that of p'.
void undivided(const float* dy, const unsigned char* codes, float* dx, std::int64_t rows, std::int64_t n) {
  for (std::int64_t row = 0; row < rows; ++row) {
    double mean = 0;
    for (std::int64_t j = row * n; j < (row + 1) * n; ++j)
      mean += static_cast<double>(kernels::softmax_of_code(codes[j])) * static_cast<double>(dy[j]);
    for (std::int64_t j = row * n; j < (row + 1) * n; ++j) {
      dx[j] = static_cast<float>(static_cast<double>(kernels::softmax_of_code(codes[j])) *
                                 (static_cast<double>(dy[j]) - mean));
    }
  }
}
// A hundredth more than it should be.
void scaled(const float* dy, const unsigned char* codes, float* dx, std::int64_t rows, std::int64_t n) {
  kernels::softmax_backward_code<float, kernels::kWidestSchedule>(dy, codes, dx, rows, n);
  for (std::int64_t i = 0; i < rows * n; ++i) dx[i] *= 1.01f;
}

TEST(SoftmaxRows, TheAttackSeesWrongGradients) {
  EXPECT_GT(attack_softmax(300'000, 2, {.backward = undivided}).violations, 1000u);
  EXPECT_GT(attack_softmax(300'000, 2, {.backward = scaled}).violations, 0u);
}

}  // namespace
}  // namespace outgrad::validation
