// Dropout's CUDA kernel, run thread by thread on the host (tests/kernels/gpu_stand_in/), gives the host
// kernel's bits.
#include "kernels/cuda/dropout.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/host/dropout.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

template <class T, class Schedule>
void expect_dropout(const std::vector<T>& x, u64 seed, double p, const Layout& layout) {
  const i64 n = static_cast<i64>(x.size());
  std::vector<T> expected(x.size());
  dropout(x.data(), expected.data(), n, seed, p, 1);
  auto device_x = GuardedArray<T>::with(x, {layout.edge, layout.dy * static_cast<int>(sizeof(T)), "x"});
  auto device_seed = GuardedArray<u64>::with({seed}, {layout.edge, 0, "seed"});
  const GuardedArray<T> y(n, {layout.edge, layout.dx * static_cast<int>(sizeof(T)), "y"});
  device_seed.make_read_only();
  if (!layout.in_place) device_x.make_read_only();
  const GuardedArray<T>& out = layout.in_place ? device_x : y;
  SCOPED_TRACE(std::string(layout.name) + ", n = " + std::to_string(n) + ", p = " + std::to_string(p));
  next_order();
  expect_success(
      cuda::launch_dropout<T, Schedule>(device_x.get(), out.get(), n, device_seed.get(), p, nullptr));
  expect_equal("y", out, expected);
}

struct Looping {
  static constexpr GpuSchedule kSchedule{.threads = 32, .octets = 1, .access_bytes = 8, .blocks_per_sm = 1};
};

template <class T>
class StandInDropout : public testing::Test {};
TYPED_TEST_SUITE(StandInDropout, TestedFormats);

TYPED_TEST(StandInDropout, EveryLengthAndLayoutIsTheHosts) {
  using T = TypeParam;
  Values<T> values(5);
  u64 seed = 0x0123456789abcdefu;
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      expect_dropout<T, cuda::DropoutSchedule>(values.next(n), ++seed, 0.1, layout);
      expect_dropout<T, Looping>(values.next(n), ++seed, 0.5, layout);
    }
  }
}

TYPED_TEST(StandInDropout, EveryPatternAndProbabilityIsTheHosts) {
  using T = TypeParam;
  for (const double p : {0.0, 0x1p-33, 0.3, 1 - 0x1p-33, 1.0})
    expect_dropout<T, cuda::DropoutSchedule>(patterns::all<T>(50), ~u64{0}, p, kLayouts[0]);
}

TEST(StandInDropoutArguments, WhatBreaksTheContractLaunchesNothing) {
  const GuardedArray<float> x(100), y(100);
  const GuardedArray<u64> seed(1);
  const i64 before = launches();
  for (const double p : {-0x1p-1074, 1 + 0x1p-52, std::nan(""), HUGE_VAL})
    EXPECT_EQ(cuda::launch_dropout(x.get(), y.get(), 100, seed.get(), p, nullptr), cudaErrorInvalidValue)
        << p;
  EXPECT_EQ(cuda::launch_dropout(x.get(), y.get(), -1, seed.get(), 0.5, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::launch_dropout(x.get(), y.get(), 100, static_cast<const u64*>(nullptr), 0.5, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::launch_dropout(x.get(), x.get() + 4, 50, seed.get(), 0.5, nullptr), cudaErrorInvalidValue);
  expect_success(cuda::launch_dropout<float>(nullptr, nullptr, 0, nullptr, 0.5, nullptr));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
