// Defines the built-in activations, and bounds the tails of all.
//
// Each built-in one settles like exp(-k |x|) or faster, k >= 1 in the variable u = slope x (slope = beta,
// 1.702 or 1), and its reach is 128/slope, so that |f' - limit| there is below 1000 (2 + 3 |u|) e^-|u| <
// 2^-165:
//   x sigmoid(b x)   u = b x: f' = sigma(u) + u sigma'(u), sigma(u), 1 - sigma(-u) < e^-|u| on their sides
//                    and sigma' < e^-|u|: (1 + |u|) e^-|u|
//   mish             left: tanh(sp) + x sech^2(sp) sigma, each at most e^-|x| (1 + |x|); right: 1 - tanh(sp)
//                    < 2 e^-2x, x sech^2 < 4 x e^-2x
//   tanh, sigmoid    sech^2(x) < 4 e^-2|x|;  sigma' < e^-|x|
//   softplus, elu    sigma(x) and 1 - sigma(x) < e^-|x|;  alpha e^x left with alpha <= 1000,
//                    exact on the right
//   gelu             Mills: |f'| <= |x| phi(x), |f' - 1| <= x phi(x), below 2^-1000 at 128
//   gelu_tanh        x sigmoid(w), w = 2 sqrt(2/pi) (x + 0.044715 x^3), |x w'| <= 3 |w|: (1 + 3 |w|) e^-|w|,
//                    |w| > 1000 at 128
#include "approx/function/activations.h"

#include "approx/progress.h"
#include "kernels/host/errors.h"
#include "kernels/support/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

namespace outgrad::approx {
namespace {

constexpr double kReach = 128;
constexpr double kBeyondExponential = 0x1p-165, kBeyondGaussian = 0x1p-1000;

struct Definition {
  const char* name;
  const char* function;  ///< {} stands for the parameter
  double left, right;
};

constexpr std::array<Definition, 10> kDefinitions{{
    {"gelu", "x*normal_cdf(x)", 0, 1},
    // 1 + tanh(u) = 2 sigmoid(2 u), without its cancellation
    {"gelu_tanh", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", 0, 1},
    {"quick_gelu", "x*sigmoid(1.702*x)", 0, 1},
    {"silu", "x*sigmoid(x)", 0, 1},
    {"swish", "x*sigmoid({}*x)", 0, 1},
    {"mish", "x*tanh(softplus(x))", 0, 1},
    {"tanh", "tanh(x)", 0, 0},
    {"sigmoid", "sigmoid(x)", 0, 0},
    {"softplus", "softplus(x)", 0, 1},
    {"elu", "{}*(exp(x)-1)", 0, 1},
}};

}  // namespace

/// The range of f' - limit from each point of a grid outwards, computed once.
class GradientTails {
 public:
  using Range = Activation::TailRange;

  /// `x` on the side `right`.
  Range bound(const Activation& f, const Ball& x, bool right) {
    std::call_once(once_[right ? 1 : 0], [&] { fill(f, right); });
    const double start = right ? x.lower() : -x.upper();  // outward distance on the mirrored axis
    if (start >= f.reach) return {f.beyond, f.beyond};
    const auto& suffix = suffix_[right ? 1 : 0];
    const double step = f.reach / kCells;
    const int cell = static_cast<int>(std::floor(start / step)) + kCells;  // the cell that holds `start`
    Range worst = suffix[static_cast<size_t>(std::clamp(cell + 1, 0, 2 * kCells))];
    // What is left of that cell, in parts fine enough for 1%.
    const double end = (cell + 1 - kCells) * step;
    for (int i = 0; i < kFineParts; ++i) {
      include(worst, distance(f, start + (end - start) * i / kFineParts,
                              start + (end - start) * (i + 1) / kFineParts, right));
    }
    return worst;
  }

 private:
  static void include(Range& r, const Range& s) {
    r = {std::max(r.below, s.below), std::max(r.above, s.above)};
  }
  static bool bounded(const Range& r) { return std::isfinite(r.below) && std::isfinite(r.above); }
  /// Over [a, b] (mirrored for the left side), both ends widened by an ulp. An exponential that spans many
  /// octaves of its argument's ball has no enclosure: its halves may have one.
  static Range distance(const Activation& f, double a, double b, bool right, int halvings = kHalvings) {
    const Range whole = undivided_distance(f, a, b, right);
    if (bounded(whole) || halvings == 0) return whole;
    const double middle = 0.5 * (a + b);
    Range worst = distance(f, a, middle, right, halvings - 1);
    if (bounded(worst)) include(worst, distance(f, middle, b, right, halvings - 1));
    return worst;
  }
  static Range undivided_distance(const Activation& f, double a, double b, bool right) {
    a = std::nextafter(a, -INFINITY);
    b = std::nextafter(b, INFINITY);
    if (right && f.linear_from_zero && a >= 0) return {0, 0};
    const Ball x = right ? Ball::hull(a, b) : Ball::hull(-b, -a);
    const Ball middle = x.midpoint();
    const Series wide = f.value_series(Series::variable(x, 3)),
                 point = f.value_series(Series::variable(middle, 2));
    const Ball limit(right ? f.right_limit_gradient : f.left_limit_gradient);
    // The mean value form: tighter than f' over the ball by an order of its width.
    const Ball direct = wide[1] - limit, mean = point[1] - limit + wide[2] * Ball(2.0) * (x - middle);
    const bool is_direct = arb_is_finite(direct.raw()) != 0, is_mean = arb_is_finite(mean.raw()) != 0;
    if (!is_direct && !is_mean) return {INFINITY, INFINITY};
    const double low = is_direct && is_mean ? std::max(direct.lower(), mean.lower())
                       : is_mean            ? mean.lower()
                                            : direct.lower();
    const double high = is_direct && is_mean ? std::min(direct.upper(), mean.upper())
                        : is_mean            ? mean.upper()
                                             : direct.upper();
    return {std::max(0.0, -low), std::max(0.0, high)};
  }
  void fill(const Activation& f, bool right) {
    std::vector<Range>& suffix = suffix_[right ? 1 : 0];
    suffix.assign(2 * kCells + 1, Range{f.beyond, f.beyond});
    const double step = f.reach / kCells;
    Stage stage("gradient's tail", 2 * kCells);
    for (int k = 2 * kCells; k-- > 0; stage.tick()) {
      Range worst = suffix[static_cast<size_t>(k) + 1];
      const double a = (k - kCells) * step;
      for (int i = 0; i < kParts && bounded(worst); ++i)
        include(worst, distance(f, a + step * i / kParts, a + step * (i + 1) / kParts, right));
      suffix[static_cast<size_t>(k)] = worst;
    }
  }
  static constexpr int kCells = 512, kParts = 4, kFineParts = 16, kHalvings = 8;
  std::once_flag once_[2];
  std::vector<Range> suffix_[2];
};

double Activation::value(double x) const {
  // A user's own may cancel in double, log(1 + exp(-50)) for one: it is evaluated in balls.
  return name == "expression" ? (*expression)(Ball(x)).to_double() : rough_value(x);
}
double Activation::rough_value(double x) const { return linear_from_zero && x >= 0 ? x : (*expression)(x); }
Real Activation::value_real(const Real& x) const { return linear_from_zero && x >= 0 ? x : (*expression)(x); }
Ball Activation::value_ball(const Ball& x) const {
  if (!linear_from_zero || x.negative()) return (*expression)(x);
  if (x.lower() >= 0) return x;
  return Ball::hull((*expression)(Ball::hull(x, Ball(0.0))), x);
}
Series Activation::value_series(const Series& x) const {
  if (!linear_from_zero || x[0].negative()) return (*expression)(x);
  if (x[0].lower() >= 0) return x;
  // Either side of the joint: both series at once.
  const Series below = (*expression)(x);
  Series r(x.length());
  for (slong k = 0; k < x.length(); ++k) r.set(k, Ball::hull(below[k], x[k]));
  return r;
}
Series Activation::expand(const Ball& x, slong length) const {
  Series plain = value_series(Series::variable(x, length));
  const auto signs_told = [&] {
    for (slong k = 0; k < length; ++k) {
      if (!plain[k].positive() && !plain[k].negative()) return false;
    }
    return true;
  };
  // Terms of the model: with 8, parts need to be no narrower than a tenth or so where f is e^-40.
  constexpr slong kOrder = 8;
  if (name != "expression" || length >= kOrder || arb_is_exact(x.raw()) != 0 || signs_told()) return plain;
  const Ball middle = x.midpoint(), shift = x - middle;
  const Series rest = value_series(Series::variable(x, kOrder + 1));
  if (!rest[kOrder].finite()) return plain;
  const Series at = value_series(Series::variable(middle, kOrder));
  const auto choose = [](slong n, slong k) {
    double r = 1;
    for (slong i = 1; i <= k; ++i) r = r * static_cast<double>(n - k + i) / static_cast<double>(i);
    return Ball(r);
  };
  for (slong k = 0; k < length; ++k) {
    Ball model = rest[kOrder] * choose(kOrder, k);
    for (slong j = kOrder; j-- > k;) model = model * shift + at[j] * choose(j, k);
    Ball meet;
    if (!plain[k].finite()) {
      plain.set(k, model);
    } else if (arb_intersection(meet.raw(), plain[k].raw(), model.raw(), kPrecisionBits) != 0) {
      plain.set(k, meet);
    }
  }
  return plain;
}
Activation::TailRange Activation::gradient_tail_range(const Ball& x, bool right) const {
  return tails->bound(*this, x, right);
}
double Activation::gradient_tail(const Ball& x, bool right) const {
  const TailRange r = gradient_tail_range(x, right);
  return std::max(r.below, r.above);
}

const std::vector<std::string>& activation_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> r;
    for (const Definition& d : kDefinitions) r.emplace_back(d.name);
    return r;
  }();
  return names;
}

Activation find_activation(const std::string& name, const Parameters& parameters) {
  for (const Definition& d : kDefinitions) {
    if (name != d.name) continue;
    Activation a;
    a.name = name;
    const double parameter = name == "swish" ? parameters.beta : parameters.alpha;
    a.function = d.function;
    if (const size_t at = a.function.find("{}"); at != std::string::npos)
      a.function.replace(at, 2, fmt::format("{:a}", parameter));
    a.left_limit_gradient = d.left;
    a.right_limit_gradient = d.right;
    a.reach = name == "swish" ? kReach / parameters.beta : kReach;
    a.beyond = name == "gelu" || name == "gelu_tanh" ? kBeyondGaussian : kBeyondExponential;
    a.linear_from_zero = name == "elu";
    a.expression = std::make_shared<Expression>(a.function);
    a.tails = std::make_shared<GradientTails>();
    return a;
  }
  throw kernels::SpecError(fmt::format("activation '{}' is unknown; known: {}{}", name.substr(0, 40),
                                       fmt::join(activation_names(), ", "),
                                       kernels::did_you_mean(name, activation_names())));
}

Activation activation_from_expression(const std::string& text) {
  Activation a;
  a.name = "expression";
  a.function = text;
  a.domain = a.reach;
  a.expression = std::make_shared<Expression>(text);
  a.tails = std::make_shared<GradientTails>();
  return a;
}

}  // namespace outgrad::approx
