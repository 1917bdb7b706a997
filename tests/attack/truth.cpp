// Finds preimages by Newton's method, and makes tables of what they say about every stored output.
#include "tests/attack/truth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/catalogue/codes.h"
#include "kernels/formats.h"

namespace outgrad::validation::gate {
namespace {

// The scan begins off the grid of simple fractions, where symmetric functions have their zeros. A sign change
// at a grid point would not be seen.
constexpr double kScanStep = 1.0 / 32, kScanEnd = 64, kScanOffset = 0.01237;

// A step is halved, down to 2^-14 of itself, as long as f or f' at its middle is not what the cubic through
// its ends has there: a steep function has its minimum and its inflections within one step.
constexpr int kDeepestScan = 14;
// an oscillation on all of the line is not followed to the end
constexpr size_t kMostScanned = size_t{1} << 18;
constexpr double kFollows = 0x1p-12;  // of the greatest slope at the steps

void refine(const Formula& f, double a, const Jet<double>& at_a, double b, const Jet<double>& at_b,
            double scale, int depth, std::vector<double>& points) {
  const double h = b - a, middle = a + h / 2;
  const Jet<double> at = f.at(middle);
  const double slope = (at_a.slope + at_b.slope) / 2 + h / 8 * (at_a.bend - at_b.bend),
               rise = h / 6 * (at_a.slope + 4 * at.slope + at_b.slope);
  // What is not a number in double is left as it is.
  if (depth > 0 && points.size() < kMostScanned &&
      (std::fabs(at.slope - slope) > kFollows * scale ||
       std::fabs(at_b.value - at_a.value - rise) > kFollows * scale * h)) {
    refine(f, a, at_a, middle, at, scale, depth - 1, points);
    refine(f, middle, at, b, at_b, scale, depth - 1, points);
    return;
  }
  points.push_back(b);
}

std::vector<double> scan_points(const Formula& f, double from, double to) {
  std::vector<double> steps;
  std::vector<Jet<double>> jets;
  double scale = 0;
  for (double x = from; x <= to; x += kScanStep) {
    steps.push_back(x), jets.push_back(f.at(x));
    if (std::isfinite(jets.back().slope)) scale = std::max(scale, std::fabs(jets.back().slope));
  }
  std::vector<double> points{from};
  for (size_t i = 0; i + 1 < steps.size(); ++i)
    refine(f, steps[i], jets[i], steps[i + 1], jets[i + 1], scale, kDeepestScan, points);
  return points;
}

Real root_of(const Formula& f, Real low, Real high, bool of_bend) {
  const auto value = [&](const Real& x) {
    const Jet<Real> jet = f.at(x);
    return of_bend ? jet.bend : jet.slope;
  };
  const bool rises = value(high) > 0;
  constexpr int kHalvings = 180;
  for (int i = 0; i < kHalvings; ++i) {
    const Real middle = (low + high) / 2;
    ((value(middle) > 0) == rises ? high : low) = middle;
  }
  return (low + high) / 2;
}

// One search, over double or Real. It stops when a step is below `tolerance`, relative to 1 + |x|.
// `direction` is the sign of f' on the branch.
template <class T>
Jet<T> newton(const Formula& f, const T& y, T low, T high, int direction, const T& tolerance, T& x) {
  using std::abs;
  Jet<T> jet{};
  constexpr int kMostSteps = std::is_same_v<T, double> ? 60 : 400;
  for (int i = 0; i < kMostSteps; ++i) {
    if (!(x > low && x < high)) x = (low + high) / 2;
    jet = f.at(x);
    const T missing = y - jet.value;
    if (missing == 0) break;
    ((missing > 0) == (direction > 0) ? low : high) = x;
    T step = missing / jet.slope;
    const T next = x + step;
    if (!(next > low && next < high)) step = (low + high) / 2 - x;
    if (!(abs(step) > tolerance * (T(1) + abs(x)))) break;
    x += step;
  }
  return jet;
}

// 0 of a curve without a minimum.
long double true_root(const Curve& curve, double y) {
  if (!curve.masked()) return 0;
  const Real t = Real(y) - curve.y_star();
  return t > 0 ? static_cast<long double>(sqrt(t)) : 0;
}

// The range of f' between two preimages.
Known range_between(const Curve& curve, const Curve::Preimage& a, const Curve::Preimage& b) {
  const Real low = std::min(a.x, b.x), high = std::max(a.x, b.x);
  long double least = std::min(a.slope, b.slope), most = std::max(a.slope, b.slope);
  for (const Real& x : curve.inflections()) {
    if (!(x > low && x < high)) continue;
    const auto slope = static_cast<long double>(curve.formula().at(x).slope);
    least = std::min(least, slope), most = std::max(most, slope);
  }
  return {.stored = true, .low = static_cast<double>(least), .high = static_cast<double>(most)};
}

// A format in which the lowest bit of a negative code is !m. Its numbers are those of bf16 or f16.
bool is_parity(const std::string& format) { return format == "bf16_parity" || format == "f16_parity"; }
std::string without_parity(const std::string& format) { return format.substr(0, format.find("_parity")); }

// The stored numbers of a format with their codes, in numeric order; -0 appears only for m = 0. In a parity
// format, those of a branch.
struct Stored {
  float value;
  std::uint32_t code;
};

// The format's numbers times 2^exponent, and only one branch's where y carries its branch.
std::vector<Stored> numbers_of(const std::string& format, int exponent, bool m) {
  std::vector<Stored> numbers;
  for (std::uint32_t code = 0; code < codes_of(format); ++code) {
    const float value = std::ldexp(widened(format, code), exponent);
    const bool other = is_parity(format) && (std::signbit(value) ? (code % 2 == 0) != m : !m);
    if (!std::isnan(value) && !other) numbers.push_back({value, code});
  }
  std::stable_sort(numbers.begin(), numbers.end(), [](const Stored& a, const Stored& b) {
    return a.value != b.value ? a.value < b.value : std::signbit(a.value) && !std::signbit(b.value);
  });
  return numbers;
}

// The midpoint between neighbours, where rounding to nearest changes from one to the other. Towards infinity,
// the format is continued. Between two negative numbers of a branch it is the number of the other branch
// instead.
double midpoint(const std::string& format, const Stored& lower, const Stored& upper) {
  const float a = lower.value, b = upper.value;
  if (is_parity(format) && a < 0) return widened(format, lower.code - 1);
  if (std::isinf(b)) return static_cast<double>(a) + ulp_of(format, a) / 2;
  if (std::isinf(a)) return static_cast<double>(b) - ulp_of(format, b) / 2;
  return (static_cast<double>(a) + static_cast<double>(b)) / 2;
}

}  // namespace

std::uint32_t codes_of(const std::string& format) {
  return format == "e4m3" || format == "e5m2" || format == "mxfp8" ? 1u << 8 : 1u << 16;
}

float widened(const std::string& stored, std::uint32_t code) {
  const std::string format = without_parity(stored);
  if (format == "bf16") return kernels::widen(kernels::BF16{static_cast<kernels::u16>(code)});
  if (format == "f16") return kernels::widen(kernels::F16{static_cast<kernels::u16>(code)});
  if (format == "e4m3" || format == "mxfp8")
    return kernels::widen(kernels::F8E4M3{static_cast<kernels::u8>(code)});
  if (format == "e5m2") return kernels::widen(kernels::F8E5M2{static_cast<kernels::u8>(code)});
  throw std::invalid_argument("no stored format of this name: " + format);
}

double ulp_of(const std::string& stored, double v) {
  const std::string format = without_parity(stored);
  struct Shape {
    int fraction, least;  // bits of the fraction, exponent of the least normal number
  };
  const Shape shape = format == "f32"    ? Shape{23, -126}
                      : format == "bf16" ? Shape{7, -126}
                      : format == "f16"  ? Shape{10, -14}
                      : format == "e5m2" ? Shape{2, -14}
                                         : Shape{3, -6};
  const int exponent = v == 0 ? shape.least : std::max(std::ilogb(v), shape.least);
  return std::ldexp(1.0, exponent - shape.fraction);
}

Curve::Curve(Formula f, double end) : f_(std::move(f)), end_(end) {
  const double scan = std::min(end, kScanEnd);
  std::vector<Real> stationary;
  const std::vector<double> points = scan_points(f_, -scan + kScanOffset, scan);
  Jet<Real> before = f_.at(Real(points.front()));
  // Decides by the first slope that is not lost: where 1 + erf is exactly 0 in Real, f has none.
  const auto sign = [](const Real& slope) { return slope < 0 ? -1 : slope > 0 ? 1 : 0; };
  int first = sign(before.slope);
  for (size_t i = 1; i < points.size(); ++i) {
    const Real from(points[i - 1]), to(points[i]);
    const Jet<Real> here = f_.at(to);
    if (first == 0) first = sign(here.slope);
    if ((before.slope < 0) != (here.slope < 0) && before.slope != 0 && here.slope != 0)
      stationary.push_back(root_of(f_, from, to, false));
    if ((before.bend < 0) != (here.bend < 0) && before.bend != 0 && here.bend != 0)
      inflections_.push_back(root_of(f_, from, to, true));
    before = here;
  }
  low_ = {f_.at(Real(-end)), -end}, high_ = {f_.at(Real(end)), end};
  masked_ = !stationary.empty();
  if (stationary.size() > 1) problem_ = "f has several stationary points";
  if (stationary.empty() && first < 0) problem_ = "f falls";
  if (stationary.size() == 1 && first > 0) problem_ = "f has a maximum";
  if (masked_) x_star_ = stationary.front(), y_star_ = f_.at(x_star_).value;
}

double Curve::first_guess(double y, bool m) const {
  if (!masked_) return 0;
  const double bend = static_cast<double>(f_.at(x_star_).bend), above = y - static_cast<double>(y_star_),
               star = static_cast<double>(x_star_);
  const double away = std::sqrt(std::max(above, 0x1p-100) * 2 / std::max(bend, 1e-9));
  return m ? star + std::min(away, 4.0) : star - std::min(away, 4.0);
}

Curve::Preimage Curve::preimage(const Real& y, bool m, double& near) const {
  const bool rises = m || !masked_;
  const End& far = rises ? high_ : low_;
  if (y >= far.jet.value) return {true, false, Real(far.x), static_cast<long double>(far.jet.slope)};
  if (masked_ && y <= y_star_) return {false, true, x_star_, 0};
  if (!masked_ && y <= low_.jet.value)
    return {false, true, Real(low_.x), static_cast<long double>(low_.jet.slope)};
  const Real low = rises ? (masked_ ? x_star_ : Real(low_.x)) : Real(low_.x),
             high = rises ? Real(high_.x) : x_star_;
  const int direction = rises ? 1 : -1;
  double rough = near;
  const auto wanted = static_cast<double>(y);
  const Jet<double> reached = newton<double>(f_, wanted, static_cast<double>(low), static_cast<double>(high),
                                             direction, 0x1p-46, rough);
  Preimage found;
  // Where terms cancel, a double has no correct digit of f. Then the neighbour is a better starting point.
  found.x = Real(std::fabs(reached.value - wanted) <= 0x1p-30 * std::fabs(wanted) ? rough : near);
  // The remaining step is added to f' by its own derivative; the error is the third derivative times 2^-80.
  const Jet<Real> jet = newton<Real>(f_, y, low, high, direction, Real(0x1p-40), found.x);
  const Real step = (y - jet.value) / jet.slope;
  found.slope = static_cast<long double>(jet.slope + jet.bend * step);
  found.x += step;
  near = static_cast<double>(found.x);
  return found;
}

namespace {

// The exponents of the scales that mxfp8's blocks have for amax below 2^12, at whose last the numbers about
// GELU's minimum are still normal.
constexpr int kLeastScale = -127, kMostScale = 3, kBeyondLargest = 9;

// The points of one branch of a format whose numbers are all enumerated; in mxfp8 those of one scale.
void add_stored(const Curve& curve, const std::string& format, bool m, int exponent, Truth& truth) {
  const std::vector<Stored> numbers = numbers_of(format, exponent, m);
  const bool in_blocks = format == "mxfp8";
  // No element of a block reaches the power of two that follows its largest number.
  const double end = in_blocks          ? std::ldexp(1.0, kBeyondLargest + exponent)
                     : format == "e4m3" ? 464.0
                                        : std::numeric_limits<double>::infinity();
  const bool limited = curve.end() < kEndOfLine;
  double near = curve.first_guess(0, m);
  bool first = true, flat = false;
  Curve::Preimage below;
  long double flat_slope = 0;
  const bool tiny = codes_of(format) < 1u << 16 && !in_blocks;  // only a direct table is for such a format
  const long double far_slope =
      static_cast<long double>(curve.formula().at(Real(m ? curve.end() : -curve.end())).slope);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Stored& y = numbers[i];
    if (std::isinf(y.value) && y.value < 0) continue;
    // +0 and -0 are two codes of one number. What rounds to -0 ends at 0, and what rounds to +0 begins there.
    const bool next_is_twin = i + 1 < numbers.size() && numbers[i + 1].value == y.value,
               last_is_twin = i > 0 && numbers[i - 1].value == y.value;
    const double upper = next_is_twin             ? 0.0
                         : i + 1 < numbers.size() ? midpoint(format, y, numbers[i + 1])
                                                  : end;
    if (curve.masked() && Real(upper) <= curve.y_star()) continue;
    if (first) {
      const double lower = last_is_twin ? 0.0 : i > 0 ? midpoint(format, numbers[i - 1], y) : -end;
      near = curve.first_guess(lower, m);
      below = curve.preimage(Real(lower), m, near);
      first = false;
    }
    if (below.beyond && limited) break;  // there are no claims further out
    Curve::Preimage above;
    if (std::isinf(upper) || (flat && !limited)) {
      above = {true, false, Real(m ? curve.end() : -curve.end()), flat ? flat_slope : far_slope};
    } else {
      above = curve.preimage(Real(upper), m, near);
    }
    if (above.before) {
      below = above;
      continue;
    }
    // f' no longer changes, and x differs from y by a constant, so nothing further out needs a search.
    if (!flat && m && upper > 64 && std::fabs(above.slope - far_slope) < 0x1p-70L)
      flat = true, flat_slope = far_slope;
    if (below.beyond && above.beyond && !flat) break;  // the function has ended
    const Known known = range_between(curve, below, above);
    truth.add({y.value, y.code, m, !tiny && std::isfinite(y.value),
               true_root(curve, std::isinf(y.value) ? 0x1p127 : y.value)},
              known);
    truth.oracle = std::max(truth.oracle, (known.high - known.low) / 2);
    if (!tiny && std::isfinite(upper) && !above.beyond &&
        static_cast<double>(static_cast<float>(upper)) == upper)
      truth.add({static_cast<float>(upper), 0, m, true, true_root(curve, upper)},
                {.sloped = true, .slope = above.slope});
    below = above;
  }
}

// f at the place from which on f' is, as far as double tells, what it is at the end of the line.
double settled_value(const Curve& curve, bool right) {
  constexpr double kSettled = 0x1p-24, kEnd = 60, kStep = 0.25;
  const double sign = right ? 1 : -1, last = curve.formula().at(sign * kEnd).slope;
  double x = kEnd;
  while (x > -kEnd && !(std::fabs(curve.formula().at(sign * (x - kStep)).slope - last) >
                        kSettled * std::max(1.0, std::fabs(last))))
    x -= kStep;
  return curve.formula().at(sign * x).value;
}

// f32: places spread over every scale of the coordinate, on both branches.
std::vector<float> strata(const Curve& curve, bool m) {
  std::vector<float> at;
  const auto add = [&](double y) {
    if (std::isfinite(y) && std::fabs(y) <= 3e38) at.push_back(static_cast<float>(y));
  };
  constexpr int kUniform = 3000, kPerOctave = 6;
  if (curve.masked()) {
    const double star = static_cast<double>(curve.y_star());
    const double end =
        m ? settled_value(curve, true) : static_cast<double>(curve.formula().at(Real(-curve.end())).value);
    const double s_end = std::sqrt(std::max(end - star, 0x1p-20));
    for (int i = 0; i <= kUniform; ++i) add(star + std::pow(s_end * i / kUniform, 2));
    for (double t = 1; t > 0x1p-40; t *= 0.75) add(star + t);
    float lowest = static_cast<float>(star);
    for (int i = 0; i < 64; ++i) at.push_back(lowest), lowest = std::nextafter(lowest, 1e9f);
  } else {
    const double low = settled_value(curve, false), high = settled_value(curve, true);
    for (int i = 0; i <= kUniform; ++i) add(low + (high - low) * i / kUniform);
    for (double t = 1; t > 0x1p-40; t *= 0.75) add(low + t), add(high - t);
  }
  for (double y = 0x1p10; y >= 0x1p-149; y *= std::exp2(-1.0 / kPerOctave)) {
    if (m) add(y);
    add(-y);
  }
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  return at;
}

// The points where g is its limit by contract. For an expression, f' at the end of its line is not the limit.
void add_limits(const Curve& curve, Truth& truth) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto add = [&](float y, bool m, Known::Limit limit) {
    truth.add({.at = y, .m = m}, {.limit = limit});
  };
  for (const bool m : {true, false}) add(std::numeric_limits<float>::quiet_NaN(), m, Known::Limit::nan);
  if (curve.end() < kEndOfLine) return;
  add(kInfinity, true, Known::Limit::right);
  if (!curve.masked()) return add(-kInfinity, true, Known::Limit::left);
  add(-0.0f, false, Known::Limit::left);
  add(1.0f, false, Known::Limit::left);
}

}  // namespace

std::optional<ProductBall> product_ball(const std::string& format) {
  if (format != "f16" && format != "bf16") return {};
  const double u = format == "f16" ? 0x1p-11 : 0x1p-8;
  return ProductBall{u / (1 + u) + 0x1p-21, 0x1p-22};  // of the rounding, and what fp32 adds
}

namespace {

constexpr const char* kProductPrefix = "product_";

// f(x) of the x that y is just within reach of, from below or from above.
Real source(const ProductBall& ball, double y, int sign) {
  const Real w = Real(y) + sign * Real(ball.absolute);
  return w / (1 + ((w > 0) == (sign > 0) ? -Real(ball.relative) : Real(ball.relative)));
}

// The strata of f32, and the y around the one whose ball just reaches the minimum.
std::vector<float> quotients(const Curve& curve, const ProductBall& ball, bool m) {
  std::vector<float> at = strata(curve, m);
  const double star = static_cast<double>(curve.y_star()),
               touching = star * (1 - ball.relative) + ball.absolute;
  constexpr int kAround = 32;
  for (int k = -kAround; k <= kAround; ++k)
    at.push_back(static_cast<float>(star + (touching - star) * k / kAround));
  float near = static_cast<float>(touching);
  for (int k = 0; k < kAround; ++k) near = std::nextafter(near, -1e9f);
  for (int k = 0; k < 2 * kAround; ++k) at.push_back(near), near = std::nextafter(near, 1e9f);
  std::sort(at.begin(), at.end());
  return at;
}

void add_quotients(const Curve& curve, const ProductBall& ball, bool m, Truth& truth) {
  double near_low = curve.first_guess(-1, m), near_high = near_low, near = near_low;
  for (const float y : quotients(curve, ball, m)) {
    const auto at = static_cast<double>(y);
    const Curve::Preimage low = curve.preimage(source(ball, at, -1), m, near_low),
                          high = curve.preimage(source(ball, at, 1), m, near_high);
    if (high.before || (low.beyond && high.beyond)) continue;
    Known known = range_between(curve, low, high);
    Point point{.at = y, .m = m};
    if (const Curve::Preimage x = curve.preimage(Real(y), m, near); !x.before && !x.beyond) {
      known.sloped = point.traced = true;
      known.slope = x.slope, point.root = true_root(curve, at);
    }
    truth.add(point, known);
    truth.oracle = std::max(truth.oracle, (known.high - known.low) / 2);
  }
}

}  // namespace

Truth backward_truth(const Curve& curve, const std::string& format) {
  Truth truth;
  truth.left_limit = static_cast<double>(curve.formula().at(Real(-curve.end())).slope);
  truth.right_limit = static_cast<double>(curve.formula().at(Real(curve.end())).slope);
  if (codes_of(format) == 1u << 16 || format == "mxfp8") add_limits(curve, truth);
  if (format.starts_with(kProductPrefix)) {
    for (const bool m : {true, false})
      add_quotients(curve, *product_ball(format.substr(std::string(kProductPrefix).size())), m, truth);
    return truth;
  }
  if (format == "f32") {
    for (const bool m : {true, false}) {
      if (!m && !curve.masked()) break;
      double near = curve.first_guess(-1, m);
      for (const float y : strata(curve, m)) {
        const Curve::Preimage x = curve.preimage(Real(y), m, near);
        if (x.before || x.beyond) continue;
        truth.add({y, 0, m, true, true_root(curve, y)}, {.sloped = true, .slope = x.slope});
      }
    }
    return truth;
  }
  const bool in_blocks = format == "mxfp8";
  for (int exponent = in_blocks ? kLeastScale : 0; exponent <= (in_blocks ? kMostScale : 0); ++exponent) {
    add_stored(curve, format, true, exponent, truth);
    if (curve.masked()) add_stored(curve, format, false, exponent, truth);
  }
  return truth;
}

namespace {

// The number of a 16-bit format nearest to v, ties to even.
float rounded(const std::string& format, const Real& v) {
  float guess = static_cast<float>(v);
  std::uint32_t code = format == "bf16" ? kernels::narrow<kernels::BF16>(guess).bits
                                        : kernels::narrow<kernels::F16>(guess).bits;
  const std::uint32_t sign = code & 0x8000u;
  // The first rounding may have moved v across a midpoint, so a neighbour may be nearer.
  for (int turn = 0; turn < 2; ++turn) {
    const std::uint32_t magnitude = code & 0x7fffu;
    const Real size = abs(v);
    const double here = std::fabs(static_cast<double>(widened(format, code)));
    if (std::isinf(here)) break;
    const double up = here + ulp_of(format, here) / 2,
                 down = magnitude == 0
                            ? -1
                            : (here + std::fabs(static_cast<double>(widened(format, code - 1)))) / 2;
    if (size > Real(up) || (size == Real(up) && magnitude % 2 == 1)) {
      code = sign | (magnitude + 1);
    } else if (size < Real(down) || (size == Real(down) && magnitude % 2 == 1)) {
      code = sign | (magnitude - 1);
    }
  }
  return widened(format, code);
}

}  // namespace

Truth forward_truth(const Curve& curve, const std::string& format) {
  Truth truth;
  const auto add = [&](float x, bool stored) {
    const Real value = curve.formula().at(Real(x)).value;
    Known known{.sloped = true, .slope = static_cast<long double>(value)};
    if (stored) known.stored = true, known.low = known.high = static_cast<double>(rounded(format, value));
    truth.add({.at = x, .traced = true}, known);
  };
  if (format != "f32") {
    for (std::uint32_t code = 0; code < codes_of(format); ++code) {
      const float x = widened(format, code);
      if (std::isfinite(x)) add(x, true);
    }
    return truth;
  }
  const auto add_uniform = [&](double low, double high, int count) {
    for (int i = 0; i <= count; ++i) add(static_cast<float>(low + (high - low) * i / count), false);
  };
  // Most f reach their ends by 15 and 8. The exponential ones fade as far as -110, and are x from 20 on.
  add_uniform(-15, 8, 12000);
  add_uniform(-115, -15, 3000);
  add_uniform(8, 24, 1000);
  add(0.0f, false), add(-0.0f, false);
  for (double x = 0.5; x >= 0x1p-126; x *= 0.75)
    add(static_cast<float>(x), false), add(static_cast<float>(-x), false);
  return truth;
}

namespace {

struct Coded {
  const char* name;
  float (*gradient)(float x);
};

template <class... A>
const Coded* coded(const std::string& activation, kernels::CodedList<A...>) {
  const Coded* found = nullptr;
  const auto look = [&]<class Each>() {
    static constexpr Coded kCoded{Each::Code::kName,
                                  kernels::gradient_at<typename Each::template Forward<float>>};
    if (activation == Each::Code::kActivation) found = &kCoded;
  };
  (look.template operator()<A>(), ...);
  return found;
}

const Coded* coded(const std::string& activation) { return coded(activation, kernels::CodedActivations{}); }

}  // namespace

std::string code_name(const std::string& activation) {
  const Coded* const found = coded(activation);
  return found ? found->name : "";
}

Truth code_truth(const Curve& curve, const std::string& activation) {
  const Coded* const library = coded(activation);
  Truth truth;
  const auto add = [&](float x) {
    truth.add({.at = x}, {.sloped = true,
                          .slope = static_cast<long double>(curve.formula().at(Real(x)).slope),
                          .gradient = library != nullptr ? library->gradient(x) : 0});
  };
  for (std::uint32_t code = 0; code < codes_of("bf16"); ++code) {
    const float x = widened("bf16", code);
    if (library != nullptr ? std::isfinite(x) : std::fabs(x) <= curve.end()) add(x);
  }
  constexpr int kNeighbours = 4000;
  const auto add_near = [&](const Real& centre) {
    float up = static_cast<float>(centre), down = up;
    for (int i = 0; i < kNeighbours; ++i) {
      add(up), add(down);
      up = std::nextafter(up, 1e9f), down = std::nextafter(down, -1e9f);
    }
  };
  if (curve.masked()) add_near(curve.x_star());
  for (const Real& x : curve.inflections()) add_near(x);
  // Far from 0 neighbouring x of bf16 lie so far apart that f' changes much between them: x of fp32 around
  // each inflection as well.
  constexpr double kAround = 24, kLeastAround = 0x1p-12;
  for (const Real& centre : curve.inflections()) {
    for (double away = kAround; library == nullptr && away > kLeastAround; away *= 0.98) {
      for (const double x : {static_cast<double>(centre) - away, static_cast<double>(centre) + away}) {
        if (std::fabs(x) <= curve.end()) add(static_cast<float>(x));
      }
    }
  }
  return truth;
}

double coordinate_error(const Curve& curve, const Truth& truth, const Claims& claims, float& at) {
  double largest = 0;
  const double star = static_cast<double>(curve.y_star());
  for (const bool m : {true, false}) {
    double near_true = curve.first_guess(star, m), near_moved = near_true, last = 0,
           before = -std::numeric_limits<double>::infinity();
    int taken = 0;
    for (size_t i = 0; i < truth.points.size(); ++i) {
      const Point& point = truth.points[i];
      const Known& known = truth.known[i];
      if (point.m != m || !(known.stored || known.sloped) || !std::isfinite(point.at)) continue;
      // midpoints are not stored numbers
      if (claims.kind == Claims::Kind::backward && !known.stored && std::string(claims.format) != "f32")
        continue;
      const double y = point.at, above = y - star;
      constexpr int kAll = 200;
      // the numbers of the next scale
      if (y < before) taken = 0, last = 0, near_true = near_moved = curve.first_guess(star, m);
      before = y;
      if (taken > kAll && above < last * 1.05) continue;
      ++taken, last = above;
      const double s_c = std::sqrt(std::max(y - claims.y_hi - claims.y_lo, claims.t_min));
      if (m && claims.has_right && s_c >= claims.right_s) continue;
      if (!m && claims.has_left && y > claims.left_y) continue;
      if (!m && claims.right_both && s_c >= claims.right_s) continue;
      if (!m && !claims.has_left && -s_c < claims.s_min) continue;
      if (y > claims.y_max) continue;
      const Real t = Real(y) - Real(claims.y_hi) - Real(claims.y_lo), floor = Real(claims.t_min);
      const Curve::Preimage right = curve.preimage(Real(y), m, near_true);
      const Curve::Preimage moved = curve.preimage(curve.y_star() + (t > floor ? t : floor), m, near_moved);
      if (moved.beyond || right.beyond) continue;
      const auto error = static_cast<double>(std::fabs(moved.slope - right.slope));
      if (error > largest) largest = error, at = point.at;
    }
  }
  return largest;
}

}  // namespace outgrad::validation::gate
