// The command `outgrad stability`: norm layers of a checkpoint, or given parameters, through the analysis of stability.h.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it. The callback throws SpecError or IoError for bad input; it has no failing verdict: an
// unstable channel is a result.
void add_stability(CLI::App& app);

}  // namespace outgrad::validation
