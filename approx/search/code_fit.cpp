// Proves the range of f' and the errors of codes for it.
//
// The range is found by bisection over balls: a part is done where its enclosure is within 2^-30 of what f'
// is known to reach.
//
// The error of g, f'(x) as kernels/stores/code.h computes it. GELU's is the derivative of its f32 forward's
// polynomials (of f'(-x) = 1 - f'(x)): over parts of each row, the difference of p' and f' by its Taylor
// polynomial of degree 1 and a bound of the rest, and what the fp32 operations round, from the largest
// magnitudes of what they round. The other activations compute f' in double precision within
// kernels::kSlopeError, which `outgrad check` proves, and round it once.
#include "approx/search/code_fit.h"

#include "approx/function/composite.h"
#include "kernels/activations.h"
#include "kernels/host/errors.h"
#include "kernels/stores/code.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace outgrad::approx {
namespace {

using GeluForward = kernels::ForwardFit<float>::Type;

/// The library's activations and their functions.
struct Deployed {
  const char *activation, *function;
  double reach;  ///< beyond, f' is taken at this |x|; of GELU 0: its forward's rows say how far they reach
};

template <class Gelu, class... Fit, class... Forward>
std::vector<Deployed> list_of(kernels::FitList<Gelu, Fit...>, kernels::ForwardList<Forward...>) {
  return {{Gelu::kActivation, Gelu::kFunction, 0},
          {Fit::kActivation, Fit::kFunction, Forward::kSlopeReach}...};
}

/// That of the spec; null for a user's own function, whose g the library does not compute.
const Deployed* deployed_of(const Spec& spec) {
  static const std::vector<Deployed> all =
      list_of(kernels::ActivationFits<float>::Type{}, kernels::ActivationForwards{});
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Deployed& d) { return spec.activation.name == d.activation; });
  if (found == all.end()) return nullptr;
  if (spec.activation.function != found->function) {
    throw kernels::SpecError(
        fmt::format("{}: the library's {} is {}", spec.name, found->activation, found->function));
  }
  return &*found;
}

/// sup of sign f'.
class Extreme {
 public:
  Extreme(const Composite& composite, double sign) : composite_(composite), sign_(sign) {
    const Activation& f = composite.activation();
    const double low = sign * f.left_limit_gradient, high = sign * f.right_limit_gradient;
    reached_ = std::max(low, high);
    bound_ = reached_ + f.beyond;
    constexpr int kParts = 1024;
    for (int k = 0; k < kParts; ++k)
      search(f.reach * (2.0 * k / kParts - 1), f.reach * (2.0 * (k + 1) / kParts - 1), 0);
  }
  [[nodiscard]] double bound() const { return bound_; }

 private:
  void search(double a, double b, int depth) {
    const Ball x = Ball::hull(a, b), middle = x.midpoint();
    const Series wide = composite_.gradient(x, 2);
    const Ball point = composite_.gradient(middle, 1)[0];
    reached_ = std::max(reached_, (Ball(sign_) * point).lower());
    const double direct = (Ball(sign_) * wide[0]).upper(),
                 mean = (Ball(sign_) * (point + wide[1] * (x - middle))).upper();
    const double above = std::isfinite(direct) && std::isfinite(mean) ? std::min(direct, mean)
                         : std::isfinite(mean)                        ? mean
                                                                      : direct;
    constexpr double kClose = 0x1p-30;
    if (above <= reached_ + kClose) {
      bound_ = std::max(bound_, above);
      return;
    }
    constexpr int kDeepest = 60;
    if (depth == kDeepest)
      throw kernels::SpecError(fmt::format("undecided: the range of f' near x = {:.6g}", a));
    search(a, middle.to_double(), depth + 1);
    search(middle.to_double(), b, depth + 1);
  }

  const Composite& composite_;
  double sign_, reached_ = 0, bound_ = 0;
};

/// Outwards on a grid, whose numbers are floats for |f'| < 2, with room for the enclosures of a second proof.
/// Beyond that the next float, so that the end is outside, and refused.
float outwards(double v, bool up) {
  constexpr double kGrid = 0x1p-23, kRoom = 0x1p-40;
  const double end = (up ? std::ceil((v + kRoom) / kGrid) : std::floor((v - kRoom) / kGrid)) * kGrid;
  const auto near = static_cast<float>(end);
  const bool inside = up ? static_cast<double>(near) < end : static_cast<double>(near) > end;
  return inside ? std::nextafter(near, up ? HUGE_VALF : -HUGE_VALF) : near;
}

/// c_1 to c_n of a row's polynomial, and what they are multiplied by.
struct Row {
  float centre;
  std::span<const float> c;
  float factor;
};

/// Taylor coefficients of p' about u, of degree 0 to 2.
std::array<Ball, 3> derivatives(const Row& row, const Ball& u) {
  std::array<Ball, 3> sum{Ball(0.0), Ball(0.0), Ball(0.0)};
  for (size_t k = row.c.size(); k >= 1; --k) {
    // exact: a factor is a power of 2
    const auto n = static_cast<double>(k),
               c = static_cast<double>(row.c[k - 1]) * static_cast<double>(row.factor);
    sum[0] = sum[0] * u + Ball(n * c);
    if (k >= 2) sum[1] = sum[1] * u + Ball(n * (n - 1) * c);
    if (k >= 3) sum[2] = sum[2] * u + Ball(n * (n - 1) * (n - 2) / 2 * c);
  }
  return sum;
}

/// sup |p'(x - centre) - f'(x)| over [a, b].
double row_error(const Composite& composite, const Row& row, double a, double b) {
  constexpr int kParts = 32;
  double worst = 0;
  for (int i = 0; i < kParts; ++i) {
    const double low = a + (b - a) * i / kParts, high = a + (b - a) * (i + 1) / kParts,
                 half = (high - low) * (0.5 + 0x1p-40);
    const Ball part = Ball::hull(low, high), middle(0.5 * (low + high)),
               centre(static_cast<double>(row.centre));
    const std::array<Ball, 3> at = derivatives(row, middle - centre), over = derivatives(row, part - centre);
    const Series f_at = composite.gradient(middle, 2), f_over = composite.gradient(part, 3);
    const double bound = (at[0] - f_at[0]).magnitude() + (at[1] - f_at[1]).magnitude() * half +
                         (over[2] - f_over[2]).magnitude() * half * half;
    worst = std::max(worst, bound * kSumsUp);
  }
  return worst;
}

/// What the fp32 operations of kernels::evaluate_row_and_slope round, for |x - centre| <= reach. An
/// underflow is below 2^-140.
double row_rounding(const Row& row, double reach) {
  constexpr double kUnit = 0x1p-24;
  const double u = reach * (1 + kUnit), u_off = kUnit * reach;
  double p = std::abs(static_cast<double>(row.c.back())), p_off = 0, g = p, g_off = 0;
  for (size_t k = row.c.size() - 1; k >= 1; --k) {
    const double p_next = p * u + std::abs(static_cast<double>(row.c[k - 1]));
    p_off = p_off * u + p * u_off + kUnit * (p_next + p_off);
    p = p_next;
    const double g_next = g * u + p;
    g_off = g_off * u + g * u_off + p_off + kUnit * (g_next + g_off + p_off);
    g = g_next;
  }
  return (g_off + kUnit * g) * std::abs(static_cast<double>(row.factor)) * kSumsUp + 0x1p-140;
}

/// How a table is indexed, and the degree of its rows.
struct Indexed {
  int rows;
  size_t degree;
  double scale, bias;
};

/// Over the x of a table's rows that lie in [from, to]. A row has the centre, c_0 to c_n and, of a tail, a
/// factor.
template <class Table>
double table_error(const Composite& composite, const Table& table, const Indexed& by, double from,
                   double to) {
  double worst = 0;
  for (auto q = std::floor(from * by.scale + by.bias); q <= std::ceil(to * by.scale + by.bias); ++q) {
    const double a = std::max(from, (q - 0.5 - by.bias) / by.scale),
                 b = std::min(to, (q + 0.5 - by.bias) / by.scale);
    if (!(a < b)) continue;
    const std::span<const float> all(table.w[static_cast<size_t>(static_cast<std::int64_t>(q) % by.rows)]);
    const Row row{all[0], all.subspan(2, by.degree), all.size() > by.degree + 2 ? all[by.degree + 2] : 1.0f};
    const double reach = std::max(std::abs(a - static_cast<double>(row.centre)),
                                  std::abs(b - static_cast<double>(row.centre)));
    worst = std::max(worst, (row_error(composite, row, a, b) + row_rounding(row, reach)) * kSumsUp);
  }
  return worst;
}

/// sup of how far f' is from its limit, from x outwards.
double tail_error(const Composite& composite, double x, bool right) {
  return composite.activation().gradient_tail(x, right) * kSumsUp;
}

double gelu_error(const Composite& composite) {
  using F = GeluForward;
  static constexpr auto kCore = F::table();
  static constexpr auto kTail = F::tail();
  const double x_min = F::kXMin, tail_x = F::kTailX;
  const double core =
      table_error(composite, kCore, {F::kRows, F::kDegree, F::kIndexScale, F::kIndexBias}, tail_x, -tail_x);
  const double tail = table_error(
      composite, kTail, {F::kTailRows, F::kTailDegree, F::kTailIndexScale, F::kTailIndexBias}, x_min, tail_x);
  // Beyond +-x_min g is that of this end; right of 0 it is 1 less the tail's, rounded.
  return std::max(core, (tail + 2 * tail_error(composite, x_min, false) + 0x1p-25) * kSumsUp);
}

double rounded_error(const Composite& composite, double reach) {
  const double beyond = std::max(tail_error(composite, reach, true), tail_error(composite, -reach, false));
  return (kernels::kSlopeError + 0x1p-24 + 2 * beyond) * kSumsUp;  // |f'| < 2
}

/// The largest |value - f'| over the f' that a code stands for. g in cells, a number below 512, is rounded by
/// `rounding` at most.
double exact_error(const CodeModel& m, int bits) {
  const kernels::CodeRule rule = kernels::exact_code({m.kLo, m.kHi}, bits);
  const double lo = static_cast<double>(m.kLo), hi = static_cast<double>(m.kHi), rounding = 0x1p-16;
  const int parts = 1 << rule.shift;
  double worst = 0;
  for (int code = 0; code < 1 << bits; ++code) {
    const auto value = static_cast<double>(kernels::gradient_of_code(rule, static_cast<kernels::u8>(code)));
    const auto edge = [&](double cells) {
      return (cells - static_cast<double>(rule.offset)) / static_cast<double>(rule.scale);
    };
    const double first = edge(code * parts - 0.5 - rounding) - m.kG,
                 last = edge((code + 1) * parts - 0.5 + rounding) + m.kG;
    worst = std::max({worst, value - std::max(first, lo), std::min(last, hi) - value});
  }
  return worst * kSumsUp;
}

/// What a dithered code's arithmetic adds to half a step: roundings of numbers below 8, in steps of `width`,
/// and of the result.
double dithered_rounding(double width) { return 0x1p-19 * width + 0x1p-22; }

}  // namespace

CodeModel fit_code(const Composite& composite, const Spec& spec) {
  const Deployed* const deployed = deployed_of(spec);
  CodeModel m;
  // A rising f has no f' < 0.
  m.kLo = composite.masked() ? outwards(-Extreme(composite, -1).bound(), false) : 0.0f;
  m.kHi = outwards(Extreme(composite, 1).bound(), true);
  if (!kernels::code_range_holds({m.kLo, m.kHi})) {
    throw kernels::SpecError(fmt::format(
        "{}: f' lies in [{:.9g}, {:.9g}]; codes are for one within +-{} and of a range wider than {}",
        spec.name, m.kLo, m.kHi, kernels::kLargestGradient, kernels::kLeastWidth));
  }
  m.kG = deployed == nullptr    ? spec.target
         : deployed->reach == 0 ? gelu_error(composite)
                                : rounded_error(composite, deployed->reach);
  if (!(m.kG <= spec.target)) {
    throw kernels::SpecError(fmt::format("{}: target {} is not reached: g is within 2^{:.2f} of f'",
                                         spec.name, spec.accuracy, std::log2(m.kG)));
  }
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits)
    m.kT[static_cast<size_t>(bits - 1)] = exact_error(m, bits);
  for (int bits = kernels::kLeastDitheredBits; bits <= kernels::kMostDitheredBits; ++bits) {
    const double width = (static_cast<double>(m.kHi) - static_cast<double>(m.kLo)) / ((1 << bits) - 1);
    m.kDithered[static_cast<size_t>(bits - kernels::kLeastDitheredBits)] =
        (0.5 * width + m.kG + dithered_rounding(width)) * kSumsUp;
    m.kBias = std::max(m.kBias, (m.kG + dithered_rounding(width)) * kSumsUp);
  }
  return m;
}

}  // namespace outgrad::approx
