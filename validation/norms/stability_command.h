// The command `outgrad stability`. It analyses norm layers of a checkpoint, or given parameters, by
// stability.h.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it. The callback throws SpecError or IoError for bad input. An
// unstable channel is a result and not a failure.
void add_stability(CLI::App& app);

}  // namespace outgrad::validation
