// The stand-in for CUDA sees what it is there to see: each kind of error, in a kernel that commits it.
#include "tests/kernels/gpu_stand_in/stand_in.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/cuda/launch.cuh"
#include "tests/kernels/gpu_stand_in/cases.h"

namespace outgrad::tests::gpu_stand_in {
namespace {

using kernels::cuda::launch;

// Every element of a block's share through shared memory, to its neighbour's place.
template <bool Barrier>
__global__ void rotate(const float* x, float* y) {
  __shared__ float held[256];
  held[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  if constexpr (Barrier) __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = held[(threadIdx.x + 1) % blockDim.x];
}

// The same through dynamic shared memory.
__global__ void rotate_dynamic(const float* x, float* y) {
  float* const held = kernels::cuda::dynamic_shared<float>();
  held[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = held[(threadIdx.x + 1) % blockDim.x];
}

// How many elements differ from what rotate is to do, in blocks of 64.
template <class Kernel>
int wrong_of_rotate(Kernel kernel, std::size_t shared_bytes) {
  std::vector<float> values(192);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto x = GuardedArray<float>::with(values);
  const GuardedArray<float> y(192);
  expect_success(launch(kernel, 3, 64, shared_bytes, nullptr, static_cast<const float*>(x.get()), y.get()));
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    wrong += y.get()[i] == values[i / 64 * 64 + (i + 1) % 64] ? 0 : 1;
  return wrong;
}

TEST(StandIn, AMissingBarrierShowsUnderEveryOrder) {
  under_every_order([] {
    EXPECT_EQ(wrong_of_rotate(rotate<true>, 0), 0);
    EXPECT_GT(wrong_of_rotate(rotate<false>, 0), 0);
    EXPECT_EQ(wrong_of_rotate(rotate_dynamic, 64 * sizeof(float)), 0);
  });
}

// The same through copies that come later, which their own thread waits for.
template <int Left>
__global__ void rotate_copies(const float* x, float* y) {
  auto* const held = kernels::cuda::dynamic_shared<float>();
  __pipeline_memcpy_async(held + threadIdx.x, x + blockIdx.x * blockDim.x + threadIdx.x, sizeof(float));
  __pipeline_commit();
  __pipeline_commit();
  __pipeline_wait_prior(Left);
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = held[(threadIdx.x + 1) % blockDim.x];
}

TEST(StandIn, ACopyThatIsNotWaitedForShows) {
  under_every_order([] {
    EXPECT_EQ(wrong_of_rotate(rotate_copies<0>, 64 * sizeof(float)), 0);
    EXPECT_EQ(wrong_of_rotate(rotate_copies<1>, 64 * sizeof(float)), 0);
    EXPECT_EQ(wrong_of_rotate(rotate_copies<2>, 64 * sizeof(float)), 192);
  });
}

// Halves of a block of 64 that wait for themselves alone, by a name each or by one.
template <bool Apart>
__global__ void swap_halves(const float* x, float* y) {
  __shared__ float held[64];
  const unsigned half = threadIdx.x / 32;
  held[threadIdx.x] = x[threadIdx.x];
  if (half == 1) stand_in_barrier(Apart ? 2 : 1, 32);
  if (half == 0) stand_in_barrier(1, Apart ? 32 : 64);
  y[threadIdx.x] = held[half * 32 + (threadIdx.x + 1) % 32];
}

TEST(StandIn, BarriersByNameAreForTheirThreads) {
  std::vector<float> values(64, 1.0f);
  const auto x = GuardedArray<float>::with(values);
  const GuardedArray<float> y(64);
  under_every_order([&] {
    expect_success(launch(swap_halves<true>, 1, 64, 0, nullptr, static_cast<const float*>(x.get()), y.get()));
    EXPECT_EQ(launch(swap_halves<false>, 1, 64, 0, nullptr, static_cast<const float*>(x.get()), y.get()),
              cudaErrorLaunchFailure);
  });
}

// A warp may be a whole phase ahead of the others where only its own lanes wait for each other.
template <bool Barrier>
__global__ void two_rounds(float* y) {
  __shared__ float held[2];
  float sum = 0.0f;
  for (int round = 0; round < 2; ++round) {
    if (Barrier || round == 0) __syncthreads();
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32] = static_cast<float>(round + 1);
    __syncthreads();
    sum += held[0] + held[1];
    sum = __shfl_sync(0xffffffffu, sum, 0);
  }
  y[threadIdx.x] = sum;
}

TEST(StandIn, AWarpThatRunsAheadIsSeen) {
  int seen = 0;
  under_every_order([&] {
    for (const bool barrier : {true, false}) {
      const GuardedArray<float> y(64);
      expect_success(launch(barrier ? two_rounds<true> : two_rounds<false>, 1, 64, 0, nullptr, y.get()));
      int wrong = 0;
      for (const float value : y.values()) wrong += value == 6.0f ? 0 : 1;
      if (barrier) {
        EXPECT_EQ(wrong, 0);
      } else if (wrong > 0) {
        ++seen;
      }
    }
  });
  EXPECT_GT(seen, 0);
}

// Memory of a block that it has not written is poison, not what the last block or launch left.
__global__ void read_unwritten(float* y) {
  __shared__ float held[32];
  if (threadIdx.x == 0) y[blockIdx.x] = held[5];
  held[threadIdx.x] = 1.0f;
}

TEST(StandIn, UnwrittenSharedMemoryIsPoison) {
  const GuardedArray<float> y(3);
  expect_success(launch(read_unwritten, 3, 32, 0, nullptr, y.get()));
  for (const float value : y.values()) EXPECT_TRUE(std::isnan(value));
}

void expect_failure(cudaError_t status, const std::vector<std::string>& words) {
  EXPECT_EQ(status, cudaErrorLaunchFailure);
  for (const std::string& word : words)
    EXPECT_NE(failure().find(word), std::string::npos) << word << " is not in: " << failure();
}

__global__ void copy(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = x[i];
}
// From x[-1] on.
__global__ void copy_from_before(const float* x, float* y, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) y[i] = x[i - 1];
}

TEST(StandIn, AccessBeyondAnArrayIsAnError) {
  const auto x = GuardedArray<float>::with(std::vector<float>(100, 1.0f), {.edge = Edge::end, .name = "x"});
  const GuardedArray<float> y(128, {.name = "y"});
  const float* const from = x.get();
  expect_success(launch(copy, 2, 64, 0, nullptr, from, y.get(), 100));
  expect_failure(launch(copy, 2, 64, 0, nullptr, from, y.get(), 101),
                 {"block 1, thread 36", "0 bytes past the end of 'x' of 400 bytes"});
  const auto z = GuardedArray<float>::with(std::vector<float>(100, 1.0f), {.edge = Edge::begin, .name = "z"});
  expect_failure(
      launch(copy_from_before, 1, 64, 0, nullptr, static_cast<const float*>(z.get()), y.get(), 100),
      {"block 0, thread 0", "4 bytes before 'z' of 400 bytes"});
  expect_success(launch(copy, 2, 64, 0, nullptr, from, y.get(), 100));
}

TEST(StandIn, WritesAroundAnArrayAreSeen) {
  const auto x = GuardedArray<float>::with(std::vector<float>(101, 1.0f));
  const GuardedArray<float> y(99);  // 396 bytes: 4 before the guard are left
  expect_success(launch(copy, 2, 64, 0, nullptr, static_cast<const float*>(x.get()), y.get(), 99));
  EXPECT_TRUE(y.untouched_outside());
  expect_success(launch(copy, 2, 64, 0, nullptr, static_cast<const float*>(x.get()), y.get(), 100));
  EXPECT_FALSE(y.untouched_outside());
}

TEST(StandIn, AWriteToWhatIsReadOnlyIsAnError) {
  const auto x = GuardedArray<float>::with(std::vector<float>(64, 1.0f));
  GuardedArray<float> y(64, {.name = "y"});
  y.make_read_only();
  expect_failure(launch(copy, 1, 64, 0, nullptr, static_cast<const float*>(x.get()), y.get(), 64),
                 {"byte 0 of 'y'", "read-only"});
}

__global__ void wide(const float* x, uint4* y) { y[threadIdx.x] = *reinterpret_cast<const uint4*>(x); }
__global__ void beyond_shared(float* y, int place) {
  __shared__ float held[32];
  held[static_cast<int>(threadIdx.x) + place] = 1.0f;
  y[threadIdx.x] = held[0];
}

TEST(StandIn, MisalignedAccessAndIndexBeyondSharedArrayAreErrors) {
  const auto x = GuardedArray<float>::with(std::vector<float>(8, 1.0f));
  const GuardedArray<uint4> y(1);
  expect_success(launch(wide, 1, 1, 0, nullptr, static_cast<const float*>(x.get()), y.get()));
  expect_failure(launch(wide, 1, 1, 0, nullptr, static_cast<const float*>(x.get() + 1), y.get()),
                 {"misaligned"});
  const GuardedArray<float> z(32);
  expect_success(launch(beyond_shared, 1, 32, 0, nullptr, z.get(), 0));
  expect_failure(launch(beyond_shared, 1, 32, 0, nullptr, z.get(), 1),
                 {"thread 31", "index beyond its array"});
}

TEST(StandIn, DynamicSharedMemoryEndsWhereItEnds) {
  const auto x = GuardedArray<float>::with(std::vector<float>(64, 1.0f));
  const GuardedArray<float> y(64);
  expect_failure(launch(rotate_dynamic, 1, 64, 63 * sizeof(float) - 12, nullptr,
                        static_cast<const float*>(x.get()), y.get()),
                 {"thread 60"});
  constexpr std::size_t kMore = 64 << 10;
  EXPECT_EQ(launch(rotate_dynamic, 1, 64, kMore, nullptr, static_cast<const float*>(x.get()), y.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(rotate_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(rotate_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kMore)),
            cudaSuccess);
  expect_success(launch(rotate_dynamic, 1, 64, kMore, nullptr, static_cast<const float*>(x.get()), y.get()));
}

__global__ void leave_early(float* y) {
  if (threadIdx.x == 37) return;
  __syncthreads();
  y[threadIdx.x] = 1.0f;
}
__global__ void two_barriers(float* y) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 1.0f;
}
__global__ void shuffle_by_half(float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
__global__ void shuffle_outside_the_mask(float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 16);
}

TEST(StandIn, ThreadsThatWaitForEverAreAnError) {
  under_every_order([] {
    const GuardedArray<float> y(64);
    expect_failure(launch(leave_early, 1, 64, 0, nullptr, y.get()),
                   {"block 0, thread 37 has ended", "waits in __syncthreads at"});
    expect_failure(launch(two_barriers, 1, 64, 0, nullptr, y.get()),
                   {"comes to the barrier at", "while others wait at"});
    expect_failure(launch(shuffle_by_half, 1, 32, 0, nullptr, y.get()),
                   {"thread 0 waits in __shfl_xor_sync", "thread 16 has ended"});
    expect_failure(launch(shuffle_outside_the_mask, 1, 32, 0, nullptr, y.get()),
                   {"which is not in its mask"});
  });
}

__global__ void collectives(unsigned* y) {
  const unsigned t = threadIdx.x;
  unsigned* const own = y + t * 8;
  own[0] = __shfl_sync(0xffffffffu, t, 5);
  own[1] = __shfl_sync(0xffffffffu, t, 5, 8);
  own[2] = __shfl_xor_sync(0xffffffffu, t, 4);
  own[3] = __shfl_xor_sync(0xffffffffu, t, 8, 8);
  own[4] = __shfl_down_sync(0xffffffffu, t, 3);
  own[5] = __shfl_up_sync(0xffffffffu, t, 3);
  own[6] = __ballot_sync(0xffffffffu, t % 3 == 0);
  own[7] = t % 32 < 16 ? __shfl_down_sync(0x0000ffffu, t, 1, 16) : 0;
}

TEST(StandIn, CollectivesGiveWhatTheGuideSays) {
  under_every_order([] {
    const GuardedArray<unsigned> y(64 * 8);
    expect_success(launch(collectives, 1, 64, 0, nullptr, y.get()));
    for (unsigned t = 0; t < 64; ++t) {
      const unsigned* const own = y.get() + t * 8;
      const unsigned warp = t / 32 * 32, lane = t % 32;
      unsigned ballot = 0;
      for (unsigned k = 0; k < 32; ++k) ballot |= ((warp + k) % 3 == 0 ? 1u : 0u) << k;
      EXPECT_EQ(own[0], warp + 5);
      EXPECT_EQ(own[1], t / 8 * 8 + 5);
      EXPECT_EQ(own[2], t ^ 4);
      // the later segment of 8 cannot be read, the earlier one can
      EXPECT_EQ(own[3], lane % 16 < 8 ? t : t - 8);
      EXPECT_EQ(own[4], lane + 3 < 32 ? t + 3 : t);
      EXPECT_EQ(own[5], lane >= 3 ? t - 3 : t);
      EXPECT_EQ(own[6], ballot);
      EXPECT_EQ(own[7], lane >= 16 ? 0 : lane == 15 ? t : t + 1);
    }
  });
}

// The seed is within PTX's bound, uses most of it, and is not simply the nearest float.
TEST(StandIn, SeedsOfRootsFillTheirBound) {
  kernels::patterns::Random random(7);
  double most = 0, least = 0;
  for (int k = 0; k < 200000; ++k) {
    const float t = kernels::float_of((random.next() % 0x7f000000u) + 0x00800000u);
    if (!(t < INFINITY)) continue;
    const double error = static_cast<double>(stand_in_rsqrt(t)) * std::sqrt(static_cast<double>(t)) - 1.0;
    most = std::max(most, error);
    least = std::min(least, error);
  }
  EXPECT_LE(most, kernels::cuda::kSeedError);
  EXPECT_GE(least, -kernels::cuda::kSeedError);
  EXPECT_GT(most, 0.9 * kernels::cuda::kSeedError);
  EXPECT_LT(least, -0.9 * kernels::cuda::kSeedError);
}

TEST(StandIn, GridsThatNoDeviceTakesAreRefused) {
  const GuardedArray<float> y(1);
  EXPECT_EQ(launch(leave_early, 0, 32, 0, nullptr, y.get()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(leave_early, 1, 1056, 0, nullptr, y.get()), cudaErrorInvalidConfiguration);
}

}  // namespace
}  // namespace outgrad::tests::gpu_stand_in
