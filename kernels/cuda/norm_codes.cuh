// y in 8 bits in a norm's kernels on a GPU (kernels/norm_store.h): what a forward writes beside y, and what a
// backward reads in its place. Store = void: y itself, and no codes.
//
// A thread has an octet of a row, and the threads whose octets share a scale are neighbours in a warp. At a
// scale of the tensor a forward finds amax, and norm_encode writes the codes once it is known.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/norm_store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

inline constexpr GpuSchedule kCodeAccess = {};

template <class Store>
inline constexpr CodeScales kCodeScales = Store::kGroup == 0 ? CodeScales::of_tensor : CodeScales::of_groups;
template <>
inline constexpr CodeScales kCodeScales<void> = CodeScales::none;

// Codes are bytes here, whatever a store's Code is.
using CodeOctet = Octet<F8E4M3>;

__device__ __forceinline__ float scale_number(float scale) { return scale; }
__device__ __forceinline__ float scale_number(E8M0 scale) { return widen(scale); }

// What an octet of codes with this scale stands for.
template <class Scale>
__device__ __forceinline__ Tuple<float, kOctet> code_values(const CodeOctet& codes, Scale scale) {
  Tuple<float, kOctet> y;
  widen_octet(codes, y.v);
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) y.v[k] = mul_rn(y.v[k], scale_number(scale));
  return y;
}
template <>
__device__ __forceinline__ Tuple<float, kOctet> code_values(const CodeOctet& codes, Int8Scale scale) {
  Tuple<float, kOctet> y;
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) y.v[k] = norm_value(element_of(codes, k).bits, scale);
  return y;
}

// 8 codes to `to`, which is aligned to 8 bytes if Wide.
template <bool Wide>
__device__ __forceinline__ void store_codes(void* to, const CodeOctet& codes) {
  auto* const bytes = static_cast<F8E4M3*>(to);
  if constexpr (Wide) {
    store_octet<kCodeAccess>(bytes, codes);
  } else {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) bytes[k] = element_of(codes, k);
  }
}

// --- Forward -------------------------------------------------------------------------------------

// What the elements of a group say of its scale, element by element and thread by thread.
template <class Scale>
struct GroupRange {
  u32 amax = 0;

  __device__ __forceinline__ void include(float y) { amax = larger_magnitude(amax, magnitude_in_block(y)); }
  // with that of the lane `apart` lanes away; all of `lanes` take part
  __device__ __forceinline__ void join(u32 lanes, int apart) {
    amax = larger_magnitude(amax, __shfl_xor_sync(lanes, amax, apart));
  }
  __device__ __forceinline__ E8M0 scale() const { return shared_scale(amax); }
  static __device__ __forceinline__ CodeOctet codes(const float (&y)[kOctet], E8M0 scale) {
    float quotient[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) quotient[k] = mul_rn(y[k], reciprocal_of(scale));
    return packed_saturated<F8E4M3>(quotient);
  }
};
template <>
struct GroupRange<Int8Scale> {
  OutputRange range;

  __device__ __forceinline__ void include(float y) { range.include(y); }
  __device__ __forceinline__ void join(u32 lanes, int apart) {
    const i32 least = __shfl_xor_sync(lanes, range.least, apart),
              most = __shfl_xor_sync(lanes, range.most, apart);
    range.least = least < range.least ? least : range.least;
    range.most = most > range.most ? most : range.most;
  }
  __device__ __forceinline__ Int8Scale scale() const { return int8_scale(range); }
  static __device__ __forceinline__ CodeOctet codes(const float (&y)[kOctet], Int8Scale scale) {
    CodeOctet octet{};
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k)
      octet.w[k / 4] |= static_cast<u32>(norm_code(y[k], scale)) << 8 * (k % 4);
    return octet;
  }
};

// What a forward's thread makes of the octets of y that it computes: add(y, row, at, count) for `count`
// elements from column `at` on, keep_mean(row, mean) by one thread for each row, and finish() at the end, by
// all threads of the block. Converged: all threads of a warp come to each add together, with a count of 0 if
// they have no element; otherwise those come whose octets exist.
template <class Store, bool Converged, bool Wide>
struct OutputCodes {
  static constexpr int kLanes = Store::kGroup / kOctet;  // that share a scale
  static_assert(kLanes == 4 || kLanes == 8, "the lanes of a group are neighbours, found by halving");
  const NormCodes& to;
  i64 n;

  __device__ __forceinline__ OutputCodes(const NormCodes& kept, i64 columns) : to(kept), n(columns) {}
  __device__ __forceinline__ void keep_mean(i64, float) const {}
  // of a group all octets are there, or none
  __device__ __forceinline__ void add(const float (&y)[kOctet], i64 row, i64 at, int count) const {
    using Scale = typename Store::Scale;
    constexpr u32 kGroupLanes = (1u << kLanes) - 1;
    const u32 lanes = Converged ? 0xffffffffu : kGroupLanes << threadIdx.x % kTreeLanes / kLanes * kLanes;
    GroupRange<Scale> range;
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) range.include(y[k]);
    OUTGRAD_UNROLL
    for (int apart = 1; apart < kLanes; apart *= 2) range.join(lanes, apart);
    if (count == 0) return;
    const Scale scale = range.scale();
    store_codes<Wide>(static_cast<u8*>(to.codes) + row * n + at, range.codes(y, scale));
    if (at % Store::kGroup == 0)
      static_cast<Scale*>(to.scales)[norm_scales_of<Store>(row, n) + at / Store::kGroup] = scale;
  }
  __device__ __forceinline__ void finish() const {}
};

template <bool Converged, bool Wide>
struct OutputCodes<NormE4m3, Converged, Wide> {
  const NormCodes& to;
  u32 amax = 0;

  __device__ __forceinline__ OutputCodes(const NormCodes& kept, i64) : to(kept) {}
  __device__ __forceinline__ void keep_mean(i64 row, float mean) const { to.means[row] = mean; }
  __device__ __forceinline__ void add(const float (&y)[kOctet], i64, i64, int count) {
    if (count == 0) return;
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k)
      if (Wide || k < count) amax = larger_magnitude(amax, magnitude_in_block(y[k]));
  }
  // Few warps find a larger magnitude than all before them, so few wait for the others' writes.
  __device__ __forceinline__ void finish() {
    OUTGRAD_UNROLL
    for (int apart = 1; apart < kTreeLanes; apart *= 2)
      amax = larger_magnitude(amax, __shfl_xor_sync(0xffffffffu, amax, apart));
    if (threadIdx.x % kTreeLanes == 0 && amax > __ldcg(to.amax)) atomicMax(to.amax, amax);
  }
};

template <bool Converged, bool Wide>
struct OutputCodes<void, Converged, Wide> {
  __device__ __forceinline__ OutputCodes(const NormCodes&, i64) {}
  __device__ __forceinline__ void keep_mean(i64, float) const {}
  __device__ __forceinline__ void add(const float (&)[kOctet], i64, i64, int) const {}
  __device__ __forceinline__ void finish() const {}
};

// --- Backward ------------------------------------------------------------------------------------

// The part of a backward's Input (kernels/cuda/rows.cuh) that says what source 1 is: codes, or y.
template <class T, class Store>
struct OutputSource {
  static constexpr int kCodeWords = 2;

  static OUTGRAD_HD constexpr int element_bytes(int c) { return c == 1 ? 1 : sizeof(T); }
  static OUTGRAD_HD constexpr int words_of(int c) { return c == 1 ? kCodeWords : Octet<T>::kWords; }
  static __device__ __forceinline__ const T* row_of(const NormBackwardArrays<T>& a, i64 at_row) {
    return reinterpret_cast<const T*>(static_cast<const u8*>(a.kept.codes) + at_row);
  }
  template <GpuNormSchedule S, bool Whole>
  static __device__ __forceinline__ Octet<T> load(int c, const T* row, i64 at, int count) {
    if (c != 1) return load_part<S, Whole>(row + at, count);
    const auto codes = load_part<S, Whole>(reinterpret_cast<const F8E4M3*>(row) + at, count);
    Octet<T> octet = zero_octet<T>();
    OUTGRAD_UNROLL
    for (int w = 0; w < kCodeWords; ++w) octet.w[w] = codes.w[w];
    return octet;
  }
};
template <class T>
struct OutputSource<T, void> : PlainSources<T> {
  static __device__ __forceinline__ const T* row_of(const NormBackwardArrays<T>& a, i64 at_row) {
    return a.y + at_row;
  }
};

// y in fp32 from what is kept of it: of an octet that was loaded, at element `at` of the row that begins at
// element `at_row`, or of one element. Groups are whole in a row, so their scales are counted as elements
// are.
template <class T, class Store>
struct KeptOutput {
  using Scale = typename Store::Scale;
  using Code = typename Store::Code;
  const NormBackwardArrays<T>& a;

  __device__ __forceinline__ explicit KeptOutput(const NormBackwardArrays<T>& arrays) : a(arrays) {}
  // Also of an octet beyond the row's end, which has no effect: its scale is any.
  __device__ __forceinline__ Tuple<float, kOctet> octet(const Octet<T>& kept, i64 at_row, i64 at) const {
    const CodeOctet codes = {{kept.w[0], kept.w[1]}};
    const i64 i = at_row + at, last = a.rows * a.n - 1;
    return code_values(codes, scale_of(i < last ? i : last));
  }
  __device__ __forceinline__ float element(i64 i) const {
    return norm_value(static_cast<const Code*>(a.kept.codes)[i], scale_of(i));
  }

 private:
  __device__ __forceinline__ Scale scale_of(i64 i) const {
    const auto* const scales = static_cast<const Scale*>(a.kept.scales);
    if constexpr (kCodeScales<Store> == CodeScales::of_tensor) {
      return __ldg(scales);  // read where it is needed: kept, it would take a register that the rows need
    } else {
      return scales[static_cast<u64>(i) / Store::kGroup];
    }
  }
};
template <class T>
struct KeptOutput<T, void> {
  const NormBackwardArrays<T>& a;

  __device__ __forceinline__ explicit KeptOutput(const NormBackwardArrays<T>& arrays) : a(arrays) {}
  __device__ __forceinline__ Tuple<float, kOctet> octet(const Octet<T>& kept, i64, i64) const {
    Tuple<float, kOctet> y;
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) y.v[k] = widened(kept, k);
    return y;
  }
  __device__ __forceinline__ float element(i64 i) const { return widen(a.y[i]); }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
