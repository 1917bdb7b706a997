// A stand-in for CUDA: with it a host compiler takes the sources of kernels/cuda/, and a launch runs the grid
// on the CPU, thread by thread.
//
// Found before any real <cuda_runtime.h>, and included first of all, as nvcc does with its own;
// OUTGRAD_GPU_STAND_IN is defined beside it. It has what the kernels and their launchers use, and no more.
// Threads are fibers that give way at barriers and warp collectives alone; what order they run in, what
// counts as an error and how tests see it: stand_in.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>
#include <utility>

#ifndef OUTGRAD_GPU_STAND_IN
#error "the stand-in for CUDA needs OUTGRAD_GPU_STAND_IN defined for every source of the program"
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
// One block at a time runs on a host thread of its own, so what that thread owns is what the block shares.
// The program's thread-local storage is one piece of memory: it is filled with poison before every block.
#define __shared__ static thread_local

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline constexpr int warpSize = 32;

// Set for the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// ---- Barriers, warp collectives. Threads of a block must all come to the same barrier, those of the mask to
// the same collective.

void __syncthreads(std::source_location where = std::source_location::current());
int __syncthreads_or(int predicate, std::source_location where = std::source_location::current());
// PTX's bar.sync with a name from 1 to 15: for `threads` threads, whole warps.
void stand_in_barrier(unsigned name, unsigned threads,
                      std::source_location where = std::source_location::current());

namespace outgrad::tests::gpu_stand_in {

// The thread's value goes to its warp; when all lanes of `mask` are here, the values of all of them come
// back, by lane.
void exchange(const char* what, unsigned mask, std::uint64_t own, std::uint64_t (&all)[32],
              const std::source_location& where);

// A lane that reads from `source`, which must be one of the mask's.
void require_source(const char* what, unsigned mask, int source, const std::source_location& where);

inline int lane() { return static_cast<int>(threadIdx.x % 32); }

template <class T>
T exchanged(const char* what, unsigned mask, T value, int source, const std::source_location& where) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "shuffles move 4 or 8 bytes");
  std::uint64_t own = 0, all[32];
  std::memcpy(&own, &value, sizeof(T));
  exchange(what, mask, own, all, where);
  require_source(what, mask, source, where);
  std::memcpy(&value, &all[source], sizeof(T));
  return value;
}

}  // namespace outgrad::tests::gpu_stand_in

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       std::source_location where = std::source_location::current()) {
  std::uint64_t all[32];
  outgrad::tests::gpu_stand_in::exchange("__syncwarp", mask, 0, all, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  std::uint64_t all[32];
  outgrad::tests::gpu_stand_in::exchange("__ballot_sync", mask, predicate != 0 ? 1 : 0, all, where);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && all[lane] != 0) ballot |= 1u << lane;
  }
  return ballot;
}

// As the CUDA C++ Programming Guide has it: a lane that would read from a later segment of `width` lanes
// reads its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  using namespace outgrad::tests::gpu_stand_in;
  return exchanged("__shfl_sync", mask, value, (lane() & ~(width - 1)) | (source & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  std::source_location where = std::source_location::current()) {
  using namespace outgrad::tests::gpu_stand_in;
  const int source = lane() ^ lanes;
  return exchanged("__shfl_xor_sync", mask, value,
                   (source & ~(width - 1)) > (lane() & ~(width - 1)) ? lane() : source & 31, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   std::source_location where = std::source_location::current()) {
  using namespace outgrad::tests::gpu_stand_in;
  const int source = lane() + static_cast<int>(by);
  return exchanged("__shfl_down_sync", mask, value, source > (lane() | (width - 1)) ? lane() : source, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 std::source_location where = std::source_location::current()) {
  using namespace outgrad::tests::gpu_stand_in;
  const int source = lane() - static_cast<int>(by);
  return exchanged("__shfl_up_sync", mask, value, source < (lane() & ~(width - 1)) ? lane() : source, where);
}

// ---- Memory. Hints mean nothing here.

template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// Threads are fibers of one host thread at a time, so an operation is atomic as it is.
inline unsigned atomicMax(unsigned* address, unsigned value) {
  const unsigned old = *address;
  if (value > old) *address = value;
  return old;
}

// Asynchronous copies of a thread come as late as they may: when it waits for their batch, or never.
void __pipeline_memcpy_async(void* shared, const void* global, std::size_t bytes);
void __pipeline_commit();
void __pipeline_wait_prior(std::size_t batches);

// Shared addresses: an offset into the block's static or dynamic shared memory. Other pointers, and offsets
// beyond, are an error.
std::size_t __cvta_generic_to_shared(const void* address);
void* __cvta_shared_to_generic(std::size_t address);

// The launch's dynamic shared memory, 16-byte aligned; its end is the end of accessible memory, to the next
// 16 bytes.
void* stand_in_dynamic_shared();

// A seed of 1/sqrt(t) as far from it as PTX allows the instruction to be, one way or the other from one t to
// the next.
float stand_in_rsqrt(float t);

// ---- The runtime.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchFailure = 719,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

struct CUstream_st;
using cudaStream_t = CUstream_st*;

// Multiprocessors are few, so that grids that are sized by them loop; shared memory is that of the smallest
// device since sm_80.
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

// Those of the many properties that name a device.
struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

namespace outgrad::tests::gpu_stand_in {
using Run = void (*)(const void* kernel, void** arguments);
cudaError_t launch(const void* kernel, Run run, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared_bytes, cudaStream_t stream);
cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
int resident_blocks(int threads, std::size_t shared_bytes);

template <class... P, std::size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<P>*>(arguments[I])...);
}
}  // namespace outgrad::tests::gpu_stand_in

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  return outgrad::tests::gpu_stand_in::set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// As if every kernel's registers allowed the most threads.
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(P...), int threads,
                                                          std::size_t shared_bytes) {
  *blocks = outgrad::tests::gpu_stand_in::resident_blocks(threads, shared_bytes);
  return cudaSuccess;
}

// Runs the grid; it is over when this returns. cudaErrorLaunchFailure: something went wrong in it, see
// stand_in.h.
template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  const auto run = [](const void* function, void** values) {
    outgrad::tests::gpu_stand_in::call(reinterpret_cast<void (*)(P...)>(const_cast<void*>(function)), values,
                                       std::index_sequence_for<P...>{});
  };
  return outgrad::tests::gpu_stand_in::launch(reinterpret_cast<const void*>(kernel), run, grid, block,
                                              arguments, shared_bytes, stream);
}

cudaError_t cudaMemsetAsync(void* address, int byte, std::size_t bytes, cudaStream_t stream);
