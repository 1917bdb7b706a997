// The table of architectures, occupancy, and the model of time.
#include "autotune/gpu/model.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <stdexcept>

#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

constexpr int kKiB = 1024;

// The board that an architecture is known by comes before its others.
const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kTable = {
      {"sm_80", "A100 SXM 80 GB", 108, 1.410, 2039, 2048, 32, 164 * kKiB, 163 * kKiB},
      {"sm_86", "A10", 72, 1.695, 600, 1536, 16, 100 * kKiB, 99 * kKiB},
      {"sm_89", "L40S", 142, 2.520, 864, 1536, 24, 100 * kKiB, 99 * kKiB},
      {"sm_90", "H200 SXM", 132, 1.980, 4800, 2048, 32, 228 * kKiB, 227 * kKiB},
      {"sm_90", "H100 SXM", 132, 1.980, 3350, 2048, 32, 228 * kKiB, 227 * kKiB},
      {"sm_100", "B200", 148, 1.965, 8000, 2048, 32, 228 * kKiB, 227 * kKiB},
      {"sm_120", "GeForce RTX 5090", 170, 2.407, 1792, 1536, 24, 100 * kKiB, 99 * kKiB},
  };
  return kTable;
}

// Granularities of allocation (CUDA occupancy calculator; the same for every architecture of the table).
constexpr int kRegistersPerSm = 65536, kRegisterUnit = 256;  // per warp
// of a block; an SM has two for each block that it holds (cuda_occupancy.h)
constexpr int kBlockBarriers = 16;
// bytes per block; the second is the system's own
constexpr int kSharedUnit = 128, kSharedReserved = 1024;
constexpr double kSharedBytesPerClock = 128;

// What follows was fitted, all together, to what an H200 measured in November 2026: the 168 rows of
// notebooks_data/gpu/nvidia_h200/timing.json that are of GELU, LayerNorm and RMSNorm by their defaults, and
// 384 of the tuner's candidates (tune_first_day.jsonl.gz beside it), by least squares on the logarithm of
// the time, outside of this repository; tests/gpu/model_error.py says how far off they are. The figures
// depend on one another: the latency, for one, is no load's, but the place of a corner whose sharpness is
// fitted too. No other board has measured any of it.
constexpr double kLatencyNs = 210, kSharpness = 3.1;
constexpr double kOverlap = 2.66;
// Warps per scheduler beneath which instructions that depend on one another are waited for.
constexpr double kStalledWarps = 2.4;
// Clocks of an SM for a cache line that a warp's load or store touches; for a row of a table that lanes read
// through L1, each at its place.
constexpr double kLineClocks = 2.9, kCachedRowClocks = 7.5;
// Lanes of a warp that read different rows of a table `rows` collide: with x ~ N(0, 1) fewer than if rows
// were equally likely.
constexpr double kRowConflicts = 1.5;
// Loads with the hint that they are read once: of elementwise kernels, and of norms.
constexpr double kStreamingTrips = 1.05, kStreamingRows = 0.96;
// Of the time that SMs stand idle while others have a block more, and of the last round of blocks; the rest
// is made up for, because blocks do not end together.
constexpr double kIdleSms = 0.77, kLastRound = 0.57;
// What a row waits for the sums over it, for each sum: as a block's only work between loads, or with rows
// requested ahead.
constexpr double kSumNs = 325, kSumAheadNs = 182;
// An instruction before the loop, most of which wait for the table.
constexpr double kPrologueNs = 3.2;
constexpr double kLaunchNs = 2000, kNextLaunchNs = 2300;
// of the bandwidth, in the kernels beside the one of the schedule: few blocks, each with little to request
constexpr double kHelperShare = 0.25;
// A norm's instructions per element where the machine code does not tell.
constexpr double kUncounted = 30;

int up_to(int value, int unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

const Architecture& architecture_of(const std::string& name, const std::string& board) {
  std::string known;
  for (const Architecture& each : architectures()) {
    if (each.name == name && (board.empty() || each.board == board)) return each;
    known += (known.empty() ? "" : ", ") + each.name + " (" + each.board + ")";
  }
  throw kernels::SpecError("device", board.empty() ? name : name + ", " + board, "no model of it: " + known);
}

int resident_blocks(const Architecture& architecture, const KernelResources& resources, int threads) {
  const int warps = up_to(threads, kWarp) / kWarp;
  int blocks = std::min(architecture.blocks_per_sm, architecture.threads_per_sm / (warps * kWarp));
  const int registers = up_to(resources.registers * kWarp, kRegisterUnit);
  if (registers > 0) {
    // Each of the four parts of an SM has a quarter of the registers and holds whole warps.
    const int resident_warps = kRegistersPerSm / kSchedulers / registers * kSchedulers;
    blocks = std::min(blocks, resident_warps / warps);
  }
  const int shared = up_to(resources.shared_bytes, kSharedUnit) + kSharedReserved;
  if (resources.shared_bytes > architecture.shared_per_block) return 0;
  return std::min(blocks, architecture.shared_per_sm / shared);
}

namespace {

using kernels::i64;
using kernels::cuda::DeviceKernel;
using kernels::cuda::kOctet;
using kernels::cuda::LaunchPlan;
using kernels::cuda::PlannedLaunch;

// `resident`: blocks of the schedule's kernel that an SM holds; a norm's plan does not ask.
LaunchPlan plan_of(const Architecture& architecture, const GpuVariant& variant, int resident = 0) {
  return variant.plan(
      variant.problem.rows, variant.problem.cols,
      {.sms = architecture.sms, .shared_bytes = architecture.shared_per_block, .resident_blocks = resident});
}

PlannedLaunch main_launch(const LaunchPlan& plan, const GpuVariant& variant) {
  for (int i = 0; i < plan.launches; ++i)
    if (plan.launch[i].kernel == variant.main_kernel()) return plan.launch[i];
  throw std::logic_error(variant.name() + ": a plan without its kernel");
}

// Device memory that a kernel beside the main one moves.
double bytes_of_helper(const PlannedLaunch& launch, const Problem& problem) {
  constexpr double kFloat = sizeof(float);
  const double n = static_cast<double>(problem.cols), rows = static_cast<double>(problem.rows);
  const i64 slots = kernels::slot_count(problem.rows, problem.cols);
  const bool norm = is_norm(problem.kernel);
  const double sums = norm ? kernels::cuda::column_sums(norm_kind(problem.kernel).norm) : 1,
               left = static_cast<double>(launch.left);
  switch (launch.kernel) {
    case DeviceKernel::norm_prepare:
      return kFloat * (2 * n + (kernels::kColumnArrays + 1) *
                                   static_cast<double>(kernels::cuda::padded_columns(problem.cols)));
    case DeviceKernel::norm_slot_sums:
      return 2 * rows * n * autotune::bytes_of(problem.format) +
             kFloat * sums * n * static_cast<double>(kernels::cuda::most_sum_rows(slots));
    case DeviceKernel::add_slots:
      return kFloat * sums * n * (left + std::ceil(left / kernels::cuda::kSlotFan));
    default:  // finish_columns: the rows of sums that are left, gamma, the results
      return kFloat * n * (sums * left + 1 + sums);
  }
}

double ns_of_others(const Architecture& architecture, const GpuVariant& variant, const LaunchPlan& plan) {
  double ns = 0;
  for (int i = 0; i < plan.launches; ++i)
    if (plan.launch[i].kernel != variant.main_kernel())
      ns += kNextLaunchNs +
            bytes_of_helper(plan.launch[i], variant.problem) / (kHelperShare * architecture.dram_gb_per_s);
  return ns;
}

// Memory's time per element on one SM, by Little's law without its corner.
double memory_ns(const Architecture& architecture, const Traffic& traffic, Prediction& p) {
  const double bytes = traffic.read + traffic.written,
               bandwidth = architecture.dram_gb_per_s / architecture.sms;
  p.needed_in_flight = kLatencyNs * bandwidth * traffic.read / bytes;
  const double fill = p.bytes_in_flight / p.needed_in_flight;
  return bytes / bandwidth * std::pow(1 + std::pow(fill, -kSharpness), 1 / kSharpness);
}

double issue_ns(const Architecture& architecture, double instructions, double threads) {
  const double stalled = kStalledWarps * kWarp * kSchedulers / threads;
  return instructions / (kWarp * kSchedulers * architecture.clock_ghz) * std::sqrt(1 + stalled * stalled);
}

// Of what a warp requests at once it touches whole lines, which hold an octet of a lane beside those of
// others: with accesses of less than an octet, each line several times.
double line_ns(const Architecture& architecture, const GpuVariant& variant, const Traffic& traffic,
               int access) {
  constexpr double kLine = 128;
  const double octet = kOctet * autotune::bytes_of(variant.problem.format);
  return (traffic.read + traffic.written) / kLine * (octet / access) * kLineClocks / architecture.clock_ghz;
}

double overlapped(std::initializer_list<double> parts) {
  double sum = 0;
  for (const double part : parts) sum += std::pow(part, kOverlap);
  return std::pow(sum, 1 / kOverlap);
}

// What it costs that blocks do not fill whole rounds, as a factor. per_sm: blocks, on average.
double rounding(double per_sm, int resident) {
  if (per_sm <= 1) return 1;
  const double rounds = per_sm / resident;
  return rounds <= 1 ? 1 + kIdleSms * (std::ceil(per_sm) / per_sm - 1)
                     : 1 + kLastRound * (std::ceil(rounds) / rounds - 1);
}

// The kernel of the schedule, on one SM; ns of the others is not in it.
Prediction of_trips(const Architecture& architecture, const GpuVariant& variant, const CodeFacts& code) {
  const kernels::GpuSchedule& schedule = variant.schedule;
  const Traffic traffic = traffic_of(variant.problem);
  const bool columns = variant.problem.kernel == KernelId::kBiasGeluBackward;
  const double elements_per_trip = (columns && !is_wide(variant.problem) ? 1 : kOctet) * schedule.octets;
  Prediction p;
  p.resident_blocks = resident_blocks(architecture, code.resources, schedule.threads);
  double blocks_per_sm = schedule.blocks_per_sm > 0 ? schedule.blocks_per_sm : p.resident_blocks;
  if (variant.problem.cols > 0) {
    const PlannedLaunch main = main_launch(plan_of(architecture, variant, p.resident_blocks), variant);
    blocks_per_sm = static_cast<double>(main.blocks) / architecture.sms;
  }
  const double threads = std::min<double>(p.resident_blocks, blocks_per_sm) * schedule.threads;
  p.occupancy = threads / architecture.threads_per_sm;
  p.bytes_in_flight = threads * elements_per_trip * traffic.read;
  p.memory_ns = memory_ns(architecture, traffic, p);
  // A thread has its prologue once for all its trips: for one where the grid has no loop, for as many as to
  // be without weight where no size is known. A thread of bias's backward has it for a slot's rows.
  double instructions = code.instructions_per_element;
  if (columns && variant.problem.cols > 0) {
    const i64 slots = kernels::slot_count(variant.problem.rows, variant.problem.cols);
    instructions +=
        code.prologue_instructions / (elements_per_trip / schedule.octets *
                                      static_cast<double>(variant.problem.rows) / static_cast<double>(slots));
  } else if (schedule.blocks_per_sm == 0) {
    instructions += code.prologue_instructions / elements_per_trip;
  } else if (variant.problem.cols > 0) {
    const PlannedLaunch main = main_launch(plan_of(architecture, variant, p.resident_blocks), variant);
    instructions += code.prologue_instructions * static_cast<double>(main.blocks * main.threads) /
                    static_cast<double>(variant.problem.elements());
  }
  p.issue_ns = issue_ns(architecture, instructions, threads);
  const double conflicts = schedule.table == kernels::TableHome::rows ? kRowConflicts : 1;
  p.shared_ns = conflicts * code.shared_loads_per_element / (kSharedBytesPerClock * architecture.clock_ghz);
  p.cache_ns = line_ns(architecture, variant, traffic, schedule.access_bytes);
  if (schedule.table == kernels::TableHome::caches)
    p.cache_ns += kCachedRowClocks / kWarp / architecture.clock_ghz;
  p.ns = overlapped({p.memory_ns, p.issue_ns, p.shared_ns, p.cache_ns});
  if (schedule.loads == kernels::CacheHint::streaming) p.ns *= kStreamingTrips;
  p.ns *= rounding(blocks_per_sm, p.resident_blocks);
  return p;
}

Prediction of_rows(const Architecture& architecture, const GpuVariant& variant, const CodeFacts& code,
                   const LaunchPlan& plan) {
  const kernels::GpuNormSchedule& s = variant.norm;
  const Problem& problem = variant.problem;
  const NormKind kind = norm_kind(problem.kernel);
  const PlannedLaunch main = main_launch(plan, variant);
  const bool fused = main.kernel == DeviceKernel::norm_backward_slots,
             registers = s.home == kernels::RowHome::registers;
  Prediction p;
  p.resident_blocks =
      resident_blocks(architecture, resources_of(architecture, variant, code.resources), main.threads);
  // Rows side by side that do not wait for one another: kernels/cuda/rows.cuh.
  if (fused && s.row_warps > 1 && s.block_rows > 1)
    p.resident_blocks = std::min(p.resident_blocks, 2 * architecture.blocks_per_sm / kBlockBarriers);
  const double blocks = static_cast<double>(main.blocks), per_sm = blocks / architecture.sms;
  const double threads = std::min<double>(p.resident_blocks, per_sm) * main.threads;
  p.occupancy = threads / architecture.threads_per_sm;
  // elements of a row that a thread has, on average
  const double own = static_cast<double>(problem.cols) / kernels::cuda::row_threads(s);
  // that a thread has a part of
  const double rows = static_cast<double>(problem.rows) / (blocks * s.block_rows);
  // and the slots they are of
  const double slots = fused ? static_cast<double>(main.own_slots) : 1;
  const Traffic traffic = traffic_of(problem);  // the rows of sums stay in L2
  p.bytes_in_flight =
      threads * (registers ? own * std::max(1, s.rows_ahead) : std::min<double>(own, kOctet)) * traffic.read;
  p.memory_ns = memory_ns(architecture, traffic, p);
  double instructions = kUncounted;
  if (code.counted) {
    // Octets that are not there are issued for as well, where registers hold the row.
    const double row_elements = registers ? kOctet * s.octets : own;
    instructions = (code.instructions_per_element * row_elements + code.row_instructions +
                    (code.slot_instructions * slots + code.prologue_instructions) / std::max(1.0, rows)) /
                   own;
    p.shared_ns =
        code.shared_loads_per_element * row_elements / own / (kSharedBytesPerClock * architecture.clock_ghz);
  }
  p.issue_ns = issue_ns(architecture, instructions, threads);
  p.cache_ns = line_ns(architecture, variant, traffic, s.access_bytes);
  p.ns = overlapped({p.memory_ns, p.issue_ns, p.shared_ns, p.cache_ns});
  if (s.loads == kernels::CacheHint::streaming) p.ns *= kStreamingRows;
  p.ns *= rounding(per_sm, p.resident_blocks);
  // Rows that the SM has side by side wait for their sums together.
  const int sums = kernels::cuda::column_sums(kind.norm);  // over a row, too
  const double beside = threads / kernels::cuda::row_threads(s);
  p.ns += sums * (s.rows_ahead > 0 ? kSumAheadNs : kSumNs) / (beside * static_cast<double>(problem.cols));
  return p;
}

}  // namespace

int block_threads(const GpuVariant& variant) {
  return is_norm(variant.problem.kernel) ? kernels::cuda::block_threads(variant.norm)
                                         : variant.schedule.threads;
}

KernelResources resources_of(const Architecture& architecture, const GpuVariant& variant,
                             const KernelResources& compiled) {
  KernelResources resources = compiled;
  if (is_norm(variant.problem.kernel))
    resources.shared_bytes +=
        static_cast<int>(main_launch(plan_of(architecture, variant), variant).shared_bytes);
  return resources;
}

Prediction predict(const Architecture& architecture, const GpuVariant& variant, const CodeFacts& code) {
  const bool norm = is_norm(variant.problem.kernel), sized = variant.problem.cols > 0;
  const LaunchPlan plan =
      sized ? plan_of(architecture, variant,
                      norm ? 0 : resident_blocks(architecture, code.resources, variant.schedule.threads))
            : LaunchPlan{};
  Prediction p = norm ? of_rows(architecture, variant, code, plan) : of_trips(architecture, variant, code);
  for (double* each : {&p.memory_ns, &p.issue_ns, &p.shared_ns, &p.cache_ns, &p.ns})
    *each /= architecture.sms;
  if (sized) {
    const double elements = static_cast<double>(variant.problem.elements());
    p.others_ns = ns_of_others(architecture, variant, plan) / elements;
    p.launch_ns = (kLaunchNs + (norm ? 0 : kPrologueNs * code.prologue_instructions)) / elements;
  }
  p.ns += p.others_ns + p.launch_ns;
  const Traffic traffic = traffic_of(variant.problem);
  p.share_of_bandwidth = (traffic.read + traffic.written) / p.ns / architecture.dram_gb_per_s;
  return p;
}

}  // namespace outgrad::autotune::gpu
