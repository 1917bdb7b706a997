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

/// Of f32 only the first above y*: beyond them a stored y stands for an interval below 2^-22, and bounds take
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

/// From points of f' all over its reach and, closer and closer, around x*. A scale that is too small costs
/// time, and may end in a refusal.
double sampled_scale(const Composite& composite) {
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

/// Takes in what f' does between the ends of a preimage: nothing where f'' keeps its sign, else |f''| times
/// the length, piece by piece. @throws kernels::SpecError once `parts` are used up.
void widen_between(const Composite& composite, const Ball& from, const Ball& to, double negligible,
                   StorageInterval& interval, int& parts, int depth = 0) {
  const Ball slope = composite.gradient(Ball::hull(from, to), 2)[1];
  if (slope.positive() || slope.negative()) return;
  if (--parts < 0) {
    throw kernels::SpecError(
        fmt::format("undecided: the range of f' between x = {:.6g} and {:.6g}, which y = {:.6g} stands for, "
                    "after {} parts",
                    from.to_double(), to.to_double(), interval.y, kMostParts));
  }
  const double excess = slope.magnitude() * (to - from).magnitude();
  constexpr int kDeepest = 64;
  // Exact: the radii of the ends would keep the halves from shrinking.
  const Ball middle = ((from + to) * Ball(0.5)).midpoint(), g = composite.gradient(middle, 1)[0];
  if (excess < negligible || depth == kDeepest) {
    if (g.lower() - excess < interval.lo || g.upper() + excess > interval.hi)
      interval.slack = std::max(interval.slack, excess);
    interval.lo = std::min(interval.lo, g.lower() - excess);
    interval.hi = std::max(interval.hi, g.upper() + excess);
    return;
  }
  interval.lo = std::min(interval.lo, g.lower());
  interval.hi = std::max(interval.hi, g.upper());
  widen_between(composite, from, middle, negligible, interval, parts, depth + 1);
  widen_between(composite, middle, to, negligible, interval, parts, depth + 1);
}

/// The x between the ends of a preimage, which are to be looked at.
struct Between {
  size_t interval;
  Ball from, to;
};

/// widen_between for each of some neighbours. f'' keeps its sign over most of a branch: one look at all of
/// them together spares a look at each.
void widen_neighbours(const Composite& composite, const Between* first, size_t count, double negligible,
                      std::vector<StorageInterval>& intervals, int& parts) {
  if (count == 0) return;
  if (count == 1)
    return widen_between(composite, first->from, first->to, negligible, intervals[first->interval], parts);
  Ball all = Ball::hull(first->from, first->to);
  for (size_t k = 1; k < count; ++k) all = Ball::hull(all, Ball::hull(first[k].from, first[k].to));
  const Ball slope = composite.gradient(all, 2)[1];
  if (slope.positive() || slope.negative()) return;
  widen_neighbours(composite, first, count / 2, negligible, intervals, parts);
  widen_neighbours(composite, first + count / 2, count - count / 2, negligible, intervals, parts);
}

/// Of one scale, 2^exponent.
std::vector<StorageInterval> intervals_at_scale(const Composite& composite, Format format, int exponent,
                                                double scale) {
  const double negligible = kNegligible * scale;
  const double overflow = std::ldexp(overflow_of(format), exponent);
  const double end = shape_of(format).has_infinity ? INFINITY : overflow;
  const Activation& f = composite.activation();
  Stage stage("storage intervals");
  std::vector<StorageInterval> intervals;
  int parts = kMostParts;
  const auto branch = [&](bool right) {
    std::vector<Stored> stored =
        format == Format::f32 ? numbers_above_minimum(composite) : stored_numbers(format, right);
    for (Stored& each : stored) each.value = std::ldexp(each.value, exponent);
    stage.expect(static_cast<std::int64_t>(stored.size()) * (composite.masked() ? 2 : 1));
    Inverse inverse(composite, right);
    const bool masked = composite.masked();
    const bool rising = right || !masked;
    // Arguments are looked for up to here; beyond, the tail bounds speak.
    const Ball start = masked ? composite.x_star() : Ball(-f.reach), finish(rising ? f.reach : -f.reach);
    // The values that f takes on the branch, from `least` at its start.
    const Ball least = masked ? composite.y_star() : f.value_ball(start), last = f.value_ball(finish);
    // Of a user's own function nothing is claimed beyond its reach.
    const bool ends_at_reach = f.name == "expression",
               bounded =
                   ends_at_reach || std::isfinite(rising ? composite.right_limit() : composite.left_limit());
    struct Edge {
      Ball x, g;  // an enclosure of the argument of a boundary, and of f' over it
    };
    const auto edge = [&](const Ball& y) {
      Edge e;
      e.x = inverse(y);
      e.g = composite.gradient(e.x, 1)[0];
      // Where a user's own f is steep far from 0, f' moves over a bracket by more than kAbove makes up for. A
      // step of Newton's method in balls narrows it.
      if (ends_at_reach && e.g.upper() - e.g.lower() > kWideEdge * scale &&
          (e.g.positive() || e.g.negative())) {
        const Ball middle = e.x.midpoint();
        e.x = middle - (f.value_ball(middle) - y) / e.g;
        e.g = composite.gradient(e.x, 1)[0];
      }
      return e;
    };
    std::optional<Edge> previous;  // the upper boundary of the number before
    std::vector<Between> between;
    const size_t of_branch = intervals.size();
    for (size_t k = 0; k < stored.size(); ++k, stage.tick()) {
      const double value = stored[k].value;
      // the left branch of a masked f stays below 0
      if (value == 0 && !std::signbit(value) && !rising) break;
      const double bottom = k > 0 ? boundary(format, stored[k - 1], stored[k], overflow) : -end;
      const double top = k + 1 < stored.size() ? boundary(format, stored[k], stored[k + 1], overflow) : end;
      // also where it is undecided: the preimage is then shorter than 2^-200
      if (!(Ball(top) - least).positive()) continue;
      if (bounded && !(last - Ball(bottom)).positive()) break;
      if (format == Format::f32 && k + 1 == stored.size()) break;
      if (std::isinf(value) && bottom >= last.lower()) break;  // the number before has taken in the tail
      StorageInterval interval{
          stored[k].code, static_cast<float>(value), right || !masked, INFINITY, -INFINITY, 0, scale};
      const auto include = [&](const Ball& g) {
        interval.lo = std::min(interval.lo, g.lower());
        interval.hi = std::max(interval.hi, g.upper());
      };
      const auto include_tail = [&](Ball x, bool to_the_right) {
        const double limit = to_the_right ? f.right_limit_gradient : f.left_limit_gradient;
        Activation::TailRange off = f.gradient_tail_range(x, to_the_right);
        // A bound that f' does not attain would move the middle, against which R is measured: then f' itself
        // is looked at, further out.
        const double here = composite.gradient(x, 1)[0].to_double() - limit;
        const auto attained = [negligible](double bound, double at) {
          return bound <= std::max(at, 0.0) + negligible;
        };
        const bool settles = attained(off.below, -here) && attained(off.above, here);
        const bool looks = ends_at_reach || has_scales(format) || carries_branch(format) || !settles;
        const double step = std::max(1.0, f.reach / kTailSteps);
        while (looks && x.magnitude() < f.reach) {
          include(composite.gradient(x, 1)[0]);
          if (limit - off.below >= interval.lo - negligible && limit + off.above <= interval.hi + negligible)
            break;
          const Ball further = x + Ball(to_the_right ? step : -step),
                     next = ends_at_reach && further.magnitude() > f.reach
                                ? Ball(to_the_right ? f.reach : -f.reach)
                                : further;
          widen_between(composite, to_the_right ? x : next, to_the_right ? next : x, negligible, interval,
                        parts);
          x = next;
          off = f.gradient_tail_range(x, to_the_right);
        }
        if (ends_at_reach && x.magnitude() >= f.reach) return include(composite.gradient(x, 1)[0]);
        const double low_end = std::nextafter(limit - off.below, -INFINITY),
                     high_end = std::nextafter(limit + off.above, INFINITY);
        if ((ends_at_reach || !settles) && interval.lo <= interval.hi)
          interval.slack = std::max({interval.slack, interval.lo - low_end, high_end - interval.hi});
        interval.lo = std::min(interval.lo, low_end);
        interval.hi = std::max(interval.hi, high_end);
      };
      // The preimage begins at the branch's start or at an edge, and ends at an edge or in the branch's tail.
      // Without a minimum the start is in a tail too.
      const bool from_start = masked ? !(Ball(bottom) - least).positive() : bottom <= least.upper();
      const bool to_finish = top >= last.lower(), below_reach = !masked && top <= least.upper();
      std::optional<Edge> low, high;
      if (!from_start && bottom < last.lower()) low = previous ? previous : std::optional(edge(Ball(bottom)));
      if (!to_finish && !below_reach) high = edge(Ball(top));
      previous = high;
      if (low) include(low->g);
      if (high) include(high->g);
      if (masked && from_start) include(Ball(0.0));
      if (!masked && from_start) include_tail(high ? high->x : start, false);
      if (to_finish && !below_reach) include_tail(low ? low->x : finish, rising);
      // A tail from an edge on takes in all of the preimage.
      const bool ends = high ? low || masked : from_start && !below_reach;
      if (ends) between.push_back({intervals.size(), low ? low->x : start, high ? high->x : finish});
      intervals.push_back(interval);
    }
    constexpr size_t kTogether = 64;
    for (size_t k = 0; k < between.size(); k += kTogether)
      widen_neighbours(composite, &between[k], std::min(kTogether, between.size() - k), negligible, intervals,
                       parts);
    for (size_t k = of_branch; k < intervals.size(); ++k) {
      const StorageInterval& interval = intervals[k];
      if (!(interval.lo <= interval.hi && std::isfinite(interval.lo) && std::isfinite(interval.hi))) {
        throw kernels::SpecError(fmt::format(
            "undecided: the range of f' over the x that y = {:.6g} stands for has no finite bounds",
            interval.y));
      }
    }
  };
  branch(true);
  if (composite.masked()) branch(false);
  return intervals;
}

}  // namespace

std::vector<StorageInterval> storage_intervals(const Composite& composite, Format format) {
  if (format == Format::f32 && !composite.masked()) return {};
  std::vector<StorageInterval> all;
  const Scales scales = scales_of(format);
  const double scale = sampled_scale(composite);
  for (int exponent = scales.first; exponent <= scales.last; ++exponent) {
    const std::vector<StorageInterval> at = intervals_at_scale(composite, format, exponent, scale);
    all.insert(all.end(), at.begin(), at.end());
  }
  if (all.empty())
    throw kernels::SpecError(fmt::format("format {}: no f(x) is stored as a number: all lie beyond {:.6g}",
                                         to_string(format), overflow_of(format)));
  return all;
}

StorageErrors measure_storage(const std::vector<StorageInterval>& intervals, Format format,
                              const std::function<float(const StorageInterval&)>& gradient) {
  StorageErrors e;
  double scale = 0;
  const auto see = [](double& bound, Found& worst, double error, const StorageInterval& i) {
    bound = std::max(bound, error);
    if (std::isfinite(i.y)) worst.see(error, static_cast<double>(i.y), i.m);
  };
  for (const StorageInterval& i : intervals) {
    const auto g = static_cast<double>(gradient(i));
    if (!std::isfinite(g)) throw kernels::SpecError("undecided: a stored y has no finite gradient");
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
