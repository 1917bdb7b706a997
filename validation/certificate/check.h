// `outgrad check`: re-proves the certificates of generated headers from their text alone.
//
// The fitter certifies with Taylor models over Arb balls; here A is bounded by Chebyshev interpolation
// (sup_norm.h), K by branch and bound over s (coordinate_bound.h), B by an a priori analysis and enumeration
// (rounding_bound.h), and T, O and R by enumeration (storage_bound.h), all over MPFR intervals and double. A
// claim holds only if what is proved here is at most the claim.
#pragma once

#include <atomic>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// All findings on one header, in the order of proof.
struct CheckReport {
  std::string file, name;
  std::vector<Finding> findings;

  /// The worst of the findings: Violated, else Undecided, else Holds.
  Verdict verdict() const;
};

/// Conditions on the constants that the proofs rest on, that kFunction is the function of kActivation and has
/// one minimum or none as kMasked says, kOperations counted anew, what kClass says of the claims, and limits.
/// Backward: g where x -> -inf and +inf is the limit of f' (kExactLimits), or within kA + kB of it. Forward:
/// f(+-0) = +-0, -0 at -inf, the least float with m = 1, |f| <= 2^-150 left of kXMin and RN(f(x)) = x from
/// kXMax on. Rounded forward: the same of its format, whose every x the sweeps exhaust; kTie, exact centres,
/// where the core lies. Codes: the function is the library's, kG is within the class, and kLo and kHi lie on
/// their grid.
/// 8-bit y: kCode, kFit and their function are the library's, kRoom is within the class, the scales are a
/// range, and the fit's constants are next to y*.
Finding check_structure(const BackwardHeader& h);
Finding check_structure(const ForwardHeader& h);
Finding check_structure(const TableHeader& h);
Finding check_structure(const RoundedForwardHeader& h);
Finding check_structure(const CodeHeader& h);
Finding check_structure(const Fp8Header& h);

/// Structure first; the proofs of A, K, B, T, O, R (forward: A; tables: T, O, R; codes: the range, G, T;
/// 8-bit y: the extrema, room, T) only if it holds, since they assume it. At last the worst inputs that the
/// header states, "found": those beside T, O and R are part of these findings. `done` counts findings, for
/// another thread to see.
CheckReport check_header(const Header& header, Findings wanted = Findings::all,
                         std::atomic<int>* done = nullptr);

/// One line a finding.
std::string to_text(const CheckReport& report, bool coloured = false);
/// Schema "outgrad.check/1"; unbounded figures are null.
nlohmann::json to_json(const std::vector<CheckReport>& reports);

const char* to_string(Verdict verdict);

}  // namespace outgrad::validation
