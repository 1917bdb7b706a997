#include "autotune/gpu/model.h"

#include <gtest/gtest.h>

#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

KernelResources resources(int registers, int shared_bytes = 0) { return {registers, 0, 0, shared_bytes}; }

// The CUDA occupancy calculator's answers.
TEST(Occupancy, IsWhatCudaSays) {
  const Architecture& a100 = architecture_of("sm_80");
  EXPECT_EQ(resident_blocks(a100, resources(32), 256), 8);     // 2048 threads
  // 40 registers a thread: 1280 a warp, 12 warps a quarter
  EXPECT_EQ(resident_blocks(a100, resources(33), 256), 6);
  EXPECT_EQ(resident_blocks(a100, resources(64), 256), 4);
  EXPECT_EQ(resident_blocks(a100, resources(128), 256), 2);
  EXPECT_EQ(resident_blocks(a100, resources(255), 256), 1);
  EXPECT_EQ(resident_blocks(a100, resources(255), 512), 0);    // 2 warps a quarter, 16 needed in all
  EXPECT_EQ(resident_blocks(a100, resources(64), 1024), 1);
  EXPECT_EQ(resident_blocks(a100, resources(65), 1024), 0);
  EXPECT_EQ(resident_blocks(a100, resources(16), 32), 32);     // blocks, not threads, are the limit
  // 33 KiB each with the system's own, of 164
  EXPECT_EQ(resident_blocks(a100, resources(32, 32 * 1024), 256), 4);
  EXPECT_EQ(resident_blocks(a100, resources(32, 163 * 1024), 256), 1);
  EXPECT_EQ(resident_blocks(a100, resources(32, 164 * 1024), 256), 0);
  EXPECT_EQ(resident_blocks(architecture_of("sm_89"), resources(32), 1024), 1);  // 1536 threads
}

TEST(Occupancy, NeverGrowsWithWhatAKernelTakes) {
  for (const char* name : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    const Architecture& architecture = architecture_of(name);
    for (int threads = 32; threads <= 1024; threads += 32) {
      int last = architecture.blocks_per_sm;
      for (int registers = 16; registers <= 255; ++registers) {
        const int now = resident_blocks(architecture, resources(registers), threads);
        EXPECT_LE(now, last);
        EXPECT_LE(now * threads, architecture.threads_per_sm);
        last = now;
      }
      last = architecture.blocks_per_sm;
      for (int bytes = 0; bytes <= architecture.shared_per_block; bytes += 512) {
        const int now = resident_blocks(architecture, resources(16, bytes), threads);
        EXPECT_LE(now, last);
        last = now;
      }
    }
  }
}

TEST(Architectures, OthersAreNamed) {
  try {
    architecture_of("sm_70");
    FAIL();
  } catch (const kernels::SpecError& error) {
    EXPECT_NE(std::string(error.what()).find("sm_70"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("sm_90"), std::string::npos) << error.what();
  }
}

class ModelTest : public testing::Test {
 protected:
  GpuVariant variant_{{KernelId::kGeluBackward, FormatId::kF32},
                      fits_of({KernelId::kGeluBackward, FormatId::kF32}).front(),
                      kernels::GpuSchedule{.octets = 2}};
  CodeFacts code_{"kernel", resources(64, 8192), 40, 200, 32};
  Prediction on(const char* name) const { return predict(architecture_of(name), variant_, code_); }
};

// No prediction promises more than the roofline does.
TEST_F(ModelTest, StaysBelowEveryCeiling) {
  for (const char* name : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    const Prediction p = on(name);
    EXPECT_GT(p.share_of_bandwidth, 0);
    EXPECT_LT(p.share_of_bandwidth, 1);
    EXPECT_GE(p.ns, p.memory_ns);
    EXPECT_GE(p.ns, p.issue_ns);
    EXPECT_GE(p.ns, p.shared_ns);
    EXPECT_LE(p.occupancy, 1);
  }
}

TEST_F(ModelTest, MoreWorkTakesLonger) {
  const double before = on("sm_90").ns;
  code_.instructions_per_element = 80;
  const double slower = on("sm_90").ns;
  EXPECT_GT(slower, before);
  code_.shared_loads_per_element = 200;
  EXPECT_GT(on("sm_90").ns, slower);
}

TEST_F(ModelTest, FewBytesInFlightWasteBandwidth) {
  code_.resources = resources(32);
  variant_.schedule.octets = 1;
  variant_.schedule.threads = 64;
  variant_.schedule.blocks_per_sm = 1;
  const Prediction starved = on("sm_90");
  EXPECT_LT(starved.bytes_in_flight, starved.needed_in_flight);
  EXPECT_LT(starved.share_of_bandwidth, 0.5);
  variant_.schedule.blocks_per_sm = 32;
  const Prediction fed = on("sm_90");
  EXPECT_GE(fed.bytes_in_flight, fed.needed_in_flight);
  EXPECT_GT(fed.share_of_bandwidth, 0.75);
  EXPECT_GT(fed.share_of_bandwidth, 2 * starved.share_of_bandwidth);
}

// 9 blocks on 8 places take two rounds, but no block waits for the others of its round.
TEST_F(ModelTest, GridsThatFillNoWholeRoundPayAPart) {
  code_.resources = resources(32);
  variant_.schedule.threads = 256;
  variant_.schedule.blocks_per_sm = 8;
  const double whole = on("sm_90").ns;
  variant_.schedule.blocks_per_sm = 9;
  EXPECT_GT(on("sm_90").ns / whole, 1.2);
  EXPECT_LT(on("sm_90").ns / whole, 16.0 / 9);
  variant_.schedule.blocks_per_sm = 16;
  EXPECT_NEAR(on("sm_90").ns / whole, 1, 1e-9);
}

// Each costs time of its own: a table in the caches beside one in shared memory, narrow accesses, a hint that
// drops lines, few warps to a scheduler.
TEST_F(ModelTest, WhatTheMemoryPipeDoesCostsTime) {
  variant_.problem = variant_.problem.sized(1, 1 << 26);
  code_.shared_loads_per_element = 0;
  variant_.schedule.table = kernels::TableHome::columns;
  const double before = on("sm_90").ns;
  variant_.schedule.table = kernels::TableHome::caches;
  EXPECT_GT(on("sm_90").ns, before);
  variant_.schedule.table = kernels::TableHome::columns;
  for (const int access : {8, 4}) {
    variant_.schedule.access_bytes = access;
    EXPECT_GT(on("sm_90").ns, before);
  }
  variant_.schedule.access_bytes = 16;
  variant_.schedule.loads = kernels::CacheHint::streaming;
  EXPECT_GT(on("sm_90").ns, before);
  variant_.schedule.loads = kernels::CacheHint::none;
  const double issue = on("sm_90").issue_ns;
  code_.resources = resources(255);
  EXPECT_GT(on("sm_90").issue_ns, issue);
}

// A launch counts for more, the fewer elements there are.
TEST_F(ModelTest, SmallArraysPayForTheLaunch) {
  double last = 1;
  for (int log = 27; log >= 18; --log) {
    variant_.problem = variant_.problem.sized(1, kernels::i64{1} << log);
    const double share = on("sm_90").share_of_bandwidth;
    EXPECT_LT(share, last) << log;
    last = share;
  }
}

// A grid of what is resident has no round to fill, and a prologue once for all of a thread's elements.
TEST_F(ModelTest, AGridOfResidentBlocksFillsItsTablesOnce) {
  code_.resources = resources(80);
  variant_.schedule.blocks_per_sm = kernels::kAllResident;
  const Prediction all = on("sm_90");
  variant_.schedule.blocks_per_sm = 3;
  EXPECT_EQ(all.resident_blocks, 3);
  EXPECT_DOUBLE_EQ(all.ns, on("sm_90").ns);
  EXPECT_DOUBLE_EQ(all.bytes_in_flight, on("sm_90").bytes_in_flight);
  variant_.problem = variant_.problem.sized(1, 1 << 24);
  const double per_block = 256.0 * 132 * 200 / (1 << 24);  // instructions per element, of one block to an SM
  for (const auto& [blocks, times] :
       {std::pair{kernels::kAllResident, 3}, std::pair{3, 3}, std::pair{24, 24}}) {
    variant_.schedule.blocks_per_sm = blocks;
    EXPECT_NEAR(on("sm_90").issue_ns / all.issue_ns, (40 + times * per_block) / 40, 1e-9);
  }
}

TEST(Architectures, HaveSeveralBoards) {
  const Architecture &h200 = architecture_of("sm_90"), &h100 = architecture_of("sm_90", "H100 SXM");
  EXPECT_EQ(&h200, &architecture_of("sm_90", "H200 SXM"));
  EXPECT_EQ(h100.sms, h200.sms);
  EXPECT_LT(h100.dram_gb_per_s, h200.dram_gb_per_s);
  EXPECT_THROW(architecture_of("sm_90", "A10"), kernels::SpecError);
}

TEST_F(ModelTest, APrologueCountsWhereBlocksMakeOneTrip) {
  variant_.schedule.blocks_per_sm = 0;
  const double once = on("sm_90").issue_ns;
  variant_.schedule.blocks_per_sm = 8;
  EXPECT_NEAR(once / on("sm_90").issue_ns, (40 + 200 / 16.0) / 40, 1e-12);
}

}  // namespace
}  // namespace outgrad::autotune::gpu
