// Enumerates the f32 x next to the minimum, and covers the others by cells of x.
#include "validation/certificate/fitted_gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr double kEnumeratedReach = 0x1p-8;
constexpr double kUlps = 0x1p-22;        // 2 ulp of f32, relative
constexpr double kLeast = 0x1p-148;      // and of its subnormals
constexpr int kRunLength = 64;
constexpr int kMostFittedCells = 20000;  // some hundreds are needed

class FittedProof {
 public:
  FittedProof(const Activation& activation, const FittedGradient& fit, double claim)
      : fit_(fit), activation_(activation), f_(activation.only()), finding_{"G", Verdict::Holds, claim} {
    shift_ =
        absolute(activation.y_star() - static_cast<double>(fit.y_hi) - static_cast<double>(fit.y_lo)).upper();
  }

  Finding prove() {
    const double low = f_.far_low, high = f_.far_high, x_star = activation_.x_star().middle();
    enumerate(x_star - kEnumeratedReach, x_star + kEnumeratedReach);
    cover(low, x_star - kEnumeratedReach, false);
    cover(x_star + kEnumeratedReach, high, true);
    // Beyond, f is monotone, and so is the furthest that y' is from it.
    see(change({-kInfinity, low}, values(low, low), false), low);
    see(change({high, kInfinity}, values(high, high), true), high);
    if (finding_.verdict == Verdict::Holds) finding_.why = fmt::format("largest at x = {:a}", at_);
    return finding_;
  }

 private:
  // f over a cell, on which it is monotone, moved by what y' may differ.
  Interval values(double a, double b) const {
    const Interval v = hull(f_.f.at<0>(Interval(a))[0], f_.f.at<0>(Interval(b))[0]);
    return v + symmetric(move(v));
  }
  Interval move(const Interval& v) const {
    return maximum(absolute(v) * kUlps, kLeast).keep_upper() + shift_;
  }

  // Encloses the x' of a branch with f(x') among the values.
  Interval arguments(const Interval& y, bool right) const {
    const Interval root = sqrt(maximum(y - activation_.y_star(), 0));
    return activation_.inverse_signed_root(right ? root : -root);
  }

  // sup |f'(x') - f'(x)| for x in the cell.
  double change(const std::pair<double, double>& cell, const Interval& y, bool right) const {
    const auto& [a, b] = cell;
    const Interval inner = arguments(y, right);
    const double low = std::min(a, inner.lower()), high = std::max(b, inner.upper());
    const double by_range = f_.slopes(low, high).width();
    if (!std::isfinite(low) || !std::isfinite(high)) return by_range;
    const auto d = f_.f.at<2>(Interval(low, high));
    const double by_mean = (absolute(d[2]) * move(y) / absolute(d[1])).upper();
    return std::isfinite(by_mean) ? std::min(by_range, by_mean) : by_range;
  }

  void cover(double from, double to, bool right) {
    std::vector<std::pair<double, double>> pending;
    constexpr double kWidth = 0.25;
    for (double a = from; a < to; a += kWidth) pending.emplace_back(a, std::min(a + kWidth, to));
    const double allowed = finding_.claim - fit_.bound_ab;
    for (int cells = 0; !pending.empty(); ++cells) {
      const auto [a, b] = pending.back();
      pending.pop_back();
      const double bound = change({a, b}, values(a, b), right), middle = a + (b - a) / 2;
      if (bound > allowed && cells < kMostFittedCells && a < middle && middle < b) {
        pending.insert(pending.end(), {{a, middle}, {middle, b}});
        continue;
      }
      see(bound, a);
      if (finding_.verdict != Verdict::Holds) return;
    }
  }

  void see(double bound, double x) {
    const double error = (Interval(bound) + fit_.bound_ab).upper();
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
      const Interval slope = f_.f.at<1>(Interval(middle))[1], bend = f_.f.at<2>(Interval(first, last))[2];
      for (const float each : run) {
        const float g = fit_.gradient(each);
        const Interval truth = slope + bend * (Interval(each) - middle),
                       error = absolute(Interval(g) - truth);
        if (error.upper() > finding_.proven) finding_.proven = error.upper(), at_ = each;
        if (error.upper() <= finding_.claim || finding_.verdict == Verdict::Violated) continue;
        const bool certain = error.lower() > finding_.claim;
        finding_.verdict = certain ? Verdict::Violated : Verdict::Undecided;
        finding_.why =
            fmt::format("g is off by {:.6g} at x = {:a}", error.upper(), static_cast<double>(each));
        if (certain) finding_.witness = Witness{static_cast<double>(each), error.lower(), finding_.claim};
      }
    }
  }

  const FittedGradient& fit_;
  const Activation& activation_;
  const Formula& f_;
  double shift_ = 0, at_ = 0;
  Finding finding_;
};

}  // namespace

Finding prove_fitted_gradient(const Activation& activation, const FittedGradient& fit, double claim) {
  return FittedProof(activation, fit, claim).prove();
}

}  // namespace outgrad::validation
