// Activations with a minimum whose 16-bit y carries its branch (kernels/parity.h), over arrays on the CPU.
// The backward is activation_backward of kernels/host/elementwise.h with Y = ParityF16 or ParityBf16, whose
// mask may be null.
#pragma once

#include <type_traits>

#include "kernels/activations.h"
#include "kernels/fits.h"
#include "kernels/forwards.h"
#include "kernels/host/elementwise.h"
#include "kernels/parity.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace detail {

template <class Fit, class... F>
struct ForwardNamed;
template <class Fit, class F, class... More>
struct ForwardNamed<Fit, F, More...> : std::conditional_t<same_text(Fit::kActivation, F::kActivation),
                                                          std::type_identity<F>, ForwardNamed<Fit, More...>> {
};

template <class Fit, class... F>
ForwardNamed<Fit, ForwardFit<float>::Type, F...> forward_named(ForwardList<F...>);

}  // namespace detail

// The forward whose y a fit of a parity format takes.
template <class Fit>
using ParityForward = typename decltype(detail::forward_named<Fit>(ActivationForwards{}))::type;

// y[i] = f(x[i]) on its branch, for i in [0, n); x is in the format that carries Y's codes. y may be x
// itself. Every schedule gives the same bits: the first call fills a static table of 128 KiB with y for every
// x, which later calls read.
template <class F, CarriesBranch Y, CpuSchedule S>
void activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n);

namespace detail {

// y by the bits of x, and two bytes more, for a gather reads four at a time.
template <class F, class Y>
struct BranchesByCode {
  u16 y[kCodes + 1] = {};

  BranchesByCode() {
    using Carrier = typename Format<Y>::Carrier;
    const DefaultFloatEnvironment environment;
    for (i64 code = 0; code < kCodes; ++code)
      y[code] = forward_to_branch<F, Y>(Carrier{static_cast<u16>(code)}).bits;
  }
};
template <class F, class Y>
const u16* branches_by_code() {
  static const BranchesByCode<F, Y> table;
  return table.y;
}

template <class T, class Y, CpuSchedule S, bool kStreaming>
void forward_range_to_branch(const u16* outputs, const T* x, Y* y, i64 begin, i64 end) {
  i64 i = begin;
#ifdef OUTGRAD_AVX512
  if constexpr (S.vector_bits == 512) {
    // what is masked starts from a defined value, unlike g++ 12's other intrinsics
    constexpr __mmask16 kAll = 0xffff;
    constexpr i64 kStep = 16;
    for (; i + kStep <= end; i += kStep) {
      fetch_ahead<kStreaming>(x + i, kStep);
      const __m512i code =
          _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
      const __m512i pair =
          _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), kAll, code, outputs, sizeof(u16));
      const __m256i found = _mm512_maskz_cvtepi32_epi16(kAll, pair);  // the lower halves
      __m256i* const to = reinterpret_cast<__m256i*>(y + i);
      if constexpr (kStreaming) {
        _mm256_stream_si256(to, found);
      } else {
        _mm256_storeu_si256(to, found);
      }
    }
  }
#endif
  for (; i < end; ++i) y[i].bits = outputs[x[i].bits];
  end_streaming<kStreaming>();
}

}  // namespace detail

template <class F, CarriesBranch Y, CpuSchedule S>
void activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n) {
  static_assert(detail::schedule_holds<S>());
  using T = typename Format<Y>::Carrier;
  if (n == 0) return;
  const u16* const outputs = detail::branches_by_code<F, Y>();
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::streams<S>(y, n)) {
      detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
        detail::forward_range_to_branch<T, Y, detail::kLoopOf<S>, true>(outputs, x, y, begin, end);
      });
      return;
    }
  }
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    detail::forward_range_to_branch<T, Y, detail::kLoopOf<S>, false>(outputs, x, y, begin, end);
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
