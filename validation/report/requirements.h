// Compares what must be reached (targets.h) with what the headers claim and the sweeps found.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "validation/report/results.h"

namespace outgrad::validation {

using Json = nlohmann::ordered_json;  // the report's keys stand in an order that reads well

enum class RequirementVerdict { pass, fail, reported, not_measured };
const char* to_string(RequirementVerdict verdict);

/// One requirement on one format. A value that is not a number fails.
struct Requirement {
  /// error: shown as a power of two; number: as a decimal
  enum class Kind { error, number, ratio, ulp, count };
  /// format: "norms" or "certificates" if all formats are judged together, "own" for a user's own function
  std::string format, quantity;
  Kind kind = Kind::error;
  std::optional<double> limit;  // none: the value is only reported
  std::optional<double> value;  // an upper bound of the quantity; none: not measured
  std::string established;  // "certified", "exhaustive", "counted", "searched", or "proven" by Coq
  std::string command;  // makes the value
  std::string from = {};  // the run that made it (Results::origin); empty: not measured

  RequirementVerdict verdict() const;
};

/// Every requirement on every format, in the order of targets.h. A, B and operations come from the headers;
/// those on the norms' bounds come from the search against these bounds; everything else comes from the
/// sweeps. The header of a format is that of the fit that was swept, or gelu_<format> without a sweep. First
/// for each format, without a limit: the error of the whole gradient, and that of PyTorch's, which reads x.
/// Last the claims of a user's own functions.
std::vector<Requirement> requirements(const Results& results);

/// As a plain text table, which ends with the count of verdicts.
std::string to_text(const std::vector<Requirement>& rows);
/// Schema "outgrad.report/2", without the facts of facts.h.
Json to_json(const std::vector<Requirement>& rows);

/// Figures as text, rounded up so that a bound that is shown is a bound: "2^-26.24". "0" and "inf" are shown
/// unchanged.
std::string power_of_two(double bound);
/// With a given number of decimals.
std::string rounded_up(double bound, int decimals);
/// In the form that suits its kind.
std::string figure(double value, Requirement::Kind kind);

/// Three significant digits.
std::string three_digits_up(double bound);

inline constexpr const char* kCertificateAttackCommand =
    "./outgrad attack --size full --out notebooks_data/attack/certificates.json";
inline constexpr const char* kProofCommand = "./outgrad certify --coq FIT.json --run --json";
inline constexpr const char* kStoreCommand =
    "./outgrad validate --activation all --format bf16,f16 --fit stores";
inline constexpr const char* kProductCommand =
    "./outgrad validate --activation all --format bf16,f16 --fit products";
inline constexpr const char* kAttackCommand =
    "./outgrad stability --attack --evaluations 1e9 --out notebooks_data/attack/norms.json";

/// A path under the current folder relative to it; any other path unchanged.
std::string shown_path(const std::string& path);
/// The commands that make the figures of a header and of a sweep.
std::string check_command(const std::string& header);
std::string validate_command(const std::string& format);

}  // namespace outgrad::validation
