// Fixed-width integers and the correctly rounded fp32 operations that host, nvcc and NVRTC evaluate to the
// same bits.
//
// IEEE 754 defines one result for each operation below, so equal inputs give equal bits on every machine, as
// long as no compiler fuses or reassociates operations. A header-only library cannot force flags on its
// users, so the code above this layer follows two rules:
//   - a product that feeds a sum is written as one fma_rn;
//   - every other product goes through mul_rn, which hides its result from the contraction pass (g++ fuses by
//     default, also across inlined functions and through intrinsics).
// Sums, differences, quotients and roots cannot be fused with what follows them, so they need no such guard.
#pragma once

// What compilers say of their flags: g++'s __GCC_IEC_559 is 0 under any part of -ffast-math, and NVRTC names
// its own. Of what clang, nvcc and g++'s optimize pragma do not say, the end of this file asks the
// optimisers.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||        \
    (defined(__USE_FAST_MATH__) && __USE_FAST_MATH__) || (defined(__CUDA_FTZ) && __CUDA_FTZ) || \
    (defined(__GCC_IEC_559) && __GCC_IEC_559 == 0)
#error "outgrad: fast-math flags change results that are proven: drop -ffast-math, its parts, -use_fast_math"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && !defined(__CUDA_ARCH__)
#error "outgrad: fp32 must be evaluated in fp32, not x87's 80 bits: build for x86-64 or with -mfpmath=sse"
#endif

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define OUTGRAD_HD __host__ __device__ __forceinline__
#else
#define OUTGRAD_HD inline __attribute__((always_inline))
#endif

// Stands before a loop over the words of a table row: its trip count is a constant, and its body needs
// constant indices.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define OUTGRAD_UNROLL _Pragma("unroll")
#elif defined(__GNUC__) && !defined(__clang__)
#define OUTGRAD_UNROLL _Pragma("GCC unroll 32")
#else
#define OUTGRAD_UNROLL _Pragma("unroll")
#endif

// All code lives in an inline namespace named after the version of these headers' interface and after the
// target of the translation unit. Two units with different -m flags give equal bits by different
// instructions. If their functions had the same symbol, the linker would keep one of the two, and a machine
// without AVX-512 might run the wrong one. Users write outgrad::kernels:: and see nothing of the inline
// namespace. Some things are outside it, so that they may cross from one unit to another: the types of data
// (F16, BF16, Norm, SideBuffer, CpuSchedule, tables), the exceptions, and the coefficients in
// outgrad::kernels::generated. All units with the same tag must be meant for the same machines: the tag
// reflects only those flags that these headers ask about, and the baselines between them.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define OUTGRAD_ABI v0_cuda  // one tag for nvcc's host and device passes, whose names must agree
#else
#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#define OUTGRAD_ABI_ISA avx512_bf16
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define OUTGRAD_ABI_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define OUTGRAD_ABI_ISA avx2
#elif defined(__FMA__)
#define OUTGRAD_ABI_ISA fma
#elif defined(__AVX__)
#define OUTGRAD_ABI_ISA avx
#elif defined(__SSE4_1__)
#define OUTGRAD_ABI_ISA sse4
#else
#define OUTGRAD_ABI_ISA base
#endif
#ifdef _OPENMP
#define OUTGRAD_ABI_THREADS
#else
#define OUTGRAD_ABI_THREADS _serial  // the loops of kernels/host differ
#endif
#ifdef __cpp_exceptions
#define OUTGRAD_ABI_REFUSALS
#else
#define OUTGRAD_ABI_REFUSALS _noexcept  // a refusal ends the program: kernels/host/refusal.h
#endif
#define OUTGRAD_ABI_JOIN(isa, threads, refusals) v0_##isa##threads##refusals
#define OUTGRAD_ABI_NAME(isa, threads, refusals) OUTGRAD_ABI_JOIN(isa, threads, refusals)
#define OUTGRAD_ABI OUTGRAD_ABI_NAME(OUTGRAD_ABI_ISA, OUTGRAD_ABI_THREADS, OUTGRAD_ABI_REFUSALS)
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

#ifdef __CUDACC_RTC__
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
#else
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
#endif

OUTGRAD_HD u32 bits_of(float value) {
#ifdef __CUDA_ARCH__
  return static_cast<u32>(__float_as_uint(value));
#else
  return __builtin_bit_cast(u32, value);
#endif
}

OUTGRAD_HD float float_of(u32 bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// Each of the following functions rounds exactly once, to nearest even, whatever the contraction flags.

OUTGRAD_HD float fma_rn(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

OUTGRAD_HD float add_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

OUTGRAD_HD float sub_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

#ifndef __CUDA_ARCH__
// Empty, but opaque to the compiler: an addition that follows cannot be fused with the multiplication before
// it. It costs no instruction.
template <class Real>
OUTGRAD_HD Real unfused(Real product) {
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#elif defined(__FP_FAST_FMAF)
#error "outgrad: mul_rn needs a contraction barrier for this architecture"
#endif
  return product;
}
#endif

OUTGRAD_HD float mul_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return unfused(a * b);
#endif
}

OUTGRAD_HD float div_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

OUTGRAD_HD float sqrt_rn(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

// Each of these is a constant only to an optimiser that may compute something else than what is written: then
// the call stays, which is an error. Otherwise an empty function stays. Without optimisation, compilers
// compute what is written. (clang's pragmas against such flags do not reach calls of fma and sqrt, nor
// selects.)
#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#if __has_attribute(error)
[[gnu::error(
    "outgrad: fast-math flags change results, which the proofs do not cover: build without -ffast-math and "
    "its parts")]]
#endif
void refuse_fast_math();
[[gnu::used]] static inline void ask_for_fast_math(float a) {
  if (__builtin_constant_p((a + 1.0f) - a)) refuse_fast_math();  // -fassociative-math
  // -freciprocal-math: both are one product
  if (__builtin_constant_p(a / 3.0f < a * (1.0f / 3.0f))) refuse_fast_math();
  // -fno-signed-zeros
  if (__builtin_constant_p(__builtin_bit_cast(u32, a + 0.0f) == __builtin_bit_cast(u32, a)))
    refuse_fast_math();
  if (__builtin_constant_p(a == a)) refuse_fast_math();  // -fno-honor-nans
  if (__builtin_constant_p(__builtin_isinf(a))) refuse_fast_math();  // -fno-honor-infinities
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI

// Of -use_fast_math, -ftz=true alone reaches these headers: divisions and roots name their rounding. nvcc
// decides this condition early, and ptxas knows no such instruction.
#ifdef __NVCC__
extern "C" __device__ int __nvvm_reflect(const void*);
__device__ __attribute__((used)) static inline void outgrad_ask_for_fast_math() {
#ifdef __CUDA_ARCH__
  if (__nvvm_reflect("__CUDA_FTZ")) asm volatile("outgrad_cannot_be_built_with_ftz_or_use_fast_math;");
#endif
}
#endif
