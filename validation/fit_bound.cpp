// Enclosures of E on the real line and bounds of E on complex discs, handed to bound_sup_norm cell by cell.
#include "validation/fit_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "validation/gelu_interval.h"

namespace outgrad::validation {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Beyond it |f'| < 2^-170 and |f| < 2^-178: the tails are bounded there, not interpolated.
constexpr double kFarLeft = -16;

Interval polynomial(std::span<const float> coefficients, const Interval& u) {
  Interval p = static_cast<double>(coefficients.back());
  for (size_t k = coefficients.size() - 1; k-- > 0;) p = p * u + static_cast<double>(coefficients[k]);
  return p;
}

// sum |c_k| u^k for u >= 0: bounds |p| on the disc of that radius.
Interval majorant(std::span<const float> coefficients, const Interval& u) {
  Interval p = 0;
  for (size_t k = coefficients.size(); k-- > 0;) p = p * u + static_cast<double>(std::fabs(coefficients[k]));
  return p;
}

struct Row {
  double centre;
  std::span<const float> coefficients;

  Row(std::span<const float> words, int degree) : centre(words[0]), coefficients(words.subspan(1, static_cast<size_t>(degree) + 1)) {}
  Interval value(const Interval& v) const { return polynomial(coefficients, v - centre); }
};

// sup |f'(z)| over the disc, by the mean value of f''.
Interval d1_over_disc(double middle, double radius) {
  return (symmetric(Interval(gelu_d1(middle).magnitude())) + symmetric(gelu_d2_over_disc(middle, radius) * radius)).keep_upper();
}

// sup |s(z) - centre| over the disc, +inf unless s is shown to be analytic there.
//   (i) |f(z) - f(m)| <= R sup |f'| < f(m) - y* leaves f(z) - y* in a disc without 0; with w the ratio, |s(z)/s(m) - 1| <= 1 - sqrt(1 - w).
//  (ii) f(z) - y* = (z - x*)^2 h(z), h(z) = int_0^1 (1 - v) f''(x* + v (z - x*)) dv, so |h(z) - f''(x*)/2| <= sup |f'''| |z - x*| / 6 over
//       the disc about x* that holds ours; if that is less than f''(x*)/2, sqrt(h) is analytic.
double root_distance_over_disc(double middle, double radius, double centre) {
  const Interval t = gelu(middle) - y_star();
  const Interval ratio = d1_over_disc(middle, radius) * radius / t;
  if (t.positive() && ratio.upper() < 1) {
    const Interval s = signed_root(middle);
    const Interval spread = s * symmetric(Interval(1) - sqrt(Interval(1) - ratio));
    return ((s - centre) + spread).magnitude();
  }
  const Interval reach = Interval((Interval(middle) - x_star()).magnitude()) + radius;
  const Interval modulus = reach + Interval(x_star().magnitude());
  const Interval d3 = density_over_disc(x_star().middle(), (reach + 0x1p-40).upper()) * modulus * (square(modulus) + 4);
  const Interval h = gelu_d2(x_star()) * 0.5, deviation = d3 * reach / 6;
  if (!certainly_less(deviation, h)) return kInfinity;
  return (reach * sqrt(h + deviation) + std::fabs(centre)).upper();
}

AnalyticFunction backward_error(const Row& row, bool left) {
  if (left) {
    return {[row](const Interval& x) { return row.value(gelu(x)) - gelu_d1(x); },
            [row](double middle, double radius) {
              const Interval d1 = d1_over_disc(middle, radius);
              const Interval u = Interval((gelu(middle) - row.centre).magnitude()) + d1 * radius;
              return (majorant(row.coefficients, u) + d1).upper();
            }};
  }
  return {[row](const Interval& x) { return row.value(signed_root(x)) - gelu_d1(x); },
          [row](double middle, double radius) {
            const double u = root_distance_over_disc(middle, radius, row.centre);
            return std::isfinite(u) ? (majorant(row.coefficients, u) + d1_over_disc(middle, radius)).upper() : kInfinity;
          }};
}

// p(x) scale / f(x) - 1; where the cell's centre is 0 and c0 = 0, the common zero of p and f is divided out.
AnalyticFunction forward_error(const Row& row, double scale) {
  const bool through_zero = row.centre == 0 && row.coefficients[0] == 0;
  const auto coefficients = through_zero ? row.coefficients.subspan(1) : row.coefficients;
  return {[=](const Interval& x) {
            const Interval p = polynomial(coefficients, x - row.centre) * scale;
            return p / (through_zero ? normal_cdf(x) : gelu(x)) - 1;
          },
          [=](double middle, double radius) {
            const Interval u = Interval((Interval(middle) - row.centre).magnitude()) + radius;
            // |Phi(z)| >= Phi(m) - R sup |phi|, |f(z)| >= (|m| - R) times that.
            const Interval cdf = normal_cdf(middle) - density_over_disc(middle, radius) * radius;
            const Interval f = through_zero ? cdf : cdf * (Interval(std::fabs(middle)) - radius);
            if (!cdf.positive() || !f.positive()) return kInfinity;
            return (majorant(coefficients, u) * scale / f + 1).upper();
          }};
}

// Adds a bound that holds as it stands: `value` encloses E over a whole tail, whose points all lie on the far side of x.
void add_tail(SupNorm& result, const Interval& value, double x, double claim) {
  result.proven = std::max(result.proven, value.magnitude());
  if (value.mignitude() > result.observed) result.observed = value.mignitude(), result.at = x;
  if (value.mignitude() > claim) {
    result.verdict = Verdict::Violated;
  } else if (value.magnitude() > claim && result.verdict == Verdict::Holds) {
    result.verdict = Verdict::Undecided;
    result.at = x;
  }
}

void merge(SupNorm& result, const SupNorm& part) {
  const auto rank = [](Verdict v) { return v == Verdict::Holds ? 0 : v == Verdict::Undecided ? 1 : 2; };
  const bool worse = rank(part.verdict) > rank(result.verdict);
  if (worse) result.verdict = part.verdict;
  if (worse || (rank(part.verdict) == rank(result.verdict) && part.observed > result.observed)) result.at = part.at;
  result.proven = std::max(result.proven, part.proven);
  result.observed = std::max(result.observed, part.observed);
}

// |p| <= claim over a range of v beyond the infimum of s (y > 0 in the shifted coordinate), where g is continued by 0.
void add_beyond_infimum(SupNorm& result, const Row& row, double low, double high, double claim) {
  constexpr int kPieces = 1024;  // the range is a fraction of a cell, so each piece moves p by far less than a claim
  for (int i = 0; i < kPieces; ++i) {
    const double a = low + (high - low) * i / kPieces, b = std::nextafter(low + (high - low) * (i + 1) / kPieces, kInfinity);
    add_tail(result, row.value(Interval(a, b)), kFarLeft, claim);
  }
}

template <class Header>
Finding prove_all(const Header& h, double claim, const std::vector<Cell>& cells, const char* quantity) {
  Finding finding{"A", Verdict::Holds, claim, 0, "", {}};
  std::vector<SupNorm> parts(cells.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < cells.size(); ++i) parts[i] = prove_cell(h, cells[i], claim);
  SupNorm total;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    const SupNorm& part = parts[i];
    const bool first_failure = part.verdict != Verdict::Holds && total.verdict != Verdict::Violated;
    if (first_failure && (total.verdict == Verdict::Holds || part.verdict == Verdict::Violated)) {
      finding.why = fmt::format("row {} ({} in [{:a}, {:a}]): {} {:.6g} at x = {:.9g}", cell.row, cell.left ? "left" : "core", cell.low, cell.high,
                                quantity, part.observed, part.at);
      if (part.verdict == Verdict::Undecided) finding.why += ", not decided";
      finding.witness = Witness{part.at, part.observed, claim};
    }
    merge(total, part);
  }
  finding.verdict = total.verdict;
  finding.proven = total.proven;
  if (total.verdict == Verdict::Holds) finding.why = fmt::format("{} cells, largest at x = {:.6g}", cells.size(), total.at);
  return finding;
}

}  // namespace

SupNorm prove_cell(const BackwardHeader& h, const Cell& cell, double claim) {
  const Row row(h.table.row(cell.row), h.degree);
  const AnalyticFunction error = backward_error(row, cell.left);
  SupNorm result;
  double x_low, x_high;
  if (cell.left) {
    // f falls from 0- at -inf to y*: v = f(x) in [low, high] is an x between f^-1(high) and f^-1(low). The low end is moved to the
    // next float, so that no real y between two cells is left out.
    const auto argument = [](double y) { return inverse_signed_root(-sqrt(Interval(y) - y_star())); };
    x_low = cell.high == 0 ? -kInfinity : argument(cell.high).lower();
    x_high = argument(std::nextafter(cell.low, -1.0f)).upper();
    if (x_low < kFarLeft) add_tail(result, row.value(gelu(kFarLeft) * Interval(0, 1)) + symmetric(gelu_d1(kFarLeft)), kFarLeft, claim);
  } else {
    const auto widened = [](double s, double outward) { return s * (1 + (s * outward > 0 ? kRootRounding : -kRootRounding)); };
    const bool clamped_low = !h.has_left && cell.low == h.s_min, clamped_high = cell.high == h.s_max;
    const double s_low = clamped_low ? static_cast<double>(cell.low) : widened(cell.low, -1);
    const double s_high = clamped_high ? static_cast<double>(cell.high) : widened(cell.high, 1);
    x_low = inverse_signed_root(s_low).lower();
    x_high = inverse_signed_root(s_high).upper();
    const double root_two_above = std::nextafter(std::sqrt(2.0), 2.0);
    if (clamped_high) {
      // From sqrt 2 on f' falls to 1, so g over s > s_max lies in [1, g(s_max)].
      const Interval g = x_high > root_two_above ? hull(gelu_d1(x_high), 1) : Interval::whole_line();
      add_tail(result, row.value(s_high) - g, x_high, claim);
    }
    if (x_low < kFarLeft) {
      const double infimum = s_infimum().lower();
      if (s_low < infimum) add_beyond_infimum(result, row, s_low, s_infimum().upper(), claim);
      add_tail(result, row.value(hull(s_infimum(), signed_root(kFarLeft))) + symmetric(gelu_d1(kFarLeft)), kFarLeft, claim);
    } else if (clamped_low) {
      // Left of -sqrt 2 f' rises to 0 as x falls, so g over s < s_min lies in [g(s_min), 0].
      const Interval g = x_low < -root_two_above ? hull(gelu_d1(x_low), 0) : Interval::whole_line();
      add_tail(result, row.value(s_low) - g, x_low, claim);
    }
  }
  if (std::max(x_low, kFarLeft) < x_high) merge(result, bound_sup_norm(error, std::max(x_low, kFarLeft), x_high, claim));
  return result;
}

SupNorm prove_cell(const ForwardHeader& h, const Cell& cell, double claim) {
  const std::span<const float> words = cell.left ? h.tail.row(cell.row) : h.table.row(cell.row);
  const int degree = cell.left ? h.tail_degree : h.degree;
  const double scale = cell.left ? words[degree + 2] : 1.0;
  return bound_sup_norm(forward_error(Row(words, degree), scale), cell.low, cell.high, claim);
}

Finding prove_fit(const BackwardHeader& h, double claim) { return prove_all(h, claim, backward_cells(h), "abs(p - g) >="); }

Finding prove_fit(const ForwardHeader& h, double claim) { return prove_all(h, claim, forward_cells(h), "abs(p / f - 1) >="); }

}  // namespace outgrad::validation
