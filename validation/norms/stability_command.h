// The command `outgrad stability`. It analyses norm layers of a checkpoint, or given parameters, by stability.h, and
// attacks the bounds.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it. The callback throws SpecError or IoError for bad input. An unstable
// channel is a result and not a failure. A bound that an attack breaks (--attack) sets `status` to kExitViolated.
void add_stability(CLI::App& app, int& status);

}  // namespace outgrad::validation
