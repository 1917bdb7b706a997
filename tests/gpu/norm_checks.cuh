// The norms' launchers in one format, and their checks: a unit to a format instantiates it.
#pragma once

#include "tests/gpu/cases.cuh"
#include "tests/gpu/launches.cuh"
#include "kernels/cuda/layernorm.cuh"

namespace outgrad::tests::gpu {

using kernels::Norm;

namespace launches {

template <Norm N, class T>
cudaError_t norm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y,
                         float* rstd, const kernels::SideBuffer<float>& side, cudaStream_t stream) {
  return kernels::cuda::launch_norm_forward<N, T>(x, gamma, beta, rows, n, eps, y, rstd, side, stream);
}

template <Norm N, class T>
cudaError_t norm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd,
                          i64 rows, i64 n, T* dx, float* dgamma, float* dbeta,
                          const kernels::SideBuffer<const float>& side, float* workspace, i64 words,
                          cudaStream_t stream) {
  return kernels::cuda::launch_norm_backward<N, T>(dy, y, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side,
                                                   workspace, words, stream);
}

template <Norm N, class T>
cudaError_t residual_norm_forward(const T* x, const T* residual, const float* gamma, const float* beta,
                                  i64 rows, i64 n, float eps, T* z, T* y, float* rstd, cudaStream_t stream) {
  return kernels::cuda::launch_residual_norm_forward<N, T>(x, residual, gamma, beta, rows, n, eps, z, y, rstd,
                                                           {}, stream);
}

template <Norm N, class T>
cudaError_t residual_norm_backward(const T* dy, const T* y, const T* dz_next, const float* gamma,
                                   const float* beta, const float* rstd, i64 rows, i64 n, T* dz,
                                   float* dgamma, float* dbeta, float* workspace, i64 words,
                                   cudaStream_t stream) {
  return kernels::cuda::launch_residual_norm_backward<N, T>(dy, y, dz_next, gamma, beta, rstd, rows, n, dz,
                                                            dgamma, dbeta, {}, workspace, words, stream);
}

}  // namespace launches

template <Norm N, class T, bool Residual = false, class Schedule = kernels::DefaultGpuNormSchedule>
struct NormCase {
  static constexpr bool kLayer = N == Norm::layer;

  NormCase(i64 rows_, i64 n_)
      : rows(rows_), n(n_), host(host_norm<T>(kLayer, Residual, rows, n)), x(rows * n), y(rows * n),
        dy(rows * n), dx(rows * n), residual(Residual ? rows * n : 0), z(residual.size()),
        next(residual.size()), gamma(n), beta(n), rstd(rows), dgamma(n), dbeta(n),
        workspace(kernels::cuda::norm_backward_workspace(rows, n)) {
    fill(x, UniformAt<T>{kXStream});
    fill(dy, UniformAt<T>{kDyStream});
    if (Residual) {
      fill(residual, UniformAt<T>{kResidualStream});
      fill(next, UniformAt<T>{kNextStream});
    }
    fill(gamma, GammaAt{});
    fill(beta, UniformAt<float>{kBetaStream});
  }
  void enqueue(Place place, cudaStream_t stream) const {
    T *const to = y_at(place).get(), *const gradient_to = dx_at(place).get();
    const float* const offset = kLayer ? beta.get() : nullptr;
    float* const to_dbeta = kLayer ? dbeta.get() : nullptr;
    if constexpr (Residual) {
      check(kernels::cuda::launch_residual_norm_forward<N, T, Schedule>(
                x.get(), residual.get(), gamma.get(), offset, rows, n, kEps, z_at(place).get(), to,
                rstd.get(), {}, stream),
            "norm forward");
      check(kernels::cuda::launch_residual_norm_backward<N, T, Schedule>(
                dy.get(), to, next.get(), gamma.get(), offset, rstd.get(), rows, n, gradient_to, dgamma.get(),
                to_dbeta, {}, workspace.get(), workspace.size(), stream),
            "norm backward");
    } else {
      check(kernels::cuda::launch_norm_forward<N, T, Schedule>(x.get(), gamma.get(), offset, rows, n, kEps,
                                                               to, rstd.get(), {}, stream),
            "norm forward");
      check(kernels::cuda::launch_norm_backward<N, T, Schedule>(
                dy.get(), to, gamma.get(), offset, rstd.get(), rows, n, gradient_to, dgamma.get(), to_dbeta,
                {}, workspace.get(), workspace.size(), stream),
            "norm backward");
    }
  }
  void spoil() const { spoil_all(y, dx, z, rstd, dgamma, dbeta, workspace); }
  std::string wrong(Place place, u64& hash) const {
    std::string wrong = difference("y", y_at(place), host.y, 0, hash);
    if (wrong.empty() && Residual) wrong = difference("z", z_at(place), host.z, 0, hash);
    if (wrong.empty()) wrong = difference("rstd", rstd, host.rstd, 0, hash);
    if (wrong.empty()) wrong = difference("dx", dx_at(place), host.dx, 0, hash);
    if (wrong.empty()) wrong = difference("dgamma", dgamma, host.dgamma, 0, hash);
    if (wrong.empty() && kLayer) wrong = difference("dbeta", dbeta, host.dbeta, 0, hash);
    return wrong;
  }
  std::string name() const {
    std::string text = std::string(Residual ? "residual " : "") + (kLayer ? "layernorm" : "rmsnorm") + " " +
                       std::to_string(rows) + " x " + std::to_string(n);
    if constexpr (requires { Schedule::kName; }) text += Schedule::kName;
    return text;
  }
  i64 outputs() const { return (Residual ? 3 : 2) * rows * n + rows + 2 * n; }

  const Array<T>& y_at(Place place) const { return place == Place::own ? y : x; }
  const Array<T>& dx_at(Place place) const { return place == Place::own ? dx : dy; }
  const Array<T>& z_at(Place place) const { return place == Place::own ? z : residual; }

  i64 rows, n;
  NormResult<T> host;
  Array<T> x, y, dy, dx, residual, z, next;
  Array<float> gamma, beta, rstd, dgamma, dbeta, workspace;
};

// Both norms with a residual between the formats: the body is one template.
template <class T>
inline constexpr Norm kCheckedResidual = sizeof(T) == 4 ? Norm::rms : Norm::layer;
template <class T>
using ResidualNormCase = NormCase<kCheckedResidual<T>, T, true>;

template <class T>
void norm_equality(Report& report, i64 rows, i64 n) {
  matrix_equality<T>(report, NormCase<Norm::layer, T>(rows, n));
  matrix_equality<T>(report, NormCase<Norm::rms, T>(rows, n));
  matrix_equality<T>(report, ResidualNormCase<T>(rows, n));
}

template <class T>
void norm_streams(Report& report, i64 rows, i64 n) {
  stream_equality<T>(report, NormCase<Norm::layer, T>(rows, n));
  stream_equality<T>(report, NormCase<Norm::rms, T>(rows, n));
  stream_equality<T>(report, ResidualNormCase<T>(rows, n));
}

}  // namespace outgrad::tests::gpu

#define OUTGRAD_NORM_LAUNCHES(N, T)                                                                         \
  template cudaError_t launches::norm_forward<N>(const T*, const float*, const float*, i64, i64, float, T*, \
                                                 float*, const kernels::SideBuffer<float>&, cudaStream_t);  \
  template cudaError_t launches::norm_backward<N>(                                                          \
      const T*, const T*, const float*, const float*, const float*, i64, i64, T*, float*, float*,           \
      const kernels::SideBuffer<const float>&, float*, i64, cudaStream_t);
#define OUTGRAD_RESIDUAL_NORM_LAUNCHES(N, T)                                                                 \
  template cudaError_t launches::residual_norm_forward<N>(const T*, const T*, const float*, const float*,    \
                                                          i64, i64, float, T*, T*, float*, cudaStream_t);    \
  template cudaError_t launches::residual_norm_backward<N>(const T*, const T*, const T*, const float*,       \
                                                           const float*, const float*, i64, i64, T*, float*, \
                                                           float*, float*, i64, cudaStream_t);
#define OUTGRAD_NORM_CHECKS(T)                           \
  namespace outgrad::tests::gpu {                        \
  OUTGRAD_NORM_LAUNCHES(Norm::layer, T)                  \
  OUTGRAD_NORM_LAUNCHES(Norm::rms, T)                    \
  OUTGRAD_RESIDUAL_NORM_LAUNCHES(kCheckedResidual<T>, T) \
  template void norm_equality<T>(Report&, i64, i64);     \
  template void norm_streams<T>(Report&, i64, i64);      \
  }
