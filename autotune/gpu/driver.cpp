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

DeviceRecord device_record(const DeviceIdentity& device) {
  const Architecture& limits = device.limits;
  DeviceRecord record;
  record.kind = "cuda", record.name = device.name, record.architecture = limits.name,
  record.driver = device.driver;
  record.sms = limits.sms, record.threads_per_sm = limits.threads_per_sm,
  record.blocks_per_sm = limits.blocks_per_sm;
  record.shared_per_sm = limits.shared_per_sm, record.shared_per_block = limits.shared_per_block;
  record.clock_ghz = limits.clock_ghz, record.memory_clock_ghz = device.memory_clock_ghz,
  record.dram_gb_per_s = limits.dram_gb_per_s;
  record.memory_bytes = device.memory_bytes, record.l2_bytes = device.l2_bytes;
  return record;
}

DeviceIdentity device_from(const DeviceRecord& r) {
  const Architecture limits{*r.architecture,  *r.name,          *r.sms,
                            *r.clock_ghz,     *r.dram_gb_per_s, *r.threads_per_sm,
                            *r.blocks_per_sm, *r.shared_per_sm, *r.shared_per_block};
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
    throw kernels::CudaError("cuda:" + std::to_string(index) + ": this machine has " + std::to_string(count) +
                             " devices");
  d.check(d.get(&handle_, index), "cuDeviceGet");
  constexpr int kNameBytes = 256;
  char name[kNameBytes] = {};
  d.check(d.name(name, kNameBytes - 1, handle_), "cuDeviceGetName");
  std::size_t memory = 0;
  d.check(d.total(&memory, handle_), "cuDeviceTotalMem");
  d.check(d.version(&identity_.driver), "cuDriverGetVersion");
  const auto attribute = [&](DeviceAttribute which) { return d.attribute_of(handle_, which); };
  constexpr double kKhzPerGhz = 1e6, kTransfersPerClock = 2, kBitsPerByte = 8;
  identity_.name = name;
  identity_.memory_bytes = static_cast<long long>(memory);
  identity_.l2_bytes = attribute(DeviceAttribute::kL2Bytes);
  identity_.memory_clock_ghz = attribute(DeviceAttribute::kMemoryClockKhz) / kKhzPerGhz;
  Architecture& limits = identity_.limits;
  limits.name =
      "sm_" + std::to_string(10 * attribute(DeviceAttribute::kMajor) + attribute(DeviceAttribute::kMinor));
  limits.board = identity_.name;
  limits.sms = attribute(DeviceAttribute::kMultiprocessors);
  limits.clock_ghz = attribute(DeviceAttribute::kClockKhz) / kKhzPerGhz;
  limits.dram_gb_per_s = identity_.memory_clock_ghz * kTransfersPerClock *
                         attribute(DeviceAttribute::kMemoryBusBits) / kBitsPerByte;
  limits.threads_per_sm = attribute(DeviceAttribute::kThreadsPerSm);
  limits.blocks_per_sm = attribute(DeviceAttribute::kBlocksPerSm);
  limits.shared_per_sm = attribute(DeviceAttribute::kSharedPerSm);
  limits.shared_per_block = attribute(DeviceAttribute::kSharedPerBlock);
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
