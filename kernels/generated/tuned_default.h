// The choice without tuning: the default fits, in the widest vectors of the instruction set compiled for. A tuned header adds to it: it
// specialises the tables at the end, and its last choice is always the one here.
#pragma once

#include "kernels/fits.h"
#include "kernels/formats.h"
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

// A table for each kernel in each format: Choices, kEntries, and as its own members those of its first choice.
template <class T>
struct GeluBackward : Untuned<DefaultBackward<T>> {};
template <class T>
struct GeluForward : Untuned<DefaultForward<T>> {};
template <class T>
struct BiasGeluBackward : Untuned<DefaultBackward<T>> {};
template <class T>
struct BiasGeluForward : Untuned<DefaultForward<T>> {};
template <class T>
struct LayernormBackward : Untuned<DefaultNormBackward> {};
template <class T>
struct LayernormForward : Untuned<DefaultNormForward> {};
template <class T>
struct RmsnormBackward : Untuned<DefaultNormBackward> {};
template <class T>
struct RmsnormForward : Untuned<DefaultNormForward> {};
template <class T>
struct ResidualLayernormBackward : Untuned<DefaultNormBackward> {};
template <class T>
struct ResidualLayernormForward : Untuned<DefaultNormForward> {};
template <class T>
struct ResidualRmsnormBackward : Untuned<DefaultNormBackward> {};
template <class T>
struct ResidualRmsnormForward : Untuned<DefaultNormForward> {};

}  // namespace outgrad::kernels::tuned
