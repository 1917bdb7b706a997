// The bodies that compiled variants of GELU's kernels are made of. Arrays are in the order of problem.h's operands.
#pragma once

#include "autotune/arguments.h"
#include "kernels/host/elementwise.h"
#include "kernels/params.h"

namespace outgrad::autotune {

// dy, y, mask, dx. Y: the format of y, where it is not that of dy and dx.
template <class Fit, class T, kernels::CpuSchedule kSchedule, class Y = T>
void run_backward(const Arguments& a) {
  kernels::activation_backward<Fit, T, kSchedule, Y>(a.at<const T>(0), a.at<const Y>(1), a.at<const kernels::u32>(2), a.at<T>(3), a.elements());
}

// x, y, mask.
template <class Forward, class T, kernels::CpuSchedule kSchedule>
void run_forward(const Arguments& a) {
  kernels::gelu_forward<Forward, T, kSchedule>(a.at<const T>(0), a.at<T>(1), a.at<kernels::u32>(2), a.elements());
}

}  // namespace outgrad::autotune
