/// Bound B for others to check: Gappa scripts for the rounding of the deployed sequence, written by the
/// deployed evaluator itself.
///
/// kernels/eval.h runs over a scalar that writes down each operation three times: p, rounded to fp32 as
/// deployed; M, the same polynomial in real arithmetic at the computed u; P, in real arithmetic throughout.
/// The scripts give Gappa two algebraic identities, which it checks: p - M accumulates one rounding a step,
/// and M - P = (u - U) D with D the divided difference of the polynomial. Without them Gappa adds up the
/// effect of u's error on every step, and does not reach the bound.
#pragma once

#include "approx/model/fit.h"

#include <string>
#include <utility>
#include <vector>

namespace outgrad::approx {

/// A script for an outside prover, and the claim that it makes.
struct WitnessScript {
  std::string name;  ///< the file's, without its folder
  std::string text;
  int row = 0;
  double claim = 0;
  /// what the claim is of: 'A', 'B', 'T'; 'x': of none, the file is about the ranges of x of the rows
  char bound = ' ';
};

/// Gappa has to be run with it: it then keeps improvements of a bound down to 1e-5 of it, where its default
/// is 1%.
inline constexpr const char* kGappaOption = "-Echange-threshold=0.00001";

/// d = integer 2^exponent, with the shortest integer.
std::pair<long long, int> integer_and_exponent(double d);

/// "2^-24.000"; "0".
std::string power_of_two(double bound);

/// Scripts that together prove B <= `piece.evaluation` for every y that can reach the row: one for each
/// branch, and one for each clamp of the coordinate (t_min, s_min) that the row can meet. Files are
/// NAME.row_K[.CASE].gappa.
std::vector<WitnessScript> gappa_scripts(const std::string& name, const BackwardModel& model,
                                         const Piece& piece);

}  // namespace outgrad::approx
