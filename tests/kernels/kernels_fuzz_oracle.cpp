#include "tests/kernels/kernels_fuzz_oracle.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/fits.h"
#include "validation/sweep/targets.h"

namespace outgrad::kernels::fuzz {
namespace {

static_assert(LDBL_MANT_DIG >= 64, "the allowances below are for a long double of at least 64 bits");

using Real = long double;

// The error of values in long double: libm's functions are within a few of its ulps, 2^-63, and an exponent
// of up to 200 costs another 2^8.
constexpr Real kValueError = 0x1p-53L;  // relative, of f
// The error of derivatives: far below every bound of a header (the least is 2^-24), far above long double's
// rounding.
constexpr Real kDerivativeError = 0x1p-40L;
constexpr Real kU = 0x1p-24L;      // fp32 rounding to nearest: relative
constexpr Real kTiny = 0x1p-150L;  // half the least fp32 subnormal: what a rounding errs by there

struct FormatFacts {
  Real unit, quantum, largest;
};
constexpr FormatFacts kFacts[] = {{0x1p-24L, 0x1p-149L, 0x1.fffffep+127L},
                                  {0x1p-11L, 0x1p-24L, 65504.0L},
                                  {0x1p-8L, 0x1p-133L, 0x1.fep+127L}};

const FormatFacts& facts(Stored format) { return kFacts[static_cast<int>(format)]; }

std::string text(const char* what, Real actual, Real expected, Real allowed) {
  char line[256];
  std::snprintf(line, sizeof line, "%s is %La, expected %La, off by %.3Lg of the %.3Lg allowed", what, actual,
                expected, std::fabs(actual - expected), allowed);
  return line;
}

// "" if actual is within `allowed` of [low, high].
std::string within(const char* what, Real actual, Real low, Real high, Real allowed) {
  if (actual >= low - allowed && actual <= high + allowed) return {};
  return text(what, actual, actual < low ? low : high, allowed);
}

Real sigmoid(Real z) { return 1 / (1 + std::exp(-z)); }

// The value of x sigmoid(v) and its derivative, v' given.
std::pair<Real, Real> gated(Real x, Real v, Real dv) {
  const Real s = sigmoid(v);
  return {x * s, s + (s > 0 && s < 1 ? x * dv * s * sigmoid(-v) : 0)};
}

}  // namespace

long double rounding_error(Stored format, long double magnitude) {
  return std::max(facts(format).unit * magnitude, facts(format).quantum / 2);
}

long double largest(Stored format) { return facts(format).largest; }

Activation::Activation(int number) : number_(number), masked_(number < 6) {
  if (!masked_) return;
  Real low = -8, high = 0;  // f' < 0 at the first, > 0 at the second, with one change of sign between
  for (int step = 0; step < 80; ++step) {
    const Real middle = (low + high) / 2;
    (derivative(middle) < 0 ? low : high) = middle;
  }
  x_star_ = high;
}

Activation::Point Activation::evaluate(long double x) const {
  switch (number_) {
    case 0: {
      const Real cdf = std::erfc(-x * std::sqrt(0.5L)) / 2;
      const Real density = std::exp(-x * x / 2) * 0.398942280401432677939946059934381868L;
      return {x * cdf, cdf + x * density};
    }
    case 1: {
      const Real k = 2 * 0.797884560802865355879892119868763737L;
      const auto [value, derivative] =
          gated(x, k * (x + 0.044715L * x * x * x), k * (1 + 3 * 0.044715L * x * x));
      return {value, derivative};
    }
    case 2:
    case 3:
    case 4: {
      const Real slope = number_ == 2 ? 1.702L : number_ == 3 ? 1.0L : 1.5L;
      const auto [value, derivative] = gated(x, slope * x, slope);
      return {value, derivative};
    }
    case 5: {
      if (x > 60) return {x, 1};  // 1 - tanh(softplus(x)) < 2 e^-120
      const Real e = std::exp(x), w = e * (e + 2), t = w / (w + 2);
      return {x * t, t + x * 4 * e * (e + 1) / ((w + 2) * (w + 2))};
    }
    case 6: {
      const Real t = std::tanh(x);
      return {t, (1 - t) * (1 + t)};
    }
    case 7: return {sigmoid(x), sigmoid(x) * sigmoid(-x)};
    case 8: return {x > 100 ? x : std::log1p(std::exp(x)), sigmoid(x)};
    default: return {x >= 0 ? x : std::expm1(x), x >= 0 ? 1 : std::exp(x)};
  }
}

float Activation::rounded_value(Stored format, float x) const {
  if (x == 0 && value(0) == 0) return x;
  const Real v = value(x);
  const auto rounded = [&](Real real) -> Real {
    const Real quantum =
        std::max<Real>(facts(format).quantum, std::scalbn(facts(format).unit * 2, std::ilogb(real)));
    const Real result = std::nearbyint(real / quantum) * quantum;
    return std::fabs(result) > facts(format).largest
               ? std::copysign(std::numeric_limits<Real>::infinity(), real)
               : result;
  };
  if (v == 0) return std::copysign(0.0f, static_cast<float>(x));
  const Real low = rounded(v - std::fabs(v) * kValueError), high = rounded(v + std::fabs(v) * kValueError);
  if (low != high) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(std::copysign(low, v));
}

Activation::Interval Activation::derivative_at_value(long double y, bool right) const {
  const Interval nothing{0, 0}, one{1, 1};
  // The ends of the branch; beyond them g is the limit.
  Real low = -200, high = 200;  // |f| is beyond any subnormal at the first
  if (masked_) {
    if (y <= value(x_star_) || (!right && y >= 0)) return nothing;
    if (right) {
      if (y > 100) return one;  // 1 - f' < 100 e^-100
      low = x_star_;
    } else {
      high = x_star_;
    }
  } else {
    const bool bounded = number_ == 6 || number_ == 7;
    const Real least = number_ == 6 || number_ == 9 ? -1 : 0;
    if (y <= least || (bounded && y >= 1)) return nothing;
    if (!bounded && y > 100) return one;
  }
  // f rises from low to high, or falls on the left branch. Bisection for the value to the left of y's x, then
  // from there on for the one to its right, in a bracket that grows until it holds it.
  const bool rises = !masked_ || right;
  const Real slack = std::fabs(y) * kValueError;
  const auto beyond = [&](Real x, Real target) { return (value(x) >= target) == rises; };
  const auto bisect = [&](Real a, Real b, Real target) {
    for (;;) {
      const Real middle = a + (b - a) / 2;
      if (middle <= a || middle >= b) return a;
      (beyond(middle, target) ? b : a) = middle;
    }
  };
  const Real left = bisect(low, high, rises ? y - slack : y + slack), target = rises ? y + slack : y - slack;
  Real width = 0x1p-50L;
  while (left + width < high && !beyond(left + width, target)) width *= 2;
  const Real a = derivative(left), b = derivative(bisect(left, std::min(left + width, high), target));
  return {std::min(a, b), std::max(a, b)};
}

namespace {

// g of a y that no forward makes: below the minimum it may be anything from there to the end that the kernels
// go to.
Activation::Interval deployed(const Activation& f, const FitBounds& bounds, float y, bool m) {
  if (!f.masked() || !(y < f.value(f.x_star()))) return f.derivative_at_value(y, m);
  const auto end = f.derivative_at_value(bounds.least_y, m);
  return {std::min<Real>(0, end.low), std::max<Real>(0, end.high)};
}

}  // namespace

std::string judge_backward(const Activation& f, const FitBounds& bounds, Stored format, float dy, float y,
                           bool m, float dx, const float* of_x) {
  if (std::isnan(dy) || std::isnan(y)) return std::isnan(dx) ? "" : "a NaN was lost";
  if (std::isinf(dy)) return {};
  const auto judge = [&](const char* what, const Activation::Interval& g, Real bound) -> std::string {
    const Real error = bound + kDerivativeError;
    const Real size =
        std::fabs(static_cast<Real>(dy)) * (std::max(std::fabs(g.low), std::fabs(g.high)) + error);
    if (size > 0.99L * largest(format)) return {};
    const Real allowed = std::fabs(static_cast<Real>(dy)) * error + size * kU + kTiny +
                         rounding_error(format, size * (1 + 2 * kU));
    const Real a = dy * g.low, b = dy * g.high;
    return within(what, dx, std::min(a, b), std::max(a, b), allowed);
  };
  if (std::string wrong = judge("dy g(y, m)", deployed(f, bounds, y, m), bounds.evaluation); !wrong.empty())
    return wrong;
  if (of_x == nullptr || bounds.total == 0) return {};
  const Real derivative = f.derivative(*of_x);
  return judge("dy f'(x)", {derivative, derivative}, bounds.total);
}

// What the header of a 16-bit forward claims of p at x: sup |x p/f - 1| over the rows of the core, or over
// all.
template <class Forward>
Real forward_error(float x) {
  const float core = (static_cast<float>(Forward::kCoreFirst) - 0.5f - (Forward::kIndexBias - 0x1p23f)) /
                     Forward::kIndexScale;
  return x > core ? Forward::kCoreA : Forward::kA;
}

std::string judge_gelu(const Activation& gelu, Stored format, float z, bool wide, float y, bool m) {
  if (m != (z >= ForwardFit<float>::Type::kXStar)) return "the mask bit is not [x >= x*]";
  if (std::isnan(z)) return std::isnan(y) ? "" : "a NaN was lost";
  if (std::isinf(z))
    return y == (z > 0 ? z : 0.0f) && std::signbit(y) == (z < 0) ? "" : "the limit at infinity";
  if (z == 0) return y == 0 && std::signbit(y) == std::signbit(z) ? "" : "zero does not keep its sign";
  if (format != Stored::f32 && !wide) {
    // Correctly rounded, as kernels/fitted_forward.h says.
    const float expected = gelu.rounded_value(format, z);
    if (std::isnan(expected) || (expected == y && std::signbit(expected) == std::signbit(y))) return {};
    return text("GELU(x)", y, expected, 0);
  }
  const Real value = gelu.value(z), size = std::max(std::fabs(value), std::fabs(static_cast<Real>(y)));
  if (size > 0.99L * largest(format)) return {};
  // An ulp is at most twice the rounding error of what lies in its binade.
  const Real fp32 = *validation::kTargets[0].far_ulp * 2 * rounding_error(Stored::f32, size);
  Real stored = 0;
  if (format == Stored::f16)
    stored = rounding_error(format, size) + forward_error<ForwardFit<F16>::Type>(z) * std::fabs(value);
  if (format == Stored::bf16)
    stored = rounding_error(format, size) + forward_error<ForwardFit<BF16>::Type>(z) * std::fabs(value);
  return within("GELU(x)", y, value, value, fp32 + stored + std::fabs(value) * kValueError);
}

std::string judge_forward(const Activation& f, Stored format, float x, float y, bool m) {
  if (f.masked() && m != (x >= f.x_star())) return "the mask bit is not [x >= x*]";
  if (std::isnan(x)) return std::isnan(y) ? "" : "a NaN was lost";
  if (std::isinf(x)) return std::isnan(y) ? "no limit at infinity" : "";
  const Real value = f.value(x);
  if (x == 0 && value == 0)
    return y == 0 && std::signbit(y) == std::signbit(x) ? "" : "zero does not keep its sign";
  if (format == Stored::f32) {
    // As of GELU above.
    const Real size = std::max(std::fabs(value), std::fabs(static_cast<Real>(y)));
    return within(
        "f(x)", y, value, value,
        validation::kOtherTailUlp * 2 * rounding_error(format, size) + std::fabs(value) * kValueError);
  }
  const float expected = f.rounded_value(format, x);
  return std::isnan(expected) || expected == y ? "" : text("f(x)", y, expected, 0);
}

std::string judge_bias_gradient(const Activation& gelu, const FitBounds& bounds, std::span<const float> dy,
                                std::span<const float> y, std::span<const bool> m, float dbias) {
  Real low = 0, high = 0, size = 0, error = 0;
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!std::isfinite(dy[i]) || std::isnan(y[i]) || std::fabs(dy[i]) > 0x1p60f) return {};
    const auto g = deployed(gelu, bounds, y[i], m[i]);
    const Real a = dy[i] * g.low, b = dy[i] * g.high;
    low += std::min(a, b);
    high += std::max(a, b);
    const Real one = bounds.evaluation + kDerivativeError;
    error += std::fabs(static_cast<Real>(dy[i])) * one;
    size += std::fabs(static_cast<Real>(dy[i])) * (std::max(std::fabs(g.low), std::fabs(g.high)) + one);
  }
  // Each product rounds once and passes through fewer than rows + 24 additions (slots: at most 2^21).
  const Real additions = static_cast<Real>(dy.size()) + 25;
  return within("dbias", dbias, low, high, error + 1.01L * additions * kU * size + additions * kTiny);
}

namespace {

// The values that the derivations below hold for: no overflow, and subnormals vanish beside kAbsolute.
constexpr Real kModerate = 0x1p20L;
constexpr Real kAbsolute = 0x1p-100L;

bool moderate(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::fabs(v) <= kModerate; });
}
bool divisible(float v) { return std::fabs(v) <= kModerate && std::fabs(v) >= 1 / kModerate; }

// Additions that a term of a row's tree passes through: 3 in its chunk, 6 in its group of 64 steps, 5 over
// the lanes, one a group.
Real depth(size_t n) { return 14 + std::ceil(static_cast<Real>(n) / 16384); }

}  // namespace

// With h = depth and d(.) for errors: d(mean) <= (h + 1) u mean|x|. The variance about a mean that is off by
// dm is var + dm^2, its terms err by 2 u + u each and by h u in the sum. rstd = v^(-1/2) with v = var + eps:
// a relative error r of v <= 1/10 is at most 0.56 r of rstd, and the root and the quotient add 2 u. x^ = (x -
// mean) rstd: d <= (dm + 2 u |x - mean|) rstd + |x^| d(rstd)/rstd. y: gamma d(x^) + u |y|.
std::string judge_norm_forward(const ForwardRow& row) {
  const size_t n = row.x.size();
  if (!moderate(row.x) || !(row.eps <= kModerate)) return {};
  if ((row.gamma && !moderate({row.gamma, n})) || (row.beta && !moderate({row.beta, n}))) return {};
  const Real h = depth(n), count = static_cast<Real>(n);
  Real sum = 0, absolute = 0;
  for (const float x : row.x) {
    sum += x;
    absolute += std::fabs(static_cast<Real>(x));
  }
  const Real mean = row.layer ? sum / count : 0,
             mean_error = row.layer ? (h + 1) * kU * absolute / count + kAbsolute : 0;
  Real variance = 0;
  for (const float x : row.x) variance += (x - mean) * (x - mean);
  variance /= count;
  const Real v = variance + row.eps;
  const Real v_error = (h + 6) * kU * (v + mean_error * mean_error) + mean_error * mean_error + kAbsolute;
  if (v == 0 || v_error > v / 10) return {};
  const Real relative = 0.56L * v_error / v + 2 * kU;
  const Real rstd = 1 / std::sqrt(v);
  if (std::string wrong = within("rstd", row.rstd, rstd, rstd, 1.1L * rstd * relative); !wrong.empty())
    return wrong;
  for (size_t j = 0; j < n; ++j) {
    const Real x_hat = (row.x[j] - mean) * rstd, gamma = row.gamma ? row.gamma[j] : 1;
    const Real x_hat_error =
        (mean_error + 2 * kU * std::fabs(row.x[j] - mean)) * rstd + std::fabs(x_hat) * relative;
    const Real y = x_hat * gamma + (row.beta ? row.beta[j] : 0);
    const Real before = 1.2L * std::fabs(gamma) * x_hat_error + kU * std::fabs(y) + kAbsolute;
    const Real size = std::fabs(y) + before;
    if (size > 0.99L * largest(row.format)) continue;
    if (std::string wrong = within("y", row.y[j], y, y, before + rounding_error(row.format, size));
        !wrong.empty()) {
      return "column " + std::to_string(j) + ": " + wrong;
    }
  }
  return {};
}

// a = dy gamma, c and w as in kernels/layernorm.h: m1 = mean(a), m2 = mean(dy w c), dx = rstd (a - m1 - c (1
// / gamma) m2). With h = depth and errors relative to u: c and w c 2, so m2 h + 4 of mean|dy w c|; m1 h + 2
// of mean|a|; x^ 3 of itself; the two fmas and the product with rstd 1 each of a magnitude below |a| + |m1| +
// |x^ m2|. All of it is below (h + 10) u rstd (|a| + mean|a| + |x^| mean|dy w c|).
std::string judge_norm_backward(const BackwardRow& row) {
  const size_t n = row.dy.size();
  if (!moderate(row.dy) || !moderate(row.y) || !divisible(row.rstd) ||
      (row.dz_next && !moderate({row.dz_next, n})))
    return {};
  const Real count = static_cast<Real>(n);
  Real m1 = 0, m2 = 0, absolute_m1 = 0, absolute_m2 = 0;
  for (size_t j = 0; j < n; ++j) {
    const float gamma = row.gamma ? row.gamma[j] : 1.0f, beta = row.beta ? row.beta[j] : 0.0f;
    if (!(std::fabs(gamma) <= kModerate) || !(std::fabs(beta) <= kModerate) ||
        (!row.side[j] && !divisible(gamma)))
      return {};
    if (row.side[j] && !(std::fabs(row.x_hat[j]) <= kModerate)) return {};
    const Real a = static_cast<Real>(row.dy[j]) * gamma;
    const Real c = row.side[j] ? static_cast<Real>(row.x_hat[j]) * gamma : static_cast<Real>(row.y[j]) - beta;
    m1 += a / count;
    m2 += row.dy[j] * c / count;
    absolute_m1 += std::fabs(a) / count;
    absolute_m2 += std::fabs(row.dy[j] * c) / count;
  }
  if (!row.layer) m1 = absolute_m1 = 0;
  for (size_t j = 0; j < n; ++j) {
    const Real gamma = row.gamma ? row.gamma[j] : 1, a = row.dy[j] * gamma;
    const Real x_hat = row.side[j] ? static_cast<Real>(row.x_hat[j])
                                   : (static_cast<Real>(row.y[j]) - (row.beta ? row.beta[j] : 0)) / gamma;
    const Real rstd = row.rstd;
    Real dx = rstd * (a - m1 - x_hat * m2);
    Real before = 1.01L * (depth(n) + 10) * kU * std::fabs(rstd) *
                      (std::fabs(a) + absolute_m1 + std::fabs(x_hat) * absolute_m2) +
                  kAbsolute;
    if (row.dz_next) {
      dx += row.dz_next[j];
      before += kU * (std::fabs(dx) + before);
    }
    const Real size = std::fabs(dx) + before;
    if (size > 0.99L * largest(row.format)) continue;
    if (std::string wrong = within("dx", row.dx[j], dx, dx, before + rounding_error(row.format, size));
        !wrong.empty()) {
      return "column " + std::to_string(j) + ": " + wrong;
    }
  }
  return {};
}

std::string judge_column(std::span<const float> dy, const float* c_of_y, float beta, bool side, float divisor,
                         float sum) {
  if (!moderate(dy) || !divisible(divisor) || !(std::fabs(beta) <= kModerate)) return {};
  if (c_of_y && !moderate({c_of_y, dy.size()})) return {};
  Real expected = 0, size = 0;
  for (size_t i = 0; i < dy.size(); ++i) {
    const Real c = c_of_y ? (side ? static_cast<Real>(c_of_y[i]) : static_cast<Real>(c_of_y[i]) - beta) : 1;
    expected += dy[i] * c;
    size += std::fabs(dy[i] * c);
  }
  // c rounds once, each product goes into a sum by an fma, and fewer than rows + 24 additions follow (slots:
  // at most 2^21); then the quotient.
  const Real allowed =
      1.01L * (static_cast<Real>(dy.size()) + 27) * kU * size / std::fabs(divisor) + kAbsolute;
  return within(c_of_y ? "dgamma" : "dbeta", sum, expected / divisor, expected / divisor, allowed);
}

}  // namespace outgrad::kernels::fuzz
