// Bias and GELU in one pass: the bits of the separate steps, for any shape, alignment of rows to the mask's
// bytes, schedule and thread count.
#include "kernels/host/bias.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/fits.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

constexpr CpuSchedule kPlain{.threads = 1};

constexpr CpuSchedule widest(int unroll, int threads) {
  return {.threads = threads,
          .vector_bits = kBestVectorBits,
          .unroll = kBestVectorBits > 0 ? unroll : 1,
          .block_elements = 1024,
          .streaming_stores = true,
          .table = TablePlacement::permute};
}

struct Shape {
  i64 rows, n;
};
// Rows that are whole vectors, bytes of the mask, neither; one row; one column; more slots than tasks (2^8
// rows and more); rows with an end of every length behind no vector and behind a few.
const std::vector<Shape> kShapes = [] {
  std::vector<Shape> shapes = {{3, 128},  {5, 72},   {7, 13},  {1, 1000}, {1000, 1},
                               {700, 40}, {2, 2048}, {5, 513}, {3, 1031}};
  for (i64 n = 1; n < 64; ++n) shapes.push_back({37, n + (n % 2 == 0 ? 64 : 0)});
  return shapes;
}();

template <class T>
class Bias : public testing::Test {
 protected:
  // Finite values of every magnitude that overflow nowhere, NaN in a few places.
  static std::vector<T> values(i64 count, u64 seed) {
    patterns::Random random(seed);
    std::vector<T> v;
    for (i64 i = 0; i < count; ++i) {
      const int exponent = static_cast<int>(random.next() % 24) - 20;
      const float value =
          __builtin_ldexpf(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f, exponent);
      v.push_back(i % 997 == 996 ? narrow<T>(__builtin_nanf("")) : narrow<T>(value));
    }
    return v;
  }
};
TYPED_TEST_SUITE(Bias, TestedFormats);

template <CpuSchedule S, class T, class B>
void expect_forward(const Shape& shape, const std::vector<T>& x, const std::vector<B>& bias) {
  using Forward = typename ForwardFit<T>::Type;
  const i64 elements = shape.rows * shape.n;
  static constexpr auto kTables = forward_tables<Forward>();
  std::vector<T> expected(x.size()), y = x;  // in place
  std::vector<u32> expected_mask(static_cast<size_t>((elements + 31) / 32)), mask(expected_mask.size(), ~0u);
  for (i64 i = 0; i < elements; ++i) {
    const auto k = static_cast<size_t>(i);
    const float z = add_rn(widen(x[k]), widen(bias[static_cast<size_t>(i % shape.n)]));
    expected[k] = narrow<T>(fitted_forward_value<T>(FloatOps{}, Forward{}, kTables, z));
    expected_mask[k / 32] |= static_cast<u32>(z >= Forward::kXStar) << (i % 32);
  }
  bias_gelu_forward<Forward, T, S>(y.data(), bias.data(), shape.rows, shape.n, y.data(), mask.data());
  EXPECT_EQ(patterns::first_difference(y, expected), -1)
      << shape.rows << " x " << shape.n << ' ' << Format<T>::kName << " unroll " << S.unroll;
  EXPECT_EQ(mask, expected_mask) << shape.rows << " x " << shape.n;
}

TYPED_TEST(Bias, ForwardIsTheSumThenGelu) {
  for (const Shape& shape : kShapes) {
    const auto x = this->values(shape.rows * shape.n, 1);
    const auto same = this->values(shape.n, 2);
    std::vector<float> wide;
    for (const TypeParam b : same) wide.push_back(widen(b) * 1.0000001f);
    expect_forward<kPlain>(shape, x, wide);
    expect_forward<widest(1, 1)>(shape, x, same);
    expect_forward<widest(4, 2)>(shape, x, wide);
  }
}

// The vectors' short way is for packs whose every z lies in the rows about 0: z on the edges of all cells and
// one float beside them, and among 63 that lie there one, at any place, that does not or is rounded in
// another way.
TYPED_TEST(Bias, PacksOfAnyCompanyAreTheSame) {
  const auto beside = [](float z, int steps) {
    return __builtin_bit_cast(float, __builtin_bit_cast(u32, z) + static_cast<u32>(steps));
  };
  std::vector<float> z;
  for (int eighths = -80; eighths <= 80; ++eighths) {
    for (const int steps : {-1, 0, 1})
      z.push_back(eighths == 0 ? 0x1p-99f : beside(0.125f * static_cast<float>(eighths), steps));
  }
  z.resize(z.size() / 64 * 64);
  std::vector<float> guests = {0.0f,
                               -0.0f,
                               __builtin_nanf(""),
                               -__builtin_nanf(""),
                               __builtin_inff(),
                               -__builtin_inff(),
                               0x1p21f,
                               -0x1p21f,
                               0x1p127f};
  for (int exponent = -149; exponent <= -20; ++exponent) {
    for (const float sign : {1.0f, -1.0f}) guests.push_back(sign * __builtin_ldexpf(1.37f, exponent));
  }
  for (int quarters = 9; quarters <= 64; ++quarters) {
    for (const float sign : {1.0f, -1.0f}) guests.push_back(sign * 0.25f * static_cast<float>(quarters));
  }
  for (size_t guest = 0; guest < guests.size(); ++guest) {
    for (size_t i = 0; i < 64; ++i)
      z.push_back(i == guest * 7 % 64 ? guests[guest] : 0.1f * static_cast<float>(i) - 3.0f);
  }
  const std::vector<TypeParam> zeros(z.size(), narrow<TypeParam>(-0.0f));  // -0 + z is z
  const Shape one_row{1, static_cast<i64>(z.size())};
  expect_forward<widest(1, 1)>(one_row, zeros, z);
  expect_forward<widest(2, 1)>(one_row, zeros, z);
  expect_forward<widest(4, 1)>(one_row, zeros, z);
}

// A large matrix whose rows begin on cache lines is streamed past the cache; one that does not is not.
TEST(BiasStreaming, GivesTheSameBits) {
  for (const i64 n : {1024, 1016}) {
    const i64 rows = (i64{1} << 20) / n;
    std::vector<float> x(static_cast<size_t>(rows * n)), bias(static_cast<size_t>(n), 0.25f);
    patterns::Random random(5);
    for (float& value : x) value = static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f;
    expect_forward<widest(4, 2)>({rows, n}, x, bias);
  }
}

// The sum over rows as kernels/reduce.h words it.
float column_sum(const std::vector<float>& terms, i64 n) {
  const i64 rows = static_cast<i64>(terms.size()), slots = slot_count(rows, n);
  std::vector<float> sums;
  for (i64 slot = 0; slot < slots; ++slot) {
    float sum = 0;
    for (i64 row = slot_begin(rows, slots, slot); row < slot_begin(rows, slots, slot + 1); ++row)
      sum = add_rn(sum, terms[static_cast<size_t>(row)]);
    sums.push_back(sum);
  }
  for (; sums.size() > 1; sums.resize(sums.size() / 2))
    for (size_t k = 0; k < sums.size() / 2; ++k) sums[k] = add_rn(sums[2 * k], sums[2 * k + 1]);
  return sums.front();
}

template <CpuSchedule S, class T>
void expect_backward(const Shape& shape, const std::vector<T>& dy, const std::vector<T>& y) {
  using Fit = typename DefaultFit<T>::Type;
  static constexpr auto kTable = table_of<Fit>();
  const i64 elements = shape.rows * shape.n;
  patterns::Random random(3);
  std::vector<u32> mask(static_cast<size_t>((elements + 31) / 32));
  for (u32& word : mask) word = random.next();
  std::vector<T> expected(dy.size()), dx = dy;  // in place
  std::vector<float> products(dy.size()), dbias(static_cast<size_t>(shape.n), -1.0f), expected_bias;
  for (size_t i = 0; i < dy.size(); ++i) {
    products[i] = activation_backward_value<Fit>(FloatOps{}, kTable, &dy[i], &y[i],
                                                 (mask[i / 32] >> (i % 32) & 1) != 0);
    expected[i] = narrow<T>(products[i]);
  }
  for (i64 j = 0; j < shape.n; ++j) {
    std::vector<float> column;
    for (i64 row = 0; row < shape.rows; ++row)
      column.push_back(products[static_cast<size_t>(row * shape.n + j)]);
    expected_bias.push_back(column_sum(column, shape.n));
  }
  bias_gelu_backward<Fit, T, S>(dx.data(), y.data(), mask.data(), shape.rows, shape.n, dx.data(),
                                dbias.data());
  EXPECT_EQ(patterns::first_difference(dx, expected), -1)
      << shape.rows << " x " << shape.n << ' ' << Format<T>::kName << " unroll " << S.unroll;
  EXPECT_EQ(patterns::first_difference(dbias, expected_bias), -1)
      << shape.rows << " x " << shape.n << ' ' << Format<T>::kName << " unroll " << S.unroll;
}

TYPED_TEST(Bias, BackwardIsTheProductsAndTheirTreeOverRows) {
  for (const Shape& shape : kShapes) {
    const auto dy = this->values(shape.rows * shape.n, 1), y = this->values(shape.rows * shape.n, 2);
    expect_backward<kPlain>(shape, dy, y);
    expect_backward<widest(1, 1)>(shape, dy, y);
    expect_backward<widest(4, 2)>(shape, dy, y);
  }
  // of so many numbers of 16 bits AVX2 has a table of all g
  for (const Shape& shape : {Shape{130, 1016}, Shape{130, 1013}}) {
    constexpr CpuSchedule kWidest = widest(4, 2);
    constexpr CpuSchedule kNarrower{.threads = 2,
                                    .vector_bits = std::min(kBestVectorBits, 256),
                                    .unroll = kWidest.unroll,
                                    .block_elements = 1024,
                                    .streaming_stores = true,
                                    .table = TablePlacement::permute};
    ASSERT_GE(shape.rows * shape.n, 2 * detail::kCodes);
    const auto dy = this->values(shape.rows * shape.n, 1), y = this->values(shape.rows * shape.n, 2);
    expect_backward<kNarrower>(shape, dy, y);
  }
}

// Wherever in a cache line it begins, a workspace is enough, to its last word and not beyond, and the sums
// are the same.
TEST(BiasContract, AWorkspaceBeginsAtAnyWord) {
  using Fit = DefaultFit<float>::Type;
  constexpr float kGuard = 7.0f;
  for (const Shape& shape : kShapes) {
    const auto elements = static_cast<size_t>(shape.rows * shape.n),
               words = static_cast<size_t>(bias_backward_workspace(shape.rows, shape.n));
    const std::vector<float> dy(elements, 1.5f), y(elements, 0.75f);
    std::vector<u32> mask((elements + 31) / 32);
    std::vector<float> dx(elements), sums(static_cast<size_t>(shape.n)), expected;
    for (size_t begin = 0; begin <= 16; ++begin) {
      std::vector<float> storage(begin + words + 1, kGuard);
      bias_gelu_backward<Fit, float, widest(4, 2)>(dy.data(), y.data(), mask.data(), shape.rows, shape.n,
                                                   dx.data(), sums.data(),
                                                   std::span<float>(storage).subspan(begin, words));
      if (begin == 0) expected = sums;
      EXPECT_EQ(sums, expected) << shape.rows << " x " << shape.n << ", word " << begin;
      EXPECT_EQ(storage.back(), kGuard) << shape.rows << " x " << shape.n << ", word " << begin;
      EXPECT_EQ(std::count(storage.begin(), storage.begin() + static_cast<std::ptrdiff_t>(begin), kGuard),
                begin);
    }
  }
}

TEST(BiasContract, RefusesBeforeAnythingIsWritten) {
  using Fit = DefaultFit<float>::Type;
  std::vector<float> x(64, 1.0f), dx(64, 7.0f), sums(8, 7.0f),
      workspace(static_cast<size_t>(bias_backward_workspace(8, 8)) - 1);
  u32 mask[2] = {};
  EXPECT_THROW((bias_gelu_backward<Fit, float, kPlain>(x.data(), x.data(), mask, 8, 8, dx.data(), sums.data(),
                                                       workspace)),
               SpecError);
  EXPECT_THROW(
      (bias_gelu_backward<Fit, float, kPlain>(x.data(), x.data(), mask, -1, 8, dx.data(), sums.data())),
      SpecError);
  EXPECT_THROW((bias_gelu_forward<ForwardFit<float>::Type, float, kPlain>(x.data(), x.data(), i64{1} << 40,
                                                                          i64{1} << 40, dx.data(), mask)),
               SpecError);
  EXPECT_EQ(dx, std::vector<float>(64, 7.0f));
  EXPECT_EQ(sums, std::vector<float>(8, 7.0f));
  bias_gelu_forward<ForwardFit<float>::Type, float, kPlain>(nullptr, x.data(), 0, 8, nullptr, nullptr);
  bias_gelu_backward<Fit, float, kPlain>(nullptr, nullptr, nullptr, 0, 8, nullptr, sums.data());
  EXPECT_EQ(sums, std::vector<float>(8, 0.0f));  // an empty sum
}

}  // namespace
}  // namespace outgrad::kernels
