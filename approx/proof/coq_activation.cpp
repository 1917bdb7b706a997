// What Coq's library is told of an activation.
#include "approx/proof/coq_activation.h"

#include "approx/proof/gappa.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <regex>

namespace outgrad::approx::coq {
namespace {

/// Steepnesses that the constants below and the precisions of SwishSeries.v are made for.
constexpr double kLeastSteepness = 0.25, kMostSteepness = 32;
/// f (-t) and f' (-t) may be neglected below 2^-these (SwishSeries.v).
constexpr int kBf16Places = 137, kF16Places = 30;

/// A quotient of two integers.
struct Steepness {
  long long numerator, denominator;
  [[nodiscard]] Real value() const { return Real(numerator) / Real(denominator); }
};

/// W of x*sigmoid(W*x), a decimal or hexadecimal number; x*sigmoid(x) has the steepness 1.
std::optional<Steepness> steepness_of(const std::string& function) {
  static const std::regex kSwish(R"(x\*sigmoid\((?:(?:(\d{1,6})(?:\.(\d{1,9}))?|)"
                                 R"((0x[0-9a-fA-F]\.?[0-9a-fA-F]{0,13}p[+-]\d{1,2}))\*)?x\))");
  std::smatch m;
  if (!std::regex_match(function, m, kSwish)) return std::nullopt;
  Steepness w{1, 1};
  if (m[3].matched) {
    const auto [integer, exponent] = integer_and_exponent(std::stod(m[3]));
    if (std::abs(exponent) > 62) return std::nullopt;
    w = {integer, 1LL << std::max(-exponent, 0)};
    if (exponent > 0) w.numerator <<= exponent;
  } else if (m[1].matched) {
    w.numerator = std::stoll(m[1].str() + m[2].str());
    for (long i = 0; i < m[2].length(); ++i) w.denominator *= 10;
  }
  const auto value = static_cast<double>(w.value());
  if (!(kLeastSteepness <= value && value <= kMostSteepness)) return std::nullopt;
  const long long common = std::gcd(w.numerator, w.denominator);
  return Steepness{w.numerator / common, w.denominator / common};
}

/// The zero of a function that rises, from near it.
Real zero(const std::function<Real(const Real&)>& function, const std::function<Real(const Real&)>& slope,
          Real u) {
  constexpr int kSteps = 8;  // each doubles the digits
  for (int i = 0; i < kSteps; ++i) u -= function(u) / slope(u);
  return u;
}

/// The least integer t from which on t max(1, w) exp(-w t) is below 2^-places.
int threshold_of(double w, int places) {
  int t = static_cast<int>(std::ceil(2.5 / w));
  while (t * std::max(1.0, w) * std::exp(-w * t) >= std::ldexp(1.0, -places)) ++t;
  return t;
}

std::string steepness_text(const Steepness& steepness, const KnownActivation& of) {
  const Real w = steepness.value();
  // 1 + u + exp u has the sign of f' at u / w, and u (2 sigmoid u - 1) - 2 that of -f''.
  const Real falls = zero([](const Real& u) { return Real(1 + u + exp(u)); },
                          [](const Real& u) { return Real(1 + exp(u)); }, -1.28);
  const Real bend = zero([](const Real& u) { return Real(u * tanh(u / 2) - 2); },
                         [](const Real& u) {
                           const Real t = tanh(u / 2);
                           return Real(t + u / 2 * (1 - t * t));
                         },
                         2.4);
  const auto integer = [](const Real& r) { return static_cast<long long>(r); };
  const Real star = floor(ldexp(falls / w, 50)), y_low = floor(star + ldexp(1 / w, 50)),
             y_high = ceil(star + 1 + ldexp(1 / w, 50));
  const long long x_low = integer(star), bend_low = integer(floor(ldexp(bend / w, 30)));
  const auto tail_numerator = 5 * steepness.denominator, tail_denominator = 2 * steepness.numerator;
  const auto value = static_cast<double>(w);
  return fmt::format(
      R"((* The steepness of Swish, and numbers that belong to it. certify --coq writes those of another here.
   Only the steepness has to be believed; what the others are said to be is proven. *)

From Coq Require Import Reals ZArith.
Open Scope R_scope.

(* f x = x / (1 + exp (- (steepness * x))). Notations, so that tactics see the numbers. *)
Notation steepness := ({numerator} / {denominator}).
Definition steepness_of : Z * Z := ({numerator}, {denominator})%Z.

(* x_star and y_star between multiples of 2^-50. *)
Definition x_low := {x_low} / 2 ^ 50.
Definition x_high := {x_high} / 2 ^ 50.
Definition minus_x_star := ({minus_high}, {minus_low})%Z.
Definition y_low := {y_low} / 2 ^ 50.
Definition y_high := {y_high} / 2 ^ 50.
Definition near_y_star := ({y_low}, {y_high})%Z.

(* Where the tails begin; and an integer beyond it. *)
Notation tail := ({tail_numerator} / {tail_denominator}).
Definition tail_place := {tail_place}%Z.
(* Where f' turns right of 0, in units of 2^-30. *)
Definition bend_between := ({bend_low}, {bend_high})%Z.

(* From here on f (- t) and f' (- t) are between 0 and -2^-{bf16_places}, or -2^-{f16_places}. *)
Definition bf16_threshold := {bf16}%Z.
Definition f16_threshold := {f16}%Z.
)",
      fmt::arg("numerator", steepness.numerator), fmt::arg("denominator", steepness.denominator),
      fmt::arg("x_low", x_low), fmt::arg("x_high", x_low + 1), fmt::arg("minus_high", -x_low - 2),
      fmt::arg("minus_low", -x_low + 1), fmt::arg("y_low", integer(y_low)),
      fmt::arg("y_high", integer(y_high)), fmt::arg("tail_numerator", tail_numerator),
      fmt::arg("tail_denominator", tail_denominator), fmt::arg("tail_place", of.tail_place()),
      fmt::arg("bend_low", bend_low), fmt::arg("bend_high", bend_low + 1),
      fmt::arg("bf16_places", kBf16Places), fmt::arg("f16_places", kF16Places),
      fmt::arg("bf16", threshold_of(value, kBf16Places)), fmt::arg("f16", threshold_of(value, kF16Places)));
}

KnownActivation gelu() {
  return {"Gelu",
          1,
          1.75,
          [](const Real& x) { return normal_cdf(x); },
          [](const Real& x) { return Real(exp(-x * x / 2) / sqrt(8 * atan(Real(1)))); },
          [](const Real& x) { return Real(2 - x * x); }};
}

KnownActivation swish(const Steepness& steepness) {
  const Real w = steepness.value();
  const double width = 1 / static_cast<double>(w);
  KnownActivation of{"Swish",
                     width,
                     2.5 * width,
                     [w](const Real& x) { return sigmoid(Real(w * x)); },
                     [w](const Real& x) { return Real(w * sigmoid(Real(w * x)) * sigmoid(Real(-w * x))); },
                     [w](const Real& x) { return Real(2 + w * x * (1 - 2 * sigmoid(Real(w * x)))); }};
  of.steepness = steepness_text(steepness, of);
  return of;
}

/// What the logistic function is of in GELU's tanh form, with its derivatives.
struct Argument {
  Real value, slope, curve;
};
Argument tanh_gelu_argument(const Real& x) {
  const Real scale = 2 * sqrt(1 / (2 * atan(Real(1)))), cubic = Real(44715) / 1000000;
  return {scale * (x + cubic * x * x * x), scale * (1 + 3 * cubic * x * x), scale * 6 * cubic * x};
}

KnownActivation tanh_gelu() {
  return {"TanhGelu",
          1,
          2,
          [](const Real& x) { return sigmoid(tanh_gelu_argument(x).value); },
          [](const Real& x) {
            const Argument w = tanh_gelu_argument(x);
            return Real(w.slope * sigmoid(w.value) * sigmoid(Real(-w.value)));
          },
          [](const Real& x) {
            const Argument w = tanh_gelu_argument(x);
            return Real(2 + x * (w.curve / w.slope + w.slope * (1 - 2 * sigmoid(w.value))));
          }};
}

constexpr const char* kGelu = "x*normal_cdf(x)";
constexpr const char* kTanhGelu = "x*sigmoid(2*sqrt(2/pi)*(x+0.044715*x^3))";

}  // namespace

int KnownActivation::tail_place() const { return static_cast<int>(std::ceil(4 * width)); }
int KnownActivation::near_power() const { return 2 + std::ilogb(width); }

const std::vector<std::string>& modules() {
  static const std::vector<std::string> kModules = {"Gelu", "Swish", "TanhGelu"};
  return kModules;
}

std::optional<KnownActivation> known_activation(const std::string& function) {
  std::string text = function;
  std::erase(text, ' ');
  if (text == kGelu) return gelu();
  if (text == kTanhGelu) return tanh_gelu();
  const std::optional<Steepness> steepness = steepness_of(text);
  if (steepness) return swish(*steepness);
  return std::nullopt;
}

KnownActivation known(const std::string& function) { return known_activation(function).value(); }

std::string no_theory_of(const std::string& function) {
  return fmt::format(
      "Coq's library (approx/proof/coq) has no file for {}, only Gelu.v for {}, TanhGelu.v for {}, and "
      "Swish.v for x*sigmoid(x) and x*sigmoid(W*x) with a number W from {} to {}",
      function, kGelu, kTanhGelu, kLeastSteepness, kMostSteepness);
}

}  // namespace outgrad::approx::coq
