// GELU's forward that stores y in MXFP8 alone, for a next product that reads MXFP8, on the CPU.
//
// The backward is activation_backward<generated::GeluMxfp8, T, schedule, MxFp8> of
// kernels/host/elementwise.h.
#pragma once

#include <algorithm>

#include "kernels/eval.h"
#include "kernels/fits.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/mxfp8_blocks.h"
#include "kernels/host/stores.h"
#include "kernels/stores/mxfp8.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// codes[i], scales[i / 32]: GELU(x[i]) in MXFP8; mask as gelu_forward's. The number that is stored is the
// forward's before it is narrowed to T, so it is rounded once. scales has scales_of<MxFp8>(n) elements. No
// array overlaps another. Allocates nothing. In vectors of 512 bits the first call with a 16-bit T and n >=
// 2^16 fills a table of static storage, 256 KiB, which later ones read.
template <class Forward, class T, CpuSchedule S>
void gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n);

// -------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr i64 kBlock = Format<MxFp8>::kBlock;

// A whole block.
template <class Forward, class T>
void mxfp8_block(const T* x, F8E4M3* codes, E8M0* scale, u8* mask) {
  float y[kBlock];
  u32 amax = 0, bits = 0;
  for (i64 k = 0; k < kBlock; ++k) {
    const float wide = widen(x[k]);
    y[k] = fitted_forward_value<T>(FloatOps{}, Forward{}, kForwardTables<Forward>, wide);
    bits |= static_cast<u32>(evaluate_mask(FloatOps{}, Forward{}, wide)) << k;
    amax = std::max(amax, magnitude_in_block(y[k]));
  }
  __builtin_memcpy(mask, &bits, sizeof(bits));
  *scale = shared_scale(amax);
  for (i64 k = 0; k < kBlock; ++k) codes[k] = block_element(y[k], *scale);
}

// A 16-bit x has so few y that a gather from the table of them all is less work than the polynomial, where an
// instruction gathers a vector of 16.
template <class T, CpuSchedule S>
inline constexpr bool kValuesByCode = sizeof(T) == 2 && S.vector_bits == 512;

// 256 KiB for each Forward and T.
template <class Forward, class T>
const float* values_by_code() {
  return table_by_code<T>(
      [](T x) { return fitted_forward_value<T>(FloatOps{}, Forward{}, kForwardTables<Forward>, widen(x)); });
}

template <class Forward>
struct Mxfp8Encoder {
  static constexpr int kInPlace = 2;
  static constexpr bool kStreams = true, kStagedStreams = false;
  const float* values = nullptr;  // of values_by_code

  template <CpuSchedule S, bool kStreaming, class T>
  void encode(i64, const T* x, u8* const* to) const {
    F8E4M3* const codes = reinterpret_cast<F8E4M3*>(to[0]);
    E8M0* const scales = reinterpret_cast<E8M0*>(to[1]);
#ifdef OUTGRAD_AVX2
    if constexpr (S.vector_bits > 0) return encode_packs<S, kStreaming>(x, codes, scales, to[2]);
#endif
    for (i64 i = 0; i < kCodeBlock; i += kBlock)
      mxfp8_block<Forward>(x + i, codes + i, scales + i / kBlock, to[2] + i / 8);
  }

#ifdef OUTGRAD_AVX2
 private:
  template <CpuSchedule S, bool kStreaming, class T>
  void encode_packs(const T* x, F8E4M3* codes, E8M0* scales, u8* mask) const {
    constexpr LanesOf<S, 4> kOps{};
    for (i64 i = 0; i < kCodeBlock; i += kOps.kElements) {
      fetch_ahead<kStreaming>(x + i, kOps.kElements);
      const auto store = [=]<class Isa>(const auto&, FloatPack<Isa, 4> y) __attribute__((always_inline)) {
        if (mxfp8_blocks<Isa, kStreaming>(y.v, codes + i, scales + i / kBlock)) return;
        for (i64 at = i; at < i + kOps.kElements; at += kBlock)
          mxfp8_block<Forward>(x + at, codes + at, scales + at / kBlock, mask + at / 8);
      };
      const auto z = kOps.load(x + i);
#ifdef OUTGRAD_AVX512
      if constexpr (kValuesByCode<T, S>) {
        if (values != nullptr) {
          kOps.store_mask(mask + i / 8, evaluate_mask(kOps, Forward{}, z));
          typename decltype(kOps)::Value y;
          OUTGRAD_UNROLL
          for (int k = 0; k < 4; ++k)
            y.v[k] = _mm512_castsi512_ps(entries_at(values, x + i + k * kOps.kElements / 4));
          store(kOps, y);
          continue;
        }
      }
#endif
      forward_pack<Forward, T>(kOps, z, mask + i / 8, store);
    }
  }
#endif
};

}  // namespace detail

template <class Forward, class T, CpuSchedule S>
void gelu_forward_mxfp8(const T* x, F8E4M3* codes, E8M0* scales, u32* mask, i64 n) {
  detail::Mxfp8Encoder<Forward> encoder;
  if constexpr (detail::kValuesByCode<T, S>) {
    if (n >= detail::kCodes) encoder.values = detail::values_by_code<Forward, T>();
  }
  detail::keep<S>(encoder, x,
                  {detail::Plane<u8>{reinterpret_cast<u8*>(codes), 8},
                   {reinterpret_cast<u8*>(scales), 8, detail::kBlock},
                   {reinterpret_cast<u8*>(mask), 1, 1, sizeof(u32)}},
                  n);
}

// GELU's.
template <>
struct HostStore<StoreId::kMxFp8> {
  template <int kActivation, class>
  using Of = std::conditional_t<kActivation == 0, generated::GeluMxfp8, void>;

  template <class, class T, CpuSchedule S>
  static void forward(const StoreCall& a, const T* x, i64 n) {
    gelu_forward_mxfp8<typename ForwardFit<T>::Type, T, S>(x, reinterpret_cast<F8E4M3*>(a.codes),
                                                           reinterpret_cast<E8M0*>(a.scales), a.mask, n);
  }
  template <class Fit, class T, CpuSchedule S>
  static void backward(const StoreCall& a, const T* dy, T* dx, i64 n) {
    using Kept = typename StoreArithmetic<StoreId::kMxFp8>::Kept<T>;
    activation_backward<Fit, T, S, Kept>(dy, stored<Kept>(a.codes, a.scales), a.mask, dx, n);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
