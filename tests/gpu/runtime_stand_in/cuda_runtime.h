// A stand-in for CUDA's runtime, with which outgrad-gpu runs on the host: kernels as
// tests/kernels/gpu_stand_in runs them, and around them device memory, streams, graphs and events. What is
// enqueued is done when the call returns, or when the graph is launched that captured it.
//
// OUTGRAD_STAND_IN_RUNTIME=CALL:STATUS makes that call fail: cudaGetDeviceCount:35 is a driver that is too
// old. OUTGRAD_STAND_IN_NAME names the device.
#pragma once

// Calls that a capture must see have the real names here, and other ones in what is included.
#define cudaLaunchKernel stand_in_launch_kernel
#define cudaMemsetAsync stand_in_memset_async
#define cudaGetErrorString stand_in_error_string
#define cudaDeviceGetAttribute stand_in_attribute
#define cudaGetDeviceProperties stand_in_properties
#include "tests/kernels/gpu_stand_in/cuda_runtime.h"
#undef cudaLaunchKernel
#undef cudaMemsetAsync
#undef cudaGetErrorString
#undef cudaDeviceGetAttribute
#undef cudaGetDeviceProperties

#include <functional>
#include <tuple>

#define OUTGRAD_RUNTIME_STATUS(name, value) \
  inline constexpr cudaError_t name = static_cast<cudaError_t>(value)
OUTGRAD_RUNTIME_STATUS(cudaErrorMemoryAllocation, 2);
OUTGRAD_RUNTIME_STATUS(cudaErrorInsufficientDriver, 35);
OUTGRAD_RUNTIME_STATUS(cudaErrorDevicesUnavailable, 46);
OUTGRAD_RUNTIME_STATUS(cudaErrorNoDevice, 100);
OUTGRAD_RUNTIME_STATUS(cudaErrorNoKernelImageForDevice, 209);
OUTGRAD_RUNTIME_STATUS(cudaErrorStreamCaptureUnsupported, 900);
#undef OUTGRAD_RUNTIME_STATUS

const char* cudaGetErrorString(cudaError_t error);
inline constexpr cudaDeviceAttr cudaDevAttrL2CacheSize = static_cast<cudaDeviceAttr>(38);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDeviceSynchronize();

// Device memory lies between guards: an access beyond it is an error.
cudaError_t stand_in_malloc(void** address, std::size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** address, std::size_t bytes) {
  return stand_in_malloc(reinterpret_cast<void**>(address), bytes);
}
cudaError_t cudaFree(void* address);
cudaError_t cudaMallocHost(void** address, std::size_t bytes);
cudaError_t cudaFreeHost(void* address);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemset(void* address, int byte, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* address, int byte, std::size_t bytes, cudaStream_t stream);

inline constexpr unsigned cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

struct CUgraph_st;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraph_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* instance, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance);
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream);

struct CUevent_st;
using cudaEvent_t = CUevent_st*;
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop);

// Threads run one at a time.
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return std::exchange(*address, *address + value);
}

namespace outgrad::tests::runtime_stand_in {

// Does it, or notes it where the stream is captured.
cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work);

}  // namespace outgrad::tests::runtime_stand_in

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  const auto copy = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple<std::remove_cvref_t<P>...>(*static_cast<std::remove_reference_t<P>*>(arguments[I])...);
  };
  return outgrad::tests::runtime_stand_in::enqueue(
      stream, [=, values = copy(std::index_sequence_for<P...>{})]() mutable {
        return std::apply(
            [&](auto&... value) {
              void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
              return stand_in_launch_kernel(kernel, grid, block, pointers, shared_bytes, stream);
            },
            values);
      });
}
