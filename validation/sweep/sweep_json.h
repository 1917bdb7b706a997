// Sweep results as JSON: exact for partial ones (they are merged later), readable for the report.
#pragma once

#include <nlohmann/json.hpp>

#include "validation/sweep/sweep.h"

namespace outgrad::validation {

/// A segment with nothing lost: binary32 values as bit patterns, binary64 as numbers that round-trip. from_json throws
/// nlohmann::json::exception for anything else.
nlohmann::ordered_json segment_to_json(const Segment& segment);
Segment segment_from_json(const nlohmann::json& json);

/// What a shard leaves, schema "outgrad.sweep-part/6": its `sha256` is part_digest.
struct SweepParts {
  Subject subject;  // without its functions
  std::vector<DomainPart> parts;
};
nlohmann::ordered_json to_json(const Subject& subject, const std::vector<DomainPart>& parts);
/// SHA-256, as hexadecimal text, of all but `sha256`, compact and with sorted keys: a shard that was edited or damaged on its way is no shard.
std::string part_digest(nlohmann::json part);
/// Throws kernels::SpecError naming `file`.
SweepParts parts_from_json(const std::string& text, const std::string& file);

const char* to_string(SweptX swept);
/// Throws kernels::SpecError naming `file` and `place`.
SweptX swept_named(const std::string& name, const std::string& file, const char* place);

/// rms, bias and greatest error of g under the subject's distributions of x, and the share of x in the worst codes: one object each.
nlohmann::ordered_json under_json(const Subject& subject, const DomainResult& result);

/// What the report reads, schema "outgrad.sweep/1": per domain the counts, T, T_dx, O, R, C with witnesses, each with a proven upper bound,
/// the forward's errors, foreign forwards, the error curve; with "foreign" where the coefficients are not ours. `subject` needs no functions.
nlohmann::ordered_json report_json(const Subject& subject, const std::vector<DomainResult>& results);

}  // namespace outgrad::validation
