// The command `outgrad report`: HTML and Markdown from what the other stages left in a folder.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

// Adds the subcommand; its callback runs it and sets `status` to kExitViolated where a requirement is not met. It throws SpecError or
// IoError for bad input, EnvironmentError without Python, Jinja2 and matplotlib. `status` must outlive the parsing.
void add_report(CLI::App& app, int& status);

}  // namespace outgrad::validation
