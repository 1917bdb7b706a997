// The CUDA kernels of gated pairs that keep their product, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the host's bits.
#include "kernels/cuda/product.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/host/product.h"
#include "tests/kernels/gpu_stand_in/cases.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kOneThread{.threads = 1};

// layout: y is z's and dz's, dy that of a, dx that of b and the slots.
template <class Gate, class T>
void expect_product(i64 rows, i64 n, bool packed, const Layout& layout) {
  SCOPED_TRACE(std::string(Gate::kActivation) + " " + Format<T>::kName + ", " + layout.name + ", " +
               std::to_string(rows) + " rows of " + std::to_string(n) + (packed ? ", packed" : ""));
  const i64 elements = rows * n, of_a = packed ? 2 * elements : elements, words = cuda::mask_words(elements);
  Values<T> values(static_cast<u64>(elements));
  std::vector<T> a = values.moderate(of_a), b = values.moderate(elements), dz = values.moderate(elements);
  a[0] = T{}, b[static_cast<size_t>(elements / 2)] = T{};
  std::vector<T> z(dz.size()), slot(dz.size()), da(a.size()), db(b.size());
  std::vector<u32> mask(static_cast<size_t>(words));
  const GatedShape shape{rows, n, packed ? 2 * n : n};
  product_forward<Gate, T, kOneThread>(a.data(), packed ? a.data() + n : b.data(), shape, z.data(),
                                       slot.data(), mask.data());
  product_backward<Gate, T, kOneThread>(dz.data(), z.data(), slot.data(), mask.data(), shape, da.data(),
                                        packed ? da.data() + n : db.data());
  const auto at = [&](int offset, const char* name) {
    return Placement{layout.edge, offset * static_cast<int>(sizeof(T)), name};
  };
  auto device_a = GuardedArray<T>::with(a, at(layout.dy, "a")),
       device_b = GuardedArray<T>::with(b, at(layout.dx, "b")),
       device_dz = GuardedArray<T>::with(dz, at(layout.y, "dz"));
  const GuardedArray<T> new_z(elements, at(layout.y, "z")), new_slot(elements, at(layout.dx, "slot")),
      new_da(of_a, at(layout.dy, "da")), new_db(elements, at(layout.dx, "db"));
  const GuardedArray<u32> bits(words, Placement{layout.edge, 0, "mask"});
  const bool in_place = layout.in_place && !packed;
  if (!in_place) device_a.make_read_only(), device_b.make_read_only(), device_dz.make_read_only();
  const GuardedArray<T>&to_z = in_place ? device_a : new_z, &to_slot = in_place ? device_b : new_slot,
        &to_da = in_place ? device_dz : new_da, &to_db = in_place ? device_b : new_db;
  next_order();
  expect_success(cuda::launch_product_forward<Gate, T>(device_a.get(), packed ? nullptr : device_b.get(),
                                                       rows, n, to_z.get(), to_slot.get(), bits.get(),
                                                       nullptr));
  expect_equal("z", to_z, z);
  expect_equal("slot", to_slot, slot);
  expect_equal("mask", bits, mask);
  expect_success(cuda::launch_product_backward<Gate, T>(device_dz.get(), to_z.get(), to_slot.get(),
                                                        bits.get(), rows, n, to_da.get(),
                                                        packed ? nullptr : to_db.get(), nullptr));
  expect_equal("da", to_da, da);
  if (!packed) expect_equal("db", to_db, db);
}

template <class T>
class StandInProduct : public testing::Test {};
using SixteenBits = testing::Types<F16, BF16>;
TYPED_TEST_SUITE(StandInProduct, SixteenBits);

TYPED_TEST(StandInProduct, EveryShapeAndLayoutIsTheHosts) {
  using T = TypeParam;
  for (const bool packed : {false, true}) {
    for (const Layout& layout : kLayouts) {
      expect_product<gates::Silu, T>(1, 1, packed, layout);
      expect_product<gates::Silu, T>(5, 7, packed, layout);
      expect_product<gates::Silu, T>(3, 40, packed, layout);
      expect_product<gates::Silu, T>(2, 2056, packed, layout);
      expect_product<gates::Silu, T>(2, 300, packed, layout);
    }
  }
}

TYPED_TEST(StandInProduct, EveryGateIsTheHosts) {
  using T = TypeParam;
  expect_product<gates::GeluTanh, T>(3, 344, false, kLayouts[0]);
  expect_product<gates::Gelu, T>(3, 344, false, kLayouts[0]);
}

// Nothing is launched, so addresses are enough.
TEST(StandInProductShapes, BadArgumentsAreRefused) {
  using Gate = gates::Silu;
  const auto at = [](u64 address) { return reinterpret_cast<BF16*>(address); };
  BF16 *const a = at(0x10000), *const b = at(0x20000), *const z = at(0x30000), *const slot = at(0x40000),
              *const da = at(0x50000), *const db = at(0x60000);
  u32* const mask = reinterpret_cast<u32*>(0x70000);
  const i64 before = launches();
  const auto forward = [&](const BF16* x, const BF16* factor, i64 rows, i64 n, BF16* to, BF16* beside) {
    return cuda::launch_product_forward<Gate, BF16>(x, factor, rows, n, to, beside, mask, nullptr);
  };
  const auto refused = [](const char* what, cudaError_t status) {
    EXPECT_EQ(status, cudaErrorInvalidValue) << what;
  };
  refused("a null", forward(nullptr, b, 4, 8, z, slot));
  refused("z null", forward(a, b, 4, 8, nullptr, slot));
  refused("slot null", forward(a, b, 4, 8, z, nullptr));
  refused("n = 0", forward(a, b, 4, 0, z, slot));
  refused("rows < 0", forward(a, b, -1, 8, z, slot));
  refused("overflow", forward(a, b, i64{1} << 40, i64{1} << 30, z, slot));
  refused("z over b", forward(a, b, 4, 8, b, slot));
  refused("slot over z", forward(a, b, 4, 8, z, z));
  refused("z over packed a", forward(a, nullptr, 4, 8, a, slot));
  const auto backward = [&](const BF16* dz, BF16* to_a, BF16* to_b) {
    return cuda::launch_product_backward<Gate, BF16>(dz, z, slot, mask, 4, 8, to_a, to_b, nullptr);
  };
  refused("dz null", backward(nullptr, da, db));
  refused("da null", backward(a, nullptr, db));
  refused("da over z", backward(a, z, db));
  refused("db over da", backward(a, da, da));
  refused("packed da over dz", backward(a, a, nullptr));
  expect_success(forward(nullptr, nullptr, 0, 8, nullptr, nullptr));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
