// The commands of outgrad-attack.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Each adds its subcommand, whose callback runs it, throws SpecError or IoError for bad input, and sets
// `status` to kExitViolated where a proof does not hold.

// `attack`: the gate over committed or given headers, and over random specifications. A survivor, a false
// claim, a hang or an internal error is a violation. Throws EnvironmentError if there is no compiler or no
// fitter.
void add_attack(CLI::App& app, int& status);
// `stability --attack`: rows that make the norms' kernels as wrong as they can be, against the bounds
// (norms.h).
void add_stability_attack(CLI::App& app, int& status);

}  // namespace outgrad::validation
