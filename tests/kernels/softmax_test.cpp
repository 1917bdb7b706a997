// Softmax's codes and its gradient from them: every schedule against the definition, worded once more here,
// the special rows, and the forward's p against long double. The bounds are proven and attacked in
// tests/validation/softmax/.
#include "kernels/host/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/tuned.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

static_assert(softmax_e1(4096) <= 0.034, "the target");
static_assert(softmax_depth(1) == 8 && softmax_depth(256) == 8 && softmax_depth(257) == 9 &&
              softmax_depth(4096) == 12 && softmax_depth(16384) == 14 && softmax_depth(16385) == 15);

// --- Codes ---------------------------------------------------------------------------------------

TEST(Softmax, CodesAreTheCellsOfTheLogarithm) {
  patterns::Random random(1);
  int compared = 0;
  for (int k = 0; k < 1'000'000; ++k) {
    const float p = float_of(bits_of(0x1p-25f) + random.next() % (bits_of(1.0f) - bits_of(0x1p-25f) + 1));
    const double cells = (std::log2(static_cast<double>(p)) + 24) * 256 / 24;
    // the proof says where these boundaries are
    if (std::abs(cells - std::nearbyint(cells)) < 1e-4) continue;
    ASSERT_EQ(softmax_code(p), std::max(0.0, std::floor(cells))) << std::hexfloat << p;
    ++compared;
  }
  EXPECT_GT(compared, 990'000);
}

TEST(Softmax, WhatACodeStandsForHasThatCode) {
  for (int code = 0; code < 256; ++code)
    EXPECT_EQ(softmax_code(softmax_of_code(static_cast<u8>(code))), code);
}

TEST(Softmax, CodesOfWhatIsNoPAreSpecified) {
  for (const float p :
       {0.0f, -0.0f, 0x1p-149f, 0x1p-126f, 0x1p-25f, -0x1p-149f, -1.0f, -kInfinity, kNan, -kNan})
    EXPECT_EQ(softmax_code(p), 0) << p;
  for (const float p : {1.0f, 1.5f, 0x1p127f, kInfinity}) EXPECT_EQ(softmax_code(p), 255) << p;
}

template <class T, CpuSchedule S>
void expect_codes_of_every_pattern() {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    const std::vector<T> p = patterns::all<T>(200);
    std::vector<u8> codes(p.size());
    softmax_encode<T, S>(p.data(), codes.data(), static_cast<i64>(p.size()));
    for (size_t i = 0; i < p.size(); ++i)
      ASSERT_EQ(codes[i], softmax_code(widen(p[i]))) << Format<T>::kName << " " << widen(p[i]);
  }
}

TEST(Softmax, EveryScheduleOfTheEncoderIsTheDefinition) {
  expect_codes_of_every_pattern<float, CpuSchedule{}>();
  expect_codes_of_every_pattern<float, CpuSchedule{.vector_bits = 256, .block_elements = 1024}>();
  expect_codes_of_every_pattern<float, CpuSchedule{.vector_bits = 512, .block_elements = 1024}>();
  expect_codes_of_every_pattern<F16, CpuSchedule{.vector_bits = 256}>();
  expect_codes_of_every_pattern<F16, CpuSchedule{.vector_bits = 512}>();
  expect_codes_of_every_pattern<BF16, CpuSchedule{.vector_bits = 256}>();
  expect_codes_of_every_pattern<BF16, CpuSchedule{.vector_bits = 512}>();
}

// --- Exp -----------------------------------------------------------------------------------------

// Rows far from 0 have the exps of those whose greatest element is 0.
TEST(Softmax, TheExpsOfARowDependOnDifferencesAlone) {
  const SoftmaxExp of_zero = softmax_exp_of(0);
  for (const float greatest : {256.5f, -256.5f, 1e4f, -1e4f, 0x1p24f}) {
    const SoftmaxExp row = softmax_exp_of(greatest);
    for (float s = greatest; s > greatest - 200; s = std::nextafter(s - 0.3f, -kInfinity))
      ASSERT_EQ(softmax_exp(FloatOps{}, row, s), softmax_exp(FloatOps{}, of_zero, s - greatest)) << s;
  }
}

TEST(Softmax, TheExpOfTheGreatestIsNearOneAndOthersVanish) {
  for (const float greatest : {0.0f, 1.0f, -0.34f, 100.0f, -256.0f, 257.0f, -3e38f, 3.4e38f, 0x1p31f}) {
    const SoftmaxExp row = softmax_exp_of(greatest);
    const float most = softmax_exp(FloatOps{}, row, greatest);
    EXPECT_GT(most, 0x1.69p63f) << greatest;
    EXPECT_LT(most, 0x1.6ap64f) << greatest;
    const float beyond = std::min(greatest - 113, std::nextafter(greatest, -kInfinity));
    for (const float s : {beyond - 300, -3.4e38f, -kInfinity}) {
      if (s < greatest - 112) {
        EXPECT_EQ(softmax_quotient(FloatOps{}, softmax_exp(FloatOps{}, row, s), SoftmaxSum(most)), 0.0f)
            << greatest << " " << s;
      }
    }
    EXPECT_TRUE(std::isnan(softmax_exp(FloatOps{}, row, kNan)));
  }
  for (const float s : {0.0f, kInfinity, -kInfinity, kNan}) {
    EXPECT_TRUE(std::isnan(softmax_exp(FloatOps{}, softmax_exp_of(kInfinity), s)));
    EXPECT_TRUE(std::isnan(softmax_exp(FloatOps{}, softmax_exp_of(-kInfinity), s)));
  }
}

// Within 2^-21 of half a unit in the last place. Significands near 1 and 2 are among these, and quotients
// that are subnormal.
TEST(Softmax, TheQuotientIsRounded) {
  std::mt19937_64 random(7);
  const auto significand = [&] {
    const u32 bits = static_cast<u32>(random() & 0x7fffff);
    const u32 near_an_end[] = {bits, bits & 7, 0x7fffff - (bits & 7), bits & 0x7ff000};
    return near_an_end[random() % 4];
  };
  int others = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const float e = std::ldexp(float_of(0x3f800000 | significand()), 64 - static_cast<int>(random() % 162)),
                sum = std::ldexp(float_of(0x3f800000 | significand()), 63 + static_cast<int>(random() % 32)),
                p = softmax_quotient(FloatOps{}, e, SoftmaxSum(sum));
    const double exact = static_cast<double>(e) / static_cast<double>(sum);
    const double unit = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
    ASSERT_LE(std::abs(static_cast<double>(p) - exact), (0.5 + 0x1p-21) * unit) << e << " / " << sum;
    if (exact >= 0x1p-126) {
      ASSERT_EQ(p, div_rn(e, sum));
    } else {
      others += p != div_rn(e, sum);
    }
  }
  EXPECT_EQ(others, 2);
  EXPECT_TRUE(std::isnan(softmax_quotient(FloatOps{}, kNan, SoftmaxSum(kNan))));
}

// --- Rows ----------------------------------------------------------------------------------------

// The tree of kernels/reduce.h, from its text: first(i, j) is what the terms i and j of one chunk give, j =
// -1 where there is none.
float tree_sum(i64 n, const std::function<float(i64, i64)>& first) {
  const auto folded = [](std::vector<float> values) {
    for (size_t half = values.size() / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) values[i] = add_rn(values[i], values[i + half]);
    }
    return values[0];
  };
  std::vector<float> lanes;
  for (i64 lane = 0; lane < kTreeLanes; ++lane) {
    std::vector<float> groups;
    for (i64 q = 0; q * kStepTerms < n; ++q) {
      if (q % kGroupSteps == 0) groups.insert(groups.end(), kGroupSteps, -0.0f);
      std::vector<float> chunk;
      for (i64 k = 0; k < 4; ++k) {
        const i64 i = q * kStepTerms + lane * kChunkTerms + k;
        chunk.push_back(i >= n ? -0.0f : first(i, i + 4 < n ? i + 4 : -1));
      }
      groups[static_cast<size_t>(q)] = folded(chunk);
    }
    float sum = 0;
    for (size_t g = 0; g < groups.size(); g += kGroupSteps) {
      const auto at = groups.begin() + static_cast<std::ptrdiff_t>(g);
      const float group = folded({at, at + kGroupSteps});
      sum = g == 0 ? group : add_rn(sum, group);
    }
    lanes.push_back(sum);
  }
  return folded(lanes);
}

template <class T>
struct Rows {
  i64 rows, n;
  std::vector<T> x, dy;
};

// Among them rows that are masked in part, and rows with NaN, with +inf, and with nothing but -inf.
template <class T>
Rows<T> some_rows(i64 n) {
  Rows<T> r{9, n, {}, {}};
  patterns::Random random(static_cast<u64>(n));
  const auto any = [&](float scale) {
    return narrow<T>(scale * static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f);
  };
  for (i64 i = 0; i < r.rows * n; ++i) {
    const i64 row = i / n;
    r.x.push_back(row == 5 || (row % 3 == 1 && i % n != 0 && random.next() % 2 == 0)
                      ? narrow<T>(-kInfinity)
                      : any(row % 2 == 0 ? 20.0f : 2.0f));
    r.dy.push_back(any(row % 4 == 3 ? 1000.0f : 1.0f));
  }
  r.x[static_cast<size_t>(2 * n + n / 2)] = narrow<T>(kNan);
  r.x[static_cast<size_t>(7 * n + n / 3)] = narrow<T>(kInfinity);
  return r;
}

template <class T>
struct Result {
  std::vector<T> y, dx;
  std::vector<u8> codes;
};

template <class T>
Result<T> by_definition(const Rows<T>& r) {
  Result<T> result;
  for (i64 row = 0; row < r.rows; ++row) {
    const T *const x = r.x.data() + row * r.n, *const dy = r.dy.data() + row * r.n;
    float most = -kInfinity;
    for (i64 j = 0; j < r.n; ++j) most = std::max(most, widen(x[j]));
    std::vector<float> e, p;
    for (i64 j = 0; j < r.n; ++j) e.push_back(softmax_exp(FloatOps{}, softmax_exp_of(most), widen(x[j])));
    const auto at = [](const std::vector<float>& v, i64 j) { return v[static_cast<size_t>(j)]; };
    const float sum =
        tree_sum(r.n, [&](i64 i, i64 j) { return j < 0 ? at(e, i) : add_rn(at(e, i), at(e, j)); });
    for (i64 j = 0; j < r.n; ++j) {
      const float exact = softmax_quotient(FloatOps{}, at(e, j), SoftmaxSum(sum));
      result.y.push_back(narrow<T>(exact));
      result.codes.push_back(softmax_code(exact));
      p.push_back(softmax_of_code(result.codes.back()));
    }
    const float whole =
        tree_sum(r.n, [&](i64 i, i64 j) { return j < 0 ? at(p, i) : add_rn(at(p, i), at(p, j)); });
    const float dot = tree_sum(r.n, [&](i64 i, i64 j) {
      return fma_rn(at(p, i), widen(dy[i]), j < 0 ? -0.0f : mul_rn(at(p, j), widen(dy[j])));
    });
    for (i64 j = 0; j < r.n; ++j)
      result.dx.push_back(narrow<T>(mul_rn(at(p, j), sub_rn(widen(dy[j]), div_rn(dot, whole)))));
  }
  return result;
}

template <class T, CpuSchedule S>
void expect_rows(const Rows<T>& r, const Result<T>& expected) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    const std::string where = std::string(Format<T>::kName) + ", n = " + std::to_string(r.n) + ", " +
                              std::to_string(S.vector_bits) + " bits";
    std::vector<u8> codes(r.x.size());
    std::vector<T> y(r.x.size()), in_place = r.x, dx(r.x.size());
    softmax_forward_code<T, S>(r.x.data(), y.data(), codes.data(), r.rows, r.n);
    EXPECT_EQ(patterns::first_difference(expected.y, y), -1) << where;
    EXPECT_EQ(codes, expected.codes) << where;
    softmax_forward_code<T, S>(in_place.data(), in_place.data(), codes.data(), r.rows, r.n);
    EXPECT_EQ(patterns::first_difference(expected.y, in_place), -1) << where;
    EXPECT_EQ(codes, expected.codes) << where;
    softmax_backward_code<T, S>(r.dy.data(), codes.data(), dx.data(), r.rows, r.n);
    EXPECT_EQ(patterns::first_difference(expected.dx, dx), -1) << where;
    in_place = r.dy;
    softmax_backward_code<T, S>(in_place.data(), codes.data(), in_place.data(), r.rows, r.n);
    EXPECT_EQ(patterns::first_difference(expected.dx, in_place), -1) << where;
  }
}

template <class T>
void expect_rows_everywhere() {
  std::vector<i64> lengths = {64, 100, 127, 255, 256, 257, 777, 4096, 8191, 8192, 8193, 20000};
  for (i64 n = 1; n <= 49; ++n) lengths.push_back(n);
  for (const i64 n : lengths) {
    const Rows<T> r = some_rows<T>(n);
    const Result<T> expected = by_definition(r);
    expect_rows<T, CpuSchedule{}>(r, expected);
    expect_rows<T, CpuSchedule{.threads = 2, .vector_bits = 256}>(r, expected);
    expect_rows<T, CpuSchedule{.vector_bits = 512}>(r, expected);
    expect_rows<T, tuned::kDefaultSchedule>(r, expected);
  }
}

TEST(Softmax, EveryScheduleIsTheDefinitionF32) { expect_rows_everywhere<float>(); }
TEST(Softmax, EveryScheduleIsTheDefinitionF16) { expect_rows_everywhere<F16>(); }
TEST(Softmax, EveryScheduleIsTheDefinitionBf16) { expect_rows_everywhere<BF16>(); }

TEST(Softmax, SpecialRowsAreSpecified) {
  for (const i64 n : {1, 7, 300}) {
    const Rows<float> r = some_rows<float>(n);
    const Result<float> result = by_definition(r);
    for (i64 i = 0; i < r.rows * n; ++i) {
      const auto at = static_cast<size_t>(i);
      const i64 row = i / n;
      if (row == 2 || row == 5 || row == 7) {  // NaN, nothing but -inf, +inf
        EXPECT_TRUE(std::isnan(result.y[at]) && std::isnan(result.dx[at])) << n << " " << i;
        EXPECT_EQ(result.codes[at], 0);
      } else {
        EXPECT_TRUE(std::isfinite(result.y[at]) && std::isfinite(result.dx[at])) << n << " " << i;
        if (r.x[at] == -kInfinity) {
          EXPECT_EQ(result.y[at], 0.0f);
          EXPECT_EQ(result.codes[at], 0);
          EXPECT_EQ(result.dx[at], 0.0f);
        }
        if (n == 1) {
          EXPECT_EQ(result.y[at], 1.0f);
          EXPECT_EQ(result.dx[at], 0.0f);
        }
      }
    }
  }
}

// Their gradient is 0, whatever dy is; without the division by sum(p') it would be 0.03 dy.
TEST(Softmax, ARowWithASinglePHasNoGradient) {
  std::vector<float> x(100, -kInfinity), y(100), dy(100), dx(100);
  std::vector<u8> codes(100);
  x[41] = 3;
  for (size_t i = 0; i < dy.size(); ++i) dy[i] = 1.0f + static_cast<float>(i) / 7;
  softmax_forward_code<float, CpuSchedule{}>(x.data(), y.data(), codes.data(), 1, 100);
  softmax_backward_code<float, CpuSchedule{}>(dy.data(), codes.data(), dx.data(), 1, 100);
  EXPECT_EQ(y[41], 1.0f);
  for (const float each : dx) EXPECT_LE(std::abs(each), 0x1p-22f * dy[41]);
}

// All p of such a row are as small as they can be, and still have a code.
TEST(Softmax, TheLongestRowHasAGradient) {
  const auto n = static_cast<size_t>(kMostSoftmax);
  std::vector<BF16> x(n, narrow<BF16>(1.0f)), dy(n), y(n);
  for (size_t i = 0; i < n; ++i) dy[i] = narrow<BF16>(i % 2 == 0 ? 1.0f : -1.0f);
  std::vector<u8> codes(n);
  softmax_forward_code<BF16, tuned::kDefaultSchedule>(x.data(), y.data(), codes.data(), 1, kMostSoftmax);
  softmax_backward_code<BF16, tuned::kDefaultSchedule>(dy.data(), codes.data(), dy.data(), 1, kMostSoftmax);
  EXPECT_EQ(widen(y[n / 2]), 0x1p-23f);
  EXPECT_NE(codes[n / 2], 0);
  for (const size_t i : {size_t{0}, n / 2, n - 1})
    EXPECT_NEAR(widen(dy[i]), i % 2 == 0 ? 0x1p-23f : -0x1p-23f, 0x1p-23f * (kSoftmaxCell + 0x1p-8));
}

TEST(Softmax, TheForwardsPIsWithinItsBound) {
  for (const i64 n : {1, 3, 64, 1000, 4096, 70000}) {
    double worst = 0;
    for (const float scale : {0.5f, 10.0f, 200.0f}) {
      std::vector<float> x, y(static_cast<size_t>(n));
      std::vector<u8> codes(y.size());
      patterns::Random random(static_cast<u64>(n));
      for (i64 j = 0; j < n; ++j)
        x.push_back(scale * static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f);
      softmax_forward_code<float, CpuSchedule{}>(x.data(), y.data(), codes.data(), 1, n);
      const auto most = static_cast<long double>(*std::max_element(x.begin(), x.end()));
      long double sum = 0;
      for (const float s : x) sum += std::exp(static_cast<long double>(s) - most);
      for (size_t j = 0; j < x.size(); ++j) {
        const long double p = std::exp(static_cast<long double>(x[j]) - most) / sum;
        if (p < 0x1p-126L) continue;
        worst = std::max(worst, static_cast<double>(std::abs(static_cast<long double>(y[j]) - p) / p));
      }
    }
    EXPECT_LE(worst, softmax_forward_error(n)) << n;
    if (n > 1) {
      EXPECT_GT(worst, 0x1p-25) << n;
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
