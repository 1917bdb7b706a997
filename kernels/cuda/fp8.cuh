// y in 8 bits at a scale with 0 to 2 bits beside it, on a GPU (kernels/stores/fp8.h): the table of a scale,
// the forward that writes codes and parts, and the backward that reads them. Every bit is the host's.
//
// The scale is read from device memory, so that nobody waits for it: one block makes the table, a thread for
// each code, and the kernels over the elements copy what they use of it into shared memory. Lanes whose codes
// differ may collide there.
#pragma once

#include "kernels/catalogue/few_bits.h"
#include "kernels/cuda/code.cuh"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The table that fill_fp8_table of kernels/stores/parts.h makes for S, an Fp8Activation of
// kernels/catalogue/few_bits.h, and codes in F. One block of kFp8Codes threads. *scale is a scale that holds;
// of any other the table is of no use.
template <class S, class F>
__global__ void __launch_bounds__(kFp8Codes) fp8_table(const float* scale, int bits, Fp8Table* table) {
  __shared__ float lengths[kFp8Codes];
  const int code = static_cast<int>(threadIdx.x);
  if (code == 0) table->bits = bits;
  kernels::detail::clear_code<F>(*table, code);
  __syncthreads();  // bits say how codes are cut, and a thread fills the codes of both signs
  const u32 first = code == 0 ? 0 : kernels::detail::first_magnitude<F>(code, *scale);
  const int largest = largest_code<F>();
  double length = 0;
  if (code <= largest) {
    const u32 next =
        code == largest ? kBeyondInfinity : kernels::detail::first_magnitude<F>(code + 1, *scale);
    if (next > first) length = kernels::detail::fill_code<S, F>(*table, code, first, next - 1);
  }
  lengths[code] = static_cast<float>(length);
  __syncthreads();
  if (code > 0) return;
  float widest = 0;
#pragma unroll 1
  for (int k = 0; k < kFp8Codes; ++k) widest = widest < lengths[k] ? lengths[k] : widest;
  table->widest = widest;
}

// Copies kRows of the table's rows into shared memory; all threads of the block call it.
template <int kRows>
__device__ __forceinline__ void copy_rows(const float (*from)[kFp8Codes], float (&to)[kRows][kFp8Codes]) {
  for (unsigned i = threadIdx.x; i < kRows * kFp8Codes; i += blockDim.x)
    to[i / kFp8Codes][i % kFp8Codes] = from[i / kFp8Codes][i % kFp8Codes];
  __syncthreads();
}

// The code of an element, and its part.
struct CodeAndPart {
  u8 code;
  u32 part;
};

// Codes and parts of n elements x: kept(x) of each, widened.
template <GpuSchedule S, int Bits, class F, class T, class Kept>
__device__ __forceinline__ void fp8_over_octets(const T* x, F* codes, u8* parts, i64 n, const Kept& kept) {
  static_assert(part_bits_hold(Bits));
  pack_over_octets<S, Bits>(
      x, is_aligned<S, T, F>(x, codes, x), parts, n,
      [&](u64 octet, const Octet<T>& input) {
        Octet<F> own{};
        u64 beside = 0;
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) {
          const CodeAndPart at = kept(widened(input, k));
          own.w[k / 4] |= static_cast<u32>(at.code) << 8 * (k % 4);
          beside |= static_cast<u64>(at.part) << Bits * k;
        }
        store_octet<S>(codes + octet * kOctet, own);
        return beside;
      },
      [&](u64 i) {
        const CodeAndPart at = kept(widen(x[i]));
        codes[i] = F{at.code};
        return at.part;
      });
}

// codes[i] and part i of f(x[i]), for i in [0, n), at *scale and by the table that fp8_table<S, F> made for
// it with Bits. parts has code_bytes(Bits, n) bytes and is not written without bits. No array overlaps
// another. The contract is that of kernels/host/fp8.h.
template <class S, class F, class T, int Bits, class Schedule = StoreSchedule>
__global__ void __launch_bounds__(kForwardSchedule<Schedule, T>.threads,
                                  kForwardSchedule<Schedule, T>.resident_blocks)
    activation_forward_fp8(const Fp8Table* table, const float* scale, const T* x, F* codes, u8* parts,
                           i64 n) {
  using Forward = F32FitOf<typename S::template Forward<float>>;
  using Fit = typename S::Fit;
  constexpr GpuSchedule kSchedule = kForwardSchedule<Schedule, T>;
  const auto& tables = resident_forward<Forward, kSchedule.table, kSchedule.threads>();
  const float by = *scale;
  if constexpr (Bits == 0) {
    fp8_over_octets<kSchedule, Bits>(x, codes, parts, n, [&](float each) {
      return CodeAndPart{fp8_code<F>(forward_value<float, Forward, false>(tables, each), by).bits, 0};
    });
  } else {
    constexpr int kEdges = (1 << Bits) - 1;
    __shared__ float edges[kEdges][kFp8Codes];
    copy_rows(table->edges, edges);
    const auto& rows = resident_table<DeviceFit<Fit, float>, kSchedule.table, kSchedule.threads>();
    const auto ops = ops_for<Fit, float>(rows);
    fp8_over_octets<kSchedule, Bits>(x, codes, parts, n, [&](float each) {
      const float y = forward_value<float, Forward, false>(tables, each),
                  g = derivative<Fit, float>(ops, rows, bits_of(y), y, Forward::kXStar <= each);
      CodeAndPart at{fp8_code<F>(y, by).bits, 0};
      OUTGRAD_UNROLL
      for (int k = 0; k < kEdges; ++k) at.part += edges[k][at.code] <= g;
      return at;
    });
  }
}

// dx[i] = dy[i] g, where g is what code i and part i stand for, as dx = RN_T(RN_f32(dy g)). dx may be dy, and
// overlaps nothing otherwise.
template <class T, int Bits, class Schedule = DefaultGpuSchedule>
__global__ void __launch_bounds__(kPlainCodeSchedule<Schedule, T>.threads,
                                  kPlainCodeSchedule<Schedule, T>.resident_blocks)
    activation_backward_fp8(const Fp8Table* table, const T* dy, const u8* codes, const u8* parts, T* dx,
                            i64 n) {
  constexpr GpuSchedule kSchedule = kPlainCodeSchedule<Schedule, T>;
  static_assert(part_bits_hold(Bits));
  constexpr u32 kField = (1u << Bits) - 1;
  __shared__ float values[1 << Bits][kFp8Codes];
  copy_rows(table->values, values);
  multiply_over_octets<kSchedule>(
      dy, KeptCodes<Bits, true>{parts, codes}, dx, n,
      [&](u64, u64 own, const Octet<u8>& code, float (&g)[kOctet]) {
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k)
          g[k] = values[own >> Bits * k & kField][code.w[k / 4] >> 8 * (k % 4) & 0xffu];
      },
      [&](u64 i, int k, u64 own) { return values[own >> Bits * k & kField][codes[i]]; });
}

#ifndef __CUDACC_RTC__
// Device pointers. cudaErrorInvalidValue for a null or misaligned one, and for bits that are not 0 to 2.
template <class S, class F>
cudaError_t launch_fp8_table(const float* scale, int bits, Fp8Table* table, cudaStream_t stream) {
  if (!part_bits_hold(bits) || !detail::operands_hold({detail::operand(scale, 1), detail::written(table, 1)}))
    return cudaErrorInvalidValue;
  return launch(fp8_table<S, F>, 1u, static_cast<unsigned>(kFp8Codes), 0, stream, scale, bits, table);
}

// Takes device pointers, aligned to their element; without bits `parts` is not looked at. n = 0 launches
// nothing. The result is cudaErrorInvalidValue if what is written overlaps anything, for a null pointer, and
// a negative or overflowing n.
template <class S, class F, class T, int Bits, class Schedule = StoreSchedule>
cudaError_t launch_activation_forward_fp8(const Fp8Table* table, const float* scale, const T* x, F* codes,
                                          u8* parts, i64 n, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kForwardSchedule<Schedule, T>>(
      {DeviceKernel::activation_forward_fp8, resident, n, stream},
      activation_forward_fp8<S, F, T, Bits, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(table, 1), detail::operand(scale, 1),
                                      detail::operand(x, n), detail::written(codes, n),
                                      detail::written(parts, code_bytes(Bits, n))});
      },
      table, scale, x, codes, parts, n);
}

// The same of the arrays that the backward reads; dx may be dy.
template <class T, int Bits, class Schedule = DefaultGpuSchedule>
cudaError_t launch_activation_backward_fp8(const Fp8Table* table, const T* dy, const u8* codes,
                                           const u8* parts, T* dx, i64 n, cudaStream_t stream) {
  static constinit ResidentBlocks resident;
  return launch_octets<kPlainCodeSchedule<Schedule, T>>(
      {DeviceKernel::activation_backward_fp8, resident, n, stream},
      activation_backward_fp8<T, Bits, Schedule>,
      [&] {
        return detail::operands_hold({detail::operand(table, 1), detail::operand(dy, n),
                                      detail::operand(codes, n), detail::operand(parts, code_bytes(Bits, n)),
                                      detail::written(dx, n, dy)});
      },
      table, dy, codes, parts, dx, n);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
