// The plain entry points on the CPU: outgrad's kernels with the schedule, and for GELU the fit, that
// kernels/tuned.h chooses for this processor and the problem's size.
//
// T is float, F16 or BF16. The LayerNorm and RMSNorm functions of kernels/host/layernorm.h are entry points
// themselves, with the default schedule; the functions of the same names in tuned:: use the tables' choice.
// Contracts and exceptions are those of the functions called here.
#pragma once

#include <span>
#include <utility>

#include "kernels/host/bias.h"
#include "kernels/host/code.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/layernorm.h"
#include "kernels/tuned.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Sets y[i] = GELU(x[i]), and bit i % 32 of mask[i / 32] to [x[i] >= x*], for i in [0, n). mask has ceil(n /
// 32) words; its bits beyond n are set to 0. y may equal x.
template <class T>
void gelu_forward(const T* x, T* y, u32* mask, i64 n) {
  tuned::run<tuned::GeluForward<T>>(1, n, [=]<class Choice>(Choice) {
    gelu_forward<typename Choice::Fit, T, Choice::kSchedule>(x, y, mask, n);
  });
}

// Sets dx[i] = dy[i] GELU'(x[i]), from the outputs of gelu_forward. dx may equal dy.
template <class T>
void gelu_backward(const T* dy, const T* y, const u32* mask, T* dx, i64 n) {
  tuned::run<tuned::GeluBackward<T>>(1, n, [=]<class Choice>(Choice) {
    gelu_backward<typename Choice::Fit, T, Choice::kSchedule>(dy, y, mask, dx, n);
  });
}

namespace tuned {

// These give every kernel of the catalogue an entry point here.
using kernels::gelu_backward;
using kernels::gelu_forward;

template <class T>
void bias_gelu_forward(const T* x, const float* bias, i64 rows, i64 n, T* y, u32* mask) {
  run<BiasGeluForward<T>>(rows, n, [=]<class Choice>(Choice) {
    kernels::bias_gelu_forward<typename Choice::Fit, T, Choice::kSchedule>(x, bias, rows, n, y, mask);
  });
}

template <class T>
void bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx, float* dbias,
                        std::span<float> workspace) {
  run<BiasGeluBackward<T>>(rows, n, [=]<class Choice>(Choice) {
    kernels::bias_gelu_backward<typename Choice::Fit, T, Choice::kSchedule>(dy, y, mask, rows, n, dx, dbias,
                                                                            workspace);
  });
}

// The functions of kernels/host/layernorm.h.
#define OUTGRAD_TUNED_NORM(type, function, Arrays)                                                           \
  template <class T>                                                                                         \
  void function(const Arrays<T>& of) {                                                                       \
    run<type<T>>(of.rows, of.n, [&]<class Choice>(Choice) { kernels::function<T, Choice::kSchedule>(of); }); \
  }
OUTGRAD_TUNED_NORM(LayernormForward, layernorm_forward, NormForward)
OUTGRAD_TUNED_NORM(RmsnormForward, rmsnorm_forward, NormForward)
OUTGRAD_TUNED_NORM(ResidualLayernormForward, residual_layernorm_forward, NormForward)
OUTGRAD_TUNED_NORM(ResidualRmsnormForward, residual_rmsnorm_forward, NormForward)
OUTGRAD_TUNED_NORM(LayernormBackward, layernorm_backward, NormBackward)
OUTGRAD_TUNED_NORM(RmsnormBackward, rmsnorm_backward, NormBackward)
OUTGRAD_TUNED_NORM(ResidualLayernormBackward, residual_layernorm_backward, NormBackward)
OUTGRAD_TUNED_NORM(ResidualRmsnormBackward, residual_rmsnorm_backward, NormBackward)
#undef OUTGRAD_TUNED_NORM

template <class T>
void gelu_forward_code(const CodeChoice& choice, const T* x, T* y, u8* codes, i64 n) {
  run<GeluForwardCode<T>>(1, n, [=]<class Choice>(Choice) {
    kernels::gelu_forward_code<T, Choice::kSchedule>(choice, x, y, codes, n);
  });
}

template <class T>
void gelu_backward_code(const CodeChoice& choice, const T* dy, const u8* codes, T* dx, i64 n) {
  run<GeluBackwardCode<T>>(1, n, [=]<class Choice>(Choice) {
    kernels::gelu_backward_code<T, Choice::kSchedule>(choice, dy, codes, dx, n);
  });
}

}  // namespace tuned
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
