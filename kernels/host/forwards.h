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

inline constexpr int kWordBits = 32;

template <class F, class T>
OUTGRAD_HD u32 forward_mask(const T* x, int count) {
  u32 word = 0;
  for (int k = 0; k < count; ++k) word |= static_cast<u32>(widen(x[k]) >= F::kXStar) << k;
  return word;
}

template <class F, class T>
void forward_elements(const T* x, T* y, u8*, i64 begin, i64 end) {
  for (i64 i = begin; i < end; ++i) y[i] = forward_of<F>(x[i]);
}

// By the table of all outputs of a 16-bit format.
template <class F, class T, CpuSchedule S>
void looked_up_forward(const T* x, T* y, u32* mask, i64 n) {
  static_assert(schedule_holds<S>());
  const u16* const outputs = n > 0 ? outputs_by_code<F, T>(forward_elements<F, T>) : nullptr;
  over_blocks<S>(n, [=](i64 begin, i64 end) {
    for (i64 i = begin; i < end; i += kWordBits) {
      const int count = static_cast<int>(std::min<i64>(kWordBits, end - i));
      if constexpr (F::kMasked) mask[i / kWordBits] = forward_mask<F>(x + i, count);
      for (i64 k = i; k < i + count; ++k) y[k].bits = outputs[x[k].bits];
    }
  });
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
