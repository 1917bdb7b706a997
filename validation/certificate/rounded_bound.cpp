// f(x) is enclosed and compared with the midpoints on both sides of what the deployed sequence gives: no
// rounding but the subject's own.
#include "validation/certificate/rounded_bound.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/formats.h"
#include "validation/certificate/deployed.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {
namespace {

template <class T>
constexpr int kInfinityBits = std::is_same_v<T, kernels::F16> ? 0x7c00 : 0x7f80;  // its bits

// Midway from |value| to the next number of the format towards infinity or 0; past the largest number where
// infinity takes over.
template <class T>
double midpoint(std::uint16_t magnitude, bool outward) {
  const auto value = [](int bits) {
    return static_cast<double>(kernels::widen(T{static_cast<std::uint16_t>(bits)}));
  };
  const double largest = value(kInfinityBits<T> - 1),
               beyond = largest + (largest - value(kInfinityBits<T> - 2));
  const auto number = [&](int bits) { return bits == kInfinityBits<T> ? beyond : value(bits); };
  return (number(magnitude) + number(outward ? magnitude + 1 : magnitude - 1)) / 2;
}

// Encloses f at a point.
Interval value_at(const Activation& activation, double x) {
  return activation.formula_at(x).f.at<0>(Interval(x))[0];
}

// What f rounds to at an infinity, where the enclosures end: infinity where it rounds the largest number to
// itself, else what that number's f rounds to, for f has no turn beyond.
template <class T>
bool right_at_infinity(const RoundedForwardHeader& h, int code) {
  const auto at = [&](int bits) {
    const float x = kernels::widen(T{static_cast<std::uint16_t>(bits)});
    return static_cast<int>(kernels::narrow<T>(deployed_forward(h, x)).bits);
  };
  return at(code) == (at(code - 1) == code - 1 ? code : at(code - 1));
}

template <class T>
Finding prove(const RoundedForwardHeader& h) {
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  Finding finding{"rounded", Verdict::Holds};
  int wrong = 0, undecided = 0, total = 0;
#pragma omp parallel for schedule(dynamic, 256) reduction(+ : wrong, undecided, total)
  for (int code = 0; code < 0x10000; ++code) {
    if ((code & 0x7fff) > kInfinityBits<T>) continue;  // NaN: check_structure
    const float x = kernels::widen(T{static_cast<std::uint16_t>(code)});
    const std::uint16_t y = kernels::narrow<T>(deployed_forward(h, x)).bits;
    ++total;
    bool right = false, refuted = false;
    if (std::isinf(x) || (x == 0 && !h.plain)) {
      right = x == 0 ? y == code : right_at_infinity<T>(h, code);
      refuted = !right;
    } else {
      // |f| between the midpoints around |y|. f has the sign of x, or, plain, is positive.
      const bool negative = x < 0 && !h.plain;
      const Interval f = value_at(activation, static_cast<double>(x)) * (negative ? -1.0 : 1.0);
      const auto magnitude = static_cast<std::uint16_t>(y & 0x7fff);
      const bool sign = negative == ((y & 0x8000) != 0);
      const Interval low = magnitude == 0 ? Interval(-1) : Interval(midpoint<T>(magnitude, false));
      const Interval high = magnitude >= kInfinityBits<T> ? Interval(std::numeric_limits<double>::max())
                                                          : Interval(midpoint<T>(magnitude, true));
      right = sign && magnitude <= kInfinityBits<T> && !certainly_less(f, low) && !certainly_less(high, f);
      refuted = !right;
      if (right && !(certainly_less(low, f) && certainly_less(f, high))) right = false, refuted = false;
    }
    if (right) continue;
    (refuted ? wrong : undecided) += 1;
#pragma omp critical
    if (refuted && !finding.witness)
      finding.witness =
          Witness{x, kernels::widen(T{y}), value_at(activation, static_cast<double>(x)).middle()};
  }
  finding.proven = wrong + undecided;
  finding.verdict = wrong > 0 ? Verdict::Violated : undecided > 0 ? Verdict::Undecided : Verdict::Holds;
  finding.why =
      fmt::format("{} of {} x of {} are not rounded to nearest", wrong + undecided, total, h.format);
  if (finding.witness) finding.why += fmt::format(", one of them {:.9g}", finding.witness->at);
  return finding;
}

}  // namespace

Finding prove_rounded(const RoundedForwardHeader& h) {
  return h.format == "f16" ? prove<kernels::F16>(h) : prove<kernels::BF16>(h);
}

}  // namespace outgrad::validation
