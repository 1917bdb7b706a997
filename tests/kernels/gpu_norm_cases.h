// Cases of the norms' CUDA kernels: both directions of one shape under one schedule on the host's stand-in,
// against the host kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/layernorm.cuh"
#include "kernels/host/layernorm.h"
#include "tests/kernels/gpu_stand_in/cases.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels::gpu_norm_cases {

using namespace tests::gpu_stand_in;

inline constexpr CpuSchedule kPlain{.threads = 1};
inline constexpr float kEps = 0x1p-17f;

// Moderate values, a NaN in some rows, an infinity and zeros of both signs in others.
template <class T>
std::vector<T> tensor(u64 seed, i64 rows, i64 n, float scale) {
  patterns::Random random(seed);
  std::vector<T> v;
  for (i64 i = 0; i < rows * n; ++i)
    v.push_back(narrow<T>(scale * static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f));
  for (i64 row = 0; row < rows; ++row) {
    T* const at = v.data() + row * n;
    const i64 j = random.next() % n;
    if (row % 7 == 3) at[j] = narrow<T>(float_of(kCanonicalNanF32));
    if (row % 7 == 4) at[j] = narrow<T>(float_of(0xff800000u));
    if (row % 7 == 5) {
      for (i64 k = 0; k < n; ++k) at[k] = narrow<T>(k % 3 == 0 ? 0.0f : -0.0f);
    }
  }
  return v;
}

inline std::vector<float> reals(u64 seed, i64 n, float scale) {
  return tensor<float>(seed, n == 0 ? 0 : 1, n, scale);
}

struct Case {
  i64 rows, n;
  Edge edge = Edge::end;
  int first_off = 0, second_off = 0, out_off = 0;  // elements off a multiple of 16 bytes
  // the input that the result is written over: 0, 1 (residual forms), or none
  int over = -1;
  bool affine = true;                              // gamma and beta are there
  bool side = false;
  bool sums = true;        // dgamma and dbeta are wanted
  int words_off = 0;       // of gamma, beta and the workspace
  bool infinite = false;   // an infinite beta: 0 times it is not 0
};

inline std::string name_of(const Case& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.n) +
         (c.edge == Edge::begin ? ", guards before" : "") + ", off by " + std::to_string(c.first_off) + " " +
         std::to_string(c.second_off) + " " + std::to_string(c.out_off) +
         (c.over >= 0 ? ", over input " + std::to_string(c.over) : "") + (c.affine ? "" : ", no gamma") +
         (c.side ? ", side channels" : "") + (c.sums ? "" : ", no sums") +
         (c.words_off != 0 ? ", words off" : "") + (c.infinite ? ", infinite beta" : "");
}

// Ascending channels, at octets' and chunks' ends too.
inline std::vector<i32> side_channels(i64 n) {
  std::vector<i32> channels;
  for (const i64 j : {i64{0}, i64{7}, i64{8}, i64{31}, i64{255}, i64{256}, n / 2, n - 2, n - 1}) {
    if (j >= 0 && j < n) channels.push_back(static_cast<i32>(j));
  }
  std::sort(channels.begin(), channels.end());
  channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
  return channels;
}

inline std::vector<float> gammas(const Case& c, const std::vector<i32>& channels) {
  std::vector<float> gamma = reals(11, c.n, 1.5f);
  for (float& g : gamma) g += g < 0 ? -0.25f : 0.25f;  // finite reciprocals
  for (const i32 j : channels) gamma[static_cast<size_t>(j)] = j % 2 == 0 ? 0.0f : 0x1p-140f;
  return gamma;
}

inline std::vector<float> betas(const Case& c) {
  std::vector<float> beta = reals(12, c.n, 0.5f);
  if (c.infinite) beta.back() = float_of(0xff800000u);
  return beta;
}

template <class T>
Placement at(const Case& c, int elements, const char* name) {
  return {c.edge, elements * static_cast<int>(sizeof(T)), name};
}

// The host's norm of these arrays, of a sum if there is a residual.
template <Norm N, class T>
void host_forward(const NormForward<T>& of) {
  if constexpr (N == Norm::layer) {
    of.residual ? residual_layernorm_forward<T, kPlain>(of) : layernorm_forward<T, kPlain>(of);
  } else {
    of.residual ? residual_rmsnorm_forward<T, kPlain>(of) : rmsnorm_forward<T, kPlain>(of);
  }
}
template <Norm N, class T>
void host_backward(const NormBackward<T>& of) {
  if constexpr (N == Norm::layer) {
    of.dz_next ? residual_layernorm_backward<T, kPlain>(of) : layernorm_backward<T, kPlain>(of);
  } else {
    of.dz_next ? residual_rmsnorm_backward<T, kPlain>(of) : rmsnorm_backward<T, kPlain>(of);
  }
}

template <Norm N, class T, class S, bool Residual>
void expect_forward(const Case& c) {
  SCOPED_TRACE("forward " + name_of(c));
  constexpr bool kLayer = N == Norm::layer;
  const std::vector<i32> channels = c.side ? side_channels(c.n) : std::vector<i32>{};
  const std::vector<T> x = tensor<T>(1, c.rows, c.n, 3.0f), residual = tensor<T>(2, c.rows, c.n, 2.0f);
  const std::vector<float> gamma = gammas(c, channels), beta = betas(c);
  const size_t rows = static_cast<size_t>(c.rows);
  std::vector<T> y(x.size()), z(x.size());
  std::vector<float> rstd(rows), x_hat(rows * channels.size());
  const SideBuffer<float> side{channels.data(), static_cast<i64>(channels.size()), x_hat.data()};
  const float *g = c.affine ? gamma.data() : nullptr, *b = c.affine ? beta.data() : nullptr;
  host_forward<N, T>({.x = x.data(),
                      .residual = Residual ? residual.data() : nullptr,
                      .gamma = g,
                      .beta = b,
                      .rows = c.rows,
                      .n = c.n,
                      .eps = kEps,
                      .z = z.data(),
                      .y = y.data(),
                      .rstd = rstd.data(),
                      .side = side});
  auto device_x = GuardedArray<T>::with(x, at<T>(c, c.first_off, "x"));
  auto device_residual = GuardedArray<T>::with(residual, at<T>(c, c.second_off, "residual"));
  const GuardedArray<T> device_z(c.rows * c.n, at<T>(c, c.second_off, "z")),
      device_y(c.rows * c.n, at<T>(c, c.out_off, "y"));
  auto device_gamma = GuardedArray<float>::with(gamma, at<float>(c, c.words_off, "gamma"));
  auto device_beta = GuardedArray<float>::with(beta, at<float>(c, c.words_off, "beta"));
  auto device_channels = GuardedArray<i32>::with(channels);
  const GuardedArray<float> device_rstd(c.rows), device_x_hat(static_cast<i64>(x_hat.size()));
  // In place: y over x; with a residual z over the residual as well, or the other way round.
  const GuardedArray<T>& out_y = c.over == 0 ? device_x : c.over == 1 ? device_residual : device_y;
  const GuardedArray<T>& out_z = c.over == 0 ? device_residual : c.over == 1 ? device_x : device_z;
  if (c.over < 0) device_x.make_read_only(), device_residual.make_read_only();
  device_gamma.make_read_only(), device_beta.make_read_only(), device_channels.make_read_only();
  const SideBuffer<float> device_side{device_channels.get(), side.count, device_x_hat.get()};
  const float *dg = c.affine ? device_gamma.get() : nullptr,
              *db = c.affine && kLayer ? device_beta.get() : nullptr;
  next_order();
  cuda::NormForwardArrays<T> of{.x = device_x.get(),
                                .gamma = dg,
                                .beta = db,
                                .rows = c.rows,
                                .n = c.n,
                                .eps = kEps,
                                .y = out_y.get(),
                                .rstd = device_rstd.get(),
                                .side = device_side};
  if constexpr (Residual) {
    of.residual = device_residual.get(), of.z = out_z.get();
    expect_success(cuda::launch_residual_norm_forward<N, T, S>(of, nullptr));
    expect_equal("z", out_z, z);
  } else {
    expect_success(cuda::launch_norm_forward<N, T, S>(of, nullptr));
  }
  expect_equal("y", out_y, y);
  expect_equal("rstd", device_rstd, rstd);
  expect_equal("x^", device_x_hat, x_hat);
}

template <Norm N, class T, class S, bool Residual>
void expect_backward(const Case& c) {
  SCOPED_TRACE("backward " + name_of(c));
  constexpr bool kLayer = N == Norm::layer;
  const std::vector<i32> channels = c.side ? side_channels(c.n) : std::vector<i32>{};
  std::vector<T> dy = tensor<T>(1, c.rows, c.n, 3.0f);
  // Terms of one sign: their sum is infinite, and a product of the infinite c with a zero that is no term
  // would show.
  for (i64 row = 0; c.infinite && row < c.rows; ++row)
    dy[static_cast<size_t>((row + 1) * c.n - 1)] = narrow<T>(1.0f);
  const std::vector<T> y = tensor<T>(2, c.rows, c.n, 2.0f), next = tensor<T>(3, c.rows, c.n, 1.0f);
  const std::vector<float> gamma = gammas(c, channels), beta = betas(c), rstd = reals(13, c.rows, 2.0f);
  const std::vector<float> x_hat = tensor<float>(14, c.rows, static_cast<i64>(channels.size()) + 1, 2.0f);
  const size_t n = static_cast<size_t>(c.n);
  std::vector<T> dx(dy.size());
  std::vector<float> dgamma(n), dbeta(n),
      workspace(static_cast<size_t>(norm_backward_workspace(c.rows, c.n)));
  const SideBuffer<const float> side{channels.data(), static_cast<i64>(channels.size()), x_hat.data()};
  const float *g = c.affine || c.side ? gamma.data() : nullptr, *b = c.affine ? beta.data() : nullptr;
  host_backward<N, T>({.dy = dy.data(),
                       .y = y.data(),
                       .dz_next = Residual ? next.data() : nullptr,
                       .gamma = g,
                       .beta = b,
                       .rstd = rstd.data(),
                       .rows = c.rows,
                       .n = c.n,
                       .dx = dx.data(),
                       .dgamma = dgamma.data(),
                       .dbeta = dbeta.data(),
                       .side = side,
                       .workspace = workspace});
  auto device_dy = GuardedArray<T>::with(dy, at<T>(c, c.first_off, "dy"));
  auto device_y = GuardedArray<T>::with(y, at<T>(c, c.second_off, "y"));
  auto device_next = GuardedArray<T>::with(next, at<T>(c, c.out_off, "dz_next"));
  const GuardedArray<T> device_dx(c.rows * c.n, at<T>(c, c.out_off, "dx"));
  auto device_gamma = GuardedArray<float>::with(gamma, at<float>(c, c.words_off, "gamma"));
  auto device_beta = GuardedArray<float>::with(beta, at<float>(c, c.words_off, "beta"));
  auto device_rstd = GuardedArray<float>::with(rstd);
  auto device_channels = GuardedArray<i32>::with(channels);
  auto device_x_hat = GuardedArray<float>::with(x_hat);
  const GuardedArray<float> device_dgamma(c.n), device_dbeta(c.n);
  const i64 words = cuda::norm_backward_workspace(c.rows, c.n);
  const GuardedArray<float> device_workspace(words, at<float>(c, c.words_off, "workspace"));
  const GuardedArray<T>& out = c.over == 0 ? device_dy : c.over == 1 && Residual ? device_next : device_dx;
  if (c.over != 0) device_dy.make_read_only();
  if (c.over != 1) device_next.make_read_only();
  device_y.make_read_only(), device_rstd.make_read_only(), device_x_hat.make_read_only();
  const SideBuffer<const float> device_side{device_channels.get(), side.count, device_x_hat.get()};
  const float *dg = g ? device_gamma.get() : nullptr, *db = b && kLayer ? device_beta.get() : nullptr;
  float *const to_dgamma = c.sums ? device_dgamma.get() : nullptr, *const to_dbeta = c.sums && kLayer
                                                                                         ? device_dbeta.get()
                                                                                         : nullptr;
  next_order();
  const cuda::NormBackwardArrays<T> of{.dy = device_dy.get(),
                                       .y = device_y.get(),
                                       .dz_next = Residual ? device_next.get() : nullptr,
                                       .rstd = device_rstd.get(),
                                       .rows = c.rows,
                                       .n = c.n,
                                       .side = device_side,
                                       .dx = out.get()};
  const cuda::NormBackwardColumns columns{dg, db, to_dgamma, to_dbeta, device_workspace.get(), words};
  if constexpr (Residual) {
    expect_success(cuda::launch_residual_norm_backward<N, T, S>(of, columns, nullptr));
  } else {
    expect_success(cuda::launch_norm_backward<N, T, S>(of, columns, nullptr));
  }
  expect_equal("dx", out, dx);
  if (c.sums) expect_equal("dgamma", device_dgamma, dgamma);
  if (c.sums && kLayer) expect_equal("dbeta", device_dbeta, dbeta);
  EXPECT_TRUE(device_workspace.untouched_outside()) << "written outside the workspace";
}

// Around chunks, steps, octets to a thread and warps to a row; ragged.
inline const std::vector<i64> kWidths = {1, 7, 8, 9, 64, 255, 256, 257, 504, 1000, 1024, 1032, 2056, 4104};

inline std::vector<Case> small_cases() {
  std::vector<Case> cases;
  int count = 0;
  for (const i64 n : kWidths) {
    for (const i64 rows : {0, 1, 3, 17}) {
      if (rows == 17 && n > 1032) continue;
      Case c{.rows = rows, .n = n};
      const int kind = (count + count / 4) % 8;  // every number of rows meets every kind
      ++count;
      if (kind == 1) c.edge = Edge::begin, c.infinite = true;
      if (kind == 2) c.side = true;
      if (kind == 3) c.over = 0;
      if (kind == 4) c.over = 1, c.side = true;
      if (kind == 5) c.affine = false;
      if (kind == 6) c.words_off = 1;
      if (kind == 7) c.sums = false;
      cases.push_back(c);
    }
  }
  // Tensors off by an element, each alone and all together; in place and with side channels, too.
  for (const i64 n : {8, 257, 1024}) {
    for (int which = 0; which < 5; ++which) {
      Case c{.rows = 3, .n = n, .edge = which % 2 == 0 ? Edge::end : Edge::begin};
      c.first_off = which == 0 || which >= 3, c.second_off = which == 1 || which >= 3,
      c.out_off = which == 2 || which >= 3;
      c.over = which == 4 ? 0 : -1;
      c.side = which == 3;
      cases.push_back(c);
    }
    cases.push_back({.rows = 3, .n = n, .infinite = true});
    for (const int over : {-1, 0, 1}) {
      for (const bool side : {false, true}) cases.push_back({.rows = 11, .n = n, .over = over, .side = side});
    }
  }
  return cases;
}

template <Norm N, class T, class S, bool Residual>
void expect_all(const std::vector<Case>& cases) {
  SCOPED_TRACE(std::string(N == Norm::layer ? "layer " : "rms ") + Format<T>::kName +
               (Residual ? " with residual" : ""));
  for (const Case& c : cases) {
    Case forward = c;
    if (!Residual && forward.over == 1) forward.over = 0;
    expect_forward<N, T, S, Residual>(forward);
    expect_backward<N, T, S, Residual>(c);
    if (testing::Test::HasFailure()) return;  // one case tells more than a thousand
  }
}

}  // namespace outgrad::kernels::gpu_norm_cases
