// Weights of bit patterns, see distribution.h.
#include "validation/sweep/distribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "kernels/support/json_node.h"

namespace outgrad::validation {
namespace {

constexpr const char* kSchema = "outgrad.activations/1";
constexpr std::size_t kMostBins = std::size_t{1} << 20;
constexpr double kReach = 4;  // sigma

double normal_density(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi); }

}  // namespace

nlohmann::ordered_json ExactSum::to_json() const {
  return {static_cast<std::int64_t>(sum_ >> 64), static_cast<std::uint64_t>(sum_), finite_};
}

ExactSum ExactSum::from_json(const nlohmann::json& json) {
  ExactSum sum;
  sum.sum_ = static_cast<Wide>(json.at(0).get<std::int64_t>()) * (static_cast<Wide>(1) << 64) +
             json.at(1).get<std::uint64_t>();
  sum.finite_ = json.at(2).get<bool>();
  return sum;
}

Distribution Distribution::normal(double sigma) {
  Distribution d;
  d.name_ = fmt::format("N(0, {}^2)", sigma);
  d.sigma_ = sigma;
  return d;
}

Distribution Distribution::parse(const std::string& text, const std::string& file) {
  return from_json(kernels::parse_json(text, file), file);
}

Distribution Distribution::from_json(const nlohmann::json& json, const std::string& file) {
  const kernels::JsonNode node(json, file);
  if (node.has("sigma")) {
    const double sigma = node["sigma"].finite();
    if (!(sigma > 0)) node["sigma"].fail("is not above 0");
    return normal(sigma);
  }
  node.expect_schema(kSchema);
  Distribution d;
  d.name_ = node["name"].text();
  d.first_ = node["first"].finite();
  d.width_ = node["width"].finite();
  if (!(d.width_ > 0)) node["width"].fail("is not above 0");
  const auto counts = node["counts"].items();
  if (counts.empty() || counts.size() > kMostBins)
    node["counts"].fail(fmt::format("has {} bins, not from 1 to {}", counts.size(), kMostBins));
  constexpr std::int64_t kMostElements = std::int64_t{1} << 53;
  std::int64_t sum = 0;
  for (const kernels::JsonNode& count : counts) {
    d.below_.push_back(static_cast<double>(sum));
    if (count.count() > kMostElements - sum) count.fail("takes the sum beyond 2^53");
    sum += count.count();
  }
  if (sum == 0 || sum != node["elements"].count())
    node["elements"].fail(fmt::format("is not the sum of the counts, {}", sum));
  d.below_.push_back(static_cast<double>(sum));
  for (double& share : d.below_) share /= static_cast<double>(sum);
  d.source_ = nlohmann::ordered_json(json);
  return d;
}

nlohmann::ordered_json Distribution::to_json() const {
  if (sigma_ > 0) return {{"sigma", sigma_}};
  return source_;
}

std::int64_t Distribution::bin_of(double x) const {
  const double bin = std::floor((x - first_) / width_);
  const auto bins = static_cast<double>(below_.size() - 1);
  return bin < 0 ? -1 : bin >= bins ? static_cast<std::int64_t>(bins) : static_cast<std::int64_t>(bin);
}

double Distribution::cumulative(double x) const {
  const std::int64_t bin = bin_of(x);
  if (bin < 0) return 0;
  if (bin + 1 >= static_cast<std::int64_t>(below_.size())) return 1;
  const auto k = static_cast<std::size_t>(bin);
  return below_[k] + (below_[k + 1] - below_[k]) * ((x - first_) / width_ - static_cast<double>(bin));
}

double Distribution::density(double x) const {
  if (sigma_ > 0) return normal_density(x / sigma_) / sigma_;
  const std::int64_t bin = bin_of(x);
  if (bin < 0 || bin + 1 >= static_cast<std::int64_t>(below_.size())) return 0;
  const auto k = static_cast<std::size_t>(bin);
  return (below_[k + 1] - below_[k]) / width_;
}

double Distribution::mass(double a, double b) const {
  if (!(a < b)) return 0;
  const double width = b - a, farthest = std::max({std::fabs(a), std::fabs(b), sigma_});
  // below this, the seventh power of width * z / sigma is less than the rounding of exp
  constexpr double kNarrow = 0x1p-4;
  if (sigma_ > 0 && std::isfinite(width) && width * farthest < kNarrow * sigma_ * sigma_) {
    const double middle = a + width / 2, node = width / 2 * std::sqrt(0.6);
    return width * (8 * density(middle) + 5 * (density(middle - node) + density(middle + node))) / 18;
  }
  if (sigma_ > 0) {  // computed on the side where erfc is small
    const double scale = 1 / (sigma_ * std::numbers::sqrt2);
    if (a < 0 && b > 0) return (std::erf(b * scale) - std::erf(a * scale)) / 2;
    return a >= 0 ? (std::erfc(a * scale) - std::erfc(b * scale)) / 2
                  : (std::erfc(-b * scale) - std::erfc(-a * scale)) / 2;
  }
  if (bin_of(a) == bin_of(b)) return width * density(a);  // avoids a difference of shares
  return cumulative(b) - cumulative(a);
}

std::array<double, 2> Distribution::reach() const {
  if (sigma_ > 0) return {-kReach * sigma_, kReach * sigma_};
  const double outside = std::erfc(kReach / std::numbers::sqrt2) / 2;
  const auto low = std::upper_bound(below_.begin(), below_.end(), outside) - below_.begin() - 1;
  const auto high = std::lower_bound(below_.begin(), below_.end(), 1 - outside) - below_.begin();
  return {first_ + static_cast<double>(low) * width_, first_ + static_cast<double>(high) * width_};
}

bool Distribution::regular(double low, double high) const {
  const double inward = (high - low) * 0x1p-21;
  return sigma_ > 0 || bin_of(low + inward) == bin_of(high - inward);
}

Distribution::Sums Distribution::weigh(const BlockMoments& block) const {
  const double at = block.spacing * density(block.centre);
  const auto n = static_cast<double>(block.count);
  if (at == 0) return {};
  if (sigma_ == 0) return {at * n, at * block.error[0], at * block.square[0]};
  const double p = block.centre * block.half_width / (sigma_ * sigma_),
               q = block.half_width * block.half_width / (2 * sigma_ * sigma_);
  const double second = p * p / 2 - q, third = p * q - p * p * p / 6;
  const auto sum = [&](const std::array<double, 4>& m) {
    return at * (m[0] - p * m[1] + second * m[2] + third * m[3]);
  };
  return {at * n * (1 + second * (1 - 1 / (n * n)) / 3), sum(block.error), sum(block.square)};
}

std::vector<Distribution> usual_distributions() {
  return {Distribution::normal(0.5), Distribution::normal(1), Distribution::normal(2)};
}

std::array<double, 2> step_from_zero(float x) {
  if (std::signbit(x)) return {std::nextafter(x, -INFINITY), x};
  return {x, std::nextafter(x, INFINITY)};
}

std::array<double, 2> rounding_interval(double v, const FloatFormat& format) {
  if (v == 0) {  // the two zeros share the line
    const double half = std::ldexp(0.5, format.quantum_exponent);
    return std::signbit(v) ? std::array<double, 2>{-half, 0} : std::array<double, 2>{0, half};
  }
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(v), &exponent);
  const int last_place = std::max(exponent - format.precision, format.quantum_exponent);
  const double half = std::ldexp(0.5, last_place);
  // a power of two: the spacing towards 0 is half as large
  const bool narrow_below = fraction == 0.5 && last_place > format.quantum_exponent;
  const double low = std::fabs(v) - (narrow_below ? half / 2 : half), high = std::fabs(v) + half;
  return v > 0 ? std::array<double, 2>{low, high} : std::array<double, 2>{-high, -low};
}

}  // namespace outgrad::validation
