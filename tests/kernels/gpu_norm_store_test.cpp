// The norms' CUDA kernels that keep y in 8 bits, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the bits of the host's (kernels/host/norm_store.h): y, codes, scales,
// rstd and x^, and the gradients from codes.
#include <cstring>

#include "kernels/host/norm_store.h"
#include "tests/kernels/gpu_norm_cases.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace gpu_norm_cases;

template <Norm N, class S, class E>
struct Of {
  static constexpr Norm kNorm = N;
  using Store = S;
  using T = E;
};

// What a forward writes, as bytes of host memory.
template <class Store, class T>
struct Results {
  std::vector<T> y;
  std::vector<u8> codes, scales;
  std::vector<float> rstd, x_hat;

  Results(i64 rows, i64 n, i64 side)
      : y(static_cast<size_t>(rows * n)), codes(y.size()),
        scales(static_cast<size_t>(norm_scales_of<Store>(rows, n)) * sizeof(typename Store::Scale)),
        rstd(static_cast<size_t>(rows)), x_hat(static_cast<size_t>(rows * side)) {}
  typename Store::Code* code() { return reinterpret_cast<typename Store::Code*>(codes.data()); }
  typename Store::Scale* scale() { return reinterpret_cast<typename Store::Scale*>(scales.data()); }
};

template <class Given>
class StandInNormStore : public testing::Test {
 protected:
  static constexpr Norm kNorm = Given::kNorm;
  static constexpr bool kLayer = kNorm == Norm::layer;
  using Store = typename Given::Store;
  using T = typename Given::T;
  using Code = typename Store::Code;
  using Scale = typename Store::Scale;

  static void expect_all(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      if (Store::kGroup > 0 && c.n % Store::kGroup != 0) continue;
      expect_forward(c);
      expect_backward(c);
      if (testing::Test::HasFailure()) return;
    }
  }

  static void expect_forward(const Case& c) {
    SCOPED_TRACE("forward " + name_of(c));
    const std::vector<i32> channels = c.side ? side_channels(c.n) : std::vector<i32>{};
    const i64 count = static_cast<i64>(channels.size());
    const std::vector<T> x = tensor<T>(1, c.rows, c.n, 3.0f);
    const std::vector<float> gamma = gammas(c, channels), beta = betas(c);
    Results<Store, T> host(c.rows, c.n, count);
    norm_forward_8bit<kNorm, kPlain>(
        NormForward8bit<Store, T>{.norm = {.x = x.data(),
                                           .gamma = c.affine ? gamma.data() : nullptr,
                                           .beta = c.affine ? beta.data() : nullptr,
                                           .rows = c.rows,
                                           .n = c.n,
                                           .eps = kEps,
                                           .y = host.y.data(),
                                           .rstd = host.rstd.data(),
                                           .side = {channels.data(), count, host.x_hat.data()}},
                                  .codes = host.code(),
                                  .scales = host.scale()});
    auto device_x = GuardedArray<T>::with(x, at<T>(c, c.first_off, "x"));
    const GuardedArray<T> device_y(c.rows * c.n, at<T>(c, c.out_off, "y"));
    const GuardedArray<u8> codes(c.rows * c.n, at<u8>(c, c.second_off, "codes")),
        scales(static_cast<i64>(host.scales.size()), {c.edge, 0, "scales"});
    auto device_gamma = GuardedArray<float>::with(gamma, at<float>(c, c.words_off, "gamma"));
    auto device_beta = GuardedArray<float>::with(beta, at<float>(c, c.words_off, "beta"));
    auto device_channels = GuardedArray<i32>::with(channels);
    const GuardedArray<float> rstd(c.rows), x_hat(c.rows * count),
        workspace(cuda::norm_forward_workspace(cuda::kCodeScales<Store>, c.rows));
    // At a scale of the tensor x is read a second time.
    const bool in_place = c.over == 0 && Store::kGroup > 0;
    if (!in_place) device_x.make_read_only();
    device_gamma.make_read_only(), device_beta.make_read_only(), device_channels.make_read_only();
    const GuardedArray<T>& out = in_place ? device_x : device_y;
    next_order();
    expect_success(cuda::launch_norm_forward_8bit<kNorm, Store, T>(
        {.x = device_x.get(),
         .residual = nullptr,
         .gamma = c.affine ? device_gamma.get() : nullptr,
         .beta = c.affine && kLayer ? device_beta.get() : nullptr,
         .rows = c.rows,
         .n = c.n,
         .eps = kEps,
         .z = nullptr,
         .y = out.get(),
         .rstd = rstd.get(),
         .side = {device_channels.get(), count, x_hat.get()},
         .kept = {codes.get(), scales.get()}},
        workspace.size() > 0 ? workspace.get() : nullptr, nullptr));
    expect_equal("y", out, host.y);
    expect_equal("rstd", rstd, host.rstd);
    expect_equal("x^", x_hat, host.x_hat);
    expect_equal("codes", codes, host.codes);
    expect_equal("scales", scales, host.scales);
  }

  // Any codes, with NaN in some rows alone.
  static std::vector<u8> any_codes(i64 rows, i64 n) {
    patterns::Random random(21);
    std::vector<u8> codes;
    for (i64 i = 0; i < rows * n; ++i) {
      const u8 code = static_cast<u8>(random.next());
      codes.push_back((code & 0x7fu) == 0x7fu && i / n % 7 != 3 ? 0x3c : code);
    }
    return codes;
  }
  static void any_scale(patterns::Random& random, float& scale) {
    scale = 0x1.345p-7f * static_cast<float>(random.next() % 3 + 1);
  }
  static void any_scale(patterns::Random& random, E8M0& scale) {
    scale.bits = static_cast<u8>(110 + random.next() % 20);
  }
  static void any_scale(patterns::Random& random, Int8Scale& scale) {
    scale = {-2.5f * static_cast<float>(random.next() % 3 + 1), 0x1.5p-6f};
  }

  static void expect_backward(const Case& c) {
    SCOPED_TRACE("backward " + name_of(c));
    const std::vector<i32> channels = c.side ? side_channels(c.n) : std::vector<i32>{};
    const i64 count = static_cast<i64>(channels.size());
    const std::vector<T> dy = tensor<T>(1, c.rows, c.n, 3.0f);
    const std::vector<u8> codes = any_codes(c.rows, c.n);
    std::vector<Scale> scales(static_cast<size_t>(norm_scales_of<Store>(c.rows, c.n)));
    patterns::Random random(22);
    for (Scale& scale : scales) any_scale(random, scale);
    const std::vector<float> gamma = gammas(c, channels), beta = betas(c), rstd = reals(13, c.rows, 2.0f),
                             x_hat = tensor<float>(14, c.rows, count + 1, 2.0f);
    std::vector<T> dx(dy.size());
    std::vector<float> dgamma(static_cast<size_t>(c.n)), dbeta(dgamma.size()),
        workspace(static_cast<size_t>(norm_backward_workspace(c.rows, c.n)));
    const float *g = c.affine || c.side ? gamma.data() : nullptr, *b = c.affine ? beta.data() : nullptr;
    norm_backward_8bit<kNorm, kPlain>(
        NormBackward8bit<Store, T>{.norm = {.dy = dy.data(),
                                            .gamma = g,
                                            .beta = b,
                                            .rstd = rstd.data(),
                                            .rows = c.rows,
                                            .n = c.n,
                                            .dx = dx.data(),
                                            .dgamma = dgamma.data(),
                                            .dbeta = dbeta.data(),
                                            .side = {channels.data(), count, x_hat.data()},
                                            .workspace = workspace},
                                   .codes = reinterpret_cast<const Code*>(codes.data()),
                                   .scales = scales.data()});
    auto device_dy = GuardedArray<T>::with(dy, at<T>(c, c.first_off, "dy"));
    auto device_codes = GuardedArray<u8>::with(codes, at<u8>(c, c.second_off, "codes"));
    auto device_scales = GuardedArray<Scale>::with(scales);
    const GuardedArray<T> device_dx(c.rows * c.n, at<T>(c, c.out_off, "dx"));
    auto device_gamma = GuardedArray<float>::with(gamma, at<float>(c, c.words_off, "gamma"));
    auto device_beta = GuardedArray<float>::with(beta, at<float>(c, c.words_off, "beta"));
    auto device_rstd = GuardedArray<float>::with(rstd);
    auto device_channels = GuardedArray<i32>::with(channels);
    auto device_x_hat = GuardedArray<float>::with(x_hat);
    const GuardedArray<float> device_dgamma(c.n), device_dbeta(c.n);
    const i64 words = cuda::norm_backward_workspace(c.rows, c.n);
    const GuardedArray<float> device_workspace(words, at<float>(c, c.words_off, "workspace"));
    const GuardedArray<T>& out = c.over == 0 ? device_dy : device_dx;
    if (c.over != 0) device_dy.make_read_only();
    device_codes.make_read_only(), device_scales.make_read_only(), device_rstd.make_read_only();
    next_order();
    expect_success(cuda::launch_norm_backward_8bit<kNorm, Store, T>(
        {.dy = device_dy.get(),
         .y = nullptr,
         .dz_next = nullptr,
         .gamma = nullptr,
         .beta = nullptr,
         .columns = {},
         .place = nullptr,
         .rstd = device_rstd.get(),
         .rows = c.rows,
         .n = c.n,
         .side = {device_channels.get(), count, device_x_hat.get()},
         .dx = out.get(),
         .sums = nullptr,
         .slots = 0,
         .slot_rows = {},
         .own_slots = 0,
         .stride = 0,
         .kept = {device_codes.get(), device_scales.get()}},
        {g ? device_gamma.get() : nullptr, b && kLayer ? device_beta.get() : nullptr,
         c.sums ? device_dgamma.get() : nullptr, c.sums && kLayer ? device_dbeta.get() : nullptr,
         device_workspace.get(), words},
        nullptr));
    expect_equal("dx", out, dx);
    if (c.sums) expect_equal("dgamma", device_dgamma, dgamma);
    if (c.sums && kLayer) expect_equal("dbeta", device_dbeta, dbeta);
    EXPECT_TRUE(device_workspace.untouched_outside()) << "written outside the workspace";
  }
};

// Each store meets each format and both norms, some at night.
#ifdef OUTGRAD_NIGHTLY_FORMAT
using Given = testing::Types<Of<Norm::rms, NormE4m3, F16>, Of<Norm::layer, NormMxFp8, F16>,
                             Of<Norm::layer, NormMxFp8, float>, Of<Norm::rms, NormInt8, F16>,
                             Of<Norm::rms, NormInt8, float>>;
#else
using Given = testing::Types<Of<Norm::layer, NormE4m3, BF16>, Of<Norm::rms, NormE4m3, float>,
                             Of<Norm::rms, NormMxFp8, BF16>, Of<Norm::layer, NormInt8, BF16>>;
#endif
TYPED_TEST_SUITE(StandInNormStore, Given);

// Rows in registers of one warp and of several, groups at a row's end, tensors off by an element, side
// channels.
TYPED_TEST(StandInNormStore, BitsAreTheHosts) {
  std::vector<Case> cases = small_cases();
  for (const i64 n : {32, 96, 192, 1056, 2112}) {
    for (const bool side : {false, true})
      cases.push_back({.rows = 9, .n = n, .over = side ? 0 : -1, .side = side});
    cases.push_back({.rows = 5, .n = n, .second_off = 1});
  }
  this->expect_all(cases);
}

// Rows that registers do not hold, in shared memory and beyond it; slots of many rows.
TYPED_TEST(StandInNormStore, WideAndManyRowsAreTheHosts) {
  this->expect_all({{.rows = 2, .n = 8192},
                    {.rows = 2, .n = 16'448, .side = true},
                    {.rows = 1, .n = 33'024, .over = 0},
                    {.rows = 1, .n = 60'032, .first_off = 1, .side = true},
                    {.rows = 300, .n = 4096, .over = 0},
                    {.rows = 3000, .n = 64, .words_off = 1},
                    {.rows = 9000, .n = 64, .sums = false}});
}

TYPED_TEST(StandInNormStore, WhatBreaksTheContractIsRefused) {
  using Kept = typename TypeParam::Store;
  using Element = typename TypeParam::T;
  const i64 n = 64;
  const GuardedArray<Element> x(n), y(n);
  const GuardedArray<u8> codes(n), scales(16);
  const GuardedArray<float> rstd(1), workspace(2);
  const auto forward = [&](i64 columns, Element* out, void* kept) {
    return cuda::launch_norm_forward_8bit<TypeParam::kNorm, Kept, Element>({.x = x.get(),
                                                                            .residual = nullptr,
                                                                            .gamma = nullptr,
                                                                            .beta = nullptr,
                                                                            .rows = 1,
                                                                            .n = columns,
                                                                            .eps = kEps,
                                                                            .z = nullptr,
                                                                            .y = out,
                                                                            .rstd = rstd.get(),
                                                                            .side = {},
                                                                            .kept = {kept, scales.get()}},
                                                                           workspace.get(), nullptr);
  };
  const i64 before = launches();
  EXPECT_EQ(forward(n, y.get(), nullptr), cudaErrorInvalidValue) << "no codes";
  EXPECT_EQ(forward(n, y.get(), y.get()), cudaErrorInvalidValue) << "codes over y";
  if (Kept::kGroup > 0) {
    EXPECT_EQ(forward(n - 8, y.get(), codes.get()), cudaErrorInvalidValue) << "no whole groups";
  } else {
    EXPECT_EQ(forward(n, x.get(), codes.get()), cudaErrorInvalidValue) << "x is read twice";
  }
  EXPECT_EQ(launches(), before);
  expect_success(forward(n, y.get(), codes.get()));
}

}  // namespace
}  // namespace outgrad::kernels
