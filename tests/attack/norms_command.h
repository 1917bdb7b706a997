// The command `outgrad stability --attack`: rows that make the norms' kernels as wrong as they can be,
// against the bounds (norms.h).
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it. A bound that is broken sets `status` to kExitViolated. Throws
// SpecError or IoError for bad input.
void add_stability_attack(CLI::App& app, int& status);

}  // namespace outgrad::validation
