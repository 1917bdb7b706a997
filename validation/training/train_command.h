// `outgrad train`.
#pragma once

#include <CLI/CLI.hpp>

namespace outgrad::validation {

/// Adds the subcommand; `status` stays 0: training is measured, not judged.
void add_train(CLI::App& app, int& status);

}  // namespace outgrad::validation
