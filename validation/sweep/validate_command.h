// The command `outgrad validate`: exhaustive sweeps of the kernels this program was built with.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

#include "kernels/support/result.h"

namespace outgrad::validation {

// Adds the subcommand. Its callback runs it and sets `status` to kExitViolated if a bound of the project does
// not hold. It throws SpecError or IoError for bad input. `status` must outlive the parsing.
void add_validate(CLI::App& app, int& status);

// Sweeps a header of the user's own; whether its claims hold. In front/header_sweep.h, which this room does
// not know.
using HeaderSweep = std::function<bool(const std::string& header, const std::string& histogram,
                                       const std::string& out, const kernels::ResultForm& form)>;
// The same with --header.
void add_validate(CLI::App& app, int& status, const HeaderSweep& sweep_header);

}  // namespace outgrad::validation
