// The CUDA kernels of gated pairs, run thread by thread on the host (tests/kernels/gpu_stand_in/), give the
// host's bits.
#include "kernels/cuda/gated_codes.cuh"

#include <gtest/gtest.h>

#include <cstring>
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

// --- From codes of 8 bits ------------------------------------------------------------------------

template <class T, class Kept>
struct FormatOf;
template <class T, class F>
struct FormatOf<T, cuda::AtScale<F>> {
  static constexpr const TensorFormat<T>& kFormat = kTensorAtScale<F, T>;
};
template <class T>
struct FormatOf<T, cuda::InBlocks> {
  static constexpr const TensorFormat<T>& kFormat = kTensorInBlocks<T>;
};

template <class Gate, class Kept, class T>
void expect_codes(i64 rows, i64 n, bool packed, const Layout& layout) {
  using Scale = typename Kept::Scale;
  SCOPED_TRACE(std::string(Gate::kActivation) + " " + layout.name + ", " + std::to_string(rows) +
               " rows of " + std::to_string(n) + (packed ? ", packed" : ""));
  const i64 elements = rows * n, of_a = packed ? 2 * elements : elements,
            scales = sizeof(Scale) == 1 ? scales_of<MxFp8>(elements) : 1;
  Values<T> values(static_cast<u64>(elements));
  const std::vector<T> a = values.next(of_a), b = values.next(elements), dy = values.moderate(elements);
  std::vector<T> y(dy.size()), da(a.size()), db(b.size()), again(dy.size());
  std::vector<u8> codes[2];
  std::vector<Scale> own[2];
  for (int k = 0; k < 2; ++k) codes[k].resize(dy.size()), own[k].resize(static_cast<std::size_t>(scales));
  const GatedCodes<T> kept{&FormatOf<T, Kept>::kFormat, codes[0].data(), own[0].data(), codes[1].data(),
                           own[1].data()};
  const GatedShape shape{rows, n, packed ? 2 * n : n};
  gated_forward<Gate, T, kOneThread>(a.data(), packed ? a.data() + n : b.data(), shape, y.data(), &kept);
  gated_backward<Gate, T, kOneThread>(dy.data(), nullptr, nullptr, shape, da.data(),
                                      packed ? da.data() + n : db.data(), again.data(), &kept);
  const auto at = [&](int offset, const char* name, std::size_t bytes = sizeof(T)) {
    return Placement{layout.edge, offset * static_cast<int>(bytes), name};
  };
  auto device_a = GuardedArray<T>::with(a, at(layout.dy, "a")),
       device_b = GuardedArray<T>::with(b, at(layout.dx, "b")),
       device_dy = GuardedArray<T>::with(dy, at(layout.y, "dy"));
  const GuardedArray<T> new_y(elements, at(layout.y, "y")), new_da(of_a, at(layout.dy, "da")),
      new_db(elements, at(layout.dx, "db")), new_again(elements, at(layout.y, "y again"));
  const GuardedArray<u8> codes_of_a(elements, at(layout.dx, "codes of a", 1)),
      codes_of_b(elements, at(layout.dx, "codes of b", 1));
  const GuardedArray<Scale> scales_of_a(scales, at(0, "scales of a")),
      scales_of_b(scales, at(0, "scales of b"));
  const GuardedArray<u32> maxima(2 * cuda::kMostMaxima);
  device_a.make_read_only(), device_b.make_read_only(), device_dy.make_read_only();
  const cuda::GatedCodes on_device{codes_of_a.get(), scales_of_a.get(), codes_of_b.get(), scales_of_b.get()};
  next_order();
  expect_success((cuda::launch_gated_forward_8bit<Gate, Kept, T>(
      device_a.get(), packed ? nullptr : device_b.get(), rows, n, new_y.get(), on_device,
      sizeof(Scale) == 1 ? nullptr : maxima.get(), nullptr)));
  expect_equal("y", new_y, y);
  expect_equal("codes of a", codes_of_a, codes[0]);
  expect_equal("codes of b", codes_of_b, codes[1]);
  for (i64 k = 0; k < scales; ++k) {
    const auto i = static_cast<std::size_t>(k);
    ASSERT_EQ(std::memcmp(&scales_of_a.get()[i], &own[0][i], sizeof(Scale)), 0) << "scale " << k << " of a";
    ASSERT_EQ(std::memcmp(&scales_of_b.get()[i], &own[1][i], sizeof(Scale)), 0) << "scale " << k << " of b";
  }
  next_order();
  expect_success((cuda::launch_gated_backward_8bit<Gate, Kept, T>(
      device_dy.get(), on_device, rows, n, new_da.get(), packed ? nullptr : new_db.get(), new_again.get(),
      nullptr)));
  expect_equal("da", new_da, da);
  if (!packed) expect_equal("db", new_db, db);
  expect_equal("y again", new_again, again);
}

TYPED_TEST(StandInGated, CodesAndWhatComesOfThemAreTheHosts) {
  using T = TypeParam;
  const auto expect = []<class Gate>(Gate, i64 rows, i64 n, bool packed, const Layout& layout) {
    expect_codes<Gate, cuda::AtScale<F8E4M3>, T>(rows, n, packed, layout);
    expect_codes<Gate, cuda::AtScale<F8E5M2>, T>(rows, n, packed, layout);
    if (!packed) expect_codes<Gate, cuda::InBlocks, T>(1, rows * n, packed, layout);
    if (n % 32 == 0) expect_codes<Gate, cuda::InBlocks, T>(rows, n, packed, layout);
  };
  for (const bool packed : {false, true}) {
    for (const Layout& layout : kLayouts) {
      if (layout.in_place) continue;
      for (const i64 n : {1, 7, 32, 40, 96, 2080}) expect(gates::Silu{}, 3, n, packed, layout);
    }
    expect(gates::GeluTanh{}, 3, 352, packed, kLayouts[0]),
        expect(gates::Gelu{}, 3, 352, packed, kLayouts[0]);
    expect(gates::Sigmoid{}, 3, 352, packed, kLayouts[0]);
  }
}

// Nothing is launched, so addresses are enough.
TEST(StandInGatedShapes, BadArgumentsOfCodesAreRefused) {
  using Gate = gates::Silu;
  const auto at = [](u64 address) { return reinterpret_cast<float*>(address); };
  float *const a = at(0x10000), *const b = at(0x20000), *const y = at(0x30000), *const da = at(0x40000),
               *const db = at(0x50000);
  auto* const maxima = reinterpret_cast<u32*>(0x60000);
  const cuda::GatedCodes kept{at(0x70000), at(0x80000), at(0x90000), at(0xa0000)};
  const i64 before = launches();
  const auto refused = [](const char* what, cudaError_t status) {
    EXPECT_EQ(status, cudaErrorInvalidValue) << what;
  };
  const auto forward = [&](const float* x, const float* factor, i64 n, const cuda::GatedCodes& to,
                           u32* most) {
    return cuda::launch_gated_forward_8bit<Gate, cuda::AtScale<F8E4M3>>(x, factor, 4, n, y, to, most,
                                                                        nullptr);
  };
  refused("a null", forward(nullptr, b, 8, kept, maxima));
  refused("maxima null", forward(a, b, 8, kept, nullptr));
  refused("n = 0", forward(a, b, 0, kept, maxima));
  refused("codes null",
          forward(a, b, 8, {nullptr, kept.scales_of_a, kept.codes_of_b, kept.scales_of_b}, maxima));
  refused("codes over b", forward(a, b, 8, {b, kept.scales_of_a, kept.codes_of_b, kept.scales_of_b}, maxima));
  refused("one scale for both",
          forward(a, b, 8, {kept.codes_of_a, kept.scales_of_a, kept.codes_of_b, kept.scales_of_a}, maxima));
  refused("packed rows of parts of blocks", (cuda::launch_gated_forward_8bit<Gate, cuda::InBlocks, float>(
                                                a, nullptr, 4, 40, y, kept, nullptr, nullptr)));
  const auto backward = [&](const float* dy, float* to_a, float* to_b) {
    return cuda::launch_gated_backward_8bit<Gate, cuda::AtScale<F8E4M3>>(
        dy, kept, 4, 8, to_a, to_b, static_cast<float*>(nullptr), nullptr);
  };
  refused("dy null", backward(nullptr, da, db));
  refused("da null", backward(y, nullptr, db));
  refused("da over codes", backward(y, at(0x70000), db));
  refused("db over da", backward(y, da, da));
  EXPECT_EQ(launches(), before);
}

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
