// Interval arithmetic over MPFR: every operation encloses the exact result, rounding the lower end down and the upper end up.
#pragma once

#include <mpfr.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace outgrad::validation {

/// A closed real interval with ends of kPrecisionBits. A result that is undefined somewhere (a divisor that holds 0) is the whole line,
/// so a failed evaluation can only make a bound useless, never wrong.
class Interval {
 public:
  // s = sqrt(f(x) - y*) loses as many bits as f(x) and y* share: at |x - x*| = 2^-40, 80 of them. What is left outweighs double.
  static constexpr mpfr_prec_t kPrecisionBits = 224;

  Interval(double point = 0) : Interval(point, point) {}
  Interval(double lower, double upper) {
    mpfr_init2(lo_, kPrecisionBits);
    mpfr_init2(hi_, kPrecisionBits);
    mpfr_set_d(lo_, lower, MPFR_RNDD);
    mpfr_set_d(hi_, upper, MPFR_RNDU);
  }
  Interval(const Interval& other) : Interval() { *this = other; }
  Interval(Interval&& other) noexcept : Interval() { swap(other); }
  ~Interval() {
    mpfr_clear(lo_);
    mpfr_clear(hi_);
  }
  Interval& operator=(const Interval& other) {
    mpfr_set(lo_, other.lo_, MPFR_RNDD);
    mpfr_set(hi_, other.hi_, MPFR_RNDU);
    return *this;
  }
  Interval& operator=(Interval&& other) noexcept {
    swap(other);
    return *this;
  }

  /// The ends, rounded outwards to double.
  double lower() const { return mpfr_get_d(lo_, MPFR_RNDD); }
  double upper() const { return mpfr_get_d(hi_, MPFR_RNDU); }
  double middle() const { return (mpfr_get_d(lo_, MPFR_RNDN) + mpfr_get_d(hi_, MPFR_RNDN)) / 2; }
  /// sup |v| rounded up, inf |v| rounded down, upper - lower rounded up.
  double magnitude() const { return std::max(upper(), -lower()); }
  double mignitude() const { return std::max({0.0, lower(), -upper()}); }
  double width() const { return (keep_upper() - keep_lower()).upper(); }

  bool positive() const { return mpfr_sgn(lo_) > 0; }
  bool negative() const { return mpfr_sgn(hi_) < 0; }
  bool is_point() const { return mpfr_equal_p(lo_, hi_); }
  bool contains_zero() const { return !positive() && !negative(); }

  /// The degenerate intervals of the two ends.
  Interval keep_lower() const { return part(lo_); }
  Interval keep_upper() const { return part(hi_); }

  /// v < w for every pair of members.
  friend bool certainly_less(const Interval& v, const Interval& w) { return mpfr_less_p(v.hi_, w.lo_); }

  friend Interval operator-(const Interval& v) {
    Interval result;
    mpfr_neg(result.lo_, v.hi_, MPFR_RNDD);
    mpfr_neg(result.hi_, v.lo_, MPFR_RNDU);
    return result;
  }
  friend Interval operator+(const Interval& v, const Interval& w) {
    Interval result;
    mpfr_add(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    mpfr_add(result.hi_, v.hi_, w.hi_, MPFR_RNDU);
    return result.or_whole_line();
  }
  friend Interval operator-(const Interval& v, const Interval& w) {
    Interval result;
    mpfr_sub(result.lo_, v.lo_, w.hi_, MPFR_RNDD);
    mpfr_sub(result.hi_, v.hi_, w.lo_, MPFR_RNDU);
    return result.or_whole_line();
  }
  friend Interval operator*(const Interval& v, const Interval& w) {
    Interval result, other;
    mpfr_mul(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    mpfr_mul(result.hi_, v.lo_, w.lo_, MPFR_RNDU);
    const auto join = [&](mpfr_srcptr a, mpfr_srcptr b) {
      mpfr_mul(other.lo_, a, b, MPFR_RNDD);
      mpfr_mul(other.hi_, a, b, MPFR_RNDU);
      if (mpfr_nan_p(other.lo_)) mpfr_set_nan(result.lo_);
      if (mpfr_less_p(other.lo_, result.lo_)) mpfr_swap(result.lo_, other.lo_);
      if (mpfr_greater_p(other.hi_, result.hi_)) mpfr_swap(result.hi_, other.hi_);
    };
    if (!mpfr_equal_p(w.lo_, w.hi_)) join(v.lo_, w.hi_);
    if (!mpfr_equal_p(v.lo_, v.hi_)) {
      join(v.hi_, w.lo_);
      join(v.hi_, w.hi_);
    }
    return result.or_whole_line();
  }
  friend Interval operator/(const Interval& v, const Interval& w) {
    if (w.contains_zero()) return whole_line();
    Interval reciprocal;
    mpfr_ui_div(reciprocal.lo_, 1, w.hi_, MPFR_RNDD);
    mpfr_ui_div(reciprocal.hi_, 1, w.lo_, MPFR_RNDU);
    return v * reciprocal;
  }

  friend Interval square(const Interval& v) {
    Interval result = v * v;
    if (mpfr_sgn(result.lo_) < 0) mpfr_set_zero(result.lo_, 1);
    return result;
  }
  /// The root of the part of v that is not negative (the caller knows that the exact value is not).
  friend Interval sqrt(const Interval& v) {
    Interval result;
    if (mpfr_sgn(v.lo_) > 0) mpfr_sqrt(result.lo_, v.lo_, MPFR_RNDD);
    if (mpfr_sgn(v.hi_) > 0) mpfr_sqrt(result.hi_, v.hi_, MPFR_RNDU);
    return result;
  }
  friend Interval exp(const Interval& v) {
    Interval result;
    mpfr_exp(result.lo_, v.lo_, MPFR_RNDD);
    mpfr_exp(result.hi_, v.hi_, MPFR_RNDU);
    return result;
  }
  /// One evaluation where v is narrow, as they dominate the cost: |erfc'| / erfc <= |v| + sqrt(v^2 + 2) < 2 |v| + 2 (Mills' ratio), so erfc
  /// falls from one end to the other by at most that times the width, relatively.
  friend Interval erfc(const Interval& v) {
    Interval result;
    mpfr_erfc(result.hi_, v.lo_, MPFR_RNDU);
    const double relative = 1.01 * v.width() * (2 * v.magnitude() + 2) + 0x1p-220;
    if (relative < 0x1p-120) return result.keep_upper() * (Interval(1) - Interval(0, relative));
    mpfr_erfc(result.lo_, v.hi_, MPFR_RNDD);
    return result;
  }
  /// For v within [0, pi], where the cosine falls.
  friend Interval cos(const Interval& v) {
    Interval result;
    mpfr_cos(result.lo_, v.hi_, MPFR_RNDD);
    mpfr_cos(result.hi_, v.lo_, MPFR_RNDU);
    return result;
  }
  friend Interval hull(const Interval& v, const Interval& w) {
    Interval result;
    mpfr_min(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    mpfr_max(result.hi_, v.hi_, w.hi_, MPFR_RNDU);
    return result;
  }
  friend Interval maximum(const Interval& v, const Interval& w) {
    Interval result;
    mpfr_max(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    mpfr_max(result.hi_, v.hi_, w.hi_, MPFR_RNDU);
    return result;
  }
  /// |v| <= bound, as a set.
  friend Interval symmetric(const Interval& bound) { return hull(bound, -bound); }

  static Interval pi() {
    Interval result;
    mpfr_const_pi(result.lo_, MPFR_RNDD);
    mpfr_const_pi(result.hi_, MPFR_RNDU);
    return result;
  }
  static Interval whole_line() { return {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()}; }

 private:
  void swap(Interval& other) noexcept {
    mpfr_swap(lo_, other.lo_);
    mpfr_swap(hi_, other.hi_);
  }
  static Interval part(mpfr_srcptr end) {
    Interval result;
    mpfr_set(result.lo_, end, MPFR_RNDD);
    mpfr_set(result.hi_, end, MPFR_RNDU);
    return result;
  }
  Interval or_whole_line() && { return mpfr_nan_p(lo_) || mpfr_nan_p(hi_) ? whole_line() : std::move(*this); }
  Interval or_whole_line() & { return std::move(*this).or_whole_line(); }

  mpfr_t lo_, hi_;
};

}  // namespace outgrad::validation
