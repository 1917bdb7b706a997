// `outgrad check`: re-proves the certificates of generated headers from their text alone.
//
// The fitter certifies with Taylor models over Arb balls; here A is bounded by Chebyshev interpolation (sup_norm.h), K by branch and bound
// over s (coordinate_bound.h) and B by an a priori analysis and enumeration (rounding_bound.h), all over MPFR intervals and double. A claim
// holds only if what is proved here is at most the claim.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "validation/header_reader.h"
#include "validation/verdict.h"

namespace outgrad::validation {

/// All findings on one header, in the order of proof.
struct CheckReport {
  std::string file, name;
  std::vector<Finding> findings;

  /// The worst of the findings: Violated, else Undecided, else Holds.
  Verdict verdict() const;
};

/// Conditions on the constants that the proofs rest on, and the exact limits: backward, g = 0 at (y = -0, m = 0) and 1 at (+inf, 1);
/// forward, f(+-0) = +-0, -0 at -inf, the least float with m = 1, |f| <= 2^-150 left of kXMin and RN(f(x)) = x from kXMax on.
Finding check_structure(const BackwardHeader& h);
Finding check_structure(const ForwardHeader& h);

/// Structure first; the proofs of A, K, B (forward: A) only if it holds, since they assume it.
CheckReport check_header(const Header& header);

/// One line a finding.
std::string to_text(const CheckReport& report);
/// Schema "outgrad.check/1"; unbounded figures are null.
nlohmann::json to_json(const std::vector<CheckReport>& reports);

const char* to_string(Verdict verdict);

}  // namespace outgrad::validation
