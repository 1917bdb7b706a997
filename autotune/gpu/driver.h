// The devices of this machine, through the CUDA driver.
//
// A process that has opened a device must not fork and go on with it in the child, so a tuner opens devices
// in child processes only.
// Every failure is a CudaError that names the call, but for memory that the device has not:
// DeviceOutOfMemory; a kernel that faulted leaves its context unusable, and with it the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autotune/gpu/model.h"
#include "autotune/records/record.h"
#include "kernels/support/jit/driver.h"

namespace outgrad::autotune::gpu {

// A device's own, of what Device::record() says; `board` is its name.
Architecture limits_of(const DeviceRecord& record);

using kernels::jit::DeviceOutOfMemory;

// Number of devices of this machine. Throws CudaError where there is no driver; 0 is an answer.
int device_count();

class Device {
 public:
  // Opens device `index` and makes its primary context this thread's. Throws CudaError.
  explicit Device(int index);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const DeviceRecord& record() const { return record_; }  // the device as it describes itself
  const Architecture& limits() const { return limits_; }

  // Device memory; freed with its owner.
  class Memory {
   public:
    Memory() = default;
    Memory(const Device& device, std::size_t bytes);
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept;
    ~Memory();
    std::uint64_t address() const { return address_; }
    std::size_t bytes() const { return bytes_; }

   private:
    const Device* device_ = nullptr;
    std::uint64_t address_ = 0;
    std::size_t bytes_ = 0;
  };

  void upload(std::uint64_t to, const void* from, std::size_t bytes) const;
  void download(void* to, std::uint64_t from, std::size_t bytes) const;
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) const;  // on the device, enqueued
  void fill(std::uint64_t to, unsigned char byte, std::size_t bytes) const;  // enqueued

  // Kernels of a cubin, in the order of their names. They live as long as the device.
  using Kernel = void*;
  std::vector<Kernel> load(const std::string& cubin, const std::vector<std::string>& names) const;
  // Before a launch with more dynamic shared memory than every kernel may have.
  void allow_shared(Kernel kernel, std::int64_t bytes) const;
  // Blocks of a kernel that an SM holds at once.
  int resident_blocks(Kernel kernel, int threads, std::size_t shared_bytes) const;
  // `parameters` point to the arguments, in order.
  void launch(Kernel kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
              const std::vector<void*>& parameters) const;
  // Waits for all that was enqueued; throws what it ended in.
  void synchronise() const;

  // Time between two events around what `enqueue` enqueues, in ns.
  template <class Enqueue>
  double timed_ns(const Enqueue& enqueue) const {
    start_event();
    enqueue();
    return stop_event_ns();
  }

 private:
  void start_event() const;
  double stop_event_ns() const;

  int handle_ = 0;
  void *start_ = nullptr, *stop_ = nullptr;
  DeviceRecord record_;
  Architecture limits_;
};

}  // namespace outgrad::autotune::gpu
