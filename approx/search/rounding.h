/// From real minimax coefficients to fp32 ones: a search over the centre and over neighbouring floats, with
/// the rest re-optimised.
///
/// Rounding all coefficients at once loses the accuracy of the leading one: an ulp of c0 is 2^-23 where the
/// fit reaches 2^-26. The centre of a piece is free, so it is moved to where p(centre) and p'(centre) are
/// almost floats; then the coefficients are fixed one after the other, each to both neighbouring floats, and
/// the ones still free are re-fitted to the residual (the idea of fpminimax, Brisebarre and Chevillard, ARITH
/// 2007, with an exchange on the residual in place of a lattice). A beam keeps the best.
#pragma once

#include "approx/model/piece.h"

#include <functional>
#include <vector>

namespace outgrad::approx {

/// Samples of a piece: the argument, the coordinate, what is to be met there, and the weight of an error
/// there.
struct Samples {
  std::vector<Real> x, v, target, weight;
  /// The same in extended precision, v as a sum of two.
  struct Extended {
    long double v, v_low, target, weight;
  };
  std::vector<Extended> extended;
};

/// What coefficients are powers about, before a search for a better place: of an anchored piece its anchor.
double first_centre(const Piece& piece);

Samples sample(const Composite& composite, const Piece& piece, int count);

struct RoundedFit {
  float centre = 0;
  std::vector<float> c;
  float c0_low = 0;
  double error = 0;  ///< max weighted error on the samples
  float c1_low = 0;
};

/// Largest weighted error of a fit on the samples, and its x: of all samples, or of those at whose v the row
/// is asked for.
Found measure(const Samples& samples, const RoundedFit& fit,
              const std::function<bool(double v)>& asked_for = nullptr);

/// Error of the best real coefficients of that degree on the samples.
double minimax_level(const Samples& samples, const Piece& piece, int degree);

/// Fits `piece` to `degree`: fills lower_bound and minimax, and returns rounded fits, of several centres,
/// best first. Work and result are deterministic.
std::vector<RoundedFit> fit_piece(const Samples& samples, Piece& piece, int degree);

}  // namespace outgrad::approx
