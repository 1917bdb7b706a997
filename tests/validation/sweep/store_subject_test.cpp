// Stores in place of y and a bit: all x counted and within the headers' claims, what is known of every dither
// against all of them, cells against a map, and changed kernels are seen.

#include "validation/sweep/store_subject.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/stores/fp4.h"
#include "validation/sweep/shipped.h"
#include "validation/sweep/sweep_json.h"

namespace outgrad::validation {
namespace {

using kernels::BF16;
using Gelu = kernels::CodedActivationAt<0>;

std::vector<DomainResult> results_of(Subject subject) {
  SweepOptions options;
  options.progress = false;
  const std::vector<Domain> domains = subject.domains();
  return finish(sweep(subject, domains, options), domains, subject.stored());
}

/// What a sweep finds of T, and of a mean error over dithers, over what the header claims.
std::pair<double, double> found_over_claimed(const Subject& store, const DomainResult& result) {
  std::pair<double, double> over{-1, -1};
  for (const Claim& claim : store.claims) {
    if (claim.what == Claim::kTotal) over.first = (result.max(result.all.total) + kSweepMargin) / claim.limit;
    if (claim.what == Claim::kBias)
      over.second = (result.max(result.all.bias) + kDitherMargin + kSweepMargin) / claim.limit;
  }
  return over;
}

TEST(StoreSubject, NightlySixteenBitSweepsAreCountedAndWithinTheirClaims) {
  int swept = 0;
  for (const Shipped& one : shipped()) {
    if (!one.stores || one.format == "f32") continue;
    const bool scaled = one.fit.ends_with("_fp8");
    // the results of all are committed
    if (scaled && one.name != "gelu_fp8_bf16" && one.name != "mish_fp8_f16") continue;
    const Subject subject = one.make();
    const std::vector<DomainResult> results = results_of(subject);  // finish() has counted
    ASSERT_EQ(results.size(), scaled ? 15u : one.fit.ends_with("_code") ? 10u : 1u);
    for (const DomainResult& result : results) {
      const Subject& store = subject.of(result.domain);
      const auto [total, bias] = found_over_claimed(store, result);
      const std::string which = one.name + ", " + store.name;
      EXPECT_EQ(result.all.patterns, 65536) << which;
      EXPECT_EQ(result.all.wrong_special, 0) << which;
      EXPECT_LE(total, 1) << which;
      // A code's cells have all values of f', so that the x of a format come near to its bound. Their y does
      // not.
      EXPECT_GE(total, subject.scattered && !scaled ? 0.99 : 0.9) << which;
      EXPECT_EQ(store.varied != nullptr && !scaled, bias > 0) << which;
      EXPECT_LE(bias, 1) << which;
      if (!store.varied) {
        EXPECT_GE(result.max(result.all.total), result.max(result.all.oracle))
            << which << ": no function of the code does better";
      }
      ++swept;
    }
  }
  EXPECT_EQ(swept, 10 * 2 * 10 + 6 * 2 + 2 * 15);
}

// What one x gets by the kernels of all variants is what their tables and the definition of a code and a part
// say.
TEST(StoreSubject, YInFewBitsIsThatOfItsScaleOrBlock) {
  using Header = kernels::Fp8Activation<kernels::generated::GeluFp8>;
  using Forward = Header::Forward<float>;
  const detail::FewBits scaled(0, kernels::StoreId::kE4m3, kBf16, 2);
  std::vector<float> x;
  for (int i = -300; i <= 300; ++i)
    x.push_back(kernels::widen(kernels::narrow<BF16>(static_cast<float>(i) / 32)));
  std::vector<float> got(x.size());
  for (std::size_t k = 0; k < scaled.variants(); k += 8) {
    scaled.gradients(k, x.data(), got.data(), static_cast<std::int64_t>(x.size()));
    const float scale = scaled.variant(k);
    kernels::Fp8Table table;
    kernels::fill_fp8_table<Header, kernels::F8E4M3>(scale, 2, table);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float y = kernels::forward_at<Forward>(x[i]),
                  g = kernels::fitted_gradient<Header::Fit, Forward>(x[i], y);
      const kernels::u8 code = kernels::fp8_code<kernels::F8E4M3>(y, scale).bits;
      ASSERT_EQ(got[i], table.values[kernels::part_of(table, code, g)][code]) << x[i] << ' ' << scale;
    }
  }
  // Alone in a block of 32.
  const detail::FewBits blocks(0, kernels::StoreId::kMxFp4, kBf16, 1);
  const auto tables = std::make_unique<kernels::Fp4Tables>();
  kernels::fill_fp4_tables<Header, kernels::MxFp4>(1, 1, kernels::kLargestFiniteBits, *tables);
  for (const float each : {-3.0f, -0.75f, -0.125f, 0.0f, 0.5f, 1.0f, 700.0f}) {
    float kept = 0, g_kept = 0;
    const float from = kernels::widen(kernels::narrow<BF16>(each));
    blocks.keep(&from, &kept, 1);
    blocks.gradients_of(&kept, kF32, &g_kept, 1);
    const float y = kernels::forward_at<Forward>(from),
                g = kernels::fitted_gradient<Header::Fit, Forward>(from, y);
    const kernels::u8 scale = kernels::BlockScale<kernels::MxFp4>::of(kernels::bits_of(y) & 0x7fffffffu, 1);
    const kernels::u8 code = kernels::fp8_code<kernels::F4E2M1>(y, tables->multiplier[scale]).bits;
    EXPECT_EQ(g_kept,
              tables->of_scale[scale].values[kernels::part_of(tables->of_scale[scale], code, g)][code])
        << from;
  }
}

// Every dither, one by one.
TEST(StoreSubject, WhatIsKnownOfEveryDitherIsTrueOfEach) {
  for (const int bits : {2, 3}) {
    const kernels::CodeRule rule = kernels::dithered_code({Gelu::Code::kLo, Gelu::Code::kHi}, bits);
    // In the middle of a cell, at a border, at both ends, and anywhere.
    for (const float g : {0.5f, rule.first + 1.5f * rule.step, rule.first, 1.1289042f, 0.7131f}) {
      const double want = g + 1e-9;
      double least = 2, greatest = -2, error = 0, square = 0;
      for (std::uint32_t k = 0; k < detail::kDithers; ++k) {
        const float d = detail::dither_numbered(k);
        const double got = kernels::gradient_of_code(rule, kernels::coded_gradient(rule, g, d), d);
        least = std::min(least, got), greatest = std::max(greatest, got);
        error += (got - want) / detail::kDithers, square += (got - want) * (got - want) / detail::kDithers;
      }
      const VariedGradient known = detail::over_dithers(rule, g, want);
      EXPECT_EQ(known.least, least) << bits << ' ' << g;
      EXPECT_EQ(known.greatest, greatest) << bits << ' ' << g;
      EXPECT_NEAR(known.error, error, kDitherMargin) << bits << ' ' << g;
      EXPECT_NEAR(known.square, square, 4 * kDitherMargin) << bits << ' ' << g;
      for (const auto& [at, value] :
           {std::pair{known.least_at, known.least}, {known.greatest_at, known.greatest}}) {
        EXPECT_EQ(kernels::gradient_of_code(rule, kernels::coded_gradient(rule, g, at), at), value);
      }
    }
  }
}

// From 4 bits on a code's x are several intervals. With y and f' from the oracle alone.
TEST(StoreSubject, CellsAgreeWithAMap) {
  const Subject subject = make_codes_subject(0, kBf16);
  const std::vector<DomainResult> results = results_of(subject);
  const std::unique_ptr<Oracle> oracle = kGelu.oracle();
  const Domain domain{kBf16};
  for (const std::size_t k : {std::size_t{1}, std::size_t{4}}) {
    std::map<float, std::pair<double, double>> cells;
    int runs = 0;
    float last = -1;
    for (std::int64_t i = 0; i < domain.finite(); ++i) {
      const float x = domain.at(i);
      float code = 0;
      subject.stores[k].forward(&x, &code, nullptr, 1);
      const double slope = oracle->derivative(x);
      auto [it, inserted] = cells.try_emplace(code, slope, slope);
      it->second = {std::min(it->second.first, slope), std::max(it->second.second, slope)};
      runs += code != last;
      last = code;
    }
    EXPECT_EQ(cells.size(), std::size_t{1} << (k + 1));
    EXPECT_EQ(runs > static_cast<int>(cells.size()), k >= 3) << "some are several intervals";
    double half_range = 0, regret = 0;
    for (const auto& [code, range] : cells) {
      float g = 0;
      subject.stores[k].derivative(&code, nullptr, &g, 1);
      half_range = std::max(half_range, (range.second - range.first) / 2);
      regret = std::max(regret, std::fabs(g - (range.first + range.second) / 2));
    }
    EXPECT_NEAR(results[k].max(results[k].all.oracle), half_range, 0x1p-49);
    EXPECT_NEAR(results[k].max(results[k].all.regret), regret, 0x1p-49);
  }
}

// A chunk's segment keeps all of it, however the domain is cut.
TEST(StoreSubject, ChunksAndTheirTextsJoin) {
  Subject subject = make_codes_subject(0, kBf16);
  const std::vector<DomainResult> whole = results_of(subject);
  std::vector<DomainPart> parts;
  const std::vector<Domain> domains = subject.domains();
  for (const Domain& domain : domains) {
    for (const auto& [begin, end] :
         {std::pair{std::int64_t{0}, std::int64_t{30001}}, {std::int64_t{30001}, domain.size()}}) {
      const Segment segment = sweep_range(subject.of(domain), domain, begin, end);
      parts.push_back(
          {domain, begin, end, segment_from_json(nlohmann::json::parse(segment_to_json(segment).dump()))});
    }
  }
  const SweepParts read = parts_from_json(to_json(subject, parts).dump(), "parts");
  ASSERT_EQ(read.subject.stores.size(), subject.stores.size());
  const std::vector<DomainResult> joined = finish(read.parts, read.subject.domains(), read.subject.stored());
  // Sums in doubles follow the blocks, and these follow the cut; all else is the same.
  const auto without_sums = [](nlohmann::ordered_json report) {
    for (auto& domain : report["domains"]) {
      domain.erase("rms_T");
      domain.erase("under");
    }
    return report;
  };
  EXPECT_EQ(without_sums(report_json(read.subject, joined)), without_sums(report_json(subject, whole)));
}

// A kernel that reads one code too high, with and without a dither; and a rule that is off for every dither.
TEST(StoreSubject, ChangedKernelsBreakTheClaims) {
  const Subject sound = make_codes_subject(0, kBf16);
  const auto total_of = [&](std::size_t k, const auto& change) {
    Subject subject = sound;
    Subject store = sound.stores[k];
    change(store);
    subject.stores = {store};
    const std::vector<DomainResult> results = results_of(subject);
    return found_over_claimed(store, results[0]);
  };
  constexpr std::size_t kFourBits = 3, kTwoDithered = 8;
  const auto raised = [](Subject& store) {
    store.derivative = [sound = store.derivative](const float* code, const std::uint32_t* mask, float* g,
                                                  std::int64_t n) {
      sound(code, mask, g, n);
      for (std::int64_t i = 0; i < n; ++i) g[i] += code[i] == 3 ? 0.005f : 0.0f;
    };
  };
  EXPECT_LE(total_of(kFourBits, [](Subject&) {}).first, 1);
  EXPECT_GT(total_of(kFourBits, raised).first, 1.02);
  EXPECT_LE(total_of(kTwoDithered, [](Subject&) {}).first, 1);
  EXPECT_GT(total_of(kTwoDithered, raised).first, 1) << "what the kernels drew is seen";
  const auto [total, bias] = total_of(kTwoDithered, [](Subject& store) {
    kernels::CodeRule rule = kernels::dithered_code({Gelu::Code::kLo, Gelu::Code::kHi}, 2);
    rule.first += 2e-6f;
    store.varied = [rule](const float* x, const double* want, VariedGradient* result, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i)
        result[i] = detail::over_dithers(rule, kernels::gradient_at<Gelu::Forward<float>>(x[i]), want[i]);
    };
  });
  EXPECT_GT(total, 1);
  EXPECT_GT(bias, 1);
}

}  // namespace
}  // namespace outgrad::validation
