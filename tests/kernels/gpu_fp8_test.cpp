// The CUDA kernels of y in 8 bits at a scale, run thread by thread on the host (tests/kernels/gpu_stand_in/),
// give the host's bits.
#include "kernels/cuda/fp8.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/host/fp8.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kOneThread{.threads = 1};
using Gelu = Fp8Activation<generated::GeluFp8>;
using Mish = Fp8Activation<generated::MishFp8>;

struct LoopingFp8 {
  static constexpr GpuSchedule kSchedule{
      .threads = 64, .octets = 2, .access_bytes = 8, .blocks_per_sm = 1, .table = TableHome::rows};
};

template <class S, class F>
Fp8Table host_table(float scale, int bits) {
  Fp8Table table;
  fill_fp8_table<S, F>(scale, bits, table);
  return table;
}

template <class S, class F>
void expect_table(float scale, int bits) {
  SCOPED_TRACE(std::string(S::Header::kName) + " " + Format<F>::kName + ", " + std::to_string(bits) +
               " bits, scale " + std::to_string(scale));
  const Fp8Table expected = host_table<S, F>(scale, bits);
  auto device_scale = GuardedArray<float>::with({scale}, {Edge::end, 0, "scale"});
  device_scale.make_read_only();
  const GuardedArray<Fp8Table> table(1, {Edge::end, 0, "table"});
  next_order();
  expect_success(cuda::launch_fp8_table<S, F>(device_scale.get(), bits, table.get(), nullptr));
  const Fp8Table& made = *table.get();
  EXPECT_EQ(made.bits, expected.bits);
  EXPECT_EQ(made.widest, expected.widest);
  EXPECT_EQ(std::memcmp(made.edges, expected.edges, sizeof made.edges), 0);
  EXPECT_EQ(std::memcmp(made.values, expected.values, sizeof made.values), 0);
}

// Scales at which codes are above f's minimum or all below, some that are no powers of two, and the least and
// greatest that hold.
TEST(StandInFp8, TablesAreTheHosts) {
  for (const float scale : {0x1p-126f, 0.109375f, 1.0f, 3.7f, 448.0f, 0x1.fffffep127f}) {
    for (int bits = 0; bits <= kMostPartBits; ++bits) {
      expect_table<Gelu, F8E4M3>(scale, bits);
      expect_table<Gelu, I8>(scale, bits);
      expect_table<Mish, F8E5M2>(scale, bits);
    }
  }
}

// layout: y is the codes', whose elements are bytes.
template <class S, class F, class T, int Bits, class Forward, class Backward>
void expect_fp8(float scale, const std::vector<T>& x, const std::vector<T>& dy, const Layout& layout) {
  const i64 n = static_cast<i64>(x.size()), bytes = code_bytes(Bits, n);
  const Fp8Table host = host_table<S, F>(scale, Bits);
  std::vector<u8> expected(x.size()), expected_parts(static_cast<std::size_t>(bytes));
  std::vector<T> expected_dx(x.size());
  activation_forward_fp8<S, F, T, kOneThread>(host, scale, x.data(), reinterpret_cast<F*>(expected.data()),
                                              expected_parts.data(), n);
  activation_backward_fp8<T, kOneThread>(host, dy.data(), expected.data(), expected_parts.data(),
                                         expected_dx.data(), n);
  const auto at = [&](int elements, const char* name) {
    return Placement{layout.edge, elements * static_cast<int>(sizeof(T)), name};
  };
  auto device_x = GuardedArray<T>::with(x, at(layout.dy, "x")),
       device_dy = GuardedArray<T>::with(dy, at(layout.dy, "dy"));
  auto codes = GuardedArray<u8>(n, {layout.edge, layout.y, "codes"}),
       parts = GuardedArray<u8>(bytes, {layout.edge, layout.y, "parts"});
  auto table = GuardedArray<Fp8Table>::with({host}, {Edge::end, 0, "table"});
  auto device_scale = GuardedArray<float>::with({scale}, {Edge::end, 0, "scale"});
  const GuardedArray<T> dx(n, at(layout.dx, "dx"));
  device_x.make_read_only(), table.make_read_only(), device_scale.make_read_only();
  if (!layout.in_place) device_dy.make_read_only();
  const GuardedArray<T>& dx_out = layout.in_place ? device_dy : dx;
  SCOPED_TRACE(std::string(S::Header::kName) + " " + Format<F>::kName + " of " + Format<T>::kName + ", " +
               std::to_string(Bits) + " bits, " + layout.name + ", n = " + std::to_string(n));
  next_order();
  expect_success(cuda::launch_activation_forward_fp8<S, F, T, Bits, Forward>(
      table.get(), device_scale.get(), device_x.get(), reinterpret_cast<F*>(codes.get()), parts.get(), n,
      nullptr));
  expect_equal("codes", codes, expected);
  expect_equal("parts", parts, expected_parts);
  codes.make_read_only(), parts.make_read_only();
  expect_success(cuda::launch_activation_backward_fp8<T, Bits, Backward>(
      table.get(), device_dy.get(), codes.get(), parts.get(), dx_out.get(), n, nullptr));
  expect_equal("dx", dx_out, expected_dx);
}

// Shuffled, so that neighbours differ.
template <class S, class F, class T, int Bits>
void expect_every_pattern(float scale) {
  std::vector<T> x = patterns::all<T>(10), dy;
  patterns::Random random(7);
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::swap(x[i], x[i + random.next() % (x.size() - i)]);
    dy.push_back(narrow<T>(float_of((random.next() & 0x80ffffffu) | 0x3f000000u)));
  }
  expect_fp8<S, F, T, Bits, cuda::StoreSchedule, DefaultGpuSchedule>(scale, x, dy, kLayouts[0]);
}

TEST(StandInFp8, EveryPatternIsTheHosts) {
  expect_every_pattern<Gelu, F8E4M3, BF16, 1>(448.0f / 5);
  expect_every_pattern<Gelu, F8E4M3, F16, 2>(448.0f);
  expect_every_pattern<Gelu, F8E5M2, float, 0>(57344.0f / 3);
  expect_every_pattern<Mish, F8E5M2, BF16, 2>(57344.0f / 3);
  expect_every_pattern<Mish, F8E4M3, float, 1>(0.75f);
  expect_every_pattern<Gelu, I8, BF16, 2>(127.0f / 4);
}

template <class S, class F, class T, int Bits, class Forward, class Backward>
void expect_every_layout(float scale) {
  Values<T> values(Bits);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts)
      expect_fp8<S, F, T, Bits, Forward, Backward>(scale, values.next(n), values.next(n), layout);
  }
}

TEST(StandInFp8, EveryLengthAndLayoutIsTheHosts) {
  expect_every_layout<Gelu, F8E4M3, BF16, 1, cuda::StoreSchedule, DefaultGpuSchedule>(448.0f / 5);
  expect_every_layout<Gelu, F8E4M3, float, 2, LoopingFp8, LoopingFp8>(448.0f);
  expect_every_layout<Mish, F8E5M2, F16, 0, LoopingFp8, DefaultGpuSchedule>(1.0f);
}

TEST(StandInFp8, CallsThatBreakTheContractLaunchNothing) {
  constexpr i64 kCount = 64;
  using cuda::launch_activation_backward_fp8, cuda::launch_activation_forward_fp8, cuda::launch_fp8_table;
  std::vector<float> x(kCount), dx(kCount);
  std::vector<u8> codes(kCount), parts(kCount);
  Fp8Table table = host_table<Gelu, F8E4M3>(1, 1);
  const float scale = 1;
  auto* const to = reinterpret_cast<F8E4M3*>(codes.data());
  const auto forward = [&](const Fp8Table* t, const float* s, const float* in, F8E4M3* out, u8* beside,
                           i64 n) {
    return launch_activation_forward_fp8<Gelu, F8E4M3, float, 1>(t, s, in, out, beside, n, nullptr);
  };
  const auto backward = [&](const Fp8Table* t, const float* in, const u8* coded, const u8* beside, float* out,
                            i64 n) {
    return launch_activation_backward_fp8<float, 1>(t, in, coded, beside, out, n, nullptr);
  };
  EXPECT_EQ((launch_fp8_table<Gelu, F8E4M3>(&scale, 3, &table, nullptr)), cudaErrorInvalidValue);
  EXPECT_EQ((launch_fp8_table<Gelu, F8E4M3>(nullptr, 1, &table, nullptr)), cudaErrorInvalidValue);
  EXPECT_EQ((launch_fp8_table<Gelu, F8E4M3>(&table.widest, 1, &table, nullptr)), cudaErrorInvalidValue);
  EXPECT_EQ(forward(nullptr, &scale, x.data(), to, parts.data(), kCount), cudaErrorInvalidValue);
  EXPECT_EQ(forward(&table, nullptr, x.data(), to, parts.data(), kCount), cudaErrorInvalidValue);
  EXPECT_EQ(forward(&table, &scale, nullptr, to, parts.data(), kCount), cudaErrorInvalidValue);
  EXPECT_EQ(forward(&table, &scale, x.data(), to, nullptr, kCount), cudaErrorInvalidValue);
  EXPECT_EQ(forward(&table, &scale, x.data(), to, codes.data() + kCount - 1, kCount), cudaErrorInvalidValue);
  EXPECT_EQ(forward(&table, &scale, x.data(), reinterpret_cast<F8E4M3*>(x.data()), parts.data(), kCount),
            cudaErrorInvalidValue);
  EXPECT_EQ(forward(&table, &scale, x.data(), to, parts.data(), -1), cudaErrorInvalidValue);
  EXPECT_EQ(forward(nullptr, nullptr, nullptr, nullptr, nullptr, 0), cudaSuccess);
  EXPECT_EQ(backward(nullptr, x.data(), codes.data(), parts.data(), dx.data(), kCount),
            cudaErrorInvalidValue);
  EXPECT_EQ(backward(&table, x.data(), codes.data(), nullptr, dx.data(), kCount), cudaErrorInvalidValue);
  EXPECT_EQ(backward(&table, x.data(), codes.data(), parts.data(), x.data() + 1, kCount - 1),
            cudaErrorInvalidValue);
  EXPECT_EQ(
      backward(&table, x.data(), reinterpret_cast<const u8*>(dx.data()), parts.data(), dx.data(), kCount),
      cudaErrorInvalidValue);
  EXPECT_EQ(
      backward(&table, x.data(), codes.data(), reinterpret_cast<const u8*>(dx.data()), dx.data(), kCount),
      cudaErrorInvalidValue);
  EXPECT_EQ(backward(nullptr, nullptr, nullptr, nullptr, nullptr, 0), cudaSuccess);
}

}  // namespace
}  // namespace outgrad::kernels
