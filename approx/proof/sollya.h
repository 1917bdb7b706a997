/// Bound A for others to check: Sollya scripts that confirm it by certified commands alone (taylorform,
/// infnorm, interval evaluation).
///
/// The error is taken in x: E(x) = p(v(x) - centre) - f'(x). Away from x*, v is f or +-sqrt(f - y*). Next to
/// x* Sollya's norms fail: the root is singular there. Its relative Taylor form about an interval that holds
/// x* gives f - y* = w^2 h(w), w = x - x*, with h a polynomial and a certified remainder, and v = w
/// sqrt(h(w)) is smooth. x* and y* are enclosed by the script itself, by the sign of f'.
#pragma once

#include "approx/proof/gappa.h"

#include <string>

namespace outgrad::approx {

/// f in Sollya's notation, from its text: numbers, x, + - * / ^ ( ), and exp log sqrt tanh erf sigmoid
/// softplus normal_cdf. Decimal fractions become quotients of integers, which Sollya holds exactly.
/// @throws kernels::SpecError for anything else: a script must not run what a fit's file says.
std::string sollya_function(const std::string& function);

/// Prints "PROVEN" with a certified interval of sup |E| over [x_lo, x_hi], or "FAILED"; the tails beyond are
/// not in it. File NAME.row_K.sollya. `x_star` is where to look for the minimum, for pieces in s.
WitnessScript sollya_script(const std::string& name, const std::string& function, const Piece& piece,
                            const Real& x_star);

/// For a measurement beside our own fit: Sollya's fpminimax on the same piece (degree, interval of x, centre,
/// fp32 coefficients), then its certified norm (y* taken as the middle of its enclosure). Prints "BESIDE
/// bound fit_s norm_s", or "FAILED". File NAME.row_K.beside.sollya.
WitnessScript sollya_fit_script(const std::string& name, const std::string& function, const Piece& piece,
                                const Real& x_star);

}  // namespace outgrad::approx
