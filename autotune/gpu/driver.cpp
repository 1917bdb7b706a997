// libcuda at run time. The declarations follow cuda.h (CUDA driver API), of which nothing is included.
#include "autotune/gpu/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "kernels/support/errors.h"

namespace outgrad::autotune::gpu {
namespace {

using Result = int;  // CUresult
using Handle = void*;
constexpr Result kSuccess = 0, kOutOfMemory = 2;

// CUdevice_attribute
enum Attribute {
  kClockKhz = 13,
  kMultiprocessors = 16,
  kMemoryClockKhz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kThreadsPerSm = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedPerSm = 81,
  kSharedPerBlock = 97,
  kBlocksPerSm = 106,
};

struct Driver {
  Result (*init)(unsigned) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*version)(int*) = nullptr;
  Result (*count)(int*) = nullptr;
  Result (*get)(int*, int) = nullptr;
  Result (*name)(char*, int, int) = nullptr;
  Result (*attribute)(int*, int, int) = nullptr;
  Result (*total)(std::size_t*, int) = nullptr;
  Result (*retain)(Handle*, int) = nullptr;
  Result (*release)(int) = nullptr;
  Result (*set_current)(Handle) = nullptr;
  Result (*synchronise)() = nullptr;
  Result (*memory_info)(std::size_t*, std::size_t*) = nullptr;
  Result (*allocate)(std::uint64_t*, std::size_t) = nullptr;
  Result (*free)(std::uint64_t) = nullptr;
  Result (*upload)(std::uint64_t, const void*, std::size_t) = nullptr;
  Result (*download)(void*, std::uint64_t, std::size_t) = nullptr;
  Result (*copy)(std::uint64_t, std::uint64_t, std::size_t, Handle) = nullptr;
  Result (*fill)(std::uint64_t, unsigned char, std::size_t, Handle) = nullptr;
  Result (*load)(Handle*, const void*) = nullptr;
  Result (*function)(Handle*, Handle, const char*) = nullptr;
  Result (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**) = nullptr;
  Result (*set_function)(Handle, int, int) = nullptr;
  Result (*resident_blocks)(int*, Handle, int, std::size_t) = nullptr;
  Result (*create_event)(Handle*, unsigned) = nullptr;
  Result (*destroy_event)(Handle) = nullptr;
  Result (*record)(Handle, Handle) = nullptr;
  Result (*wait)(Handle) = nullptr;
  Result (*elapsed)(float*, Handle, Handle) = nullptr;

  Driver() {
    // Another library can be named: a machine may have several, and tests have one of their own.
    const char* chosen = std::getenv("OUTGRAD_LIBCUDA");
    const std::string path = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw kernels::CudaError(path + " cannot be loaded: no NVIDIA driver on this machine");
    const auto find = [&]<class Function>(Function*& entry, const char* symbol) {
      entry = reinterpret_cast<Function*>(::dlsym(library, symbol));
      if (entry == nullptr) throw kernels::CudaError(path + " has no " + symbol);
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
    find(synchronise, "cuCtxSynchronize");
    find(memory_info, "cuMemGetInfo_v2");
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
    find(resident_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    find(create_event, "cuEventCreate");
    find(destroy_event, "cuEventDestroy_v2");
    find(record, "cuEventRecord");
    find(wait, "cuEventSynchronize");
    find(elapsed, "cuEventElapsedTime");
    check(init(0), "cuInit");
  }

  void check(Result result, const char* call) const {
    if (result == kSuccess) return;
    const char* text = nullptr;
    if (error_name(result, &text) != kSuccess || text == nullptr) text = "unknown error";
    if (result == kOutOfMemory) throw DeviceOutOfMemory(std::string(call) + ": " + text);
    throw kernels::CudaError(std::string(call) + ": " + text);
  }
};

const Driver& driver() {
  static const Driver kDriver;
  return kDriver;
}

int attribute_of(int device, Attribute which) {
  int value = 0;
  driver().check(driver().attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

DeviceRecord device_record(const DeviceIdentity& device) {
  const Architecture& limits = device.limits;
  DeviceRecord record;
  record.kind = "cuda", record.name = device.name, record.architecture = limits.name, record.driver = device.driver;
  record.sms = limits.sms, record.threads_per_sm = limits.threads_per_sm, record.blocks_per_sm = limits.blocks_per_sm;
  record.shared_per_sm = limits.shared_per_sm, record.shared_per_block = limits.shared_per_block;
  record.clock_ghz = limits.clock_ghz, record.memory_clock_ghz = device.memory_clock_ghz, record.dram_gb_per_s = limits.dram_gb_per_s;
  record.memory_bytes = device.memory_bytes, record.l2_bytes = device.l2_bytes;
  return record;
}

DeviceIdentity device_from(const DeviceRecord& r) {
  const Architecture limits{*r.architecture,   *r.name,          *r.sms,           *r.clock_ghz,       *r.dram_gb_per_s,
                            *r.threads_per_sm, *r.blocks_per_sm, *r.shared_per_sm, *r.shared_per_block};
  return {*r.name, limits, *r.memory_bytes, *r.l2_bytes, *r.driver, *r.memory_clock_ghz};
}

int device_count() {
  int count = 0;
  driver().check(driver().count(&count), "cuDeviceGetCount");
  return count;
}

Device::Device(int index) {
  const Driver& d = driver();
  if (const int count = device_count(); index >= count)
    throw kernels::CudaError("cuda:" + std::to_string(index) + ": this machine has " + std::to_string(count) + " devices");
  d.check(d.get(&handle_, index), "cuDeviceGet");
  constexpr int kNameBytes = 256;
  char name[kNameBytes] = {};
  d.check(d.name(name, kNameBytes - 1, handle_), "cuDeviceGetName");
  std::size_t memory = 0;
  d.check(d.total(&memory, handle_), "cuDeviceTotalMem");
  d.check(d.version(&identity_.driver), "cuDriverGetVersion");
  constexpr double kKhzPerGhz = 1e6, kTransfersPerClock = 2, kBitsPerByte = 8;
  identity_.name = name;
  identity_.memory_bytes = static_cast<long long>(memory);
  identity_.l2_bytes = attribute_of(handle_, kL2Bytes);
  identity_.memory_clock_ghz = attribute_of(handle_, kMemoryClockKhz) / kKhzPerGhz;
  Architecture& limits = identity_.limits;
  limits.name = "sm_" + std::to_string(10 * attribute_of(handle_, kMajor) + attribute_of(handle_, kMinor));
  limits.board = identity_.name;
  limits.sms = attribute_of(handle_, kMultiprocessors);
  limits.clock_ghz = attribute_of(handle_, kClockKhz) / kKhzPerGhz;
  limits.dram_gb_per_s = identity_.memory_clock_ghz * kTransfersPerClock * attribute_of(handle_, kMemoryBusBits) / kBitsPerByte;
  limits.threads_per_sm = attribute_of(handle_, kThreadsPerSm);
  limits.blocks_per_sm = attribute_of(handle_, kBlocksPerSm);
  limits.shared_per_sm = attribute_of(handle_, kSharedPerSm);
  limits.shared_per_block = attribute_of(handle_, kSharedPerBlock);
  Handle context = nullptr;
  d.check(d.retain(&context, handle_), "cuDevicePrimaryCtxRetain");
  d.check(d.set_current(context), "cuCtxSetCurrent");
  d.check(d.create_event(&start_, 0), "cuEventCreate");
  d.check(d.create_event(&stop_, 0), "cuEventCreate");
}

Device::~Device() {
  if (start_ != nullptr) driver().destroy_event(start_);
  if (stop_ != nullptr) driver().destroy_event(stop_);
  driver().release(handle_);
}

Device::Memory::Memory(const Device& device, std::size_t bytes) : device_(&device), bytes_(bytes) {
  driver().check(driver().allocate(&address_, bytes > 0 ? bytes : 1), "cuMemAlloc");
}

Device::Memory& Device::Memory::operator=(Memory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Device::Memory::~Memory() {
  if (device_ != nullptr) driver().free(address_);
}

long long Device::free_bytes() const {
  std::size_t free = 0, total = 0;
  driver().check(driver().memory_info(&free, &total), "cuMemGetInfo");
  return static_cast<long long>(free);
}

void Device::upload(std::uint64_t to, const void* from, std::size_t bytes) const {
  if (bytes > 0) driver().check(driver().upload(to, from, bytes), "cuMemcpyHtoD");
}
void Device::download(void* to, std::uint64_t from, std::size_t bytes) const {
  if (bytes > 0) driver().check(driver().download(to, from, bytes), "cuMemcpyDtoH");
}
void Device::copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) const {
  driver().check(driver().copy(to, from, bytes, nullptr), "cuMemcpyDtoDAsync");
}
void Device::fill(std::uint64_t to, unsigned char byte, std::size_t bytes) const {
  if (bytes > 0) driver().check(driver().fill(to, byte, bytes, nullptr), "cuMemsetD8Async");
}

std::vector<Device::Kernel> Device::load(const std::string& cubin, const std::vector<std::string>& names) const {
  Handle module = nullptr;
  driver().check(driver().load(&module, cubin.data()), "cuModuleLoadData");
  std::vector<Kernel> kernels;
  for (const std::string& name : names) {
    kernels.emplace_back();
    driver().check(driver().function(&kernels.back(), module, name.c_str()), "cuModuleGetFunction");
  }
  return kernels;
}

void Device::allow_shared(Kernel kernel, std::int64_t bytes) const {
  constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  driver().check(driver().set_function(kernel, kMaxDynamicSharedBytes, static_cast<int>(bytes)), "cuFuncSetAttribute");
}

int Device::resident_blocks(Kernel kernel, int threads, std::size_t shared_bytes) const {
  int blocks = 0;
  driver().check(driver().resident_blocks(&blocks, kernel, threads, shared_bytes), "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

void Device::launch(Kernel kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, const std::vector<void*>& parameters) const {
  std::vector<void*> pointers = parameters;
  driver().check(driver().launch(kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, nullptr, pointers.data(), nullptr), "cuLaunchKernel");
}

void Device::synchronise() const { driver().check(driver().synchronise(), "cuCtxSynchronize"); }

void Device::start_event() const { driver().check(driver().record(start_, nullptr), "cuEventRecord"); }

double Device::stop_event_ns() const {
  const Driver& d = driver();
  d.check(d.record(stop_, nullptr), "cuEventRecord");
  d.check(d.wait(stop_), "cuEventSynchronize");
  float milliseconds = 0;
  d.check(d.elapsed(&milliseconds, start_, stop_), "cuEventElapsedTime");
  return 1e6 * static_cast<double>(milliseconds);
}

}  // namespace outgrad::autotune::gpu
