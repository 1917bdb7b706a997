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
#include "validation/certificate/gelu_interval.h"

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

template <class T>
Finding prove(const RoundedForwardHeader& h) {
  Finding finding{"rounded", Verdict::Holds, 0, 0, "", {}};
  int wrong = 0, undecided = 0, total = 0;
#pragma omp parallel for schedule(dynamic, 256) reduction(+ : wrong, undecided, total)
  for (int code = 0; code < 0x10000; ++code) {
    if ((code & 0x7fff) > kInfinityBits<T>) continue;  // NaN: check_structure
    const float x = kernels::widen(T{static_cast<std::uint16_t>(code)});
    const std::uint16_t y = kernels::narrow<T>(deployed_forward(h, x)).bits;
    ++total;
    bool right = false, refuted = false;
    if (std::isinf(x) || x == 0) {
      right = y == (x == -std::numeric_limits<float>::infinity() ? 0x8000 : code);
      refuted = !right;
    } else {
      // |f|, in the sign of x, between the midpoints around |y|.
      const Interval f = gelu(static_cast<double>(x)) * (x < 0 ? -1.0 : 1.0);
      const auto magnitude = static_cast<std::uint16_t>(y & 0x7fff);
      const bool sign = ((y ^ code) & 0x8000) == 0;
      // f has the sign of x
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
      finding.witness = Witness{x, kernels::widen(T{y}), gelu(static_cast<double>(x)).middle()};
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
