// Host kernels of GELU on generated inputs, and the hash.
#include "tests/gpu/host_side.h"

#include "kernels/fits.h"
#include "kernels/host/api.h"
#include "kernels/host/bias.h"
#include "kernels/host/dropout.h"
#include "kernels/host/forwards.h"

namespace outgrad::tests::gpu {
template <class T>
void host_gelu_backward(u64 begin, i64 n, bool complement, GeluArrays<T>& arrays) {
  auto& [y, dx, mask] = arrays;
  generate(y, n, [=](u64 i) { return argument<T>(begin + i); });
  generate(mask, (n + 31) / 32, [=](u64 i) { return mask_word(begin / 32 + i, complement); });
  generate(dx, n, [=](u64 i) { return gradient<T>(begin + i); });
  kernels::gelu_backward<T>(dx.data(), y.data(), mask.data(), dx.data(), n);
}

template <class T>
void host_gelu_forward(u64 begin, i64 n, GeluArrays<T>& arrays) {
  generate(arrays.y, n, [=](u64 i) { return argument<T>(begin + i); });
  arrays.mask.resize(static_cast<std::size_t>(n + 31) / 32);
  kernels::gelu_forward<T>(arrays.y.data(), arrays.y.data(), arrays.mask.data(), n);
}

namespace {

template <class T, class... F>
void run_forward(kernels::ForwardList<F...>, int activation, T* y, u32* mask, i64 n) {
  int number = 1;  // after GELU
  ((number++ == activation
        ? kernels::activation_forward<F, T, kernels::tuned::kDefaultSchedule>(y, y, mask, n)
        : void()),
   ...);
}

}  // namespace

template <class T>
void host_activation_forward(int activation, u64 begin, i64 n, GeluArrays<T>& arrays) {
  generate(arrays.y, n, [=](u64 i) { return argument<T>(begin + i); });
  arrays.mask.resize(static_cast<std::size_t>(n + 31) / 32);
  run_forward(kernels::ActivationForwards{}, activation, arrays.y.data(), arrays.mask.data(), n);
}

template <class T>
std::vector<T> host_dropout(i64 n, u64 seed, double p) {
  std::vector<T> values = generated<T>(n, [](u64 i) { return argument<T>(i); });
  kernels::dropout(values.data(), values.data(), n, seed, p);
  return values;
}

template <class T>
BiasResult<T> host_bias(i64 rows, i64 n) {
  const std::vector<float> bias = generated<float>(n, [](u64 j) { return uniform(kBetaStream, j); });
  BiasResult<T> result;
  result.y = generated<T>(rows * n, [](u64 i) { return kernels::narrow<T>(uniform(kXStream, i)); });
  result.dx = generated<T>(rows * n, [](u64 i) { return kernels::narrow<T>(uniform(kDyStream, i)); });
  result.mask.resize(static_cast<std::size_t>(rows * n + 31) / 32);
  result.dbias.resize(static_cast<std::size_t>(n));
  T *y = result.y.data(), *dx = result.dx.data();
  kernels::bias_gelu_forward<typename kernels::ForwardFit<T>::Type, T,
                             kernels::tuned::GeluForward<T>::kSchedule>(y, bias.data(), rows, n, y,
                                                                        result.mask.data());
  kernels::bias_gelu_backward<typename kernels::DefaultFit<T>::Type, T,
                              kernels::tuned::GeluBackward<T>::kSchedule>(dx, y, result.mask.data(), rows, n,
                                                                          dx, result.dbias.data());
  return result;
}

template <class T>
u64 host_hash(const std::vector<T>& array, u64 begin) {
  u64 sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (i64 i = 0; i < static_cast<i64>(array.size()); ++i) {
    sum += hash_term(begin + static_cast<u64>(i), hash_bits(array[static_cast<std::size_t>(i)]));
  }
  return sum;
}

#define OUTGRAD_FOR_FORMAT(T)                                              \
  template void host_gelu_backward<T>(u64, i64, bool, GeluArrays<T>&);     \
  template void host_gelu_forward<T>(u64, i64, GeluArrays<T>&);            \
  template void host_activation_forward<T>(int, u64, i64, GeluArrays<T>&); \
  template std::vector<T> host_dropout<T>(i64, u64, double);               \
  template BiasResult<T> host_bias<T>(i64, i64);                           \
  template u64 host_hash<T>(const std::vector<T>&, u64);
OUTGRAD_FOR_FORMAT(float)
OUTGRAD_FOR_FORMAT(kernels::F16)
OUTGRAD_FOR_FORMAT(kernels::BF16)
#undef OUTGRAD_FOR_FORMAT
template u64 host_hash<u32>(const std::vector<u32>&, u64);

}  // namespace outgrad::tests::gpu
