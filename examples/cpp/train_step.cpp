// One training step of a small block, y = GELU(LayerNorm(x)), with what outgrad saves: the forward pass keeps
// the outputs and one bit an element, the backward pass needs no x. The gradients are compared with those
// computed from x in double precision.
//
// Build: CMakeLists.txt beside this file. Exit status 0 if the gradients are within the proven error of the
// fit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/host/api.h"

namespace {

using namespace outgrad::kernels;

constexpr i64 kRows = 64, kColumns = 256, kSize = kRows * kColumns;
constexpr float kEps = 1e-5f;

// d/dx of x Phi(x), from x.
double gelu_derivative(double x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0));
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * density;
}

}  // namespace

int main() {
  std::mt19937 random(42);
  std::normal_distribution<float> normal;
  std::vector<BF16> x(kSize), upstream(kSize);
  std::vector<float> gamma(kColumns), beta(kColumns);
  for (BF16& value : x) value = narrow<BF16>(1.0f + 2.0f * normal(random));
  for (BF16& value : upstream) value = narrow<BF16>(normal(random));
  for (float& value : gamma) value = 1.0f + 0.1f * normal(random);
  for (float& value : beta) value = 0.1f * normal(random);

  // Forward. What is kept: h and y, which the next layers need anyway, rstd, and the mask. x may go.
  std::vector<BF16> h(kSize), y(kSize);
  std::vector<float> rstd(kRows);
  std::vector<u32> mask((kSize + 31) / 32);
  layernorm_forward<BF16>({.x = x.data(),
                           .gamma = gamma.data(),
                           .beta = beta.data(),
                           .rows = kRows,
                           .n = kColumns,
                           .eps = kEps,
                           .y = h.data(),
                           .rstd = rstd.data()});
  gelu_forward<BF16>(h.data(), y.data(), mask.data(), kSize);

  // Backward, in place: the gradient of y becomes the gradient of h, which becomes the gradient of x.
  std::vector<BF16> gradient = upstream;
  std::vector<float> dgamma(kColumns), dbeta(kColumns);
  gelu_backward<BF16>(gradient.data(), y.data(), mask.data(), gradient.data(), kSize);
  const std::vector<BF16> after_gelu = gradient;
  layernorm_backward<BF16>({.dy = gradient.data(),
                            .y = h.data(),
                            .gamma = gamma.data(),
                            .beta = beta.data(),
                            .rstd = rstd.data(),
                            .rows = kRows,
                            .n = kColumns,
                            .dx = gradient.data(),
                            .dgamma = dgamma.data(),
                            .dbeta = dbeta.data()});

  // Against the derivative taken from the input h: |dx - dy f'(h)| <= |dy| T + half an ulp of bf16 (and of
  // fp32, which is less), where T is the fit's proven total error, of any x that rounds to the stored y.
  using Fit = DefaultFit<BF16>::Type;
  double largest = 0;
  for (size_t i = 0; i < static_cast<size_t>(kSize); ++i) {
    const double dy = widen(upstream[i]);
    const double error = std::abs(widen(after_gelu[i]) - dy * gelu_derivative(widen(h[i])));
    const double bound = std::abs(dy) * Fit::kT + std::abs(widen(after_gelu[i])) * 0x1p-8 + 0x1p-120;
    largest = std::max(largest, error / bound);
  }
  std::printf("GELU in bf16 from its output: fit %s, T = %.5f, largest error %.3f of its bound\n", Fit::kName,
              Fit::kT, largest);

  // LayerNorm's gradient from x, in double precision, for the same upstream gradient.
  double worst_row = 0;
  for (i64 row = 0; row < kRows; ++row) {
    double mean = 0, variance = 0, m1 = 0, m2 = 0;
    const auto at = [&](const std::vector<BF16>& v, i64 j) {
      return static_cast<double>(widen(v[static_cast<size_t>(row * kColumns + j)]));
    };
    for (i64 j = 0; j < kColumns; ++j) mean += at(x, j) / kColumns;
    for (i64 j = 0; j < kColumns; ++j) variance += (at(x, j) - mean) * (at(x, j) - mean) / kColumns;
    const double r = 1 / std::sqrt(variance + kEps);
    for (i64 j = 0; j < kColumns; ++j) {
      const double a = at(after_gelu, j) * gamma[static_cast<size_t>(j)];
      m1 += a / kColumns;
      m2 += a * (at(x, j) - mean) * r / kColumns;
    }
    double error = 0, norm = 0;
    for (i64 j = 0; j < kColumns; ++j) {
      const double dx =
          r * (at(after_gelu, j) * gamma[static_cast<size_t>(j)] - m1 - (at(x, j) - mean) * r * m2);
      error += (at(gradient, j) - dx) * (at(gradient, j) - dx);
      norm += dx * dx;
    }
    worst_row = std::max(worst_row, std::sqrt(error / norm));
  }
  std::printf("LayerNorm in bf16 from its output: largest relative error of a row's dx %.5f\n", worst_row);

  // Half an ulp of bf16 is 2^-9 = 0.002 of a value; the stored h adds as much through x^.
  return largest <= 1 && worst_row < 0x1p-7 ? 0 : 1;
}
