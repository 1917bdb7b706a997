// The arbitrary-precision witness for any activation, from its text and by MPFR intervals. oracle.h says what
// it answers.
//
// Function::at encloses f and f' at the least of kOraclePrecisions that is asked for, and a rounding is
// decided as oracle.h says. No precision decides the cases where f tends to a rounding boundary too fast,
// such as 1 - exp(-x) for x = 1e30. There the facts of Ends decide, which the double reference uses much
// nearer to 0. GELU and SiLU have oracles of their own (oracle.h) with other formulas; the tests compare the
// two kinds with each other.
#pragma once

#include "validation/exact/activation.h"
#include "validation/exact/oracle.h"
#include "validation/exact/reference.h"

namespace outgrad::validation {

class FunctionOracle final : public Oracle {
 public:
  /// `activation` must outlive the oracle. `x_star` is the greatest double with f' < 0, or -inf if f rises.
  FunctionOracle(const Activation& activation, const Ends& ends, double x_star);

  double value(double x, const FloatFormat& format) override;
  double derivative_at_value(double y, bool right_branch) override;
  void enclose_value(double x, Real& lo, Real& hi) override;
  void enclose_derivative(double x, Real& lo, Real& hi) override;

 private:
  const Activation& activation_;
  const Ends ends_;
  double x_star_;
};

}  // namespace outgrad::validation
