#include "validation/certificate/code_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/activations.h"
#include "kernels/code.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr double kEnumeratedReach = 0x1p-8;
constexpr double kUlps = 0x1p-22;     // 2 ulp of f32, relative
constexpr double kLeast = 0x1p-148;   // and of its subnormals
constexpr int kRunLength = 64;
constexpr int kMostCells = 20000;     // some hundreds are needed

// The kernels whose g is coded.
struct Deployed {
  const char* activation;
  CodedFit fit;
  double bound_ab;
  float y_hi, y_lo;
  bool masked;
  float (*gradient)(float x);
};

template <class Fit, class Forward>
Deployed make() {
  Deployed made{Fit::kActivation, {Fit::kName, Fit::kFunction}, Fit::kAB, 0, 0, Fit::kMasked, kernels::gradient_at<Fit, Forward>};
  if constexpr (Fit::kMasked) made.y_hi = Fit::kYHi, made.y_lo = Fit::kYLo;
  return made;
}

template <class Gelu, class... Fit, class... Forward>
std::vector<Deployed> make_all(kernels::FitList<Gelu, Fit...>, kernels::ForwardList<Forward...>) {
  return {make<Gelu, kernels::ForwardFit<float>::Type>(), make<Fit, Forward>()...};
}

const Deployed* deployed(const std::string& activation) {
  static const std::vector<Deployed> all = make_all(kernels::ActivationFits<float>::Type{}, kernels::ActivationForwards{});
  const auto found = std::find_if(all.begin(), all.end(), [&](const Deployed& d) { return activation == d.activation; });
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

// An x near which f' is greatest, or least. Nothing rests on it: f' is enclosed there before it contradicts a claim.
double extreme_slope(const Activation& activation, bool greatest) {
  constexpr int kPasses = 4, kSteps = 256;
  double low = activation.formulas().front().far_low, high = activation.formulas().back().far_high, best = low;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = low, step = (high - low) / kSteps;
    double most = -kInfinity;
    for (int i = 0; i <= kSteps; ++i) {
      const double x = begin + step * i, slope = slopes(activation, x, x).middle(), seen = greatest ? slope : -slope;
      if (seen > most) most = seen, best = x;
    }
    low = best - step, high = best + step;
  }
  return best;
}

class Gradient {
 public:
  Gradient(const CodeHeader& h, const Deployed& kernels, const Activation& activation)
      : kernels_(kernels), activation_(activation), finding_{"G", Verdict::Holds, h.bound_g, 0, "", {}} {
    if (kernels.masked) shift_ = absolute(activation.y_star() - static_cast<double>(kernels.y_hi) - static_cast<double>(kernels.y_lo)).upper();
  }

  Finding prove() {
    const double low = activation_.formulas().front().far_low, high = activation_.formulas().back().far_high;
    if (kernels_.masked) {
      const double x_star = activation_.x_star().middle();
      enumerate(x_star - kEnumeratedReach, x_star + kEnumeratedReach);
      cover(low, x_star - kEnumeratedReach, false);
      cover(x_star + kEnumeratedReach, high, true);
    } else {
      cover(low, high, true);
    }
    // Beyond, f is monotone, and so is the furthest that y' is from it.
    see(change({-kInfinity, low}, values(low, low), false), low);
    see(change({high, kInfinity}, values(high, high), true), high);
    if (finding_.verdict == Verdict::Holds) finding_.why = fmt::format("largest at x = {:a}", at_);
    return finding_;
  }

 private:
  // f over a cell, on which it is monotone, moved by what y' may differ.
  Interval values(double a, double b) const {
    const auto value = [&](double x) {
      const Formula& formula = x < 0 ? activation_.formulas().front() : activation_.formulas().back();
      return formula.f.at<0>(Interval(x))[0];
    };
    const Interval v = hull(value(a), value(b));
    return v + symmetric(move(v));
  }
  Interval move(const Interval& v) const { return maximum(absolute(v) * kUlps, kLeast).keep_upper() + shift_; }

  // Encloses the x' of a branch with f(x') among the values.
  Interval arguments(const Interval& y, bool right) const {
    if (kernels_.masked) {
      const Interval root = sqrt(maximum(y - activation_.y_star(), 0));
      return activation_.inverse_signed_root(right ? root : -root);
    }
    const auto argument = [&](const Interval& end) { return (end.negative() ? activation_.formulas().front() : activation_.formulas().back()).inverse(end); };
    return hull(argument(y.keep_lower()), argument(y.keep_upper()));
  }

  // sup |f'(x') - f'(x)| for x in the cell.
  double change(const std::pair<double, double>& cell, const Interval& y, bool right) const {
    const auto& [a, b] = cell;
    const Interval inner = arguments(y, right);
    const double low = std::min(a, inner.lower()), high = std::max(b, inner.upper());
    const double by_range = slopes(activation_, low, high).width();
    if (!std::isfinite(low) || !std::isfinite(high)) return by_range;
    Interval bend = 0, slope = kInfinity;
    for (const Formula& formula : activation_.formulas()) {
      if (high < formula.low || low > formula.high) continue;
      const auto d = formula.f.at<2>(Interval(std::max(low, formula.low), std::min(high, formula.high)));
      bend = maximum(bend, absolute(d[2])), slope = minimum(slope, absolute(d[1]));
    }
    // Where two formulas meet, f' has to be continuous for that.
    const bool meets = activation_.formulas().size() > 1 && low < 0 && high > 0;
    if (meets && !(activation_.formulas().front().high_slopes - activation_.formulas().back().low_slopes).contains_zero()) return by_range;
    const double by_mean = (bend * move(y) / slope).upper();
    return std::isfinite(by_mean) ? std::min(by_range, by_mean) : by_range;
  }

  void cover(double from, double to, bool right) {
    std::vector<std::pair<double, double>> pending;
    constexpr double kWidth = 0.25;
    for (double a = from; a < to; a += kWidth) pending.emplace_back(a, std::min(a + kWidth, to));
    const double allowed = finding_.claim - kernels_.bound_ab;
    for (int cells = 0; !pending.empty(); ++cells) {
      const auto [a, b] = pending.back();
      pending.pop_back();
      const double bound = change({a, b}, values(a, b), right), middle = a + (b - a) / 2;
      if (bound > allowed && cells < kMostCells && a < middle && middle < b) {
        pending.insert(pending.end(), {{a, middle}, {middle, b}});
        continue;
      }
      see(bound, a);
      if (finding_.verdict != Verdict::Holds) return;
    }
  }

  void see(double bound, double x) {
    const double error = (Interval(bound) + kernels_.bound_ab).upper();
    if (error > finding_.proven || std::isnan(error)) finding_.proven = error, at_ = x;
    if (finding_.verdict == Verdict::Holds && !(error <= finding_.claim)) {
      finding_.verdict = Verdict::Undecided;
      finding_.proven = kInfinity;
      finding_.why = fmt::format("not decided near x = {:.9g}", x);
    }
  }

  void enumerate(double from, double to) {
    float x = static_cast<float>(from);
    if (static_cast<double>(x) > from) x = std::nextafter(x, -1e30f);
    while (static_cast<double>(x) <= to) {
      float run[kRunLength];
      for (float& each : run) each = x, x = std::nextafter(x, 1e30f);
      const double first = run[0], last = run[kRunLength - 1], middle = first + (last - first) / 2;
      const Interval slope = activation_.only().f.at<1>(Interval(middle))[1], bend = activation_.only().f.at<2>(Interval(first, last))[2];
      for (const float each : run) {
        const float g = kernels_.gradient(each);
        const Interval truth = slope + bend * (Interval(each) - middle), error = absolute(Interval(g) - truth);
        if (error.upper() > finding_.proven) finding_.proven = error.upper(), at_ = each;
        if (error.upper() <= finding_.claim || finding_.verdict == Verdict::Violated) continue;
        const bool certain = error.lower() > finding_.claim;
        finding_.verdict = certain ? Verdict::Violated : Verdict::Undecided;
        finding_.why = fmt::format("g is off by {:.6g} at x = {:a}", error.upper(), static_cast<double>(each));
        if (certain) finding_.witness = Witness{static_cast<double>(each), error.lower(), finding_.claim};
      }
    }
  }

  const Deployed& kernels_;
  const Activation& activation_;
  double shift_ = 0, at_ = 0;
  Finding finding_;
};

Finding finding_of(std::string name, double claim, double proven, double reachable, const std::string& unit) {
  Finding finding{std::move(name), Verdict::Holds, claim, proven, fmt::format("{:.6f} where {:.6f} is the least of any {}", claim, reachable, unit), {}};
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

const CodedFit* coded_fit(const std::string& activation) {
  const Deployed* const found = deployed(activation);
  return found ? &found->fit : nullptr;
}

Finding prove_code_range(const CodeHeader& h) {
  const Deployed& kernels = *deployed(h.activation);
  const Activation& activation = activation_of(h.activation, h.function, kernels.masked);
  const Interval range = all_slopes(activation, kernels.masked);
  const double beyond = std::max({0.0, static_cast<double>(h.lo) - range.lower(), range.upper() - static_cast<double>(h.hi)});
  Finding finding{"range", Verdict::Holds, 0, beyond, fmt::format("f' lies in [{:.9g}, {:.9g}]", range.lower(), range.upper()), {}};
  if (beyond > 0) {
    finding.verdict = Verdict::Undecided;
    finding.why += fmt::format(", not in [{:.9g}, {:.9g}]", static_cast<double>(h.lo), static_cast<double>(h.hi));
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
  const Deployed& kernels = *deployed(h.activation);
  return Gradient(h, kernels, activation_of(h.activation, h.function, kernels.masked)).prove();
}

std::vector<Finding> prove_codes(const CodeHeader& h) {
  const Deployed& kernels = *deployed(h.activation);
  const double reached = all_slopes(activation_of(h.activation, h.function, kernels.masked), kernels.masked).width();
  const double lo = h.lo, hi = h.hi, width = hi - lo;  // exact: multiples of 2^-23 below 2^2, as the structure says
  std::vector<Finding> findings;
  const auto scale = static_cast<float>(256 / width), offset = static_cast<float>(-lo * 256 / width - 0.5);
  for (int bits = 1; bits <= 8; ++bits) {
    const int codes = 1 << bits, parts = 256 / codes;
    const double step = width / codes;
    const auto deployed_step = static_cast<float>(step), first = static_cast<float>(lo + step / 2);
    // The g whose number is n or more, less the rounding of that number.
    const auto edge = [&](int n, double rounding) { return (Interval(n) - 0.5 + rounding - static_cast<double>(offset)) / static_cast<double>(scale); };
    constexpr double kRounding = 0x1p-16;
    Interval largest = 0;
    for (int code = 0; code < codes; ++code) {
      const Interval value = static_cast<double>(std::fma(static_cast<float>(code), deployed_step, first));
      const Interval least = maximum(edge(code * parts, -kRounding) - h.bound_g, lo), most = minimum(edge((code + 1) * parts, kRounding) + h.bound_g, hi);
      largest = maximum(largest, maximum(value - least, most - value));
    }
    findings.push_back(finding_of(fmt::format("T{}", bits), h.exact[static_cast<size_t>(bits - 1)], largest.upper(), reached / (2 * codes) * (1 - 0x1p-20),
                                  fmt::format("code of {} bits", bits)));
  }
  double bias = 0;
  for (int bits = 2; bits <= 3; ++bits) {
    const Interval step = Interval(width) / ((1 << bits) - 1);
    // In steps: of the product and sum 2^-22, of d's addition and of the code's difference 2^-22 each, of the constants 2^-20; and of the result.
    const Interval rounding = step * 0x1p-19 + 0x1p-22, whole = step / 2 + h.bound_g + rounding;
    bias = std::max(bias, (rounding + h.bound_g).upper());
    findings.push_back(finding_of(fmt::format("dithered {}", bits), h.dithered[static_cast<size_t>(bits - 2)], whole.upper(),
                                  (step / 2).lower() * (1 - 0x1p-20), fmt::format("dither of {} bits", bits)));
  }
  findings.push_back(finding_of("bias", h.bias, bias, 0, "dithered code"));
  return findings;
}

}  // namespace outgrad::validation
