/// Functions of x given as text, evaluated over every scalar of scalars.h.
///
///   sum     = term { ("+" | "-") term }
///   term    = factor { ("*" | "/") factor }
///   factor  = ("-" | "+") factor | power      -x^2 is -(x^2)
///   power   = atom [ "^" ["-"] digits ]       integer exponents up to 64; a second "^" needs parentheses
///   atom    = number | "x" | "pi" | name "(" sum ")" | "(" sum ")"
///   name    = exp log sqrt tanh sigmoid softplus erf normal_cdf abs sin cos
///   number  = decimal digits with point and exponent, or a C hexadecimal float; both stand for the real
///           number written
///
/// sigmoid(x) = 1/(1 + exp(-x)), softplus(x) = log(1 + exp(x)), normal_cdf(x) = erfc(-x/sqrt 2)/2.
#pragma once

#include "approx/function/scalars.h"

#include <cstddef>
#include <memory>
#include <string>

namespace outgrad::approx {

class Expression {
 public:
  /// @throws kernels::SpecError "column N: why". At most 4096 characters, 256 numbers, variables and
  /// operations, nested 64 deep.
  explicit Expression(const std::string& text);

  [[nodiscard]] const std::string& text() const { return text_; }
  /// Operations that one evaluation takes.
  [[nodiscard]] size_t size() const;
  /// Whether exp stands on both sides of a division: where both grow alike, enclosures over an interval of x
  /// are far wider than what is left.
  [[nodiscard]] bool divides_exponentials() const;
  /// Correctly enclosing for Ball and Series; a result that is not defined over the whole argument is not
  /// finite.
  [[nodiscard]] double operator()(double x) const;
  [[nodiscard]] Real operator()(const Real& x) const;
  [[nodiscard]] Ball operator()(const Ball& x) const;
  [[nodiscard]] Series operator()(const Series& x) const;

  struct Program;

 private:
  std::string text_;
  std::shared_ptr<const Program> program_;
};

}  // namespace outgrad::approx
