// `tune --device cuda:N`: compile for the device, prune, verify on it, time on it.
#pragma once

#include <vector>

#include "autotune/options.h"
#include "autotune/variant.h"

namespace outgrad::autotune::gpu {

// Returns the exit status. Throws CudaError without a driver or the device, EnvironmentError without NVRTC.
int device_command(const Options& options, const std::vector<Problem>& problems);

}  // namespace outgrad::autotune::gpu
