// The forwards of kernels/forwards.h over arrays on the CPU, on all cores: by their fits
// (kernels/forward_fits.h) in f32, and in 16-bit formats in vectors of 512 bits; else by the table of all
// outputs of the format. Every schedule gives the same bits.
#pragma once

#include "kernels/forwards.h"
#include "kernels/host/blocks.h"
#include "kernels/host/elementwise.h"
#include "kernels/forward_fits.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Sets y[i] = f(x[i]), and bit i % 32 of mask[i / 32] to [x[i] >= x*], for i in [0, n). Bits of the last word
// beyond n are set to 0. y may equal x. If f has no minimum, the mask is not written and may be null. For a
// 16-bit T, the first call may fill a static table of 128 KiB, which later calls read.
template <class F, class T, CpuSchedule S>
void activation_forward(const T* x, T* y, u32* mask, i64 n);

namespace detail {

template <class F, class T>
void forward_elements(const T* x, T* y, u8*, i64 begin, i64 end) {
  for (i64 i = begin; i < end; ++i) y[i] = forward_of<F>(x[i]);
}

// Elements [begin, end), of which the first begins a word of the mask, by the table of all outputs.
template <class F, class T, CpuSchedule S, bool kStreaming>
void looked_up_range(const u16* outputs, const T* x, T* y, u32* mask, i64 begin, i64 end) {
  constexpr i64 kWordBits = 32;
  i64 i = begin;
#ifdef OUTGRAD_AVX2
  if constexpr (S.vector_bits > 0) {
    i = forward_packs_by_code<F, T, S, kStreaming>(outputs, x, y, reinterpret_cast<u8*>(mask), begin,
                                                   end - (end - begin) % kWordBits);
    end_streaming<kStreaming>();
  }
#endif
  for (; i < end; i += kWordBits) {
    const i64 stop = std::min(i + kWordBits, end);
    u32 word = 0;
    for (i64 k = i; k < stop; ++k) {
      if constexpr (F::kMasked) word |= static_cast<u32>(widen(x[k]) >= F::kXStar) << (k - i);
      y[k].bits = outputs[x[k].bits];
    }
    if constexpr (F::kMasked) mask[i / kWordBits] = word;
  }
}

template <class F, class T, CpuSchedule S>
void looked_up_forward(const T* x, T* y, u32* mask, i64 n) {
  static_assert(schedule_holds<S>());
  const u16* const outputs = n > 0 ? outputs_by_code<F, T>(forward_elements<F, T>) : nullptr;
  const auto all = [=]<bool kStreaming>() {
    over_blocks<S>(n, [=](i64 begin, i64 end) {
      looked_up_range<F, T, kLoopOf<S>, kStreaming>(outputs, x, y, mask, begin, end);
    });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (streams<S>(y, n)) return all.template operator()<true>();
  }
  all.template operator()<false>();
}

}  // namespace detail

template <class F, class T, CpuSchedule S>
void activation_forward(const T* x, T* y, u32* mask, i64 n) {
  if constexpr (kHasForwardFit<F, T> && (sizeof(T) == 4 || S.vector_bits == 512)) {
    fitted_forward<ForwardFitOf<F, T>, T, S>(x, y, mask, n);
  } else {
    detail::looked_up_forward<F, T, S>(x, y, mask, n);
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
