// The residual forms of the norms: the bits of the separate steps, one rounding of the sum of gradients, any
// aliasing that is allowed.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "kernels/host/layernorm.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

constexpr CpuSchedule kScalar{.threads = 1};
constexpr float kEps = 0x1p-17f;
// A row shorter than a vector, a ragged one, whole lines, and one large enough to be streamed (2 MiB of f32).
const std::vector<std::tuple<i64, i64>> kShapes = {{3, 5}, {40, 257}, {9, 384}, {300, 40}, {520, 1024}};

template <class T>
std::vector<T> values(i64 count, u64 seed, float scale) {
  patterns::Random random(seed);
  std::vector<T> v;
  for (i64 i = 0; i < count; ++i)
    v.push_back(narrow<T>(scale * static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f));
  return v;
}

template <class T>
std::vector<float> widened(const std::vector<T>& v) {
  std::vector<float> wide;
  for (const T value : v) wide.push_back(widen(value));
  return wide;
}

template <class T>
class ResidualNorm : public testing::Test {};
TYPED_TEST_SUITE(ResidualNorm, TestedFormats);

template <CpuSchedule S, class T>
void expect_forward(Norm norm, i64 rows, i64 n) {
  const auto x = values<T>(rows * n, 1, 3.0f), residual = values<T>(rows * n, 2, 2.0f);
  const auto gamma = values<float>(n, 3, 1.5f), beta = values<float>(n, 4, 0.5f);
  std::vector<T> sum(x.size()), expected(x.size());
  std::vector<float> expected_rstd(static_cast<size_t>(rows)), rstd(expected_rstd.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = narrow<T>(add_rn(widen(x[i]), widen(residual[i])));
  const auto plain = [&](const T* z, T* y, float* r) {
    const NormForward<T> of{.x = z,
                            .gamma = gamma.data(),
                            .beta = beta.data(),
                            .rows = rows,
                            .n = n,
                            .eps = kEps,
                            .y = y,
                            .rstd = r};
    norm == Norm::layer ? layernorm_forward<T, kScalar>(of) : rmsnorm_forward<T, kScalar>(of);
  };
  plain(sum.data(), expected.data(), expected_rstd.data());
  const auto fused = [&](const T* a, const T* b, T* z, T* y) {
    const NormForward<T> of{.x = a,
                            .residual = b,
                            .gamma = gamma.data(),
                            .beta = beta.data(),
                            .rows = rows,
                            .n = n,
                            .eps = kEps,
                            .z = z,
                            .y = y,
                            .rstd = rstd.data()};
    norm == Norm::layer ? residual_layernorm_forward<T, S>(of) : residual_rmsnorm_forward<T, S>(of);
  };
  const auto check = [&](const std::vector<T>& z, const std::vector<T>& y, const char* how) {
    EXPECT_EQ(patterns::first_difference(z, sum), -1) << how << ' ' << rows << " x " << n;
    EXPECT_EQ(patterns::first_difference(y, expected), -1) << how << ' ' << rows << " x " << n;
    EXPECT_EQ(rstd, expected_rstd) << how << ' ' << rows << " x " << n;
  };
  std::vector<T> z(x.size()), y(x.size()), a = x, b = residual;
  fused(x.data(), residual.data(), z.data(), y.data());
  check(z, y, "apart");
  fused(a.data(), b.data(), b.data(), a.data());  // z over the residual, y over x
  check(b, a, "in place");
}

template <CpuSchedule S, class T>
void expect_backward(Norm norm, i64 rows, i64 n) {
  const auto dy = values<T>(rows * n, 1, 3.0f), y = values<T>(rows * n, 2, 2.0f),
             dz_next = values<T>(rows * n, 5, 1.0f);
  const auto gamma = values<float>(n, 3, 1.5f), beta = values<float>(n, 4, 0.5f),
             rstd = values<float>(rows, 6, 2.0f);
  const auto columns = static_cast<size_t>(n);
  // Widening is exact, so the f32 kernel gives the gradient before it is rounded to T.
  const std::vector<float> dy_wide = widened(dy), y_wide = widened(y);
  std::vector<float> gradient(dy.size()), dgamma(columns), dbeta(columns), expected_dgamma(columns),
      expected_dbeta(columns);
  const NormBackward<float> wide{.dy = dy_wide.data(),
                                 .y = y_wide.data(),
                                 .gamma = gamma.data(),
                                 .beta = beta.data(),
                                 .rstd = rstd.data(),
                                 .rows = rows,
                                 .n = n,
                                 .dx = gradient.data(),
                                 .dgamma = expected_dgamma.data(),
                                 .dbeta = expected_dbeta.data()};
  norm == Norm::layer ? layernorm_backward<float, kScalar>(wide) : rmsnorm_backward<float, kScalar>(wide);
  std::vector<T> expected(dy.size());
  for (size_t i = 0; i < dy.size(); ++i) expected[i] = narrow<T>(add_rn(gradient[i], widen(dz_next[i])));
  std::vector<float> workspace(static_cast<size_t>(norm_backward_workspace(rows, n)));
  const auto fused = [&](const T* d, const T* next, T* dz) {
    const NormBackward<T> of{.dy = d,
                             .y = y.data(),
                             .dz_next = next,
                             .gamma = gamma.data(),
                             .beta = beta.data(),
                             .rstd = rstd.data(),
                             .rows = rows,
                             .n = n,
                             .dx = dz,
                             .dgamma = dgamma.data(),
                             .dbeta = dbeta.data(),
                             .workspace = workspace};
    norm == Norm::layer ? residual_layernorm_backward<T, S>(of) : residual_rmsnorm_backward<T, S>(of);
  };
  const auto check = [&](const std::vector<T>& dz, const char* how) {
    EXPECT_EQ(patterns::first_difference(dz, expected), -1) << how << ' ' << rows << " x " << n;
    EXPECT_EQ(dgamma, expected_dgamma) << how;
    EXPECT_EQ(dbeta, expected_dbeta) << how;
  };
  std::vector<T> dz(dy.size()), over_dy = dy, over_next = dz_next;
  fused(dy.data(), dz_next.data(), dz.data());
  check(dz, "apart");
  fused(over_dy.data(), dz_next.data(), over_dy.data());
  check(over_dy, "over dy");
  fused(dy.data(), over_next.data(), over_next.data());
  check(over_next, "over dz_next");
}

TYPED_TEST(ResidualNorm, ForwardIsTheSumThenTheNorm) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const auto& [rows, n] : kShapes) {
      expect_forward<kScalar, TypeParam>(norm, rows, n);
      expect_forward<kWidestSchedule, TypeParam>(norm, rows, n);
    }
  }
}

TYPED_TEST(ResidualNorm, BackwardAddsBeforeItRounds) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const auto& [rows, n] : kShapes) {
      expect_backward<kScalar, TypeParam>(norm, rows, n);
      expect_backward<kWidestSchedule, TypeParam>(norm, rows, n);
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
