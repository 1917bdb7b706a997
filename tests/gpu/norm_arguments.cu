// Calls the norms' launchers with arguments that they refuse.
#include "tests/gpu/norm_arguments.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <functional>
#include <limits>
#include <string>

#include "tests/gpu/launches.cuh"
#include "kernels/cuda/layernorm.cuh"
#include "kernels/support/errors.h"

namespace outgrad::tests::gpu {
namespace {

using namespace kernels;

constexpr i64 kRows = 4, kN = 1000, kCount = 3;

template <class T>
T* at(u64 address) {
  return reinterpret_cast<T*>(address);
}

// Arguments that hold; each case spoils one. Addresses are enough, as nothing is launched; they lie 2^20
// bytes apart.
struct Forward {
  float *x = at<float>(0x100000), *residual = at<float>(0x200000), *z = at<float>(0x300000),
        *y = at<float>(0x400000);
  float *gamma = at<float>(0x500000), *beta = at<float>(0x600000), *rstd = at<float>(0x700000),
        *x_hat = at<float>(0x800000);
  i32* channels = at<i32>(0x900000);
  i64 rows = kRows, n = kN, count = kCount;
  float eps = 1e-5f;

  cudaError_t operator()(bool with_residual, bool rms) const {
    const cuda::NormForwardArrays<float> a{.x = x,
                                           .residual = residual,
                                           .gamma = gamma,
                                           .beta = beta,
                                           .rows = rows,
                                           .n = n,
                                           .eps = eps,
                                           .z = z,
                                           .y = y,
                                           .rstd = rstd,
                                           .side = {channels, count, x_hat}};
    if (rms) return launches::norm_forward<Norm::rms>(a, nullptr);
    return with_residual ? cuda::launch_residual_norm_forward<Norm::layer, float>(a, nullptr)
                         : launches::norm_forward<Norm::layer>(a, nullptr);
  }
};

struct Backward {
  float *dy = at<float>(0x100000), *y = at<float>(0x200000), *next = at<float>(0x300000),
        *dx = at<float>(0x400000);
  float *gamma = at<float>(0x500000), *beta = at<float>(0x600000), *rstd = at<float>(0x700000),
        *x_hat = at<float>(0x800000);
  float *dgamma = at<float>(0xa00000), *dbeta = at<float>(0xb00000), *workspace = at<float>(0x10000000);
  i32* channels = at<i32>(0x900000);
  i64 rows = kRows, n = kN, count = kCount, words = cuda::norm_backward_workspace(kRows, kN);

  cudaError_t operator()(bool with_residual, bool rms) const {
    const cuda::NormBackwardArrays<float> a{.dy = dy,
                                            .y = y,
                                            .dz_next = next,
                                            .rstd = rstd,
                                            .rows = rows,
                                            .n = n,
                                            .side = {channels, count, x_hat},
                                            .dx = dx};
    const cuda::NormBackwardColumns of{gamma, beta, dgamma, dbeta, workspace, words};
    if (rms) return launches::norm_backward<Norm::rms>(a, of, nullptr);
    return with_residual ? cuda::launch_residual_norm_backward<Norm::layer, float>(a, of, nullptr)
                         : launches::norm_backward<Norm::layer>(a, of, nullptr);
  }
};

int wrong = 0, calls = 0;

void expect(cudaError_t got, const std::string& what, cudaError_t want = cudaErrorInvalidValue) {
  ++calls;
  if (got == want) return;
  std::printf("%s: %s instead of %s\n", what.c_str(), cudaGetErrorName(got), cudaGetErrorName(want));
  ++wrong;
}

template <class Arguments>
void refuses(const std::string& what, const std::function<void(Arguments&)>& spoil, bool rms = false) {
  Arguments arguments;
  spoil(arguments);
  const bool residual_only = what.starts_with("residual");
  if (!residual_only) expect(arguments(false, rms), what);
  if (!rms) expect(arguments(true, false), "with a residual, " + what);
}

void forwards() {
  const auto refuse = [](const std::string& what, const std::function<void(Forward&)>& spoil,
                         bool rms = false) { refuses<Forward>("norm forward, " + what, spoil, rms); };
  const auto refuse_residual = [](const std::string& what, const std::function<void(Forward&)>& spoil) {
    refuses<Forward>("residual norm forward, " + what, spoil);
  };
  refuse("rows = -1", [](Forward& f) { f.rows = -1; });
  refuse("n = 0", [](Forward& f) { f.n = 0; });
  refuse("n = -8", [](Forward& f) { f.n = -8; });
  refuse("rows n = 2^63", [](Forward& f) {
    f.rows = f.n = i64{1} << 31;
    f.rows *= 2;
  });
  refuse("n = 2^62", [](Forward& f) { f.n = i64{1} << 62; });
  refuse("x beyond the address space", [](Forward& f) { f.x = at<float>(~u64{0x7ff}); });
  refuse("eps = -1", [](Forward& f) { f.eps = -1.0f; });
  refuse("eps NaN", [](Forward& f) { f.eps = std::numeric_limits<float>::quiet_NaN(); });
  refuse("x null", [](Forward& f) { f.x = nullptr; });
  refuse("y null", [](Forward& f) { f.y = nullptr; });
  refuse("rstd null", [](Forward& f) { f.rstd = nullptr; });
  refuse("side channels null", [](Forward& f) { f.channels = nullptr; });
  refuse("x^ null", [](Forward& f) { f.x_hat = nullptr; });
  refuse("more side channels than columns", [](Forward& f) { f.count = kN + 1; });
  refuse("side channels -1", [](Forward& f) { f.count = -1; });
  refuse("x not aligned to its element", [](Forward& f) { f.x = at<float>(0x100002); });
  refuse("gamma not aligned to its element", [](Forward& f) { f.gamma = at<float>(0x500001); });
  refuse("side channels not aligned to their element", [](Forward& f) { f.channels = at<i32>(0x900002); });
  refuse("y one element into x", [](Forward& f) { f.y = f.x + 1; });
  refuse("y over gamma", [](Forward& f) { f.y = f.gamma; });
  refuse("y over beta's last element", [](Forward& f) { f.y = f.beta + kN - 1; });
  refuse("rstd over x", [](Forward& f) { f.rstd = f.x + kRows * kN - 1; });
  refuse("rstd over y", [](Forward& f) { f.rstd = f.y; });
  refuse("x^ over y", [](Forward& f) { f.x_hat = f.y + 5; });
  refuse("x^ over the side channels", [](Forward& f) { f.x_hat = at<float>(0x900000); });
  refuse("of RMSNorm, beta", [](Forward&) {}, true);
  refuse_residual("residual null", [](Forward& f) { f.residual = nullptr; });
  refuse_residual("z null", [](Forward& f) { f.z = nullptr; });
  refuse_residual("z over y", [](Forward& f) { f.z = f.y; });
  refuse_residual("z and y over x", [](Forward& f) { f.z = f.y = f.x; });
  refuse_residual("z one element into the residual", [](Forward& f) { f.z = f.residual + 1; });
  refuse_residual("y one element before the residual", [](Forward& f) { f.y = f.residual - 1; });
  Forward empty;
  empty.rows = 0, empty.x = empty.y = empty.residual = empty.z = empty.rstd = empty.x_hat = nullptr;
  expect(empty(false, false), "norm forward, no rows", cudaSuccess);
  expect(empty(true, false), "residual norm forward, no rows", cudaSuccess);
}

void backwards() {
  const auto refuse = [](const std::string& what, const std::function<void(Backward&)>& spoil,
                         bool rms = false) { refuses<Backward>("norm backward, " + what, spoil, rms); };
  refuse("rows = -1", [](Backward& b) { b.rows = -1; });
  refuse("n = 0", [](Backward& b) { b.n = 0; });
  refuse("rows n = 2^63", [](Backward& b) { b.rows = i64{1} << 32, b.n = i64{1} << 31; });
  refuse("dy null", [](Backward& b) { b.dy = nullptr; });
  refuse("y null", [](Backward& b) { b.y = nullptr; });
  refuse("dx null", [](Backward& b) { b.dx = nullptr; });
  refuse("rstd null", [](Backward& b) { b.rstd = nullptr; });
  refuse("x^ null", [](Backward& b) { b.x_hat = nullptr; });
  refuse("workspace null", [](Backward& b) { b.workspace = nullptr; });
  refuse("a workspace one word short", [](Backward& b) { --b.words; });
  refuse("workspace not aligned to a word", [](Backward& b) { b.workspace = at<float>(0x10000002); });
  refuse("more side channels than columns", [](Backward& b) { b.count = kN + 1; });
  refuse("y not aligned to its element", [](Backward& b) { b.y = at<float>(0x200001); });
  refuse("dx one element into dy", [](Backward& b) { b.dx = b.dy + 1; });
  refuse("dx over y", [](Backward& b) { b.dx = b.y; });
  refuse("dx over gamma", [](Backward& b) { b.dx = b.gamma; });
  refuse("dx over rstd's last element", [](Backward& b) { b.dx = b.rstd + kRows - 1; });
  refuse("dgamma over dbeta", [](Backward& b) { b.dgamma = b.dbeta; });
  refuse("dgamma over gamma", [](Backward& b) { b.dgamma = b.gamma; });
  refuse("dbeta over dy", [](Backward& b) { b.dbeta = b.dy + 7; });
  refuse("dx over the workspace's last word", [](Backward& b) { b.dx = b.workspace + b.words - 1; });
  refuse("workspace over dy", [](Backward& b) { b.workspace = b.dy - b.words + 1; });
  refuse("workspace over the side channels",
         [](Backward& b) { b.workspace = at<float>(0x900000) - b.words + 1; });
  refuse("of RMSNorm, beta", [](Backward& b) { b.dbeta = nullptr; }, true);
  refuse("of RMSNorm, dbeta", [](Backward& b) { b.beta = nullptr; }, true);
  refuses<Backward>("residual norm backward, dz_next null", [](Backward& b) { b.next = nullptr; });
  refuses<Backward>("residual norm backward, dz one element into dz_next",
                    [](Backward& b) { b.dx = b.next + 1; });
}

}  // namespace

int refused_norm_arguments() {
  forwards();
  backwards();
  std::printf("norms: %d calls, %d answered wrongly\n", calls, wrong);
  return wrong == 0 ? kExitHolds : kExitViolated;
}

}  // namespace outgrad::tests::gpu
