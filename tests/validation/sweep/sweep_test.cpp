// Sweeps of kernels whose errors are known: exact ones, and ones with a single planted fault, which every
// measure must find.

#include "validation/sweep/sweep.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "kernels/tuned.h"
#include "validation/exact/reference.h"
#include "validation/sweep/subject.h"
#include "validation/sweep/sweep_json.h"

namespace outgrad::validation {
namespace {

constexpr float kLeastRight = -0x1.80eadp-1f;  // least f32 above x*

double gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double gelu_derivative(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
         x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

/// g_m(y) in double, by bisection on libm's erfc.
double exact_gradient(double y, bool right) {
  double near = -0.75179152, far = right ? 40.0 : -40.0;
  if (std::isnan(y)) return y;
  if (right ? y >= far : y >= 0) return right;
  if (gelu(near) > y) return 0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (near + far) / 2;
    (gelu(middle) > y ? far : near) = middle;
  }
  return gelu_derivative(near);
}

bool bit_at(const std::uint32_t* mask, std::int64_t i) { return (mask[i / 32] >> (i % 32) & 1) != 0; }

/// value(key), remembered by the thread: tests sweep the same few patterns many times.
template <class Tag, class Value>
float remembered(std::uint64_t key, Value value) {
  thread_local std::unordered_map<std::uint64_t, float> memory;
  const auto it = memory.find(key);
  return it != memory.end() ? it->second : memory[key] = value();
}

float rounded_value(float x, const FloatFormat& format) {
  if (!std::isfinite(x)) return x < 0 ? -0.0f : x;
  struct Forward;
  return remembered<Forward>(
      static_cast<std::uint64_t>(format.precision) << 32 | std::bit_cast<std::uint32_t>(x), [&] {
        double value = 0, lo = 0, hi = 0, derivative = 0;
        kGelu.reference().evaluate(&x, &value, &lo, &hi, &derivative, 1);
        GeluOracle oracle;
        float y = 0;
        round_values({&x, &lo, &hi, 1}, &y, format, oracle);
        return y;
      });
}

/// Correctly rounded forward, exact backward.
Subject exact_subject(const FloatFormat& format) {
  Subject subject{"exact", format, "1", {}, {}, {}};
  subject.forward = [format](const float* x, float* y, std::uint32_t* mask, std::int64_t n) {
    std::fill_n(mask, (n + 31) / 32, 0u);
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = rounded_value(x[i], format);
      if (x[i] >= kLeastRight) mask[i / 32] |= 1u << (i % 32);
    }
  };
  subject.derivative = [](const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
    struct Backward;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool right = bit_at(mask, i);
      g[i] =
          remembered<Backward>(static_cast<std::uint64_t>(right) << 32 | std::bit_cast<std::uint32_t>(y[i]),
                               [&] { return static_cast<float>(exact_gradient(y[i], right)); });
    }
  };
  subject.gradient = [format, derivative = subject.derivative](const float* y, const std::uint32_t* mask,
                                                               float* dx, std::int64_t n) {
    derivative(y, mask, dx, n);
    for (std::int64_t i = 0; i < n; ++i)
      dx[i] = static_cast<float>(round_to_format(static_cast<double>(dx[i]), format));
  };
  return subject;
}

/// One whole 16-bit domain.
DomainResult sweep_format(const Subject& subject, SweepOptions options = {}) {
  options.progress = false;
  const std::vector<Domain> domains{{subject.format}};
  return finish(sweep(subject, domains, options), domains, subject.format).at(0);
}

/// Everything that may not depend on where a sweep was cut. Sums over a block do, in their last bits, where a
/// cut goes through it, and digests are those of chunks.
std::string fingerprint(Segment segment) {
  segment.digests = {};
  for (auto& [bin, entry] : segment.curve) entry.squares = entry.weight = {};
  segment.under.clear();
  std::sort(segment.worst.begin(), segment.worst.end(),
            [](const Run& a, const Run& b) { return a.x_first < b.x_first; });
  return segment_to_json(segment).dump();
}

TEST(Domain, OrderVisitsEveryPatternOnceAndAscends) {
  for (const FloatFormat& format : {kF16, kBf16}) {
    const Domain domain{format};
    std::map<std::uint32_t, int> seen;
    for (std::int64_t i = 0; i < domain.size(); ++i) {
      ++seen[std::bit_cast<std::uint32_t>(domain.at(i))];
      if (i > 0 && i < domain.finite()) {
        EXPECT_LE(domain.at(i - 1), domain.at(i));
      }
      EXPECT_EQ(std::isfinite(domain.at(i)), i < domain.finite());
    }
    EXPECT_EQ(seen.size(), 65536u) << format.name;
  }
  const Domain f32{kF32};
  EXPECT_EQ(f32.size(), std::int64_t{1} << 32);
  EXPECT_EQ(f32.at(0), -std::numeric_limits<float>::max());
  EXPECT_TRUE(std::signbit(f32.at(f32.finite() / 2 - 1)) && f32.at(f32.finite() / 2 - 1) == 0);
  EXPECT_EQ(f32.at(f32.finite() / 2 + 1), 0x1p-149f);
  EXPECT_EQ(f32.at(f32.finite() - 1), std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isinf(f32.at(f32.finite())) && std::isnan(f32.at(f32.size() - 1)));
  EXPECT_EQ(f32.at(f32.first_right()), kLeastRight);
}

struct Expected {
  FloatFormat format;
  double oracle_left, oracle_right, ratio;
  friend void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.format.name; }
};

class ExactKernel : public testing::TestWithParam<Expected> {};

// Figures that an independent prototype found: half ranges of f' over the preimages of the lowest y, and what
// rounding y costs an exact g.
TEST_P(ExactKernel, ReproducesTheKnownLimits) {
  const auto& [format, oracle_left, oracle_right, ratio] = GetParam();
  const DomainResult result = sweep_format(exact_subject(format));
  EXPECT_NEAR(result.all.oracle[0].value, oracle_left, 0.6e-5);
  EXPECT_NEAR(result.all.oracle[1].value, oracle_right, 0.6e-5);
  EXPECT_NEAR(result.ratio(), ratio, 0.006);
  EXPECT_EQ(result.all.misrounded, 0);
  EXPECT_EQ(result.all.wrong_mask, 0);
  EXPECT_EQ(result.all.wrong_special, 0);
  // C is the T of an exact g, and was found by another inversion.
  for (std::size_t branch : {0, 1})
    EXPECT_NEAR(result.all.storage[branch].value, result.all.total[branch].value, 1e-9);
  EXPECT_GE(result.max(result.all.stored),
            result.max(result.all.total) * (1 - std::ldexp(1.0, -format.precision)));
  EXPECT_GT(result.rms, 0);
  EXPECT_LT(result.rms, result.max(result.all.total) / 4);
  for (const Maximum& maximum : result.all.forward_ulp) EXPECT_LE(maximum.value, 0.5);
  EXPECT_GT(result.all.forward_ulp[0].value, 0.4);
}

INSTANTIATE_TEST_SUITE_P(Formats, ExactKernel,
                         testing::Values(Expected{kF16, 0.00475, 0.00484, 1.33},
                                         Expected{kBf16, 0.00965, 0.01057, 1.45}),
                         [](const auto& tested) { return std::string(tested.param.format.name); });

TEST(Sweep, AgreesWithAMapOfPreimages) {
  const Subject subject = exact_subject(kBf16);
  const Domain domain{kBf16};
  const DomainResult result = sweep_format(subject);
  std::map<std::pair<std::uint32_t, bool>, std::pair<double, double>> preimages;
  GeluOracle oracle;
  for (std::int64_t i = 0; i < domain.finite(); ++i) {
    const float x = domain.at(i);
    const float y = static_cast<float>(oracle.value(x, kBf16));
    const double derivative = gelu_derivative(x);
    auto [it, inserted] =
        preimages.try_emplace({std::bit_cast<std::uint32_t>(y), x >= kLeastRight}, derivative, derivative);
    it->second = {std::min(it->second.first, derivative), std::max(it->second.second, derivative)};
  }
  double half_range[2] = {}, regret[2] = {};
  for (const auto& [key, range] : preimages) {
    const auto& [lo, hi] = range;
    half_range[key.second] = std::max(half_range[key.second], (hi - lo) / 2);
    const double g = static_cast<float>(exact_gradient(std::bit_cast<float>(key.first), key.second));
    regret[key.second] = std::max(regret[key.second], std::fabs(g - (lo + hi) / 2));
  }
  for (std::size_t branch : {0, 1}) {
    EXPECT_NEAR(result.all.oracle[branch].value, half_range[branch], 1e-14);
    EXPECT_NEAR(result.all.regret[branch].value, regret[branch], 1e-14);
  }
}

TEST(Sweep, FindsASingleWrongGradient) {
  for (const bool right : {false, true}) {
    const float y_bad = static_cast<float>(GeluOracle().value(right ? 0.75 : -1.5, kF16));
    Subject subject = exact_subject(kF16);
    const auto exact = subject.derivative;
    for (const float wrong :
         {0.02f, std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      subject.derivative = [=](const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
        exact(y, mask, g, n);
        for (std::int64_t i = 0; i < n; ++i) g[i] += y[i] == y_bad && bit_at(mask, i) == right ? wrong : 0.0f;
      };
      const Segment all = sweep_format(subject).all;
      for (const Maximum& maximum : {all.total[right], all.regret[right]}) {
        EXPECT_EQ(maximum.y, y_bad);
        if (std::isfinite(wrong)) {
          EXPECT_NEAR(maximum.value, wrong, 1e-3);
        } else {
          EXPECT_EQ(maximum.value, std::numeric_limits<double>::infinity());
        }
      }
      EXPECT_LT(all.total[!right].value, 0.01);
    }
  }
}

TEST(Sweep, FindsASingleWrongYMaskAndSpecialCase) {
  const float x_bad = 0.75f;
  const auto with_forward = [&](auto spoil) {
    Subject subject = exact_subject(kBf16);
    subject.forward = [exact = subject.forward, spoil](const float* x, float* y, std::uint32_t* mask,
                                                       std::int64_t n) {
      exact(x, y, mask, n);
      for (std::int64_t i = 0; i < n; ++i) spoil(x[i], y[i], mask[i / 32], 1u << (i % 32));
    };
    return sweep_format(subject).all;
  };
  const Segment off = with_forward([=](float x, float& y, std::uint32_t&, std::uint32_t) {
    if (x == x_bad) y = std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) + 0x10000u);
  });
  ASSERT_EQ(off.misrounded, 1);
  EXPECT_EQ(off.examples.at(0).x, x_bad);
  EXPECT_GT(off.forward_ulp[static_cast<std::size_t>(ForwardRegion::elsewhere)].value, 0.5);
  EXPECT_NEAR(off.oracle[1].value, 0.01057, 0.6e-5) << "O never sees our forward";

  const Segment flipped = with_forward([=](float x, float&, std::uint32_t& word, std::uint32_t bit) {
    if (x == x_bad) word ^= bit;
  });
  EXPECT_EQ(flipped.wrong_mask, 1);
  EXPECT_EQ(flipped.total[1].x, x_bad);
  EXPECT_GT(flipped.total[1].value, 0.5);

  const Segment nan_right = with_forward([](float x, float&, std::uint32_t& word, std::uint32_t bit) {
    if (std::isnan(x)) word |= bit;
  });
  EXPECT_EQ(nan_right.wrong_special, 254);
  const Segment infinite = with_forward([](float x, float& y, std::uint32_t&, std::uint32_t) {
    if (x < -1e39) y = 0.0f;
  });
  EXPECT_EQ(infinite.wrong_special, 1);
  const Segment zero = with_forward([](float x, float& y, std::uint32_t&, std::uint32_t) {
    if (x == 0) y = 0.0f;
  });
  EXPECT_EQ(zero.misrounded, 1) << "-0";
}

TEST(Sweep, ForeignForwardsCostMoreAndErffLess) {
  // In f32 next to x*, where 2^-23 is some eight steps of y. The exact g rises as sqrt(y - y*), so a y that
  // is a few steps off costs sqrt(2 f'' e) with f''(x*) = 0.431: 4.5e-4 for e = 2^-23 + 2 ulp.
  const Domain domain{kF32};
  const Segment all =
      sweep_range(exact_subject(kF32), domain, domain.first_right() - 6000, domain.first_right() + 6000);
  double before = std::max(all.total[0].value, all.total[1].value) * (1 - 1e-12);
  for (const PerBranch& foreign : all.foreign) {
    const double now = std::max(foreign[0].value, foreign[1].value);
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_NEAR(before, std::sqrt(2 * 0.431 * (0x1p-23 + 0x1p-25)), 1e-4);
  EXPECT_GE(all.erff[1].value, 0);
  EXPECT_LE(all.erff[1].value, before);
}

// PyTorch's own kernels, whose erf and exp are less exact than this machine's, were once measured to be off
// by 2.7e-7.
TEST(FromX, IsTheErrorOfPyTorchsFormula) {
  Subject subject = exact_subject(kF32);
  subject.deployed = true;
  GeluOracle oracle;
  const Domain domain{kF32};
  const std::int64_t begin = domain.first_right() + 1'000'000;
  const Segment all = sweep_range(subject, domain, begin, begin + 3000);
  double most = 0;
  for (std::int64_t i = begin; i < begin + 3000; ++i) {
    const float x = domain.at(i);
    most = std::max(most, std::fabs(static_cast<double>(gelu_slope_by_erff(x)) -
                                    oracle.derivative(static_cast<double>(x))));
  }
  EXPECT_NEAR(all.from_x[1].value, most, 1e-15);
  EXPECT_GT(most, 1e-8);
  EXPECT_LT(most, 1e-6);
  subject.deployed = false;
  EXPECT_LT(sweep_range(subject, domain, begin, begin + 3000).from_x[1].value, 0)
      << "of the deployed kernels' sweep alone";
}

TEST(Segment, CutsDoNotMatter) {
  std::mt19937_64 random(5);
  const Subject subject = exact_subject(kF16);
  const auto check = [&](const Domain& domain, std::int64_t begin, std::int64_t end) {
    Segment whole = sweep_range(subject, domain, begin, end);
    Segment joined;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t next = std::min(end, at + 1 + static_cast<std::int64_t>(random() % 4000));
      joined.append(sweep_range(subject, domain, at, next), kF16);
      at = next;
    }
    EXPECT_EQ(fingerprint(joined), fingerprint(whole));
    whole.close(kF16);
    joined.close(kF16);
    EXPECT_EQ(fingerprint(joined), fingerprint(whole));
  };
  check({kF16}, 0, 65536);
  // f32 x, where a y16 has thousands of x: runs span several pieces.
  const Domain f32{kF32};
  check(f32, f32.first_right() - 20000, f32.first_right() + 20000);
  check(f32, f32.finite() - 5000, f32.finite() + 5000);
}

TEST(Segment, SurvivesJson) {
  const Domain f32{kF32};
  const Segment segment =
      sweep_range(exact_subject(kBf16), f32, f32.first_right() - 3000, f32.first_right() + 3000);
  EXPECT_EQ(segment_to_json(segment_from_json(nlohmann::json::parse(segment_to_json(segment).dump()))).dump(),
            segment_to_json(segment).dump());
  Segment infinite;
  infinite.total[0].value = std::numeric_limits<double>::infinity();
  infinite.total[0].got = std::numeric_limits<double>::quiet_NaN();
  const Segment back = segment_from_json(nlohmann::json::parse(segment_to_json(infinite).dump()));
  EXPECT_EQ(back.total[0].value, infinite.total[0].value);
  EXPECT_TRUE(std::isnan(back.total[0].got));
}

TEST(SweepFiles, InterruptedSweepContinuesWhereItWas) {
  Subject subject = exact_subject(kBf16);
  std::atomic<std::int64_t> calls = 0;
  subject.forward = [exact = subject.forward, &calls](const float* x, float* y, std::uint32_t* mask,
                                                      std::int64_t n) {
    ++calls;
    exact(x, y, mask, n);
  };
  SweepOptions options;
  const kernels::ScratchFolder folder;
  options.log = folder / "log";
  options.chunk_patterns = 4096;
  const std::string want = fingerprint(sweep_format(subject, options).all);
  const std::int64_t calls_of_all = calls.exchange(0);
  EXPECT_EQ(fingerprint(sweep_format(subject, options).all), want);
  EXPECT_EQ(calls, 0) << "all chunks were in the log";

  const std::string text = kernels::read_file(options.log);
  kernels::write_file(options.log, text.substr(0, text.size() * 3 / 5));  // torn within a line
  EXPECT_EQ(fingerprint(sweep_format(subject, options).all), want);
  EXPECT_GT(calls, 0);
  EXPECT_LT(calls.exchange(0), calls_of_all);

  // What another build computed, whose kernels may differ where the identity does not look.
  std::string other = kernels::read_file(options.log);
  const std::size_t program = other.find("\"program\":\"");
  ASSERT_NE(program, std::string::npos) << other.substr(0, 200);
  char& digit = other[program + 11];
  digit = digit == '0' ? '1' : '0';
  kernels::write_file(options.log, other);
  EXPECT_EQ(fingerprint(sweep_format(subject, options).all), want);
  EXPECT_EQ(calls.exchange(0), calls_of_all) << "another program's chunks must not be used";

  subject.identity = "2";
  EXPECT_EQ(fingerprint(sweep_format(subject, options).all), want);
  EXPECT_EQ(calls, calls_of_all) << "another kernel's chunks must not be used";
}

TEST(SweepFiles, ShardsMergeToTheWholeAndGapsAreRefused) {
  const Subject subject = exact_subject(kBf16);
  const std::vector<Domain> domains{{kBf16}};
  SweepOptions options;
  options.chunk_patterns = 4096;
  const std::string want = fingerprint(sweep_format(subject, options).all);
  options.progress = false;
  options.shards = 3;
  std::vector<std::vector<DomainPart>> shards;
  for (options.shard = 1; options.shard <= 3; ++options.shard) {
    const std::string text = to_json(subject, sweep(subject, domains, options)).dump();
    shards.push_back(parts_from_json(text, "shard").parts);
  }
  const auto join = [&](std::initializer_list<std::size_t> which) {
    std::vector<DomainPart> parts;
    for (std::size_t i : which) parts.insert(parts.end(), shards[i].begin(), shards[i].end());
    return parts;
  };
  EXPECT_EQ(fingerprint(finish(join({2, 0, 1}), domains, kBf16).at(0).all), want);
  EXPECT_THROW(finish(join({0, 2}), domains, kBf16), kernels::SpecError);
  EXPECT_THROW(finish(join({0, 1}), domains, kBf16), kernels::SpecError);
  EXPECT_THROW(finish(join({0, 1, 1, 2}), domains, kBf16), kernels::SpecError);
  EXPECT_THROW(parts_from_json("{\"schema\": 1}", "shard"), kernels::SpecError);
  EXPECT_THROW(parts_from_json("[]", "shard"), kernels::SpecError);
  EXPECT_THROW(parts_from_json("{", "shard"), kernels::SpecError);
}

template <class T>
Subject own_subject(const FloatFormat& format) {
  return make_subject<typename kernels::tuned::GeluBackward<T>::Fit,
                      typename kernels::tuned::GeluForward<T>::Fit, T>(format);
}

std::string digest_of(std::string_view bytes) {
  kernels::Sha256 sum;
  sum.add(bytes.data(), bytes.size());
  return sum.digest();
}

// The outputs of one call of each kernel over all patterns, hashed as a whole: what a device would do that
// has the domain in one array.
template <class T>
void expect_digests_of_one_call(const FloatFormat& format) {
  const Subject subject = own_subject<T>(format);
  const Domain domain{format};
  constexpr std::size_t kPatterns = 0x10000;
  constexpr kernels::CpuSchedule kSchedule{.threads = 1};
  std::vector<T> x(kPatterns), y(kPatterns), dx(kPatterns, kernels::narrow<T>(1.0f));
  std::vector<std::uint32_t> mask(kPatterns / 32);
  for (std::size_t i = 0; i < kPatterns; ++i)
    x[i] = kernels::narrow<T>(domain.at(static_cast<std::int64_t>(i)));
  using Backward = kernels::tuned::GeluBackward<T>;
  using Forward = kernels::tuned::GeluForward<T>;
  kernels::gelu_forward<typename Forward::Fit, T, kSchedule>(x.data(), y.data(), mask.data(), kPatterns);
  kernels::gelu_backward<typename Backward::Fit, T, kSchedule>(dx.data(), y.data(), mask.data(), dx.data(),
                                                               kPatterns);
  std::string bytes[3];
  const auto append = [](std::string& to, auto word) {
    to.append(reinterpret_cast<const char*>(&word), sizeof word);
  };
  for (const T v : y) append(bytes[0], kernels::canonical_bits(v));
  for (const std::uint32_t word : mask) append(bytes[1], word);
  for (const T v : dx) append(bytes[2], kernels::canonical_bits(v));

  const DomainResult result = sweep_format(subject);
  for (std::size_t k = 0; k < 3; ++k)
    EXPECT_EQ(result.all.digests[k], digest_of(bytes[k])) << format.name << ", output " << k;
}

TEST(OutputDigests, AreThoseOfOneCall) {
  expect_digests_of_one_call<kernels::BF16>(kBf16);
  expect_digests_of_one_call<kernels::F16>(kF16);
}

TEST(OutputDigests, ABitOfOneOutputChangesItsDigestAlone) {
  const Subject sound = own_subject<kernels::BF16>(kBf16);
  const auto digests = sweep_format(sound).all.digests;
  Subject damaged = sound;
  damaged.gradient = [&](const float* y, const std::uint32_t* mask, float* dx, std::int64_t n) {
    sound.gradient(y, mask, dx, n);
    for (std::int64_t i = 0; i < n; ++i)
      if (dx[i] == 0.5f) dx[i] = 0x1.02p-1f;
  };
  const auto other = sweep_format(damaged).all.digests;
  EXPECT_EQ(other[0], digests[0]);
  EXPECT_EQ(other[1], digests[1]);
  EXPECT_NE(other[2], digests[2]);
}

/// |v - want| in ulp of the format at want, by another way than the sweep's.
double error_in_ulp(double v, double want, const FloatFormat& format) {
  return std::fabs(v - want) /
         std::ldexp(1.0, std::max(std::ilogb(want) - format.precision + 1, format.quantum_exponent));
}

TEST(GradientUlp, AgreesWithEveryPatternAndBoundsEveryDy) {
  const Subject subject = own_subject<kernels::BF16>(kBf16);
  const Segment all = sweep_format(subject).all;
  GeluOracle oracle;
  std::array<double, kGradientRegions> at_one{-1, -1, -1}, found{-1, -1, -1};
  std::int64_t flat = 0;
  const Domain domain{kBf16};
  for (std::int64_t i = 0; i < domain.finite(); ++i) {
    const float x = domain.at(i);
    const double want = oracle.derivative(static_cast<double>(x));
    if (std::fabs(want) < kLeastUlpGradient) {
      ++flat;
      continue;
    }
    if (std::fabs(x) > 16) continue;  // f' = 1 there
    const auto region =
        static_cast<std::size_t>(std::fabs(x - kGeluXStar) <= 0.1 ? GradientRegion::near_minimum
                                 : x < -2                         ? GradientRegion::left_tail
                                                                  : GradientRegion::elsewhere);
    float y = 0, dx[128], dy[128], same[128];
    std::uint32_t mask = 0, masks[4];
    subject.forward(&x, &y, &mask, 1);
    for (int k = 0; k < 128; ++k) dy[k] = 1 + static_cast<float>(k) / 128;
    std::fill_n(same, 128, y);
    std::fill_n(masks, 4, mask & 1 ? ~0u : 0u);
    subject.backward(dy, same, masks, dx, 128);
    for (int k = 0; k < 128; ++k) {
      const double error = error_in_ulp(dx[k], dy[k] * want, kBf16);
      if (k == 0) at_one[region] = std::max(at_one[region], error);
      found[region] = std::max(found[region], error);
    }
  }
  EXPECT_EQ(all.flat, flat);
  for (std::size_t r = 0; r < kGradientRegions; ++r) {
    EXPECT_NEAR(all.gradient_ulp[r].value, at_one[r], 1e-9) << kGradientRegionNames[r];
    EXPECT_NEAR(all.gradient_found[r].value, found[r], 1e-9) << kGradientRegionNames[r];
    const double bound = gradient_ulp_for_any_dy(all.gradient_relative[r].value, kBf16);
    EXPECT_LE(found[r], bound);
    EXPECT_GE(found[r], bound / 4) << "a bound that says something";
  }
}

// Rounding to a coarser binade and twice: against every significand of dy and many errors of g, in a format
// of few bits.
TEST(GradientUlp, TheBoundHoldsForEveryRounding) {
  const FloatFormat& format = kBf16;
  std::mt19937 random(7);
  for (int round = 0; round < 200'000; ++round) {
    const double want = std::uniform_real_distribution(0.5, 1.0)(random);
    const auto g = static_cast<float>(want * (1 + std::uniform_real_distribution(-1.0, 1.0)(random) *
                                                      std::exp2(-static_cast<double>(round % 20))));
    const auto dy = static_cast<float>(128 + random() % 128) / 128;
    const double relative = std::ldexp(std::fabs(static_cast<double>(g) - want) / want, format.precision);
    const double dx = round_to_format(static_cast<double>(dy * g), format);
    EXPECT_LE(error_in_ulp(dx, dy * want, format), gradient_ulp_for_any_dy(relative, format) + 1e-9)
        << want << " " << g << " " << dy;
  }
}

TEST(Finish, RefusesAReferenceThatLies) {
  const Subject subject = exact_subject(kBf16);
  const std::vector<Domain> domains{{kBf16}};
  SweepOptions options;
  options.progress = false;
  std::vector<DomainPart> parts = sweep(subject, domains, options);
  parts[0].segment.total[1].value *= 1.001;
  EXPECT_THROW(finish(parts, domains, kBf16), std::logic_error);
  parts = sweep(subject, domains, options);
  ++parts[0].segment.nan;
  EXPECT_THROW(finish(parts, domains, kBf16), std::logic_error);
}

}  // namespace
}  // namespace outgrad::validation
