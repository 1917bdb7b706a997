// Devices through libcuda.
#include "autotune/gpu/driver.h"

#include "kernels/support/errors.h"

namespace outgrad::autotune::gpu {
namespace {

using Handle = void*;
using kernels::jit::DeviceAttribute;
using kernels::jit::Driver;

const Driver& driver() { return Driver::instance(); }

}  // namespace

Architecture limits_of(const DeviceRecord& r) {
  return {*r.architecture,   *r.name,          *r.sms,           *r.clock_ghz,       *r.dram_gb_per_s,
          *r.threads_per_sm, *r.blocks_per_sm, *r.shared_per_sm, *r.shared_per_block};
}

int device_count() {
  int count = 0;
  driver().check(driver().count(&count), "cuDeviceGetCount");
  return count;
}

Device::Device(int index) {
  const Driver& d = driver();
  if (const int count = device_count(); index >= count)
    throw kernels::CudaError("cuda:" + std::to_string(index) + ": this machine has " + std::to_string(count) +
                             " devices");
  d.check(d.get(&handle_, index), "cuDeviceGet");
  constexpr int kNameBytes = 256;
  char name[kNameBytes] = {};
  d.check(d.name(name, kNameBytes - 1, handle_), "cuDeviceGetName");
  std::size_t memory = 0;
  d.check(d.total(&memory, handle_), "cuDeviceTotalMem");
  d.check(d.version(&record_.driver.emplace()), "cuDriverGetVersion");  // of CUDA, that it speaks: 13000
  const auto attribute = [&](DeviceAttribute which) { return d.attribute_of(handle_, which); };
  constexpr double kKhzPerGhz = 1e6, kTransfersPerClock = 2, kBitsPerByte = 8;
  record_.kind = "cuda";
  record_.name = name;
  record_.architecture =
      "sm_" + std::to_string(10 * attribute(DeviceAttribute::kMajor) + attribute(DeviceAttribute::kMinor));
  record_.memory_bytes = static_cast<long long>(memory);
  record_.l2_bytes = attribute(DeviceAttribute::kL2Bytes);
  record_.memory_clock_ghz = attribute(DeviceAttribute::kMemoryClockKhz) / kKhzPerGhz;
  record_.dram_gb_per_s = *record_.memory_clock_ghz * kTransfersPerClock *
                          attribute(DeviceAttribute::kMemoryBusBits) / kBitsPerByte;
  record_.sms = attribute(DeviceAttribute::kMultiprocessors);
  record_.clock_ghz = attribute(DeviceAttribute::kClockKhz) / kKhzPerGhz;
  record_.threads_per_sm = attribute(DeviceAttribute::kThreadsPerSm);
  record_.blocks_per_sm = attribute(DeviceAttribute::kBlocksPerSm);
  record_.shared_per_sm = attribute(DeviceAttribute::kSharedPerSm);
  record_.shared_per_block = attribute(DeviceAttribute::kSharedPerBlock);
  limits_ = limits_of(record_);
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

std::vector<Device::Kernel> Device::load(const std::string& cubin,
                                         const std::vector<std::string>& names) const {
  Handle module = nullptr;
  driver().check(driver().load(&module, cubin.data()), "cuModuleLoadData");
  std::vector<Kernel> kernels;
  for (const std::string& name : names) {
    kernels.emplace_back();
    driver().check(driver().function(&kernels.back(), module, name.c_str()), "cuModuleGetFunction");
  }
  return kernels;
}

void Device::allow_shared(Kernel kernel, std::int64_t bytes) const { driver().allow_shared(kernel, bytes); }

int Device::resident_blocks(Kernel kernel, int threads, std::size_t shared_bytes) const {
  return driver().resident_blocks(kernel, threads, shared_bytes);
}

void Device::launch(Kernel kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
                    const std::vector<void*>& parameters) const {
  std::vector<void*> pointers = parameters;
  driver().check(
      driver().launch(kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, nullptr, pointers.data(), nullptr),
      "cuLaunchKernel");
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
