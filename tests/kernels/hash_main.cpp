// Prints hashes of the kernels' outputs over fixed inputs; built with several sets of compiler flags, whose outputs must agree.
#include <cstdio>
#include <vector>

#include "kernels/fits.h"
#include "kernels/host/elementwise.h"
#include "kernels/simd.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace {

using namespace outgrad::kernels;

constexpr CpuSchedule kScalar{};
constexpr CpuSchedule kWidest{.vector_bits = kBestVectorBits, .unroll = kBestVectorBits > 0 ? 4 : 1};

template <class T>
void print(const char* what, const char* fit, const std::vector<T>& values) {
  patterns::Hash hash;
  for (const T value : values) hash.add(canonical_bits(value));
  std::printf("%s %s %s %016llx\n", what, fit, Format<T>::kName, static_cast<unsigned long long>(hash.value()));
}

template <class Fit, class T>
void backward() {
  const auto a = patterns::backward<T>();
  std::vector<T> dx(a.y.size());
  gelu_backward<Fit, T, kScalar>(a.dy.data(), a.y.data(), a.mask.data(), dx.data(), a.size());
  print("backward", Fit::kName, dx);
  gelu_backward<Fit, T, kWidest>(a.dy.data(), a.y.data(), a.mask.data(), dx.data(), a.size());
  print("backward", Fit::kName, dx);
}

template <class Forward, class T>
void forward() {
  const auto x = patterns::all<T>();
  std::vector<T> y(x.size());
  std::vector<u32> mask((x.size() + 31) / 32);
  gelu_forward<Forward, T, kScalar>(x.data(), y.data(), mask.data(), static_cast<i64>(x.size()));
  print("forward", Forward::kName, y);
  gelu_forward<Forward, T, kWidest>(x.data(), y.data(), mask.data(), static_cast<i64>(x.size()));
  print("forward", Forward::kName, y);
  patterns::Hash hash;
  for (const u32 word : mask) hash.add(word);
  std::printf("mask %s %s %016llx\n", Forward::kName, Format<T>::kName, static_cast<unsigned long long>(hash.value()));
}

// What contraction changes first: a product that meets a sum, in plain code and in vectors.
void product_sums() {
  const auto a = patterns::backward<float>();
  std::vector<float> sums;
  for (size_t i = 0; i < a.y.size(); ++i) sums.push_back(add_rn(mul_rn(a.dy[i], a.y[i]), 0.1f));
  print("product_sum", "scalar", sums);
#ifdef OUTGRAD_AVX2
#ifdef OUTGRAD_AVX512
  using Isa = Avx512;
#else
  using Isa = Avx2;
#endif
  for (size_t i = 0; i + Isa::kLanes <= a.y.size(); i += Isa::kLanes) {
    Isa::store<false>(&sums[i], Isa::add(Isa::mul(Isa::load(&a.dy[i]), Isa::load(&a.y[i])), Isa::splat(0.1f)));
  }
#endif
  print("product_sum", "vector", sums);
}

template <class T>
void format() {
  backward<typename DefaultFit<T>::Type, T>();
  backward<synthetic::WithLeft, T>();
  backward<synthetic::WithoutLeft<16, 4>, T>();
  forward<generated::GeluForward, T>();
  forward<synthetic::Forward<64>, T>();
}

}  // namespace

int main() {
  format<float>();
  format<F16>();
  format<BF16>();
  product_sums();
}
