// y in 8 bits at a scale against the second witness: every x of the 16-bit formats at scales of many
// mantissas within the header's bounds and within the bound of each table, scales that nearly need the
// bounds, the codes against their definition, and every way to run them against the scalar one.
#include "kernels/host/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/tuned.h"
#include "tests/kernels/page_end.h"
#include "tests/kernels/patterns.h"
#include "validation/exact/reference.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::kernels {
namespace {

template <class A, StoreId kId>
struct Fp8Case {
  using Kept = A;
  using Arithmetic = StoreArithmetic<kId>;
  using Code = typename Arithmetic::Code;
};

template <class Case>
class Fp8 : public testing::Test {};

template <class List>
struct Fp8Cases;
template <class... A>
struct Fp8Cases<Fp8List<A...>> {
  using Type = testing::Types<Fp8Case<A, StoreId::kE4m3>..., Fp8Case<A, StoreId::kE5m2>...,
                              Fp8Case<A, StoreId::kInt8>...>;
};
struct Fp8Names {
  template <class Case>
  static std::string GetName(int) {
    return std::string(Case::Kept::Header::kActivation) + "_" + Format<typename Case::Code>::kName;
  }
};
TYPED_TEST_SUITE(Fp8, Fp8Cases<Fp8Activations>::Type, Fp8Names);

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

template <class Case>
Fp8Table table_at(float scale, int bits) {
  Fp8Table table;
  fill_fp8_table<typename Case::Kept, typename Case::Code>(scale, bits, table);
  return table;
}

template <class Case>
constexpr Fp8Claims claims_of() {
  return Case::Arithmetic::template kClaims<typename Case::Kept::Header>;
}

// x with what follows from them alone: the library's y and g, and f' within Reference::kDerivativeBound.
struct Sample {
  std::vector<float> y, g;
  std::vector<double> slope;
};

template <class A>
float forward(float x) {
  return forward_at<typename A::template Forward<float>>(x);
}

template <class A>
float gradient(float x) {
  return fitted_gradient<typename A::Fit, typename A::template Forward<float>>(x, forward<A>(x));
}

template <class A>
Sample sample_of(const std::vector<float>& x) {
  const validation::SweptActivation* const witness = validation::swept_activation(A::Header::kActivation);
  if (witness == nullptr) throw std::runtime_error(A::Header::kActivation);
  std::vector<double> value(x.size()), low(x.size()), high(x.size());
  Sample sample{{}, {}, std::vector<double>(x.size())};
  witness->reference().evaluate(x.data(), value.data(), low.data(), high.data(), sample.slope.data(),
                                static_cast<i64>(x.size()));
  for (const float each : x) {
    sample.y.push_back(forward<A>(each));
    sample.g.push_back(gradient<A>(each));
  }
  return sample;
}

template <class F>
double largest_error(const Fp8Table& table, float scale, const Sample& sample) {
  double largest = 0;
  for (size_t i = 0; i < sample.y.size(); ++i) {
    const u8 code = fp8_code<F>(sample.y[i], scale).bits;
    largest = std::max(
        largest, std::fabs(double{table.values[part_of(table, code, sample.g[i])][code]} - sample.slope[i]));
  }
  return largest;
}

// Within the bound of the table, and of the header where it claims one; returns the largest errors.
template <class Case>
std::array<double, kMostPartBits + 1> expect_within_bounds_at(float scale, const Sample& sample) {
  constexpr double kMargin = 2 * validation::Reference::kDerivativeBound;
  constexpr Fp8Claims kClaims = claims_of<Case>();
  std::array<double, kMostPartBits + 1> largest{};
  for (int bits = 0; bits <= kMostPartBits; ++bits) {
    const Fp8Table table = table_at<Case>(scale, bits);
    double& error = largest[static_cast<size_t>(bits)] =
        largest_error<typename Case::Code>(table, scale, sample);
    EXPECT_LE(error, fp8_error<typename Case::Kept>(table) + kMargin)
        << bits << " bits at scale " << std::hexfloat << scale;
    if (scale < kClaims.least || scale > kClaims.most) continue;
    EXPECT_LE(error, kClaims.total[bits] + kMargin) << bits << " bits at scale " << std::hexfloat << scale;
    EXPECT_LE(fp8_error<typename Case::Kept>(table), kClaims.total[bits])
        << bits << " bits at scale " << std::hexfloat << scale;
  }
  return largest;
}

template <class T>
void add_finite(std::vector<float>& x) {
  for (const T value : patterns::all<T>(0)) {
    if (std::isfinite(widen(value))) x.push_back(widen(value));
  }
}

// By exhaustion over x, with a reference whose error is proven. The last scales are outside the header's
// range.
TYPED_TEST(Fp8, EveryXOf16BitsIsWithinTheBoundsAtScalesOfManyMantissas) {
  std::vector<float> x;
  add_finite<BF16>(x);
  const Sample sample = sample_of<typename TypeParam::Kept>(x);
  constexpr Fp8Claims kClaims = claims_of<TypeParam>();
  patterns::Random random(7);
  std::vector<float> scales{1.0f, kClaims.least, kClaims.most};
  const double binades = std::log2(static_cast<double>(kClaims.most) / static_cast<double>(kClaims.least));
  for (int k = 0; k < 16; ++k)
    scales.push_back(
        static_cast<float>(kClaims.least * std::exp2(binades * (k + random.next() * 0x1p-32) / 16)));
  for (const float outside : {kClaims.least * 0x1.3p-3f, kClaims.most * 0x1.7p4f, 0x1p-126f, 0x1.fffffep127f})
    scales.push_back(outside);
  for (const float scale : scales) expect_within_bounds_at<TypeParam>(scale, sample);
}

// Where the end of a code's interval lies at the minimum or just above it, f' fills the longest ranges; at
// the least scale 0's interval is widest, which needs most without bits, and at the largest scale the largest
// code's. There the bounds are nearly reached.
TYPED_TEST(Fp8, TheBoundsAreNearlyReached) {
  using F = typename TypeParam::Code;
  std::vector<float> x;
  for (int i = -20'000; i < 20'000; ++i) x.push_back(4e-4f * static_cast<float>(i));
  float near = TypeParam::Kept::template Forward<float>::kXStar;
  for (int i = 0; i < 2'000; ++i) near = std::nextafter(near, -10.0f);
  for (int i = 0; i < 4'000; ++i) x.push_back(near = std::nextafter(near, 10.0f));
  const Sample sample = sample_of<typename TypeParam::Kept>(x);
  constexpr Fp8Claims kClaims = claims_of<TypeParam>();
  // The magnitudes of a binade; of int8 all whose intervals end at the minimum at a scale for which there is
  // a claim.
  constexpr bool kUniform = std::is_same_v<F, I8>;
  constexpr int kFractionBits = std::is_same_v<F, F8E4M3> ? 3 : 2, kFirst = kUniform ? 0 : 7 << kFractionBits,
                kLast = kUniform ? 126 : kFirst + (1 << kFractionBits) - 1;
  std::array<double, kMostPartBits + 1> reached{};
  const auto see = [&](float scale) {
    const auto at = expect_within_bounds_at<TypeParam>(scale, sample);
    for (size_t b = 0; b < at.size(); ++b) reached[b] = std::max(reached[b], at[b]);
  };
  see(kClaims.least);
  see(kClaims.most);
  for (int code = kFirst; code <= kLast; ++code) {
    const double end = 0.5 * (static_cast<double>(widen(F{static_cast<u8>(code)})) +
                              static_cast<double>(widen(F{static_cast<u8>(code + 1)})));
    const double scale = end / -static_cast<double>(TypeParam::Kept::Fit::kYHi);
    if (kUniform && (scale < static_cast<double>(kClaims.least) || scale > static_cast<double>(kClaims.most)))
      continue;
    for (int step = 0; step < 6; ++step) see(static_cast<float>((1 + 0.004 * step) * scale));
  }
  for (size_t b = 0; b < reached.size(); ++b) EXPECT_GE(reached[b], 0.97 * kClaims.total[b]) << b << " bits";
}

// --- Codes and tables ----------------------------------------------------------------------------

// The magnitude whose value is nearest to that of y s, ties to the even one.
template <class F>
int nearest_magnitude(double wanted) {
  int best = 0;
  for (int code = 1; code < 0x80 && std::isfinite(widen(F{static_cast<u8>(code)})); ++code) {
    const double there = std::abs(static_cast<double>(widen(F{static_cast<u8>(code)})) - wanted);
    const double here = std::abs(static_cast<double>(widen(F{static_cast<u8>(best)})) - wanted);
    if (there < here || (there == here && code % 2 == 0)) best = code;
  }
  return best;
}

template <class F>
void expect_nearest_and_saturated() {
  patterns::Random random(5);
  for (const float scale : {1.0f, 0x1.9p5f, 0x1.fffffep-20f}) {
    for (int k = 0; k < 20'000; ++k) {
      const float wanted = float_of((random.next() & 0x807fffffu) | (127 - 18 + random.next() % 36) << 23);
      const float product = mul_rn(wanted / scale, scale);
      const int magnitude = nearest_magnitude<F>(std::abs(static_cast<double>(product)));
      ASSERT_EQ(fp8_code<F>(wanted / scale, scale).bits, wanted < 0 ? negated<F>(magnitude) : magnitude);
    }
    EXPECT_EQ(fp8_code<F>(kInfinity, scale).bits, nearest_magnitude<F>(1e6));
    EXPECT_EQ(fp8_code<F>(-0x1p127f, scale).bits, negated<F>(nearest_magnitude<F>(1e6)));
    EXPECT_EQ(fp8_code<F>(-0.0f, scale).bits, negated<F>(0));
    EXPECT_EQ(fp8_code<F>(-kNan, scale).bits, Format<F>::kCanonicalNan);
  }
}

TEST(Fp8Code, IsTheNearestAndSaturates) {
  expect_nearest_and_saturated<F8E4M3>();
  expect_nearest_and_saturated<F8E5M2>();
  expect_nearest_and_saturated<I8>();
}

// Every code of int8 but that of NaN stands for its integer, and 0 is the only one without a sign.
TEST(Fp8Code, OfInt8IsAnInteger) {
  EXPECT_TRUE(std::isnan(widen(I8{kNanI8})));
  EXPECT_EQ(negated<I8>(0), 0);
  for (int number = -127; number <= 127; ++number) {
    const I8 code = fp8_code<I8>(static_cast<float>(number), 1.0f);
    EXPECT_EQ(static_cast<signed char>(code.bits), number);
    EXPECT_EQ(widen(code), static_cast<float>(number));
    EXPECT_EQ(negated<I8>(code.bits), static_cast<u8>(-number));
  }
  EXPECT_EQ(narrow<I8>(127.5f).bits, kNanI8);  // not saturated, as of e4m3
  EXPECT_EQ(narrow<I8>(-127.49f).bits, 0x81);
}

// Each code's first y has it, and the float before has another one.
TEST(Fp8Code, ChangesAtItsFirstMagnitude) {
  for (const float scale : {1.0f, 0x1.b3p7f, 0x1.234568p-9f, 0x1p-126f, 0x1.fffffep127f}) {
    for (int code = 1; code <= 0x7e; ++code) {
      const u32 first = detail::first_magnitude<F8E4M3>(code, scale);
      if (first <= 0x7f800000u) {
        ASSERT_GE(fp8_code<F8E4M3>(float_of(first), scale).bits, code);
      }
      ASSERT_LT(fp8_code<F8E4M3>(float_of(first - 1), scale).bits, code);
    }
  }
}

TEST(Fp8Scale, IsPositiveFiniteAndNormal) {
  for (const float scale : {1.0f, 0x1p-126f, 0x1.fffffep127f}) EXPECT_TRUE(scale_holds(scale));
  for (const float scale :
       {0.0f, -0.0f, -1.0f, 0x1.fffffcp-127f, 0x1p-149f, kInfinity, -kInfinity, kNan, -kNan})
    EXPECT_FALSE(scale_holds(scale));
}

TYPED_TEST(Fp8, NumbersThatAreNoneGoWhereTheyShould) {
  using A = typename TypeParam::Kept;
  using F = typename TypeParam::Code;
  for (int bits = 0; bits <= kMostPartBits; ++bits) {
    const Fp8Table table = table_at<TypeParam>(100.0f, bits);
    const auto kept = [&](float x) {
      const u8 code = fp8_code<F>(forward<A>(x), 100.0f).bits;
      return table.values[part_of(table, code, gradient<A>(x))][code];
    };
    EXPECT_NEAR(kept(kInfinity), 1.0, claims_of<TypeParam>().total[bits]);
    EXPECT_NEAR(kept(-kInfinity), 0.0, claims_of<TypeParam>().total[bits]);
    EXPECT_TRUE(std::isnan(kept(kNan)));
    EXPECT_TRUE(std::isnan(kept(-kNan)));
    for (int code = 0; code < kFp8Codes; ++code) {
      for (int part = 0; part < 1 << bits; ++part)
        EXPECT_EQ(std::isfinite(table.values[part][code]), std::isfinite(widen(F{static_cast<u8>(code)})))
            << code;
    }
  }
}

// --- Arrays --------------------------------------------------------------------------------------

template <class A, class F, class T, CpuSchedule S>
void expect_definition(int bits) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    constexpr float kScale = 0x1.4bp6f;
    Fp8Table table;
    fill_fp8_table<A, F>(kScale, bits, table);
    std::vector<T> x = patterns::all<T>(std::is_same_v<T, float> ? 40 : 0);
    std::vector<size_t> lengths{x.size(), 0, 1, 7, 31, 1024, 1025, 2055};
    for (const size_t n : lengths) {
      const auto bytes = static_cast<size_t>(code_bytes(bits == 0 ? 1 : bits, static_cast<i64>(n)));
      std::vector<F> codes(n + 1, F{0x55});
      std::vector<u8> parts(bytes + 1, 0x55);
      activation_forward_fp8<A, F, T, S>(table, kScale, x.data(), codes.data(), parts.data(),
                                         static_cast<i64>(n));
      ASSERT_EQ(codes[n].bits, 0x55);
      ASSERT_EQ(parts[bytes], 0x55);
      parts.pop_back();
      const PageEnd last(parts);
      std::vector<T> dy(n), dx(n);
      for (size_t i = 0; i < n; ++i) dy[i] = narrow<T>(1.5f - 0.01f * static_cast<float>(i % 300));
      activation_backward_fp8<T, S>(table, dy.data(), reinterpret_cast<const u8*>(codes.data()),
                                    bits == 0 ? nullptr : last.data(), dx.data(), static_cast<i64>(n));
      for (size_t i = 0; i < n; ++i) {
        const float wide = widen(x[i]);
        const F code = fp8_code<F>(forward<A>(wide), kScale);
        ASSERT_EQ(codes[i].bits, code.bits) << wide;
        const int part = part_of(table, code.bits, gradient<A>(wide));
        if (bits > 0) {
          ASSERT_EQ(parts[i * static_cast<size_t>(bits) / 8] >> i * static_cast<size_t>(bits) % 8 &
                        ((1 << bits) - 1),
                    part)
              << wide;
        } else {
          ASSERT_EQ(part, 0);
        }
        ASSERT_EQ(canonical_bits(dx[i]),
                  canonical_bits(narrow<T>(mul_rn(widen(dy[i]), table.values[part][code.bits]))))
            << wide;
      }
      if (n > 0 && bits > 0 && n * static_cast<size_t>(bits) % 8 != 0) {
        EXPECT_EQ(parts[bytes - 1] >> n * static_cast<size_t>(bits) % 8, 0);
      }
    }
  }
}

template <class F, class T>
void expect_definition_everywhere() {
  using Gelu = Fp8Activation<generated::GeluFp8>;
  using Silu = Fp8Activation<generated::SiluFp8>;
  for (int bits = 0; bits <= kMostPartBits; ++bits) {
    expect_definition<Gelu, F, T, CpuSchedule{.threads = 1}>(bits);
    expect_definition<Gelu, F, T, CpuSchedule{.vector_bits = 256, .unroll = 1, .block_elements = 1024}>(bits);
    expect_definition<
        Gelu, F, T,
        CpuSchedule{
            .threads = 2, .vector_bits = 512, .unroll = 4, .block_elements = 1024, .streaming_stores = true}>(
        bits);
    expect_definition<Silu, F, T, tuned::kDefaultSchedule>(bits);
  }
}

TEST(Fp8Arrays, EveryScheduleIsTheDefinitionF32) {
  expect_definition_everywhere<F8E4M3, float>();
  expect_definition_everywhere<F8E5M2, float>();
}
// A large array's results come from a table of all x; those of its parts do not.
template <class T, CpuSchedule S>
void expect_large_array_is_its_parts(int bits) {
  using Gelu = Fp8Activation<generated::GeluFp8>;
  constexpr i64 kPart = 1 << 16, n = (i64{1} << 18) + 77;
  const float scale = 61.0f;
  Fp8Table table;
  fill_fp8_table<Gelu, F8E4M3>(scale, bits, table);
  std::vector<T> x(n);
  // every x, in another order
  for (i64 i = 0; i < n; ++i) x[static_cast<size_t>(i)].bits = static_cast<u16>(i * 40503);
  std::vector<F8E4M3> codes(n), of_parts(n);
  std::vector<u8> beside(static_cast<size_t>(code_bytes(bits, n))), beside_parts(beside.size());
  activation_forward_fp8<Gelu, F8E4M3, T, S>(table, scale, x.data(), codes.data(), beside.data(), n);
  for (i64 i = 0; i < n; i += kPart) {
    activation_forward_fp8<Gelu, F8E4M3, T, S>(table, scale, x.data() + i, of_parts.data() + i,
                                               beside_parts.data() + i / 8 * bits, std::min(kPart, n - i));
  }
  EXPECT_EQ(std::memcmp(codes.data(), of_parts.data(), codes.size()), 0) << bits;
  EXPECT_EQ(beside, beside_parts) << bits;
}

TEST(Fp8Arrays, ALargeArrayIsItsParts) {
  for (int bits = 0; bits <= kMostPartBits; ++bits) {
    expect_large_array_is_its_parts<F16, CpuSchedule{.threads = 1}>(bits);
    expect_large_array_is_its_parts<F16, tuned::kDefaultSchedule>(bits);
    expect_large_array_is_its_parts<BF16, tuned::kDefaultSchedule>(bits);
  }
}

TEST(Fp8Arrays, EveryScheduleIsTheDefinitionF16) { expect_definition_everywhere<F8E4M3, F16>(); }
TEST(Fp8Arrays, EveryScheduleIsTheDefinitionBf16) {
  expect_definition_everywhere<F8E5M2, BF16>();
  expect_definition_everywhere<I8, BF16>();
}

}  // namespace
}  // namespace outgrad::kernels
