// GELU's forward that stores y in MXFP8 alone (kernels/stores/mxfp8.h), on a GPU. The backward is
// activation_backward of kernels/cuda/elementwise.cuh with Y = MxFp8 and generated::GeluMxfp8.
//
// A block of 32 elements is four octets, which four neighbouring lanes have: two shuffles give each of them
// the block's largest magnitude.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/stores/mxfp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

inline constexpr int kBlockOctets = Format<MxFp8>::kBlock / kOctet;
static_assert(is_power_of_two(kBlockOctets), "the lanes of a block find its largest magnitude by halving");

// The codes of 8 values of a block with this scale, as block_element gives them.
__device__ __forceinline__ Octet<F8E4M3> block_octet(const float (&value)[kOctet], E8M0 scale) {
  float quotient[kOctet];
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) quotient[k] = mul_rn(value[k], reciprocal_of(scale));
  return packed_saturated<F8E4M3>(quotient);
}

// codes[i], scales[i / 32]: GELU(x[i]) in MXFP8, for i in [0, n), and the mask; the contract is that of
// kernels/host/mxfp8.h. scales has scales_of<MxFp8>(n) elements, and no array overlaps another.
template <class Forward, class T, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n) {
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  static_assert(schedule_holds<kSchedule>());
  const auto& tables = resident_forward<Forward, kSchedule.table, kSchedule.threads>();
  auto* const bytes = reinterpret_cast<u8*>(mask);
  // A warp begins its octets at a multiple of 32, so no block is shared between the two loops.
  over_input_octets<kSchedule>(
      x, n, is_aligned<kSchedule, T, F8E4M3>(x, codes, x),
      [&](u64 octet, const Octet<T>& input) {
        float wide[kOctet], value[kOctet];
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) wide[k] = widened(input, k);
        u32 bits = 0, amax = 0;
        forward_values<T, Forward>(tables, wide, value, bits);
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) amax = larger_magnitude(amax, magnitude_in_block(value[k]));
        OUTGRAD_UNROLL
        for (int lanes = 1; lanes < kBlockOctets; lanes *= 2)
          amax = larger_magnitude(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
        const E8M0 scale = shared_scale(amax);
        store_octet<kSchedule>(codes + octet * kOctet, block_octet(value, scale));
        bytes[octet] = static_cast<u8>(bits);
        if (octet % kBlockOctets == 0) scales[octet / kBlockOctets] = scale;
      },
      [&](u64 octet, u32 count) {
        // Each of the block's threads looks at all of it.
        const u64 begin = octet / kBlockOctets * Format<MxFp8>::kBlock, end = begin + Format<MxFp8>::kBlock;
        u32 bits = 0, amax = 0;
#pragma unroll 1
        for (u64 i = begin; i < end && i < static_cast<u64>(n); ++i) {
          amax = larger_magnitude(amax,
                                  magnitude_in_block(forward_value<T, Forward, false>(tables, widen(x[i]))));
        }
        const E8M0 scale = shared_scale(amax);
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
          const float wide = widen(x[octet * kOctet + k]);
          codes[octet * kOctet + k] = block_element(forward_value<T, Forward, false>(tables, wide), scale);
          bits |= static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, wide)) << k;
        }
        bytes[octet] = static_cast<u8>(bits);
        if (octet % kBlockOctets == 0) scales[octet / kBlockOctets] = scale;
      });
  clear_mask_end(bytes, n);
}

#ifndef __CUDACC_RTC__
// Takes device pointers, aligned to their element. n = 0 launches nothing. The result is
// cudaErrorInvalidValue if any arrays overlap, for a null pointer, and a negative or overflowing n.
template <class Forward, class T, class Schedule = DefaultGpuSchedule>
cudaError_t launch_gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n,
                                      cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::gelu_forward_mxfp8, resident, n, stream}, gelu_forward_mxfp8<Forward, T, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(x, n), detail::written(codes, n),
                                      detail::written(scales, scales_of<MxFp8>(n)),
                                      detail::written(mask, mask_words(n))});
      },
      x, codes, scales, mask, n);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
