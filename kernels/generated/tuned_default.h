// The choice without tuning: the default fits, in the widest vectors of the instruction set compiled for. A tuned header adds to it: it
// specialises the tables at the end, and its last choice is always the one here.
#pragma once

#include "kernels/fits.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/ladder.h"
#include "kernels/params.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::tuned {

inline constexpr CpuSchedule kDefaultSchedule =
    kBestVectorBits > 0 ? CpuSchedule{0, kBestVectorBits, 4, 65536, true, TablePlacement::permute}
                        : CpuSchedule{0, 0, 1, 65536, false, TablePlacement::memory};

// As kWidestSchedule of kernels/host/layernorm.h.
inline constexpr CpuSchedule kDefaultNormSchedule{.vector_bits = kBestVectorBits, .streaming_stores = true};

template <class T>
struct DefaultBackward {
  using Fit = typename DefaultFit<T>::Type;
  static constexpr CpuSchedule kSchedule = kDefaultSchedule;
};

template <class T>
struct DefaultForward {
  using Fit = typename ForwardFit<T>::Type;
  static constexpr CpuSchedule kSchedule = kDefaultSchedule;
};

struct DefaultNormBackward {
  static constexpr CpuNormBackwardSchedule kSchedule = kDefaultNormSchedule;
};

struct DefaultNormForward {
  static constexpr CpuNormForwardSchedule kSchedule = kDefaultNormSchedule;
};

// One vector at a time where both GELU and its derivative are evaluated: on a Zen 5 two were slower with AVX2, and no faster with
// AVX-512.
struct DefaultCode {
  static constexpr CpuSchedule kSchedule = [] {
    CpuSchedule schedule = kDefaultSchedule;
    if (schedule.vector_bits > 0) schedule.unroll = 1;
    return schedule;
  }();
};

// A table for each kernel in each format: Choices, kEntries, and as its own members those of its first choice.
#define OUTGRAD_TABLE(type, function, value, standard, ...) \
  template <class T>                                          \
  struct type : Untuned<standard> {};
OUTGRAD_KERNELS(OUTGRAD_TABLE)
#undef OUTGRAD_TABLE

}  // namespace outgrad::kernels::tuned
