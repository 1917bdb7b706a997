// Weights of bit patterns: against MPFR's erfc, against each other, and as a sweep uses them.

#include "validation/sweep/distribution.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "validation/sweep/sweep.h"
#include "validation/sweep/sweep_json.h"

namespace outgrad::validation {
namespace {

/// P(a < X <= b) of N(0, sigma^2), by erfc at 300 bits.
double exact_mass(double a, double b, double sigma) {
  Real lower(300), upper(300), root(300);
  mpfr_sqrt_ui(root.get(), 2, MPFR_RNDN);
  mpfr_mul_d(root.get(), root.get(), sigma, MPFR_RNDN);
  for (const auto& [real, value] : {std::pair{&lower, a}, {&upper, b}}) {
    mpfr_d_div(real->get(), value, root.get(), MPFR_RNDN);
    mpfr_erfc(real->get(), real->get(), MPFR_RNDN);
  }
  mpfr_sub(lower.get(), lower.get(), upper.get(), MPFR_RNDN);
  mpfr_div_ui(lower.get(), lower.get(), 2, MPFR_RNDN);
  return mpfr_get_d(lower.get(), MPFR_RNDN);
}

std::string committed_histogram() {
  return kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) +
                            "/notebooks_data/activations/all-MiniLM-L6-v2.json");
}

TEST(Distribution, MassesOfPatternsAreThoseOfErfc) {
  for (const double sigma : {0.5, 1.0, 2.0}) {
    const Distribution d = Distribution::normal(sigma);
    for (const FloatFormat& format : {kF16, kBf16, kF32}) {
      const Domain domain{format};
      std::mt19937_64 random(11);
      for (int i = 0; i < 3000; ++i) {
        const double x =
            domain.at(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(domain.finite())));
        if (std::fabs(x) > 8 * sigma) continue;
        const auto [low, high] = rounding_interval(x, format);
        const double want = exact_mass(low, high, sigma);
        EXPECT_NEAR(d.mass(low, high) / want, 1, 0x1p-40) << format.name << ' ' << x << ' ' << sigma;
      }
    }
    for (const auto& [a, b] : {std::pair{-1.0, 2.0}, {0.5, 7.0}, {-9.0, -0.25}, {3.0, 3.5}, {-1e-3, 1e-3}}) {
      EXPECT_NEAR(d.mass(a, b) / exact_mass(a, b, sigma), 1, 0x1p-44) << a << ' ' << b;
    }
    EXPECT_DOUBLE_EQ(d.mass(-INFINITY, INFINITY), 1);
  }
}

TEST(Distribution, RoundingIntervalsTileTheLine) {
  for (const FloatFormat& format : {kF16, kBf16}) {
    const Domain domain{format};
    for (std::int64_t i = 1; i < domain.finite(); ++i) {
      EXPECT_EQ(rounding_interval(domain.at(i - 1), format)[1], rounding_interval(domain.at(i), format)[0])
          << domain.at(i);
    }
    for (const double x : {1.0, 1.5, -2.0, 0x1p-14, 0x1p-24}) {
      const auto [low, high] = rounding_interval(x, format);
      EXPECT_EQ(round_to_format(std::nextafter(low, high), format), round_to_format(x, format));
      EXPECT_EQ(round_to_format(std::nextafter(high, low), format), round_to_format(x, format));
    }
  }
}

TEST(Distribution, HistogramsSpreadEachBinEvenly) {
  const Distribution d = Distribution::parse(
      R"({"schema": "outgrad.activations/1", "name": "two", "first": -1, "width": 0.5,
          "counts": [1, 0, 2, 1], "elements": 4})",
      "f");
  EXPECT_EQ(d.mass(-10, 10), 1);
  EXPECT_EQ(d.mass(-1, -0.75), 0.125);
  EXPECT_EQ(d.mass(-0.5, 0), 0);
  EXPECT_EQ(d.mass(0.25, 0.75), 0.375);
  EXPECT_EQ(d.density(0.1), 1);
  EXPECT_EQ(d.density(1), 0);
  const Distribution real = Distribution::parse(committed_histogram(), "f");
  EXPECT_NEAR(real.mass(-100, 100), 1, 1e-15);
  EXPECT_LT(real.reach()[0], -5);
  EXPECT_GT(real.reach()[1], 2);
  EXPECT_EQ(Distribution::from_json(nlohmann::json::parse(real.to_json().dump()), "f").mass(-0.8, -0.7),
            real.mass(-0.8, -0.7));
  for (const char* bad : {"", "{}", "[]", R"({"schema": "outgrad.activations/2"})"})
    EXPECT_THROW(Distribution::parse(bad, "f"), kernels::SpecError) << bad;
  for (const char* bad :
       {R"("width": 0, "counts": [1], "elements": 1)", R"("width": 1, "counts": [], "elements": 0)",
        R"("width": 1, "counts": [-1], "elements": -1)", R"("width": 1, "counts": [1], "elements": 2)",
        R"("width": 1, "counts": [9007199254740992, 1], "elements": 2)"}) {
    const std::string text =
        fmt::format(R"({{"schema": "outgrad.activations/1", "name": "n", "first": 0, {}}})", bad);
    EXPECT_THROW(Distribution::parse(text, "f"), kernels::SpecError) << bad;
  }
}

TEST(ExactSum, IsTheSameInAnyOrderAndSurvivesJson) {
  std::mt19937_64 random(12);
  std::vector<double> terms(1000);
  for (double& v : terms)
    v = std::ldexp(static_cast<double>(random()) - 0x1p63, -static_cast<int>(random() % 90) - 64);
  ExactSum forth, back;
  for (const double v : terms) forth.add(v);
  std::reverse(terms.begin(), terms.end());
  for (const double v : terms) back.add(v);
  EXPECT_EQ(forth.to_json(), back.to_json());
  EXPECT_EQ(ExactSum::from_json(nlohmann::json::parse(forth.to_json().dump())).value(), forth.value());
  long double sum = 0;
  for (const double v : terms) sum += v;
  EXPECT_NEAR(forth.value(), static_cast<double>(sum), 1e-16);
  forth.add(NAN);
  EXPECT_EQ(forth.value(), INFINITY);
  EXPECT_EQ(ExactSum::from_json(nlohmann::json::parse(forth.to_json().dump())).value(), INFINITY);
}

/// y is x, g a smooth function of it that is off by something else on every x.
Subject wavy(const FloatFormat& format) {
  Subject subject{"wavy+rounded", format, "1", {}, {}, {}};
  subject.own_forward = false;
  subject.derivative = [](const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i)
      g[i] = (mask[i / 32] >> (i % 32) & 1 ? 1.0f : 0.5f) * std::sin(40 * y[i]);
  };
  subject.distributions.push_back(Distribution::parse(committed_histogram(), "f"));
  return subject;
}

// Moments against one weight an element, by MPFR's erfc, in every kind of block: across binades, bins, zero
// and x*.
TEST(WeightedSweep, BlocksOfF32AreWeighedLikeTheirElements) {
  const Subject subject = wavy(kF32);
  const Domain domain{kF32};
  const auto index_of = [&](float x) {
    const std::int64_t magnitude = std::bit_cast<std::uint32_t>(std::fabs(x));
    return x < 0 ? domain.finite() / 2 - 1 - magnitude : domain.finite() / 2 + magnitude;
  };
  for (const float x : {-3.0f, -0.7517915f, -0x1p-16f, -0.015625f, 0.0f, 0x1p-17f, 0.5f, 1.0f, 5.8125f}) {
    const std::int64_t begin = index_of(x) - 3001, end = index_of(x) + 5000;
    const Segment segment = sweep_range(subject, domain, begin, end);
    ASSERT_EQ(segment.under.size(), 4u);
    for (std::size_t k = 0; k < 4; ++k) {
      const Distribution& d = subject.distributions[k];
      long double mass = 0, error = 0, square = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const float at = domain.at(i);
        const ReferenceValues found = kGelu.reference().at({&at, 1});
        const double want = found.slope[0];
        GeluOracle oracle;
        float y = 0, g = 0;
        round_values({&at, found.low.data(), found.high.data(), 1}, &y, kF32, oracle);
        const std::uint32_t mask = at >= kGeluXStar;
        subject.derivative(&y, &mask, &g, 1);
        const auto [low, high] = d.smooth() ? rounding_interval(at, kF32) : step_from_zero(at);
        const double w = d.mass(low, high), e = g - want;
        mass += w;
        error += w * e;
        square += w * e * e;
      }
      const double scale = std::max(static_cast<double>(mass), 0x1p-60);
      EXPECT_NEAR(segment.under[k].mass.value(), static_cast<double>(mass), scale * 0x1p-38)
          << x << ' ' << d.name();
      EXPECT_NEAR(segment.under[k].error.value(), static_cast<double>(error), scale * 0x1p-36)
          << x << ' ' << d.name();
      EXPECT_NEAR(segment.under[k].square.value(), static_cast<double>(square), scale * 0x1p-36)
          << x << ' ' << d.name();
    }
  }
}

// Blocks need not start where bins end: the x* of an activation cuts them anywhere. silu's did, and its
// weights added up to 1 + 4e-9.
TEST(WeightedSweep, CutBlocksAddUpToTheirBins) {
  const Subject subject = wavy(kF32);
  const Distribution& histogram = subject.distributions.back();
  const Domain domain{kF32};
  for (const float x : {-1.28125f, -1.0f, -0.484375f, 0.25f, 0.484375f, 2.03125f}) {
    for (const std::int64_t before : {1, 777, 1500, 2047}) {
      const std::int64_t middle = domain.first_right(static_cast<double>(x)), begin = middle - before,
                         end = middle + 4096 - before;
      const auto sum = sweep_range(subject, domain, begin, end).under.back().mass.value();
      const double exact =
          histogram.mass(step_from_zero(domain.at(begin))[0], step_from_zero(domain.at(end - 1))[1]);
      EXPECT_NEAR(sum, exact, 1e-14) << x << ' ' << before;
    }
  }
}

TEST(WeightedSweep, WholeFormatsHaveAMassOfOneAndKnownMoments) {
  for (const FloatFormat& format : {kF16, kBf16}) {
    Subject subject = wavy(format);
    subject.derivative = [](const float*, const std::uint32_t*, float* g, std::int64_t n) {
      std::fill_n(g, n, 0.0f);
    };
    SweepOptions options;
    options.progress = false;
    options.chunk_patterns = 4096;
    const std::vector<Domain> domains{{format}};
    const DomainResult result = finish(sweep(subject, domains, options), domains, subject.stored()).at(0);
    const nlohmann::ordered_json under = under_json(subject, result);
    // g = 0: the bias is -E f'(x), and E f'(x) = E x f(x) / sigma^2 (Stein) = 1/2, since f'(x) + f'(-x) = 1.
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(under[k]["mass"].get<double>(), 1, 1e-12);
      EXPECT_NEAR(under[k]["bias"].get<double>(), -0.5, 1e-9) << "the weights are symmetric";
    }
    // E f'^2 for sigma = 1, by the trapezoidal rule in double.
    double square = 0;
    for (double x = -12; x <= 12; x += 0x1p-8) {
      const double slope = std::erfc(-x / std::numbers::sqrt2) / 2 +
                           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
      square += slope * slope * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi) * 0x1p-8;
    }
    // Patterns stand for their neighbourhood: an error of (spacing)^2 in the mean.
    EXPECT_NEAR(under[1]["rms"].get<double>(), std::sqrt(square),
                format.precision == kF16.precision ? 1e-6 : 1e-4);
    for (std::size_t k = 0; k < 4; ++k) {
      EXPECT_GT(under[k]["share_in_worst_codes"].get<double>(), 0.001);
      EXPECT_LT(under[k]["share_in_worst_codes"].get<double>(), 0.2);
      EXPECT_GE(under[k]["worst_codes"].get<int>(), 2) << "one on either side of x*";
    }
  }
}

TEST(WeightedSweep, ShardsAddUpToTheSameBytes) {
  const Subject subject = wavy(kBf16);
  const Domain domain{kBf16};
  const std::vector<Domain> domains{domain};
  const auto report_of = [&](int shards) {
    SweepOptions options;
    options.progress = false;
    options.chunk_patterns = 4096;
    options.shards = shards;
    std::vector<DomainPart> parts;
    Subject read;
    for (options.shard = shards; options.shard >= 1; --options.shard) {
      SweepParts part = parts_from_json(to_json(subject, sweep(subject, domains, options)).dump(), "part");
      read = part.subject;
      parts.insert(parts.end(), part.parts.begin(), part.parts.end());
    }
    return report_json(read, finish(parts, domains, read.stored())).dump();
  };
  const std::string whole = report_of(1);
  EXPECT_EQ(report_of(3), whole);
  EXPECT_EQ(report_of(7), whole);
}

}  // namespace
}  // namespace outgrad::validation
