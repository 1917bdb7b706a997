// What is true of a function and a format: the f' behind every stored output, found with MPFR and without the
// checker's enclosures.
//
// A stored (y, bit) stands for the x between the preimages of the midpoints to its neighbours. Newton's
// method finds each preimage in a bracket, first in double and then in 200 bits. f' over the x between two
// preimages is extreme at an end or at a zero of f''. A scan in steps of 1/32, halved where f is steep,
// isolates these zeros; if it missed one, the range would be too small, never too large. So everything here
// errs to one side: an error that is seen does exist.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/attack/formula.h"
#include "tests/attack/probe_types.h"

namespace outgrad::validation::gate {

/// A named activation is proven on the whole line. Beyond this point its f' equals its limit to more than the
/// accuracy of a double.
inline constexpr double kEndOfLine = 1000;

/// f, cut at its minimum if it has one.
class Curve {
 public:
  /// end: f is evaluated only for |x| <= end.
  Curve(Formula f, double end);

  /// Empty, or the reason why no derivative from the output can be claimed: several stationary points, or f
  /// falls where it should rise.
  const std::string& problem() const { return problem_; }
  bool masked() const { return masked_; }
  double end() const { return end_; }
  const Formula& formula() const { return f_; }
  const Real& x_star() const { return x_star_; }
  const Real& y_star() const { return y_star_; }
  const std::vector<Real>& inflections() const { return inflections_; }

  /// The x of a branch with f(x) = y, and f' there.
  struct Preimage {
    bool beyond = false;  ///< y lies past the branch's far end: x is that end
    bool before = false;  ///< y lies below the minimum (without one: below all of f): x is that end
    Real x{};
    long double slope = 0;
  };
  /// near: where the search begins; on return, what was found.
  Preimage preimage(const Real& y, bool m, double& near) const;
  /// Where the search for the first preimage of a branch begins.
  double first_guess(double y, bool m) const;

 private:
  Formula f_;
  double end_;
  std::string problem_;
  bool masked_ = false;
  Real x_star_{}, y_star_{};
  std::vector<Real> inflections_;
  struct End {
    Jet<Real> jet;
    double x;
  };
  End low_, high_;
};

/// What is known about a point of `Truth::points`.
struct Known {
  bool stored = false;  ///< the point is a stored y that some x of the branch rounds to
  double low = 0, high = 0;  ///< if so, the range of f' over these x
  /// A y where g has a limit by contract (infinities; foreign data beyond the branch's end), or a NaN.
  enum class Limit { none, left, right, nan } limit = Limit::none;
  bool sloped = false;  ///< whether f^-1 of exactly this number is known
  long double slope = 0;  ///< f' there; for a forward header f(x)
  /// of a code header's x: the g of the library's own kernels, which is what is coded; 0 of an expression,
  /// which it has not
  float gradient = 0;
};

struct Truth {
  std::vector<Point> points;
  std::vector<Known> known;
  void add(const Point& point, const Known& what) { points.push_back(point), known.push_back(what); }
  double oracle = 0;  ///< half the longest range
  double left_limit = 0, right_limit = 0;  ///< of f'
};

/// What stands for the x of a y that is the quotient of a product rounded to a format (kernels/product.h):
/// f(x) is within relative |f(x)| + absolute of it.
struct ProductBall {
  double relative, absolute;
};
/// Of f16 and bf16; none for another format.
std::optional<ProductBall> product_ball(const std::string& format);

/// For a backward header: every stored y of f16, bf16, e4m3, e5m2 or mxfp8 with either bit, and the midpoints
/// between them; for f32, strata, and for "product_f16" and "product_bf16" these with the x of their balls,
/// and the y whose ball just reaches the minimum. Throws std::invalid_argument for another format.
Truth backward_truth(const Curve& curve, const std::string& format);

/// For a forward header: every x of a 16-bit format; for f32, strata. `slope` is f(x), and `low` and `high`
/// are the rounded value in the format.
Truth forward_truth(const Curve& curve, const std::string& format);

/// For a code header: every finite x of bf16 that the curve has, and the fp32 numbers next to the minimum of
/// f and to the extrema of f'. `slope` is f'(x).
Truth code_truth(const Curve& curve, const std::string& activation);

/// The name of the library's header of codes; empty if the activation has no codes.
std::string code_name(const std::string& activation);

/// The value of a code, and how many codes a format has.
float widened(const std::string& format, std::uint32_t code);
std::uint32_t codes_of(const std::string& format);
/// The distance between neighbouring numbers of a format at |v|, down to its subnormals.
double ulp_of(const std::string& format, double v);

/// sup |g(s_c(y)) - g(s(y))|, as seen at stored y next to y* and, more and more sparsely, away from it. This
/// is the error of the constants in the exact g.
double coordinate_error(const Curve& curve, const Truth& truth, const Claims& claims, float& at);

}  // namespace outgrad::validation::gate
