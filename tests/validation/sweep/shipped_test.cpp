// Every shipped backward pass in 16 bits, over all x of its format: counted, within its header's claims, and
// changed coefficients are seen.

#include "validation/sweep/shipped.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/generated/elu_f16.h"
#include "kernels/generated/mish_bf16.h"
#include "kernels/generated/silu_f16.h"
#include "kernels/generated/softplus_bf16.h"
#include "kernels/generated/tanh_bf16.h"
#include "kernels/support/files.h"
#include "validation/sweep/product_sweep.h"
#include "validation/sweep/subject.h"

namespace outgrad::validation {
namespace {

DomainResult sweep_own(Subject subject) {
  SweepOptions options;
  options.progress = false;
  subject.swept = SweptX::own;
  subject.distributions.clear();
  const std::vector<Domain> domains = subject.domains();
  return finish(sweep(subject, domains, options), domains, subject.stored()).at(0);
}

/// The greatest of T and O beyond what the header claims of them, relative to the claim; at most 0 where all
/// hold.
double excess(const Subject& subject, const DomainResult& result) {
  double most = -1;
  for (const Claim& claim : subject.claims) {
    if (claim.what == Claim::kTotal)
      most = std::max(most, (result.max(result.all.total) + kSweepMargin) / claim.limit - 1);
    if (claim.what == Claim::kOracle)
      most = std::max(most, (result.max(result.all.oracle) + kSweepMargin) / claim.limit - 1);
  }
  return most;
}

double claimed(const Subject& subject, const char* what) {
  const auto claim = std::find_if(subject.claims.begin(), subject.claims.end(),
                                  [what](const Claim& c) { return c.what == what; });
  return claim == subject.claims.end() ? 0 : claim->limit;
}

TEST(Shipped, ListsEveryCommittedBackwardHeader) {
  std::set<std::string> names, listed, committed;
  std::map<std::pair<std::string, std::string>, int> deployed;
  for (const Shipped& one : shipped()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    listed.insert(one.fit);
    deployed[{std::string(one.activation->name), one.format}] += one.deployed;
  }
  for (const ProductSubject& one : shipped_products()) listed.insert(one.name);
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(OUTGRAD_SOURCE_DIR) + "/kernels/generated")) {
    const std::string name = entry.path().stem().string();
    const bool other = name.find("_forward") != std::string::npos || name.starts_with("tuned_") ||
                       entry.path().extension() != ".h";
    // No kernel runs gelu_f32_rel; the error of a y in MXFP8 depends on its block, and direct tables in 8
    // bits have few entries: `check` goes through these.
    const bool checked = name == "gelu_f32_rel" ||
                         std::ranges::any_of(std::array{"_e4m3", "_e5m2", "_mxfp8"}, [&](const char* format) {
                           return name.find(format) != std::string::npos;
                         });
    if (!other && !checked) committed.insert(name);
  }
  EXPECT_EQ(listed, committed);
  EXPECT_EQ(deployed.size(), 30u);
  for (const auto& [key, count] : deployed) EXPECT_EQ(count, 1) << key.first << ' ' << key.second;
}

// What notebooks_data/ says of every x was found with the coefficients and kernels of today, and of all that
// ships.
TEST(Shipped, EveryCommittedSweepIsOfWhatIsThere) {
  const std::filesystem::path folder = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/sweeps";
  std::set<std::string> files;
  for (const Shipped& one : shipped()) {
    // ten sweeps of all f32 x for each of ten headers
    if (one.stores && one.format == "f32" && one.name != "gelu_code_f32") continue;
    const std::string file = (folder / (one.name + ".json")).string();
    files.insert(file);
    ASSERT_TRUE(std::filesystem::exists(file)) << file;
    const auto sweep = nlohmann::json::parse(kernels::read_file(file));
    const Subject subject = one.make();
    EXPECT_EQ(sweep.at("subject"), subject.name);
    const auto identity = sweep.at("identity").get<std::string>();
    EXPECT_TRUE(identity.starts_with(subject.identity))
        << file << ": " << identity << ", today " << subject.identity;
    ASSERT_EQ(sweep.at("domains").size(), subject.domains().size()) << file;
    for (std::size_t k = 0; k < subject.domains().size(); ++k) {
      const auto& domain = sweep["domains"][k];
      EXPECT_EQ(domain.at("x_format"), subject.domains()[k].x_format.name) << file;
      EXPECT_EQ(domain.at("counts").at("patterns"), subject.domains()[k].size()) << file;
    }
    for (const auto& gate : sweep.at("gates"))
      EXPECT_TRUE(gate.at("holds").get<bool>()) << file << ' ' << gate.at("name");
  }
  for (const ProductSubject& one : shipped_products()) {
    const std::string file = (folder / (one.name + ".json")).string();
    files.insert(file);
    const auto sweep = nlohmann::json::parse(kernels::read_file(file));
    EXPECT_EQ(sweep.at("identity"), one.identity) << file;
    EXPECT_EQ(sweep.at("counts").at("pairs"), std::int64_t{1} << 32) << file;
    for (const auto& gate : sweep.at("gates"))
      EXPECT_TRUE(gate.at("holds").get<bool>()) << file << ' ' << gate.at("name");
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_TRUE(files.contains(entry.path().string())) << entry.path();
}

TEST(Shipped, SixteenBitSweepsAreCountedAndWithinTheirClaims) {
  int swept = 0;
  for (const Shipped& one : shipped()) {
    if (one.format == "f32" || one.stores) continue;
    const Subject subject = one.make();
    const DomainResult result = sweep_own(subject);  // finish() has counted
    const Segment& all = result.all;
    ++swept;
    EXPECT_EQ(all.patterns, 65536) << one.fit;
    EXPECT_EQ(all.misrounded, 0) << one.fit;
    EXPECT_EQ(all.wrong_mask, 0) << one.fit;
    EXPECT_EQ(all.wrong_special, 0) << one.fit;
    EXPECT_GE(subject.claims.size(), 2u) << one.fit;
    EXPECT_LE(excess(subject, result), 0) << one.fit;
    EXPECT_EQ(all.right == all.finite, !one.activation->masked()) << one.fit;
    EXPECT_GE(result.max(all.total), result.max(all.oracle))
        << one.fit << ": no function of (y, m) does better";
    EXPECT_GE(result.max(all.storage), result.max(all.oracle)) << one.fit;
  }
  EXPECT_EQ(swept, 28);
}

// O and R by a map of preimages, with y and f' from the oracle alone.
TEST(Shipped, PreimagesAgreeWithAMap) {
  for (const char* fit : {"mish_bf16", "tanh_bf16", "softplus_bf16"}) {
    const auto one =
        std::find_if(shipped().begin(), shipped().end(), [&](const Shipped& s) { return s.fit == fit; });
    const SweptActivation& of = *one->activation;
    const Subject subject = one->make();
    const DomainResult result = sweep_own(subject);
    const std::unique_ptr<Oracle> oracle = of.oracle();
    const Domain domain{kBf16};
    std::map<std::pair<std::uint32_t, bool>, std::pair<double, double>> preimages;
    for (std::int64_t i = 0; i < domain.finite(); ++i) {
      const float x = domain.at(i), y = static_cast<float>(oracle->value(x, kBf16));
      const double slope = oracle->derivative(x);
      auto [it, inserted] =
          preimages.try_emplace({std::bit_cast<std::uint32_t>(y), x >= of.x_star}, slope, slope);
      it->second = {std::min(it->second.first, slope), std::max(it->second.second, slope)};
    }
    double half_range = 0, regret = 0;
    for (const auto& [key, range] : preimages) {
      const float y = std::bit_cast<float>(key.first);
      const std::uint32_t mask = key.second;
      float g = 0;
      subject.derivative(&y, &mask, &g, 1);
      half_range = std::max(half_range, (range.second - range.first) / 2);
      regret = std::max(regret, std::fabs(g - (range.first + range.second) / 2));
    }
    EXPECT_NEAR(result.max(result.all.oracle), half_range, 0x1p-49) << fit;
    EXPECT_NEAR(result.max(result.all.regret), regret, 0x1p-49) << fit;
  }
}

/// The fit with one coefficient of one row moved by 2%.
template <class Fit, int kRow, int kWord>
struct Changed : Fit {
  static OUTGRAD_HD constexpr auto table() {
    auto table = Fit::table();
    table.w[kRow][kWord] += 0.02f;
    return table;
  }
};

template <class Fit, class T>
double excess_of(const FloatFormat& format) {
  const Subject subject = make_backward_subject<Fit, T>(format, *swept_activation(Fit::kActivation));
  return excess(subject, sweep_own(subject));
}

TEST(Shipped, AChangedCoefficientBreaksTheHeadersClaim) {
  using namespace kernels::generated;
  using kernels::BF16;
  using kernels::F16;
  EXPECT_LE((excess_of<TanhBf16, BF16>(kBf16)), 0);
  EXPECT_GT((excess_of<Changed<TanhBf16, 0, 1>, BF16>(kBf16)), 0.1);
  EXPECT_GT((excess_of<Changed<TanhBf16, 0, 2>, BF16>(kBf16)), 0.1);
  EXPECT_GT((excess_of<Changed<EluF16, 0, 2>, F16>(kF16)), 0.1);
  EXPECT_GT((excess_of<Changed<SoftplusBf16, 0, 1>, BF16>(kBf16)), 0.1);
  EXPECT_GT((excess_of<Changed<SiluF16, 0, 1>, F16>(kF16)), 0.1);
  EXPECT_GT((excess_of<Changed<MishBf16, 3, 1>, BF16>(kBf16)), 0.1);
}

// Storing y costs 3.9e-5 next to x*: compared by their maxima, T and C once forgave as much everywhere.
TEST(Shipped, AnErrorOfF32BelowTheCostOfStorageElsewhereIsSeen) {
  for (const auto& [fit, x] : {std::pair{"silu_f32", 1.5f}, std::pair{"tanh_f32", 0.5f}}) {
    const auto one = std::find_if(shipped().begin(), shipped().end(),
                                  [fit = fit](const Shipped& s) { return s.fit == fit; });
    ASSERT_NE(one, shipped().end());
    Subject subject = one->make();
    subject.distributions.clear();
    const Domain domain{kF32};
    const std::int64_t at = domain.first_right(x),
                       star = domain.first_right(one->activation->masked() ? one->activation->x_star : 0.25f);
    const double claim = claimed(subject, Claim::kEvaluation);
    const auto deviation = [&](std::int64_t begin, std::int64_t end) {
      Segment s = sweep_range(subject, domain, begin, end);
      s.close(subject.stored());
      return std::max(s.deviation[0].value, s.deviation[1].value) + kSweepMargin;
    };
    EXPECT_LE(deviation(star - 40'000, star + 40'000), claim) << fit;
    EXPECT_LE(deviation(at, at + 5'000), claim) << fit;
    const auto sound = subject.derivative;
    const double y_at = one->activation->oracle()->value(x, kF32);
    subject.derivative = [sound, y_at, error = static_cast<float>(1.5 * claim)](
                             const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
      sound(y, mask, g, n);
      for (std::int64_t i = 0; i < n; ++i) g[i] += std::fabs(y[i] - y_at) < 1e-4 ? error : 0;
    };
    EXPECT_GT(deviation(at, at + 5'000), claim) << fit;
  }
}

}  // namespace
}  // namespace outgrad::validation
