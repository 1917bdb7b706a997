// Any tensor in 8 bits on a GPU (kernels/tensor_codes.h), with the host's bits.
//
// At one scale there are two launches: blocks that each leave the largest magnitude they have seen, and those
// that make the scale of all of these and then the codes. So nothing has to be set to 0 before, and no thread
// waits for another block. In MXFP8 four neighbouring lanes have a block of 32, as in kernels/cuda/mxfp8.cuh.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mxfp8.cuh"
#include "kernels/tensor_codes.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The largest of the numbers that a block's threads have, in each of them. Which: calls of different numbers
// may follow each other without waiting.
template <int Threads, int Which>
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

template <class T>
__device__ __forceinline__ u32 with_octet(u32 most, const Octet<T>& octet) {
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) most = larger_magnitude(most, finite_magnitude(widened(octet, k)));
  return most;
}

template <int Threads, int Which>
__device__ __forceinline__ u32 largest_of(const Maxima& maxima) {
  u32 most = 0;
#pragma unroll 1
  for (i64 k = threadIdx.x; k < maxima.count; k += Threads)
    most = larger_magnitude(most, __ldg(maxima.of_blocks + k));
  return largest_of_block<Threads, Which>(most);
}

// --- Elements and octets, encoded and decoded ----------------------------------------------------

// How a tensor is kept: its codes, and what each of its scales is.
template <class F>
struct AtScale {
  using Code = F;
  using Scale = float;
};
struct InBlocks {
  using Code = F8E4M3;
  using Scale = E8M0;
};

template <class Kept, class T>
struct Encoder;
template <class F, class T>
struct Encoder<AtScale<F>, T> {
  F* codes;
  float scale;

  // Of a tensor with these maxima, whose scale one thread writes. Which: as in largest_of_block.
  template <int Threads, int Which>
  static __device__ __forceinline__ Encoder of(void* all, void* scales, const Maxima& maxima, float least) {
    const float by = tensor_scale<F>(largest_of<Threads, Which>(maxima), least);
    if (blockIdx.x == 0 && threadIdx.x == 0) *static_cast<float*>(scales) = by;
    return {static_cast<F*>(all), by};
  }
  template <GpuSchedule S>
  __device__ __forceinline__ void octet(const Octet<T>& x, u64 first) const {
    float product[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) product[k] = mul_rn(widened(x, k), scale);
    store_octet<S>(codes + first, packed_saturated<F>(product));
  }
  // of x[0], which is the tensor's element i
  __device__ __forceinline__ void element(const T* x, u64 i, u64) const {
    codes[i] = narrow_saturated<F>(mul_rn(widen(*x), scale));
  }
};
template <class T>
struct Encoder<InBlocks, T> {
  F8E4M3* codes;
  E8M0* powers;

  template <int Threads, int Which>
  static __device__ __forceinline__ Encoder of(void* all, void* scales, const Maxima&, float) {
    return {static_cast<F8E4M3*>(all), static_cast<E8M0*>(scales)};
  }
  // Four neighbouring lanes come with the octets of a block.
  template <GpuSchedule S>
  __device__ __forceinline__ void octet(const Octet<T>& x, u64 first) const {
    const u32 lanes = ((1u << kBlockOctets) - 1) << threadIdx.x % 32 / kBlockOctets * kBlockOctets;
    float value[kOctet];
    widen_octet(x, value);
    u32 most = with_octet(0, x);
    OUTGRAD_UNROLL
    for (int apart = 1; apart < kBlockOctets; apart *= 2)
      most = larger_magnitude(most, __shfl_xor_sync(lanes, most, apart));
    const E8M0 power = least_power(most);
    store_octet<S>(codes + first, block_octet(value, power));
    const u64 octet = first / kOctet;
    if (octet % kBlockOctets == 0) powers[octet / kBlockOctets] = power;
  }
  // Of x[0], which is the tensor's element i, with `left` elements from there on: each of a block's threads
  // looks at all of it.
  __device__ __forceinline__ void element(const T* x, u64 i, u64 left) const {
    constexpr u64 kBlock = Format<MxFp8>::kBlock;
    const u64 place = i % kBlock, end = left < kBlock - place ? left : kBlock - place;
    u32 most = 0;
#pragma unroll 1
    for (u64 k = 0; k < place + end; ++k)
      most = larger_magnitude(most, finite_magnitude(widen((x - place)[k])));
    const E8M0 power = least_power(most);
    codes[i] = block_element(widen(*x), power);
    if (place == 0) powers[i / kBlock] = power;
  }
};

template <class Kept, class T>
struct Decoder;
template <class F, class T>
struct Decoder<AtScale<F>, T> {
  const F* codes;
  CodeDivisor by;

  __device__ __forceinline__ Decoder(const F* all, const float* scale)
      : codes(all), by(CodeDivisor::of(__ldg(scale))) {}
  __device__ __forceinline__ Octet<T> octet(const Octet<F>& own, u64) const {
    float value[kOctet];
    widen_octet(own, value);
    if (by.is_usual()) {
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) value[k] = by.quotient(value[k]);
    } else {
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) value[k] = div_rn(value[k], by.scale);
    }
    return packed<T>(value);
  }
  __device__ __forceinline__ T element(u64 i) const { return narrow<T>(tensor_value(codes[i], by.scale)); }
};
template <class T>
struct Decoder<InBlocks, T> {
  const F8E4M3* codes;
  const E8M0* powers;

  __device__ __forceinline__ Decoder(const F8E4M3* all, const E8M0* scales) : codes(all), powers(scales) {}
  __device__ __forceinline__ Octet<T> octet(const Octet<F8E4M3>& own, u64 first) const {
    const float power = widen(powers[first / Format<MxFp8>::kBlock]);
    float value[kOctet];
    widen_octet(own, value);
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) value[k] = within<T>(mul_rn(value[k], power));
    return packed<T>(value);
  }
  __device__ __forceinline__ T element(u64 i) const {
    return narrow<T>(block_value<T>(codes[i], powers[i / Format<MxFp8>::kBlock]));
  }
};

// --- Kernels -------------------------------------------------------------------------------------

template <GpuSchedule S, class Kept, class T>
__device__ __forceinline__ void encode_all(const T* x, i64 n, const Encoder<Kept, T>& to) {
  // A warp begins its octets at a multiple of 32, so no block is shared between the two loops.
  over_input_octets<S>(
      x, n, is_aligned<S, T, typename Kept::Code>(x, to.codes, x),
      [&](u64 octet, const Octet<T>& input) { to.template octet<S>(input, octet * kOctet); },
      [&](u64 octet, u32 left) {
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + left; ++i)
          to.element(x + i, i, static_cast<u64>(n) - i);
      });
}

template <GpuSchedule S, class Kept, class T>
__device__ __forceinline__ void decode_all(const Decoder<Kept, T>& from, T* x, i64 n) {
  over_input_octets<S>(
      from.codes, n, is_aligned<S, T, typename Kept::Code>(x, from.codes, x),
      [&](u64 octet, const Octet<typename Kept::Code>& input) {
        store_octet<S>(x + octet * kOctet, from.octet(input, octet * kOctet));
      },
      [&](u64 octet, u32 left) {
#pragma unroll 1
        for (u64 i = octet * kOctet; i < octet * kOctet + left; ++i) x[i] = from.element(i);
      });
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
      [&](u64, const Octet<T>& input) { most = with_octet(most, input); },
      [&](u64 octet, u32 left) {
#pragma unroll 1
        for (u32 k = 0; k < left; ++k)
          most = larger_magnitude(most, finite_magnitude(widen(x[octet * kOctet + k])));
      });
  most = largest_of_block<kSchedule.threads, 0>(most);
  if (threadIdx.x == 0) maxima[blockIdx.x] = most;
}

// *scale and codes[i] of x[i], from what tensor_maxima has left. With n = 0, the scale alone.
template <class F, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    encode_tensor(const T* x, Maxima maxima, float least, F* codes, float* scale, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  using To = Encoder<AtScale<F>, T>;
  encode_all<kSchedule>(x, n, To::template of<kSchedule.threads, 0>(codes, scale, maxima, least));
}

// x[i]: what codes[i] stands for at *scale, in T.
template <class F, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    decode_tensor(const F* codes, const float* scale, T* x, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  decode_all<kSchedule>(Decoder<AtScale<F>, T>(codes, scale), x, n);
}

// codes[i] and scales[i / 32] of x[i] in MXFP8.
template <class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    encode_tensor_blocks(const T* x, F8E4M3* codes, E8M0* scales, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  encode_all<kSchedule>(x, n, Encoder<InBlocks, T>{codes, scales});
}

// x[i]: what codes[i] and scales[i / 32] stand for, in T.
template <class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    decode_tensor_blocks(const F8E4M3* codes, const E8M0* scales, T* x, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  decode_all<kSchedule>(Decoder<InBlocks, T>(codes, scales), x, n);
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
                static_cast<unsigned>(last.threads), 0, stream, x, Maxima{maxima, count}, least, codes, scale,
                codes != nullptr ? n : 0);
}

}  // namespace detail

// Take device pointers, aligned to their element; none overlaps another. maxima: kMostMaxima words, which
// are written. The result is cudaErrorInvalidValue for anything else, for a negative or overflowing n, and
// for a `least` that is no number from 2^-100 to 2^127. With n = 0 the scale is written, and the others
// below launch nothing.
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
        return detail::operands_hold(
            {detail::operand(x, n), detail::written(codes, n), detail::written(scales, scales_of<MxFp8>(n))});
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
        return detail::operands_hold(
            {detail::operand(codes, n), detail::operand(scales, scales_of<MxFp8>(n)), detail::written(x, n)});
      },
      codes, scales, x, n);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
