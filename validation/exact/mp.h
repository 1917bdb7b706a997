// Interval arithmetic over MPFR: every operation encloses the exact result, rounding the lower end down and
// the upper end up.
#pragma once

#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace outgrad::validation {

/// A closed real interval with ends of `Bits` bits. A result that is undefined somewhere (for example, when a
/// divisor contains 0) is the whole line. So a failed evaluation can make a bound useless, but never wrong.
template <int Bits>
class BasicInterval {
 public:
  static constexpr mpfr_prec_t kPrecisionBits = Bits;

  BasicInterval() {
    mpfr_custom_init_set(lo_, MPFR_ZERO_KIND, 0, kPrecisionBits, lo_limbs_);
    mpfr_custom_init_set(hi_, MPFR_ZERO_KIND, 0, kPrecisionBits, hi_limbs_);
  }
  BasicInterval(double point) : BasicInterval(point, point) {}
  BasicInterval(double lower, double upper) : BasicInterval() {
    mpfr_set_d(lo_, lower, MPFR_RNDD);
    mpfr_set_d(hi_, upper, MPFR_RNDU);
  }
  /// The same set, rounded outwards to this precision.
  template <int OtherBits>
  explicit BasicInterval(const BasicInterval<OtherBits>& other) : BasicInterval() {
    mpfr_set(lo_, other.lower_end(), MPFR_RNDD);
    mpfr_set(hi_, other.upper_end(), MPFR_RNDU);
  }
  BasicInterval(const BasicInterval& other) : BasicInterval() { *this = other; }
  BasicInterval& operator=(const BasicInterval& other) {
    mpfr_set(lo_, other.lo_, MPFR_RNDD);
    mpfr_set(hi_, other.hi_, MPFR_RNDU);
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
  BasicInterval keep_lower() const { return part(lo_); }
  BasicInterval keep_upper() const { return part(hi_); }

  mpfr_srcptr lower_end() const { return lo_; }
  mpfr_srcptr upper_end() const { return hi_; }
  /// The same ends.
  bool identical(const BasicInterval& other) const {
    return mpfr_equal_p(lo_, other.lo_) && mpfr_equal_p(hi_, other.hi_);
  }

  /// Encloses a decimal or hexadecimal literal; the whole line if the text is not a number.
  static BasicInterval parse(const char* digits) {
    BasicInterval result;
    char *end_down = nullptr, *end_up = nullptr;
    mpfr_strtofr(result.lo_, digits, &end_down, 0, MPFR_RNDD);
    mpfr_strtofr(result.hi_, digits, &end_up, 0, MPFR_RNDU);
    const bool whole =
        end_down != digits && *end_down == '\0' && mpfr_number_p(result.lo_) && mpfr_number_p(result.hi_);
    return whole ? result : whole_line();
  }

  /// v < w for every pair of members.
  friend bool certainly_less(const BasicInterval& v, const BasicInterval& w) {
    return mpfr_less_p(v.hi_, w.lo_);
  }

  friend BasicInterval operator-(const BasicInterval& v) {
    BasicInterval result;
    mpfr_neg(result.lo_, v.hi_, MPFR_RNDD);
    mpfr_neg(result.hi_, v.lo_, MPFR_RNDU);
    return result;
  }
  friend BasicInterval operator+(const BasicInterval& v, const BasicInterval& w) {
    BasicInterval result;
    mpfr_add(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    mpfr_add(result.hi_, v.hi_, w.hi_, MPFR_RNDU);
    result.widen_if_undefined();
    return result;
  }
  friend BasicInterval operator-(const BasicInterval& v, const BasicInterval& w) {
    BasicInterval result;
    mpfr_sub(result.lo_, v.lo_, w.hi_, MPFR_RNDD);
    mpfr_sub(result.hi_, v.hi_, w.lo_, MPFR_RNDU);
    result.widen_if_undefined();
    return result;
  }
  friend BasicInterval operator*(const BasicInterval& v, const BasicInterval& w) {
    BasicInterval result, other;
    // If the factors keep their signs, it is known which ends are multiplied.
    const bool v_positive = v.positive(), w_positive = w.positive();
    if ((v_positive || v.negative()) && (w_positive || w.negative())) {
      mpfr_mul(result.lo_, w_positive ? v.lo_ : v.hi_, v_positive ? w.lo_ : w.hi_, MPFR_RNDD);
      mpfr_mul(result.hi_, w_positive ? v.hi_ : v.lo_, v_positive ? w.hi_ : w.lo_, MPFR_RNDU);
      result.widen_if_undefined();
      return result;
    }
    mpfr_mul(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    mpfr_mul(result.hi_, v.lo_, w.lo_, MPFR_RNDU);
    const auto join = [&](mpfr_srcptr a, mpfr_srcptr b) {
      mpfr_mul(other.lo_, a, b, MPFR_RNDD);
      mpfr_mul(other.hi_, a, b, MPFR_RNDU);
      if (mpfr_nan_p(other.lo_)) mpfr_set_nan(result.lo_);
      if (mpfr_less_p(other.lo_, result.lo_)) mpfr_set(result.lo_, other.lo_, MPFR_RNDD);
      if (mpfr_greater_p(other.hi_, result.hi_)) mpfr_set(result.hi_, other.hi_, MPFR_RNDU);
    };
    if (!mpfr_equal_p(w.lo_, w.hi_)) join(v.lo_, w.hi_);
    if (!mpfr_equal_p(v.lo_, v.hi_)) {
      join(v.hi_, w.lo_);
      join(v.hi_, w.hi_);
    }
    result.widen_if_undefined();
    return result;
  }
  friend BasicInterval operator/(const BasicInterval& v, const BasicInterval& w) {
    if (w.contains_zero()) return whole_line();
    BasicInterval reciprocal;
    mpfr_ui_div(reciprocal.lo_, 1, w.hi_, MPFR_RNDD);
    mpfr_ui_div(reciprocal.hi_, 1, w.lo_, MPFR_RNDU);
    return v * reciprocal;
  }

  friend BasicInterval square(const BasicInterval& v) {
    BasicInterval result = v * v;
    if (mpfr_sgn(result.lo_) < 0) mpfr_set_zero(result.lo_, 1);
    return result;
  }
  /// The root of the nonnegative part of v (the caller knows that the exact value is not negative).
  friend BasicInterval sqrt(const BasicInterval& v) {
    BasicInterval result;
    if (mpfr_sgn(v.lo_) > 0) mpfr_sqrt(result.lo_, v.lo_, MPFR_RNDD);
    if (mpfr_sgn(v.hi_) > 0) mpfr_sqrt(result.hi_, v.hi_, MPFR_RNDU);
    return result;
  }
  // Functions that rise with their argument. At a point, the upper end is the lower end, or the next number
  // if that one was rounded.
  friend BasicInterval exp(const BasicInterval& v) { return rising(v, mpfr_exp); }
  friend BasicInterval log1p(const BasicInterval& v) {
    return mpfr_cmp_si(v.lo_, -1) > 0 ? rising(v, mpfr_log1p) : whole_line();
  }
  friend BasicInterval log(const BasicInterval& v) {
    return v.positive() ? rising(v, mpfr_log) : whole_line();
  }
  friend BasicInterval tanh(const BasicInterval& v) { return rising(v, mpfr_tanh); }
  friend BasicInterval atan(const BasicInterval& v) { return rising(v, mpfr_atan); }
  /// Evaluates only once if v is narrow, because evaluations dominate the cost. |erfc'| / erfc <= |v| +
  /// sqrt(v^2 + 2) < 2 |v| + 2 (Mills' ratio), so from one end to the other erfc falls by a relative amount
  /// of at most that times the width.
  friend BasicInterval erfc(const BasicInterval& v) {
    BasicInterval result;
    mpfr_erfc(result.hi_, v.lo_, MPFR_RNDU);
    const double relative = 1.01 * v.width() * (2 * v.magnitude() + 2) + std::ldexp(1.0, 4 - Bits);
    if (relative < std::ldexp(1.0, -8 - Bits / 2))
      return result.keep_upper() * (BasicInterval(1) - BasicInterval(0, relative));
    mpfr_erfc(result.lo_, v.hi_, MPFR_RNDD);
    return result;
  }
  /// Uses the value at the middle and Lipschitz's constant 1, so it is intended for narrow v.
  friend BasicInterval cos(const BasicInterval& v) { return oscillating(v, mpfr_cos); }
  friend BasicInterval sin(const BasicInterval& v) { return oscillating(v, mpfr_sin); }
  friend BasicInterval absolute(const BasicInterval& v) { return maximum(maximum(v, -v), 0.0); }
  friend BasicInterval hull(const BasicInterval& v, const BasicInterval& w) {
    return of_ends(v, w, mpfr_min, mpfr_max);
  }
  friend BasicInterval minimum(const BasicInterval& v, const BasicInterval& w) {
    return of_ends(v, w, mpfr_min, mpfr_min);
  }
  friend BasicInterval maximum(const BasicInterval& v, const BasicInterval& w) {
    return of_ends(v, w, mpfr_max, mpfr_max);
  }
  /// The common members of two intervals that are known to overlap.
  friend BasicInterval intersection(const BasicInterval& v, const BasicInterval& w) {
    return of_ends(v, w, mpfr_max, mpfr_min);
  }
  /// |v| <= bound, as a set.
  friend BasicInterval symmetric(const BasicInterval& bound) { return hull(bound, -bound); }

  static BasicInterval pi() {
    BasicInterval result;
    mpfr_const_pi(result.lo_, MPFR_RNDD);
    mpfr_const_pi(result.hi_, MPFR_RNDU);
    return result;
  }
  static BasicInterval whole_line() {
    return {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  }

 private:
  using Choice = int(mpfr_ptr, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t);
  static BasicInterval of_ends(const BasicInterval& v, const BasicInterval& w, Choice lower, Choice upper) {
    BasicInterval result;
    lower(result.lo_, v.lo_, w.lo_, MPFR_RNDD);
    upper(result.hi_, v.hi_, w.hi_, MPFR_RNDU);
    return result;
  }
  template <class Function>
  static BasicInterval rising(const BasicInterval& v, const Function& function) {
    BasicInterval result;
    const int inexact = function(result.lo_, v.lo_, MPFR_RNDD);
    if (v.is_point()) {
      mpfr_set(result.hi_, result.lo_, MPFR_RNDU);
      if (inexact != 0) mpfr_nextabove(result.hi_);
    } else {
      function(result.hi_, v.hi_, MPFR_RNDU);
    }
    result.widen_if_undefined();
    return result;
  }
  template <class Function>
  static BasicInterval oscillating(const BasicInterval& v, const Function& function) {
    BasicInterval middle, result;
    mpfr_add(middle.lo_, v.lo_, v.hi_, MPFR_RNDN);
    mpfr_div_2ui(middle.lo_, middle.lo_, 1, MPFR_RNDN);
    mpfr_set(middle.hi_, middle.lo_, MPFR_RNDN);
    if (!mpfr_number_p(middle.lo_)) return {-1, 1};
    function(result.lo_, middle.lo_, MPFR_RNDD);
    function(result.hi_, middle.lo_, MPFR_RNDU);
    return intersection(result + symmetric(absolute(v - middle).keep_upper()), {-1, 1});
  }
  static BasicInterval part(mpfr_srcptr end) {
    BasicInterval result;
    mpfr_set(result.lo_, end, MPFR_RNDD);
    mpfr_set(result.hi_, end, MPFR_RNDU);
    return result;
  }
  void widen_if_undefined() {
    if (mpfr_nan_p(lo_) || mpfr_nan_p(hi_)) *this = whole_line();
  }

  // The digits are members, because allocating memory for each number costs more than most operations on it.
  // So nothing here may swap or clear.
  static constexpr size_t kLimbs = (Bits - 1) / GMP_NUMB_BITS + 1;
  mp_limb_t lo_limbs_[kLimbs], hi_limbs_[kLimbs];
  mpfr_t lo_, hi_;
};

// s = sqrt(f(x) - y*) loses as many bits as f(x) and y* share: at |x - x*| = 2^-40, 80 of them. The remaining
// bits are more than those of double.
using Interval = BasicInterval<224>;
// For bounds of which only the size matters.
using CoarseInterval = BasicInterval<64>;

}  // namespace outgrad::validation
