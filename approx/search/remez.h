/// Best uniform approximation of samples by a linear combination of columns, by the single-exchange
/// algorithm.
///
/// First algorithm of Remez in Stiefel's form (E. Stiefel, "Ueber diskrete und lineare
/// Tschebyscheff-Approximationen", Numer. Math. 1, 1959): the level of the reference grows at every exchange,
/// with no Haar condition, so weights that vanish and missing powers are allowed. By de la Vallee-Poussin the
/// level of any reference is a lower bound of the error that any coefficients can reach.
#pragma once

#include <Eigen/Core>

namespace outgrad::approx {

template <class Scalar>
struct Minimax {
  Eigen::Matrix<Scalar, Eigen::Dynamic, 1> coefficients;
  Scalar level;  ///< error that no coefficients can undercut on these samples
  Scalar error;  ///< error reached, max over the samples
  bool settled;  ///< error and level agree to the tolerance asked for
};

/// Minimises max_i |b_i - (A c)_i|. `columns` is samples x coefficients, with more samples than coefficients.
/// Where rows of `columns` all but vanish the optimum is degenerate and the exchange may cycle: after
/// `rounds` exchanges the best of them is returned, not settled; its level is a lower bound all the same. An
/// error up to `nothing` is as good as none: where the target is such a combination, what is left is noise,
/// which has no level to settle at. Scalar is double, long double or Real.
template <class Scalar>
Minimax<Scalar> exchange(const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>& columns,
                         const Eigen::Matrix<Scalar, Eigen::Dynamic, 1>& target, double tolerance = 1e-6,
                         int rounds = 1000, double nothing = 0);

}  // namespace outgrad::approx
