// The choice on GPUs without tuning: the default fits, and schedules that leave what they can to the kernels. A tuned header, as
// tuned_default_cuda.h is one, adds to it: it specialises the tables at the end, and its last choice is always the one here. NVRTC reads
// it too: tables' members Fit and kSchedule.
#pragma once

#include "kernels/fits.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"
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

// The kernels of codes are not tuned on GPUs: nothing reads their tables, and their launchers have schedules of their own.
struct DefaultCode : DefaultGpuSchedule {};

// A table for each kernel in each format: Choices, kEntries, and as its own members those of its first choice.
#define OUTGRAD_TABLE(type, function, value, standard, ...) \
  template <class T>                                          \
  struct type : Untuned<standard> {};
OUTGRAD_KERNELS(OUTGRAD_TABLE)
#undef OUTGRAD_TABLE

}  // namespace outgrad::kernels::cuda::tuned
