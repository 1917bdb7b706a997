// The device's evaluation (kernels/cuda/gpu_ops.cuh), run on the host with every seed that the hardware may
// give, against FloatOps.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/fits.h"
#include "kernels/generated/elu_bf16.h"
#include "kernels/generated/elu_f16.h"
#include "kernels/generated/elu_f32.h"
#include "kernels/generated/gelu_bf16_parity.h"
#include "kernels/generated/gelu_f16_parity.h"
#include "kernels/generated/gelu_f32_rel.h"
#include "kernels/generated/gelu_tanh_bf16.h"
#include "kernels/generated/gelu_tanh_f16.h"
#include "kernels/generated/gelu_tanh_f32.h"
#include "kernels/generated/mish_bf16.h"
#include "kernels/generated/mish_f16.h"
#include "kernels/generated/mish_f32.h"
#include "kernels/generated/quick_gelu_bf16.h"
#include "kernels/generated/quick_gelu_f16.h"
#include "kernels/generated/quick_gelu_f32.h"
#include "kernels/generated/silu_bf16.h"
#include "kernels/generated/silu_f16.h"
#include "kernels/generated/silu_f32.h"
#include "kernels/generated/softplus_bf16.h"
#include "kernels/generated/softplus_f16.h"
#include "kernels/generated/softplus_f32.h"
#include "kernels/generated/swish_bf16.h"
#include "kernels/generated/swish_f16.h"
#include "kernels/generated/swish_f32.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels::cuda {
namespace {

namespace fits = outgrad::kernels::generated;

// The least float that is no less than (1 - kSeedError) / sqrt(t). The error of `exact` is 2^-53 of it, 2^-29
// of a float's ulp.
float least_seed(double t) {
  const double least = (1 - kSeedError) / std::sqrt(t);
  float seed = static_cast<float>(least);
  while (static_cast<double>(seed) < least) seed = std::nextafter(seed, 2 * seed);
  while (static_cast<double>(std::nextafter(seed, 0.0f)) >= least) seed = std::nextafter(seed, 0.0f);
  return seed;
}

// visit(seed) for every float within kSeedError of 1/sqrt(t).
template <class Visit>
void for_each_seed(float t, const Visit& visit) {
  const double most = (1 + kSeedError) / std::sqrt(static_cast<double>(t));
  for (float seed = least_seed(t); static_cast<double>(seed) <= most;
       seed = std::bit_cast<float>(std::bit_cast<u32>(seed) + 1))
    visit(seed);
}

// Two binades stand for all: the mantissas of t and the parity of its exponent.
TEST(RootTest, EverySeedOfEveryMantissaGivesTheRoundedRoot) {
  constexpr u32 kOne = 0x3f800000u, kFour = 0x40800000u;
  struct Count {
    std::uint64_t pairs = 0, wrong = 0;
    std::vector<double> one_step_wrong;
  };
  std::array<Count, 2> counts;
  {
    std::vector<std::jthread> threads;
    for (u32 half = 0; half < 2; ++half) {
      threads.emplace_back([half, &counts] {
        Count count;
        for (u32 bits = kOne + half * ((kFour - kOne) / 2); bits != kOne + (half + 1) * ((kFour - kOne) / 2);
             ++bits) {
          const float t = std::bit_cast<float>(bits), root = sqrt_rn(t);
          for_each_seed(t, [&](float seed) {
            ++count.pairs;
            count.wrong += root_from_seed<false>(t, seed) != root;
            if (root_from_seed<true>(t, seed) != root) count.one_step_wrong.push_back(static_cast<double>(t));
          });
        }
        counts[half] = count;
      });
    }
  }
  EXPECT_EQ(counts[0].pairs + counts[1].pairs, 50'859'330u);
  EXPECT_EQ(counts[0].wrong + counts[1].wrong, 0u) << "two steps";
  EXPECT_EQ(counts[0].one_step_wrong, std::vector<double>{kOneStepFails[0]});
  EXPECT_EQ(counts[1].one_step_wrong, std::vector<double>{kOneStepFails[1]});
}

// What makes two binades enough: nothing underflows from kLeastRootArgument on.
TEST(RootTest, ScaleDoesNotMatter) {
  for (int k = -32; k <= 60; ++k) {
    for (u32 bits = 0x3f800000u; bits < 0x40800000u; bits += 9973) {
      const float t = std::bit_cast<float>(bits), scaled = std::ldexp(t, 2 * k);
      if (scaled < kLeastRootArgument) continue;
      for_each_seed(t, [&](float seed) {
        const float scaled_seed = std::ldexp(seed, -k);
        ASSERT_EQ(root_from_seed<true>(scaled, scaled_seed), std::ldexp(root_from_seed<true>(t, seed), k))
            << t << " at 4^" << k;
        ASSERT_EQ(root_from_seed<false>(scaled, scaled_seed), std::ldexp(root_from_seed<false>(t, seed), k))
            << t << " at 4^" << k;
      });
    }
  }
}

TEST(RootTest, NanStaysNan) {
  EXPECT_TRUE(std::isnan(root_from_seed<true>(NAN, NAN)));
  EXPECT_TRUE(std::isnan(root_from_seed<false>(NAN, NAN)));
}

// Seed `pick` of those that the hardware may give, from the least; beyond the last the last.
struct AnySeed {
  int pick = 0;
  float operator()(float t) const {
    if (t != t) return t;
    float seed = least_seed(t);
    for (int step = 0; step < pick; ++step) {
      const float next = std::bit_cast<float>(std::bit_cast<u32>(seed) + 1);
      if (static_cast<double>(next) > (1 + kSeedError) / std::sqrt(static_cast<double>(t))) break;
      seed = next;
    }
    return seed;
  }
};
// An interval of 2.15 x 2^-23 of its middle, where an ulp is 2^-24 to 2^-23 of the number, holds at most this
// many floats.
constexpr int kMostSeeds = 5;

// A table that takes a row's index at its place, as in shared memory, with whatever stands above and below
// it.
template <class Fit>
struct Placed {
  static constexpr int kPlace = 7;
  static constexpr auto kTable = Fit::table();
  float at(u32 row, int word) const { return kTable.at(row, word); }
  float at_place(u32 place, int word) const { return kTable.at(place >> kPlace & (Fit::kRows - 1), word); }
};

template <class Fit, class Y, class Seed>
float on_device(const Seed& seed, float y, bool m) {
  using Device = DeviceFit<Fit, Y>;
  GpuOps<Device, Y, Seed, Placed<Device>::kPlace> ops;
  ops.seed = seed;
  return evaluate_backward(ops, Device{}, Placed<Device>{}, y, m);
}

template <class Y>
Y stored(u32 code) {
  if constexpr (sizeof(Y) == 4) {
    return std::bit_cast<float>(code);
  } else {
    return Y{static_cast<decltype(Y{}.bits)>(code)};
  }
}

template <class Fit, class Y>
void expect_equal_over_all_codes() {
  std::uint64_t compared = 0;
  for (u32 code = 0; code < 1u << 8 * sizeof(Y); ++code) {
    const float y = widen(stored<Y>(code));
    for (const bool m : {false, true}) {
      const float host = evaluate_backward<Fit>(FloatOps{}, y, m);
      for (int pick = 0; pick < (Fit::kMasked ? kMostSeeds : 1); ++pick) {
        ++compared;
        const float device = on_device<Fit, Y>(AnySeed{pick}, y, m);
        ASSERT_EQ(canonical_bits(device), canonical_bits(host))
            << Fit::kName << ": y = " << y << ", m = " << m << ", seed " << pick;
      }
    }
  }
  EXPECT_EQ(compared, (Fit::kMasked ? kMostSeeds : 1) * (std::uint64_t{2} << 8 * sizeof(Y)));
}

template <class Fit>
class EveryCode : public testing::Test {};

template <class Fit_, class Y_>
struct On {
  using Fit = Fit_;
  using Y = Y_;
};
using Stored =
    testing::Types<On<fits::GeluBf16, BF16>, On<fits::GeluBf16Fast, BF16>, On<fits::GeluBf16Stored, BF16>,
                   On<fits::GeluBf16Ulp, BF16>, On<fits::GeluF16, F16>, On<fits::GeluF16Fast, F16>,
                   On<fits::GeluF16Stored, F16>, On<fits::GeluF16Ulp, F16>, On<fits::EluBf16, BF16>,
                   On<fits::EluF16, F16>, On<fits::GeluTanhBf16, BF16>, On<fits::GeluTanhF16, F16>,
                   On<fits::MishBf16, BF16>, On<fits::MishF16, F16>, On<fits::QuickGeluBf16, BF16>,
                   On<fits::QuickGeluF16, F16>, On<fits::SiluBf16, BF16>, On<fits::SiluF16, F16>,
                   On<fits::SoftplusBf16, BF16>, On<fits::SoftplusF16, F16>, On<fits::SwishBf16, BF16>,
                   On<fits::SwishF16, F16>, On<fits::GeluF32, BF16>, On<fits::GeluF32Ulp, F16>,
                   On<fits::GeluF32Rel, BF16>, On<fits::GeluBf16, F8E4M3>, On<fits::GeluF16, F8E5M2>,
                   On<fits::GeluBf16Parity, ParityBf16>, On<fits::GeluF16Parity, ParityF16>>;
TYPED_TEST_SUITE(EveryCode, Stored);

TYPED_TEST(EveryCode, DeviceGivesTheHostsBits) {
  expect_equal_over_all_codes<typename TypeParam::Fit, typename TypeParam::Y>();
}

// one_step_holds works on intervals; here every stored y is looked at.
TYPED_TEST(EveryCode, OneStepIsTakenOnlyWhereItIsRight) {
  using Fit = typename TypeParam::Fit;
  using Y = typename TypeParam::Y;
  if constexpr (Fit::kMasked) {
    std::set<double> bad;
    for (u32 code = 0; code < 1u << 8 * sizeof(Y); ++code) {
      const FloatOps ops;
      float t = sub_rn(ops.at_most(widen(stored<Y>(code)), Fit::kYMax), Fit::kYHi);
      if (Fit::kYLo != 0.0f) t = sub_rn(t, Fit::kYLo);
      t = ops.at_least(t, Fit::kTMin);
      if (!(t > 0)) continue;  // NaN
      double scaled = static_cast<double>(t);
      while (scaled < 1) scaled *= 4;
      while (scaled >= 4) scaled /= 4;
      for (const double fails : kOneStepFails) {
        if (scaled == fails) bad.insert(static_cast<double>(t));
      }
    }
    if (one_step_holds<Fit, Y>()) {
      EXPECT_TRUE(bad.empty()) << Fit::kName << ": t = " << *bad.begin();
    }
  }
}

// The wide form of a direct table has the entries that the fit's own index leads to, for every code.
template <class Fit>
class EveryTable : public testing::Test {};
using Tables =
    testing::Types<On<fits::GeluBf16Oracle, BF16>, On<fits::GeluE4m3Oracle, F8E4M3>,
                   On<fits::GeluE5m2Oracle, F8E5M2>, On<fits::GeluF16Oracle, F16>,
                   On<synthetic::Direct<BF16, F16>, BF16>, On<synthetic::Direct<BF16, BF16, false>, BF16>,
                   On<synthetic::Direct<F8E4M3, F16>, F8E4M3>>;
TYPED_TEST_SUITE(EveryTable, Tables);

TYPED_TEST(EveryTable, WideFormHasTheSameEntries) {
  using Fit = typename TypeParam::Fit;
  using Y = typename TypeParam::Y;
  static constexpr auto kEntries = Fit::entries();
  static constexpr auto kDevice = DeviceFit<Fit, Y>::entries();
  const GpuOps<DeviceFit<Fit, Y>, Y, AnySeed> ops;
  for (u32 code = 0; code < 1u << 8 * sizeof(Y); ++code) {
    const float y = widen(stored<Y>(code));
    for (const bool m : {false, true}) {
      const float host = evaluate_direct<Y>(FloatOps{}, Fit{}, kEntries, code, y, m),
                  device = derivative<Fit, Y>(ops, kDevice, code, y, m);
      ASSERT_EQ(canonical_bits(device), canonical_bits(host)) << "y = " << y << ", m = " << m;
    }
  }
}
static_assert(is_widened<fits::GeluBf16Oracle, BF16>() && is_widened<fits::GeluE4m3Oracle, F8E4M3>() &&
              !is_widened<fits::GeluF16Oracle, F16>());

// y = 1/8 gives a t that one step gets wrong.
struct Unlucky : fits::GeluBf16 {
  static constexpr float kYHi = 0.125f - 0x1.f82294p-2f;
};
static_assert(0.125f - Unlucky::kYHi == 0x1.f82294p-2f);
static_assert(!one_step_holds<Unlucky, BF16>() && !one_step_holds<Unlucky, F16>() &&
              !one_step_holds<fits::GeluF32, float>());
// The fits that kernels use by default, and the fast ones, take the short way.
static_assert(one_step_holds<fits::GeluBf16, BF16>() && one_step_holds<fits::GeluF16, F16>());
static_assert(one_step_holds<fits::GeluBf16Fast, BF16>() && one_step_holds<fits::GeluF16Fast, F16>());
// Rows are turned, and found by the exponent, for the default fits.
static_assert(Turned<fits::GeluBf16>::kByExponent && Turned<fits::GeluBf16>::can_turn());
static_assert(Turned<fits::GeluF16>::kByExponent && Turned<fits::GeluF16>::can_turn());
static_assert(Turned<fits::GeluF32>::kByExponent && Turned<fits::GeluF32>::kOneAbove &&
              Turned<fits::GeluF32>::can_turn());
// f32's octaves are halved, and the rows of all three come out at their place.
static_assert(Halved<fits::GeluF32>::holds() &&
              DeviceFit<fits::GeluF32, float>::kRows == 2 * fits::GeluF32::kRows);
static_assert(GpuOps<DeviceFit<fits::GeluF32, float>, float, AnySeed, 7>::kPlace == 7 &&
              GpuOps<DeviceFit<fits::GeluF16, F16>, F16, AnySeed, 7>::kPlace == 7 &&
              GpuOps<DeviceFit<fits::GeluBf16, BF16>, BF16, AnySeed, 7>::kPlace == 7);

// Rounded down, whichever way nearest is, in the binades that an index is taken in.
TEST(RootTest, FmaDownIsTheFloorOfTheExactResult) {
  std::mt19937 random(11);
  int down = 0, exact = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    // The factors have few bits, so that doubles are exact.
    const double a = (static_cast<double>(random() >> 20) - 2048) * 0x1p-13,
                 b = 4 + static_cast<double>(random() >> 20) * 0x1p-10, c = 0x1p16 + 64 + i % 64 + 0.5;
    const double sum = a * b + c;
    const float result = fma_down(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
    ASSERT_LE(static_cast<double>(result), sum);
    ASSERT_GT(static_cast<double>(std::bit_cast<float>(std::bit_cast<u32>(result) + 1)), sum);
    (static_cast<double>(fma_rn(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c))) > sum
         ? down
         : exact) += 1;
  }
  EXPECT_GT(down, 100'000);
  EXPECT_GT(exact, 100'000);
}

TEST(RootTest, OneStepIsNotTakenWhereAStoredYNeedsTwo) { expect_equal_over_all_codes<Unlucky, BF16>(); }

// Bits first, first + stride, ... of y, both masks, the best seed.
template <class Fit>
void expect_equal_f32(std::uint64_t first, std::uint64_t last, std::uint64_t stride,
                      std::uint64_t& compared) {
  struct BestSeed {
    float operator()(float t) const { return static_cast<float>(1 / std::sqrt(static_cast<double>(t))); }
  };
  for (std::uint64_t bits = first; bits < last; bits += stride) {
    const float y = std::bit_cast<float>(static_cast<u32>(bits));
    for (const bool m : {false, true}) {
      ++compared;
      ASSERT_EQ(canonical_bits(on_device<Fit, float>(BestSeed{}, y, m)),
                canonical_bits(evaluate_backward<Fit>(FloatOps{}, y, m)))
          << Fit::kName << ": y = " << y << ", m = " << m;
    }
  }
}

template <class Fit>
class EveryFloat : public testing::Test {};
using Wide =
    testing::Types<fits::GeluF32, fits::GeluF32Ulp, fits::GeluF32Rel, fits::EluF32, fits::GeluTanhF32,
                   fits::MishF32, fits::QuickGeluF32, fits::SiluF32, fits::SoftplusF32, fits::SwishF32,
                   synthetic::WithLeft, synthetic::WithLeftAndRight, synthetic::TwoWord>;
TYPED_TEST_SUITE(EveryFloat, Wide);

// A prime stride reaches every exponent and, between them, every way a row can end; specials and the ends of
// octaves in full.
TYPED_TEST(EveryFloat, DeviceGivesTheHostsBits) {
  std::uint64_t compared = 0;
  expect_equal_f32<TypeParam>(0, std::uint64_t{1} << 32, 4093, compared);
  for (std::uint64_t octave = 0; octave < 1u << 10; ++octave) {  // sign, exponent, first fraction bit
    const std::uint64_t end = octave << 22;
    expect_equal_f32<TypeParam>(end, end + 3, 1, compared);
    if (end > 3) expect_equal_f32<TypeParam>(end - 3, end, 1, compared);
  }
  EXPECT_GT(compared, 2'000'000u);
}

// All 2^32 floats and both masks, for the default fit of f32.
TEST(RootTest, ExhaustiveF32) {
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::uint64_t> compared(threads);
  {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < threads; ++i) {
      workers.emplace_back([i, threads, &compared] {
        expect_equal_f32<fits::GeluF32>((std::uint64_t{i} << 32) / threads,
                                        (std::uint64_t{i + 1} << 32) / threads, 1, compared[i]);
      });
    }
  }
  std::uint64_t total = 0;
  for (const std::uint64_t count : compared) total += count;
  EXPECT_EQ(total, std::uint64_t{1} << 33);
}

}  // namespace
}  // namespace outgrad::kernels::cuda
