// LayerNorm and RMSNorm on a GPU, alone and of x + residual: how they are launched. The kernels: kernels/cuda/norm_kernels.cuh.
//
// Arguments are those of kernels/host/layernorm.h, in device memory. What lies there is checked by nobody: side channels must ascend within
// [0, n), and a gamma without a finite reciprocal outside the side buffer gives infinities and NaNs. The launchers take a stream, allocate
// nothing, never synchronise, and return what the launches returned, or cudaErrorInvalidValue for arguments that break the contract: a
// negative number of rows, n < 1, more than 2^48 elements; eps negative or NaN; pointers that are null, misaligned to their element
// or overlap where the host's may not; beta or dbeta of RMSNorm; more side channels than n; a workspace too small. Then nothing is launched.
// Any `Schedule` (GpuNormSchedule in kernels/params.h) gives the same bits. NVRTC sees the kernels alone.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_kernels.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/layernorm.h"
#include "kernels/params.h"

#ifndef __CUDACC_RTC__

#include <initializer_list>

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// fp32 words of scratch of a backward of this shape: the columns' constants, their places, the slot sums. A function of the shape alone.
i64 norm_backward_workspace(i64 rows, i64 n);

// y and rstd from x; x^ of the side channels. y may equal x.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_norm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
                                SideBuffer<float> side, cudaStream_t stream);

// z = x + residual, rounded to T, and the norm of z. z may equal x or residual, and so may y, but not z.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_residual_norm_forward(const T* x, const T* residual, const float* gamma, const float* beta, i64 rows, i64 n, float eps,
                                         T* z, T* y, float* rstd, SideBuffer<float> side, cudaStream_t stream);

// dx, dgamma and dbeta from dy and the output y; dgamma and dbeta may be null (not wanted). dx may equal dy. `workspace`: at least
// norm_backward_workspace(rows, n) words of device memory, whose content does not matter.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_norm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx,
                                 float* dgamma, float* dbeta, SideBuffer<const float> side, float* workspace, i64 workspace_words,
                                 cudaStream_t stream);

// dz = the norm's gradient + dz_next, rounded once to T. dz may equal dy or dz_next.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_residual_norm_backward(const T* dy, const T* y, const T* dz_next, const float* gamma, const float* beta, const float* rstd,
                                          i64 rows, i64 n, T* dz, float* dgamma, float* dbeta, SideBuffer<const float> side,
                                          float* workspace, i64 workspace_words, cudaStream_t stream);

// --- Arguments -------------------------------------------------------------------------------------------------------------------

namespace detail {

// Of a matrix: a petabyte of fp32, more than any device has. Sums and products of such sizes do not overflow here, nor do the kernels' counts.
inline constexpr i64 kMostMatrixElements = i64{1} << 48;

// An array that a launcher was given. Of 0 bytes it may be anything.
struct Operand {
  u64 address;
  i64 bytes;
  u64 alignment;
  bool written;
  bool optional = false;  // may be null
  u64 may_equal[2] = {};  // addresses of arrays of the same size that a written one may be
};

template <class T>
Operand operand(const T* pointer, i64 count) {
  return {reinterpret_cast<u64>(pointer), count * static_cast<i64>(sizeof(T)), alignof(T), false};
}
template <class T>
Operand optional(const T* pointer, i64 count) {
  Operand result = operand(pointer, count);
  result.optional = true;
  return result;
}
template <class T>
Operand written(T* pointer, i64 count, const T* may_equal = nullptr, const T* or_equal = nullptr) {
  Operand result = operand(pointer, count);
  result.written = true;
  result.may_equal[0] = reinterpret_cast<u64>(may_equal);
  result.may_equal[1] = reinterpret_cast<u64>(or_equal);
  return result;
}
inline Operand optional(Operand result) {
  result.optional = true;
  return result;
}

// Whether every array can be there, and nothing that is written overlaps anything but what it may be.
inline bool operands_hold(std::initializer_list<Operand> operands) {
  for (const Operand& each : operands) {
    if (each.bytes == 0 || (each.optional && each.address == 0)) continue;
    if (each.address == 0 || each.address % each.alignment != 0 || each.address + static_cast<u64>(each.bytes) < each.address) return false;
  }
  for (const Operand& target : operands) {
    if (!target.written || target.address == 0) continue;
    for (const Operand& other : operands) {
      if (&other == &target || other.address == 0 || other.bytes == 0 || target.bytes == 0) continue;
      const bool apart = target.address + static_cast<u64>(target.bytes) <= other.address ||
                         other.address + static_cast<u64>(other.bytes) <= target.address;
      const bool same = target.address == other.address && (other.address == target.may_equal[0] || other.address == target.may_equal[1]);
      if (!apart && (!same || other.written)) return false;
    }
  }
  return true;
}

template <class Float>
bool shape_holds(i64 rows, i64 n, const SideBuffer<Float>& side) {
  return rows >= 0 && n >= 1 && n <= kMostMatrixElements && rows <= kMostMatrixElements / n && side.count >= 0 && side.count <= n;
}

// --- Choices ---------------------------------------------------------------------------------------------------------------------

// What a kernel does with rows, as far as the choice of a schedule depends on it.
struct RowUse {
  int octet_words;     // registers that an octet of the row and of what goes with it takes
  int resident_warps;  // of an SM's 2^16 registers, that leaves 2048 / resident_warps to a thread
  int most_words;      // of those, how many may be kept for rows; the rest is for all else
  bool in_turn;        // whether rows come one after the other through the warps that sum over them
  bool ahead;          // whether a row is loaded ahead, where the schedule leaves it open
};

// A schedule with nothing left open.
template <GpuNormSchedule S, int Warps, int Octets, RowHome Home, RowUse Use>
OUTGRAD_HD constexpr GpuNormSchedule chosen() {
  static_assert(S.row_warps >= 0 && S.octets >= 0 && S.block_rows >= 0 && S.resident_blocks >= 0 && S.rows_ahead >= -1,
                "0, or -1 rows ahead, leaves a member open");
  GpuNormSchedule schedule = S;
  schedule.row_warps = Warps;
  schedule.octets = Octets;
  schedule.home = Home;
  if (Home != RowHome::registers) schedule.block_rows = 1;  // one row at a time
  // Slots whose rows come in turn would wait for one another, and take registers to say whether they are there.
  if (schedule.block_rows == 0) schedule.block_rows = Use.in_turn ? 1 : larger(1, kBlockWarps / Warps);
  schedule.block_rows = smaller(schedule.block_rows, kTreeLanes / Warps);
  if (schedule.resident_blocks == 0) schedule.resident_blocks = larger(1, Use.resident_warps / (Warps * schedule.block_rows));
  if (schedule.rows_ahead < 0) schedule.rows_ahead = Use.ahead ? 1 : 0;
  return schedule;
}

template <class Schedule, int Warps, int Octets, RowHome Home, RowUse Use>
struct ChosenNormSchedule {
  static constexpr GpuNormSchedule kSchedule = chosen<Schedule::kSchedule, Warps, Octets, Home, Use>();
};

// Octets that a thread keeps where the schedule leaves it open: 4, or fewer if they are too many.
OUTGRAD_HD constexpr int default_octets(RowUse use) {
  int octets = 4;
  while (octets > 1 && octets * use.octet_words > use.most_words) octets /= 2;
  return octets;
}

// A forward keeps a row of each tensor it reads.
template <class T, bool Residual>
inline constexpr RowUse kForwardUse = {
    .octet_words = Octet<T>::kWords * (Residual ? 2 : 1), .resident_warps = 24, .most_words = 32, .in_turn = false, .ahead = false};

// A backward keeps rows of dy, of y and of what is added, and if it sums over rows, the sums; the row ahead, too, where two octets to a thread
// leave half the registers for all else. Looking side channels up takes registers of its own.
template <Norm N, class T, bool Residual, bool Sums, bool Side>
OUTGRAD_HD constexpr RowUse backward_use() {
  constexpr int kSideWords = 2 * kOctet;
  RowUse use = {.octet_words = Octet<T>::kWords * (Residual ? 3 : 2), .resident_warps = 16, .most_words = 80, .in_turn = Sums, .ahead = false};
  constexpr int kSums = kOctet * kColumnSums<N>, kMostWithAhead = 32;
  use.ahead = Sums && !Side && 2 * use.octet_words + kSums <= kMostWithAhead;
  if (use.ahead) use.octet_words *= 2;
  if (Sums) use.octet_words += kSums;
  if (Side) use.octet_words += kSideWords;
  return use;
}

template <class Schedule>
struct Choice {};

// Calls body(Choice<..>{}) with the first schedule (fewest warps to a row, then fewest octets to a thread) whose registers hold a row of
// `steps` steps of the tree; where there is none, returns otherwise(). MostWarps: to a row.
template <class Schedule, RowUse Use, int MostWarps, int Warps = 1, int Own = 1, class Body, class Otherwise>
cudaError_t with_registers(i64 steps, const Body& body, const Otherwise& otherwise) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  constexpr int kOctets = S.octets != 0 ? S.octets : default_octets(Use);
  constexpr bool kWanted = S.home == RowHome::automatic || S.home == RowHome::registers;
  if constexpr (!kWanted || Warps > MostWarps) {
    return otherwise();
  } else {
    // Fewer octets than the most are for rows that one warp, or the fixed number of warps, takes.
    constexpr bool kFits = (S.row_warps == 0 || S.row_warps == Warps) && (S.octets == 0 || S.octets == Own) &&
                           (Own == kOctets || Warps == larger(1, S.row_warps)) && Own * Warps <= kMostRegisterSteps;
    if constexpr (kFits) {
      if (steps <= Own * Warps) return body(Choice<ChosenNormSchedule<Schedule, Warps, Own, RowHome::registers, Use>>{});
    }
    if constexpr (Own < kOctets) {
      return with_registers<Schedule, Use, MostWarps, Warps, 2 * Own>(steps, body, otherwise);
    } else {
      return with_registers<Schedule, Use, MostWarps, 2 * Warps, 1>(steps, body, otherwise);
    }
  }
}

// Warps to a row where registers do not hold it: few for short rows, which are then misaligned ones.
inline constexpr int kShortRowWarps = 4, kLongRowWarps = 16;
inline constexpr i64 kShortRowSteps = 4 * kShortRowWarps;

// Calls body(Choice<..>{}, shared bytes) for rows that lie in shared memory, or, where `limit` bytes do not hold `tensors` of them, in memory.
// Long: the rows that come here by themselves are long ones, as registers hold the others.
template <class Schedule, class T, RowUse Use, bool Long, class Body>
cudaError_t with_loops(i64 n, int tensors, i64 limit, const Body& body) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  constexpr int kWarps = S.row_warps != 0 ? S.row_warps : kLongRowWarps;
  constexpr bool kShortOnes = S.row_warps == 0 && !(Long && (S.home == RowHome::automatic || S.home == RowHome::registers));
  const bool is_short = kShortOnes && row_steps(n) <= kShortRowSteps;
  if constexpr (S.home != RowHome::memory) {
    if (n <= limit && tensors * shared_row_bytes<T>(n) <= limit) {
      const size_t bytes = static_cast<size_t>(tensors * shared_row_bytes<T>(n));
      if constexpr (kShortOnes) {
        if (is_short) return body(Choice<ChosenNormSchedule<Schedule, kShortRowWarps, 1, RowHome::shared, Use>>{}, bytes);
      }
      return body(Choice<ChosenNormSchedule<Schedule, kWarps, 1, RowHome::shared, Use>>{}, bytes);
    }
  } else if constexpr (kShortOnes) {
    if (is_short) return body(Choice<ChosenNormSchedule<Schedule, kShortRowWarps, 1, RowHome::memory, Use>>{}, size_t{0});
  }
  return body(Choice<ChosenNormSchedule<Schedule, kWarps, 1, RowHome::memory, Use>>{}, size_t{0});
}

// --- Launches --------------------------------------------------------------------------------------------------------------------

inline cudaError_t device_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  return cudaDeviceGetAttribute(&value, attribute, device);
}

// The dynamic shared memory that one block may have, beside what exchanges between warps take.
template <int Sums>
cudaError_t row_memory(i64& bytes) {
  int most = 0;
  const cudaError_t status = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, most);
  bytes = most - static_cast<i64>(2 * kTreeLanes * kTreeLanes * sizeof(Tuple<float, Sums>));
  return status;
}

// Shared memory that every kernel may have without asking.
inline constexpr size_t kUnaskedSharedBytes = 48 * 1024;

inline constexpr i64 kGridLimit = 0x7fffffff;  // gridDim.x

// `blocks` blocks, or as many as the schedule has for all SMs: kernels that go by rows loop over the rest. The kernel is allowed all the shared
// memory that there is, `most_shared_bytes`, whatever this launch needs: the permission is the kernel's, for all threads' launches.
template <GpuNormSchedule S, class Kernel, class Arrays>
cudaError_t launch_rows(Kernel kernel, i64 blocks, size_t shared_bytes, i64 most_shared_bytes, cudaStream_t stream, const Arrays& arrays) {
  if constexpr (S.blocks_per_sm > 0) {
    int sms = 0;
    if (const cudaError_t status = device_attribute(cudaDevAttrMultiProcessorCount, sms); status != cudaSuccess) return status;
    blocks = blocks < i64{sms} * S.blocks_per_sm ? blocks : i64{sms} * S.blocks_per_sm;
  }
  constexpr size_t kDeclared = size_t{2} * S.row_warps * kTreeLanes * sizeof(Tuple<float, 2>);
  if (shared_bytes > 0 && shared_bytes + kDeclared > kUnaskedSharedBytes) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most_shared_bytes));
    if (status != cudaSuccess) return status;
  }
  return launch(kernel, static_cast<unsigned>(blocks < kGridLimit ? blocks : kGridLimit), kTreeLanes * S.row_warps * S.block_rows, shared_bytes,
                stream, arrays);
}

inline bool is_aligned_to(const void* pointer, int bytes) { return reinterpret_cast<u64>(pointer) % static_cast<u64>(bytes) == 0; }

// Whether rows of these tensors consist of whole octets that wide accesses reach; null ones do not matter.
template <GpuNormSchedule S, class T>
bool rows_are_wide(i64 n, std::initializer_list<const T*> tensors) {
  if (n % kOctet != 0) return false;
  for (const T* tensor : tensors) {
    if (!is_aligned_to(tensor, kAccessBytes<kAccessOf<S>, T>)) return false;
  }
  return true;
}

template <Norm N, class T, class Schedule, bool Residual>
cudaError_t launch_forward(const NormForwardArrays<T>& a, cudaStream_t stream) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  if (!shape_holds(a.rows, a.n, a.side) || !(a.eps >= 0.0f) || (N == Norm::rms && a.beta)) return cudaErrorInvalidValue;
  const i64 size = a.rows * a.n;
  if (!operands_hold({operand(a.x, size), operand(a.residual, Residual ? size : 0), optional(a.gamma, a.n), optional(a.beta, a.n),
                      written(a.z, Residual ? size : 0, a.x, a.residual), written(a.y, size, a.x, a.residual), written(a.rstd, a.rows),
                      operand(a.side.channels, a.side.count), written(a.side.x_hat, a.rows * a.side.count)})) {
    return cudaErrorInvalidValue;
  }
  if (a.rows == 0) return cudaSuccess;
  const auto by_loops = [&]<bool Wide>() -> cudaError_t {
    i64 limit = 0;
    if (const cudaError_t status = row_memory<1>(limit); status != cudaSuccess) return status;
    return with_loops<Schedule, T, kForwardUse<T, Residual>, Wide>(a.n, 1, limit, [&]<class Chosen>(Choice<Chosen>, size_t shared_bytes) {
      return launch_rows<Chosen::kSchedule>(norm_forward<N, T, Chosen, Wide, Residual>, a.rows, shared_bytes, limit, stream, a);
    });
  };
  constexpr int kQuad = 16;  // bytes of the accesses to gamma and beta
  if (!rows_are_wide<S, T>(a.n, {a.x, a.residual, a.z, a.y}) || !is_aligned_to(a.gamma, kQuad) || !is_aligned_to(a.beta, kQuad)) {
    return by_loops.template operator()<false>();
  }
  return with_registers<Schedule, kForwardUse<T, Residual>, kTreeLanes>(
      row_steps(a.n),
      [&]<class Chosen>(Choice<Chosen>) {
        constexpr i64 kRows = Chosen::kSchedule.block_rows;
        return launch_rows<Chosen::kSchedule>(norm_forward<N, T, Chosen, true, Residual>, (a.rows + kRows - 1) / kRows, 0, 0, stream, a);
      },
      [&] { return by_loops.template operator()<true>(); });
}

// Arrays of the workspace are whole lines of 128 bytes, so that wide accesses reach all of them; those that registers' rows look up, all
// that a schedule may look up.
inline constexpr i64 kWorkspaceLine = 32;
inline i64 sums_stride(i64 n) { return (n + kWorkspaceLine - 1) / kWorkspaceLine * kWorkspaceLine; }
inline i64 padded_columns(i64 n) {
  constexpr i64 kMostInRegisters = i64{kMostRegisterSteps} * kStepTerms;
  return n <= kMostInRegisters ? kMostInRegisters : sums_stride(n);
}

template <Norm N, class T, class Schedule, bool Residual>
cudaError_t launch_backward(NormBackwardArrays<T> a, const float* gamma, const float* beta, float* dgamma, float* dbeta, float* workspace,
                            i64 workspace_words, cudaStream_t stream) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  if (!shape_holds(a.rows, a.n, a.side) || (N == Norm::rms && (beta || dbeta))) return cudaErrorInvalidValue;
  const i64 words = norm_backward_workspace(a.rows, a.n);
  if (workspace_words < words) return cudaErrorInvalidValue;
  const i64 size = a.rows * a.n;
  if (!operands_hold({operand(a.dy, size), operand(a.y, size), operand(a.dz_next, Residual ? size : 0), optional(gamma, a.n),
                      optional(beta, a.n), operand(a.rstd, a.rows), written(a.dx, size, a.dy, a.dz_next), optional(written(dgamma, a.n)),
                      optional(written(dbeta, a.n)), operand(a.side.channels, a.side.count), operand(a.side.x_hat, a.rows * a.side.count),
                      written(workspace, words)})) {
    return cudaErrorInvalidValue;
  }
  const u64 line_bytes = kWorkspaceLine * sizeof(float);
  float* const aligned = reinterpret_cast<float*>((reinterpret_cast<u64>(workspace) + line_bytes - 1) / line_bytes * line_bytes);
  const i64 padded = padded_columns(a.n);
  a.stride = sums_stride(a.n);
  a.columns = columns_at(aligned, padded);
  i32* const place = reinterpret_cast<i32*>(aligned + kColumnArrays * padded);
  a.place = place;
  a.slots = slot_count(a.rows, a.n);
  a.slot_rows = slot_rows(a.rows, a.slots);
  const bool wants_sums = dgamma || dbeta;
  float* const sums = aligned + (kColumnArrays + 1) * padded;
  a.sums = wants_sums ? sums : nullptr;
  const i64 blocks = column_blocks(padded);
  if (blocks > kGridLimit) return cudaErrorInvalidValue;  // 2^39 columns: no device has the workspace
  cudaError_t status = launch(norm_prepare<>, static_cast<unsigned>(blocks), kColumnThreads, 0, stream, a.columns, place, gamma, beta, a.n, padded, a.side);
  if (status != cudaSuccess) return status;

  constexpr bool kFused = S.sums != ColumnSums::separate;
  constexpr int kMostWarps = S.row_warps != 0 || !kFused ? kTreeLanes : kTreeLanes / 2;  // 32 of them have too few registers each
  const auto apart_from_rows = [&] {  // the sums by a kernel of their own
    if (!wants_sums) return cudaSuccess;
    return launch(norm_slot_sums<N, T>, static_cast<unsigned>(column_blocks(a.n) * a.slots), kColumnThreads, 0, stream, a);
  };
  const auto by_loops = [&]<bool Wide>() -> cudaError_t {
    i64 limit = 0;
    if (const cudaError_t error = row_memory<2>(limit); error != cudaSuccess) return error;
    if (const cudaError_t error = apart_from_rows(); error != cudaSuccess || a.rows == 0) return error;
    return with_loops<Schedule, T, backward_use<N, T, Residual, false, true>(), Wide>(a.n, 2, limit, [&]<class Chosen>(Choice<Chosen>, size_t shared_bytes) {
      return launch_rows<Chosen::kSchedule>(norm_backward<N, T, Chosen, Wide, Residual, SideChannels::either>, a.rows, shared_bytes, limit, stream, a);
    });
  };
  const auto in_registers = [&]<class Chosen, SideChannels Side>() {
    constexpr i64 kRows = Chosen::kSchedule.block_rows;
    if constexpr (Schedule::kSchedule.sums == ColumnSums::separate) {
      if (const cudaError_t error = apart_from_rows(); error != cudaSuccess || a.rows == 0) return error;
      return launch_rows<Chosen::kSchedule>(norm_backward<N, T, Chosen, true, Residual, Side>, (a.rows + kRows - 1) / kRows, 0, 0, stream, a);
    } else {
      return launch(norm_backward_slots<N, T, Chosen, Residual, Side>, static_cast<unsigned>((a.slots + kRows - 1) / kRows),
                    kNormThreads<Chosen>, 0, stream, a);
    }
  };
  if (!rows_are_wide<S, T>(a.n, {a.dy, a.y, a.dz_next, a.dx})) {
    status = by_loops.template operator()<false>();
  } else {
    const auto with_side = [&]<SideChannels Side>() {
      return with_registers<Schedule, backward_use<N, T, Residual, kFused, Side == SideChannels::some>(), kMostWarps>(
          row_steps(a.n), [&]<class Chosen>(Choice<Chosen>) { return in_registers.template operator()<Chosen, Side>(); },
          [&] { return by_loops.template operator()<true>(); });
    };
    status = a.side.count > 0 ? with_side.template operator()<SideChannels::some>() : with_side.template operator()<SideChannels::none>();
  }
  if (status != cudaSuccess || !wants_sums) return status;
  status = launch_add_slots(sums, kColumnSums<N> * a.stride, a.slots, stream);
  if (status != cudaSuccess) return status;
  return launch(norm_finish<>, static_cast<unsigned>(column_blocks(a.n)), kColumnThreads, 0, stream, sums, a.columns, a.n, a.stride, dgamma, dbeta);
}

}  // namespace detail

inline i64 norm_backward_workspace(i64 rows, i64 n) {
  return detail::kWorkspaceLine - 1 + (kColumnArrays + 1) * detail::padded_columns(n) + 2 * slot_count(rows, n) * detail::sums_stride(n);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_norm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
                                SideBuffer<float> side, cudaStream_t stream) {
  return detail::launch_forward<N, T, Schedule, false>({x, nullptr, gamma, beta, rows, n, eps, nullptr, y, rstd, side}, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_residual_norm_forward(const T* x, const T* residual, const float* gamma, const float* beta, i64 rows, i64 n, float eps,
                                         T* z, T* y, float* rstd, SideBuffer<float> side, cudaStream_t stream) {
  return detail::launch_forward<N, T, Schedule, true>({x, residual, gamma, beta, rows, n, eps, z, y, rstd, side}, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_norm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx,
                                 float* dgamma, float* dbeta, SideBuffer<const float> side, float* workspace, i64 workspace_words,
                                 cudaStream_t stream) {
  return detail::launch_backward<N, T, Schedule, false>({dy, y, nullptr, {}, nullptr, rstd, rows, n, side, dx, nullptr, 0, {}, 0}, gamma, beta,
                                                        dgamma, dbeta, workspace, workspace_words, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_residual_norm_backward(const T* dy, const T* y, const T* dz_next, const float* gamma, const float* beta, const float* rstd,
                                          i64 rows, i64 n, T* dz, float* dgamma, float* dbeta, SideBuffer<const float> side,
                                          float* workspace, i64 workspace_words, cudaStream_t stream) {
  return detail::launch_backward<N, T, Schedule, true>({dy, y, dz_next, {}, nullptr, rstd, rows, n, side, dz, nullptr, 0, {}, 0}, gamma, beta,
                                                       dgamma, dbeta, workspace, workspace_words, stream);
}

}  // namespace outgrad::kernels::cuda

#endif  // __CUDACC_RTC__
