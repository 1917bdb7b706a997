// Lists the stored numbers of a format, and encloses f' over the x that round to each.
#include "approx/function/storage.h"

#include "approx/function/inverse.h"
#include "approx/progress.h"
#include "kernels/portable.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace outgrad::approx {
namespace {

/// Claims are rounded up by this factor and then by this much times scale_of(): more than the brackets and
/// the sums in double below can be off.
constexpr double kClaimUp = 1 + 0x1p-30;
constexpr double kAbove = 0x1p-43;

/// An f' at the end of a preimage is enclosed this narrowly, times scale_of().
constexpr double kWideEdge = 0x1p-44;

/// The stored numbers of a format in ascending order: -0 and +0 apart, infinities included.
struct Stored {
  std::uint32_t code;
  double value;
};

/// The f32 numbers next above y*: beyond them a stored y stands for an interval below 2^-22, and bounds take
/// over.
std::vector<Stored> numbers_above_minimum(const Composite& composite) {
  std::vector<Stored> all;
  float y = std::nextafter(static_cast<float>(composite.y_star().lower()), -INFINITY);
  for (int k = 0; k < kNearMinimum; ++k, y = std::nextafter(y, INFINITY))
    all.push_back({kernels::bits_of(y), static_cast<double>(y)});
  return all;
}

std::vector<Stored> stored_numbers(Format format, bool right) {
  const FormatShape shape = shape_of(format);
  const std::uint32_t half = 1U << shape.sign_bit();
  std::vector<Stored> up;
  for (std::uint32_t magnitude = 0; magnitude < half; ++magnitude) {
    const double value = decode(format, magnitude);
    if (std::isinf(value)) up.push_back({magnitude, value});
    if (!std::isfinite(value)) break;
    up.push_back({magnitude, value});
  }
  std::vector<Stored> all;
  for (size_t k = up.size(); k-- > 0;) all.push_back({up[k].code | half, -up[k].value});
  all.insert(all.end(), up.begin(), up.end());
  std::erase_if(all, [&](const Stored& each) { return !holds_branch(format, each.code, right); });
  return all;
}

/// What parts two neighbours of the stored numbers.
double boundary(Format format, const Stored& y, const Stored& next, double overflow) {
  // the other branch's number between the two
  if (carries_branch(format) && y.value < 0) return decode(format, y.code - 1);
  if (std::isinf(y.value) || std::isinf(next.value)) return std::copysign(overflow, next.value);
  // Between -0 and +0 the boundary is 0 itself; a correctly rounded f(x) > 0 gives +0, f(x) < 0 gives -0.
  return 0.5 * (y.value + next.value);
}

/// Parts that the preimages of a format may be cut into, all together: more than any of the built-in
/// activations takes. What needs more has enclosures too wide to come to an end within a minute.
constexpr int kMostParts = 1 << 20;

/// A tail is looked at in steps of 1, and of this share of its reach where that is longer.
constexpr double kTailSteps = 128;

/// What an interval of f' is widened by without a further look, in units of scale_of().
constexpr double kNegligible = 0x1p-40;

/// What is nothing beside an f' of ordinary size is to be multiplied by this for one that reaches `steepest`:
/// it is less where f' is small, and more where f' is so large that doubles are coarse.
double scale_of(double steepest) { return std::max(std::min(1.0, 8 * steepest), 0x1p-9 * steepest); }

/// The intervals of one scale, 2^exponent, branch by branch.
class IntervalSearch {
 public:
  IntervalSearch(const Composite& composite, Format format, int exponent, double scale)
      : composite_(composite), f_(composite.activation()), format_(format), exponent_(exponent),
        scale_(scale), negligible_(kNegligible * scale), overflow_(std::ldexp(overflow_of(format), exponent)),
        ends_at_reach_(f_.name == "expression") {}

  std::vector<StorageInterval> run() {
    find_branch(true);
    if (composite_.masked()) find_branch(false);
    return std::move(intervals_);
  }

 private:
  /// An enclosure of the argument of a boundary, and of f' over it.
  struct Edge {
    Ball x, g;
  };
  /// The x between the ends of a preimage, which are to be looked at.
  struct Between {
    size_t interval;
    Ball from, to;
  };
  /// A branch, as far as arguments are looked for; beyond, the tail bounds speak.
  struct Branch {
    bool right, rising;
    Ball start, finish;
    Ball least, last;  ///< the values that f takes there
    Inverse inverse;
    std::optional<Edge> previous = {};  ///< the upper boundary of the number before
    std::vector<Between> between = {};
  };

  [[nodiscard]] Branch branch_of(bool right) const {
    const bool masked = composite_.masked(), rising = right || !masked;
    const Ball start = masked ? composite_.x_star() : Ball(-f_.reach), finish(rising ? f_.reach : -f_.reach);
    const Ball least = masked ? composite_.y_star() : f_.value_ball(start), last = f_.value_ball(finish);
    return {right, rising, start, finish, least, last, Inverse(composite_, right)};
  }

  void find_branch(bool right) {
    std::vector<Stored> stored =
        format_ == Format::f32 ? numbers_above_minimum(composite_) : stored_numbers(format_, right);
    for (Stored& each : stored) each.value = std::ldexp(each.value, exponent_);
    stage_.expect(static_cast<std::int64_t>(stored.size()) * (composite_.masked() ? 2 : 1));
    Branch branch = branch_of(right);
    const size_t of_branch = intervals_.size();
    const double end = shape_of(format_).has_infinity ? INFINITY : overflow_;
    // Nothing is claimed of a user's own function beyond its reach.
    const bool bounded =
        ends_at_reach_ || std::isfinite(branch.rising ? composite_.right_limit() : composite_.left_limit());
    for (size_t k = 0; k < stored.size(); ++k, stage_.tick()) {
      const double value = stored[k].value;
      // the left branch of a masked f stays below 0
      if (value == 0 && !std::signbit(value) && !branch.rising) break;
      const double bottom = k > 0 ? boundary(format_, stored[k - 1], stored[k], overflow_) : -end;
      const double top = k + 1 < stored.size() ? boundary(format_, stored[k], stored[k + 1], overflow_) : end;
      // also where it is undecided: the preimage is then shorter than 2^-200
      if (!(Ball(top) - branch.least).positive()) continue;
      if (bounded && !(branch.last - Ball(bottom)).positive()) break;
      if (format_ == Format::f32 && k + 1 == stored.size()) break;
      if (std::isinf(value) && bottom >= branch.last.lower())
        break;  // the number before has taken in the tail
      add_interval(branch, stored[k], bottom, top);
    }
    constexpr size_t kTogether = 64;
    for (size_t k = 0; k < branch.between.size(); k += kTogether)
      widen_neighbours(&branch.between[k], std::min(kTogether, branch.between.size() - k));
    for (size_t k = of_branch; k < intervals_.size(); ++k) {
      const StorageInterval& interval = intervals_[k];
      if (!(interval.lo <= interval.hi && std::isfinite(interval.lo) && std::isfinite(interval.hi))) {
        throw kernels::SpecError(fmt::format(
            "undecided: the range of f' over the x that y = {:.6g} stands for has no finite bounds",
            interval.y));
      }
    }
  }

  /// The preimage of a number, of the y from `bottom` to `top`, begins at the branch's start or at an edge,
  /// and ends at an edge or in the branch's tail. Without a minimum the start is in a tail too.
  void add_interval(Branch& branch, const Stored& number, double bottom, double top) {
    const bool masked = composite_.masked();
    StorageInterval interval{
        number.code, static_cast<float>(number.value), branch.right || !masked, INFINITY, -INFINITY, 0,
        scale_};
    const bool from_start =
        masked ? !(Ball(bottom) - branch.least).positive() : bottom <= branch.least.upper();
    const bool to_finish = top >= branch.last.lower(), below_reach = !masked && top <= branch.least.upper();
    std::optional<Edge> low, high;
    if (!from_start && bottom < branch.last.lower())
      low = branch.previous ? branch.previous : std::optional(edge(branch.inverse, bottom));
    if (!to_finish && !below_reach) high = edge(branch.inverse, top);
    branch.previous = high;
    if (low) include(interval, low->g);
    if (high) include(interval, high->g);
    if (masked && from_start) include(interval, Ball(0.0));
    if (!masked && from_start) include_tail(interval, high ? high->x : branch.start, false);
    if (to_finish && !below_reach) include_tail(interval, low ? low->x : branch.finish, branch.rising);
    // A tail from an edge on takes in all of the preimage.
    const bool ends = high ? low || masked : from_start && !below_reach;
    if (ends)
      branch.between.push_back(
          {intervals_.size(), low ? low->x : branch.start, high ? high->x : branch.finish});
    intervals_.push_back(interval);
  }

  [[nodiscard]] Edge edge(Inverse& inverse, const Ball& y) const {
    Edge e;
    e.x = inverse(y);
    e.g = composite_.gradient(e.x, 1)[0];
    // Where a user's own f is steep far from 0, f' moves over a bracket by more than kAbove makes up for. A
    // step of Newton's method in balls narrows it.
    if (ends_at_reach_ && e.g.upper() - e.g.lower() > kWideEdge * scale_ &&
        (e.g.positive() || e.g.negative())) {
      const Ball middle = e.x.midpoint();
      e.x = middle - (f_.value_ball(middle) - y) / e.g;
      e.g = composite_.gradient(e.x, 1)[0];
    }
    return e;
  }

  static void include(StorageInterval& interval, const Ball& g) { include(interval, g.lower(), g.upper()); }
  static void include(StorageInterval& interval, double low, double high) {
    interval.lo = std::min(interval.lo, low);
    interval.hi = std::max(interval.hi, high);
  }

  /// From x outwards.
  void include_tail(StorageInterval& interval, Ball x, bool to_the_right) {
    const double limit = to_the_right ? f_.right_limit_gradient : f_.left_limit_gradient;
    Activation::TailRange off = f_.gradient_tail_range(x, to_the_right);
    // A bound that f' does not attain would move the middle, against which R is measured: then f' itself is
    // looked at, further out.
    const double here = composite_.gradient(x, 1)[0].to_double() - limit;
    const auto attained = [&](double bound, double at) { return bound <= std::max(at, 0.0) + negligible_; };
    const bool settles = attained(off.below, -here) && attained(off.above, here);
    const bool looks = ends_at_reach_ || has_scales(format_) || carries_branch(format_) || !settles;
    const double step = std::max(1.0, f_.reach / kTailSteps);
    while (looks && x.magnitude() < f_.reach) {
      include(interval, composite_.gradient(x, 1)[0]);
      if (limit - off.below >= interval.lo - negligible_ && limit + off.above <= interval.hi + negligible_)
        break;
      const Ball further = x + Ball(to_the_right ? step : -step),
                 next = ends_at_reach_ && further.magnitude() > f_.reach
                            ? Ball(to_the_right ? f_.reach : -f_.reach)
                            : further;
      widen_between(to_the_right ? x : next, to_the_right ? next : x, interval);
      x = next;
      off = f_.gradient_tail_range(x, to_the_right);
    }
    if (ends_at_reach_ && x.magnitude() >= f_.reach) return include(interval, composite_.gradient(x, 1)[0]);
    const double low_end = std::nextafter(limit - off.below, -INFINITY),
                 high_end = std::nextafter(limit + off.above, INFINITY);
    if ((ends_at_reach_ || !settles) && interval.lo <= interval.hi)
      interval.slack = std::max({interval.slack, interval.lo - low_end, high_end - interval.hi});
    include(interval, low_end, high_end);
  }

  /// Takes in what f' does between the ends of a preimage: nothing where f'' keeps its sign, else |f''| times
  /// the length, piece by piece. @throws kernels::SpecError once all parts are used up.
  void widen_between(const Ball& from, const Ball& to, StorageInterval& interval, int depth = 0) {
    const Ball slope = composite_.gradient(Ball::hull(from, to), 2)[1];
    if (slope.positive() || slope.negative()) return;
    if (--parts_ < 0) {
      throw kernels::SpecError(fmt::format(
          "undecided: the range of f' between x = {:.6g} and {:.6g}, which y = {:.6g} stands for, after {} "
          "parts",
          from.to_double(), to.to_double(), interval.y, kMostParts));
    }
    const double excess = slope.magnitude() * (to - from).magnitude();
    constexpr int kDeepest = 64;
    // Exact: the radii of the ends would keep the halves from shrinking.
    const Ball middle = ((from + to) * Ball(0.5)).midpoint(), g = composite_.gradient(middle, 1)[0];
    if (excess < negligible_ || depth == kDeepest) {
      if (g.lower() - excess < interval.lo || g.upper() + excess > interval.hi)
        interval.slack = std::max(interval.slack, excess);
      return include(interval, g.lower() - excess, g.upper() + excess);
    }
    include(interval, g);
    widen_between(from, middle, interval, depth + 1);
    widen_between(middle, to, interval, depth + 1);
  }

  /// widen_between for each of some neighbours. f'' keeps its sign over most of a branch: one look at all of
  /// them together spares a look at each.
  void widen_neighbours(const Between* first, size_t count) {
    if (count == 0) return;
    if (count == 1) return widen_between(first->from, first->to, intervals_[first->interval]);
    Ball all = Ball::hull(first->from, first->to);
    for (size_t k = 1; k < count; ++k) all = Ball::hull(all, Ball::hull(first[k].from, first[k].to));
    const Ball slope = composite_.gradient(all, 2)[1];
    if (slope.positive() || slope.negative()) return;
    widen_neighbours(first, count / 2);
    widen_neighbours(first + count / 2, count - count / 2);
  }

  const Composite& composite_;
  const Activation& f_;
  const Format format_;
  const int exponent_;
  const double scale_, negligible_, overflow_;
  const bool ends_at_reach_;
  int parts_ = kMostParts;
  Stage stage_{"storage intervals"};
  std::vector<StorageInterval> intervals_;
};

}  // namespace

double gradient_scale(const Composite& composite) {
  constexpr int kPoints = 512, kCloser = 40;
  const double reach = composite.activation().reach,
               centre = composite.masked() ? composite.x_star().to_double() : 0;
  double steepest = 0;
  const auto see = [&](double x) {
    steepest = std::max(steepest,
                        std::abs(composite.gradient(Ball(std::clamp(x, -reach, reach)), 1)[0].to_double()));
  };
  for (int k = -kPoints; k <= kPoints; ++k) see(reach * k / kPoints);
  for (int k = 0; k <= kCloser; ++k) {
    for (const double sign : {-1.0, 1.0}) see(centre + sign * std::ldexp(reach, -k));
  }
  return scale_of(steepest);
}

std::vector<StorageInterval> storage_intervals(const Composite& composite, Format format) {
  if (format == Format::f32 && !composite.masked()) return {};
  std::vector<StorageInterval> all;
  const Scales scales = scales_of(format);
  const double scale = gradient_scale(composite);
  for (int exponent = scales.first; exponent <= scales.last; ++exponent) {
    const std::vector<StorageInterval> at = IntervalSearch(composite, format, exponent, scale).run();
    all.insert(all.end(), at.begin(), at.end());
  }
  if (all.empty())
    throw kernels::SpecError(fmt::format("format {}: no f(x) is stored as a number: all lie beyond {:.6g}",
                                         to_string(format), overflow_of(format)));
  return all;
}

double oracle_of(const std::vector<StorageInterval>& intervals) {
  double oracle = 0;
  for (const StorageInterval& i : intervals) oracle = std::max(oracle, i.half());
  return oracle;
}

StorageErrors measure_storage(const std::vector<StorageInterval>& intervals, Format format,
                              const std::function<float(const StorageInterval&)>& gradient) {
  StorageErrors e;
  double scale = 0;
  const auto see = [](double& bound, Found& worst, double error, const StorageInterval& i) {
    bound = std::max(bound, error);
    worst.see(error, static_cast<double>(i.y), i.m);
  };
  for (const StorageInterval& i : intervals) {
    const auto g = static_cast<double>(gradient(i));
    if (!std::isfinite(g))
      throw kernels::SpecError(fmt::format("undecided: the gradient of y = {:.6g} is no finite number", i.y));
    const double off = std::abs(g - i.middle()) + i.slack / 2;
    scale = std::max({scale, i.scale, scale_of(std::max(-i.lo, i.hi))});
    see(e.total, e.worst_total, std::max(g - i.lo, i.hi - g), i);
    see(e.oracle, e.worst_oracle, i.half(), i);
    see(e.regret, e.worst_regret, off, i);
    if (i.m || i.y != 0) e.worst_ulp = std::max(e.worst_ulp, off / ulp_of(format, i.middle()));
  }
  for (double* bound : {&e.total, &e.oracle, &e.regret, &e.worst_ulp})
    *bound = *bound * kClaimUp + kAbove * scale;
  return e;
}

}  // namespace outgrad::approx
