// The command `outgrad stability`: norm layers of a checkpoint, or given parameters, through the analysis of stability.h; and
// the attack on its bounds.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it. The callback throws SpecError or IoError for bad input. An unstable channel is a result, no
// failure; a bound that an attack breaks (--attack) sets `status` to kExitViolated.
void add_stability(CLI::App& app, int& status);

}  // namespace outgrad::validation
