// The tuned launchers, run thread by thread on the host: which choice of a table runs, by device and size,
// told apart by fits that differ in bits; norms, whose choices differ in nothing but speed, give the host's
// bits.
#define OUTGRAD_TUNED_CUDA_HEADER "kernels/generated/tuned_tables_cuda.h"
#include "kernels/cuda/tuned.cuh"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kernels/host/elementwise.h"
#include "kernels/host/layernorm.h"
#include "tests/kernels/gpu_stand_in/cases.h"

namespace outgrad::kernels {
inline namespace OUTGRAD_ABI {
namespace cuda::tuned {

constexpr DeviceKey kHere{"cuda: Stand-in GPU, sm_80, 2 SMs, 8 GiB", "cuda: sm_80", "cuda: sm_8x"};
constexpr DeviceKey kRelative{"cuda: Another GPU, sm_80, 3 SMs, 8 GiB", "cuda: sm_80", "cuda: sm_8x"};
constexpr DeviceKey kCousin{nullptr, "cuda: sm_89", "cuda: sm_8x"};
constexpr DeviceKey kStranger{"cuda: Stand-in GPU, sm_90, 2 SMs, 8 GiB", "cuda: sm_90", "cuda: sm_9x"};

struct Fast {
  using Fit = generated::GeluBf16Fast;
  static constexpr GpuSchedule kSchedule{.threads = 64, .octets = 1};
};
struct Ulp {
  using Fit = generated::GeluBf16Ulp;
  static constexpr GpuSchedule kSchedule{.threads = 32, .octets = 2};
};
template <>
struct GeluBackward<BF16> : Fast {
  using Choices = kernels::Choices<Fast, Ulp, DefaultBackward<BF16>>;
  static constexpr bool kAnyAccuracy = true;  // fits are told apart by their bits
  static constexpr TunedEntry kEntries[] = {{kStranger, 1, 1000, 2, "stranger"},
                                            {kRelative, 1, 1000, 2, "relative"},
                                            {kHere, 1, 1000, 0, "small", Evidence::measured},
                                            {kHere, 1, 20000, 1, "large", Evidence::measured},
                                            {{}, 0, 0, 2}};
};

struct NormChoice {
  static constexpr GpuNormSchedule kSchedule{.row_warps = 2, .home = RowHome::shared};
};
template <>
struct LayernormForward<F16> : NormChoice {
  using Choices = kernels::Choices<NormChoice, DefaultNormForward>;
  static constexpr TunedEntry kEntries[] = {{kCousin, 4, 100, 0, "cousin", Evidence::predicted},
                                            {{}, 0, 0, 1}};
};

}  // namespace cuda::tuned
}  // namespace OUTGRAD_ABI

namespace {

using namespace tests::gpu_stand_in;

constexpr CpuSchedule kPlain{.threads = 1};

template <class Fit>
std::vector<u16> on_host(const std::vector<BF16>& dy, const std::vector<BF16>& y,
                         const std::vector<u32>& mask) {
  std::vector<BF16> dx(dy.size());
  gelu_backward<Fit, BF16, kPlain>(dy.data(), y.data(), mask.data(), dx.data(), static_cast<i64>(dy.size()));
  std::vector<u16> bits;
  for (const BF16 value : dx) bits.push_back(value.bits);
  return bits;
}

TEST(GpuStandInTuned, DeviceAndSizeChoose) {
  for (const i64 n : {100, 4000, 5000, 30'000}) {
    const std::vector<BF16> dy = Values<BF16>(1).moderate(n), y = Values<BF16>(2).moderate(n);
    std::vector<u32> mask(static_cast<std::size_t>(n + 31) / 32, 0xa5a5a5a5u);
    std::vector<BF16> dx(dy.size());
    ASSERT_EQ(
        cuda::tuned::launch_gelu_backward<BF16>(dy.data(), y.data(), mask.data(), dx.data(), n, nullptr),
        cudaSuccess)
        << failure();
    std::vector<u16> bits;
    for (const BF16 value : dx) bits.push_back(value.bits);
    const std::vector<u16> fast = on_host<generated::GeluBf16Fast>(dy, y, mask),
                           ulp = on_host<generated::GeluBf16Ulp>(dy, y, mask);
    ASSERT_NE(fast, ulp);
    const bool is_small = n * n < i64{1000} * 20000;  // nearer to 1000 than to 20000 by ratio
    EXPECT_EQ(bits, is_small ? fast : ulp) << n;
    Found found;
    ASSERT_EQ(cuda::tuned::find<cuda::tuned::GeluBackward<BF16>>(1, n, found), cudaSuccess);
    EXPECT_EQ(found.rung, Rung::device);
    EXPECT_STREQ(cuda::tuned::GeluBackward<BF16>::kEntries[found.entry].variant,
                 is_small ? "small" : "large");
  }
}

TEST(GpuStandInTuned, NormsRunTheirFamilysChoiceWithTheHostsBits) {
  constexpr i64 kRows = 5, kCols = 136;
  const std::vector<F16> x = Values<F16>(3).moderate(kRows * kCols);
  std::vector<F16> y(x.size()), expected(x.size());
  std::vector<float> rstd(kRows), expected_rstd(kRows);
  Found found;
  ASSERT_EQ(cuda::tuned::find<cuda::tuned::LayernormForward<F16>>(kRows, kCols, found), cudaSuccess);
  EXPECT_EQ(found.rung, Rung::family);
  EXPECT_EQ(cuda::tuned::LayernormForward<F16>::kEntries[found.entry].evidence, Evidence::predicted);
  const auto status = cuda::tuned::launch_norm_forward<Norm::layer, F16>(
      {.x = x.data(), .rows = kRows, .n = kCols, .y = y.data(), .rstd = rstd.data()}, nullptr);
  ASSERT_EQ(status, cudaSuccess) << failure();
  layernorm_forward<F16>(
      {.x = x.data(), .rows = kRows, .n = kCols, .y = expected.data(), .rstd = expected_rstd.data()});
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i].bits, expected[i].bits);
  EXPECT_EQ(rstd, expected_rstd);
}

TEST(GpuStandInTuned, WithoutATableTheDefaultRuns) {
  Found found{3, Rung::device};
  ASSERT_EQ(cuda::tuned::find<cuda::tuned::RmsnormBackward<float>>(1, 1, found), cudaSuccess);
  EXPECT_EQ(found.rung, Rung::all_devices);
  EXPECT_EQ(found.entry, 0);
  const std::int64_t before = launches();
  EXPECT_EQ(cuda::tuned::launch_gelu_forward<float>(nullptr, nullptr, nullptr, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cuda::tuned::launch_gelu_backward<BF16>(nullptr, nullptr, nullptr, nullptr, -1, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(launches(), before);
}

TEST(GpuStandInTuned, KeysGoFromTheParticularToTheGeneral) {
  const cuda::GpuKey h200 = cuda::key_of("NVIDIA H200", 9, 0, 132, 150'109'880'320);
  EXPECT_STREQ(h200.device.text(), "cuda: NVIDIA H200, sm_90, 132 SMs, 140 GiB");
  EXPECT_STREQ(h200.architecture.text(), "cuda: sm_90");
  EXPECT_STREQ(h200.family.text(), "cuda: sm_9x");
  EXPECT_STREQ(cuda::key_of("X", 12, 1, 1, 0).architecture.text(), "cuda: sm_121");
  EXPECT_STREQ(cuda::key_of("X", 12, 1, 1, 0).family.text(), "cuda: sm_12x");
  std::vector<std::thread> threads;
  std::vector<const char*> texts(8);
  for (std::size_t i = 0; i < texts.size(); ++i)
    threads.emplace_back([&texts, i] {
      DeviceKey key;
      if (cuda::this_device(key) == cudaSuccess) texts[i] = key.device;
    });
  for (std::thread& thread : threads) thread.join();
  for (const char* text : texts) EXPECT_STREQ(text, cuda::tuned::kHere.device);
}

}  // namespace
}  // namespace outgrad::kernels
