// Prints one hash of what GELU, an activation in doubles and LayerNorm compute over a few thousand inputs;
// tests/system/fast_math_test.sh compares compilers and flags by it.
#include <cstdio>
#include <vector>

#include "kernels/activations.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/forwards.h"
#include "kernels/host/layernorm.h"
#include "kernels/simd.h"

namespace {

using namespace outgrad::kernels;

u64 hash = 14695981039346656037u;  // FNV-1a

void add(const std::vector<float>& values) {
  for (const float value : values) hash = (hash ^ canonical_bits(value)) * 1099511628211u;
}

constexpr CpuSchedule kScalar{.threads = 1};
constexpr CpuSchedule kVectors{
    .threads = 1, .vector_bits = kBestVectorBits, .unroll = kBestVectorBits > 0 ? 4 : 1};

template <CpuSchedule S>
void elementwise(const std::vector<float>& x) {
  const i64 n = static_cast<i64>(x.size());
  std::vector<float> y(x.size()), dx(x.size());
  std::vector<u32> mask(x.size() / 32 + 1);
  gelu_forward<ForwardFit<float>::Type, float, S>(x.data(), y.data(), mask.data(), n);
  gelu_backward<DefaultFit<float>::Type, float, S>(x.data(), y.data(), mask.data(), dx.data(), n);
  add(y), add(dx);
  activation_forward<forwards::Mish, float, S>(x.data(), y.data(), mask.data(), n);
  activation_backward<generated::MishF32, float, S>(x.data(), y.data(), mask.data(), dx.data(), n);
  add(y), add(dx);
}

}  // namespace

int main() {
  std::vector<float> x;
  for (u32 bits = 0; bits < 0x41800000u; bits += 0x40961)
    x.push_back(float_of(bits)), x.push_back(float_of(bits | 0x80000000u));
  for (const u32 bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 1u, 0x80000001u}) x.push_back(float_of(bits));
  elementwise<kScalar>(x);
  elementwise<kVectors>(x);
  constexpr i64 kCols = 77;
  const i64 rows = static_cast<i64>(x.size() - 5) / kCols, n = rows * kCols;
  std::vector<float> y(n), dx(n), rstd(rows), gamma(kCols), beta(kCols), dgamma(kCols), dbeta(kCols);
  // Exact, fused or not.
  for (i64 j = 0; j < kCols; ++j)
    gamma[j] = 0.5f + 0.0078125f * static_cast<float>(j), beta[j] = 0.125f * static_cast<float>(j % 5);
  layernorm_forward<float, CpuNormForwardSchedule{.threads = 1}>({.x = x.data(),
                                                                  .gamma = gamma.data(),
                                                                  .beta = beta.data(),
                                                                  .rows = rows,
                                                                  .n = kCols,
                                                                  .y = y.data(),
                                                                  .rstd = rstd.data()});
  layernorm_backward<float, CpuNormBackwardSchedule{.threads = 1}>({.dy = x.data(),
                                                                    .y = y.data(),
                                                                    .gamma = gamma.data(),
                                                                    .beta = beta.data(),
                                                                    .rstd = rstd.data(),
                                                                    .rows = rows,
                                                                    .n = kCols,
                                                                    .dx = dx.data(),
                                                                    .dgamma = dgamma.data(),
                                                                    .dbeta = dbeta.data()});
  add(y), add(rstd), add(dx), add(dgamma), add(dbeta);
  std::printf("%016llx\n", static_cast<unsigned long long>(hash));
}
