// The plain entry points behind the tuner's calling convention: what a build runs, with a tuned header or without. Compiled twice by
// autotune/bench/compare.cpp. Arrays are in the order of problem.h's operands.
#pragma once

#include <span>

#include "autotune/arguments.h"
#include "autotune/norm_abi.h"
#include "kernels/host/api.h"

namespace outgrad::autotune {

// What an entry point runs for a shape: the variant's name, its rung as a number, what its fit claims, where the first three arrays point.
template <class Table>
void tell_choice(const Arguments& a) {
  const kernels::tuned::Tuning tuning = kernels::tuned::tuning_of<Table>(a.rows, a.cols);
  *a.at<const char*>(0) = tuning.entry->variant;
  *a.at<int>(1) = static_cast<int>(tuning.found.rung);
  *a.at<kernels::FitClaims>(2) = tuning.fit;
}

template <class T>
void enter_gelu_backward(const Arguments& a) {
  kernels::gelu_backward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const kernels::u32>(2), a.at<T>(3), a.elements());
}
template <class T>
void enter_gelu_forward(const Arguments& a) {
  kernels::gelu_forward<T>(a.at<const T>(0), a.at<T>(1), a.at<kernels::u32>(2), a.elements());
}
template <class T>
void enter_bias_gelu_backward(const Arguments& a) {
  kernels::tuned::bias_gelu_backward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const kernels::u32>(2), a.rows, a.cols, a.at<T>(3), a.at<float>(4),
                                        std::span<float>(a.at<float>(5), static_cast<std::size_t>(kernels::bias_backward_workspace(a.rows, a.cols))));
}
template <class T>
void enter_bias_gelu_forward(const Arguments& a) {
  kernels::tuned::bias_gelu_forward<T>(a.at<const T>(0), a.at<const float>(1), a.rows, a.cols, a.at<T>(2), a.at<kernels::u32>(3));
}
template <class T>
void enter_layernorm_backward(const Arguments& a) {
  kernels::tuned::layernorm_backward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.at<const float>(3), a.at<const float>(4), a.rows, a.cols,
                                        a.at<T>(5), a.at<float>(6), a.at<float>(7), {}, norm_workspace(a, 8));
}
template <class T>
void enter_layernorm_forward(const Arguments& a) {
  kernels::tuned::layernorm_forward<T>(a.at<const T>(0), a.at<const float>(1), a.at<const float>(2), a.rows, a.cols, kTunedEps, a.at<T>(3), a.at<float>(4));
}
template <class T>
void enter_rmsnorm_backward(const Arguments& a) {
  kernels::tuned::rmsnorm_backward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.at<const float>(3), a.rows, a.cols, a.at<T>(4),
                                      a.at<float>(5), {}, norm_workspace(a, 6));
}
template <class T>
void enter_rmsnorm_forward(const Arguments& a) {
  kernels::tuned::rmsnorm_forward<T>(a.at<const T>(0), a.at<const float>(1), a.rows, a.cols, kTunedEps, a.at<T>(2), a.at<float>(3));
}
template <class T>
void enter_residual_layernorm_backward(const Arguments& a) {
  kernels::tuned::residual_layernorm_backward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const T>(2), a.at<const float>(3), a.at<const float>(4),
                                                 a.at<const float>(5), a.rows, a.cols, a.at<T>(6), a.at<float>(7), a.at<float>(8), {}, norm_workspace(a, 9));
}
template <class T>
void enter_residual_layernorm_forward(const Arguments& a) {
  kernels::tuned::residual_layernorm_forward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.at<const float>(3), a.rows, a.cols, kTunedEps,
                                                a.at<T>(4), a.at<T>(5), a.at<float>(6));
}
template <class T>
void enter_residual_rmsnorm_backward(const Arguments& a) {
  kernels::tuned::residual_rmsnorm_backward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const T>(2), a.at<const float>(3), a.at<const float>(4), a.rows, a.cols,
                                               a.at<T>(5), a.at<float>(6), {}, norm_workspace(a, 7));
}
template <class T>
void enter_residual_rmsnorm_forward(const Arguments& a) {
  kernels::tuned::residual_rmsnorm_forward<T>(a.at<const T>(0), a.at<const T>(1), a.at<const float>(2), a.rows, a.cols, kTunedEps, a.at<T>(3), a.at<T>(4),
                                              a.at<float>(5));
}

}  // namespace outgrad::autotune
