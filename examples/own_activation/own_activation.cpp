// The inverse square root unit, f(x) = x / sqrt(1 + x^2), with the gradient from its output: the forward pass
// keeps y in bf16, the backward pass needs nothing else. f rises everywhere, so that there is no branch and
// no mask. The gradients are compared with f'(x) = (1 + x^2)^(-3/2) in double precision.
//
// Build: CMakeLists.txt beside this file. Exit status 0 if the gradients are within the proven error.
#include "isru.h"  // made by the build from isru.json

#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/host/api.h"

namespace k = outgrad::kernels;

int main() {
  using Fit = k::generated::Isru;
  static_assert(!Fit::kMasked);

  const int n = 100'000;
  const auto x = [](int i) { return (i - n / 2) / 2000.0; };  // -25 to 25
  std::vector<k::BF16> y(n), dy(n, k::narrow<k::BF16>(1.0f)), dx(n);
  for (int i = 0; i < n; ++i)  // the forward pass
    y[i] = k::narrow<k::BF16>(static_cast<float>(x(i) / std::sqrt(1 + x(i) * x(i))));

  k::activation_backward<Fit, k::BF16, k::tuned::kDefaultSchedule>(dy.data(), y.data(), nullptr, dx.data(),
                                                                   n);

  double largest = 0;
  for (int i = 0; i < n; ++i)
    largest = std::fmax(largest, std::fabs(k::widen(dx[i]) - std::pow(1 + x(i) * x(i), -1.5)));
  const double proven = Fit::kT + 0x1p-9;  // and half a unit in the last place of dx, which is at most 1 here
  std::printf("largest error of dx: %.5f; proven: %.5f\n", largest, proven);
  return largest <= proven ? 0 : 1;
}
