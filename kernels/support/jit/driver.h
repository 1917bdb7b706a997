// The CUDA driver, loaded when it is first needed. A program that was built without a toolkit can so find and
// use the devices of its machine. The declarations follow cuda.h (CUDA driver API), which is not included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

namespace outgrad::kernels::jit {

class DeviceOutOfMemory : public std::bad_alloc {
 public:
  explicit DeviceOutOfMemory(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// CUdevice_attribute
enum class DeviceAttribute {
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
  using Result = int;  // CUresult
  using Handle = void*;

  // Throws CudaError if there is no driver, or if it does not start.
  static const Driver& instance();
  // Throws CudaError, which names the call, or DeviceOutOfMemory if the device lacks the memory.
  void check(Result result, const char* call) const;
  int attribute_of(int device, DeviceAttribute which) const;
  // Allows a kernel to be launched with this many bytes of dynamic shared memory.
  void allow_shared(Handle kernel, std::int64_t bytes) const;
  // The number of blocks of a kernel that an SM holds at once.
  int resident_blocks(Handle kernel, int threads, std::size_t shared_bytes) const;

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
  Result (*current)(Handle*) = nullptr;
  Result (*push_context)(Handle) = nullptr;
  Result (*pop_context)(Handle*) = nullptr;
  Result (*exchange_capture_mode)(int*) = nullptr;
  Result (*synchronise)() = nullptr;
  Result (*allocate)(std::uint64_t*, std::size_t) = nullptr;
  Result (*free)(std::uint64_t) = nullptr;
  Result (*upload)(std::uint64_t, const void*, std::size_t) = nullptr;
  Result (*download)(void*, std::uint64_t, std::size_t) = nullptr;
  Result (*copy)(std::uint64_t, std::uint64_t, std::size_t, Handle) = nullptr;
  Result (*fill)(std::uint64_t, unsigned char, std::size_t, Handle) = nullptr;
  Result (*load)(Handle*, const void*) = nullptr;
  Result (*function)(Handle*, Handle, const char*) = nullptr;
  Result (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
                   void**, void**) = nullptr;
  Result (*set_function)(Handle, int, int) = nullptr;
  Result (*occupancy)(int*, Handle, int, std::size_t) = nullptr;
  Result (*create_event)(Handle*, unsigned) = nullptr;
  Result (*destroy_event)(Handle) = nullptr;
  Result (*record)(Handle, Handle) = nullptr;
  Result (*wait)(Handle) = nullptr;
  Result (*elapsed)(float*, Handle, Handle) = nullptr;

 private:
  Driver();
};

}  // namespace outgrad::kernels::jit
