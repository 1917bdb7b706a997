// Kernels of one device, called with arrays of the host: for the verifier they are functions like any other.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autotune/gpu/driver.h"
#include "autotune/gpu/variant.h"
#include "autotune/measure/executor.h"
#include "autotune/space/arguments.h"

namespace outgrad::autotune::gpu {

// Device addresses in the order of the kernel's operands, 0 for one that is absent.
using Addresses = std::array<std::uint64_t, kMostOperands>;

// A cubin and those of its kernels that are wanted.
struct Cubin {
  std::string content;
  std::vector<std::string> symbols;
};

// A variant's code on a device.
struct LoadedVariant {
  GpuVariant variant;
  std::map<kernels::cuda::DeviceKernel, Device::Kernel> kernels;
  kernels::cuda::PlanLimits limits;
  float eps = kTunedEps;  // of a norm's forward

  // Bytes of device memory that the variant needs as an operand for a shape, of scratch as the device's
  // kernels have it.
  std::size_t bytes(const Operand& operand, kernels::i64 rows, kernels::i64 cols) const;
  // Enqueues the kernels of the plan. Throws std::logic_error for columns that the code does not take.
  void launch(const Device& device, const Addresses& addresses, kernels::i64 rows, kernels::i64 cols) const;
};

// Throws std::logic_error where no symbol is of a kernel that the variant needs.
LoadedVariant load(const Device& device, const GpuVariant& variant, const std::vector<Cubin>& cubins);
// What Predicted::compiled names (autotune/gpu/offline.h).
std::vector<Cubin> read_cubins(const Compiled& code);

// Where arrays lie on the device: as far off 256 bytes as on the host, or where the driver allocates them.
enum class Placement { kAsOnTheHost, kAligned };
// The variant as a function over host arrays: copies them to the device, runs, copies the results back.
// Throws CudaError for what the device ends in, WroteOutside when anything but the outputs has changed.
std::function<void(const Arguments&)> on_host_arrays(const Device& device, const LoadedVariant& loaded,
                                                     Placement placement = Placement::kAsOnTheHost);

// Runs a kernel of the library in its default schedule on device `index`, over arrays of the host, and says
// by which variant; `eps` is of a norm's forward, `fit` of an elementwise kernel (null: its default).
// Compiles it first. This process may not fork thereafter. Throws EnvironmentError without a device, a driver
// or a compiler for it.
std::string run_on_device(int index, const Problem& problem, const Arguments& arguments,
                          float eps = kTunedEps, std::shared_ptr<const FitChoice> fit = nullptr);

// Device `index` as an executor.
std::unique_ptr<Executor> open_device(int index);

}  // namespace outgrad::autotune::gpu
