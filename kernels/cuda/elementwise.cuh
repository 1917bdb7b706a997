// Activations on a GPU: thin __global__ wrappers over the bodies that the host runs, hence the host's bits.
//
// A thread takes octets of 8 consecutive elements, one byte of the mask each: aligned tensors move in 16-byte loads and stores, and no bit
// is shared between threads. It loads all octets of a trip before it works on the first. A ragged end and tensors that are not aligned
// take a second loop, element by element. Where coefficients lie: kernels/cuda/tables.cuh; what differs from the host's instructions,
// though not from its bits: kernels/cuda/gpu_ops.cuh; what may be varied: GpuSchedule in kernels/params.h.
// Launchers take a stream, allocate nothing, never synchronise, and return what the launch returned, or cudaErrorInvalidValue for
// arguments that break the contract: then nothing is launched. NVRTC sees the kernels alone.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/tables.cuh"
#include "kernels/direct.h"
#include "kernels/formats.h"
#include "kernels/gelu.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

OUTGRAD_HD constexpr bool is_power_of_two(int a) { return a > 0 && (a & (a - 1)) == 0; }

// Octets a trip where the schedule leaves them open: enough to spread the cost of a trip over, within about 128 registers. What needs no
// row of coefficients in registers leaves room for more; f32 has the longest polynomials, and more of that cost.
template <class Fit, class T>
OUTGRAD_HD constexpr int default_octets() {
  if constexpr (kIsDirect<Fit>) {
    return 4;
  } else {
    return Fit::kRows == 1 ? 4 : sizeof(T) == 4 ? 3 : 2;
  }
}

template <class Fit, class T>
OUTGRAD_HD constexpr GpuSchedule completed(GpuSchedule schedule) {
  if (schedule.octets == 0) schedule.octets = default_octets<Fit, T>();
  return schedule;
}

template <GpuSchedule S>
OUTGRAD_HD constexpr bool schedule_holds() {
  static_assert(S.threads > 0 && S.threads <= 1024 && S.threads % 32 == 0, "a block has 32 to 1024 threads, whole warps");
  static_assert(S.octets >= 1 && S.octets <= 8, "a thread takes 1 to 8 octets a trip");
  static_assert(is_power_of_two(S.access_bytes) && S.access_bytes >= 4 && S.access_bytes <= 16, "an access is 4, 8 or 16 bytes");
  static_assert(S.blocks_per_sm >= 0 && S.resident_blocks >= 1);
  return true;
}

// whole(octets) for the trips of this thread in which all S.octets octets are whole ones (none if not `aligned`), then part(octet, count)
// for each octet that is left, count <= 8 elements. Octet u of a trip is the u-th of a row of octets that lie a block's threads apart.
template <GpuSchedule S, class Whole, class Part>
__device__ __forceinline__ void over_octets(i64 n, bool aligned, const Whole& whole, const Part& part) {
  constexpr u64 kApart = S.threads;
  constexpr u64 kPerBlock = kApart * S.octets;
  const u64 elements = static_cast<u64>(n);
  const u64 whole_octets = aligned ? elements / kOctet : 0;
  const u64 octets = (elements + (kOctet - 1)) / kOctet;
  u64 first = blockIdx.x * kPerBlock + threadIdx.x;
#pragma unroll 1
  for (; first + (S.octets - 1) * kApart < whole_octets; first += gridDim.x * kPerBlock) whole(first);
#pragma unroll 1
  for (; first < octets; first += gridDim.x * kPerBlock) {
#pragma unroll 1
    for (u64 octet = first; octet < octets && octet < first + kPerBlock; octet += kApart) {
      const u64 left = elements - octet * kOctet;
      part(octet, left < kOctet ? static_cast<u32>(left) : kOctet);
    }
  }
}

// dx[i] = dy[i] g(y[i], m[i]); contract of kernels/host/elementwise.h. dx may equal dy.
template <class Fit, class T, class Y = T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(Schedule::kSchedule.threads, Schedule::kSchedule.resident_blocks)
    activation_backward(const T* dy, const Y* y, const u32* mask, T* dx, i64 n) {
  static_assert(sizeof(T) > 1, "dy and dx are f32, f16 or bf16");
  static_assert(fit_holds<Fit, Y>());
  constexpr GpuSchedule kSchedule = completed<Fit, T>(Schedule::kSchedule);
  static_assert(schedule_holds<kSchedule>());
  const auto& table = resident_table<DeviceFit<Fit, Y>, kSchedule.table, kSchedule.threads>();
  const GpuOps<DeviceFit<Fit, Y>, Y> ops;
  const auto* const bytes = reinterpret_cast<const u8*>(mask);
  const bool aligned = is_aligned<kSchedule, T, Y>(dy, y, dx);
  over_octets<kSchedule>(
      n, aligned,
      [&](u64 first) {
        constexpr u64 kApart = kSchedule.threads;
        Octet<T> gradient[kSchedule.octets];
        Octet<Y> output[kSchedule.octets];
        u32 bits[kSchedule.octets] = {};
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          gradient[u] = load_octet<kSchedule>(dy + (first + u * kApart) * kOctet);
          output[u] = load_octet<kSchedule>(y + (first + u * kApart) * kOctet);
          if constexpr (Fit::kMasked) bits[u] = bytes[first + u * kApart];
        }
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          float result[kOctet];
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) {
            const bool m = is_set(bits[u], k);
            result[k] = ops.mul(widened(gradient[u], k),
                                derivative<Fit, Y>(ops, table, code_of(element_of(output[u], k)), widened(output[u], k), m));
          }
          store_octet<kSchedule>(dx + (first + u * kApart) * kOctet, packed<T>(result));
        }
      },
      [&](u64 octet, u32 count) {
        u32 bits = 0;
        if constexpr (Fit::kMasked) bits = bytes[octet];
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const u64 i = octet * kOctet + k;
          dx[i] = narrow<T>(
              ops.mul(widen(dy[i]), derivative<Fit, Y>(ops, table, code_of(y[i]), widen(y[i]), is_set(bits, static_cast<int>(k)))));
        }
      });
}

// The two tables of a forward fit, each as a fit of its own for resident_table.
template <class Forward>
struct CoreOf {
  static constexpr int kRows = Forward::kRows;
  static OUTGRAD_HD constexpr auto table() { return Forward::table(); }
};
template <class Forward>
struct TailOf {
  static constexpr int kRows = Forward::kTailRows;
  static OUTGRAD_HD constexpr auto table() { return Forward::tail(); }
};

// The tables of a forward where the kernel reads them, as gelu_forward_value takes them.
template <class Forward, TableHome Wanted, int Threads>
__device__ __forceinline__ decltype(auto) resident_forward() {
  if constexpr (kIsRoundedForward<Forward>) {
    return resident_table<Forward, Wanted, Threads>();
  } else {
    using Core = decltype(resident_table<CoreOf<Forward>, Wanted, Threads>());
    using Tail = decltype(resident_table<TailOf<Forward>, Wanted, Threads>());
    return ForwardTables<Core, Tail>{resident_table<CoreOf<Forward>, Wanted, Threads>(), resident_table<TailOf<Forward>, Wanted, Threads>()};
  }
}

// y[i] = GELU(x[i]) and the mask; contract of kernels/host/elementwise.h. y may equal x.
template <class Forward, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(Schedule::kSchedule.threads, Schedule::kSchedule.resident_blocks)
    gelu_forward(const T* x, T* y, u32* mask, i64 n) {
  constexpr GpuSchedule kSchedule = completed<Forward, T>(Schedule::kSchedule);
  static_assert(schedule_holds<kSchedule>());
  const auto& tables = resident_forward<Forward, kSchedule.table, kSchedule.threads>();
  auto* const bytes = reinterpret_cast<u8*>(mask);
  const bool aligned = is_aligned<kSchedule, T, T>(x, x, y);
  over_octets<kSchedule>(
      n, aligned,
      [&](u64 first) {
        constexpr u64 kApart = kSchedule.threads;
        Octet<T> input[kSchedule.octets];
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) input[u] = load_octet<kSchedule>(x + (first + u * kApart) * kOctet);
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          float result[kOctet];
          u32 bits = 0;
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) {
            const float wide = widened(input[u], k);
            result[k] = gelu_forward_value<T>(FloatOps{}, Forward{}, tables, wide);
            bits |= static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, wide)) << k;
          }
          store_octet<kSchedule>(y + (first + u * kApart) * kOctet, packed<T>(result));
          bytes[first + u * kApart] = static_cast<u8>(bits);
        }
      },
      [&](u64 octet, u32 count) {
        u32 bits = 0;
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const u64 i = octet * kOctet + k;
          const GeluForwardElement<T> element = gelu_forward_element(Forward{}, tables, x[i]);
          y[i] = element.y;
          bits |= static_cast<u32>(element.m) << k;
        }
        bytes[octet] = static_cast<u8>(bits);
      });
  // The bytes that the last word of the mask has beyond the last octet.
  if (blockIdx.x == 0 && threadIdx.x < 4) {
    const i64 octets = (n + (kOctet - 1)) / kOctet;
    if (octets % 4 != 0 && threadIdx.x >= octets % 4) bytes[octets / 4 * 4 + threadIdx.x] = 0;
  }
}

#ifndef __CUDACC_RTC__
// n elements at a pointer, in bytes; `bits` to an element.
struct Extent {
  u64 begin;
  u64 end;
};

template <class T>
Extent extent_of(const T* pointer, i64 n) {
  const u64 begin = reinterpret_cast<u64>(pointer);
  return {begin, begin + static_cast<u64>(n) * sizeof(T)};
}

inline bool overlap(const Extent& a, const Extent& b) { return a.begin < b.end && b.begin < a.end; }

// Whether an array can be there: not null, aligned to its element, not around the end of the address space.
template <class T>
bool is_array(const T* pointer, i64 n) {
  const Extent extent = extent_of(pointer, n);
  return extent.begin != 0 && extent.begin % alignof(T) == 0 && extent.begin < extent.end;
}

inline i64 mask_words(i64 n) { return (n + 31) / 32; }

// What a plan asks of the device, as far as it asks.
template <GpuSchedule S>
cudaError_t limits_for(PlanLimits& limits) {
  if constexpr (S.blocks_per_sm > 0) {
    int device = 0;
    if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
    return cudaDeviceGetAttribute(&limits.sms, cudaDevAttrMultiProcessorCount, device);
  } else {
    return cudaSuccess;
  }
}

// Device pointers, aligned to their element. n = 0 launches nothing, whatever the pointers. dx may equal dy; any other overlap of dx, a
// null pointer (but a mask that the fit does not read), a negative or overflowing n is cudaErrorInvalidValue.
template <class Fit, class T, class Y = T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_activation_backward(const T* dy, const Y* y, const u32* mask, T* dx, i64 n, cudaStream_t stream) {
  if (n < 0 || n > kMostElements) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  if (!is_array(dy, n) || !is_array(y, n) || !is_array(dx, n)) return cudaErrorInvalidValue;
  const Extent out = extent_of(dx, n);
  if ((dx != dy && overlap(out, extent_of(dy, n))) || overlap(out, extent_of(y, n))) return cudaErrorInvalidValue;
  if constexpr (Fit::kMasked) {
    if (!is_array(mask, mask_words(n)) || overlap(out, extent_of(mask, mask_words(n)))) return cudaErrorInvalidValue;
  }
  constexpr GpuSchedule kSchedule = completed<Fit, T>(Schedule::kSchedule);
  PlanLimits limits;
  if (const cudaError_t status = limits_for<kSchedule>(limits); status != cudaSuccess) return status;
  const PlannedLaunch planned = elementwise_plan(DeviceKernel::activation_backward, kSchedule, n, limits).launch[0];
  return launch(activation_backward<Fit, T, Y, Schedule>, static_cast<unsigned>(planned.blocks), planned.threads, 0, stream, dy, y, mask, dx, n);
}

// The same under GELU's name.
template <class Fit, class T, class Y = T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_gelu_backward(const T* dy, const Y* y, const u32* mask, T* dx, i64 n, cudaStream_t stream) {
  return launch_activation_backward<Fit, T, Y, Schedule>(dy, y, mask, dx, n, stream);
}

// y may equal x; any other overlap is cudaErrorInvalidValue, and so are the cases above.
template <class Forward, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream) {
  if (n < 0 || n > kMostElements) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  if (!is_array(x, n) || !is_array(y, n) || !is_array(mask, mask_words(n))) return cudaErrorInvalidValue;
  const Extent out = extent_of(y, n), bits = extent_of(mask, mask_words(n));
  if ((y != x && overlap(out, extent_of(x, n))) || overlap(out, bits) || overlap(bits, extent_of(x, n))) return cudaErrorInvalidValue;
  constexpr GpuSchedule kSchedule = completed<Forward, T>(Schedule::kSchedule);
  PlanLimits limits;
  if (const cudaError_t status = limits_for<kSchedule>(limits); status != cudaSuccess) return status;
  const PlannedLaunch planned = elementwise_plan(DeviceKernel::gelu_forward, kSchedule, n, limits).launch[0];
  return launch(gelu_forward<Forward, T, Schedule>, static_cast<unsigned>(planned.blocks), planned.threads, 0, stream, x, y, mask, n);
}
#endif

}  // namespace outgrad::kernels::cuda
