// The elementwise CUDA kernels, run thread by thread on the host (tests/kernels/gpu_stand_in/), give the host
// kernels' bits: every schedule, length, alignment and aliasing, under several orders of threads.
#include "kernels/cuda/elementwise.cuh"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/activations.h"
#include "kernels/fits.h"
#include "kernels/host/elementwise.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"
#include "tests/kernels/synthetic_format.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kPlain{.threads = 1};

// Every home of a table, width of access, number of octets, hint and shape of a grid; small grids, so that
// they loop.
template <GpuSchedule S>
struct Schedule {
  static constexpr GpuSchedule kSchedule = S;
};
using ByColumns =
    Schedule<GpuSchedule{.threads = 32, .octets = 1, .blocks_per_sm = 1, .table = TableHome::columns}>;
using ByRows = Schedule<GpuSchedule{.threads = 64,
                                    .octets = 2,
                                    .access_bytes = 8,
                                    .blocks_per_sm = 2,
                                    .loads = CacheHint::streaming,
                                    .stores = CacheHint::streaming,
                                    .table = TableHome::rows}>;
using BySpread = Schedule<GpuSchedule{
    .threads = 512, .octets = 4, .access_bytes = 4, .blocks_per_sm = 0, .table = TableHome::spread}>;
using ByCaches = Schedule<GpuSchedule{.threads = 96,
                                      .octets = 3,
                                      .blocks_per_sm = 1,
                                      .loads = CacheHint::streaming,
                                      .table = TableHome::caches}>;
using ByEntries = Schedule<GpuSchedule{
    .threads = 32, .octets = 1, .access_bytes = 8, .blocks_per_sm = 1, .table = TableHome::entries}>;

template <class Fit, class T, class Y, class Schedule>
void expect_backward(const std::vector<T>& dy, const std::vector<Y>& y, const std::vector<u32>& mask,
                     const Layout& layout) {
  const i64 n = static_cast<i64>(y.size());
  const auto at = [&](int elements, std::size_t size, const char* name) {
    return Placement{layout.edge, elements * static_cast<int>(size), name};
  };
  std::vector<T> expected(dy.size());
  activation_backward<Fit, T, kPlain, Y>(dy.data(), y.data(), mask.data(), expected.data(), n);
  auto device_dy = GuardedArray<T>::with(dy, at(layout.dy, sizeof(T), "dy"));
  auto device_y = GuardedArray<Y>::with(y, at(layout.y, sizeof(Y), "y"));
  auto device_mask = GuardedArray<u32>::with(mask, {layout.edge, 0, "mask"});
  const GuardedArray<T> dx(n, at(layout.dx, sizeof(T), "dx"));
  device_y.make_read_only();
  device_mask.make_read_only();
  if (!layout.in_place) device_dy.make_read_only();
  const GuardedArray<T>& out = layout.in_place ? device_dy : dx;
  SCOPED_TRACE(std::string(layout.name) + ", n = " + std::to_string(n));
  next_order();
  expect_success(cuda::launch_activation_backward<Fit, T, Y, Schedule>(
      device_dy.get(), device_y.get(), kReadsMask<Fit, Y> ? device_mask.get() : nullptr, out.get(), n,
      nullptr));
  expect_equal("dx", out, expected);
}

// Stored values of a format; a parity format has those of its carrier.
template <class Y>
struct Outputs : Values<Y> {
  using Values<Y>::Values;
};
template <CarriesBranch Y>
struct Outputs<Y> {
  Values<typename Format<Y>::Carrier> values;
  explicit Outputs(u64 seed) : values(seed) {}
  std::vector<Y> next(i64 n) {
    std::vector<Y> outputs;
    for (const auto each : values.next(n)) outputs.push_back(Y{each});
    return outputs;
  }
};

template <class Fit, class T, class Y, class Schedule>
void expect_backward() {
  SCOPED_TRACE(std::string(Fit::kName) + " " + Format<T>::kName);
  Values<T> gradients(1);
  Outputs<Y> outputs(2);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      if (n > 1000 && layout.edge == Edge::begin) continue;
      expect_backward<Fit, T, Y, Schedule>(gradients.next(n), outputs.next(n),
                                           random_words(static_cast<u64>(n), (n + 31) / 32), layout);
    }
  }
}

template <class T>
class StandInElementwise : public testing::Test {};
TYPED_TEST_SUITE(StandInElementwise, TestedFormats);

TYPED_TEST(StandInElementwise, BackwardIsTheHostsUnderEverySchedule) {
  using T = TypeParam;
  using Fit = typename DefaultFit<T>::Type;
  expect_backward<Fit, T, T, DefaultGpuSchedule>();
  expect_backward<Fit, T, T, ByColumns>();
  expect_backward<Fit, T, T, ByRows>();
  expect_backward<Fit, T, T, BySpread>();
  expect_backward<Fit, T, T, ByCaches>();
}

// The format does not meet the shape of a fit: each shape in one of them.
TEST(StandInElementwiseShapes, BackwardIsTheHostsForEveryShapeOfAFit) {
  expect_backward<synthetic::WithLeftAndRight, float, float, DefaultGpuSchedule>();
  expect_backward<synthetic::TwoWord, float, float, ByRows>();
  expect_backward<synthetic::WithoutLeft<64, 6, kEstrin>, F16, F16, ByColumns>();
  expect_backward<synthetic::WithBreaks<5, 4>, BF16, BF16, DefaultGpuSchedule>();
  expect_backward<synthetic::OneRow<6>, BF16, BF16, DefaultGpuSchedule>();
  expect_backward<synthetic::Unmasked<16, 4>, F16, F16, DefaultGpuSchedule>();
  expect_backward<synthetic::OnOneSide, F16, F16, DefaultGpuSchedule>();
  expect_backward<synthetic::OnOneSide, F16, F16, ByColumns>();
  expect_backward<synthetic::OnOneSide, BF16, BF16, BySpread>();
}

// No mask is given.
TEST(StandInElementwiseShapes, BackwardOfAYThatCarriesItsBranchIsTheHosts) {
  expect_backward<generated::GeluBf16Parity, BF16, ParityBf16, DefaultGpuSchedule>();
  expect_backward<generated::SiluBf16Parity, float, ParityBf16, ByColumns>();
  expect_backward<generated::GeluF16Parity, F16, ParityF16, ByCaches>();
}

TEST(StandInElementwiseShapes, DirectTablesAreTheHosts) {
  expect_backward<generated::GeluBf16Oracle, BF16, BF16, DefaultGpuSchedule>();
  expect_backward<generated::GeluF16Oracle, F16, F16, ByEntries>();
  expect_backward<generated::GeluE4m3Oracle, BF16, F8E4M3, DefaultGpuSchedule>();
  expect_backward<generated::GeluE4m3Oracle, float, F8E4M3, ByEntries>();
  expect_backward<generated::GeluE5m2Oracle, F16, F8E5M2, ByCaches>();
  expect_backward<synthetic::Direct<BF16, F16>, float, BF16, ByEntries>();
  expect_backward<synthetic::Direct<F8E4M3, BF16, false>, BF16, F8E4M3, DefaultGpuSchedule>();
}

// Scales around 1, each unlike the one before.
template <class Scale>
Scale scale_of_block(i64 k);
template <>
float scale_of_block<float>(i64 k) {
  return 0x1.234567p-2f * static_cast<float>(1 + k % 7);
}
template <>
E8M0 scale_of_block<E8M0>(i64 k) {
  return {static_cast<u8>(124 + k % 5)};
}

template <class Fit, class T, class Y, class Schedule>
void expect_backward_of_blocks(i64 n) {
  using Code = CodeOf<Y>;
  using Scale = typename Format<Y>::Scale;
  SCOPED_TRACE(std::string(Format<Y>::kName) + ", n = " + std::to_string(n));
  const std::vector<Code> codes = Values<Code>(3).next(n);
  std::vector<Scale> scales;
  for (i64 k = 0; k < scales_of<Y>(n); ++k) scales.push_back(scale_of_block<Scale>(k));
  const std::vector<T> dy = Values<T>(4).next(n);
  const std::vector<u32> mask = random_words(static_cast<u64>(n), (n + 31) / 32);
  std::vector<T> expected(dy.size());
  activation_backward<Fit, T, kPlain, Y>(dy.data(), {codes.data(), scales.data()}, mask.data(),
                                         expected.data(), n);
  auto device_dy = GuardedArray<T>::with(dy, {Edge::end, 0, "dy"});
  auto device_codes = GuardedArray<Code>::with(codes, {Edge::end, 0, "codes"});
  auto device_scales = GuardedArray<Scale>::with(scales, {Edge::end, 0, "scales"});
  auto device_mask = GuardedArray<u32>::with(mask, {Edge::end, 0, "mask"});
  const GuardedArray<T> dx(n, {Edge::end, 0, "dx"});
  next_order();
  const Stored<Y> y{device_codes.get(), device_scales.get()};
  expect_success(cuda::launch_activation_backward<Fit, T, Y, Schedule>(device_dy.get(), y, device_mask.get(),
                                                                       dx.get(), n, nullptr));
  expect_equal("dx", dx, expected);
  const Stored<Y> without{device_codes.get(), nullptr};
  EXPECT_EQ((cuda::launch_activation_backward<Fit, T, Y, Schedule>(device_dy.get(), without,
                                                                   device_mask.get(), dx.get(), n, nullptr)),
            cudaErrorInvalidValue);
}

TEST(StandInElementwiseShapes, BlocksWithAScaleAreTheHosts) {
  for (const i64 n : {1, 31, 32, 40, 777, 8192}) {
    expect_backward_of_blocks<synthetic::WithLeftAndRight, float, MxFp8, DefaultGpuSchedule>(n);
    expect_backward_of_blocks<synthetic::WithLeftAndRight, BF16, synthetic::BlocksOf16, ByRows>(n);
  }
}

template <class T, class Schedule>
void expect_forward(const std::vector<T>& x, const Layout& layout) {
  using Forward = typename ForwardFit<T>::Type;
  const i64 n = static_cast<i64>(x.size());
  std::vector<T> expected(x.size());
  std::vector<u32> expected_mask(static_cast<std::size_t>(n + 31) / 32);
  gelu_forward<Forward, T, kPlain>(x.data(), expected.data(), expected_mask.data(), n);
  auto device_x = GuardedArray<T>::with(x, {layout.edge, layout.dy * static_cast<int>(sizeof(T)), "x"});
  const GuardedArray<T> y(n, {layout.edge, layout.dx * static_cast<int>(sizeof(T)), "y"});
  const GuardedArray<u32> mask((n + 31) / 32, {layout.edge, 0, "mask"});
  if (!layout.in_place) device_x.make_read_only();
  const GuardedArray<T>& out = layout.in_place ? device_x : y;
  SCOPED_TRACE(std::string(layout.name) + ", n = " + std::to_string(n));
  next_order();
  expect_success(
      cuda::launch_gelu_forward<Forward, T, Schedule>(device_x.get(), out.get(), mask.get(), n, nullptr));
  expect_equal("y", out, expected);
  expect_equal("mask", mask, expected_mask);
}

template <class T, class Schedule>
void expect_forward() {
  Values<T> arguments(3);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) expect_forward<T, Schedule>(arguments.next(n), layout);
  }
}

TYPED_TEST(StandInElementwise, ForwardIsTheHostsUnderEverySchedule) {
  expect_forward<TypeParam, DefaultGpuSchedule>();
  expect_forward<TypeParam, ByColumns>();
  expect_forward<TypeParam, ByRows>();
  expect_forward<TypeParam, ByCaches>();
}

// All 2^16 patterns with both mask bits for the 16-bit formats, every binade of f32.
TYPED_TEST(StandInElementwise, EveryPatternOfADefaultFitIsTheHosts) {
  using T = TypeParam;
  const auto a = patterns::backward<T>(50);
  expect_backward<typename DefaultFit<T>::Type, T, T, DefaultGpuSchedule>(a.dy, a.y, a.mask, kLayouts[0]);
  expect_forward<T, DefaultGpuSchedule>(patterns::all<T>(50), kLayouts[0]);
}

TEST(StandInElementwiseShapes, EveryLaunchIsOnTheStream) {
  const auto stream = reinterpret_cast<cudaStream_t>(0x10);
  const std::set<cudaStream_t> alone = {stream};
  const GuardedArray<float> x(100), y(100);
  const GuardedArray<u32> mask(4);
  take_streams();
  expect_success(
      cuda::launch_gelu_forward<generated::GeluForward>(x.get(), y.get(), mask.get(), 100, stream));
  EXPECT_EQ(take_streams(), alone);
  expect_success(
      cuda::launch_gelu_backward<generated::GeluF32>(x.get(), y.get(), mask.get(), x.get(), 100, stream));
  EXPECT_EQ(take_streams(), alone);
}

// The grid is what the device holds at once, or what the trips need, and the device is asked once for each
// kernel.
TEST(StandInElementwiseShapes, TheDeviceIsAskedOnceHowManyBlocksItHolds) {
  using Own = Schedule<GpuSchedule{.threads = 160}>;  // of this test alone
  const auto launch = [](i64 n) {
    const GuardedArray<float> x(n), y(n);
    const GuardedArray<u32> mask((n + 31) / 32);
    expect_success(cuda::launch_gelu_forward<generated::GeluForward, float, Own>(x.get(), y.get(), mask.get(),
                                                                                 n, nullptr));
  };
  const i64 before = occupancy_questions();
  launch(100);
  EXPECT_EQ(occupancy_questions(), before + 1);
  launch(5000);
  EXPECT_EQ(occupancy_questions(), before + 1);
  constexpr GpuSchedule kSchedule = cuda::kForwardSchedule<Own, float>;
  const i64 trip = i64{kSchedule.threads} * kSchedule.octets * cuda::kOctet;
  const auto blocks = [&](i64 n, const cuda::PlanLimits& limits) {
    return cuda::elementwise_plan(cuda::DeviceKernel::gelu_forward, kSchedule, n, limits).launch[0].blocks;
  };
  EXPECT_EQ(blocks(100 * trip, {.sms = 2, .resident_blocks = 3}), 6);
  EXPECT_EQ(blocks(4 * trip + 1, {.sms = 2, .resident_blocks = 3}), 5);
}

TEST(StandInElementwiseShapes, NoElementsLaunchNothing) {
  const i64 before = launches();
  expect_success((cuda::launch_activation_backward<generated::GeluF32, float, float>(
      nullptr, nullptr, nullptr, nullptr, 0, nullptr)));
  expect_success(
      (cuda::launch_gelu_forward<generated::GeluForward, float>(nullptr, nullptr, nullptr, 0, nullptr)));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
