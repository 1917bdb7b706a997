// The CUDA kernel of GELU's forward that stores MXFP8, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), gives the host kernel's bits.
#include "kernels/cuda/mxfp8.cuh"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/fits.h"
#include "kernels/host/mxfp8.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

struct LoopingMxfp8 {
  static constexpr GpuSchedule kSchedule{
      .threads = 64, .octets = 2, .access_bytes = 4, .blocks_per_sm = 1, .stores = CacheHint::streaming};
};

// layout: dx is the codes', whose elements are bytes.
template <class T, class Schedule>
void expect_mxfp8(const std::vector<T>& x, const Layout& layout) {
  using Forward = typename ForwardFit<T>::Type;
  const i64 n = static_cast<i64>(x.size()), blocks = scales_of<MxFp8>(n);
  std::vector<u8> expected(x.size()), expected_scales(static_cast<std::size_t>(blocks));
  std::vector<u32> expected_mask(static_cast<std::size_t>(n + 31) / 32);
  gelu_forward_mxfp8<Forward, T, CpuSchedule{.threads = 1}>(
      x.data(), reinterpret_cast<F8E4M3*>(expected.data()), reinterpret_cast<E8M0*>(expected_scales.data()),
      expected_mask.data(), n);
  auto device_x = GuardedArray<T>::with(x, {layout.edge, layout.dy * static_cast<int>(sizeof(T)), "x"});
  const GuardedArray<u8> codes(n, {layout.edge, layout.dx, "codes"}),
      scales(blocks, {layout.edge, layout.y, "scales"});
  const GuardedArray<u32> mask((n + 31) / 32, {layout.edge, 0, "mask"});
  device_x.make_read_only();
  SCOPED_TRACE(std::string(layout.name) + ", n = " + std::to_string(n));
  next_order();
  expect_success(cuda::launch_gelu_forward_mxfp8<Forward, T, Schedule>(
      device_x.get(), reinterpret_cast<F8E4M3*>(codes.get()), reinterpret_cast<E8M0*>(scales.get()),
      mask.get(), n, nullptr));
  expect_equal("codes", codes, expected);
  expect_equal("scales", scales, expected_scales);
  expect_equal("mask", mask, expected_mask);
}

template <class T>
class StandInMxfp8 : public testing::Test {};
TYPED_TEST_SUITE(StandInMxfp8, TestedFormats);

// In the order of their codes, so that the elements of a block are alike, and shuffled, so that they are not.
TYPED_TEST(StandInMxfp8, EveryPatternIsTheHosts) {
  using T = TypeParam;
  std::vector<T> x = patterns::all<T>(50);
  expect_mxfp8<T, DefaultGpuSchedule>(x, kLayouts[0]);
  patterns::Random random(7);
  for (std::size_t i = 0; i < x.size(); ++i) std::swap(x[i], x[i + random.next() % (x.size() - i)]);
  expect_mxfp8<T, DefaultGpuSchedule>(x, kLayouts[0]);
}

TYPED_TEST(StandInMxfp8, EveryLengthAndLayoutIsTheHosts) {
  using T = TypeParam;
  Values<T> values(3);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      if (layout.in_place) continue;
      expect_mxfp8<T, DefaultGpuSchedule>(values.next(n), layout);
      expect_mxfp8<T, LoopingMxfp8>(values.next(n), layout);
    }
  }
}

// Blocks of zeros, of NaN, and with one infinity or one NaN among moderate numbers, wherever in the block
// that is.
TYPED_TEST(StandInMxfp8, BlocksWithSpecialNumbersAreTheHosts) {
  using T = TypeParam;
  std::vector<T> x;
  for (const float special :
       {0.0f, -0.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x.insert(x.end(), 32, narrow<T>(special));
    for (int place = 0; place < 32; ++place) {
      for (int k = 0; k < 32; ++k)
        x.push_back(narrow<T>(k == place ? special : 0.125f * static_cast<float>(k - place)));
    }
  }
  for (const int layout : {0, 2}) expect_mxfp8<T, DefaultGpuSchedule>(x, kLayouts[layout]);
}

TEST(StandInMxfp8Arguments, WhatBreaksTheContractLaunchesNothing) {
  const GuardedArray<float> x(100);
  const GuardedArray<F8E4M3> codes(100);
  const GuardedArray<E8M0> scales(4);
  const GuardedArray<u32> mask(4);
  const auto gelu = [](const float* from, F8E4M3* to, E8M0* by, u32* bits, i64 n) {
    return cuda::launch_gelu_forward_mxfp8<generated::GeluForward>(from, to, by, bits, n, nullptr);
  };
  const i64 before = launches();
  EXPECT_EQ(gelu(nullptr, codes.get(), scales.get(), mask.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), nullptr, scales.get(), mask.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), codes.get(), nullptr, mask.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), codes.get(), scales.get(), nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), codes.get(), scales.get(), mask.get(), -1), cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), reinterpret_cast<F8E4M3*>(x.get()), scales.get(), mask.get(), 100),
            cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), codes.get(), reinterpret_cast<E8M0*>(codes.get() + 99), mask.get(), 100),
            cudaErrorInvalidValue);
  EXPECT_EQ(gelu(x.get(), codes.get(), reinterpret_cast<E8M0*>(mask.get()), mask.get(), 100),
            cudaErrorInvalidValue);
  expect_success(gelu(nullptr, nullptr, nullptr, nullptr, 0));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
