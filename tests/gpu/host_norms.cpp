// Host kernels of the norms on generated inputs.
#include "tests/gpu/host_side.h"
#include "kernels/host/api.h"
#include "kernels/host/norm_store.h"

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
  const std::vector<T> next = tensor(kNextStream);
  if (residual) result.z = tensor(kResidualStream);
  const kernels::NormForward<T> forward{.x = result.y.data(),
                                        .residual = result.z.data(),
                                        .gamma = gamma.data(),
                                        .beta = beta.data(),
                                        .rows = rows,
                                        .n = n,
                                        .eps = kEps,
                                        .z = result.z.data(),
                                        .y = result.y.data(),
                                        .rstd = result.rstd.data()};
  const kernels::NormBackward<T> backward{.dy = result.dx.data(),
                                          .y = result.y.data(),
                                          .dz_next = next.data(),
                                          .gamma = gamma.data(),
                                          .beta = beta.data(),
                                          .rstd = result.rstd.data(),
                                          .rows = rows,
                                          .n = n,
                                          .dx = result.dx.data(),
                                          .dgamma = result.dgamma.data(),
                                          .dbeta = result.dbeta.data()};
  if (residual && layer) {
    kernels::residual_layernorm_forward<T>(forward), kernels::residual_layernorm_backward<T>(backward);
  } else if (residual) {
    kernels::residual_rmsnorm_forward<T>(forward), kernels::residual_rmsnorm_backward<T>(backward);
  } else if (layer) {
    kernels::layernorm_forward<T>(forward), kernels::layernorm_backward<T>(backward);
  } else {
    kernels::rmsnorm_forward<T>(forward), kernels::rmsnorm_backward<T>(backward);
  }
  return result;
}

template <class Store, class T>
StoredNormResult<T> host_norm_8bit(bool layer, i64 rows, i64 n) {
  const std::vector<float> gamma = generated<float>(n, [](u64 j) { return gamma_at(j); });
  const std::vector<float> beta = generated<float>(n, [](u64 j) { return uniform(kBetaStream, j); });
  const auto tensor = [=](u64 stream) {
    return generated<T>(rows * n, [=](u64 i) { return kernels::narrow<T>(uniform(stream, i)); });
  };
  const auto words = [](i64 bytes) {
    return std::vector<u32>(static_cast<std::size_t>(bytes) / sizeof(u32));
  };
  StoredNormResult<T> result;
  result.y = tensor(kXStream);
  result.dx = tensor(kDyStream);
  result.codes = words(rows * n);
  result.scales =
      words(kernels::norm_scales_of<Store>(rows, n) * static_cast<i64>(sizeof(typename Store::Scale)));
  result.rstd.resize(static_cast<std::size_t>(rows));
  result.dgamma.resize(static_cast<std::size_t>(n));
  if (layer) result.dbeta.resize(static_cast<std::size_t>(n));
  auto* const codes = reinterpret_cast<typename Store::Code*>(result.codes.data());
  auto* const scales = reinterpret_cast<typename Store::Scale*>(result.scales.data());
  const std::vector<T> x = result.y;
  std::vector<float> workspace(static_cast<std::size_t>(kernels::norm_backward_workspace(rows, n)));
  const kernels::NormForward8bit<Store, T> forward{.norm = {.x = x.data(),
                                                            .gamma = gamma.data(),
                                                            .beta = beta.data(),
                                                            .rows = rows,
                                                            .n = n,
                                                            .eps = kEps,
                                                            .y = result.y.data(),
                                                            .rstd = result.rstd.data()},
                                                   .codes = codes,
                                                   .scales = scales};
  const kernels::NormBackward8bit<Store, T> backward{.norm = {.dy = result.dx.data(),
                                                              .gamma = gamma.data(),
                                                              .beta = beta.data(),
                                                              .rstd = result.rstd.data(),
                                                              .rows = rows,
                                                              .n = n,
                                                              .dx = result.dx.data(),
                                                              .dgamma = result.dgamma.data(),
                                                              .dbeta = result.dbeta.data(),
                                                              .workspace = workspace},
                                                     .codes = codes,
                                                     .scales = scales};
  if (layer) {
    kernels::norm_forward_8bit<kernels::Norm::layer>(forward);
    kernels::norm_backward_8bit<kernels::Norm::layer>(backward);
  } else {
    kernels::norm_forward_8bit<kernels::Norm::rms>(forward);
    kernels::norm_backward_8bit<kernels::Norm::rms>(backward);
  }
  return result;
}

template StoredNormResult<kernels::BF16> host_norm_8bit<kernels::NormE4m3, kernels::BF16>(bool, i64, i64);
template StoredNormResult<kernels::F16> host_norm_8bit<kernels::NormMxFp8, kernels::F16>(bool, i64, i64);
template StoredNormResult<float> host_norm_8bit<kernels::NormInt8, float>(bool, i64, i64);

template NormResult<float> host_norm<float>(bool, bool, i64, i64);
template NormResult<kernels::F16> host_norm<kernels::F16>(bool, bool, i64, i64);
template NormResult<kernels::BF16> host_norm<kernels::BF16>(bool, bool, i64, i64);

}  // namespace outgrad::tests::gpu
