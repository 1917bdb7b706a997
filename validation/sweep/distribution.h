// The distribution of x in use: the probability that x rounds to a bit pattern, and sums of an error weighted
// by it.
//
// Normal: P(a < x <= b). A narrow interval, such as that of a bit pattern, uses three-point Gauss-Legendre
// quadrature of the density, because a difference of two erfc would cancel. A wide interval uses erfc. Both
// are within a relative 2^-40 of the exact probability for |x| <= 8 sigma (the tests compare with MPFR).
// Histogram: x is spread evenly over each bin.
//
// A block of neighbouring f32 is weighted by moments. With x_i = c + D u_i, |u_i| <= 1, and h the spacing,
//   w_i = h phi((c + D u_i) / sigma) / sigma = w (1 - p u_i + (p^2/2 - q) u_i^2 + (p q - p^3/6) u_i^3 + ...),
//       p = c D / sigma^2, q = D^2 / (2 sigma^2)
// where p < 2^-6 for blocks of 2048 as long as |c| <= 11 sigma. What is left out is therefore below p^4 <
// 2^-24 of a weight there, and below 2^-40 for |c| <= 3 sigma. The midpoint rule h phi is within a relative
// 2^-44. So sum e_i w_i needs only the sums of e_i u_i^j, whatever sigma is.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "validation/exact/oracle.h"

namespace outgrad::validation {

/// A sum of doubles that does not depend on their order. It holds multiples of 2^-100 below 2^26 in 128 bits;
/// each term is truncated to that grid.
class ExactSum {
 public:
  void add(double v) {
    constexpr double kLargest = 0x1p26;
    if (std::fabs(v) < kLargest) {
      sum_ += static_cast<Wide>(v * 0x1p100);
    } else {
      finite_ = false;  // this is also the case for infinities and NaN
    }
  }
  void add(const ExactSum& other) {
    sum_ += other.sum_;
    finite_ = finite_ && other.finite_;
  }
  /// Infinite if a term was not finite or was too large.
  double value() const { return finite_ ? static_cast<double>(sum_) * 0x1p-100 : INFINITY; }

  nlohmann::ordered_json to_json() const;
  static ExactSum from_json(const nlohmann::json& json);

 private:
  __extension__ using Wide = __int128;
  Wide sum_ = 0;
  bool finite_ = true;
};

/// sum w, sum w e, sum w e^2 for n neighbouring x and their errors e; `moments` are sum e^k u^j.
struct BlockMoments {
  double centre, half_width, spacing;  // c, D, h
  std::int64_t count;
  std::array<double, 4> error{}, square{};
};

class Distribution {
 public:
  static Distribution normal(double sigma);
  /// A file of schema "outgrad.activations/1". Throws kernels::SpecError naming `file`.
  static Distribution parse(const std::string& text, const std::string& file);

  const std::string& name() const { return name_; }
  /// P(a < x <= b).
  double mass(double a, double b) const;
  /// The interval that holds all but about 6.3e-5 of x, which is what a normal distribution has beyond 4
  /// sigma.
  std::array<double, 2> reach() const;
  /// Sums over a block of f32; nothing where `regular` says no.
  struct Sums {
    double mass = 0, error = 0, square = 0;
  };
  Sums weigh(const BlockMoments& block) const;
  /// Whether weigh() is valid for a block that covers (low, high). For a histogram, the block must lie within
  /// one bin, to a 2^-21 of the block.
  bool regular(double low, double high) const;
  double density(double x) const;
  /// Whether this is a density without bins. A histogram counts f32: each stands for the step to its
  /// neighbour away from 0, so that the sum over a bin is its share.
  bool smooth() const { return sigma_ > 0; }

  nlohmann::ordered_json to_json() const;
  static Distribution from_json(const nlohmann::json& json, const std::string& file);

 private:
  std::int64_t bin_of(double x) const;
  double cumulative(double x) const;

  std::string name_;
  double sigma_ = 0;  // 0: a histogram
  double first_ = 0, width_ = 0;
  std::vector<double> below_;  // the share of x below each bin's lower end, and 1
  nlohmann::ordered_json source_;
};

/// sigma in {0.5, 1, 2}.
std::vector<Distribution> usual_distributions();

/// The interval that an f32 stands for in a histogram: from it to its neighbour away from 0.
std::array<double, 2> step_from_zero(float x);

/// The x that round to v in a format: those between the two numbers.
std::array<double, 2> rounding_interval(double v, const FloatFormat& format);

}  // namespace outgrad::validation
