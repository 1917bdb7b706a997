// The `eval` command: one kernel on raw little-endian arrays in files, so that any language can test it.
#pragma once

#include <string>
#include <vector>

namespace outgrad::autotune {

// Runs `--op forward|backward|layernorm_forward|layernorm_backward|rmsnorm_forward|rmsnorm_backward`
// (autotune/README.md lists the options of each). Every size is checked before anything runs; no output
// appears unless all were written.
// Returns the exit status. Throws SpecError, IoError, EnvironmentError.
int eval_command(const std::vector<std::string>& words);

}  // namespace outgrad::autotune
