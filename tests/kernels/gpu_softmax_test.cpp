// The CUDA kernels of softmax with codes of 8 bits, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the host's bits.
#include "kernels/cuda/softmax.cuh"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/host/softmax.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kOneThread{.threads = 1};

// layout: y is the codes', whose elements are bytes.
template <class T>
void expect_softmax(const std::vector<T>& x, const std::vector<T>& dy, i64 rows, const Layout& layout) {
  const i64 elements = static_cast<i64>(x.size()), n = elements / rows;
  std::vector<T> expected_y(x.size()), expected_dx(x.size());
  std::vector<u8> expected(x.size());
  softmax_forward_code<T, kOneThread>(x.data(), expected_y.data(), expected.data(), rows, n);
  softmax_backward_code<T, kOneThread>(dy.data(), expected.data(), expected_dx.data(), rows, n);
  const auto at = [&](int offset, const char* name) {
    return Placement{layout.edge, offset * static_cast<int>(sizeof(T)), name};
  };
  auto device_x = GuardedArray<T>::with(x, at(layout.dy, "x")),
       device_dy = GuardedArray<T>::with(dy, at(layout.dy, "dy"));
  auto codes = GuardedArray<u8>(elements, {layout.edge, layout.y, "codes"});
  const GuardedArray<T> y(elements, at(layout.dx, "y")), dx(elements, at(layout.dx, "dx"));
  if (!layout.in_place) device_x.make_read_only(), device_dy.make_read_only();
  const GuardedArray<T>&y_out = layout.in_place ? device_x : y, &dx_out = layout.in_place ? device_dy : dx;
  SCOPED_TRACE(std::string(Format<T>::kName) + ", " + layout.name + ", " + std::to_string(rows) +
               " rows of " + std::to_string(n));
  next_order();
  expect_success(
      cuda::launch_softmax_forward_code(device_x.get(), y_out.get(), codes.get(), rows, n, nullptr));
  expect_equal("y", y_out, expected_y);
  expect_equal("codes", codes, expected);
  codes.make_read_only();
  expect_success(
      cuda::launch_softmax_backward_code(device_dy.get(), codes.get(), dx_out.get(), rows, n, nullptr));
  expect_equal("dx", dx_out, expected_dx);
}

template <class T>
class StandInSoftmax : public testing::Test {};
TYPED_TEST_SUITE(StandInSoftmax, TestedFormats);

// Rows around chunks, steps and groups of the tree, and around the numbers from which more warps share a row;
// rows that do not fill their blocks.
TYPED_TEST(StandInSoftmax, EveryLengthAndLayoutIsTheHosts) {
  using T = TypeParam;
  struct Shape {
    i64 rows, n;
  };
  Values<T> values(5);
  for (const Shape& shape :
       {Shape{1, 1}, Shape{9, 1}, Shape{5, 7}, Shape{4, 8}, Shape{3, 9}, Shape{2, 255}, Shape{6, 257},
        Shape{5, 1024}, Shape{2, 1025}, Shape{1, 4100}, Shape{2, 8193}, Shape{1, 16400}}) {
    for (const Layout& layout : kLayouts)
      expect_softmax<T>(values.moderate(shape.rows * shape.n), values.moderate(shape.rows * shape.n),
                        shape.rows, layout);
  }
}

// Rows with infinities and NaN anywhere among moderate numbers, nothing but -inf, zeros of both signs, and
// logits far apart.
TYPED_TEST(StandInSoftmax, RowsWithSpecialNumbersAreTheHosts) {
  using T = TypeParam;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for (const i64 n : {40, 1100}) {
    Values<T> values(6);
    std::vector<T> x;
    const auto add = [&](float special, i64 begin, i64 end) {
      const std::vector<T> plain = values.moderate(n);
      for (i64 j = 0; j < n; ++j)
        x.push_back(begin <= j && j < end ? narrow<T>(special) : plain[static_cast<std::size_t>(j)]);
    };
    for (const float special : {kInfinity, -kInfinity, kNan, 60.0f, 0.0f, -0.0f}) {
      add(special, 0, 1), add(special, n - 1, n), add(special, n / 2, n / 2 + 1), add(special, 0, n),
          add(special, 0, n - 1);
    }
    const i64 rows = static_cast<i64>(x.size()) / n;
    expect_softmax<T>(x, values.next(rows * n), rows, kLayouts[0]);
  }
}

TEST(StandInSoftmaxCalls, ThatBreakTheContractLaunchNothing) {
  constexpr i64 kRows = 4, kColumns = 16;
  std::vector<float> x(kRows * kColumns), y(kRows * kColumns);
  std::vector<u8> codes(kRows * kColumns);
  const auto forward = [](const float* from, float* to, u8* coded, i64 rows, i64 n) {
    return cuda::launch_softmax_forward_code(from, to, coded, rows, n, nullptr);
  };
  const auto backward = [](const float* from, const u8* coded, float* to, i64 rows, i64 n) {
    return cuda::launch_softmax_backward_code(from, coded, to, rows, n, nullptr);
  };
  EXPECT_EQ(forward(nullptr, y.data(), codes.data(), kRows, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), nullptr, codes.data(), kRows, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), y.data(), nullptr, kRows, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), x.data() + 1, codes.data(), kRows - 1, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), y.data(), reinterpret_cast<u8*>(x.data()), kRows, kColumns),
            cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), y.data(), codes.data(), -1, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), y.data(), codes.data(), kRows, 0), cudaErrorInvalidValue);
  EXPECT_EQ(forward(x.data(), y.data(), codes.data(), 1, kMostSoftmax + 1), cudaErrorInvalidValue);
  EXPECT_EQ(forward(nullptr, nullptr, nullptr, 0, kColumns), cudaSuccess);
  EXPECT_EQ(backward(x.data(), nullptr, y.data(), kRows, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(backward(x.data(), reinterpret_cast<const u8*>(y.data()), y.data(), kRows, kColumns),
            cudaErrorInvalidValue);
  EXPECT_EQ(backward(x.data(), codes.data(), x.data() + 1, kRows - 1, kColumns), cudaErrorInvalidValue);
  EXPECT_EQ(backward(nullptr, nullptr, nullptr, 0, kColumns), cudaSuccess);
}

}  // namespace
}  // namespace outgrad::kernels
