// The stores of gated pairs, by the bodies of their kernels.
#include "validation/front/gated_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/formats.h"
#include "kernels/gate.h"
#include "kernels/stores/parts.h"
#include "validation/exact/activation.h"
#include "validation/sweep/product_sweep.h"

namespace outgrad::validation {
namespace {

constexpr double kBits = 16;  // of a and of b
constexpr int kSignificands = 128;  // of bf16
// 8 bits: the largest |a| of a tensor or block, half of it, and others between, of which the worst is shown
constexpr double kLargestA = 16;
constexpr int kPairScales = 128;
constexpr double kLargestCode = kernels::kLargestOf<kernels::F8E4M3>;
constexpr double kRoundingE4m3 = 1.0 / 17;  // u / (1 + u), u = 2^-4

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
  return kernels::widen(kernels::fp8_code<kernels::F8E4M3>(v, scale)) / scale;
}

/// At least |f'(a') - f'(a)| for every real |a| <= kLargestA and every a' that e4m3 may make of it where its
/// numbers stand for themselves times `unit` at most: cells of a, and what they may reach.
double bound_8_bits(const Formula& formula, double unit) {
  constexpr int kCells = 1 << 15;
  const double least = unit * 0x1p-10;  // half of it, a subnormal
  double most = 0;
  for (int k = -kCells; k < kCells; ++k) {
    const double low = k * kLargestA / kCells, high = (k + 1) * kLargestA / kCells;
    const double reach = std::max(-low, high) * kRoundingE4m3 + least;
    most =
        std::max(most, (formula.slopes(low - reach, high + reach) - formula.slopes(low, high)).magnitude());
  }
  return most;
}

/// a and b in e4m3. unit_of: what its 1 stands for where the largest |a| that shares it is this one.
PairStore in_8_bits(const ProductSubject& product, const FrontDomain& domain, const char* name, double bits,
                    const char* shared_by, double (*unit_of)(double largest)) {
  PairStore pair;
  pair.store.name = name;
  pair.store.beyond = pair.store.all = bits;
  pair.store.proven = bound_8_bits(product.activation->analysis().only(), unit_of(kLargestA));
  pair.store.proof = "f' over what e4m3 makes of |a| <= 16";
  const auto errors_at = [&product](const FrontDomain& of, float scale) {
    std::vector<float> a;
    for (const float x : of.x) a.push_back(in_e4m3(x, scale));
    const ReferenceValues exact = product.activation->reference().at(a);
    return std::pair{errors_of(exact.slope, of), exact.value};
  };
  const GateValues gate(product, domain);
  double worst = -1;
  for (int k = 0; k < kPairScales; ++k) {
    const double largest = kLargestA * (kPairScales + k + 1) / (2 * kPairScales);
    const auto scale = static_cast<float>(1 / unit_of(largest));
    const auto [errors, value] = errors_at(domain, scale);
    double most = 0, off = 0, product_off = 0;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (std::fabs(static_cast<double>(domain.x[i])) > largest) continue;
      most = std::max(most, errors[i].greatest);
      off = std::max(off, gate.off(i, value[i]));
      for (const double b : {1 - kRoundingE4m3, 1 + kRoundingE4m3})
        product_off = std::max(product_off, gate.off(i, value[i] * b));
    }
    pair.value = std::max(pair.value, off), pair.product = std::max(pair.product, product_off);
    if (most > worst) {
      worst = most;
      pair.store.condition = fmt::format("|a| up to the {}'s largest, 8 to 16; found: {:g}, the worst of {}",
                                         shared_by, largest, kPairScales);
      pair.store.errors = [errors_at, scale](const FrontDomain& of, const Distribution&) {
        return errors_at(of, scale).first;
      };
    }
  }
  pair.factor = kRoundingE4m3;
  return pair;
}

}  // namespace

std::vector<PairStore> pair_stores(const SweptActivation& f) {
  const ProductSubject* const product = product_of(f);
  if (!product) return {};
  const FrontDomain domain(f);
  std::vector<PairStore> stores{recompute(*product, domain), output(*product, domain),
                                in_8_bits(*product, domain, "e4m3: a and b, a scale each", kBits, "tensor",
                                          [](double largest) { return largest / kLargestCode; }),
                                in_8_bits(*product, domain, "mxfp8: a and b, a power of two for 32 of each",
                                          kBits + kBits / 32, "block", [](double largest) {
                                            return std::exp2(std::ceil(std::log2(largest / kLargestCode)));
                                          })};
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
                        store.all, store.proven, row.slope.found());
    for (const StoreUnder& u : row.slope.under)
      text += fmt::format(" {:.2g} | {:+.2g} | {:.5f} |", u.rms, u.bias, u.shrinkage);
    text += fmt::format(" {:.3g} | {:.3g} | {:.3g} | {} |\n", row.value, row.factor, row.product,
                        row.slope.dominated_by.empty() ? "-" : row.slope.dominated_by);
  }
  return text;
}

}  // namespace outgrad::validation
