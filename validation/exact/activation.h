// An activation as the proofs see it: where it falls and rises, its minimum, the signed root s(x) = sign(x - x*) sqrt(f(x) - y*), the
// inverses of s and f, and enclosures of f' over whole ranges and tails.
//
// Everything is isolated from the text of the function by intervals: a scan cuts the line into pieces on which f'' keeps its sign, so that
// f' is monotone there and its range lies between its values at the ends; what is left over are brackets of width 2^-40 around the zeros
// of f''. Signs of f' at the cuts then prove that f has exactly one minimum, or that it rises. Beyond [far_low, far_high], where f' is
// within kTailSlope of its limit, analytic facts about each known activation take over (activation.cpp); for a user's expression there are
// none, and its domain ends at |x| = 64.
#pragma once

#include <string>
#include <vector>

#include "validation/exact/function.h"

namespace outgrad::validation {

/// How near f' is to its limit where the tails begin: far below every claim, far above an Interval's rounding; and where errors are counted in ulps,
/// down to 2^-133 in bf16.
inline constexpr double kTailSlope = 0x1p-80, kDeepTailSlope = 0x1p-150;

/// Where the proofs for a user's expression end.
inline constexpr double kExpressionEnd = 64;

/// One formula on [low, high]; ELU has two, every other activation one.
struct Formula {
  Function f;
  double low, high;                   // -inf, +inf where the line does not end
  double far_low, far_high;           // the tails begin here; low, high where there is none
  Interval low_slopes, low_values;    // f' and f over the tail left of far_low
  Interval high_slopes, high_values;  // and right of far_high
  bool bounded_above;  // f has a finite limit at +inf, or the domain ends there: arguments beyond far_high cannot be told apart

  /// A part where f'' keeps its sign (+1, -1), or a bracket (0) of a zero of f''; `slopes` encloses f' over it.
  struct Part {
    double low, high;
    int bend;
    Interval slopes;
  };
  std::vector<Part> parts;  // of [far_low, far_high], in order

  /// Encloses f' over [a, b], which may be infinite; tight where f' is monotone between brackets.
  Interval slopes(double a, double b) const;
  /// Whether f'' > 0 all over [a, b].
  bool bends_upwards(double a, double b) const;
  /// x with f(x) = y for a rising formula; half a line where y is not told apart from a tail or an end.
  Interval inverse(const Interval& y) const;
};

class Activation;

/// The analysis of one activation, made once and never destroyed: its address, and those of its formulas, stand for it. `name` is kActivation,
/// `function` kFunction. Throws kernels::SpecError where the function cannot be read; what cannot be proved of it is in problem().
const Activation& activation_of(const std::string& name, const std::string& function, bool masked, double tail_slope = kTailSlope);

class Activation {
  struct OnlyByActivationOf {
    explicit OnlyByActivationOf() = default;
  };

 public:
  Activation(OnlyByActivationOf, const std::string& name, const std::string& function, bool masked, double tail_slope);
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;

  /// Empty, or why the function is not one that the proofs cover.
  const std::string& problem() const { return problem_; }
  /// Whether the proofs end at |x| = 64.
  bool limited() const { return limited_; }
  const std::vector<Formula>& formulas() const { return formulas_; }

  // The following are for masked activations, which have one formula f.
  const Formula& only() const { return formulas_.front(); }
  /// x* and y*, isolated by the sign of f' at the ends of an interval of relative width 2^-200.
  const Interval& x_star() const { return x_star_; }
  const Interval& y_star() const { return y_star_; }
  /// The infimum of s, which x -> -inf approaches.
  const Interval& s_infimum() const { return s_infimum_; }
  /// s from f(x) and x; x may hold x*. Meant for points and intervals about as narrow as a point.
  Interval signed_root(const Interval& x) const { return signed_root(x, only().f.at<0>(x)[0]); }
  Interval signed_root(const Interval& x, const Interval& f_of_x) const;
  /// x(s). The lower end is -inf where s is not certainly above s(far_low), the upper end +inf where a limited domain ends before.
  Interval inverse_signed_root(const Interval& s) const;
  /// dg/ds = f''(x) 2 s / f'(x) over the x of an interval of s; through s = 0 by mean values of f''.
  Interval g_slope(const Interval& s) const;

 private:
  friend const Activation& activation_of(const std::string& name, const std::string& function, bool masked, double tail_slope);

  void prove_one_minimum();
  void prove_rising();
  Interval inverse_at(const Interval& s) const;

  std::string problem_;
  bool limited_ = false;
  std::vector<Formula> formulas_;
  Interval x_star_, y_star_, s_infimum_, s_far_low_, s_far_high_;
  double slope_at_minimum_ = 0;
};

/// The function's text is that of the named activation (any for "expression"), or what is wrong.
std::string name_problem(const std::string& name, const std::string& function, bool masked);

}  // namespace outgrad::validation
