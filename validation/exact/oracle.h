// The arbitrary-precision witness for GELU and SiLU, by MPFR alone: f and f' to any accuracy, and f correctly
// rounded to a storage format.
//
// It shares no code with approx/. There f is a template that is evaluated in balls and series; here it is
// mpfr_erfc and mpfr_exp under directed rounding. GELU: f(x) = x Phi(x) and f'(x) = Phi(x) + x phi(x) with
// Phi(x) = erfc(-x / sqrt 2) / 2, which keeps relative accuracy on the left tail, where 1 + erf cancels.
// SiLU: f(x) = x sigma(x) and f'(x) = sigma(x) (1 + x sigma(-x)) with sigma(x) = 1 / (1 + exp(-x)). Every
// step is monotone in its operands and rounded outwards, so each result is an enclosure. A correctly rounded
// answer is the common rounding of both ends, at a precision that is doubled until they agree (Ziv). The loop
// ends because for a rational x != 0 neither f(x) nor f'(x) is known to be a rounding boundary, or was ever
// seen to be one. If it does not end, it throws.
#pragma once

#include <mpfr.h>

#include <string_view>

namespace outgrad::validation {

/// A binary floating-point format with subnormals: width, significand bits, log2 of the least subnormal,
/// largest finite value.
struct FloatFormat {
  std::string_view name;
  int bits;
  int precision;
  int quantum_exponent;
  double largest;
};

inline constexpr FloatFormat kF32{"f32", 32, 24, -149, 0x1.fffffep+127};
inline constexpr FloatFormat kF16{"f16", 16, 11, -24, 65504.0};
inline constexpr FloatFormat kBf16{"bf16", 16, 8, -133, 0x1.fep+127};
inline constexpr FloatFormat kE4m3{"e4m3", 8, 4, -9, 448};  // the numbers of OFP8's e4m3: it has no infinity

/// An owned mpfr_t; `get()` is what the C interface takes.
class Real {
 public:
  explicit Real(mpfr_prec_t precision_bits = 64) { mpfr_init2(value_, precision_bits); }
  Real(const Real&) = delete;
  Real& operator=(const Real&) = delete;
  ~Real() { mpfr_clear(value_); }

  mpfr_ptr get() { return value_; }
  mpfr_srcptr get() const { return value_; }

 private:
  mpfr_t value_;
};

/// Two doubles with lo <= v <= hi.
struct DoubleBounds {
  double lo;
  double hi;
};

/// One activation f by MPFR. Arguments are finite doubles, taken as exact; std::invalid_argument otherwise.
class Oracle {
 public:
  virtual ~Oracle() = default;

  /// f(x) rounded to nearest even in `format`, returned as the double of the same value: -0 if a negative f
  /// rounds to zero and for x = -0, +inf if f rounds beyond the largest finite value.
  virtual double value(double x, const FloatFormat& format);

  /// f'(x) rounded to nearest in binary64.
  double derivative(double x);

  /// Binary64 numbers around f(x), and around f'(x), at most two ulps apart.
  DoubleBounds value_bounds(double x) { return bounds(x, &Oracle::enclose_value); }
  DoubleBounds derivative_bounds(double x) { return bounds(x, &Oracle::enclose_derivative); }

  /// g_m(y) = f'(x), within 2^-50, at the x of branch m (left of x* for false) with f(x) = y. If there is no
  /// such x, the value at the end of the branch: 0 for y at or below y*, 0 for m = 0 and y >= 0, the limit of
  /// f' for y beyond the tails. For a rising f the branch does not matter.
  virtual double derivative_at_value(double y, bool right_branch);

  /// An enclosure lo <= v <= hi of f(x) and of f'(x), at the precision of lo and hi.
  virtual void enclose_value(double x, Real& lo, Real& hi) = 0;
  virtual void enclose_derivative(double x, Real& lo, Real& hi) = 0;

 protected:
  /// `x_star` is the double next to the minimum with f' < 0; `decided_by_less` is kDecidedByLess of the
  /// activation (oracle.cpp).
  Oracle(double x_star, double decided_by_less, double left_end)
      : x_star_(x_star), decided_by_less_(decided_by_less), left_end_(left_end) {}

 private:
  DoubleBounds bounds(double x, void (Oracle::*enclose)(double, Real&, Real&));

  double x_star_, decided_by_less_, left_end_;
};

class GeluOracle : public Oracle {
 public:
  GeluOracle();
  void enclose_value(double x, Real& lo, Real& hi) override;
  void enclose_derivative(double x, Real& lo, Real& hi) override;
  /// These enclose Phi(x) and phi(x).
  void enclose_cdf(double x, Real& lo, Real& hi);
  void enclose_density(double x, Real& lo, Real& hi);
};

class SiluOracle : public Oracle {
 public:
  SiluOracle();
  void enclose_value(double x, Real& lo, Real& hi) override;
  void enclose_derivative(double x, Real& lo, Real& hi) override;
  /// This encloses sigma(x).
  void enclose_sigmoid(double x, Real& lo, Real& hi);
};

/// The greatest double at which f' < 0. At the next double f' > 0, so every x of a supported format lies on
/// the same side of it as of x* itself (the tests compare with MPFR).
inline constexpr double kGeluXStar = -0x1.80ead197f00b4p-1, kSiluXStar = -0x1.474973c84120cp+0;

/// `v` rounded to nearest even in `format`; zero and overflow are as in GeluOracle::value.
double round_to_format(const Real& v, const FloatFormat& format);

}  // namespace outgrad::validation
