// Audits quantisers, see quantiser_audit.h.
#include "validation/sweep/quantiser_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <optional>
#include <random>
#include <utility>

#include "kernels/host/errors.h"
#include "kernels/host/parallel.h"
#include "kernels/support/parallel.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMargin = 0x1p-49;  // g within 2^-50, f' within 2^-51
constexpr double kMostRaw = 0x1p14;

/// The x of one side of x* (or all, if x is kept), in the order in which z rises.
class Stretch {
 public:
  struct Element {
    float x;
    double z, slope;
  };

  Stretch(const SweptActivation& activation, const FloatFormat& format, bool keeps_y, bool right)
      : domain_{format}, activation_(activation), oracle_(activation.oracle()), keeps_y_(keeps_y),
        right_(right) {
    const std::int64_t middle = domain_.first_right(activation.x_star);
    begin_ = keeps_y && right ? middle : 0;
    end_ = keeps_y && !right ? middle : domain_.finite();
  }

  bool right() const { return right_; }
  std::int64_t size() const { return std::max<std::int64_t>(0, end_ - begin_); }
  float x(std::int64_t at) const { return domain_.at(right_ ? begin_ + at : end_ - 1 - at); }
  Element operator[](std::int64_t at) const {
    Element e{x(at), 0, 0};
    double value = 0, lo = 0, hi = 0;
    activation_.reference().evaluate(&e.x, &value, &lo, &hi, &e.slope, 1);
    float y = e.x;
    if (keeps_y_) round_values({&e.x, &lo, &hi, 1}, &y, domain_.x_format, *oracle_);
    e.z = y;
    return e;
  }
  double z(std::int64_t at) const { return keeps_y_ ? (*this)[at].z : static_cast<double>(x(at)); }

  /// The first element of which `reached` holds; it holds for all after that one.
  template <class Reached>
  std::int64_t first(const Reached& reached) const {
    std::int64_t below = -1, found = size();
    while (found - below > 1) {
      const std::int64_t middle = below + (found - below) / 2;
      (reached(middle) ? found : below) = middle;
    }
    return found;
  }
  /// The first element at x or, in the order of the stretch, beyond it.
  std::int64_t first_at(double v) const {
    return first([&](std::int64_t at) { return right_ ? x(at) >= v : x(at) <= v; });
  }

  void keep_x(double from, double to) {
    const std::int64_t first_kept = domain_.first_right(from),
                       after = domain_.first_right(std::nextafter(to, kInfinity));
    begin_ = std::clamp(first_kept, begin_, end_);
    end_ = std::clamp(after, begin_, end_);
  }
  void keep_z(double from, double to) {
    const std::int64_t low = first([&](std::int64_t at) { return z(at) >= from; }),
                       high = first([&](std::int64_t at) { return z(at) > to; });
    const std::int64_t count = size();
    (right_ ? begin_ : end_) += right_ ? low : -low;
    (right_ ? end_ : begin_) += right_ ? high - count : count - high;
    end_ = std::max(begin_, end_);
  }

 private:
  Domain domain_;
  const SweptActivation& activation_;
  std::unique_ptr<Oracle> oracle_;
  bool keeps_y_, right_;
  std::int64_t begin_ = 0, end_ = 0;
};

/// g of the codes of one group on one side of x*.
class Slopes {
 public:
  Slopes(const SweptActivation& activation, const QuantisedGroup& group, bool of_y, bool right)
      : activation_(activation), group_(group), oracle_(of_y ? activation.oracle() : nullptr), right_(right) {
  }

  double of_code(int code) {
    std::optional<double>& g = known_[static_cast<std::size_t>(code)];
    if (!g) {
      const double value = group_.value(code);
      g = oracle_ ? oracle_->derivative_at_value(value, right_)
                  : activation_.reference().slope_at(static_cast<float>(value));
    }
    return *g;
  }
  double of_raw(double raw) { return of_code(group_.code(raw)); }

 private:
  const SweptActivation& activation_;
  const QuantisedGroup& group_;
  std::unique_ptr<Oracle> oracle_;
  bool right_;
  std::array<std::optional<double>, 256> known_;
};

/// The mean over u of (g - f')^2 for an element.
double mean_square(const QuantisedGroup& group, Slopes& slopes, double z, double slope) {
  double sum = 0, reaches = 1;
  for (double r = group.least_raw(z), last = group.greatest_raw(z); r <= last; ++r) {
    const double beyond = r < last ? group.probability(z, r + 1) : 0, error = slopes.of_raw(r) - slope;
    sum += (reaches - beyond) * error * error;
    reaches = beyond;
  }
  return sum;
}

class Audit {
 public:
  Audit(const ForeignFunction& function, const QuantisedGroup& group, const FloatFormat& format,
        const std::vector<Distribution>& distributions, QuantiserErrors& errors)
      : quantiser_(*function.quantiser), activation_(*function.activation), group_(group), format_(format),
        distributions_(distributions), errors_(errors), squares_(distributions.size()),
        mass_(distributions.size()) {
    const Formula& formula = activation_.analysis().only();
    for (const Formula::Part& part : formula.parts) {
      if (part.bend == 0) bends_.push_back({part.low, part.high});
    }
  }

  void add(const Stretch& stretch) {
    Slopes slopes(activation_, group_, quantiser_.keeps_y, stretch.right());
    const std::vector<std::int64_t> cells = cells_of(stretch);
    std::map<int, std::array<double, 2>> reached;  // the range of f' over the x of each code
    for (std::size_t i = 0; i < cells.size(); ++i) {
      add_cell(stretch, cells[i], (i + 1 < cells.size() ? cells[i + 1] : stretch.size()) - 1, slopes,
               reached);
    }
    for (const auto& [code, range] : reached)
      errors_.oracle = std::max(errors_.oracle, (range[1] - range[0]) / 2);
  }

  void finish() {
    for (std::size_t k = 0; k < distributions_.size(); ++k) {
      errors_.under.push_back({distributions_[k].name(), mass_[k], std::sqrt(squares_[k] / mass_[k])});
    }
    if (errors_.total.value >= 0)
      errors_.total_bound = std::nextafter(errors_.total_bound + kMargin, kInfinity);
    if (errors_.wrapped.value >= 0)
      errors_.wrapped_bound = std::nextafter(errors_.wrapped_bound + kMargin, kInfinity);
    // the sums of a few products in binary64
    errors_.bias_bound = errors_.bias_bound * (1 + 0x1p-40) + kMargin;
  }

 private:
  /// The first elements of the cells.
  std::vector<std::int64_t> cells_of(const Stretch& stretch) const {
    std::vector<std::int64_t> cells{0};
    if (format_.bits < 32) {
      for (std::int64_t at = 1; at < stretch.size(); ++at) cells.push_back(at);
      return cells;
    }
    const double last = group_.greatest_raw(stretch.z(stretch.size() - 1));
    for (double r = group_.least_raw(stretch.z(0)) + 1; r <= last; ++r) {
      cells.push_back(
          stretch.first([&](std::int64_t at) { return group_.greatest_raw(stretch.z(at)) >= r; }));
      cells.push_back(stretch.first([&](std::int64_t at) { return group_.least_raw(stretch.z(at)) >= r; }));
    }
    cells.push_back(stretch.first([&](std::int64_t at) { return stretch.z(at) >= group_.min(); }));
    cells.push_back(stretch.first([&](std::int64_t at) { return stretch.z(at) > group_.max(); }));
    sort_cells(cells, stretch.size());
    const int pieces = std::clamp((1 << 14) >> quantiser_.bits, 64, 1024);
    for (std::size_t i = 0, count = cells.size(); i < count; ++i) {
      const double from = stretch.x(cells[i]),
                   to = stretch.x((i + 1 < count ? cells[i + 1] : stretch.size()) - 1);
      for (int k = 1; k < pieces; ++k) cells.push_back(stretch.first_at(from + (to - from) * k / pieces));
    }
    sort_cells(cells, stretch.size());
    return cells;
  }

  static void sort_cells(std::vector<std::int64_t>& cells, std::int64_t size) {
    std::erase_if(cells, [size](std::int64_t at) { return at >= size; });
    std::sort(cells.begin(), cells.end());
    cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
  }

  void add_cell(const Stretch& stretch, std::int64_t first, std::int64_t last, Slopes& slopes,
                std::map<int, std::array<double, 2>>& reached) {
    const Stretch::Element a = stretch[first], b = stretch[last];
    double lo = std::min(a.slope, b.slope), hi = std::max(a.slope, b.slope);
    const double left = std::min(a.x, b.x), right = std::max(a.x, b.x);
    for (const auto& [low, high] : bends_) {
      if (high < left || low > right || left == right) continue;
      const Interval within = activation_.analysis().only().slopes(left, right);
      lo = std::min(lo, within.lower()), hi = std::max(hi, within.upper());
    }
    const double least = group_.least_raw(a.z), greatest = group_.greatest_raw(b.z);
    for (double r = least; r <= greatest; ++r) {
      const int code = group_.code(r);
      const double g = slopes.of_code(code), bound = std::max(std::fabs(g - lo), std::fabs(g - hi));
      const bool wraps = r > group_.last_raw();
      Maximum& maximum = wraps ? errors_.wrapped : errors_.total;
      for (const Stretch::Element& e : {a, b})
        maximum.raise({std::fabs(g - e.slope), e.x, static_cast<float>(group_.value(code)), g, e.slope});
      double& bounded = wraps ? errors_.wrapped_bound : errors_.total_bound;
      bounded = std::max(bounded, bound);
      if (wraps) continue;
      const auto [range, added] = reached.try_emplace(code, std::array{lo, hi});
      range->second = {std::min(range->second[0], lo), std::max(range->second[1], hi)};
    }
    if (a.z >= group_.min() && b.z <= group_.max()) add_bias(a.z, b.z, least, greatest);
    add_squares(stretch, first, last, slopes);
  }

  void add_bias(double a, double b, double least, double greatest) {
    const double base = group_.value(group_.code(least));
    double at_a = base, at_b = base, low = base, high = base;
    for (double r = least + 1; r <= greatest; ++r) {
      const double rise = group_.value(group_.code(r)) - group_.value(group_.code(r - 1)),
                   p = group_.probability(a, r), q = group_.probability(b, r);
      at_a += p * rise, at_b += q * rise;
      low += (rise > 0 ? p : q) * rise, high += (rise > 0 ? q : p) * rise;
    }
    for (const auto& [z, bias] : {std::pair{a, at_a - a}, {b, at_b - b}}) {
      if (std::fabs(bias) > std::fabs(errors_.bias)) errors_.bias = bias, errors_.bias_at = z;
    }
    errors_.bias_bound = std::max({errors_.bias_bound, std::fabs(high - a), std::fabs(low - b)});
  }

  void add_squares(const Stretch& stretch, std::int64_t first, std::int64_t last, Slopes& slopes) {
    if (distributions_.empty()) return;
    const auto square_at = [&](std::int64_t at) {
      const Stretch::Element e = stretch[at];
      return mean_square(group_, slopes, e.z, e.slope);
    };
    double square = square_at(first);
    if (last > first) {
      const std::int64_t middle = std::clamp(
          stretch.first_at((static_cast<double>(stretch.x(first)) + stretch.x(last)) / 2), first, last);
      square = (square + 4 * square_at(middle) + square_at(last)) / 6;
    }
    const double left = rounding_interval(std::min(stretch.x(first), stretch.x(last)), format_)[0];
    const double right = rounding_interval(std::max(stretch.x(first), stretch.x(last)), format_)[1];
    for (std::size_t k = 0; k < distributions_.size(); ++k) {
      const double mass = distributions_[k].mass(left, right);
      mass_[k] += mass;
      squares_[k] += mass * square;
    }
  }

  const Quantiser& quantiser_;
  const SweptActivation& activation_;
  const QuantisedGroup& group_;
  const FloatFormat format_;
  const std::vector<Distribution>& distributions_;
  QuantiserErrors& errors_;
  std::vector<double> squares_, mass_;
  std::vector<std::array<double, 2>> bends_;
};

double normal_beyond(double z) { return std::erfc(z / std::numbers::sqrt2) / 2; }

/// The z beyond which a normal variable is with probability p.
double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (normal_beyond(middle) > p ? low : high) = middle;
  }
  return low;
}

}  // namespace

QuantiserErrors quantiser_errors(const ForeignFunction& function, std::size_t index,
                                 const FloatFormat& format, const std::vector<Distribution>& distributions,
                                 const std::string& file) {
  const Quantiser& quantiser = *function.quantiser;
  const std::string place = fmt::format("ranges[{}]", index);
  const QuantisedGroup group(quantiser, quantiser.ranges[index][0], quantiser.ranges[index][1], format);
  if (!group.problem().empty()) throw kernels::SpecError(file, place, group.problem());
  QuantiserErrors errors;
  errors.min = group.min(), errors.max = group.max(), errors.step = group.step();
  errors.x_from = kInfinity, errors.x_to = -kInfinity;
  errors.maximum_wraps = group.probability(group.max(), group.last_raw() + 1);
  Audit audit(function, group, format, distributions, errors);
  for (const bool right : {false, true}) {
    if (!right && !quantiser.keeps_y) continue;
    Stretch stretch(*function.activation, format, quantiser.keeps_y, right);
    if (quantiser.rule == Quantiser::Rule::exact) {
      stretch.keep_z(group.min(), group.max());
    } else {
      stretch.keep_x(quantiser.x[0], quantiser.x[1]);
    }
    if (stretch.size() == 0) continue;
    const double last = group.greatest_raw(stretch.z(stretch.size() - 1));
    if (!(last <= kMostRaw))
      throw kernels::SpecError(file, place,
                               fmt::format("takes x up to {} to the code {} before it wraps",
                                           stretch.x(stretch.size() - 1), last));
    for (const double x : {stretch.x(0), stretch.x(stretch.size() - 1)})
      errors.x_from = std::min(errors.x_from, x), errors.x_to = std::max(errors.x_to, x);
    audit.add(stretch);
  }
  if (errors.total.value < 0 && errors.wrapped.value < 0)
    throw kernels::SpecError(file, place, "holds no x of the format");
  audit.finish();
  return errors;
}

double quantiser_group_rms(const ForeignFunction& function, const FloatFormat& format, double sigma) {
  constexpr int kNodes = 32, kLeastPanels = 64;
  const Quantiser& quantiser = *function.quantiser;
  const SweptActivation& activation = *function.activation;
  const auto n = static_cast<double>(quantiser.group);
  // The maximum of n is at most t with probability (1 - p)^n, where p = P(z > t): all but 2^-29 of it is
  // between these.
  constexpr double kLost = 0x1p-30;
  const double nearest = normal_quantile(-std::expm1(std::log(kLost) / n)),
               farthest = normal_quantile(kLost / n);
  const double spacing = (farthest - nearest) / kNodes;
  const Distribution normal = Distribution::normal(sigma);
  const int per_step = 2 * std::max(1, kLeastPanels / 2 / quantiser.levels);
  struct Node {
    double weight = 0, square = 0;
  };
  std::vector<Node> nodes(static_cast<std::size_t>((kNodes + 1) * (kNodes + 1)));
  kernels::for_each_task(nodes.size(), 0, [&](std::size_t task) {
    const double low = -(nearest + spacing * static_cast<double>(task / (kNodes + 1))),
                 high = nearest + spacing * static_cast<double>(task % (kNodes + 1));
    if (!(low < high)) return;
    const QuantisedGroup group(quantiser, low * sigma, high * sigma, format);
    if (!group.problem().empty()) return;
    Slopes slopes(activation, group, false, true);
    const auto square_at = [&](double v) {
      const auto x = static_cast<float>(round_to_format(v, format));
      return mean_square(group, slopes, x, activation.reference().slope_at(x));
    };
    const double min = group.min(), width = group.max() - min, inside = normal.mass(min, group.max());
    const int panels = quantiser.levels * per_step;
    double interior = 0;
    for (int k = 0; k <= panels; ++k) {
      const double v = min + width * k / panels;
      interior += (k == 0 || k == panels ? 1 : k % 2 == 1 ? 4 : 2) * square_at(v) * normal.density(v);
    }
    interior *= width / panels / 3 / inside;
    const double elements = std::min(n, 2.0);
    Node& node = nodes[task];
    node.weight = normal.density(low * sigma) * normal.density(high * sigma) * std::pow(inside, n - 2);
    node.square = ((square_at(min) + square_at(group.max())) * elements / 2 + (n - elements) * interior) / n;
  });
  double weight = 0, square = 0;
  for (const Node& node : nodes) weight += node.weight, square += node.weight * node.square;
  return std::sqrt(square / weight);
}

std::vector<MaximumWraps> maximum_wraps(const Quantiser& quantiser, const FloatFormat& format) {
  if (!quantiser.wraps) return {};
  const FloatFormat& arithmetic = quantiser.computed_in(format);
  const std::int64_t numbers = std::int64_t{1} << (arithmetic.precision - 1);
  const bool alike = quantiser.epsilon == 0;
  std::vector<MaximumWraps> binades;
  for (int exponent = alike ? 0 : -2; exponent < (alike ? 1 : 6); ++exponent) {
    constexpr std::int64_t kTasks = 64;
    std::vector<MaximumWraps> parts(kTasks);
    kernels::for_each_task(kTasks, 0, [&](std::size_t task) {
      MaximumWraps& part = parts[task];
      const auto k = static_cast<std::int64_t>(task);
      for (std::int64_t i = numbers * k / kTasks; i < numbers * (k + 1) / kTasks; ++i) {
        const double c = std::ldexp(static_cast<double>(numbers + i), exponent + 1 - arithmetic.precision);
        const QuantisedGroup group(quantiser, QuantisedGroup::Moved{0, c}, format);
        if (!(group.greatest_raw(c) > group.last_raw())) continue;
        const double p = group.probability(c, group.last_raw() + 1);
        ++part.wrapping;
        part.mean += p;
        if (p > part.greatest) part.greatest = p, part.greatest_at = c;
      }
    });
    MaximumWraps& all = binades.emplace_back(MaximumWraps{std::ldexp(1.0, exponent), numbers});
    for (const MaximumWraps& part : parts) {
      all.wrapping += part.wrapping;
      all.mean += part.mean;
      if (part.greatest > all.greatest) all.greatest = part.greatest, all.greatest_at = part.greatest_at;
    }
    all.mean /= static_cast<double>(numbers);
  }
  return binades;
}

RunningWraps running_wraps(const Quantiser& quantiser, const FloatFormat& format, std::int64_t steps) {
  constexpr std::uint64_t kSeed = 20211122;
  const FloatFormat& arithmetic = quantiser.computed_in(format);
  const auto n = static_cast<double>(quantiser.group);
  // e^-16 of the first range is left
  const auto forgotten = static_cast<std::int64_t>(std::ceil(16 / quantiser.momentum));
  std::mt19937_64 random(kSeed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 12) + 0.5) * 0x1p-52; };
  const auto x_of = [&](double beyond) { return round_to_format(normal_quantile(beyond), format); };
  const auto moved = [&](double mean, double now) {
    return round_to_format(
        mean - round_to_format(quantiser.momentum * round_to_format(mean - now, arithmetic), arithmetic),
        arithmetic);
  };
  RunningWraps result{steps};
  QuantisedGroup::Moved range{};
  for (std::int64_t step = -forgotten; step < steps; ++step) {
    // The greatest of n elements is beaten with the probability p, and the others are independent below it.
    double left = n, p = -std::expm1(std::log(uniform()) / left);
    const double max = x_of(p), min = x_of(p + (1 - p) * std::exp(std::log(uniform()) / (n - 1)));
    const double c = round_to_format(max - min, arithmetic);
    range = step == -forgotten ? QuantisedGroup::Moved{min, c}
                               : QuantisedGroup::Moved{moved(range.min, min), moved(range.c, c)};
    if (step < 0) continue;
    const QuantisedGroup group(quantiser, range, format);
    bool wraps = false;
    for (double x = max; !wraps && left >= 1 && group.greatest_raw(x) > group.last_raw(); x = x_of(p)) {
      wraps = uniform() < group.probability(x, group.last_raw() + 1);
      if (--left >= 1) p = 1 - (1 - p) * std::exp(std::log(uniform()) / left);
    }
    result.wrapping += wraps;
  }
  return result;
}

Json audit_quantiser(const ForeignFunction& function, const FloatFormat& format,
                     const std::vector<Distribution>& distributions, const std::string& file) {
  const kernels::DefaultFloatEnvironment environment;
  const Quantiser& quantiser = *function.quantiser;
  const auto describe = [](const Maximum& m, double bound) -> Json {
    if (m.value < 0) return nullptr;
    return {{"value", m.value},
            {"x", fmt::format("{:a}", m.x)},
            {"kept", fmt::format("{:a}", m.y)},
            {"got", m.got},
            {"want", m.want},
            {"bound", bound}};
  };
  Json json{{"schema", kQuantiserSchema},
            {"activation", function.activation->name},
            {"format", format.name},
            {"foreign", origin_of(function)},
            {"bits_per_element", quantiser.bits_per_element(format)}};
  Json& ranges = json["ranges"] = Json::array();
  for (std::size_t i = 0; i < quantiser.ranges.size(); ++i) {
    const QuantiserErrors e = quantiser_errors(function, i, format, distributions, file);
    Json& range =
        ranges.emplace_back(Json{{"min", e.min},
                                 {"max", e.max},
                                 {"x", {e.x_from, e.x_to}},
                                 {"step", e.step},
                                 {"T", describe(e.total, e.total_bound)},
                                 {"T_wrapped", describe(e.wrapped, e.wrapped_bound)},
                                 {"O", e.oracle},
                                 {"bias", {{"value", e.bias}, {"at", e.bias_at}, {"bound", e.bias_bound}}},
                                 {"maximum_wraps", e.maximum_wraps}});
    Json& under = range["under"] = Json::array();
    for (const QuantiserErrors::Under& u : e.under)
      under.push_back({{"x", u.x}, {"mass", u.mass}, {"rms", u.mass > 0 ? Json(u.rms) : Json()}});
  }
  Json& groups = json["groups"] = Json::array();
  if (quantiser.rule == Quantiser::Rule::exact && !quantiser.keeps_y) {
    for (const double sigma : {0.5, 1.0, 2.0}) {
      groups.push_back(
          {{"x", Distribution::normal(sigma).name()}, {"rms", quantiser_group_rms(function, format, sigma)}});
    }
  }
  Json& wraps = json["maximum_wraps"] = Json::array();
  for (const MaximumWraps& w : maximum_wraps(quantiser, format)) {
    wraps.push_back({{"c_from", w.from},
                     {"c_below", 2 * w.from},
                     {"numbers", w.numbers},
                     {"wrapping", w.wrapping},
                     {"mean", w.mean},
                     {"greatest", w.greatest},
                     {"at", fmt::format("{:a}", w.greatest_at)}});
  }
  Json& running = json["running"];
  if (quantiser.rule == Quantiser::Rule::running && quantiser.wraps && quantiser.group > 1) {
    const RunningWraps r = running_wraps(quantiser, format, 10'000);
    running = {
        {"x", Distribution::normal(1).name()}, {"simulated_steps", r.steps}, {"share_of_steps", r.share()}};
  }
  return json;
}

}  // namespace outgrad::validation
