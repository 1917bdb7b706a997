// `outgrad compare A B`.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

/// The command that shows two results side by side.
void add_compare(CLI::App& app);

}  // namespace outgrad::validation
