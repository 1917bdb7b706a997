// Branch and bound over s with the enclosures of activation.h.
#include "validation/certificate/coordinate_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "validation/certificate/fit_bound.h"
#include "validation/certificate/stored_argument.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr int kMaxCells = 4000;   // real constants need a few hundred
// beyond them D, which falls like d / 2 s, is far below its value at the first
constexpr int kGridPoints = 256;

// One branch: |s| is what is cut into cells, `sign` makes it s.
class Branch {
 public:
  Branch(const BackwardHeader& h, const Activation& activation, double sign)
      : activation_(activation), sign_(sign), t_min_(static_cast<double>(h.t_min)) {
    shift_ = activation.y_star() - static_cast<double>(h.y_hi) - static_cast<double>(h.y_lo);
    const Formula& formula = activation.only();
    if (sign < 0) {
      end_ = h.has_left ? sqrt(Interval(h.left_y) - activation.y_star()) : -activation.s_infimum();
    } else if (h.has_right) {
      // From kRightS on the row is evaluated at y, where these constants have no part.
      end_ = sqrt(maximum(square(Interval(h.right_s) * (1 + kRootRounding)) - shift_, 0));
    } else {
      end_ = activation.signed_root(formula.far_high);
    }
  }

  /// |s| where the floor stops to act.
  Interval corner() const { return sqrt(Interval(t_min_) - shift_); }
  double end() const { return end_.upper(); }
  /// |s_c| and the true |s| of one stored y.
  Interval deployed_at(double y) const {
    return sqrt(maximum(Interval(y) - activation_.y_star() + shift_, t_min_));
  }
  Interval true_at(double y) const { return sqrt(Interval(y) - activation_.y_star()); }
  Interval deployed(const Interval& s) const { return sqrt(maximum(square(s) + shift_, t_min_)); }

  /// G at |s|, continued by its limit to the left of all x.
  Interval value(const Interval& s) const {
    const Interval x = activation_.inverse_signed_root(s * sign_);
    if (x.is_point() || (std::isfinite(x.magnitude()) && x.width() < 0x1p-100))
      return activation_.only().f.at<1>(x)[1];
    return activation_.only().slopes(x.lower(), x.upper());
  }

  /// Whether G rises with x from x* to the argument of |s|.
  bool monotone_to(double s) const {
    const Interval x = activation_.inverse_signed_root(Interval(s) * sign_),
                   all = hull(x, activation_.x_star());
    return activation_.only().bends_upwards(all.lower(), all.upper());
  }

  double bound(double a, double b) const {
    const Interval s(a, b), s_c = deployed(s);
    const Interval x = activation_.inverse_signed_root(hull(s, s_c) * sign_);
    // Both G(s_c) and G(s) lie in the range of f' over x.
    double least = activation_.only().slopes(x.lower(), x.upper()).width();
    if (!std::isfinite(x.magnitude())) return least;
    const Interval ends = maximum(absolute(deployed(a) - a), absolute(deployed(b) - b));
    least = std::min(least, (absolute(activation_.g_slope(hull(s, s_c) * sign_)) * ends).upper());
    const double middle = a + (b - a) / 2;
    const Interval slope = activation_.g_slope(s_c * sign_) * s / s_c - activation_.g_slope(s * sign_);
    const double radius = std::max((Interval(b) - middle).upper(), (Interval(middle) - a).upper());
    return std::min(least,
                    (absolute(value(deployed(middle)) - value(middle)) + absolute(slope) * radius).upper());
  }

  /// What is left beyond the last cell, where g is within 2^-80 of its limit.
  double beyond() const {
    const Interval from = minimum(end_, deployed(end_)).keep_lower(),
                   x = activation_.inverse_signed_root(from);
    return activation_.only().slopes(x.lower(), kInfinity).width();
  }

  double sign() const { return sign_; }
  const Activation& activation() const { return activation_; }
  const Interval& y_star() const { return activation_.y_star(); }

 private:
  const Activation& activation_;
  double sign_, t_min_;
  Interval shift_, end_;
};

struct Search {
  double claim;
  StoredGrid grid;
  Finding finding;
  double largest = 0;
  double at = 0;
  int refutations = 0;

  // D at one point, from s_c and s.
  void see(const Branch& branch, const Interval& s_c, const Interval& s, bool bounds) {
    const Interval d = branch.value(s_c) - branch.value(s);
    if (bounds) finding.proven = std::max(finding.proven, d.magnitude());
    const double y = (branch.y_star() + square(s)).middle();
    if (d.mignitude() > claim && finding.verdict != Verdict::Violated && ++refutations <= kMostRefutations)
      refute(branch, y);
    if (d.mignitude() < largest) return;
    largest = d.mignitude();
    at = y;
  }
  // K is about stored y: looks at the one next to a place where D exceeds the claim, and for an x that is
  // stored so.
  void refute(const Branch& branch, double near) {
    const bool m = branch.sign() > 0;
    for (const double y : {grid.nearest(near), grid.above(grid.nearest(near))}) {
      const Interval g = branch.value(branch.deployed_at(y)), want = branch.value(branch.true_at(y)),
                     d = g - want;
      if (!(d.mignitude() > claim)) continue;
      const std::optional<double> x = argument_of(branch.activation(), true, grid, y, m);
      if (!x) continue;
      finding.verdict = Verdict::Violated;
      finding.witness = Witness{y, g.middle(), want.middle()};
      finding.why = fmt::format("g moves by {:.6g} at y = {:.9g}, m = {:d}, as which x = {:.9g} is stored",
                                d.mignitude(), y, m, *x);
      return;
    }
  }
  void undecided(const std::string& why) {
    finding.proven = kInfinity;
    if (finding.verdict != Verdict::Holds) return;
    finding.verdict = Verdict::Undecided;
    finding.why = why;
  }
};

void search_branch(Search& search, const Branch& branch, const BackwardHeader& h) {
  const StoredGrid& grid = search.grid;
  double y = grid.lowest(branch.y_star().middle()), last = y;
  for (int j = 0; j < kGridPoints; ++j, y = grid.above(y)) {
    if (branch.true_at(y).lower() > branch.end()) break;
    last = y;
    if (grid.reach(y, branch.sign() > 0, branch.y_star()) == StoredGrid::Reach::no) continue;
    search.see(branch, branch.deployed_at(y), branch.true_at(y), true);
  }

  const double begin = branch.true_at(last).lower(), start = std::max(begin, branch.corner().upper());
  if (start > begin) {
    const double reach = std::max(start, branch.deployed(start).upper());
    if (!branch.monotone_to(reach)) return search.undecided("the floor t_min reaches far from y*");
    const Interval corner = hull(maximum(branch.corner(), begin), start);
    search.see(branch, branch.deployed(begin), begin, true);
    search.see(branch, branch.deployed(corner), corner, true);
  }
  std::vector<std::pair<double, double>> pending;
  // Cells grow with the distance from y*, as the change of G' does.
  double step = 0x1p-12;
  for (double a = start; a < branch.end();) {
    const double b = std::min(a + step, branch.end());
    pending.emplace_back(a, b);
    a = b;
    step *= 1.25;
  }
  if (branch.sign() > 0 && !h.has_right)
    search.finding.proven = std::max(search.finding.proven, branch.beyond());
  int cells = 0;
  while (!pending.empty()) {
    const auto [a, b] = pending.back();
    pending.pop_back();
    const double bound = branch.bound(a, b), middle = a + (b - a) / 2;
    if (bound <= search.claim || (search.finding.verdict == Verdict::Violated && std::isfinite(bound))) {
      search.finding.proven = std::max(search.finding.proven, bound);
      continue;
    }
    search.see(branch, branch.deployed(middle), middle, false);
    if (++cells < kMaxCells && a < middle && middle < b) {
      pending.insert(pending.end(), {{a, middle}, {middle, b}});
      continue;
    }
    return search.undecided(fmt::format("not decided near y = {:.9g}, m = {:d}",
                                        (branch.y_star() + square(Interval(middle))).middle(),
                                        branch.sign() > 0));
  }
}

}  // namespace

Interval coordinate_error_at(const BackwardHeader& h, double y, bool m) {
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  const StoredGrid grid(h.format);
  if (y < grid.lowest(activation.y_star().middle()) ||
      grid.reach(y, m, activation.y_star()) == StoredGrid::Reach::no)
    return 0;
  const Branch branch(h, activation, m ? 1.0 : -1.0);
  return branch.value(branch.deployed_at(y)) - branch.value(branch.true_at(y));
}

Finding prove_coordinate(const BackwardHeader& h, double claim) {
  Search search{claim, StoredGrid(h.format), Finding{"K", Verdict::Holds, claim}};
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  for (const double sign : {1.0, -1.0}) search_branch(search, Branch(h, activation, sign), h);
  if (search.finding.verdict == Verdict::Holds && !(search.finding.proven <= claim))
    search.undecided("not decided at a stored y");
  if (search.finding.verdict == Verdict::Holds)
    search.finding.why = fmt::format("largest seen {:.6g} at y = {:.9g}", search.largest, search.at);
  if (activation.limited()) search.finding.why += fmt::format(", for |x| <= {}", kExpressionEnd);
  return search.finding;
}

}  // namespace outgrad::validation
