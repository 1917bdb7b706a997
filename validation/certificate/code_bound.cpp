// Tracks the roundings of the coded g over cells of x, and compares the errors of codes with the claims.
#include "validation/certificate/code_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/activations.h"
#include "kernels/stores/code.h"
#include "kernels/support/bounds.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr int kMostCells = 100'000;  // of GELU some ten thousand are needed
constexpr double kRounded = 0x1p-24;  // of fp32, relative; and of a number below 2, absolute

// What is known of a number that a kernel computes: the result of the same operations without rounding, and
// how far it may be from that.
struct Tracked {
  Interval exact;
  Interval off;  // an upper bound
};

// The operations of kernels/forwards.h and kernels/eval.h, each rounded to within 2^kUnit of the result and
// 2^kUnderflow. So is a constant: `exact` is then that of the constants of the formula.
template <int kUnit, int kUnderflow>
struct TrackedOps {
  using Value = Tracked;
  using Row = int;

  static Value constant(double value) { return rounded(value, 0); }
  static Value add(const Value& a, const Value& b) { return rounded(a.exact + b.exact, a.off + b.off); }
  static Value sub(const Value& a, const Value& b) { return rounded(a.exact - b.exact, a.off + b.off); }
  static Value mul(const Value& a, const Value& b) { return rounded(a.exact * b.exact, product_off(a, b)); }
  static Value fma(const Value& a, const Value& b, const Value& c) {
    return rounded(a.exact * b.exact + c.exact, product_off(a, b) + c.off);
  }
  static Value div(const Value& a, const Value& b) {
    // of the computed divisor
    const Interval least = minimum(absolute(b.exact), kInfinity).keep_lower() - b.off;
    return rounded(a.exact / b.exact, (a.off + absolute(a.exact / b.exact) * b.off) / least);
  }
  static Value at_least(const Value& a, const Value& lo) {
    return {maximum(a.exact, lo.exact), a.off + lo.off};
  }
  static Value at_most(const Value& a, const Value& hi) {
    return {minimum(a.exact, hi.exact), a.off + hi.off};
  }
  static Value negate(const Value& a) { return {-a.exact, a.off}; }
  static Value magnitude(const Value& a) { return {absolute(a.exact), a.off}; }
  template <class Table>
  static Value lookup(const Table& table, Row row, int word) {
    return {static_cast<double>(table.w[row][word]), 0};
  }

  static Value rounded(const Interval& exact, const Interval& off) {
    const Interval before = off.keep_upper();
    return {exact,
            ((absolute(exact) + before) * std::ldexp(1.0, kUnit) + before + std::ldexp(1.0, kUnderflow))
                .keep_upper()};
  }

 private:
  static Interval product_off(const Value& a, const Value& b) {
    return absolute(a.exact) * b.off + absolute(b.exact) * a.off + a.off * b.off;
  }
};
using DoubleSteps = TrackedOps<-53, -1074>;
using FloatSteps = TrackedOps<-24, -149>;

// exp(v) as kernels::forwards::exp_of has it: within 16 u, as the head of kernels/forwards.h derives for |v|
// <= 700.
Tracked exp_of(const DoubleSteps&, const Tracked& v) {
  constexpr double kOff = 0x1p-48;
  const Interval exact = exp(v.exact), within = exact * (exp(v.off) - 1.0);
  if (!(v.exact.lower() >= -700 && v.exact.upper() <= 700)) return {exact, kInfinity};
  return {exact, (within + (exact + within) * kOff).keep_upper()};
}

// The derivative that is coded.
struct Deployed {
  const char *activation, *function;
  bool masked;
  float (*gradient)(float x);
  double reach;                          // beyond, f' is taken at this |x|
  Tracked (*slope)(const Interval& x);  // in double precision; null for GELU
};

template <class Forward>
Tracked slope(const Interval& x) {
  return Forward::slope(DoubleSteps{}, Tracked{x, 0});
}

using GeluForward = kernels::ForwardFit<float>::Type;

template <class Gelu, class... Fit, class... Forward>
std::vector<Deployed> make_all(kernels::FitList<Gelu, Fit...>, kernels::ForwardList<Forward...>) {
  return {{Gelu::kActivation, Gelu::kFunction, true, kernels::gradient_at<GeluForward>,
           -static_cast<double>(GeluForward::kXMin), nullptr},
          {Fit::kActivation, Fit::kFunction, Fit::kMasked, kernels::gradient_at<Forward>,
           Forward::kSlopeReach, slope<Forward>}...};
}

const Deployed* deployed(const std::string& activation) {
  static const std::vector<Deployed> all =
      make_all(kernels::ActivationFits<float>::Type{}, kernels::ActivationForwards{});
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Deployed& d) { return activation == d.activation; });
  return found == all.end() ? nullptr : &*found;
}

// f' over [a, b], ends included.
Interval slopes(const Activation& activation, double a, double b) {
  std::optional<Interval> range;
  for (const Formula& formula : activation.formulas()) {
    if (b < formula.low || a > formula.high) continue;
    const Interval part = formula.slopes(std::max(a, formula.low), std::min(b, formula.high));
    range = range ? hull(*range, part) : part;
  }
  return *range;
}

Interval all_slopes(const Activation& activation, bool masked) {
  const Interval range = slopes(activation, -kInfinity, kInfinity);
  // Without a minimum f' is a product of positive factors, in the tails too (activation.cpp).
  return masked ? range : maximum(range, 0);
}

// An x near which f' is greatest, or least. Nothing rests on it: f' is enclosed there before it contradicts a
// claim.
double extreme_slope(const Activation& activation, bool greatest) {
  constexpr int kPasses = 4, kSteps = 256;
  double low = activation.formulas().front().far_low, high = activation.formulas().back().far_high,
         best = low;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = low, step = (high - low) / kSteps;
    double most = -kInfinity;
    for (int i = 0; i <= kSteps; ++i) {
      const double x = begin + step * i, slope = slopes(activation, x, x).middle(),
                   seen = greatest ? slope : -slope;
      if (seen > most) most = seen, best = x;
    }
    low = best - step, high = best + step;
  }
  return best;
}

// A row of one of the tables of GELU's forward, for x in [low, high].
struct ForwardRow {
  double centre;
  std::vector<double> c;  // c_1, c_2, ..., times the row's factor
  Interval rounding;  // of the fp32 operations, before the factor's product, times the factor
  double low, high;

  // p' and p'' at u.
  std::array<Interval, 2> derivatives(const Interval& u) const {
    Interval slope = 0, bend = 0;
    for (size_t k = c.size(); k-- > 0;) {
      bend = bend * u + slope;
      slope = slope * u + Interval(c[k]) * static_cast<double>(k + 1);
    }
    return {slope, bend};
  }
};

// How a table's rows are found: of so many, the one at x scale + bias.
struct RowIndex {
  int rows, degree;
  double scale, bias;
};

// The rows for x from `from` to `to`.
template <class Table>
void add_rows(std::vector<ForwardRow>& rows, const Table& table, const RowIndex& of, double from, double to) {
  const auto& [count, degree, scale, bias] = of;
  for (double q = std::nearbyint(from * scale + bias); q <= std::nearbyint(to * scale + bias); ++q) {
    const int index = static_cast<int>(static_cast<std::int64_t>(q) % count);
    const float* words = table.w[index];
    const double factor = std::size(table.w[index]) > static_cast<size_t>(degree) + 2
                              ? static_cast<double>(words[degree + 2])
                              : 1.0;
    ForwardRow row{static_cast<double>(words[0]),
                   {},
                   0,
                   std::max(from, (q - 0.5 - bias) / scale),
                   std::min(to, (q + 0.5 - bias) / scale)};
    if (!(row.low < row.high)) continue;
    for (int k = 1; k <= degree; ++k) row.c.push_back(static_cast<double>(words[k + 1]) * factor);
    const Tracked x{Interval(row.low, row.high), 0};
    row.rounding =
        FloatSteps::mul(kernels::evaluate_row_and_slope(FloatSteps{}, table, index, degree, x).slope,
                        Tracked{factor, 0})
            .off;
    rows.push_back(std::move(row));
  }
}

class Gradient {
 public:
  Gradient(const CodeHeader& h, const Deployed& kernels, const Activation& activation)
      : kernels_(kernels), activation_(activation), finding_{"G", Verdict::Holds, h.bound_g} {}

  Finding prove() {
    if (kernels_.slope == nullptr) {
      prove_rows();
    } else {
      prove_formula();
    }
    // Beyond, g is that of the end.
    for (const bool right : {false, true}) {
      const double end = right ? kernels_.reach : -kernels_.reach;
      const Interval moves =
          right ? slopes(activation_, end, kInfinity) : slopes(activation_, -kInfinity, end);
      see((Interval(at_end_) + moves.width() + kRounded).upper(), end);
    }
    if (finding_.verdict == Verdict::Holds) {
      finding_.why = fmt::format("largest at x = {:a}", at_);
    } else {
      look_for_witness();
    }
    return finding_;
  }

 private:
  // Bounds the error over [a, b], in parts where that decides.
  template <class Bound>
  void cover(double a, double b, const Bound& bound) {
    std::vector<std::pair<double, double>> pending{{a, b}};
    while (!pending.empty() && finding_.verdict == Verdict::Holds) {
      const auto [low, high] = pending.back();
      pending.pop_back();
      const double error = bound(low, high), middle = low + (high - low) / 2;
      if (!(error <= finding_.claim) && ++cells_ < kMostCells && low < middle && middle < high) {
        pending.insert(pending.end(), {{low, middle}, {middle, high}});
        continue;
      }
      see(error, low);
    }
  }

  // An x at which g is further from f' than the claim, among some.
  void look_for_witness() {
    constexpr int kTried = 8192;
    constexpr float kEnd = 8;
    for (int i = 0; i <= kTried; ++i) {
      const float x = -kEnd + 2 * kEnd * static_cast<float>(i) / kTried;
      const Interval error = absolute(Interval(kernels_.gradient(x)) - slopes(activation_, x, x));
      if (!(error.lower() > finding_.claim)) continue;
      finding_.verdict = Verdict::Violated;
      finding_.proven = error.upper();
      finding_.why = fmt::format("g is off by {:.6g} at x = {:a}", error.upper(), static_cast<double>(x));
      finding_.witness = Witness{static_cast<double>(x), error.lower(), finding_.claim};
      return;
    }
  }

  // The polynomials' derivatives are compared with f' at the middle of a part, and over the part by p'' -
  // f''.
  void prove_rows() {
    using F = GeluForward;
    static constexpr auto kCore = F::table();
    static constexpr auto kTail = F::tail();
    const double tail_x = F::kTailX;
    std::vector<ForwardRow> rows;
    add_rows(rows, kTail, {F::kTailRows, F::kTailDegree, F::kTailIndexScale, F::kTailIndexBias},
             -kernels_.reach, tail_x);
    const size_t tails = rows.size();
    add_rows(rows, kCore, {F::kRows, F::kDegree, F::kIndexScale, F::kIndexBias}, tail_x, -tail_x);
    for (size_t i = 0; i < rows.size(); ++i) {
      const ForwardRow& row = rows[i];
      // Right of 0 g is 1 less the tail's, rounded; so is f'.
      const Interval rounding = row.rounding + (i < tails ? kRounded : 0.0);
      cover(row.low, row.high, [&](double low, double high) {
        const Interval middle = (Interval(low) + high) / 2.0, part(low, high);
        const Function& f = activation_.only().f;
        const Interval at = row.derivatives(middle - row.centre)[0] - f.at<1>(middle)[1];
        const Interval rises = row.derivatives(part - row.centre)[1] - f.at<2>(part)[2];
        return (absolute(at + rises * (part - middle)) + rounding).upper();
      });
      if (i == 0) at_end_ = finding_.proven;
    }
  }

  // g is a formula in double precision, rounded. That the formula is f' is algebra, which the middle of each
  // part could contradict.
  void prove_formula() {
    constexpr double kWidth = 0.125;
    for (double a = -kernels_.reach; a < kernels_.reach; a += kWidth) {
      cover(a, a + kWidth, [&](double low, double high) {
        const Interval off = kernels_.slope(Interval(low, high)).off, middle = (Interval(low) + high) / 2.0;
        const Interval differs =
            absolute(kernels_.slope(middle).exact - slopes(activation_, middle.lower(), middle.upper()));
        if (!(off.upper() <= kernels::kSlopeError) || !(differs.lower() <= off.upper())) return kInfinity;
        return (off + kRounded).upper();
      });
    }
    at_end_ = kernels::kSlopeError;
  }

  void see(double bound, double x) {
    if (bound > finding_.proven || std::isnan(bound)) finding_.proven = bound, at_ = x;
    if (finding_.verdict == Verdict::Holds && !(bound <= finding_.claim)) {
      finding_.verdict = Verdict::Undecided;
      finding_.proven = kInfinity;
      finding_.why = fmt::format("not decided near x = {:.9g}", x);
    }
  }

  const Deployed& kernels_;
  const Activation& activation_;
  double at_ = 0, at_end_ = 0;  // at_end_: of the error at +-reach
  int cells_ = 0;
  Finding finding_;
};

Finding finding_of(std::string name, double claim, double proven, double reachable, const std::string& unit) {
  Finding finding{std::move(name), Verdict::Holds, claim, proven,
                  fmt::format("{:.6f} where {:.6f} is the least of any {}", kernels::decimals_up(claim, 6),
                              -kernels::decimals_up(-reachable, 6), unit)};
  if (claim < reachable) {
    finding.verdict = Verdict::Violated;
    finding.why = fmt::format("no {} is within less than {:.9g}", unit, reachable);
  } else if (!(proven <= claim)) {
    finding.verdict = Verdict::Undecided;
    finding.why = fmt::format("only {:.9g} is proven", proven);
  }
  return finding;
}

}  // namespace

const char* coded_function(const std::string& activation) {
  const Deployed* const found = deployed(activation);
  return found ? found->function : nullptr;
}

bool has_minimum(const CodeHeader& h) {
  const Deployed* const found = deployed(h.activation);
  return found ? found->masked : h.lo < 0;
}

Finding prove_code_range(const CodeHeader& h) {
  const Activation& activation = activation_of(h.activation, h.function, has_minimum(h));
  const Interval range = all_slopes(activation, has_minimum(h));
  const double beyond =
      std::max({0.0, static_cast<double>(h.lo) - range.lower(), range.upper() - static_cast<double>(h.hi)});
  Finding finding{"range", Verdict::Holds, 0, beyond,
                  fmt::format("f' lies in [{:.9g}, {:.9g}]", range.lower(), range.upper())};
  if (beyond > 0) {
    finding.verdict = Verdict::Undecided;
    finding.why +=
        fmt::format(", not in [{:.9g}, {:.9g}]", static_cast<double>(h.lo), static_cast<double>(h.hi));
    for (const bool greatest : {false, true}) {
      const double x = extreme_slope(activation, greatest), end = greatest ? h.hi : h.lo;
      const Interval slope = slopes(activation, x, x);
      if (greatest ? slope.lower() <= end : slope.upper() >= end) continue;
      finding.verdict = Verdict::Violated;
      finding.witness = Witness{x, greatest ? slope.lower() : slope.upper(), end};
    }
  }
  return finding;
}

Finding prove_coded_gradient(const CodeHeader& h) {
  const Deployed* const kernels = deployed(h.activation);
  if (kernels == nullptr) {
    return {"given", Verdict::Holds, h.bound_g, h.bound_g,
            fmt::format("the caller's g is within {:.6g} of f'(x): what follows rests on it", h.bound_g)};
  }
  return Gradient(h, *kernels, activation_of(h.activation, h.function, kernels->masked)).prove();
}

std::vector<Finding> prove_codes(const CodeHeader& h) {
  // Between two x f' takes all values between theirs.
  const Activation& activation = activation_of(h.activation, h.function, has_minimum(h));
  const auto slope_at = [&](double x) { return slopes(activation, x, x); };
  const double reached =
      (slope_at(extreme_slope(activation, true)) - slope_at(extreme_slope(activation, false))).lower();
  // exact: multiples of 2^-23 below 2^2, as the structure says
  const double lo = h.lo, hi = h.hi, width = hi - lo;
  std::vector<Finding> findings;
  const auto scale = static_cast<float>(256 / width), offset = static_cast<float>(-lo * 256 / width - 0.5);
  for (int bits = 1; bits <= 8; ++bits) {
    const int codes = 1 << bits, parts = 256 / codes;
    const double step = width / codes;
    const auto deployed_step = static_cast<float>(step), first = static_cast<float>(lo + step / 2);
    // The g whose number is n or more, less the rounding of that number.
    const auto edge = [&](int n, double rounding) {
      return (Interval(n) - 0.5 + rounding - static_cast<double>(offset)) / static_cast<double>(scale);
    };
    constexpr double kRounding = 0x1p-16;
    Interval largest = 0;
    for (int code = 0; code < codes; ++code) {
      const Interval value = static_cast<double>(std::fma(static_cast<float>(code), deployed_step, first));
      const Interval least = maximum(edge(code * parts, -kRounding) - h.bound_g, lo),
                     most = minimum(edge((code + 1) * parts, kRounding) + h.bound_g, hi);
      largest = maximum(largest, maximum(value - least, most - value));
    }
    findings.push_back(finding_of(fmt::format("T{}", bits), h.exact[static_cast<size_t>(bits - 1)],
                                  largest.upper(), reached / (2 * codes) * (1 - 0x1p-20),
                                  fmt::format("code of {} bits", bits)));
  }
  double bias = 0;
  for (int bits = 2; bits <= 3; ++bits) {
    const Interval step = Interval(width) / ((1 << bits) - 1);
    // In steps: of the product and sum 2^-22, of d's addition and of the code's difference 2^-22 each, of the
    // constants 2^-20; and of the result.
    const Interval rounding = step * 0x1p-19 + 0x1p-22, whole = step / 2 + h.bound_g + rounding;
    bias = std::max(bias, (rounding + h.bound_g).upper());
    findings.push_back(finding_of(fmt::format("dithered {}", bits), h.dithered[static_cast<size_t>(bits - 2)],
                                  whole.upper(), (step / 2).lower() * (1 - 0x1p-20),
                                  fmt::format("dither of {} bits", bits)));
  }
  findings.push_back(finding_of("bias", h.bias, bias, 0, "dithered code"));
  return findings;
}

}  // namespace outgrad::validation
