/// Bounds A and B of the rows of GELU, its tanh form or Swish as theorems for Coq, over the hand-written
/// library in approx/proof/coq.
///
/// The theorem of A reads like README.md's definition: for every real x of the row, |p(coordinate(x)) -
/// f'(x)| <= A, with the exact y* and with exact numbers n / 2^k. Its proof goes over cells of x. On a cell,
/// polynomials near phi (or, next to the branch point, near f'') are given with their errors, and
/// coq-interval is asked for inequalities between polynomials and square roots. The theorem of B is the text
/// of a Gappa script, and its proof is the one that Gappa writes. Whatever is given here is checked there:
/// polynomials, values and errors that are wrong make Coq refuse the file, never accept a false bound.
#pragma once

#include "approx/proof/gappa.h"

#include <map>
#include <string>
#include <vector>

namespace outgrad::approx::coq {

/// Files in the order in which Coq needs them: those of a group need none of each other, but those of the
/// groups before it.
using Groups = std::vector<std::vector<WitnessScript>>;
/// Puts each group behind the one of the same place; of two files of one name the latter stays.
void add(Groups& groups, const Groups& more);

/// A of `rows` (of none: of all) by script(), and B of each as Gappa scripts, which evaluation_script() then
/// makes theorems; and what is about the ranges of all rows (coq_index.h), which for all rows of a kernel
/// that Coq's library has are shown to be those of its index arithmetic.
/// @throws kernels::SpecError as script() does.
Groups scripts(const Fit& fit, const std::string& path, const std::vector<int>& rows = {});

/// A of one row, NAME_row_K.v: the theorem fit_error, and fit_error_far_left and fit_error_far_right where
/// the row reaches to that limit. @throws kernels::SpecError if the fit is not one in absolute error, or
/// the library defines no other function.
WitnessScript script(const Fit& fit, const Piece& piece, const std::string& path);

/// A script of gappa_scripts() as the theorem evaluation_error, in NAME_row_K[_CASE]_B.v. `proof`: what
/// `gappa -Bcoq` made of the script.
WitnessScript evaluation_script(const WitnessScript& script, const std::string& proof);

/// The axioms in what `Print Assumptions` printed, or in a list in the form of approx/proof/coq/assumptions:
/// statements, single-spaced, by name.
std::map<std::string, std::string> assumptions(const std::string& text);

/// What is assumed and not listed, or listed with another statement.
std::vector<std::string> unlisted(const std::map<std::string, std::string>& assumed,
                                  const std::map<std::string, std::string>& listed);

}  // namespace outgrad::approx::coq
