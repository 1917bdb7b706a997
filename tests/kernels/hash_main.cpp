// Prints hashes of the kernels' outputs over fixed inputs; built with several sets of compiler flags, whose
// outputs must agree.
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
  std::printf("%s %s %s %016llx\n", what, fit, Format<T>::kName,
              static_cast<unsigned long long>(hash.value()));
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

// A y of 8 bits, as a direct table and as a polynomial.
template <class Fit, class Y>
void backward_of_8_bits() {
  std::vector<Y> y;
  for (int repeat = 0; repeat < 4; ++repeat) {
    for (const Y code : patterns::all<Y>()) y.push_back(code);
  }
  y.pop_back();
  const std::vector<BF16> dy(y.size(), narrow<BF16>(1.25f));
  std::vector<u32> mask(y.size() / 32 + 1, 0x3c96a5f0u);
  for (size_t i = 0; i < mask.size() / 2; ++i) mask[i] = ~mask[i];
  std::vector<BF16> dx(y.size());
  activation_backward<Fit, BF16, kScalar, Y>(dy.data(), y.data(), mask.data(), dx.data(),
                                             static_cast<i64>(y.size()));
  print("backward", Fit::kName, dx);
  activation_backward<Fit, BF16, kWidest, Y>(dy.data(), y.data(), mask.data(), dx.data(),
                                             static_cast<i64>(y.size()));
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
  std::printf("mask %s %s %016llx\n", Forward::kName, Format<T>::kName,
              static_cast<unsigned long long>(hash.value()));
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
    Isa::store<false>(&sums[i],
                      Isa::add(Isa::mul(Isa::load(&a.dy[i]), Isa::load(&a.y[i])), Isa::splat(0.1f)));
  }
#endif
  print("product_sum", "vector", sums);
}

template <class T>
void format() {
  backward<typename DefaultFit<T>::Type, T>();
  backward<synthetic::WithLeft, T>();
  backward<synthetic::WithLeftAndRight, T>();
  backward<synthetic::TwoWord, T>();
  backward<synthetic::WithoutLeft<16, 4>, T>();
  backward<synthetic::WithoutLeft<16, 6, kEstrin>, T>();
  backward<synthetic::WithoutLeft<8, 7, kEvenOdd>, T>();
  backward<synthetic::WithBreaks<5, 4>, T>();
  backward<synthetic::OneRow<6>, T>();
  backward<synthetic::Unmasked<16, 5, kEstrin>, T>();
  forward<typename ForwardFit<T>::Type, T>();
  forward<synthetic::ForwardOf<T, 64>, T>();
}

}  // namespace

int main() {
  format<float>();
  format<F16>();
  format<BF16>();
  backward<synthetic::Direct<F16, F16>, F16>();
  backward<synthetic::Direct<BF16, F16>, BF16>();
  backward<synthetic::Direct<BF16, BF16, false>, BF16>();
  backward_of_8_bits<synthetic::Direct<F8E4M3, F16>, F8E4M3>();
  backward_of_8_bits<synthetic::Direct<F8E5M2, BF16>, F8E5M2>();
  backward_of_8_bits<synthetic::WithLeft, F8E4M3>();
  backward_of_8_bits<synthetic::WithBreaks<5, 4>, F8E5M2>();
  product_sums();
}
