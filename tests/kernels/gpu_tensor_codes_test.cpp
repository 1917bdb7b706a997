// The CUDA kernels of any tensor in 8 bits, run thread by thread on the host (tests/kernels/gpu_stand_in/),
// give the host kernels' bits.
#include "kernels/cuda/tensor_codes.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/host/tensor_codes.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

struct LoopingCodes {
  static constexpr GpuSchedule kSchedule{
      .threads = 64, .octets = 2, .access_bytes = 4, .blocks_per_sm = 1, .stores = CacheHint::streaming};
};

// Arrays of a call: x in T, which is read and then written, codes, and what belongs to them.
template <class T>
struct Device {
  GuardedArray<T> x, back;
  GuardedArray<u8> codes, blocks;
  GuardedArray<float> scale;
  GuardedArray<u32> maxima;

  Device(const std::vector<T>& from, const Layout& at)
      : x(GuardedArray<T>::with(from, {at.edge, at.dy * static_cast<int>(sizeof(T)), "x"})),
        back(static_cast<i64>(from.size()), {at.edge, at.dx * static_cast<int>(sizeof(T)), "back"}),
        codes(static_cast<i64>(from.size()), {at.edge, at.dx, "codes"}),
        blocks(scales_of<MxFp8>(static_cast<i64>(from.size())), {at.edge, at.y, "blocks"}),
        scale(1, {at.edge, 0, "scale"}), maxima(cuda::kMostMaxima, {at.edge, 0, "maxima"}) {
    x.make_read_only();
  }
  template <class F>
  F* codes_as() const {
    return reinterpret_cast<F*>(codes.get());
  }
  E8M0* powers() const { return reinterpret_cast<E8M0*>(blocks.get()); }
};

template <class F, class T, class Schedule>
void expect_at_one_scale(const std::vector<T>& x, float least, const Layout& layout) {
  const i64 n = static_cast<i64>(x.size());
  const float scale = scale_of_tensor<F>(x.data(), n, least, 1);
  std::vector<u8> codes(x.size());
  encode_tensor(x.data(), reinterpret_cast<F*>(codes.data()), n, scale, 1);
  std::vector<T> back(x.size());
  decode_tensor(reinterpret_cast<const F*>(codes.data()), scale, back.data(), n, 1);
  SCOPED_TRACE(std::string(layout.name) + ", n = " + std::to_string(n));
  const Device<T> device(x, layout);
  next_order();
  expect_success((cuda::launch_tensor_scale<F, T, Schedule>(device.x.get(), n, least, device.scale.get(),
                                                            device.maxima.get(), nullptr)));
  expect_equal("scale", device.scale, std::vector{scale});
  *device.scale.get() = 0;
  expect_success(
      (cuda::launch_encode_tensor<F, T, Schedule>(device.x.get(), n, least, device.template codes_as<F>(),
                                                  device.scale.get(), device.maxima.get(), nullptr)));
  expect_equal("scale", device.scale, std::vector{scale});
  expect_equal("codes", device.codes, codes);
  next_order();
  expect_success((cuda::launch_decode_tensor<F, T, Schedule>(
      device.template codes_as<F>(), device.scale.get(), device.back.get(), n, nullptr)));
  expect_equal("back", device.back, back);
}

template <class T, class Schedule>
void expect_blocks(const std::vector<T>& x, const Layout& layout) {
  const i64 n = static_cast<i64>(x.size());
  std::vector<u8> codes(x.size()), blocks(static_cast<std::size_t>(scales_of<MxFp8>(n)));
  encode_tensor_blocks(x.data(), reinterpret_cast<F8E4M3*>(codes.data()),
                       reinterpret_cast<E8M0*>(blocks.data()), n, 1);
  std::vector<T> back(x.size());
  decode_tensor_blocks(reinterpret_cast<const F8E4M3*>(codes.data()),
                       reinterpret_cast<const E8M0*>(blocks.data()), back.data(), n, 1);
  SCOPED_TRACE(std::string(layout.name) + ", n = " + std::to_string(n));
  const Device<T> device(x, layout);
  next_order();
  expect_success((cuda::launch_encode_tensor_blocks<T, Schedule>(
      device.x.get(), device.template codes_as<F8E4M3>(), device.powers(), n, nullptr)));
  expect_equal("codes", device.codes, codes);
  expect_equal("blocks", device.blocks, blocks);
  next_order();
  expect_success((cuda::launch_decode_tensor_blocks<T, Schedule>(
      device.template codes_as<F8E4M3>(), device.powers(), device.back.get(), n, nullptr)));
  expect_equal("back", device.back, back);
}

template <class T, class Schedule = DefaultGpuSchedule>
void expect_all(const std::vector<T>& x, const Layout& layout) {
  expect_at_one_scale<F8E4M3, T, Schedule>(x, kLeastOfTensors, layout);
  expect_at_one_scale<F8E5M2, T, Schedule>(x, 1.0f, layout);
  expect_blocks<T, Schedule>(x, layout);
}

template <class T>
class StandInTensorCodes : public testing::Test {};
TYPED_TEST_SUITE(StandInTensorCodes, TestedFormats);

TYPED_TEST(StandInTensorCodes, EveryLengthAndLayoutIsTheHosts) {
  using T = TypeParam;
  Values<T> values(3);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      if (layout.in_place) continue;
      expect_all<T>(values.next(n), layout);
      expect_all<T, LoopingCodes>(values.next(n), layout);
    }
  }
}

// Shuffled, so that the elements of a block are not alike, and at scales that take a division for each
// element, too: of tensors that are as large and as small as can be.
TYPED_TEST(StandInTensorCodes, EveryPatternIsTheHosts) {
  using T = TypeParam;
  std::vector<T> x = patterns::all<T>(5);
  patterns::Random random(7);
  for (std::size_t i = 0; i < x.size(); ++i) std::swap(x[i], x[i + random.next() % (x.size() - i)]);
  expect_all<T>(x, kLayouts[0]);
  std::vector<T> small(x.begin(), x.begin() + 5000);
  for (T& value : small)
    value = narrow<T>(std::isfinite(widen(value)) ? widen(value) * 0x1p-120f : widen(value));
  expect_at_one_scale<F8E4M3, T, DefaultGpuSchedule>(small, kLeastOfTensors, kLayouts[0]);
  expect_at_one_scale<F8E5M2, T, DefaultGpuSchedule>(small, kLeastOfTensors, kLayouts[0]);
}

TYPED_TEST(StandInTensorCodes, WhatIsNoNumberIsTheHosts) {
  using T = TypeParam;
  for (const float special : {0.0f, -0.0f, std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    std::vector<T> x(300, narrow<T>(special));
    expect_all<T>(x, kLayouts[0]);
    for (std::size_t i = 0; i < x.size(); i += 37) x[i] = narrow<T>(-2.5f);
    expect_all<T>(x, kLayouts[0]);
  }
}

TEST(StandInTensorCodesArguments, OfNoElementsThereIsAScale) {
  const GuardedArray<float> scale(1);
  const GuardedArray<u32> maxima(cuda::kMostMaxima);
  const i64 before = launches();
  expect_success((cuda::launch_encode_tensor<F8E4M3, float>(nullptr, 0, 1.0f, nullptr, scale.get(),
                                                            maxima.get(), nullptr)));
  EXPECT_EQ(*scale.get(), 448.0f);
  EXPECT_EQ(launches(), before + 1);
  expect_success((cuda::launch_decode_tensor<F8E4M3, float>(nullptr, nullptr, nullptr, 0, nullptr)));
  expect_success((cuda::launch_encode_tensor_blocks<float>(nullptr, nullptr, nullptr, 0, nullptr)));
  expect_success((cuda::launch_decode_tensor_blocks<float>(nullptr, nullptr, nullptr, 0, nullptr)));
  EXPECT_EQ(launches(), before + 1);
}

TEST(StandInTensorCodesArguments, WhatBreaksTheContractLaunchesNothing) {
  const GuardedArray<float> x(100), scale(1);
  const GuardedArray<F8E4M3> codes(100);
  const GuardedArray<E8M0> blocks(4);
  const GuardedArray<u32> maxima(cuda::kMostMaxima);
  const i64 before = launches();
  const auto encode = [&](const float* from, i64 n, float least, F8E4M3* to, float* by, u32* most) {
    return cuda::launch_encode_tensor(from, n, least, to, by, most, nullptr);
  };
  for (const float least : {0.0f, -1.0f, 0x1p-101f, 0x1.8p127f, std::nanf("")})
    EXPECT_EQ(encode(x.get(), 100, least, codes.get(), scale.get(), maxima.get()), cudaErrorInvalidValue);
  EXPECT_EQ(encode(nullptr, 100, 1, codes.get(), scale.get(), maxima.get()), cudaErrorInvalidValue);
  EXPECT_EQ(encode(x.get(), -1, 1, codes.get(), scale.get(), maxima.get()), cudaErrorInvalidValue);
  EXPECT_EQ(encode(x.get(), 100, 1, nullptr, scale.get(), maxima.get()), cudaErrorInvalidValue);
  EXPECT_EQ(encode(x.get(), 100, 1, codes.get(), nullptr, maxima.get()), cudaErrorInvalidValue);
  EXPECT_EQ(encode(x.get(), 100, 1, codes.get(), scale.get(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(encode(x.get(), 100, 1, reinterpret_cast<F8E4M3*>(x.get()), scale.get(), maxima.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(encode(x.get(), 100, 1, codes.get(), x.get() + 3, maxima.get()), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::launch_decode_tensor(codes.get(), scale.get(), reinterpret_cast<float*>(codes.get()), 25,
                                       nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::launch_decode_tensor<F8E4M3>(codes.get(), nullptr, x.get(), 100, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(
      cuda::launch_encode_tensor_blocks(x.get(), codes.get(), static_cast<E8M0*>(nullptr), 100, nullptr),
      cudaErrorInvalidValue);
  EXPECT_EQ(cuda::launch_decode_tensor_blocks(codes.get(), blocks.get(), x.get(), -1, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
