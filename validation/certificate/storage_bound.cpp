// Boundaries first, in parallel, then one pass over the codes of each branch.
#include "validation/certificate/storage_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "validation/certificate/deployed.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Stored {
  std::uint32_t code;
  double value;
};

// The numbers of a format in ascending order, -0 before +0, infinities included; `boundaries[i]` parts number i from number i + 1.
struct StoredNumbers {
  std::vector<Stored> numbers;
  std::vector<double> boundaries;
  double end = kInfinity;  // what lies beyond is stored as a NaN

  explicit StoredNumbers(const std::string& format) {
    struct Layout {
      int exponent_bits, mantissa_bits;
      bool has_infinity;
    };
    const Layout layout = format == "f16"    ? Layout{5, 10, true}
                          : format == "bf16" ? Layout{8, 7, true}
                          : format == "e5m2" ? Layout{5, 2, true}
                                             : Layout{4, 3, false};
    const int bias = (1 << (layout.exponent_bits - 1)) - 1, width = layout.exponent_bits + layout.mantissa_bits;
    const std::uint32_t sign = 1u << width, hidden = 1u << layout.mantissa_bits;
    const std::uint32_t infinity = ((1u << layout.exponent_bits) - 1) << layout.mantissa_bits;
    // Without infinities the top exponent holds numbers too, all but the last pattern.
    const std::uint32_t count = layout.has_infinity ? infinity : sign - 1;
    const auto magnitude = [&](std::uint32_t k) {
      const std::uint32_t exponent = k >> layout.mantissa_bits, mantissa = k & (hidden - 1);
      return std::ldexp(static_cast<double>(exponent == 0 ? mantissa : mantissa | hidden),
                        std::max<int>(static_cast<int>(exponent), 1) - bias - layout.mantissa_bits);
    };
    if (layout.has_infinity) numbers.push_back({sign | infinity, -kInfinity});
    for (std::uint32_t k = count; k-- > 0;) numbers.push_back({sign | k, -magnitude(k)});
    for (std::uint32_t k = 0; k < count; ++k) numbers.push_back({k, magnitude(k)});
    if (layout.has_infinity) numbers.push_back({infinity, kInfinity});
    // Midway to the number that would follow the largest.
    const double overflow = magnitude(count - 1) + (magnitude(count - 1) - magnitude(count - 2)) / 2;
    if (!layout.has_infinity) end = overflow;
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const double a = numbers[i].value, b = numbers[i + 1].value;
      boundaries.push_back(std::isinf(a) ? -overflow : std::isinf(b) ? overflow : a + (b - a) / 2);
    }
  }
};

// The place where f reaches a boundary, and f' there.
struct Place {
  // Below all values of f; in the tail of small values; at an argument; in the tail of large values.
  enum Kind { Before, LowTail, Inside, Tail } kind = Before;
  double x_low = 0, x_high = 0;
  double g_low = 0, g_high = 0;
};

class Enumeration {
 public:
  Enumeration(const std::string& activation, const std::string& function, const std::string& format, bool masked,
              const StorageClaims& claims, std::function<float(std::uint32_t, double, bool)> gradient)
      : activation_(activation_of(activation, function, masked)), numbers_(format), masked_(masked), gradient_(std::move(gradient)) {
    const std::array names{"T", "O", "R"};
    const std::array bounds{claims.total, claims.oracle, claims.regret};
    for (size_t k = 0; k < 3; ++k) findings_[k] = Finding{names[k], Verdict::Holds, bounds[k], 0, "", {}};
  }

  std::array<Finding, 3> run() {
    if (masked_) {
      stretch(activation_.only(), true, false);
      stretch(activation_.only(), false, false);
    } else {
      for (const Formula& formula : activation_.formulas()) stretch(formula, true, &formula != &activation_.formulas().front());
    }
    for (Finding& finding : findings_) {
      if (finding.verdict == Verdict::Holds && !(finding.proven <= finding.claim)) {
        finding.verdict = Verdict::Undecided;
        finding.why = "not decided";
      }
      if (finding.verdict == Verdict::Holds) {
        finding.why = fmt::format("{} stored (y, m), largest at y = {:.9g}, m = {:d}", pairs_, at_[&finding - findings_.data()].first,
                                  at_[&finding - findings_.data()].second);
        if (activation_.limited()) finding.why += fmt::format(", for |x| <= {}", kExpressionEnd);
      }
    }
    return findings_;
  }

 private:
  // An approximate argument between two ends, f(low) < y < f(high).
  static double approximate(const Function& f, double low, double high, double y) {
    for (int step = 0; step < 40; ++step) {
      const double middle = low + (high - low) / 2;
      (f.approximate(middle)[0] < y ? low : high) = middle;
    }
    double x = low + (high - low) / 2;
    for (int step = 0; step < 3; ++step) {
      const auto d = f.approximate(x);
      const double next = x - (d[0] - y) / d[1];
      if (!std::isfinite(next) || std::fabs(next - x) > 4 * std::fabs(high - low) + 0x1p-40) break;
      x = next;
    }
    return x;
  }

  // Where f = y on the stretch of the formula right (m) or left of its minimum.
  Place locate(const Formula& formula, bool m, double y) const {
    const Function& f = formula.f;
    if (masked_ && certainly_less(Interval(y), activation_.y_star())) return {};
    const Interval& tail = m ? formula.high_values : formula.low_values;
    if (!(y < tail.lower()) || std::isinf(y)) return {Place::Tail, 0, 0, 0, 0};
    if (!masked_ && y <= formula.low_values.lower()) return {};
    if (!masked_ && !(y > formula.low_values.upper())) return {Place::LowTail, 0, 0, 0, 0};
    const double bottom = masked_ ? activation_.x_star().middle() : formula.far_low;
    double guess = approximate(f, bottom, m ? formula.far_high : formula.far_low, y);
    auto at_guess = f.at<1>(MediumInterval(guess));
    // Where f is small, double may have lost it (1 + tanh, log(1 + exp)): Newton's steps on log |f|, almost a straight line there.
    for (int step = 0; step < 8 && std::fabs(y) < 0x1p-10; ++step) {
      const double ratio = at_guess[0].middle() / y, moved = std::log(ratio) * at_guess[0].middle() / at_guess[1].middle();
      if (!std::isfinite(moved) || std::fabs(moved) < 0x1p-47 * std::fabs(guess) || std::fabs(ratio - 1) < 0x1p-50) break;
      guess -= moved;
      at_guess = f.at<1>(MediumInterval(guess));
    }
    const MediumInterval x(guess);
    double radius = 0x1p-46 * std::max(1.0, std::fabs(guess));
    for (int attempt = 0; attempt < 4; ++attempt, radius *= 64) {
      const MediumInterval around = x + symmetric(MediumInterval(radius));
      const auto d = f.at<2>(around);
      if (!(m ? d[1].positive() : d[1].negative())) break;
      const MediumInterval step = (MediumInterval(y) - at_guess[0]) / d[1];
      // Newton's image inside `around` holds the one zero of f - y there, and f' has the sign of this stretch.
      if (!(step.magnitude() < radius)) continue;
      const MediumInterval g = at_guess[1] + d[2] * step, root = x + step;
      return {Place::Inside, root.lower(), root.upper(), g.lower(), g.upper()};
    }
    const Interval root =
        !masked_ ? formula.inverse(y) : activation_.inverse_signed_root(sqrt(Interval(y) - activation_.y_star()) * (m ? 1.0 : -1.0));
    const Interval g = f.at<1>(root)[1];
    return {Place::Inside, root.lower(), root.upper(), g.lower(), g.upper()};
  }

  // `above_zero`: ELU's second formula, which begins at y = +0; its first ends there.
  void stretch(const Formula& formula, bool m, bool above_zero) {
    const std::vector<double>& b = numbers_.boundaries;
    std::vector<Place> places(b.size());
#pragma omp parallel for schedule(dynamic, 64)
    for (size_t i = 0; i < b.size(); ++i) places[i] = locate(formula, m, b[i]);
    const Place before = masked_ ? Place{Place::Before, activation_.x_star().lower(), activation_.x_star().upper(), 0, 0} : Place{};
    const bool ends_at_zero = formula.high == 0;
    for (size_t i = 0; i < numbers_.numbers.size(); ++i) {
      const Stored& y = numbers_.numbers[i];
      const double lower_end = i == 0 ? -kInfinity : b[i - 1];
      const Place low = i == 0 ? before : places[i - 1], high = i < b.size() ? places[i] : Place{Place::Tail, 0, 0, 0, 0};
      if (high.kind == Place::Before) continue;  // f does not come down to y
      // f keeps below its supremum, and m = 0 below the limit on the left.
      const Interval& tail = m ? formula.high_values : formula.low_values;
      if (!(lower_end < tail.upper())) continue;
      // ELU's first formula has the negative numbers and -0, its second the others: f(x) < 0 for x < 0.
      const bool negative = y.code != 0 && !(y.value > 0);
      if ((ends_at_zero && !negative) || (above_zero && negative)) continue;
      judge(formula, m, y, low, high);
    }
  }

  void judge(const Formula& formula, bool m, const Stored& y, const Place& low, const Place& high) {
    double least = kInfinity, most = -kInfinity, least_up = kInfinity, most_down = -kInfinity;  // outer and inner ends of the range
    double x_low = kInfinity, x_high = -kInfinity;
    const auto join = [&](double g_low, double g_high) {
      least = std::min(least, g_low), most = std::max(most, g_high);
      least_up = std::min(least_up, g_high), most_down = std::max(most_down, g_low);
    };
    const auto join_interval = [&](const Interval& g) { join(g.lower(), g.upper()); };
    for (const Place* place : {&low, &high}) {
      if (place->kind == Place::Inside) {
        join(place->g_low, place->g_high);
        x_low = std::min(x_low, place->x_low), x_high = std::max(x_high, place->x_high);
      } else if (place->kind == Place::Tail) {
        join_interval(m ? formula.high_slopes : formula.low_slopes);
        if (m) x_high = std::max(x_high, formula.far_high);
        if (!m) x_low = std::min(x_low, formula.far_low);
      } else if (masked_) {
        join(0, 0);  // f'(x*)
        x_low = std::min(x_low, activation_.x_star().lower()), x_high = std::max(x_high, activation_.x_star().upper());
      } else {
        join_interval(formula.low_slopes);
        x_low = std::min(x_low, formula.far_low);
      }
    }
    for (const Formula::Part& part : formula.parts) {
      if (part.bend == 0 && part.low <= x_high && x_low <= part.high) join_interval(part.slopes);
    }
    ++pairs_;
    const double g = gradient_(y.code, y.value, m);
    const auto up = [](double v) { return std::nextafter(v, kInfinity); };
    const auto down = [](double v) { return std::max(std::nextafter(v, -kInfinity), 0.0); };
    const double total = up(std::max(g - least, most - g)), total_seen = down(std::max(g - least_up, most_down - g));
    const double oracle = up(most - least) / 2, oracle_seen = down(most_down - least_up) / 2;
    // |g - (lo + hi) / 2|, lo in [least, least_up], hi in [most_down, most].
    const Interval regret_range =
        Interval(g) - (Interval(least, std::max(least, least_up)) + Interval(std::min(most_down, most), most)) * 0.5;
    const std::array proven{total, oracle, regret_range.magnitude()};
    const std::array seen{total_seen, oracle_seen, regret_range.mignitude()};
    for (size_t k = 0; k < 3; ++k) {
      Finding& finding = findings_[k];
      if (!(proven[k] <= finding.proven)) finding.proven = std::isnan(proven[k]) ? kInfinity : proven[k], at_[k] = {y.value, m};
      if (seen[k] > finding.claim && finding.verdict != Verdict::Violated) {
        finding.verdict = Verdict::Violated;
        finding.witness = Witness{y.value, g, least + (most - least) / 2};
        finding.why = fmt::format("{} = {:.9g} at y = {:.9g}, m = {:d}, where f' takes [{:.9g}, {:.9g}] and g = {:.9g}", finding.name,
                                  seen[k], y.value, m, least, most, g);
      }
    }
  }

  const Activation& activation_;
  StoredNumbers numbers_;
  bool masked_;
  std::function<float(std::uint32_t, double, bool)> gradient_;
  std::array<Finding, 3> findings_;
  std::array<std::pair<double, bool>, 3> at_{};
  long pairs_ = 0;
};

}  // namespace

std::array<Finding, 3> prove_storage(const BackwardHeader& h) {
  return Enumeration(h.activation, h.function, h.format, h.masked, h.storage,
                     [&h](std::uint32_t, double y, bool m) { return deployed_gradient(h, static_cast<float>(y), m); })
      .run();
}

std::array<Finding, 3> prove_storage(const TableHeader& h) {
  return Enumeration(h.activation, h.function, h.format, h.masked, h.storage,
                     [&h](std::uint32_t code, double, bool m) { return deployed_entry(h, code, m); })
      .run();
}

}  // namespace outgrad::validation
