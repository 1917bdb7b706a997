// The CUDA kernels of a y that carries its branch, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the host kernels' bits.
#include "kernels/cuda/parity.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/host/parity.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

struct LoopingParity {
  static constexpr GpuSchedule kSchedule{
      .threads = 64, .octets = 2, .access_bytes = 8, .blocks_per_sm = 1, .loads = CacheHint::streaming};
};

template <class F, class Y, class Schedule>
void expect_parity(const std::vector<typename Format<Y>::Carrier>& x, const Layout& layout) {
  using T = typename Format<Y>::Carrier;
  const i64 n = static_cast<i64>(x.size());
  std::vector<Y> expected(x.size());
  activation_forward_parity<F, Y, CpuSchedule{.threads = 1}>(x.data(), expected.data(), n);
  auto device_x = GuardedArray<T>::with(x, {layout.edge, layout.dy * static_cast<int>(sizeof(T)), "x"});
  const GuardedArray<Y> y(n, {layout.edge, layout.dx * static_cast<int>(sizeof(T)), "y"});
  if (!layout.in_place) device_x.make_read_only();
  SCOPED_TRACE(std::string(F::kActivation) + " " + Format<Y>::kName + ", " + layout.name +
               ", n = " + std::to_string(n));
  next_order();
  Y* const out = layout.in_place ? reinterpret_cast<Y*>(device_x.get()) : y.get();
  expect_success(cuda::launch_activation_forward_parity<F, Y, Schedule>(device_x.get(), out, n, nullptr));
  for (i64 i = 0; i < n; ++i) ASSERT_EQ(out[i].bits, expected[static_cast<std::size_t>(i)].bits) << i;
  EXPECT_TRUE(device_x.untouched_outside() && y.untouched_outside());
}

template <class Y, class... Fit>
void expect_every_pattern(ParityFitList<Fit...>) {
  (expect_parity<ParityForward<Fit>, Y, cuda::StoreSchedule>(patterns::all<typename Format<Y>::Carrier>(),
                                                             kLayouts[0]),
   ...);
}

// Every activation with a minimum is tried.
TEST(StandInParity, EveryPatternIsTheHosts) {
  expect_every_pattern<ParityF16>(ParityFits<ParityF16>::Type{});
  expect_every_pattern<ParityBf16>(ParityFits<ParityBf16>::Type{});
}

TEST(StandInParity, EveryLengthAndLayoutIsTheHosts) {
  Values<BF16> brains(3);
  Values<F16> halves(4);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      expect_parity<generated::GeluForward, ParityBf16, LoopingParity>(brains.next(n), layout);
      expect_parity<forwards::Mish, ParityF16, cuda::StoreSchedule>(halves.next(n), layout);
    }
  }
}

TEST(StandInParity, WhatBreaksTheContractLaunchesNothing) {
  const GuardedArray<BF16> x(100);
  const GuardedArray<ParityBf16> y(100);
  const i64 before = launches();
  const auto silu = [](const BF16* from, ParityBf16* to, i64 n) {
    return cuda::launch_activation_forward_parity<forwards::Silu>(from, to, n, nullptr);
  };
  EXPECT_EQ(silu(nullptr, y.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(silu(x.get(), nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(silu(x.get(), y.get(), -1), cudaErrorInvalidValue);
  EXPECT_EQ(silu(x.get(), reinterpret_cast<ParityBf16*>(x.get() + 1), 50), cudaErrorInvalidValue);
  expect_success(silu(nullptr, nullptr, 0));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
