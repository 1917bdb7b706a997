// Activations with a minimum whose 16-bit y carries its branch (kernels/stores/parity.h), over arrays on the
// CPU. The backward is activation_backward of kernels/host/elementwise.h with Y = ParityF16 or ParityBf16,
// whose mask may be null.
#pragma once

#include "kernels/activations.h"
#include "kernels/fits.h"
#include "kernels/forwards.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/stores.h"
#include "kernels/stores/parity.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace detail {

// The fit of an activation for the y that carries its branch beside T; void where there is none.
template <int kActivation>
void parity_fit_named(ParityFitList<>) {}
template <int kActivation, class Fit, class... More>
auto parity_fit_named(ParityFitList<Fit, More...>) {
  if constexpr (same_text(Fit::kActivation, kActivationNames[kActivation])) {
    return Fit{};
  } else {
    return parity_fit_named<kActivation>(ParityFitList<More...>{});
  }
}
template <int kActivation, class T>
auto parity_fit_at() {
  if constexpr (sizeof(T) == 2) {
    using Kept = typename StoreArithmetic<StoreId::kParity>::Kept<T>;
    return parity_fit_named<kActivation>(typename ParityFits<Kept>::Type{});
  }
}

}  // namespace detail

// y[i] = f(x[i]) on its branch, for i in [0, n); x is in the format that carries Y's codes. y may be x
// itself. Every schedule gives the same bits: the first call fills a static table of 128 KiB with y for every
// x, which later calls read.
template <class F, CarriesBranch Y, CpuSchedule S>
void activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n);

namespace detail {

template <class F, class Y>
struct BranchEncoder {
  static constexpr int kInPlace = 1;
  static constexpr bool kStreams = true, kStagedStreams = false;
  const u16* outputs = table_by_code<typename Format<Y>::Carrier>(
      [](typename Format<Y>::Carrier x) { return forward_to_branch<F, Y>(x).bits; });

  template <CpuSchedule S, bool kStreaming, class T>
  void encode(i64, const T* x, u8* const* to) const {
    u16* const y = reinterpret_cast<u16*>(to[0]);
#ifdef OUTGRAD_AVX512
    if constexpr (S.vector_bits == 512) {
      // what is masked starts from a defined value, unlike g++ 12's other intrinsics
      constexpr __mmask16 kAll = 0xffff;
      constexpr int kStep = 16;
      for (int k = 0; k < kCodeBlock; k += kStep) {
        fetch_ahead<kStreaming>(x + k, kStep);
        const __m512i code =
            _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k)));
        const __m512i pair =
            _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), kAll, code, outputs, sizeof(u16));
        const __m256i found = _mm512_maskz_cvtepi32_epi16(kAll, pair);  // the lower halves
        if constexpr (kStreaming) {
          _mm256_stream_si256(reinterpret_cast<__m256i*>(y + k), found);
        } else {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + k), found);
        }
      }
      return;
    }
#endif
    for (int k = 0; k < kCodeBlock; ++k) y[k] = outputs[x[k].bits];
  }
};

}  // namespace detail

template <class F, CarriesBranch Y, CpuSchedule S>
void activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n) {
  if (n == 0) return;
  detail::keep<S>(detail::BranchEncoder<F, Y>{}, x, {detail::Plane<u8>{reinterpret_cast<u8*>(y), 16}}, n);
}

template <>
struct HostStore<StoreId::kParity> {
  template <class T>
  using Kept = typename StoreArithmetic<StoreId::kParity>::Kept<T>;
  template <int kActivation, class T>
  using Of = decltype(detail::parity_fit_at<kActivation, T>());

  template <class Fit, class T, CpuSchedule S>
  static void forward(const StoreCall& a, const T* x, i64 n) {
    activation_forward_parity<ParityForward<Fit>, Kept<T>, S>(x, static_cast<Kept<T>*>(a.y), n);
  }
  template <class Fit, class T, CpuSchedule S>
  static void backward(const StoreCall& a, const T* dy, T* dx, i64 n) {
    activation_backward<Fit, T, S, Kept<T>>(dy, static_cast<const Kept<T>*>(a.y), nullptr, dx, n);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
