// The outcome of one proof, as a value.
#pragma once

#include <optional>
#include <string>

namespace outgrad::validation {

/// Holds: proven. Violated: shown by an input that was computed, or, of what a header says about its own text
/// and constants, by looking at them. What is neither is Undecided, which is never a pass.
enum class Verdict { Holds, Violated, Undecided };

/// How far a check goes: all findings, or up to the first that does not hold, whose `proven` and witness may
/// then be those of a part.
enum class Findings { all, to_failure };

/// Where a claim fails. A: x, the error there, the claim. K, B: y, the g that is there, the g that should be.
/// T, O, R: x, the g of what is stored for it, f'(x); a claim that is too large: y, the largest there is, the
/// claim.
struct Witness {
  double at = 0;
  double got = 0;
  double want = 0;
};

/// One claim and what was proved of it: `proven` bounds the quantity from above (+inf if nothing was proved).
struct Finding {
  std::string name;
  Verdict verdict = Verdict::Undecided;
  double claim = 0;
  double proven = 0;
  std::string why = {};  // what was proved, or what went wrong and where
  std::optional<Witness> witness = {};
};

}  // namespace outgrad::validation
