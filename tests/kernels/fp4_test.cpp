// y in 4 bits by blocks against the second witness: every x of bf16 in blocks of many largest magnitudes
// within the bounds of the header and of the tables, the scales and codes against their definitions, what is
// no number, and every way to run them against the scalar one.
#include "kernels/host/fp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tuned.h"
#include "tests/kernels/patterns.h"
#include "validation/exact/reference.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::kernels {
namespace {

template <class A, class B>
struct Fp4Case {
  using Kept = A;
  using Blocks = B;
};

template <class Case>
class Fp4 : public testing::Test {};

template <class List>
struct Fp4Cases;
template <class... A>
struct Fp4Cases<Fp8List<A...>> {
  using Type = testing::Types<Fp4Case<A, MxFp4>..., Fp4Case<A, NvFp4>...>;
};
struct Fp4Names {
  template <class Case>
  static std::string GetName(int) {
    return std::string(Case::Kept::Header::kActivation) + "_" + Format<typename Case::Blocks>::kName;
  }
};
TYPED_TEST_SUITE(Fp4, Fp4Cases<Fp8Activations>::Type, Fp4Names);

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

// The tensor's scale where its largest |y| is `largest`.
template <class B>
float tensor_scale(float largest) {
  return std::is_same_v<B, NvFp4> ? 6 * 448 / largest : 1.0f;
}

template <class Case>
std::unique_ptr<Fp4Tables> tables_for(float tensor, int bits) {
  auto tables = std::make_unique<Fp4Tables>();
  fill_fp4_tables<typename Case::Kept, typename Case::Blocks>(tensor, bits, 0, *tables);
  return tables;
}

template <class Case>
std::array<double, kMostPartBits + 1> claims(bool small) {
  using H = typename Case::Kept::Header;
  if (!small) return {H::kSignT0, H::kSignT1, H::kSignT2};
  if (std::is_same_v<typename Case::Blocks, MxFp4>) return {H::kMxfp4T0, H::kMxfp4T1, H::kMxfp4T2};
  return {H::kNvfp4T0, H::kNvfp4T1, H::kNvfp4T2};
}

struct Sample {
  std::vector<float> y, g;  // in the order of |y|
  std::vector<double> slope;
};

template <class A>
Sample sample_of(std::vector<float> x) {
  const validation::SweptActivation* const witness = validation::swept_activation(A::Header::kActivation);
  const auto forward = [](float each) { return forward_at<typename A::template Forward<float>>(each); };
  std::sort(x.begin(), x.end(),
            [&](float a, float b) { return std::fabs(forward(a)) < std::fabs(forward(b)); });
  std::vector<double> value(x.size()), low(x.size()), high(x.size());
  Sample sample{{}, {}, std::vector<double>(x.size())};
  witness->reference().evaluate(x.data(), value.data(), low.data(), high.data(), sample.slope.data(),
                                static_cast<i64>(x.size()));
  for (const float each : x) {
    sample.y.push_back(forward(each));
    sample.g.push_back(
        fitted_gradient<typename A::Fit, typename A::template Forward<float>>(each, sample.y.back()));
  }
  return sample;
}

// The largest errors in a block with that amax, whose y may be all up to it. Each is within the bounds.
template <class Case>
std::array<double, kMostPartBits + 1> errors_in_block(
    float tensor, float amax, const std::array<std::unique_ptr<Fp4Tables>, kMostPartBits + 1>& tables,
    const Sample& sample) {
  using B = typename Case::Blocks;
  constexpr double kMargin = 2 * validation::Reference::kDerivativeBound;
  constexpr int kLeastNormal = std::is_same_v<B, NvFp4> ? 8 : 0;
  const u8 scale = BlockScale<B>::of(bits_of(amax), tensor);
  std::array<double, kMostPartBits + 1> largest{};
  for (int bits = 0; bits <= kMostPartBits; ++bits) {
    const auto b = static_cast<size_t>(bits);
    const Fp4Table& table = tables[b]->of_scale[scale];
    for (size_t i = 0; i < sample.y.size() && std::fabs(sample.y[i]) <= amax; ++i) {
      const u8 code = fp8_code<F4E2M1>(sample.y[i], tables[b]->multiplier[scale]).bits;
      largest[b] = std::max(
          largest[b],
          std::fabs(double{table.values[part_of(table, code, sample.g[i])][code]} - sample.slope[i]));
    }
    EXPECT_LE(largest[b], fp8_error<typename Case::Kept>(table) + kMargin)
        << bits << " bits, amax " << std::hexfloat << amax;
    EXPECT_LE(largest[b], claims<Case>(false)[b] + kMargin)
        << bits << " bits, amax " << std::hexfloat << amax;
    EXPECT_LE(fp8_error<typename Case::Kept>(table), claims<Case>(false)[b])
        << bits << " bits, amax " << std::hexfloat << amax;
    if (amax >= 1 || scale < kLeastNormal) continue;
    EXPECT_LE(largest[b], claims<Case>(true)[b] + kMargin) << bits << " bits, amax " << std::hexfloat << amax;
    EXPECT_LE(fp8_error<typename Case::Kept>(table), claims<Case>(true)[b])
        << bits << " bits, amax " << std::hexfloat << amax;
  }
  return largest;
}

// By exhaustion over x, with a reference whose error is proven. Blocks of every binade, of NVFP4 also with
// scales that are subnormal or saturated. The bound of all blocks is nearly reached, and so is that of blocks
// below 1.
TYPED_TEST(Fp4, EveryXOfBf16IsWithinTheBoundsInBlocksOfManyMaxima) {
  using B = typename TypeParam::Blocks;
  std::vector<float> x;
  for (const BF16 value : patterns::all<BF16>(0)) {
    if (std::isfinite(widen(value))) x.push_back(widen(value));
  }
  float near = TypeParam::Kept::template Forward<float>::kXStar;
  for (int i = 0; i < 500; ++i) near = std::nextafter(near, -10.0f);
  for (int i = 0; i < 1'000; ++i) x.push_back(near = std::nextafter(near, 10.0f));
  const Sample sample = sample_of<typename TypeParam::Kept>(x);
  patterns::Random random(3);
  std::array<double, kMostPartBits + 1> reached{}, reached_below_1{};
  for (const float largest : {1.0f, 3000.0f}) {
    const float tensor = tensor_scale<B>(largest);
    const std::array<std::unique_ptr<Fp4Tables>, kMostPartBits + 1> tables{
        tables_for<TypeParam>(tensor, 0), tables_for<TypeParam>(tensor, 1), tables_for<TypeParam>(tensor, 2)};
    std::vector<float> maxima{0x1p-140f, 0.0f, std::nextafter(1.0f, 0.0f), std::numeric_limits<float>::max()};
    // next to 1 the bound of blocks below is nearly needed
    const int steps = std::is_same_v<B, NvFp4> && largest == 1 ? 20 : 1;
    for (int k = -120; k < 120; k += 4)
      maxima.push_back(std::ldexp(1 + static_cast<float>(random.next()) * 0x1p-32f, k));
    for (int k = -8; k < 8; ++k) {
      for (int step = 0; step < steps; ++step)
        maxima.push_back(std::ldexp(1 + static_cast<float>(random.next()) * 0x1p-32f, k));
    }
    for (const float amax : maxima) {
      const auto at = errors_in_block<TypeParam>(tensor, amax, tables, sample);
      for (size_t b = 0; b < at.size(); ++b) {
        reached[b] = std::max(reached[b], at[b]);
        if (amax < 1) reached_below_1[b] = std::max(reached_below_1[b], at[b]);
      }
    }
  }
  for (size_t b = 0; b < reached.size(); ++b) {
    EXPECT_GE(reached[b], 0.99 * claims<TypeParam>(false)[b]) << b;
    EXPECT_GE(reached_below_1[b], 0.9 * claims<TypeParam>(true)[b]) << b;
  }
}

// What fill_fp4_tables returns is the bound of the worst block up to amax.
TYPED_TEST(Fp4, TheBoundGrowsWithAmax) {
  using A = typename TypeParam::Kept;
  using B = typename TypeParam::Blocks;
  auto tables = std::make_unique<Fp4Tables>();
  const float tensor = tensor_scale<B>(1024);
  double before = 0;
  for (const float amax : {0.0f, 0.01f, 0.3f, 1.0f, 7.0f, 1024.0f, kInfinity}) {
    const double error = fill_fp4_tables<A, B>(tensor, 1, bits_of(amax), *tables);
    double worst = 0;
    for (int scale = 0; scale <= BlockScale<B>::of(std::min(bits_of(amax), kLargestFiniteBits), tensor);
         ++scale) {
      if (tables->multiplier[scale] > 0) worst = std::max(worst, fp8_error<A>(tables->of_scale[scale]));
    }
    EXPECT_EQ(error, worst);
    EXPECT_GE(error, before);
    before = error;
  }
}

// --- Codes and scales ----------------------------------------------------------------------------

TEST(Fp4Code, IsTheNearestAndSaturates) {
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (u8 code = 0; code < 8; ++code) {
    EXPECT_EQ(widen(F4E2M1{code}), kNumbers[code]);
    EXPECT_EQ(widen(F4E2M1{static_cast<u8>(code | 8)}), -kNumbers[code]);
    EXPECT_EQ(std::signbit(widen(F4E2M1{static_cast<u8>(code | 8)})), true);
  }
  const auto nearest = [&](double v) {
    int best = 0;
    for (int code = 1; code < 8; ++code) {
      const double there = std::abs(kNumbers[code] - v), here = std::abs(kNumbers[best] - v);
      if (there < here || (there == here && code % 2 == 0)) best = code;
    }
    return best;
  };
  for (int k = 0; k <= 8 * 64; ++k) {
    const float at = static_cast<float>(k) / 64;
    for (const float v : {std::nextafter(at, -1.0f), at, std::nextafter(at, 100.0f)}) {
      if (v < 0) continue;
      EXPECT_EQ(narrow_saturated<F4E2M1>(v).bits, nearest(static_cast<double>(v))) << v;
      EXPECT_EQ(narrow_saturated<F4E2M1>(-v).bits, nearest(static_cast<double>(v)) | 8) << v;
    }
  }
  EXPECT_EQ(narrow_saturated<F4E2M1>(kInfinity).bits, 7);
  EXPECT_EQ(narrow_saturated<F4E2M1>(-kInfinity).bits, 15);
  EXPECT_EQ(narrow_saturated<F4E2M1>(0x1p-149f).bits, 0);
}

// By its definition in double precision; and the ends are where it changes.
TEST(Fp4Scale, OfMxfp4IsAQuarterOfThePowerOfTwoBelowAmax) {
  patterns::Random random(9);
  for (int k = 0; k < 20'000; ++k) {
    const u32 amax = random.next() % 0x7f800000u;
    const double scale = std::max(
        std::exp2(std::floor(std::log2(static_cast<double>(float_of(std::max(amax, 1u))))) - 2), 0x1p-127);
    const u8 code = BlockScale<MxFp4>::of(amax, 1);
    ASSERT_EQ(static_cast<double>(widen(E8M0{code})), scale) << float_of(amax);
    ASSERT_EQ(static_cast<double>(BlockScale<MxFp4>::multiplier(code, 1)) * scale, 1);
    const u32 end = BlockScale<MxFp4>::end(code, 1);
    ASSERT_LT(amax, end);
    ASSERT_EQ(BlockScale<MxFp4>::of(end - 1, 1), code);
    if (code < BlockScale<MxFp4>::kLast) {
      ASSERT_EQ(BlockScale<MxFp4>::of(end, 1), code + 1);
    }
  }
}

TEST(Fp4Scale, OfNvfp4IsTheNearestE4m3) {
  using Scale = BlockScale<NvFp4>;
  patterns::Random random(9);
  for (const float tensor : {1.0f, 6 * 448 / 17.3f, 0x1p-117f, 0x1.fffffep117f}) {
    EXPECT_TRUE(Scale::tensor_scale_holds(tensor));
    for (int k = 0; k < 20'000; ++k) {
      const u32 amax = random.next() % 0x7f800000u;
      const u8 code = Scale::of(amax, tensor);
      ASSERT_GE(code, Scale::kFirst);
      ASSERT_LE(code, Scale::kLast);
      const double wanted = static_cast<double>(float_of(amax)) * static_cast<double>(tensor) / 6,
                   there = static_cast<double>(widen(F8E4M3{code}));
      const double above =
          static_cast<double>(code < Scale::kLast ? widen(F8E4M3{static_cast<u8>(code + 1)}) : kInfinity);
      const double below =
          static_cast<double>(code > Scale::kFirst ? widen(F8E4M3{static_cast<u8>(code - 1)}) : -kInfinity);
      ASSERT_LE(std::abs(there - wanted), std::min(above - wanted, wanted - below) + 0x1p-20 * wanted)
          << float_of(amax);
      const float m = Scale::multiplier(code, tensor);
      ASSERT_TRUE(scale_holds(m));
      ASSERT_NEAR(static_cast<double>(m) * there / static_cast<double>(tensor), 1, 0x1p-23);
      const u32 end = Scale::end(code, tensor);
      ASSERT_LT(amax, end);
      ASSERT_EQ(Scale::of(std::min(end - 1, kLargestFiniteBits), tensor), code);
      if (end <= kLargestFiniteBits) {
        ASSERT_GT(Scale::of(end, tensor), code);
      }
    }
  }
  for (const float bad : {0.0f, -1.0f, 0x1.fffffep-118f, 0x1p118f, kInfinity, kNan})
    EXPECT_FALSE(Scale::tensor_scale_holds(bad));
  EXPECT_FALSE(BlockScale<MxFp4>::tensor_scale_holds(2));
}

// --- Arrays --------------------------------------------------------------------------------------

template <class A, class B, class T, CpuSchedule S>
void expect_definition(int bits) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    constexpr int kBlock = Format<B>::kBlock;
    const auto tables = tables_for<Fp4Case<A, B>>(tensor_scale<B>(100), bits);
    const std::vector<T> x = patterns::all<T>(std::is_same_v<T, float> ? 40 : 0);
    for (const size_t n :
         {x.size(), size_t{0}, size_t{1}, size_t{7}, size_t{33}, size_t{1024}, size_t{1025}, size_t{2055}}) {
      const auto count = static_cast<i64>(n);
      const auto code_count = static_cast<size_t>(code_bytes(kFp4Bits, count)),
                 part_count = static_cast<size_t>(code_bytes(bits, count)),
                 block_count = static_cast<size_t>(blocks_of<B>(count));
      std::vector<u8> codes(code_count + 1, 0x55), scales(block_count + 1, 0x55), parts(part_count + 1, 0x55);
      activation_forward_fp4<A, B, T, S>(*tables, x.data(), codes.data(), scales.data(), parts.data(), count);
      ASSERT_EQ(codes[code_count], 0x55);
      ASSERT_EQ(scales[block_count], 0x55);
      ASSERT_EQ(parts[part_count], 0x55);
      std::vector<T> dy(n), dx(n);
      for (size_t i = 0; i < n; ++i) dy[i] = narrow<T>(1.5f - 0.01f * static_cast<float>(i % 300));
      activation_backward_fp4<B, T, S>(*tables, dy.data(), codes.data(), scales.data(),
                                       bits == 0 ? nullptr : parts.data(), dx.data(), count);
      for (size_t first = 0; first < n; first += kBlock) {
        const size_t end = std::min(n, first + kBlock);
        u32 amax = 0;
        bool nan = false;
        for (size_t i = first; i < end; ++i) {
          const float y = forward_at<typename A::template Forward<float>>(widen(x[i]));
          nan |= std::isnan(y);
          amax = std::max(amax, magnitude_in_block(y));
        }
        const u8 scale = nan ? BlockScale<B>::kNan : BlockScale<B>::of(amax, tables->tensor);
        ASSERT_EQ(scales[first / kBlock], scale);
        const Fp4Table& table = tables->of_scale[scale];
        for (size_t i = first; i < end; ++i) {
          const float wide = widen(x[i]), y = forward_at<typename A::template Forward<float>>(wide);
          const int code = nan ? 0 : fp8_code<F4E2M1>(y, tables->multiplier[scale]).bits;
          ASSERT_EQ(codes[i / 2] >> i % 2 * 4 & 15, code) << wide;
          const int part =
              part_of(table, static_cast<u8>(code),
                      fitted_gradient<typename A::Fit, typename A::template Forward<float>>(wide, y));
          if (bits > 0) {
            ASSERT_EQ(parts[i * static_cast<size_t>(bits) / 8] >> i * static_cast<size_t>(bits) % 8 &
                          ((1 << bits) - 1),
                      nan ? 0 : part)
                << wide;
          }
          ASSERT_EQ(canonical_bits(dx[i]),
                    canonical_bits(narrow<T>(mul_rn(widen(dy[i]), table.values[part][code]))))
              << wide;
          if (nan) {
            ASSERT_TRUE(std::isnan(widen(dx[i])));
          }
        }
      }
    }
  }
}

template <class B, class T>
void expect_definition_everywhere() {
  using Gelu = Fp8Activation<generated::GeluFp8>;
  using Silu = Fp8Activation<generated::SiluFp8>;
  for (int bits = 0; bits <= kMostPartBits; ++bits) {
    expect_definition<Gelu, B, T, CpuSchedule{.threads = 1}>(bits);
    expect_definition<
        Gelu, B, T,
        CpuSchedule{
            .threads = 2, .vector_bits = 512, .unroll = 4, .block_elements = 1024, .streaming_stores = true}>(
        bits);
    expect_definition<Silu, B, T, tuned::kDefaultSchedule>(bits);
  }
}

TEST(Fp4Arrays, EveryScheduleIsTheDefinition) {
  expect_definition_everywhere<MxFp4, float>();
  expect_definition_everywhere<NvFp4, float>();
  expect_definition_everywhere<MxFp4, F16>();
  expect_definition_everywhere<NvFp4, BF16>();
}

// An infinity is saturated and leaves its block's other elements their codes of a block of the largest
// number; a NaN takes its block with it, and no other.
TEST(Fp4Arrays, NumbersThatAreNoneGoWhereTheyShould) {
  using Gelu = Fp8Activation<generated::GeluFp8>;
  const auto tables = tables_for<Fp4Case<Gelu, MxFp4>>(1, 2);
  std::vector<float> x(96, 1.0f), dy(96, 1.0f), dx(96);
  x[40] = kNan, x[70] = kInfinity, x[71] = -kInfinity;
  std::vector<u8> codes(48), scales(3), parts(24);
  activation_forward_fp4<Gelu, MxFp4, float, CpuSchedule{.threads = 1}>(*tables, x.data(), codes.data(),
                                                                        scales.data(), parts.data(), 96);
  activation_backward_fp4<MxFp4, float, CpuSchedule{.threads = 1}>(
      *tables, dy.data(), codes.data(), scales.data(), parts.data(), dx.data(), 96);
  for (size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(dx[i]), i >= 32 && i < 64) << i;
  EXPECT_EQ(scales[1], 255);
  EXPECT_EQ(scales[2], BlockScale<MxFp4>::kLast);
  EXPECT_NEAR(dx[70], 1, generated::GeluFp8::kSignT2);
  EXPECT_NEAR(dx[71], 0, generated::GeluFp8::kSignT2);
  // A block of zeros.
  std::fill(x.begin(), x.end(), 0.0f);
  activation_forward_fp4<Gelu, MxFp4, float, CpuSchedule{.threads = 1}>(*tables, x.data(), codes.data(),
                                                                        scales.data(), parts.data(), 96);
  activation_backward_fp4<MxFp4, float, CpuSchedule{.threads = 1}>(
      *tables, dy.data(), codes.data(), scales.data(), parts.data(), dx.data(), 96);
  for (const float each : dx) EXPECT_NEAR(each, 0.5f, generated::GeluFp8::kRoom);
}

}  // namespace
}  // namespace outgrad::kernels
