// Every schedule of the norms' CUDA kernels gives the host kernels' bits: homes of a row, warps that share
// it, rows side by side, sums over rows fused and separate. Run thread by thread on the host
// (tests/kernels/gpu_stand_in/).
#include <array>
#include <vector>

#include "tests/kernels/gpu_norm_cases.h"

namespace outgrad::kernels {
namespace {

using namespace gpu_norm_cases;

template <GpuNormSchedule S>
struct Schedule {
  static constexpr GpuNormSchedule kSchedule = S;
};
constexpr CacheHint kStreaming = CacheHint::streaming;
// Homes that are asked for, rows ahead of their turn, and what follows where a row does not suit them; slots
// side by side that meet at barriers; grids that loop.
using OneWarp = Schedule<GpuNormSchedule{.row_warps = 1,
                                         .octets = 8,
                                         .block_rows = 2,
                                         .access_bytes = 8,
                                         .blocks_per_sm = 1,
                                         .loads = kStreaming}>;
using TwoWarps = Schedule<GpuNormSchedule{
    .row_warps = 2, .octets = 4, .block_rows = 4, .rows_ahead = 0, .stores = kStreaming}>;
using FourWarps = Schedule<GpuNormSchedule{.row_warps = 4,
                                           .octets = 1,
                                           .block_rows = 2,
                                           .blocks_per_sm = 1,
                                           .rows_ahead = 4,
                                           .home = RowHome::registers}>;
using EightWarps = Schedule<GpuNormSchedule{.row_warps = 8,
                                            .octets = 2,
                                            .block_rows = 1,
                                            .access_bytes = 8,
                                            .rows_ahead = 3,
                                            .sums = ColumnSums::fused}>;
using AllWarps = Schedule<GpuNormSchedule{
    .row_warps = 32, .octets = 2, .access_bytes = 4, .rows_ahead = 0, .sums = ColumnSums::separate}>;
using SeparateSums =
    Schedule<GpuNormSchedule{.octets = 4, .block_rows = 8, .blocks_per_sm = 1, .sums = ColumnSums::separate}>;
using InShared = Schedule<GpuNormSchedule{.row_warps = 2, .blocks_per_sm = 1, .home = RowHome::shared}>;
using InSharedWide = Schedule<GpuNormSchedule{
    .row_warps = 16, .access_bytes = 8, .home = RowHome::shared, .loads = kStreaming, .stores = kStreaming}>;
using InMemory = Schedule<GpuNormSchedule{.row_warps = 8, .blocks_per_sm = 1, .home = RowHome::memory}>;
using SlotsInTurn = Schedule<GpuNormSchedule{
    .row_warps = 1, .octets = 1, .block_rows = 1, .access_bytes = 4, .rows_ahead = 2}>;
using InMemoryOneWarp = Schedule<GpuNormSchedule{.row_warps = 1, .access_bytes = 4, .home = RowHome::memory}>;

// As few slots to a block as side by side there are, or as many one after the other as it takes: levels of
// the tree that are put aside.
const std::vector<Case> kManySlots = {{.rows = 2048 + 77, .n = 8}, {.rows = 4500, .n = 8, .over = 0}};

TEST(StandInNormSchedules, RegistersOfOneWarp) {
  expect_all<Norm::layer, BF16, OneWarp, false>(small_cases());
}
TEST(StandInNormSchedules, RegistersOfTwoWarps) {
  expect_all<Norm::layer, float, TwoWarps, false>(small_cases());
}
TEST(StandInNormSchedules, RegistersOfFourWarps) {
  expect_all<Norm::layer, F16, FourWarps, true>(small_cases());
}
TEST(StandInNormSchedules, RegistersOfEightWarps) {
  expect_all<Norm::rms, BF16, EightWarps, true>(small_cases());
}
TEST(StandInNormSchedules, RegistersOfAllWarps) {
  expect_all<Norm::layer, float, AllWarps, true>(small_cases());
}
TEST(StandInNormSchedules, SeparateSums) {
  expect_all<Norm::layer, BF16, SeparateSums, false>(small_cases());
}
TEST(StandInNormSchedules, Shared) { expect_all<Norm::layer, BF16, InShared, true>(small_cases()); }
TEST(StandInNormSchedules, SharedInWideBlocks) {
  expect_all<Norm::rms, float, InSharedWide, true>(small_cases());
}
TEST(StandInNormSchedules, Memory) { expect_all<Norm::rms, F16, InMemory, false>(small_cases()); }
TEST(StandInNormSchedules, SlotsInTurn) { expect_all<Norm::layer, F16, SlotsInTurn, true>(kManySlots); }
TEST(StandInNormSchedules, SlotsInTurnAndSideBySide) {
  expect_all<Norm::layer, float, TwoWarps, false>({kManySlots[0]});
}
TEST(StandInNormSchedules, SeparateSumsOfManySlots) {
  expect_all<Norm::layer, BF16, SeparateSums, false>(kManySlots);
}
TEST(StandInNormSchedules, MemoryOfOneWarp) {
  expect_all<Norm::layer, BF16, InMemoryOneWarp, true>(small_cases());
}

// Rows of 8 and of 16 lanes, some of which have no octet; more rows than a block has side by side, in slots
// of one and of two rows, so that a warp's rows take different numbers of turns.
TEST(StandInNormSchedules, WarpsWithSeveralRows) {
  using Open = DefaultGpuNormSchedule;
  using EightRows = Schedule<GpuNormSchedule{.row_warps = 1, .octets = 2, .block_rows = 8, .rows_ahead = 3}>;
  const std::vector<Case> cases = {
      {.rows = 37, .n = 64, .over = 0},        {.rows = 3, .n = 56, .edge = Edge::begin},
      {.rows = 150, .n = 128, .side = true},   {.rows = 21, .n = 200, .affine = false},
      {.rows = 70, .n = 256, .sums = false},   {.rows = 9, .n = 384},
      {.rows = 5, .n = 512, .infinite = true}, {.rows = 1, .n = 8}};
  expect_all<Norm::layer, BF16, Open, false>(cases);
  expect_all<Norm::rms, BF16, Open, true>(cases);
  expect_all<Norm::layer, float, EightRows, false>(cases);
  expect_all<Norm::layer, float, Open, true>(cases);
}

TEST(StandInNormSchedules, FewerLanesShareAShortRow) {
  const auto planned = [](const GpuNormSchedule& schedule, i64 n,
                          cuda::CodeScales codes = cuda::CodeScales::none) {
    const cuda::NormTask task{.norm = Norm::rms,
                              .element_bytes = 2,
                              .residual = false,
                              .rows = 1000,
                              .n = n,
                              .wide = true,
                              .side = false,
                              .sums = false,
                              .codes = codes};
    const cuda::LaunchPlan plan = cuda::norm_forward_plan(schedule, task, {});
    EXPECT_EQ(plan.launch[0].threads, plan.norm.row_lanes * plan.norm.row_warps * plan.norm.block_rows);
    EXPECT_EQ(plan.launch[0].threads % kTreeLanes, 0) << n;
    return std::array{plan.norm.row_lanes, plan.norm.octets};
  };
  EXPECT_EQ(planned({}, 64), (std::array{8, 1}));
  EXPECT_EQ(planned({}, 128), (std::array{8, 2}));
  EXPECT_EQ(planned({}, 256), (std::array{8, 4}));
  EXPECT_EQ(planned({}, 512), (std::array{16, 4}));
  EXPECT_EQ(planned({}, 520), (std::array{32, 4}));
  EXPECT_EQ(planned({.block_rows = 2}, 128), (std::array{32, 1})) << "less than a warp otherwise";
  EXPECT_EQ(planned({.row_warps = 1, .octets = 1}, 128), (std::array{16, 1}));
  EXPECT_EQ(planned({}, 128, cuda::CodeScales::of_groups), (std::array{32, 1})) << "a warp makes a scale";
}

// A block takes more slots where no SM then works longer, and only there: a wave of an H200 and of an A100,
// and a device whose blocks have too little shared memory for it.
TEST(StandInNormSchedules, BlocksTakeTheSlotsThatCostNoSmTime) {
  const auto blocks = [](i64 rows, i64 n, const cuda::PlanLimits& limits) {
    const cuda::NormTask task{.norm = Norm::layer,
                              .element_bytes = 2,
                              .residual = false,
                              .rows = rows,
                              .n = n,
                              .wide = true,
                              .side = false,
                              .sums = true};
    const cuda::LaunchPlan plan = cuda::norm_backward_plan({}, task, limits);
    EXPECT_EQ(plan.launches, 2);
    EXPECT_EQ(plan.launch[1].left, plan.launch[0].blocks) << "the last kernel adds a row of each block";
    return plan.launch[0].blocks;
  };
  constexpr i64 kShared = 227 * 1024;
  EXPECT_EQ(blocks(4096, 8192, {.sms = 132, .shared_bytes = kShared}), 128);
  EXPECT_EQ(blocks(4096, 8192, {.sms = 108, .shared_bytes = 163 * 1024}), 256);
  EXPECT_EQ(blocks(4096, 8192, {.sms = 132, .shared_bytes = 128 * 1024}), 256);
  EXPECT_EQ(blocks(4096, 8192, {.shared_bytes = kShared}), 256);
  EXPECT_EQ(blocks(8192, 4096, {.sms = 132, .shared_bytes = kShared}), 256);
  EXPECT_EQ(blocks(8192, 1024, {.sms = 132, .shared_bytes = kShared}), 256);
}

}  // namespace
}  // namespace outgrad::kernels
