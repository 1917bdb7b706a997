// Activations on a GPU: thin __global__ wrappers over the bodies that the host runs, hence the host's bits.
//
// A thread takes 8 consecutive elements, one byte of the mask: 16 or 32 bytes a tensor, so aligned tensors move in 16-byte loads and
// stores, and no bit is shared between threads. Coefficients sit in shared memory column by column: lanes that look up different rows
// of a word touch different banks (up to 32 rows), equal rows are broadcast. Row counts above 32 conflict at worst Rows / 32 ways. A
// single row is in the instructions themselves. Direct tables sit in shared memory as far as it suffices for several blocks, else in the
// caches.
// Launchers take a stream, allocate nothing, never synchronise, and return what the launch returned. NVRTC sees the kernels alone.
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif

#include "kernels/activation.h"
#include "kernels/direct.h"
#include "kernels/formats.h"
#include "kernels/gelu.h"
#include "kernels/portable.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// Elements per thread and step: a byte of the mask.
inline constexpr int kElementsPerThread = 8;
// A multiple of the warp, and enough threads at 40 to 64 registers each to fill an SM with several blocks.
inline constexpr int kThreadsPerBlock = 256;

// Rows side by side, in shared memory; filled by the whole block.
template <int Words, int Rows>
struct SharedColumns {
  float w[Words][Rows];

  __device__ __forceinline__ float at(u32 row, int word) const { return w[word][row]; }
  __device__ __forceinline__ void fill(const Table<Rows, Words>& table) {
    for (int i = static_cast<int>(threadIdx.x); i < Words * Rows; i += static_cast<int>(blockDim.x)) {
      w[i % Words][i / Words] = table.w[i / Words][i % Words];
    }
  }
};

template <class TableOfRows>
struct SharedColumnsOf;
template <int Rows, int Words>
struct SharedColumnsOf<Table<Rows, Words>> {
  using Type = SharedColumns<Words, Rows>;
};

// The entries of a direct table, in shared memory; filled by the whole block.
template <int Count>
struct SharedEntries {
  u16 w[Count];

  __device__ __forceinline__ u16 at(u32 index) const { return w[index]; }
  __device__ __forceinline__ void fill(const Entries<Count>& entries) {
    for (int i = static_cast<int>(threadIdx.x); i < Count; i += static_cast<int>(blockDim.x)) w[i] = entries.w[i];
  }
};

// Half of the 48 KiB that a block may declare: an SM since sm_70 (64 KiB or more) holds at least two such blocks.
inline constexpr int kMostSharedEntries = 12288;

// The fit's table where the kernel reads it; every thread of the block takes part.
template <class Fit>
__device__ __forceinline__ const auto& resident_table() {
  static constexpr auto kTable = table_of<Fit>();
  if constexpr (kIsDirect<Fit>) {
    if constexpr (Fit::kEntries <= kMostSharedEntries) {
      __shared__ SharedEntries<Fit::kEntries> entries;
      entries.fill(kTable);
      __syncthreads();
      return entries;
    } else {
      return kTable;
    }
  } else if constexpr (Fit::kRows == 1) {
    return kTable;
  } else {
    __shared__ typename SharedColumnsOf<decltype(Fit::table())>::Type columns;
    columns.fill(kTable);
    __syncthreads();
    return columns;
  }
}

// 8 elements that move as 16-byte words where the address allows it (fp8: as one of 8 bytes).
template <class T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Octet {
  T v[kElementsPerThread];
};

template <class T>
__device__ __forceinline__ bool is_aligned(const T* pointer) {
  return reinterpret_cast<u64>(pointer) % alignof(Octet<T>) == 0;
}

// The `count` elements at `from`; a whole octet in 16-byte loads if `wide`.
template <class T>
__device__ __forceinline__ Octet<T> load(const T* from, bool wide, int count) {
  Octet<T> octet;
  if (wide && count == kElementsPerThread) {
    octet = *reinterpret_cast<const Octet<T>*>(from);
  } else {
    OUTGRAD_UNROLL
    for (int k = 0; k < kElementsPerThread; ++k) {
      octet.v[k] = narrow<T>(0.0f);
      if (k < count) octet.v[k] = from[k];
    }
  }
  return octet;
}

template <class T>
__device__ __forceinline__ void store(T* to, const Octet<T>& octet, bool wide, int count) {
  if (wide && count == kElementsPerThread) {
    *reinterpret_cast<Octet<T>*>(to) = octet;
  } else {
    OUTGRAD_UNROLL
    for (int k = 0; k < kElementsPerThread; ++k) {
      if (k < count) to[k] = octet.v[k];
    }
  }
}

// body(i, count) for the octets of [0, n): the elements [i, i + count), count = 8 but for the last octet.
template <class Body>
__device__ __forceinline__ void over_octets(i64 n, const Body& body) {
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x * kElementsPerThread;
  for (i64 i = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * kElementsPerThread; i < n; i += stride) {
    body(i, static_cast<int>(n - i < kElementsPerThread ? n - i : kElementsPerThread));
  }
}

// dx[i] = dy[i] g(y[i], m[i]); contract of kernels/host/elementwise.h. dx may equal dy.
template <class Fit, class T, class Y = T>
__global__ void __launch_bounds__(kThreadsPerBlock) activation_backward(const T* dy, const Y* y, const u32* mask, T* dx, i64 n) {
  static_assert(sizeof(T) > 1, "dy and dx are f32, f16 or bf16");
  const auto& table = resident_table<Fit>();
  const bool wide = is_aligned(dy) && is_aligned(y) && is_aligned(dx);
  over_octets(n, [&](i64 i, int count) {
    const Octet<T> gradient = load(dy + i, wide, count);
    const Octet<Y> output = load(y + i, wide, count);
    u32 bits = 0;
    if constexpr (Fit::kMasked) bits = reinterpret_cast<const u8*>(mask)[i / 8];
    Octet<T> result;
    OUTGRAD_UNROLL
    for (int k = 0; k < kElementsPerThread; ++k) {
      result.v[k] = activation_backward_element<Fit>(table, gradient.v[k], output.v[k], (bits >> k & 1u) != 0);
    }
    store(dx + i, result, wide, count);
  });
}

// y[i] = GELU(x[i]) and the mask; contract of kernels/host/elementwise.h. y may equal x.
template <class Forward, class T>
__global__ void __launch_bounds__(kThreadsPerBlock) gelu_forward(const T* x, T* y, u32* mask, i64 n) {
  __shared__ SharedColumns<Forward::kDegree + 2, Forward::kRows> core;
  __shared__ SharedColumns<Forward::kTailDegree + 3, Forward::kTailRows> tail;
  static constexpr auto kCore = Forward::table();
  static constexpr auto kTail = Forward::tail();
  core.fill(kCore);
  tail.fill(kTail);
  __syncthreads();
  const bool wide = is_aligned(x) && is_aligned(y);
  u8* const bytes = reinterpret_cast<u8*>(mask);
  over_octets(n, [&](i64 i, int count) {
    const Octet<T> input = load(x + i, wide, count);
    Octet<T> output;
    u32 bits = 0;
    OUTGRAD_UNROLL
    for (int k = 0; k < kElementsPerThread; ++k) {
      const GeluForwardElement<T> element = gelu_forward_element(Forward{}, core, tail, input.v[k]);
      output.v[k] = element.y;
      bits |= static_cast<u32>(element.m && k < count) << k;
    }
    store(y + i, output, wide, count);
    bytes[i / 8] = static_cast<u8>(bits);
    // The last octet's thread also clears what is left of the last word.
    if (i + kElementsPerThread >= n) {
      for (i64 byte = i / 8 + 1; byte % 4 != 0; ++byte) bytes[byte] = 0;
    }
  });
}

#ifndef __CUDACC_RTC__
// Blocks for n elements: one octet a thread as long as that leaves no more than the device keeps busy many times over; the rest is
// the grid-stride loop's, which spreads the cost of filling the table.
inline unsigned grid_for(i64 n) {
  constexpr i64 kMostBlocks = 132 * 16;  // 16 blocks of 256 threads for each SM of the largest device in use, twice what fits
  const i64 per_block = i64{kThreadsPerBlock} * kElementsPerThread;
  const i64 blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

// Device pointers, aligned to their element. n = 0 launches nothing.
template <class Fit, class T, class Y = T>
cudaError_t launch_activation_backward(const T* dy, const Y* y, const u32* mask, T* dx, i64 n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  activation_backward<Fit, T, Y><<<grid_for(n), kThreadsPerBlock, 0, stream>>>(dy, y, mask, dx, n);
  return cudaGetLastError();
}

// The same under GELU's name.
template <class Fit, class T, class Y = T>
cudaError_t launch_gelu_backward(const T* dy, const Y* y, const u32* mask, T* dx, i64 n, cudaStream_t stream) {
  return launch_activation_backward<Fit, T, Y>(dy, y, mask, dx, n, stream);
}

template <class Forward, class T>
cudaError_t launch_gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  gelu_forward<Forward, T><<<grid_for(n), kThreadsPerBlock, 0, stream>>>(x, y, mask, n);
  return cudaGetLastError();
}
#endif

}  // namespace outgrad::kernels::cuda
