// The single exchange, see remez.h.
#include "approx/search/remez.h"

#include <Eigen/LU>
#include <algorithm>
#include <boost/multiprecision/eigen.hpp>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "approx/function/scalars.h"

namespace outgrad::approx {
namespace {

// On given columns and target.
template <class Scalar>
class Exchange {
 public:
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
  using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

  Exchange(const Matrix& columns, const Vector& target)
      : columns_(columns), target_(target), n_(columns.cols()), sign_(n_ + 1), system_(n_ + 1, n_ + 1),
        side_(n_ + 1), residual_(target) {
    const Eigen::Index samples = columns.rows();
    if (samples <= n_) throw std::logic_error("exchange: no more samples than coefficients");
    // Start from the extrema of a Chebyshev polynomial, in sample order.
    for (Eigen::Index j = 0; j <= n_; ++j) {
      const double place =
          n_ == 0
              ? 0.5
              : 0.5 * (1 - std::cos(3.141592653589793 * static_cast<double>(j) / static_cast<double>(n_)));
      // all different
      const Eigen::Index least = j == 0 ? 0 : reference_.back() + 1, most = samples - 1 - (n_ - j);
      reference_.push_back(
          std::clamp(static_cast<Eigen::Index>(place * static_cast<double>(samples - 1) + 0.5), least, most));
      sign_[j] = j % 2 == 0 ? Scalar(1) : Scalar(-1);
    }
  }

  /// The coefficients that level the error on the reference; its level, and the error over all samples.
  Minimax<Scalar> levelled() {
    using std::abs;
    for (Eigen::Index j = 0; j <= n_; ++j) {
      const Eigen::Index i = reference_[static_cast<size_t>(j)];
      system_.row(j).head(n_) = columns_.row(i);
      side_[j] = target_[i];
    }
    // lambda: the one linear relation between the reference's rows; its signs are those of the levelled
    // residuals.
    if (n_ > 0) {
      system_.col(n_) = sign_;
      const Vector lambda = system_.transpose().fullPivLu().solve(last_unit());
      const Scalar orient = lambda.dot(side_) < Scalar(0) ? Scalar(-1) : Scalar(1);
      for (Eigen::Index j = 0; j <= n_; ++j)
        sign_[j] = lambda[j] * orient < Scalar(0) ? Scalar(-1) : Scalar(1);
    } else {
      sign_[0] = side_[0] < Scalar(0) ? Scalar(-1) : Scalar(1);
    }
    system_.col(n_) = sign_;
    const Vector solution = system_.fullPivLu().solve(side_);
    if (n_ > 0) residual_ = target_ - columns_ * solution.head(n_);
    worst_ = 0;
    Scalar error = Scalar(0);
    for (Eigen::Index i = 0; i < residual_.size(); ++i) {
      const Scalar r = abs(residual_[i]);
      if (r > error) {
        error = r;
        worst_ = i;
      }
    }
    return {solution.head(n_), solution[n_], error, false};
  }

  /// The worst sample enters by the ratio test: it takes the place that keeps every sign of the relation.
  /// False where there is none.
  bool advance() {
    const Scalar tau = residual_[worst_] < Scalar(0) ? Scalar(-1) : Scalar(1);
    Vector entering = Vector::Zero(n_ + 1);
    if (n_ > 0) entering.head(n_) = tau * columns_.row(worst_).transpose();
    const auto dual = system_.transpose().fullPivLu();
    const Vector lambda = dual.solve(last_unit()), alpha = dual.solve(entering);
    Eigen::Index leaving = -1;
    Scalar largest = Scalar(0);
    for (Eigen::Index j = 0; j <= n_; ++j) {
      if (lambda[j] == Scalar(0)) continue;
      const Scalar ratio = alpha[j] / lambda[j];
      if (leaving < 0 || ratio > largest) {
        largest = ratio;
        leaving = j;
      }
    }
    if (leaving < 0) return false;
    reference_[static_cast<size_t>(leaving)] = worst_;
    sign_[leaving] = tau;
    return true;
  }

 private:
  [[nodiscard]] Vector last_unit() const { return Vector::Unit(n_ + 1, n_); }

  const Matrix& columns_;
  const Vector& target_;
  const Eigen::Index n_;
  std::vector<Eigen::Index> reference_;
  Vector sign_;
  Matrix system_;
  Vector side_, residual_;
  Eigen::Index worst_ = 0;
};

}  // namespace

template <class Scalar>
Minimax<Scalar> exchange(const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>& columns,
                         const Eigen::Matrix<Scalar, Eigen::Dynamic, 1>& target, double tolerance, int rounds,
                         double nothing) {
  Exchange<Scalar> search(columns, target);
  Minimax<Scalar> best{Exchange<Scalar>::Vector::Zero(columns.cols()), Scalar(0), Scalar(0), false};
  for (int round = 0; round < rounds; ++round) {
    Minimax<Scalar> now = search.levelled();
    now.settled = now.error <= now.level * Scalar(1 + tolerance) || now.error <= Scalar(nothing);
    const bool settled = now.settled;
    const Scalar proven = now.level > best.level ? now.level : best.level;
    if (round == 0 || now.error < best.error) best = std::move(now);
    best.level = proven;
    if (settled || !search.advance()) break;
  }
  return best;
}

template Minimax<double> exchange(const Eigen::MatrixXd&, const Eigen::VectorXd&, double, int, double);
template Minimax<long double> exchange(const Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic>&,
                                       const Eigen::Matrix<long double, Eigen::Dynamic, 1>&, double, int,
                                       double);
template Minimax<Real> exchange(const Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>&,
                                const Eigen::Matrix<Real, Eigen::Dynamic, 1>&, double, int, double);

}  // namespace outgrad::approx
