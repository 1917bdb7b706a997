// Widening and narrowing against an independent reference in double, exhaustively over the 16-bit and 8-bit
// patterns.
#include "kernels/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/simd.h"
#include "tests/kernels/page_end.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

// Shape of a 16-bit format: bits of the significand after the point, least normal exponent.
template <class T>
struct Shape;
template <>
struct Shape<F16> {
  static constexpr int kFraction = 10, kMinExponent = -14, kMaxExponent = 15;
};
template <>
struct Shape<BF16> {
  static constexpr int kFraction = 7, kMinExponent = -126, kMaxExponent = 127;
};

template <class T>
double value_of(T stored) {
  using S = Shape<T>;
  const int exponent = (stored.bits & 0x7fff) >> S::kFraction;
  const int fraction = stored.bits & ((1 << S::kFraction) - 1);
  const double sign = stored.bits & 0x8000 ? -1 : 1;
  if (exponent == S::kMaxExponent - S::kMinExponent + 2) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int one = exponent > 0 ? 1 << S::kFraction : 0;
  return sign * std::ldexp(one + fraction, std::max(exponent, 1) - 1 + S::kMinExponent - S::kFraction);
}

// Rounds in double, where value / ulp is exact and nearbyint rounds to nearest even.
template <class T>
u16 narrowed(float value) {
  using S = Shape<T>;
  if (std::isnan(value)) return Format<T>::kCanonicalNan;
  const u16 sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  const u16 infinity = static_cast<u16>((S::kMaxExponent - S::kMinExponent + 2) << S::kFraction);
  if (std::isinf(magnitude)) return sign | infinity;
  const int exponent = magnitude == 0 ? S::kMinExponent : std::max(std::ilogb(magnitude), S::kMinExponent);
  const double steps = std::nearbyint(std::ldexp(magnitude, S::kFraction - exponent));
  if (std::ldexp(steps, exponent - S::kFraction) >= std::ldexp(1.0, S::kMaxExponent + 1))
    return sign | infinity;
  // Normal numbers count their steps from 2^kFraction; a carry into the next binade comes out right by
  // itself.
  return static_cast<u16>(sign | (((exponent - S::kMinExponent) << S::kFraction) + static_cast<int>(steps)));
}

template <class T>
class Formats16 : public testing::Test {};
using Stored = testing::Types<F16, BF16>;
TYPED_TEST_SUITE(Formats16, Stored);

TYPED_TEST(Formats16, WidenIsExactAndNarrowUndoesItForEveryPattern) {
  int count = 0;
  for (const TypeParam stored : patterns::all<TypeParam>()) {
    const double expected = value_of(stored);
    const float wide = widen(stored);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide)) << stored.bits;
      EXPECT_EQ(narrow<TypeParam>(wide).bits, Format<TypeParam>::kCanonicalNan);
    } else {
      EXPECT_EQ(static_cast<double>(wide), expected) << stored.bits;
      EXPECT_EQ(narrow<TypeParam>(wide).bits, stored.bits);
    }
    ++count;
  }
  EXPECT_EQ(count, 65536);
}

TYPED_TEST(Formats16, NarrowRoundsToNearestEven) {
  for (const float value : patterns::f32_patterns(5000)) {
    ASSERT_EQ(narrow<TypeParam>(value).bits, narrowed<TypeParam>(value)) << std::hexfloat << value;
  }
}

// Every boundary between two neighbours: the midpoint and the fp32 values beside it.
TYPED_TEST(Formats16, NarrowRoundsEveryMidpoint) {
  for (u32 bits = 0; bits < 0x7fff; ++bits) {
    const double low = value_of(TypeParam{static_cast<u16>(bits)});
    const double high = value_of(TypeParam{static_cast<u16>(bits + 1)});
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float midpoint = static_cast<float>((low + high) / 2);
    for (const float value :
         {midpoint, std::nextafterf(midpoint, 0.0f), std::nextafterf(midpoint, INFINITY)}) {
      ASSERT_EQ(narrow<TypeParam>(value).bits, narrowed<TypeParam>(value)) << std::hexfloat << value;
      ASSERT_EQ(narrow<TypeParam>(-value).bits, narrowed<TypeParam>(-value)) << std::hexfloat << value;
    }
  }
}

// OFP8 1.0, table 1, by its own words: bias, fraction bits, largest magnitude code, what lies beyond it.
struct Shape8 {
  int bias, fraction;
  u8 largest;          // the code of the largest finite value
  bool has_infinity;
};
template <class T>
constexpr Shape8 kShape8 = {};
template <>
constexpr Shape8 kShape8<F8E4M3> = {7, 3, 0x7e, false};
template <>
constexpr Shape8 kShape8<F8E5M2> = {15, 2, 0x7b, true};

template <class T>
double value_of8(T stored) {
  constexpr Shape8 s = kShape8<T>;
  const int magnitude = stored.bits & 0x7f;
  const double sign = stored.bits & 0x80 ? -1 : 1;
  if (magnitude > s.largest) return s.has_infinity && magnitude == s.largest + 1 ? sign * INFINITY : NAN;
  const int exponent = magnitude >> s.fraction, fraction = magnitude & ((1 << s.fraction) - 1);
  const double significand = (exponent > 0 ? 1.0 : 0.0) + fraction * std::ldexp(1.0, -s.fraction);
  return sign * std::ldexp(significand, std::max(exponent, 1) - s.bias);
}

// The nearest code by search over all of them, ties to the even one; the value after the largest stands for
// what overflows.
template <class T>
u8 narrowed8(float value) {
  constexpr Shape8 s = kShape8<T>;
  if (std::isnan(value)) return kCanonicalNanF8;
  const double magnitude = std::abs(static_cast<double>(value));
  const auto at = [&](int code) {
    if (code <= s.largest) return value_of8(T{static_cast<u8>(code)});
    return 2 * value_of8(T{s.largest}) - value_of8(T{static_cast<u8>(s.largest - 1)});
  };
  int low = 0, high = s.largest + 1;  // at(low) <= magnitude, or magnitude is beyond at(high)
  while (high - low > 1) (at((low + high) / 2) <= magnitude ? low : high) = (low + high) / 2;
  const double middle = (at(low) + at(high)) / 2;
  const int code = magnitude < middle || (magnitude == middle && low % 2 == 0) ? low : high;
  if (code > s.largest && !s.has_infinity) return kCanonicalNanF8;
  return static_cast<u8>((std::signbit(value) ? 0x80 : 0) | code);
}

template <class T>
class Formats8 : public testing::Test {};
using Stored8 = testing::Types<F8E4M3, F8E5M2>;
TYPED_TEST_SUITE(Formats8, Stored8);

TYPED_TEST(Formats8, WidenIsExactAndNarrowUndoesItForEveryCode) {
  const auto all = patterns::all<TypeParam>();
  ASSERT_EQ(all.size(), 256u);
  for (const TypeParam stored : all) {
    const double expected = value_of8(stored);
    const float wide = widen(stored);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide)) << int{stored.bits};
      EXPECT_EQ(canonical_bits(stored), kCanonicalNanF8);
      EXPECT_EQ(narrow<TypeParam>(wide).bits, kCanonicalNanF8);
    } else {
      EXPECT_EQ(static_cast<double>(wide), expected) << int{stored.bits};
      EXPECT_EQ(std::signbit(wide), (stored.bits & 0x80) != 0);
      EXPECT_EQ(canonical_bits(stored), stored.bits);
      EXPECT_EQ(narrow<TypeParam>(wide).bits, stored.bits);
    }
  }
}

TEST(Formats, KnownValuesOfEightBits) {
  EXPECT_EQ(widen(F8E4M3{0x7e}), 448.0f);
  EXPECT_EQ(widen(F8E4M3{0x01}), 0x1p-9f);
  EXPECT_EQ(widen(F8E5M2{0x7b}), 57344.0f);
  EXPECT_EQ(widen(F8E5M2{0x01}), 0x1p-16f);
  EXPECT_EQ(narrow<F8E4M3>(464.0f).bits, 0x7e);  // a tie with the NaN's place goes to the even 448
  EXPECT_EQ(narrow<F8E4M3>(std::nextafterf(464.0f, INFINITY)).bits, 0x7f);
  EXPECT_EQ(narrow<F8E4M3>(-INFINITY).bits & 0x7f, 0x7f);
  EXPECT_EQ(narrow<F8E5M2>(61440.0f).bits, 0x7c);
  EXPECT_EQ(narrow<F8E5M2>(std::nextafterf(61440.0f, 0.0f)).bits, 0x7b);
}

TYPED_TEST(Formats8, NarrowRoundsToNearestEven) {
  for (const float value : patterns::f32_patterns(500)) {
    ASSERT_EQ(canonical_bits(narrow<TypeParam>(value)), narrowed8<TypeParam>(value))
        << std::hexfloat << value;
  }
}

TYPED_TEST(Formats8, NarrowRoundsEveryMidpointAndItsNeighbours) {
  constexpr Shape8 s = kShape8<TypeParam>;
  for (int code = 0; code <= s.largest; ++code) {
    const double low = value_of8(TypeParam{static_cast<u8>(code)});
    const double high = code < s.largest ? value_of8(TypeParam{static_cast<u8>(code + 1)})
                                         : 2 * low - value_of8(TypeParam{static_cast<u8>(code - 1)});
    const float midpoint = static_cast<float>((low + high) / 2);
    for (const float value :
         {midpoint, std::nextafterf(midpoint, 0.0f), std::nextafterf(midpoint, INFINITY)}) {
      ASSERT_EQ(canonical_bits(narrow<TypeParam>(value)), narrowed8<TypeParam>(value))
          << std::hexfloat << value;
      ASSERT_EQ(canonical_bits(narrow<TypeParam>(-value)), narrowed8<TypeParam>(-value))
          << std::hexfloat << value;
    }
  }
}

#ifdef OUTGRAD_AVX2
template <class Isa, class T>
void expect_vector_widening() {
  const std::vector<T> all = patterns::all<T>();
  float wide[Isa::kLanes];
  for (size_t i = 0; i < all.size(); i += Isa::kLanes) {
    Isa::template store<false>(wide, Isa::load(&all[i]));
    for (size_t k = 0; k < Isa::kLanes; ++k)
      ASSERT_EQ(canonical_bits(wide[k]), canonical_bits(widen(all[i + k]))) << int{all[i + k].bits};
  }
}

TYPED_TEST(Formats8, VectorWideningEqualsScalar) {
  expect_vector_widening<Avx2, TypeParam>();
#ifdef OUTGRAD_AVX512
  expect_vector_widening<Avx512, TypeParam>();
#endif
}
#endif

TEST(Formats, CanonicalBitsMapEveryNanToOne) {
  for (const F16 value : patterns::all<F16>()) {
    EXPECT_EQ(canonical_bits(value), std::isnan(value_of(value)) ? 0x7e00 : value.bits);
  }
  for (const BF16 value : patterns::all<BF16>()) {
    EXPECT_EQ(canonical_bits(value), std::isnan(value_of(value)) ? 0x7fc0 : value.bits);
  }
  for (const float value : patterns::f32_patterns(3)) {
    EXPECT_EQ(canonical_bits(value), std::isnan(value) ? 0x7fc00000u : bits_of(value));
  }
}

#ifdef OUTGRAD_AVX2
template <class Isa, class T>
void expect_vector_conversions() {
  const std::vector<float> values = patterns::f32_patterns(5000);
  alignas(64) T stored[Isa::kLanes];
  for (size_t i = 0; i + Isa::kLanes <= values.size(); i += Isa::kLanes) {
    Isa::template store<false>(stored, Isa::load(&values[i]));
    for (size_t k = 0; k < Isa::kLanes; ++k)
      ASSERT_EQ(stored[k].bits, narrow<T>(values[i + k]).bits) << std::hexfloat << values[i + k];
  }
  const std::vector<T> all = patterns::all<T>();
  alignas(64) float wide[Isa::kLanes];
  for (size_t i = 0; i < all.size(); i += Isa::kLanes) {
    Isa::template store<true>(wide, Isa::load(&all[i]));
    for (size_t k = 0; k < Isa::kLanes; ++k)
      ASSERT_EQ(canonical_bits(wide[k]), canonical_bits(widen(all[i + k]))) << all[i + k].bits;
  }
}

TYPED_TEST(Formats16, VectorConversionsEqualScalarOnes) {
  expect_vector_conversions<Avx2, TypeParam>();
#ifdef OUTGRAD_AVX512
  expect_vector_conversions<Avx512, TypeParam>();
#endif
}

// A part of a vector reads no byte behind its elements, which an unmapped page follows, and writes none.
template <class Isa, class T>
void expect_parts() {
  const LaneOps<Isa, 1, TablePlacement::permute> whole;
  for (int count = 1; count < Isa::kLanes; ++count) {
    std::vector<u8> bytes(static_cast<size_t>(count) * sizeof(T));
    for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<u8>(k % sizeof(T) == 0 ? k + 1 : 0x40);
    const PageEnd end(bytes);
    const auto* const from = reinterpret_cast<const T*>(end.data());
    const auto part = part_of(whole, count);
    float wide[Isa::kLanes];
    whole.template store<false>(wide, part.load(from));
    for (int k = 0; k < Isa::kLanes; ++k) ASSERT_EQ(wide[k], k < count ? widen(from[k]) : 0.0f) << count;
    if constexpr (sizeof(T) > 1) {
      T to[Isa::kLanes];
      std::memset(static_cast<void*>(to), 0x11, sizeof to);
      part.template store<false>(to, part.load(from));
      EXPECT_EQ(std::memcmp(to, from, bytes.size()), 0) << count;
      const u8* const behind = reinterpret_cast<const u8*>(to + count);
      EXPECT_EQ(std::count(behind, reinterpret_cast<const u8*>(to + Isa::kLanes), 0x11),
                (Isa::kLanes - count) * static_cast<int>(sizeof(T)))
          << count;
    }
  }
}

template <class Isa>
void expect_parts_of_every_format() {
  expect_parts<Isa, float>();
  expect_parts<Isa, F16>();
  expect_parts<Isa, BF16>();
  expect_parts<Isa, F8E4M3>();
}

TEST(Vectors, PartsTouchTheirElementsAlone) {
  expect_parts_of_every_format<Avx2>();
#ifdef OUTGRAD_AVX512
  expect_parts_of_every_format<Avx512>();
#endif
}

TEST(Vectors, WordsOfRowsAreTheTable) {
  constexpr int kRows = 48, kWords = 10, kStored = stored_rows(kRows);
  Table<kRows, kWords> table{};
  for (int row = 0; row < kRows; ++row) {
    for (int word = 0; word < kWords; ++word) table.w[row][word] = static_cast<float>(100 * row + word);
  }
  const auto rows = aligned_rows_of(table);
  const LaneOps<Avx2, 1, TablePlacement::permute> ops;
  for (int first = 0; first < kStored; ++first) {
    i32 index[Avx2::kLanes];
    float found[Avx2::kLanes];
    // with bits above the row's
    for (int lane = 0; lane < Avx2::kLanes; ++lane) index[lane] = first * (lane + 1) + (lane << 20);
    const IntPack<Avx2, 1> row{{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(index))}};
    for (int word = 0; word < kWords; ++word) {
      ops.store<false>(found, ops.lookup(rows, row, word));
      for (int lane = 0; lane < Avx2::kLanes; ++lane)
        ASSERT_EQ(found[lane], table.w[index[lane] % kStored % kRows][word]) << first;
    }
  }
}
#endif

}  // namespace
}  // namespace outgrad::kernels
