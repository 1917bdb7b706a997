// Views of stored arrays: a block format goes through every way to run a backward, and each element has its
// own block's scale.
#include "kernels/stored.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/host/call.h"
#include "kernels/host/elementwise.h"
#include "kernels/simd.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"
#include "tests/kernels/synthetic_format.h"

namespace outgrad::kernels {
namespace {

using synthetic::BlocksOf16;

// A format without scales costs nothing to view: the view is the pointer.
static_assert(std::is_same_v<Stored<float>, const float*> && std::is_same_v<Stored<BF16>, const BF16*> &&
              std::is_same_v<Stored<F8E4M3>, const F8E4M3*>);
static_assert(std::is_same_v<FormatOf<Stored<MxFp8>>, MxFp8> && std::is_same_v<CodeOf<MxFp8>, F8E4M3>);
static_assert(scales_of<MxFp8>(0) == 0 && scales_of<MxFp8>(1) == 1 && scales_of<MxFp8>(32) == 1 &&
              scales_of<MxFp8>(33) == 2);

// The scale of block k: neighbours differ, and among them are the ends of the format and what is no number.
E8M0 scale_at(E8M0, i64 k) {
  constexpr u8 kBits[] = {127, 120, 130, 0, 127, 254, 125, 255, 128, 119};
  return {kBits[k % static_cast<i64>(std::size(kBits))]};
}
float scale_at(float, i64 k) {
  constexpr float kScales[] = {1.0f,     0x1.234567p-3f, -0x1.fffffep-2f,
                               0.0f,     0x1p-149f,      0x1.8p127f,
                               INFINITY, 0x1.555556p0f,  std::numeric_limits<float>::quiet_NaN()};
  return kScales[k % static_cast<i64>(std::size(kScales))];
}

// Every code in blocks of every scale, and a last block that is not whole.
template <class Y>
struct BlockArray {
  std::vector<CodeOf<Y>> codes;
  std::vector<typename Format<Y>::Scale> scales;

  BlockArray() {
    const std::vector<CodeOf<Y>> all = patterns::all<CodeOf<Y>>();
    for (size_t k = 0; k < 13 * all.size() + 21; ++k) codes.push_back(all[k * 11 % all.size()]);
    for (i64 k = 0; k < scales_of<Y>(size()); ++k) scales.push_back(scale_at(typename Format<Y>::Scale{}, k));
  }
  i64 size() const { return static_cast<i64>(codes.size()); }
  Stored<Y> view() const { return {codes.data(), scales.data()}; }
  // The product of two floats is exact in double precision, so this rounds once.
  float value(i64 i) const {
    return static_cast<float>(static_cast<double>(widen(codes[static_cast<size_t>(i)])) *
                              static_cast<double>(widen(scales[static_cast<size_t>(i / Format<Y>::kBlock)])));
  }
};

template <class Y, class T, CpuSchedule S>
void expect_backward() {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    using Fit = synthetic::WithLeft;
    const BlockArray<Y> y;
    std::vector<T> dy(y.codes.size()), dx(y.codes.size());
    patterns::Random random(3);
    for (T& each : dy) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-30f);
    std::vector<u32> mask((y.codes.size() + 31) / 32);
    for (u32& word : mask) word = random.next();
    activation_backward<Fit, T, S, Y>(dy.data(), y.view(), mask.data(), dx.data(), y.size());
    for (i64 i = 0; i < y.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      const bool m = (mask[at / 32] >> (i % 32) & 1) != 0;
      const T expected = narrow<T>(mul_rn(widen(dy[at]), evaluate_backward<Fit>(FloatOps{}, y.value(i), m)));
      ASSERT_EQ(canonical_bits(dx[at]), canonical_bits(expected))
          << Format<Y>::kName << " element " << i << ", vector_bits=" << S.vector_bits;
    }
  }
}

template <class Y>
void expect_backward_everywhere() {
  expect_backward<Y, float, CpuSchedule{.threads = 1}>();
  expect_backward<Y, BF16, CpuSchedule{.vector_bits = 256, .unroll = 1}>();
  expect_backward<Y, float, CpuSchedule{.vector_bits = 256, .unroll = 4, .block_elements = 1024}>();
  expect_backward<Y, F16, CpuSchedule{.vector_bits = 512, .unroll = 1}>();
  expect_backward<Y, BF16,
                  CpuSchedule{.threads = 2,
                              .vector_bits = 512,
                              .unroll = 4,
                              .block_elements = 1024,
                              .table = TablePlacement::memory}>();
}

TEST(Stored, BackwardTakesMxfp8) { expect_backward_everywhere<MxFp8>(); }

TEST(Stored, BackwardTakesBlocksWhoseProductsAreRounded) { expect_backward_everywhere<BlocksOf16>(); }

TEST(Stored, AKernelsArgumentsHoldTheScales) {
  const BlockArray<MxFp8> y;
  Arguments arguments{.cols = y.size()};
  arguments.array[1] = const_cast<F8E4M3*>(y.codes.data());
  arguments.scales = y.scales.data();
  call<KernelId::kGeluBackward, float, MxFp8>(
      arguments, [&](const float*, Stored<MxFp8> view, const u32*, float*, i64 n) {
        EXPECT_EQ(n, y.size());
        for (i64 i = 0; i < n; i += 7)
          EXPECT_EQ(canonical_bits(first_value(view + i)), canonical_bits(y.value(i))) << i;
      });
}

}  // namespace
}  // namespace outgrad::kernels
