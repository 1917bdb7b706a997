// Proves T over all real scales of a range, by subdividing the range for each code.
//
// At a scale s, an x with code c has an fp32 y with RN(y s) in the rounding interval [lo, hi] of c. So y s is
// in it up to a factor 1 +- 2^-24, and the table of kernels/stores/parts.h is made from the fit at such y,
// each within E of f' at an argument x' with f(x') = y. The f' over all x' with f(x') s in [lo, hi], widened
// by kWidened, therefore hold the table's ranges up to E, and a cut of a longer range has longer parts: the
// longest part at s is at most that of these f', cut likewise, and 2 E. Beside half of it stands kRoom.
//
// Over an interval of scales the f' of all its scales are taken together, which is an upper bound again.
// Intervals are halved until the bound is within kClose of what a single scale is known to need. A normal
// number's code has the rounding interval of half that number at half the scale, so beyond the first binade
// of scales only the codes next to 0 and the largest one have to be looked at. int8 has no such numbers: all
// its codes are looked at in every binade.
#include "approx/search/fp8_fit.h"

#include "approx/function/composite.h"
#include "approx/function/inverse.h"
#include "approx/search/fitted_gradient.h"
#include "kernels/catalogue/codes.h"
#include "kernels/host/errors.h"
#include "kernels/stores/fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace outgrad::approx {
namespace {

/// Relative, of the y of a code: more than the product's rounding and what the forward is off y* by.
constexpr double kWidened = 0x1p-20;
/// How near to what a scale needs the search ends, and what is added once more as room for the enclosures of
/// a second proof.
constexpr double kClose = 0x1p-18;
/// Roundings of the table's floats below 2, and extrema of f' that lie at the end of a code.
constexpr double kTableRounding = 0x1p-22;
/// f' is taken for its limit from where it is within this.
constexpr double kSettledSlope = 0x1p-44;

/// The library's codes and f32 fit of an activation.
struct DeployedCode {
  const char* activation;
  const char* code;
  const char* fit;
  const char* function;
  double fit_error;  ///< for a stored y, K + A + B
  FittedGradient gradient;
};

template <class A, class Fit>
void add_deployed_code(std::vector<DeployedCode>& all) {
  if constexpr (Fit::kMasked) {
    using Forward = typename A::template Forward<float>;
    const auto gradient = [](float x) {
      return kernels::fitted_gradient<Fit, Forward>(x, kernels::forward_at<Forward>(x));
    };
    all.push_back({Fit::kActivation,
                   A::Code::kName,
                   Fit::kName,
                   Fit::kFunction,
                   Fit::kAB + Fit::kK,
                   {Fit::kAB, static_cast<double>(Fit::kYHi) + static_cast<double>(Fit::kYLo), gradient}});
  }
}

/// Both lists are in the order of the names.
template <class... A, class... Fit>
std::vector<DeployedCode> deployed_codes(kernels::CodedList<A...>, kernels::FitList<Fit...>) {
  std::vector<DeployedCode> all;
  (add_deployed_code<A, Fit>(all), ...);
  return all;
}

const DeployedCode& deployed_code_of(const Spec& spec) {
  static const std::vector<DeployedCode> all =
      deployed_codes(kernels::CodedActivations{}, kernels::ActivationFits<float>::Type{});
  const auto& wanted = std::get<Fp8Spec>(spec.kind);
  for (const DeployedCode& d : all) {
    if (spec.activation.name != d.activation) continue;
    if (wanted.code != d.code)
      throw kernels::SpecError(
          fmt::format("{}: code: '{}' is not the library's, {}", spec.name, wanted.code, d.code));
    if (wanted.fit != d.fit)
      throw kernels::SpecError(
          fmt::format("{}: fit: '{}' is not the library's f32 fit, {}", spec.name, wanted.fit, d.fit));
    if (spec.activation.function != d.function)
      throw kernels::SpecError(fmt::format("{}: {} is fitted for {}", spec.name, d.fit, d.function));
    return d;
  }
  throw kernels::SpecError(fmt::format("{}: the library has no codes of an activation '{}' with a minimum",
                                       spec.name, spec.activation.name));
}

struct Slopes {
  double lo = INFINITY, hi = -INFINITY;
  void include(const Ball& g) {
    lo = std::min(lo, g.lower());
    hi = std::max(hi, g.upper());
  }
};

/// f' over intervals of y on one side of the minimum. It falls, or rises, from 0 at x* to one extremum and
/// then settles.
class Side {
 public:
  Side(const Composite& composite, bool right)
      : composite_(composite), inverse_(composite, right), right_(right) {
    const Activation& f = composite.activation();
    const double x_star = composite.x_star().to_double();
    // near_minimum needs |f''| <= 2 where f is within kAtMinimum of y*. That is within 2^-20 of x*, since f''
    // >= 2^-3 there.
    const Ball bend = composite.gradient(Ball::hull(x_star - 0x1p-20, x_star + 0x1p-20), 2)[1];
    if (!(bend.lower() >= 0x1p-3 && bend.upper() <= 2))
      throw kernels::SpecError("undecided: f'' at the minimum is not between 1/8 and 2");
    for (double step = 1;; ++step) {
      end_ = x_star + (right ? step : -step);
      if (std::abs(end_) > f.reach)
        throw kernels::SpecError("undecided: f' does not settle within its reach");
      if (f.gradient_tail(end_, right) < kSettledSlope) break;
    }
    end_value_ = f.value_ball(Ball(end_));
    // f'' has the sign that it has at x* up to the extremum, the other beyond it.
    std::vector<double> undecided;
    constexpr int kParts = 64;
    for (int k = 0; k < kParts; ++k)
      search(x_star + (end_ - x_star) * k / kParts, x_star + (end_ - x_star) * (k + 1) / kParts, undecided,
             0);
    if (undecided.empty()) throw kernels::SpecError("undecided: f' has no extremum");
    const auto [least, most] = std::minmax_element(undecided.begin(), undecided.end());
    constexpr double kBracketWidth = 0x1p-16;
    if (*most - *least > kBracketWidth || !one_sign(x_star, right ? *least : *most, true) ||
        !one_sign(right ? *most : *least, end_, false)) {
      throw kernels::SpecError("undecided: f' has more than one extremum beside the minimum");
    }
    extremum_ = Ball::hull(*least, *most);
    // Over the bracket f' differs from the value at its middle by no more than |f''| half its width.
    const Ball middle = extremum_.midpoint();
    extreme_slope_ =
        composite.gradient(middle, 1)[0] + composite.gradient(extremum_, 2)[1] * (extremum_ - middle);
    extreme_value_ = f.value_ball(extremum_);
  }

  [[nodiscard]] float extreme_at() const { return static_cast<float>(extreme_value_.to_double()); }

  /// f' over the x of this side with f(x) in [low, high]; nothing if there are none.
  [[nodiscard]] std::optional<Slopes> over(double low, double high) {
    const Ball& y_star = composite_.y_star();
    const double top = right_ ? INFINITY : 0;
    if (high < y_star.lower() || low >= top) return {};
    Slopes s;
    // f rises from the minimum outwards.
    include(low, s);
    include(high, s);
    if (low <= extreme_value_.upper() && high >= extreme_value_.lower()) s.include(extreme_slope_);
    return s;
  }

 private:
  /// f' at the x with f(x) = y.
  void include(double y, Slopes& s) {
    if (!((Ball(y) - composite_.y_star()).lower() > kAtMinimum))
      return s.include(Ball::hull(Ball(0.0), near_minimum(y)));
    if (!((Ball(y) - end_value_).negative())) {
      const Activation& f = composite_.activation();
      return s.include(Ball(right_ ? f.right_limit_gradient : f.left_limit_gradient) +
                       Ball::hull(-kSettledSlope, kSettledSlope));
    }
    s.include(composite_.gradient(inverse_(Ball(y)), 1)[0]);
  }
  /// A bound of f' for y next to y*: f' = 0 there, and |f'|^2 <= 4 (y - y*) for |f''| <= 2.
  [[nodiscard]] Ball near_minimum(double y) const {
    const double above = std::max(0.0, (Ball(y) - composite_.y_star()).upper()),
                 slope = 2 * std::sqrt(above) * kSumsUp;
    return Ball(right_ ? slope : -slope);
  }

  void search(double a, double b, std::vector<double>& undecided, int depth) const {
    const Ball bend = composite_.gradient(Ball::hull(a, b), 2)[1];
    if (bend.positive() || bend.negative()) return;
    constexpr int kDeepest = 24;
    if (depth == kDeepest) {
      undecided.insert(undecided.end(), {a, b});
      return;
    }
    search(a, 0.5 * (a + b), undecided, depth + 1);
    search(0.5 * (a + b), b, undecided, depth + 1);
  }
  /// f'' has no zero between a and b: `search` has shown it, so one point tells its sign.
  [[nodiscard]] bool one_sign(double a, double b, bool positive) const {
    const Ball bend = composite_.gradient(Ball(0.5 * (a + b)), 2)[1];
    return positive ? bend.positive() : bend.negative();
  }

  static constexpr double kAtMinimum = 0x1p-44;
  const Composite& composite_;
  Inverse inverse_;
  bool right_;
  double end_ = 0;
  Ball end_value_, extremum_, extreme_slope_, extreme_value_;
};

/// The longest part of a cut into 1, 2 and 4.
using Lengths = std::array<double, 3>;

Lengths longest_parts(const std::optional<Slopes>& left, const std::optional<Slopes>& right) {
  Lengths lengths{};
  if (!left && !right) return lengths;
  const double lo = left ? left->lo : right->lo, hi = right ? right->hi : left->hi;
  for (size_t bits = 0; bits < lengths.size(); ++bits) {
    const int parts = 1 << bits;
    lengths[bits] = (hi - lo) / parts;
    if (!left || !right || left->hi >= right->lo) continue;
    for (int k = 1; k < parts; ++k)
      lengths[bits] =
          std::min(lengths[bits], std::max((left->hi - left->lo) / k, (right->hi - right->lo) / (parts - k)));
  }
  return lengths;
}

/// The numbers >= 0 that codes stand for.
struct Grid {
  std::vector<double> numbers;
  /// what is said of the numbers up to this one, and of the last, does not follow from what is said of their
  /// doubles
  size_t apart;
  bool signed_zero;  ///< else one code has the y on either side of 0
  double end = INFINITY;  ///< y s is below
  bool powers_of_2 = false;  ///< are all scales
};

Grid grid_of(Format format) {
  Grid grid{{}, size_t{2} << shape_of(format).fraction_bits, true};
  for (std::uint32_t code = 0; code < 0x80 && std::isfinite(decode(format, code)); ++code)
    grid.numbers.push_back(decode(format, code));
  return grid;
}

Grid int8_grid() {
  constexpr int kLargest = 127;
  Grid grid{{}, kLargest, false};
  for (int code = 0; code <= kLargest; ++code) grid.numbers.push_back(code);
  return grid;
}

/// e2m1, whose codes differ in what the numbers next to them are.
Grid e2m1_grid(double end, bool powers_of_2) {
  return {{0, 0.5, 1, 1.5, 2, 3, 4, 6}, 7, true, end, powers_of_2};
}

class ScaleSearch {
 public:
  ScaleSearch(Side& left, Side& right, Grid grid) : left_(left), right_(right), grid_(std::move(grid)) {}

  /// The longest parts over all codes and the scales from `least` to `most`.
  Lengths run(double least, double most) {
    if (grid_.powers_of_2) {
      for (double scale = least; scale <= most; scale *= 2) {
        for (size_t code = 0; code < grid_.numbers.size(); ++code)
          see(code, false, scale), see(code, true, scale);
      }
      return reached_;
    }
    constexpr int kFirstParts = 16;
    struct Job {
      size_t code;
      bool negative;
      double from, to;
    };
    std::vector<Job> jobs;
    for (double from = least; from < most; from *= 2) {
      const double to = std::min(2 * from, most);
      for (size_t code = 0; code < grid_.numbers.size(); ++code) {
        if (from > least && code > grid_.apart && code + 1 != grid_.numbers.size()) continue;
        for (const bool negative : {false, true}) {
          for (int k = 0; k < kFirstParts; ++k)
            jobs.push_back({code, negative, from + (to - from) * k / kFirstParts,
                            from + (to - from) * (k + 1) / kFirstParts});
        }
      }
    }
    for (const Job& job : jobs) see(job.code, job.negative, job.to);
    for (const Job& job : jobs) bound(job.code, job.negative, job.from, job.to, 0);
    return bound_;
  }

 private:
  /// Over the scales of [from, to], outer.
  Lengths lengths(size_t code, bool negative, double from, double to) {
    const std::vector<double>& numbers = grid_.numbers;
    const double lower = code == 0 ? 0 : 0.5 * (numbers[code - 1] + numbers[code]);
    const double upper = code + 1 == numbers.size() ? grid_.end : 0.5 * (numbers[code] + numbers[code + 1]);
    const double near = lower / to * (1 - kWidened), far = upper / from * (1 + kWidened);
    if (code == 0 && !grid_.signed_zero) return longest_parts(left_.over(-far, 0), right_.over(-far, far));
    if (!negative) return longest_parts({}, right_.over(near, far));
    return longest_parts(left_.over(-far, -near), right_.over(-far, -near));
  }

  void see(size_t code, bool negative, double scale) {
    const Lengths at = lengths(code, negative, scale, scale);
    for (size_t b = 0; b < at.size(); ++b) reached_[b] = std::max(reached_[b], at[b]);
  }

  void bound(size_t code, bool negative, double from, double to, int depth) {
    const Lengths over = lengths(code, negative, from, to);
    bool close = true;
    for (size_t b = 0; b < over.size(); ++b) close &= over[b] <= std::max(bound_[b], reached_[b] + kClose);
    constexpr int kDeepest = 40;
    if (close || depth == kDeepest) {
      for (size_t b = 0; b < over.size(); ++b) bound_[b] = std::max(bound_[b], over[b]);
      return;
    }
    const double middle = 0.5 * (from + to);
    see(code, negative, middle);
    bound(code, negative, from, middle, depth + 1);
    bound(code, negative, middle, to, depth + 1);
  }

  Side& left_;
  Side& right_;
  Grid grid_;
  Lengths reached_{}, bound_{};
};

}  // namespace

Fp8Model fit_fp8(const Composite& composite, const Spec& spec) {
  const DeployedCode& deployed = deployed_code_of(spec);
  Side left(composite, false), right(composite, true);
  Fp8Model m;
  m.code = deployed.code;
  m.fit = deployed.fit;
  m.kLeastAt = left.extreme_at();
  m.kGreatestAt = right.extreme_at();
  m.kG = fitted_gradient_error(composite, deployed.gradient);
  m.kRoom = (std::max(2 * deployed.fit_error, m.kG) + m.kG + kTableRounding) * kSumsUp;
  if (!(m.kRoom <= spec.target)) {
    throw kernels::SpecError(
        fmt::format("{}: target {} is not reached: the fit and its rounding take 2^{:.2f}", spec.name,
                    spec.accuracy, std::log2(m.kRoom)));
  }
  const auto bound = [&](const Lengths& longest, std::array<double, 3>& total) {
    for (size_t bits = 0; bits < longest.size(); ++bits) {
      total[bits] = (0.5 * longest[bits] + kClose + deployed.fit_error + kTableRounding + m.kRoom) * kSumsUp;
    }
  };
  const auto over = [&](Grid grid, Fp8Model::Scales& scales) {
    bound(ScaleSearch(left, right, std::move(grid))
              .run(static_cast<double>(scales.least), static_cast<double>(scales.most)),
          scales.kT);
  };
  over(grid_of(Format::e4m3), m.e4m3);
  over(grid_of(Format::e5m2), m.e5m2);
  over(int8_grid(), m.int8);
  // y s is below 8 in a block of MXFP4. In one of NVFP4 a scale that is a normal number is at least 16/17 of
  // what it is rounded from.
  over(e2m1_grid(8, true), m.mxfp4);
  over(e2m1_grid(6.375, false), m.nvfp4);
  const Lengths above = longest_parts({}, right.over(0, INFINITY)),
                below = longest_parts(left.over(-INFINITY, 0), right.over(-INFINITY, 0));
  Lengths either;
  for (size_t bits = 0; bits < either.size(); ++bits) either[bits] = std::max(above[bits], below[bits]);
  bound(either, m.kSignT);
  return m;
}

}  // namespace outgrad::approx
