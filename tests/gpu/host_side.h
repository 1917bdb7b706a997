// What the GPU's results are compared with: the host kernels on the same stimuli.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/stimulus.h"

namespace outgrad::tests::gpu {

// n elements, each made from its index. Arrays that have the size already are not made anew: one thread would
// touch all of them first.
template <class T, class Value>
void generate(std::vector<T>& array, i64 n, Value&& value) {
  array.resize(static_cast<std::size_t>(n));
#pragma omp parallel for schedule(static)
  for (i64 i = 0; i < n; ++i) array[static_cast<std::size_t>(i)] = value(static_cast<u64>(i));
}
template <class T, class Value>
std::vector<T> generated(i64 n, Value&& value) {
  std::vector<T> array;
  generate(array, n, value);
  return array;
}

// The arrays of a chunk, kept from one to the next.
template <class T>
struct GeluArrays {
  std::vector<T> y, dx;
  std::vector<u32> mask;
};
// dx of elements [begin, begin + n), begin a multiple of 32.
template <class T>
void host_gelu_backward(u64 begin, i64 n, bool complement, GeluArrays<T>& arrays);
// y and mask.
template <class T>
void host_gelu_forward(u64 begin, i64 n, GeluArrays<T>& arrays);
// The same of another activation, by its number in kernels/activations.h; the mask of one without a minimum
// is left alone.
template <class T>
void host_activation_forward(int activation, u64 begin, i64 n, GeluArrays<T>& arrays);
// Dropout of elements [0, n).
template <class T>
std::vector<T> host_dropout(i64 n, u64 seed, double p);

// GELU of x + bias over [rows, n], forward then backward from the forward's own y.
template <class T>
struct BiasResult {
  std::vector<T> y, dx;
  std::vector<u32> mask;
  std::vector<float> dbias;
};
template <class T>
BiasResult<T> host_bias(i64 rows, i64 n);

// LayerNorm (layer) or RMSNorm of [rows, n], forward then backward from the forward's own y; or of z = x +
// residual, dx then with dz_next added.
template <class T>
struct NormResult {
  std::vector<T> z, y, dx;  // z is empty without a residual
  std::vector<float> rstd, dgamma, dbeta;  // dbeta is empty for RMSNorm
};
template <class T>
NormResult<T> host_norm(bool layer, bool residual, i64 rows, i64 n);

// The same with y kept in 8 bits, and the backward from its codes. Codes and scales as words, which they
// fill.
template <class T>
struct StoredNormResult {
  std::vector<T> y, dx;
  std::vector<u32> codes, scales;
  std::vector<float> rstd, dgamma, dbeta;  // dbeta is empty for RMSNorm
};
template <class Store, class T>
StoredNormResult<T> host_norm_8bit(bool layer, i64 rows, i64 n);

// Sum of hash_term(begin + i, bits of element i).
template <class T>
u64 host_hash(const std::vector<T>& array, u64 begin);

inline constexpr float kEps = 1e-5f;

}  // namespace outgrad::tests::gpu
