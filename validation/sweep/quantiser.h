// Systems that keep x, or y, in a few bits and take f' from the number that these bits stand for: their
// arithmetic as data, evaluated as they evaluate it.
//
// The elements of a group share a minimum and a scale. With c = max - min of the group and z an element,
//   s = levels / (c + epsilon),   v = (z - min) s,   r = rint(max(v + u - 0.5, 0)),   z^ = code / s + min
// where u is random (stochastic rounding), or r = rint(max(v, 0)) (nearest). Differences, products and
// quotients are rounded to the format of the arithmetic; c + epsilon and the quotient by it are rounded once,
// as in ActNN, whose epsilon is a double. v + u is rounded to f32. The code is r cut to its bits, or min(r,
// levels).
//
// Codes may be the numbers of e4m3 instead. Then the elements of a group share a scale alone: with a the
// largest magnitude of the group,
//   s = (a + epsilon) / levels,   r = z / s rounded to the nearest number of e4m3, at most 448,   z^ = r s
// where every result is rounded to the format of the arithmetic, and a code is the place of r among these
// numbers. validation/README.md documents the keys of the file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "validation/exact/oracle.h"
#include "kernels/support/json_node.h"

namespace outgrad::validation {

struct Quantiser {
  // where min and max come from: this group, elsewhere, or a running mean
  enum class Rule { exact, given, running };

  bool keeps_y = false;  // with one bit that says on which side of x* x is
  bool e4m3 = false;  // codes are numbers of e4m3
  int bits = 8;
  int levels = 255;
  double epsilon = 0;
  std::int64_t group = 0;  // elements that share a scale and a minimum
  Rule rule = Rule::exact;
  double momentum = 0;  // of the running mean
  std::vector<std::array<double, 2>> ranges;  // [min, max] for which the errors are computed
  std::array<double, 2> x{};  // the x to which `ranges` are applied, unless the rule is exact
  bool stochastic = false;
  int u_bits = 0;  // u = RN(RN(k) 2^-u_bits + u_offset 2^-u_bits) in f32 for every k < 2^u_bits alike
  double u_offset = 0;
  bool wraps = false;
  const FloatFormat* arithmetic = nullptr;  // null: the format of z
  bool fma = false;  // in f32, v + u is rounded once
  // what s and min are rounded to after they were used; null: not rounded
  const FloatFormat* kept = nullptr;

  const FloatFormat& computed_in(const FloatFormat& format) const {
    return arithmetic ? *arithmetic : format;
  }
  /// With the share of a scale and, unless codes are numbers of e4m3, a minimum.
  double bits_per_element(const FloatFormat& format) const;
  double u(std::uint64_t k) const;
};

/// `node` is a file of kind "quantiser", whose common keys have been read. Throws kernels::SpecError.
Quantiser read_quantiser(const kernels::JsonNode& node);

/// The scale and the minimum of one group, and what they do to its elements.
class QuantisedGroup {
 public:
  /// z in `format`. `of` must outlive it.
  QuantisedGroup(const Quantiser& of, double min, double max, const FloatFormat& format);
  /// A group with a minimum and a c that need not be its elements': two numbers of the arithmetic.
  struct Moved {
    double min, c;
  };
  QuantisedGroup(const Quantiser& of, const Moved& moved, const FloatFormat& format);

  /// Empty, or the reason why no number can be quantised so.
  const std::string& problem() const { return problem_; }
  double min() const { return min_; }
  double max() const { return max_; }
  double step() const;  // the greatest, of z^ from one code to the next, before s is rounded again
  double last_raw() const { return last_raw_; }  // of those that do not wrap

  /// r for an element z and u, at most `levels` if codes saturate. It rises with z and with u.
  double raw(double z, double u) const;
  double least_raw(double z) const { return raw(z, least_u_); }
  double greatest_raw(double z) const { return raw(z, greatest_u_); }
  /// The probability over u that raw(z, u) >= r: a multiple of 2^-u_bits.
  double probability(double z, double r) const;
  int codes() const;  // 0 to codes() - 1
  int code(double raw) const;
  /// z^.
  double value(int code) const;

 private:
  void scale_by(double c);

  const Quantiser& of_;
  FloatFormat format_;  // of the arithmetic
  double min_ = 0, max_ = 0, offset_ = 0, scale_ = 0, kept_offset_ = 0, kept_scale_ = 0;
  double least_u_ = 0, greatest_u_ = 0, last_raw_ = 0;
  std::string problem_;
};

}  // namespace outgrad::validation
