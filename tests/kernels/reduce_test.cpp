// The summation trees of kernels/reduce.h against a recursive definition that shares no code with them.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "kernels/host/layernorm.h"

namespace outgrad::kernels {
namespace {

using Maybe = std::optional<float>;  // empty: missing, skipped rather than padded

Maybe plus(Maybe a, Maybe b) {
  if (!a || !b) return a ? a : b;
  return *a + *b;
}

// Which values an addition pairs: those half the range apart (the tree's definition), or neighbours.
enum class Pairing { fold, neighbours };

Maybe halve(Pairing pairing, i64 count, const std::function<Maybe(i64)>& value) {
  if (count == 1) return value(0);
  const i64 half = count / 2;
  if (pairing == Pairing::fold) {
    return halve(pairing, half, [&](i64 i) { return plus(value(i), value(i + half)); });
  }
  return halve(pairing, half, [&](i64 i) { return plus(value(2 * i), value(2 * i + 1)); });
}

struct Definition {
  Pairing within_chunk = Pairing::fold;
  Pairing within_group = Pairing::fold;
  Pairing across_lanes = Pairing::fold;
  i64 group_steps = 64;
};

// Row sum by the definition; pair(i, j) is the sum of terms i and j >= i + 1 (missing from n on), fused if
// they are products.
Maybe defined_sum(const Definition& d, i64 n, const std::function<Maybe(i64, i64)>& pair) {
  const auto chunk = [&](i64 c) {
    return halve(d.within_chunk, 4, [&](i64 i) {
      return d.within_chunk == Pairing::fold ? pair(8 * c + i, 8 * c + i + 4)
                                             : pair(8 * c + 2 * i, 8 * c + 2 * i + 1);
    });
  };
  const i64 steps = (n + 255) / 256;
  return halve(d.across_lanes, 32, [&](i64 lane) {
    Maybe sum;
    for (i64 group = 0; group < steps; group += d.group_steps) {
      std::vector<Maybe> values;
      for (i64 q = group; q < group + d.group_steps; ++q)
        values.push_back(q < steps ? chunk(32 * q + lane) : Maybe{});
      while (values.size() > 1) {
        const size_t half = values.size() / 2;
        for (size_t i = 0; i < half; ++i) {
          values[i] = d.within_group == Pairing::fold ? plus(values[i], values[i + half])
                                                      : plus(values[2 * i], values[2 * i + 1]);
        }
        values.resize(half);
      }
      sum = plus(sum, values[0]);
    }
    return sum;
  });
}

// Rounded for itself: a store to memory, which no compiler may leave out, ends any fusing with a sum.
float rounded_product(float a, float b) {
  volatile float result = a * b;
  return result;
}

Maybe defined_plain_sum(const Definition& d, const std::vector<float>& x) {
  const i64 n = static_cast<i64>(x.size());
  return defined_sum(d, n, [&](i64 i, i64 j) -> Maybe {
    return plus(i < n ? Maybe{x[static_cast<size_t>(i)]} : Maybe{},
                j < n ? Maybe{x[static_cast<size_t>(j)]} : Maybe{});
  });
}

Maybe defined_dot(const std::vector<float>& a, const std::vector<float>& b) {
  const i64 n = static_cast<i64>(a.size());
  return defined_sum({}, n, [&](i64 i, i64 j) -> Maybe {
    if (i >= n) return {};
    const auto low = static_cast<size_t>(i);
    const auto high = static_cast<size_t>(j);
    if (j >= n) return rounded_product(a[low], b[low]);
    return std::fma(a[low], b[low], rounded_product(a[high], b[high]));
  });
}

// Signs and magnitudes mixed so that nearly every addition rounds.
std::vector<float> random_row(i64 n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-6, 6);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = std::ldexp(normal(engine), exponent(engine));
  return row;
}

std::vector<i64> lengths() {
  std::vector<i64> result;
  for (i64 n = 1; n <= 600; ++n) result.push_back(n);
  for (const i64 n : {768, 1000, 4096, 5120, 11008, 16376, 16384, 16385, 16640, 32768, 33000, 65536, 65543})
    result.push_back(n);
  return result;
}

// As Warps warps of a GPU share a row, one call a thread.
template <int Warps, class Terms>
float warp_sum(const Terms& terms, i64 n) {
  using Sums = Tuple<float, Terms::kSums>;
  const Sums neutral = neutral_sums<Terms::kSums>();
  Sums lanes[kTreeLanes];
  for (int lane = 0; lane < kTreeLanes; ++lane) {
    lanes[lane] = neutral;
    for (i64 group = 0; group < row_steps(n); group += kGroupSteps) {
      Sums parts[Warps];
      for (int warp = 0; warp < Warps; ++warp) {
        parts[warp] = fold_steps<Warps>(group + warp, std::min(group + kGroupSteps, row_steps(n)), neutral,
                                        [&](i64 q) { return chunk_sum(terms, q * kTreeLanes + lane, n); });
      }
      lanes[lane] = add_rn(lanes[lane], fold<Warps>(parts));
    }
  }
  return fold<kTreeLanes>(lanes).v[Terms::kSums - 1];
}

template <class Check>
void for_each_width(const Check& check) {
  check.template operator()<float>("scalar");
#ifdef OUTGRAD_AVX2
  check.template operator()<Vector<Avx2>>("256 bits");
#endif
#ifdef OUTGRAD_AVX512
  check.template operator()<Vector<Avx512>>("512 bits");
#endif
}

TEST(RowTree, SumIsTheDefinitionsAtEveryLengthAndWidth) {
  for (const i64 n : lengths()) {
    const std::vector<float> x = random_row(n, static_cast<unsigned>(n));
    const u32 expected = bits_of(*defined_plain_sum({}, x));
    const MeanTerms<float> terms{x.data()};
    for_each_width([&]<class Lane>(const char* width) {
      ASSERT_EQ(bits_of(detail::row_sums<Lane>(terms, n).v[0]), expected) << width << ", n = " << n;
    });
    ASSERT_EQ(bits_of(warp_sum<1>(terms, n)), expected) << n;
    ASSERT_EQ(bits_of(warp_sum<4>(terms, n)), expected) << n;
    ASSERT_EQ(bits_of(warp_sum<16>(terms, n)), expected) << n;
    ASSERT_EQ(bits_of(warp_sum<32>(terms, n)), expected) << n;
  }
}

TEST(RowTree, DotProductIsTheDefinitionsAtEveryLengthAndWidth) {
  for (const i64 n : lengths()) {
    const std::vector<float> dy = random_row(n, static_cast<unsigned>(n));
    const std::vector<float> gamma = random_row(n, static_cast<unsigned>(n) + 1000000u);
    const std::vector<float> c = random_row(n, static_cast<unsigned>(n) + 2000000u);
    const u32 expected_a = bits_of(*defined_dot(dy, gamma));
    const u32 expected_product = bits_of(*defined_dot(dy, c));
    const GradientTerms<Norm::layer, float, CentredStaged> terms{dy.data(), gamma.data(), {c.data()}};
    for_each_width([&]<class Lane>(const char* width) {
      const auto sums = detail::row_sums<Lane>(terms, n);
      ASSERT_EQ(bits_of(sums.v[0]), expected_a) << width << ", n = " << n;
      ASSERT_EQ(bits_of(sums.v[1]), expected_product) << width << ", n = " << n;
    });
    ASSERT_EQ(bits_of(warp_sum<8>(terms, n)), expected_product) << n;
  }
}

// Rows of 16 bits, whose whole chunks vectors hold in an order of their own, as what they are multiplied with
// lies in memory.
template <class T>
void expect_sums_of(i64 n) {
  const auto index = [](i64 j) { return static_cast<size_t>(j); };
  std::vector<T> row;
  std::vector<float> wide, deviations;
  for (const float x : random_row(n, static_cast<unsigned>(n) + 3000000u)) {
    row.push_back(narrow<T>(x));
    wide.push_back(widen(row.back()));
    deviations.push_back(wide.back() - 0.5f);
  }
  const std::vector<float> gamma = random_row(n, static_cast<unsigned>(n) + 1000000u),
                           c = random_row(n, static_cast<unsigned>(n) + 2000000u);
  const u32 sum = bits_of(*defined_plain_sum({}, wide)),
            squares = bits_of(*defined_dot(deviations, deviations));
  const u32 a = bits_of(*defined_dot(wide, gamma)), product = bits_of(*defined_dot(wide, c));
  for_each_width([&]<class Lane>(const char* width) {
    ASSERT_EQ(bits_of(detail::row_sums<Lane, T>(MeanTerms<T>{row.data()}, n).v[0]), sum)
        << width << ", n = " << n;
    ASSERT_EQ(bits_of(detail::row_sums<Lane, T>(VarianceTerms<T>{row.data(), 0.5f}, n).v[0]), squares)
        << width << ", n = " << n;
    std::vector<float> ordered_gamma(gamma.size()), ordered_c(c.size());
    for (i64 j = 0; j < n; ++j) {
      const size_t place = index(detail::ordered_place<Lane, T>(j, n));
      ordered_gamma[place] = gamma[index(j)];
      ordered_c[place] = c[index(j)];
    }
    const GradientTerms<Norm::layer, T, CentredStaged> terms{
        row.data(), ordered_gamma.data(), {ordered_c.data()}};
    const auto sums = detail::row_sums<Lane, T>(terms, n);
    ASSERT_EQ(bits_of(sums.v[0]), a) << width << ", n = " << n;
    ASSERT_EQ(bits_of(sums.v[1]), product) << width << ", n = " << n;
  });
}

TEST(RowTree, RowsOfSixteenBitsHaveTheSameSums) {
  for (const i64 n : lengths()) {
    expect_sums_of<F16>(n);
    expect_sums_of<BF16>(n);
  }
}

// The comparison above sees any other order: each level of the definition changed alone gives other bits on
// many inputs.
TEST(RowTree, EveryWrongOrderIsSeen) {
  const Definition wrong[] = {{.within_chunk = Pairing::neighbours},
                              {.within_group = Pairing::neighbours},
                              {.across_lanes = Pairing::neighbours},
                              {.group_steps = 32},
                              {.group_steps = 128}};
  constexpr int kRows = 16;
  for (const Definition& definition : wrong) {
    int seen = 0;
    for (unsigned seed = 0; seed < kRows; ++seed) {
      const std::vector<float> x = random_row(65536, seed);
      seen += bits_of(*defined_plain_sum(definition, x)) != bits_of(*defined_plain_sum({}, x));
    }
    // Measured: 8 to 16 of 16. A quarter leaves no chance that one wrong order passes all the lengths above.
    EXPECT_GE(seen, kRows / 4) << "definition " << &definition - wrong;
  }
}

TEST(RowTree, MissingTermsLeaveNegativeZeroAndExactValuesAlone) {
  for (const i64 n : {1, 5, 8, 9, 255, 256, 257, 16385}) {
    const std::vector<float> zeros(static_cast<size_t>(n), -0.0f);
    for_each_width([&]<class Lane>(const char* width) {
      EXPECT_EQ(bits_of(detail::row_sums<Lane>(MeanTerms<float>{zeros.data()}, n).v[0]), bits_of(-0.0f))
          << width << ", n = " << n;
    });
  }
}

TEST(RowTree, NanAndInfinityReachTheSumFromEveryPosition) {
  constexpr i64 kN = 531;  // two whole steps and a ragged chunk
  for (i64 j = 0; j < kN; ++j) {
    for_each_width([&]<class Lane>(const char* width) {
      std::vector<float> x(kN, 1.0f);
      x[static_cast<size_t>(j)] = std::nanf("");
      EXPECT_TRUE(std::isnan(detail::row_sums<Lane>(MeanTerms<float>{x.data()}, kN).v[0]))
          << width << ", position " << j;
      x[static_cast<size_t>(j)] = -HUGE_VALF;
      EXPECT_EQ(detail::row_sums<Lane>(MeanTerms<float>{x.data()}, kN).v[0], -HUGE_VALF)
          << width << ", position " << j;
    });
  }
}

TEST(Slots, CountIsTheGreatestAdmissiblePowerOfTwo) {
  for (const i64 n : {i64{1}, i64{7}, i64{384}, i64{768}, i64{4096}, i64{65536}, kSlotSums, 3 * kSlotSums}) {
    for (const i64 rows : {i64{0}, i64{1}, i64{2}, i64{3}, i64{1000}, i64{8192}, i64{1} << 22}) {
      const i64 slots = slot_count(rows, n);
      EXPECT_GT(slots, 0);
      EXPECT_EQ(slots & (slots - 1), 0);
      EXPECT_TRUE(slots == 1 || (slots <= rows && slots * n <= kSlotSums)) << rows << " x " << n;
      EXPECT_TRUE(2 * slots > rows || 2 * slots * n > kSlotSums) << rows << " x " << n;
    }
  }
}

TEST(Slots, PartitionTheRowsEvenly) {
  for (const i64 rows : {i64{0}, i64{1}, i64{5}, i64{1023}, i64{5000}}) {
    const i64 slots = slot_count(rows, 384);
    EXPECT_EQ(slot_begin(rows, slots, 0), 0);
    EXPECT_EQ(slot_begin(rows, slots, slots), rows);
    for (i64 slot = 0; slot < slots; ++slot) {
      const i64 size = slot_begin(rows, slots, slot + 1) - slot_begin(rows, slots, slot);
      EXPECT_GE(size, rows / slots);
      EXPECT_LE(size, rows / slots + 1);
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
