// Magnitudes are sums and products of non-negative doubles, so one factor 1 + 2^-40 at the end covers their
// own rounding.
#include "validation/certificate/rounding_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "kernels/formats.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/fit_bound.h"
#include "validation/certificate/stored_argument.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr double kOwnRounding = 1 + 0x1p-40;  // under 2^9 operations of 2^-53 each
constexpr int kFirstGridPoints = 512;         // above y*
constexpr int kEnumerated = 16;               // floats in a range that is no longer halved
// a claim that would need more is left undecided: seconds, not minutes
constexpr long kMaxEvaluations = 1L << 23;
// a range spans at most this share of its cell, so that `proven` means something
constexpr double kResolution = 32;

struct Range {
  double low, high;
  double magnitude() const { return std::max(high, -low); }
};

Range operator+(const Range& v, double c) { return {v.low + c, v.high + c}; }
Range operator*(const Range& v, const Range& w) {
  const auto [least, most] = std::minmax({v.low * w.low, v.low * w.high, v.high * w.low, v.high * w.high});
  return {least, most};
}

// Half an ulp of fp32 at magnitude v: the largest error of rounding anything up to v. By the bits of v, as it
// stands in the innermost loops.
double half_ulp(double v) {
  constexpr double kLeastNormal = 0x1p-126;
  constexpr std::uint64_t kExponent = 0x7ff0'0000'0000'0000;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(v > kLeastNormal ? v : kLeastNormal) &
                               kExponent) *
         0x1p-24;
}

// The largest power of two that divides every float of magnitude >= v.
double grain(double v) { return 2 * half_ulp(v); }

double least_magnitude(const Range& v) {
  return v.low <= 0 && v.high >= 0 ? 0 : std::min(std::fabs(v.low), std::fabs(v.high));
}

// The error of RN(v - c) over floats v of the range; 0 where every difference is a multiple of a unit it has
// at most 2^24 of.
double rounding_of_difference(const Range& v, float c) {
  const double largest = std::max(std::fabs(v.low - c), std::fabs(v.high - c));
  return c == 0 || largest <= std::min(grain(least_magnitude(v)), grain(std::fabs(c))) * 0x1p24
             ? 0
             : half_ulp(largest);
}

// A computed number: its exact value lies in `value`, where exact means from the same u; the computed one is
// within `error` of it.
struct Computed {
  Range value;
  double error = 0;

  double magnitude() const { return (value.magnitude() + error) * kOwnRounding; }
};

// RN(a b + c)
Computed fused(const Computed& a, const Computed& b, const Computed& c) {
  const Range product = a.value * b.value;
  Computed result{{product.low + c.value.low, product.high + c.value.high}, 0};
  result.error = a.error * b.magnitude() + a.magnitude() * b.error + c.error;
  result.error += half_ulp(result.magnitude());
  return result;
}

// RN(a a)
Computed squared(const Computed& a) {
  const double least = least_magnitude(a.value), most = a.value.magnitude();
  Computed result{{least * least, most * most}, a.error * (2 * a.magnitude() + a.error)};
  result.error += half_ulp(result.magnitude());
  return result;
}

// A row's result: how far it is from p, and how far its last operation's exact result is.
struct Evaluated {
  Range value;  // of the exact p
  double error, inherited;
};

Evaluated last_rounding(const Computed& result) {
  return {result.value, result.error, std::max(result.error - half_ulp(result.magnitude()), 0.0)};
}

// p(u) in the order of the scheme, u exact; the same orders as in deployed_row.
Evaluated polynomial_error(std::span<const float> c, int scheme, const float* low_part,
                           const Range& reached) {
  const auto number = [](float v) { return Computed{{v, v}, 0}; };
  const Computed u{reached, 0};
  const int degree = static_cast<int>(c.size()) - 1;
  if (scheme == kEstrin) {
    std::vector<Computed> level;
    for (int k = 0; k <= degree; k += 2)
      level.push_back(k < degree ? fused(number(c[k + 1]), u, number(c[k])) : number(c[k]));
    for (Computed w = u; level.size() > 1;) {
      w = squared(w);
      std::vector<Computed> joined;
      for (size_t k = 0; k < level.size(); k += 2)
        joined.push_back(k + 1 < level.size() ? fused(level[k + 1], w, level[k]) : level[k]);
      level = std::move(joined);
    }
    return last_rounding(level[0]);
  }
  const bool halves = scheme == kEvenOdd && degree >= 2;
  const Computed step = halves ? squared(u) : u;
  const auto chain = [&](int top, int bottom) {
    const int stride = halves ? 2 : 1;
    Computed p = number(c[top]);
    for (int k = top - stride; k >= bottom; k -= stride) p = fused(p, step, number(c[k]));
    return p;
  };
  if (low_part) {
    const Computed rest = fused(chain(degree, 1), u, number(*low_part));
    Evaluated sum{rest.value + static_cast<double>(c[0]), rest.error, rest.error};
    sum.error += half_ulp((sum.value.magnitude() + rest.error) * kOwnRounding);
    return sum;
  }
  if (!halves) return last_rounding(chain(degree, 0));
  const int even = degree / 2 * 2;
  return last_rounding(fused(chain(even == degree ? degree - 1 : degree, 0), u, chain(even, 0)));
}

// Evaluation of a row at any float v of the range, v itself within e_v of its exact value.
Evaluated row_error(std::span<const float> row, const BackwardHeader& h, const Range& v, double e_v) {
  const float centre = h.centred ? row[0] : 0.0f;
  const auto c = row.subspan(1, static_cast<size_t>(h.degree) + 1);
  const double e_u = rounding_of_difference(v, centre);
  const Range reached{v.low - centre - e_u - e_v, v.high - centre + e_u + e_v};
  Range p{c[h.degree], c[h.degree]}, slope{0, 0};
  for (int k = h.degree - 1; k >= 0; --k) {
    const Range slope_step = slope * reached;
    slope = {slope_step.low + p.low, slope_step.high + p.high};
    p = p * reached + static_cast<double>(c[k]);
  }
  const float* const low_part = h.two_word ? &row[static_cast<size_t>(h.degree) + 2] : nullptr;
  Evaluated result = polynomial_error(c, h.scheme, low_part, reached);
  const double carried = slope.magnitude() * (e_u + e_v);
  result.error = (result.error + carried) * kOwnRounding;
  result.inherited = (result.inherited + carried) * kOwnRounding;
  return result;
}

class Analysis {
 public:
  Analysis(const BackwardHeader& h, double claim)
      : h_(h), grid_(h.format), cells_(backward_cells(h)), finding_{"B", Verdict::Holds, claim} {}

  Finding run() {
    first_grid_points([&](float y, bool m) { enumerate_precisely(y, m); });
    if (carrier_of(h_.format) == "f16") {
      enumerate_format<kernels::F16>();
    } else if (carrier_of(h_.format) == "bf16") {
      enumerate_format<kernels::BF16>();
    } else {
      analyse_branch(true);
      if (h_.masked) analyse_branch(false);
    }
    if (finding_.verdict == Verdict::Holds && !(finding_.proven <= finding_.claim)) {
      finding_.verdict = Verdict::Undecided;
      finding_.why =
          largest_ > finding_.claim
              ? fmt::format(
                    "evaluation is off by {:.6g} at y = {:a}, but no x was found that is stored as a y with "
                    "an "
                    "error above the claim",
                    largest_, at_)
              : fmt::format(
                    "not decided: the error is at most {:.6g}; the largest seen is {:.6g} at y = {:a}",
                    finding_.proven, largest_, at_);
    }
    if (finding_.verdict == Verdict::Holds) {
      finding_.why = fmt::format("{} ranges, {} values of y enumerated, largest seen {:.6g} at y = {:.9g}",
                                 ranges_, evaluations_, largest_, at_);
    }
    return finding_;
  }

 private:
  // |deployed - exact| at one y with the exact value in double. t is off by at most 2^-52 t (the differences
  // cancel only where double holds them exactly), v by 2^-51 v, a step of Horner's rule by 2^-52 of its
  // terms: 2^-50 each in `slack` covers them.
  void enumerate(float y, bool m) {
    ++evaluations_;
    const Selection selection = deployed_selection(h_, y, m);
    const auto row = h_.table.row(selection.row);
    double v = selection.v;
    if (selection.coordinate == Coordinate::root) {
      const double t = std::max(static_cast<double>(std::min(y, h_.y_max)) - h_.y_hi - h_.y_lo,
                                static_cast<double>(h_.t_min));
      v = clamp_s(m ? std::sqrt(t) : -std::sqrt(t));
    }
    const double u = v - centre(row);
    double p = row[h_.degree + 1], terms = std::fabs(p), slope = 0;
    for (int word = h_.degree; word >= 1; --word) {
      slope = slope * std::fabs(u) + terms;
      terms = terms * std::fabs(u) + std::fabs(row[word]);
      p = p * u + row[word];
    }
    if (h_.two_word) p += row[h_.degree + 2];
    const double slack = 0x1p-50 * (terms * (h_.degree + 2) + slope * (std::fabs(v) + std::fabs(u)));
    const double error = std::fabs(deployed_row(h_, selection) - p);
    record(y, m, error - slack, error + slack, p);
  }

  // The same with the exact value enclosed by MPFR.
  void enumerate_precisely(float y, bool m) {
    ++evaluations_;
    const auto [p, error] = enclosed(y, m);
    record(y, m, error.mignitude(), error.magnitude(), p.middle());
  }

  // p at one y, and the deployed value less that.
  std::pair<Interval, Interval> enclosed(float y, bool m) const {
    const Selection selection = deployed_selection(h_, y, m);
    const auto row = h_.table.row(selection.row);
    Interval v = static_cast<double>(selection.v);
    if (selection.coordinate == Coordinate::root) {
      v = m ? exact_root(h_, y) : -exact_root(h_, y);
      if (!h_.has_left) v = maximum(v, static_cast<double>(h_.s_min));
    }
    const Interval u = v - centre(row);
    Interval p = static_cast<double>(row[h_.degree + 1]);
    for (int word = h_.degree; word >= 1; --word) p = p * u + static_cast<double>(row[word]);
    if (h_.two_word) p = p + static_cast<double>(row[h_.degree + 2]);
    return {p, Interval(static_cast<double>(deployed_row(h_, selection))) - p};
  }

  // At one y the error lies in [least, most].
  void record(float y, bool m, double least, double most, double exact) {
    finding_.proven = std::max(finding_.proven, most);
    if (least > largest_) largest_ = least, at_ = y;
    if (!(least > finding_.claim) || finding_.verdict == Verdict::Violated) return;
    // B is about stored y: one that no x gives refutes nothing, and takes nothing from the budget.
    const Activation& activation = activation_of(h_.activation, h_.function, h_.masked);
    if (!is_stored(activation, h_.masked, grid_, static_cast<double>(y), m) ||
        ++refutations_ > kMostRefutations)
      return;
    const std::optional<double> x = argument_of(activation, h_.masked, grid_, static_cast<double>(y), m);
    if (!x) return;
    finding_.verdict = Verdict::Violated;
    finding_.witness = Witness{y, deployed_gradient(h_, y, m), exact};
    finding_.why = fmt::format(
        "evaluation is off by {:.6g} at y = {:a}, m = {:d}, as which x = {:.9g} is stored", least, y, m, *x);
  }

 public:
  Interval error_at(float y, bool m) const { return enclosed(y, m).second; }

  // The measure of A + B over all f32 y, ranges of them halved until it meets the claim.
  Finding run_rows(const std::vector<double>& fit_errors, RowMeasure measure) {
    const auto value = [&](int row, const Evaluated& p) {
      if (measure == RowMeasure::sum) return fit_errors[row] + p.error;
      const double ulp = least_ulp(p), before = fit_errors[row] + p.inherited;
      if (ulp == 0) return 0.0;
      // What the last rounding is given lies within `before` of g. Beyond the next power of two it rounds to
      // that power, which is nearer to g, unless it is a whole ulp of g away.
      const double last = before < ulp ? 0.0 : p.error - p.inherited;
      return std::max(0.5, last / ulp) + before / ulp;
    };
    const auto consider = [&](double measured) {  // a maximum would drop what is not a number
      finding_.proven = std::isnan(measured) ? kInfinity : std::max(finding_.proven, measured * kOwnRounding);
    };
    first_grid_points([&](float y, bool m) {
      const auto [p, error] = enclosed(y, m);
      consider(value(deployed_selection(h_, y, m).row,
                     {{p.lower(), p.upper()}, error.magnitude(), error.magnitude()}));
    });
    for (const bool m : {false, true}) {
      if (!m && !h_.masked) continue;
      std::vector<std::pair<std::int64_t, std::int64_t>> pending{{first_range(), last_order(m)}};
      while (!pending.empty()) {
        const auto [a, b] = pending.back();
        pending.pop_back();
        const Selection low = deployed_selection(h_, float_at(a), m),
                        high = deployed_selection(h_, float_at(b), m);
        const double span = std::fabs(static_cast<double>(high.v) - low.v);
        if (low.row == high.row && low.coordinate == high.coordinate &&
            (a == b || span * kResolution <= cell_width(low))) {
          const double measured = value(low.row, range_error(float_at(a), float_at(b), low, high));
          if (measured * kOwnRounding <= finding_.claim || a == b || std::isnan(measured)) {
            consider(measured);
            ++ranges_;
            continue;
          }
        }
        if (++evaluations_ > kMaxEvaluations) {
          finding_.proven = kInfinity;
          pending.clear();
          continue;
        }
        const std::int64_t middle = a + (b - a) / 2;
        pending.insert(pending.end(), {{middle + 1, b}, {a, middle}});
      }
    }
    // B is an upper bound itself, so a measure above the claim refutes nothing.
    if (!(finding_.proven <= finding_.claim)) finding_.verdict = Verdict::Undecided;
    finding_.why = fmt::format("{} ranges, each row with its own A", ranges_);
    if (finding_.verdict != Verdict::Holds) finding_.why += "; not decided";
    return finding_;
  }

 private:
  // ulp of the least |g| that a range with this p can have and that counts; 0 if none counts.
  double least_ulp(const Evaluated& p) const {
    if (p.value.magnitude() + h_.bound_a < h_.ulp_from) return 0;
    return grain(std::max(least_magnitude(p.value) - h_.bound_a, h_.ulp_from));
  }

  // The last y whose bits are not those of a clamp. On the left segment m = 0 ends at y = 0 likewise.
  std::int64_t last_order(bool m) const {
    const std::int64_t last = float_order(h_.y_max);
    return m ? last : std::min(last, h_.has_left ? float_order(0.0f) : float_order(clamped_root()));
  }

  double clamp_s(double s) const { return h_.has_left ? s : std::max(s, static_cast<double>(h_.s_min)); }

  double centre(std::span<const float> row) const { return h_.centred ? row[0] : 0.0; }

  double cell_width(const Selection& selection) const {
    for (const Cell& cell : cells_) {
      if (cell.row == selection.row && cell.left == (selection.coordinate == Coordinate::left_output))
        return static_cast<double>(cell.high) - cell.low;
    }
    return 0;
  }

  // The a priori bound over the floats y in [a, b], which all select `low`'s row; `low` and `high` are what a
  // and b select.
  Evaluated range_error(float a, float b, const Selection& low, const Selection& high) const {
    const auto row = h_.table.row(low.row);
    const Range v{std::min(low.v, high.v), std::max(low.v, high.v)};
    if (low.coordinate != Coordinate::root) return row_error(row, h_, v, 0);
    const Range first{a - h_.y_hi, b - h_.y_hi};
    const double e_t = rounding_of_difference({a, b}, h_.y_hi) + rounding_of_difference(first, h_.y_lo);
    const double t_low = std::max(static_cast<float>(first.low) - h_.y_lo, h_.t_min),
                 t_high = static_cast<float>(first.high) - h_.y_lo;
    const double roots = std::sqrt(t_low) + std::sqrt(std::max(t_low - e_t, 0.0));
    const double e_s =
        half_ulp(std::sqrt(std::max(t_high, t_low)) * kOwnRounding) + (e_t > 0 ? e_t / roots : 0);
    return row_error(row, h_, v, e_s * kOwnRounding);
  }

  // A y beyond which the exact and the deployed -sqrt(y - y_hi - y_lo) both lie below s_min.
  float clamped_root() const {
    const double y = static_cast<double>(h_.s_min) * h_.s_min * (1 + 0x1p-20) + h_.y_hi + h_.y_lo;
    return std::nextafter(static_cast<float>(y), std::numeric_limits<float>::infinity());
  }

  template <class T>
  void enumerate_format() {
    for (std::uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
      const float y = kernels::widen(T{static_cast<kernels::u16>(pattern)});
      if (std::isfinite(y)) enumerate(y, false), enumerate(y, true);
    }
  }

  // Where the ranges begin: behind the first grid points, which masked headers have around y_c. What lies
  // below them is clamped as their first is.
  std::int64_t first_range() const {
    const float y_c = static_cast<float>(static_cast<double>(h_.y_hi) + h_.y_lo);
    return h_.masked ? float_order(y_c) - kFirstGridPoints / 4 + kFirstGridPoints : float_order(h_.y_min);
  }
  void first_grid_points(const auto& see) {
    if (!h_.masked) return;
    for (std::int64_t i = first_range() - kFirstGridPoints; i < first_range(); ++i) {
      for (const bool m : {false, true}) see(float_at(i), m);
    }
  }

  void analyse_branch(bool m) {
    const std::int64_t first = first_range(), last = last_order(m);
    std::vector<std::pair<std::int64_t, std::int64_t>> pending;
    if (first <= last) pending.emplace_back(first, last);
    while (!pending.empty()) {
      const auto [a, b] = pending.back();
      pending.pop_back();
      if (b - a < kEnumerated) {
        for (std::int64_t i = a; i <= b; ++i) enumerate(float_at(i), m);
        continue;
      }
      const Selection low = deployed_selection(h_, float_at(a), m),
                      high = deployed_selection(h_, float_at(b), m);
      if (low.row == high.row && low.coordinate == high.coordinate) {
        const double bound = range_error(float_at(a), float_at(b), low, high).error;
        const double span = std::fabs(static_cast<double>(high.v) - low.v);
        if (bound <= finding_.claim && span * kResolution <= cell_width(low)) {
          ++ranges_;
          finding_.proven = std::max(finding_.proven, bound);
          continue;
        }
      }
      if (evaluations_ > kMaxEvaluations || finding_.verdict == Verdict::Violated) {
        finding_.proven = kInfinity;
        if (finding_.verdict == Verdict::Holds) {
          finding_.verdict = Verdict::Undecided;
          finding_.why = fmt::format("not decided near y = {:a}, m = {:d}; largest seen {:.6g}", float_at(a),
                                     m, largest_);
        }
        return;
      }
      const std::int64_t middle = a + (b - a) / 2;
      pending.insert(pending.end(), {{middle + 1, b}, {a, middle}});
    }
  }

  const BackwardHeader& h_;
  StoredGrid grid_;
  std::vector<Cell> cells_;
  Finding finding_;
  long ranges_ = 0, evaluations_ = 0, refutations_ = 0;
  double largest_ = 0, at_ = 0;
};

}  // namespace

Interval rounding_error_at(const BackwardHeader& h, float y, bool m) { return Analysis(h, 0).error_at(y, m); }

Finding prove_rounding(const BackwardHeader& h, double claim) { return Analysis(h, claim).run(); }

Finding prove_rows(const BackwardHeader& h, const std::vector<double>& fit_errors, RowMeasure measure,
                   double claim) {
  return Analysis(h, claim).run_rows(fit_errors, measure);
}

std::vector<double> row_fit_errors(const BackwardHeader& h) {
  const std::vector<Cell> cells = backward_cells(h);
  std::vector<SupNorm> parts(cells.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < cells.size(); ++i) parts[i] = prove_cell(h, cells[i], h.bound_a);
  std::vector<double> proven(static_cast<size_t>(h.rows), 0.0);
  for (size_t i = 0; i < cells.size(); ++i) {
    double& row = proven[static_cast<size_t>(cells[i].row)];
    row = std::max(row, parts[i].proven);
  }
  return proven;
}

std::vector<Finding> prove_row_claims(const BackwardHeader& h) {
  const std::vector<double> fit_errors = row_fit_errors(h);
  std::vector<Finding> findings{prove_rows(h, fit_errors, RowMeasure::sum, h.bound_ab)};
  findings.back().name = "A + B";
  if (h.two_word) {
    findings.push_back(prove_rows(h, fit_errors, RowMeasure::ulps, h.bound_ulp));
    findings.back().name = "(A + B) / ulp";
  }
  return findings;
}

}  // namespace outgrad::validation
