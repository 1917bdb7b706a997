/// Best uniform approximation of samples by a linear combination of columns, by the single-exchange
/// algorithm.
///
/// First algorithm of Remez in Stiefel's form (E. Stiefel, "Ueber diskrete und lineare
/// Tschebyscheff-Approximationen", Numer. Math. 1, 1959): the level of the reference grows at every exchange,
/// with no Haar condition, so weights that vanish and missing powers are allowed. By de la Vallee-Poussin the
/// level of any reference is a lower bound of the error that any coefficients can reach.
#pragma once

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

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
/// which has no level to settle at.
template <class Scalar>
Minimax<Scalar> exchange(const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>& columns,
                         const Eigen::Matrix<Scalar, Eigen::Dynamic, 1>& target, double tolerance = 1e-6,
                         int rounds = 1000, double nothing = 0) {
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
  using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
  using std::abs;
  const Eigen::Index samples = columns.rows(), n = columns.cols();
  if (samples <= n) throw std::logic_error("exchange: no more samples than coefficients");
  // Start from the extrema of a Chebyshev polynomial, in sample order.
  std::vector<Eigen::Index> reference(static_cast<size_t>(n + 1));
  for (Eigen::Index j = 0; j <= n; ++j) {
    const double place =
        n == 0 ? 0.5
               : 0.5 * (1 - std::cos(3.141592653589793 * static_cast<double>(j) / static_cast<double>(n)));
    // all different
    const Eigen::Index least = j == 0 ? 0 : reference[static_cast<size_t>(j) - 1] + 1,
                       most = samples - 1 - (n - j);
    reference[static_cast<size_t>(j)] =
        std::clamp(static_cast<Eigen::Index>(place * static_cast<double>(samples - 1) + 0.5), least, most);
  }
  Vector sign(n + 1);
  for (Eigen::Index j = 0; j <= n; ++j) sign[j] = j % 2 == 0 ? Scalar(1) : Scalar(-1);
  Matrix system(n + 1, n + 1);
  Vector side(n + 1);
  Minimax<Scalar> best{Vector::Zero(n), Scalar(0), Scalar(0), false};
  for (int round = 0; round < rounds; ++round) {
    for (Eigen::Index j = 0; j <= n; ++j) {
      const Eigen::Index i = reference[static_cast<size_t>(j)];
      system.row(j).head(n) = columns.row(i);
      side[j] = target[i];
    }
    // lambda: the one linear relation between the reference's rows; its signs are those of the levelled
    // residuals.
    if (n > 0) {
      system.col(n) = sign;
      Vector last = Vector::Zero(n + 1);
      last[n] = Scalar(1);
      const Vector lambda = system.transpose().fullPivLu().solve(last);
      const Scalar level = lambda.dot(side);
      const Scalar orient = level < Scalar(0) ? Scalar(-1) : Scalar(1);
      for (Eigen::Index j = 0; j <= n; ++j) sign[j] = lambda[j] * orient < Scalar(0) ? Scalar(-1) : Scalar(1);
    } else {
      sign[0] = side[0] < Scalar(0) ? Scalar(-1) : Scalar(1);
    }
    system.col(n) = sign;
    const auto lu = system.fullPivLu();
    const Vector solution = lu.solve(side);
    const Scalar level = solution[n];
    const Vector residual = n > 0 ? Vector(target - columns * solution.head(n)) : target;
    Eigen::Index worst = 0;
    Scalar error = Scalar(0);
    for (Eigen::Index i = 0; i < samples; ++i) {
      const Scalar r = abs(residual[i]);
      if (r > error) {
        error = r;
        worst = i;
      }
    }
    const bool settled = error <= level * Scalar(1 + tolerance) || error <= Scalar(nothing);
    const Scalar proven = level > best.level ? level : best.level;
    if (round == 0 || error < best.error) best = {solution.head(n), level, error, settled};
    best.level = proven;
    if (settled) return best;
    // Exchange by the ratio test: the new sample takes the place that keeps every sign of the relation.
    const Scalar tau = residual[worst] < Scalar(0) ? Scalar(-1) : Scalar(1);
    Vector entering = Vector::Zero(n + 1), unit = Vector::Zero(n + 1);
    if (n > 0) entering.head(n) = tau * columns.row(worst).transpose();
    unit[n] = Scalar(1);
    const auto dual = system.transpose().fullPivLu();
    const Vector lambda = dual.solve(unit), alpha = dual.solve(entering);
    Eigen::Index leaving = -1;
    Scalar largest = Scalar(0);
    for (Eigen::Index j = 0; j <= n; ++j) {
      if (lambda[j] == Scalar(0)) continue;
      const Scalar ratio = alpha[j] / lambda[j];
      if (leaving < 0 || ratio > largest) {
        largest = ratio;
        leaving = j;
      }
    }
    if (leaving < 0) break;
    reference[static_cast<size_t>(leaving)] = worst;
    sign[leaving] = tau;
  }
  return best;
}

}  // namespace outgrad::approx
