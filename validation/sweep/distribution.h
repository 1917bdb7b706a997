// What x are like in use: the probability that x rounds to a bit pattern, and sums of an error weighted by it.
//
// Normal: P(a < x <= b) of a narrow interval, as a bit pattern's is, by three-point Gauss-Legendre quadrature of the density (a difference
// of two erfc would cancel), of a wide one by erfc. Both within a relative 2^-40 of the exact probability for |x| <= 8 sigma (the tests ask
// MPFR). Histogram: x is spread evenly over each bin.
//
// A block of neighbouring f32 is weighed by moments: with x_i = c + D u_i, |u_i| <= 1, and h the spacing,
//   w_i = h phi((c + D u_i) / sigma) / sigma = w (1 - p u_i + (p^2/2 - q) u_i^2 + (p q - p^3/6) u_i^3 + ...),  p = c D / sigma^2, q = D^2 / (2 sigma^2)
// where p < 2^-6 as long as |c| <= 11 sigma for blocks of 2048, so what is left out is below p^4 < 2^-24 of a weight there, below 2^-40 for
// |c| <= 3 sigma; and the midpoint rule h phi is within a relative 2^-44. sum e_i w_i then takes sum e_i u_i^j alone, whatever sigma is.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "validation/exact/oracle.h"

namespace outgrad::validation {

/// A sum of doubles that does not depend on their order: multiples of 2^-100 below 2^26 in 128 bits. Each is truncated to that grid.
class ExactSum {
 public:
  void add(double v) {
    constexpr double kLargest = 0x1p26;
    if (std::fabs(v) < kLargest) {
      sum_ += static_cast<Wide>(v * 0x1p100);
    } else {
      finite_ = false;  // infinities and NaN too
    }
  }
  void add(const ExactSum& other) {
    sum_ += other.sum_;
    finite_ = finite_ && other.finite_;
  }
  /// Infinite if a term was not finite or too large.
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
  /// The interval that holds all but about 6.3e-5 of x, what a normal distribution has beyond 4 sigma.
  std::array<double, 2> reach() const;
  /// Sums over a block of f32; nothing where `regular` says no.
  struct Sums {
    double mass = 0, error = 0, square = 0;
  };
  Sums weigh(const BlockMoments& block) const;
  /// Whether a block that covers (low, high) lies where weigh() is what it claims to be: within one bin of a histogram, to a 2^-21 of the block.
  bool regular(double low, double high) const;
  double density(double x) const;
  /// A density without bins. A histogram counts f32: each stands for the step to its neighbour away from 0, so that a bin's sum to its share.
  bool smooth() const { return sigma_ > 0; }

  nlohmann::ordered_json to_json() const;
  static Distribution from_json(const nlohmann::json& json, const std::string& file);

 private:
  std::int64_t bin_of(double x) const;
  double cumulative(double x) const;

  std::string name_;
  double sigma_ = 0;  // 0: a histogram
  double first_ = 0, width_ = 0;
  std::vector<double> below_;  // share of x below each bin's lower end, and 1
  nlohmann::ordered_json source_;
};

/// sigma in {0.5, 1, 2}.
std::vector<Distribution> usual_distributions();

/// What an f32 stands for in a histogram: all between it and its neighbour away from 0.
std::array<double, 2> step_from_zero(float x);

/// The x that round to v in a format: all between the two numbers.
std::array<double, 2> rounding_interval(double v, const FloatFormat& format);

}  // namespace outgrad::validation
