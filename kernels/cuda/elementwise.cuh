// Activations on a GPU: thin __global__ wrappers over the bodies that the host runs, hence the host's bits.
//
// A thread takes octets of 8 consecutive elements, one byte of the mask each: aligned tensors move in 16-byte
// loads and stores, and no bit is shared between threads. It loads all octets of a trip before it works on
// the first. A ragged end and tensors that are not aligned take a second loop, element by element. Where
// coefficients lie: kernels/cuda/tables.cuh; what differs from the host's instructions, though not from its
// bits: kernels/cuda/gpu_ops.cuh; what may be varied: GpuSchedule in kernels/params.h.
// Launchers take a stream, allocate nothing, never synchronise, and return what the launch returned, or
// cudaErrorInvalidValue for arguments that break the contract: then nothing is launched. NVRTC sees the
// kernels alone.
#pragma once

#ifndef __CUDACC_RTC__
#include <atomic>
#endif

#include "kernels/activation.h"
#include "kernels/cuda/forward.cuh"
#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/tables.cuh"
#include "kernels/direct.h"
#include "kernels/formats.h"
#include "kernels/fitted_forward.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/stored.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The schedules of the kernels below, and of those with a bias, with nothing left open.
template <class Schedule, class Fit, class T, bool Bias = false>
inline constexpr GpuSchedule kBackwardSchedule =
    completed(Schedule::kSchedule,
              {.forward = false, .bias = Bias, .element_bytes = sizeof(T), .rows = has_rows<Fit>()});
template <class Schedule, class T, bool Bias = false>
inline constexpr GpuSchedule kForwardSchedule =
    completed(Schedule::kSchedule, {.forward = true, .bias = Bias, .element_bytes = sizeof(T), .rows = true});

template <GpuSchedule S>
OUTGRAD_HD constexpr bool schedule_holds() {
  static_assert(S.threads > 0 && S.threads <= 1024 && S.threads % 32 == 0,
                "a block has 32 to 1024 threads, whole warps");
  static_assert(S.octets >= 1 && S.octets <= 8, "a thread takes 1 to 8 octets a trip");
  static_assert(is_power_of_two(S.access_bytes) && S.access_bytes >= 4 && S.access_bytes <= 16,
                "an access is 4, 8 or 16 bytes");
  static_assert(S.blocks_per_sm >= kAllResident && S.resident_blocks >= 1);
  return true;
}

// whole(octets) for the trips of this thread's warp in which all octets are whole ones (none if not
// `aligned`), then part(octet, count) for each octet that is left, count <= 8 elements. Octet u of a trip is
// the u-th of S.octets octets that lie a block's threads apart.
template <GpuSchedule S, class Whole, class Part>
__device__ __forceinline__ void over_octets(i64 n, bool aligned, const Whole& whole, const Part& part) {
  constexpr u64 kApart = S.threads;
  constexpr u64 kPerBlock = kApart * S.octets;
  const u64 elements = static_cast<u64>(n);
  const u64 whole_octets = aligned ? elements / kOctet : 0;
  const u64 octets = (elements + (kOctet - 1)) / kOctet;
  u64 first = blockIdx.x * kPerBlock + threadIdx.x;
#pragma unroll 1
  for (; (first | 31) + (S.octets - 1) * kApart < whole_octets; first += gridDim.x * kPerBlock) whole(first);
#pragma unroll 1
  for (; first < octets; first += gridDim.x * kPerBlock) {
#pragma unroll 1
    for (u64 octet = first; octet < octets && octet < first + kPerBlock; octet += kApart) {
      const u64 left = elements - octet * kOctet;
      part(octet, left < kOctet ? static_cast<u32>(left) : kOctet);
    }
  }
}

// The same for kernels that read x: whole(octet, its elements), after all octets of the trip are loaded.
template <GpuSchedule S, class T, class Whole, class Part>
__device__ __forceinline__ void over_input_octets(const T* x, i64 n, bool aligned, const Whole& whole,
                                                  const Part& part) {
  over_octets<S>(
      n, aligned,
      [&](u64 first) {
        constexpr u64 kApart = S.threads;
        Octet<T> input[S.octets];
        OUTGRAD_UNROLL
        for (int u = 0; u < S.octets; ++u) input[u] = load_octet<S>(x + (first + u * kApart) * kOctet);
        OUTGRAD_UNROLL
        for (int u = 0; u < S.octets; ++u) whole(first + u * kApart, input[u]);
      },
      part);
}

// The branch of an element: what its code carries, or else the bit that the mask has for it.
template <class Y, class Ops>
OUTGRAD_HD bool branch_of(const Ops& ops, u32 code, bool m) {
  if constexpr (CarriesBranch<Y>) {
    return carried_mask(ops, code);
  } else {
    return m;
  }
}

// dx[i] = dy[i] g(y[i], m[i]); contract of kernels/host/elementwise.h. dx may equal dy.
template <class Fit, class T, class Y = T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kBackwardSchedule<Schedule, Fit, T>.threads,
                                  kBackwardSchedule<Schedule, Fit, T>.resident_blocks)
    activation_backward(const T* dy, Stored<Y> y, const u32* mask, T* dx, i64 n) {
  static_assert(sizeof(T) > 1, "dy and dx are f32, f16 or bf16");
  static_assert(fit_holds<Fit, Y>());
  constexpr GpuSchedule kSchedule = kBackwardSchedule<Schedule, Fit, T>;
  static_assert(schedule_holds<kSchedule>());
  const auto& table = resident_table<DeviceFit<Fit, Y>, kSchedule.table, kSchedule.threads>();
  const auto ops = ops_for<Fit, Y>(table);
  const auto* const bytes = reinterpret_cast<const u8*>(mask);
  const bool aligned = is_aligned<kSchedule, T, CodeOf<Y>>(dy, codes_of(y), dx);
  using Own = ShareOf<kSchedule, T, CodeOf<Y>>;
  over_octets<kSchedule>(
      n, aligned,
      [&](u64 first) {
        constexpr u64 kApart = kSchedule.threads;
        Octet<T> gradient[kSchedule.octets];
        Octet<CodeOf<Y>> output[kSchedule.octets];
        u32 bits[kSchedule.octets] = {};
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          gradient[u] = load_octet<kSchedule, Own::kApart>(dy + Own::element(first) + u * kApart * kOctet);
          output[u] =
              load_octet<kSchedule, Own::kApart>(codes_of(y + Own::element(first) + u * kApart * kOctet));
          if constexpr (kReadsMask<Fit, Y>) bits[u] = Own::load_bits(bytes, first + u * kApart);
        }
        OUTGRAD_UNROLL
        for (int u = 0; u < kSchedule.octets; ++u) {
          const Stored<Y> octet = y + Own::element(first) + u * kApart * kOctet;
          float result[kOctet];
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) {
            const u32 code = code_of(element_of(output[u], k));
            const bool m = branch_of<Y>(ops, code, is_set(bits[u], Own::place(k)));
            const float stored_y = scaled(octet, widened(output[u], k));
            result[k] = ops.mul(widened(gradient[u], k), derivative<Fit, Y>(ops, table, code, stored_y, m));
          }
          store_octet<kSchedule, false, Own::kApart>(dx + Own::element(first) + u * kApart * kOctet,
                                                     packed<T>(result));
        }
      },
      [&](u64 octet, u32 count) {
        u32 bits = 0;
        if constexpr (kReadsMask<Fit, Y>) bits = bytes[octet];
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const u64 i = octet * kOctet + k;
          const u32 code = code_of(*codes_of(y + i));
          const bool m = branch_of<Y>(ops, code, is_set(bits, static_cast<int>(k)));
          dx[i] =
              narrow<T>(ops.mul(widen(dy[i]), derivative<Fit, Y>(ops, table, code, first_value(y + i), m)));
        }
      });
}

// Sets to 0 the bytes that the last word of the mask of n elements has beyond the last octet.
__device__ __forceinline__ void clear_mask_end(u8* bytes, i64 n) {
  if (blockIdx.x == 0 && threadIdx.x < 4) {
    const i64 octets = (n + (kOctet - 1)) / kOctet;
    if (octets % 4 != 0 && threadIdx.x >= octets % 4) bytes[octets / 4 * 4 + threadIdx.x] = 0;
  }
}

// y and, where Masked, the mask of n elements x: of_octet(octet, bits) of whole octets, of_element(x) = {y,
// m} of those that are left.
template <GpuSchedule S, bool Masked, class T, class OfOctet, class OfElement>
__device__ __forceinline__ void forward_over_octets(const T* x, T* y, u32* mask, i64 n,
                                                    const OfOctet& of_octet, const OfElement& of_element) {
  static_assert(schedule_holds<S>());
  auto* const bytes = reinterpret_cast<u8*>(mask);
  const bool aligned = is_aligned<S, T, T>(x, x, y);
  using Own = ShareOf<S, T, T>;
  over_octets<S>(
      n, aligned,
      [&](u64 first) {
        constexpr u64 kApart = S.threads;
        Octet<T> input[S.octets];
        OUTGRAD_UNROLL
        for (int u = 0; u < S.octets; ++u)
          input[u] = load_octet<S, Own::kApart>(x + Own::element(first) + u * kApart * kOctet);
        OUTGRAD_UNROLL
        for (int u = 0; u < S.octets; ++u) {
          u32 bits = 0;
          store_octet<S, false, Own::kApart>(y + Own::element(first) + u * kApart * kOctet,
                                             of_octet(input[u], bits));
          if constexpr (Masked) Own::store_bits(bytes, first + u * kApart, bits);
        }
      },
      [&](u64 octet, u32 count) {
        u32 bits = 0;
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const u64 i = octet * kOctet + k;
          const ForwardElement<T> element = of_element(x[i]);
          y[i] = element.y;
          bits |= static_cast<u32>(element.m) << k;
        }
        if constexpr (Masked) bytes[octet] = static_cast<u8>(bits);
      });
  if constexpr (Masked) clear_mask_end(bytes, n);
}

// y[i] = f(x[i]) of a forward fit and, if f has a minimum, the mask.
template <class Forward, GpuSchedule S, class T>
__device__ __forceinline__ void fitted_forward(const T* x, T* y, u32* mask, i64 n) {
  const auto& tables = resident_forward<Forward, S.table, S.threads>();
  forward_over_octets<S, kHasMask<Forward>>(
      x, y, mask, n,
      [&](const Octet<T>& input, u32& bits) { return forward_octet<Forward>(tables, input, bits); },
      [&](T value) { return forward_element<T, Forward>(tables, widen(value)); });
}

// y[i] = GELU(x[i]) and the mask; contract of kernels/host/elementwise.h. y may equal x.
template <class Forward, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    gelu_forward(const T* x, T* y, u32* mask, i64 n) {
  fitted_forward<Forward, kForwardSchedule<Schedule, T>>(x, y, mask, n);
}

#ifndef __CUDACC_RTC__
inline i64 mask_words(i64 n) { return (n + 31) / 32; }

// Blocks of a kernel that an SM holds at once, by device: asked at the first launch there, then kept. Threads
// that ask at once keep the same answer. Nothing is enqueued, so that a launch may be captured in a graph.
class ResidentBlocks {
 public:
  template <class... Parameters>
  cudaError_t of(void (*kernel)(Parameters...), int threads, int device, int& blocks) {
    std::atomic<int>* const kept = device >= 0 && device < kMostDevices ? &kept_[device] : nullptr;
    blocks = kept != nullptr ? kept->load(std::memory_order_relaxed) : 0;
    if (blocks > 0) return cudaSuccess;
    if (const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
        status != cudaSuccess)
      return status;
    if (blocks < 1) return cudaErrorInvalidConfiguration;  // an SM has no room for even one
    if (kept != nullptr) kept->store(blocks, std::memory_order_relaxed);
    return cudaSuccess;
  }

 private:
  static constexpr int kMostDevices = 64;  // others are asked at each launch
  std::atomic<int> kept_[kMostDevices] = {};
};

// What a plan asks of the device, as far as it asks. `resident` is the kernel's own.
template <GpuSchedule S, class... Parameters>
cudaError_t limits_for(void (*kernel)(Parameters...), ResidentBlocks& resident, PlanLimits& limits) {
  if constexpr (S.blocks_per_sm == 0) return cudaSuccess;
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if constexpr (S.blocks_per_sm == kAllResident) {
    if (const cudaError_t status = resident.of(kernel, S.threads, device, limits.resident_blocks);
        status != cudaSuccess)
      return status;
  }
  return cudaDeviceGetAttribute(&limits.sms, cudaDevAttrMultiProcessorCount, device);
}

// A launch of a kernel over n elements. `resident` is the kernel's own.
struct OctetLaunch {
  DeviceKernel kernel;
  ResidentBlocks& resident;
  i64 n;
  cudaStream_t stream;
};

// Enqueues an elementwise kernel with its schedule's grid. n = 0 launches nothing, whatever the pointers.
// cudaErrorInvalidValue: n is negative or overflows, or not operands_hold(), which is asked for n > 0 alone.
template <GpuSchedule S, class Hold, class... Parameters, class... Arguments>
cudaError_t launch_octets(const OctetLaunch& of, void (*kernel)(Parameters...), const Hold& operands_hold,
                          const Arguments&... arguments) {
  if (of.n < 0 || of.n > kMostElements) return cudaErrorInvalidValue;
  if (of.n == 0) return cudaSuccess;
  if (!operands_hold()) return cudaErrorInvalidValue;
  PlanLimits limits;
  if (const cudaError_t status = limits_for<S>(kernel, of.resident, limits); status != cudaSuccess)
    return status;
  const PlannedLaunch planned = elementwise_plan(of.kernel, S, of.n, limits).launch[0];
  return launch(kernel, static_cast<unsigned>(planned.blocks), planned.threads, 0, of.stream, arguments...);
}

namespace detail {

// The scales of a stored y, where its format has them.
template <class Y>
Operand scales_operand(const Y*, i64) {
  return operand<u8>(nullptr, 0);
}
template <class Y>
Operand scales_operand(const BlockScaled<Y>& view, i64 n) {
  return operand(view.scales, scales_of<Y>(n));
}

}  // namespace detail

// Device pointers, aligned to their element. dx may equal dy; any other overlap of dx, a null pointer (but a
// mask that the fit does not read), a negative or overflowing n is cudaErrorInvalidValue.
template <class Fit, class T, class Y = T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_activation_backward(const T* dy, Stored<Y> y, const u32* mask, T* dx, i64 n,
                                       cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kBackwardSchedule<Schedule, Fit, T>>(
      {DeviceKernel::activation_backward, resident, n, stream}, activation_backward<Fit, T, Y, Schedule>,
      [&] {
        return detail::operands_hold(
            {detail::operand(dy, n), detail::operand(codes_of(y), n), detail::scales_operand(y, n),
             detail::operand(mask, kReadsMask<Fit, Y> ? mask_words(n) : 0), detail::written(dx, n, dy)});
      },
      dy, y, mask, dx, n);
}

// The same under GELU's name.
template <class Fit, class T, class Y = T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_gelu_backward(const T* dy, Stored<Y> y, const u32* mask, T* dx, i64 n,
                                 cudaStream_t stream) {
  return launch_activation_backward<Fit, T, Y, Schedule>(dy, y, mask, dx, n, stream);
}

// Of a kernel from x to y and, where Masked, the mask: what launch_gelu_forward says of its arguments.
template <GpuSchedule S, bool Masked, class T>
cudaError_t launch_forward(const OctetLaunch& of, void (*kernel)(const T*, T*, u32*, i64), const T* x, T* y,
                           u32* mask) {
  return launch_octets<S>(
      of, kernel,
      [&] {
        return detail::operands_hold({detail::operand(x, of.n), detail::written(y, of.n, x),
                                      detail::written(mask, Masked ? mask_words(of.n) : 0)});
      },
      x, y, mask, of.n);
}

// y may equal x; any other overlap is cudaErrorInvalidValue, and so are the cases above.
template <class Forward, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_forward<kForwardSchedule<Schedule, T>, true>(
      {DeviceKernel::gelu_forward, resident, n, stream}, gelu_forward<Forward, T, Schedule>, x, y, mask);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
