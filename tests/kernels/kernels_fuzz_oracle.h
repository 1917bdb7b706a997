// What the kernels should give, from the definitions alone, in long double: the oracle of kernels_fuzz.cpp.
//
// It shares no code with kernels/, approx/ or validation/: activations are libm's functions, their inverses
// bisection, the norms' sums plain loops. Every judgement has an allowance that is derived here; the bounds
// of the fits are those of their headers.
#pragma once

#include <span>
#include <string>

#include "kernels/portable.h"

namespace outgrad::kernels::fuzz {

// In the order of outgrad_format.
enum class Stored { f32, f16, bf16 };

// Largest error of rounding a value of this magnitude to nearest in the format: half an ulp, half a quantum
// among the subnormals.
long double rounding_error(Stored format, long double magnitude);
long double largest(Stored format);

// One activation, in the order of outgrad_activation.
class Activation {
 public:
  explicit Activation(int number);

  bool masked() const { return masked_; }
  long double x_star() const { return x_star_; }  // where f is least; only if masked
  long double value(long double x) const { return evaluate(x).value; }
  long double derivative(long double x) const { return evaluate(x).derivative; }

  // f(x) rounded to the format, widened; NaN where long double cannot tell to which side.
  float rounded_value(Stored format, float x) const;

  struct Interval {
    long double low, high;
  };
  // Holds f'(x) of the branch's x with f(x) = y; its limit, where y is beyond the end of the branch.
  Interval derivative_at_value(long double y, bool right) const;

 private:
  struct Point {
    long double value, derivative;
  };
  Point evaluate(long double x) const;

  int number_;
  bool masked_;
  long double x_star_ = 0;
};

// What the header of a fit claims: |g - f'(x)| at the x that y stands for exactly, and over all x whose f(x)
// rounds to y (0: no claim).
struct FitBounds {
  bool masked;
  double evaluation;
  double total;
  double least_y;  // masked: a y below f's range is taken to this one, just above its end
};

// Each returns what is wrong, "" if nothing is or nothing can be said (infinities, overflow).

// dx = dy g(y, m). `of_x`: y is f(*x) rounded and m = [*x >= x*], so that the claim on T is put to the test
// too.
std::string judge_backward(const Activation& f, const FitBounds& bounds, Stored format, float dy, float y,
                           bool m, float dx, const float* of_x);

// y = f(x) of an activation other than GELU.
std::string judge_forward(const Activation& f, Stored format, float x, float y, bool m);

// y = GELU(z); z an element of the format, or (`wide`) a sum in fp32.
std::string judge_gelu(const Activation& gelu, Stored format, float z, bool wide, float y, bool m);

// One column of dbias over its rows.
std::string judge_bias_gradient(const Activation& gelu, const FitBounds& bounds, std::span<const float> dy,
                                std::span<const float> y, std::span<const bool> m, float dbias);

// A row of a norm's forward. Null gamma and beta: 1 and 0.
struct ForwardRow {
  Stored format;
  bool layer;
  std::span<const float> x;
  const float* gamma;
  const float* beta;
  float eps;
  std::span<const float> y;
  float rstd;
};
std::string judge_norm_forward(const ForwardRow& row);

// A row of a norm's backward: c[j] is y - beta, or x^ of a side channel, for which side[j] holds. dz_next
// null: not a residual form.
struct BackwardRow {
  Stored format;
  bool layer;
  std::span<const float> dy;
  std::span<const float> y;
  const float* dz_next;
  const float* gamma;
  const float* beta;
  const float* x_hat;  // [n], read where side[j]
  const bool* side;
  float rstd;
  std::span<const float> dx;
};
std::string judge_norm_backward(const BackwardRow& row);

// A column of dgamma (terms dy c, divided) or dbeta (terms dy, divisor 1).
std::string judge_column(std::span<const float> dy, const float* c_of_y, float beta, bool side, float divisor,
                         float sum);

}  // namespace outgrad::kernels::fuzz
