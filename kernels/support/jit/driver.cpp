// Loads libcuda at run time.
#include "kernels/support/jit/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "kernels/support/errors.h"

namespace outgrad::kernels::jit {

const Driver& Driver::instance() {
  static const Driver kDriver;
  return kDriver;
}

Driver::Driver() {
  // A variable can name another library: a machine may have several, and tests have one of their own.
  const char* chosen = std::getenv("OUTGRAD_LIBCUDA");
  const std::string path = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw CudaError(path + " cannot be loaded: no NVIDIA driver on this machine");
  const auto find = [&]<class Function>(Function*& entry, const char* symbol) {
    entry = reinterpret_cast<Function*>(::dlsym(library, symbol));
    if (entry == nullptr) throw CudaError(path + " has no " + symbol);
  };
  find(init, "cuInit");
  find(error_name, "cuGetErrorName");
  find(version, "cuDriverGetVersion");
  find(count, "cuDeviceGetCount");
  find(get, "cuDeviceGet");
  find(name, "cuDeviceGetName");
  find(attribute, "cuDeviceGetAttribute");
  find(total, "cuDeviceTotalMem_v2");
  find(retain, "cuDevicePrimaryCtxRetain");
  find(release, "cuDevicePrimaryCtxRelease_v2");
  find(set_current, "cuCtxSetCurrent");
  find(current, "cuCtxGetCurrent");
  find(push_context, "cuCtxPushCurrent_v2");
  find(pop_context, "cuCtxPopCurrent_v2");
  find(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  find(synchronise, "cuCtxSynchronize");
  find(allocate, "cuMemAlloc_v2");
  find(free, "cuMemFree_v2");
  find(upload, "cuMemcpyHtoD_v2");
  find(download, "cuMemcpyDtoH_v2");
  find(copy, "cuMemcpyDtoDAsync_v2");
  find(fill, "cuMemsetD8Async");
  find(load, "cuModuleLoadData");
  find(function, "cuModuleGetFunction");
  find(launch, "cuLaunchKernel");
  find(set_function, "cuFuncSetAttribute");
  find(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(create_event, "cuEventCreate");
  find(destroy_event, "cuEventDestroy_v2");
  find(record, "cuEventRecord");
  find(wait, "cuEventSynchronize");
  find(elapsed, "cuEventElapsedTime");
  check(init(0), "cuInit");
}

void Driver::check(Result result, const char* call) const {
  constexpr Result kSuccess = 0, kOutOfMemory = 2;
  if (result == kSuccess) return;
  const char* text = nullptr;
  if (error_name(result, &text) != kSuccess || text == nullptr) text = "unknown error";
  if (result == kOutOfMemory) throw DeviceOutOfMemory(std::string(call) + ": " + text);
  throw CudaError(std::string(call) + ": " + text);
}

int Driver::attribute_of(int device, DeviceAttribute which) const {
  int value = 0;
  check(attribute(&value, static_cast<int>(which), device), "cuDeviceGetAttribute");
  return value;
}

void Driver::allow_shared(Handle kernel, std::int64_t bytes) const {
  constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  check(set_function(kernel, kMaxDynamicSharedBytes, static_cast<int>(bytes)), "cuFuncSetAttribute");
}

int Driver::resident_blocks(Handle kernel, int threads, std::size_t shared_bytes) const {
  int blocks = 0;
  check(occupancy(&blocks, kernel, threads, shared_bytes), "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

}  // namespace outgrad::kernels::jit
