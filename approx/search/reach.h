/// What no constants and no coefficients reach: proof that one polynomial of a degree cannot serve a 16-bit
/// format as well as asked.
///
/// A one-row fit evaluates p(v) at v = +-sqrt(max(y - y_c, t_min)), y clamped above at y_max and v clamped
/// below at s_min. With the floor F = y_c + t_min and the left clamp L = y_c + s_min^2 as levels of y, the
/// coordinate of a stored pair is
///
///     v = +sqrt(clamp(y, F, y_max) - y_c)  right of x*        v = -sqrt(clamp(y, F, L) - y_c)  left of x*.
///
/// T <= rho O and |g - middle| <= R ask for p(v_i) in [l_i, u_i] at every pair i. Let the constants lie in a
/// box. If some polynomial q of the same degree d is, for all constants of the box, below l_i and above u_i
/// by turns at d + 2 pairs that stand in the order of v, then no p of degree d serves them: p - q would
/// change sign d + 1 times. (De la Vallee-Poussin. The order need not be strict: pairs that share a v
/// contradict each other at once, and clamping, roots and their rounding keep the order.) Each v_i is
/// monotone in every constant, so that its range over a box is known from the ends, and q over that range is
/// one ball evaluation. Boxes that no q refutes are cut in two.
///
/// The boxes cover all constants: a floor, a clamp on the left or on the right beyond the ends of
/// `ReachDomain` makes pairs share one v whose ranges have nothing in common; y_max further right than
/// `right_far` only adds constraints to those used; and where y_c is more than kFarthestCentre below the
/// lowest stored y, the right branch alone is refuted, in the coordinate 2 sqrt(D) (v - sqrt(D)),
/// D = y_first - y_c, affine in v, which stays regular as D grows without bound.
#pragma once

#include "approx/function/storage.h"

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace outgrad::approx {

struct ReachQuestion {
  Format format;
  int degree;
  double ratio;   ///< T <= ratio O
  double regret;  ///< R
};

/// Room given away, so that what is refuted includes what fp32 evaluates: p(v) may err by kEvaluationRoom
/// (which dwarfs the width of the storage intervals' own enclosures), v itself by a relative
/// kCoordinateRounding (a difference, a root, and the floor or clamp in its place, each within 2^-24 of t or
/// v).
inline constexpr double kEvaluationRoom = 0x1p-16;
inline constexpr double kCoordinateRounding = 0x1p-22;
/// The near region ends this many times floor_end - y_first below y_first.
inline constexpr double kNearCentre = 8;
/// y_c further than this below the lowest stored y: in exact arithmetic only. (fp32 would not tell neighbours
/// near y* apart.)
inline constexpr double kFarthestCentre = 64;

/// A stored pair and where p must pass: the room included.
struct ReachPair {
  double y;
  bool m;
  double lo, hi;
};

/// Outside of it, pairs that share a coordinate ask for different values.
struct ReachDomain {
  double y_first;  ///< lowest stored y: a floor below it is none
  double floor_end;  ///< F < floor_end
  double left_first;  ///< L > left_first
  double left_last;  ///< L from here on is no clamp
  double right_first;  ///< y_max > right_first
  double right_far;  ///< beyond it pairs are left out
};

struct ReachProblem {
  ReachQuestion question;
  double oracle;
  std::vector<ReachPair> pairs;  ///< all of them, in the order of v
  std::vector<size_t> candidates;  ///< those that a chain is looked for among
  ReachDomain domain;
};

/// The constants of a box, as axes: y_c, the floor, L and y_max.
enum ReachAxis { kCentreAxis, kFloorAxis, kLeftAxis, kRightAxis, kReachAxes };
/// How far y_c is below the lowest stored y decides in which terms v depends on the constants least steeply.
enum class ReachRegion {
  near,  ///< the floor as sqrt(t_min): v next to y* has an infinite slope in F and y_c
  middle,  ///< the floor as F
  far,  ///< the same, and 1/(y_first - y_c) in place of y_c
};
struct ReachBox {
  ReachRegion region = ReachRegion::middle;
  std::array<double, kReachAxes> lo, hi;  ///< right: hi may be infinite
};

/// Why a box is out of reach: q beats the ranges of the pairs by turns.
struct Refutation {
  std::vector<double> q;  ///< powers of v (far: of 2 sqrt(D) (v - sqrt(D)))
  std::vector<size_t> chain;  ///< degree + 2 pairs, ascending
  std::vector<int> side;  ///< +1: q below lo, -1: q above hi
};

/// @throws kernels::SpecError for functions without a minimum, and formats or targets that make no such
/// problem.
ReachProblem reach_problem(const Composite& composite, const std::vector<StorageInterval>& intervals,
                           const ReachQuestion& question);

/// Proven by balls, or nothing. `guess` (the best polynomial at the parent's middle; may be empty) tells how
/// far ranges move; where the box is not refuted it becomes the best at this box's.
/// `level`, where not refuted: of the programme at the middle of the box, above 1 where nothing serves the
/// candidates;
/// `axis`: the one to cut the box along, -1 for none.
std::optional<Refutation> refute(const ReachProblem& problem, const ReachBox& box, std::vector<double>& guess,
                                 double& level, int& axis);

/// Whether the refutation holds on the box: balls only, nothing taken from how it was found.
bool verify(const ReachProblem& problem, const ReachBox& box, const Refutation& refutation);

enum class ReachVerdict { out_of_reach, in_reach, undecided };
const char* to_string(ReachVerdict v);

struct ReachResult {
  ReachVerdict verdict = ReachVerdict::undecided;
  size_t boxes = 0, refuted = 0;  ///< examined; proven empty
  int deepest = 0;
  double least_level = 0;  ///< the programme's, over the middles of the boxes that had to be cut
  struct Constants {
    double y_c, t_min, s_min, y_max;
  };
  Constants best{};  ///< where the least level was seen; in reach: they serve every pair
  std::vector<double> coefficients;  ///< in reach: in powers of v
};

/// Branch and bound over the whole domain; deterministic. `visit` sees every refuted box, in order.
ReachResult decide_reach(const ReachProblem& problem, size_t most_boxes, int threads,
                         const std::function<void(const ReachBox&, const Refutation&)>& visit = {});

/// Schema "outgrad.reach/1".
std::string to_json(const ReachProblem& problem, const ReachResult& result, const std::string& name);

}  // namespace outgrad::approx
