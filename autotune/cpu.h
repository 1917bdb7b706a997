// The CPU of this machine as a device of the tuner.
#pragma once

#include <memory>
#include <string>

#include "autotune/header.h"
#include "autotune/tune_command.h"

namespace outgrad::autotune {

struct CpuChoices {
  std::string out;                          // folder of the database, the cache and the headers
  std::vector<GeneratedHeader> headers;     // further fits
  Accuracy accuracy = Accuracy::kAsDefault;
};

// Throws EnvironmentError without a compiler, SpecError for a header that does not compile.
std::unique_ptr<TuningDevice> open_cpu_device(const CpuChoices& choices, std::uint64_t seed);

}  // namespace outgrad::autotune
