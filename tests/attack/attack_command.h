// The command `outgrad attack`: the gate over committed or given headers, and over random specifications.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it. The callback throws SpecError or IoError for bad input, and
// EnvironmentError if there is no compiler or no fitter. A survivor, a false claim, a hang or an internal
// error sets `status` to kExitViolated.
void add_attack(CLI::App& app, int& status);

}  // namespace outgrad::validation
