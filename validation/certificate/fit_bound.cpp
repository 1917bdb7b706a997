// Enclosures of E on the real line and bounds of E on complex discs, handed to bound_sup_norm cell by cell.
#include "validation/certificate/fit_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/support/random.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

// What functions were at the arguments of earlier proofs: a row is proven against the header's claim and its
// own, and a damaged header has most of its rows in common with the sound one. They take most of the time, so
// the last of them are kept.
class Earlier {
 public:
  using Values = Derivatives<Interval, 1>;
  enum class Kind { value, derivatives, inverse };

  /// compute() of x, a function of `owner`: an activation or a part of one, for those are never destroyed
  /// (activation_of), and another at the same address would be given this one's values.
  template <class Compute>
  static Values at(Kind kind, const void* owner, const Interval& x, const Compute& compute) {
    static std::array<Earlier, 64> shelves;
    const Key key{kind, owner, x.lower(), x.upper()};
    Earlier& shelf = shelves[key.hash() % shelves.size()];
    {
      const std::lock_guard lock(shelf.mutex_);
      const auto found = shelf.kept_.find(key);
      if (found != shelf.kept_.end() && found->second.first.identical(x)) return found->second.second;
    }
    const Values values = compute();
    const std::lock_guard lock(shelf.mutex_);
    constexpr size_t kMost = 1024;  // of half a kilobyte, on each shelf
    if (shelf.kept_.size() == kMost) shelf.kept_.clear();
    shelf.kept_.insert_or_assign(key, std::pair(x, values));
    return values;
  }

 private:
  struct Key {
    Kind kind;
    const void* owner;
    double lower, upper;  // of the argument; its further digits are compared
    bool operator==(const Key&) const = default;
    size_t hash() const {
      std::uint64_t state = std::bit_cast<std::uint64_t>(lower) ^ 31 * std::bit_cast<std::uint64_t>(upper);
      return kernels::next_random(state);
    }
  };
  struct Hash {
    size_t operator()(const Key& key) const { return key.hash() / 64; }
  };
  std::mutex mutex_;
  std::unordered_map<Key, std::pair<Interval, Values>, Hash> kept_;
};

Earlier::Values at_point(const Function& f, const Interval& x) {
  return Earlier::at(Earlier::Kind::derivatives, &f, x, [&] { return f.at<1>(x); });
}
Interval value_at_point(const Function& f, const Interval& x) {
  return Earlier::at(Earlier::Kind::value, &f, x, [&] { return Earlier::Values{f.at<0>(x)[0], 0}; })[0];
}
Interval argument(const Activation& activation, const Interval& s) {
  return Earlier::at(Earlier::Kind::inverse, &activation, s,
                     [&] { return Earlier::Values{activation.inverse_signed_root(s), 0}; })[0];
}

// Coefficients are floats, or Intervals that hold sums of floats.
template <class Coefficients>
Interval polynomial(const Coefficients& coefficients, const Interval& u) {
  Interval p = coefficients.back();
  for (size_t k = coefficients.size() - 1; k-- > 0;) p = p * u + coefficients[k];
  return p;
}

// sum |c_k| u^k for u >= 0: bounds |p| on the disc of that radius.
template <class Coefficients>
Interval majorant(const Coefficients& coefficients, const Interval& u) {
  Interval p = 0;
  for (size_t k = coefficients.size(); k-- > 0;) p = p * u + absolute(Interval(coefficients[k]));
  return p;
}

struct Row {
  double centre;
  std::span<const float> coefficients;
  double low_part;  // of the first of them

  bool relative;  // what is bounded is |p/g - 1|

  Row(std::span<const float> words, int degree, bool centred = true, bool two_word = false,
      bool relative_error = false)
      : centre(centred ? words[0] : 0.0f), coefficients(words.subspan(1, static_cast<size_t>(degree) + 1)),
        low_part(two_word ? words[static_cast<size_t>(degree) + 2] : 0.0f), relative(relative_error) {}
  Interval value(const Interval& v) const { return polynomial(coefficients, v - centre) + low_part; }
  Interval error(const Interval& v, const Interval& g) const {
    return relative ? value(v) / g - 1 : value(v) - g;
  }
  Interval bound_over(const Interval& distance) const {
    return majorant(coefficients, distance) + std::fabs(low_part);
  }
};

// What the bounds on one disc are made of: f and f' at its middle, and sup |f'|, |f''|, |f'''| over it, each
// the smaller of the direct enclosure and the mean value's.
struct Disc {
  double middle, radius;
  Interval f, d1;
  double sup_d1, sup_d2, sup_d3;

  Disc(const Function& function, double m, double r) : middle(m), radius(r) {
    const auto at_middle = function.at<2>(Interval(m));
    f = at_middle[0], d1 = at_middle[1];
    const std::array<double, 4> sup = function.over_disc(m, r);
    const auto by_mean = [&](const Interval& v, double slope) {
      return (Interval(v.magnitude()) + Interval(slope) * r).upper();
    };
    sup_d3 = sup[3];
    sup_d2 = least(sup[2], by_mean(at_middle[2], sup_d3));
    sup_d1 = least(sup[1], by_mean(d1, sup_d2));
  }
  static double least(double v, double w) { return v < w ? v : w < kInfinity ? w : kInfinity; }
  bool analytic() const { return std::isfinite(sup_d1) && std::isfinite(f.magnitude()); }
};

// sup |s(z) - centre| over the disc, +inf unless s is shown to be analytic there.
//   (i) |f(z) - f(m)| <= R sup |f'| < f(m) - y* leaves f(z) - y* in a disc without 0; with w the ratio,
//   |s(z)/s(m) - 1| <= 1 - sqrt(1 - w).
//  (ii) f(z) - y* = (z - x*)^2 h(z), h(z) = int_0^1 (1 - v) f''(x* + v (z - x*)) dv, so |h(z) - f''(x*)/2| <=
// sup |f'''| |z - x*| / 6 over
//       the disc about x* that holds ours; if that is less than f''(x*)/2, sqrt(h) is analytic.
double root_distance(const Activation& activation, const Disc& disc, double centre) {
  const Interval t = disc.f - activation.y_star();
  const Interval ratio = Interval(disc.sup_d1) * disc.radius / t;
  if (t.positive() && ratio.upper() < 1) {
    const Interval s = activation.signed_root(disc.middle, disc.f);
    const Interval spread = s * symmetric(Interval(1) - sqrt(Interval(1) - ratio));
    return ((s - centre) + spread).magnitude();
  }
  const Interval& x_star = activation.x_star();
  const Interval reach = Interval((Interval(disc.middle) - x_star).magnitude()) + disc.radius;
  const double d3 = activation.only().f.over_disc(x_star.middle(), (reach + 0x1p-40).upper())[3];
  if (!std::isfinite(d3)) return kInfinity;
  const Interval h = activation.only().f.at<2>(x_star)[2] * 0.5, deviation = Interval(d3) * reach / 6;
  if (!certainly_less(deviation, h)) return kInfinity;
  return (reach * sqrt(h + deviation) + std::fabs(centre)).upper();
}

// A lower bound of |f'| over the disc, 0 if there is none.
double least_slope(const Disc& disc) {
  return std::max((Interval(disc.d1.mignitude()) - Interval(disc.sup_d2) * disc.radius).lower(), 0.0);
}

// A lower bound of |f'/s| over the disc, 0 if there is none: away from x* of both apart; next to it f' = (z -
// x*) k(z), where k is within sup |f'''| |z - x*| / 2 of f''(x*), and s^2 = (z - x*)^2 h(z) as in
// root_distance.
double least_slope_over_root(const Activation& activation, const Disc& disc) {
  const double root = root_distance(activation, disc, 0), away = least_slope(disc);
  if (std::isfinite(root) && away > 0) return (Interval(away) / root).lower();
  const Interval& x_star = activation.x_star();
  const Interval reach = Interval((Interval(disc.middle) - x_star).magnitude()) + disc.radius;
  const double d3 = activation.only().f.over_disc(x_star.middle(), (reach + 0x1p-40).upper())[3];
  if (!std::isfinite(d3)) return 0;
  const Interval d2 = activation.only().f.at<2>(x_star)[2];
  const Interval k = d2 - Interval(d3) * reach / 2, h = d2 * 0.5 + Interval(d3) * reach / 6;
  return k.positive() ? (k / sqrt(h)).lower() : 0;
}

// E(x) = p(f(x)) - f'(x), or p(s(x)) - f'(x); relative: over f'(x), whose zero at x* is then p's as well.
AnalyticFunction backward_error(const Activation& activation, const Function& f, const Row& row,
                                bool of_output) {
  return {[&activation, &f, row, of_output](const Interval& x) {
            const auto d = at_point(f, x);
            return row.error(of_output ? d[0] : activation.signed_root(x, d[0]), d[1]);
          },
          [&activation, &f, row, of_output](double middle, double radius) {
            const Disc disc(f, middle, radius);
            if (!disc.analytic()) return kInfinity;
            const double u =
                of_output
                    ? (Interval((disc.f - row.centre).magnitude()) + Interval(disc.sup_d1) * radius).upper()
                    : root_distance(activation, disc, row.centre);
            if (!std::isfinite(u)) return kInfinity;
            if (!row.relative) return (row.bound_over(u) + disc.sup_d1).upper();
            const bool common_zero =
                !of_output && row.centre == 0 && row.coefficients[0] == 0 && row.low_part == 0;
            const double least = common_zero ? least_slope_over_root(activation, disc) : least_slope(disc);
            if (!(least > 0)) return kInfinity;
            return ((common_zero ? majorant(row.coefficients.subspan(1), u) : row.bound_over(u)) / least + 1)
                .upper();
          }};
}

// A lower bound of |f|, or of |f(z)/z|, over the disc, 0 or less if there is none.
Interval least_value(const Function& f, bool over_x, double middle, double radius) {
  const Disc disc(f, middle, radius);
  if (!disc.analytic()) return 0;
  const Interval least = Interval(disc.f.mignitude()) - Interval(disc.sup_d1) * radius;
  if (!over_x) return least;
  const Interval reach = Interval(std::fabs(middle)) + radius;
  if (least.positive()) return least / reach;
  // Next to 0: f(z)/z is the mean of f' between 0 and z, which is at least |f'(0)| less |f''| |z| / 2.
  const std::array<double, 4> sup = f.over_disc(0, reach.upper());
  return Interval(f.at<1>(Interval(0))[1].mignitude()) - Interval(sup[2]) * reach / 2;
}

// A forward's polynomial on one cell: p(x - centre) stands for f(x), or, over_x, for f(x)/x.
struct CellPolynomial {
  const Function& f;
  bool over_x;
  double centre;
  std::vector<Interval> coefficients;
};

// p / f - 1, or x p / f - 1.
AnalyticFunction forward_error(const CellPolynomial& row) {
  return {[row](const Interval& x) {
            // f(x)/x is f' somewhere between 0 and x
            const Interval target = !row.over_x         ? value_at_point(row.f, x)
                                    : x.contains_zero() ? row.f.at<1>(x)[1]
                                                        : value_at_point(row.f, x) / x;
            return polynomial(row.coefficients, x - row.centre) / target - 1;
          },
          [row](double middle, double radius) {
            const Interval u = Interval((Interval(middle) - row.centre).magnitude()) + radius;
            const Interval least = least_value(row.f, row.over_x, middle, radius);
            if (!least.positive()) return kInfinity;
            return (majorant(row.coefficients, u) / least + 1).upper();
          }};
}

// E at a concrete x.
using ErrorAt = std::function<Interval(double x)>;

// Adds a bound that holds as it stands: `value` encloses E over a whole tail, whose points all lie on the far
// side of x. Where it exceeds the claim, some of them are looked at, if there are any, as an enclosure alone
// refutes nothing.
void add_tail(SupNorm& result, const Interval& value, double x, double claim, const ErrorAt& at = {},
              double outward = 0) {
  result.proven = std::max(result.proven, value.magnitude());
  if (value.magnitude() <= claim) return;
  for (const double step : {0.0, 1.0, 16.0}) {
    if (!at || result.verdict == Verdict::Violated || !std::isfinite(x)) break;
    const double there = x + step * outward, seen = at(there).mignitude();
    if (seen > result.observed) result.observed = seen, result.at = there;
    if (seen > claim) result.verdict = Verdict::Violated;
  }
  if (result.verdict == Verdict::Holds) result.verdict = Verdict::Undecided, result.at = x;
}

void merge(SupNorm& result, const SupNorm& part) {
  const auto rank = [](Verdict v) { return v == Verdict::Holds ? 0 : v == Verdict::Undecided ? 1 : 2; };
  const bool worse = rank(part.verdict) > rank(result.verdict);
  if (worse) result.verdict = part.verdict;
  if (worse || (rank(part.verdict) == rank(result.verdict) && part.observed > result.observed))
    result.at = part.at;
  result.proven = std::max(result.proven, part.proven);
  result.observed = std::max(result.observed, part.observed);
}

// Where E of one row is added.
struct ErrorSum {
  SupNorm& result;
  const Activation& activation;
  const Row& row;
  double claim;
};

// E over a range of v where g lies in `slopes`: a tail, or what a clamp stands for.
void add_range(const ErrorSum& to, const Interval& v, const Interval& slopes, double x,
               const ErrorAt& at = {}, double outward = 0) {
  // a range is a fraction of a cell, so each piece moves p by far less than a claim
  constexpr int kPieces = 1024;
  const double low = v.lower(), high = v.upper();
  if (v.width() < 0x1p-60) return add_tail(to.result, to.row.error(v, slopes), x, to.claim, at, outward);
  for (int i = 0; i < kPieces; ++i) {
    const double a = low + (high - low) * i / kPieces,
                 b = std::nextafter(low + (high - low) * (i + 1) / kPieces, kInfinity);
    add_tail(to.result, to.row.error(Interval(a, b), slopes), x, to.claim, at, outward);
  }
}

// Whether the header says something of x.
bool is_claimed(const Activation& activation, const Formula& formula, double x) {
  return formula.low <= x && x <= formula.high && !(activation.limited() && std::fabs(x) > kExpressionEnd);
}

// E at an x beyond a clamp, which stands for the value `v` of the row's variable.
ErrorAt at_clamp(const Activation& activation, const Formula& formula, const Row& row, const Interval& v) {
  return [&activation, &formula, &row, v](double x) {
    return is_claimed(activation, formula, x) ? row.error(v, formula.f.at<1>(Interval(x))[1]) : 0;
  };
}

// The arguments that one formula takes on a cell.
struct Domain {
  Interval x_low, x_high;  // what separates the cell's arguments from smaller and larger ones
};

// E over all x of a domain: the tails by their enclosures, what is between by interpolation. v_low and
// v_high: the cell's range.
void add_domain(const ErrorSum& bound, const Formula& formula, const Domain& domain, bool of_output,
                double v_low, double v_high) {
  const Activation& activation = bound.activation;
  const Row& row = bound.row;
  SupNorm& result = bound.result;
  const double claim = bound.claim;
  const double from = std::max(domain.x_low.lower(), formula.low),
               to = std::min(domain.x_high.upper(), formula.high);
  if (!(from <= to)) return;
  const auto variable = [&](const Interval& values, double sign) {
    const Interval v = of_output ? values : sqrt(values - activation.y_star()) * sign;
    return minimum(maximum(v, v_low), v_high);
  };
  const auto in_tail = [&](double sign) -> ErrorAt {
    return [&, sign](double x) -> Interval {
      if (!(from <= x && x <= to) || !is_claimed(activation, formula, x)) return 0;
      const auto d = formula.f.at<1>(Interval(x));
      return row.error(variable(d[0], sign), d[1]);
    };
  };
  if (from < formula.far_low)
    add_range(bound, variable(formula.low_values, -1), formula.low_slopes, formula.far_low, in_tail(-1), -1);
  // Where f has no limit, interpolation goes as far as the cell.
  const double end = formula.bounded_above ? formula.far_high : to;
  if (to > end)
    add_range(bound, variable(formula.high_values, 1), formula.high_slopes, formula.far_high, in_tail(1), 1);
  const double a = std::max(from, formula.far_low), b = std::min(to, end);
  if (!std::isfinite(b)) {
    add_tail(result, Interval::whole_line(), a, claim);
  } else if (a < b) {
    merge(result, bound_sup_norm(backward_error(activation, formula.f, row, of_output), a, b, claim));
  } else if (from == to) {
    const auto d = formula.f.at<1>(Interval(a));
    const Interval error = row.error(of_output ? d[0] : activation.signed_root(a, d[0]), d[1]);
    add_tail(result, error, a, claim, [&](double) { return error; });
  }
}

// The cell of one masked header: x rises with s, and falls with y on the left segment.
void add_masked(SupNorm& result, const BackwardHeader& h, const Activation& activation, const Row& row,
                const Cell& cell, double claim) {
  const Formula& formula = activation.only();
  const ErrorSum bound{result, activation, row, claim};
  const Interval y_c = Interval(h.y_hi) + static_cast<double>(h.y_lo);
  const auto root_of = [&](double y) { return sqrt(Interval(y) - activation.y_star()); };
  if (cell.left) {
    // y = f(x) in [low, high] is an x between f^-1(high) and f^-1(low). The low end is moved to the next
    // float, so that no real y between two cells is left out.
    const double low = std::nextafter(cell.low, -1.0f);
    const Interval all(-kInfinity, formula.far_low);
    add_domain(bound, formula,
               {cell.high == 0 ? all : argument(activation, -root_of(cell.high)),
                argument(activation, -root_of(low))},
               true, low, cell.high);
    return;
  }
  const auto widened = [](double s, double outward) {
    return s * (1 + (s * outward > 0 ? kRootRounding : -kRootRounding));
  };
  const bool clamped_low = !h.has_left && cell.low == h.s_min,
             clamped_high = cell.high == deployed_s(h, h.y_max, true);
  const double s_low = clamped_low ? static_cast<double>(cell.low) : widened(cell.low, -1);
  // What the clamp of y makes of s lies between its exact value and the float that is the cell's end.
  const Interval s_top = hull(sqrt(Interval(h.y_max) - y_c), cell.high);
  const Interval s_high = clamped_high ? s_top.keep_upper() : Interval(widened(cell.high, 1));
  const Interval x_high = argument(activation, s_high);
  if (cell.evaluated == Coordinate::output && cell.low < 0) {
    // The mirror of the right segment, as far as the left one: x falls as y rises.
    const double y_low = (y_c + square(Interval(widened(cell.high, 1)))).lower();
    const double y_high =
        std::min((y_c + square(Interval(widened(cell.low, -1)))).upper(), static_cast<double>(h.left_y));
    add_domain(bound, formula,
               {argument(activation, -root_of(y_high)), argument(activation, -root_of(y_low))}, true, y_low,
               y_high);
    return;
  }
  if (cell.evaluated == Coordinate::output) {
    // The deployed s belongs to y = y_c + s^2, which the row is evaluated at.
    const Interval y_low = y_c + square(Interval(s_low)),
                   y_high = clamped_high ? Interval(h.y_max) : y_c + square(s_high);
    const auto of_y = [&](const Interval& y) { return argument(activation, sqrt(y - activation.y_star())); };
    const Interval x_top = of_y(y_high);
    add_domain(bound, formula, {of_y(y_low), x_top}, true, y_low.lower(), y_high.upper());
    if (clamped_high)
      add_tail(result, row.error(y_high, formula.slopes(x_top.lower(), kInfinity)), x_top.upper(), claim,
               at_clamp(activation, formula, row, y_high), 1);
    return;
  }
  const double infimum = activation.s_infimum().lower();
  add_domain(bound, formula, {argument(activation, s_low), x_high}, false, s_low, s_high.upper());
  if (clamped_high) {
    const double x_top = argument(activation, s_top.keep_lower()).lower();
    add_tail(result, row.error(s_top, formula.slopes(x_top, kInfinity)), x_high.upper(), claim,
             at_clamp(activation, formula, row, s_top), 1);
  }
  if (s_low < infimum) {
    // s below its infimum belongs to no x; g is continued by its limit.
    add_range(bound, Interval(s_low, activation.s_infimum().upper()), formula.low_slopes, formula.far_low);
  } else if (clamped_low) {
    const Interval x_low = argument(activation, s_low);
    add_tail(result, row.error(s_low, formula.slopes(-kInfinity, x_low.upper())), x_low.lower(), claim,
             at_clamp(activation, formula, row, s_low), -1);
  }
}

void add_rising(SupNorm& result, const BackwardHeader& h, const Activation& activation, const Row& row,
                const Cell& cell, double claim) {
  const bool clamped_low = cell.low == h.y_min, clamped_high = cell.high == h.y_max;
  // Moved to the next cell, so that no real y between two is left out.
  const double low = cell.low, high = clamped_high
                                          ? cell.high
                                          : std::nextafter(cell.high, std::numeric_limits<float>::infinity());
  const ErrorSum bound{result, activation, row, claim};
  for (const Formula& formula : activation.formulas()) {
    const auto of_y = [&](double y) {
      return Earlier::at(Earlier::Kind::inverse, &formula, y,
                         [&] { return Earlier::Values{formula.inverse(y), 0}; })[0];
    };
    const Interval x_low = of_y(low), x_high = of_y(high);
    // A formula whose values end before the cell begins, or begin where it ends.
    if (formula.low > -kInfinity && !(high > 0)) continue;
    if (formula.high < kInfinity && !(low < 0)) continue;
    add_domain(bound, formula, {x_low, x_high}, true, low, high);
    if (clamped_low && formula.low == -kInfinity) {
      add_tail(result, row.error(low, formula.slopes(-kInfinity, x_low.upper())), x_low.lower(), claim,
               at_clamp(activation, formula, row, low), -1);
    }
    if (clamped_high && formula.high == kInfinity) {
      add_tail(result, row.error(high, formula.slopes(std::max(x_high.lower(), formula.low), kInfinity)),
               x_high.upper(), claim, at_clamp(activation, formula, row, high), 1);
    }
  }
}

// What a cell is held to: the claim of the whole, or its row's own, which was rounded to two decimals of its
// log2.
double claim_of(const CoefficientTable& table, const Cell& cell, double claim) {
  const auto row = static_cast<size_t>(cell.row);
  // The text says that a row which is not listed is never asked for.
  if (row >= table.log2_fit_errors.size()) return 0;
  constexpr double kBelow = 1 - 0x1p-50;  // exp2 is off by less
  return std::min(claim, std::exp2(table.log2_fit_errors[row]) * kBelow);
}

const CoefficientTable& table_of(const BackwardHeader& h, const Cell&) { return h.table; }
const CoefficientTable& table_of(const ForwardHeader& h, const Cell& cell) {
  return cell.left ? h.tail : h.table;
}
const CoefficientTable& table_of(const RoundedForwardHeader& h, const Cell&) { return h.table; }

template <class Header>
Finding prove_all(const Header& h, double claim, const std::vector<Cell>& cells, const char* quantity,
                  Findings wanted) {
  Finding finding{"A", Verdict::Holds, claim};
  std::vector<SupNorm> parts(cells.size());
  std::atomic<bool> refuted = false;
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < cells.size(); ++i) {
    if (refuted) continue;
    parts[i] = prove_cell(h, cells[i], claim_of(table_of(h, cells[i]), cells[i], claim));
    if (wanted == Findings::to_failure && parts[i].verdict == Verdict::Violated) refuted = true;
  }
  SupNorm total;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    const SupNorm& part = parts[i];
    const bool first_failure = part.verdict != Verdict::Holds && total.verdict != Verdict::Violated;
    if (first_failure && (total.verdict == Verdict::Holds || part.verdict == Verdict::Violated)) {
      finding.why = fmt::format("row {} ({} in [{:a}, {:a}]), claim {:.6g}: {} {:.6g} at x = {:.9g}",
                                cell.row, cell.left ? "left" : "core", cell.low, cell.high,
                                claim_of(table_of(h, cell), cell, claim), quantity, part.observed, part.at);
      if (part.verdict == Verdict::Undecided) finding.why += ", not decided";
      finding.witness.reset();
      if (part.verdict == Verdict::Violated)
        finding.witness = Witness{part.at, part.observed, claim_of(table_of(h, cell), cell, claim)};
    }
    merge(total, part);
  }
  finding.verdict = total.verdict;
  finding.proven = total.proven;
  if (total.verdict == Verdict::Holds)
    finding.why = fmt::format("{} cells, largest at x = {:.6g}", cells.size(), total.at);
  return finding;
}

Row row_of(const BackwardHeader& h, const Cell& cell) {
  // The row that runs into the limit 0 has no relative error.
  const bool relative = h.accuracy.starts_with("rel:") && !(cell.left && cell.high == 0);
  return {h.table.row(cell.row), h.degree, h.centred, h.two_word, relative};
}

// The formula left of 0 where there are two: right of it f is x, and no cell reaches there.
template <class Header>
const Function& function_of(const Header& h) {
  return activation_of(h.activation, h.function, h.masked).formulas().front().f;
}

AnalyticFunction error_of(const ForwardHeader& h, const Cell& cell) {
  const std::span<const float> words = cell.left ? h.tail.row(cell.row) : h.table.row(cell.row);
  const int degree = cell.left ? h.tail_degree : h.degree;
  CellPolynomial row{function_of(h), false, words[0], {words.begin() + 1, words.begin() + degree + 2}};
  if (cell.left) {
    for (Interval& c : row.coefficients) c = c * words[degree + 2];
  } else {
    row.coefficients[1] = row.coefficients[1] + h.slope_low;
  }
  // Where the cell's centre is 0 and c0 = 0, a zero that f has there too is divided out.
  const Interval at_zero = row.f.at<0>(Interval(0))[0];
  row.over_x = words[0] == 0 && words[1] == 0 && at_zero.is_point() && at_zero.contains_zero();
  if (row.over_x) row.coefficients.erase(row.coefficients.begin());
  return forward_error(row);
}

AnalyticFunction error_of(const RoundedForwardHeader& h, const Cell& cell) {
  const double number = static_cast<double>(cell_index(cell.low, h.index_scale, h.index_bias)) -
                        static_cast<double>(h.index_bias);
  const std::array<float, 5> c = coefficients_of(h, cell.row);
  return forward_error(
      {function_of(h), !h.plain, number / static_cast<double>(h.index_scale), {c.begin(), c.end()}});
}

// Whether a place lies in the cell, or so near that rounding can lead there. A fit lets neighbouring rows
// overlap by a share of the largest coordinate, which is `scale`: next to 0 that is far more than the same
// share of a cell's own ends.
bool holds(const Cell& cell, double place, double scale) {
  constexpr double kNear = 0x1p-21;
  return place >= cell.low - kNear * scale && place <= cell.high + kNear * scale;
}

double scale_of(const BackwardHeader& h, const Cell& cell) {
  if (cell.left) return std::max(std::fabs(cell.low), std::fabs(cell.high));
  const auto [low, high] = core_range(h);
  return std::max(std::fabs(low), std::fabs(high));
}

template <class Forward>
std::optional<Interval> forward_error_at(const Forward& h, const Cell& cell, double x) {
  const double scale = std::max(std::fabs(cell.low), std::fabs(cell.high));
  return holds(cell, x, scale) ? std::optional(error_of(h, cell).at(x)) : std::nullopt;
}

}  // namespace

SupNorm prove_cell(const BackwardHeader& h, const Cell& cell, double claim) {
  const Row row = row_of(h, cell);
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  SupNorm result;
  if (h.masked) {
    add_masked(result, h, activation, row, cell, claim);
  } else {
    add_rising(result, h, activation, row, cell, claim);
  }
  return result;
}

SupNorm prove_cell(const ForwardHeader& h, const Cell& cell, double claim) {
  return bound_sup_norm(error_of(h, cell), cell.low, cell.high, claim);
}

SupNorm prove_cell(const RoundedForwardHeader& h, const Cell& cell, double claim) {
  return bound_sup_norm(error_of(h, cell), cell.low, cell.high, claim);
}

std::optional<Interval> fit_error_at(const BackwardHeader& h, const Cell& cell, double x) {
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  const auto d = at_point(activation.formula_at(x).f, x);
  const bool right = h.masked && certainly_less(activation.x_star(), Interval(x));
  const Interval root = h.masked ? activation.signed_root(x, d[0]) : d[0];
  // The coordinate that selects the row: y, or the root, from where a row of the right segment is asked for
  // that of y - y_c.
  Interval place = cell.left ? d[0] : root;
  if (h.masked && !cell.left && cell.evaluated == Coordinate::output) {
    place = sqrt(maximum(d[0] - static_cast<double>(h.y_hi) - static_cast<double>(h.y_lo), 0)) *
            (right ? 1.0 : -1.0);
  }
  if ((cell.left && right) || !holds(cell, place.middle(), scale_of(h, cell))) return {};
  return row_of(h, cell).error(h.masked && !cell.left && cell.evaluated == Coordinate::root ? root : d[0],
                               d[1]);
}

std::optional<Interval> fit_error_at(const ForwardHeader& h, const Cell& cell, double x) {
  return forward_error_at(h, cell, x);
}

std::optional<Interval> fit_error_at(const RoundedForwardHeader& h, const Cell& cell, double x) {
  return forward_error_at(h, cell, x);
}

Finding prove_fit(const BackwardHeader& h, double claim, Findings wanted) {
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  const bool relative = h.accuracy.starts_with("rel:");
  Finding finding =
      prove_all(h, claim, backward_cells(h), relative ? "abs(p / g - 1) >=" : "abs(p - g) >=", wanted);
  if (activation.limited()) finding.why += fmt::format(", for |x| <= {}", kExpressionEnd);
  return finding;
}

Finding prove_fit(const ForwardHeader& h, double claim, Findings wanted) {
  return prove_all(h, claim, forward_cells(h), "abs(p / f - 1) >=", wanted);
}

Finding prove_fit(const RoundedForwardHeader& h, double claim, Findings wanted, bool core) {
  std::vector<Cell> cells = forward_cells(h);
  if (core) std::erase_if(cells, [](const Cell& cell) { return cell.left; });
  Finding finding = prove_all(h, claim, cells, h.plain ? "abs(p / f - 1) >=" : "abs(x p / f - 1) >=", wanted);
  if (core) finding.name = "A, core";
  return finding;
}

}  // namespace outgrad::validation
