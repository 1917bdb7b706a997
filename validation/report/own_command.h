// `outgrad plot`, and `outgrad report --header`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kernels/support/result.h"

namespace outgrad::validation {

void add_plot(CLI::App& app);

/// The page of a header, or of all headers of a folder, into the folder `out` (empty: beside them). Whether
/// all claims hold. @throws kernels::SpecError, kernels::IoError, kernels::EnvironmentError.
bool report_of_own(const std::string& path, const std::string& out, const kernels::ResultForm& form);

}  // namespace outgrad::validation
