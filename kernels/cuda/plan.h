// What is launched for a kernel of a schedule and a shape: which instances, on what grids, in what order. Plain functions of values, so that
// launchers, which know a schedule at compile time, and the tuner, which knows it at run time alone, do the same; no CUDA is needed.
//
// Kernels' own arguments are here too, for whoever launches them without their source.
#pragma once

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/layernorm.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// Elements to a byte of the mask: no bit is shared between threads.
inline constexpr int kOctet = 8;
static_assert(kOctet == kChunkTerms, "a chunk of the summation tree is an octet");

// Threads of a block of the kernels that work by column: enough for full occupancy at any register count these kernels need.
inline constexpr int kColumnThreads = 256;
// Slots that one thread adds up: two launches for up to 4096 slots, four for 2^21.
inline constexpr int kSlotFan = 64;

// The widest rows that registers hold: one group of the tree.
inline constexpr int kMostRegisterSteps = kGroupSteps;
// Rows side by side make blocks of so many warps, enough that an SM's limit of blocks does not bind.
inline constexpr int kBlockWarps = 4;

// --- Arguments of kernels --------------------------------------------------------------------------------------------------------

// The rows of slots, as slot_begin has them, without a division: for kernels, made by the host.
struct SlotRows {
  i64 each;  // rows / slots
  i64 left;  // rows % slots
  int log_slots;

  OUTGRAD_HD i64 begin(i64 slot) const { return each * slot + (left * slot >> log_slots); }
};

OUTGRAD_HD constexpr SlotRows slot_rows(i64 rows, i64 slots) {
  SlotRows result{rows / slots, rows % slots, 0};
  while (i64{1} << result.log_slots < slots) ++result.log_slots;
  return result;
}

// residual and z: null without a residual.
template <class T>
struct NormForwardArrays {
  const T* x;
  const T* residual;
  const float* gamma;
  const float* beta;
  i64 rows;
  i64 n;
  float eps;
  T* z;
  T* y;
  float* rstd;
  SideBuffer<float> side;
};

// What the workspace holds: the columns' constants, `padded` words to each, those beyond n harmless, so that octets which are not there may be
// looked up; place[j], column j's index among the side channels or -1; and the slot sums, sums[slot][0][j] of dgamma (before its division) and,
// of LayerNorm, sums[slot][1][j] of dbeta, `stride` words to each.
template <class T>
struct NormBackwardArrays {
  const T* dy;
  const T* y;
  const T* dz_next;  // null without a residual
  NormColumns columns;
  const i32* place;
  const float* rstd;
  i64 rows;
  i64 n;
  SideBuffer<const float> side;
  T* dx;
  float* sums;  // null: not wanted
  i64 slots;
  SlotRows slot_rows;
  i64 stride;
};

// Sums of a slot for each column: dgamma's, and dbeta's of LayerNorm.
OUTGRAD_HD constexpr int column_sums(Norm norm) { return norm == Norm::layer ? 2 : 1; }

// Arrays of the workspace are whole lines of 128 bytes, so that wide accesses reach all of them; those that registers' rows look up, all
// that a schedule may look up.
inline constexpr i64 kWorkspaceLine = 32;
OUTGRAD_HD constexpr i64 sums_stride(i64 n) { return (n + kWorkspaceLine - 1) / kWorkspaceLine * kWorkspaceLine; }
OUTGRAD_HD constexpr i64 padded_columns(i64 n) {
  constexpr i64 kMostInRegisters = i64{kMostRegisterSteps} * kStepTerms;
  return n <= kMostInRegisters ? kMostInRegisters : sums_stride(n);
}

#ifndef __CUDACC_RTC__
// fp32 words of scratch of a norm's backward of this shape: the columns' constants, their places, the slot sums. A function of the shape alone.
inline i64 norm_backward_workspace(i64 rows, i64 n) {
  return kWorkspaceLine - 1 + (kColumnArrays + 1) * padded_columns(n) + 2 * slot_count(rows, n) * sums_stride(n);
}

// The same workspace by its parts.
struct NormWorkspace {
  NormColumns columns;
  i32* place;
  float* sums;
};
inline NormWorkspace norm_workspace_at(u64 address, i64 n) {
  constexpr u64 kLineBytes = kWorkspaceLine * sizeof(float);
  float* const aligned = reinterpret_cast<float*>((address + kLineBytes - 1) / kLineBytes * kLineBytes);
  const i64 padded = padded_columns(n);
  return {columns_at(aligned, padded), reinterpret_cast<i32*>(aligned + kColumnArrays * padded), aligned + (kColumnArrays + 1) * padded};
}

// Rows times n, or -1 for a shape that is none. Bytes of an address space: 2^59 elements of 8 bytes are 2^62.
inline constexpr i64 kMostElements = i64{1} << 59;
inline i64 matrix_elements(i64 rows, i64 n) { return rows < 0 || n <= 0 || rows > kMostElements / n ? -1 : rows * n; }

// fp32 words of scratch that the backward of GELU of x + bias needs: the slots' sums, unless there is but one slot.
inline i64 bias_backward_workspace(i64 rows, i64 n) {
  if (matrix_elements(rows, n) <= 0) return 0;
  const i64 slots = slot_count(rows, n);
  return slots > 1 ? slots * n : 0;
}
#endif

// Whether a kernel is compiled for side channels.
enum class SideChannels {
  none,
  some,
  either,  // it asks
};

namespace detail {

// --- Schedules of norms with nothing left open -----------------------------------------------------------------------------------

// What a kernel does with rows, as far as the choice of a schedule depends on it.
struct RowUse {
  int octet_words;     // registers that an octet of the row and of what goes with it takes
  int resident_warps;  // of an SM's 2^16 registers, that leaves 2048 / resident_warps to a thread
  int most_words;      // of those, how many may be kept for rows; the rest is for all else
  bool in_turn;        // whether rows come one after the other through the warps that sum over them
  bool ahead;          // whether a row is loaded ahead, where the schedule leaves it open
};

OUTGRAD_HD constexpr int octet_words(int element_bytes) { return kOctet * element_bytes / static_cast<int>(sizeof(u32)); }

// A forward keeps a row of each tensor it reads.
OUTGRAD_HD constexpr RowUse forward_use(int element_bytes, bool residual) {
  return {.octet_words = octet_words(element_bytes) * (residual ? 2 : 1), .resident_warps = 24, .most_words = 32, .in_turn = false, .ahead = false};
}

// A backward keeps rows of dy, of y and of what is added, and if it sums over rows, the sums; the row ahead, too, where two octets to a thread
// leave half the registers for all else. Looking side channels up takes registers of its own.
OUTGRAD_HD constexpr RowUse backward_use(Norm norm, int element_bytes, bool residual, bool sums, bool side) {
  constexpr int kSideWords = 2 * kOctet, kMostWithAhead = 32;
  RowUse use = {
      .octet_words = octet_words(element_bytes) * (residual ? 3 : 2), .resident_warps = 16, .most_words = 80, .in_turn = sums, .ahead = false};
  const int sum_words = kOctet * column_sums(norm);
  use.ahead = sums && !side && 2 * use.octet_words + sum_words <= kMostWithAhead;
  if (use.ahead) use.octet_words *= 2;
  if (sums) use.octet_words += sum_words;
  if (side) use.octet_words += kSideWords;
  return use;
}

// Octets that a thread keeps where the schedule leaves it open: 4, or fewer if they are too many.
OUTGRAD_HD constexpr int default_octets(RowUse use) {
  int octets = 4;
  while (octets > 1 && octets * use.octet_words > use.most_words) octets /= 2;
  return octets;
}

// `schedule` with nothing left open, for rows in this home.
OUTGRAD_HD constexpr GpuNormSchedule chosen(GpuNormSchedule schedule, int warps, int octets, RowHome home, RowUse use) {
  schedule.row_warps = warps;
  schedule.octets = octets;
  schedule.home = home;
  if (home != RowHome::registers) schedule.block_rows = 1;  // one row at a time
  // Slots whose rows come in turn would wait for one another, and take registers to say whether they are there.
  if (schedule.block_rows == 0) schedule.block_rows = use.in_turn ? 1 : larger(1, kBlockWarps / warps);
  schedule.block_rows = smaller(schedule.block_rows, kTreeLanes / warps);
  if (schedule.resident_blocks == 0) schedule.resident_blocks = larger(1, use.resident_warps / (warps * schedule.block_rows));
  if (schedule.rows_ahead < 0) schedule.rows_ahead = use.ahead ? 1 : 0;
  return schedule;
}

OUTGRAD_HD constexpr bool wants_registers(const GpuNormSchedule& schedule) {
  return schedule.home == RowHome::automatic || schedule.home == RowHome::registers;
}

// Octets to a thread at most.
OUTGRAD_HD constexpr int most_octets(const GpuNormSchedule& schedule, RowUse use) {
  return schedule.octets != 0 ? schedule.octets : default_octets(use);
}

// Whether a schedule is offered with so many warps to a row and octets to a thread: fewer octets than the most are for rows that one warp, or
// the fixed number of warps, takes.
OUTGRAD_HD constexpr bool is_offered(const GpuNormSchedule& schedule, RowUse use, int warps, int octets) {
  return wants_registers(schedule) && (schedule.row_warps == 0 || schedule.row_warps == warps) &&
         (schedule.octets == 0 || schedule.octets == octets) &&
         (octets == most_octets(schedule, use) || warps == larger(1, schedule.row_warps)) && octets * warps <= kMostRegisterSteps;
}

// Warps to a row of a backward, at most: 32 of them have too few registers each for sums over rows, unless they are asked for.
OUTGRAD_HD constexpr int most_backward_warps(const GpuNormSchedule& schedule) {
  return schedule.row_warps != 0 || schedule.sums == ColumnSums::separate ? kTreeLanes : kTreeLanes / 2;
}

// The first schedule that is offered (fewest warps to a row, then fewest octets to a thread) whose registers hold a row of `steps` steps of the
// tree; where there is none, one with no warps.
OUTGRAD_HD constexpr GpuNormSchedule in_registers(const GpuNormSchedule& schedule, RowUse use, int most_warps, i64 steps) {
  for (int warps = 1; warps <= most_warps; warps *= 2) {
    for (int octets = 1; octets <= most_octets(schedule, use); octets *= 2) {
      if (is_offered(schedule, use, warps, octets) && steps <= octets * warps) return chosen(schedule, warps, octets, RowHome::registers, use);
    }
  }
  GpuNormSchedule none = schedule;
  none.row_warps = 0;
  return none;
}

// Warps to a row where registers do not hold it: few for short rows, which are then misaligned ones.
inline constexpr int kShortRowWarps = 4, kLongRowWarps = 16;
inline constexpr i64 kShortRowSteps = 4 * kShortRowWarps;

// Whether short rows may come to the loops. `wide`: the rows that come here by themselves are long ones, as registers hold the others.
OUTGRAD_HD constexpr bool loops_take_short_rows(const GpuNormSchedule& schedule, bool wide) {
  return schedule.row_warps == 0 && !(wide && wants_registers(schedule));
}
OUTGRAD_HD constexpr int loop_warps(const GpuNormSchedule& schedule) { return schedule.row_warps != 0 ? schedule.row_warps : kLongRowWarps; }

// Bytes of shared memory for one tensor's row.
OUTGRAD_HD constexpr i64 shared_row_bytes(i64 n, int element_bytes) { return (n + kOctet - 1) / kOctet * kOctet * element_bytes; }

// For rows that lie in shared memory, or, where `limit` bytes do not hold `tensors` of them, in memory.
#ifndef __CUDACC_RTC__
inline GpuNormSchedule in_loops(const GpuNormSchedule& schedule, RowUse use, i64 n, int element_bytes, int tensors, bool wide, i64 limit) {
  const bool is_short = loops_take_short_rows(schedule, wide) && row_steps(n) <= kShortRowSteps;
  if (schedule.home != RowHome::memory) {
    if (n <= limit && tensors * shared_row_bytes(n, element_bytes) <= limit)
      return chosen(schedule, is_short ? kShortRowWarps : loop_warps(schedule), 1, RowHome::shared, use);
    return chosen(schedule, loop_warps(schedule), 1, RowHome::memory, use);
  }
  return chosen(schedule, is_short ? kShortRowWarps : loop_warps(schedule), 1, RowHome::memory, use);
}
#endif

}  // namespace detail

// --- Schedules of elementwise kernels with nothing left open ---------------------------------------------------------------------

// What an elementwise kernel does, as far as the choice of a schedule depends on it.
struct ElementWork {
  bool forward;
  bool bias;
  int element_bytes;  // of x, or of dy and dx
  bool rows;          // whether the fit has rows to pick: not a single one, and not a direct table
};

// What is left open: octets, and blocks enough beside them that what their threads have asked for hides the memory's latency, as far as the
// registers that a thread then has are enough: 128, or 80 of a 16-bit forward and beside a bias's sums in 16 bits (65536 of an SM, shared by
// `threads`; tests/system/sass_test.cpp holds that nothing spills). Who asks for more octets than these is kept no second block.
OUTGRAD_HD constexpr GpuSchedule completed(GpuSchedule schedule, const ElementWork& work) {
  const bool f32 = work.element_bytes == 4, sums = work.bias && !work.forward;
  const int octets = !work.rows ? 4 : sums ? 2 : f32 ? 3 : work.bias ? 6 : 4;
  const int threads = !f32 && (work.forward || (sums && work.rows)) ? 768 : 512;
  if (schedule.octets == 0) schedule.octets = octets;
  if (schedule.resident_blocks == 0) schedule.resident_blocks = schedule.octets > octets ? 1 : larger(1, threads / schedule.threads);
  return schedule;
}

#ifndef __CUDACC_RTC__
// --- Plans -----------------------------------------------------------------------------------------------------------------------

// The __global__ templates of kernels/cuda/.
enum class DeviceKernel {
  activation_backward,
  gelu_forward,
  bias_gelu_backward,
  bias_gelu_forward,
  add_slots,
  norm_forward,
  norm_prepare,
  norm_slot_sums,
  norm_backward,
  norm_backward_slots,
  norm_finish,
};

inline constexpr i64 kGridLimit = 0x7fffffff;  // gridDim.x
// Columns up to which a bias is read by octets: twice as many are counted in 32 bits.
inline constexpr i64 kMostWideColumns = i64{1} << 31;

struct PlannedLaunch {
  DeviceKernel kernel;
  i64 blocks;
  int threads;
  i64 shared_bytes = 0;       // dynamic
  i64 most_shared_bytes = 0;  // not 0: the kernel is to be allowed so many dynamic bytes first
  i64 left = 0, apart = 0;    // of add_slots
};

// Launches in their order.
struct LaunchPlan {
  // A backward of a norm: prepare, slot sums, rows, four of add_slots (64^4 > 2^21), finish.
  static constexpr int kMost = 8;
  int launches = 0;
  PlannedLaunch launch[kMost] = {};
  bool wide = true;                         // of bias + GELU and norms: which instance
  SideChannels side = SideChannels::none;  // of a norm's backward
  GpuNormSchedule norm = {};               // of norms: with nothing left open

  void add(const PlannedLaunch& next) { launch[launches++] = next; }
};

// What plans ask of a device.
struct PlanLimits {
  int sms = 0;              // asked for where blocks_per_sm is not 0
  i64 shared_bytes = 0;     // per block with opt-in; asked for where registers do not hold a norm's rows
  int resident_blocks = 0;  // of the schedule's kernel, that an SM holds at once; asked for where blocks_per_sm is kAllResident
};

inline i64 column_blocks(i64 words) { return (words + kColumnThreads - 1) / kColumnThreads; }

// Blocks that loop over work of `wanted` blocks: no more than the schedule has for all SMs.
inline i64 looping_blocks(i64 wanted, int blocks_per_sm, int sms) {
  const i64 most = blocks_per_sm > 0 ? i64{sms} * blocks_per_sm : kGridLimit;
  return wanted < most ? wanted : most;
}

// Blocks of an elementwise kernel to an SM, 0: as many as there are trips.
inline int grid_blocks_per_sm(const GpuSchedule& schedule, const PlanLimits& limits) {
  return schedule.blocks_per_sm == kAllResident ? limits.resident_blocks : schedule.blocks_per_sm;
}

// The following take a GpuSchedule with nothing left open (completed).

inline LaunchPlan elementwise_plan(DeviceKernel kernel, const GpuSchedule& schedule, i64 elements, const PlanLimits& limits) {
  const i64 per_block = i64{schedule.threads} * schedule.octets * kOctet;
  LaunchPlan plan;
  if (elements > 0)
    plan.add({kernel, looping_blocks((elements + per_block - 1) / per_block, grid_blocks_per_sm(schedule, limits), limits.sms), schedule.threads});
  return plan;
}

// Wide: the bias is read by octets.
inline LaunchPlan bias_forward_plan(const GpuSchedule& schedule, i64 elements, bool wide, const PlanLimits& limits) {
  LaunchPlan plan = elementwise_plan(DeviceKernel::bias_gelu_forward, schedule, elements, limits);
  plan.wide = wide;
  return plan;
}

// Adds up `slots` (a power of two) times `words` sums, as the tree orders.
inline void add_up_slots(LaunchPlan& plan, i64 words, i64 slots) {
  i64 apart = 1;
  for (i64 left = slots; left > 1; left = (left + kSlotFan - 1) / kSlotFan) {
    const i64 targets = (left + kSlotFan - 1) / kSlotFan;
    plan.add({.kernel = DeviceKernel::add_slots, .blocks = column_blocks(words * targets), .threads = kColumnThreads, .left = left, .apart = apart});
    apart *= kSlotFan;
  }
}

// Wide: a row is whole octets, and dy, y, dx and the sums are aligned for the schedule's accesses.
inline LaunchPlan bias_backward_plan(const GpuSchedule& schedule, i64 rows, i64 n, bool wide, const PlanLimits& limits) {
  const i64 slots = slot_count(rows, n), threads = n / (wide ? kOctet : 1) * slots;
  LaunchPlan plan;
  plan.wide = wide;
  plan.add({DeviceKernel::bias_gelu_backward,
            looping_blocks((threads + schedule.threads - 1) / schedule.threads, grid_blocks_per_sm(schedule, limits), limits.sms),
            schedule.threads});
  add_up_slots(plan, n, slots);
  return plan;
}

// A norm's work, as far as its plan depends on it.
struct NormTask {
  Norm norm;
  int element_bytes;
  bool residual;
  i64 rows;
  i64 n;
  bool wide;  // rows are whole octets, and tensors aligned for the schedule's accesses; a forward's gamma and beta to 16 bytes
  bool side;  // there are side channels
  bool sums;  // a backward's dgamma or dbeta is wanted
};

namespace detail {

// Shared memory that every kernel may have without asking.
inline constexpr i64 kUnaskedSharedBytes = 48 * 1024;

// The dynamic shared memory that one block may have, beside what exchanges of `sums` sums between warps take.
inline i64 row_memory(const PlanLimits& limits, int sums) {
  return limits.shared_bytes - 2 * kTreeLanes * kTreeLanes * sums * static_cast<i64>(sizeof(float));
}

// Whether registers hold the rows: else the plan depends on the device's shared memory.
inline bool rows_in_registers(const GpuNormSchedule& schedule, bool forward, const NormTask& task) {
  const RowUse use = forward ? forward_use(task.element_bytes, task.residual)
                             : backward_use(task.norm, task.element_bytes, task.residual, schedule.sums != ColumnSums::separate, task.side);
  return task.wide && in_registers(schedule, use, forward ? kTreeLanes : most_backward_warps(schedule), row_steps(task.n)).row_warps != 0;
}

// A kernel that goes by rows: block_rows of them side by side, the rest in a loop. The kernel is allowed all the shared memory that there is,
// whatever this launch needs: the permission is the kernel's, for all threads' launches.
inline PlannedLaunch rows_launch(DeviceKernel kernel, const GpuNormSchedule& s, i64 rows, i64 shared_bytes, i64 most_shared_bytes, const PlanLimits& limits) {
  const i64 declared = i64{2} * s.row_warps * kTreeLanes * static_cast<i64>(sizeof(Tuple<float, 2>));
  const bool asks = shared_bytes > 0 && shared_bytes + declared > kUnaskedSharedBytes;
  return {.kernel = kernel,
          .blocks = looping_blocks((rows + s.block_rows - 1) / s.block_rows, s.blocks_per_sm, limits.sms),
          .threads = kTreeLanes * s.row_warps * s.block_rows,
          .shared_bytes = shared_bytes,
          .most_shared_bytes = asks ? most_shared_bytes : 0};
}

}  // namespace detail

inline LaunchPlan norm_forward_plan(const GpuNormSchedule& schedule, const NormTask& task, const PlanLimits& limits) {
  const detail::RowUse use = detail::forward_use(task.element_bytes, task.residual);
  LaunchPlan plan;
  plan.wide = task.wide;
  if (task.rows == 0) return plan;
  i64 shared_bytes = 0, most_shared_bytes = 0;
  if (detail::rows_in_registers(schedule, true, task)) {
    plan.norm = detail::in_registers(schedule, use, kTreeLanes, row_steps(task.n));
  } else {
    most_shared_bytes = detail::row_memory(limits, 1);
    plan.norm = detail::in_loops(schedule, use, task.n, task.element_bytes, 1, task.wide, most_shared_bytes);
    if (plan.norm.home == RowHome::shared) shared_bytes = detail::shared_row_bytes(task.n, task.element_bytes);
  }
  plan.add(detail::rows_launch(DeviceKernel::norm_forward, plan.norm, task.rows, shared_bytes, most_shared_bytes, limits));
  return plan;
}

inline LaunchPlan norm_backward_plan(const GpuNormSchedule& schedule, const NormTask& task, const PlanLimits& limits) {
  constexpr int kTensors = 2;  // that are kept where registers do not hold the rows: dy and y
  const i64 slots = slot_count(task.rows, task.n);
  const bool fused = schedule.sums != ColumnSums::separate, registers = detail::rows_in_registers(schedule, false, task);
  LaunchPlan plan;
  plan.wide = task.wide;
  plan.add({DeviceKernel::norm_prepare, column_blocks(padded_columns(task.n)), kColumnThreads});
  // Before dx, which may be dy, is written.
  if (task.sums && !(registers && fused)) plan.add({DeviceKernel::norm_slot_sums, column_blocks(task.n) * slots, kColumnThreads});
  if (registers) {
    plan.side = task.side ? SideChannels::some : SideChannels::none;
    const detail::RowUse use = detail::backward_use(task.norm, task.element_bytes, task.residual, fused, task.side);
    plan.norm = detail::in_registers(schedule, use, detail::most_backward_warps(schedule), row_steps(task.n));
    if (fused) {
      plan.add({DeviceKernel::norm_backward_slots, (slots + plan.norm.block_rows - 1) / plan.norm.block_rows,
                kTreeLanes * plan.norm.row_warps * plan.norm.block_rows});
    } else if (task.rows > 0) {
      plan.add(detail::rows_launch(DeviceKernel::norm_backward, plan.norm, task.rows, 0, 0, limits));
    }
  } else if (task.rows > 0) {
    plan.side = SideChannels::either;
    const i64 limit = detail::row_memory(limits, 2);
    plan.norm = detail::in_loops(schedule, detail::backward_use(task.norm, task.element_bytes, task.residual, false, true), task.n,
                                 task.element_bytes, kTensors, task.wide, limit);
    const i64 shared_bytes = plan.norm.home == RowHome::shared ? kTensors * detail::shared_row_bytes(task.n, task.element_bytes) : 0;
    plan.add(detail::rows_launch(DeviceKernel::norm_backward, plan.norm, task.rows, shared_bytes, limit, limits));
  }
  if (task.sums) {
    add_up_slots(plan, column_sums(task.norm) * sums_stride(task.n), slots);
    plan.add({DeviceKernel::norm_finish, column_blocks(task.n), kColumnThreads});
  }
  return plan;
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
