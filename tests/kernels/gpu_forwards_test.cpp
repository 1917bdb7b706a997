// The forwards of the activations other than GELU as CUDA kernels, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the host kernels' bits.
#include "kernels/cuda/forwards.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/host/forwards.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kPlain{.threads = 1};

struct Looping {
  static constexpr GpuSchedule kSchedule{
      .threads = 32, .octets = 2, .access_bytes = 8, .blocks_per_sm = 1, .loads = CacheHint::streaming};
};

template <class F, class T, class Schedule>
void expect_forward(const std::vector<T>& x, const Layout& layout) {
  const i64 n = static_cast<i64>(x.size());
  std::vector<T> expected(x.size());
  std::vector<u32> expected_mask(static_cast<std::size_t>(n + 31) / 32);
  activation_forward<F, T, kPlain>(x.data(), expected.data(), expected_mask.data(), n);
  auto device_x = GuardedArray<T>::with(x, {layout.edge, layout.dy * static_cast<int>(sizeof(T)), "x"});
  const GuardedArray<T> y(n, {layout.edge, layout.dx * static_cast<int>(sizeof(T)), "y"});
  const GuardedArray<u32> mask((n + 31) / 32, {layout.edge, 0, "mask"});
  if (!layout.in_place) device_x.make_read_only();
  const GuardedArray<T>& out = layout.in_place ? device_x : y;
  SCOPED_TRACE(std::string(F::kActivation) + ", " + layout.name + ", n = " + std::to_string(n));
  next_order();
  expect_success(cuda::launch_activation_forward<F, T, Schedule>(
      device_x.get(), out.get(), F::kMasked ? mask.get() : nullptr, n, nullptr));
  expect_equal("y", out, expected);
  if constexpr (F::kMasked) expect_equal("mask", mask, expected_mask);
}

template <class... F, class Body>
void for_each_forward(ForwardList<F...>, const Body& body) {
  (body.template operator()<F>(), ...);
}

template <class T>
class StandInForwards : public testing::Test {};
TYPED_TEST_SUITE(StandInForwards, TestedFormats);

// All 2^16 patterns of the 16-bit formats, every binade of f32.
TYPED_TEST(StandInForwards, EveryPatternIsTheHosts) {
  using T = TypeParam;
  for_each_forward(ActivationForwards{}, []<class F>() {
    expect_forward<F, T, cuda::ForwardsScheduleOf<F, T>>(patterns::all<T>(50), kLayouts[0]);
  });
}

// An f32 fit has a tail table or none, and a limit at the right or none; one adds a constant to all slopes.
TEST(StandInForwardsF32, EveryFormOfAFitIsTheHosts) {
  const auto expect = []<class F>(F) {
    expect_forward<F, float, cuda::ForwardsScheduleOf<F, float>>(patterns::all<float>(50), kLayouts[0]);
  };
  expect(forwards::Silu{});
  expect(forwards::Mish{});
  expect(forwards::Sigmoid{});
  expect(forwards::Tanh{});
}

TYPED_TEST(StandInForwards, EveryLengthAndLayoutIsTheHosts) {
  using T = TypeParam;
  Values<T> arguments(3);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      expect_forward<forwards::Mish, T, cuda::ForwardsScheduleOf<forwards::Mish, T>>(arguments.next(n),
                                                                                     layout);
      expect_forward<forwards::Tanh, T, Looping>(arguments.next(n), layout);
    }
  }
}

TEST(StandInForwardsArguments, AMaskIsNeededWhereThereIsAMinimum) {
  const GuardedArray<float> x(100), y(100);
  const GuardedArray<u32> mask(4);
  const i64 before = launches();
  const auto silu = [](const float* from, float* to, u32* bits, i64 n) {
    return cuda::launch_activation_forward<forwards::Silu>(from, to, bits, n, nullptr);
  };
  EXPECT_EQ(silu(x.get(), y.get(), nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(silu(x.get(), x.get() + 1, mask.get(), 50), cudaErrorInvalidValue);
  EXPECT_EQ(silu(x.get(), y.get(), mask.get(), -1), cudaErrorInvalidValue);
  EXPECT_EQ(silu(nullptr, nullptr, nullptr, 0), cudaSuccess);
  EXPECT_EQ(launches(), before);
  expect_success(cuda::launch_activation_forward<forwards::Elu>(x.get(), y.get(), static_cast<u32*>(nullptr),
                                                                100, nullptr));
}

}  // namespace
}  // namespace outgrad::kernels
