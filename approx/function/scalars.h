/// The scalars an activation is evaluated over: double, multi-precision reals, Arb balls and truncated power
/// series of balls.
///
/// Every operation on `Ball` and `Series` encloses the exact result (Johansson, "Arb: efficient
/// arbitrary-precision midpoint-radius interval arithmetic", IEEE TC 2017); `Real` rounds to nearest and
/// proves nothing by itself.
#pragma once

#include <arb.h>
#include <arb_hypgeom.h>
#include <arb_poly.h>

#include <boost/multiprecision/mpfr.hpp>
#include <cmath>
#include <string>
#include <utility>

namespace outgrad::approx {

/// 60 decimal digits: the linear systems of the exchange lose at most half of them at the degrees used here.
using Real = boost::multiprecision::number<boost::multiprecision::mpfr_float_backend<60>,
                                           boost::multiprecision::et_off>;

/// Working precision of balls. Next to x* the quotient (f - y*)/(x - x*)^2 and its derivatives cancel up to
/// 208 bits; 320 leaves over 100.
inline constexpr slong kPrecisionBits = 320;

/// A real number known to lie in midpoint +- radius.
class Ball {
 public:
  Ball() { arb_init(v_); }
  Ball(double d) : Ball() { arb_set_d(v_, d); }  // NOLINT: a double is an exact ball
  explicit Ball(const Real& r) : Ball() { arf_set_mpfr(arb_midref(v_), r.backend().data()); }
  Ball(const Ball& o) : Ball() { arb_set(v_, o.v_); }
  Ball(Ball&& o) noexcept : Ball() { arb_swap(v_, o.v_); }
  Ball& operator=(Ball o) noexcept {
    arb_swap(v_, o.v_);
    return *this;
  }
  ~Ball() { arb_clear(v_); }

  /// Nothing is known of it.
  static Ball indeterminate() {
    Ball r;
    arb_indeterminate(r.v_);
    return r;
  }
  /// The smallest ball that holds both arguments.
  static Ball hull(const Ball& a, const Ball& b) {
    Ball r;
    arb_union(r.v_, a.v_, b.v_, kPrecisionBits);
    return r;
  }

  [[nodiscard]] arb_ptr raw() { return v_; }
  [[nodiscard]] arb_srcptr raw() const { return v_; }

  [[nodiscard]] Ball midpoint() const {
    Ball r;
    arb_get_mid_arb(r.v_, v_);
    return r;
  }
  [[nodiscard]] Real mid() const {
    Real r;
    arf_get_mpfr(r.backend().data(), arb_midref(v_), MPFR_RNDN);
    return r;
  }
  [[nodiscard]] double to_double() const { return arf_get_d(arb_midref(v_), ARF_RND_NEAR); }
  /// Doubles that enclose the ball.
  [[nodiscard]] double upper() const { return bound(&arb_get_ubound_arf, ARF_RND_CEIL); }
  [[nodiscard]] double lower() const { return bound(&arb_get_lbound_arf, ARF_RND_FLOOR); }
  /// Least double >= |x| for every x in the ball.
  [[nodiscard]] double magnitude() const {
    arf_t t;
    arf_init(t);
    arb_get_abs_ubound_arf(t, v_, kPrecisionBits);
    double r = arf_get_d(t, ARF_RND_UP);
    arf_clear(t);
    return r;
  }
  [[nodiscard]] bool finite() const { return arb_is_finite(v_) != 0; }
  [[nodiscard]] bool positive() const { return arb_is_positive(v_) != 0; }
  [[nodiscard]] bool negative() const { return arb_is_negative(v_) != 0; }
  [[nodiscard]] bool holds_zero() const { return arb_contains_zero(v_) != 0; }

#define OUTGRAD_BALL_OPERATOR(op, fn)                     \
  friend Ball operator op(const Ball& a, const Ball& b) { \
    Ball r;                                               \
    fn(r.v_, a.v_, b.v_, kPrecisionBits);                 \
    return r;                                             \
  }
  OUTGRAD_BALL_OPERATOR(+, arb_add)
  OUTGRAD_BALL_OPERATOR(-, arb_sub)
  OUTGRAD_BALL_OPERATOR(*, arb_mul)
  OUTGRAD_BALL_OPERATOR(/, arb_div)
#undef OUTGRAD_BALL_OPERATOR
  friend Ball operator-(const Ball& a) {
    Ball r;
    arb_neg(r.v_, a.v_);
    return r;
  }

 private:
  template <class Get>
  [[nodiscard]] double bound(Get get, arf_rnd_t direction) const {
    arf_t t;
    arf_init(t);
    get(t, v_, kPrecisionBits);
    double r = arf_get_d(t, direction);
    arf_clear(t);
    return r;
  }
  arb_t v_;
};

/// Sums of a few doubles are rounded up by this factor.
inline constexpr double kSumsUp = 1 + 0x1p-40;

/// Halves the way between a place where `holds` is false and one where it is true so often; what is left of
/// it.
template <class Holds>
std::pair<double, double> bisect(double fails_at, double holds_at, int halvings, const Holds& holds) {
  for (int step = 0; step < halvings; ++step) {
    const double mid = 0.5 * (fails_at + holds_at);
    (holds(mid) ? holds_at : fails_at) = mid;
  }
  return {fails_at, holds_at};
}

/// f over a ball for an increasing f, from its values at the two ends: no dependency widens it.
template <class Function>
Ball increasing(const Ball& a, const Function& f) {
  const bool narrow =
      arb_rel_accuracy_bits(a.raw()) > kPrecisionBits / 4 && mag_cmp_2exp_si(arb_radref(a.raw()), 0) < 0;
  if (arb_is_exact(a.raw()) || narrow || !arb_is_finite(a.raw())) return f(a);
  Ball lo, hi;
  arb_get_lbound_arf(arb_midref(lo.raw()), a.raw(), kPrecisionBits);
  arb_get_ubound_arf(arb_midref(hi.raw()), a.raw(), kPrecisionBits);
  return Ball::hull(f(lo), f(hi));
}

#define OUTGRAD_BALL_FUNCTION(name, fn)   \
  inline Ball name(const Ball& a) {       \
    Ball r;                               \
    fn(r.raw(), a.raw(), kPrecisionBits); \
    return r;                             \
  }
#define OUTGRAD_INCREASING_BALL_FUNCTION(name, fn) \
  inline Ball name(const Ball& a) {                \
    return increasing(a, [](const Ball& x) {       \
      Ball r;                                      \
      fn(r.raw(), x.raw(), kPrecisionBits);        \
      return r;                                    \
    });                                            \
  }
OUTGRAD_BALL_FUNCTION(sqrt, arb_sqrt)
OUTGRAD_BALL_FUNCTION(log, arb_log)
OUTGRAD_BALL_FUNCTION(sin, arb_sin)
OUTGRAD_BALL_FUNCTION(cos, arb_cos)
OUTGRAD_INCREASING_BALL_FUNCTION(exp, arb_exp)
OUTGRAD_INCREASING_BALL_FUNCTION(tanh, arb_tanh)
OUTGRAD_INCREASING_BALL_FUNCTION(error_function, arb_hypgeom_erf)
#undef OUTGRAD_BALL_FUNCTION
#undef OUTGRAD_INCREASING_BALL_FUNCTION
inline Ball abs(const Ball& a) {
  Ball r;
  arb_abs(r.raw(), a.raw());
  return r;
}
inline Ball max(const Ball& a, const Ball& b) {
  Ball r;
  arb_max(r.raw(), a.raw(), b.raw(), kPrecisionBits);
  return r;
}
inline Ball min(const Ball& a, const Ball& b) {
  Ball r;
  arb_min(r.raw(), a.raw(), b.raw(), kPrecisionBits);
  return r;
}
inline Ball sigmoid(const Ball& a) {
  return increasing(a, [](const Ball& x) {
    const Ball r = Ball(1.0) / (Ball(1.0) + exp(-x));
    if (r.finite() || !x.negative()) return r;
    const Ball e = exp(x);  // exp(-x) is beyond all numbers
    return e / (Ball(1.0) + e);
  });
}
inline Ball softplus(const Ball& a) {
  return increasing(a, [](const Ball& x) {
    Ball r = x.positive() ? exp(-x) : exp(x);
    arb_log1p(r.raw(), r.raw(), kPrecisionBits);
    return x.positive() ? x + r : r;
  });
}

/// Power series in t truncated to `length` terms; coefficient k of f(X + t) encloses f^(k)(xi)/k! for every
/// xi in X.
///
/// Where an operation is singular, or not differentiable, somewhere in X, what is not defined is
/// indeterminate: undecided, never wrong. Arb cannot see that alone: x^2 at 0, truncated to two terms, is its
/// empty polynomial, whose root, or quotient by x, would be 0.
class Series {
 public:
  explicit Series(slong length) : length_(length) { arb_poly_init(p_); }
  Series(const Series& o) : Series(o.length_) { arb_poly_set(p_, o.p_); }
  Series(Series&& o) noexcept : Series(o.length_) { arb_poly_swap(p_, o.p_); }
  Series& operator=(Series o) noexcept {
    arb_poly_swap(p_, o.p_);
    std::swap(length_, o.length_);
    return *this;
  }
  ~Series() { arb_poly_clear(p_); }

  /// The identity X + t.
  static Series variable(const Ball& x, slong length) {
    Series r(length);
    arb_poly_set_coeff_arb(r.p_, 0, x.raw());
    if (length > 1) arb_poly_set_coeff_si(r.p_, 1, 1);
    return r;
  }
  static Series constant(const Ball& c, slong length) {
    Series r(length);
    arb_poly_set_coeff_arb(r.p_, 0, c.raw());
    return r;
  }

  static Series indeterminate(slong length) {
    Series r(length);
    for (slong k = 0; k < length; ++k) r.set(k, Ball::indeterminate());
    return r;
  }

  [[nodiscard]] slong length() const { return length_; }
  [[nodiscard]] Ball operator[](slong k) const {
    Ball r;
    arb_poly_get_coeff_arb(r.raw(), p_, k);
    return r;
  }
  void set(slong k, const Ball& b) { arb_poly_set_coeff_arb(p_, k, b.raw()); }
  /// d/dt, one term shorter.
  [[nodiscard]] Series derivative() const {
    Series r(length_ - 1);
    arb_poly_derivative(r.p_, p_, kPrecisionBits);
    return r;
  }
  [[nodiscard]] arb_poly_struct* raw() { return p_; }
  [[nodiscard]] const arb_poly_struct* raw() const { return p_; }

  friend Series operator+(const Series& a, const Series& b) {
    Series r(a.length_);
    arb_poly_add_series(r.p_, a.p_, b.p_, a.length_, kPrecisionBits);
    return r;
  }
  friend Series operator-(const Series& a, const Series& b) {
    Series r(a.length_);
    arb_poly_sub_series(r.p_, a.p_, b.p_, a.length_, kPrecisionBits);
    return r;
  }
  friend Series operator*(const Series& a, const Series& b) {
    Series r(a.length_);
    arb_poly_mullow(r.p_, a.p_, b.p_, a.length_, kPrecisionBits);
    r.keep_undecided(a, b);
    return r;
  }
  friend Series operator/(const Series& a, const Series& b) {
    if (b[0].holds_zero()) return indeterminate(a.length_);
    Series r(a.length_);
    arb_poly_div_series(r.p_, a.p_, b.p_, a.length_, kPrecisionBits);
    r.keep_undecided(a, b);
    return r;
  }

 private:
  /// This = 0 b, 0/b or a 0: an exact zero makes Arb drop the other factor, of which some coefficients may be
  /// undecided.
  void keep_undecided(const Series& a, const Series& b) {
    if (arb_poly_length(a.p_) != 0 && arb_poly_length(b.p_) != 0) return;
    for (slong k = 0; k < length_; ++k) {
      if (a[k].finite() && b[k].finite()) continue;
      for (; k < length_; ++k) set(k, Ball::indeterminate());
    }
  }

  slong length_;
  arb_poly_t p_;
};

#define OUTGRAD_SERIES_FUNCTION(name, fn)             \
  inline Series name(const Series& a) {               \
    Series r(a.length());                             \
    fn(r.raw(), a.raw(), a.length(), kPrecisionBits); \
    return r;                                         \
  }
OUTGRAD_SERIES_FUNCTION(exp, arb_poly_exp_series)
OUTGRAD_SERIES_FUNCTION(sin, arb_poly_sin_series)
OUTGRAD_SERIES_FUNCTION(cos, arb_poly_cos_series)
OUTGRAD_SERIES_FUNCTION(error_function, arb_hypgeom_erf_series)
#undef OUTGRAD_SERIES_FUNCTION
/// The constant term of a composition is the tighter value over balls.
inline Series with_constant(Series s, const Ball& c) {
  s.set(0, c);
  return s;
}
/// 0 has a root, which has no derivative there.
inline Series sqrt(const Series& a) {
  if (!a[0].positive()) return with_constant(Series::indeterminate(a.length()), sqrt(a[0]));
  Series r(a.length());
  arb_poly_sqrt_series(r.raw(), a.raw(), a.length(), kPrecisionBits);
  return r;
}
inline Series log(const Series& a) {
  if (!a[0].positive()) return Series::indeterminate(a.length());
  Series r(a.length());
  arb_poly_log_series(r.raw(), a.raw(), a.length(), kPrecisionBits);
  return r;
}
inline Series sigmoid(const Series& a) {
  // The exponential that stays small: a wide ball of large numbers is one of all sizes.
  const Series one = Series::constant(Ball(1.0), a.length());
  if (a[0].negative()) {
    const Series e = exp(a);
    return with_constant(e / (one + e), sigmoid(a[0]));
  }
  return with_constant(one / (one + exp(Series::constant(Ball(0.0), a.length()) - a)), sigmoid(a[0]));
}
inline Series tanh(const Series& a) {
  const Series one = Series::constant(Ball(1.0), a.length()), two = Series::constant(Ball(2.0), a.length());
  return with_constant(two * sigmoid(two * a) - one, tanh(a[0]));
}
inline Series softplus(const Series& a) {
  const Series one = Series::constant(Ball(1.0), a.length());
  if (a[0].positive())
    return with_constant(a + log(one + exp(Series::constant(Ball(0.0), a.length()) - a)), softplus(a[0]));
  return with_constant(log(one + exp(a)), softplus(a[0]));
}
/// Not finite where the argument may vanish: there it has no derivative.
inline Series abs(const Series& a) {
  const Series zero = Series::constant(Ball(0.0), a.length());
  if (a[0].positive()) return a;
  if (a[0].negative()) return zero - a;
  return with_constant(Series::indeterminate(a.length()), abs(a[0]));
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline Real sigmoid(const Real& x) { return 1 / (1 + exp(-x)); }
inline double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
inline Real softplus(const Real& x) { return x > 0 ? x + log1p(exp(-x)) : Real(log1p(exp(x))); }
inline double error_function(double x) { return std::erf(x); }
inline Real error_function(const Real& x) {
  Real r;
  mpfr_erf(r.backend().data(), x.backend().data(), MPFR_RNDN);
  return r;
}

/// Standard normal distribution function Phi(x) = erfc(-x/sqrt 2)/2, in relative accuracy on the left tail
/// too.
inline double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0x1.6a09e667f3bcdp-1); }
inline Real normal_cdf(const Real& x) {
  Real r, a = -x / sqrt(Real(2));
  mpfr_erfc(r.backend().data(), a.backend().data(), MPFR_RNDN);
  return r / 2;
}
inline Ball normal_cdf(const Ball& x) {
  return increasing(x, [](const Ball& at) {
    Ball a = -at / sqrt(Ball(2.0));
    arb_hypgeom_erfc(a.raw(), a.raw(), kPrecisionBits);
    return a * Ball(0.5);
  });
}
inline Series normal_cdf(const Series& x) {
  Series a = x * Series::constant(Ball(-1.0) / sqrt(Ball(2.0)), x.length());
  arb_hypgeom_erfc_series(a.raw(), a.raw(), x.length(), kPrecisionBits);
  return a * Series::constant(Ball(0.5), x.length());
}

}  // namespace outgrad::approx
