// The command `outgrad validate`: exhaustive sweeps of the kernels this program was built with.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand. Its callback runs it and sets `status` to kExitViolated if a bound of the project does
// not hold. It throws SpecError or IoError for bad input. `status` must outlive the parsing.
void add_validate(CLI::App& app, int& status);

}  // namespace outgrad::validation
