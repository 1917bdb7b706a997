// Functions of x for the brute force: its own parser of their text, and values with two derivatives, in
// double and in MPFR.
//
// Nothing here is proven, and nothing is shared with the checker or the fitter. Numbers have 200 bits,
// derivatives follow from the chain rule, and the results are compared with claims that are ten orders of
// magnitude coarser. The language is that of kFunction: sums, products, quotients, integer powers, decimal
// and hexadecimal literals, pi, x, and exp log sqrt tanh sigmoid softplus erf normal_cdf abs sin cos.
#pragma once

#include <boost/multiprecision/mpfr.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace outgrad::validation::gate {

/// 60 decimal digits. For the least subnormal output of a 16-bit format, exp(x) - 1 cancels 134 bits, and
/// this leaves more than a double holds.
using Real = boost::multiprecision::number<
    boost::multiprecision::mpfr_float_backend<60, boost::multiprecision::allocate_stack>,
    boost::multiprecision::et_off>;

/// f(x), f'(x), f''(x).
template <class T>
struct Jet {
  T value{}, slope{}, bend{};
};

class Formula {
 public:
  /// Throws kernels::SpecError if the text does not belong to the language.
  explicit Formula(std::string_view text);

  /// NaN where f is undefined.
  Jet<double> at(double x) const { return evaluate(x); }
  Jet<Real> at(const Real& x) const { return evaluate(x); }

  /// From zero on f(x) = x, as in ELU.
  void set_identity_from_zero() { identity_from_zero_ = true; }

 private:
  enum class Op {
    x,
    literal,
    add,
    subtract,
    multiply,
    divide,
    negate,
    power,
    exp,
    log,
    sqrt,
    tanh,
    sigmoid,
    softplus,
    erf,
    normal_cdf,
    abs,
    sin,
    cos
  };
  struct Step {
    Op op;
    int exponent = 0;
    double number = 0;
    Real exact{};
  };
  friend class FormulaParser;

  template <class T>
  Jet<T> evaluate(const T& x) const;
  template <class T>
  static Jet<T> applied(Op op, const Jet<T>& a);

  std::vector<Step> steps_;  // in postfix order
  bool identity_from_zero_ = false;
};

/// The function that a header names: kFunction's text, which for "elu" ends at zero.
Formula formula_of(const std::string& activation, const std::string& function);

/// Whether kActivation and kFunction are the same function. The definition of the named activation is
/// compared at points on both sides of zero. A name without a definition ("expression") agrees with every
/// function.
bool name_fits(const std::string& activation, const Formula& f);

}  // namespace outgrad::validation::gate
