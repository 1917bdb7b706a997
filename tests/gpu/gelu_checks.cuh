// GELU's and bias + GELU's launchers in one format, and their checks: a unit to a format instantiates it.
#pragma once

#include "tests/gpu/cases.cuh"
#include "tests/gpu/launches.cuh"
#include "kernels/cuda/bias.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/fits.h"

namespace outgrad::tests::gpu {

namespace launches {

template <class T>
cudaError_t gelu_backward(const T* dy, const T* y, const u32* mask, T* dx, i64 n, cudaStream_t stream) {
  return kernels::cuda::launch_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(dy, y, mask, dx, n,
                                                                                       stream);
}

template <class T>
cudaError_t gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream) {
  return kernels::cuda::launch_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(x, y, mask, n, stream);
}

template <class T>
cudaError_t bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx, float* dbias,
                               float* workspace, i64 words, cudaStream_t stream) {
  return kernels::cuda::launch_bias_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(
      dy, y, mask, rows, n, dx, dbias, workspace, words, stream);
}

template <class T>
cudaError_t bias_gelu_forward(const T* x, const float* bias, i64 rows, i64 n, T* y, u32* mask,
                              cudaStream_t stream) {
  return kernels::cuda::launch_bias_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(x, bias, rows, n,
                                                                                           y, mask, stream);
}

}  // namespace launches

// Schedules beside the default: every home of a table, width of access, hint and shape of a grid.
struct ByColumns {
  static constexpr kernels::GpuSchedule kSchedule = {
      .threads = 128, .octets = 1, .blocks_per_sm = 0, .table = kernels::TableHome::columns};
};
struct ByRows {
  static constexpr kernels::GpuSchedule kSchedule = {.octets = 3,
                                                     .access_bytes = 8,
                                                     .loads = kernels::CacheHint::streaming,
                                                     .stores = kernels::CacheHint::streaming,
                                                     .table = kernels::TableHome::rows};
};
struct ByCaches {
  static constexpr kernels::GpuSchedule kSchedule = {.threads = 512,
                                                     .octets = 2,
                                                     .access_bytes = 4,
                                                     .blocks_per_sm = 1,
                                                     .table = kernels::TableHome::caches};
};

// One schedule over a ragged prefix of the patterns: aligned, one element off, in place.
template <class T, class Schedule>
void schedule_equality(Report& report, const char* name) {
  using Fit = typename kernels::DefaultFit<T>::Type;
  const i64 n = (i64{1} << 17) + 5;
  const Array<T> argument_array(n), gradient_array(n), shifted_argument(n + 1), shifted_gradient(n + 1),
      out(n), shifted_out(n + 1);
  const Array<u32> mask((n + 31) / 32);
  const size_t bytes = static_cast<size_t>(n) * sizeof(T);
  GeluArrays<T> host;
  u64 hash = 0;
  fill(argument_array, ArgumentAt<T>{0});
  fill(gradient_array, GradientAt<T>{0});
  fill(mask, MaskAt{0, false});
  check(cudaMemcpy(shifted_argument.get() + 1, argument_array.get(), bytes, cudaMemcpyDeviceToDevice),
        "copy");
  check(cudaMemcpy(shifted_gradient.get() + 1, gradient_array.get(), bytes, cudaMemcpyDeviceToDevice),
        "copy");
  const auto backward = [&](const T* dy, const T* y, T* dx) {
    check(kernels::cuda::launch_gelu_backward<Fit, T, T, Schedule>(dy, y, mask.get(), dx, n, nullptr),
          "gelu_backward");
  };
  host_gelu_backward(0, n, false, host);
  backward(gradient_array.get(), argument_array.get(), out.get());
  std::string wrong = difference("dx", out, host.dx, 0, hash);
  backward(shifted_gradient.get() + 1, shifted_argument.get() + 1, shifted_out.get() + 1);
  check(cudaMemcpy(out.get(), shifted_out.get() + 1, bytes, cudaMemcpyDeviceToDevice), "copy");
  if (wrong.empty()) wrong = difference("dx off by one", out, host.dx, 0, hash);
  backward(gradient_array.get(), argument_array.get(), gradient_array.get());
  if (wrong.empty()) wrong = difference("dx in place", gradient_array, host.dx, 0, hash);
  const auto forward = [&](const T* x, T* y) {
    check(kernels::cuda::launch_gelu_forward<typename kernels::ForwardFit<T>::Type, T, Schedule>(
              x, y, mask.get(), n, nullptr),
          "gelu_forward");
  };
  host_gelu_forward(0, n, host);
  forward(shifted_argument.get() + 1, shifted_out.get() + 1);
  check(cudaMemcpy(out.get(), shifted_out.get() + 1, bytes, cudaMemcpyDeviceToDevice), "copy");
  if (wrong.empty()) wrong = difference("y off by one", out, host.y, 0, hash);
  if (wrong.empty()) wrong = difference("mask off by one", mask, host.mask, 0, hash);
  forward(argument_array.get(), argument_array.get());
  if (wrong.empty()) wrong = difference("y in place", argument_array, host.y, 0, hash);
  if (wrong.empty()) wrong = difference("mask", mask, host.mask, 0, hash);
  report.add(name, kernels::Format<T>::kName, static_cast<u64>(5 * n), hash, wrong);
}

template <class T>
void gelu_equality(Report& report, bool reduced) {
  const char* format = kernels::Format<T>::kName;
  // All patterns; 16-bit formats 64 times over with other dy and mask bits. Reduced: a prefix, with a ragged
  // end.
  const u64 patterns = sizeof(T) == 4 ? u64{1} << 32 : u64{1} << 22;
  const i64 chunk = reduced ? (i64{1} << 17) + 5 : static_cast<i64>(std::min<u64>(patterns, u64{1} << 26));
  const u64 end = reduced ? 1 : patterns;
  const Array<T> argument_array(chunk), gradient_array(chunk), out(chunk);
  const Array<u32> mask((chunk + 31) / 32);
  GeluArrays<T> host;
  std::string wrong;
  u64 hash = 0, outputs = 0;
  for (u64 begin = 0; begin < end && wrong.empty(); begin += static_cast<u64>(chunk)) {
    fill(argument_array, ArgumentAt<T>{begin});
    fill(gradient_array, GradientAt<T>{begin});
    for (const bool complement : {false, true}) {
      fill(mask, MaskAt{begin / 32, complement});
      check(launches::gelu_backward<T>(gradient_array.get(), argument_array.get(), mask.get(), out.get(),
                                       chunk, nullptr),
            "gelu_backward");
      host_gelu_backward(begin, chunk, complement, host);
      if (wrong.empty()) wrong = difference("dx", out, host.dx, begin, hash);
      outputs += static_cast<u64>(chunk);
    }
  }
  report.add("gelu_backward, both mask values", format, outputs, hash, wrong);
  wrong.clear(), hash = outputs = 0;
  for (u64 begin = 0; begin < end && wrong.empty(); begin += static_cast<u64>(chunk)) {
    fill(argument_array, ArgumentAt<T>{begin});
    check(launches::gelu_forward<T>(argument_array.get(), out.get(), mask.get(), chunk, nullptr),
          "gelu_forward");
    host_gelu_forward(begin, chunk, host);
    wrong = difference("y", out, host.y, begin, hash);
    if (wrong.empty()) wrong = difference("mask", mask, host.mask, begin / 32, hash);
    outputs += static_cast<u64>(chunk);
  }
  report.add("gelu_forward and mask", format, outputs, hash, wrong);
  schedule_equality<T, kernels::DefaultGpuSchedule>(report, "gelu, default schedule");
  schedule_equality<T, ByColumns>(report, "gelu, coefficients by columns");
  schedule_equality<T, ByRows>(report, "gelu, coefficients by rows");
  schedule_equality<T, ByCaches>(report, "gelu, coefficients from the caches");
}

// GELU on every kind of argument, forward, and backward from outputs that are any patterns.
template <class T>
struct GeluCase {
  explicit GeluCase(i64 elements)
      : n(elements), x(n), y(n), dy(n), dx(n), mask((n + 31) / 32), mask_out(mask.size()) {
    host_gelu_forward(0, n, forward);
    host_gelu_backward(0, n, false, backward);
    fill(x, ArgumentAt<T>{0});
    fill(dy, GradientAt<T>{0});
    fill(mask, MaskAt{0, false});
  }
  void enqueue(Place, cudaStream_t stream) const {
    check(launches::gelu_forward<T>(x.get(), y.get(), mask_out.get(), n, stream), "gelu_forward");
    check(launches::gelu_backward<T>(dy.get(), x.get(), mask.get(), dx.get(), n, stream), "gelu_backward");
  }
  void spoil() const { spoil_all(y, dx, mask_out); }
  std::string wrong(Place, u64& hash) const {
    std::string wrong = difference("y", y, forward.y, 0, hash);
    if (wrong.empty()) wrong = difference("mask", mask_out, forward.mask, 0, hash);
    if (wrong.empty()) wrong = difference("dx", dx, backward.dx, 0, hash);
    return wrong;
  }
  std::string name() const { return "gelu"; }
  i64 outputs() const { return 2 * n; }

  i64 n;
  GeluArrays<T> forward, backward;
  Array<T> x, y, dy, dx;
  Array<u32> mask, mask_out;
};

template <class T>
struct BiasCase {
  BiasCase(i64 rows_, i64 n_)
      : rows(rows_), n(n_), host(host_bias<T>(rows, n)), x(rows * n), y(rows * n), dy(rows * n), dx(rows * n),
        bias(n), dbias(n), workspace(kernels::cuda::bias_backward_workspace(rows, n)),
        mask((rows * n + 31) / 32) {
    fill(x, UniformAt<T>{kXStream});
    fill(dy, UniformAt<T>{kDyStream});
    fill(bias, UniformAt<float>{kBetaStream});
  }
  void enqueue(Place place, cudaStream_t stream) const {
    T *const to = y_at(place).get(), *const gradient_to = dx_at(place).get();
    check(launches::bias_gelu_forward<T>(x.get(), bias.get(), rows, n, to, mask.get(), stream),
          "bias_gelu_forward");
    check(launches::bias_gelu_backward<T>(dy.get(), to, mask.get(), rows, n, gradient_to, dbias.get(),
                                          workspace.get(), workspace.size(), stream),
          "bias_gelu_backward");
  }
  void spoil() const { spoil_all(y, dx, dbias, workspace, mask); }
  std::string wrong(Place place, u64& hash) const {
    std::string wrong = difference("y", y_at(place), host.y, 0, hash);
    if (wrong.empty()) wrong = difference("mask", mask, host.mask, 0, hash);
    if (wrong.empty()) wrong = difference("dx", dx_at(place), host.dx, 0, hash);
    if (wrong.empty()) wrong = difference("dbias", dbias, host.dbias, 0, hash);
    return wrong;
  }
  std::string name() const { return "bias + gelu " + std::to_string(rows) + " x " + std::to_string(n); }
  i64 outputs() const { return 2 * rows * n + n; }

  const Array<T>& y_at(Place place) const { return place == Place::own ? y : x; }
  const Array<T>& dx_at(Place place) const { return place == Place::own ? dx : dy; }

  i64 rows, n;
  BiasResult<T> host;
  Array<T> x, y, dy, dx;
  Array<float> bias, dbias, workspace;
  Array<u32> mask;
};

template <class T>
void bias_equality(Report& report, i64 rows, i64 n) {
  matrix_equality<T>(report, BiasCase<T>(rows, n));
}

template <class T>
void gelu_streams(Report& report) {
  stream_equality<T>(report, GeluCase<T>((i64{1} << 17) + 5));
}

template <class T>
void bias_streams(Report& report, i64 rows, i64 n) {
  stream_equality<T>(report, BiasCase<T>(rows, n));
}

}  // namespace outgrad::tests::gpu

#define OUTGRAD_GELU_CHECKS(T)                                                                            \
  namespace outgrad::tests::gpu {                                                                         \
  template cudaError_t launches::gelu_backward(const T*, const T*, const u32*, T*, i64, cudaStream_t);    \
  template cudaError_t launches::gelu_forward(const T*, T*, u32*, i64, cudaStream_t);                     \
  template cudaError_t launches::bias_gelu_backward(const T*, const T*, const u32*, i64, i64, T*, float*, \
                                                    float*, i64, cudaStream_t);                           \
  template cudaError_t launches::bias_gelu_forward(const T*, const float*, i64, i64, T*, u32*,            \
                                                   cudaStream_t);                                         \
  template void gelu_equality<T>(Report&, bool);                                                          \
  template void bias_equality<T>(Report&, i64, i64);                                                      \
  template void gelu_streams<T>(Report&);                                                                 \
  template void bias_streams<T>(Report&, i64, i64);                                                       \
  }
