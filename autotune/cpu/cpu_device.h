// The CPU of this machine as a device of the tuner.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autotune/cpu/compile.h"
#include "autotune/cpu/header.h"
#include "autotune/measure/device.h"
#include "autotune/measure/tunable.h"
#include "autotune/space/accuracy.h"

namespace outgrad::autotune {

// Elements per array so that what one call touches is four times the last cache level; within a quarter of
// the free memory, and so few that `calls` calls take half of the seconds at most, at 10 GB/s a thread. A
// virtual machine of a few threads may name the cache of a machine of a hundred.
kernels::i64 elements_for(const Problem& problem, const CpuIdentity& cpu, double seconds, int calls);

struct CpuChoices {
  std::string out;                            // folder of the database, the cache and the headers
  std::vector<GeneratedHeader> headers{};     // further fits
  Accuracy accuracy = Accuracy::kAsDefault;
};

// Throws EnvironmentError without a compiler, SpecError for a header that does not compile.
std::unique_ptr<TuningDevice> open_cpu_device(const CpuChoices& choices, std::uint64_t seed);

}  // namespace outgrad::autotune
