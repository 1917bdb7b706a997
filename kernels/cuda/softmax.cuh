// Softmax over rows with a code of 8 bits for each p, and its backward from these codes alone, on a GPU
// (kernels/softmax.h). Every bit is the host's.
//
// The warps that share a row read it again for each use: for its largest element, for the sum and for p. What
// a row of attention takes stays in the first-level cache between these. A row's octets are always the same
// thread's, so that y may be x.
#pragma once

#ifndef __CUDACC_RTC__
#include <type_traits>
#endif

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/softmax.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

template <int Warps>
using SoftmaxThread = RowThread<Warps, softmax_block_rows(Warps)>;

// The largest element of the thread's row that is no NaN, from its own; -inf if there is none.
template <int Warps>
__device__ __forceinline__ float greatest_in_row(const SoftmaxThread<Warps>& thread, float own) {
  const auto larger = [](float a, float b) { return a < b ? b : a; };
  OUTGRAD_UNROLL
  for (int lanes = kTreeLanes / 2; lanes > 0; lanes /= 2)
    own = larger(own, __shfl_xor_sync(0xffffffffu, own, lanes));
  if constexpr (Warps > 1) {
    // Before it is written again for the next row, every thread has passed the barrier of the row's sum.
    __shared__ float of_warp[SoftmaxThread<Warps>::kRows][Warps];
    if (thread.lane == 0) of_warp[thread.row][thread.warp] = own;
    thread.barrier();
    OUTGRAD_UNROLL
    for (int warp = 0; warp < Warps; ++warp) own = larger(own, of_warp[thread.row][warp]);
  }
  return own;
}

// body(j) for the thread's own elements of a row.
template <int Warps, class Body>
__device__ __forceinline__ void over_own(const SoftmaxThread<Warps>& thread, i64 n, const Body& body) {
#pragma unroll 1
  for (i64 octet = thread.first(); octet * kOctet < n; octet += SoftmaxThread<Warps>::kApart) {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      if (octet * kOctet + k < n) body(octet * kOctet + k);
    }
  }
}

// The terms of the sum of softmax_exp, and of sum(p') and sum(p' dy), for kernels/reduce.h.
template <class T>
struct ExponentialTerms {
  static constexpr int kOperands = 1, kSums = 1;
  const T* x;
  SoftmaxExp row;

  template <class Lane>
  __device__ __forceinline__ Tuple<float, 1> operands(i64 j) const {
    return {{softmax_exp(FloatOps{}, row, widen(x[j]))}};
  }
  static __device__ __forceinline__ Tuple<float, 1> missing() { return {{kMissingTerm}}; }
  static __device__ __forceinline__ Tuple<float, 1> first_fold(const Tuple<float, 1>& low,
                                                               const Tuple<float, 1>& high) {
    return add_rn(low, high);
  }
};
template <class T>
struct GradientTerms {
  static constexpr int kOperands = 2, kSums = 2;
  const u8* codes;
  const T* dy;

  template <class Lane>
  __device__ __forceinline__ Tuple<float, 2> operands(i64 j) const {
    return {{softmax_of_code(codes[j]), widen(dy[j])}};
  }
  // neutral in both sums: -0 * 0 = -0
  static __device__ __forceinline__ Tuple<float, 2> missing() { return {{kMissingTerm, 0.0f}}; }
  static __device__ __forceinline__ Tuple<float, 2> first_fold(const Tuple<float, 2>& low,
                                                               const Tuple<float, 2>& high) {
    return {{add_rn(low.v[0], high.v[0]), fma_rn(low.v[0], low.v[1], mul_rn(high.v[0], high.v[1]))}};
  }
};

template <int Warps, class Terms>
__device__ __forceinline__ Tuple<float, Terms::kSums> sums_of_row(SoftmaxThread<Warps>& thread, i64 n,
                                                                  const Terms& terms) {
  return looped_sums<Terms::kSums>(
      thread, n, [&](i64 octet) { return chunk_sum(terms, octet, n); }, [](float sum) { return sum; });
}

// Sets y = softmax(x) and the codes of y before it is rounded to T, for [rows, n]. y may be x; codes overlaps
// neither. The contract is that of kernels/host/softmax.h.
template <class T, int Warps>
__global__ void __launch_bounds__(kTreeLanes* Warps* softmax_block_rows(Warps))
    softmax_forward_code(const T* x, T* y, u8* codes, i64 rows, i64 n) {
  SoftmaxThread<Warps> thread;
#pragma unroll 1
  for (i64 row = static_cast<i64>(blockIdx.x) * thread.kRows + thread.row; row < rows;
       row += static_cast<i64>(gridDim.x) * thread.kRows) {
    const T* const from = x + row * n;
    T* const to = y + row * n;
    u8* const coded = codes + row * n;
    float greatest = float_of(0xff800000u);  // -inf
    over_own<Warps>(thread, n, [&](i64 j) {
      const float value = widen(from[j]);
      if (greatest < value) greatest = value;
    });
    const SoftmaxExp of = softmax_exp_of(greatest_in_row<Warps>(thread, greatest));
    const SoftmaxSum sum(sums_of_row<Warps>(thread, n, ExponentialTerms<T>{from, of}).v[0]);
    over_own<Warps>(thread, n, [&](i64 j) {
      const float p = softmax_quotient(FloatOps{}, softmax_exp(FloatOps{}, of, widen(from[j])), sum);
      to[j] = narrow<T>(p);
      coded[j] = softmax_code(p);
    });
  }
}

// Sets dx = p' (dy - sum(p' dy) / sum(p')), row by row, with p' from the codes. dx may be dy and overlaps
// nothing otherwise.
template <class T, int Warps>
__global__ void __launch_bounds__(kTreeLanes* Warps* softmax_block_rows(Warps))
    softmax_backward_code(const T* dy, const u8* codes, T* dx, i64 rows, i64 n) {
  SoftmaxThread<Warps> thread;
#pragma unroll 1
  for (i64 row = static_cast<i64>(blockIdx.x) * thread.kRows + thread.row; row < rows;
       row += static_cast<i64>(gridDim.x) * thread.kRows) {
    const T* const from = dy + row * n;
    T* const to = dx + row * n;
    const u8* const coded = codes + row * n;
    const Tuple<float, 2> sums = sums_of_row<Warps>(thread, n, GradientTerms<T>{coded, from});
    const float mean = div_rn(sums.v[1], sums.v[0]);
    over_own<Warps>(thread, n, [&](i64 j) {
      to[j] = narrow<T>(mul_rn(softmax_of_code(coded[j]), sub_rn(widen(from[j]), mean)));
    });
  }
}

#ifndef __CUDACC_RTC__
namespace detail {

// A launch over rows, whose arrays hold: `from` is x or dy, `to` is y or dx. What is written overlaps nothing
// but, in full, `from`.
struct SoftmaxLaunch {
  i64 rows, n;
  int warps;
  cudaStream_t stream;
};
template <bool Forward, class T, class Kernel, class... Arguments>
cudaError_t launch_softmax(const SoftmaxLaunch& of, const T* from, const u8* codes, T* to, Kernel kernel,
                           Arguments... arguments) {
  const i64 elements = of.rows * of.n;
  if (!operands_hold({operand(from, elements), written(to, elements, from),
                      Forward ? written(const_cast<u8*>(codes), elements) : operand(codes, elements)}))
    return cudaErrorInvalidValue;
  const PlannedLaunch planned = softmax_launch(
      Forward ? DeviceKernel::softmax_forward_code : DeviceKernel::softmax_backward_code, of.rows, of.warps);
  return launch(kernel, static_cast<unsigned>(planned.blocks), static_cast<unsigned>(planned.threads), 0,
                of.stream, arguments..., of.rows, of.n);
}

template <class Action>
cudaError_t with_softmax_warps(i64 n, const Action& action) {
  switch (softmax_warps(n)) {
    case 1: return action(std::integral_constant<int, 1>{});
    case 4: return action(std::integral_constant<int, 4>{});
    default: return action(std::integral_constant<int, 16>{});
  }
}

inline bool softmax_shape_holds(i64 rows, i64 n) {
  return rows >= 0 && n >= 1 && n <= kMostSoftmax && rows <= kMostElements / n;
}

}  // namespace detail

// Takes device pointers, aligned to their element. rows = 0 launches nothing. The result is
// cudaErrorInvalidValue for an overlap that is not allowed, for a null pointer, and for a shape with n < 1, n
// > kMostSoftmax or too many elements.
template <class T>
cudaError_t launch_softmax_forward_code(const T* x, T* y, u8* codes, i64 rows, i64 n, cudaStream_t stream) {
  if (!detail::softmax_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  return detail::with_softmax_warps(n, [&]<int Warps>(std::integral_constant<int, Warps>) {
    return detail::launch_softmax<true>({rows, n, Warps, stream}, x, codes, y,
                                        &softmax_forward_code<T, Warps>, x, y, codes);
  });
}

template <class T>
cudaError_t launch_softmax_backward_code(const T* dy, const u8* codes, T* dx, i64 rows, i64 n,
                                         cudaStream_t stream) {
  if (!detail::softmax_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  return detail::with_softmax_warps(n, [&]<int Warps>(std::integral_constant<int, Warps>) {
    return detail::launch_softmax<false>({rows, n, Warps, stream}, dy, codes, dx,
                                         &softmax_backward_code<T, Warps>, dy, codes, dx);
  });
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
