// Host kernels of the norms on generated inputs.
#include "tests/gpu/host_side.h"
#include "kernels/host/api.h"

namespace outgrad::tests::gpu {

template <class T>
NormResult<T> host_norm(bool layer, bool residual, i64 rows, i64 n) {
  const std::vector<float> gamma = generated<float>(n, [](u64 j) { return gamma_at(j); });
  const std::vector<float> beta = generated<float>(n, [](u64 j) { return uniform(kBetaStream, j); });
  const auto tensor = [=](u64 stream) {
    return generated<T>(rows * n, [=](u64 i) { return kernels::narrow<T>(uniform(stream, i)); });
  };
  NormResult<T> result;
  result.y = tensor(kXStream);
  result.dx = tensor(kDyStream);
  result.rstd.resize(static_cast<std::size_t>(rows));
  result.dgamma.resize(static_cast<std::size_t>(n));
  if (layer) result.dbeta.resize(static_cast<std::size_t>(n));
  T *const y = result.y.data(), *const dx = result.dx.data();
  const float *const g = gamma.data(), *const b = beta.data();
  float *const rstd = result.rstd.data(), *const dgamma = result.dgamma.data(),
               *const dbeta = result.dbeta.data();
  if (residual) {
    result.z = tensor(kResidualStream);
    T* const z = result.z.data();
    const std::vector<T> next = tensor(kNextStream);
    std::vector<float> workspace(static_cast<std::size_t>(kernels::norm_backward_workspace(rows, n)));
    if (layer) {
      kernels::residual_layernorm_forward<T>(y, z, g, b, rows, n, kEps, z, y, rstd);
      kernels::residual_layernorm_backward<T>(dx, y, next.data(), g, b, rstd, rows, n, dx, dgamma, dbeta, {},
                                              workspace);
    } else {
      kernels::residual_rmsnorm_forward<T>(y, z, g, rows, n, kEps, z, y, rstd);
      kernels::residual_rmsnorm_backward<T>(dx, y, next.data(), g, rstd, rows, n, dx, dgamma, {}, workspace);
    }
  } else if (layer) {
    kernels::layernorm_forward<T>(y, g, b, rows, n, kEps, y, rstd);
    kernels::layernorm_backward<T>(dx, y, g, b, rstd, rows, n, dx, dgamma, dbeta);
  } else {
    kernels::rmsnorm_forward<T>(y, g, rows, n, kEps, y, rstd);
    kernels::rmsnorm_backward<T>(dx, y, g, rstd, rows, n, dx, dgamma);
  }
  return result;
}

template NormResult<float> host_norm<float>(bool, bool, i64, i64);
template NormResult<kernels::F16> host_norm<kernels::F16>(bool, bool, i64, i64);
template NormResult<kernels::BF16> host_norm<kernels::BF16>(bool, bool, i64, i64);

}  // namespace outgrad::tests::gpu
