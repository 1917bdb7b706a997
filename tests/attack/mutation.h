// Damage to the text of generated headers: every constant, coefficient, string and comment, one at a time.
//
// A scan of the lines that `outgrad emit` writes finds the places. A number is changed by an ulp or a few, by
// a factor, to zero, to its negative, or swapped with its neighbour. A string gets the value of a neighbour
// or of another header, or another number or letter. A comment gets another letter or number, becomes another
// comment, or gets an ending that makes the compiler read on in the next line. Lines are dropped, doubled,
// swapped and interrupted. If a comment follows from a number's value, the damage changes both, as somebody
// who knows the form would do. So it is the proofs that must notice.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/support/random.h"

namespace outgrad::validation::gate {

/// A place for damage, and its text.
struct Site {
  enum class Kind { real, integer, boolean, string, coefficient, breakpoint, entry, comment, line } kind;
  std::string name;  ///< the constant; "row 3, word 1"; the comment's or line's number
  size_t begin = 0, length = 0;  ///< of its text
};
const char* to_string(Site::Kind kind);

/// All places of a header, in the order of its text.
std::vector<Site> sites_of(std::string_view text);

struct RowClaim {
  int row;
  double log2;
};

struct Mutant {
  std::string kind;  ///< what was done: "one ulp up", "sign", ...
  Site site;
  std::string text;
  /// Whether the comment, layout or name is not what emit would have written. Such a mutant must be refused,
  /// whatever it computes.
  bool refused_by_definition = false;
  /// The comment still has the form "row K: A <= 2^N; found ...", and this is what it now claims; what was
  /// found is unchanged.
  std::optional<RowClaim> row_claim;
};

/// The number of kinds of damage for a kind of site.
size_t damages_of(Site::Kind kind);
const char* damage_name(Site::Kind kind, size_t damage);

/// The mutant made by this damage. Its text equals the header's if the damage changes nothing there (zero is
/// not negated). donor: another header.
Mutant mutant_of(const std::string& text, const std::vector<Site>& sites, size_t site, size_t damage,
                 const std::string& donor, kernels::Random& random);

/// Which (site, damage) pairs to try: every constant, string and comment with every kind of damage, and each
/// coefficient with `passes` kinds, chosen at random. At most `most` of all these are taken, evenly chosen; 0
/// means no limit.
std::vector<std::pair<size_t, size_t>> plan(const std::vector<Site>& sites, size_t passes, size_t most,
                                            kernels::Random& random);

}  // namespace outgrad::validation::gate
