// The model of CPU variants: what must hold of it whatever its constants are, and examples worked out by hand.
#include "autotune/cpu/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/host/errors.h"

namespace outgrad::autotune::cpu {
namespace {

using kernels::i64;

Instruction instruction(const std::string& text) {
  return read_disassembly("0000000000001000 <f>:\n    1000:\t" + text + "\n", "test").front().instructions.front();
}

std::vector<Instruction> path(const std::vector<std::string>& texts, int times = 1) {
  std::vector<Instruction> instructions;
  for (int i = 0; i < times; ++i)
    for (const std::string& text : texts) instructions.push_back(instruction(text));
  return instructions;
}

std::vector<Instruction> joined(std::vector<Instruction> a, const std::vector<Instruction>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// AMD's families and models, as its revision guides have them.
TEST(CoreTable, KnowsZen4AndRefusesOthersByName) {
  for (const unsigned model : {0x11U, 0x61U, 0x74U, 0xa0U}) EXPECT_EQ(&core_of(0x19, model), &zen4()) << model;
  const auto refusal = [](unsigned family, unsigned model) -> std::string {
    try {
      return core_of(family, model).name;
    } catch (const kernels::EnvironmentError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal(0x19, 0x01), "no model of this CPU's cores (family 25, model 1; there is one of Zen 4)");    // Zen 3
  EXPECT_EQ(refusal(0x1a, 0x02), "no model of this CPU's cores (family 26, model 2; there is one of Zen 4)");    // Zen 5
  EXPECT_EQ(refusal(0x06, 0x8f), "no model of this CPU's cores (family 6, model 143; there is one of Zen 4)");   // Sapphire Rapids
}

TEST(Cost, OfInstructionsByHand) {
  // Two 256-bit halves on FP0 and FP1; the operand from memory takes two loads and their latency.
  const Cost fma = cost_of(zen4(), instruction("vfmadd132ps 0x40(%rsp),%zmm1,%zmm2"));
  EXPECT_EQ(fma.pipes, 0b0011U);
  EXPECT_EQ(fma.pipe_clocks, 2);
  EXPECT_EQ(fma.loads, 2);
  EXPECT_EQ(fma.latency, 8 + 4);
  EXPECT_EQ(cost_of(zen4(), instruction("vfmadd132ps %ymm0,%ymm1,%ymm2")).pipe_clocks, 1);
  // Across lanes half a vector costs as much.
  EXPECT_EQ(cost_of(zen4(), instruction("vpermt2ps %zmm0,%zmm1,%zmm2")).pipe_clocks, 2);
  EXPECT_EQ(cost_of(zen4(), instruction("vpermps %ymm0,%ymm1,%ymm2")).pipe_clocks, 2);
  EXPECT_EQ(cost_of(zen4(), instruction("vsqrtps %zmm0,%zmm1")).pipe_clocks, 10);
  // 7 + 17/4 x 16 operations at 5/24 of a clock.
  const Cost gather = cost_of(zen4(), instruction("vgatherdps (%rax,%zmm2,4),%zmm1{%k1}"));
  EXPECT_TRUE(gather.gather);
  EXPECT_DOUBLE_EQ(gather.operations, 75);
  EXPECT_DOUBLE_EQ(gather.microcode, 75.0 * 5 / 24);
  // Renamed away; a masked one is a blend.
  EXPECT_EQ(cost_of(zen4(), instruction("vmovaps %zmm1,%zmm2")).pipe_clocks, 0);
  EXPECT_EQ(cost_of(zen4(), instruction("vmovaps %zmm1,%zmm2{%k1}")).pipe_clocks, 2);
  const Cost store = cost_of(zen4(), instruction("vmovntps %zmm1,-0x40(%r11)"));
  EXPECT_EQ(store.stores, 2);
  EXPECT_EQ(store.loads, 0);
}

TEST(Issue, IsWhatAnOptimalAssignmentOfPipesLeaves) {
  const auto permutes = path({"vpermt2ps %zmm0,%zmm1,%zmm2"}, 8), sums = path({"vfmadd132ps %zmm4,%zmm5,%zmm6"}, 4);
  EXPECT_DOUBLE_EQ(cost_of(zen4(), permutes).issue_clocks, 8);             // 16 clocks on FP1 and FP2
  EXPECT_DOUBLE_EQ(cost_of(zen4(), sums).issue_clocks, 4);                 // 8 on FP0 and FP1
  EXPECT_DOUBLE_EQ(cost_of(zen4(), joined(permutes, sums)).issue_clocks, 8);  // FP0 takes the sums
  EXPECT_DOUBLE_EQ(cost_of(zen4(), joined(permutes, path({"vfmadd132ps %zmm4,%zmm5,%zmm6"}, 8))).issue_clocks, 32.0 / 3);  // all three are full
  EXPECT_DOUBLE_EQ(cost_of(zen4(), path({"add $0x1,%rax"}, 12)).issue_clocks, 2);                  // six a clock
  EXPECT_DOUBLE_EQ(cost_of(zen4(), path({"vmovups %zmm0,(%rdi)"}, 5)).issue_clocks, 10);           // one 256-bit store a clock
  EXPECT_DOUBLE_EQ(cost_of(zen4(), path({"vmovups (%rdi),%zmm0"}, 5)).issue_clocks, 5);            // two 256-bit loads a clock
}

TEST(Chain, IsTheLongestOfDependentInstructions) {
  const TripCost trip = cost_of(zen4(), path({"vmovups (%rsi,%rax,4),%ymm1", "vfmadd213ps %ymm3,%ymm2,%ymm1", "vfmadd213ps %ymm3,%ymm2,%ymm1",
                                              "vmulps %ymm4,%ymm4,%ymm5", "vmovups %ymm1,(%rdi,%rax,4)", "add $0x8,%rax"}));
  EXPECT_EQ(trip.chain_clocks, 8 + 4 + 4);
  EXPECT_EQ(trip.recurrence_clocks, 1);  // of the index
  EXPECT_EQ(trip.latency_clocks, 1);     // 16 / (1 + 128 / 6) is less than that
  // Through the stack, and through an element that a mask keeps.
  EXPECT_EQ(cost_of(zen4(), path({"vaddps %zmm0,%zmm1,%zmm2", "vmovaps %zmm2,0x40(%rsp)", "vmulps 0x40(%rsp),%zmm3,%zmm4"})).chain_clocks, 3 + 8 + 3);
  EXPECT_EQ(cost_of(zen4(), path({"vaddps %zmm0,%zmm1,%zmm2", "vmulps %zmm3,%zmm4,%zmm2{%k1}"})).chain_clocks, 3 + 3);
  EXPECT_EQ(cost_of(zen4(), path({"vaddps %zmm0,%zmm1,%zmm2", "vmulps %zmm3,%zmm4,%zmm2"})).chain_clocks, 3);
  // A sum that goes through all trips costs each of them its latency, however many are under way.
  const TripCost sum = cost_of(zen4(), path({"vaddps (%rsi,%rax,4),%ymm1,%ymm1", "add $0x8,%rax"}));
  EXPECT_EQ(sum.recurrence_clocks, 8 + 3);
  EXPECT_EQ(sum.latency_clocks, 8 + 3);
}

// The two limits: trips under way hide the chain while they are short, and not at all when one fills the core.
TEST(Latency, HidesBehindTripsThatTheCoreHolds) {
  std::vector<Instruction> trip = path({"vaddps %ymm1,%ymm1,%ymm2", "vaddps %ymm2,%ymm2,%ymm2"});
  const double chain = cost_of(zen4(), trip).chain_clocks;
  const auto with = [&](int others) { return cost_of(zen4(), joined(trip, path({"vmovaps %ymm8,%ymm9"}, others))); };
  EXPECT_DOUBLE_EQ(with(static_cast<int>(zen4().waiting) - 2).latency_clocks, chain / 2);
  EXPECT_LT(with(0).latency_clocks, 0.02 * chain);
  EXPECT_GT(with(100000).latency_clocks, 0.99 * chain);
  double before = 0;
  for (const int others : {0, 10, 100, 1000}) {
    const double clocks = with(others).latency_clocks;
    EXPECT_GT(clocks, before);
    EXPECT_LE(clocks, chain);
    before = clocks;
  }
}

constexpr i64 kElements = i64{1} << 19;
constexpr Machine kMachine = {.threads = 2, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 32 << 20};

Variant variant_of(KernelId kernel, FormatId format, const kernels::CpuSchedule& schedule, i64 rows = 1, i64 cols = kElements) {
  const Problem problem{kernel, format, rows, cols};
  Variant variant = default_variant(problem);
  variant.gelu() = schedule;
  return variant;
}

CodeCost code_of(const std::vector<Instruction>& instructions, double elements = 16) { return {{cost_of(zen4(), instructions), elements}, std::nullopt, 0}; }

constexpr kernels::CpuSchedule kSchedule = {.vector_bits = 512, .unroll = 1, .block_elements = 1 << 16};

TEST(Prediction, ByHand) {
  // One trip: 30 permutes, 30 clocks at 5 latency; 16 elements.
  const CodeCost code = code_of(path({"vpermps %zmm0,%zmm1,%zmm2"}, 30));
  kernels::CpuSchedule one = kSchedule;
  one.threads = 1, one.block_elements = kElements;
  const Prediction p = predict(zen4(), kMachine, variant_of(KernelId::kGeluForward, FormatId::kF32, one), code);
  EXPECT_DOUBLE_EQ(p.issue_ns, 30.0 / 16 / 3.7);
  EXPECT_DOUBLE_EQ(p.latency_ns, 5.0 / (1 + 128.0 / 30) / 16 / 3.7);
  EXPECT_DOUBLE_EQ(p.memory_ns, (4 + 2 * 4.125) / (32 * 3.7));  // in the third level
  EXPECT_DOUBLE_EQ(p.loop_ns, std::pow(std::pow(p.issue_ns, 4) + std::pow(p.latency_ns, 4) + std::pow(p.memory_ns, 4), 0.25));
  EXPECT_EQ(p.busiest, kElements);
  EXPECT_DOUBLE_EQ(p.ns, kElements * p.loop_ns + (5 + 13) / 3.7);
}

TEST(Prediction, MoreInstructionsAreNeverFaster) {
  // Each has a destination of its own: to overwrite another's would end that one's chain, and may well be faster.
  const std::vector<std::string> opcodes = {"vpermt2ps %zmm0,%zmm1,%zmm20",
                                            "vfmadd132ps %zmm0,%zmm1,%zmm21",
                                            "vaddps (%rax),%zmm1,%zmm22",
                                            "vmovups %zmm1,(%rdi)",
                                            "vgatherdps (%rax,%ymm2,4),%ymm3,%ymm23",
                                            "vsqrtps %zmm0,%zmm24",
                                            "add $0x8,%rax",
                                            "vmovaps %zmm1,%zmm25",
                                            "vmovaps %zmm4,0x80(%rsp)",
                                            "vpternlogd $0x1,%zmm0,%zmm1,%zmm26",
                                            "kortestw %k1,%k1"};
  for (const bool streaming : {false, true}) {
    kernels::CpuSchedule schedule = kSchedule;
    schedule.streaming_stores = streaming;
    const Variant variant = variant_of(KernelId::kGeluForward, FormatId::kF32, schedule);
    for (const std::string& first : opcodes) {
      std::vector<Instruction> trip = path({first});
      double before = predict(zen4(), kMachine, variant, code_of(trip)).ns;
      for (int round = 0; round < 5; ++round)
        for (const std::string& opcode : opcodes) {
          trip.push_back(instruction(opcode));
          const double after = predict(zen4(), kMachine, variant, code_of(trip)).ns;
          ASSERT_GE(after, before) << opcode << " after " << first;
          before = after;
        }
    }
  }
}

TEST(Prediction, FewerBytesAreNeverSlower) {
  const CodeCost code = code_of(path({"vpermps %zmm0,%zmm1,%zmm2"}, 2));
  for (const i64 elements : {i64{1} << 14, i64{1} << 19, i64{1} << 26})
    for (const bool streaming : {false, true}) {
      kernels::CpuSchedule schedule = kSchedule;
      schedule.streaming_stores = streaming;
      const auto ns = [&](KernelId kernel, FormatId format) {
        return predict(zen4(), kMachine, variant_of(kernel, format, schedule, 1, elements), code).loop_ns;
      };
      EXPECT_LE(ns(KernelId::kGeluForward, FormatId::kBf16), ns(KernelId::kGeluForward, FormatId::kF32));
      EXPECT_LE(ns(KernelId::kGeluForward, FormatId::kF32), ns(KernelId::kGeluBackward, FormatId::kF32)) << "backwards read twice as much";
    }
  // The same kernel, further away.
  double before = 0;
  for (const i64 elements : {i64{1} << 10, i64{1} << 16, i64{1} << 19, i64{1} << 26}) {
    const double ns = predict(zen4(), kMachine, variant_of(KernelId::kGeluForward, FormatId::kF32, kSchedule, 1, elements), code).memory_ns;
    EXPECT_GE(ns, before);
    before = ns;
  }
  EXPECT_GT(before, 0);
}

TEST(Prediction, WaitsForTheBusiestThread) {
  const CodeCost code = code_of(path({"vpermps %zmm0,%zmm1,%zmm2"}, 30));
  const auto with = [&](int block, int threads) {
    kernels::CpuSchedule schedule = kSchedule;
    schedule.block_elements = block, schedule.threads = threads;
    return predict(zen4(), kMachine, variant_of(KernelId::kGeluForward, FormatId::kF32, schedule), code);
  };
  EXPECT_EQ(with(1 << 18, 0).busiest, 1 << 18);
  EXPECT_EQ(with(1 << 19, 0).busiest, 1 << 19);            // one task, one thread
  EXPECT_EQ(with(192 << 10, 0).busiest, 2 * (192 << 10));  // three tasks: two of them, and a shorter third
  EXPECT_EQ(with(96 << 10, 0).busiest, 3 * (96 << 10));    // six: three, the last of which is the other's
  EXPECT_LT(with(1 << 18, 0).ns, 0.6 * with(1 << 18, 1).ns);
  EXPECT_LT(with(1 << 16, 0).ns, with(1 << 10, 0).ns);  // a task has its price
  EXPECT_LT(with(1 << 16, 0).ns, with(192 << 10, 0).ns);
}

// A row that whole trips do not fill ends in the loop for the rest; blocks and rows that cut each other are summed one by one.
TEST(Prediction, OfRowsEndsEachInTheLoopForTheRest) {
  CodeCost code = code_of(path({"vpermps %zmm0,%zmm1,%zmm2"}, 90), 48);
  code.rest = LoopCost{cost_of(zen4(), path({"vpermps %zmm0,%zmm1,%zmm2"}, 60)), 16};
  kernels::CpuSchedule schedule = kSchedule;
  schedule.threads = 1;
  const auto ns = [&](i64 cols, const CodeCost& cost) {
    return predict(zen4(), kMachine, variant_of(KernelId::kBiasGeluForward, FormatId::kF32, schedule, kElements / cols, cols), cost).ns;
  };
  CodeCost without = code;
  without.rest.reset();
  EXPECT_GT(ns(1024, code), ns(1024, without));                      // 1024 = 21 x 48 + 16
  EXPECT_GT(ns(1024, without), ns(4096, without));                   // fewer rows, fewer starts
  // Blocks of 3072 elements and rows of 4096 cut each other: 171 and 128 begin somewhere, 43 of them together.
  schedule.block_elements = 3 << 10;
  const Prediction cut = predict(zen4(), kMachine, variant_of(KernelId::kBiasGeluForward, FormatId::kF32, schedule, 128, 4096), without);
  EXPECT_NEAR(cut.ns, kElements * cut.loop_ns + (171 + 128 - 43) * (without.main.trip.chain_clocks + 13) / 3.7, 1e-9 * cut.ns);
}

TEST(Prediction, StreamsOnlyWhatTheKernelsStream) {
  kernels::CpuSchedule schedule = kSchedule;
  schedule.streaming_stores = true;
  EXPECT_TRUE(streams(variant_of(KernelId::kGeluForward, FormatId::kF32, schedule)));
  EXPECT_FALSE(streams(variant_of(KernelId::kGeluForward, FormatId::kF32, kSchedule)));
  EXPECT_TRUE(streams(variant_of(KernelId::kBiasGeluForward, FormatId::kF32, schedule, 1024, 1024)));
  EXPECT_FALSE(streams(variant_of(KernelId::kBiasGeluForward, FormatId::kF32, schedule, 1024, 1023)));
  EXPECT_FALSE(streams(variant_of(KernelId::kGeluForward, FormatId::kF32, schedule, 1, kElements / 2)));
  EXPECT_FALSE(streams(variant_of(KernelId::kGeluForward, FormatId::kBf16, schedule)));
}

TEST(Model, SaysWhatItIsNotOf) {
  EXPECT_FALSE(without_model(variant_of(KernelId::kGeluForward, FormatId::kF32, kSchedule)));
  EXPECT_TRUE(without_model(variant_of(KernelId::kGeluForward, FormatId::kF32, {})).value().find("scalar") != std::string::npos);
  EXPECT_TRUE(without_model(default_variant({KernelId::kBiasGeluBackward, FormatId::kF32, 512, 1024})).value().find("bias_gelu_backward") != std::string::npos);
  kernels::CpuSchedule narrow = kSchedule;
  narrow.vector_bits = 256;
  EXPECT_TRUE(without_model(variant_of(KernelId::kGeluForward, FormatId::kBf16, narrow)).value().find("looks up") != std::string::npos);
  EXPECT_FALSE(without_model(variant_of(KernelId::kGeluForward, FormatId::kBf16, kSchedule)));
  EXPECT_FALSE(without_model(variant_of(KernelId::kGeluBackward, FormatId::kBf16, kSchedule)));
  EXPECT_TRUE(without_model(default_variant({KernelId::kRmsnormForward, FormatId::kF32, 512, 1024})).has_value());
}

TEST(Model, SharesLoopsBetweenThoseThatAreCutDifferently) {
  kernels::CpuSchedule other = kSchedule;
  other.threads = 1, other.block_elements = 1 << 18, other.streaming_stores = true;
  const auto loop = [](const kernels::CpuSchedule& schedule) { return loop_variant(variant_of(KernelId::kGeluForward, FormatId::kF32, schedule)).name(); };
  EXPECT_EQ(loop(kSchedule), loop(other));
  other.unroll = 2;
  EXPECT_NE(loop(kSchedule), loop(other));
}

}  // namespace
}  // namespace outgrad::autotune::cpu
