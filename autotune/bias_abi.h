// The bodies that compiled variants of GELU with a bias are made of. Arrays are in the order of problem.h's operands.
#pragma once

#include "autotune/arguments.h"
#include "kernels/host/bias.h"

namespace outgrad::autotune {

// dy, y, mask, dx, dbias, workspace.
template <class Fit, class T, kernels::CpuSchedule kSchedule>
void run_bias_backward(const Arguments& a) {
  const auto words = static_cast<std::size_t>(kernels::bias_backward_workspace(a.rows, a.cols));
  kernels::bias_gelu_backward<Fit, T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const kernels::u32>(2), a.rows, a.cols, a.at<T>(3), a.at<float>(4),
                                                 std::span<float>(a.at<float>(5), words));
}

// x, bias, y, mask.
template <class Forward, class T, kernels::CpuSchedule kSchedule>
void run_bias_forward(const Arguments& a) {
  kernels::bias_gelu_forward<Forward, T, kSchedule>(a.at<const T>(0), a.at<const float>(1), a.rows, a.cols, a.at<T>(2), a.at<kernels::u32>(3));
}

}  // namespace outgrad::autotune
