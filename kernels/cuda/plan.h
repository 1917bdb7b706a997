// What is launched for a kernel with a schedule and a shape: which instances, on what grids, in what order.
// These are plain functions of values and need no CUDA. So launchers, which know a schedule at compile time,
// and the tuner, which knows it only at run time, do the same.
//
// The arguments of the kernels are also here, for code that launches the kernels without their source.
#pragma once

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/direct.h"
#include "kernels/dropout.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/layernorm.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"
#include "kernels/side_policy.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

using kernels::DeviceKernel;
using kernels::kDeviceKernelNames;
using kernels::ParameterFormat;
using kernels::SideChannels;

// Elements per byte of the mask. Threads therefore share no bits.
inline constexpr int kOctet = 8;
static_assert(kOctet == kChunkTerms, "a chunk of the summation tree is an octet");

// Threads per block in the kernels that work by column: enough for full occupancy at any register count that
// these kernels need.
inline constexpr int kColumnThreads = 256;
// The number of slots that one thread adds up. It leads to two launches for up to 4096 slots, and to four for
// 2^21.
inline constexpr int kSlotFan = 64;

// Threads per block of the launch that encodes a norm's output at the tensor's scale. A block takes a part of
// a row, an octet for each thread: 768 columns are three quarters of it, and multiples of 1024 whole ones.
inline constexpr int kEncodingThreads = 128;

// The most blocks that look for a tensor's largest magnitude. Each leaves its own, and every block that
// encodes reads all of these: 4 KiB.
inline constexpr int kMostMaxima = 1024;

// The widest rows that registers hold: one group of the tree.
inline constexpr int kMostRegisterSteps = kGroupSteps;
// Rows side by side make blocks of this many warps, enough that an SM's limit on blocks does not matter.
// Blocks that sum over rows have more warps, because a block adds up its slots before it writes them.
inline constexpr int kBlockWarps = 4, kSumBlockWarps = 8, kMostBlockRows = 8;
// of a warp that has several rows: with fewer, the lanes of a row read less than a line of a 16-bit format
inline constexpr int kFewestLanes = 8;

// The last kernel of a norm's backward adds up at most this many rows of sums, with this many columns per
// block. Each thread loads 32 rows together: 256 KiB in flight for each 1024 columns.
inline constexpr int kFinishFan = 256, kFinishColumns = 32;
// The most slots that a block adds up, unless more of them lie side by side. The sums that it puts aside
// meanwhile take shared memory.
inline constexpr int kMostBlockSlots = 16;

// --- Arguments of kernels ------------------------------------------------------------------------

// The rows of slots as in slot_begin, but without a division. The host makes this for kernels.
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

template <ParameterFormat P>
struct ParameterIn {
  using Type = float;
};
template <>
struct ParameterIn<ParameterFormat::f16> {
  using Type = F16;
};
template <>
struct ParameterIn<ParameterFormat::bf16> {
  using Type = BF16;
};

// A dropout's seed: where it lies in device memory, or, if that is null, its value.
struct Seed {
  const u64* at = nullptr;
  u64 value = 0;
};

// What the blocks of a launch have left of the largest magnitude of a tensor (kernels/cuda/tensor_codes.cuh).
struct Maxima {
  const u32* of_blocks;
  i64 count;
};

// The codes of a pair's a and b, dense, and their scales (kernels/cuda/gated_codes.cuh).
struct GatedCodes {
  void *codes_of_a, *scales_of_a, *codes_of_b, *scales_of_b;
};

// For a norm's kernels that are instances with dropout: of x before the residual is added, and of dz, which
// gives dx.
struct NormDropout {
  Seed seed = {};
  DropoutRule rule = {};
  void* dx = nullptr;  // of a backward, in the format of dz
};

// Which elements share a scale of the codes that a norm keeps in place of y; none: it keeps y.
enum class CodeScales { none, of_groups, of_tensor };

// For a norm's kernels that are instances with a store of kernels/norm_store.h, in whose types its codes and
// scales are. At one scale of the tensor, a forward's first launch leaves what the second needs: the rows'
// means (of LayerNorm) and the bits of amax, which must have been 0 before it.
struct NormCodes {
  void* codes = nullptr;
  void* scales = nullptr;
  float* means = nullptr;
  u32* amax = nullptr;
};

// residual is null if there is none. z is null if it is not stored. gamma and beta are in the format that the
// kernel is an instance for.
template <class T>
struct NormForwardArrays {
  const T* x = nullptr;
  const T* residual = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  i64 rows = 0;
  i64 n = 0;
  float eps = 1e-5f;
  T* z = nullptr;
  T* y = nullptr;
  float* rstd = nullptr;
  SideBuffer<float> side{};
  SideWatch watch{};
  NormDropout dropout{};
  NormCodes kept{};
};

// The workspace holds three things. The columns' constants are there if there are side channels, or if
// kernels do not make the constants themselves; each has `padded` words, and those beyond n are harmless, so
// that octets beyond the end may be looked up. place[j] is column j's index among the side channels, or -1.
// The rows of sums are sums[row][0][j] of dgamma (before its division) and, for LayerNorm, sums[row][1][j] of
// dbeta, with `stride` words each.
template <class T>
struct NormBackwardArrays {
  const T* dy = nullptr;
  const T* y = nullptr;
  const T* dz_next = nullptr;  // null if nothing is added to the gradient
  // for kernels that make the columns' constants themselves: aligned to 16 bytes, or null
  const void* gamma = nullptr;
  const void* beta = nullptr;
  NormColumns columns{};  // for the other kernels
  const i32* place = nullptr;
  const float* rstd = nullptr;
  i64 rows = 0;
  i64 n = 0;
  SideBuffer<const float> side{};
  T* dx = nullptr;
  float* sums = nullptr;  // null if they are not wanted
  i64 slots = 0;
  SlotRows slot_rows{};
  i64 own_slots = 0;  // the slots that a thread processes one after the other; a power of two
  i64 stride = 0;
  SideGuard guard{};  // for kernels that make the columns' constants themselves
  NormDropout dropout{};
  NormCodes kept{};  // in place of y
};

// What a backward's launcher takes of the columns beside the arrays, and its workspace.
struct NormBackwardColumns {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  float* workspace = nullptr;
  i64 workspace_words = 0;
};

// The number of sums that a slot has for each column: those of dgamma and, for LayerNorm, those of dbeta.
OUTGRAD_HD constexpr int column_sums(Norm norm) { return norm == Norm::layer ? 2 : 1; }

// The most rows of sums that a norm's backward leaves to its last kernel: a power of two, like the number of
// slots.
OUTGRAD_HD constexpr i64 most_sum_rows(i64 slots) {
  const i64 few = slots < kFinishFan ? slots : kFinishFan;
  return slots / kMostBlockSlots < few ? few : slots / kMostBlockSlots;
}
// The number of slots that are added up before a row of sums is written; at least `side_by_side`.
OUTGRAD_HD constexpr i64 slots_together(i64 slots, int side_by_side) {
  const i64 together = slots / most_sum_rows(slots);
  return together < side_by_side ? side_by_side : together;
}

// The most slots that a block of bias + GELU's backward has side by side, and the most rows of sums that it
// then leaves: a power of two, like the number of slots.
inline constexpr int kMostSlotsBeside = 32;
OUTGRAD_HD constexpr i64 most_bias_sum_rows(i64 slots) {
  const i64 few = slots < kFinishFan ? slots : kFinishFan;
  return slots / kMostSlotsBeside < few ? few : slots / kMostSlotsBeside;
}
// The slots side by side in a block: one for each warp, so that a warp's accesses are 32 octets of a row;
// more of them if rows have fewer octets, or if more than kFinishFan rows of sums would be left. `across`:
// the octets of a row, or its elements if a thread takes one column.
OUTGRAD_HD constexpr int slots_beside(int threads, i64 slots, i64 across) {
  int beside = 1;
  while (2 * beside * kTreeLanes <= threads && 2 * beside <= slots) beside *= 2;
  while (2 * beside <= kMostSlotsBeside && 2 * beside <= slots && threads % (2 * beside) == 0 &&
         (slots / beside > kFinishFan || threads / (2 * beside) >= across))
    beside *= 2;
  return beside;
}

// Arrays of the workspace are whole lines of 128 bytes, so that wide accesses reach all of them. Arrays that
// are looked up for rows in registers have all the words that any schedule may look up.
inline constexpr i64 kWorkspaceLine = 32;
OUTGRAD_HD constexpr i64 sums_stride(i64 n) {
  return (n + kWorkspaceLine - 1) / kWorkspaceLine * kWorkspaceLine;
}
OUTGRAD_HD constexpr i64 padded_columns(i64 n) {
  constexpr i64 kMostInRegisters = i64{kMostRegisterSteps} * kStepTerms;
  return n <= kMostInRegisters ? kMostInRegisters : sums_stride(n);
}

#ifndef __CUDACC_RTC__
// fp32 words of scratch for a norm's backward of this shape: the columns' constants, their places, and rows
// of sums. It depends only on the shape.
inline i64 norm_backward_workspace(i64 rows, i64 n) {
  return kWorkspaceLine - 1 + (kColumnArrays + 1) * padded_columns(n) +
         2 * most_sum_rows(slot_count(rows, n)) * sums_stride(n);
}

// The parts of the same workspace.
struct NormWorkspace {
  NormColumns columns;
  i32* place;
  float* sums;
};
inline NormWorkspace norm_workspace_at(u64 address, i64 n) {
  constexpr u64 kLineBytes = kWorkspaceLine * sizeof(float);
  float* const aligned = reinterpret_cast<float*>((address + kLineBytes - 1) / kLineBytes * kLineBytes);
  const i64 padded = padded_columns(n);
  return {columns_at(aligned, padded), reinterpret_cast<i32*>(aligned + kColumnArrays * padded),
          aligned + (kColumnArrays + 1) * padded};
}

// fp32 words of scratch for a norm's forward: of one scale for the tensor alone, its amax and the rows'
// means.
inline i64 norm_forward_workspace(CodeScales scales, i64 rows) {
  return scales == CodeScales::of_tensor ? 1 + rows : 0;
}
// What a forward keeps in place of y, with those parts of its workspace.
inline NormCodes norm_codes_at(void* codes, void* scales, Norm norm, float* workspace) {
  const bool has_means = workspace != nullptr && norm == Norm::layer;
  return {codes, scales, has_means ? workspace + 1 : nullptr, reinterpret_cast<u32*>(workspace)};
}

// rows times n, or -1 for an impossible shape. The limit is an address space: 2^59 elements of 8 bytes are
// 2^62 bytes.
inline constexpr i64 kMostElements = i64{1} << 59;
inline i64 matrix_elements(i64 rows, i64 n) {
  return rows < 0 || n <= 0 || rows > kMostElements / n ? -1 : rows * n;
}

// fp32 words of scratch for the backward of GELU of x + bias: as many rows of sums as any schedule leaves.
// It depends only on the shape.
inline i64 bias_backward_workspace(i64 rows, i64 n) {
  if (matrix_elements(rows, n) <= 0) return 0;
  const i64 slots = slot_count(rows, n);
  return slots > 1 ? most_bias_sum_rows(slots) * n : 0;
}
#endif

// Threads that share a row, and those of a block.
OUTGRAD_HD constexpr int row_threads(const GpuNormSchedule& schedule) {
  return schedule.row_warps * (schedule.row_lanes != 0 ? schedule.row_lanes : kTreeLanes);
}
OUTGRAD_HD constexpr int block_threads(const GpuNormSchedule& schedule) {
  return row_threads(schedule) * schedule.block_rows;
}

namespace detail {

// --- Schedules of norms with nothing left open ---------------------------------------------------

// What a kernel does with rows, as far as the choice of a schedule depends on it.
struct RowUse {
  int octet_words;  // registers that an octet of the row takes, together with everything that goes with it
  int resident_warps;  // with an SM's 2^16 registers, this leaves 2048 / resident_warps to a thread
  int most_words;  // how many of those may be kept for rows; the rest is for everything else
  bool in_turn;  // whether rows go one after the other through the warps that sum over them
  // bytes of an octet of a row that is loaded ahead; 0: no row is, if the schedule leaves it open
  int ahead_bytes;
  // whether the columns' reciprocals, which kernels without side channels make themselves, lie in shared
  // memory
  bool aside = false;
};

OUTGRAD_HD constexpr int octet_words(int element_bytes) {
  return kOctet * element_bytes / static_cast<int>(sizeof(u32));
}

// A forward keeps a row of each tensor it reads. Codes of rows in f32 take more registers.
OUTGRAD_HD constexpr RowUse forward_use(int element_bytes, bool residual, bool coded = false) {
  return {.octet_words = octet_words(element_bytes) * (residual ? 2 : 1),
          .resident_warps = coded && element_bytes == 4 ? 20 : 24,
          .most_words = 32,
          .in_turn = false,
          .ahead_bytes = 0};
}

// A backward keeps rows of dy, of y and of what is added. If it sums over rows, it also keeps the sums and
// what it computed from gamma. Looking up side channels takes further registers, and so does dropout.
OUTGRAD_HD constexpr RowUse backward_use(Norm norm, int element_bytes, bool residual, bool sums, bool side,
                                         bool drops = false) {
  constexpr int kSideWords = 2 * kOctet, kDropWords = kOctet / 2;
  const int tensors = residual ? 3 : 2;
  RowUse use = {.octet_words = octet_words(element_bytes) * tensors,
                .resident_warps = 16,
                .most_words = 80,
                .in_turn = sums,
                .ahead_bytes = sums ? kOctet * element_bytes * tensors : 0};
  if (sums) use.octet_words += kOctet * column_sums(norm);
  if (side) {
    use.octet_words += kSideWords;
  } else if (sums) {
    // The columns' reciprocals stay in registers if these then still hold two octets per thread.
    use.aside = 2 * (use.octet_words + kOctet + (drops ? kDropWords : 0)) > use.most_words;
    if (!use.aside) use.octet_words += kOctet;
  }
  return use;
}

// The number of rows that are loaded ahead if the schedule leaves it open: as many as keep 64 KiB of an SM's
// 16 warps in flight, but at least one.
OUTGRAD_HD constexpr int default_rows_ahead(RowUse use, int octets) {
  constexpr int kThreadBytes = 128, kMost = 4;
  return use.ahead_bytes == 0 ? 0 : smaller(kMost, larger(1, kThreadBytes / (octets * use.ahead_bytes)));
}

// The number of octets that a thread keeps if the schedule leaves it open: 4, or fewer if 4 do not fit.
OUTGRAD_HD constexpr int default_octets(RowUse use) {
  int octets = 4;
  while (octets > 1 && octets * use.octet_words > use.most_words) octets /= 2;
  return octets;
}

// The lanes that share a row of n elements in each of its warps: all, unless fewer lanes of one warp hold a
// short row and the block's rows, if their number is not open (0), fill a warp. Threads that sum over rows
// and keep all that they may lack the registers for their place in a warp of several rows.
OUTGRAD_HD constexpr int row_lanes_of(RowUse use, RowHome home, int warps, int octets, int block_rows,
                                      i64 n) {
  constexpr i64 kMostShort = 2 * kStepTerms;
  const bool splits = home == RowHome::registers && warps == 1 && n <= kMostShort &&
                      (block_rows == 0 || block_rows * kFewestLanes >= kTreeLanes) &&
                      !(use.in_turn && octets * use.octet_words >= use.most_words);
  int lanes = splits ? kFewestLanes : kTreeLanes;
  while (lanes < kTreeLanes && lanes * octets * kOctet < n) lanes *= 2;
  return lanes;
}

// `schedule` with nothing left open, for rows in this home.
OUTGRAD_HD constexpr GpuNormSchedule chosen(GpuNormSchedule schedule, int warps, int octets, RowHome home,
                                            RowUse use, int lanes = kTreeLanes) {
  schedule.row_warps = warps;
  schedule.octets = octets;
  schedule.home = home;
  schedule.row_lanes = lanes;
  if (home != RowHome::registers) schedule.block_rows = 1;  // one row at a time
  const int rows_of_warp = kTreeLanes / lanes;
  if (schedule.block_rows == 0)
    schedule.block_rows = larger(
        1, smaller(kMostBlockRows, rows_of_warp * (use.in_turn ? kSumBlockWarps : kBlockWarps) / warps));
  schedule.block_rows = smaller(schedule.block_rows, kTreeLanes / warps);
  if (schedule.resident_blocks == 0)
    schedule.resident_blocks = larger(1, rows_of_warp * use.resident_warps / (warps * schedule.block_rows));
  if (schedule.rows_ahead < 0) schedule.rows_ahead = default_rows_ahead(use, octets);
  return schedule;
}

OUTGRAD_HD constexpr bool wants_registers(const GpuNormSchedule& schedule) {
  return schedule.home == RowHome::automatic || schedule.home == RowHome::registers;
}

// The most octets per thread.
OUTGRAD_HD constexpr int most_octets(const GpuNormSchedule& schedule, RowUse use) {
  return schedule.octets != 0 ? schedule.octets : default_octets(use);
}

// Whether a schedule is offered with this many warps per row and octets per thread. Fewer octets than the
// most are only offered for rows that one warp takes, or the fixed number of warps.
OUTGRAD_HD constexpr bool is_offered(const GpuNormSchedule& schedule, RowUse use, int warps, int octets) {
  return wants_registers(schedule) && (schedule.row_warps == 0 || schedule.row_warps == warps) &&
         (schedule.octets == 0 || schedule.octets == octets) &&
         (octets == most_octets(schedule, use) || warps == larger(1, schedule.row_warps)) &&
         octets * warps <= kMostRegisterSteps;
}

// The most warps per row of a backward. With 32 warps, each has too few registers for sums over rows, so 32
// are used only if they are asked for.
OUTGRAD_HD constexpr int most_backward_warps(const GpuNormSchedule& schedule) {
  return schedule.row_warps != 0 || schedule.sums == ColumnSums::separate ? kTreeLanes : kTreeLanes / 2;
}

// The first offered schedule (fewest warps per row, then fewest octets per thread) whose registers hold a row
// of n elements. If there is none, a schedule with no warps. splits: a warp may have several rows; then fewer
// lanes share a row before a thread has fewer octets of it, since what a thread does once a row is most of a
// short row's work.
OUTGRAD_HD constexpr GpuNormSchedule in_registers(const GpuNormSchedule& schedule, RowUse use, int most_warps,
                                                  i64 n, bool splits) {
  const int most = most_octets(schedule, use);
  const auto lanes_of = [&](int warps, int octets) {
    if (!splits || warps > 1) return kTreeLanes;
    return schedule.row_lanes != 0
               ? schedule.row_lanes
               : row_lanes_of(use, RowHome::registers, warps, octets, schedule.block_rows, n);
  };
  for (int warps = 1; warps <= most_warps; warps *= 2) {
    for (int octets = 1; octets <= most; octets *= 2) {
      const int lanes = lanes_of(warps, octets);
      if (!is_offered(schedule, use, warps, octets) || i64{lanes} * warps * octets * kOctet < n) continue;
      if (octets < most && lanes_of(warps, 2 * octets) < lanes) continue;
      return chosen(schedule, warps, octets, RowHome::registers, use, lanes);
    }
  }
  GpuNormSchedule none = schedule;
  none.row_warps = 0;
  return none;
}

// Warps per row if registers do not hold the row. Short rows, which are then misaligned ones, get few warps.
inline constexpr int kShortRowWarps = 4, kLongRowWarps = 16;
inline constexpr i64 kShortRowSteps = 4 * kShortRowWarps;

// Whether short rows may come to the loops. With `wide`, only long rows come here unless the schedule asks
// otherwise, because registers hold the others.
OUTGRAD_HD constexpr bool loops_take_short_rows(const GpuNormSchedule& schedule, bool wide) {
  return schedule.row_warps == 0 && !(wide && wants_registers(schedule));
}
OUTGRAD_HD constexpr int loop_warps(const GpuNormSchedule& schedule) {
  return schedule.row_warps != 0 ? schedule.row_warps : kLongRowWarps;
}

// Bytes of shared memory per thread for one row ahead, of `tensors` tensors, and for the sums of the thread's
// columns.
OUTGRAD_HD constexpr int ring_bytes(int octets, int tensors, int element_bytes) {
  return octets * tensors * kOctet * element_bytes;
}
OUTGRAD_HD constexpr int thread_sums_bytes(Norm norm, int octets) {
  return octets * column_sums(norm) * kOctet * static_cast<int>(sizeof(float));
}

// Whether a thread's reciprocals lie in shared memory. For a single octet they never do.
OUTGRAD_HD constexpr bool has_reciprocals_aside(const GpuNormSchedule& schedule, RowUse use) {
  return use.aside && schedule.octets > 1;
}

// Shared memory of a block of a fused backward: the rows ahead, then the reciprocals, then the sums that are
// put aside for the slots that a thread processes one after the other, level by level of the tree. At the
// end, the sums of slots side by side take the same place.
OUTGRAD_HD constexpr i64 slots_block_bytes(const GpuNormSchedule& schedule, Norm norm, int element_bytes,
                                           bool residual, bool side, i64 own_slots, bool drops = false) {
  const int sums = thread_sums_bytes(norm, schedule.octets),
            side_by_side = schedule.block_rows > 1 ? sums : 0;
  int bytes = schedule.rows_ahead * ring_bytes(schedule.octets, residual ? 3 : 2, element_bytes);
  if (has_reciprocals_aside(schedule, backward_use(norm, element_bytes, residual, true, side, drops))) {
    bytes += schedule.octets * kOctet * static_cast<int>(sizeof(float));
  }
  for (i64 slots = own_slots; slots > 1; slots /= 2) bytes += sums;
  return i64{larger(bytes, side_by_side)} * block_threads(schedule);
}

// Bytes of shared memory for one tensor's row.
OUTGRAD_HD constexpr i64 shared_row_bytes(i64 n, int element_bytes) {
  return (n + kOctet - 1) / kOctet * kOctet * element_bytes;
}

// For rows that lie in shared memory or, if `limit` bytes do not hold `tensors` of them, in memory.
#ifndef __CUDACC_RTC__
inline GpuNormSchedule in_loops(const GpuNormSchedule& schedule, RowUse use, i64 n, int element_bytes,
                                int tensors, bool wide, i64 limit) {
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

// --- Schedules of elementwise kernels with nothing left open -------------------------------------

// What an elementwise kernel does, as far as the choice of a schedule depends on it.
struct ElementWork {
  bool forward;
  bool bias;
  int element_bytes;  // of x, or of dy and dx
  bool rows;  // has_rows of the fit
};

// Whether a fit has rows to pick, that is, neither a single row nor a direct table.
template <class Fit>
OUTGRAD_HD constexpr bool has_rows() {
  if constexpr (kIsDirect<Fit>) {
    return false;
  } else {
    return Fit::kRows > 1;
  }
}

// The schedule of the forwards of kernels/forwards.h. With a fit for 16 bits it is what GELU's has.
//
// An f32 fit's tables lie in shared memory: the core's with a copy for each of the lanes that read at once
// (at most 16 KiB beside a tail), the tail's once (12 KiB). Registers leave an SM room for three such blocks,
// which take at most 87 of the 100 KiB that the smallest SM has. So the tail, though few elements ask for it,
// limits nothing, and costs each thread three loads and stores before its loop; in the caches, a warp with
// such an element would wait for memory in the loop. Three blocks of two octets a thread have as many bytes
// under way as GELU's two of three, and smaller blocks share out 2^20 elements more evenly among the SMs of a
// large GPU.
//
// Computed in double precision, which only a 16-bit format without a fit is: one octet per thread, whose 8
// evaluations are enough code, and enough work for one trip.
OUTGRAD_HD constexpr GpuSchedule forwards_schedule(bool fitted, int element_bytes) {
  if (!fitted) return {.octets = 1, .table = TableHome::caches};
  if (element_bytes == 4) return {.octets = 2, .resident_blocks = 3};
  return {};
}
struct DropoutSchedule {
  static constexpr GpuSchedule kSchedule{.octets = 2, .table = TableHome::caches};
};
// Of a gated pair: an octet of three arrays is enough code, and enough work, for one trip.
struct GatedSchedule {
  static constexpr GpuSchedule kSchedule{.octets = 1, .resident_blocks = 2};
};
// The forwards that evaluate several fits for an element (a y with its branch, a code for f'(x)): the code of
// one octet is long enough, and the tables of all fits share a block's memory.
struct StoreSchedule {
  static constexpr GpuSchedule kSchedule{.octets = 1, .table = TableHome::rows};
};

// Fills in what a schedule leaves open: the octets, and enough blocks beside them that their threads'
// outstanding loads hide the memory's latency. The limit is the number of registers that a thread then has
// (65536 of an SM, shared by `threads`; tests/system/sass_test.cpp checks that nothing spills): 128, or 80
// for a 16-bit forward and with a bias's sums in 16 bits. A schedule that asks for more octets than these
// gets no second block.
OUTGRAD_HD constexpr GpuSchedule completed(GpuSchedule schedule, const ElementWork& work) {
  const bool f32 = work.element_bytes == 4, sums = work.bias && !work.forward;
  const int octets = !work.rows ? 4 : sums ? 2 : f32 ? 3 : work.bias ? 6 : 4;
  const int threads = !f32 && (work.forward || (sums && work.rows)) ? 768 : 512;
  if (schedule.octets == 0) schedule.octets = octets;
  if (schedule.resident_blocks == 0)
    schedule.resident_blocks = schedule.octets > octets ? 1 : larger(1, threads / schedule.threads);
  return schedule;
}

// --- Softmax -------------------------------------------------------------------------------------

// Warps that share a row of n elements: few enough that each thread has an octet or more of it. And rows side
// by side in a block.
OUTGRAD_HD constexpr int softmax_warps(i64 n) { return n <= 1024 ? 1 : n <= 8192 ? 4 : 16; }
OUTGRAD_HD constexpr int softmax_block_rows(int warps) { return warps == 1 ? 4 : 1; }

#ifndef __CUDACC_RTC__
// --- Plans ---------------------------------------------------------------------------------------

inline constexpr i64 kGridLimit = 0x7fffffff;  // gridDim.x
// The most columns for which a bias is read by octets: twice this number is counted in 32 bits.
inline constexpr i64 kMostWideColumns = i64{1} << 31;

struct PlannedLaunch {
  DeviceKernel kernel;
  i64 blocks;
  int threads;
  i64 shared_bytes = 0;  // dynamic
  i64 most_shared_bytes = 0;  // if not 0: the kernel must first be allowed this many dynamic bytes
  i64 left = 0, apart = 0;  // for add_slots and finish_columns
  i64 own_slots = 0;  // for sums over rows: the slots that a thread, or of a bias a block, adds up
};

// The launches, in their order.
struct LaunchPlan {
  // The most launches. A norm's backward: prepare, slot sums, rows, two of add_slots (for at most 2^17 rows
  // of sums), finish. Bias + GELU: rows, two of add_slots (for at most 2^16 rows of sums), finish.
  static constexpr int kMost = 8;
  int launches = 0;
  PlannedLaunch launch[kMost] = {};
  bool wide = true;  // for bias + GELU and norms: which instance
  SideChannels side = SideChannels::none;  // for a norm's backward
  GpuNormSchedule norm = {};  // for norms: with nothing left open

  void add(const PlannedLaunch& next) { launch[launches++] = next; }
};

// What a plan needs to know about a device.
struct PlanLimits {
  // needed if blocks_per_sm is not 0, and for a norm's backward; 0: not known
  int sms = 0;
  i64 shared_bytes = 0;  // per block with opt-in; needed if registers do not hold a norm's rows
  // blocks of the schedule's kernel that an SM holds at once; needed if blocks_per_sm is kAllResident
  int resident_blocks = 0;
};

inline i64 column_blocks(i64 words) { return (words + kColumnThreads - 1) / kColumnThreads; }

// The number of blocks that loop over the work of `wanted` blocks: no more than the schedule allows for all
// SMs.
inline i64 looping_blocks(i64 wanted, int blocks_per_sm, int sms) {
  const i64 most = blocks_per_sm > 0 ? i64{sms} * blocks_per_sm : kGridLimit;
  return wanted < most ? wanted : most;
}

// Blocks per SM of an elementwise kernel; 0: as many blocks as there are trips.
inline int grid_blocks_per_sm(const GpuSchedule& schedule, const PlanLimits& limits) {
  return schedule.blocks_per_sm == kAllResident ? limits.resident_blocks : schedule.blocks_per_sm;
}

// The following take a GpuSchedule with nothing left open (completed).

inline LaunchPlan elementwise_plan(DeviceKernel kernel, const GpuSchedule& schedule, i64 elements,
                                   const PlanLimits& limits) {
  const i64 per_block = i64{schedule.threads} * schedule.octets * kOctet;
  LaunchPlan plan;
  if (elements > 0)
    plan.add({kernel,
              looping_blocks((elements + per_block - 1) / per_block, grid_blocks_per_sm(schedule, limits),
                             limits.sms),
              schedule.threads});
  return plan;
}

// The scale of a tensor, and its codes. Without elements the scale is left to say, which one block does.
inline LaunchPlan encode_tensor_plan(const GpuSchedule& schedule, i64 elements, const PlanLimits& limits,
                                     bool scale_alone = false) {
  LaunchPlan plan = elementwise_plan(DeviceKernel::tensor_maxima, schedule, elements, limits);
  if (elements > 0 && plan.launch[0].blocks > kMostMaxima) plan.launch[0].blocks = kMostMaxima;
  if (elements == 0 || scale_alone) {
    plan.add({DeviceKernel::encode_tensor, 1, schedule.threads});
  } else {
    plan.add(elementwise_plan(DeviceKernel::encode_tensor, schedule, elements, limits).launch[0]);
  }
  return plan;
}

// A gated pair: a block takes a part of a row, one octet or element for each thread.
inline LaunchPlan gated_plan(DeviceKernel kernel, const GpuSchedule& schedule, i64 rows, i64 n, bool wide,
                             const PlanLimits& limits) {
  const i64 across = n / (wide ? kOctet : 1);
  LaunchPlan plan;
  if (rows > 0)
    plan.add({kernel,
              looping_blocks(rows * ((across + schedule.threads - 1) / schedule.threads),
                             grid_blocks_per_sm(schedule, limits), limits.sms),
              schedule.threads});
  return plan;
}

// The largest magnitudes of a pair.
inline PlannedLaunch gated_maxima_launch(const GpuSchedule& schedule, i64 rows, i64 n, bool wide,
                                         const PlanLimits& limits) {
  PlannedLaunch planned = gated_plan(DeviceKernel::gated_maxima, schedule, rows, n, wide, limits).launch[0];
  if (planned.blocks > kMostMaxima) planned.blocks = kMostMaxima;
  return planned;
}

inline PlannedLaunch softmax_launch(DeviceKernel kernel, i64 rows, int warps) {
  const int together = softmax_block_rows(warps);
  return {kernel, looping_blocks((rows + together - 1) / together, 0, 0), kTreeLanes * warps * together};
}

// Wide: the bias is read by octets.
inline LaunchPlan bias_forward_plan(const GpuSchedule& schedule, i64 elements, bool wide,
                                    const PlanLimits& limits) {
  LaunchPlan plan = elementwise_plan(DeviceKernel::bias_gelu_forward, schedule, elements, limits);
  plan.wide = wide;
  return plan;
}

// The end of sums over rows: of `sum_rows` rows of them (a power of two), of `words` words each, the last
// kernel makes the results of n columns, which have `sums` sums each.
inline void add_finish(LaunchPlan& plan, i64 sum_rows, i64 words, int sums, i64 n) {
  i64 left = sum_rows, apart = 1;
  for (; left > kFinishFan; left = (left + kSlotFan - 1) / kSlotFan, apart *= kSlotFan)
    plan.add({.kernel = DeviceKernel::add_slots,
              .blocks = column_blocks(words * ((left + kSlotFan - 1) / kSlotFan)),
              .threads = kColumnThreads,
              .left = left,
              .apart = apart});
  plan.add({.kernel = DeviceKernel::finish_columns,
            .blocks = sums * ((n + kFinishColumns - 1) / kFinishColumns),
            .threads = kColumnThreads,
            .left = left,
            .apart = apart});
}

// Wide: a row consists of whole octets, and dy, y and dx are aligned for the schedule's accesses. Finished:
// the last kernel runs also where a single row of sums could be dbias itself, because it is wanted in
// another format.
inline LaunchPlan bias_backward_plan(const GpuSchedule& schedule, i64 rows, i64 n, bool wide,
                                     const PlanLimits& limits, bool finished = false) {
  const i64 slots = slot_count(rows, n), across = n / (wide ? kOctet : 1);
  const int beside = slots_beside(schedule.threads, slots, across);
  const i64 columns = schedule.threads / beside, blocks_across = (across + columns - 1) / columns;
  LaunchPlan plan;
  plan.wide = wide;
  plan.add({.kernel = DeviceKernel::bias_gelu_backward,
            .blocks = looping_blocks(blocks_across * (slots / beside), grid_blocks_per_sm(schedule, limits),
                                     limits.sms),
            .threads = schedule.threads,
            .own_slots = beside});
  if (finished || slots > beside) add_finish(plan, slots / beside, n, 1, n);
  return plan;
}

// A norm's work, as far as its plan depends on it.
struct NormTask {
  Norm norm;
  int element_bytes;
  bool residual;
  i64 rows;
  i64 n;
  // rows consist of whole octets, and tensors are aligned for the schedule's accesses; a forward's gamma and
  // beta to 16 bytes
  bool wide;
  bool side;  // there are side channels
  bool sums;  // a backward's dgamma or dbeta is wanted
  // in a backward: gamma and beta are, to 16 bytes, so that its kernel may make the columns' constants itself
  bool aligned = true;
  bool drops = false;  // dropout of dz, in a backward
  // y is kept in 8 bits: at scales of groups, or at one of the tensor, with which the codes of a forward take
  // a launch of their own
  CodeScales codes = CodeScales::none;

  bool prepared() const { return side || !aligned; }
  bool splits() const { return codes == CodeScales::none; }  // a warp may have several rows
};

namespace detail {

// Shared memory that every kernel may use without asking.
inline constexpr i64 kUnaskedSharedBytes = 48 * 1024;

// The dynamic shared memory that one block may have, less what exchanges of `sums` sums between warps take.
inline i64 row_memory(const PlanLimits& limits, int sums) {
  return limits.shared_bytes - 2 * kTreeLanes * kTreeLanes * sums * static_cast<i64>(sizeof(float));
}

// The most shared memory that a kernel declares for exchanges between the warps of a row.
inline i64 declared_bytes(const GpuNormSchedule& s) {
  return i64{2} * block_threads(s) * static_cast<i64>(sizeof(Tuple<float, 2>));
}

// Whether registers hold the rows. If not, the plan depends on the device's shared memory.
inline bool rows_in_registers(const GpuNormSchedule& schedule, bool forward, const NormTask& task) {
  const RowUse use = forward
                         ? forward_use(task.element_bytes, task.residual, task.codes != CodeScales::none)
                         : backward_use(task.norm, task.element_bytes, task.residual,
                                        schedule.sums != ColumnSums::separate, task.prepared(), task.drops);
  return task.wide &&
         in_registers(schedule, use, forward ? kTreeLanes : most_backward_warps(schedule), task.n, false)
                 .row_warps != 0;
}

// A kernel that works by rows: block_rows of them side by side, the rest in a loop. The kernel is allowed all
// the shared memory there is, whatever this launch needs, because the permission belongs to the kernel, and
// launches of all threads share it.
inline PlannedLaunch rows_launch(DeviceKernel kernel, const GpuNormSchedule& s, i64 rows, i64 shared_bytes,
                                 i64 most_shared_bytes, const PlanLimits& limits) {
  const bool asks = shared_bytes > 0 && shared_bytes + declared_bytes(s) > kUnaskedSharedBytes;
  return {.kernel = kernel,
          .blocks = looping_blocks((rows + s.block_rows - 1) / s.block_rows, s.blocks_per_sm, limits.sms),
          .threads = block_threads(s),
          .shared_bytes = shared_bytes,
          .most_shared_bytes = asks ? most_shared_bytes : 0};
}

}  // namespace detail

inline LaunchPlan norm_forward_plan(const GpuNormSchedule& schedule, const NormTask& task,
                                    const PlanLimits& limits) {
  const detail::RowUse use =
      detail::forward_use(task.element_bytes, task.residual, task.codes != CodeScales::none);
  LaunchPlan plan;
  plan.wide = task.wide;
  i64 shared_bytes = 0, most_shared_bytes = 0;
  if (task.rows == 0) {
    if (task.codes == CodeScales::of_tensor)  // which has a scale without elements, too
      plan.add({DeviceKernel::norm_encode, 1, kEncodingThreads});
    return plan;
  }
  if (detail::rows_in_registers(schedule, true, task)) {
    plan.norm = detail::in_registers(schedule, use, kTreeLanes, task.n, task.splits());
  } else {
    most_shared_bytes = detail::row_memory(limits, 1);
    plan.norm = detail::in_loops(schedule, use, task.n, task.element_bytes, 1, task.wide, most_shared_bytes);
    if (plan.norm.home == RowHome::shared)
      shared_bytes = detail::shared_row_bytes(task.n, task.element_bytes);
  }
  plan.add(detail::rows_launch(DeviceKernel::norm_forward, plan.norm, task.rows, shared_bytes,
                               most_shared_bytes, limits));
  if (task.codes == CodeScales::of_tensor) {
    const i64 across = task.n / (task.wide ? kOctet : 1);
    plan.add(
        {.kernel = DeviceKernel::norm_encode,
         .blocks = looping_blocks(task.rows * ((across + kEncodingThreads - 1) / kEncodingThreads), 0, 0),
         .threads = kEncodingThreads});
  }
  return plan;
}

namespace detail {

// The slots that each thread of a fused backward takes one after the other, for rows in registers: those that
// make no more rows of sums than there may be, or more if no SM then works longer. What a block has at its
// begin and end, the constants of its columns, the first rows' way from memory and its row of sums, it then
// has for more rows. The blocks that are resident together have to share an SM's memory.
inline i64 own_slots_of(const GpuNormSchedule& s, const NormTask& task, const PlanLimits& limits) {
  const i64 slots = slot_count(task.rows, task.n),
            resident = larger(1, limits.sms) * static_cast<i64>(s.resident_blocks);
  i64 best = slots_together(slots, s.block_rows) / s.block_rows;
  const auto longest = [&](i64 own) {
    const i64 blocks = slots / (own * s.block_rows);
    return (blocks + resident - 1) / resident * own;
  };
  for (i64 own = 2 * best; own <= kMostBlockSlots && own * s.block_rows <= slots; own *= 2) {
    const i64 bytes =
        slots_block_bytes(s, task.norm, task.element_bytes, task.residual, task.prepared(), own, task.drops) +
        declared_bytes(s);
    if (limits.sms > 0 && longest(own) <= longest(best) && bytes * s.resident_blocks <= limits.shared_bytes)
      best = own;
  }
  return best;
}

}  // namespace detail

inline LaunchPlan norm_backward_plan(const GpuNormSchedule& schedule, const NormTask& task,
                                     const PlanLimits& limits) {
  constexpr int kTensors = 2;  // dy and y, which are kept if registers do not hold the rows
  const i64 slots = slot_count(task.rows, task.n);
  bool fused = schedule.sums != ColumnSums::separate,
       registers = detail::rows_in_registers(schedule, false, task);
  LaunchPlan plan;
  plan.wide = task.wide;
  PlannedLaunch rows = {};
  if (registers) {
    const detail::RowUse use = detail::backward_use(task.norm, task.element_bytes, task.residual, fused,
                                                    task.prepared(), task.drops);
    plan.norm =
        detail::in_registers(schedule, use, detail::most_backward_warps(schedule), task.n, task.splits());
  }
  if (registers && fused) {
    GpuNormSchedule s = plan.norm;
    s.blocks_per_sm = 0;  // each block has its own slots
    const i64 own_slots = detail::own_slots_of(s, task, limits),
              bytes = detail::slots_block_bytes(s, task.norm, task.element_bytes, task.residual,
                                                task.prepared(), own_slots, task.drops);
    registers = bytes + detail::declared_bytes(s) <= limits.shared_bytes;
    rows = detail::rows_launch(DeviceKernel::norm_backward_slots, s,
                               slots / own_slots > 1 ? slots / own_slots : 1, bytes,
                               limits.shared_bytes - detail::declared_bytes(s), {});
    rows.own_slots = own_slots;
  }
  fused = fused && registers;
  plan.side = !registers ? SideChannels::either : task.prepared() ? SideChannels::some : SideChannels::none;
  // Rows whose sums come from a separate pass need the columns' constants ready-made.
  if (!fused || plan.side != SideChannels::none)
    plan.add({DeviceKernel::norm_prepare, column_blocks(padded_columns(task.n)), kColumnThreads});
  const i64 sum_rows = fused ? rows.blocks : most_sum_rows(slots);
  // Runs before dx, which may be dy, is written.
  if (task.sums && !fused) {
    plan.add({.kernel = DeviceKernel::norm_slot_sums,
              .blocks = column_blocks(task.n) * sum_rows,
              .threads = kColumnThreads,
              .own_slots = slots_together(slots, 1)});
  }
  if (fused) {
    plan.add(rows);
  } else if (registers && task.rows > 0) {
    plan.add(detail::rows_launch(DeviceKernel::norm_backward, plan.norm, task.rows, 0, 0, limits));
  } else if (task.rows > 0) {
    // elements of two sizes do not come to shared memory one by one
    const bool apart = task.codes != CodeScales::none && !task.wide;
    const i64 limit = apart ? 0 : detail::row_memory(limits, 2);
    plan.norm = detail::in_loops(
        schedule, detail::backward_use(task.norm, task.element_bytes, task.residual, false, true), task.n,
        task.element_bytes, kTensors, task.wide, limit);
    const i64 shared_bytes = plan.norm.home == RowHome::shared
                                 ? kTensors * detail::shared_row_bytes(task.n, task.element_bytes)
                                 : 0;
    plan.add(
        detail::rows_launch(DeviceKernel::norm_backward, plan.norm, task.rows, shared_bytes, limit, limits));
  }
  if (task.sums)
    add_finish(plan, sum_rows, column_sums(task.norm) * sums_stride(task.n), column_sums(task.norm), task.n);
  return plan;
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
