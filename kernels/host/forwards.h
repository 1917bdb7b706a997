// The forwards of kernels/forwards.h over arrays on the CPU, on all cores: 16-bit formats by their fits
// (kernels/rounded_forwards.h) in vectors of 512 bits, and else by the table of all their outputs; f32 in
// vectors of doubles. Every schedule gives the same bits.
#pragma once

#include "kernels/forwards.h"
#include "kernels/host/blocks.h"
#include "kernels/host/elementwise.h"
#include "kernels/rounded_forwards.h"
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

// The lanes of doubles for a vector width.
template <int kBits>
struct DoublesOf;
#ifdef OUTGRAD_AVX2
template <>
struct DoublesOf<256> : Avx2Doubles {};
#endif
#ifdef OUTGRAD_AVX512
template <>
struct DoublesOf<512> : Avx512Doubles {};
#endif

// The values of one whole word of the mask.
template <class F, class T, int kVectorBits>
OUTGRAD_HD void forward_word(const u16* outputs, const T* x, T* y) {
  if constexpr (sizeof(T) == 2) {
    for (int k = 0; k < kWordBits; ++k) y[k].bits = outputs[x[k].bits];
  } else if constexpr (kVectorBits > 0) {
    using Doubles = DoublesOf<kVectorBits>;
    for (int k = 0; k < kWordBits; k += Doubles::kLanes)
      Doubles::store(y + k, F::value(Doubles{}, Doubles::load(x + k)));
  } else {
    forward_elements<F>(x, y, nullptr, 0, kWordBits);
  }
}

// Where f is computed in double precision.
template <class F, class T, CpuSchedule S>
void computed_forward(const T* x, T* y, u32* mask, i64 n) {
  static_assert(schedule_holds<S>());
  const u16* outputs = nullptr;
  if constexpr (sizeof(T) == 2) {
    if (n > 0) outputs = outputs_by_code<F, T>(forward_elements<F, T>);
  }
  over_blocks<S>(n, [=](i64 begin, i64 end) {
    for (i64 i = begin; i < end; i += kWordBits) {
      const int count = static_cast<int>(std::min<i64>(kWordBits, end - i));
      if constexpr (F::kMasked) mask[i / kWordBits] = forward_mask<F>(x + i, count);
      if (count == kWordBits) {
        forward_word<F, T, S.vector_bits>(outputs, x + i, y + i);
      } else {
        forward_elements<F>(x, y, nullptr, i, end);
      }
    }
  });
}

}  // namespace detail

template <class F, class T, CpuSchedule S>
void activation_forward(const T* x, T* y, u32* mask, i64 n) {
  if constexpr (kHasRoundedForward<F, T> && S.vector_bits == 512) {
    fitted_forward<RoundedForward<F, T>, T, S>(x, y, mask, n);
  } else {
    detail::computed_forward<F, T, S>(x, y, mask, n);
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
