// The command `outgrad front`: what each way of keeping less for an activation's backward pass costs.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand. Its callback runs it and sets `status` to kExitViolated if an error was found beyond a
// bound that a header states as proven. It throws SpecError or IoError for bad input. `status` must outlive
// the parsing.
void add_front(CLI::App& app, int& status);

}  // namespace outgrad::validation
