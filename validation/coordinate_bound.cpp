// Branch and bound over s with the enclosures of gelu_interval.
#include "validation/coordinate_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "validation/gelu_interval.h"

namespace outgrad::validation {
namespace {

constexpr int kMaxCells = 4000;  // real constants need a few hundred
// Beyond s = 8 (x > 64) |g - 1| < 2^-2900.
constexpr double kFarRoot = 8;

constexpr int kGridPoints = 256;  // beyond them D, which falls like d / 2 s, is far below its value at the first
constexpr double kBinadeEnd = -0.125;  // |y*| lies in [1/8, 1/4), where the grid is uniform

// The spacing of the stored y in [1/8, 1/4).
double spacing(const std::string& format) { return format == "f32" ? 0x1p-26 : format == "f16" ? 0x1p-13 : 0x1p-10; }

// One branch: |s| is what is cut into cells, `sign` makes it s.
class Branch {
 public:
  Branch(const BackwardHeader& h, double sign) : sign_(sign), t_min_(static_cast<double>(h.t_min)) {
    shift_ = y_star() - static_cast<double>(h.y_hi) - static_cast<double>(h.y_lo);
    end_ = sign > 0 ? Interval(kFarRoot) : sqrt(Interval(h.has_left ? static_cast<double>(h.left_y) : 0.0) - y_star());
  }

  /// |s| where the floor stops to act.
  Interval corner() const { return sqrt(Interval(t_min_) - shift_); }
  double end() const { return end_.upper(); }
  /// |s_c| and the true |s| of one stored y.
  Interval deployed_at(double y) const { return sqrt(maximum(Interval(y) - y_star() + shift_, t_min_)); }
  Interval true_at(double y) const { return sqrt(Interval(y) - y_star()); }
  Interval deployed(const Interval& s) const { return sqrt(maximum(square(s) + shift_, t_min_)); }

  /// G at |s|, continued by 0 to the left of all x.
  Interval value(const Interval& s) const {
    const Interval x = inverse_signed_root(s * sign_);
    if (std::isfinite(x.lower())) return gelu_d1(x);
    return x.upper() < -1.5 ? symmetric(gelu_d1(x.keep_upper())) : Interval::whole_line();
  }

  double bound(double a, double b) const {
    const Interval s(a, b), s_c = deployed(s);
    const Interval x = inverse_signed_root(hull(s, s_c) * sign_);
    double least = std::numeric_limits<double>::infinity();
    // Left of -sqrt 2 f' is negative and falls as x grows: two such values differ by at most the rightmost one.
    if (x.upper() < -1.5) least = gelu_d1(x.keep_upper()).magnitude();
    if (!std::isfinite(x.lower())) return least;
    const Interval ends = maximum(absolute(deployed(a) - a), absolute(deployed(b) - b));
    least = std::min(least, (absolute(g_slope(hull(s, s_c) * sign_)) * ends).upper());
    const double middle = a + (b - a) / 2;
    const Interval slope = g_slope(s_c * sign_) * s / s_c - g_slope(s * sign_);
    const double radius = std::max((Interval(b) - middle).upper(), (Interval(middle) - a).upper());
    return std::min(least, (absolute(value(deployed(middle)) - value(middle)) + absolute(slope) * radius).upper());
  }

  double sign() const { return sign_; }

 private:
  static Interval absolute(const Interval& v) { return maximum(v, -v); }

  double sign_, t_min_;
  Interval shift_, end_;
};

struct Search {
  double claim;
  Finding finding;
  double largest = 0;
  double at = 0;

  // D at one point, from s_c and s.
  void see(const Branch& branch, const Interval& s_c, const Interval& s, bool bounds) {
    const Interval d = branch.value(s_c) - branch.value(s);
    if (bounds) finding.proven = std::max(finding.proven, d.magnitude());
    if (d.mignitude() < largest) return;
    largest = d.mignitude();
    at = (y_star() + square(s)).middle();
    if (largest > claim && finding.verdict != Verdict::Violated) {
      finding.verdict = Verdict::Violated;
      finding.witness = Witness{at, branch.value(s_c).middle(), branch.value(s).middle()};
      finding.why = fmt::format("g moves by {:.6g} at y = {:.9g}, m = {:d}", largest, at, branch.sign() > 0);
    }
  }
  void undecided(const std::string& why) {
    finding.proven = std::numeric_limits<double>::infinity();
    if (finding.verdict != Verdict::Holds) return;
    finding.verdict = Verdict::Undecided;
    finding.why = why;
  }
};

void search_branch(Search& search, const Branch& branch, const BackwardHeader& h) {
  const double step_of_y = spacing(h.format), lowest = std::nearbyint(y_star().middle() / step_of_y) * step_of_y;
  double last = lowest;
  for (int j = 0; j < kGridPoints; ++j) {
    const double y = lowest + j * step_of_y;
    if (y > kBinadeEnd || (branch.sign() < 0 && h.has_left && y > h.left_y)) break;
    last = y;
    search.see(branch, branch.deployed_at(y), branch.true_at(y), true);
  }

  const double begin = branch.true_at(last).lower(), start = std::max(begin, branch.corner().upper());
  if (start > begin) {
    // Monotone while G is: up to s(sqrt 2) > 1.2 and down to s(-sqrt 2) < -0.24.
    const double reach = std::max(start, branch.deployed(start).upper());
    if (reach > (branch.sign() > 0 ? 1.2 : 0.24)) return search.undecided("the floor t_min reaches far from y*");
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
    return search.undecided(fmt::format("not decided near y = {:.9g}, m = {:d}", (y_star() + square(Interval(middle))).middle(), branch.sign() > 0));
  }
}

}  // namespace

Finding prove_coordinate(const BackwardHeader& h, double claim) {
  Search search{claim, Finding{"K", Verdict::Holds, claim, 0, "", {}}};
  for (const double sign : {1.0, -1.0}) search_branch(search, Branch(h, sign), h);
  if (search.finding.verdict == Verdict::Holds && !(search.finding.proven <= claim)) search.undecided("not decided at a stored y");
  if (search.finding.verdict == Verdict::Holds) search.finding.why = fmt::format("largest seen {:.6g} at y = {:.9g}", search.largest, search.at);
  return search.finding;
}

}  // namespace outgrad::validation
