// Kernels of one device, called with arrays of the host: for the verifier they are functions like any other.
#pragma once

#include <functional>

#include "autotune/executor.h"
#include "autotune/gpu/driver.h"
#include "autotune/gpu/variant.h"
#include "autotune/variant_abi.h"

namespace outgrad::autotune::gpu {

// A variant's code on a device.
struct LoadedVariant {
  GpuVariant variant;
  Device::Kernel kernel = nullptr;
  int sms = 0;

  // Blocks of the grid for n elements, as the launchers of kernels/cuda/elementwise.cuh have it.
  unsigned blocks(kernels::i64 n) const;
  // Enqueues the kernel on device addresses, n > 0. Backward: dy, y, mask, dx; forward: x, -, mask, y.
  void launch(const Device& device, std::uint64_t first, std::uint64_t second, std::uint64_t mask, std::uint64_t out, kernels::i64 n) const;
};

LoadedVariant load(const Device& device, const GpuVariant& variant, const std::string& cubin, const std::string& symbol);

// The variant as a function over host arrays: copies them to the device at the same alignment, runs, copies the results back. Throws
// CudaError for what the device ends in, WroteOutside when anything but the outputs has changed.
std::function<void(const Arguments&)> on_host_arrays(const Device& device, const LoadedVariant& loaded);

// Device `index` as an executor.
std::unique_ptr<Executor> open_device(int index);

}  // namespace outgrad::autotune::gpu
