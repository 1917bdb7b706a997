// The report's JSON and its page: what only C++ knows is handed to Python, which reads the results and
// renders them.
#pragma once

#include <string>

#include "validation/report/requirements.h"
#include "validation/report/results.h"

namespace outgrad::validation {

/// The part `facts` of outgrad.report/2 (validation/README.md): what headers claim, which files there are and
/// of which run, the tuner's latest records, and what the page's texts share with the verdicts.
Json facts(const Results& results);

/// Writes `report` as report.json into the folder, and index.html and report.md as page.py makes them of it.
/// If the page cannot be made, nothing is written. Throws kernels::SpecError for a damaged result, as page.py
/// says it, kernels::EnvironmentError if no Python has what page.py needs, and kernels::IoError.
void write_report(const Json& report, const std::string& folder);

}  // namespace outgrad::validation
