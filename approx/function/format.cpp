// Tells the numbers of the stored formats, their neighbours and their spacing.
#include "approx/function/format.h"

#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "kernels/support/suggestion.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace outgrad::approx {
namespace {

/// In the order of Format.
constexpr struct {
  const char* name;
  FormatShape shape;
} kKnown[] = {{"f32", {8, 23, true}},        {"f16", {5, 10, true}},       {"bf16", {8, 7, true}},
              {"e4m3", {4, 3, false}},       {"e5m2", {5, 2, true}},       {"mxfp8", {4, 3, false}},
              {"f16_parity", {5, 10, true}}, {"bf16_parity", {8, 7, true}}};
static_assert(std::size(kKnown) == std::size(kFormats));

/// One unit in the last place at |g|, of numbers scaled by 2^scale.
double scaled_ulp(const FormatShape& shape, int scale, double g) {
  const int least = scale + 2 - (1 << (shape.exponent_bits - 1));  // exponent of the least normal number
  const int exponent = g == 0 ? least : std::max(std::ilogb(g), least);
  return std::ldexp(1.0, exponent - shape.fraction_bits);
}

}  // namespace

const char* to_string(Format f) { return kKnown[static_cast<size_t>(f)].name; }

Format format_of(const std::string& name) {
  for (const Format f : kFormats) {
    if (name == to_string(f)) return f;
  }
  std::vector<std::string> known;
  for (const Format f : kFormats) known.emplace_back(to_string(f));
  throw kernels::SpecError(fmt::format("format '{}' is unknown; known: {}{}", name, fmt::join(known, ", "),
                                       kernels::did_you_mean(name, known)));
}

FormatShape shape_of(Format f) { return kKnown[static_cast<size_t>(f)].shape; }

Scales scales_of(Format f) {
  // From the least of E8M0 to the last at which e4m3 has a normal number next to the minimum of GELU: 2^(3 -
  // 6) <= 0.17.
  return f == Format::mxfp8 ? Scales{-127, 3} : Scales{0, 0};
}

bool has_scales(Format f) { return scales_of(f).first < scales_of(f).last; }

int precision_bits(Format f) { return shape_of(f).fraction_bits + 1; }

double decode(Format f, std::uint32_t code) {
  const FormatShape shape = shape_of(f);
  const std::uint32_t fraction = code & ((1U << shape.fraction_bits) - 1),
                      most = (1U << shape.exponent_bits) - 1;
  const std::uint32_t exponent = (code >> shape.fraction_bits) & most;
  const double sign = (code >> shape.sign_bit() & 1U) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (shape.exponent_bits - 1)) - 1;
  if (exponent == most && shape.has_infinity)
    return fraction == 0 ? sign * INFINITY : std::numeric_limits<double>::quiet_NaN();
  if (exponent == most && fraction == (1U << shape.fraction_bits) - 1)
    return std::numeric_limits<double>::quiet_NaN();
  const double significand = exponent == 0 ? fraction : fraction + (1U << shape.fraction_bits);
  return sign *
         std::ldexp(significand, std::max<int>(static_cast<int>(exponent), 1) - bias - shape.fraction_bits);
}

float widened(Format f, std::uint16_t bits) {
  return f == Format::f16 ? kernels::widen(kernels::F16{bits}) : kernels::widen(kernels::BF16{bits});
}
std::uint16_t narrowed(Format f, float value) {
  return f == Format::f16 ? kernels::narrow<kernels::F16>(value).bits
                          : kernels::narrow<kernels::BF16>(value).bits;
}

bool carries_branch(Format f) { return f == Format::f16_parity || f == Format::bf16_parity; }

bool holds_branch(Format f, std::uint32_t code, bool right) {
  const bool negative = (code >> shape_of(f).sign_bit() & 1U) != 0;
  return !carries_branch(f) || (negative ? (code & 1U) == (right ? 0U : 1U) : right);
}

bool holds_branch(Format f, double y, bool right) {
  // the lowest bit of the significand is that of the code
  const bool odd = std::fmod(y / ulp_of(f, y), 2) != 0;
  return !carries_branch(f) || (y < 0 ? odd != right : right);
}

bool has_direct_table(Format f) { return f != Format::f32 && f != Format::mxfp8 && !carries_branch(f); }

ProductBall product_ball(Format format) {
  const double u = std::ldexp(1.0, -precision_bits(format));
  return {u / (1 + u) + 0x1p-21, 0x1p-22};
}

double ulp_of(Format format, double g) { return scaled_ulp(shape_of(format), 0, g); }

double overflow_of(Format format) {
  const FormatShape shape = shape_of(format);
  const std::uint32_t end = 1U << shape.sign_bit(),
                      beyond = shape.has_infinity ? end - (1U << shape.fraction_bits) : end - 1;
  const double largest = decode(format, beyond - 1);
  return has_scales(format) ? std::exp2(std::ilogb(largest) + 1) : largest + 0.5 * ulp_of(format, largest);
}

double next_number(Format format, double y) {
  const auto spacing = [&](double at) { return scaled_ulp(shape_of(format), scales_of(format).first, at); };
  const double ulp = spacing(y), finer = y + 0.5 * ulp;
  return y < 0 && spacing(finer) < ulp ? finer : y + ulp;
}

}  // namespace outgrad::approx
