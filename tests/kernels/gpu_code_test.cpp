// The CUDA kernels of codes for f'(x), run thread by thread on the host (tests/kernels/gpu_stand_in/), give
// the host kernels' bits.
#include "kernels/cuda/code.cuh"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/host/code.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kOneThread{.threads = 1};
constexpr u64 kSeed = 0x0123456789abcdefu;

struct LoopingCode {
  static constexpr GpuSchedule kSchedule{
      .threads = 64, .octets = 2, .access_bytes = 8, .blocks_per_sm = 1, .table = TableHome::rows};
};

template <class A>
constexpr CodeRange kRange{A::Code::kLo, A::Code::kHi};

// layout: y is the codes', whose elements are bytes.
template <class A, class T, int Bits, bool Dithered, class Forward, class Backward>
void expect_codes(const std::vector<T>& x, const std::vector<T>& dy, const Layout& layout) {
  const i64 n = static_cast<i64>(x.size()), bytes = code_bytes(Bits, n);
  const CodeChoice choice{Bits, Dithered ? &kSeed : nullptr};
  std::vector<T> expected_y(x.size()), expected_dx(x.size());
  std::vector<u8> expected(static_cast<std::size_t>(bytes));
  activation_forward_code<A, T, kOneThread>(choice, x.data(), expected_y.data(), expected.data(), n);
  activation_backward_code<T, kOneThread>(kRange<A>, choice, dy.data(), expected.data(), expected_dx.data(),
                                          n);
  const auto at = [&](int elements, const char* name) {
    return Placement{layout.edge, elements * static_cast<int>(sizeof(T)), name};
  };
  auto device_x = GuardedArray<T>::with(x, at(layout.dy, "x")),
       device_dy = GuardedArray<T>::with(dy, at(layout.dy, "dy"));
  auto codes = GuardedArray<u8>(bytes, {layout.edge, layout.y, "codes"});
  auto seed = GuardedArray<u64>::with({kSeed}, {layout.edge, 0, "seed"});
  const GuardedArray<T> y(n, at(layout.dx, "y")), dx(n, at(layout.dx, "dx"));
  seed.make_read_only();
  if (!layout.in_place) device_x.make_read_only(), device_dy.make_read_only();
  const GuardedArray<T>&y_out = layout.in_place ? device_x : y, &dx_out = layout.in_place ? device_dy : dx;
  const u64* const key = Dithered ? seed.get() : nullptr;
  SCOPED_TRACE(std::string(A::Code::kName) + " " + Format<T>::kName + ", " + std::to_string(Bits) + " bits" +
               (Dithered ? " dithered" : "") + ", " + layout.name + ", n = " + std::to_string(n));
  next_order();
  expect_success(cuda::launch_activation_forward_code<A, T, Bits, Dithered, Forward>(
      device_x.get(), y_out.get(), codes.get(), n, key, nullptr));
  expect_equal("y", y_out, expected_y);
  expect_equal("codes", codes, expected);
  codes.make_read_only();
  expect_success(cuda::launch_activation_backward_code<T, Bits, Dithered, Backward>(
      kRange<A>, device_dy.get(), codes.get(), dx_out.get(), n, key, nullptr));
  expect_equal("dx", dx_out, expected_dx);
}

// The codes of all bits in one array each; shuffled, so that neighbours differ.
template <class A, class T, int Bits, bool Dithered>
void expect_every_pattern() {
  std::vector<T> x = patterns::all<T>(10), dy;
  patterns::Random random(7);
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::swap(x[i], x[i + random.next() % (x.size() - i)]);
    dy.push_back(narrow<T>(float_of((random.next() & 0x80ffffffu) | 0x3f000000u)));
  }
  expect_codes<A, T, Bits, Dithered, cuda::StoreSchedule, DefaultGpuSchedule>(x, dy, kLayouts[0]);
}

template <class A, class T, int Bits, bool Dithered, class Forward, class Backward>
void expect_every_layout() {
  Values<T> values(Bits);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts)
      expect_codes<A, T, Bits, Dithered, Forward, Backward>(values.next(n), values.next(n), layout);
  }
}

template <class... A>
void expect_every_activation(CodedList<A...>) {
  (expect_every_pattern<A, BF16, 4, false>(), ...);
}

TEST(StandInCode, EveryPatternOfEveryActivationIsTheHosts) { expect_every_activation(CodedActivations{}); }

using Gelu = CodedActivationAt<0>;
using Silu = CodedActivationAt<3>;
static_assert(same_text(Gelu::Code::kActivation, "gelu") && same_text(Silu::Code::kActivation, "silu"));

TEST(StandInCode, EveryPatternOfEveryFormatIsTheHosts) {
  expect_every_pattern<Gelu, float, 8, false>();
  expect_every_pattern<Gelu, float, 2, true>();
  expect_every_pattern<Gelu, F16, 6, false>();
  expect_every_pattern<Gelu, F16, 3, true>();
  expect_every_pattern<Gelu, BF16, 8, false>();
  expect_every_pattern<Silu, float, 5, false>();
  expect_every_pattern<Silu, F16, 2, true>();
}

// Every number of bits has its own words, and its own bytes at a ragged end.
TEST(StandInCode, EveryLengthAndLayoutIsTheHosts) {
  using Forward = cuda::StoreSchedule;
  using Backward = DefaultGpuSchedule;
  expect_every_layout<Gelu, BF16, 1, false, Forward, Backward>();
  expect_every_layout<Gelu, BF16, 2, false, LoopingCode, LoopingCode>();
  expect_every_layout<Gelu, BF16, 3, false, Forward, Backward>();
  expect_every_layout<Gelu, BF16, 4, false, LoopingCode, LoopingCode>();
  expect_every_layout<Gelu, BF16, 5, false, Forward, Backward>();
  expect_every_layout<Gelu, BF16, 6, false, LoopingCode, LoopingCode>();
  expect_every_layout<Gelu, BF16, 7, false, Forward, Backward>();
  expect_every_layout<Gelu, BF16, 8, false, LoopingCode, LoopingCode>();
  expect_every_layout<Gelu, BF16, 2, true, Forward, Backward>();
  expect_every_layout<Gelu, BF16, 3, true, LoopingCode, LoopingCode>();
  expect_every_layout<Silu, float, 5, false, LoopingCode, LoopingCode>();
  expect_every_layout<Silu, F16, 3, true, Forward, Backward>();
}

// Gradients of the caller's own: any bit pattern may stand for one.
template <class T, int Bits, bool Dithered, class Schedule>
void expect_encoded() {
  constexpr CodeRange kOwn{-0.10001f, 1.0873f};
  Values<T> values(Bits);
  for (const i64 n : kSizes) {
    for (const Layout& layout : kLayouts) {
      const std::vector<T> g = values.next(n);
      std::vector<u8> expected(static_cast<std::size_t>(code_bytes(Bits, n)));
      encode_gradients<T, kOneThread>(kOwn, {Bits, Dithered ? &kSeed : nullptr}, g.data(), expected.data(),
                                      n);
      auto device_g = GuardedArray<T>::with(g, {layout.edge, layout.dy * static_cast<int>(sizeof(T)), "g"});
      const GuardedArray<u8> codes(code_bytes(Bits, n), {layout.edge, layout.y, "codes"});
      auto seed = GuardedArray<u64>::with({kSeed}, {layout.edge, 0, "seed"});
      device_g.make_read_only(), seed.make_read_only();
      SCOPED_TRACE(std::string(Format<T>::kName) + ", " + std::to_string(Bits) + " bits, " + layout.name +
                   ", n = " + std::to_string(n));
      next_order();
      expect_success(cuda::launch_encode_gradients<T, Bits, Dithered, Schedule>(
          kOwn, device_g.get(), codes.get(), n, Dithered ? seed.get() : nullptr, nullptr));
      expect_equal("codes", codes, expected);
    }
  }
}

TEST(StandInCode, CodesOfTheCallersGradientsAreTheHosts) {
  expect_encoded<float, 4, false, DefaultGpuSchedule>();
  expect_encoded<float, 3, true, LoopingCode>();
  expect_encoded<F16, 5, false, LoopingCode>();
  expect_encoded<BF16, 8, false, DefaultGpuSchedule>();
}

TEST(StandInCode, WhatBreaksTheContractLaunchesNothing) {
  const GuardedArray<float> x(100), y(100);
  const GuardedArray<u8> codes(63);
  const GuardedArray<u64> seed(1);
  auto* const over = reinterpret_cast<u8*>(x.get());
  const auto forward = [](const float* from, float* to, u8* coded, i64 n) {
    return cuda::launch_activation_forward_code<Silu, float, 5>(from, to, coded, n, nullptr, nullptr);
  };
  const auto backward = [](const float* from, const u8* coded, float* to, const u64* key, i64 n) {
    return cuda::launch_activation_backward_code<float, 2, true>(kRange<Silu>, from, coded, to, n, key,
                                                                 nullptr);
  };
  const i64 before = launches();
  EXPECT_EQ(forward(nullptr, y.get(), codes.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.get(), nullptr, codes.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.get(), y.get(), nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.get(), y.get(), codes.get(), -1), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.get(), x.get() + 1, codes.get(), 99), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.get(), y.get(), over, 100), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.get(), y.get(), reinterpret_cast<u8*>(y.get()) + 399, 100), cudaErrorInvalidValue);
  EXPECT_EQ(backward(x.get(), codes.get(), y.get(), nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(backward(x.get(), codes.get(), reinterpret_cast<float*>(seed.get()), seed.get(), 2),
            cudaErrorInvalidValue);
  EXPECT_EQ(backward(x.get(), over, x.get(), seed.get(), 100), cudaErrorInvalidValue);
  const auto encode = [](const CodeRange& range, const float* g, u8* coded, i64 n) {
    return cuda::launch_encode_gradients<float, 5>(range, g, coded, n, nullptr, nullptr);
  };
  EXPECT_EQ(encode({0, 1}, nullptr, codes.get(), 100), cudaErrorInvalidValue);
  EXPECT_EQ(encode({0, 1}, x.get(), nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(encode({0, 1}, x.get(), over, 100), cudaErrorInvalidValue);
  EXPECT_EQ(encode({0, 1}, x.get(), codes.get(), -1), cudaErrorInvalidValue);
  EXPECT_EQ(encode({0, 3}, x.get(), codes.get(), 100), cudaErrorInvalidValue);
  expect_success(encode({0, 1}, nullptr, nullptr, 0));
  expect_success(forward(nullptr, nullptr, nullptr, 0));
  expect_success(backward(nullptr, nullptr, nullptr, nullptr, 0));
  EXPECT_EQ(launches(), before);
  // who only reads may read one thing as two
  expect_success(backward(x.get(), over, y.get(), seed.get(), 100));
}

}  // namespace
}  // namespace outgrad::kernels
