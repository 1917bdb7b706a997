// GELU of x + bias on a GPU, forward and backward from the output: the step after a linear layer, in one
// pass, with the host's bits.
//
// Contract, errors and order of sums are those of kernels/host/bias.h. The forward treats the matrix as one
// array, which it processes octet by octet (kernels/cuda/elementwise.cuh), and keeps count of the column. The
// backward gives each thread 8 columns of one slot of rows and keeps their sums in registers. If rows do not
// begin on bytes of the mask, or tensors are not aligned, a thread has one column. The slots' sums are added
// in the order of kernels/cuda/columns.cuh. GpuSchedule says what may be varied; in the backward, `octets` is
// the number of rows that are loaded together.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/tables.cuh"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// For what is read more than once: the bias, the slots' sums.
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

// dx = dy g(y, m), and sums[slot][j], a slot's sum of the products of column j. dx may equal dy. Wide: a row
// consists of whole octets, and all four arrays are aligned.
template <class Fit, class T, bool Wide, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kBackwardSchedule<Schedule, Fit, T, true>.threads,
                                  kBackwardSchedule<Schedule, Fit, T, true>.resident_blocks)
    bias_gelu_backward(const T* dy, const T* y, const u32* mask, SlotRows slots, i64 n, T* dx, float* sums) {
  static_assert(fit_holds<Fit, T>() && Fit::kMasked);
  constexpr GpuSchedule kSchedule = kBackwardSchedule<Schedule, Fit, T, true>;
  static_assert(schedule_holds<kSchedule>());
  [[maybe_unused]] constexpr GpuSchedule kUnhinted = unhinted(kSchedule);
  const auto& table = resident_table<DeviceFit<Fit, T>, kSchedule.table, kSchedule.threads>();
  const auto ops = ops_for<Fit, T>(table);
  const BackwardRows<T> rows{dy, y, reinterpret_cast<const u8*>(mask), dx, n};
  const auto product_of = [&](float gradient, u32 code, float output, bool m) {
    return ops.mul(gradient, derivative<Fit, T>(ops, table, code, output, m));
  };
  constexpr u64 kColumns = Wide ? kOctet : 1, kThreads = kSchedule.threads;
  const u64 across = static_cast<u64>(n) / kColumns, work = across << slots.log_slots;
#pragma unroll 1
  for (u64 index = blockIdx.x * kThreads + threadIdx.x; index < work; index += gridDim.x * kThreads) {
    const i64 slot = static_cast<i64>(index / across), column = static_cast<i64>(index % across * kColumns);
    i64 at = slots.begin(slot) * n + column;
    const i64 end = slots.begin(slot + 1) * n;
    float sum[kColumns] = {};
#pragma unroll 1
    for (; at + (kSchedule.octets - 1) * n < end; at += kSchedule.octets * n) {
      take_rows<kSchedule, kSchedule.octets>(rows, at, product_of, sum);
    }
    if constexpr (kSchedule.octets > 1) {
#pragma unroll 1
      for (; at < end; at += n) take_rows<kSchedule, 1>(rows, at, product_of, sum);
    }
    if constexpr (Wide) {
      store_octet<kUnhinted, true>(sums + slot * n + column, packed<float>(sum));
    } else {
      sums[slot * n + column] = sum[0];
    }
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
  float* const sums = slots > 1 ? workspace : dbias;
  const bool wide = n % kOctet == 0 && is_aligned_for<kSchedule>(dy) && is_aligned_for<kSchedule>(y) &&
                    is_aligned_for<kSchedule>(dx) && is_aligned_for<kSchedule>(sums);
  const auto kernel =
      wide ? bias_gelu_backward<Fit, T, true, Schedule> : bias_gelu_backward<Fit, T, false, Schedule>;
  PlanLimits limits;
  if (const cudaError_t status = limits_for<kSchedule>(kernel, resident[wide], limits); status != cudaSuccess)
    return status;
  const LaunchPlan plan = bias_backward_plan(kSchedule, rows, n, wide, limits);
  for (int i = 0; i < plan.launches; ++i) {
    const PlannedLaunch& planned = plan.launch[i];
    const cudaError_t status = planned.kernel == DeviceKernel::add_slots
                                   ? launch_add_slots(planned, sums, n, stream, dbias)
                                   : launch(kernel, static_cast<unsigned>(planned.blocks), planned.threads, 0,
                                            stream, dy, y, mask, slot_rows(rows, slots), n, dx, sums);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
