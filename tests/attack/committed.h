// The headers that are committed.
#pragma once

#include <string>

#include "kernels/support/files.h"

namespace outgrad::validation::gate {

inline std::string committed(const std::string& name) {
  return kernels::read_file(std::string(OUTGRAD_SOURCE_DIR "/kernels/generated/") + name + ".h");
}

}  // namespace outgrad::validation::gate
