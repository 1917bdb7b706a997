// The stand-in for CUDA's runtime: memory, streams, graphs, events.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/runtime_stand_in/cuda_runtime.h"
#include "tests/kernels/gpu_stand_in/stand_in.h"

using outgrad::tests::gpu_stand_in::Guarded;

struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> work;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};

namespace {

std::recursive_mutex one_at_a_time;  // the device is one, its callers may be several threads
std::map<void*, std::unique_ptr<Guarded>>& memory() {
  static std::map<void*, std::unique_ptr<Guarded>> all;
  return all;
}
// The stream that is captured, and what it got so far.
cudaStream_t captured = nullptr;
std::unique_ptr<CUgraph_st> capture;

cudaError_t planted(const std::string& call) {
  const char* text = std::getenv("OUTGRAD_STAND_IN_RUNTIME");
  if (text == nullptr || std::string(text).rfind(call + ":", 0) != 0) return cudaSuccess;
  return static_cast<cudaError_t>(std::atoi(text + call.size() + 1));
}

// While a stream is captured nothing else may be done.
cudaError_t unless_captured() { return capture == nullptr ? cudaSuccess : cudaErrorStreamCaptureUnsupported; }

}  // namespace

namespace outgrad::tests::runtime_stand_in {

cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
  const std::lock_guard lock(one_at_a_time);
  if (const cudaError_t status = planted("launch"); status != cudaSuccess) return status;
  if (capture == nullptr) return work();
  if (stream != captured) return cudaErrorStreamCaptureUnsupported;
  capture->work.push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace outgrad::tests::runtime_stand_in

using outgrad::tests::runtime_stand_in::enqueue;

const char* cudaGetErrorString(cudaError_t error) {
  static const std::map<int, const char*> texts = {{2, "out of memory"},
                                                   {900, "operation not permitted when stream is capturing"}};
  if (const auto found = texts.find(error); found != texts.end()) return found->second;
  return error == cudaErrorLaunchFailure ? outgrad::tests::gpu_stand_in::failure().c_str()
                                         : stand_in_error_string(error);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  constexpr int kL2Bytes = 64 << 10;  // small, so that small arrays are beyond it
  if (attribute == cudaDevAttrL2CacheSize) return *value = kL2Bytes, cudaSuccess;
  return stand_in_attribute(value, attribute, device);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const cudaError_t status = stand_in_properties(properties, device);
  if (const char* name = std::getenv("OUTGRAD_STAND_IN_NAME"); name != nullptr)
    std::snprintf(properties->name, sizeof properties->name, "%s", name);
  return status;
}
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, planted("cudaGetDeviceCount"); }
cudaError_t cudaSetDevice(int) { return planted("cudaSetDevice"); }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 12040, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return unless_captured(); }

cudaError_t stand_in_malloc(void** address, std::size_t bytes) {
  const std::lock_guard lock(one_at_a_time);
  if (const cudaError_t status = planted("cudaMalloc"); status != cudaSuccess) return status;
  if (capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  auto pages = std::make_unique<Guarded>(bytes, outgrad::tests::gpu_stand_in::Placement{});
  *address = pages->data();
  memory()[*address] = std::move(pages);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  const std::lock_guard lock(one_at_a_time);
  const auto found = memory().find(address);
  if (found == memory().end()) return address == nullptr ? cudaSuccess : cudaErrorInvalidValue;
  const bool untouched = found->second->untouched_outside();
  memory().erase(found);
  return untouched ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return (*address = std::malloc(bytes)) == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) { return std::free(address), cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return *free = *total = std::size_t{1} << 30, cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { return bytes > 0 ? std::memcpy(to, from, bytes) : to, cudaSuccess; });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* address, int byte, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { return std::memset(address, byte, bytes), cudaSuccess; });
}
cudaError_t cudaMemset(void* address, int byte, std::size_t bytes) {
  return cudaMemsetAsync(address, byte, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = reinterpret_cast<cudaStream_t>(new char), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return delete reinterpret_cast<char*>(stream), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return unless_captured(); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  captured = stream;
  capture = std::make_unique<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return *graph = capture.release(), cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long) {
  return *instance = new CUgraph_st(*graph), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) { return delete instance, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t) {
  for (const auto& work : instance->work)
    if (const cudaError_t status = work(); status != cudaSuccess) return status;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return event->at = std::chrono::steady_clock::now(), cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop) {
  *ms = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return cudaSuccess;
}
