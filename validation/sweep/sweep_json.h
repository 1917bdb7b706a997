// Sweep results as JSON: exact for partial results, which are merged later, and readable for the report.
#pragma once

#include <nlohmann/json.hpp>

#include "validation/sweep/sweep.h"

namespace outgrad::validation {

/// A segment without any loss: binary32 values are bit patterns, and binary64 values are numbers that
/// round-trip. from_json throws nlohmann::json::exception for anything else.
nlohmann::ordered_json segment_to_json(const Segment& segment);
Segment segment_from_json(const nlohmann::json& json);

/// What a shard leaves behind, schema "outgrad.sweep-part/7". Its `sha256` is part_digest.
struct SweepParts {
  Subject subject;  // without its functions
  std::vector<DomainPart> parts;
};
nlohmann::ordered_json to_json(const Subject& subject, const std::vector<DomainPart>& parts);
/// SHA-256, as hexadecimal text, of everything except `sha256`, in compact form and with sorted keys. So a
/// shard that was edited or damaged on the way is refused.
std::string part_digest(nlohmann::json part);
/// Throws kernels::SpecError naming `file`.
SweepParts parts_from_json(const std::string& text, const std::string& file);

const char* to_string(SweptX swept);
/// Throws kernels::SpecError naming `file` and `place`.
SweptX swept_named(const std::string& name, const std::string& file, const char* place);

/// rms, bias and greatest error of g under the subject's distributions of x, and the share of x in the worst
/// codes; one object for each distribution.
nlohmann::ordered_json under_json(const Subject& subject, const DomainResult& result);

/// What the report reads, schema "outgrad.sweep/1": for each domain the counts; T, T_dx, O, R, C with
/// witnesses, each with a proven upper bound; the forward's errors; foreign forwards; and the error curve. It
/// has "foreign" if the coefficients are not ours. `subject` needs no functions.
nlohmann::ordered_json report_json(const Subject& subject, const std::vector<DomainResult>& results);

}  // namespace outgrad::validation
