// Instructions of hot paths, by kind of kernel.
#include "autotune/gpu/facts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "autotune/gpu/sass.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::RowHome;
using kernels::cuda::kOctet;

int number_of(const Architecture& architecture) { return std::stoi(architecture.name.substr(3)); }

SassFunction only_function(const GpuCode& code, const Architecture& architecture) {
  std::vector<SassFunction> functions = decode_cubin(code.cubin, number_of(architecture));
  if (functions.size() != 1 || code.kernels.size() != 1)
    throw std::runtime_error("not one kernel in its cubin");
  return std::move(functions.front());
}

CodeFacts facts_of_kernel(const std::pair<std::string, KernelResources>& kernel) {
  CodeFacts facts;
  facts.symbol = kernel.first, facts.resources = kernel.second;
  return facts;
}

// Bytes of shared memory that a load occupies; 0 for another instruction.
int shared_bytes_of(const std::string& opcode) {
  constexpr int kBank = 4;  // narrower loads occupy a bank each, too
  static const std::map<std::string, int> kWidths = {
      {"LDS.U8", kBank}, {"LDS.S8", kBank}, {"LDS.U16", kBank}, {"LDS.S16", kBank},
      {"LDS.32", 4},     {"LDS.64", 8},     {"LDS.128", 16}};
  const auto width = kWidths.find(opcode);
  return width == kWidths.end() ? 0 : width->second;
}

CodeFacts loop_facts(const GpuVariant& variant, const GpuCode& code, const Architecture& architecture) {
  const SassFunction function = only_function(code, architecture);
  const bool bias_backward = variant.problem.kernel == KernelId::kBiasGeluBackward,
             narrow = bias_backward && !is_wide(variant.problem);
  const int element = bytes_of(variant.problem.format), together = narrow ? 1 : kOctet;
  const int access = narrow ? element : std::min(variant.schedule.access_bytes, kOctet * element);
  PathRules rules;
  rules.wide_store = access == 2 ? ".U16" : "." + std::to_string(8 * access);
  const int stores = variant.schedule.octets * together * element / access;
  rules.wide_stores = stores;
  // Some threads of bias's backward store the sums of their columns behind the loop, word by word.
  if (bias_backward && access != sizeof(float))
    rules.also_stores = {".32"};
  else if (bias_backward)
    rules.wide_stores += together;
  if (is_forward(variant.problem.kernel)) rules.also_stores = {".U8"};
  const HotPaths paths = hot_paths(function, rules);
  if (paths.path.empty())
    throw std::runtime_error("no path that stores its octets " + rules.wide_store.substr(1) +
                             " bits at a time");
  const LoopExtent loop = loop_around(function, paths, rules, static_cast<std::size_t>(stores));
  if (loop.last == 0) throw std::runtime_error("its octets are stored outside any loop");
  CodeFacts facts = facts_of_kernel(code.kernels.front());
  const double elements = together * variant.schedule.octets;
  // The two paths differ by f32's branch into the tail, which a warp takes where one of its 32 lanes has such
  // an x: below -2.4375, which x ~ N(0, 1) is with a probability of 0.0074.
  constexpr double kTail = 0.0073945;
  // Where sums are stored as rows are, the longest path of bias's backward is one of more rows and no sums.
  const double longest = bias_backward ? 0 : 1 - std::pow(1 - kTail, kWarp);
  for (const auto& [path, share] :
       {std::pair(&paths.path, longest), std::pair(&paths.shortest_path, 1 - longest)}) {
    for (const std::size_t at : *path) {
      if (!loop.holds(at)) {
        facts.prologue_instructions += share;
        continue;
      }
      facts.instructions_per_element += share / elements;
      facts.shared_loads_per_element += share * shared_bytes_of(function.instructions[at].opcode) / elements;
    }
  }
  return facts;
}

// Accesses of a thread on its way through one row, where the loops over octets take one trip.
struct RowAccesses {
  int stores = 0;  // of the rows that are written, in the schedule's accesses
  // of a forward's pass over the octets of a row that registers do not hold, before the last
  int of_pass = 0;
  // of a backward with rows in registers: those of what all rows share that were made before the sums, or
  // sums that others store
  int again = 0;
  // these and all others of 8 and 16 bytes: tensors, what all rows share, shared memory, the sums of a slot
  int counted = 0;
};

RowAccesses accesses_of(const GpuVariant& variant, int vectors_of_forward) {
  const NormKind kind = norm_kind(variant.problem.kernel);
  const kernels::GpuNormSchedule& s = variant.norm;
  constexpr int kShared = 16;  // bytes of the accesses to shared memory and to what all rows share
  const int element = bytes_of(variant.problem.format),
            tensor = kOctet * element / std::min(s.access_bytes, kOctet * element),
            kept = kOctet * element / kShared, words = kOctet * static_cast<int>(sizeof(float)) / kShared;
  const bool registers = s.home == RowHome::registers, shared = s.home == RowHome::shared;
  const int octets = registers ? s.octets : 1, residual = kind.residual ? 1 : 0;
  RowAccesses accesses;
  int others = 0;
  if (variant.main_kernel() == kernels::cuda::DeviceKernel::norm_backward_slots) {
    // Its stores alone are counted: what it reads is read on every way that stores all of the row and of the
    // sums. Slots side by side add up some of their sums each.
    const int sums = kernels::cuda::column_sums(kind.norm);
    accesses.stores = s.octets * tensor;
    accesses.counted = accesses.stores + s.octets * sums * words;
    if (s.block_rows > 1) accesses.again = (s.octets * sums - 1) * words;
    return accesses;
  }
  if (kind.forward) {
    const int passes = kind.norm == kernels::Norm::layer ? 2 : 1;  // before the one that writes
    accesses.stores = (1 + residual) * tensor;
    others = vectors_of_forward * words;
    if (registers) others += (1 + residual) * tensor;
    if (!registers) accesses.of_pass = shared ? kept : tensor;
    if (shared) others += (1 + residual) * tensor + kept;
    if (s.home == RowHome::memory) others += 2 * residual * tensor;
    others += (passes + 1) * accesses.of_pass;
  } else {
    // beta, and of LayerNorm gamma, before the sums; both and 1 / gamma behind them.
    const int vectors = kind.norm == kernels::Norm::layer ? 5 : 4;
    accesses.stores = tensor;
    others = vectors * words;
    if (registers) accesses.again = (vectors - 3) * words * octets;
    if (registers) others += (2 + residual) * tensor;
    if (shared) others += (2 + residual) * tensor + 2 * 3 * kept;
    if (s.home == RowHome::memory) others += (2 * 2 + residual) * tensor;
  }
  accesses.stores *= octets;
  accesses.counted = accesses.stores + octets * others;
  return accesses;
}

// How deep the loops in a loop are nested.
int height_of(const LoopExtent& loop, const std::vector<LoopExtent>& loops) {
  int height = 0;
  for (const LoopExtent& each : loops)
    if (each.first > loop.first && loop.holds(each)) height = std::max(height, 1 + height_of(each, loops));
  return height;
}

CodeFacts norm_facts(const GpuVariant& variant, const GpuCode& code, const Architecture& architecture) {
  const SassFunction function = only_function(code, architecture);
  CodeFacts facts = facts_of_kernel(code.kernels.front());
  facts.counted = false;
  if (!is_wide(variant.problem)) return facts;
  const NormKind kind = norm_kind(variant.problem.kernel);
  const bool registers = variant.norm.home == RowHome::registers,
             fused = variant.main_kernel() == kernels::cuda::DeviceKernel::norm_backward_slots;
  PathRules rules;
  rules.wide_store = "." + std::to_string(8 * std::min(variant.norm.access_bytes,
                                                       kOctet * bytes_of(variant.problem.format)));
  rules.also_stores = {".32", ".64", ".128"};  // rstd, x^, the sums of a slot
  rules.also_counted = {"LDG.64", "LDG.128", "STG.64", "STG.128", "LDS.128", "STS.128"};
  if (fused) rules.also_counted = {"STG.64", "STG.128"};
  HotPaths paths;
  RowAccesses accesses;
  // In registers, octets that may not be there have predicated loads. Elsewhere only what may be absent has:
  // gamma and beta, side channels' weights.
  rules.count_guarded = registers;
  // gamma and beta of a forward are there or not; where their loads are predicated, they are not counted, or
  // those of an absent beta are, too. So it is with the loads of a pass that sums; and what a backward reads
  // twice may be kept in registers, some of it or all.
  for (const int vectors : {kind.norm == kernels::Norm::layer ? 2 : 1, registers ? 2 : 0}) {
    accesses = accesses_of(variant, vectors);
    const int less = std::max({1, accesses.of_pass, accesses.again > 0 ? 2 : 0}),
              least = accesses.counted - std::max(2 * accesses.of_pass, accesses.again);
    for (rules.wide_stores = accesses.counted; rules.wide_stores >= least && paths.shortest == 0;
         rules.wide_stores -= less)
      paths = hot_paths(function, rules);
    if (paths.shortest > 0) break;
  }
  if (paths.shortest == 0) return facts;
  // The loop over rows is the widest around the stores of dx or y; within the loop over slots, where there is
  // one, the narrowest.
  const std::vector<LoopExtent> loops = loops_of(function);
  LoopExtent stored{function.instructions.size(), 0}, row, widest;
  int stores = 0;
  for (const std::size_t at : paths.shortest_path) {
    if (!is_instruction(function.instructions[at].opcode, "STG", rules.wide_store) ||
        stores == accesses.stores)
      continue;
    ++stores;
    stored = {std::min(stored.first, at), std::max(stored.last, at)};
  }
  for (const LoopExtent& loop : loops)
    if (loop.first <= stored.first && stored.last <= loop.last) {
      if (loop.last - loop.first >= widest.last - widest.first) widest = loop;
      if (row.last == 0 || loop.last - loop.first < row.last - row.first) row = loop;
    }
  if (row.last == 0) return facts;
  if (!fused) row = widest;
  const double elements = kOctet * (registers ? variant.norm.octets : 1);
  facts.counted = true;
  for (const std::size_t at : paths.shortest_path) {
    if (!row.holds(at)) {
      ++(widest.holds(at) ? facts.slot_instructions : facts.prologue_instructions);
      continue;
    }
    // for each of the octets that a trip of the innermost loop takes, or of the row's in registers
    double times = 1;
    const LoopExtent* innermost = nullptr;
    for (const LoopExtent& loop : loops)
      if (!(loop == row) && loop.holds(at) && (innermost == nullptr || loop.first >= innermost->first))
        innermost = &loop;
    if (!registers && innermost == nullptr) {
      ++facts.row_instructions;
      continue;
    }
    if (!registers) times = std::ldexp(1.0, -height_of(*innermost, loops));
    facts.instructions_per_element += times / elements;
    facts.shared_loads_per_element += times * shared_bytes_of(function.instructions[at].opcode) / elements;
  }
  return facts;
}

}  // namespace

CodeFacts facts_of(const GpuVariant& variant, const GpuCode& code, const Architecture& architecture) {
  return is_norm(variant.problem.kernel) ? norm_facts(variant, code, architecture)
                                         : loop_facts(variant, code, architecture);
}

std::vector<CodeFacts> helper_facts(const GpuCode& code) {
  std::vector<CodeFacts> all;
  for (const auto& kernel : code.kernels) {
    all.push_back(facts_of_kernel(kernel));
    all.back().counted = false;
  }
  return all;
}

}  // namespace outgrad::autotune::gpu
