#include "approx/rounding.h"

#include "approx/constants.h"
#include "approx/remez.h"

#include <boost/multiprecision/eigen.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>

namespace outgrad::approx {
namespace {

/// Centres tried around the nominal one, and the share of them that is searched in depth. 2000 candidates leave both residuals of
/// c0 and c1 below about 1/50 ulp for some.
constexpr int kCentres = 2000;
constexpr int kDeepCentres = 12;
/// Width of the beam: more changed no fit by over 1%.
constexpr size_t kBeam = 4;
/// Fits returned for a centre: a forward fit also has to round the 16-bit formats correctly, which takes some choice.
constexpr size_t kReturned = 8;
/// The centre may move by this share of the piece's half-width: further out, |u| grows and with it the rounding of Horner's steps.
constexpr double kCentreReach = 0.15;
/// Samples of the residual on which the search works; the exchange's result is measured on all.
constexpr size_t kSearchSamples = 128;
/// The search compares levels; 1/1000 is finer than what a neighbouring float changes. Settled cases need under 30 exchanges.
constexpr double kSearchTolerance = 1e-3;
constexpr int kSearchRounds = 60;
/// Share of the half-width next to an anchor that is left to the final measurement and the certificate.
constexpr double kAnchorShadow = 0x1p-16;

using RealMatrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;
using RealVector = Eigen::Matrix<Real, Eigen::Dynamic, 1>;

/// p(u + shift) from p(u).
std::vector<Real> shifted(std::vector<Real> c, const Real& shift) {
  for (size_t i = 0; i + 1 < c.size(); ++i) {
    for (size_t k = c.size() - 1; k-- > i;) c[k] += shift * c[k + 1];
  }
  return c;
}

struct Candidate {
  std::vector<float> c;
  Eigen::VectorXd residual;  ///< weighted target minus what is fixed and the real minimax of the rest
  Eigen::VectorXd pending;   ///< corrections of the still real coefficients
  double level = 0;
};

/// Rounds the polynomial `real` about `centre`; `residual` is its weighted error at `u`. The best few, best first.
std::vector<RoundedFit> round_coefficients(const std::vector<Real>& real, float centre, const std::vector<double>& u, const std::vector<double>& weight,
                              const Eigen::VectorXd& residual, const std::optional<float>& c0) {
  const Eigen::Index rows = residual.size(), n = static_cast<Eigen::Index>(real.size());
  Eigen::MatrixXd columns(rows, n);
  for (Eigen::Index i = 0; i < rows; ++i) {
    double power = weight[static_cast<size_t>(i)];
    for (Eigen::Index k = 0; k < n; ++k, power *= u[static_cast<size_t>(i)]) columns(i, k) = power;
  }
  Eigen::VectorXd scale(n);  // columns of unit size: the exchange pivots on them
  for (Eigen::Index k = 0; k < n; ++k) scale[k] = columns.col(k).cwiseAbs().maxCoeff();
  std::vector<Candidate> beam{{{}, residual, Eigen::VectorXd::Zero(n), 0}};
  for (Eigen::Index k = 0; k < n; ++k) {
    std::vector<Candidate> next;
    for (const Candidate& from : beam) {
      const Real wanted = real[static_cast<size_t>(k)] + Real(from.pending[k]);
      const float nearest = static_cast<float>(wanted);
      std::array<float, 3> choices{nearest, std::nextafter(nearest, -INFINITY), std::nextafter(nearest, INFINITY)};
      const size_t count = k == 0 && c0 ? 1 : choices.size();
      if (count == 1) choices[0] = *c0;
      for (size_t choice = 0; choice < count; ++choice) {
        Candidate to = from;
        to.c.push_back(choices[choice]);
        const double moved = static_cast<double>(Real(choices[choice]) - real[static_cast<size_t>(k)]);
        to.residual -= columns.col(k) * moved;
        const Eigen::Index left = n - 1 - k;
        if (left > 0) {
          const Eigen::MatrixXd rest = columns.rightCols(left) * scale.tail(left).cwiseInverse().asDiagonal();
          const auto best = exchange<double>(rest, to.residual, kSearchTolerance, kSearchRounds);
          to.pending.tail(left) = best.coefficients.cwiseQuotient(scale.tail(left));
          to.level = best.error;
        } else {
          to.level = to.residual.cwiseAbs().maxCoeff();
        }
        next.push_back(std::move(to));
      }
    }
    std::stable_sort(next.begin(), next.end(), [](const Candidate& a, const Candidate& b) { return a.level < b.level; });
    const size_t kept = k + 1 == n ? kReturned : kBeam;
    if (next.size() > kept) next.resize(kept);
    beam = std::move(next);
  }
  std::vector<RoundedFit> fits;
  for (Candidate& c : beam) fits.push_back({centre, std::move(c.c), c.level});
  return fits;
}

}  // namespace

Samples sample(const Composite& composite, const Piece& piece, int count) {
  Samples s;
  for (int i = 0; i < count; ++i) {
    // Chebyshev points of the second kind in x; an even count avoids the exact middle, where a relative error may be 0/0.
    const Real place = Real(0.5) - Real(0.5) * cos(boost::math::constants::pi<Real>() * i / (count - 1));
    const Real x = piece.x_lo + (piece.x_hi - piece.x_lo) * place;
    s.v.push_back(composite.coordinate_at(piece.coordinate, x));
    if (piece.target == Target::gradient) {
      s.target.push_back(composite.gradient_at(x) + Real(piece.bend == 0 ? 0 : bent_by(piece.bend, piece.bend_radius, static_cast<double>(s.v.back()))));
      s.weight.emplace_back(1);
    } else {
      const Real f = composite.value_at(x) / piece.scale;
      s.target.push_back(f);
      s.weight.push_back(1 / abs(f));
    }
  }
  return s;
}

double measure(const Samples& s, const RoundedFit& fit) {
  Real worst = 0;
  for (size_t i = 0; i < s.v.size(); ++i) {
    const Real u = s.v[i] - Real(fit.centre);
    Real p = 0;
    for (size_t k = fit.c.size(); k-- > 0;) p = p * u + Real(fit.c[k]);
    worst = std::max<Real>(worst, abs(p - s.target[i]) * s.weight[i]);
  }
  return static_cast<double>(worst);
}

std::vector<RoundedFit> fit_piece(const Samples& s, Piece& piece, int degree) {
  const size_t count = s.v.size();
  const auto [low, high] = std::minmax_element(s.v.begin(), s.v.end());
  const Real half_width = (*high - *low) / 2;
  const double nominal = piece.anchor ? static_cast<double>(piece.anchor->centre) : piece.nominal_centre;
  const int first = piece.anchor ? 1 : 0;  // c0 of an anchored piece is given

  // No coefficient moves the error next to an anchor: samples there would only make the exchange degenerate.
  std::vector<size_t> used;
  for (size_t i = 0; i < count; ++i) {
    if (!piece.anchor || abs(s.v[i] - Real(nominal)) > half_width * kAnchorShadow) used.push_back(i);
  }

  // The real minimax polynomial about the nominal centre, its argument scaled to about [-1, 1].
  RealMatrix columns(static_cast<Eigen::Index>(used.size()), degree + 1 - first);
  RealVector target(static_cast<Eigen::Index>(used.size()));
  for (Eigen::Index row = 0; row < columns.rows(); ++row) {
    const size_t i = used[static_cast<size_t>(row)];
    const Real u = (s.v[i] - Real(nominal)) / half_width;
    Real power = first == 0 ? s.weight[i] : Real(s.weight[i] * u);
    for (int k = 0; k <= degree - first; ++k, power *= u) columns(row, k) = power;
    target[row] = (s.target[i] - (piece.anchor ? Real(piece.anchor->c0) : Real(0))) * s.weight[i];
  }
  const auto best = exchange<Real>(columns, target);
  if (!best.settled) throw std::runtime_error("undecided: the minimax exchange of row " + std::to_string(piece.row) + " did not settle");
  piece.lower_bound = std::nextafter(static_cast<double>(best.level), 0.0);
  piece.minimax = static_cast<double>(best.error);
  std::vector<Real> real(static_cast<size_t>(degree) + 1);
  if (piece.anchor) real[0] = piece.anchor->c0;
  Real unscale = 1;
  for (int k = 0; k <= degree; ++k, unscale /= half_width) {
    if (k >= first) real[static_cast<size_t>(k)] = best.coefficients[k - first] * unscale;
  }

  // Centres whose leading coefficients are almost floats.
  struct Centre {
    float at;
    double loss;
  };
  std::vector<Centre> centres;
  if (piece.anchor) {
    centres.push_back({piece.anchor->centre, 0});
  } else {
    const double reach = kCentreReach * static_cast<double>(half_width);
    for (int j = -kCentres / 2; j <= kCentres / 2; ++j) {
      const auto at = static_cast<float>(nominal + reach * j / (kCentres / 2.0));
      if (!centres.empty() && centres.back().at == at) continue;
      const auto moved = shifted(real, Real(at) - Real(nominal));
      Real loss = 0, arm = 1;
      for (size_t k = 0; k < 2; ++k, arm *= half_width) loss += arm * abs(moved[k] - Real(static_cast<float>(moved[k])));
      centres.push_back({at, static_cast<double>(loss)});
    }
    std::stable_sort(centres.begin(), centres.end(), [](const Centre& a, const Centre& b) { return a.loss < b.loss; });
    if (centres.size() > kDeepCentres) centres.resize(kDeepCentres);
  }

  // The residual of the real fit, once; a centre only changes the columns. All samples of the ends are kept.
  const size_t stride = std::max<size_t>(1, used.size() / kSearchSamples);
  std::vector<size_t> picked;
  for (size_t i = 0; i < used.size(); i += stride) picked.push_back(i);
  if (picked.back() != used.size() - 1) picked.push_back(used.size() - 1);
  const RealVector error = target - columns * best.coefficients;
  std::vector<RoundedFit> fits;
  for (const Centre& centre : centres) {
    Eigen::VectorXd residual(static_cast<Eigen::Index>(picked.size()));
    std::vector<double> u, weight;
    for (size_t i = 0; i < picked.size(); ++i) {
      residual[static_cast<Eigen::Index>(i)] = static_cast<double>(error[static_cast<Eigen::Index>(picked[i])]);
      u.push_back(static_cast<double>(s.v[used[picked[i]]] - Real(centre.at)));
      weight.push_back(static_cast<double>(s.weight[used[picked[i]]]));
    }
    const auto moved = shifted(real, Real(centre.at) - Real(nominal));
    auto rounded = round_coefficients(moved, centre.at, u, weight, residual, piece.anchor ? std::optional(piece.anchor->c0) : std::nullopt);
    std::move(rounded.begin(), rounded.end(), std::back_inserter(fits));
  }
  for (RoundedFit& fit : fits) fit.error = measure(s, fit);
  std::stable_sort(fits.begin(), fits.end(), [](const RoundedFit& a, const RoundedFit& b) { return a.error < b.error; });
  return fits;
}

}  // namespace outgrad::approx
