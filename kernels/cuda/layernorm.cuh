// LayerNorm and RMSNorm on a GPU: thin __global__ wrappers over the bodies and trees that the host runs, hence the host's bits.
//
// Arguments are those of kernels/host/layernorm.h, in device memory, checked by nobody: a gamma without a finite reciprocal outside
// the side buffer gives infinities and NaNs. The launchers take a stream, allocate nothing and never synchronise; they return what
// the launches returned. NVRTC sees the kernels alone.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/layernorm.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The tree's sums over one row, by a block of `Warps` warps; every thread gets them. A warp owns the steps congruent to its index.
template <int Warps, class Terms>
__device__ Tuple<float, Terms::kSums> row_sums(const Terms& terms, i64 n) {
  constexpr int kSums = Terms::kSums;
  const int lane = static_cast<int>(threadIdx.x) % kTreeLanes;
  const int warp = static_cast<int>(threadIdx.x) / kTreeLanes;
  const auto neutral = neutral_sums<kSums>();
  const auto step = [&](i64 q) { return chunk_sum(terms, q * kTreeLanes + lane, n); };
  const i64 steps = row_steps(n);
  Tuple<float, kSums> sum = neutral;
  for (i64 group = 0; group < steps; group += kGroupSteps) {
    const i64 end = group + kGroupSteps < steps ? group + kGroupSteps : steps;
    Tuple<float, kSums> part = fold_steps<Warps>(group + warp, end, neutral, step);
    if constexpr (Warps > 1) {
      __shared__ Tuple<float, kSums> shared[Warps][kTreeLanes];
      __syncthreads();  // the last group's, or the last row's, values have been read
      shared[warp][lane] = part;
      __syncthreads();
      part = fold<Warps * kTreeLanes, kTreeLanes>(&shared[0][lane]);
    }
    sum = add_rn(sum, part);
  }
  for (int half = kTreeLanes / 2; half > 0; half /= 2) {
    for (int s = 0; s < kSums; ++s) sum.v[s] = add_rn(sum.v[s], __shfl_xor_sync(0xffffffffu, sum.v[s], half));
  }
  return sum;
}

// One row after the other to each block of 32 Warps threads. y may alias x.
template <Norm N, class T, int Warps>
__global__ void __launch_bounds__(32 * Warps) norm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps,
                                                           T* y, float* rstd, SideBuffer<float> side) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x_row = x + row * n;
    const float mean = N == Norm::layer ? mean_of(row_sums<Warps>(MeanTerms<T>{x_row}, n).v[0], n) : 0.0f;
    const float r = rstd_of(row_sums<Warps>(VarianceTerms<T>{x_row, mean}, n).v[0], n, eps);
    if (threadIdx.x == 0) rstd[row] = r;
    for (i64 k = threadIdx.x; k < side.count; k += blockDim.x) {
      side.x_hat[row * side.count + k] = normalised(widen(x_row[side.channels[k]]), mean, r);
    }
    __syncthreads();  // x has been read wherever y, which may be x, is about to be written
    for (i64 j = threadIdx.x; j < n; j += blockDim.x) {
      y[row * n + j] = narrow<T>(forward_output(x_row, gamma, beta, j, mean, r));
    }
  }
}

// One thread to each column. place[j] becomes column j's index among the side channels, or -1.
template <class = void>
__global__ void norm_prepare(NormColumns columns, i32* place, const float* gamma, const float* beta, i64 n, SideBuffer<const float> side) {
  const i64 j = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= n) return;
  i64 low = 0;
  i64 high = side.count;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (side.channels[middle] < j) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool is_side = low < side.count && side.channels[low] == j;
  place[j] = is_side ? static_cast<i32>(low) : -1;
  prepare_column(columns, gamma, beta, j, is_side);
}

// The c of one row: with side channels looked up, or, where there are none, straight from y.
template <bool Side, class T>
__device__ auto centred_row(const T* y, const NormColumns& columns, const i32* place, i64 row, i64 n, const SideBuffer<const float>& side) {
  if constexpr (Side) {
    return CentredLookup<T>{y + row * n, columns.beta, columns.weight, place, side.x_hat + row * side.count};
  } else {
    return CentredOutput<T>{y + row * n, columns.beta};
  }
}

// sums[slot][0][j], sums[slot][1][j]: slot sums of dgamma (before its division) and dbeta. Block b has columns
// kColumnThreads (b % blocks_across) + threadIdx.x of slot b / blocks_across. Runs before norm_backward, whose dx may overwrite dy.
template <Norm N, class T, bool Side>
__global__ void __launch_bounds__(kColumnThreads) norm_slot_sums(const T* dy, const T* y, NormColumns columns, const i32* place, i64 rows,
                                                                 i64 n, i64 slots, SideBuffer<const float> side, float* sums) {
  const i64 blocks_across = (n + kColumnThreads - 1) / kColumnThreads;
  const i64 j = blockIdx.x % blocks_across * kColumnThreads + threadIdx.x;
  const i64 slot = blockIdx.x / blocks_across;
  if (j >= n) return;
  float dgamma = 0.0f;
  float dbeta = 0.0f;
  for (i64 row = slot_begin(rows, slots, slot); row < slot_begin(rows, slots, slot + 1); ++row) {
    const float d = widen(dy[row * n + j]);
    dgamma = fma_rn(d, centred_row<Side>(y, columns, place, row, n, side).template centred<float>(j), dgamma);
    if constexpr (N == Norm::layer) dbeta = add_rn(dbeta, d);
  }
  sums[2 * slot * n + j] = dgamma;
  sums[(2 * slot + 1) * n + j] = dbeta;
}

template <class = void>
__global__ void norm_finish(const float* sums, NormColumns columns, i64 n, float* dgamma, float* dbeta) {
  const i64 j = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= n) return;
  if (dgamma) dgamma[j] = div_rn(sums[j], columns.divisor[j]);
  if (dbeta) dbeta[j] = sums[n + j];
}

// dx, one row after the other to each block of 32 Warps threads. dx may alias dy.
template <Norm N, class T, bool Side, int Warps>
__global__ void __launch_bounds__(32 * Warps) norm_backward(const T* dy, const T* y, NormColumns columns, const i32* place,
                                                            const float* rstd, i64 rows, i64 n, SideBuffer<const float> side, T* dx) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto output = centred_row<Side>(y, columns, place, row, n, side);
    const GradientTerms<N, T, decltype(output)> terms{dy + row * n, columns.gamma, output};
    const NegatedMeans means = negated_means<N>(row_sums<Warps>(terms, n), n);
    __syncthreads();  // dy has been read wherever dx, which may be dy, is about to be written
    for (i64 j = threadIdx.x; j < n; j += blockDim.x) {
      dx[row * n + j] = narrow<T>(input_gradient(widen(dy[row * n + j]), output.template centred<float>(j), columns.gamma[j],
                                                 columns.reciprocal[j], means.m1, means.m2, rstd[row]));
    }
  }
}

#ifndef __CUDACC_RTC__

template <int Count>
struct RowWarps {};

// Calls body(RowWarps<..>) with the number of warps that share a row of n elements: one up to n = 2048 (8 steps, 64 elements a
// thread), as many steps to each warp beyond.
template <class Body>
void with_row_warps(i64 n, const Body& body) {
  const i64 steps = row_steps(n);
  if (steps <= 8) return body(RowWarps<1>{});
  if (steps <= 16) return body(RowWarps<2>{});
  if (steps <= 32) return body(RowWarps<4>{});
  if (steps <= 64) return body(RowWarps<8>{});
  body(RowWarps<16>{});
}

inline unsigned grid_of(i64 blocks) {
  constexpr i64 kGridLimit = 0x7fffffff;  // gridDim.x; row kernels loop over the rest
  return static_cast<unsigned>(blocks < kGridLimit ? blocks : kGridLimit);
}

template <Norm N, class T>
cudaError_t launch_norm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
                                SideBuffer<float> side, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  with_row_warps(n, [&]<int Warps>(RowWarps<Warps>) {
    norm_forward<N, T, Warps><<<grid_of(rows), 32 * Warps, 0, stream>>>(x, gamma, beta, rows, n, eps, y, rstd, side);
  });
  return cudaGetLastError();
}

// Number of fp32 words of scratch of a backward of this shape: the columns' constants, their places, the slot sums.
inline i64 norm_backward_workspace(i64 rows, i64 n) { return (kColumnArrays + 1) * n + 2 * slot_count(rows, n) * n; }

template <Norm N, class T, bool Side>
cudaError_t launch_norm_backward_kernels(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows,
                                         i64 n, T* dx, float* dgamma, float* dbeta, SideBuffer<const float> side, float* workspace,
                                         cudaStream_t stream) {
  const NormColumns columns = columns_at(workspace, n);
  i32* place = reinterpret_cast<i32*>(workspace + kColumnArrays * n);
  float* sums = workspace + (kColumnArrays + 1) * n;
  norm_prepare<><<<grid_of(column_blocks(n)), kColumnThreads, 0, stream>>>(columns, place, gamma, beta, n, side);
  if (dgamma || dbeta) {
    const i64 slots = slot_count(rows, n);
    norm_slot_sums<N, T, Side><<<grid_of(column_blocks(n) * slots), kColumnThreads, 0, stream>>>(dy, y, columns, place, rows, n, slots,
                                                                                                side, sums);
    if (const cudaError_t status = launch_add_slots(sums, 2 * n, slots, stream); status != cudaSuccess) return status;
    norm_finish<><<<grid_of(column_blocks(n)), kColumnThreads, 0, stream>>>(sums, columns, n, dgamma, dbeta);
  }
  if (rows > 0) {
    with_row_warps(n, [&]<int Warps>(RowWarps<Warps>) {
      norm_backward<N, T, Side, Warps><<<grid_of(rows), 32 * Warps, 0, stream>>>(dy, y, columns, place, rstd, rows, n, side, dx);
    });
  }
  return cudaGetLastError();
}

// `workspace`: norm_backward_workspace(rows, n) words of device memory.
template <Norm N, class T>
cudaError_t launch_norm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n,
                                 T* dx, float* dgamma, float* dbeta, SideBuffer<const float> side, float* workspace,
                                 cudaStream_t stream) {
  const auto launch = side.count > 0 ? launch_norm_backward_kernels<N, T, true> : launch_norm_backward_kernels<N, T, false>;
  return launch(dy, y, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side, workspace, stream);
}

#endif  // __CUDACC_RTC__

}  // namespace outgrad::kernels::cuda
