// Searches the neighbours of rounded coefficients, from the leading one on, and fits the others again.
#include "approx/search/rounding.h"

#include "approx/search/remez.h"
#include "kernels/host/errors.h"

#include <boost/multiprecision/eigen.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace outgrad::approx {
namespace {

/// Centres tried around the nominal one, and how many of them are searched in depth. Among 2^17 some leave
/// the residuals of c0 and c1 both below about 1/350 ulp.
constexpr int kCentres = 1 << 17;
constexpr int kDeepCentres = 12;
/// A two-word row needs only c1's residual to be small, and such rows are many.
constexpr int kTwoWordCentres = 1 << 14, kTwoWordDeepCentres = 3;
/// Width of the beam: more changed no fit by over 1%.
constexpr size_t kBeam = 4;
/// Fits returned for a centre: a forward fit also has to round the 16-bit formats correctly, which takes some
/// choice.
constexpr size_t kReturned = 8;
/// The centre may move by this share of the piece's half-width: further out, |u| grows and with it the
/// rounding of Horner's steps.
constexpr double kCentreReach = 0.15;
/// Samples of the residual on which the search works; the exchange's result is measured on all.
constexpr size_t kSearchSamples = 128;
/// The search compares levels; 1/1000 is finer than what a neighbouring float changes. Settled cases need
/// under 30 exchanges.
constexpr double kSearchTolerance = 1e-3;
constexpr int kSearchRounds = 60;
/// Share of the half-width next to an anchor that is left to the final measurement and the certificate.
constexpr double kAnchorShadow = 0x1p-16;

/// What a polynomial that equals its target leaves of it: noise.
constexpr double kNothing = 1e-40;

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
  Eigen::VectorXd pending;  ///< corrections of the still real coefficients
  double level = 0;
};

/// What the leading coefficients have to be, and what is added to c1 as deployed.
struct Given {
  std::optional<float> c0, c1;
  float c1_low = 0;
};

/// Rounds the polynomial `real` about `centre`; `residual` is its weighted error at `u`. The best few, best
/// first.
std::vector<RoundedFit> round_coefficients(const std::vector<Real>& real, float centre,
                                           const std::vector<double>& u, const std::vector<double>& weight,
                                           const Eigen::VectorXd& residual, const Given& given) {
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
      const Real low = k == 1 ? Real(given.c1_low) : Real(0);
      const Real wanted = real[static_cast<size_t>(k)] + Real(from.pending[k]) - low;
      const float nearest = static_cast<float>(wanted);
      std::array<float, 3> choices{nearest, std::nextafter(nearest, -INFINITY),
                                   std::nextafter(nearest, INFINITY)};
      const std::optional<float>& only = k == 0 ? given.c0 : k == 1 ? given.c1 : std::nullopt;
      const size_t count = only ? 1 : choices.size();
      if (only) choices[0] = *only;
      for (size_t choice = 0; choice < count; ++choice) {
        Candidate to = from;
        to.c.push_back(choices[choice]);
        const double moved = static_cast<double>(Real(choices[choice]) + low - real[static_cast<size_t>(k)]);
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
    std::stable_sort(next.begin(), next.end(),
                     [](const Candidate& a, const Candidate& b) { return a.level < b.level; });
    const size_t kept = k + 1 == n ? kReturned : kBeam;
    if (next.size() > kept) next.resize(kept);
    beam = std::move(next);
  }
  std::vector<RoundedFit> fits;
  for (Candidate& c : beam) fits.push_back({centre, std::move(c.c), 0, c.level, given.c1_low});
  return fits;
}

/// A centre, and what rounding the two leading coefficients there costs at the piece's end.
struct Centre {
  float at;
  double loss;
};

/// A polynomial about a middle, in extended precision, which leaves 40 bits below an ulp of fp32.
struct AboutMiddle {
  std::vector<long double> c;

  explicit AboutMiddle(const std::vector<Real>& real) {
    for (const Real& r : real) c.push_back(r.convert_to<long double>());
  }
  /// p(u), p'(u)
  [[nodiscard]] std::pair<long double, long double> at(long double u) const {
    long double value = c.back(), slope = 0;
    for (size_t k = c.size() - 1; k-- > 0;) {
      slope = slope * u + value;
      value = value * u + c[k];
    }
    return {value, slope};
  }
};

/// How far from the nominal centre, in half-widths, the window of centres of a compensated row lies. At both
/// ends x has to be at least centre/2, and c0 + c1 u at least c0/2: then u, and c0 less c0 + c1 u, are exact
/// (Sterbenz), as evaluate_compensated wants them. Next to x = 0 the centre is nearer to the inner end for
/// that.
double window_of_compensated(const AboutMiddle& p, const Piece& piece, double half_width) {
  const auto is_exact = [&](double shift) {
    const double centre = piece.nominal_centre + shift * half_width;
    const auto [c0, c1] = p.at(shift * half_width);
    for (const double end : {piece.v_lo, piece.v_hi}) {
      if (end / centre < 0.5 || 1 + c1 * (end - centre) / c0 < 0.5L) return false;
    }
    return true;
  };
  constexpr double kShiftStep = 0.05;
  for (int steps = 0; steps <= 10; ++steps) {
    for (const double side : {-1.0, 1.0}) {
      const double shift = side * steps * kShiftStep;
      if (is_exact(shift - kCentreReach) && is_exact(shift + kCentreReach)) return shift;
    }
  }
  return 0;
}

/// Centres whose leading coefficients are almost floats, best first; of two-word rows only c1 has to be.
std::vector<Centre> best_centres(const std::vector<Real>& real, const Piece& piece, double nominal,
                                 double half_width) {
  const bool two_word = piece.two_word;
  const int tried = two_word ? kTwoWordCentres : kCentres;
  const AboutMiddle polynomial(real);
  const double reach = kCentreReach * half_width;
  const double shift =
      piece.compensated ? window_of_compensated(polynomial, piece, half_width) * half_width : 0;
  const auto to_float = [](long double x) { return static_cast<long double>(static_cast<float>(x)); };
  std::vector<Centre> centres;
  for (int j = -tried / 2; j <= tried / 2; ++j) {
    const auto at = static_cast<float>(nominal + shift + reach * j / (tried / 2.0));
    if (!centres.empty() && centres.back().at == at) continue;
    const auto [value, slope] = polynomial.at(static_cast<long double>(at) - nominal);
    const long double loss =
        (two_word ? 0 : std::abs(value - to_float(value))) + half_width * std::abs(slope - to_float(slope));
    centres.push_back({at, static_cast<double>(loss)});
  }
  const auto cheaper = [](const Centre& a, const Centre& b) {
    return a.loss < b.loss || (a.loss == b.loss && a.at < b.at);
  };
  const size_t kept = std::min<size_t>(two_word ? kTwoWordDeepCentres : kDeepCentres, centres.size());
  std::partial_sort(centres.begin(), centres.begin() + static_cast<std::ptrdiff_t>(kept), centres.end(),
                    cheaper);
  centres.resize(kept);
  return centres;
}

/// The real minimax problem of a piece, its argument scaled to about [-1, 1].
struct RealProblem {
  double nominal;
  int first;  ///< c0 of an anchored piece is given
  Real half_width;
  std::vector<size_t> used;  ///< samples taken
  RealMatrix columns;
  RealVector target;
};

RealProblem real_problem(const Samples& s, const Piece& piece, int degree) {
  RealProblem r;
  const size_t count = s.v.size();
  const auto [low, high] = std::minmax_element(s.v.begin(), s.v.end());
  r.half_width = (*high - *low) / 2;
  r.nominal = first_centre(piece);
  r.first = piece.anchor ? 1 : 0;
  // No coefficient moves the error next to an anchor: samples there would only make the exchange degenerate.
  for (size_t i = 0; i < count; ++i) {
    if (!piece.anchor || abs(s.v[i] - Real(r.nominal)) > r.half_width * kAnchorShadow) r.used.push_back(i);
  }
  r.columns.resize(static_cast<Eigen::Index>(r.used.size()), degree + 1 - r.first);
  r.target.resize(static_cast<Eigen::Index>(r.used.size()));
  for (Eigen::Index row = 0; row < r.columns.rows(); ++row) {
    const size_t i = r.used[static_cast<size_t>(row)];
    const Real u = (s.v[i] - Real(r.nominal)) / r.half_width;
    Real power = r.first == 0 ? s.weight[i] : Real(s.weight[i] * u);
    for (int k = 0; k <= degree - r.first; ++k, power *= u) r.columns(row, k) = power;
    r.target[row] = (s.target[i] - (piece.anchor ? Real(piece.anchor->c0) : Real(0))) * s.weight[i];
  }
  // A value of f so large that fp32 does not tell the row's ends apart, or one beyond numbers: the exchange
  // needs more samples than unknowns.
  const auto finite = [](const auto& m) {
    return std::all_of(m.data(), m.data() + m.size(), [](const Real& v) { return isfinite(v); });
  };
  if (r.columns.rows() <= r.columns.cols() || !finite(r.columns) || !finite(r.target)) {
    throw kernels::SpecError(
        fmt::format("row {} (v in [{:.9g}, {:.9g}]) has no values that can be told apart: f is too large or "
                    "too flat there to be fitted",
                    piece.row, piece.v_lo, piece.v_hi));
  }
  return r;
}

}  // namespace

double first_centre(const Piece& piece) {
  if (piece.anchor) return static_cast<double>(piece.anchor->centre);
  return piece.centre_is_0 ? 0 : piece.nominal_centre;
}

Samples sample(const Composite& composite, const Piece& piece, int count) {
  // Chebyshev points of the second kind in x; an even count avoids the exact middle, where a relative error
  // may be 0/0.
  std::vector<Real> arguments;
  const auto place = [&](int i) {
    return Real(0.5) - Real(0.5) * cos(boost::math::constants::pi<Real>() * i / (count - 1));
  };
  for (int i = 0; i < count; ++i) arguments.push_back(piece.x_lo + (piece.x_hi - piece.x_lo) * place(i));
  // A tail is long in x and short in the coordinate: there the maxima lie between points that are even in the
  // coordinate.
  if ((piece.left_tail || piece.right_tail) && piece.coordinate != Coordinate::argument) {
    const Real v_lo = composite.coordinate_at(piece.coordinate, piece.x_lo),
               v_hi = composite.coordinate_at(piece.coordinate, piece.x_hi);
    for (int i = 1; i + 1 < count; ++i) {
      const Real v = v_lo + (v_hi - v_lo) * place(i);
      const Real x =
          piece.coordinate == Coordinate::signed_root
              ? composite.argument_of_root(v)
              : composite.argument_of(v, piece.region == Region::core || piece.region == Region::right);
      if (x > piece.x_lo && x < piece.x_hi) arguments.push_back(x);
    }
    std::sort(arguments.begin(), arguments.end());
  }
  Samples s;
  for (const Real& x : arguments) {
    s.x.push_back(x);
    s.v.push_back(composite.coordinate_at(piece.coordinate, x));
    if (piece.target != Target::value_relative) {
      s.target.push_back(composite.gradient_at(x));
      const Real& g = s.target.back();
      s.weight.push_back(piece.target == Target::gradient || g == 0 ? Real(1) : Real(1 / abs(g)));
    } else {
      const Real f = composite.value_at(x) / piece.scale;
      s.target.push_back(f);
      s.weight.push_back(1 / abs(f));
    }
    const auto v = static_cast<long double>(s.v.back());
    s.extended.push_back({v, static_cast<long double>(Real(s.v.back() - Real(v))),
                          static_cast<long double>(s.target.back()),
                          static_cast<long double>(s.weight.back())});
  }
  return s;
}

Found measure(const Samples& s, const RoundedFit& fit, const std::function<bool(double v)>& asked_for) {
  const auto error_at = [&](size_t i) {
    const Real u = s.v[i] - Real(fit.centre);
    Real p = 0;
    for (size_t k = fit.c.size(); k-- > 0;) p = p * u + Real(fit.c[k]);
    p += Real(fit.c0_low) + Real(fit.c1_low) * u;
    return Real(abs(p - s.target[i]) * s.weight[i]);
  };
  // Extended precision tells which samples may have the largest error: only these few are worth the full one.
  // Each of Horner's steps rounds twice, and u to the power k is wrong by k times the three roundings of u.
  const long double unsure =
      static_cast<long double>(5 * fit.c.size() + 8) * std::numeric_limits<long double>::epsilon();
  std::vector<std::pair<size_t, long double>> most;
  long double largest = 0;  // at least
  for (size_t i = 0; i < s.v.size(); ++i) {
    if (asked_for && !asked_for(static_cast<double>(s.v[i]))) continue;
    const auto& [v, v_low, target, weight] = s.extended[i];
    const long double u = (v - static_cast<long double>(fit.centre)) + v_low;
    long double p = 0, size = 0;
    for (size_t k = fit.c.size(); k-- > 0;) {
      p = p * u + static_cast<long double>(fit.c[k]);
      size = size * std::abs(u) + std::abs(static_cast<long double>(fit.c[k]));
    }
    const long double low = fit.c0_low + static_cast<long double>(fit.c1_low) * u;
    const long double error = std::abs(p + low - target) * weight,
                      margin = unsure * (size + std::abs(low) + std::abs(target)) * weight;
    largest = std::max(largest, error - margin);
    most.emplace_back(i, error + margin);
  }
  Real worst = 0, at = 0;
  for (const auto& [i, upper] : most) {
    if (upper < largest) continue;
    const Real error = error_at(i);
    if (error > worst) worst = error, at = s.x[i];
  }
  return {static_cast<double>(worst), static_cast<double>(at)};
}

double minimax_level(const Samples& samples, const Piece& piece, int degree) {
  const RealProblem problem = real_problem(samples, piece, degree);
  constexpr double kRough = 1e-2;
  constexpr int kRounds = 1000;
  return static_cast<double>(
      exchange<Real>(problem.columns, problem.target, kRough, kRounds, kNothing).error);
}

std::vector<RoundedFit> fit_piece(const Samples& s, Piece& piece, int degree) {
  const RealProblem problem = real_problem(s, piece, degree);
  const double nominal = problem.nominal;
  const int first = problem.first;
  const Real& half_width = problem.half_width;
  const std::vector<size_t>& used = problem.used;
  const RealMatrix& columns = problem.columns;
  const RealVector& target = problem.target;
  const auto best = exchange<Real>(columns, target);
  if (!best.settled && best.error > kNothing)
    throw kernels::SpecError("undecided: the minimax exchange of row " + std::to_string(piece.row) +
                             " did not settle");
  piece.lower_bound = std::nextafter(static_cast<double>(best.level), 0.0);
  piece.minimax = static_cast<double>(best.error);
  std::vector<Real> real(static_cast<size_t>(degree) + 1);
  if (piece.anchor) real[0] = piece.anchor->c0;
  Real unscale = 1;
  for (int k = 0; k <= degree; ++k, unscale /= half_width) {
    if (k >= first) real[static_cast<size_t>(k)] = best.coefficients[k - first] * unscale;
  }
  piece.real_centre = nominal;
  piece.real = real;

  const std::vector<Centre> centres =
      piece.anchor || piece.centre_is_0 ? std::vector<Centre>{{static_cast<float>(nominal), 0}}
                                        : best_centres(real, piece, nominal, static_cast<double>(half_width));

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
      residual[static_cast<Eigen::Index>(i)] =
          static_cast<double>(error[static_cast<Eigen::Index>(picked[i])]);
      u.push_back(static_cast<double>(s.v[used[picked[i]]] - Real(centre.at)));
      weight.push_back(static_cast<double>(s.weight[used[picked[i]]]));
    }
    auto moved = shifted(real, Real(centre.at) - Real(nominal));
    // What c0 loses its low part makes up for.
    float c0_low = 0;
    if (piece.two_word && !piece.anchor) {
      const auto c0 = static_cast<float>(moved[0]);
      c0_low = static_cast<float>(moved[0] - Real(c0));
      moved[0] = c0;
    }
    Given given{.c0 = std::nullopt, .c1 = std::nullopt, .c1_low = piece.c1_low};
    if (piece.anchor) {
      given.c0 = piece.anchor->c0;
      given.c1 = piece.anchor->c1;
    } else if (piece.two_word) {
      given.c0 = static_cast<float>(moved[0]);
    }
    auto rounded = round_coefficients(moved, centre.at, u, weight, residual, given);
    for (RoundedFit& fit : rounded) fit.c0_low = c0_low;
    std::move(rounded.begin(), rounded.end(), std::back_inserter(fits));
    // Plain rounding too: an exchange that did not settle has misled the search.
    RoundedFit plain{centre.at, {}, c0_low, 0, piece.c1_low};
    for (size_t k = 0; k < moved.size(); ++k)
      plain.c.push_back(static_cast<float>(k == 1 ? Real(moved[k] - Real(piece.c1_low)) : moved[k]));
    if (given.c0) plain.c[0] = *given.c0;  // an anchor's may be -0
    if (given.c1) plain.c[1] = *given.c1;
    fits.push_back(std::move(plain));
  }
  for (RoundedFit& fit : fits) fit.error = measure(s, fit).error;
  std::stable_sort(fits.begin(), fits.end(),
                   [](const RoundedFit& a, const RoundedFit& b) { return a.error < b.error; });
  return fits;
}

}  // namespace outgrad::approx
