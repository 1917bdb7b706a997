// The kernels of the C library in one format, for the instruction set that the translation unit is compiled for.
//
// The build compiles variant_f32.cpp, variant_f16.cpp and variant_bf16.cpp once for every instruction set: one format to a unit, for all three
// take minutes where they are sanitized. OUTGRAD_C_VARIANT names the set, and with the format the constant that a unit defines. The inline namespace
// of the headers keeps the copies apart, and nothing here runs before it is called.
#pragma once

#include "kernels/c/table.h"
#include "kernels/host/api.h"

namespace outgrad::c {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::Norm;
using kernels::SideBuffer;

namespace tuned = kernels::tuned;

// The fits are this library's own, whatever the tables name: results depend on the arguments alone. The schedules are the tables'.
template <class T>
void gelu_forward(const void* x, void* y, u32* mask, i64 n) {
  tuned::run<tuned::GeluForward<T>>(1, n, [=]<class Choice>(Choice) {
    kernels::gelu_forward<typename kernels::ForwardFit<T>::Type, T, Choice::kSchedule>(static_cast<const T*>(x), static_cast<T*>(y), mask, n);
  });
}

template <class Gelu, class T>
void gelu_backward(const void* dy, const void* y, const u32* mask, void* dx, i64 n) {
  tuned::run<tuned::GeluBackward<T>>(1, n, [=]<class Choice>(Choice) {
    kernels::gelu_backward<Gelu, T, Choice::kSchedule>(static_cast<const T*>(dy), static_cast<const T*>(y), mask, static_cast<T*>(dx), n);
  });
}

// The other activations are not tuned, and nine more kernels for each schedule would be most of the library: the default's schedule.
template <class Fit, class T>
void backward(const void* dy, const void* y, const u32* mask, void* dx, i64 n) {
  kernels::activation_backward<Fit, T, tuned::kDefaultSchedule>(static_cast<const T*>(dy), static_cast<const T*>(y), mask, static_cast<T*>(dx), n);
}

template <Norm N, class T>
void norm_forward(const void* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, void* y, float* rstd, SideBuffer<float> side) {
  const T* const in = static_cast<const T*>(x);
  T* const out = static_cast<T*>(y);
  if constexpr (N == Norm::layer) {
    tuned::layernorm_forward<T>(in, gamma, beta, rows, n, eps, out, rstd, side);
  } else {
    tuned::rmsnorm_forward<T>(in, gamma, rows, n, eps, out, rstd, side);
  }
}

template <Norm N, class T>
void norm_backward(const void* dy, const void* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, void* dx, float* dgamma,
                   float* dbeta, SideBuffer<const float> side, float* workspace, i64 words) {
  const T* const d = static_cast<const T*>(dy);
  const T* const output = static_cast<const T*>(y);
  T* const result = static_cast<T*>(dx);
  const std::span<float> scratch(workspace, static_cast<size_t>(words));
  if constexpr (N == Norm::layer) {
    tuned::layernorm_backward<T>(d, output, gamma, beta, rstd, rows, n, result, dgamma, dbeta, side, scratch);
  } else {
    tuned::rmsnorm_backward<T>(d, output, gamma, rstd, rows, n, result, dgamma, side, scratch);
  }
}

template <Norm N, class T>
void residual_forward(const void* x, const void* residual, const float* gamma, const float* beta, i64 rows, i64 n, float eps, void* z, void* y, float* rstd,
                      SideBuffer<float> side) {
  const T* const in = static_cast<const T*>(x);
  const T* const added = static_cast<const T*>(residual);
  T* const sum = static_cast<T*>(z);
  T* const out = static_cast<T*>(y);
  if constexpr (N == Norm::layer) {
    tuned::residual_layernorm_forward<T>(in, added, gamma, beta, rows, n, eps, sum, out, rstd, side);
  } else {
    tuned::residual_rmsnorm_forward<T>(in, added, gamma, rows, n, eps, sum, out, rstd, side);
  }
}

template <Norm N, class T>
void residual_backward(const void* dy, const void* y, const void* dz_next, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, void* dz,
                       float* dgamma, float* dbeta, SideBuffer<const float> side, float* workspace, i64 words) {
  const T* const d = static_cast<const T*>(dy);
  const T* const output = static_cast<const T*>(y);
  const T* const next = static_cast<const T*>(dz_next);
  T* const result = static_cast<T*>(dz);
  const std::span<float> scratch(workspace, static_cast<size_t>(words));
  if constexpr (N == Norm::layer) {
    tuned::residual_layernorm_backward<T>(d, output, next, gamma, beta, rstd, rows, n, result, dgamma, dbeta, side, scratch);
  } else {
    tuned::residual_rmsnorm_backward<T>(d, output, next, gamma, rstd, rows, n, result, dgamma, side, scratch);
  }
}

template <class T>
void bias_gelu_forward(const void* x, const float* bias, i64 rows, i64 n, void* y, u32* mask) {
  tuned::run<tuned::BiasGeluForward<T>>(rows, n, [=]<class Choice>(Choice) {
    kernels::bias_gelu_forward<typename kernels::ForwardFit<T>::Type, T, Choice::kSchedule>(static_cast<const T*>(x), bias, rows, n, static_cast<T*>(y), mask);
  });
}

template <class Gelu, class T>
void bias_gelu_backward(const void* dy, const void* y, const u32* mask, i64 rows, i64 n, void* dx, float* dbias, float* workspace, i64 words) {
  tuned::run<tuned::BiasGeluBackward<T>>(rows, n, [=]<class Choice>(Choice) {
    kernels::bias_gelu_backward<Gelu, T, Choice::kSchedule>(static_cast<const T*>(dy), static_cast<const T*>(y), mask, rows, n, static_cast<T*>(dx), dbias,
                                                            std::span<float>(workspace, static_cast<size_t>(words)));
  });
}

template <class Table>
ChosenSchedule chosen_of(i64 rows, i64 n) {
  const tuned::Tuning tuning = tuned::tuning_of<Table>(rows, n);
  return {tuning.entry->variant, name_of(tuning.found.rung)};
}

template <class T>
ChosenSchedule chosen(int kernel, i64 rows, i64 n) {
  using namespace tuned;
  constexpr ChosenSchedule (*kTables[kKernels])(i64, i64) = {chosen_of<tuned::GeluForward<T>>,       chosen_of<GeluBackward<T>>,
                                                             chosen_of<BiasGeluForward<T>>,          chosen_of<BiasGeluBackward<T>>,
                                                             chosen_of<LayernormForward<T>>,         chosen_of<LayernormBackward<T>>,
                                                             chosen_of<RmsnormForward<T>>,           chosen_of<RmsnormBackward<T>>,
                                                             chosen_of<ResidualLayernormForward<T>>, chosen_of<ResidualLayernormBackward<T>>,
                                                             chosen_of<ResidualRmsnormForward<T>>,   chosen_of<ResidualRmsnormBackward<T>>};
  return kTables[kernel](rows, n);
}

i64 bias_workspace(i64 rows, i64 n) { return kernels::bias_backward_workspace(rows, n); }

i64 norm_workspace(i64 rows, i64 n) { return kernels::norm_backward_workspace(rows, n); }

template <class T, class Gelu, class... Fit>
constexpr FormatKernels kernels_of(FitList<Gelu, Fit...>) {
  return {.gelu_forward = gelu_forward<T>,
          .backward = {gelu_backward<Gelu, T>, backward<Fit, T>...},
          .norm_forward = {norm_forward<Norm::layer, T>, norm_forward<Norm::rms, T>},
          .norm_backward = {norm_backward<Norm::layer, T>, norm_backward<Norm::rms, T>},
          .residual_forward = {residual_forward<Norm::layer, T>, residual_forward<Norm::rms, T>},
          .residual_backward = {residual_backward<Norm::layer, T>, residual_backward<Norm::rms, T>},
          .norm_workspace = norm_workspace,
          .bias_gelu_forward = bias_gelu_forward<T>,
          .bias_gelu_backward = bias_gelu_backward<Gelu, T>,
          .bias_workspace = bias_workspace,
          .chosen = chosen<T>};
}

template <class T>
constexpr FormatKernels kernels_of() {
  static_assert(static_cast<int>(Norm::layer) == 0 && static_cast<int>(Norm::rms) == 1);
  return kernels_of<T>(typename ActivationFits<T>::Type{});
}

}  // namespace

// OUTGRAD_C_CONSTANT(kF32) is kF32Avx2.
#define OUTGRAD_C_JOIN(format, variant) format##variant
#define OUTGRAD_C_NAME(format, variant) OUTGRAD_C_JOIN(format, variant)
#define OUTGRAD_C_CONSTANT(format) OUTGRAD_C_NAME(format, OUTGRAD_C_VARIANT)

}  // namespace outgrad::c
