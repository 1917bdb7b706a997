// Boundaries first, in parallel, then one pass over the codes of each branch.
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
#include <vector>

#include "validation/certificate/accuracy_class.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/found.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

// How far a claim of T, O, R may be above what is seen: the fitter's enclosures of tails, where g is at a limit, are no narrower, and of O there is none.
constexpr std::array kEnclosureRoom{0x1p-12, 0x1p-20, 0x1p-12};
// Below it no claim of a sup says anything.
constexpr double kLeastClaim = 0x1p-60;

struct Layout {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
};

Layout layout_of(const std::string& stored) {
  const std::string format = carrier_of(stored);
  return format == "f16" ? Layout{5, 10, true} : format == "bf16" ? Layout{8, 7, true} : format == "e5m2" ? Layout{5, 2, true} : Layout{4, 3, false};
}

// The scales that a block of y may have are 2^first to 2^last: from E8M0's least, of blocks of zeros too, to that of blocks whose largest
// |y| is just below 2^12. At the next scale the numbers around the minimum of GELU are subnormal.
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

// The numbers of a format in ascending order, -0 before +0, infinities included; `boundaries[i]` parts number i from number i + 1.
struct StoredNumbers {
  std::vector<Stored> numbers;
  std::vector<double> boundaries;
  double end = kInfinity;  // what lies beyond is stored as a NaN

  // At the scale 2^exponent, of a block format; there the largest number stands for all below the next power of two. In a parity format,
  // what is stored on one side of the minimum.
  StoredNumbers(const std::string& format, int exponent, bool right) {
    const Layout layout = layout_of(format);
    const int bias = (1 << (layout.exponent_bits - 1)) - 1, width = layout.exponent_bits + layout.mantissa_bits;
    const std::uint32_t sign = 1u << width, hidden = 1u << layout.mantissa_bits;
    const std::uint32_t infinity = ((1u << layout.exponent_bits) - 1) << layout.mantissa_bits;
    // Without infinities the top exponent holds numbers too, all but the last pattern.
    const std::uint32_t count = layout.has_infinity ? infinity : sign - 1;
    const auto magnitude = [&](std::uint32_t k) {
      const std::uint32_t field = k >> layout.mantissa_bits, mantissa = k & (hidden - 1);
      return std::ldexp(static_cast<double>(field == 0 ? mantissa : mantissa | hidden),
                        std::max<int>(static_cast<int>(field), 1) - bias - layout.mantissa_bits + exponent);
    };
    // What lies beyond the largest number is in no block of this scale: an infinity stands for it, and for nothing else.
    const bool in_blocks = scales_of(format).first < scales_of(format).last, ends = layout.has_infinity || in_blocks;
    if (ends) numbers.push_back({sign | infinity, -kInfinity});
    for (std::uint32_t k = count; k-- > 0;) numbers.push_back({sign | k, -magnitude(k)});
    for (std::uint32_t k = 0; k < count; ++k) numbers.push_back({k, magnitude(k)});
    if (ends) numbers.push_back({infinity, kInfinity});
    // Midway to the number that would follow the largest.
    const double overflow =
        in_blocks ? std::exp2(std::ilogb(magnitude(count - 1)) + 1) : magnitude(count - 1) + (magnitude(count - 1) - magnitude(count - 2)) / 2;
    if (!ends) end = overflow;
    if (is_parity(format)) {
      keep_branch(right, sign, overflow);
      return;
    }
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const double a = numbers[i].value, b = numbers[i + 1].value;
      boundaries.push_back(std::isinf(a) ? -overflow : std::isinf(b) ? overflow : a + (b - a) / 2);
    }
  }

  // Below 0 the numbers alternate between the branches, and each parts its neighbours, which are the other's. Left of the minimum f < 0, which
  // the number next to 0 stands for to the last.
  void keep_branch(bool right, std::uint32_t sign, double overflow) {
    std::vector<Stored> kept;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Stored& y = numbers[i];
      const bool below_zero = y.code >= sign;
      if (right ? below_zero && y.code % 2 == 1 : !below_zero || y.code % 2 == 0) continue;
      if (!kept.empty()) {
        const Stored& before = kept.back();
        boundaries.push_back(before.code > sign ? numbers[i - 1].value : std::isinf(y.value) ? overflow : before.value + (y.value - before.value) / 2);
      }
      kept.push_back(y);
    }
    numbers = std::move(kept);
  }
};

// The place where f reaches a boundary, and f' there.
struct Place {
  // Below all values of f; in the tail of small values; at an argument; in the tail of large values.
  enum Kind { Before, LowTail, Inside, Tail } kind = Before;
  double x_low = 0, x_high = 0;
  double g_low = 0, g_high = 0;
};

// Where f reaches the boundaries of a format, on each of its stretches: a matter of the activation and the format alone.
class Preimages {
 public:
  Preimages(const std::string& activation, const std::string& function, const std::string& format, int scale, bool masked, double tail)
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
      for (size_t i = begin; i < std::min(begin + kRun, b.size()); ++i) places[i] = locate(formula, m, b[i], near);
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

  // The same where f's digits are lost in double: to 2^-6 of the 64 that a user's domain reaches, from where `isolate` converges or says so.
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
    // Where f is small, double may have lost it (1 + tanh, log(1 + exp)): Newton's steps on log |f|, almost a straight line there.
    for (int step = 0; step < 8 && std::fabs(y) < 0x1p-10; ++step) {
      if (!(at_guess[0].width() < 0x1p-50 * std::fabs(y))) return {};  // fewer digits of f than the end of these steps asks for
      const double ratio = at_guess[0].middle() / y, moved = std::log(ratio) * at_guess[0].middle() / at_guess[1].middle();
      if (!std::isfinite(moved) || std::fabs(moved) < 0x1p-47 * std::fabs(guess) || std::fabs(ratio - 1) < 0x1p-50) break;
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
      // Newton's image inside `around` holds the one zero of f - y there, and f' has the sign of this stretch.
      if (!(step.magnitude() < radius)) continue;
      const Number g = at_guess[1] + d[2] * step, root = x + step;
      return Place{Place::Inside, root.lower(), root.upper(), g.lower(), g.upper()};
    }
    return {};
  }

  // Where f = y on the stretch of the formula right (m) or left of its minimum. `near` is where the last boundary was that only Interval could
  // tell, or NaN: the next lies beside it.
  Place locate(const Formula& formula, bool m, double y, double& near) const {
    const Function& f = formula.f;
    if (masked_ && certainly_less(Interval(y), activation_.y_star())) return {};
    const Interval& tail = m ? formula.high_values : formula.low_values;
    if (!(y < tail.lower()) || std::isinf(y)) return {Place::Tail, 0, 0, 0, 0};
    if (!masked_ && y <= formula.low_values.lower()) return {};
    if (!masked_ && !(y > formula.low_values.upper())) return {Place::LowTail, 0, 0, 0, 0};
    const double bottom = masked_ ? activation_.x_star().middle() : formula.far_low, top = m ? formula.far_high : formula.far_low;
    double guess = approximate(f, bottom, top, y);
    if (const auto place = isolate<MediumInterval>(f, m, y, guess)) return *place;
    if (std::isnan(near)) near = bisect(f, std::min(bottom, top), std::max(bottom, top), m, y);
    if (const auto place = isolate<Interval>(f, m, y, near)) return *place;
    near = std::numeric_limits<double>::quiet_NaN();
    const Interval root = !masked_ ? formula.inverse(y) : activation_.inverse_signed_root(sqrt(Interval(y) - activation_.y_star()) * (m ? 1.0 : -1.0));
    const Interval g = f.at<1>(root)[1];
    return {Place::Inside, root.lower(), root.upper(), g.lower(), g.upper()};
  }

  const Activation& activation_;
  bool masked_;
  std::vector<Stretch> stretches_;
};

// Made once for headers that follow each other: several fits of one activation, or one header damaged in many ways.
std::shared_ptr<const Preimages> preimages_of(const std::string& activation, const std::string& function, const std::string& format, int scale, bool masked,
                                              double tail) {
  static std::mutex mutex;
  static std::string last_key;
  static std::shared_ptr<const Preimages> last;
  const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", activation, function, format, scale, masked, tail);
  const std::lock_guard lock(mutex);
  if (key != last_key) {
    last = std::make_shared<const Preimages>(activation, function, format, scale, masked, tail);
    last_key = key;
  }
  return last;
}

class Enumeration {
 public:
  Enumeration(const HeaderNames& h, const std::string& format, bool masked, const std::string& accuracy, const StorageClaims& claims,
              const std::string& entry_format, std::function<float(std::uint32_t, double, bool)> gradient)
      : class_(read_class(accuracy)), preimages_at_([=](int scale) {
          return preimages_of(h.activation, h.function, format, scale, masked, read_class(accuracy).kind == ClassKind::ulp ? kDeepTailSlope : kTailSlope);
        }),
        masked_(masked), format_(format), entry_format_(entry_format), gradient_(std::move(gradient)) {
    const std::array names{"T", "O", "R"};
    const std::array bounds{claims.total, claims.oracle, claims.regret};
    for (size_t k = 0; k < 3; ++k) findings_.push_back({names[k], Verdict::Holds, bounds[k], 0, "", {}});
    if (class_.kind == ClassKind::ulp) findings_.push_back({"ulp", Verdict::Holds, class_.bound, 0, "", {}});
    seen_.resize(findings_.size()), at_.resize(findings_.size());
    found_ = {claims.found_total, claims.found_oracle, claims.found_regret};
  }

  std::vector<Finding> run() {
    const Scales scales = scales_of(format_);
    for (int scale = scales.first; scale <= scales.last; ++scale) {
      preimages_ = preimages_at_(scale);
      for (const Preimages::Stretch& stretch : preimages_->stretches()) judge_all(stretch);
    }
    for (size_t k = 0; k < findings_.size(); ++k) conclude(k);
    if (class_.kind == ClassKind::stored || class_.kind == ClassKind::oracle) findings_.push_back(judge_class());
    return std::move(findings_);
  }

 private:
  void conclude(size_t k) {
    Finding& finding = findings_[k];
    if (finding.verdict == Verdict::Holds && !(finding.proven <= finding.claim)) {
      finding.verdict = Verdict::Undecided;
      finding.why = "not decided";
    }
    if (finding.verdict != Verdict::Holds) return;
    // T, O and R are claimed as what they are, not as bounds: the class, and comparisons of fits, rest on them.
    if (k < kEnclosureRoom.size() && finding.claim > seen_[k] * (1 + kEnclosureRoom[k]) + kLeastClaim) {
      finding.verdict = Verdict::Violated;
      finding.why = fmt::format("too large: {} is at most {:.9g}", finding.name, finding.proven);
      finding.witness = Witness{at_[k].first, finding.proven, finding.claim};
      return;
    }
    if (k < found_.size() && found_[k].given) {
      const std::string where = found_place(found_[k], masked_);
      const std::string problem = found_problem(finding.name, found_[k], where, found_errors_[k], finding.claim);
      if (!problem.empty()) {
        finding.verdict = Verdict::Violated;
        finding.why = problem;
        return;
      }
    }
    finding.why = fmt::format("{} stored (y, m), largest at y = {:.9g}, m = {:d}", pairs_, at_[k].first, at_[k].second);
    if (preimages_->activation().limited()) finding.why += fmt::format(", for |x| <= {}", kExpressionEnd);
  }

  // T of the class against the least O that is proven, not against the header's.
  Finding judge_class() const {
    const Finding& total = findings_[0];
    const double room = class_.kind == ClassKind::oracle ? ulp_at(entry_format_, largest_) / 2 : 0, ratio = class_.kind == ClassKind::oracle ? 1 : class_.bound;
    const auto allowed = [&](double oracle, double outward) { return std::nextafter(std::nextafter(ratio * oracle, outward) + room, outward); };
    Finding finding{"class", Verdict::Holds, allowed(seen_[1], 0), total.claim, "", {}};
    if (seen_[0] > allowed(findings_[1].proven, kInfinity)) {
      finding.verdict = Verdict::Violated;
    } else if (!(total.claim <= finding.claim)) {
      finding.verdict = Verdict::Undecided;
    }
    finding.why = fmt::format("T / O is {:.6g}, by the least O that is proven", total.claim / seen_[1]);
    return finding;
  }

  void judge_all(const Preimages::Stretch& stretch) {
    const auto& [formula, m, stored, places] = stretch;
    const auto& [numbers, boundaries, end] = stored;
    const Activation& activation = preimages_->activation();
    const Place before = masked_ ? Place{Place::Before, activation.x_star().lower(), activation.x_star().upper(), 0, 0} : Place{};
    // ELU's second formula begins at y = +0; its first ends there.
    const bool ends_at_zero = formula.high == 0, above_zero = !masked_ && &formula != &activation.formulas().front();
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Stored& y = numbers[i];
      const double lower_end = i == 0 ? -kInfinity : boundaries[i - 1];
      const Place low = i == 0 ? before : places[i - 1], high = i < boundaries.size() ? places[i] : Place{Place::Tail, 0, 0, 0, 0};
      if (high.kind == Place::Before) continue;  // f does not come down to y
      if (std::isinf(y.value) && scales_of(format_).first != 0) continue;  // in no block of this scale
      // f keeps below its supremum, and m = 0 below the limit on the left.
      const Interval& tail = m ? formula.high_values : formula.low_values;
      if (!(lower_end < tail.upper())) continue;
      // ELU's first formula has the negative numbers and -0, its second the others: f(x) < 0 for x < 0.
      const bool negative = y.code != 0 && !(y.value > 0);
      if ((ends_at_zero && !negative) || (above_zero && negative)) continue;
      judge(formula, m, y, low, high);
    }
  }

  void judge(const Formula& formula, bool m, const Stored& y, const Place& low, const Place& high) {
    double least = kInfinity, most = -kInfinity, least_up = kInfinity, most_down = -kInfinity;  // outer and inner ends of the range
    double x_low = kInfinity, x_high = -kInfinity;
    const auto join = [&](double g_low, double g_high) {
      least = std::min(least, g_low), most = std::max(most, g_high);
      least_up = std::min(least_up, g_high), most_down = std::max(most_down, g_low);
    };
    const auto join_interval = [&](const Interval& g) { join(g.lower(), g.upper()); };
    for (const Place* place : {&low, &high}) {
      if (place->kind == Place::Inside) {
        join(place->g_low, place->g_high);
        x_low = std::min(x_low, place->x_low), x_high = std::max(x_high, place->x_high);
      } else if (place->kind == Place::Tail) {
        join_interval(m ? formula.high_slopes : formula.low_slopes);
        if (m) x_high = std::max(x_high, formula.far_high);
        if (!m) x_low = std::min(x_low, formula.far_low);
      } else if (masked_) {
        join(0, 0);  // f'(x*)
        const Interval& x_star = preimages_->activation().x_star();
        x_low = std::min(x_low, x_star.lower()), x_high = std::max(x_high, x_star.upper());
      } else {
        join_interval(formula.low_slopes);
        x_low = std::min(x_low, formula.far_low);
      }
    }
    for (const Formula::Part& part : formula.parts) {
      if (part.bend == 0 && part.low <= x_high && x_low <= part.high) join_interval(part.slopes);
    }
    ++pairs_;
    const double g = gradient_(y.code, y.value, m);
    const auto up = [](double v) { return std::nextafter(v, kInfinity); };
    const auto down = [](double v) { return std::max(std::nextafter(v, -kInfinity), 0.0); };
    const double total = up(std::max(g - least, most - g)), total_seen = down(std::max(g - least_up, most_down - g));
    const double oracle = up(most - least) / 2, oracle_seen = down(most_down - least_up) / 2;
    // lo in [least, least_up], hi in [most_down, most].
    const Interval middle = (Interval(least, std::max(least, least_up)) + Interval(std::min(most_down, most), most)) * 0.5;
    const Interval regret_range = Interval(g) - middle;
    enter(0, total, total_seen, y, m, g, least, most);
    enter(1, oracle, oracle_seen, y, m, g, least, most);
    enter(2, regret_range.magnitude(), regret_range.mignitude(), y, m, g, least, most);
    // (y = -0, m = 0) is g = 0 by the kernels' contract.
    if (class_.kind == ClassKind::ulp && !(y.value == 0 && std::signbit(y.value) && masked_ && !m)) {
      enter(3, regret_range.magnitude() / ulp_at(format_, middle.mignitude()), regret_range.mignitude() / ulp_at(format_, middle.magnitude()), y, m, g, least,
            most);
    }
    largest_ = std::max(largest_, std::fabs(g));
  }

  void enter(size_t k, double proven, double seen, const Stored& y, bool m, double g, double least, double most) {
    Finding& finding = findings_[k];
    if (!(proven <= finding.proven)) finding.proven = std::isnan(proven) ? kInfinity : proven, at_[k] = {y.value, m};
    if (seen > seen_[k]) seen_[k] = seen;
    // Blocks of other scales have the same y, and it stands for other x there: the largest error is the one stated.
    if (k < found_.size() && found_[k].at == y.value && std::signbit(found_[k].at) == std::signbit(y.value) && (!masked_ || found_[k].m == m)) {
      found_errors_[k] = maximum(found_errors_[k], Interval(seen, proven));
    }
    if (seen > finding.claim && finding.verdict != Verdict::Violated) {
      finding.verdict = Verdict::Violated;
      finding.witness = Witness{y.value, g, least + (most - least) / 2};
      finding.why =
          fmt::format("{} = {:.9g} at y = {:.9g}, m = {:d}, where f' takes [{:.9g}, {:.9g}] and g = {:.9g}", finding.name, seen, y.value, m, least, most, g);
    }
  }

  AccuracyClass class_;
  std::function<std::shared_ptr<const Preimages>(int scale)> preimages_at_;
  std::shared_ptr<const Preimages> preimages_;
  bool masked_;
  std::string format_, entry_format_;
  std::function<float(std::uint32_t, double, bool)> gradient_;
  std::vector<Finding> findings_;               // T, O, R, and the class ulp
  std::vector<double> seen_;                    // what each certainly reaches
  std::vector<std::pair<double, bool>> at_;     // where it is largest
  std::array<FoundInput, 3> found_;             // for T, O, R
  std::array<Interval, 3> found_errors_;        // what they are there; 0 where no x is stored like this
  double largest_ = 0;                          // |g|
  long pairs_ = 0;
};

}  // namespace

std::vector<Finding> prove_storage(const BackwardHeader& h) {
  return Enumeration(h, h.format, h.masked, h.accuracy, h.storage, "",
                     [&h](std::uint32_t, double y, bool m) { return deployed_gradient(h, static_cast<float>(y), m); })
      .run();
}

std::vector<Finding> prove_storage(const TableHeader& h) {
  return Enumeration(h, h.format, h.masked, h.accuracy, h.storage, h.entry_format,
                     [&h](std::uint32_t code, double, bool m) { return deployed_entry(h, code, m); })
      .run();
}

}  // namespace outgrad::validation
