// An activation given as text: its parser, and its value and derivatives over double, MPFR intervals and
// complex rectangles.
//
// Grammar: sums, products and quotients, integer powers (right associative, binding closer than a sign: -x^2
// = -(x^2)), parentheses, decimal and hexadecimal literals taken exactly, pi, x, and the functions exp log
// sqrt tanh sigmoid softplus erf normal_cdf abs sin cos. Derivatives come from Taylor coefficients carried
// through every node (jets). Nothing here is shared with approx/.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "validation/exact/mp.h"

namespace outgrad::validation {

/// Precise enough for a gradient at a stored y, and several times as fast as Interval.
using MediumInterval = BasicInterval<112>;

/// The precisions tried, each double the last, until a question is decided. The hardest questions are about
/// the least subnormals: exp(x) - 1 cancels 149 bits and lies a relative 2^-150 from x, and tanh x lies a
/// relative 2^-299 from x. Questions that need more than the last precision are decided by facts about the
/// tails.
inline constexpr std::array<int, 5> kOraclePrecisions{128, 256, 512, 1024, 2048};
template <std::size_t kLevel>
using OracleInterval = BasicInterval<kOraclePrecisions[kLevel]>;

/// f(x), f'(x), ..., the N-th derivative.
template <class Scalar, int N>
using Derivatives = std::array<Scalar, N + 1>;

class Function {
 public:
  struct Node;

  /// Throws kernels::SpecError ("column: why").
  static Function parse(std::string_view text);

  /// Enclosures over the members of x; the whole line if f is undefined for some member. Instantiated for N =
  /// 0, 1, 2 and the intervals named above, and for N = 0, 1 also for those of the oracle's precisions
  /// (kOraclePrecisions).
  template <int N, int Bits>
  Derivatives<BasicInterval<Bits>, N> at(const BasicInterval<Bits>& x) const;

  /// Enclosures over the members of x of the Taylor coefficients f, f', f'' / 2, ..., of x^order.
  /// Instantiated for MediumInterval and CoarseInterval.
  template <int Bits>
  std::vector<BasicInterval<Bits>> taylor(const BasicInterval<Bits>& x, int order) const;

  /// f and f' in double, with no guarantee.
  Derivatives<double, 1> approximate(double x) const;

  /// sup |f|, |f'|, |f''|, |f'''| over the complex disc |z - middle| <= radius; +inf if f could not be shown
  /// to be analytic there.
  std::array<double, 4> over_disc(double middle, double radius) const;

  /// Whether the trees are the same: equal literals, and equal operations in the same places.
  friend bool operator==(const Function& f, const Function& g);

  /// If the trees are otherwise equal, the literal that stands where `pattern` has its one literal `hole`.
  const Interval* match(const Function& pattern, const Interval& hole) const;

 private:
  explicit Function(std::shared_ptr<const Node> root) : root_(std::move(root)) {}

  std::shared_ptr<const Node> root_;
};

}  // namespace outgrad::validation
