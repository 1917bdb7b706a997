// `tune`: its first options say which of its modes is meant (tune_modes.h).
#pragma once

#include <string>
#include <vector>

namespace outgrad::autotune {

// Returns the exit status.
int tune_command(const std::vector<std::string>& words);

}  // namespace outgrad::autotune
