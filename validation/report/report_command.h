// The command `outgrad report`: makes HTML and Markdown from the results that the other stages left in a
// folder.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand. Its callback runs it and sets `status` to kExitViolated if a requirement is not met.
// It throws SpecError or IoError for bad input, and EnvironmentError without Python, Jinja2 and matplotlib.
// `status` must outlive the parsing.
void add_report(CLI::App& app, int& status);

}  // namespace outgrad::validation
