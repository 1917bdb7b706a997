// The pairs of a 16-bit format, a block of a's with one b at a time.
#include "validation/sweep/product_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/host/parallel.h"
#include "validation/limits.h"
#include "validation/sweep/fingerprint.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::ordered_json;

/// Every a of a format with what the pairs need of it.
struct ProductDomain {
  std::vector<float> a, f, stored;  // f(a) in fp32, and as a number of the format
  std::vector<std::uint8_t> mask;
  std::vector<double> value, slope;  // the true f(a) and f'(a)
  std::vector<double> per_value, per_size;  // 1 / |f(a)| (0 for f(a) = 0) and 1 / max(1, |f(a)|)
  std::int64_t finite;

  explicit ProductDomain(const ProductSubject& subject) : a(every_number(subject.format)) {
    const auto n = static_cast<std::int64_t>(a.size());
    finite = Domain{subject.format}.finite();
    subject.activation->facts();  // established here, not in the threads
    f.resize(a.size()), stored.resize(a.size()), mask.resize(a.size() / 8);
    subject.gates(a.data(), f.data(), stored.data(), n);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const bool m = static_cast<double>(a[i]) > subject.activation->x_star;
      mask[i / 8] = static_cast<std::uint8_t>(mask[i / 8] | m << i % 8);
    }
    const ReferenceValues exact =
        subject.activation->reference().at({a.data(), static_cast<std::size_t>(finite)});
    value = exact.value, slope = exact.slope;
    for (const double v : value) {
      per_value.push_back(v == 0 ? 0 : 1 / std::fabs(v));
      per_size.push_back(1 / std::max(1.0, std::fabs(v)));
    }
  }
  bool right(std::int64_t i) const { return (mask[static_cast<std::size_t>(i / 8)] >> i % 8 & 1) != 0; }
};

/// All pairs with one b.
class Factor {
 public:
  Factor(const ProductSubject& subject, const ProductDomain& of, float b, ProductErrors& errors)
      : subject_(subject), of_(of), b_(b), size_(std::fabs(static_cast<double>(b))), errors_(errors) {
    const FloatFormat& format = subject.format;
    half_ = std::ldexp(0.5, format.quantum_exponent);
    least_normal_ = std::ldexp(1.0, format.quantum_exponent + format.precision - 1);
    room_ = std::sqrt(size_ / (1.005 * half_ * subject.activation->facts().bend));
  }

  void run() {
    PairBlock block;
    const auto all = static_cast<std::int64_t>(of_.a.size());
    for (std::int64_t begin = 0; begin < all; begin += PairBlock::kSize) {
      const auto at = static_cast<std::size_t>(begin);
      subject_.pairs(of_.f.data() + at, of_.stored.data() + at, of_.mask.data() + at / 8, b_, block);
      if (begin < of_.finite && std::isfinite(b_) && ordinary(block, begin)) continue;
      for (int k = 0; k < PairBlock::kSize; ++k) see(block, k, begin + k);
    }
  }

 private:
  /// Counts a block whose z are all normal and which exceeds nothing that was seen; false for others.
  bool ordinary(const PairBlock& block, std::int64_t begin) {
    if (of_.right(begin) != of_.right(begin + PairBlock::kSize - 1)) return false;
    const auto least = static_cast<float>(least_normal_),
               largest = static_cast<float>(subject_.format.largest);
    int normal = 0, wrong = 0;
    double total = 0, relative = 0, db = 0;
    const double* const value = of_.value.data() + begin;
    const double* const slope = of_.slope.data() + begin;
    const double* const per_value = of_.per_value.data() + begin;
    const double* const per_size = of_.per_size.data() + begin;
    for (int k = 0; k < PairBlock::kSize; ++k) {
      const float z = std::fabs(block.z[k]);
      normal += static_cast<int>(z > least) & static_cast<int>(z <= largest);
      wrong += static_cast<int>(block.da[k] != b_ * block.g[k]);
      const double off = std::fabs(static_cast<double>(block.s[k]) - value[k]);
      total = std::max(total, std::fabs(static_cast<double>(block.g[k]) - slope[k]));
      relative = std::max(relative, (off - subject_.claims.absolute) * per_value[k]);
      db = std::max(db, off * per_size[k]);
    }
    if (normal != PairBlock::kSize || total > errors_.total[of_.right(begin)].value ||
        relative > errors_.relative.value || db > errors_.db.value || std::isnan(total + relative + db))
      return false;
    errors_.wrong_da += wrong;
    errors_.counts[static_cast<std::size_t>(PairKind::normal)] += PairBlock::kSize;
    return true;
  }

  PairKind kind_of(const PairBlock& block, int k, std::int64_t i) const {
    const float z = std::fabs(block.z[k]);
    if (i >= of_.finite || !std::isfinite(b_)) return PairKind::special;
    if (std::isinf(z)) return PairKind::overflow;
    if (z == 0) {
      if (b_ == 0) return PairKind::b_is_zero;
      if (of_.f[static_cast<std::size_t>(i)] == 0) return PairKind::f_is_zero;
      return std::signbit(block.z[k]) ? PairKind::beside_f : PairKind::beside_b;
    }
    if (static_cast<double>(z) > least_normal_) return PairKind::normal;
    return size_ >= 0.5 ? PairKind::subnormal : PairKind::small_b;
  }

  void see(const PairBlock& block, int k, std::int64_t i) {
    const PairKind kind = kind_of(block, k, i);
    ++errors_.counts[static_cast<std::size_t>(kind)];
    const float b = kind == PairKind::b_is_zero || kind == PairKind::beside_f ? 0.0f : b_;
    const float da = b * block.g[k];
    errors_.wrong_da += !(block.da[k] == da || (std::isnan(da) && std::isnan(block.da[k])));
    if (kind == PairKind::special || kind == PairKind::overflow) {
      errors_.wrong_special += !as_specified(block, k, i);
    } else {
      measure(kind, block, k, i);
    }
  }

  void measure(PairKind kind, const PairBlock& block, int k, std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const double s = block.s[k], f = of_.value[at], g = block.g[k], slope = of_.slope[at];
    const double off = std::fabs(s - f), error = std::fabs(g - slope);
    const auto& [total, oracle, relative, absolute] = subject_.claims;
    const PairMaximum of_s{0, of_.a[at], b_, block.z[k], block.s[k], s, f};
    const PairMaximum of_g{0, of_.a[at], b_, block.z[k], block.s[k], g, slope};
    const auto raise = [](PairMaximum& most, PairMaximum one, double value) {
      one.value = std::isnan(value) ? kInfinity : value;
      most.raise(one);
    };
    if (kind == PairKind::small_b || kind == PairKind::beside_b) {
      raise(errors_.room_a, of_g, std::max(0.0, (error - total) * room_));
      raise(errors_.room_b, of_s, std::max(0.0, (off - relative * std::fabs(f) - absolute) * size_ / half_));
    } else {
      raise(errors_.db, of_s, off * of_.per_size[at]);
      raise(errors_.relative, of_s, (off - absolute) * of_.per_value[at]);
      if (kind != PairKind::b_is_zero && kind != PairKind::beside_f)
        raise(errors_.total[of_.right(i)], of_g, error);
    }
    const double unit = std::sqrt(half_) + half_;
    if (kind == PairKind::beside_b) raise(errors_.lost, of_s, std::fabs(f) / unit);
    if (kind == PairKind::beside_f) raise(errors_.lost, of_s, size_ / unit);
  }

  /// NaN where a or b is one, b is infinite or the product has no value; else f' has its limits.
  bool as_specified(const PairBlock& block, int k, std::int64_t i) const {
    const float a = of_.a[static_cast<std::size_t>(i)], s = block.s[k], g = block.g[k];
    if (std::isnan(a) || !std::isfinite(b_) || (a == INFINITY && b_ == 0))
      return std::isnan(s) && std::isnan(block.da[k]);
    if (a == -INFINITY) return s == 0 && block.da[k] == 0;
    return s == INFINITY && g == 1;
  }

  const ProductSubject& subject_;
  const ProductDomain& of_;
  const float b_;
  const double size_;
  ProductErrors& errors_;
  double half_, least_normal_, room_;
};

/// MPFR's f and f' at a worst pair are what was found there.
void confirm(const PairMaximum& most, bool slope, const ProductSubject& subject) {
  if (most.value < 0) return;
  const auto oracle = subject.activation->oracle();
  const auto a = static_cast<double>(most.a);
  const DoubleBounds exact = slope ? oracle->derivative_bounds(a) : oracle->value_bounds(a);
  const double room = slope ? Reference::kDerivativeBound : Reference::kValueBound * std::fabs(most.want);
  if (most.want < exact.lo - room || most.want > exact.hi + room)
    throw std::logic_error(
        fmt::format("{}: {} of {:a} is not {:a}", subject.name, slope ? "f'" : "f", most.a, most.want));
}

/// Beyond the infinities that JSON has no number for.
Json json_number(double v) { return std::isfinite(v) ? Json(v) : Json("inf"); }

Json describe(const PairMaximum& most, double margin) {
  if (most.value < 0) return nullptr;
  return {{"value", json_number(most.value)},
          {"bound", json_number(std::nextafter(most.value + margin, kInfinity))},
          {"a", fmt::format("{:a}", most.a)},
          {"b", fmt::format("{:a}", most.b)},
          {"z", fmt::format("{:a}", most.z)},
          {"s", fmt::format("{:a}", most.s)},
          {"got", json_number(most.got)},
          {"want", json_number(most.want)}};
}

}  // namespace

std::string identity_of(const ProductSubject& subject) {
  const std::vector<float> a = every_number(subject.format);
  std::vector<float> f(a.size()), stored(a.size());
  subject.gates(a.data(), f.data(), stored.data(), static_cast<std::int64_t>(a.size()));
  Fingerprint fingerprint;
  PairBlock block;
  const auto add = [&](const float* values, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const float canonical = kernels::float_of(kernels::canonical_bits(values[i]));
      fingerprint.add(&canonical, 1);
    }
  };
  add(f.data(), f.size());
  for (const std::uint8_t branch : {std::uint8_t{0}, std::uint8_t{0xff}}) {
    const std::vector<std::uint8_t> mask(PairBlock::kSize / 8, branch);
    for (std::size_t i = 0; i < a.size(); i += PairBlock::kSize) {
      subject.pairs(f.data() + i, stored.data() + i, mask.data(), 1.375f, block);
      add(block.s, PairBlock::kSize), add(block.g, PairBlock::kSize);
    }
  }
  return fmt::format("{:016x}", fingerprint.value());
}

std::int64_t ProductErrors::pairs() const {
  std::int64_t all = 0;
  for (const std::int64_t each : counts) all += each;
  return all;
}

void ProductErrors::append(const ProductErrors& next) {
  for (std::size_t k = 0; k < counts.size(); ++k) counts[k] += next.counts[k];
  wrong_special += next.wrong_special, wrong_da += next.wrong_da;
  for (std::size_t k = 0; k < total.size(); ++k) total[k].raise(next.total[k]);
  relative.raise(next.relative), db.raise(next.db);
  room_a.raise(next.room_a), room_b.raise(next.room_b), lost.raise(next.lost);
}

std::vector<float> every_number(const FloatFormat& format) {
  const Domain domain{format};
  std::vector<float> all(static_cast<std::size_t>(domain.size()));
  domain.fill(0, domain.size(), all.data());
  return all;
}

ProductErrors product_errors(const ProductSubject& subject, const std::vector<float>& factors) {
  constexpr std::int64_t kFactors = 64;  // of a task
  const ProductDomain domain(subject);
  const auto n = static_cast<std::int64_t>(factors.size());
  std::vector<ProductErrors> tasks(static_cast<std::size_t>((n + kFactors - 1) / kFactors));
  kernels::parallel_for(static_cast<std::int64_t>(tasks.size()), 0, [&](std::int64_t task) {
    for (std::int64_t i = task * kFactors; i < std::min(n, (task + 1) * kFactors); ++i)
      Factor(subject, domain, factors[static_cast<std::size_t>(i)], tasks[static_cast<std::size_t>(task)])
          .run();
  });
  ProductErrors all;
  for (const ProductErrors& each : tasks) all.append(each);
  for (const PairMaximum& most : all.total) confirm(most, true, subject);
  for (const PairMaximum* most : {&all.relative, &all.db}) confirm(*most, false, subject);
  return all;
}

std::vector<SweepGate> gates_of(const ProductErrors& errors, const ProductSubject& subject) {
  return {{"T within the header's kT", errors.max_total() + kSweepMargin, subject.claims.total},
          {"relative error of s within the header's kRelative", errors.relative.value + kRelativeMargin,
           subject.claims.relative},
          {"subnormal products: share of the room of a's gradient", errors.room_a.value, 1},
          {"subnormal products: share of the room of b's gradient", errors.room_b.value, 1},
          {"products that round to 0: the lost factor, in sqrt(h) + h", errors.lost.value, 1},
          {"da other than RN(b g)", static_cast<double>(errors.wrong_da), 0},
          {"NaN and infinities not as specified", static_cast<double>(errors.wrong_special), 0}};
}

Json product_json(const ProductErrors& errors, const ProductSubject& subject) {
  const std::int64_t each = Domain{subject.format}.size();
  if (errors.pairs() != each * each)
    throw std::logic_error(fmt::format("{}: {} pairs were counted", subject.name, errors.pairs()));
  Json json{{"schema", kProductSchema},
            {"subject", subject.name},
            {"activation", subject.activation->name},
            {"format", subject.format.name},
            {"identity", subject.identity}};
  const auto& [total, oracle, relative, absolute] = subject.claims;
  json["claims"] = {{"T", total}, {"O", oracle}, {"relative", relative}, {"absolute", absolute}};
  Json& counts = json["counts"] = {{"pairs", errors.pairs()}};
  for (std::size_t k = 0; k < errors.counts.size(); ++k) counts[kPairKindNames[k]] = errors.counts[k];
  counts["wrong_special"] = errors.wrong_special, counts["wrong_da"] = errors.wrong_da;
  json["T"] = {{"max", json_number(errors.max_total())},
               {"bound", json_number(std::nextafter(errors.max_total() + kSweepMargin, kInfinity))},
               {"left", describe(errors.total[0], kSweepMargin)},
               {"right", describe(errors.total[1], kSweepMargin)}};
  json["relative"] = describe(errors.relative, kRelativeMargin);
  json["db"] = describe(errors.db, kRelativeMargin);
  json["room_a"] = describe(errors.room_a, kRelativeMargin);
  json["room_b"] = describe(errors.room_b, kRelativeMargin);
  json["lost"] = describe(errors.lost, kRelativeMargin);
  Json& gates = json["gates"] = Json::array();
  for (const SweepGate& gate : gates_of(errors, subject)) gates.push_back(gate_json(gate));
  return json;
}

}  // namespace outgrad::validation
