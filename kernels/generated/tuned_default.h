// The choice without tuning: the default fits, in the widest vectors of the instruction set compiled for.
#pragma once

#include "kernels/fits.h"
#include "kernels/formats.h"
#include "kernels/params.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::tuned {

inline constexpr CpuSchedule kDefaultSchedule =
    kBestVectorBits > 0 ? CpuSchedule{0, kBestVectorBits, 4, 65536, true, TablePlacement::permute}
                        : CpuSchedule{0, 0, 1, 65536, false, TablePlacement::memory};

template <class T>
struct GeluBackward {
  using Fit = typename DefaultFit<T>::Type;
  static constexpr CpuSchedule kSchedule = kDefaultSchedule;
  static constexpr const char* kVariant = "default";
};

template <class T>
struct GeluForward {
  using Fit = generated::GeluForward;
  static constexpr CpuSchedule kSchedule = kDefaultSchedule;
  static constexpr const char* kVariant = "default";
};

}  // namespace outgrad::kernels::tuned
