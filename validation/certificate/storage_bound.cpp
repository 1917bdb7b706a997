// Boundaries first, in parallel, then one pass over the codes of each branch. What its enclosures show is an
// upper bound; what refutes a claim is looked for afterwards, among the codes with the largest errors: x that
// are stored so, by their f'.
#include "validation/certificate/storage_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>

#include "validation/certificate/accuracy_class.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/found.h"
#include "validation/certificate/stored_argument.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

// How far a claim of T, O, R may be above what is seen: the fitter's enclosures of tails, where g is at a
// limit, are no narrower, and of O there is none.
constexpr std::array kEnclosureRoom{0x1p-12, 0x1p-20, 0x1p-12};
// And absolutely, times the lesser of 1 and four times the largest |f'|: where the sup is 0, the claim is
// what sums in double may be off by. R may also be above by this share of O, because the ends of the range
// that O comes from are enclosed, and R is read only beside O.
constexpr double kAbsoluteRoom = 0x1p-42, kRegretRoom = 0x1p-30;
// Codes among which x are looked for that refute a claim, or reach it.
constexpr size_t kMostSuspects = 24;

struct Layout {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
};

Layout layout_of(const std::string& stored) {
  const std::string format = carrier_of(stored);
  return format == "f16"    ? Layout{5, 10, true}
         : format == "bf16" ? Layout{8, 7, true}
         : format == "e5m2" ? Layout{5, 2, true}
                            : Layout{4, 3, false};
}

// The scales that a block of y may have are 2^first to 2^last: from E8M0's least, of blocks of zeros too, to
// that of blocks whose largest |y| is just below 2^12. At the next scale the numbers around the minimum of
// GELU are subnormal.
struct Scales {
  int first = 0, last = 0;
};
Scales scales_of(const std::string& format) { return format == "mxfp8" ? Scales{-127, 3} : Scales{}; }

// The distance of numbers of the format at magnitude |v|.
double ulp_at(const std::string& format, double v) {
  const Layout layout = layout_of(format);
  const int least = 2 - (1 << (layout.exponent_bits - 1));  // exponent of the least normal number
  return std::ldexp(1.0, (v == 0 ? least : std::max(std::ilogb(v), least)) - layout.mantissa_bits);
}

struct Stored {
  std::uint32_t code;
  double value;
};

// The numbers of a format in ascending order, -0 before +0, infinities included; `boundaries[i]` parts number
// i from number i + 1. Without infinities one stands for what lies beyond the largest number: a NaN, or what
// is in no block of this scale.
struct StoredNumbers {
  std::vector<Stored> numbers;
  std::vector<double> boundaries;

  // At the scale 2^exponent, of a block format; there the largest number stands for all below the next power
  // of two. In a parity format, what is stored on one side of the minimum.
  StoredNumbers(const std::string& format, int exponent, bool right) {
    const Layout layout = layout_of(format);
    const int bias = (1 << (layout.exponent_bits - 1)) - 1,
              width = layout.exponent_bits + layout.mantissa_bits;
    const std::uint32_t sign = 1u << width, hidden = 1u << layout.mantissa_bits;
    const std::uint32_t infinity = ((1u << layout.exponent_bits) - 1) << layout.mantissa_bits;
    // Without infinities the top exponent holds numbers too, all but the last pattern.
    const std::uint32_t count = layout.has_infinity ? infinity : sign - 1;
    const auto magnitude = [&](std::uint32_t k) {
      const std::uint32_t field = k >> layout.mantissa_bits, mantissa = k & (hidden - 1);
      return std::ldexp(static_cast<double>(field == 0 ? mantissa : mantissa | hidden),
                        std::max<int>(static_cast<int>(field), 1) - bias - layout.mantissa_bits + exponent);
    };
    const bool in_blocks = scales_of(format).first < scales_of(format).last;
    numbers.push_back({sign | infinity, -kInfinity});
    for (std::uint32_t k = count; k-- > 0;) numbers.push_back({sign | k, -magnitude(k)});
    for (std::uint32_t k = 0; k < count; ++k) numbers.push_back({k, magnitude(k)});
    numbers.push_back({infinity, kInfinity});
    // Midway to the number that would follow the largest.
    const double overflow = in_blocks
                                ? std::exp2(std::ilogb(magnitude(count - 1)) + 1)
                                : magnitude(count - 1) + (magnitude(count - 1) - magnitude(count - 2)) / 2;
    if (is_parity(format)) {
      keep_branch(right, sign, overflow);
      return;
    }
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const double a = numbers[i].value, b = numbers[i + 1].value;
      boundaries.push_back(std::isinf(a) ? -overflow : std::isinf(b) ? overflow : a + (b - a) / 2);
    }
  }

  // Below 0 the numbers alternate between the branches, and each parts its neighbours, which are the other's.
  // Left of the minimum f < 0, which the number next to 0 stands for to the last.
  void keep_branch(bool right, std::uint32_t sign, double overflow) {
    std::vector<Stored> kept;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Stored& y = numbers[i];
      const bool below_zero = y.code >= sign;
      if (right ? below_zero && y.code % 2 == 1 : !below_zero || y.code % 2 == 0) continue;
      if (!kept.empty()) {
        const Stored& before = kept.back();
        boundaries.push_back(before.code > sign    ? numbers[i - 1].value
                             : std::isinf(y.value) ? overflow
                                                   : before.value + (y.value - before.value) / 2);
      }
      kept.push_back(y);
    }
    numbers = std::move(kept);
  }
};

// The place where f reaches a boundary, and f' there.
struct Place {
  // Below all values of f, or y* itself; so near y* that it may be either side; in the tail of small values;
  // at an argument; in the tail of large values.
  enum Kind { Before, Unclear, LowTail, Inside, Tail } kind = Before;
  double x_low = 0, x_high = 0;
  double g_low = 0, g_high = 0;
};

// Where f reaches the boundaries of a format, on each of its stretches: a matter of the activation and the
// format alone.
class Preimages {
 public:
  Preimages(const std::string& activation, const std::string& function, const std::string& format, int scale,
            bool masked, double tail)
      : activation_(activation_of(activation, function, masked, tail)), masked_(masked) {
    const auto locate_on = [&](const Formula& formula, bool m) {
      StoredNumbers numbers(format, scale, m);
      std::vector<Place> places = locate_all(formula, m, numbers.boundaries);
      stretches_.push_back({formula, m, std::move(numbers), std::move(places)});
    };
    if (masked) {
      for (const bool m : {true, false}) locate_on(activation_.only(), m);
    } else {
      for (const Formula& formula : activation_.formulas()) locate_on(formula, true);
    }
  }

  /// Right of the minimum and left of it; without a mask one a formula.
  struct Stretch {
    const Formula& formula;
    bool m;
    StoredNumbers stored;
    std::vector<Place> places;
  };
  const Activation& activation() const { return activation_; }
  const std::vector<Stretch>& stretches() const { return stretches_; }

 private:
  std::vector<Place> locate_all(const Formula& formula, bool m, const std::vector<double>& b) const {
    std::vector<Place> places(b.size());
    constexpr size_t kRun = 64;
#pragma omp parallel for schedule(dynamic)
    for (size_t begin = 0; begin < b.size(); begin += kRun) {
      double near = std::numeric_limits<double>::quiet_NaN();
      for (size_t i = begin; i < std::min(begin + kRun, b.size()); ++i)
        places[i] = locate(formula, m, b[i], near);
    }
    return places;
  }

  // An approximate argument between two ends, f(low) < y < f(high).
  static double approximate(const Function& f, double low, double high, double y) {
    for (int step = 0; step < 40; ++step) {
      const double middle = low + (high - low) / 2;
      (f.approximate(middle)[0] < y ? low : high) = middle;
    }
    double x = low + (high - low) / 2;
    for (int step = 0; step < 3; ++step) {
      const auto d = f.approximate(x);
      const double next = x - (d[0] - y) / d[1];
      if (!std::isfinite(next) || std::fabs(next - x) > 4 * std::fabs(high - low) + 0x1p-40) break;
      x = next;
    }
    return x;
  }

  // The same where f's digits are lost in double: to 2^-6 of the 64 that a user's domain reaches, from where
  // `isolate` converges or says so.
  static double bisect(const Function& f, double low, double high, bool rises, double y) {
    for (int step = 0; step < 12; ++step) {
      const double middle = low + (high - low) / 2;
      (certainly_less(f.at<0>(Interval(middle))[0], Interval(y)) == rises ? low : high) = middle;
    }
    return low + (high - low) / 2;
  }

  // Where f = y near `guess`, which is improved; nothing where Number's digits do not tell.
  template <class Number>
  static std::optional<Place> isolate(const Function& f, bool m, double y, double& guess) {
    auto at_guess = f.at<1>(Number(guess));
    // Where f is small, double may have lost it (1 + tanh, log(1 + exp)): Newton's steps on log |f|, almost a
    // straight line there.
    for (int step = 0; step < 8 && y != 0 && std::fabs(y) < 0x1p-10; ++step) {
      // fewer digits of f than the end of these steps asks for
      if (!(at_guess[0].width() < 0x1p-50 * std::fabs(y))) return {};
      const double ratio = at_guess[0].middle() / y,
                   moved = std::log(ratio) * at_guess[0].middle() / at_guess[1].middle();
      if (!std::isfinite(moved) || std::fabs(moved) < 0x1p-47 * std::fabs(guess) ||
          std::fabs(ratio - 1) < 0x1p-50)
        break;
      guess -= moved;
      at_guess = f.at<1>(Number(guess));
    }
    const Number x(guess);
    double radius = 0x1p-46 * std::max(1.0, std::fabs(guess));
    for (int attempt = 0; attempt < 4; ++attempt, radius *= 64) {
      const Number around = x + symmetric(Number(radius));
      const auto d = f.at<2>(around);
      if (!(m ? d[1].positive() : d[1].negative())) break;
      const Number step = (Number(y) - at_guess[0]) / d[1];
      // Newton's image inside `around` holds the one zero of f - y there, and f' has the sign of this
      // stretch.
      if (!(step.magnitude() < radius)) continue;
      const Number g = at_guess[1] + d[2] * step, root = x + step;
      return Place{Place::Inside, root.lower(), root.upper(), g.lower(), g.upper()};
    }
    return {};
  }

  // y and y* are one number to all digits: if f reaches y, then between x* and the next place where f is
  // certainly above.
  Place beside_minimum(const Function& f, bool m, double y) const {
    const Interval& x_star = activation_.x_star();
    for (double radius = 0x1p-120; radius < 1; radius *= 4) {
      const Interval x = m ? (x_star + radius).keep_lower() : (x_star - radius).keep_upper();
      if (!certainly_less(Interval(y), f.at<0>(x)[0])) continue;
      const Interval around = hull(x_star, x), g = f.at<1>(around)[1];
      return {Place::Unclear, around.lower(), around.upper(), g.lower(), g.upper()};
    }
    return {Place::Unclear, -kInfinity, kInfinity, -kInfinity, kInfinity};
  }

  // Where f = y on the stretch of the formula right (m) or left of its minimum. `near` is where the last
  // boundary was that only Interval could tell, or NaN: the next lies beside it.
  Place locate(const Formula& formula, bool m, double y, double& near) const {
    const Function& f = formula.f;
    if (masked_ && !certainly_less(activation_.y_star(), Interval(y))) {
      if (certainly_less(Interval(y), activation_.y_star()) || activation_.y_star().identical(Interval(y)))
        return {};
      return beside_minimum(f, m, y);
    }
    const Interval& tail = m ? formula.high_values : formula.low_values;
    if (!(y < tail.lower()) || std::isinf(y)) return {Place::Tail, 0, 0, 0, 0};
    if (!masked_ && y <= formula.low_values.lower()) return {};
    if (!masked_ && !(y > formula.low_values.upper())) return {Place::LowTail, 0, 0, 0, 0};
    const double bottom = masked_ ? activation_.x_star().middle() : formula.far_low,
                 top = m ? formula.far_high : formula.far_low;
    double guess = approximate(f, bottom, top, y);
    if (const auto place = isolate<MediumInterval>(f, m, y, guess)) return *place;
    if (std::isnan(near)) near = bisect(f, std::min(bottom, top), std::max(bottom, top), m, y);
    if (const auto place = isolate<Interval>(f, m, y, near)) return *place;
    near = std::numeric_limits<double>::quiet_NaN();
    const Interval root =
        !masked_
            ? formula.inverse(y)
            : activation_.inverse_signed_root(sqrt(Interval(y) - activation_.y_star()) * (m ? 1.0 : -1.0));
    const Interval g = f.at<1>(root)[1];
    return {Place::Inside, root.lower(), root.upper(), g.lower(), g.upper()};
  }

  const Activation& activation_;
  bool masked_;
  std::vector<Stretch> stretches_;
};

// Made once for headers that follow each other: several fits of one activation, or one header damaged in many
// ways.
std::shared_ptr<const Preimages> preimages_of(const std::string& activation, const std::string& function,
                                              const std::string& format, int scale, bool masked,
                                              double tail) {
  static std::mutex mutex;
  static std::string last_key;
  static std::shared_ptr<const Preimages> last;
  const std::string key =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", activation, function, format, scale, masked, tail);
  const std::lock_guard lock(mutex);
  if (key != last_key) {
    last = std::make_shared<const Preimages>(activation, function, format, scale, masked, tail);
    last_key = key;
  }
  return last;
}

// A code, what it stands for, and its errors as far as the enclosures tell.
struct Suspect {
  std::shared_ptr<const Preimages> of;  // which owns the formula
  const Formula* formula;
  Stored y;
  bool m;
  Place low, high;
  double f_low, f_high;  // it is stored for the f(x) between them
  double g = 0, least = 0, most = 0;
  double seen = 0;  // the error that is looked at, from below
};

// What x that are stored as a code show of its errors; 0 where there is none.
struct Shown {
  double total = 0, oracle = 0, regret = 0;
  double middle = 0;  // at least that of the range in magnitude
  double x_least = 0, x_most = 0;  // where f' is least and greatest among those tried
  Interval slope_least, slope_most;
};

class Enumeration {
 public:
  // `entry_format`: of a direct table's entries.
  Enumeration(const auto& h, const std::string& entry_format,
              std::function<float(std::uint32_t, double, bool)> gradient)
      : class_(read_class(h.accuracy)), preimages_at_([&h](int scale) {
          return preimages_of(h.activation, h.function, h.format, scale, h.masked,
                              read_class(h.accuracy).kind == ClassKind::ulp ? kDeepTailSlope : kTailSlope);
        }),
        masked_(h.masked), format_(h.format), entry_format_(entry_format), gradient_(std::move(gradient)) {
    const StorageClaims& claims = h.storage;
    const std::array names{"T", "O", "R"};
    const std::array bounds{claims.total, claims.oracle, claims.regret};
    const std::array inputs{claims.found_total, claims.found_oracle, claims.found_regret};
    for (size_t k = 0; k < 3; ++k)
      figures_.push_back({.finding = {names[k], Verdict::Holds, bounds[k]}, .input = inputs[k]});
    if (class_.kind == ClassKind::ulp) figures_.push_back({.finding = {"ulp", Verdict::Holds, class_.bound}});
  }

  std::vector<StoredGradient> list() {
    preimages_ = preimages_at_(scales_of(format_).last);
    for (const Preimages::Stretch& stretch : preimages_->stretches()) judge_all(stretch);
    return std::move(list_);
  }

  std::vector<Finding> run() {
    const Scales scales = scales_of(format_);
    for (int scale = scales.first; scale <= scales.last; ++scale) {
      preimages_ = preimages_at_(scale);
      for (const Preimages::Stretch& stretch : preimages_->stretches()) judge_all(stretch);
    }
    std::vector<Finding> findings;
    for (size_t k = 0; k < figures_.size(); ++k) {
      conclude(k);
      findings.push_back(figures_[k].finding);
    }
    if (class_.kind == ClassKind::stored || class_.kind == ClassKind::oracle)
      findings.push_back(judge_class());
    return findings;
  }

 private:
  // T, O, R, or the class ulp.
  struct Figure {
    Finding finding;
    FoundInput input = {};  // for T, O, R
    Interval input_error = {};  // what it is there; 0 where no x is stored like this
    std::vector<Suspect> suspects = {};  // where it seems largest
    double seen = 0;  // what it certainly reaches,
    Shown shown = {};  // the x that show it,
    std::optional<Suspect> shown_at = {};  // and where
    std::pair<double, bool> at = {};  // where the upper bound is largest
  };

  void conclude(size_t k) {
    Figure& figure = figures_[k];
    Finding& finding = figure.finding;
    show(k);
    if (figure.seen > finding.claim) return refuted(k);
    if (!(finding.proven <= finding.claim)) {
      finding.verdict = Verdict::Undecided;
      finding.why = fmt::format(
          "not decided: at most {:.9g} at y = {:.9g}, m = {:d}; no x was found that shows more than {:.9g}",
          finding.proven, figure.at.first, figure.at.second, figure.seen);
      return;
    }
    // T, O and R are claimed as what they are, not as bounds: the class, and comparisons of fits, rest on
    // them.
    const double absolute_room =
        kAbsoluteRoom * std::min(1.0, 4 * largest_slope_) + (k == 2 ? kRegretRoom * figures_[1].seen : 0);
    if (k < kEnclosureRoom.size()) {
      const auto too_large = [&](double sup) {
        return finding.claim > sup * (1 + kEnclosureRoom[k]) + absolute_room;
      };
      if (too_large(figure.seen)) {
        finding.verdict = too_large(finding.proven) ? Verdict::Violated : Verdict::Undecided;
        finding.why = fmt::format("too large: {} is at most {:.9g}", finding.name, finding.proven);
        if (finding.verdict == Verdict::Violated) {
          finding.witness = Witness{figure.at.first, finding.proven, finding.claim};
        } else {
          finding.why += fmt::format(", and no x was found that shows more than {:.9g}", figure.seen);
        }
        return;
      }
    }
    if (figure.input.given && finding.claim > absolute_room) {
      const std::string where = found_place(figure.input, masked_);
      const FoundProblem problem =
          found_problem(finding.name, figure.input, where, figure.input_error, finding.claim);
      if (problem.verdict != Verdict::Holds) {
        finding.verdict = problem.verdict;
        finding.why = problem.why;
        return;
      }
    }
    finding.why = fmt::format("{} stored (y, m), largest at y = {:.9g}, m = {:d}", list_.size(),
                              figure.at.first, figure.at.second);
    if (overflows_) finding.why += fmt::format(", for f(x) that {} does not store as NaN", format_);
    if (preimages_->activation().limited()) finding.why += fmt::format(", for |x| <= {}", kExpressionEnd);
    if (scales_of(format_).first < scales_of(format_).last)
      finding.why += ", in blocks whose largest |y| is below 2^12";
  }

  // The largest error that an x shows.
  void show(size_t k) {
    Figure& figure = figures_[k];
    std::vector<Suspect>& suspects = figure.suspects;
    std::sort(suspects.begin(), suspects.end(),
              [](const Suspect& a, const Suspect& b) { return a.seen > b.seen; });
    for (const Suspect& suspect : suspects) {
      if (!(suspect.seen > figure.seen)) break;
      const Shown shown = shown_by(suspect);
      const double error = error_of(shown, k);
      const double seen =
          k < kEnclosureRoom.size() ? error : (Interval(error) / ulp_at(format_, shown.middle)).lower();
      if (seen > figure.seen) figure.seen = seen, figure.shown = shown, figure.shown_at = suspect;
    }
  }

  void refuted(size_t k) {
    Figure& figure = figures_[k];
    Finding& finding = figure.finding;
    const Shown& shown = figure.shown;
    const Suspect& at = *figure.shown_at;
    finding.verdict = Verdict::Violated;
    finding.witness = furthest_from_g(figure);
    finding.why = fmt::format("{} = {:.9g} at y = {:.9g}, m = {:d}, where g = {:.9g}", finding.name,
                              figure.seen, at.y.value, at.m, at.g);
    if (k == 0) {
      finding.why += fmt::format(" and f'({:.17g}) = {:.9g}", finding.witness->at, finding.witness->want);
    } else {
      finding.why += fmt::format(", f'({:.17g}) = {:.9g} and f'({:.17g}) = {:.9g}", shown.x_least,
                                 shown.slope_least.middle(), shown.x_most, shown.slope_most.middle());
    }
  }

  // The one of the two x that show the error which is further from g.
  static std::optional<Witness> furthest_from_g(const Figure& figure) {
    if (!figure.shown_at) return {};
    const Shown& shown = figure.shown;
    const double g = figure.shown_at->g;
    if (g - shown.slope_least.upper() > shown.slope_most.lower() - g)
      return Witness{shown.x_least, g, shown.slope_least.middle()};
    return Witness{shown.x_most, g, shown.slope_most.middle()};
  }

  // Tries the x next to the ends of what the code stands for, and next to the inflections between them.
  Shown shown_by(const Suspect& suspect) const {
    const auto& [of, formula, y, m, low, high, f_low, f_high, g, least, most, seen] = suspect;
    const StoredArguments arguments(of->activation(), *formula, masked_, m, f_low, f_high);
    Shown shown;
    bool any = false;
    const auto try_at = [&](double x) {
      const std::optional<Interval> slope = arguments.slope_at(x);
      if (!slope) return false;
      if (!any || slope->upper() < shown.slope_least.upper()) shown.slope_least = *slope, shown.x_least = x;
      if (!any || slope->lower() > shown.slope_most.lower()) shown.slope_most = *slope, shown.x_most = x;
      return any = true;
    };
    const bool rises = m || !masked_;
    // From an end inwards, the first that is inside. At 0 the steps begin with the least double.
    const auto try_from = [&](double end, bool to_the_right) {
      const double first = std::nextafter(std::fabs(end), kInfinity) - std::fabs(end),
                   growth = end == 0 ? 0x1p12 : 8;
      const int attempts = end == 0 ? 100 : 24;
      double step = 0;
      for (int attempt = 0; attempt < attempts; ++attempt, step = step == 0 ? first : growth * step) {
        if (try_at(end + (to_the_right ? step : -step))) return;
      }
    };
    for (const Place* place : {&low, &high}) {
      const bool inwards_right = (place == &low) == rises;
      switch (place->kind) {
        case Place::Inside: try_from(inwards_right ? place->x_high : place->x_low, inwards_right); break;
        case Place::Tail:
        case Place::LowTail: {
          const bool right = rises && place->kind == Place::Tail;
          try_from(right ? formula->far_high : formula->far_low, !right);
          try_at(right ? kExpressionEnd : -kExpressionEnd);
          break;
        }
        case Place::Before:
        case Place::Unclear:
          if (masked_) {
            const Interval& x_star = of->activation().x_star();
            try_from(m ? x_star.upper() : x_star.lower(), m);
          } else {
            try_from(formula->far_low, true);
            try_at(-kExpressionEnd);
          }
      }
    }
    for (const Formula::Part& part : formula->parts) {
      if (part.bend == 0) try_at(part.low + (part.high - part.low) / 2);
    }
    if (!any) {
      if (const auto x = arguments.find()) try_at(*x);
    }
    if (!any) return {};
    const auto below = [](const Interval& v) { return std::max(v.lower(), 0.0); };
    shown.total = below(maximum(Interval(g) - shown.slope_least, shown.slope_most - g));
    shown.oracle = below((shown.slope_most - shown.slope_least) * 0.5);
    // The middle of the range is at most that of the least f' seen and the greatest there may be.
    const Interval middle_most = (shown.slope_least + most) * 0.5,
                   middle_least = (shown.slope_most + least) * 0.5;
    shown.regret = below(maximum(Interval(g) - middle_most, middle_least - g));
    shown.middle = hull(middle_least, middle_most).magnitude();
    return shown;
  }

  // T of the class against the least O that is shown, not against the header's.
  Finding judge_class() const {
    const Figure &total = figures_[0], &oracle = figures_[1];
    const double room = class_.kind == ClassKind::oracle ? ulp_at(entry_format_, largest_) / 2 : 0,
                 ratio = class_.kind == ClassKind::oracle ? 1 : class_.bound;
    const auto allowed = [&](double least, double outward) {
      return std::nextafter(std::nextafter(ratio * least, outward) + room, outward);
    };
    Finding finding{"class", Verdict::Holds, allowed(oracle.seen, 0), total.finding.claim};
    if (total.seen > allowed(oracle.finding.proven, kInfinity)) {
      finding.verdict = Verdict::Violated;
      finding.witness = furthest_from_g(total);
    } else if (!(total.finding.claim <= finding.claim)) {
      finding.verdict = Verdict::Undecided;
    }
    finding.why = oracle.seen > 0 ? fmt::format("T / O is at most {:.6g}, by the O that x show",
                                                total.finding.claim / oracle.seen)
                                  : "no x shows an O above 0";
    return finding;
  }

  void judge_all(const Preimages::Stretch& stretch) {
    const auto& [formula, m, stored, places] = stretch;
    const auto& [numbers, boundaries] = stored;
    const Activation& activation = preimages_->activation();
    // ELU's second formula begins at y = +0; its first ends there.
    const bool ends_at_zero = formula.high == 0,
               above_zero = !masked_ && &formula != &activation.formulas().front();
    const Interval& tail = m ? formula.high_values : formula.low_values;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Stored& y = numbers[i];
      const double lower_end = i == 0 ? -kInfinity : boundaries[i - 1],
                   upper_end = i < boundaries.size() ? boundaries[i] : kInfinity;
      const Place low = i == 0 ? Place{} : places[i - 1],
                  high = i < boundaries.size() ? places[i] : Place{Place::Tail, 0, 0, 0, 0};
      // f does not come down to y.
      if (high.kind == Place::Before && !(masked_ && m && at_minimum_alone(y, upper_end))) continue;
      // f keeps below its supremum, and m = 0 below the limit on the left.
      if (!(lower_end < tail.upper())) continue;
      // ELU's first formula has the negative numbers and -0, its second the others: f(x) < 0 for x < 0.
      const bool negative = y.code != 0 && !(y.value > 0);
      if ((ends_at_zero && !negative) || (above_zero && negative)) continue;
      if (std::isinf(y.value) && !layout_of(format_).has_infinity) {
        overflows_ = overflows_ || scales_of(format_).first == scales_of(format_).last;
        continue;  // a NaN; or in no block of this scale
      }
      judge({preimages_, &formula, y, m, low, high, lower_end, upper_end});
    }
  }

  // Whether y* is the upper boundary and goes to y, for which x* alone is then stored: to nearest even, and
  // in a parity format upwards.
  bool at_minimum_alone(const Stored& y, double upper_end) const {
    const bool goes_down = !is_parity(format_) && y.code % 2 == 0 && !(y.value == 0 && std::signbit(y.value));
    return goes_down && preimages_->activation().y_star().identical(Interval(upper_end));
  }

  // Enclosures of f' over what the code stands for: the outer and the inner ends of its range.
  struct Range {
    double least = kInfinity, most = -kInfinity, least_up = kInfinity, most_down = -kInfinity;

    void join(double g_low, double g_high) {
      least = std::min(least, g_low), most = std::max(most, g_high);
      least_up = std::min(least_up, g_high), most_down = std::max(most_down, g_low);
    }
    void join(const Interval& g) { join(g.lower(), g.upper()); }
  };

  Range range_of(const Suspect& here) const {
    const Formula& formula = *here.formula;
    Range range;
    double x_low = kInfinity, x_high = -kInfinity;
    for (const Place* place : {&here.low, &here.high}) {
      if (place->kind == Place::Inside || place->kind == Place::Unclear) {
        range.join(place->g_low, place->g_high);
        x_low = std::min(x_low, place->x_low), x_high = std::max(x_high, place->x_high);
      } else if (place->kind == Place::Tail) {
        range.join(here.m ? formula.high_slopes : formula.low_slopes);
        if (here.m) x_high = std::max(x_high, formula.far_high);
        if (!here.m) x_low = std::min(x_low, formula.far_low);
      } else if (masked_) {
        range.join(0, 0);  // f'(x*)
        const Interval& x_star = preimages_->activation().x_star();
        x_low = std::min(x_low, x_star.lower()), x_high = std::max(x_high, x_star.upper());
      } else {
        range.join(formula.low_slopes);
        x_low = std::min(x_low, formula.far_low);
      }
    }
    for (const Formula::Part& part : formula.parts) {
      if (part.bend == 0 && part.low <= x_high && x_low <= part.high) range.join(part.slopes);
    }
    return range;
  }

  void judge(Suspect here) {
    const auto& [least, most, least_up, most_down] = range_of(here);
    const double g = gradient_(here.y.code, here.y.value, here.m);
    const auto up = [](double v) { return std::nextafter(v, kInfinity); };
    const auto down = [](double v) { return std::max(std::nextafter(v, -kInfinity), 0.0); };
    const double total = up(std::max(g - least, most - g)),
                 total_seen = down(std::max(g - least_up, most_down - g));
    const double oracle = up(most - least) / 2, oracle_seen = down(most_down - least_up) / 2;
    // lo in [least, least_up], hi in [most_down, most].
    const Interval middle =
        (Interval(least, std::max(least, least_up)) + Interval(std::min(most_down, most), most)) * 0.5;
    const Interval regret_range = Interval(g) - middle;
    here.g = g, here.least = least, here.most = most;
    list_.push_back({here.y.value, here.m, g, least, most});
    enter(0, total, total_seen, here);
    enter(1, oracle, oracle_seen, here);
    enter(2, regret_range.magnitude(), regret_range.mignitude(), here);
    // (y = -0, m = 0) is g = 0 by the kernels' contract.
    if (class_.kind == ClassKind::ulp &&
        !(here.y.value == 0 && std::signbit(here.y.value) && masked_ && !here.m)) {
      enter(3, regret_range.magnitude() / ulp_at(format_, middle.mignitude()),
            regret_range.mignitude() / ulp_at(format_, middle.magnitude()), here);
    }
    largest_ = std::max(largest_, std::fabs(g)), largest_slope_ = std::max({largest_slope_, -least, most});
  }

  // `seen` is certain if some x is stored so, which the boundaries tell where f reaches one of them.
  void enter(size_t k, double proven, double seen, const Suspect& here) {
    Figure& figure = figures_[k];
    Finding& finding = figure.finding;
    if (!(proven <= finding.proven))
      finding.proven = std::isnan(proven) ? kInfinity : proven, figure.at = {here.y.value, here.m};
    std::vector<Suspect>& suspects = figure.suspects;
    if (suspects.size() < kMostSuspects || seen > suspects.front().seen) {
      // so that the least is in front
      const auto is_larger = [](const Suspect& a, const Suspect& b) { return a.seen > b.seen; };
      suspects.push_back(here);
      suspects.back().seen = seen;
      std::push_heap(suspects.begin(), suspects.end(), is_larger);
      if (suspects.size() > kMostSuspects)
        std::pop_heap(suspects.begin(), suspects.end(), is_larger), suspects.pop_back();
    }
    // Blocks of other scales have the same y, and it stands for other x there: the largest error is the one
    // stated.
    const FoundInput& input = figure.input;
    if (input.given && input.at == here.y.value && std::signbit(input.at) == std::signbit(here.y.value) &&
        (!masked_ || input.m == here.m)) {
      const bool certain = here.low.kind == Place::Inside || here.high.kind == Place::Inside;
      figure.input_error = maximum(
          figure.input_error, Interval(certain ? seen : std::min(seen, error_of(shown_by(here), k)), proven));
    }
  }

  static double error_of(const Shown& shown, size_t k) {
    return k == 0 ? shown.total : k == 1 ? shown.oracle : shown.regret;
  }

  AccuracyClass class_;
  std::function<std::shared_ptr<const Preimages>(int scale)> preimages_at_;
  std::shared_ptr<const Preimages> preimages_;
  bool masked_;
  std::string format_, entry_format_;
  std::function<float(std::uint32_t, double, bool)> gradient_;
  std::vector<Figure> figures_;
  double largest_ = 0, largest_slope_ = 0;  // |g| and |f'|
  std::vector<StoredGradient> list_;
  bool overflows_ = false;  // whether some f(x) is stored as a NaN
};

Enumeration enumeration_of(const BackwardHeader& h) {
  return {h, "",
          [&h](std::uint32_t, double y, bool m) { return deployed_gradient(h, static_cast<float>(y), m); }};
}
Enumeration enumeration_of(const TableHeader& h) {
  return {h, h.entry_format, [&h](std::uint32_t code, double, bool m) { return deployed_entry(h, code, m); }};
}

}  // namespace

std::vector<Finding> prove_storage(const BackwardHeader& h) { return enumeration_of(h).run(); }
std::vector<Finding> prove_storage(const TableHeader& h) { return enumeration_of(h).run(); }

std::vector<StoredGradient> stored_gradients(const BackwardHeader& h) {
  return h.format == "f32" ? std::vector<StoredGradient>{} : enumeration_of(h).list();
}
std::vector<StoredGradient> stored_gradients(const TableHeader& h) { return enumeration_of(h).list(); }

}  // namespace outgrad::validation
