// Structure of headers, and the order and presentation of their proofs.
#include "validation/certificate/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/formats.h"
#include "kernels/support/bounds.h"
#include "kernels/support/progress.h"
#include "validation/certificate/accuracy_class.h"
#include "validation/certificate/code_bound.h"
#include "validation/certificate/coordinate_bound.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/fit_bound.h"
#include "validation/certificate/found.h"
#include "validation/certificate/fp8_bound.h"
#include "validation/certificate/product_bound.h"
#include "validation/certificate/rounded_bound.h"
#include "validation/certificate/rounding_bound.h"
#include "validation/certificate/storage_bound.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
// where an fp32 ulp is 1, so that the low bits count cells
constexpr float kIndexLow = 0x1p23f, kIndexHigh = 0x1p24f;

// Collects the conditions that fail, and those that the enclosures leave open.
class Conditions {
 public:
  void require(bool holds, const std::string& what) {
    if (!holds) add(failed_, what);
  }
  // |off| <= bound, where `off` is only enclosed.
  void require_within(const Interval& off, double bound, const std::string& what) {
    if (!(off.magnitude() <= bound)) add(off.mignitude() > bound ? failed_ : open_, what);
  }
  void require_provable(const Activation& activation) {
    if (!activation.problem().empty())
      add(activation.problem_is_certain() ? failed_ : open_, activation.problem());
  }
  Finding finding() const {
    if (!failed_.empty()) return {"structure", Verdict::Violated, 0, 0, failed_};
    if (!open_.empty()) return {"structure", Verdict::Undecided, 0, 0, open_};
    return {"structure", Verdict::Holds, 0, 0, "constants, index arithmetic and limits"};
  }

 private:
  static void add(std::string& to, const std::string& what) { to += (to.empty() ? "" : "; ") + what; }

  std::string failed_, open_;
};

bool same_bits(float a, float b) { return kernels::bits_of(a) == kernels::bits_of(b); }

// The low bits of fma(v, scale, bias) number the rows, for v from low to high.
struct RowNumbers {
  float low, high, scale, bias;
  int rows;
};

void require_index(Conditions& conditions, const RowNumbers& of, const char* what) {
  const float first = cell_index(of.low, of.scale, of.bias), last = cell_index(of.high, of.scale, of.bias);
  conditions.require(of.scale > 0 && first >= kIndexLow && last < kIndexHigh,
                     fmt::format("the {} index leaves [2^23, 2^24)", what));
  // More cells than rows would reach a row from two places: the low bits wrap.
  conditions.require(!(last - first >= static_cast<float>(of.rows)),
                     fmt::format("the {} index spans more than {} cells", what, of.rows));
}

int low_bits_of(const RoundedForwardHeader& h, float x) {
  return static_cast<int>(cell_index(x, h.index_scale, h.index_bias) - kIndexLow) % h.rows;
}

// That p is 1, plain: v, from kXMax on, as the text says; kA, which is about every x from kXMin on, rests on
// it.
void require_end(Conditions& conditions, const RoundedForwardHeader& h) {
  const std::array<float, 5> c = coefficients_of(h, low_bits_of(h, h.x_max));
  const double centre = (static_cast<double>(cell_index(h.x_max, h.index_scale, h.index_bias)) -
                         static_cast<double>(h.index_bias)) /
                        static_cast<double>(h.index_scale);
  if (h.plain) {
    const bool is_u = c[1] == 1 && c[2] == 0 && c[3] == 0 && c[4] == 0;
    return conditions.require(is_u && static_cast<double>(c[0]) == centre, "p is not v from kXMax on");
  }
  const Interval u = Interval(h.x_max) - centre;
  Interval p = static_cast<double>(c[4]);
  for (size_t k = 4; k-- > 0;) p = p * u + static_cast<double>(c[k]);
  conditions.require(p.identical(Interval(1)), "p is not 1 from kXMax on");
}

// fma, add and mul from y to g.
int operations(const BackwardHeader& h) {
  const int differences = !h.masked ? 0 : h.y_lo == 0 ? 1 : 2;  // y - y_hi, - y_lo
  // Horner: a step for each coefficient but the last
  int polynomial = h.degree;
  if (h.scheme == kEstrin) {
    // Joining degree + 1 coefficients takes degree steps in any order; before each level after the first a
    // power is squared.
    for (int parts = h.degree / 2 + 1; parts > 1; parts = (parts + 1) / 2) ++polynomial;
  } else if (h.scheme == kEvenOdd && h.degree >= 2) {
    polynomial = 1 + (h.degree - 1) + 1;  // the square, the steps of both chains, joining them
  }
  return differences + (h.has_breaks ? 0 : 1) + (h.centred ? 1 : 0) + polynomial + (h.two_word ? 1 : 0);
}

// Integer operations of a direct table's index: sign and magnitude 2, clamp 2, a sum, and the selection of
// three constants (first, last, base - first) among two segments, or, twice, among three.
int index_operations(const TableHeader& h) {
  // with y > 0 on the left sent to the entry of -0
  const int fields = 2, clamp_and_add = 3, by_sign = 3, by_branch = h.masked ? 4 : 0;
  return fields + by_sign + by_branch + clamp_and_add;
}

// kClass as far as constants say it: the enumerations prove the rest. `storable`: y has 16 or 8 bits.
void require_class(Conditions& conditions, const BackwardHeader& h) {
  const AccuracyClass accuracy = read_class(h.accuracy);
  const bool storable = h.format != "f32";
  switch (accuracy.kind) {
    case ClassKind::abs:
    case ClassKind::rel:
      return conditions.require(h.bound_a <= accuracy.bound,
                                fmt::format("kA does not meet the class {}", h.accuracy));
    case ClassKind::ulp:
      return conditions.require(storable || (h.two_word && h.bound_ulp <= accuracy.bound),
                                fmt::format("kUlp does not meet the class {}", h.accuracy));
    case ClassKind::stored:
      return conditions.require(storable && h.storage.total <= accuracy.bound * h.storage.oracle,
                                fmt::format("kT and kO do not meet the class {}", h.accuracy));
    default: conditions.require(false, fmt::format("unknown class {}", h.accuracy));
  }
}

void require_name(Conditions& conditions, const HeaderNames& h, bool masked) {
  const std::string problem = name_problem(h.activation, h.function, masked);
  conditions.require(problem.empty(), problem);
}

void require_domain(Conditions& conditions, const HeaderNames& h) {
  conditions.require(h.x_limit == (h.activation == "expression" ? kExpressionEnd : 0),
                     fmt::format("kXLimit is {:g}, proofs end at {}", h.x_limit, kExpressionEnd));
}

void require_least_with_bit(Conditions& conditions, float x, const Interval& x_star) {
  conditions.require(certainly_less(x_star, static_cast<double>(x)), "kXStar is left of x*");
  conditions.require(certainly_less(static_cast<double>(std::nextafter(x, -kFloatInfinity)), x_star),
                     "a float below kXStar is right of x*");
}

// Whether every member of v is nearer to y than to any other float.
bool rounds_to(const Interval& v, float y) {
  const auto midpoint = [&](float towards) {
    return (Interval(y) + static_cast<double>(std::nextafter(y, towards))) / 2;
  };
  return std::isfinite(y) && certainly_less(midpoint(-kFloatInfinity), v) &&
         certainly_less(v, midpoint(kFloatInfinity));
}

// The left end of an f32 forward: all x below kXMin are taken for it. f is monotone there, so its values lie
// between f(kXMin) and its limit. That is an end of low_values, the upper one of an f that falls from it.
void require_left_end(Conditions& conditions, const ForwardHeader& h, const Activation& activation) {
  const Formula& formula = activation.formulas().front();
  const float y = deployed_forward(h, h.x_min);
  conditions.require(same_bits(y, deployed_forward(h, -kFloatInfinity)), "the left tail is not clamped");
  conditions.require(!h.masked || certainly_less(static_cast<double>(h.x_min), activation.x_star()),
                     "kXMin is not left of x*");
  const Interval limit = h.masked ? formula.low_values.keep_upper() : formula.low_values.keep_lower();
  const Interval values = hull(formula.f.at<0>(Interval(h.x_min))[0], limit);
  conditions.require(rounds_to(values, y),
                     fmt::format("f does not round to {:.9g} from kXMin = {:.9g} down", y, h.x_min));
  // A tail is for an f that fades, from below where it has a minimum, and from above where it rises.
  conditions.require(!(h.has_tail || y == 0) || same_bits(y, h.masked ? -0.0f : 0.0f),
                     fmt::format("the clamped left tail is not {}0", h.masked ? "-" : "+"));
}

// The right end: from kXMax on f is x to half a gap, or rounds to its limit.
void require_right_end(Conditions& conditions, const ForwardHeader& h, const Activation& activation) {
  const Formula& formula = activation.formulas().back();
  const double a = h.x_max, b = std::max(a, formula.far_high);
  const auto value = [&](double x) { return formula.f.at<0>(Interval(x))[0]; };
  if (h.levels) {
    const float y = deployed_forward(h, h.x_max);
    conditions.require(same_bits(y, deployed_forward(h, kFloatInfinity)), "the right tail is not clamped");
    // f rises from f(kXMax) to its limit, the upper end of the tail's values.
    conditions.require(!h.masked && rounds_to(hull(value(a), formula.high_values.keep_upper()), y),
                       fmt::format("f does not round to {:.9g} from kXMax = {:.9g} on", y, h.x_max));
    return;
  }
  conditions.require(deployed_forward(h, kFloatInfinity) == kFloatInfinity, "f(+inf) is not +inf");
  // Half the gap below x is 2^-25 x at the least. D(x) = x - f(x) has the slope 1 - f'. If D falls between a
  // and b, or rises there, it stays between D(a) and D(b); if its slope has the other sign here and there, it
  // leaves them by no more than the most such a slope makes of b - a. Beyond b its slope alone is small
  // enough.
  const Interval off = Interval(1) - formula.slopes(a, b);
  const double drift = std::max(std::min(off.upper(), -off.lower()), 0.0);
  const auto distance = [&](double x) { return absolute(value(x) - x); };
  const Interval largest = maximum(distance(a), distance(b)) + Interval(drift) * (b - a);
  constexpr double kHalfGap = 0x1p-25;
  conditions.require(largest.upper() <= kHalfGap * a && (formula.high_slopes - 1).magnitude() <= kHalfGap,
                     "f does not round to x from kXMax on");
}

// How the rows of an f32 forward are evaluated.
void require_rows(Conditions& conditions, const ForwardHeader& h, const Function& f) {
  const float core_low = h.has_tail ? h.tail_x : h.x_min;
  require_index(conditions, {core_low, h.x_max, h.index_scale, h.index_bias, h.rows}, "core");
  conditions.require(!h.compensated || h.degree >= 2, "a compensated row has no c2");
  // What is added to c1 is what f'(0) has beyond its nearest float.
  const Interval half_ulp = std::ldexp(1.0, std::ilogb(f.at<1>(Interval(0))[1].middle()) - 24);
  conditions.require(
      h.slope_low == 0 || (h.compensated && Interval(std::fabs(h.slope_low)).upper() <= half_ulp.lower()),
      "kSlopeLow is more than half an ulp of f'(0)");
  if (!h.has_tail) return;
  require_index(conditions, {h.x_min, h.tail_x, h.tail_index_scale, h.tail_index_bias, h.tail_rows}, "tail");
  for (int row = 0; row < h.tail_rows; ++row) {
    const float scale = h.tail.row(row)[h.tail_degree + 2];
    int exponent = 0;
    conditions.require(scale == 0 || std::frexp(scale, &exponent) == 0.5f,
                       fmt::format("the scale of tail row {} is not a power of two", row));
  }
}

// What an enclosure of f' over a tail, kTailSlope wide, leaves for its limit: limits are small fractions.
double limit_of(const Interval& slopes) {
  constexpr double kUnit = 0x1p-70;
  return std::nearbyint(slopes.middle() / kUnit) * kUnit;
}

void require_storage(Conditions& conditions, const StorageClaims& claims) {
  conditions.require(claims.total >= 0 && claims.oracle >= 0 && claims.regret >= 0,
                     "kT, kO or kR is negative");
  // |g - f'| <= |g - middle| + half the range.
  conditions.require(claims.total <= claims.oracle + claims.regret + 0x1p-20 * claims.total,
                     "kT is above kO + kR");
}

// kRelative and kAbsolute as kernels/gate.h promises them; y is of fp32, and T no smaller than what nothing
// undercuts.
void require_product(Conditions& conditions, const BackwardHeader& h) {
  const double u = h.product.format == "f16" ? 0x1p-11 : 0x1p-8;
  conditions.require(
      h.product.relative == u / (1 + u) + 0x1p-21 && h.product.absolute == 0x1p-22,
      fmt::format("kRelative and kAbsolute are not those of products in {}", h.product.format));
  conditions.require(h.masked && h.format == "f32" && h.accuracy.starts_with("abs:"),
                     "a product without a mask, not of f32, or not of the class abs");
  conditions.require(h.activation != "expression", "a product of an expression, whose domain ends");
  conditions.require(h.product.oracle > 0 && h.product.oracle <= h.product.total,
                     "kO is not between 0 and kT");
}

// The constants from y to a row, and its terms.
void require_coordinate(Conditions& conditions, const BackwardHeader& h) {
  if (h.masked) {
    // kRootRounding's condition.
    conditions.require(h.y_lo == 0 || std::fabs(h.y_lo) < 0x1p-10f * std::fabs(h.y_hi),
                       "kYLo is not small beside kYHi");
    conditions.require(!std::signbit(h.t_min), "kTMin is negative");
    conditions.require(h.y_hi < h.y_max && deployed_s(h, h.y_max, true) > 0, "kYMax is not above y*");
    conditions.require(h.has_left || h.s_min < 0, "kSMin is not negative");
  } else {
    conditions.require(h.y_min < h.y_max, "kYMin is not below kYMax");
    conditions.require(!h.has_left && !h.has_right, "a segment of a signed root without a mask");
  }
  if (h.two_word) {
    conditions.require(h.scheme == kHorner && h.centred && h.format == "f32",
                       "a two-word row is evaluated by Horner's rule in f32");
    conditions.require(h.bound_ulp > 0.5 && h.ulp_from >= 0x1p-100 && h.ulp_from < 1,
                       "kUlp or kUlpFrom says nothing");
  }
  conditions.require(std::is_sorted(h.breaks.begin(), h.breaks.end(), std::less_equal<>()),
                     "break points do not rise");
}

// Where a row is found, or its polynomial evaluated, in another way.
void require_segments(Conditions& conditions, const BackwardHeader& h) {
  if (h.has_left) {
    conditions.require(h.left_y < 0 && h.y_hi < h.left_y, "kLeftY is not between y* and 0");
    conditions.require(h.left_row >= 0 && h.left_row < h.rows, "kLeftRow is not a row");
    const int steps = 256 << h.left_bits;  // of all exponents
    conditions.require(std::abs(h.left_knee) < steps && std::abs(h.left_base) < steps,
                       "kLeftKnee or kLeftBase is not a step of an octave");
    // Else a row serves two steps apart, and cells are no ranges of y.
    conditions.require(left_steps(h) <= h.rows,
                       fmt::format("the left segment has {} steps, more than rows", left_steps(h)));
  }
  conditions.require(!h.has_right || (h.right_s > 0 && h.right_s <= deployed_s(h, h.y_max, true)),
                     "kRightS is not between 0 and the greatest s");
  conditions.require(!h.right_both || (h.masked && h.has_left),
                     "kRightBoth without the left segment, where it ends");
}

// Beyond the ends of y, g is near the limits of f', or is these.
void require_limits(Conditions& conditions, const BackwardHeader& h, const Activation& activation) {
  const auto require_limit = [&](float y, bool m, const Interval& slopes, const char* what) {
    const float g = deployed_gradient(h, y, m);
    const double limit = limit_of(slopes);
    if (h.exact_limits && activation.limited()) {
      // At kExpressionEnd a user's f' has not reached its limit, 0 or 1: it is as near as a specification has
      // to come, and no further off than A + B.
      constexpr double kSettled = 0x1p-17;
      const std::string far = fmt::format("g({}) is {:.9g}, far from {:.9g}", what, g, limit);
      conditions.require(g == 0 || g == 1, far);
      conditions.require_within(Interval(g) - slopes, std::min(kSettled, h.bound_a + h.bound_b), far);
    } else if (h.exact_limits) {
      conditions.require(g == static_cast<float>(limit),
                         fmt::format("g({}) is {:.9g}, not {:.9g}", what, g, limit));
    } else {
      // What is stored in place of the clamped y may be off by the rounding of the evaluation as well.
      conditions.require_within(Interval(g) - slopes, h.bound_a + h.bound_b,
                                fmt::format("g({}) is {:.9g}, far from {:.9g}", what, g, limit));
    }
  };
  require_limit(kFloatInfinity, true, activation.formulas().back().high_slopes, "+inf, m = 1");
  if (h.masked) {
    require_limit(-0.0f, false, activation.only().low_slopes, "-0, m = 0");
    require_limit(1.0f, false, activation.only().low_slopes, "1, m = 0");
  } else {
    require_limit(-kFloatInfinity, true, activation.formulas().front().low_slopes, "-inf");
  }
  conditions.require(std::isnan(deployed_gradient(h, std::nanf(""), true)) &&
                         std::isnan(deployed_gradient(h, std::nanf(""), false)),
                     "NaN is lost");
}

template <class Header>
CheckReport prove(const Header& h, Findings wanted, std::atomic<int>& done) {
  CheckReport report{h.file, h.name, {check_structure(h)}};
  ++done;
  // Whether to go on; the proofs assume the structure.
  const auto open = [&] {
    return report.findings.size() == 1 || wanted == Findings::to_failure ? report.verdict() == Verdict::Holds
                                                                         : true;
  };
  const auto add = [&](auto&& findings) {
    if (!open()) return;
    if constexpr (std::is_same_v<decltype(findings()), Finding>) {
      report.findings.push_back(findings());
    } else {
      for (Finding& finding : findings()) report.findings.push_back(std::move(finding));
    }
    done = static_cast<int>(report.findings.size());
  };
  if (!open()) return report;
  if constexpr (std::is_same_v<Header, CodeHeader>) {
    add([&] { return prove_code_range(h); });
    add([&] { return prove_coded_gradient(h); });
    add([&] { return prove_codes(h); });
  } else if constexpr (std::is_same_v<Header, Fp8Header>) {
    add([&] { return prove_fp8_extrema(h); });
    add([&] { return prove_fp8_gradient(h); });
    add([&] { return prove_fp8_room(h); });
    for (const char* format : {"sign", "e4m3", "e5m2", "int8", "mxfp4", "nvfp4"})
      add([&] { return prove_fp8_totals(h, format); });
  } else if constexpr (std::is_same_v<Header, TableHeader>) {
    add([&] { return prove_storage(h); });
  } else {
    add([&] { return prove_fit(h, h.bound_a, wanted); });
    if constexpr (std::is_same_v<Header, RoundedForwardHeader>) {
      add([&] { return prove_fit(h, h.bound_core, wanted, true); });
      add([&] { return prove_rounded(h); });
    }
    if constexpr (std::is_same_v<Header, BackwardHeader>) {
      if (h.masked && !h.of_product()) add([&] { return prove_coordinate(h, h.bound_k); });
      add([&] { return prove_rounding(h, h.bound_b); });
      // kA of the class rel is no absolute error.
      if (h.format == "f32" && !h.accuracy.starts_with("rel:")) add([&] { return prove_row_claims(h); });
      if (h.format != "f32") add([&] { return prove_storage(h); });
      if (h.of_product()) add([&] { return prove_product(h); });
    }
    add([&] {
      const std::optional<Finding> found = prove_found(h);
      return found ? std::vector{*found} : std::vector<Finding>{};
    });
  }
  return report;
}

std::string power_of_two(double v) {
  return v > 0 && std::isfinite(v) ? kernels::power_up(v, 4) : fmt::format("{:g}", v);
}

// The others are about many numbers.
bool is_of_one_bound(const Finding& finding) {
  return finding.name != "structure" && finding.name != "found" && finding.name != "given";
}

nlohmann::json finite_or_null(double v) {
  return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr);
}

}  // namespace

Verdict CheckReport::verdict() const {
  const auto any = [&](Verdict v) {
    return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == v; });
  };
  return any(Verdict::Violated)                        ? Verdict::Violated
         : any(Verdict::Undecided) || findings.empty() ? Verdict::Undecided
                                                       : Verdict::Holds;
}

Finding check_structure(const BackwardHeader& h) {
  Conditions conditions;
  require_name(conditions, h, h.masked);
  conditions.require(h.operations == operations(h),
                     fmt::format("kOperations is {}, the sequence has {}", h.operations, operations(h)));
  conditions.require(h.bound_a >= 0 && h.bound_k >= 0 && h.bound_b >= 0, "a bound is negative");
  require_class(conditions, h);
  require_domain(conditions, h);
  conditions.require(h.format != "f32" || h.accuracy.starts_with("ulp:") == h.two_word,
                     "an f32 class in ulp without kUlp, or the reverse");
  if (h.format != "f32") require_storage(conditions, h.storage);
  if (h.of_product()) require_product(conditions, h);
  require_coordinate(conditions, h);
  require_segments(conditions, h);
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  conditions.require_provable(activation);
  if (!activation.problem().empty()) return conditions.finding();
  // The proof of A takes what lies beyond a clamp from the formula of that end alone.
  if (activation.formulas().size() > 1)
    conditions.require(h.y_min < 0 && h.y_max > 0,
                       "kYMin and kYMax do not lie on both sides of 0, where two formulas meet");
  const float lowest = !h.masked ? h.y_min : h.has_left ? deployed_s(h, h.left_y, false) : h.s_min;
  if (!h.has_breaks)
    require_index(conditions, {lowest, deployed_s(h, h.y_max, true), h.index_scale, h.index_bias, h.rows},
                  h.masked ? "s" : "y");
  require_limits(conditions, h, activation);
  return conditions.finding();
}

Finding check_structure(const TableHeader& h) {
  Conditions conditions;
  require_name(conditions, h, h.masked);
  const ClassKind kind = read_class(h.accuracy).kind;
  conditions.require(kind == ClassKind::oracle || kind == ClassKind::ulp || kind == ClassKind::stored,
                     fmt::format("unknown class {}", h.accuracy));
  require_domain(conditions, h);
  require_storage(conditions, h.storage);
  conditions.require(
      h.index_operations == index_operations(h),
      fmt::format("kIndexOperations is {}, the index has {}", h.index_operations, index_operations(h)));
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  conditions.require_provable(activation);
  return conditions.finding();
}

Finding check_structure(const CodeHeader& h) {
  Conditions conditions;
  const bool own = h.activation == "expression";
  const char* const function = own ? h.function.c_str() : coded_function(h.activation);
  conditions.require(function != nullptr, fmt::format("the library has no codes of {}", h.activation));
  if (function == nullptr) return conditions.finding();
  conditions.require(h.function == function, fmt::format("kFunction is not the library's {}", h.activation));
  require_domain(conditions, h);
  const AccuracyClass accuracy = read_class(h.accuracy);
  // What a caller promises is the class itself, as some library computes its power of two.
  const bool met =
      own ? std::fabs(h.bound_g - accuracy.bound) <= 0x1p-40 * accuracy.bound : h.bound_g <= accuracy.bound;
  conditions.require(accuracy.kind == ClassKind::abs && met,
                     fmt::format("kG does not meet the class {}", h.accuracy));
  conditions.require(h.bound_g > 0, "kG is not positive");
  const auto on_grid = [](float v) {
    return std::fabs(v) <= 2 && std::nearbyint(v * 0x1p23f) == v * 0x1p23f;
  };
  conditions.require(on_grid(h.lo) && on_grid(h.hi) && h.lo <= 0 && h.hi > h.lo + 0x1p-3f,
                     "kLo and kHi are no range of f' in multiples of 2^-23");
  if (own && conditions.finding().verdict == Verdict::Holds) {
    conditions.require_provable(activation_of(h.activation, h.function, has_minimum(h)));
  }
  return conditions.finding();
}

Finding check_structure(const Fp8Header& h) {
  Conditions conditions;
  const DeployedCodes* const codes = deployed_codes(h.activation);
  conditions.require(codes != nullptr,
                     fmt::format("the library has no codes of {} with a minimum", h.activation));
  if (codes == nullptr) return conditions.finding();
  conditions.require(h.code == codes->name,
                     fmt::format("kCode is {}, the library's is {}", h.code, codes->name));
  conditions.require(h.fit == codes->fit,
                     fmt::format("kFit is {}, the library's f32 fit is {}", h.fit, codes->fit));
  conditions.require(h.function == codes->function, fmt::format("kFunction is not that of {}", codes->fit));
  const AccuracyClass accuracy = read_class(h.accuracy);
  conditions.require(accuracy.kind == ClassKind::abs && h.room <= accuracy.bound,
                     fmt::format("kRoom does not meet the class {}", h.accuracy));
  conditions.require(h.bound_g > 0, "kG is not positive");
  for (const Fp8Claims& claims : {h.e4m3, h.e5m2, h.int8, h.mxfp4, h.nvfp4}) {
    conditions.require(claims.least >= std::numeric_limits<float>::min() && claims.least < claims.most &&
                           std::isfinite(claims.most),
                       "Least and Most are no range of scales");
    conditions.require(std::all_of(claims.total.begin(), claims.total.end(), [](double t) { return t > 0; }),
                       "a T is not positive");
  }
  conditions.require(std::all_of(h.sign.begin(), h.sign.end(), [](double t) { return t > 0; }),
                     "a T is not positive");
  int exponent = 0;
  conditions.require(std::frexp(h.mxfp4.least, &exponent) == 0.5f, "kMxfp4Least is not a power of two");
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  // kernels/stores/parts.h takes f' for 0 up to kYHi, and the fit's floor for what a y below stands for.
  const Interval& y_star = activation_of(h.activation, h.function, true).y_star();
  conditions.require(
      (absolute(y_star - static_cast<double>(codes->gradient.y_hi)) - absolute(y_star) * 0x1p-23).negative(),
      "the fit's kYHi is not next to y*");
  conditions.require(codes->t_min >= 0 && certainly_less(Interval(codes->t_min), absolute(y_star) * 0x1p-21),
                     "the fit's kTMin is not next to 0");
  return conditions.finding();
}

Finding check_structure(const ForwardHeader& h) {
  Conditions conditions;
  require_name(conditions, h, h.masked);
  // What is said of the tails holds of the known activations.
  conditions.require(h.activation != "expression", "an f32 forward of an expression");
  conditions.require(h.bound_a > 0, "kA is not positive");
  conditions.require(h.x_min < 0 && h.x_max >= 0 && (!h.has_tail || (h.x_min < h.tail_x && h.tail_x < 0)),
                     "kXMin, kTailX, 0, kXMax are out of order");
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  conditions.require_provable(activation);
  if (!activation.problem().empty()) return conditions.finding();
  if (h.masked) require_least_with_bit(conditions, h.x_star, activation.x_star());
  // The proof of A takes f from the left of its formulas alone.
  conditions.require((activation.formulas().size() == 1) == (h.x_max > 0),
                     "kXMax is not 0 where two formulas meet, or is 0 elsewhere");
  require_left_end(conditions, h, activation);
  require_right_end(conditions, h, activation);
  const Function& f = activation.formulas().front().f;
  const Interval at_zero = f.at<0>(Interval(0))[0];
  const bool signed_zeros =
      same_bits(deployed_forward(h, 0.0f), 0.0f) && same_bits(deployed_forward(h, -0.0f), -0.0f);
  conditions.require(!at_zero.contains_zero() || signed_zeros, "f(+-0) is not +-0");
  conditions.require(std::isnan(deployed_forward(h, std::nanf(""))), "NaN is lost");
  require_rows(conditions, h, f);
  return conditions.finding();
}

Finding check_structure(const RoundedForwardHeader& h) {
  Conditions conditions;
  require_name(conditions, h, h.masked);
  require_domain(conditions, h);
  const bool half = h.format == "f16";
  conditions.require(half || h.format == "bf16", fmt::format("kFormat is {}, not f16 or bf16", h.format));
  conditions.require(h.accuracy == "rounded", fmt::format("unknown class {}", h.accuracy));
  conditions.require(h.bound_a > 0 && h.bound_core > 0 && h.bound_core <= h.bound_a,
                     "kA or kCoreA is not positive, or kCoreA above kA");
  conditions.require(h.x_min < 0 && h.x_max >= 0, "kXMin, 0, kXMax are out of order");
  conditions.require(h.index_scale > 0 && 1 / (1 / h.index_scale) == h.index_scale &&
                         std::exp2(std::round(std::log2(h.index_scale))) == h.index_scale,
                     "kIndexScale is not a power of two: the centres would not be exact");
  // Half the least subnormal is the least tie; kTie is its ulp as a float.
  conditions.require(h.tie == 0 || static_cast<double>(h.tie) == (half ? 0x1p-48 : 0x1p-149),
                     "kTie is not the ulp of the least tie");
  conditions.require(std::fabs(h.pull) < 0x1p-23f, "kPull is more than fp32's last place");
  conditions.require(h.end == h.x_max || h.end >= std::numeric_limits<float>::max(), "kEnd is not kXMax");
  require_index(conditions, {h.x_min, h.x_max, h.index_scale, h.index_bias, h.rows}, "x");
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  conditions.require_provable(activation);
  if (!activation.problem().empty()) return conditions.finding();
  if (h.masked) require_least_with_bit(conditions, h.x_star, activation.x_star());
  // The proof of A takes f from the left of its formulas alone.
  conditions.require(activation.formulas().size() == 1 || h.x_max == 0,
                     "kXMax is not 0, where two formulas meet");
  // Rows are numbered from the first on; those of the core are the last, all there.
  const int first = low_bits_of(h, h.x_min), last = low_bits_of(h, h.x_max);
  conditions.require(
      first == 0 && last == h.core_first + h.core_rows - 1 && (h.core_rows & (h.core_rows - 1)) == 0,
      fmt::format("rows {} to {} do not end with the {} of the core from {} on", first, last, h.core_rows,
                  h.core_first));
  const auto code = [&](float y) {
    return half ? kernels::narrow<kernels::F16>(y).bits : kernels::narrow<kernels::BF16>(y).bits;
  };
  const auto given = [&](float x) { return code(deployed_forward(h, x)); };
  conditions.require(given(h.x_min) == given(-kFloatInfinity), "the left tail is not clamped");
  const float right = std::max(h.x_max, 1.0f);
  if (h.end == h.x_max) {
    conditions.require(given(h.x_max) == given(kFloatInfinity), "the right tail is not clamped");
  } else {
    conditions.require(given(right) == code(right) && given(2 * right) == code(2 * right) &&
                           given(kFloatInfinity) == code(kFloatInfinity),
                       "the right tail is not x");
    require_end(conditions, h);
  }
  conditions.require(h.plain || (given(0.0f) == 0 && given(-0.0f) == 0x8000), "f(+-0) is not +-0");
  conditions.require(std::isnan(deployed_forward(h, std::nanf(""))), "NaN is lost");
  return conditions.finding();
}

CheckReport check_header(const Header& header, Findings wanted, std::atomic<int>* done) {
  std::atomic<int> unseen;
  return std::visit([&](const auto& h) { return prove(h, wanted, done ? *done : unseen); }, header);
}

std::string to_text(const CheckReport& report, bool coloured) {
  using kernels::Colour;
  std::string text;
  for (const Finding& finding : report.findings) {
    std::string verdict = to_string(finding.verdict);
    if (coloured)
      verdict = in_colour(finding.verdict == Verdict::Holds ? Colour::kGood : Colour::kBad, verdict);
    text += fmt::format("{}: {} {}: ", report.file, finding.name, verdict);
    if (is_of_one_bound(finding))
      text +=
          fmt::format("proven {}, claimed {}: ", power_of_two(finding.proven), power_of_two(finding.claim));
    text += finding.why + "\n";
  }
  return text;
}

nlohmann::json to_json(const std::vector<CheckReport>& reports) {
  nlohmann::json files = nlohmann::json::array();
  for (const CheckReport& report : reports) {
    nlohmann::json findings = nlohmann::json::array();
    for (const Finding& finding : report.findings) {
      nlohmann::json entry = {
          {"name", finding.name}, {"verdict", to_string(finding.verdict)}, {"why", finding.why}};
      if (is_of_one_bound(finding))
        entry.update({{"claim", finding.claim}, {"proven", finite_or_null(finding.proven)}});
      if (finding.witness) {
        entry["witness"] = {{"at", finite_or_null(finding.witness->at)},
                            {"got", finite_or_null(finding.witness->got)},
                            {"want", finite_or_null(finding.witness->want)}};
      }
      findings.push_back(std::move(entry));
    }
    files.push_back({{"file", report.file},
                     {"name", report.name},
                     {"verdict", to_string(report.verdict())},
                     {"findings", std::move(findings)}});
  }
  const bool all_hold = std::all_of(reports.begin(), reports.end(),
                                    [](const CheckReport& r) { return r.verdict() == Verdict::Holds; });
  return {{"schema", "outgrad.check/1"}, {"holds", all_hold}, {"files", std::move(files)}};
}

const char* to_string(Verdict verdict) {
  constexpr std::array kNames{"holds", "violated", "undecided"};
  return kNames.at(static_cast<size_t>(verdict));
}

}  // namespace outgrad::validation
