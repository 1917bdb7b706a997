// The ten activations, see swept_activation.h.
//
// Facts of Ends that are not enclosures. For x > 0, f(x) = x q(x), where 0 < q < 1 rises to 1, in these
// cases: gelu (q = Phi), silu, swish and quick_gelu (sigma(B x), B > 0), gelu_tanh (sigma of an odd rising
// polynomial) and mish (tanh of softplus). So f(x) < x, and 1 - q(x) <= 1 - q(R) from R on. On the left these
// functions are negative, rise towards -inf (Activation proves f' < 0 there) and tend to 0. q(0) is f'(0):
// Phi(0) = sigma(0) = 1/2, tanh(log 2) = (4 - 1) / (4 + 1). Their second term at 0 is x^2 q'(0), and q'(0) >
// 0. softplus(x) - x = log(1 + exp(-x)) > 0 falls. tanh x = x - x^3 / 3 + ... lies between 0 and x. exp(x) -
// 1 = x + x^2 / 2 + ... lies above x. The limits of tanh, sigmoid, softplus and exp are known.
//
// flat_from: from x = X on, |f' - 1| <= 2^-17 (Formula::slopes). A stored y >= flat_from differs from f(x) by
// a relative 2^-8 at most, half an ulp of bf16, and f(X) <= flat_from (1 - 2^-8). So both x and the x of y
// itself are at least X.
//
// slope_of_value: 1 - y^2, y (1 - y), 1 - exp(-y) = -elu(-y), and 1 + y left of 0. The first two are two
// binary64 roundings of numbers of at most 1, since y^2 is exact. The third is the reference of elu, within a
// relative 2^-51 (its cells keep half of Reference::kValueBound). The last is one rounding.
//
// Floors: O is a maximum over runs. So half the range of f' over any x that share a correctly rounded y and a
// branch is a lower bound, less the reference's own error. For a 16-bit format all x are tried. For f32 the
// neighbourhood of x* is tried or, if f rises, neighbourhoods of multiples of 1/16. The lesser branch counts,
// because C of either branch is searched for above the floor.

#include "validation/sweep/swept_activation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "validation/exact/activation.h"
#include "validation/exact/function_oracle.h"
#include "validation/limits.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {
namespace {

/// Checks by intervals what the derivations of the tables require. Throws std::logic_error.
void require_minimum(const SweptActivation& of) {
  if (!of.masked()) return;
  const Interval& x_star = of.analysis().x_star();
  const double next = std::nextafter(of.x_star, kInfinity);
  if (!certainly_less(Interval(of.x_star), x_star) || !certainly_less(x_star, Interval(next))) {
    throw std::logic_error("the minimum of " + std::string(of.name) + " is not where its constant says");
  }
}

double bend_of(const Activation& activation) {
  constexpr double kStep = 0x1p-4;
  double most = 0;
  for (const Formula& formula : activation.formulas()) {
    for (double x = formula.far_low; x < formula.far_high; x += kStep) {
      most = std::max(most, 4 * formula.f.taylor(CoarseInterval(x, x + kStep), 2)[2].magnitude());
    }
  }
  return most;
}

double flat_from(const SweptActivation& of) {
  if (of.ends.right == Ends::Right::below_one) return kInfinity;
  if (of.ends.right == Ends::Right::is_x) return 0;  // y >= 0 comes from x > -2^-24, and f' is 1 from 0 on
  constexpr double kStep = 0.25, kFlat = 0x1p-17;
  const Formula& formula = of.analysis().only();
  double x = kStep;
  while ((formula.slopes(x, kInfinity) - 1).magnitude() > kFlat) x += kStep;
  return formula.f.at<0>(Interval(x))[0].upper() * (1 + 0x1p-7);
}

/// The greatest half range of f' over a run among these x, which ascend and are all of one branch.
double longest_run(const SweptActivation& of, const FloatFormat& format, const std::vector<float>& x,
                   Oracle& oracle) {
  const auto [value, lo, hi, slope] = of.reference().at(x);
  std::vector<float> y(x.size());
  round_values({x.data(), lo.data(), hi.data(), std::ssize(x)}, y.data(), format, oracle);
  double longest = 0;
  for (std::size_t begin = 0; begin < x.size();) {
    std::size_t end = begin + 1;
    while (end < x.size() && std::bit_cast<std::uint32_t>(y[end]) == std::bit_cast<std::uint32_t>(y[begin]))
      ++end;
    const auto [least, greatest] = std::minmax_element(slope.begin() + static_cast<std::ptrdiff_t>(begin),
                                                       slope.begin() + static_cast<std::ptrdiff_t>(end));
    longest = std::max(longest, (*greatest - *least) / 2);
    begin = end;
  }
  return longest;
}

double floor_of(const SweptActivation& of, const FloatFormat& format) {
  const Domain domain{format};
  const std::int64_t finite = domain.finite(), split = domain.first_right(of.x_star);
  const std::unique_ptr<Oracle> oracle = of.oracle();
  const auto longest = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> x(static_cast<std::size_t>(end - begin));
    domain.fill(begin, end - begin, x.data());
    return longest_run(of, format, x, *oracle);
  };
  double floor = 0;
  if (of.masked()) {
    // In f32 the run next to x* has about 2000 x.
    const std::int64_t near = format.bits < 32 ? finite : 8192;
    floor = std::min(longest(std::max<std::int64_t>(split - near, 0), split),
                     longest(split, std::min(split + near, finite)));
  } else if (format.bits < 32) {
    floor = longest(0, finite);
  } else {
    constexpr std::int64_t kNeighbours = 64;
    constexpr int kFarthest = 16, kPerUnit = 16;
    for (int k = -kFarthest * kPerUnit; k <= kFarthest * kPerUnit; ++k) {
      const std::int64_t at = domain.first_right(static_cast<double>(k) / kPerUnit);
      floor = std::max(floor, longest(at - kNeighbours, at + kNeighbours));
    }
  }
  return floor - 2 * kSweepMargin;
}

const SweptActivation& elu();

void slope_of_tanh(const float* y, double* g, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) g[i] = 1 - static_cast<double>(y[i]) * y[i];
}
void slope_of_sigmoid(const float* y, double* g, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) g[i] = y[i] * (1 - static_cast<double>(y[i]));
}
void slope_of_softplus(const float* y, double* g, std::int64_t n) {
  constexpr std::int64_t kStretch = 512;
  float negative[kStretch];
  double lo[kStretch], hi[kStretch], slope[kStretch];
  for (std::int64_t begin = 0; begin < n; begin += kStretch) {
    const std::int64_t count = std::min(kStretch, n - begin);
    for (std::int64_t i = 0; i < count; ++i)
      negative[i] = -std::min(y[begin + i], std::numeric_limits<float>::max());
    elu().reference().evaluate(negative, g + begin, lo, hi, slope, count);
    for (std::int64_t i = begin; i < begin + count; ++i) g[i] = -g[i];
  }
}
void slope_of_elu(const float* y, double* g, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) g[i] = y[i] < 0 ? 1 + static_cast<double>(y[i]) : 1;
}

constexpr Ends kHalf{0, -1, Ends::Right::below_x, true, 1, 2, 1, 0};
constexpr Ends kThreeFifths{0, -1, Ends::Right::below_x, true, 3, 5, 1, 0};

constexpr std::array kAll{
    SweptActivation{"gelu", "x*normal_cdf(x)", kGeluXStar, kHalf},
    SweptActivation{"gelu_tanh", "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))", -0x1.81429f9e97e4dp-1, kHalf},
    SweptActivation{"quick_gelu", "x*sigmoid(1.702*x)", -0x1.80974a62be3dfp-1, kHalf},
    SweptActivation{"silu", "x*sigmoid(x)", kSiluXStar, kHalf},
    SweptActivation{"swish", "x*sigmoid(0x1.8p+0*x)", -0x1.b461efb5ac2bap-1, kHalf},
    SweptActivation{"mish", "x*tanh(softplus(x))", -0x1.31432c0d12d85p+0, kThreeFifths},
    SweptActivation{
        "tanh", "tanh(x)", -kInfinity, {-1, 1, Ends::Right::below_one, true, 1, 1, 0, -1}, slope_of_tanh},
    SweptActivation{"sigmoid",
                    "sigmoid(x)",
                    -kInfinity,
                    {0, 1, Ends::Right::below_one, false, 0, 1, 0, 0},
                    slope_of_sigmoid},
    SweptActivation{"softplus",
                    "softplus(x)",
                    -kInfinity,
                    {0, 1, Ends::Right::above_x, false, 0, 1, 0, 0},
                    slope_of_softplus},
    SweptActivation{
        "elu", "0x1p+0*(exp(x)-1)", -kInfinity, {-1, 1, Ends::Right::is_x, true, 1, 1, 1, 0}, slope_of_elu},
};
const SweptActivation& elu() { return kAll.back(); }

/// What `make` gives for an activation, made at its first use.
template <class T, class Make>
const T& made_once(const SweptActivation& of, const Make& make) {
  static std::array<std::once_flag, kAll.size()> flags;
  static std::array<std::optional<T>, kAll.size()> made;
  const auto k = static_cast<std::size_t>(&of - kAll.data());
  std::call_once(flags[k], [&] { made[k].emplace(make()); });
  return *made[k];
}

}  // namespace

constinit const SweptActivation &kGelu = kAll[0], &kSilu = kAll[3];

const std::vector<const SweptActivation*>& swept_activations() {
  static const std::vector<const SweptActivation*> all = [] {
    std::vector<const SweptActivation*> each;
    for (const SweptActivation& activation : kAll) each.push_back(&activation);
    return each;
  }();
  return all;
}

const SweptActivation* swept_activation(std::string_view name) {
  for (const SweptActivation* activation : swept_activations()) {
    if (activation->name == name) return activation;
  }
  return nullptr;
}

const Activation& SweptActivation::analysis() const {
  return activation_of(std::string(name), std::string(function), masked());
}

const Reference& SweptActivation::reference() const {
  return made_once<Reference>(*this, [&] {
    require_minimum(*this);
    return Reference(analysis(), ends);
  });
}

std::unique_ptr<Oracle> SweptActivation::oracle() const {
  if (this == &kGelu) return std::make_unique<GeluOracle>();
  if (this == &kSilu) return std::make_unique<SiluOracle>();
  return std::make_unique<FunctionOracle>(analysis(), ends, x_star);
}

const SweptFacts& SweptActivation::facts() const {
  return made_once<SweptFacts>(*this, [&] {
    return SweptFacts{bend_of(analysis()),
                      flat_from(*this),
                      {floor_of(*this, kF32), floor_of(*this, kF16), floor_of(*this, kBf16)}};
  });
}

double SweptActivation::oracle_floor(const FloatFormat& format) const {
  return facts().floor[format.precision == kF32.precision ? 0 : format.precision == kF16.precision ? 1 : 2];
}

double SweptActivation::value_limit(bool right) const {
  if (!right) return ends.left_limit == 0 ? ends.left_side * 0.0 : ends.left_limit;
  return ends.right == Ends::Right::below_one ? 1 : kInfinity;
}

double SweptActivation::slope_limit(bool right) const {
  return right && ends.right != Ends::Right::below_one ? 1 : 0;
}

}  // namespace outgrad::validation
