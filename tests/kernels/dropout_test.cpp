// Dropout against its definition, worded once more here: which elements are dropped, what becomes of the
// others, for any length, alignment, number of threads and floating-point mode.
#include "kernels/host/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using Block = std::array<u32, 4>;

// Philox4x32-10 as the paper words it, on words; shares no code and no constant with the header.
Block textbook_philox(Block c, u64 key) {
  u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64{0xD2511F53} * c[0], p1 = u64{0xCD9E8D57} * c[2];
    c = {static_cast<u32>(p1 >> 32) ^ c[1] ^ k0, static_cast<u32>(p1), static_cast<u32>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<u32>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

Block textbook_philox(u64 counter, u64 key) {
  return textbook_philox(Block{static_cast<u32>(counter), static_cast<u32>(counter >> 32), 0, 0}, key);
}

Block array_of(const PhiloxWords& words) {
  return {words.word[0], words.word[1], words.word[2], words.word[3]};
}

std::vector<u32> words_of(i64 n, u64 seed) {
  std::vector<u32> words;
  for (i64 i = 0; i < n; ++i)
    words.push_back(textbook_philox(static_cast<u64>(i / 4), seed)[static_cast<size_t>(i % 4)]);
  return words;
}

u64 random_u64(patterns::Random& random) {
  const u64 high = random.next();
  return high << 32 | random.next();
}

// The probability of which `threshold` is 2^32 times, exactly.
double probability(u64 threshold) { return static_cast<double>(threshold) * 0x1p-32; }

// Random123's kat_vectors for philox4x32 10: counter, key, words.
TEST(Philox, GivesTheKnownAnswers) {
  struct Known {
    Block counter;
    u64 key;
    Block words;
  };
  const Known all[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, ~u64{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Known& known : all) {
    const Block& c = known.counter;
    EXPECT_EQ(array_of(philox(PhiloxWords{{c[0], c[1], c[2], c[3]}}, known.key)), known.words);
    EXPECT_EQ(textbook_philox(c, known.key), known.words);
  }
}

TEST(Philox, IsTheTextbooksForAnyCounterAndKey) {
  patterns::Random random(1);
  for (int trial = 0; trial < 10000; ++trial) {
    const Block c = {random.next(), random.next(), random.next(), random.next()};
    const u64 key = random_u64(random), counter = random_u64(random);
    ASSERT_EQ(array_of(philox(PhiloxWords{{c[0], c[1], c[2], c[3]}}, key)), textbook_philox(c, key)) << trial;
    ASSERT_EQ(array_of(philox(counter, key)), textbook_philox(counter, key)) << trial;
  }
}

// Vectors of counters, which no array is long enough for: on both sides of every carry into the upper half,
// and at the largest index there is.
TEST(Philox, VectorsAreTheTextbooksForAnyCounter) {
  constexpr u64 kCounters = detail::kDropoutPack / 4;
  constexpr u64 kEnd = u64{1} << 61;  // of an index below 2^63
  patterns::Random random(2);
  std::vector<u64> starts = {0, kEnd - kCounters};
  for (u64 upper = 1; upper < 5; ++upper)
    starts.insert(starts.end(), {(upper << 32) - kCounters, upper << 32});
  for (int trial = 0; trial < 1000; ++trial)
    starts.push_back(random_u64(random) % kEnd / kCounters * kCounters);
  for (const u64 start : starts) {
    const u64 seed = random_u64(random);
    const DropoutRule rule{random.next(), 1.0f};
    u32 kept[detail::kDropoutPack];
    detail::dropout_masks(rule, start, seed, kept);
    for (u64 k = 0; k < detail::kDropoutPack; ++k) {
      const u32 word = textbook_philox(start + k / 4, seed)[k % 4];
      ASSERT_EQ(kept[k], word >= rule.threshold ? ~0u : 0u) << "counter " << start << ", element " << k;
    }
  }
}

TEST(DropoutRule, ThresholdIsTheNearestInteger) {
  patterns::Random random(3);
  std::vector<u64> thresholds = {
      0, 1, 2, (u64{1} << 31) - 1, u64{1} << 31, (u64{1} << 32) - 2, (u64{1} << 32) - 1};
  for (int trial = 0; trial < 10000; ++trial) thresholds.push_back(random.next());
  for (const u64 threshold : thresholds) {
    const double tie = (static_cast<double>(threshold) + 0.5) * 0x1p-32;
    EXPECT_EQ(dropout_rule(probability(threshold)).threshold, threshold);
    EXPECT_EQ(dropout_rule(std::nextafter(tie, 0.0)).threshold, threshold);
    EXPECT_EQ(dropout_rule(tie).threshold, threshold + 1);
  }
  EXPECT_EQ(dropout_rule(1.0).threshold, u64{1} << 32);
  EXPECT_EQ(dropout_rule(-0.0).threshold, 0u);
  EXPECT_EQ(dropout_rule(std::numeric_limits<double>::denorm_min()).threshold, 0u);
}

__extension__ using Wide = unsigned __int128;

// Whether v (1 - p) < 1, in integers, for v = k 2^-24 or v = k, and p a multiple of 2^-78.
bool below_the_scale(double v, double p) {
  const Wide rest = (Wide{1} << 78) - (static_cast<Wide>(std::ldexp(p, 53)) << 25) -
                    static_cast<Wide>(std::ldexp(std::ldexp(p, 53) - std::floor(std::ldexp(p, 53)), 25));
  const int shift = v < 0x1p26 ? 24 : 0;
  return static_cast<Wide>(std::ldexp(v, shift)) * rest < Wide{1} << (78 + shift);
}

void expect_scale(double p) {
  const float scale = dropout_rule(p).scale;
  const double less = std::nextafter(scale, 0.0f),
               more = std::nextafter(scale, std::numeric_limits<float>::infinity());
  // No scale is below 1, whose lower midpoint is no multiple of 2^-24.
  ASSERT_TRUE(scale == 1 || below_the_scale((less + scale) / 2, p)) << std::hexfloat << p << ' ' << scale;
  ASSERT_FALSE(below_the_scale((scale + more) / 2, p)) << std::hexfloat << p << ' ' << scale;
}

// Also of the p whose scale lies nearest to the midpoint of two floats, where three roundings one after the
// other are too many.
TEST(DropoutRule, ScaleIsTheNearestFloat) {
  patterns::Random random(4);
  for (int trial = 0; trial < 100000; ++trial) {
    const double any =
        std::ldexp(static_cast<double>(random_u64(random) >> 11), -53 - static_cast<int>(random.next() % 25));
    expect_scale(any);
    expect_scale(probability(random.next()));
    const double binade = std::ldexp(1.0, static_cast<int>(random.next() % 25));
    const double midpoint = binade * (1 + (static_cast<double>(random.next() >> 9) + 0.5) * 0x1p-23);
    double p = 1 - 1 / midpoint;
    for (int k = 0; k < 2; ++k) p = std::nextafter(p, 0.0);
    for (int k = 0; k < 5; ++k, p = std::nextafter(p, 1.0)) {
      if (p >= 0x1p-25) expect_scale(p);
    }
  }
  EXPECT_EQ(dropout_rule(0.0).scale, 1.0f);
  EXPECT_EQ(dropout_rule(-0.0).scale, 1.0f);
  // just above the midpoint of 1 and the next float, 1 + 2^-24
  EXPECT_EQ(dropout_rule(0x1p-24).scale, 1.0f + 0x1p-23f);
  EXPECT_EQ(dropout_rule(std::nextafter(0x1p-24, 0.0)).scale, 1.0f + 0x1p-23f);
  EXPECT_EQ(dropout_rule(0x1p-24 - 0x1p-47).scale, 1.0f);  // 1 / (1 - p) < 1 + p + 2 p^2
  EXPECT_EQ(dropout_rule(0.5).scale, 2.0f);
  EXPECT_EQ(dropout_rule(std::nextafter(1.0, 0.0)).scale, 0x1p53f);
  EXPECT_EQ(dropout_rule(1.0).scale, 0.0f);
}

template <class T>
class Dropout : public testing::Test {
 protected:
  using Bits = typename Format<T>::Bits;
  static constexpr Bits kGuard = 0x5a5a;

  static std::vector<T> guarded(i64 count) {
    return std::vector<T>(static_cast<size_t>(count), __builtin_bit_cast(T, kGuard));
  }

  // n values of every kind, NaN and infinities among them.
  static std::vector<T> values(i64 n, u64 seed) {
    static const std::vector<T> all = patterns::all<T>(20);
    patterns::Random random(seed);
    std::vector<T> x;
    for (i64 i = 0; i < n; ++i)
      x.push_back(random.next() % 4 == 0 ? all[random.next() % all.size()]
                                         : narrow<T>(static_cast<float>(random.next()) * 0x1p-30f - 2));
    return x;
  }

  static std::vector<T> dropped_out(const std::vector<T>& x, u64 seed, double p, int threads = 0) {
    std::vector<T> y = guarded(static_cast<i64>(x.size()));
    dropout(x.data(), y.data(), static_cast<i64>(x.size()), seed, p, threads);
    return y;
  }

  static bool is_plus_zero(T value) { return code_of(value) == 0; }
};
TYPED_TEST_SUITE(Dropout, TestedFormats);

TYPED_TEST(Dropout, LoopIsTheDefinition) {
  using T = TypeParam;
  constexpr i64 kLongest = 100003;
  constexpr u64 kSeed = 0x0123456789abcdef;
  const std::vector<u32> words = words_of(kLongest, kSeed);
  const std::vector<T> values = this->values(kLongest, 5);
  for (const i64 n : {i64{0}, i64{1}, i64{3}, i64{4}, i64{5}, i64{63}, i64{64}, i64{65}, i64{127}, i64{128},
                      i64{129}, i64{1000}, kLongest}) {
    for (const double p : {0.0, 0.1, 0.5, 0.999, 1.0}) {
      const u64 threshold = static_cast<u64>(std::round(p * 0x1p32));
      const float scale = p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0f;
      for (const i64 shift : {0, 1, 3}) {
        // Element i sits at place shift + i, between guards.
        std::vector<T> x = this->guarded(n + 8), want = x;
        for (i64 i = 0; i < n; ++i) {
          const auto from = static_cast<size_t>(i), to = static_cast<size_t>(i + shift);
          x[to] = values[from];
          want[to] =
              words[from] >= threshold ? narrow<T>(mul_rn(widen(values[from]), scale)) : narrow<T>(0.0f);
          const T element = dropout_element(dropout_rule(p),
                                            philox(static_cast<u64>(i / 4), kSeed).word[i % 4], values[from]);
          ASSERT_EQ(canonical_bits(element), canonical_bits(want[to])) << "p=" << p << " i=" << i;
        }
        for (int threads = 1; threads <= 5; ++threads) {
          std::vector<T> y = this->guarded(n + 8);
          dropout(x.data() + shift, y.data() + shift, n, kSeed, p, threads);
          ASSERT_EQ(patterns::first_difference(y, want), -1)
              << "n=" << n << " p=" << p << " shift=" << shift << " threads=" << threads;
          y = x;
          dropout(y.data() + shift, y.data() + shift, n, kSeed, p, threads);
          ASSERT_EQ(patterns::first_difference(y, want), -1)
              << "in place, n=" << n << " p=" << p << " shift=" << shift << " threads=" << threads;
        }
      }
    }
  }
}

// An element is kept at a threshold of its own word, and dropped at the next one.
TYPED_TEST(Dropout, ThresholdIsWhereAnElementChangesSides) {
  constexpr i64 kCount = 200;
  const std::vector<TypeParam> x(kCount, narrow<TypeParam>(-1.0f));
  const std::vector<u32> words = words_of(kCount, 6);
  for (size_t i = 0; i < words.size(); ++i) {
    const double kept = probability(words[i]), dropped = probability(u64{words[i]} + 1);
    EXPECT_FALSE(this->is_plus_zero(this->dropped_out(x, 6, kept, 1)[i])) << i;
    EXPECT_FALSE(this->is_plus_zero(dropout_element(dropout_rule(kept), words[i], x[i]))) << i;
    EXPECT_TRUE(this->is_plus_zero(this->dropped_out(x, 6, dropped, 1)[i])) << i;
    EXPECT_TRUE(this->is_plus_zero(dropout_element(dropout_rule(dropped), words[i], x[i]))) << i;
  }
}

TYPED_TEST(Dropout, LargerProbabilityDropsTheSameAndMore) {
  const std::vector<TypeParam> x(5000, narrow<TypeParam>(1.0f));
  std::vector<TypeParam> before = this->dropped_out(x, 7, 0.0);
  for (int percent = 1; percent <= 100; ++percent) {
    std::vector<TypeParam> now = this->dropped_out(x, 7, 0.01 * percent);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(this->is_plus_zero(now[i]) || !this->is_plus_zero(before[i]))
          << percent << "%, element " << i;
    before = std::move(now);
  }
}

// Within six standard deviations of the binomial distribution: of all elements, of each word of a block, and
// of those that two seeds drop together.
TYPED_TEST(Dropout, AsManyAreDroppedAsIsProbable) {
  constexpr i64 kCount = 1 << 18;
  const auto expect_count = [](double count, double of, double p, const char* what) {
    EXPECT_LE(std::abs(count - of * p), 6 * std::sqrt(of * p * (1 - p))) << what << " p=" << p;
  };
  const std::vector<TypeParam> x(kCount, narrow<TypeParam>(1.0f));
  for (const double p : {0.0, 0x1p-16, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1.0}) {
    const std::vector<TypeParam> one = this->dropped_out(x, 8, p), other = this->dropped_out(x, 9, p);
    double of_word[4] = {}, all = 0, both = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool dropped = this->is_plus_zero(one[i]);
      of_word[i % 4] += dropped;
      all += dropped;
      both += dropped && this->is_plus_zero(other[i]);
    }
    expect_count(all, kCount, p, "all");
    expect_count(both, kCount, p * p, "under both seeds");
    for (const double count : of_word) expect_count(count, kCount / 4, p, "of a word");
  }
}

// Under one seed dy loses the elements that x lost, in whatever format, and no other.
TYPED_TEST(Dropout, BackwardDropsWhatTheForwardDropped) {
  constexpr i64 kCount = 3001;
  std::vector<TypeParam> x = this->values(kCount, 10), dy;
  for (i64 i = 0; i < kCount; ++i)
    dy.push_back(narrow<TypeParam>(static_cast<float>(i % 2 == 0 ? 1 + i : -1 - i)));
  for (TypeParam& value : x) value = widen(value) == 0 ? narrow<TypeParam>(1.0f) : value;
  const std::vector<float> wide(kCount, -1.0f);
  for (const double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    const std::vector<TypeParam> y = this->dropped_out(x, 11, p), dx = this->dropped_out(dy, 11, p),
                                 again = this->dropped_out(dy, 11, p);
    EXPECT_EQ(patterns::first_difference(dx, again), -1);
    std::vector<float> of_f32(kCount);
    dropout(wide.data(), of_f32.data(), kCount, 11, p);
    for (size_t i = 0; i < dx.size(); ++i) {
      ASSERT_EQ(this->is_plus_zero(y[i]), this->is_plus_zero(dx[i])) << "p=" << p << " i=" << i;
      ASSERT_EQ(of_f32[i] == 0, this->is_plus_zero(dx[i])) << "p=" << p << " i=" << i;
    }
  }
}

TYPED_TEST(Dropout, SpecialValuesAreDroppedLikeOthersAndKeptAsTheyAre) {
  using T = TypeParam;
  constexpr i64 kCount = 1003;
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<u32> words = words_of(kCount, 12);
  for (const float special : {kNan, -kNan, kInf, -kInf, 0.0f, -0.0f}) {
    const std::vector<T> x(kCount, narrow<T>(special));
    for (const double p : {0.0, 0.3, 1.0}) {
      const std::vector<T> y = this->dropped_out(x, 12, p);
      for (size_t i = 0; i < y.size(); ++i) {
        const bool dropped = words[i] < p * 0x1p32;
        ASSERT_EQ(canonical_bits(y[i]), canonical_bits(narrow<T>(dropped ? 0.0f : special)))
            << special << " p=" << p << " i=" << i;
      }
    }
  }
}

TYPED_TEST(Dropout, NothingAndEverything) {
  const std::vector<TypeParam> x = this->values(70001, 13);
  EXPECT_EQ(patterns::first_difference(this->dropped_out(x, 14, 0.0), x), -1);
  EXPECT_EQ(patterns::first_difference(this->dropped_out(x, 14, -0.0), x), -1);
  EXPECT_EQ(patterns::first_difference(this->dropped_out(x, 14, 1.0),
                                       std::vector<TypeParam>(x.size(), narrow<TypeParam>(0.0f))),
            -1);
}

TYPED_TEST(Dropout, RefusesBeforeAnythingIsWritten) {
  using Limits = std::numeric_limits<double>;
  const std::vector<TypeParam> x(100, narrow<TypeParam>(1.0f));
  std::vector<TypeParam> y = this->guarded(100);
  for (const double p : {-0.1, -1.0, -Limits::denorm_min(), std::nextafter(1.0, 2.0), 2.0, Limits::infinity(),
                         -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
    EXPECT_THROW(dropout(x.data(), y.data(), 100, 1, p), SpecError) << p;
    EXPECT_THROW(dropout<TypeParam>(nullptr, nullptr, 0, 1, p), SpecError) << p;
  }
  EXPECT_THROW(dropout(x.data(), y.data(), -1, 1, 0.5), SpecError);
  EXPECT_THROW(dropout(x.data(), y.data(), std::numeric_limits<i64>::min(), 1, 0.5), SpecError);
  EXPECT_EQ(patterns::first_difference(y, this->guarded(100)), -1);
  EXPECT_NO_THROW(dropout<TypeParam>(nullptr, nullptr, 0, 1, 0.5));
}

TYPED_TEST(Dropout, CallersFloatingPointModeIsNeitherUsedNorChanged) {
#ifndef __SSE2__
  GTEST_SKIP() << "its floating-point mode is not set here";
#else
  // Subnormals, which a mode may flush, among them: all<T> begins with them.
  std::vector<TypeParam> x = this->values(20001, 15);
  const std::vector<TypeParam> all = patterns::all<TypeParam>(20);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = all[i % 40];
  const volatile double negative = -std::numeric_limits<double>::denorm_min();  // in this mode equal to 0
  constexpr unsigned kFlush = 0x8000 | 0x0040, kDefault = 0x1f80;  // to zero, denormals are zero
  for (const double p : {0.1, 1.0 / 3, 0.7, 0x1p-24 - 0x1p-48}) {
    const std::vector<TypeParam> expected = this->dropped_out(x, 16, p, 2);
    for (const unsigned rounding : {0x0000u, 0x2000u, 0x4000u, 0x6000u}) {
      const unsigned saved = _mm_getcsr(), hostile = kDefault | kFlush | rounding;
      std::vector<TypeParam> y = this->guarded(static_cast<i64>(x.size()));
      _mm_setcsr(hostile);
      dropout(x.data(), y.data(), static_cast<i64>(x.size()), 16, p, 2);
      const volatile bool refuses = !dropout_holds(negative);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      EXPECT_EQ(after & ~0x3fu, hostile);  // but for the flags of what has happened
      EXPECT_TRUE(refuses);
      EXPECT_EQ(patterns::first_difference(y, expected), -1) << "p=" << p << " rounding " << rounding;
    }
  }
#endif
}

}  // namespace
}  // namespace outgrad::kernels
