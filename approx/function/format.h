/// Storage formats of y as the fitter sees them: their shapes, their numbers, their spacing.
#pragma once

#include <cstdint>
#include <string>

namespace outgrad::approx {

/// Stored formats of activations; e4m3 and e5m2 are the 8-bit ones of the OCP specification (e4m3 has no
/// infinity). In a parity format the lowest bit of a negative code says on which side of x* x lay.
enum class Format { f32, f16, bf16, e4m3, e5m2, mxfp8, f16_parity, bf16_parity };
inline constexpr Format kFormats[] = {Format::f32,  Format::f16,   Format::bf16,       Format::e4m3,
                                      Format::e5m2, Format::mxfp8, Format::f16_parity, Format::bf16_parity};
const char* to_string(Format f);
/// @throws kernels::SpecError for an unknown name.
Format format_of(const std::string& name);
struct FormatShape {
  int exponent_bits, fraction_bits;
  bool has_infinity;
  /// Where the sign stands in a code.
  [[nodiscard]] int sign_bit() const { return exponent_bits + fraction_bits; }
};
FormatShape shape_of(Format f);
/// Significand bits, the leading one included.
int precision_bits(Format f);
/// The number that `code` stands for; NaN and infinities as such.
double decode(Format f, std::uint32_t code);

/// The float that 16 bits of f16 or bf16 stand for, and the bits of a number rounded to nearest even.
float widened(Format f, std::uint16_t bits);
std::uint16_t narrowed(Format f, float value);

/// Whether y alone says its branch: a negative code is even right of x* and odd left of it, where no other
/// code is stored. A negative f(x) between two neighbouring codes of its branch is stored as the one on its
/// side of the code between these two, which belongs to the other branch. That is the nearest of the branch,
/// except that left of x* the part of an ulp above a power of two counts as its half.
bool carries_branch(Format f);
/// Whether `code` is stored for an x on that branch of an f that has a minimum.
bool holds_branch(Format f, std::uint32_t code, bool right);
/// The same of a number, y < 0 or +0.
bool holds_branch(Format f, double y, bool right);

/// Exponents of the scales that a block of y may have, first and last; 0 and 0 in a format without scales.
/// The scale s of a block is chosen so that every |y| in it is below s times the power of two that follows
/// the largest number of a code; what lies beyond that number is stored as it (OCP Microscaling Formats
/// specification 1.0, section 6.3).
struct Scales {
  int first, last;
};
Scales scales_of(Format f);
bool has_scales(Format f);

/// Midway between the largest number and the one that would follow it. Conversions do not saturate
/// (kernels/formats.h): a y further from 0 is stored as an infinity or, in e4m3, which has none, as a NaN,
/// which stands for no x. In a format with scales the power of two that every |y| of a block is below.
double overflow_of(Format format);

/// The number of the format that follows y, which is 0 or normal, in a format with scales at the least of
/// them; the grid gets finer where a negative y is a power of two.
double next_number(Format format, double y);

/// Whether a direct table can be made for y: a number has one code, and a mask stands beside it. Of f32 there
/// are too many codes.
bool has_direct_table(Format f);

/// What is known of f(x) from s = z / b, where z = f(x) b was rounded to the format: |s - f(x)| <= relative
/// |f(x)| + absolute, s an fp32 number. Rounding to nearest takes u / (1 + u) of z, u half an ulp of 1; 2^-21
/// and 2^-22 have room for an fp32 f(x) that is off by kGateError (1 + |f(x)|) (kernels/gate.h), for the
/// rounding of the product to fp32 before, for that of the quotient, and for a subnormal z where |b| >= 1/2.
/// A z that overflows is not meant.
struct ProductBall {
  double relative, absolute;
};
ProductBall product_ball(Format format);

/// One unit in the last place of the format at |g|, not below its least normal number's.
double ulp_of(Format format, double g);

}  // namespace outgrad::approx
