// Bias + GELU on a GPU, run thread by thread on the host (tests/kernels/gpu_stand_in/), has the bits of
// kernels/host/bias.h: any shape, alignment, schedule and order of threads.
#include "kernels/cuda/bias.cuh"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/fits.h"
#include "kernels/host/bias.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

using Forward = ForwardFit<float>::Type;  // of what is not a matter of the format

constexpr CpuSchedule kPlain{.threads = 1};

template <GpuSchedule S>
struct Schedule {
  static constexpr GpuSchedule kSchedule = S;
};
using Small = Schedule<GpuSchedule{
    .threads = 32, .octets = 1, .access_bytes = 8, .blocks_per_sm = 1, .table = TableHome::columns}>;
using Streaming = Schedule<GpuSchedule{.threads = 64,
                                       .octets = 3,
                                       .blocks_per_sm = 2,
                                       .loads = CacheHint::streaming,
                                       .stores = CacheHint::streaming,
                                       .table = TableHome::rows}>;

struct Shape {
  i64 rows, n;
};
// Rows that are whole octets or not, one row, one column, fewer columns than an octet, ragged slots, slots of
// several rows.
constexpr Shape kShapes[] = {{1, 1},  {1, 8},   {3, 128},  {5, 72},  {7, 13}, {1, 1000}, {300, 1},
                             {37, 3}, {41, 40}, {2, 2048}, {65, 88}, {9, 7},  {1025, 8}};

// Offsets from a multiple of 16 bytes, in elements.
struct Layout {
  const char* name;
  Edge edge;
  int x, bias, y;
  bool in_place;
};
constexpr Layout kLayouts[] = {
    {"aligned, guards behind", Edge::end, 0, 0, 0, false},
    {"aligned, guards before", Edge::begin, 0, 0, 0, false},
    {"bias off by one element", Edge::end, 0, 1, 0, false},
    {"x off by one element", Edge::end, 1, 0, 0, false},
    {"y off by one element", Edge::end, 0, 0, 1, false},
    {"in place", Edge::end, 0, 0, 0, true},
    {"in place, off by one element", Edge::begin, 1, 1, 1, true},
};

template <class T>
Placement place(const Layout& layout, int elements, const char* name) {
  return {layout.edge, elements * static_cast<int>(sizeof(T)), name};
}

std::string text_of(const Shape& shape, const Layout& layout) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.n) + ", " + layout.name;
}

template <class T, class B, class Schedule>
void expect_forward(const Shape& shape, const Layout& layout) {
  SCOPED_TRACE(text_of(shape, layout));
  const i64 elements = shape.rows * shape.n;
  const std::vector<T> x = Values<T>(static_cast<u64>(elements)).next(elements);
  const std::vector<B> bias = Values<B>(static_cast<u64>(shape.n) + 99).next(shape.n);
  std::vector<T> expected(x.size());
  std::vector<u32> expected_mask(static_cast<std::size_t>(elements + 31) / 32);
  bias_gelu_forward<typename ForwardFit<T>::Type, T, kPlain>(x.data(), bias.data(), shape.rows, shape.n,
                                                             expected.data(), expected_mask.data());
  auto device_x = GuardedArray<T>::with(x, place<T>(layout, layout.x, "x"));
  auto device_bias = GuardedArray<B>::with(bias, place<B>(layout, layout.bias, "bias"));
  const GuardedArray<T> y(elements, place<T>(layout, layout.y, "y"));
  const GuardedArray<u32> mask((elements + 31) / 32, {layout.edge, 0, "mask"});
  device_bias.make_read_only();
  if (!layout.in_place) device_x.make_read_only();
  const GuardedArray<T>& out = layout.in_place ? device_x : y;
  next_order();
  expect_success(cuda::launch_bias_gelu_forward<typename ForwardFit<T>::Type, T, B, Schedule>(
      device_x.get(), device_bias.get(), shape.rows, shape.n, out.get(), mask.get(), nullptr));
  expect_equal("y", out, expected);
  expect_equal("mask", mask, expected_mask);
}

template <class Fit, class T, class Schedule>
void expect_backward(const Shape& shape, const Layout& layout) {
  SCOPED_TRACE(text_of(shape, layout));
  const i64 elements = shape.rows * shape.n;
  // Mostly moderate values, so that few columns end in NaN.
  const auto values = [&](u64 seed) {
    patterns::Random random(seed);
    std::vector<T> result;
    for (i64 i = 0; i < elements; ++i) {
      const T any = Values<T>(random.next()).next();
      const float moderate = static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f;
      result.push_back(random.next() % 101 == 0 ? any : narrow<T>(moderate));
    }
    return result;
  };
  const std::vector<T> dy = values(5), y = values(6);
  const std::vector<u32> mask = random_words(7, (elements + 31) / 32);
  std::vector<T> expected(dy.size());
  std::vector<float> expected_dbias(static_cast<std::size_t>(shape.n));
  bias_gelu_backward<Fit, T, kPlain>(dy.data(), y.data(), mask.data(), shape.rows, shape.n, expected.data(),
                                     expected_dbias.data());
  auto device_dy = GuardedArray<T>::with(dy, place<T>(layout, layout.x, "dy"));
  auto device_y = GuardedArray<T>::with(y, place<T>(layout, layout.bias, "y"));
  auto device_mask = GuardedArray<u32>::with(mask, {layout.edge, 0, "mask"});
  const GuardedArray<T> dx(elements, place<T>(layout, layout.y, "dx"));
  const GuardedArray<float> dbias(shape.n, place<float>(layout, layout.bias, "dbias"));
  const GuardedArray<float> workspace(cuda::bias_backward_workspace(shape.rows, shape.n),
                                      place<float>(layout, layout.bias, "workspace"));
  device_y.make_read_only();
  device_mask.make_read_only();
  if (!layout.in_place) device_dy.make_read_only();
  const GuardedArray<T>& out = layout.in_place ? device_dy : dx;
  next_order();
  expect_success(cuda::launch_bias_gelu_backward<Fit, T, Schedule>(
      device_dy.get(), device_y.get(), device_mask.get(), shape.rows, shape.n, out.get(), dbias.get(),
      workspace.size() > 0 ? workspace.get() : nullptr, workspace.size(), nullptr));
  expect_equal("dx", out, expected);
  expect_equal("dbias", dbias, expected_dbias);
  EXPECT_TRUE(workspace.untouched_outside());
}

template <class T>
class StandInBias : public testing::Test {};
TYPED_TEST_SUITE(StandInBias, TestedFormats);

TYPED_TEST(StandInBias, ForwardIsTheHosts) {
  using T = TypeParam;
  for (const Shape& shape : kShapes) {
    for (const Layout& layout : kLayouts) {
      expect_forward<T, float, DefaultGpuSchedule>(shape, layout);
      expect_forward<T, T, Small>(shape, layout);
      expect_forward<T, float, Streaming>(shape, layout);
    }
  }
}

TYPED_TEST(StandInBias, BackwardIsTheHosts) {
  using T = TypeParam;
  using Fit = typename DefaultFit<T>::Type;
  for (const Shape& shape : kShapes) {
    for (const Layout& layout : kLayouts) {
      expect_backward<Fit, T, DefaultGpuSchedule>(shape, layout);
      expect_backward<Fit, T, Small>(shape, layout);
      expect_backward<Fit, T, Streaming>(shape, layout);
    }
  }
}

// More slots than one launch adds up, a direct table.
TEST(StandInBiasShapes, ManySlotsAndADirectTableAreTheHosts) {
  expect_backward<generated::GeluBf16, BF16, DefaultGpuSchedule>({17001, 3}, kLayouts[0]);
  expect_backward<generated::GeluBf16Oracle, BF16, DefaultGpuSchedule>({1000, 16}, kLayouts[0]);
}

// Slots of more rows than are loaded together, which shapes alone give to large matrices only, and any number
// of them in a block: the kernel with fewer slots, against the sums by definition.
template <bool Wide, class Schedule>
void expect_slots(i64 rows, i64 slots, int beside, i64 n) {
  SCOPED_TRACE(std::to_string(slots) + " slots, " + std::to_string(beside) + " in a block, of " +
               std::to_string(rows) + " x " + std::to_string(n));
  using Fit = generated::GeluBf16;
  static constexpr auto kTable = table_of<Fit>();
  const i64 elements = rows * n;
  const std::vector<BF16> dy = Values<BF16>(1).moderate(elements), y = Values<BF16>(2).moderate(elements);
  const std::vector<u32> mask = random_words(3, (elements + 31) / 32);
  std::vector<BF16> dx(dy.size());
  std::vector<std::vector<float>> sums(static_cast<std::size_t>(slots),
                                       std::vector<float>(static_cast<std::size_t>(n), 0.0f));
  for (i64 slot = 0; slot < slots; ++slot) {
    for (i64 i = slot_begin(rows, slots, slot) * n; i < slot_begin(rows, slots, slot + 1) * n; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const bool m = (mask[k / 32] >> (k % 32) & 1) != 0;
      const float product = activation_backward_value<Fit>(FloatOps{}, kTable, &dy[k], &y[k], m);
      float& sum = sums[static_cast<std::size_t>(slot)][static_cast<std::size_t>(i % n)];
      sum = add_rn(sum, product);
      dx[k] = narrow<BF16>(product);
    }
  }
  std::vector<float> expected;
  for (std::size_t first = 0; first < sums.size(); first += static_cast<std::size_t>(beside)) {
    for (std::size_t pair = 1; pair < static_cast<std::size_t>(beside); pair *= 2) {
      for (std::size_t slot = first; slot < first + static_cast<std::size_t>(beside); slot += 2 * pair) {
        for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j)
          sums[slot][j] = add_rn(sums[slot][j], sums[slot + pair][j]);
      }
    }
    expected.insert(expected.end(), sums[first].begin(), sums[first].end());
  }
  const auto device_dy = GuardedArray<BF16>::with(dy), device_y = GuardedArray<BF16>::with(y);
  const auto device_mask = GuardedArray<u32>::with(mask);
  const GuardedArray<BF16> device_dx(elements);
  const GuardedArray<float> device_sums(slots / beside * n);
  next_order();
  expect_success(
      cuda::launch(cuda::bias_gelu_backward<Fit, BF16, Wide, Schedule>, 2, Schedule::kSchedule.threads, 0,
                   nullptr, device_dy.get(), device_y.get(), device_mask.get(), cuda::slot_rows(rows, slots),
                   __builtin_ctz(static_cast<unsigned>(beside)), n, device_dx.get(), device_sums.get()));
  expect_equal("dx", device_dx, dx);
  expect_equal("sums", device_sums, expected);
}

TEST(StandInBiasShapes, SlotsOfManyRowsAreTheTrees) {
  for (const i64 rows : {1, 2, 3, 4, 7, 26, 101}) {
    for (i64 slots = 1; slots <= rows; slots *= 4) {
      for (int beside = 1; beside <= slots; beside *= 4) {
        expect_slots<true, DefaultGpuSchedule>(rows, slots, beside, 40);
        expect_slots<false, DefaultGpuSchedule>(rows, slots, beside, 13);
        expect_slots<true, Streaming>(rows, slots, beside, 16);
        expect_slots<false, Streaming>(rows, slots, beside, 7);
      }
    }
  }
}

// Two launches for rows of 256 columns or more: what is left of their slots, one kernel adds up. And no
// schedule leaves more rows of sums than the workspace holds.
TEST(StandInBiasShapes, SumsTakeTwoLaunchesAndTheirWorkspace) {
  for (int threads = 32; threads <= 1024; threads += 32) {
    for (const i64 n : {1, 7, 8, 64, 256, 264, 768, 1000, 3072, 4096, 16384, 1 << 21}) {
      for (const i64 rows : {1, 2, 3, 100, 1024, 4096, 1 << 15, 1 << 20}) {
        for (const bool wide : {false, true}) {
          if (wide && n % cuda::kOctet != 0) continue;
          const cuda::LaunchPlan plan = cuda::bias_backward_plan(
              {.threads = threads, .octets = 2, .blocks_per_sm = 0}, rows, n, wide, {});
          const i64 sum_rows = slot_count(rows, n) / plan.launch[0].own_slots;
          EXPECT_EQ(plan.launches > 1, sum_rows > 1);
          if (sum_rows > 1) {
            EXPECT_LE(sum_rows * n, cuda::bias_backward_workspace(rows, n));
          }
          if (n >= 256 && threads % 256 == 0) {
            EXPECT_LE(plan.launches, 2) << rows << " x " << n;
          }
        }
      }
    }
  }
}

TEST(StandInBiasShapes, EveryLaunchIsOnTheStream) {
  using Fit = generated::GeluF32;
  constexpr i64 kRows = 5000, kN = 3;
  const auto stream = reinterpret_cast<cudaStream_t>(0x10);
  const std::set<cudaStream_t> alone = {stream};
  const GuardedArray<float> x(kRows * kN), bias(kN), y(kRows * kN),
      workspace(cuda::bias_backward_workspace(kRows, kN));
  const GuardedArray<u32> mask((kRows * kN + 31) / 32);
  take_streams();
  expect_success(cuda::launch_bias_gelu_forward<generated::GeluForward>(x.get(), bias.get(), kRows, kN,
                                                                        y.get(), mask.get(), stream));
  EXPECT_EQ(take_streams(), alone);
  const i64 before = launches();
  expect_success(cuda::launch_bias_gelu_backward<Fit>(x.get(), y.get(), mask.get(), kRows, kN, x.get(),
                                                      bias.get(), workspace.get(), workspace.size(), stream));
  EXPECT_EQ(launches(), before + 2);
  EXPECT_EQ(take_streams(), alone);
  expect_success(cuda::launch_bias_gelu_backward<Fit>(x.get(), y.get(), mask.get(), 0, kN, x.get(),
                                                      bias.get(), workspace.get(), 0, stream));
  EXPECT_EQ(take_streams(), alone);
}

TEST(StandInBiasShapes, NoRowsGiveZeroSumsAndNothingElse) {
  using Fit = generated::GeluF32;
  const i64 before = launches();
  const GuardedArray<float> dbias(5);
  expect_success((cuda::launch_bias_gelu_backward<Fit, float>(nullptr, nullptr, nullptr, 0, 5, nullptr,
                                                              dbias.get(), nullptr, 0, nullptr)));
  expect_equal("dbias", dbias, std::vector<float>(5, 0.0f));
  expect_success((cuda::launch_bias_gelu_forward<generated::GeluForward, float, float>(
      nullptr, nullptr, 0, 5, nullptr, nullptr, nullptr)));
  EXPECT_EQ(launches(), before);
}

// Each refused call differs from one that is taken in what is named; nothing is launched, so addresses are
// enough.
TEST(StandInBiasShapes, BadArgumentsAreRefused) {
  using Fit = generated::GeluF32;
  constexpr i64 kRows = 100, kN = 24, kMost = i64{1} << 59;
  const i64 before = launches();
  const auto at = [](u64 address) { return reinterpret_cast<float*>(address); };
  float *const x = at(0x10000), *const y = at(0x20000), *const dx = at(0x30000), *const bias = at(0x40000),
               *const work = at(0x50000);
  u32* const mask = reinterpret_cast<u32*>(0x60000);
  const auto forward = [](const float* a, const float* b, i64 rows, i64 n, float* c, u32* m) {
    return cuda::launch_bias_gelu_forward<generated::GeluForward, float, float>(a, b, rows, n, c, m, nullptr);
  };
  const auto refused = [&](const char* what, cudaError_t status) {
    EXPECT_EQ(status, cudaErrorInvalidValue) << what;
  };
  refused("x null", forward(nullptr, bias, kRows, kN, y, mask));
  refused("bias null", forward(x, nullptr, kRows, kN, y, mask));
  refused("y null", forward(x, bias, kRows, kN, nullptr, mask));
  refused("mask null", forward(x, bias, kRows, kN, y, nullptr));
  refused("rows < 0", forward(x, bias, -1, kN, y, mask));
  refused("n = 0", forward(x, bias, kRows, 0, y, mask));
  refused("n < 0", forward(x, bias, kRows, -kN, y, mask));
  refused("overflow", forward(x, bias, kMost, kN, y, mask));
  refused("y one element into x", forward(x, bias, kRows, kN, x + 1, mask));
  refused("y over bias", forward(x, bias, kRows, kN, bias - 1, mask));
  refused("mask over x", forward(x, bias, kRows, kN, y, reinterpret_cast<u32*>(x)));
  refused("mask over y", forward(x, bias, kRows, kN, y, reinterpret_cast<u32*>(y + kRows * kN - 1)));
  refused("mask over bias", forward(x, bias, kRows, kN, y, reinterpret_cast<u32*>(bias + kN - 1)));
  refused("x misaligned", forward(reinterpret_cast<const float*>(0x10002), bias, kRows, kN, y, mask));

  const i64 words = cuda::bias_backward_workspace(kRows, kN);
  EXPECT_EQ(words, 64 * kN);
  EXPECT_EQ(cuda::bias_backward_workspace(1, kN), 0);
  const auto backward = [](const float* a, const float* b, const u32* m, i64 rows, i64 n, float* c, float* d,
                           float* w, i64 count) {
    return cuda::launch_bias_gelu_backward<Fit, float>(a, b, m, rows, n, c, d, w, count, nullptr);
  };
  refused("dy null", backward(nullptr, y, mask, kRows, kN, dx, bias, work, words));
  refused("y null", backward(x, nullptr, mask, kRows, kN, dx, bias, work, words));
  refused("mask null", backward(x, y, nullptr, kRows, kN, dx, bias, work, words));
  refused("dx null", backward(x, y, mask, kRows, kN, nullptr, bias, work, words));
  refused("dbias null", backward(x, y, mask, kRows, kN, dx, nullptr, work, words));
  refused("dbias null, no rows", backward(x, y, mask, 0, kN, dx, nullptr, work, words));
  refused("workspace null", backward(x, y, mask, kRows, kN, dx, bias, nullptr, words));
  refused("workspace too small", backward(x, y, mask, kRows, kN, dx, bias, work, words - 1));
  refused("rows < 0", backward(x, y, mask, -1, kN, dx, bias, work, words));
  refused("n = 0", backward(x, y, mask, kRows, 0, dx, bias, work, words));
  refused("overflow", backward(x, y, mask, kN, kMost, dx, bias, work, words));
  refused("dx one element into dy", backward(x, y, mask, kRows, kN, x + 1, bias, work, words));
  refused("dx over y", backward(x, y, mask, kRows, kN, y, bias, work, words));
  refused("dx over mask", backward(x, y, reinterpret_cast<const u32*>(dx), kRows, kN, dx, bias, work, words));
  refused("dbias over dy", backward(x, y, mask, kRows, kN, dx, x + 5, work, words));
  refused("dbias over dx", backward(x, y, mask, kRows, kN, dx, dx + 5, work, words));
  refused("dbias over y", backward(x, y, mask, kRows, kN, dx, y + 5, work, words));
  refused("workspace over dbias", backward(x, y, mask, kRows, kN, dx, work + 1, work, words));
  refused("workspace over y", backward(x, y, mask, kRows, kN, dx, bias, y + 1, words));
  refused("workspace over dx", backward(x, y, mask, kRows, kN, dx, bias, dx + 1, words));
  refused("workspace over dy", backward(x, y, mask, kRows, kN, dx, bias, x + 1, words));
  refused("workspace over mask",
          backward(x, y, reinterpret_cast<const u32*>(work), kRows, kN, dx, bias, work, words));
  EXPECT_EQ(launches(), before);
}

}  // namespace
}  // namespace outgrad::kernels
