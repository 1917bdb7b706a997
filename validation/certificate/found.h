// The worst inputs that a header states beside its bounds: the error there, computed anew by the mathematics
// of the proofs, is the one stated to its two decimals, and no larger than the bound. What is stated proves
// nothing of other inputs, so no proof rests on it.
#pragma once

#include <optional>
#include <string>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {

/// What is wrong with an input, if anything is; Undecided where the enclosure of the error there tells too
/// little.
struct FoundProblem {
  Verdict verdict = Verdict::Holds;
  std::string why;
};
/// Holds if `error`, what it is at the input, lies within the rounding of what is stated and below the bound.
/// `where` names the input.
FoundProblem found_problem(const std::string& bound_name, const FoundInput& found, const std::string& where,
                           const Interval& error, double bound);
/// "y = 0x1.8p-3, m = 1" of masked headers.
std::string found_place(const FoundInput& found, bool masked);

/// Every input that the header states for A, K, B, A + B and A + B in ulp; nothing if it states none. Those
/// for T, O and R belong to the enumeration (storage_bound.h).
std::optional<Finding> prove_found(const BackwardHeader& h);
std::optional<Finding> prove_found(const ForwardHeader& h);
std::optional<Finding> prove_found(const RoundedForwardHeader& h);

}  // namespace outgrad::validation
