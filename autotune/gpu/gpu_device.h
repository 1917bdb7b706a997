// A GPU as a device of the tuner. Every question to the driver is asked in a child: this process compiles and
// forks, which no process with an open device may.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "autotune/gpu/driver.h"
#include "autotune/measure/tunable.h"
#include "autotune/space/accuracy.h"

namespace outgrad::autotune::gpu {

// These throw CudaError without a driver or the device.
int count_gpus();
DeviceRecord identify_gpu(int index);

// `out`: folder of the programs that are compiled. Throws CudaError as above, EnvironmentError without NVRTC.
std::unique_ptr<TuningDevice> open_gpu_device(int index, const std::string& out, std::uint64_t seed,
                                              Accuracy accuracy);

}  // namespace outgrad::autotune::gpu
