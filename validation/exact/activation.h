// An activation as the proofs see it: where it falls and rises, its minimum, the signed root s(x) = sign(x -
// x*) sqrt(f(x) - y*), the inverses of s and f, and enclosures of f' over whole ranges and tails.
//
// Everything is derived from the text of the function by intervals. A scan cuts the line into pieces on which
// f'' keeps its sign, so that f' is monotone there and its range lies between its values at the ends. What
// remains are brackets of width 2^-40 around the zeros of f''. The signs of f' at the cuts then prove that f
// has exactly one minimum, or that it rises. Beyond [far_low, far_high], f' is within kTailSlope of its
// limit, and analytic facts about each known activation are used instead (activation.cpp). For a user's
// expression there are no such facts, and its domain ends at |x| = 64.
#pragma once

#include <string>
#include <vector>

#include "validation/exact/function.h"

namespace outgrad::validation {

/// How near f' is to its limit where the tails begin. This is far below every claim (and, where errors are
/// counted in ulps, that is down to 2^-133 in bf16) and far above an Interval's rounding.
inline constexpr double kTailSlope = 0x1p-80, kDeepTailSlope = 0x1p-150;

/// Where the proofs for a user's expression end.
inline constexpr double kExpressionEnd = 64;

/// One formula on [low, high]. ELU has two formulas, every other activation one.
struct Formula {
  Function f;
  double low, high;  // -inf, +inf if the line does not end
  double far_low, far_high;  // where the tails begin; low, high if there is no tail
  Interval low_slopes, low_values;  // f' and f over the tail left of far_low
  Interval high_slopes, high_values;  // the same right of far_high
  // f has a finite limit at +inf, or the domain ends there: arguments beyond far_high cannot be distinguished
  bool bounded_above;

  /// A part where f'' keeps its sign (+1, -1), or a bracket (0) around a zero of f''. `slopes` encloses f'
  /// over it.
  struct Part {
    double low, high;
    int bend;
    Interval slopes;
  };
  std::vector<Part> parts;  // of [far_low, far_high], in order

  /// Encloses f' over [a, b], which may be infinite; tight where f' is monotone between brackets.
  Interval slopes(double a, double b) const;
  /// Whether f'' > 0 everywhere on [a, b].
  bool bends_upwards(double a, double b) const;
  /// The x with f(x) = y for a rising formula; half a line if y cannot be distinguished from a tail or an
  /// end.
  Interval inverse(const Interval& y) const;
};

class Activation;

/// The analysis of one activation. It is made once and never destroyed, so its address, and those of its
/// formulas, identify it. `name` is kActivation, `function` is kFunction. Throws kernels::SpecError if the
/// function cannot be read. problem() tells what cannot be proved about it.
const Activation& activation_of(const std::string& name, const std::string& function, bool masked,
                                double tail_slope = kTailSlope);

class Activation {
  struct OnlyByActivationOf {
    explicit OnlyByActivationOf() = default;
  };

 public:
  Activation(OnlyByActivationOf, const std::string& name, const std::string& function, bool masked,
             double tail_slope);
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;

  /// Empty, or the reason why the proofs do not cover the function.
  const std::string& problem() const { return problem_; }
  /// Whether the problem is a fact about the function, shown at an x, and not a question that the enclosures
  /// leave open.
  bool problem_is_certain() const { return problem_is_certain_; }
  /// Whether the proofs end at |x| = 64.
  bool limited() const { return limited_; }
  const std::vector<Formula>& formulas() const { return formulas_; }
  /// That of an x; of ELU's at 0, the second.
  const Formula& formula_at(double x) const {
    return x >= formulas_.back().low ? formulas_.back() : formulas_.front();
  }

  // The following members are for masked activations, which have one formula f.
  const Formula& only() const { return formulas_.front(); }
  /// x* and y*, isolated by the sign of f' at the ends of an interval of relative width 2^-200. Where f' is
  /// exactly 0 at a short binary fraction, as at the centre of an even function, x* is that point, and y*
  /// often one too.
  const Interval& x_star() const { return x_star_; }
  const Interval& y_star() const { return y_star_; }
  /// The infimum of s, which s approaches as x -> -inf.
  const Interval& s_infimum() const { return s_infimum_; }
  /// s from f(x) and x, where x may contain x*. Intended for points and for intervals about as narrow as a
  /// point.
  Interval signed_root(const Interval& x) const { return signed_root(x, only().f.at<0>(x)[0]); }
  Interval signed_root(const Interval& x, const Interval& f_of_x) const;
  /// x(s). The lower end is -inf if s is not certainly above s(far_low); the upper end is +inf if a limited
  /// domain ends earlier.
  Interval inverse_signed_root(const Interval& s) const;
  /// dg/ds = f''(x) 2 s / f'(x) over the x of an interval of s; through s = 0 by mean values of f''.
  Interval g_slope(const Interval& s) const;

 private:
  friend const Activation& activation_of(const std::string& name, const std::string& function, bool masked,
                                         double tail_slope);

  void prove_one_minimum();
  void prove_rising();
  Interval inverse_at(const Interval& s) const;

  std::string problem_;
  bool limited_ = false, problem_is_certain_ = false;
  std::vector<Formula> formulas_;
  Interval x_star_, y_star_, s_infimum_, s_far_low_, s_far_high_;
  double slope_at_minimum_ = 0;
};

/// Whether the function's text is that of the named activation (any text for "expression"); if not, what is
/// wrong.
std::string name_problem(const std::string& name, const std::string& function, bool masked);

}  // namespace outgrad::validation
