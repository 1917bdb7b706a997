// Branch and bound over ranges of floats y, by the inverse of f.
#include "validation/certificate/product_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "validation/certificate/deployed.h"
#include "validation/certificate/found.h"
#include "validation/certificate/stored_argument.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

// ranges of y that are looked at; a true claim takes some thousands
constexpr int kMostRanges = 1 << 17;
// how far T may be claimed above, and O below, what is shown
constexpr double kTotalRoom = 1 + 0x1p-8, kOracleRoom = 1 - 0x1p-12;

class Quotients {
 public:
  explicit Quotients(const BackwardHeader& h)
      : h_(h), activation_(activation_of(h.activation, h.function, h.masked)), formula_(activation_.only()),
        total_{"T", Verdict::Holds, h.product.total} {}

  std::vector<Finding> run() {
    // f(x) >= y* for every x, so no y as low as that stands for any.
    const std::int64_t first =
        float_order(static_cast<float>(2 * (activation_.y_star().lower() - h_.product.absolute)));
    cover(first, float_order(std::numeric_limits<float>::max()), true);
    cover(first, float_order(static_cast<float>(2 * h_.product.absolute)), false);
    if (total_.verdict == Verdict::Holds) compare_total();
    return {total_, oracle()};
  }

 private:
  // f(x) of the x that y is just within reach of, from below or from above.
  Interval source(float y, int sign) const {
    const Interval w = Interval(y) + sign * h_.product.absolute;
    const double away = w.positive() == (sign > 0) ? -h_.product.relative : h_.product.relative;
    return w / (Interval(1) + away);
  }
  // The x of the branch where f is that; x* if it is below y*.
  Interval argument(const Interval& value, bool m) const {
    if (m && !certainly_less(value, formula_.high_values.keep_lower())) return {formula_.far_high, kInfinity};
    if (!m && !value.negative()) return {-kInfinity, formula_.far_low};
    const Interval root = sqrt(maximum(value - activation_.y_star(), 0));
    return activation_.inverse_signed_root(m ? root : -root);
  }

  // The x that the floats from a to b stand for: near x*, and far from it. Nothing if there are none.
  struct Reach {
    Interval low, high;  // f there
    Interval near, far;  // x
  };
  std::optional<Reach> reach(float a, float b, bool m) const {
    const Interval low = source(a, -1), high = source(b, 1);
    if (certainly_less(high, activation_.y_star()) || (!m && !low.negative())) return {};
    return Reach{low, high, argument(low, m), argument(high, m)};
  }
  Interval slopes(const Reach& r) const {
    return formula_.slopes(std::min(r.near.lower(), r.far.lower()), std::max(r.near.upper(), r.far.upper()));
  }

  // f' at two of the x that a y stands for, next to both ends.
  std::optional<std::pair<Interval, Interval>> shown_by(const Reach& r, bool m) const {
    constexpr double kInwards = 0x1p-30;
    const auto end = [&](const Interval& x) {
      return std::clamp(x.middle(), formula_.far_low, formula_.far_high);
    };
    const double near = end(r.near), far = end(r.far);
    const StoredArguments x(activation_, formula_, true, m, r.low.upper(), r.high.lower());
    const auto a = x.slope_at(near + (far - near) * kInwards), b = x.slope_at(far + (near - far) * kInwards);
    if (!a || !b) return {};
    return std::pair{*a, *b};
  }

  // What the floats from a to b give; nothing where they select different rows.
  std::optional<Interval> given(float a, float b, bool m) const {
    const Selection low = deployed_selection(h_, a, m), high = deployed_selection(h_, b, m);
    if (low.row != high.row || low.coordinate != high.coordinate) return {};
    const auto coordinate = [&](float y, const Selection& selection) -> Interval {
      if (selection.coordinate != Coordinate::root) return static_cast<double>(selection.v);
      const Interval root = exact_root(h_, y);
      if (m) return root;
      return h_.has_left ? -root : maximum(-root, static_cast<double>(h_.s_min));
    };
    const auto row = h_.table.row(low.row);
    const Interval u = hull(coordinate(a, low), coordinate(b, high)) -
                       static_cast<double>(h_.centred ? row[0] : 0.0f),
                   middle = u.middle();
    Interval p = static_cast<double>(row[h_.degree + 1]), slope = 0;
    const auto c = [&](int k) { return Interval(static_cast<double>(row[k + 1])); };
    for (int k = h_.degree; k-- > 0;) p = p * middle + c(k);
    for (int k = h_.degree; k > 0; --k) slope = slope * u + c(k) * k;
    return p + slope * (u - middle) + symmetric(Interval(h_.bound_b));
  }

  void cover(std::int64_t first, std::int64_t last, bool m) {
    std::vector<std::pair<std::int64_t, std::int64_t>> pending{{first, last}};
    while (!pending.empty() && total_.verdict == Verdict::Holds) {
      const auto [a, b] = pending.back();
      pending.pop_back();
      const std::optional<Reach> x = reach(float_at(a), float_at(b), m);
      if (!x) continue;
      const std::optional<Interval> g = given(float_at(a), float_at(b), m);
      const double bound = g ? (*g - slopes(*x)).magnitude() : kInfinity;
      if (bound <= total_.claim) {
        total_.proven = std::max(total_.proven, bound);
        continue;
      }
      const std::int64_t middle = a + (b - a) / 2;
      refute(float_at(middle), m);
      if (total_.verdict != Verdict::Holds) return;
      if (a == b || ++ranges_ > kMostRanges) {
        total_.verdict = Verdict::Undecided;
        total_.proven = kInfinity;
        total_.why = fmt::format("not decided near y = {:a}, m = {:d}", float_at(middle), m);
        return;
      }
      pending.insert(pending.end(), {{middle + 1, b}, {a, middle}});
    }
  }

  void refute(float y, bool m) {
    const std::optional<Reach> x = reach(y, y, m);
    const auto shown = x ? shown_by(*x, m) : std::nullopt;
    if (!shown) return;
    const Interval g = static_cast<double>(deployed_gradient(h_, y, m));
    for (const Interval& slope : {shown->first, shown->second}) {
      if (!((g - slope).mignitude() > total_.claim)) continue;
      total_.verdict = Verdict::Violated;
      total_.witness = Witness{y, g.middle(), slope.middle()};
      total_.why = fmt::format("g is {:.9g} at y = {:a}, m = {:d}, which stands for an x with f' = {:.9g}",
                               g.middle(), y, m, slope.middle());
    }
  }

  // |g - f'| at a stated input, or half the range of f', as the x shown there and the enclosures tell.
  Interval at_input(const FoundInput& found, bool half_range) const {
    const auto y = static_cast<float>(found.at);
    const std::optional<Reach> x = reach(y, y, found.m);
    if (!x) return 0;
    const auto shown = shown_by(*x, found.m);
    const Interval all = slopes(*x), g = static_cast<double>(deployed_gradient(h_, y, found.m));
    if (half_range) {
      const double least = shown ? (shown->first - shown->second).mignitude() / 2 : 0;
      return {least, std::max(least, all.width() / 2)};
    }
    const double least =
        shown ? std::max((g - shown->first).mignitude(), (g - shown->second).mignitude()) : 0;
    return {least, std::max(least, (g - all).magnitude())};
  }

  // What is wrong with an input, if anything is.
  static bool stated(Finding& finding, const FoundInput& found, const Interval& error, double bound) {
    const std::string where = found_place(found, true);
    FoundProblem problem{Verdict::Undecided, "no input is stated"};
    if (found.given &&
        !(std::isfinite(found.at) && static_cast<double>(static_cast<float>(found.at)) == found.at))
      problem = {Verdict::Violated, fmt::format("{} is no fp32 number", where)};
    else if (found.given)
      problem = found_problem(finding.name, found, where, error, bound);
    finding.verdict = problem.verdict;
    if (problem.verdict != Verdict::Holds) finding.why = problem.why;
    return problem.verdict == Verdict::Holds;
  }

  void compare_total() {
    const FoundInput& found = h_.product.found_total;
    const Interval error = at_input(found, false);
    total_.why = fmt::format("{} ranges of y; {:.6g} is reached at {}", ranges_, error.lower(),
                             found_place(found, true));
    if (!stated(total_, found, error, total_.claim)) return;
    if (total_.claim <= error.upper() * kTotalRoom) return;
    total_.verdict = Verdict::Violated;
    total_.why = fmt::format("the claim is more than 2^-8 above the {:.6g} at {}", error.upper(),
                             found_place(found, true));
  }

  Finding oracle() const {
    Finding finding{"O", Verdict::Holds, h_.product.oracle, h_.product.oracle};
    const FoundInput& found = h_.product.found_oracle;
    const Interval half = at_input(found, true);
    finding.why = fmt::format("f' of two x that {} stands for is {:.6g} apart", found_place(found, true),
                              2 * half.lower());
    if (!stated(finding, found, half, kInfinity)) return finding;
    if (!(finding.claim <= half.lower())) {
      finding.verdict = Verdict::Undecided;
      finding.why += fmt::format(": no proof that nothing errs by less than {:.6g}", finding.claim);
    } else if (finding.claim < half.lower() * kOracleRoom) {
      finding.verdict = Verdict::Violated;
      finding.why += ", and half of it is more than is claimed";
    }
    return finding;
  }

  const BackwardHeader& h_;
  const Activation& activation_;
  const Formula& formula_;
  Finding total_;
  int ranges_ = 0;
};

}  // namespace

std::vector<Finding> prove_product(const BackwardHeader& h) { return Quotients(h).run(); }

}  // namespace outgrad::validation
