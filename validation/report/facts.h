// The report's JSON and its page: what only C++ knows is handed to Python, which reads the results and
// renders them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

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

/// What a script of validation/report makes of `data`, which it finds as `name` in a folder of its own: the
/// texts of these files. `is_refusal`: whether the last line that a script says, which ends with the status
/// of bad input, is one of a file; an interpreter that does not find the script ends with it, too. Throws
/// kernels::SpecError with that line, kernels::EnvironmentError if no Python has what the script needs.
std::map<std::string, std::string> rendered(const std::string& script, const std::string& name,
                                            const Json& data, const std::vector<std::string>& files,
                                            const std::function<bool(const std::string&)>& is_refusal);

}  // namespace outgrad::validation
