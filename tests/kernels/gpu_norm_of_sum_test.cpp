// The norms' CUDA kernels of dropout(x) + residual, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the bits of the host's dropout, of its norm of a sum, and of its
// dropout of dz: in every home of a row, with z stored or not, with dz_next or without.
#include "kernels/host/dropout.h"
#include "tests/kernels/gpu_norm_cases.h"

namespace outgrad::kernels {
namespace {

using namespace gpu_norm_cases;

constexpr u64 kSeed = 0x0123456789abcdefu;

// What beside the shape there is to choose.
struct Form {
  bool drops = true;
  double p = 0.1;
  bool stores = false;  // z
  bool next = false;    // dz_next
};

template <Norm N, class T, class S>
void expect_forward(const Case& c, const Form& form) {
  SCOPED_TRACE("forward " + name_of(c) + (form.drops ? ", p = " + std::to_string(form.p) : "") +
               (form.stores ? ", z" : ""));
  constexpr bool kLayer = N == Norm::layer;
  const std::vector<i32> channels = c.side ? side_channels(c.n) : std::vector<i32>{};
  const std::vector<T> x = tensor<T>(1, c.rows, c.n, 3.0f), residual = tensor<T>(2, c.rows, c.n, 2.0f);
  const std::vector<float> gamma = gammas(c, channels), beta = betas(c);
  std::vector<T> y(x.size()), z = x;
  std::vector<float> rstd(static_cast<size_t>(c.rows)), x_hat(rstd.size() * channels.size());
  const SideBuffer<float> side{channels.data(), static_cast<i64>(channels.size()), x_hat.data()};
  const float *g = c.affine ? gamma.data() : nullptr, *b = c.affine ? beta.data() : nullptr;
  if (form.drops) dropout(x.data(), z.data(), c.rows * c.n, kSeed, form.p, 1);
  host_forward<N, T>({.x = z.data(),
                      .residual = residual.data(),
                      .gamma = g,
                      .beta = b,
                      .rows = c.rows,
                      .n = c.n,
                      .eps = kEps,
                      .z = z.data(),
                      .y = y.data(),
                      .rstd = rstd.data(),
                      .side = side});
  auto device_x = GuardedArray<T>::with(x, at<T>(c, c.first_off, "x")),
       device_residual = GuardedArray<T>::with(residual, at<T>(c, c.second_off, "residual"));
  const GuardedArray<T> device_z(c.rows * c.n, at<T>(c, c.second_off, "z")),
      device_y(c.rows * c.n, at<T>(c, c.out_off, "y"));
  auto device_gamma = GuardedArray<float>::with(gamma, at<float>(c, c.words_off, "gamma"));
  auto device_beta = GuardedArray<float>::with(beta, at<float>(c, c.words_off, "beta"));
  auto device_channels = GuardedArray<i32>::with(channels);
  auto device_seed = GuardedArray<u64>::with({kSeed});
  const GuardedArray<float> device_rstd(c.rows), device_x_hat(static_cast<i64>(x_hat.size()));
  const GuardedArray<T>& out_y = c.over == 0 ? device_x : c.over == 1 ? device_residual : device_y;
  if (c.over != 0) device_x.make_read_only();
  if (c.over != 1) device_residual.make_read_only();
  device_gamma.make_read_only(), device_beta.make_read_only(), device_channels.make_read_only(),
      device_seed.make_read_only();
  const SideBuffer<float> device_side{device_channels.get(), side.count, device_x_hat.get()};
  next_order();
  expect_success(cuda::launch_dropout_add_norm_forward<N, T, S>(
      {.x = device_x.get(),
       .residual = device_residual.get(),
       .gamma = c.affine ? device_gamma.get() : nullptr,
       .beta = c.affine && kLayer ? device_beta.get() : nullptr,
       .rows = c.rows,
       .n = c.n,
       .eps = kEps,
       .z = form.stores ? device_z.get() : nullptr,
       .y = out_y.get(),
       .rstd = device_rstd.get(),
       .side = device_side},
      form.drops ? device_seed.get() : nullptr, form.p, nullptr));
  expect_equal("y", out_y, y);
  if (form.stores) expect_equal("z", device_z, z);
  expect_equal("rstd", device_rstd, rstd);
  expect_equal("x^", device_x_hat, x_hat);
}

template <Norm N, class T, class S>
void expect_backward(const Case& c, const Form& form) {
  SCOPED_TRACE("backward " + name_of(c) + (form.drops ? ", p = " + std::to_string(form.p) : "") +
               (form.next ? ", dz_next" : ""));
  constexpr bool kLayer = N == Norm::layer;
  const std::vector<i32> channels = c.side ? side_channels(c.n) : std::vector<i32>{};
  const std::vector<T> dy = tensor<T>(1, c.rows, c.n, 3.0f), y = tensor<T>(2, c.rows, c.n, 2.0f),
                       next = tensor<T>(3, c.rows, c.n, 1.0f);
  const std::vector<float> gamma = gammas(c, channels), beta = betas(c), rstd = reals(13, c.rows, 2.0f);
  const std::vector<float> x_hat = tensor<float>(14, c.rows, static_cast<i64>(channels.size()) + 1, 2.0f);
  std::vector<T> dz(dy.size()), dx(dy.size());
  std::vector<float> dgamma(static_cast<size_t>(c.n)), dbeta(dgamma),
      workspace(static_cast<size_t>(norm_backward_workspace(c.rows, c.n)));
  const SideBuffer<const float> side{channels.data(), static_cast<i64>(channels.size()), x_hat.data()};
  const float *g = c.affine || c.side ? gamma.data() : nullptr, *b = c.affine ? beta.data() : nullptr;
  host_backward<N, T>({.dy = dy.data(),
                       .y = y.data(),
                       .dz_next = form.next ? next.data() : nullptr,
                       .gamma = g,
                       .beta = b,
                       .rstd = rstd.data(),
                       .rows = c.rows,
                       .n = c.n,
                       .dx = dz.data(),
                       .dgamma = dgamma.data(),
                       .dbeta = dbeta.data(),
                       .side = side,
                       .workspace = workspace});
  dropout(dz.data(), dx.data(), c.rows * c.n, kSeed, form.p, 1);
  auto device_dy = GuardedArray<T>::with(dy, at<T>(c, c.first_off, "dy")),
       device_y = GuardedArray<T>::with(y, at<T>(c, c.second_off, "y"));
  auto device_next = GuardedArray<T>::with(next, at<T>(c, c.out_off, "dz_next"));
  const GuardedArray<T> device_dz(c.rows * c.n, at<T>(c, c.out_off, "dz")),
      device_dx(c.rows * c.n, at<T>(c, c.second_off, "dx"));
  auto device_gamma = GuardedArray<float>::with(gamma, at<float>(c, c.words_off, "gamma"));
  auto device_beta = GuardedArray<float>::with(beta, at<float>(c, c.words_off, "beta"));
  auto device_rstd = GuardedArray<float>::with(rstd);
  auto device_channels = GuardedArray<i32>::with(channels);
  auto device_x_hat = GuardedArray<float>::with(x_hat);
  auto device_seed = GuardedArray<u64>::with({kSeed});
  const GuardedArray<float> device_dgamma(c.n), device_dbeta(c.n);
  const i64 words = cuda::norm_backward_workspace(c.rows, c.n);
  const GuardedArray<float> device_workspace(words, at<float>(c, c.words_off, "workspace"));
  const GuardedArray<T>& out = c.over == 0 ? device_dy : c.over == 1 && form.next ? device_next : device_dz;
  if (c.over != 0) device_dy.make_read_only();
  if (c.over != 1) device_next.make_read_only();
  device_y.make_read_only(), device_rstd.make_read_only(), device_x_hat.make_read_only(),
      device_seed.make_read_only();
  const SideBuffer<const float> device_side{device_channels.get(), side.count, device_x_hat.get()};
  next_order();
  expect_success(cuda::launch_dropout_add_norm_backward<N, T, S>(
      {.dy = device_dy.get(),
       .y = device_y.get(),
       .dz_next = form.next ? device_next.get() : nullptr,
       .rstd = device_rstd.get(),
       .rows = c.rows,
       .n = c.n,
       .side = device_side,
       .dx = out.get(),
       .dropout = {.dx = form.drops ? device_dx.get() : nullptr}},
      {.gamma = g ? device_gamma.get() : nullptr,
       .beta = b && kLayer ? device_beta.get() : nullptr,
       .dgamma = c.sums ? device_dgamma.get() : nullptr,
       .dbeta = c.sums && kLayer ? device_dbeta.get() : nullptr,
       .workspace = device_workspace.get(),
       .workspace_words = words},
      form.drops ? device_seed.get() : nullptr, form.p, nullptr));
  expect_equal("dz", out, dz);
  if (form.drops) expect_equal("dx", device_dx, dx);
  if (c.sums) expect_equal("dgamma", device_dgamma, dgamma);
  if (c.sums && kLayer) expect_equal("dbeta", device_dbeta, dbeta);
  EXPECT_TRUE(device_workspace.untouched_outside()) << "written outside the workspace";
}

// Every case in one form after the other.
template <Norm N, class T, class S>
void expect_all(const std::vector<Case>& cases) {
  SCOPED_TRACE(std::string(N == Norm::layer ? "layer " : "rms ") + Format<T>::kName);
  constexpr Form kForms[] = {{.stores = false, .next = true},
                             {.p = 0.5, .stores = true},
                             {.drops = false, .next = true},
                             {.p = 1.0, .next = true},
                             {.p = 0.0},
                             {.stores = true, .next = true}};
  size_t count = 0;
  for (const Case& c : cases) {
    for (int k = 0; k < 2; ++k) {
      const Form& form = kForms[count++ % std::size(kForms)];
      expect_forward<N, T, S>(c, form);
      expect_backward<N, T, S>(c, form);
      if (testing::Test::HasFailure()) return;  // one case tells more than a thousand
    }
    ++count;
  }
}

template <GpuNormSchedule S>
struct Schedule {
  static constexpr GpuNormSchedule kSchedule = S;
};
// Schedules of few instances each: all those of the default would take the compiler minutes.
using TwoWarps = Schedule<GpuNormSchedule{.row_warps = 2, .octets = 4, .block_rows = 4, .rows_ahead = 0}>;
using FourWarps = Schedule<GpuNormSchedule{
    .row_warps = 4, .octets = 1, .block_rows = 2, .blocks_per_sm = 1, .rows_ahead = 4}>;
using SlotsInTurn = Schedule<GpuNormSchedule{
    .row_warps = 1, .octets = 1, .block_rows = 1, .access_bytes = 4, .rows_ahead = 2}>;
using SeparateSums = Schedule<GpuNormSchedule{
    .row_warps = 2, .octets = 1, .block_rows = 8, .blocks_per_sm = 1, .sums = ColumnSums::separate}>;
using InShared = Schedule<GpuNormSchedule{.row_warps = 2, .blocks_per_sm = 1, .home = RowHome::shared}>;
using InMemory = Schedule<GpuNormSchedule{.row_warps = 8, .blocks_per_sm = 1, .home = RowHome::memory}>;

TEST(StandInNormOfSum, RegistersOfTwoWarps) { expect_all<Norm::rms, float, TwoWarps>(small_cases()); }
TEST(StandInNormOfSum, RegistersOfFourWarps) { expect_all<Norm::layer, BF16, FourWarps>(small_cases()); }
TEST(StandInNormOfSum, SlotsInTurn) {
  expect_all<Norm::layer, F16, SlotsInTurn>(
      {{.rows = 2048 + 77, .n = 8, .over = 0}, {.rows = 3000, .n = 24, .side = true}});
}
TEST(StandInNormOfSum, SeparateSums) { expect_all<Norm::layer, BF16, SeparateSums>(small_cases()); }
TEST(StandInNormOfSum, Shared) { expect_all<Norm::layer, F16, InShared>(small_cases()); }
TEST(StandInNormOfSum, Memory) { expect_all<Norm::rms, BF16, InMemory>(small_cases()); }

// Rows that registers do not hold, and rows beyond the shared memory, also in place and with side channels.
TEST(StandInNormOfSum, WideRowsAreTheHosts) {
  std::vector<Case> cases;
  for (const i64 n : {4096, 8200, 16401}) cases.push_back({.rows = 2, .n = n, .side = n == 8200});
  cases.push_back({.rows = 2, .n = 60'000, .over = 0, .side = true});
  cases.push_back({.rows = 1, .n = 60'001, .first_off = 1, .over = 1, .side = true});
  expect_all<Norm::layer, BF16, FourWarps>(cases);
}

TEST(StandInNormOfSum, WhatIsRefused) {
  std::vector<float> x(16), y(16), z(16), other(16), rstd(2);
  const u64 seed = 1;
  const auto forward = [&](const u64* of, double p, float* to_z, float* to_y) {
    return cuda::launch_dropout_add_norm_forward<Norm::rms, float, TwoWarps>({.x = x.data(),
                                                                              .residual = z.data(),
                                                                              .rows = 2,
                                                                              .n = 8,
                                                                              .eps = kEps,
                                                                              .z = to_z,
                                                                              .y = to_y,
                                                                              .rstd = rstd.data()},
                                                                             of, p, nullptr);
  };
  EXPECT_EQ(forward(&seed, 1.5, nullptr, y.data()), cudaErrorInvalidValue);
  EXPECT_EQ(forward(&seed, 0.5, y.data(), y.data()), cudaErrorInvalidValue) << "z over y";
  const i64 words = cuda::norm_backward_workspace(2, 8);
  std::vector<float> workspace(static_cast<size_t>(words));
  const auto backward = [&](const u64* of, double p, float* dz, float* dx) {
    return cuda::launch_dropout_add_norm_backward<Norm::rms, float, TwoWarps>(
        {.dy = x.data(),
         .y = y.data(),
         .rstd = rstd.data(),
         .rows = 2,
         .n = 8,
         .dx = dz,
         .dropout = {.dx = dx}},
        {.workspace = workspace.data(), .workspace_words = words}, of, p, nullptr);
  };
  EXPECT_EQ(backward(&seed, -0.1, z.data(), other.data()), cudaErrorInvalidValue);
  EXPECT_EQ(backward(&seed, 0.1, z.data(), z.data()), cudaErrorInvalidValue) << "dx over dz";
  EXPECT_EQ(backward(&seed, 0.1, z.data(), nullptr), cudaErrorInvalidValue) << "no dx";
  EXPECT_EQ(backward(nullptr, 0.1, z.data(), other.data()), cudaErrorInvalidValue) << "dx without a seed";
}

}  // namespace
}  // namespace outgrad::kernels
