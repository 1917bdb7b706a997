// LayerNorm and RMSNorm on the host: the formulas bit for bit, the exact gradients within a bound, schedules,
// odd inputs: cases over a format. A unit for each: all three together take minutes and gigabytes to compile
// with sanitizers.
#pragma once

#include "kernels/layernorm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/host/layernorm.h"
#include "tests/kernels/page_end.h"

namespace outgrad::kernels {
namespace {

constexpr CpuSchedule kScalar{.threads = 1, .vector_bits = 0};
constexpr float kEps = 0x1p-17f;  // about 7.6e-6

template <class T>
struct Problem {
  Norm norm = Norm::layer;
  i64 rows = 0;
  i64 n = 0;
  std::vector<T> x, dy;
  std::vector<float> gamma, beta;  // empty: absent
  std::vector<i32> side;

  const float* gamma_data() const { return gamma.empty() ? nullptr : gamma.data(); }
  const float* beta_data() const { return beta.empty() ? nullptr : beta.data(); }
};

template <class T>
struct Result {
  std::vector<T> y, dx;
  std::vector<float> rstd, side, dgamma, dbeta;

  // Every output's bits, NaNs made one.
  std::vector<u32> bits() const {
    std::vector<u32> all;
    for (const auto* values : {&y, &dx}) {
      for (const T& value : *values) all.push_back(canonical_bits(value));
    }
    for (const auto* values : {&rstd, &side, &dgamma, &dbeta}) {
      for (const float value : *values) all.push_back(canonical_bits(value));
    }
    return all;
  }
};

size_t size_of(i64 count) { return static_cast<size_t>(count); }

template <class T>
Problem<T> random_problem(Norm norm, i64 rows, i64 n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Problem<T> p{norm, rows, n, {}, {}, {}, {}, {}};
  for (i64 i = 0; i < rows * n; ++i) {
    p.x.push_back(narrow<T>(0.5f + 2.0f * normal(engine)));
    p.dy.push_back(narrow<T>(normal(engine)));
  }
  for (i64 j = 0; j < n; ++j) {
    const float gamma = 1.0f + 0.3f * normal(engine);
    p.gamma.push_back(j % 5 == 3 ? -gamma : gamma);
    if (norm == Norm::layer) p.beta.push_back(0.2f * normal(engine));
  }
  return p;
}

template <class T>
NormForward<T> forward_arrays(const Problem<T>& p, Result<T>& r) {
  return {.x = p.x.data(),
          .gamma = p.gamma_data(),
          .beta = p.beta_data(),
          .rows = p.rows,
          .n = p.n,
          .eps = kEps,
          .y = r.y.data(),
          .rstd = r.rstd.data(),
          .side = {p.side.data(), static_cast<i64>(p.side.size()), r.side.data()}};
}
template <class T>
NormBackward<T> backward_arrays(const Problem<T>& p, Result<T>& r) {
  return {.dy = p.dy.data(),
          .y = r.y.data(),
          .gamma = p.gamma_data(),
          .beta = p.beta_data(),
          .rstd = r.rstd.data(),
          .rows = p.rows,
          .n = p.n,
          .dx = r.dx.data(),
          .dgamma = r.dgamma.data(),
          .dbeta = r.dbeta.data(),
          .side = {p.side.data(), static_cast<i64>(p.side.size()), r.side.data()}};
}

template <CpuNormForwardSchedule S, class T>
Result<T> forward_of(const Problem<T>& p) {
  Result<T> r;
  r.y.resize(p.x.size());
  r.rstd.resize(size_of(p.rows));
  r.side.resize(size_of(p.rows) * p.side.size());
  const auto of = forward_arrays(p, r);
  p.norm == Norm::layer ? layernorm_forward<T, S>(of) : rmsnorm_forward<T, S>(of);
  return r;
}

// Adds the gradients to a result that has its forward part.
template <CpuNormBackwardSchedule S, class T>
void backward_of(const Problem<T>& p, Result<T>& r) {
  r.dx.resize(p.x.size());
  r.dgamma.assign(size_of(p.n), -1.0f);
  if (p.norm == Norm::layer) r.dbeta.assign(size_of(p.n), -1.0f);
  const auto of = backward_arrays(p, r);
  p.norm == Norm::layer ? layernorm_backward<T, S>(of) : rmsnorm_backward<T, S>(of);
}

template <CpuSchedule S, class T>
Result<T> run(const Problem<T>& p) {
  Result<T> r = forward_of<S>(p);
  backward_of<S>(p, r);
  return r;
}

// --- The formulas of kernels/layernorm.h, written again without its code -------------------------

// Rounded for itself: a store to memory, which no compiler may leave out, ends any fusing with a sum.
float product(float a, float b) {
  volatile float result = a * b;
  return result;
}

// The row tree over pair(i, j), the sum of terms i and j, where a term beyond n is skipped. In place, level
// by level.
template <class Pair>
float tree_sum(i64 n, const Pair& pair) {
  const i64 steps = (n + 255) / 256;
  std::vector<float> lanes(32, -0.0f);
  for (i64 group = 0; group < steps; group += 64) {
    std::vector<std::vector<float>> values(64, std::vector<float>(32, -0.0f));
    for (i64 q = group; q < std::min(group + 64, steps); ++q) {
      for (i64 lane = 0; lane < 32; ++lane) {
        const i64 first = 256 * q + 8 * lane;
        const auto at = [&](i64 i) { return first + i < n ? pair(first + i, first + i + 4) : -0.0f; };
        values[size_of(q - group)][size_of(lane)] = (at(0) + at(2)) + (at(1) + at(3));
      }
    }
    for (size_t half = 32; half > 0; half /= 2) {
      for (size_t q = 0; q < half; ++q) {
        for (size_t lane = 0; lane < 32; ++lane) values[q][lane] += values[q + half][lane];
      }
    }
    for (size_t lane = 0; lane < 32; ++lane) lanes[lane] += values[0][lane];
  }
  for (size_t half = 16; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

float tree_dot(const std::vector<float>& a, const std::vector<float>& b) {
  const i64 n = static_cast<i64>(a.size());
  return tree_sum(n, [&](i64 i, i64 j) {
    const float low = product(a[size_of(i)], b[size_of(i)]);
    return j < n ? std::fma(a[size_of(i)], b[size_of(i)], product(a[size_of(j)], b[size_of(j)])) : low;
  });
}

std::vector<float> slot_tree(std::vector<std::vector<float>> slots) {
  while (slots.size() > 1) {
    for (size_t k = 0; k < slots.size() / 2; ++k) {
      for (size_t j = 0; j < slots[k].size(); ++j) slots[k][j] = slots[2 * k][j] + slots[2 * k + 1][j];
    }
    slots.resize(slots.size() / 2);
  }
  return slots[0];
}

template <class T>
Result<T> formulas(const Problem<T>& p) {
  Result<T> r;
  const auto n = static_cast<float>(p.n);
  const auto columns = size_of(p.n);
  const bool layer = p.norm == Norm::layer;
  const std::vector<float> gamma = p.gamma.empty() ? std::vector<float>(columns, 1.0f) : p.gamma;
  const std::vector<float> beta = p.beta.empty() ? std::vector<float>(columns, 0.0f) : p.beta;
  const auto is_side = [&](size_t j) {
    return std::count(p.side.begin(), p.side.end(), static_cast<i32>(j)) > 0;
  };
  r.dx.resize(p.x.size());
  i64 slots = 1;
  while (2 * slots <= p.rows && 2 * slots * p.n <= (1 << 21)) slots *= 2;
  std::vector<std::vector<float>> dgamma(size_of(slots), std::vector<float>(columns, 0.0f));
  std::vector<std::vector<float>> dbeta = dgamma;
  i64 slot = 0;
  for (i64 row = 0; row < p.rows; ++row) {
    while ((slot + 1) * p.rows / slots <= row) ++slot;
    const size_t base = size_of(row * p.n);
    std::vector<float> x(columns);
    for (size_t j = 0; j < columns; ++j) x[j] = widen(p.x[base + j]);
    float mean = 0.0f;
    if (layer) {
      mean = tree_sum(p.n,
                      [&](i64 i, i64 j) { return j < p.n ? x[size_of(i)] + x[size_of(j)] : x[size_of(i)]; }) /
             n;
    }
    std::vector<float> d = x;
    for (float& value : d) value -= mean;
    const float rstd = 1.0f / std::sqrt(tree_dot(d, d) / n + kEps);
    r.rstd.push_back(rstd);
    std::vector<float> c(columns), factor(columns), dy(columns);
    for (size_t j = 0; j < columns; ++j) {
      const float x_hat = product(d[j], rstd);
      r.y.push_back(
          narrow<T>(p.beta.empty() ? product(x_hat, gamma[j]) : std::fma(x_hat, gamma[j], beta[j])));
      if (is_side(j)) r.side.push_back(x_hat);
      c[j] = is_side(j) ? x_hat : widen(r.y.back()) - beta[j];
      factor[j] = is_side(j) ? product(gamma[j], x_hat) : c[j];
      dy[j] = widen(p.dy[base + j]);
    }
    const float m1 = layer ? tree_dot(dy, gamma) / n : 0.0f;
    const float m2 = tree_dot(dy, factor) / n;
    for (size_t j = 0; j < columns; ++j) {
      const float x_hat = is_side(j) ? c[j] : product(c[j], 1.0f / gamma[j]);
      const float a = layer ? std::fma(dy[j], gamma[j], -m1) : product(dy[j], gamma[j]);
      r.dx[base + j] = narrow<T>(product(rstd, std::fma(-x_hat, m2, a)));
      dgamma[size_of(slot)][j] = std::fma(dy[j], c[j], dgamma[size_of(slot)][j]);
      dbeta[size_of(slot)][j] += dy[j];
    }
  }
  r.dgamma = slot_tree(dgamma);
  for (size_t j = 0; j < columns; ++j) r.dgamma[j] /= is_side(j) ? 1.0f : gamma[j];
  if (layer) r.dbeta = slot_tree(dbeta);
  return r;
}

template <class T>
class NormTest : public ::testing::Test {};
TYPED_TEST_SUITE_P(NormTest);

// {1100, 9}: 1024 slots, eight to a task of the backward.
const std::vector<std::tuple<i64, i64>> kShapes = {{4, 64},   {3, 65},   {3, 192},  {1, 1},    {3, 2},
                                                   {2, 7},    {5, 8},    {4, 17},   {3, 31},   {7, 100},
                                                   {9, 255},  {6, 256},  {5, 257},  {4, 384},  {300, 40},
                                                   {1100, 9}, {3, 1000}, {2, 4096}, {2, 4099}, {1, 16385}};

// Absent gamma and beta, and side channels at both ends and inside, by seed.
template <class T>
Problem<T> varied_problem(Norm norm, i64 rows, i64 n, unsigned variant) {
  Problem<T> p = random_problem<T>(norm, rows, n, variant + static_cast<unsigned>(n));
  if (variant == 1) p.gamma.clear();
  if (variant == 2) p.beta.clear();
  if (variant == 3) {
    for (const i64 j : {i64{0}, n / 3, n - 1}) {
      if (p.side.empty() || p.side.back() < j) p.side.push_back(static_cast<i32>(j));
    }
    p.gamma[0] = 0.0f;
  }
  return p;
}

TYPED_TEST_P(NormTest, ScalarIsTheFormulasBitForBit) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const auto& [rows, n] : kShapes) {
      for (unsigned variant = 0; variant < 4; ++variant) {
        const auto p = varied_problem<TypeParam>(norm, rows, n, variant);
        ASSERT_EQ(run<kScalar>(p).bits(), formulas(p).bits())
            << rows << " x " << n << ", variant " << variant;
      }
    }
  }
}

template <CpuSchedule S, class T>
void expect_same_bits(const Problem<T>& p, const std::vector<u32>& expected) {
  ASSERT_EQ(run<S>(p).bits(), expected)
      << p.rows << " x " << p.n << ", " << S.vector_bits << " bits, " << S.threads << " threads";
}

TYPED_TEST_P(NormTest, EveryScheduleGivesTheSameBits) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const auto& [rows, n] : kShapes) {
      for (unsigned variant = 0; variant < 4; ++variant) {
        const auto p = varied_problem<TypeParam>(norm, rows, n, variant);
        const std::vector<u32> expected = run<kScalar>(p).bits();
        expect_same_bits<CpuSchedule{.threads = 3, .block_elements = 1024}>(p, expected);
        expect_same_bits<CpuSchedule{.threads = 2, .vector_bits = std::min(256, kBestVectorBits)}>(p,
                                                                                                   expected);
        expect_same_bits<CpuSchedule{.threads = 1, .vector_bits = kBestVectorBits}>(p, expected);
        expect_same_bits<CpuSchedule{.threads = 5, .vector_bits = kBestVectorBits, .block_elements = 1024}>(
            p, expected);
        expect_same_bits<kWidestSchedule>(p, expected);
      }
    }
  }
}

// Slots of one row each, and of two, as many of them as are taken together and more; and the sums over short
// rows, whose lengths are about those of one and two vectors of chunks.
TYPED_TEST_P(NormTest, RowsOfWholeSlotsGiveTheSameBits) {
  const auto expect_formulas = [](const Problem<TypeParam>& p) {
    const std::vector<u32> expected = formulas(p).bits();
    expect_same_bits<CpuSchedule{.threads = 1, .vector_bits = kBestVectorBits}>(p, expected);
    expect_same_bits<CpuSchedule{.threads = 2, .vector_bits = std::min(256, kBestVectorBits)}>(p, expected);
    expect_same_bits<CpuSchedule{.threads = 4, .vector_bits = kBestVectorBits}>(p, expected);
    expect_same_bits<kScalar>(p, expected);
  };
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const i64 rows : {4, 8, 64, 65})
      for (const i64 n : {3, 63, 64, 65, 127, 128, 129}) {
        ASSERT_EQ(slot_count(rows, n), rows / 4 * 4);
        expect_formulas(random_problem<TypeParam>(norm, rows, n, 1));
      }
  }
  constexpr i64 kRows = 8, kLong = (i64{1} << 18) + 3;
  ASSERT_EQ(slot_count(kRows, kLong), kRows / 2);
  expect_formulas(random_problem<TypeParam>(Norm::layer, kRows, kLong, 1));
}

constexpr CpuNormForwardSchedule forward_with(int vectors, int rows, Prefetch prefetch, int rows_ahead = 1) {
  return {.threads = 2,
          .vector_bits = kBestVectorBits,
          .vectors = vectors,
          .rows = rows,
          .task_elements = 3 << 10,
          .streaming_stores = true,
          .prefetch = prefetch,
          .rows_ahead = rows_ahead};
}
constexpr CpuNormBackwardSchedule backward_with(int vectors, int rows, Prefetch prefetch, int rows_ahead = 1,
                                                int tasks = 4, int fold_columns = 16) {
  return {.threads = 2,
          .vector_bits = kBestVectorBits,
          .vectors = vectors,
          .rows = rows,
          .tasks = tasks,
          .fold_columns = fold_columns,
          .streaming_stores = true,
          .prefetch = prefetch,
          .rows_ahead = rows_ahead};
}

template <CpuNormForwardSchedule F, CpuNormBackwardSchedule B, class T>
void expect_bits_with(const Problem<T>& p, const std::vector<u32>& expected) {
  Result<T> r = forward_of<F>(p);
  backward_of<B>(p, r);
  ASSERT_EQ(r.bits(), expected) << p.rows << " x " << p.n << ", " << F.vectors << " and " << B.vectors
                                << " vectors, " << B.tasks << " tasks";
}

// What a norm's own schedules have beyond CpuSchedule.
TYPED_TEST_P(NormTest, OwnSchedulesGiveTheSameBits) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const auto& [rows, n] : kShapes) {
      for (const unsigned variant : {0u, 3u}) {
        const auto p = varied_problem<TypeParam>(norm, rows, n, variant);
        const std::vector<u32> expected = run<kScalar>(p).bits();
        expect_bits_with<forward_with(1, 4, Prefetch::first_level), backward_with(1, 1, Prefetch::none)>(
            p, expected);
        expect_bits_with<forward_with(3, 1, Prefetch::second_level, 2),
                         backward_with(6, 3, Prefetch::first_level, 3, 1, 4096)>(p, expected);
        expect_bits_with<forward_with(8, 3, Prefetch::none),
                         backward_with(8, 2, Prefetch::second_level, 2, 32, 48)>(p, expected);
      }
    }
  }
}

// Slots of so many rows that they are taken together, some of them left over: 11 rows, 2 slots.
TYPED_TEST_P(NormTest, RowsTakenTogetherGiveTheSameBits) {
  constexpr i64 kRows = 11, kN = (1 << 19) + 3;
  ASSERT_EQ(slot_count(kRows, kN), 2);
  const auto p = random_problem<TypeParam>(Norm::layer, kRows, kN, 17);
  const std::vector<u32> expected = run<kScalar>(p).bits();
  expect_bits_with<forward_with(1, 4, Prefetch::none), backward_with(1, 1, Prefetch::none)>(p, expected);
  expect_bits_with<forward_with(2, 2, Prefetch::second_level), backward_with(2, 4, Prefetch::second_level)>(
      p, expected);
  expect_bits_with<forward_with(8, 3, Prefetch::none), backward_with(3, 3, Prefetch::none)>(p, expected);
}

// Rows on cache lines and outputs beyond a private cache: the only ones that are streamed.
template <class T>
struct LineAligned {
  explicit LineAligned(const std::vector<T>& values)
      : storage(values.size() + 64 / sizeof(T)),
        data(storage.data() + (64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64) / sizeof(T)) {
    std::copy(values.begin(), values.end(), data);
  }
  std::vector<T> storage;
  T* data;
};

template <CpuNormForwardSchedule F, CpuNormBackwardSchedule B, class T>
void expect_streamed_bits(const Problem<T>& p, const Result<T>& expected) {
  LineAligned<T> y(p.x), dx(p.dy);
  auto r = expected;
  auto forward = forward_arrays(p, r);
  forward.x = forward.y = y.data;
  layernorm_forward<T, F>(forward);
  r.y.assign(y.data, y.data + p.x.size());
  auto backward = backward_arrays(p, r);
  backward.dy = backward.dx = dx.data, backward.y = y.data;
  layernorm_backward<T, B>(backward);
  r.dx.assign(dx.data, dx.data + p.x.size());
  const bool streams = detail::rows_stream<B>(dx.data, p.rows, p.n);
  EXPECT_EQ(streams, B.streaming_stores && B.vector_bits > 0);
  ASSERT_TRUE(r.bits() == expected.bits()) << B.vector_bits << " bits, " << p.side.size() << " side channels";
}

TYPED_TEST_P(NormTest, StreamedRowsHaveTheSameBitsInPlaceToo) {
  constexpr int kNarrower = std::min(256, kBestVectorBits);
  // whole cache lines, no whole number of the tree's steps or of the widest strips of 16-bit elements
  constexpr i64 kColumns = 1120;
  for (const unsigned variant : {0u, 3u}) {
    const auto p = varied_problem<TypeParam>(
        Norm::layer, (i64{2} << 20) / i64{sizeof(TypeParam)} / kColumns + 1, kColumns, variant);
    const auto expected = run<kScalar>(p);
    expect_streamed_bits<kWidestSchedule, kWidestSchedule>(p, expected);
    constexpr CpuSchedule kNarrow{.threads = 3, .vector_bits = kNarrower, .streaming_stores = true},
        kCached{.threads = 2, .vector_bits = kBestVectorBits};
    expect_streamed_bits<kNarrow, kNarrow>(p, expected);
    expect_streamed_bits<kCached, kCached>(p, expected);
    expect_streamed_bits<forward_with(3, 1, Prefetch::second_level), backward_with(3, 2, Prefetch::none)>(
        p, expected);
  }
}

// --- The exact gradients -------------------------------------------------------------------------

constexpr double kUnit = 0x1p-24;  // fp32's unit roundoff
// Roundings on the way from one element to a row's mean: the product, 3 additions in a chunk, 6 in a group
// and up to 4 groups here, 5 across lanes, the division; then c, the reciprocal and x^ of the outer factor,
// two fused steps and the product by rstd. The neutral additions are exact. Second-order terms are covered by
// rounding 28 up.
constexpr double kRowRoundings = 32;

template <class T>
constexpr double kStorageUnit = std::is_same_v<T, float> ? 0x1p-24
                                : std::is_same_v<T, F16> ? 0x1p-11
                                                         : 0x1p-8;
template <class T>
// half the least subnormal, f16's and bf16's (fp32's is less)
constexpr double kLeastHalf = std::is_same_v<T, F16> ? 0x1p-25 : 0x1p-134;

// The real gradients of the stored dy, y, rstd; long double keeps 64 bits, 2^-40 of the bounds.
template <class T>
void expect_gradients(const Problem<T>& p, const Result<T>& r) {
  using Real = long double;
  const bool layer = p.norm == Norm::layer;
  const auto columns = size_of(p.n);
  std::vector<Real> dgamma(columns), dgamma_scale(columns), dbeta(columns), dbeta_scale(columns);
  for (size_t row = 0; row < size_of(p.rows); ++row) {
    std::vector<Real> a(columns), x_hat(columns);
    Real m1 = 0, m1_scale = 0, m2 = 0, m2_scale = 0;
    for (size_t j = 0; j < columns; ++j) {
      const Real gamma = p.gamma.empty() ? 1.0f : p.gamma[j];
      const Real dy = widen(p.dy[row * columns + j]);
      const auto place =
          static_cast<size_t>(std::find(p.side.begin(), p.side.end(), static_cast<i32>(j)) - p.side.begin());
      x_hat[j] = place < p.side.size()
                     ? Real{r.side[row * p.side.size() + place]}
                     : (widen(r.y[row * columns + j]) - Real{p.beta.empty() ? 0.0f : p.beta[j]}) / gamma;
      a[j] = dy * gamma;
      m1 += a[j] / static_cast<Real>(p.n);
      m1_scale += std::fabs(a[j]) / static_cast<Real>(p.n);
      m2 += a[j] * x_hat[j] / static_cast<Real>(p.n);
      m2_scale += std::fabs(a[j] * x_hat[j]) / static_cast<Real>(p.n);
      dgamma[j] += dy * x_hat[j];
      dgamma_scale[j] += std::fabs(dy * x_hat[j]);
      dbeta[j] += dy;
      dbeta_scale[j] += std::fabs(dy);
    }
    for (size_t j = 0; j < columns; ++j) {
      const Real exact = r.rstd[row] * (a[j] - (layer ? m1 : 0) - x_hat[j] * m2);
      const Real scale =
          r.rstd[row] * (std::fabs(a[j]) + (layer ? m1_scale : 0) + std::fabs(x_hat[j]) * m2_scale);
      const Real bound = kRowRoundings * kUnit * scale + kStorageUnit<T> * std::fabs(exact) + kLeastHalf<T>;
      ASSERT_LE(std::fabs(widen(r.dx[row * columns + j]) - exact), bound)
          << p.rows << " x " << p.n << ", row " << row << ", column " << j;
    }
  }
  const i64 slots = slot_count(p.rows, p.n);
  const double column_roundings =
      static_cast<double>(p.rows / slots + 1) + std::log2(static_cast<double>(slots)) + 4;
  for (size_t j = 0; j < columns; ++j) {
    ASSERT_LE(std::fabs(r.dgamma[j] - dgamma[j]), column_roundings * kUnit * dgamma_scale[j])
        << "dgamma of column " << j;
    if (!layer) continue;
    ASSERT_LE(std::fabs(r.dbeta[j] - dbeta[j]), column_roundings * kUnit * dbeta_scale[j])
        << "dbeta of column " << j;
  }
}

TYPED_TEST_P(NormTest, BackwardIsTheExactGradientWithinItsRoundings) {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const auto& [rows, n] : kShapes) {
      for (unsigned variant = 0; variant < 4; ++variant) {
        const auto p = varied_problem<TypeParam>(norm, rows, n, variant);
        expect_gradients(p, run<kWidestSchedule>(p));
      }
    }
  }
}

TYPED_TEST_P(NormTest, ForwardIsTheExactOutputWithinItsRoundings) {
  using Real = long double;
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    const auto p = random_problem<TypeParam>(norm, 4, 1000, 1);
    const auto r = forward_of<kWidestSchedule>(p);
    for (size_t row = 0; row < 4; ++row) {
      Real mean = 0, variance = 0, mean_scale = 0;
      for (size_t j = 0; j < 1000; ++j) mean += widen(p.x[row * 1000 + j]) / Real{1000};
      for (size_t j = 0; j < 1000; ++j) mean_scale += std::fabs(widen(p.x[row * 1000 + j])) / Real{1000};
      if (norm == Norm::rms) mean = mean_scale = 0;
      for (size_t j = 0; j < 1000; ++j)
        variance += std::pow(widen(p.x[row * 1000 + j]) - mean, Real{2}) / 1000;
      const Real rstd = 1 / std::sqrt(variance + kEps);
      ASSERT_LE(std::fabs(r.rstd[row] - rstd), kRowRoundings * kUnit * rstd);
      for (size_t j = 0; j < 1000; ++j) {
        const Real d = widen(p.x[row * 1000 + j]) - mean;
        const Real exact = d * rstd * p.gamma[j] + (norm == Norm::layer ? p.beta[j] : 0.0f);
        const Real scale = (std::fabs(d) + mean_scale) * rstd * std::fabs(p.gamma[j]) + std::fabs(exact);
        ASSERT_LE(std::fabs(widen(r.y[row * 1000 + j]) - exact),
                  kRowRoundings * kUnit * scale + kStorageUnit<TypeParam> * std::fabs(exact))
            << row << ", " << j;
      }
    }
  }
}

// --- Memory --------------------------------------------------------------------------------------

TYPED_TEST_P(NormTest, GradientsMayReplaceTheirInputAndPointersNeedOnlyElementAlignment) {
  for (unsigned variant : {0u, 3u}) {
    const auto p = varied_problem<TypeParam>(Norm::layer, 9, 1003, variant);
    const auto expected = run<kScalar>(p);
    for (size_t shift = 0; shift < 3; ++shift) {
      std::vector<TypeParam> dy(p.dy.size() + shift), y(p.dy.size() + 2 * shift);
      std::copy(p.dy.begin(), p.dy.end(), dy.begin() + static_cast<std::ptrdiff_t>(shift));
      std::copy(expected.y.begin(), expected.y.end(), y.begin() + static_cast<std::ptrdiff_t>(2 * shift));
      std::vector<float> columns(2 * size_of(p.n) + shift);
      std::vector<float> words(size_of(norm_backward_workspace(p.rows, p.n)) + shift, std::nanf(""));
      auto r = expected;
      auto of = backward_arrays(p, r);
      of.dy = of.dx = dy.data() + shift, of.y = y.data() + 2 * shift;
      of.dgamma = columns.data() + shift, of.dbeta = of.dgamma + p.n;
      of.workspace = std::span(words).subspan(shift);
      layernorm_backward<TypeParam>(of);
      r.dx.assign(dy.begin() + static_cast<std::ptrdiff_t>(shift), dy.end());
      r.dgamma.assign(columns.begin() + static_cast<std::ptrdiff_t>(shift),
                      columns.end() - static_cast<std::ptrdiff_t>(p.n));
      r.dbeta.assign(columns.end() - static_cast<std::ptrdiff_t>(p.n), columns.end());
      EXPECT_EQ(r.bits(), expected.bits()) << "shift " << shift;
    }
  }
}

TYPED_TEST_P(NormTest, OutputMayReplaceItsInput) {
  const auto p = varied_problem<TypeParam>(Norm::layer, 5, 403, 3);
  auto expected = forward_of<kScalar>(p);
  auto r = expected;
  r.y = p.x;
  auto of = forward_arrays(p, r);
  of.x = of.y;
  layernorm_forward<TypeParam>(of);
  EXPECT_EQ(r.bits(), expected.bits());
}

template <class T>
PageEnd at_page_end(const std::vector<T>& values) {
  const u8* const bytes = reinterpret_cast<const u8*>(values.data());
  return PageEnd({bytes, bytes + values.size() * sizeof(T)});
}

// Every array ends where an unmapped page begins, with each number of columns in the last vector.
template <CpuSchedule S, class T>
void expect_no_access_behind_the_end(i64 n) {
  const auto p = random_problem<T>(Norm::layer, 3, n, 1);
  auto r = run<kScalar>(p);
  const std::vector<u32> expected = r.bits();
  const PageEnd x = at_page_end(p.x), dy = at_page_end(p.dy), gamma = at_page_end(p.gamma),
                beta = at_page_end(p.beta), y = at_page_end(r.y), dx = at_page_end(r.dx),
                dgamma = at_page_end(r.dgamma), dbeta = at_page_end(r.dbeta);
  const auto of = [](auto* of_type, const PageEnd& end) {
    return reinterpret_cast<decltype(of_type)>(const_cast<u8*>(end.data()));
  };
  auto forward = forward_arrays(p, r);
  forward.x = of(forward.x, x), forward.y = of(forward.y, y);
  forward.gamma = of(forward.gamma, gamma), forward.beta = of(forward.beta, beta);
  layernorm_forward<T, S>(forward);
  auto backward = backward_arrays(p, r);
  backward.dy = of(backward.dy, dy), backward.y = of(backward.y, y), backward.dx = of(backward.dx, dx);
  backward.gamma = of(backward.gamma, gamma), backward.beta = of(backward.beta, beta);
  backward.dgamma = of(backward.dgamma, dgamma), backward.dbeta = of(backward.dbeta, dbeta);
  layernorm_backward<T, S>(backward);
  std::copy_n(forward.y, r.y.size(), r.y.begin());
  std::copy_n(backward.dx, r.dx.size(), r.dx.begin());
  std::copy_n(backward.dgamma, n, r.dgamma.begin());
  std::copy_n(backward.dbeta, n, r.dbeta.begin());
  EXPECT_EQ(r.bits(), expected) << n << " columns, " << S.vector_bits << " bits";
}

TYPED_TEST_P(NormTest, NothingBehindTheLastColumnIsReadOrWritten) {
  for (i64 n = 1; n <= 70; ++n) {
    expect_no_access_behind_the_end<kWidestSchedule, TypeParam>(n);
    expect_no_access_behind_the_end<CpuSchedule{.vector_bits = std::min(256, kBestVectorBits)}, TypeParam>(n);
  }
}

TYPED_TEST_P(NormTest, NoRowsGiveZeroColumnGradientsAndTouchNothingElse) {
  const auto p = random_problem<TypeParam>(Norm::layer, 0, 100, 1);
  const auto r = run<kWidestSchedule>(p);
  for (const float value : r.dgamma) EXPECT_EQ(value, 0.0f);
  for (const float value : r.dbeta) EXPECT_EQ(value, 0.0f);
}

TYPED_TEST_P(NormTest, UnwantedColumnGradientsMayBeNull) {
  const auto p = random_problem<TypeParam>(Norm::layer, 6, 300, 1);
  const auto expected = run<kScalar>(p);
  auto r = expected;
  std::fill(r.dx.begin(), r.dx.end(), TypeParam{});
  auto of = backward_arrays(p, r);
  of.dgamma = of.dbeta = nullptr;
  layernorm_backward<TypeParam>(of);
  EXPECT_EQ(r.bits(), expected.bits());
}

// --- Odd inputs ----------------------------------------------------------------------------------

TYPED_TEST_P(NormTest, NanReachesEveryOutputThatDependsOnIt) {
  const TypeParam nan = narrow<TypeParam>(std::nanf(""));
  for (const i64 j : {0, 37, 256, 299}) {
    const auto p = random_problem<TypeParam>(Norm::layer, 3, 300, 1);
    auto q = p;
    q.x[size_of(300 + j)] = nan;
    auto r = forward_of<kWidestSchedule>(q);
    EXPECT_TRUE(std::isnan(r.rstd[1]));
    for (size_t i = 0; i < r.y.size(); ++i) EXPECT_EQ(std::isnan(widen(r.y[i])), i / 300 == 1);

    q = p;
    q.dy[size_of(300 + j)] = nan;
    r = run<kWidestSchedule>(q);
    for (size_t i = 0; i < r.dx.size(); ++i) EXPECT_EQ(std::isnan(widen(r.dx[i])), i / 300 == 1);
    for (size_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(r.dgamma[i]), i == size_of(j));
    for (size_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(r.dbeta[i]), i == size_of(j));

    q = p;
    q.gamma[size_of(j)] = std::nanf("");
    r = run<kWidestSchedule>(q);
    for (size_t i = 0; i < r.dx.size(); ++i) EXPECT_TRUE(std::isnan(widen(r.dx[i])));
    for (size_t i = 0; i < r.y.size(); ++i) EXPECT_EQ(std::isnan(widen(r.y[i])), i % 300 == size_of(j));
    EXPECT_EQ(r.bits(), run<kScalar>(q).bits());
  }
}

REGISTER_TYPED_TEST_SUITE_P(NormTest, ScalarIsTheFormulasBitForBit, EveryScheduleGivesTheSameBits,
                            RowsOfWholeSlotsGiveTheSameBits, OwnSchedulesGiveTheSameBits,
                            RowsTakenTogetherGiveTheSameBits, StreamedRowsHaveTheSameBitsInPlaceToo,
                            BackwardIsTheExactGradientWithinItsRoundings,
                            ForwardIsTheExactOutputWithinItsRoundings,
                            GradientsMayReplaceTheirInputAndPointersNeedOnlyElementAlignment,
                            OutputMayReplaceItsInput, NothingBehindTheLastColumnIsReadOrWritten,
                            NoRowsGiveZeroColumnGradientsAndTouchNothingElse,
                            UnwantedColumnGradientsMayBeNull, NanReachesEveryOutputThatDependsOnIt);

}  // namespace
}  // namespace outgrad::kernels
