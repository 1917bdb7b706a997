// The table of cores, what instructions cost on them, chains of dependent instructions, and the model of time.
#include "autotune/cpu/model.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "autotune/device.h"
#include "kernels/host/elementwise.h"
#include "kernels/support/errors.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace outgrad::autotune::cpu {
namespace {

using kernels::i64;

constexpr double kOverlap = 4;
// Assumptions, which no recording has been fitted to. A start of OpenMP's threads that spin, and their barrier; a fence after streaming stores, which waits
// for the last lines to reach memory: a DRAM latency.
constexpr double kForkNs = 2000, kFenceNs = 100;
constexpr int kByte = 8;

// Pipes of Zen 4: bit i is FPi of the optimisation guide.
constexpr Pipes kFp01 = 0b0011, kFp23 = 0b1100, kFp12 = 0b0110, kFp03 = 0b1001, kFp1 = 0b0010, kFp2 = 0b0100, kFpAny = 0b1111;
constexpr double kLoadLatency = 8;  // of a vector, from the first-level cache; a store's data come back to a load as late

// AMD, "Software Optimization Guide for the AMD Zen4 Microarchitecture", publication 57647, with its spreadsheet of latencies, as LLVM has them in
// llvm/lib/Target/X86/X86ScheduleZnver4.td: pipes, clocks that a pipe is taken by 256 bits, latency.
struct Row {
  std::string_view opcode;  // how it begins; the first row that fits counts
  Pipes pipes;
  double clocks, latency;
};
constexpr Row kZen4[] = {
    {"vfm", kFp01, 1, 4},      {"vfnm", kFp01, 1, 4},     {"vmul", kFp01, 1, 3},        {"vadd", kFp23, 1, 3},       {"vsub", kFp23, 1, 3},
    {"vcmp", kFp01, 1, 2},     {"vmax", kFp01, 1, 2},     {"vmin", kFp01, 1, 2},        {"vsqrt", kFp1, 5, 15},      {"vdiv", kFp1, 3, 11},
    {"vblend", kFp01, 1, 1},   {"vpblend", kFp03, 1, 1},  {"vpermil", kFp12, 1, 2},     {"vperm", kFp12, 1, 5},      {"vshuf", kFp12, 1, 1},
    {"vpshuf", kFp12, 1, 2},   {"vunpck", kFp12, 1, 1},   {"vpunpck", kFp12, 1, 1},     {"vpack", kFp12, 1, 2},      {"vpalign", kFp12, 1, 2},
    {"vinsert", kFp12, 1, 2},  {"vextract", kFp12, 1, 4}, {"vpinsr", kFp12, 1, 2},      {"vpextr", kFp12, 1, 2},     {"vpsll", kFp12, 1, 1},
    {"vpsrl", kFp12, 1, 1},    {"vpsra", kFp12, 1, 1},    {"vcvtph2ps", kFp23, 2, 4},   {"vcvtps2ph", kFp23, 2, 6},  {"vcvtne", kFp23, 1, 6},
    {"vcvt", kFp23, 1, 3},     {"vpmovzx", kFp12, 1, 4},  {"vpmovsx", kFp12, 1, 4},     {"vpmov", kFp12, 1, 5},      {"vptest", kFp01, 1, 2},
    {"vfpclass", kFp01, 1, 2}, {"vmovmsk", kFp2, 1, 1},   {"vpbroadcast", kFp12, 1, 1}, {"vbroadcast", kFp12, 1, 1}, {"vrnd", kFp23, 1, 3},
    {"vround", kFp23, 1, 3},   {"k", kFp23, 1, 1},        {"v", kFpAny, 1, 1},  // logic, integer sums, and what is not known
};
// A permutation across the 128-bit lanes takes a pipe for as long at 256 bits as at 512 (Zn4PERMIT2_256, Zn4PERMIT2Z; of VPERMPS with a VEX prefix the same
// file says one pipe for one clock, which is as many a clock).
constexpr double kAcrossLanes = 2;
// GCC's costs for znver4 (gcc/config/i386/x86-tune-costs.h): VGATHERDPD is 17 operations, VGATHERDPS 24 and 5 clocks, about 7 of which do not depend on the
// width and 5 are each load's: of 2 and 4 elements. That wider ones take clocks in proportion to their operations is an assumption.
constexpr double kGatherFixed = 7, kGatherOperations = 24, kGatherClocks = 5, kGatherElements = 4;

bool is_register(std::string_view operand) { return !operand.empty() && operand.front() == '%'; }

// Nothing is done for them but renaming.
bool is_plain_move(const Instruction& instruction) {
  const auto& operands = instruction.operands;
  const bool moves = instruction.opcode == "mov" || instruction.opcode.starts_with("vmova") || instruction.opcode.starts_with("vmovu") ||
                     instruction.opcode.starts_with("vmovdq");
  return moves && operands.size() == 2 && is_register(operands[0]) && is_register(operands[1]) && operands[1].find('{') == std::string::npos;
}

bool is_comparison(const Instruction& instruction) { return instruction.opcode == "cmp" || instruction.opcode == "test"; }

// Of a register all widths and parts are one: "zmm7", "rax".
std::string whole_register(std::string_view name) {
  if (name.starts_with("xmm") || name.starts_with("ymm")) return "zmm" + std::string(name.substr(3));
  if (name.size() >= 2 && name[0] == 'r' && std::isdigit(static_cast<unsigned char>(name[1])) != 0) {
    while (!name.empty() && std::isdigit(static_cast<unsigned char>(name.back())) == 0) name.remove_suffix(1);
    return std::string(name);
  }
  static const std::map<std::string_view, std::string_view> kParts = {
      {"eax", "rax"}, {"ax", "rax"},  {"al", "rax"}, {"ah", "rax"},  {"ebx", "rbx"}, {"bx", "rbx"}, {"bl", "rbx"},  {"bh", "rbx"},  {"ecx", "rcx"},
      {"cx", "rcx"},  {"cl", "rcx"},  {"ch", "rcx"}, {"edx", "rdx"}, {"dx", "rdx"},  {"dl", "rdx"}, {"dh", "rdx"},  {"esi", "rsi"}, {"si", "rsi"},
      {"sil", "rsi"}, {"edi", "rdi"}, {"di", "rdi"}, {"dil", "rdi"}, {"ebp", "rbp"}, {"bp", "rbp"}, {"bpl", "rbp"}, {"esp", "rsp"}};
  const auto part = kParts.find(name);
  return std::string(part == kParts.end() ? name : part->second);
}

std::vector<std::string> registers_in(std::string_view operand) {
  std::vector<std::string> registers;
  for (std::size_t at = operand.find('%'); at != std::string_view::npos; at = operand.find('%', at + 1)) {
    std::size_t end = at + 1;
    while (end < operand.size() && std::isalnum(static_cast<unsigned char>(operand[end])) != 0) ++end;
    registers.push_back(whole_register(operand.substr(at + 1, end - at - 1)));
  }
  return registers;
}

// What an instruction reads and writes: registers, and places on the stack by their text, which a loop does not move.
struct Access {
  std::vector<std::string> reads, writes;
};

Access access_of(const Instruction& instruction) {
  Access access;
  const auto& operands = instruction.operands;
  // What writes flags alone.
  const bool compares = is_comparison(instruction) || instruction.opcode.starts_with("kortest") || instruction.opcode == "vptest" || is_jump(instruction);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::string& operand = operands[i];
    const bool destination = i + 1 == operands.size() && !compares;
    const bool memory = is_memory(operand), stack = memory && (operand.find("(%rsp)") != std::string::npos || operand.find("(%rbp)") != std::string::npos);
    if (!destination || memory) {
      const auto registers = registers_in(operand);
      access.reads.insert(access.reads.end(), registers.begin(), registers.end());
    }
    if (!destination) {
      if (stack) access.reads.push_back(operand.substr(0, operand.find('{')));
      continue;
    }
    if (memory) {
      if (stack) access.writes.push_back(operand.substr(0, operand.find('{')));
      continue;
    }
    const auto registers = registers_in(operand);  // of "%zmm1{%k2}" two
    if (registers.empty()) continue;
    access.writes.push_back(registers.front());
    access.reads.insert(access.reads.end(), registers.begin() + 1, registers.end());
    // The destination is a source too: where elements of it stay, of three-operand sums, and of what has one operand or two without a "v".
    const bool merges = operand.find("{%k") != std::string::npos && operand.find("{z}") == std::string::npos && registers.front().front() != 'k';
    const std::string& opcode = instruction.opcode;
    const bool accumulates = opcode.starts_with("vfm") || opcode.starts_with("vfnm") || opcode.starts_with("vpermt2") || opcode.starts_with("vpermi2") ||
                             opcode.starts_with("vgather") || opcode.starts_with("vpgather") || opcode.starts_with("vpternlog") ||
                             (opcode.front() != 'v' && opcode.front() != 'k' && !opcode.starts_with("mov") && !opcode.starts_with("lea"));
    if (merges || accumulates) access.reads.push_back(registers.front());
  }
  return access;
}

// Clocks that pipes take at the least: any set of them does the work that no other can do.
double pipe_clocks(const std::map<Pipes, double>& work, int pipes) {
  double clocks = 0;
  for (Pipes set = 1; set < (1U << pipes); ++set) {
    double own = 0;
    for (const auto& [mask, amount] : work)
      if ((mask & ~set) == 0) own += amount;
    clocks = std::max(clocks, own / __builtin_popcount(set));
  }
  return clocks;
}

struct Chains {
  double within = 0, growth = 0;
};

// The longest chain within a trip, what trips before it have left being there; and what a trip adds to the longest chain through all.
Chains chains_of(const Core& core, const std::vector<Instruction>& path) {
  std::vector<Access> accesses;
  std::vector<double> latencies;
  for (const Instruction& instruction : path) {
    accesses.push_back(access_of(instruction));
    latencies.push_back(cost_of(core, instruction).latency);
  }
  const auto run = [&](std::map<std::string, double>& ready) {
    double longest = 0;
    for (std::size_t i = 0; i < path.size(); ++i) {
      double start = 0;
      for (const std::string& read : accesses[i].reads)
        if (const auto found = ready.find(read); found != ready.end()) start = std::max(start, found->second);
      for (const std::string& write : accesses[i].writes) ready[write] = start + latencies[i];
      longest = std::max(longest, start + latencies[i]);
    }
    return longest;
  };
  std::map<std::string, double> fresh, kept;
  Chains chains;
  chains.within = run(fresh);
  // A pipeline in software spreads a chain over a few trips; beyond them every trip adds the same.
  constexpr int kSettled = 16;
  double before = 0, after = 0;
  for (int trip = 0; trip < 2 * kSettled; ++trip) {
    after = run(kept);
    if (trip + 1 == kSettled) before = after;
  }
  chains.growth = (after - before) / kSettled;
  return chains;
}

double p_norm(double a, double b, double c) { return std::pow(std::pow(a, kOverlap) + std::pow(b, kOverlap) + std::pow(c, kOverlap), 1 / kOverlap); }

struct Traffic {
  double read = 0, written = 0;  // bytes per element
};

// What grows with the elements: not a vector of columns, which the first-level cache keeps.
Traffic traffic_of(const Problem& problem) {
  constexpr double kMask = 1.0 / kByte;
  const double value = bytes_of(problem.format);
  return is_backward(problem.kernel) ? Traffic{2 * value + kMask, value} : Traffic{value, value + kMask};
}

double memory_ns(const Core& core, const Machine& machine, const Variant& variant, int threads) {
  const Problem& problem = variant.problem;
  const Traffic traffic = traffic_of(problem);
  const double all = problem.bytes(), own = all / threads;
  const double dram = core.dram_gb_per_s / threads, write = core.dram_write_gb_per_s / threads;  // bytes per ns
  const double level = own <= machine.l2_bytes ? core.l2_bytes * core.clock_ghz : all <= machine.l3_bytes ? core.l3_bytes * core.clock_ghz : dram;
  if (own <= machine.l1_bytes && !streams(variant)) return 0;
  if (streams(variant)) return traffic.read / level + traffic.written / write;
  return (traffic.read + 2 * traffic.written) / level;
}

}  // namespace

const Core& zen4() {
  // Dispatch, the two schedulers' 2 x 32 entries and the queue of 64 before them, pipes, branch: publication 57647 as above. Two 256-bit loads and one such
  // store a clock. Assumed: 32 bytes a clock from the second and the third level. The clock is an EPYC 9004's boost (data sheets: 3.7 to 4.4 GHz); memory
  // is that of one core complex, whose link moves 32 bytes in and 16 out at 1.8 GHz. Both are assumptions: a virtual machine does not say where its cores are.
  static const Core kCore = {.name = "Zen 4",
                             .clock_ghz = 3.7,
                             .dispatch = 6,
                             .waiting = 2 * 32 + 64,
                             .vector_pipes = 4,
                             .pipe_bits = 256,
                             .load_pipes = 2,
                             .store_pipes = 1,
                             .mispredict = 13,
                             .l2_bytes = 32,
                             .l3_bytes = 32,
                             .dram_gb_per_s = 57.6,
                             .dram_write_gb_per_s = 28.8};
  return kCore;
}

const Core& core_of(unsigned family, unsigned model) {
  constexpr unsigned kFamily19h = 0x19;
  // Of family 19h: EPYC 9004 (10h-1Fh), desktop (60h-6Fh), mobile (70h-7Fh), EPYC 8004 and 97x4 (A0h-AFh).
  constexpr unsigned kZen4Models[] = {0x1, 0x6, 0x7, 0xa};
  if (family == kFamily19h && std::find(std::begin(kZen4Models), std::end(kZen4Models), model >> 4) != std::end(kZen4Models)) return zen4();
  throw kernels::EnvironmentError("no model of this CPU's cores (family " + std::to_string(family) + ", model " + std::to_string(model) + "; there is one of " +
                                  zen4().name + ")");
}

const Core& this_core() {
  unsigned family = 0, model = 0;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
    // CPUID leaf 1, EAX: base family, extended family, base model, extended model.
    family = (a >> 8 & 0xf) + (a >> 20 & 0xff);
    model = (a >> 4 & 0xf) | (a >> 12 & 0xf0);
  }
#endif
  if (const char* pretended = std::getenv("OUTGRAD_CPU_MODEL"); pretended != nullptr && std::sscanf(pretended, "%u,%u", &family, &model) != 2)
    throw kernels::EnvironmentError(std::string("OUTGRAD_CPU_MODEL: '") + pretended + "' is not FAMILY,MODEL");
  return core_of(family, model);
}

Cost cost_of(const Core& core, const Instruction& instruction) {
  constexpr int kElementBits = 32;
  Cost cost;
  if (instruction.opcode.starts_with("nop") || instruction.opcode == "endbr64") return cost;
  const int bits = vector_bits(instruction);
  const double halves = std::max(1.0, static_cast<double>(bits) / core.pipe_bits);  // 256-bit parts
  const bool writes_memory = !instruction.operands.empty() && is_memory(instruction.operands.back()) && !is_comparison(instruction);
  bool reads_memory = false;
  for (std::size_t i = 0; i < instruction.operands.size(); ++i)
    reads_memory = reads_memory || (is_memory(instruction.operands[i]) && (i + 1 < instruction.operands.size() || is_comparison(instruction)));
  if (instruction.opcode.starts_with("vgather") || instruction.opcode.starts_with("vpgather")) {
    const double elements = static_cast<double>(bits) / kElementBits;
    const double operations = kGatherFixed + (kGatherOperations - kGatherFixed) / kGatherElements * elements;
    cost.gather = true;
    cost.operations = operations;
    cost.microcode = operations * kGatherClocks / kGatherOperations;
    cost.latency = kLoadLatency + cost.microcode;
    return cost;
  }
  if (instruction.opcode.starts_with("lea")) reads_memory = false;
  if (is_plain_move(instruction)) return cost;
  const bool only_moves = instruction.opcode.starts_with("vmov") || instruction.opcode.starts_with("vbroadcast") ||
                          instruction.opcode.starts_with("vpbroadcast") || instruction.opcode.starts_with("kmov");
  if (reads_memory) cost.loads = halves, cost.latency = kLoadLatency;
  if (writes_memory) cost.stores = halves;
  const bool vector = instruction.opcode.front() == 'v' || instruction.opcode.front() == 'k';
  if (!vector) {
    cost.latency += writes_memory || is_jump(instruction) ? 0 : 1;
    return cost;
  }
  const bool masked_move = only_moves && instruction.operands.back().find("{%k") != std::string::npos;
  if (only_moves && !masked_move && (reads_memory || writes_memory)) return cost;
  cost.permute = instruction.opcode.starts_with("vperm") || instruction.opcode.starts_with("vpshuf") || instruction.opcode.starts_with("vshuf");
  const bool across_lanes = instruction.opcode.starts_with("vperm") && !instruction.opcode.starts_with("vpermil");
  for (const Row& row : kZen4) {
    if (!instruction.opcode.starts_with(row.opcode)) continue;
    cost.pipes = row.pipes;
    cost.pipe_clocks = row.clocks * (instruction.opcode.front() == 'k' ? 1 : across_lanes ? std::max(kAcrossLanes, halves) : halves);
    cost.latency += row.latency;
    break;
  }
  return cost;
}

TripCost cost_of(const Core& core, const std::vector<Instruction>& path) {
  TripCost trip;
  std::map<Pipes, double> work;
  double microcode = 0, dispatched = 0, loads = 0, stores = 0;
  for (const Instruction& instruction : path) {
    const Cost cost = cost_of(core, instruction);
    ++trip.instructions;
    trip.loads += cost.loads > 0 ? 1 : 0;
    trip.stores += cost.stores > 0 ? 1 : 0;
    trip.gathers += cost.gather ? 1 : 0;
    trip.permutes += cost.permute ? 1 : 0;
    trip.operations += cost.operations;
    microcode += cost.microcode;
    dispatched += cost.gather ? 0 : cost.operations;
    if (cost.pipes != 0) work[cost.pipes] += cost.pipe_clocks;
    loads += cost.loads;
    stores += cost.stores;
  }
  trip.issue_clocks =
      std::max({dispatched / core.dispatch + microcode, pipe_clocks(work, core.vector_pipes), loads / core.load_pipes, stores / core.store_pipes});
  const Chains chains = chains_of(core, path);
  trip.chain_clocks = chains.within;
  trip.recurrence_clocks = chains.growth;
  trip.latency_clocks = std::max(chains.growth, chains.within / (1 + core.waiting / std::max(1.0, trip.operations)));
  return trip;
}

Machine this_machine() {
  const CpuIdentity cpu = identify_cpu();
  return {cpu.threads, static_cast<double>(cpu.l1d_bytes), static_cast<double>(cpu.l2_bytes), static_cast<double>(cpu.l3_bytes)};
}

CodeCost cost_of(const Core& core, const HotLoops& loops, FormatId format) {
  const auto of = [&](const Trip& trip) { return LoopCost{cost_of(core, trip.path), static_cast<double>(trip.stored_bytes) / bytes_of(format)}; };
  CodeCost cost{of(loops.main), std::nullopt, static_cast<double>(loops.main.before)};
  if (loops.rest) cost.rest = of(*loops.rest);
  return cost;
}

std::optional<std::string> without_model(const Variant& variant) {
  const KernelId kernel = variant.problem.kernel;
  if (kernel != KernelId::kGeluForward && kernel != KernelId::kGeluBackward && kernel != KernelId::kBiasGeluForward)
    return std::string("there is a model of gelu_forward, gelu_backward and bias_gelu_forward, not of ") + autotune::name_of(kernel);
  if (kernel == KernelId::kGeluForward && bytes_of(variant.problem.format) < static_cast<int>(sizeof(float)) && variant.gelu().vector_bits == 256)
    return "a forward of 16 bits in vectors of 256 bits looks up its outputs by code: there is no model of that";
  if (variant.gelu().vector_bits == 0) return "scalar code has no model";
  return std::nullopt;
}

bool streams(const Variant& variant) {
  static constexpr kernels::CpuSchedule kStreaming = {.vector_bits = 256, .streaming_stores = true};
  constexpr int kLine = 64;  // bytes: rows begin on one where they are streamed (kernels/host/bias.h)
  if (!variant.gelu().streaming_stores) return false;
  if (variant.problem.over_rows() && variant.problem.cols * bytes_of(variant.problem.format) % kLine != 0) return false;
  // Arrays of the tuner are aligned; so are the null pointers here.
  const i64 elements = variant.problem.elements();
  return bytes_of(variant.problem.format) == sizeof(float) ? kernels::detail::streams<kStreaming>(static_cast<const float*>(nullptr), elements)
                                                           : kernels::detail::streams<kStreaming>(static_cast<const kernels::BF16*>(nullptr), elements);
}

Variant loop_variant(const Variant& variant) {
  Variant loop = variant;
  loop.gelu().threads = 0;
  loop.gelu().block_elements = kernels::CpuSchedule{}.block_elements;
  loop.gelu().streaming_stores = true;  // its object has the loop without, too, which short arrays take
  return loop;
}

Prediction predict(const Core& core, const Machine& machine, const Variant& variant, const CodeCost& code) {
  const kernels::CpuSchedule& schedule = variant.gelu();
  const Problem& problem = variant.problem;
  const i64 n = problem.elements(), block = schedule.block_elements, tasks = (n + block - 1) / block;
  const i64 threads = std::min<i64>(schedule.threads > 0 ? schedule.threads : machine.threads, tasks);
  Prediction p;
  p.memory_ns = memory_ns(core, machine, variant, static_cast<int>(threads));
  const auto loop_ns = [&](const LoopCost& loop) {
    const double clocks = loop.elements * core.clock_ghz;
    return p_norm(loop.trip.issue_clocks / clocks, loop.trip.latency_clocks / clocks, p.memory_ns);
  };
  p.issue_ns = code.main.trip.issue_clocks / code.main.elements / core.clock_ghz;
  p.latency_ns = code.main.trip.latency_clocks / code.main.elements / core.clock_ghz;
  p.loop_ns = loop_ns(code.main);
  const double rest_ns = code.rest ? loop_ns(*code.rest) : p.loop_ns;
  // A run of the loop: a task, or a part of a row in one. Its last elements, less than a trip's, go through the loop for them.
  const double start_ns = (code.before / core.dispatch + code.main.trip.chain_clocks + core.mispredict) / core.clock_ghz;
  const auto run_ns = [&](i64 elements) {
    const auto rest = static_cast<double>(elements % static_cast<i64>(code.main.elements));
    return start_ns + (static_cast<double>(elements) - rest) * p.loop_ns + rest * rest_ns;
  };
  const i64 row = problem.kernel == KernelId::kBiasGeluForward ? problem.cols : n;
  const auto task_ns = [&](i64 begin, i64 end) {
    double ns = streams(variant) ? kFenceNs : 0;
    for (i64 i = begin; i < end;) {
      const i64 stop = std::min(end, (i / row + 1) * row);
      ns += run_ns(stop - i);
      i = stop;
    }
    return ns;
  };
  // All tasks but the last are alike where rows do not cut them differently, and the model is linear in them: the first stands for its like.
  const bool alike = row % block == 0 || block % row == 0;
  double busiest_ns = 0;
  i64 first = 0;
  for (i64 thread = 0; thread < threads; ++thread) {
    const i64 own = tasks / threads + (thread < tasks % threads ? 1 : 0);
    double ns = 0;
    if (alike) {
      const bool has_last = first + own == tasks;
      ns = static_cast<double>(own - (has_last ? 1 : 0)) * (tasks > 1 ? task_ns(0, block) : 0);
      if (has_last) ns += task_ns((tasks - 1) * block, n);
    } else {
      for (i64 task = first; task < first + own; ++task) ns += task_ns(task * block, std::min(n, (task + 1) * block));
    }
    if (ns > busiest_ns) {
      busiest_ns = ns;
      p.busiest = static_cast<double>(std::min(n, (first + own) * block) - first * block);
    }
    first += own;
  }
  p.ns = busiest_ns + (threads > 1 ? kForkNs : 0);
  p.starts_ns = p.ns - p.busiest * p.loop_ns;
  return p;
}

}  // namespace outgrad::autotune::cpu
