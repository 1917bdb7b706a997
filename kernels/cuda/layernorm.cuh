// Launchers of LayerNorm and RMSNorm on a GPU, alone and of x + residual. The kernels are in
// kernels/cuda/norm_kernels.cuh.
//
// Arrays are those of kernels/host/layernorm.h, in device memory, and a function reads those that the host's
// function of its name reads. Of the members that only NormForwardArrays and NormBackwardArrays have
// (kernels/cuda/plan.h), a caller sets what is named below. Values are not checked: side channels must ascend
// within [0, n), and a gamma without a finite reciprocal outside the side buffer gives infinities and NaNs.
// The launchers take a stream, allocate nothing and never synchronise. They return what the launches
// returned, or cudaErrorInvalidValue for arguments that break the contract; then nothing is launched. Such
// arguments are: a negative number of rows, n < 1, more than 2^48 elements; an eps that is negative or NaN;
// pointers that are null, misaligned to their element, or overlap where the host's may not; beta or dbeta of
// RMSNorm; more side channels than n; a workspace that is too small. Any `Schedule` (GpuNormSchedule in
// kernels/params.h) gives the same bits. NVRTC sees only the kernels.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_kernels.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/layernorm.h"
#include "kernels/params.h"

#ifndef __CUDACC_RTC__

#include <initializer_list>

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {
// y and rstd from x; x^ of the side channels. y may equal x.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_norm_forward(const NormForwardArrays<T>& a, cudaStream_t stream);

// z = x + residual, rounded to T, and the norm of z. z may equal x or residual. y may also equal one of them,
// but not z.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_residual_norm_forward(const NormForwardArrays<T>& a, cudaStream_t stream);

// dx, dgamma and dbeta from dy and the output y. dgamma and dbeta may be null if they are not wanted. dx may
// equal dy. `workspace` is at least norm_backward_workspace(rows, n) words of device memory, whose content
// does not matter.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_norm_backward(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                 cudaStream_t stream);

// a.dx is dz = the norm's gradient + dz_next, rounded once to T. It may equal dy or dz_next.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_residual_norm_backward(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                          cudaStream_t stream);

// z = dropout(x) + residual, each rounded to T, and the norm of z in the same pass. The seed lies in device
// memory, and the contract of p is that of kernels/cuda/dropout.cuh; with a null seed nothing is dropped. z
// may be null: it is then not stored. z and y may equal x or residual, but not each other.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_dropout_add_norm_forward(NormForwardArrays<T> a, const u64* seed, double p,
                                            cudaStream_t stream);

// dz, in a.dx, as launch_residual_norm_backward computes it or, if dz_next is null, launch_norm_backward; and
// dx = dropout(dz), in a.dropout.dx, in the same pass. With a null seed nothing is dropped: dx would be dz,
// and must be null.
template <Norm N, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_dropout_add_norm_backward(NormBackwardArrays<T> a, const NormBackwardColumns& of,
                                             const u64* seed, double p, cudaStream_t stream);

// y, rstd and x^ as launch_norm_forward gives them, and beside them y's codes and their scales, a.kept, with
// a Store of kernels/norm_store.h. The contract is that of norm_forward_8bit of kernels/host/norm_store.h,
// without a given scale. `workspace` has norm_forward_workspace(code_scales<Store>, rows) words, whose
// content does not matter. With a scale for the tensor, y must not overlap x. cudaErrorInvalidValue also for
// an n that is no whole number of groups.
template <Norm N, class Store, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_norm_forward_8bit(NormForwardArrays<T> a, float* workspace, cudaStream_t stream);

// launch_norm_backward from the codes and scales in a.kept, in place of y. Values are not checked: a scale
// that does not hold gives gradients without a meaning.
template <Norm N, class Store, class T, class Schedule = DefaultGpuNormSchedule>
cudaError_t launch_norm_backward_8bit(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                      cudaStream_t stream);

// --- Arguments -----------------------------------------------------------------------------------

namespace detail {

// The most elements of a matrix: a petabyte of fp32, more than any device has. Sums and products of such
// sizes do not overflow here, nor do the kernels' counts.
inline constexpr i64 kMostMatrixElements = i64{1} << 48;

template <class Float>
bool shape_holds(i64 rows, i64 n, const SideBuffer<Float>& side) {
  return rows >= 0 && n >= 1 && n <= kMostMatrixElements && rows <= kMostMatrixElements / n &&
         side.count >= 0 && side.count <= n;
}

// --- Choices -------------------------------------------------------------------------------------

// A schedule with nothing left open. The plan (kernels/cuda/plan.h) decides which one a row uses at run time;
// here are its instances.
template <class Schedule, int Warps, int Octets, RowHome Home, RowUse Use, int Lanes = kTreeLanes>
struct ChosenNormSchedule {
  static constexpr GpuNormSchedule kOpen = Schedule::kSchedule;
  static_assert(kOpen.row_warps >= 0 && kOpen.octets >= 0 && kOpen.block_rows >= 0 &&
                    kOpen.resident_blocks >= 0 && kOpen.rows_ahead >= -1,
                "0, or -1 rows ahead, leaves a member open");
  static constexpr GpuNormSchedule kSchedule = chosen(kOpen, Warps, Octets, Home, Use, Lanes);
};

template <class T, bool Residual, class Store = void>
inline constexpr RowUse kForwardUse =
    forward_use(sizeof(T), Residual, kCodeScales<Store> != CodeScales::none);

template <Norm N, class T, bool Residual, bool Sums, bool Side, bool Drops = false>
OUTGRAD_HD constexpr RowUse backward_use() {
  return backward_use(N, sizeof(T), Residual, Sums, Side, Drops);
}

template <class Schedule>
struct Choice {};

// Whether the plan of the longest row that so many lanes of a warp hold has this instance.
template <GpuNormSchedule S, RowUse Use, bool Splits, int Warps, int Own, int Lanes>
constexpr bool is_planned() {
  constexpr GpuNormSchedule kPlanned = in_registers(S, Use, 1, i64{Lanes} * Own * kOctet, Splits);
  return kPlanned.row_warps == Warps && kPlanned.octets == Own && kPlanned.row_lanes == Lanes;
}

// Calls body(Choice<..>{}) with the instance of a plan's schedule, which is one of those offered for rows in
// registers. Splits: a warp may have several rows.
template <class Schedule, RowUse Use, int MostWarps, bool Splits, int Warps = 1, int Own = 1, class Body>
cudaError_t with_registers(const GpuNormSchedule& planned, const Body& body) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  if constexpr (!wants_registers(S) || Warps > MostWarps) {
    return cudaErrorInvalidValue;
  } else {
    if constexpr (is_offered(S, Use, Warps, Own)) {
      const auto with_lanes = [&]<int Lanes>() {
        return body(Choice<ChosenNormSchedule<Schedule, Warps, Own, RowHome::registers, Use, Lanes>>{});
      };
      if (planned.row_warps == Warps && planned.octets == Own) {
        static_assert(4 * kFewestLanes == kTreeLanes);
        if constexpr (is_planned<S, Use, Splits, Warps, Own, kFewestLanes>()) {
          if (planned.row_lanes == kFewestLanes) return with_lanes.template operator()<kFewestLanes>();
        }
        if constexpr (is_planned<S, Use, Splits, Warps, Own, 2 * kFewestLanes>()) {
          if (planned.row_lanes == 2 * kFewestLanes)
            return with_lanes.template operator()<2 * kFewestLanes>();
        }
        if (planned.row_lanes != kTreeLanes) return cudaErrorInvalidValue;
        return with_lanes.template operator()<kTreeLanes>();
      }
    }
    if constexpr (Own < most_octets(S, Use)) {
      return with_registers<Schedule, Use, MostWarps, Splits, Warps, 2 * Own>(planned, body);
    } else {
      return with_registers<Schedule, Use, MostWarps, Splits, 2 * Warps, 1>(planned, body);
    }
  }
}

// The same for rows in shared memory or in memory.
template <class Schedule, RowUse Use, bool Wide, class Body>
cudaError_t with_loops(const GpuNormSchedule& planned, const Body& body) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  constexpr int kWarps = loop_warps(S);
  const auto with_warps = [&]<RowHome Home>() -> cudaError_t {
    if constexpr (loops_take_short_rows(Schedule::kSchedule, Wide)) {
      if (planned.row_warps == kShortRowWarps)
        return body(Choice<ChosenNormSchedule<Schedule, kShortRowWarps, 1, Home, Use>>{});
    }
    return body(Choice<ChosenNormSchedule<Schedule, kWarps, 1, Home, Use>>{});
  };
  if constexpr (S.home == RowHome::memory) {
    return with_warps.template operator()<RowHome::memory>();
  } else {
    if (planned.home == RowHome::shared) return with_warps.template operator()<RowHome::shared>();
    return body(Choice<ChosenNormSchedule<Schedule, kWarps, 1, RowHome::memory, Use>>{});
  }
}

// --- Launches ------------------------------------------------------------------------------------

inline cudaError_t device_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  return cudaDeviceGetAttribute(&value, attribute, device);
}

// What a plan needs to know about the device; only that is asked for. A backward needs all.
template <GpuNormSchedule S>
cudaError_t limits_for(bool forward_in_registers, PlanLimits& limits) {
  if (S.blocks_per_sm > 0 || !forward_in_registers) {
    if (const cudaError_t status = device_attribute(cudaDevAttrMultiProcessorCount, limits.sms);
        status != cudaSuccess)
      return status;
  }
  if (forward_in_registers) return cudaSuccess;
  int bytes = 0;
  const cudaError_t status = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes);
  limits.shared_bytes = bytes;
  return status;
}

template <class Kernel, class Arrays>
cudaError_t launch_rows(Kernel kernel, const PlannedLaunch& planned, cudaStream_t stream,
                        const Arrays& arrays) {
  if (planned.most_shared_bytes > 0) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(planned.most_shared_bytes));
    if (status != cudaSuccess) return status;
  }
  return launch(kernel, static_cast<unsigned>(planned.blocks), planned.threads,
                static_cast<size_t>(planned.shared_bytes), stream, arrays);
}

inline bool is_aligned_to(const void* pointer, int bytes) {
  return reinterpret_cast<u64>(pointer) % static_cast<u64>(bytes) == 0;
}

inline constexpr int kQuad = 16;  // bytes of the accesses to gamma and beta

// Whether rows of these tensors consist of whole octets that wide accesses can reach. Null tensors do not
// matter.
template <GpuNormSchedule S, class T>
bool rows_are_wide(i64 n, std::initializer_list<const T*> tensors) {
  if (n % kOctet != 0) return false;
  for (const T* tensor : tensors) {
    if (!is_aligned_to(tensor, kAccessBytes<kAccessOf<S>, T>)) return false;
  }
  return true;
}

template <class Store>
bool groups_hold(i64 n) {
  if constexpr (kCodeScales<Store> == CodeScales::of_groups) return n % Store::kGroup == 0;
  return true;
}

// The arrays of codes; nothing with Store = void.
template <class Store>
Operand codes_operand(const NormCodes& kept, i64 rows, i64 n, bool is_written) {
  Operand codes =
      operand(static_cast<const u8*>(kept.codes), kCodeScales<Store> == CodeScales::none ? 0 : rows * n);
  codes.written = is_written;
  return codes;
}
template <class Store>
Operand scales_operand(const NormCodes& kept, i64 rows, i64 n, bool is_written) {
  if constexpr (kCodeScales<Store> == CodeScales::none) {
    return operand(static_cast<const u8*>(nullptr), 0);
  } else {
    Operand scales =
        operand(static_cast<const typename Store::Scale*>(kept.scales), norm_scales_of<Store>(rows, n));
    scales.written = is_written;
    return scales;
  }
}

// The launch of a plan that computes y.
template <Norm N, class T, class Schedule, bool Residual, bool Drops, bool StoresZ, class Store>
cudaError_t launch_forward_rows(const NormForwardArrays<T>& a, const LaunchPlan& plan, cudaStream_t stream) {
  const auto in_rows = [&]<bool Wide>() {
    return [&]<class Chosen>(Choice<Chosen>) {
      return launch_rows(
          norm_forward<N, T, Chosen, Wide, Residual, ParameterFormat::f32, Drops, StoresZ, Store>,
          plan.launch[0], stream, a);
    };
  };
  constexpr RowUse kUse = kForwardUse<T, Residual, Store>;
  constexpr bool kPlain = kCodeScales<Store> == CodeScales::none;
  const auto wide_instance = in_rows.template operator()<true>();
  if (plan.norm.home == RowHome::registers)
    return with_registers<Schedule, kUse, kTreeLanes, kPlain>(plan.norm, wide_instance);
  return plan.wide ? with_loops<Schedule, kUse, true>(plan.norm, wide_instance)
                   : with_loops<Schedule, kUse, false>(plan.norm, in_rows.template operator()<false>());
}

template <Norm N, class T, class Schedule, bool Residual, bool Drops = false, bool StoresZ = Residual,
          class Store = void>
cudaError_t launch_forward(const NormForwardArrays<T>& a, cudaStream_t stream) {
  const auto *const gamma = static_cast<const float*>(a.gamma), *const beta =
                                                                    static_cast<const float*>(a.beta);
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  constexpr CodeScales kScales = kCodeScales<Store>;
  constexpr bool kOfTensor = kScales == CodeScales::of_tensor;  // x is read again after y is written
  if (!shape_holds(a.rows, a.n, a.side) || !(a.eps >= 0.0f) || (N == Norm::rms && a.beta) ||
      !groups_hold<Store>(a.n))
    return cudaErrorInvalidValue;
  const i64 size = a.rows * a.n;
  if (!operands_hold({operand(a.x, size), operand(a.residual, Residual ? size : 0), optional(gamma, a.n),
                      optional(beta, a.n), written(a.z, StoresZ ? size : 0, a.x, a.residual),
                      written(a.y, size, kOfTensor ? nullptr : a.x, a.residual), written(a.rstd, a.rows),
                      operand(a.dropout.seed.at, Drops ? 1 : 0), operand(a.side.channels, a.side.count),
                      written(a.side.x_hat, a.rows * a.side.count),
                      codes_operand<Store>(a.kept, a.rows, a.n, true),
                      scales_operand<Store>(a.kept, a.rows, a.n, true),
                      written(a.kept.amax, kOfTensor ? norm_forward_workspace(kScales, a.rows) : 0)})) {
    return cudaErrorInvalidValue;
  }
  if (a.rows == 0 && !kOfTensor) return cudaSuccess;
  const bool wide = rows_are_wide<S, T>(a.n, {a.x, a.residual, a.z, a.y}) && is_aligned_to(a.gamma, kQuad) &&
                    is_aligned_to(a.beta, kQuad) && is_aligned_to(a.kept.codes, kOctet);
  const NormTask task = {.norm = N,
                         .element_bytes = sizeof(T),
                         .residual = Residual,
                         .rows = a.rows,
                         .n = a.n,
                         .wide = wide,
                         .side = a.side.count > 0,
                         .sums = false,
                         .codes = kScales};
  PlanLimits limits;
  if (const cudaError_t status = limits_for<S>(rows_in_registers(S, true, task), limits);
      status != cudaSuccess)
    return status;
  const LaunchPlan plan = norm_forward_plan(S, task, limits);
  if constexpr (kOfTensor) {
    cudaError_t status = cudaMemsetAsync(a.kept.amax, 0, sizeof(u32), stream);
    if (status == cudaSuccess && a.rows > 0)
      status = launch_forward_rows<N, T, Schedule, Residual, Drops, StoresZ, Store>(a, plan, stream);
    if (status != cudaSuccess) return status;
    return launch_rows(wide ? norm_encode<Store, T, true> : norm_encode<Store, T, false>,
                       plan.launch[plan.launches - 1], stream, a);
  } else {
    return launch_forward_rows<N, T, Schedule, Residual, Drops, StoresZ, Store>(a, plan, stream);
  }
}

template <Norm N, bool Residual, bool Drops, class Store, class T>
bool backward_holds(const NormBackwardArrays<T>& a, const NormBackwardColumns& of) {
  if (!shape_holds(a.rows, a.n, a.side) || (N == Norm::rms && (of.beta || of.dbeta)) ||
      !groups_hold<Store>(a.n))
    return false;
  constexpr bool kFromCodes = kCodeScales<Store> != CodeScales::none;
  const i64 size = a.rows * a.n, words = norm_backward_workspace(a.rows, a.n);
  return of.workspace_words >= words &&
         operands_hold(
             {operand(a.dy, size), operand(a.y, kFromCodes ? 0 : size),
              codes_operand<Store>(a.kept, a.rows, a.n, false),
              scales_operand<Store>(a.kept, a.rows, a.n, false), operand(a.dz_next, Residual ? size : 0),
              optional(of.gamma, a.n), optional(of.beta, a.n), operand(a.rstd, a.rows),
              written(a.dx, size, a.dy, a.dz_next), operand(a.dropout.seed.at, Drops ? 1 : 0),
              written(static_cast<T*>(a.dropout.dx), Drops ? size : 0), optional(written(of.dgamma, a.n)),
              optional(written(of.dbeta, a.n)), operand(a.side.channels, a.side.count),
              operand(a.side.x_hat, a.rows * a.side.count), written(of.workspace, words)});
}

// The launch of a plan that computes dx, with the sums over rows if the schedule has them there.
template <Norm N, class T, class Schedule, bool Residual, bool Drops, class Store>
cudaError_t launch_backward_rows(const NormBackwardArrays<T>& a, const LaunchPlan& plan,
                                 const PlannedLaunch& planned, bool wide, cudaStream_t stream) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  constexpr bool kFused = S.sums != ColumnSums::separate;
  const auto in_registers = [&]<SideChannels Side>() {
    constexpr RowUse kUse = backward_use<N, T, Residual, kFused, Side == SideChannels::some, Drops>();
    return with_registers < Schedule, kUse, most_backward_warps(S),
           kCodeScales<Store> ==
               CodeScales::none > (plan.norm, [&]<class Chosen>(Choice<Chosen>) {
                 if constexpr (kFused) {
                   return launch_rows(
                       norm_backward_slots<N, T, Chosen, Residual, Side, ParameterFormat::f32, Drops, Store>,
                       planned, stream, a);
                 } else {
                   return launch_rows(norm_backward<N, T, Chosen, true, Residual, Side, Drops, Store>,
                                      planned, stream, a);
                 }
               });
  };
  if (plan.norm.home == RowHome::registers)
    return plan.side == SideChannels::some ? in_registers.template operator()<SideChannels::some>()
                                           : in_registers.template operator()<SideChannels::none>();
  constexpr RowUse kLoopUse = backward_use<N, T, Residual, false, true>();
  const auto in_loops = [&]<bool Wide>() {
    return with_loops<Schedule, kLoopUse, Wide>(plan.norm, [&]<class Chosen>(Choice<Chosen>) {
      return launch_rows(norm_backward<N, T, Chosen, Wide, Residual, SideChannels::either, Drops, Store>,
                         planned, stream, a);
    });
  };
  return wide ? in_loops.template operator()<true>() : in_loops.template operator()<false>();
}

template <Norm N, class T, class Schedule, bool Residual, bool Drops = false, class Store = void>
cudaError_t launch_backward(NormBackwardArrays<T> a, const NormBackwardColumns& of, cudaStream_t stream) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  if (!backward_holds<N, Residual, Drops, Store>(a, of)) return cudaErrorInvalidValue;
  const NormWorkspace parts = norm_workspace_at(reinterpret_cast<u64>(of.workspace), a.n);
  a.stride = sums_stride(a.n);
  a.gamma = of.gamma;
  a.beta = of.beta;
  a.columns = parts.columns;
  a.place = parts.place;
  a.slots = slot_count(a.rows, a.n);
  a.slot_rows = slot_rows(a.rows, a.slots);
  const bool wants_sums = of.dgamma || of.dbeta;
  a.sums = wants_sums ? parts.sums : nullptr;
  const bool wide =
      rows_are_wide<S, T>(a.n, {a.dy, a.y, a.dz_next, a.dx, static_cast<const T*>(a.dropout.dx)}) &&
      is_aligned_to(a.kept.codes, kOctet);
  const NormTask task = {N,
                         sizeof(T),
                         Residual,
                         a.rows,
                         a.n,
                         wide,
                         a.side.count > 0,
                         wants_sums,
                         is_aligned_to(of.gamma, kQuad) && is_aligned_to(of.beta, kQuad),
                         Drops,
                         kCodeScales<Store>};
  PlanLimits limits;
  if (const cudaError_t status = limits_for<S>(false, limits); status != cudaSuccess) return status;
  const LaunchPlan plan = norm_backward_plan(S, task, limits);
  for (int i = 0; i < plan.launches; ++i) {
    const PlannedLaunch& planned = plan.launch[i];
    // 2^39 columns: no device has the workspace
    if (planned.blocks > kGridLimit) return cudaErrorInvalidValue;
    const auto blocks = static_cast<unsigned>(planned.blocks);
    cudaError_t status = cudaSuccess;
    a.own_slots = planned.own_slots;
    switch (planned.kernel) {
      case DeviceKernel::norm_prepare:
        status = launch(norm_prepare<>, blocks, planned.threads, 0, stream, a.columns, parts.place, of.gamma,
                        of.beta, a.n, padded_columns(a.n), a.side, a.guard);
        break;
      case DeviceKernel::norm_slot_sums:
        status = launch(norm_slot_sums<N, T, Store>, blocks, planned.threads, 0, stream, a);
        break;
      case DeviceKernel::add_slots:
        status = launch_add_slots(planned, parts.sums, kColumnSums<N> * a.stride, stream);
        break;
      case DeviceKernel::finish_columns:
        status =
            launch(finish_columns<>, blocks, planned.threads, 0, stream, parts.sums,
                   plan.side == SideChannels::none ? nullptr : a.columns.divisor, of.gamma, a.n, a.stride,
                   kColumnSums<N> * a.stride, planned.left, planned.apart, of.dgamma, of.dbeta);
        break;
      default:
        status = launch_backward_rows<N, T, Schedule, Residual, Drops, Store>(a, plan, planned, wide, stream);
    }
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace detail

template <Norm N, class T, class Schedule>
cudaError_t launch_norm_forward(const NormForwardArrays<T>& a, cudaStream_t stream) {
  return detail::launch_forward<N, T, Schedule, false>(a, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_residual_norm_forward(const NormForwardArrays<T>& a, cudaStream_t stream) {
  return detail::launch_forward<N, T, Schedule, true>(a, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_norm_backward(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                 cudaStream_t stream) {
  return detail::launch_backward<N, T, Schedule, false>(a, of, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_residual_norm_backward(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                          cudaStream_t stream) {
  return detail::launch_backward<N, T, Schedule, true>(a, of, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_dropout_add_norm_forward(NormForwardArrays<T> a, const u64* seed, double p,
                                            cudaStream_t stream) {
  if (seed == nullptr) {
    return a.z != nullptr ? detail::launch_forward<N, T, Schedule, true>(a, stream)
                          : detail::launch_forward<N, T, Schedule, true, false, false>(a, stream);
  }
  if (!dropout_holds(p)) return cudaErrorInvalidValue;
  a.dropout = {.seed = {seed}, .rule = dropout_rule(p)};
  return a.z != nullptr ? detail::launch_forward<N, T, Schedule, true, true, true>(a, stream)
                        : detail::launch_forward<N, T, Schedule, true, true, false>(a, stream);
}

template <Norm N, class T, class Schedule>
cudaError_t launch_dropout_add_norm_backward(NormBackwardArrays<T> a, const NormBackwardColumns& of,
                                             const u64* seed, double p, cudaStream_t stream) {
  // nvcc 13.0 repeats this template's default argument where the body has a template of its own: the four are
  // written out.
  if (seed == nullptr) {
    if (a.dropout.dx != nullptr) return cudaErrorInvalidValue;
    if (a.dz_next == nullptr) return detail::launch_backward<N, T, Schedule, false>(a, of, stream);
    return detail::launch_backward<N, T, Schedule, true>(a, of, stream);
  }
  if (!dropout_holds(p)) return cudaErrorInvalidValue;
  a.dropout.seed = {seed}, a.dropout.rule = dropout_rule(p);
  if (a.dz_next == nullptr) return detail::launch_backward<N, T, Schedule, false, true>(a, of, stream);
  return detail::launch_backward<N, T, Schedule, true, true>(a, of, stream);
}

template <Norm N, class Store, class T, class Schedule>
cudaError_t launch_norm_forward_8bit(NormForwardArrays<T> a, float* workspace, cudaStream_t stream) {
  a.kept = norm_codes_at(a.kept.codes, a.kept.scales, N, workspace);
  return detail::launch_forward<N, T, Schedule, false, false, false, Store>(a, stream);
}

template <Norm N, class Store, class T, class Schedule>
cudaError_t launch_norm_backward_8bit(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                      cudaStream_t stream) {
  return detail::launch_backward<N, T, Schedule, false, false, Store>(a, of, stream);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda

#endif  // __CUDACC_RTC__
