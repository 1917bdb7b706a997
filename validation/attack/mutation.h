// Damage to the text of generated headers: every constant, coefficient, string and comment, one at a time.
//
// Places are found by a scan of the lines that `outgrad emit` writes. A number is moved by an ulp or a few, by a factor, to zero, to its negative, or swapped with
// its neighbour; a string gets a neighbour's value, another header's, another number or letter; a comment another letter or number, another comment, or an ending that makes the
// compiler read on in the next line; lines are dropped, doubled, swapped and interrupted. A number's damage takes the comment along that follows from its value, as one
// who knows the form would do, so that it is the proofs that have to notice.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/support/random.h"

namespace outgrad::validation::gate {

/// Where damage is done, and what stands there.
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
  /// A comment that is not what emit would have written, another layout, another name: it must be refused whatever it computes.
  bool refused_by_definition = false;
  /// The comment is still of the form "row K: A <= 2^N; found ...", and this is what it claims now; what was found is as it was.
  std::optional<RowClaim> row_claim;
};

/// How many kinds of damage a kind of site has.
size_t damages_of(Site::Kind kind);
const char* damage_name(Site::Kind kind, size_t damage);

/// The mutant by that damage; text equal to the header's where the damage changes nothing there (zero is not negated). donor: another header.
Mutant mutant_of(const std::string& text, const std::vector<Site>& sites, size_t site, size_t damage, const std::string& donor, kernels::Random& random);

/// Which (site, damage) pairs to try: every constant, string and comment by every kind of damage, coefficients by `passes` kinds each, chosen at random, and no more
/// than `most` of all in an even choice; 0 for no limit.
std::vector<std::pair<size_t, size_t>> plan(const std::vector<Site>& sites, size_t passes, size_t most, kernels::Random& random);

}  // namespace outgrad::validation::gate
