// The choice on GPUs without tuning: the default fits, and schedules that leave what they can to the kernels. A tuned header adds to it: it
// specialises the tables at the end, and its last choice is always the one here. NVRTC reads it too: tables' members Fit and kSchedule.
#pragma once

#include "kernels/fits.h"
#include "kernels/formats.h"
#include "kernels/ladder.h"
#include "kernels/params.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda::tuned {

template <class T>
struct DefaultBackward : DefaultGpuSchedule {
  using Fit = typename DefaultFit<T>::Type;
};

template <class T>
struct DefaultForward : DefaultGpuSchedule {
  using Fit = typename ForwardFit<T>::Type;
};

struct DefaultNormBackward : DefaultGpuNormSchedule {};
struct DefaultNormForward : DefaultGpuNormSchedule {};

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

}  // namespace outgrad::kernels::cuda::tuned
