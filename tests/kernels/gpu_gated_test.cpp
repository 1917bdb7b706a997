// The CUDA kernels of gated pairs, run thread by thread on the host (tests/kernels/gpu_stand_in/), give the
// host's bits.
#include "kernels/cuda/gated.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/host/gated.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kOneThread{.threads = 1};

// layout: y is the output's and its gradient's, dy that of a, dx that of b.
template <class Gate, class T>
void expect_gated(i64 rows, i64 n, bool packed, const Layout& layout) {
  SCOPED_TRACE(std::string(Gate::kActivation) + " " + Format<T>::kName + ", " + layout.name + ", " +
               std::to_string(rows) + " rows of " + std::to_string(n) + (packed ? ", packed" : ""));
  const i64 elements = rows * n, of_a = packed ? 2 * elements : elements;
  Values<T> values(static_cast<u64>(elements));
  const std::vector<T> a = values.moderate(of_a), b = values.moderate(elements),
                       dy = values.moderate(elements);
  std::vector<T> y(dy.size()), da(a.size()), db(b.size());
  const GatedShape shape{rows, n, packed ? 2 * n : n};
  const T* const own_b = packed ? a.data() + n : b.data();
  gated_forward<Gate, T, kOneThread>(a.data(), own_b, shape, y.data());
  gated_backward<Gate, T, kOneThread>(dy.data(), a.data(), own_b, shape, da.data(),
                                      packed ? da.data() + n : db.data(), nullptr);
  const auto at = [&](int offset, const char* name) {
    return Placement{layout.edge, offset * static_cast<int>(sizeof(T)), name};
  };
  auto device_a = GuardedArray<T>::with(a, at(layout.dy, "a")),
       device_b = GuardedArray<T>::with(b, at(layout.dx, "b")),
       device_dy = GuardedArray<T>::with(dy, at(layout.y, "dy"));
  const GuardedArray<T> new_y(elements, at(layout.y, "y")), new_da(of_a, at(layout.dy, "da")),
      new_db(elements, at(layout.dx, "db")), again(elements, at(layout.y, "y again"));
  if (!layout.in_place) device_a.make_read_only(), device_b.make_read_only(), device_dy.make_read_only();
  const T* const given_b = packed ? nullptr : device_b.get();
  next_order();
  expect_success(cuda::launch_gated_forward<Gate, T>(device_a.get(), given_b, rows, n, new_y.get(), nullptr));
  expect_equal("y", new_y, y);
  const GuardedArray<T>&to_a = layout.in_place ? device_a : new_da,
        &to_b = layout.in_place ? device_b : new_db, &to_y = layout.in_place ? device_dy : again;
  expect_success(cuda::launch_gated_backward<Gate, T>(device_dy.get(), device_a.get(), given_b, rows, n,
                                                      to_a.get(), packed ? nullptr : to_b.get(), to_y.get(),
                                                      nullptr));
  expect_equal("da", to_a, da);
  if (!packed) expect_equal("db", to_b, db);
  expect_equal("y again", to_y, y);
}

template <class T>
class StandInGated : public testing::Test {};
TYPED_TEST_SUITE(StandInGated, TestedFormats);

TYPED_TEST(StandInGated, EveryShapeAndLayoutIsTheHosts) {
  using T = TypeParam;
  for (const bool packed : {false, true}) {
    for (const Layout& layout : kLayouts) {
      expect_gated<gates::Silu, T>(1, 1, packed, layout);
      expect_gated<gates::Silu, T>(5, 7, packed, layout);
      expect_gated<gates::Silu, T>(3, 40, packed, layout);
      expect_gated<gates::Silu, T>(2, 2056, packed, layout);
      expect_gated<gates::Silu, T>(2, 300, packed, layout);
    }
  }
}

TYPED_TEST(StandInGated, EveryGateIsTheHosts) {
  using T = TypeParam;
  const auto expect = []<class Gate>(Gate) { expect_gated<Gate, T>(3, 344, false, kLayouts[0]); };
  expect(gates::GeluTanh{}), expect(gates::Sigmoid{}), expect(gates::Gelu{});
}

// Nothing is launched, so addresses are enough.
TEST(StandInGatedShapes, BadArgumentsAreRefused) {
  using Gate = gates::Silu;
  const auto at = [](u64 address) { return reinterpret_cast<float*>(address); };
  float *const a = at(0x10000), *const b = at(0x20000), *const y = at(0x30000), *const da = at(0x40000),
               *const db = at(0x50000);
  const i64 before = launches();
  const auto forward = [](const float* x, const float* factor, i64 rows, i64 n, float* to) {
    return cuda::launch_gated_forward<Gate, float>(x, factor, rows, n, to, nullptr);
  };
  const auto refused = [](const char* what, cudaError_t status) {
    EXPECT_EQ(status, cudaErrorInvalidValue) << what;
  };
  refused("a null", forward(nullptr, b, 4, 8, y));
  refused("y null", forward(a, b, 4, 8, nullptr));
  refused("n = 0", forward(a, b, 4, 0, y));
  refused("rows < 0", forward(a, b, -1, 8, y));
  refused("overflow", forward(a, b, i64{1} << 40, i64{1} << 30, y));
  refused("y one element into a", forward(a, b, 4, 8, a + 1));
  refused("y over packed a", forward(a, nullptr, 4, 8, a));
  refused("a misaligned", forward(reinterpret_cast<const float*>(0x10002), b, 4, 8, y));
  const auto backward = [](const float* dy, const float* x, const float* factor, i64 rows, float* to_a,
                           float* to_b, float* again) {
    return cuda::launch_gated_backward<Gate, float>(dy, x, factor, rows, 8, to_a, to_b, again, nullptr);
  };
  refused("dy null", backward(nullptr, a, b, 4, da, db, nullptr));
  refused("da null", backward(y, a, b, 4, nullptr, db, nullptr));
  refused("db null", backward(y, a, b, 4, da, nullptr, nullptr));
  refused("da over b", backward(y, a, b, 4, b, db, nullptr));
  refused("db over da", backward(y, a, b, 4, da, da, nullptr));
  refused("y over a", backward(y, a, b, 4, da, db, a));
  expect_success(forward(nullptr, nullptr, 0, 8, nullptr));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
