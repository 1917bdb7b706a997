// The norms that keep y in 8 bits, each store in another format.
#include "tests/gpu/norm_checks.cuh"

namespace outgrad::tests::gpu {
namespace {

// y has a place of its own wherever dx has: at a scale of the tensor, x is read again.
template <Norm N, class Store, class T>
struct StoredNormCase {
  static constexpr bool kLayer = N == Norm::layer;

  StoredNormCase(i64 rows_, i64 n_)
      : rows(rows_), n(n_), host(host_norm_8bit<Store, T>(kLayer, rows, n)), x(rows * n), y(rows * n),
        dy(rows * n), dx(rows * n), codes(static_cast<i64>(host.codes.size())),
        scales(static_cast<i64>(host.scales.size())), gamma(n), beta(n), rstd(rows), dgamma(n), dbeta(n),
        scratch(1 + rows), workspace(kernels::cuda::norm_backward_workspace(rows, n)) {
    fill(x, UniformAt<T>{kXStream});
    fill(dy, UniformAt<T>{kDyStream});
    fill(gamma, GammaAt{});
    fill(beta, UniformAt<float>{kBetaStream});
  }
  void enqueue(Place place, cudaStream_t stream) const {
    const float* const offset = kLayer ? beta.get() : nullptr;
    const kernels::cuda::NormCodes kept{codes.get(), scales.get()};
    kernels::cuda::NormForwardArrays<T> forward{};
    forward.x = x.get(), forward.gamma = gamma.get(), forward.beta = offset;
    forward.rows = rows, forward.n = n, forward.eps = kEps;
    forward.y = y.get(), forward.rstd = rstd.get(), forward.kept = kept;
    check(kernels::cuda::launch_norm_forward_8bit<N, Store, T>(forward, scratch.get(), stream),
          "norm forward in 8 bits");
    kernels::cuda::NormBackwardArrays<T> backward{};
    backward.dy = dy.get(), backward.rstd = rstd.get();
    backward.rows = rows, backward.n = n, backward.dx = dx_at(place).get(), backward.kept = kept;
    check(kernels::cuda::launch_norm_backward_8bit<N, Store, T>(
              backward,
              {gamma.get(), offset, dgamma.get(), kLayer ? dbeta.get() : nullptr, workspace.get(),
               workspace.size()},
              stream),
          "norm backward from 8 bits");
  }
  void spoil() const { spoil_all(y, dx, codes, scales, rstd, dgamma, dbeta, scratch, workspace); }
  std::string wrong(Place place, u64& hash) const {
    std::string wrong = difference("y", y, host.y, 0, hash);
    if (wrong.empty()) wrong = difference("codes, by fours", codes, host.codes, 0, hash);
    if (wrong.empty()) wrong = difference("words of scales", scales, host.scales, 0, hash);
    if (wrong.empty()) wrong = difference("rstd", rstd, host.rstd, 0, hash);
    if (wrong.empty()) wrong = difference("dx", dx_at(place), host.dx, 0, hash);
    if (wrong.empty()) wrong = difference("dgamma", dgamma, host.dgamma, 0, hash);
    if (wrong.empty() && kLayer) wrong = difference("dbeta", dbeta, host.dbeta, 0, hash);
    return wrong;
  }
  std::string name() const {
    return std::string(kLayer ? "layernorm " : "rmsnorm ") + std::to_string(rows) + " x " +
           std::to_string(n) + " in " + Store::kName;
  }
  i64 outputs() const { return 3 * rows * n + scales.size() + rows + 2 * n; }

  const Array<T>& dx_at(Place place) const { return place == Place::own ? dx : dy; }

  i64 rows, n;
  StoredNormResult<T> host;
  Array<T> x, y, dy, dx;
  Array<u32> codes, scales;
  Array<float> gamma, beta, rstd, dgamma, dbeta, scratch, workspace;
};

using kernels::BF16;
using kernels::F16;
using E4m3 = StoredNormCase<Norm::layer, kernels::NormE4m3, BF16>;
using MxFp8 = StoredNormCase<Norm::rms, kernels::NormMxFp8, F16>;
using Int8 = StoredNormCase<Norm::layer, kernels::NormInt8, float>;

}  // namespace

void norm_stores_equality(Report& report, i64 rows, i64 n) {
  matrix_equality<BF16>(report, E4m3(rows, n));
  matrix_equality<F16>(report, MxFp8(rows, n));
  matrix_equality<float>(report, Int8(rows, n));
}

void norm_stores_streams(Report& report, i64 rows, i64 n) {
  stream_equality<BF16>(report, E4m3(rows, n));
  stream_equality<F16>(report, MxFp8(rows, n));
  stream_equality<float>(report, Int8(rows, n));
}

}  // namespace outgrad::tests::gpu
