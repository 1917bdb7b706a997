// GELU of x + bias on a GPU, forward and backward from the output: the step after a linear layer, in one
// pass, with the host's bits.
//
// Contract, errors and order of sums are those of kernels/host/bias.h. The forward treats the matrix as one
// array, which it processes octet by octet (kernels/cuda/elementwise.cuh), and keeps count of the column. The
// backward gives each thread 8 columns of one slot of rows and keeps their sums in registers. If rows do not
// begin on bytes of the mask, or tensors are not aligned, a thread has one column. A block has slots side by
// side, whose sums it adds up before it writes one row of sums; these are added in the order of
// kernels/cuda/columns.cuh. GpuSchedule says what may be varied; in the backward, `octets` is
// the number of rows that are loaded together.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/tables.cuh"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// For what is read more than once: the bias.
OUTGRAD_HD constexpr GpuSchedule unhinted(GpuSchedule schedule) {
  schedule.loads = schedule.stores = CacheHint::none;
  return schedule;
}

// The type for a column's number, and for twice the largest number of columns.
template <bool Wide>
struct ColumnOf {
  using Type = u64;
};
template <>
struct ColumnOf<true> {
  using Type = u32;
};

// y = GELU(x + bias) and the mask. y may equal x. Wide: n is a multiple of 8 and at most kMostWideColumns,
// and the bias is aligned, so that it is also read by octets.
template <class Forward, class T, class B, bool Wide, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T, true>.threads,
                                  kForwardSchedule<Schedule, T, true>.resident_blocks)
    bias_gelu_forward(const T* x, const B* bias, i64 elements, i64 n, T* y, u32* mask) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T, true>;
  static_assert(schedule_holds<kSchedule>());
  [[maybe_unused]] constexpr GpuSchedule kUnhinted = unhinted(kSchedule);
  const auto& tables = resident_forward<Forward, kSchedule.table, kSchedule.threads>();
  auto* const bytes = reinterpret_cast<u8*>(mask);
  const bool aligned = is_aligned<kSchedule, T, T>(x, x, y);
  // The column of the next trip's first element, and the distances modulo n to the next octet and to the next
  // trip.
  constexpr u64 kApart = static_cast<u64>(kSchedule.threads) * kOctet, kPerBlock = kApart * kSchedule.octets;
  using Column = typename ColumnOf<Wide>::Type;
  const Column columns = static_cast<Column>(n);
  const auto moved = [=](Column column, Column by) {
    column += by;
    const Column around = column - columns;  // if column is below columns, this wraps around to far above it
    return around < column ? around : column;
  };
  Column next =
      static_cast<Column>((blockIdx.x * kPerBlock + threadIdx.x * static_cast<u64>(kOctet)) % columns);
  const Column by_octet = static_cast<Column>(kApart % columns),
               by_trip = static_cast<Column>(gridDim.x * kPerBlock % columns);
  over_octets<kSchedule>(
      elements, aligned,
      [&](u64 first) {
        Octet<T> input[kSchedule.octets];
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u)
          input[u] = load_octet<kSchedule>(x + first * kOctet + u * kApart);
        Column column = next;
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          float shift[kOctet];
          if constexpr (Wide) {
            const Octet<B> octet = load_octet<kUnhinted>(bias + column);
            OUTGRAD_UNROLL
            for (int k = 0; k < kOctet; ++k) shift[k] = widened(octet, k);
          } else {
            Column j = column;
            OUTGRAD_UNROLL
            for (int k = 0; k < kOctet; ++k) {
              shift[k] = widen(bias[j]);
              j = moved(j, 1);
            }
          }
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) shift[k] = add_rn(widened(input[u], k), shift[k]);
          u32 bits = 0;
          store_octet<kSchedule>(y + first * kOctet + u * kApart,
                                 forward_octet<T, Forward>(tables, shift, bits));
          bytes[first + u * static_cast<u64>(kSchedule.threads)] = static_cast<u8>(bits);
          column = moved(column, by_octet);
        }
        next = moved(next, by_trip);
      },
      [&](u64 octet, u32 count) {
        u32 bits = 0;
        Column j = static_cast<Column>(octet * kOctet % columns);
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const u64 i = octet * kOctet + k;
          const ForwardElement<T> element =
              forward_element<T, Forward>(tables, add_rn(widen(x[i]), widen(bias[j])));
          y[i] = element.y;
          bits |= static_cast<u32>(element.m) << k;
          j = moved(j, 1);
        }
        bytes[octet] = static_cast<u8>(bits);
      });
  clear_mask_end(bytes, elements);
}

// Rows of n elements that a backward reads and writes.
template <class T>
struct BackwardRows {
  const T* dy;
  const T* y;
  const u8* mask;
  T* dx;
  i64 n;
};

// 8 columns of Rows rows, from element `at` on: computes their dx and adds their products, row by row, to the
// columns' sums.
template <GpuSchedule S, int Rows, class T, class Product>
__device__ __forceinline__ void take_rows(const BackwardRows<T>& of, i64 at, const Product& product_of,
                                          float (&sum)[kOctet]) {
  Octet<T> gradient[Rows], output[Rows];
  u32 bits[Rows];
  OUTGRAD_UNROLL
  for (int r = 0; r < Rows; ++r) {
    gradient[r] = load_octet<S>(of.dy + at + r * of.n);
    output[r] = load_octet<S>(of.y + at + r * of.n);
    bits[r] = of.mask[(at + r * of.n) / kOctet];
  }
  OUTGRAD_UNROLL
  for (int r = 0; r < Rows; ++r) {
    float product[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      product[k] = product_of(widened(gradient[r], k), code_of(element_of(output[r], k)),
                              widened(output[r], k), is_set(bits[r], k));
      sum[k] = add_rn(sum[k], product[k]);
    }
    store_octet<S, true>(of.dx + at + r * of.n, packed<T>(product));
  }
}

// The same for one column.
template <GpuSchedule S, int Rows, class T, class Product>
__device__ __forceinline__ void take_rows(const BackwardRows<T>& of, i64 at, const Product& product_of,
                                          float (&sum)[1]) {
  T gradient[Rows], output[Rows];
  u32 bits[Rows];
  OUTGRAD_UNROLL
  for (int r = 0; r < Rows; ++r) {
    gradient[r] = of.dy[at + r * of.n];
    output[r] = of.y[at + r * of.n];
    bits[r] = of.mask[(at + r * of.n) / kOctet];
  }
  OUTGRAD_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const bool m = is_set(bits[r], static_cast<int>((at + r * of.n) % kOctet));
    const float product = product_of(widen(gradient[r]), code_of(output[r]), widen(output[r]), m);
    sum[0] = add_rn(sum[0], product);
    of.dx[at + r * of.n] = narrow<T>(product);
  }
}

// A block's slots side by side, 2^log of them, and the thread's place among those that share its slot.
template <u32 Threads>
struct SlotsBeside {
  u32 log, slot, across, place;

  // The division is by a constant: one by a variable of few bits is a call on sm_100.
  __device__ __forceinline__ explicit SlotsBeside(int log_beside)
      : log(static_cast<u32>(log_beside)), slot((threadIdx.x << log) / Threads), across(Threads >> log),
        place(threadIdx.x - slot * across) {}
};

// Adds up the sums of a block's slots, neighbours first, into those of the first slot. Every thread of the
// block takes part.
template <u32 Threads, int Columns>
__device__ __forceinline__ void add_beside(float (&sum)[Columns], const SlotsBeside<Threads>& beside) {
  __shared__ float of_neighbours[Columns][Threads / 2];
  const u32 slot = beside.slot;
#pragma unroll 1
  for (u32 level = 0; level < beside.log; ++level) {
    const u32 pair = 1u << level, at = (slot >> (level + 1)) * beside.across + beside.place;
    if ((slot & (2 * pair - 1)) == pair) {
      OUTGRAD_UNROLL
      for (int k = 0; k < Columns; ++k) of_neighbours[k][at] = sum[k];
    }
    __syncthreads();
    if ((slot & (2 * pair - 1)) == 0) {
      OUTGRAD_UNROLL
      for (int k = 0; k < Columns; ++k) sum[k] = add_rn(sum[k], of_neighbours[k][at]);
    }
    __syncthreads();  // before the next pairs write
  }
}

// dx = dy g(y, m), and sums[row][j], the sum of the products of column j over a block's 2^log_beside slots.
// dx may equal dy. Wide: a row consists of whole octets, and dy, y and dx are aligned.
template <class Fit, class T, bool Wide, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kBackwardSchedule<Schedule, Fit, T, true>.threads,
                                  kBackwardSchedule<Schedule, Fit, T, true>.resident_blocks)
    bias_gelu_backward(const T* dy, const T* y, const u32* mask, SlotRows slots, int log_beside, i64 n, T* dx,
                       float* sums) {
  static_assert(fit_holds<Fit, T>() && Fit::kMasked);
  constexpr GpuSchedule kSchedule = kBackwardSchedule<Schedule, Fit, T, true>;
  static_assert(schedule_holds<kSchedule>());
  const auto& table = resident_table<DeviceFit<Fit, T>, kSchedule.table, kSchedule.threads>();
  const auto ops = ops_for<Fit, T>(table);
  const BackwardRows<T> rows{dy, y, reinterpret_cast<const u8*>(mask), dx, n};
  const auto product_of = [&](float gradient, u32 code, float output, bool m) {
    return ops.mul(gradient, derivative<Fit, T>(ops, table, code, output, m));
  };
  constexpr u32 kThreads = kSchedule.threads;
  constexpr u64 kColumns = Wide ? kOctet : 1;
  const SlotsBeside<kThreads> beside(log_beside);
  const u64 columns = static_cast<u64>(n),
            blocks_across = (columns / kColumns + beside.across - 1) / beside.across,
            work = blocks_across << (slots.log_slots - log_beside);
#pragma unroll 1
  for (u64 index = blockIdx.x; index < work; index += gridDim.x) {
    const u64 sums_row = index / blocks_across,
              column = (index % blocks_across * beside.across + beside.place) * kColumns;
    const bool owns = column < columns;
    const i64 slot = static_cast<i64>((sums_row << log_beside) + beside.slot);
    i64 at = slots.begin(slot) * n + static_cast<i64>(column);
    const i64 end = owns ? slots.begin(slot + 1) * n : 0;
    float sum[kColumns] = {};
#pragma unroll 1
    for (; at + (kSchedule.octets - 1) * n < end; at += kSchedule.octets * n) {
      take_rows<kSchedule, kSchedule.octets>(rows, at, product_of, sum);
    }
    if constexpr (kSchedule.octets > 1) {
#pragma unroll 1
      for (; at < end; at += n) take_rows<kSchedule, 1>(rows, at, product_of, sum);
    }
    add_beside(sum, beside);
    if (!owns || beside.slot != 0) continue;
    OUTGRAD_UNROLL
    for (u32 k = 0; k < kColumns; ++k) sums[sums_row * columns + column + k] = sum[k];
  }
}

#ifndef __CUDACC_RTC__
template <GpuSchedule S, class T>
bool is_aligned_for(const T* pointer) {
  return reinterpret_cast<u64>(pointer) % kAccessBytes<S, T> == 0;
}

// x, y [rows, n], bias [n], mask ceil(rows n / 32) words. y may equal x. rows = 0 launches nothing, whatever
// the pointers. The result is cudaErrorInvalidValue for any other overlap with what is written, a null
// pointer, n < 1, and a negative or overflowing shape.
template <class Forward, class T, class B = float, class Schedule = DefaultGpuSchedule>
cudaError_t launch_bias_gelu_forward(const T* x, const B* bias, i64 rows, i64 n, T* y, u32* mask,
                                     cudaStream_t stream) {
  const i64 elements = matrix_elements(rows, n);
  if (elements < 0) return cudaErrorInvalidValue;
  if (elements == 0) return cudaSuccess;
  if (!detail::operands_hold({detail::operand(x, elements), detail::operand(bias, n),
                              detail::written(y, elements, x), detail::written(mask, mask_words(elements))}))
    return cudaErrorInvalidValue;
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T, true>;
  static constinit ResidentBlocks resident[2];
  const bool wide = n % kOctet == 0 && n <= kMostWideColumns && is_aligned_for<kSchedule>(bias);
  const auto kernel = wide ? bias_gelu_forward<Forward, T, B, true, Schedule>
                           : bias_gelu_forward<Forward, T, B, false, Schedule>;
  PlanLimits limits;
  if (const cudaError_t status = limits_for<kSchedule>(kernel, resident[wide], limits); status != cudaSuccess)
    return status;
  const PlannedLaunch planned = bias_forward_plan(kSchedule, elements, wide, limits).launch[0];
  return launch(kernel, static_cast<unsigned>(planned.blocks), planned.threads, 0, stream, x, bias, elements,
                n, y, mask);
}

// dy, y, dx [rows, n], dbias [n]. `workspace` holds workspace_words, at least bias_backward_workspace(rows,
// n), and may be null if that is 0. dx may equal dy. rows = 0 sets dbias to 0. Errors are those above, and a
// workspace that is too small.
template <class Fit, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx,
                                      float* dbias, float* workspace, i64 workspace_words,
                                      cudaStream_t stream) {
  const i64 elements = matrix_elements(rows, n);
  if (elements < 0 || !detail::operands_hold({detail::written(dbias, n)})) return cudaErrorInvalidValue;
  if (elements == 0) return cudaMemsetAsync(dbias, 0, static_cast<size_t>(n) * sizeof(float), stream);
  const i64 sum_words = bias_backward_workspace(rows, n);
  if (workspace_words < sum_words ||
      !detail::operands_hold({detail::operand(dy, elements), detail::operand(y, elements),
                              detail::operand(mask, mask_words(elements)), detail::written(dx, elements, dy),
                              detail::written(dbias, n), detail::written(workspace, sum_words)}))
    return cudaErrorInvalidValue;

  constexpr GpuSchedule kSchedule = kBackwardSchedule<Schedule, Fit, T, true>;
  static constinit ResidentBlocks resident[2];
  const i64 slots = slot_count(rows, n);
  const bool wide = n % kOctet == 0 && is_aligned_for<kSchedule>(dy) && is_aligned_for<kSchedule>(y) &&
                    is_aligned_for<kSchedule>(dx);
  const auto kernel =
      wide ? bias_gelu_backward<Fit, T, true, Schedule> : bias_gelu_backward<Fit, T, false, Schedule>;
  PlanLimits limits;
  if (const cudaError_t status = limits_for<kSchedule>(kernel, resident[wide], limits); status != cudaSuccess)
    return status;
  const LaunchPlan plan = bias_backward_plan(kSchedule, rows, n, wide, limits);
  for (int i = 0; i < plan.launches; ++i) {
    const PlannedLaunch& planned = plan.launch[i];
    const auto blocks = static_cast<unsigned>(planned.blocks);
    cudaError_t status = cudaSuccess;
    switch (planned.kernel) {
      case DeviceKernel::add_slots: status = launch_add_slots(planned, workspace, n, stream); break;
      case DeviceKernel::finish_columns:
        status = launch(finish_columns<>, blocks, planned.threads, 0, stream, workspace, nullptr, nullptr, n,
                        n, n, planned.left, planned.apart, dbias, nullptr);
        break;
      default:
        status = launch(kernel, blocks, planned.threads, 0, stream, dy, y, mask, slot_rows(rows, slots),
                        __builtin_ctzll(static_cast<unsigned long long>(planned.own_slots)), n, dx,
                        plan.launches > 1 ? workspace : dbias);
    }
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
