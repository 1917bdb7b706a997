// The norms' launchers in one format, and their checks: a unit to a format instantiates it.
#pragma once

#include "tests/gpu/cases.cuh"
#include "tests/gpu/launches.cuh"
#include "kernels/cuda/layernorm.cuh"

namespace outgrad::tests::gpu {

using kernels::Norm;

namespace launches {

template <Norm N, class T>
cudaError_t norm_forward(const kernels::cuda::NormForwardArrays<T>& a, cudaStream_t stream) {
  return kernels::cuda::launch_norm_forward<N, T>(a, stream);
}

template <Norm N, class T>
cudaError_t norm_backward(const kernels::cuda::NormBackwardArrays<T>& a,
                          const kernels::cuda::NormBackwardColumns& of, cudaStream_t stream) {
  return kernels::cuda::launch_norm_backward<N, T>(a, of, stream);
}

template <Norm N, class T>
cudaError_t residual_norm_forward(const kernels::cuda::NormForwardArrays<T>& a, cudaStream_t stream) {
  return kernels::cuda::launch_residual_norm_forward<N, T>(a, stream);
}

template <Norm N, class T>
cudaError_t residual_norm_backward(const kernels::cuda::NormBackwardArrays<T>& a,
                                   const kernels::cuda::NormBackwardColumns& of, cudaStream_t stream) {
  return kernels::cuda::launch_residual_norm_backward<N, T>(a, of, stream);
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
    const float* const offset = kLayer ? beta.get() : nullptr;
    const kernels::cuda::NormForwardArrays<T> forward{.x = x.get(),
                                                      .residual = residual.get(),
                                                      .gamma = gamma.get(),
                                                      .beta = offset,
                                                      .rows = rows,
                                                      .n = n,
                                                      .eps = kEps,
                                                      .z = z_at(place).get(),
                                                      .y = y_at(place).get(),
                                                      .rstd = rstd.get()};
    const kernels::cuda::NormBackwardArrays<T> backward{.dy = dy.get(),
                                                        .y = y_at(place).get(),
                                                        .dz_next = next.get(),
                                                        .rstd = rstd.get(),
                                                        .rows = rows,
                                                        .n = n,
                                                        .dx = dx_at(place).get()};
    const kernels::cuda::NormBackwardColumns columns{.gamma = gamma.get(),
                                                     .beta = offset,
                                                     .dgamma = dgamma.get(),
                                                     .dbeta = kLayer ? dbeta.get() : nullptr,
                                                     .workspace = workspace.get(),
                                                     .workspace_words = workspace.size()};
    if constexpr (Residual) {
      check(kernels::cuda::launch_residual_norm_forward<N, T, Schedule>(forward, stream), "norm forward");
      check(kernels::cuda::launch_residual_norm_backward<N, T, Schedule>(backward, columns, stream),
            "norm backward");
    } else {
      check(kernels::cuda::launch_norm_forward<N, T, Schedule>(forward, stream), "norm forward");
      check(kernels::cuda::launch_norm_backward<N, T, Schedule>(backward, columns, stream), "norm backward");
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
  template cudaError_t launches::norm_forward<N>(const kernels::cuda::NormForwardArrays<T>&, cudaStream_t); \
  template cudaError_t launches::norm_backward<N>(const kernels::cuda::NormBackwardArrays<T>&,              \
                                                  const kernels::cuda::NormBackwardColumns&, cudaStream_t);
#define OUTGRAD_RESIDUAL_NORM_LAUNCHES(N, T)                                                          \
  template cudaError_t launches::residual_norm_forward<N>(const kernels::cuda::NormForwardArrays<T>&, \
                                                          cudaStream_t);                              \
  template cudaError_t launches::residual_norm_backward<N>(                                           \
      const kernels::cuda::NormBackwardArrays<T>&, const kernels::cuda::NormBackwardColumns&, cudaStream_t);
#define OUTGRAD_NORM_CHECKS(T)                           \
  namespace outgrad::tests::gpu {                        \
  OUTGRAD_NORM_LAUNCHES(Norm::layer, T)                  \
  OUTGRAD_NORM_LAUNCHES(Norm::rms, T)                    \
  OUTGRAD_RESIDUAL_NORM_LAUNCHES(kCheckedResidual<T>, T) \
  template void norm_equality<T>(Report&, i64, i64);     \
  template void norm_streams<T>(Report&, i64, i64);      \
  }
