// The stores of gated pairs, by the bodies of their kernels.
#include "validation/front/gated_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/formats.h"
#include "kernels/gate.h"
#include "kernels/stores/parts.h"
#include "kernels/support/bounds.h"
#include "kernels/tensor_codes.h"
#include "validation/exact/activation.h"
#include "validation/sweep/product_sweep.h"

namespace outgrad::validation {
namespace {

constexpr double kBits = 16;  // of a and of b
constexpr int kSignificands = 128;  // of bf16
// 8 bits: the largest |a| of a tensor or block has every significand of bf16, up to this one; the worst is
// shown.
constexpr double kLargestA = 16;
constexpr int kPairScales = kSignificands;
constexpr double kLargestCode = kernels::kLargestOf<kernels::F8E4M3>;
// How far e4m3 moves a number, relative to it, where a scale is a power of two: u / (1 + u), u = 2^-4. At
// another scale the product and the quotient are rounded to fp32, and the number is the quotient in bf16.
constexpr double kRoundingE4m3 = 1.0 / 17;
constexpr double kRoundingAtScale = (1 + kRoundingE4m3) * (1 + 0x1p-8) * (1 + 0x1p-22) - 1;

const ProductSubject* product_of(const SweptActivation& f) {
  for (const ProductSubject& one : shipped_products()) {
    if (one.activation == &f && one.format.name == kBf16.name) return &one;
  }
  return nullptr;
}

/// f(a) as the gate's kernels compute it, and the true one.
struct GateValues {
  std::vector<float> f, stored;
  std::vector<double> value;

  GateValues(const ProductSubject& product, const FrontDomain& domain)
      : f(domain.x.size()), stored(domain.x.size()),
        value(product.activation->reference().at(domain.x).value) {
    product.gates(domain.x.data(), f.data(), stored.data(), std::ssize(domain.x));
  }
  /// |other - f(a)| / max(1, |f(a)|).
  double off(std::size_t i, double other) const {
    return std::fabs(other - value[i]) / std::max(1.0, std::fabs(value[i]));
  }
};

/// The share of each significand of b.
std::array<double, kSignificands> significands(const Distribution& distribution) {
  std::array<double, kSignificands> share{};
  double all = 0;
  for (const float b : every_number(kBf16)) {
    if (!std::isfinite(b) || b == 0) continue;
    const auto [low, high] = rounding_interval(static_cast<double>(b), kBf16);
    const double mass = distribution.mass(low, high);
    share[kernels::bits_of(b) >> 16 & (kSignificands - 1)] += mass;
    all += mass;
  }
  for (double& each : share) each /= all;
  return share;
}

/// Calls see(i, q, block, k) for every a and significand of b.
template <class See>
void over_pairs(const ProductSubject& product, const FrontDomain& domain, const See& see) {
  const GateValues gate(product, domain);
  std::vector<std::uint8_t> mask(domain.x.size() / 8);
  for (std::size_t i = 0; i < domain.x.size(); ++i) {
    const bool m = static_cast<double>(domain.x[i]) > product.activation->x_star;
    mask[i / 8] = static_cast<std::uint8_t>(mask[i / 8] | m << i % 8);
  }
  PairBlock block;
  for (int q = 0; q < kSignificands; ++q) {
    const float b = 1 + static_cast<float>(q) / kSignificands;
    for (std::size_t i = 0; i < domain.x.size(); i += PairBlock::kSize) {
      product.pairs(gate.f.data() + i, gate.stored.data() + i, mask.data() + i / 8, b, block);
      for (std::size_t k = 0; k < PairBlock::kSize; ++k) see(i + k, static_cast<std::size_t>(q), block, k);
    }
  }
}

PairStore output(const ProductSubject& product, const FrontDomain& domain) {
  PairStore pair;
  pair.store.name = "output: z, b and a bit";
  pair.next = kBits, pair.store.beyond = kBits + 1, pair.store.all = 2 * kBits + 1;
  pair.store.proven = product.claims.total, pair.store.proof = product.name;
  pair.store.by_distribution = true;
  pair.store.errors = [&product](const FrontDomain& of, const Distribution& distribution) {
    const auto share = significands(distribution);
    std::vector<ErrorAt> errors(of.x.size());
    over_pairs(product, of, [&](std::size_t i, std::size_t q, const PairBlock& block, std::size_t k) {
      const double e = static_cast<double>(block.g[k]) - of.slope[i];
      errors[i].greatest = std::max(errors[i].greatest, std::fabs(e));
      errors[i].mean += share[q] * e;
      errors[i].square += share[q] * e * e;
    });
    return errors;
  };
  const GateValues gate(product, domain);
  over_pairs(product, domain, [&](std::size_t i, std::size_t, const PairBlock& block, std::size_t k) {
    if (std::isfinite(block.z[k]))
      pair.value = std::max(pair.value, gate.off(i, static_cast<double>(block.s[k])));
  });
  return pair;
}

/// a and b themselves, from which f' and f are computed in fp32.
PairStore recompute(const ProductSubject& product, const FrontDomain& domain) {
  PairStore pair;
  pair.store.name = "recompute: a and b";
  pair.store.beyond = pair.store.all = 2 * kBits;
  pair.store.proven = kernels::kGateSlopeError, pair.store.proof = "kernels/gate.h";
  pair.store.errors = [&product](const FrontDomain& of, const Distribution&) {
    std::vector<float> slope(of.x.size());
    product.slopes(of.x.data(), slope.data(), static_cast<std::int64_t>(slope.size()));
    return errors_of(slope, of);
  };
  const GateValues gate(product, domain);
  for (std::size_t i = 0; i < domain.x.size(); ++i)
    pair.value = std::max(pair.value, gate.off(i, static_cast<double>(gate.f[i])));
  return pair;
}

/// What a number of a tensor with this scale becomes. Those beyond the largest saturate.
float in_e4m3(float v, float scale) {
  const auto code = kernels::fp8_code<kernels::F8E4M3>(v, scale);
  return kernels::widen(kernels::narrow<kernels::BF16>(kernels::tensor_value(code, scale)));
}

/// At least |f'(a') - f'(a)| for every real |a| <= kLargestA and every a' that e4m3 may make of it where its
/// numbers stand for themselves times `unit` at most, and it moves them by `rounding`: cells of a, and what
/// they may reach.
double bound_8_bits(const Formula& formula, double unit, double rounding) {
  constexpr int kCells = 1 << 15;
  const double least = unit * 0x1p-10 * (1 + rounding);  // half of it, a subnormal
  double most = 0;
  for (int k = -kCells; k < kCells; ++k) {
    const double low = k * kLargestA / kCells, high = (k + 1) * kLargestA / kCells;
    const double reach = std::max(-low, high) * rounding + least;
    most =
        std::max(most, (formula.slopes(low - reach, high + reach) - formula.slopes(low, high)).magnitude());
  }
  return most;
}

/// How a and b stand in e4m3.
struct In8Bits {
  const char *name, *shared_by;
  double bits, rounding;
  double (*unit_of)(double largest);  // what 1 stands for where the largest |a| that shares it is this one
};

/// How far the numbers of the domain up to `largest`, but those below e4m3's normal ones, are moved at most,
/// relative to them.
double moved_at_most(const FrontDomain& domain, double largest, float scale) {
  double most = 0;
  for (const float x : domain.x) {
    const double magnitude = std::fabs(static_cast<double>(x));
    if (magnitude > largest || magnitude * static_cast<double>(scale) < 0x1p-6) continue;
    most = std::max(most,
                    std::fabs(static_cast<double>(in_e4m3(x, scale)) - static_cast<double>(x)) / magnitude);
  }
  return most;
}

PairStore in_8_bits(const ProductSubject& product, const FrontDomain& domain, const In8Bits& how) {
  PairStore pair;
  pair.store.name = how.name;
  pair.store.beyond = pair.store.all = how.bits;
  pair.store.proven =
      bound_8_bits(product.activation->analysis().only(), how.unit_of(kLargestA), how.rounding);
  pair.store.proof = "f' over what e4m3 makes of |a| <= 16";
  const auto errors_at = [&product](const FrontDomain& of, float scale) {
    std::vector<float> a;
    for (const float x : of.x) a.push_back(in_e4m3(x, scale));
    const ReferenceValues exact = product.activation->reference().at(a);
    return std::pair{errors_of(exact.slope, of), exact.value};
  };
  std::vector<std::pair<double, float>> scales;  // a largest |a|, and its scale
  for (int k = 0; k < kPairScales; ++k) {
    const double largest = kLargestA * (kPairScales + k + 1) / (2 * kPairScales);
    scales.emplace_back(largest, static_cast<float>(1 / how.unit_of(largest)));
    pair.factor = std::max(pair.factor, moved_at_most(domain, largest, scales.back().second));
  }
  const GateValues gate(product, domain);
  double worst = -1;
  for (const auto& [largest, scale] : scales) {
    const auto [errors, value] = errors_at(domain, scale);
    double most = 0, off = 0, product_off = 0;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (std::fabs(static_cast<double>(domain.x[i])) > largest) continue;
      most = std::max(most, errors[i].greatest);
      off = std::max(off, gate.off(i, value[i]));
      for (const double b : {1 - pair.factor, 1 + pair.factor})
        product_off = std::max(product_off, gate.off(i, value[i] * b));
    }
    pair.value = std::max(pair.value, off), pair.product = std::max(pair.product, product_off);
    if (most > worst) {
      worst = most;
      pair.store.condition = fmt::format("|a| up to the {}'s largest, 8 to 16; found: {:g}, the worst of {}",
                                         how.shared_by, largest, kPairScales);
      pair.store.errors = [errors_at, scale = scale](const FrontDomain& of, const Distribution&) {
        return errors_at(of, scale).first;
      };
    }
  }
  return pair;
}

}  // namespace

std::vector<PairStore> pair_stores(const SweptActivation& f) {
  const ProductSubject* const product = product_of(f);
  if (!product) return {};
  const FrontDomain domain(f);
  std::vector<PairStore> stores{
      recompute(*product, domain), output(*product, domain),
      in_8_bits(*product, domain,
                {"e4m3: a and b, a scale each", "tensor", kBits, kRoundingAtScale,
                 [](double largest) { return largest / kLargestCode; }}),
      in_8_bits(*product, domain,
                {"mxfp8: a and b, a power of two for 32 of each", "block", kBits + kBits / 32, kRoundingE4m3,
                 [](double largest) { return std::exp2(std::ceil(std::log2(largest / kLargestCode))); }})};
  for (PairStore& each : stores) each.store.origin = "outgrad";
  return stores;
}

std::vector<PairRow> pair_rows(const SweptActivation& f, const std::vector<Distribution>& distributions,
                               std::size_t rank_by) {
  std::vector<PairStore> pairs = pair_stores(f);
  std::vector<Store> stores;
  for (const PairStore& each : pairs) stores.push_back(each.store);
  std::vector<FrontRow> slopes = front_of(f, std::move(stores), distributions, rank_by);
  std::vector<PairRow> rows;
  for (std::size_t k = 0; k < pairs.size(); ++k) {
    rows.push_back({std::move(slopes[k]), pairs[k].next, pairs[k].value, pairs[k].factor, pairs[k].product});
  }
  return rows;
}

nlohmann::ordered_json pairs_json(const std::vector<PairRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const PairRow& row : rows) {
    nlohmann::ordered_json each = row_json(row.slope);
    each["bits_next"] = row.next;
    each["errors"] = {{"f", row.value}, {"b", row.factor}, {"z", row.product}};
    list.push_back(std::move(each));
  }
  return list;
}

std::string pairs_text(const std::vector<PairRow>& rows) {
  if (rows.empty()) return "";
  std::string text =
      "\nA gated pair z = f(a) b, a and b in bf16. Bits an element: beside the z that the next product "
      "keeps, "
      "that z, and in all; the error of f'(a), and of f in db, b in da and z in the next weight's "
      "gradient.\n\n"
      "| store | beside z | z | all | f' proven | f' found |";
  std::string line = "| --- | --- | --- | --- | --- | --- |";
  for (const StoreUnder& u : rows.front().slope.under) {
    text += fmt::format(" {}: rms | bias | shrinkage |", u.x);
    line += " --- | --- | --- |";
  }
  text += " f found | b | z found | dominated by |\n" + line + " --- | --- | --- | --- |\n";
  for (const PairRow& row : rows) {
    const Store& store = row.slope.store;
    text += fmt::format("| {} | {:g} | {:g} | {:g} | {:.3g} | {:.3g} |", store.name, store.beyond, row.next,
                        store.all, kernels::digits_up(store.proven, 3), row.slope.found());
    for (const StoreUnder& u : row.slope.under)
      text += fmt::format(" {:.2g} | {:+.2g} | {:.5f} |", u.rms, u.bias, u.shrinkage);
    text += fmt::format(" {:.3g} | {:.3g} | {:.3g} | {} |\n", row.value, row.factor, row.product,
                        row.slope.dominated_by.empty() ? "-" : row.slope.dominated_by);
  }
  return text;
}

}  // namespace outgrad::validation
