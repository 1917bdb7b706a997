// The bodies that compiled variants of the norms are made of. Arrays are in the order of problem.h's operands; no side channels.
#pragma once

#include "autotune/arguments.h"
#include "kernels/host/layernorm.h"

namespace outgrad::autotune {

inline constexpr float kTunedEps = 1e-5f;  // the frameworks' default

inline std::span<float> norm_workspace(const Arguments& a, int operand) {
  return {a.at<float>(operand), static_cast<std::size_t>(kernels::norm_backward_workspace(a.rows, a.cols))};
}

// x, gamma, beta, y, rstd.
template <class T, kernels::CpuNormForwardSchedule kSchedule>
void run_layernorm_forward(const Arguments& a) {
  kernels::layernorm_forward<T, kSchedule>(a.at<const T>(0), a.at<const float>(1), a.at<const float>(2), a.rows, a.cols, kTunedEps, a.at<T>(3), a.at<float>(4));
}

// x, gamma, y, rstd.
template <class T, kernels::CpuNormForwardSchedule kSchedule>
void run_rmsnorm_forward(const Arguments& a) {
  kernels::rmsnorm_forward<T, kSchedule>(a.at<const T>(0), a.at<const float>(1), a.rows, a.cols, kTunedEps, a.at<T>(2), a.at<float>(3));
}

// x, residual, gamma, beta, z, y, rstd.
template <class T, kernels::CpuNormForwardSchedule kSchedule>
void run_residual_layernorm_forward(const Arguments& a) {
  kernels::residual_layernorm_forward<T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.at<const float>(3), a.rows, a.cols, kTunedEps,
                                                    a.at<T>(4), a.at<T>(5), a.at<float>(6));
}

// x, residual, gamma, z, y, rstd.
template <class T, kernels::CpuNormForwardSchedule kSchedule>
void run_residual_rmsnorm_forward(const Arguments& a) {
  kernels::residual_rmsnorm_forward<T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.rows, a.cols, kTunedEps, a.at<T>(3), a.at<T>(4),
                                                  a.at<float>(5));
}

// dy, y, gamma, beta, rstd, dx, dgamma, dbeta, workspace.
template <class T, kernels::CpuNormBackwardSchedule kSchedule>
void run_layernorm_backward(const Arguments& a) {
  kernels::layernorm_backward<T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.at<const float>(3), a.at<const float>(4), a.rows,
                                            a.cols, a.at<T>(5), a.at<float>(6), a.at<float>(7), {}, norm_workspace(a, 8));
}

// dy, y, gamma, rstd, dx, dgamma, workspace.
template <class T, kernels::CpuNormBackwardSchedule kSchedule>
void run_rmsnorm_backward(const Arguments& a) {
  kernels::rmsnorm_backward<T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.at<const float>(3), a.rows, a.cols, a.at<T>(4),
                                          a.at<float>(5), {}, norm_workspace(a, 6));
}

// dy, y, dz_next, gamma, beta, rstd, dz, dgamma, dbeta, workspace.
template <class T, kernels::CpuNormBackwardSchedule kSchedule>
void run_residual_layernorm_backward(const Arguments& a) {
  kernels::residual_layernorm_backward<T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const T>(2), a.at<const float>(3), a.at<const float>(4),
                                                     a.at<const float>(5), a.rows, a.cols, a.at<T>(6), a.at<float>(7), a.at<float>(8), {},
                                                     norm_workspace(a, 9));
}

// dy, y, dz_next, gamma, rstd, dz, dgamma, workspace.
template <class T, kernels::CpuNormBackwardSchedule kSchedule>
void run_residual_rmsnorm_backward(const Arguments& a) {
  kernels::residual_rmsnorm_backward<T, kSchedule>(a.at<const T>(0), a.at<const T>(1), a.at<const T>(2), a.at<const float>(3), a.at<const float>(4), a.rows,
                                                   a.cols, a.at<T>(5), a.at<float>(6), {}, norm_workspace(a, 7));
}

}  // namespace outgrad::autotune
