// Reads and evaluates quantisers, see quantiser.h.
#include "validation/sweep/quantiser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validation/exact/reference.h"

namespace outgrad::validation {
namespace {

constexpr int kMostBits = 8, kMostRandomBits = 32;
// The numbers of e4m3 from -448 to 448: -0 and +0 are one, NaNs are none.
constexpr int kE4m3Numbers = 253, kE4m3Zero = 126, kE4m3PerBinade = 8, kE4m3LeastExponent = -6;
constexpr double kE4m3Step = 32;  // the greatest, between 224 and 448

int e4m3_place(double number) {
  const double magnitude = std::fabs(number);
  const int exponent =
      magnitude == 0 ? kE4m3LeastExponent : std::max(std::ilogb(magnitude), kE4m3LeastExponent);
  const int place = (exponent - kE4m3LeastExponent) * kE4m3PerBinade +
                    static_cast<int>(std::ldexp(magnitude, kE4m3.precision - 1 - exponent));
  return kE4m3Zero + (number < 0 ? -place : place);
}

double e4m3_number(int place) {
  const int from_zero = std::abs(place - kE4m3Zero), binade = std::max(from_zero / kE4m3PerBinade - 1, 0);
  const double magnitude = std::ldexp(from_zero - binade * kE4m3PerBinade, binade + kE4m3.quantum_exponent);
  return place < kE4m3Zero ? -magnitude : magnitude;
}
constexpr std::size_t kMostRanges = 64;

std::array<double, 2> read_interval(const kernels::JsonNode& node) {
  const auto ends = node.items(2);
  const std::array<double, 2> interval{ends[0].finite(), ends[1].finite()};
  if (!(interval[0] < interval[1])) node.fail("is not [from, to] with from < to");
  return interval;
}

int between(const kernels::JsonNode& node, int least, int most) {
  const std::int64_t value = node.count();
  if (value < least || value > most) node.fail(fmt::format("is not from {} to {}", least, most));
  return static_cast<int>(value);
}

}  // namespace

double Quantiser::bits_per_element(const FloatFormat& format) const {
  return bits + (e4m3 ? 1.0 : 2.0) * (kept ? *kept : computed_in(format)).bits / static_cast<double>(group) +
         keeps_y;
}

double Quantiser::u(std::uint64_t k) const {
  const double whole = round_to_format(static_cast<double>(k), kF32);
  return round_to_format(std::ldexp(whole + u_offset, -u_bits), kF32);
}

Quantiser read_quantiser(const kernels::JsonNode& node) {
  node.expect_keys({"schema",   "name",   "activation", "kind",       "source", "claims",   "keeps",  "codes",
                    "bits",     "levels", "epsilon",    "group",      "range",  "momentum", "ranges", "x",
                    "rounding", "u",      "overflow",   "arithmetic", "fma",    "kept_in"});
  Quantiser q;
  q.keeps_y = node["keeps"].word<bool>({{"x", false}, {"y", true}});
  q.bits = between(node["bits"], 1, kMostBits);
  if (node.has("codes")) q.e4m3 = node["codes"].word<bool>({{"whole", false}, {"e4m3", true}});
  if (q.e4m3 && q.bits != kE4m3.bits) node["bits"].fail("is not 8, the width of e4m3");
  q.levels = between(node["levels"], 1, q.e4m3 ? static_cast<int>(kE4m3.largest) : (1 << q.bits) - 1);
  q.epsilon = node["epsilon"].finite();
  if (q.epsilon < 0) node["epsilon"].fail("is negative");
  q.group = node["group"].count();
  q.rule = node["range"].word<Quantiser::Rule>({{"exact", Quantiser::Rule::exact},
                                                {"given", Quantiser::Rule::given},
                                                {"running", Quantiser::Rule::running}});
  if (q.group < (q.rule == Quantiser::Rule::exact ? 2 : 1))
    node["group"].fail(q.group < 1 ? "is not positive" : "is 1: its min and max are equal");
  if (node.has("momentum") != (q.rule == Quantiser::Rule::running))
    node.fail("has not 'momentum' just for a running range");
  if (node.has("momentum")) {
    q.momentum = node["momentum"].finite();
    if (!(q.momentum > 0 && q.momentum <= 1)) node["momentum"].fail("is not in (0, 1]");
  }
  const auto ranges = node["ranges"].items();
  if (ranges.empty() || ranges.size() > kMostRanges)
    node["ranges"].fail(fmt::format("has {} ranges, not from 1 to {}", ranges.size(), kMostRanges));
  for (const kernels::JsonNode& range : ranges) q.ranges.push_back(read_interval(range));
  if (node.has("x") == (q.rule == Quantiser::Rule::exact))
    node.fail("has not 'x' just for a range that is not exact");
  if (node.has("x")) q.x = read_interval(node["x"]);
  q.stochastic = node["rounding"].word<bool>({{"nearest", false}, {"stochastic", true}});
  if (node.has("u") != q.stochastic) node.fail("has not 'u' just for stochastic rounding");
  if (q.stochastic) {
    const kernels::JsonNode u = node["u"];
    u.expect_keys({"bits", "offset"});
    q.u_bits = between(u["bits"], 1, kMostRandomBits);
    q.u_offset = u["offset"].finite();
    if (!(q.u_offset >= 0 && q.u_offset <= 1)) u["offset"].fail("is not from 0 to 1");
  }
  q.wraps = node["overflow"].word<bool>({{"wrap", true}, {"saturate", false}});
  q.arithmetic = node["arithmetic"].word<const FloatFormat*>(
      {{"own", nullptr}, {"f32", &kF32}, {"f16", &kF16}, {"bf16", &kBf16}});
  if (q.e4m3 && q.rule != Quantiser::Rule::exact)
    node["range"].fail("is not exact, as it is for numbers of e4m3");
  if (q.e4m3 && q.stochastic) node["rounding"].fail("is not nearest, as it is for numbers of e4m3");
  if (q.e4m3 && q.wraps) node["overflow"].fail("is not saturate, as it is for numbers of e4m3");
  q.fma = node["fma"].boolean();
  q.kept = node["kept_in"].word<const FloatFormat*>(
      {{"same", nullptr}, {"f32", &kF32}, {"f16", &kF16}, {"bf16", &kBf16}});
  return q;
}

QuantisedGroup::QuantisedGroup(const Quantiser& of, double min, double max, const FloatFormat& format)
    : of_(of), format_(of.computed_in(format)), min_(round_to_format(min, format)),
      max_(round_to_format(max, format)), offset_(round_to_format(min_, format_)) {
  scale_by(round_to_format(max_ - min_, format_));
}

QuantisedGroup::QuantisedGroup(const Quantiser& of, const Moved& moved, const FloatFormat& format)
    : of_(of), format_(of.computed_in(format)), min_(moved.min), max_(moved.min + moved.c),
      offset_(moved.min) {
  scale_by(moved.c);
}

void QuantisedGroup::scale_by(double c) {
  if (of_.e4m3) {
    offset_ = 0;
    const double most = std::max(std::fabs(min_), std::fabs(max_));
    scale_ = round_to_format(round_to_format(most + of_.epsilon, format_) / of_.levels, format_);
  } else {
    scale_ = round_to_format(of_.levels / (c + of_.epsilon), format_);
  }
  kept_scale_ = of_.kept ? round_to_format(scale_, *of_.kept) : scale_;
  kept_offset_ = of_.kept ? round_to_format(offset_, *of_.kept) : offset_;
  last_raw_ = of_.wraps ? (1 << of_.bits) - 1 : of_.e4m3 ? codes() - 1 : of_.levels;
  if (of_.stochastic) least_u_ = of_.u(0), greatest_u_ = of_.u((std::uint64_t{1} << of_.u_bits) - 1);
  if (!(c > 0 && std::isfinite(c))) {
    problem_ = fmt::format("has max - min = {} in {}", c, format_.name);
  } else if (!(scale_ > 0 && std::isfinite(scale_) && kept_scale_ > 0 && std::isfinite(kept_scale_))) {
    problem_ = fmt::format("has the scale {} in {}, kept as {}", scale_, format_.name, kept_scale_);
  } else if (!std::isfinite(value(0)) || !std::isfinite(value(codes() - 1))) {
    problem_ = fmt::format("has codes that stand for what is not finite in {}", format_.name);
  }
}

double QuantisedGroup::step() const { return of_.e4m3 ? scale_ * kE4m3Step : 1 / scale_; }

double QuantisedGroup::raw(double z, double u) const {
  if (of_.e4m3)
    return e4m3_place(std::clamp(round_to_format(round_to_format(z / scale_, format_), kE4m3), -kE4m3.largest,
                                 kE4m3.largest));
  // Every rounding of a binary64 result to at most 24 bits is that of the exact result: binary64 has more
  // than 2 p + 2 bits.
  const double d = round_to_format(z - offset_, format_);
  double t = 0;
  if (of_.fma && format_.precision == kF32.precision && of_.stochastic) {
    t = static_cast<double>(
            std::fma(static_cast<float>(d), static_cast<float>(scale_), static_cast<float>(u))) -
        0.5;
  } else {
    const double v = round_to_format(d * scale_, format_);
    t = of_.stochastic ? round_to_format(v + u, kF32) - 0.5 : v;
  }
  const double r = std::nearbyint(std::max(t, 0.0));
  return of_.wraps ? r : std::min(r, static_cast<double>(of_.levels));
}

double QuantisedGroup::probability(double z, double r) const {
  if (least_raw(z) >= r) return 1;
  if (!(greatest_raw(z) >= r)) return 0;
  std::uint64_t below = 0, reaches = (std::uint64_t{1} << of_.u_bits) - 1;
  while (reaches - below > 1) {
    const std::uint64_t middle = below + (reaches - below) / 2;
    (raw(z, of_.u(middle)) >= r ? reaches : below) = middle;
  }
  return 1 - std::ldexp(static_cast<double>(reaches), -of_.u_bits);
}

int QuantisedGroup::codes() const { return of_.e4m3 ? kE4m3Numbers : 1 << of_.bits; }

int QuantisedGroup::code(double raw) const {
  constexpr double kLargestInt = 0x7fffffff;  // where a conversion to int32 saturates
  return static_cast<int>(std::fmod(std::min(raw, kLargestInt), std::ldexp(1.0, of_.bits)));
}

double QuantisedGroup::value(int code) const {
  if (of_.e4m3) return round_to_format(e4m3_number(code) * kept_scale_, format_);
  return round_to_format(round_to_format(code / kept_scale_, format_) + kept_offset_, format_);
}

}  // namespace outgrad::validation
