// Any tensor in 8 bits on a GPU (kernels/tensor_codes.h), with the host's bits.
//
// At one scale there are two launches: blocks that each leave the largest magnitude they have seen, and those
// that make the scale of all of these and then the codes. So nothing has to be set to 0 before, and no thread
// waits for another block. In MXFP8 four neighbouring lanes have a block of 32, as in kernels/cuda/mxfp8.cuh.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mxfp8.cuh"
#include "kernels/divisor.h"
#include "kernels/tensor_codes.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The largest of the numbers that a block's threads have, in each of them.
template <int Threads>
__device__ __forceinline__ u32 largest_of_block(u32 own) {
  constexpr int kLanes = 32, kWarps = Threads / kLanes;
  __shared__ u32 of_warps[kWarps];
  OUTGRAD_UNROLL
  for (int apart = 1; apart < kLanes; apart *= 2)
    own = larger_magnitude(own, __shfl_xor_sync(0xffffffffu, own, apart));
  if (threadIdx.x % kLanes == 0) of_warps[threadIdx.x / kLanes] = own;
  __syncthreads();
  u32 largest = of_warps[0];
  OUTGRAD_UNROLL
  for (int warp = 1; warp < kWarps; ++warp) largest = larger_magnitude(largest, of_warps[warp]);
  return largest;
}

// maxima[block]: the bits of the largest finite |x[i]| of those that the block has looked at; i in [0, n).
template <class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    tensor_maxima(const T* x, u32* maxima, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  u32 most = 0;
  over_input_octets<kSchedule>(
      x, n, is_aligned<kSchedule, T, T>(x, x, x),
      [&](u64, const Octet<T>& input) {
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) most = larger_magnitude(most, finite_magnitude(widened(input, k)));
      },
      [&](u64 octet, u32 count) {
#pragma unroll 1
        for (u32 k = 0; k < count; ++k)
          most = larger_magnitude(most, finite_magnitude(widen(x[octet * kOctet + k])));
      });
  most = largest_of_block<kSchedule.threads>(most);
  if (threadIdx.x == 0) maxima[blockIdx.x] = most;
}

// *scale and codes[i] of x[i], from `count` maxima. With n = 0, the scale of whatever these are of.
template <class F, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    encode_tensor(const T* x, const u32* maxima, i64 count, float least, F* codes, float* scale, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  u32 most = 0;
#pragma unroll 1
  for (i64 k = threadIdx.x; k < count; k += kSchedule.threads) most = larger_magnitude(most, maxima[k]);
  const float by = tensor_scale<F>(largest_of_block<kSchedule.threads>(most), least);
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale = by;
  over_input_octets<kSchedule>(
      x, n, is_aligned<kSchedule, T, F>(x, codes, x),
      [&](u64 octet, const Octet<T>& input) {
        float product[kOctet];
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) product[k] = mul_rn(widened(input, k), by);
        store_octet<kSchedule>(codes + octet * kOctet, packed_saturated<F>(product));
      },
      [&](u64 octet, u32 left) {
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + left; ++i)
          codes[i] = narrow_saturated<F>(mul_rn(widen(x[i]), by));
      });
}

// x[i]: what codes[i] stands for at *scale, in T.
template <class F, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    decode_tensor(const F* codes, const float* scale, T* x, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  const Divisor by = Divisor::of(*scale);
  over_input_octets<kSchedule>(
      codes, n, is_aligned<kSchedule, T, F>(x, codes, x) && by.is_usual(),
      [&](u64 octet, const Octet<F>& input) {
        float value[kOctet];
        widen_octet(input, value);
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) {
          // of -0 the products would make 0
          const u32 sign = bits_of(value[k]) & 0x80000000u;
          value[k] = float_of(bits_of(by.quotient(float_of(bits_of(value[k]) ^ sign))) | sign);
        }
        store_octet<kSchedule>(x + octet * kOctet, packed<T>(value));
      },
      [&](u64 octet, u32 left) {
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + left; ++i)
          x[i] = narrow<T>(tensor_value(codes[i], by.scale));
      });
}

// codes[i] and scales[i / 32] of x[i] in MXFP8.
template <class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    encode_tensor_blocks(const T* x, F8E4M3* codes, E8M0* scales, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  // A warp begins its octets at a multiple of 32, so no block is shared between the two loops.
  over_input_octets<kSchedule>(
      x, n, is_aligned<kSchedule, T, F8E4M3>(x, codes, x),
      [&](u64 octet, const Octet<T>& input) {
        float value[kOctet];
        u32 most = 0;
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) {
          value[k] = widened(input, k);
          most = larger_magnitude(most, finite_magnitude(value[k]));
        }
        OUTGRAD_UNROLL
        for (int lanes = 1; lanes < kBlockOctets; lanes *= 2)
          most = larger_magnitude(most, __shfl_xor_sync(0xffffffffu, most, lanes));
        const E8M0 power = least_power(most);
        store_octet<kSchedule>(codes + octet * kOctet, block_octet(value, power));
        if (octet % kBlockOctets == 0) scales[octet / kBlockOctets] = power;
      },
      [&](u64 octet, u32 left) {
        // Each of the block's threads looks at all of it.
        const u64 begin = octet / kBlockOctets * Format<MxFp8>::kBlock, end = begin + Format<MxFp8>::kBlock;
        u32 most = 0;
#pragma unroll 1
        for (u64 i = begin; i < end && i < static_cast<u64>(n); ++i)
          most = larger_magnitude(most, finite_magnitude(widen(x[i])));
        const E8M0 power = least_power(most);
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + left; ++i)
          codes[i] = block_element(widen(x[i]), power);
        if (octet % kBlockOctets == 0) scales[octet / kBlockOctets] = power;
      });
}

// x[i]: what codes[i] and scales[i / 32] stand for, in T.
template <class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    decode_tensor_blocks(const F8E4M3* codes, const E8M0* scales, T* x, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  over_input_octets<kSchedule>(
      codes, n, is_aligned<kSchedule, T, F8E4M3>(x, codes, x),
      [&](u64 octet, const Octet<F8E4M3>& input) {
        const float power = widen(scales[octet / kBlockOctets]);
        float value[kOctet];
        widen_octet(input, value);
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) value[k] = within<T>(mul_rn(value[k], power));
        store_octet<kSchedule>(x + octet * kOctet, packed<T>(value));
      },
      [&](u64 octet, u32 left) {
        const E8M0 power = scales[octet / kBlockOctets];
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + left; ++i)
          x[i] = narrow<T>(block_value<T>(codes[i], power));
      });
}

#ifndef __CUDACC_RTC__
namespace detail {

// The launches of encode_tensor_plan. Without codes, those for the scale alone.
template <class F, class T, class Schedule>
cudaError_t launch_encoding(const T* x, i64 n, float least, F* codes, float* scale, u32* maxima,
                            cudaStream_t stream) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static constinit ResidentBlocks resident;
  if (n < 0 || n > kMostElements || !(kLeastOfTensors <= least && least <= kMostOfTensors) ||
      !operands_hold({operand(x, n), written(codes, codes != nullptr ? n : 0), written(scale, 1),
                      written(maxima, kMostMaxima)}))
    return cudaErrorInvalidValue;
  // Of both kernels as many blocks fit on an SM as the schedule's registers allow.
  PlanLimits limits;
  if (const cudaError_t status = limits_for<kSchedule>(encode_tensor<F, T, Schedule>, resident, limits);
      status != cudaSuccess)
    return status;
  const LaunchPlan plan = encode_tensor_plan(kSchedule, n, limits, codes == nullptr);
  const i64 count = n > 0 ? plan.launch[0].blocks : 0;
  if (n > 0) {
    const PlannedLaunch& first = plan.launch[0];
    if (const cudaError_t status = launch(tensor_maxima<T, Schedule>, static_cast<unsigned>(first.blocks),
                                          static_cast<unsigned>(first.threads), 0, stream, x, maxima, n);
        status != cudaSuccess)
      return status;
  }
  const PlannedLaunch& last = plan.launch[plan.launches - 1];
  return launch(encode_tensor<F, T, Schedule>, static_cast<unsigned>(last.blocks),
                static_cast<unsigned>(last.threads), 0, stream, x, static_cast<const u32*>(maxima), count,
                least, codes, scale, codes != nullptr ? n : 0);
}

}  // namespace detail

// Take device pointers, aligned to their element; none overlaps another. maxima: kMostMaxima words, which are
// written. The result is cudaErrorInvalidValue for anything else, for a negative or overflowing n, and for a
// `least` that is no number from 2^-100 to 2^127. With n = 0 the scale is written, and the others below launch
// nothing.
template <class F, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_tensor_scale(const T* x, i64 n, float least, float* scale, u32* maxima,
                                cudaStream_t stream) {
  return detail::launch_encoding<F, T, Schedule>(x, n, least, nullptr, scale, maxima, stream);
}
template <class F, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_encode_tensor(const T* x, i64 n, float least, F* codes, float* scale, u32* maxima,
                                 cudaStream_t stream) {
  if (codes == nullptr && n != 0) return cudaErrorInvalidValue;
  return detail::launch_encoding<F, T, Schedule>(x, n, least, codes, scale, maxima, stream);
}

template <class F, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_decode_tensor(const F* codes, const float* scale, T* x, i64 n, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::decode_tensor, resident, n, stream}, decode_tensor<F, T, Schedule>,
      [&] {
        return detail::operands_hold(
            {detail::operand(codes, n), detail::operand(scale, 1), detail::written(x, n)});
      },
      codes, scale, x, n);
}

template <class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_encode_tensor_blocks(const T* x, F8E4M3* codes, E8M0* scales, i64 n, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::encode_tensor_blocks, resident, n, stream}, encode_tensor_blocks<T, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(x, n), detail::written(codes, n),
                                      detail::written(scales, scales_of<MxFp8>(n))});
      },
      x, codes, scales, n);
}
template <class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_decode_tensor_blocks(const F8E4M3* codes, const E8M0* scales, T* x, i64 n,
                                        cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::decode_tensor_blocks, resident, n, stream}, decode_tensor_blocks<T, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(codes, n),
                                      detail::operand(scales, scales_of<MxFp8>(n)), detail::written(x, n)});
      },
      codes, scales, x, n);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
