// outgrad-gpu: shows that the GPU's bits are the host's, and times the GELU kernels against a device copy.
//
//   outgrad-gpu equality [--reduced] [--out FILE]   every bit pattern of every format (reduced: a sample, for a memory checker)
//   outgrad-gpu streams [--out FILE]                every launcher on a stream of its own and in a graph that is launched twice
//   outgrad-gpu time [--out FILE]                   medians of interleaved samples
//   outgrad-gpu arguments                           what the launchers refuse; needs no GPU
//
// The CPU kernels are proved over all inputs; equal hashes carry the proof to this device.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "autotune/gpu/host_side.h"
#include "autotune/gpu/norm_arguments.h"
#include "kernels/cuda/bias.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/layernorm.cuh"
#include "kernels/fits.h"
#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::Norm;

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw kernels::CudaError(std::string(what) + ": " + cudaGetErrorString(status));
}

// Device memory of one array.
template <class T>
class Array {
 public:
  explicit Array(i64 n) : size_(n) { check(cudaMalloc(&data_, static_cast<size_t>(std::max<i64>(n, 1)) * sizeof(T)), "device memory"); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* get() const { return data_; }
  i64 size() const { return size_; }
  std::vector<T> to_host() const {
    std::vector<T> host(static_cast<size_t>(size_));
    check(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
    return host;
  }

 private:
  T* data_ = nullptr;
  i64 size_;
};

constexpr int kThreads = 256;
unsigned blocks_for(i64 n) { return static_cast<unsigned>(std::clamp<i64>((n + kThreads - 1) / kThreads, 1, 4096)); }

template <class T, class Value>
__global__ void fill_kernel(T* array, i64 n, Value value) {
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * blockDim.x)
    array[i] = value(static_cast<u64>(i));
}

// Function objects rather than lambdas: device lambdas need a compiler flag that users of the headers would not have.
template <class T>
struct ArgumentAt {
  u64 begin;
  __device__ T operator()(u64 i) const { return argument<T>(begin + i); }
};
template <class T>
struct GradientAt {
  u64 begin;
  __device__ T operator()(u64 i) const { return gradient<T>(begin + i); }
};
struct MaskAt {
  u64 begin_word;
  bool complement;
  __device__ u32 operator()(u64 i) const { return mask_word(begin_word + i, complement); }
};
template <class T>
struct UniformAt {
  u64 stream;
  __device__ T operator()(u64 i) const { return kernels::narrow<T>(uniform(stream, i)); }
};
struct GammaAt {
  __device__ float operator()(u64 i) const { return gamma_at(i); }
};

template <class T, class Value>
void fill(const Array<T>& array, Value value) {
  fill_kernel<<<blocks_for(array.size()), kThreads>>>(array.get(), array.size(), value);
  check(cudaGetLastError(), "fill");
}

template <class T>
__global__ void hash_kernel(const T* array, i64 n, u64 begin, unsigned long long* sum) {
  u64 own = 0;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * blockDim.x)
    own += hash_term(begin + static_cast<u64>(i), hash_bits(array[i]));
  for (int half = 16; half > 0; half /= 2) own += __shfl_xor_sync(0xffffffffu, own, half);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, static_cast<unsigned long long>(own));
}

template <class T>
u64 device_hash(const Array<T>& array, u64 begin) {
  const Array<unsigned long long> sum(1);
  check(cudaMemset(sum.get(), 0, sizeof(unsigned long long)), "hash");
  hash_kernel<<<blocks_for(array.size()), kThreads>>>(array.get(), array.size(), begin, sum.get());
  check(cudaGetLastError(), "hash");
  return sum.to_host().front();
}

// What was compared, and where it differed.
struct Report {
  std::string json;
  bool equal = true;

  void add(const std::string& what, const char* format, u64 outputs, u64 hash, const std::string& difference) {
    char hex[20];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
    std::printf("%-34s %-4s %12llu outputs  %s  %s\n", what.c_str(), format, static_cast<unsigned long long>(outputs), hex,
                difference.empty() ? "equal" : difference.c_str());
    std::fflush(stdout);
    json += (json.empty() ? "" : ",\n    ") + ("{\"what\": \"" + what) + "\", \"format\": \"" + format +
            "\", \"outputs\": " + std::to_string(outputs) + ", \"hash\": \"" + hex + "\", \"difference\": \"" + difference + "\"}";
    equal = equal && difference.empty();
  }
};

// Empty when device and host agree, else the first element that differs.
template <class T>
std::string difference(const char* name, const Array<T>& device, const std::vector<T>& host, u64 begin, u64& hash) {
  const u64 got = device_hash(device, begin), want = host_hash(host, begin);
  hash += got;
  if (got == want) return {};
  const std::vector<T> copied = device.to_host();
  for (size_t i = 0; i < host.size(); ++i) {
    if (hash_bits(copied[i]) == hash_bits(host[i])) continue;
    char text[96];
    std::snprintf(text, sizeof text, "%s[%llu]: device 0x%x, host 0x%x", name, static_cast<unsigned long long>(begin + i),
                  hash_bits(copied[i]), hash_bits(host[i]));
    return text;
  }
  return std::string(name) + ": hashes differ though all elements agree";
}

// Schedules beside the default: every home of a table, width of access, hint and shape of a grid.
struct ByColumns {
  static constexpr kernels::GpuSchedule kSchedule = {.threads = 128, .octets = 1, .blocks_per_sm = 0, .table = kernels::TableHome::columns};
};
struct ByRows {
  static constexpr kernels::GpuSchedule kSchedule = {.octets = 3,
                                                     .access_bytes = 8,
                                                     .loads = kernels::CacheHint::streaming,
                                                     .stores = kernels::CacheHint::streaming,
                                                     .table = kernels::TableHome::rows};
};
struct ByCaches {
  static constexpr kernels::GpuSchedule kSchedule = {
      .threads = 512, .octets = 2, .access_bytes = 4, .blocks_per_sm = 1, .table = kernels::TableHome::caches};
};

// One schedule over a ragged prefix of the patterns: aligned, one element off, in place.
template <class T, class Schedule>
void schedule_equality(Report& report, const char* name) {
  using Fit = typename kernels::DefaultFit<T>::Type;
  const i64 n = (i64{1} << 17) + 5;
  const Array<T> argument_array(n), gradient_array(n), shifted_argument(n + 1), shifted_gradient(n + 1), out(n), shifted_out(n + 1);
  const Array<u32> mask((n + 31) / 32);
  const size_t bytes = static_cast<size_t>(n) * sizeof(T);
  std::vector<T> host;
  std::vector<u32> host_mask;
  u64 hash = 0;
  fill(argument_array, ArgumentAt<T>{0});
  fill(gradient_array, GradientAt<T>{0});
  fill(mask, MaskAt{0, false});
  check(cudaMemcpy(shifted_argument.get() + 1, argument_array.get(), bytes, cudaMemcpyDeviceToDevice), "copy");
  check(cudaMemcpy(shifted_gradient.get() + 1, gradient_array.get(), bytes, cudaMemcpyDeviceToDevice), "copy");
  const auto backward = [&](const T* dy, const T* y, T* dx) {
    check(kernels::cuda::launch_gelu_backward<Fit, T, T, Schedule>(dy, y, mask.get(), dx, n, nullptr), "gelu_backward");
  };
  host_gelu_backward<T>(0, n, false, host);
  backward(gradient_array.get(), argument_array.get(), out.get());
  std::string wrong = difference("dx", out, host, 0, hash);
  backward(shifted_gradient.get() + 1, shifted_argument.get() + 1, shifted_out.get() + 1);
  check(cudaMemcpy(out.get(), shifted_out.get() + 1, bytes, cudaMemcpyDeviceToDevice), "copy");
  if (wrong.empty()) wrong = difference("dx off by one", out, host, 0, hash);
  backward(gradient_array.get(), argument_array.get(), gradient_array.get());
  if (wrong.empty()) wrong = difference("dx in place", gradient_array, host, 0, hash);
  const auto forward = [&](const T* x, T* y) {
    check(kernels::cuda::launch_gelu_forward<typename kernels::ForwardFit<T>::Type, T, Schedule>(x, y, mask.get(), n, nullptr), "gelu_forward");
  };
  host_gelu_forward<T>(0, n, host, host_mask);
  forward(shifted_argument.get() + 1, shifted_out.get() + 1);
  check(cudaMemcpy(out.get(), shifted_out.get() + 1, bytes, cudaMemcpyDeviceToDevice), "copy");
  if (wrong.empty()) wrong = difference("y off by one", out, host, 0, hash);
  if (wrong.empty()) wrong = difference("mask off by one", mask, host_mask, 0, hash);
  forward(argument_array.get(), argument_array.get());
  if (wrong.empty()) wrong = difference("y in place", argument_array, host, 0, hash);
  if (wrong.empty()) wrong = difference("mask", mask, host_mask, 0, hash);
  report.add(name, kernels::Format<T>::kName, static_cast<u64>(5 * n), hash, wrong);
}

// The launchers' answers to arguments that break their contract. Nothing is launched, so addresses are enough and no device is needed.
int refused_arguments() {
  using Fit = kernels::generated::GeluF32;
  using Forward = kernels::generated::GeluForward;
  constexpr i64 kN = 1000;
  const auto at = [](u64 address) { return reinterpret_cast<float*>(address); };
  const auto bits_at = [](u64 address) { return reinterpret_cast<u32*>(address); };
  float *const dy = at(0x10000), *const y = at(0x20000), *const dx = at(0x30000);
  u32* const mask = bits_at(0x40000);
  const auto backward = [](const float* g, const float* o, const u32* m, float* d, i64 n) {
    return kernels::cuda::launch_gelu_backward<Fit, float>(g, o, m, d, n, nullptr);
  };
  const auto forward = [](const float* x, float* o, u32* m, i64 n) {
    return kernels::cuda::launch_gelu_forward<Forward, float>(x, o, m, n, nullptr);
  };
  struct Case {
    const char* what;
    cudaError_t got, want;
  };
  constexpr cudaError_t kRefused = cudaErrorInvalidValue;
  constexpr i64 kHuge = i64{1} << 60;
  const Case cases[] = {
      {"backward, n = 0", backward(nullptr, nullptr, nullptr, nullptr, 0), cudaSuccess},
      {"backward, n = -1", backward(dy, y, mask, dx, -1), kRefused},
      {"backward, n = 2^60", backward(dy, y, mask, dx, kHuge), kRefused},
      {"backward, beyond the address space", backward(at(~u64{0x7ff}), y, mask, dx, kN), kRefused},
      {"backward, dy null", backward(nullptr, y, mask, dx, kN), kRefused},
      {"backward, y null", backward(dy, nullptr, mask, dx, kN), kRefused},
      {"backward, mask null", backward(dy, y, nullptr, dx, kN), kRefused},
      {"backward, dx null", backward(dy, y, mask, nullptr, kN), kRefused},
      {"backward, dx not aligned to its element", backward(dy, y, mask, at(0x30002), kN), kRefused},
      {"backward, mask not aligned to a word", backward(dy, y, bits_at(0x40001), dx, kN), kRefused},
      {"backward, dx one element into dy", backward(dy, y, mask, dy + 1, kN), kRefused},
      {"backward, dx over y", backward(dy, y, mask, y, kN), kRefused},
      {"backward, dx over the last word of the mask", backward(dy, y, bits_at(0x30000 - 4 * ((kN + 31) / 32 - 1)), dx, kN), kRefused},
      {"forward, n = 0", forward(nullptr, nullptr, nullptr, 0), cudaSuccess},
      {"forward, n = -1", forward(y, dx, mask, -1), kRefused},
      {"forward, x null", forward(nullptr, dx, mask, kN), kRefused},
      {"forward, y null", forward(y, nullptr, mask, kN), kRefused},
      {"forward, mask null", forward(y, dx, nullptr, kN), kRefused},
      {"forward, y one element into x", forward(y, y + 1, mask, kN), kRefused},
      {"forward, mask over x", forward(y, dx, bits_at(0x20004), kN), kRefused},
      {"forward, mask over y", forward(y, dx, bits_at(0x30004), kN), kRefused},
  };
  int wrong = 0;
  for (const Case& each : cases) {
    if (each.got == each.want) continue;
    std::printf("%s: %s instead of %s\n", each.what, cudaGetErrorName(each.got), cudaGetErrorName(each.want));
    ++wrong;
  }
  std::printf("%zu calls, %d answered wrongly\n", std::size(cases), wrong);
  return wrong == 0 ? kernels::kExitHolds : kernels::kExitViolated;
}

template <class T>
void gelu_equality(Report& report, bool reduced) {
  const char* format = kernels::Format<T>::kName;
  // All patterns; 16-bit formats 64 times over with other dy and mask bits. Reduced: a prefix, with a ragged end.
  const u64 patterns = sizeof(T) == 4 ? u64{1} << 32 : u64{1} << 22;
  const i64 chunk = reduced ? (i64{1} << 17) + 5 : static_cast<i64>(std::min<u64>(patterns, u64{1} << 26));
  const u64 end = reduced ? 1 : patterns;
  const Array<T> argument_array(chunk), gradient_array(chunk), out(chunk);
  const Array<u32> mask((chunk + 31) / 32);
  std::vector<T> host;
  std::vector<u32> host_mask;
  std::string wrong;
  u64 hash = 0, outputs = 0;
  for (u64 begin = 0; begin < end && wrong.empty(); begin += static_cast<u64>(chunk)) {
    fill(argument_array, ArgumentAt<T>{begin});
    fill(gradient_array, GradientAt<T>{begin});
    for (const bool complement : {false, true}) {
      fill(mask, MaskAt{begin / 32, complement});
      check(kernels::cuda::launch_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(gradient_array.get(), argument_array.get(),
                                                                                          mask.get(), out.get(), chunk, nullptr),
            "gelu_backward");
      host_gelu_backward<T>(begin, chunk, complement, host);
      if (wrong.empty()) wrong = difference("dx", out, host, begin, hash);
      outputs += static_cast<u64>(chunk);
    }
  }
  report.add("gelu_backward, both mask values", format, outputs, hash, wrong);
  wrong.clear(), hash = outputs = 0;
  for (u64 begin = 0; begin < end && wrong.empty(); begin += static_cast<u64>(chunk)) {
    fill(argument_array, ArgumentAt<T>{begin});
    check(
        kernels::cuda::launch_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(argument_array.get(), out.get(), mask.get(), chunk, nullptr),
        "gelu_forward");
    host_gelu_forward<T>(begin, chunk, host, host_mask);
    wrong = difference("y", out, host, begin, hash);
    if (wrong.empty()) wrong = difference("mask", mask, host_mask, begin / 32, hash);
    outputs += static_cast<u64>(chunk);
  }
  report.add("gelu_forward and mask", format, outputs, hash, wrong);
  schedule_equality<T, kernels::DefaultGpuSchedule>(report, "gelu, default schedule");
  schedule_equality<T, ByColumns>(report, "gelu, coefficients by columns");
  schedule_equality<T, ByRows>(report, "gelu, coefficients by rows");
  schedule_equality<T, ByCaches>(report, "gelu, coefficients from the caches");
}

// Overwrites arrays, so that what is compared is what was computed last; done when this returns.
template <class... Arrays>
void spoil_all(const Arrays&... arrays) {
  constexpr int kByte = 0xcb;
  (check(cudaMemset(arrays.get(), kByte, static_cast<size_t>(arrays.size()) * sizeof(*arrays.get())), "spoil"), ...);
  check(cudaDeviceSynchronize(), "spoil");
}

// Of the forwards of each case below, y may take the place of x, and of the backwards dx that of dy.
enum class Place { own, input };

// GELU on every kind of argument, forward, and backward from outputs that are any patterns.
template <class T>
struct GeluCase {
  explicit GeluCase(i64 elements) : n(elements), x(n), y(n), dy(n), dx(n), mask((n + 31) / 32), mask_out(mask.size()) {
    host_gelu_forward<T>(0, n, host_y, host_mask);
    host_gelu_backward<T>(0, n, false, host_dx);
    fill(x, ArgumentAt<T>{0});
    fill(dy, GradientAt<T>{0});
    fill(mask, MaskAt{0, false});
  }
  void enqueue(Place, cudaStream_t stream) const {
    check(kernels::cuda::launch_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(x.get(), y.get(), mask_out.get(), n, stream),
          "gelu_forward");
    check(kernels::cuda::launch_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(dy.get(), x.get(), mask.get(), dx.get(), n, stream),
          "gelu_backward");
  }
  void spoil() const { spoil_all(y, dx, mask_out); }
  std::string wrong(Place, u64& hash) const {
    std::string wrong = difference("y", y, host_y, 0, hash);
    if (wrong.empty()) wrong = difference("mask", mask_out, host_mask, 0, hash);
    if (wrong.empty()) wrong = difference("dx", dx, host_dx, 0, hash);
    return wrong;
  }
  std::string name() const { return "gelu"; }
  i64 outputs() const { return 2 * n; }

  i64 n;
  std::vector<T> host_y, host_dx;
  std::vector<u32> host_mask;
  Array<T> x, y, dy, dx;
  Array<u32> mask, mask_out;
};

template <class T>
struct BiasCase {
  BiasCase(i64 rows_, i64 n_)
      : rows(rows_), n(n_), host(host_bias<T>(rows, n)), x(rows * n), y(rows * n), dy(rows * n), dx(rows * n), bias(n), dbias(n),
        workspace(kernels::cuda::bias_backward_workspace(rows, n)), mask((rows * n + 31) / 32) {
    fill(x, UniformAt<T>{kXStream});
    fill(dy, UniformAt<T>{kDyStream});
    fill(bias, UniformAt<float>{kBetaStream});
  }
  void enqueue(Place place, cudaStream_t stream) const {
    T *const to = y_at(place).get(), *const gradient_to = dx_at(place).get();
    check(kernels::cuda::launch_bias_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(x.get(), bias.get(), rows, n, to, mask.get(), stream),
          "bias_gelu_forward");
    check(kernels::cuda::launch_bias_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(
              dy.get(), to, mask.get(), rows, n, gradient_to, dbias.get(), workspace.get(), workspace.size(), stream),
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

// Schedules of the norms beside the default: the other homes of a row, sums apart, warps that share a row, slots side by side.
struct NormsShared {
  static constexpr const char* kName = ", rows in shared memory";
  static constexpr kernels::GpuNormSchedule kSchedule = {.row_warps = 4, .blocks_per_sm = 2, .home = kernels::RowHome::shared};
};
struct NormsInMemory {
  static constexpr const char* kName = ", rows read again";
  static constexpr kernels::GpuNormSchedule kSchedule = {.row_warps = 32, .access_bytes = 8, .home = kernels::RowHome::memory};
};
struct NormsApart {
  static constexpr const char* kName = ", sums apart";
  static constexpr kernels::GpuNormSchedule kSchedule = {
      .octets = 2, .blocks_per_sm = 4, .sums = kernels::ColumnSums::separate, .loads = kernels::CacheHint::streaming};
};
struct NormsSideBySide {
  static constexpr const char* kName = ", slots side by side";
  static constexpr kernels::GpuNormSchedule kSchedule = {
      .row_warps = 8, .octets = 1, .block_rows = 4, .rows_ahead = 1, .stores = kernels::CacheHint::streaming};
};

template <Norm N, class T, bool Residual = false, class Schedule = kernels::DefaultGpuNormSchedule>
struct NormCase {
  static constexpr bool kLayer = N == Norm::layer;

  NormCase(i64 rows_, i64 n_)
      : rows(rows_), n(n_), host(host_norm<T>(kLayer, Residual, rows, n)), x(rows * n), y(rows * n), dy(rows * n), dx(rows * n),
        residual(Residual ? rows * n : 0), z(residual.size()), next(residual.size()), gamma(n), beta(n), rstd(rows), dgamma(n), dbeta(n),
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
      check(kernels::cuda::launch_residual_norm_forward<N, T, Schedule>(x.get(), residual.get(), gamma.get(), offset, rows, n, kEps,
                                                                        z_at(place).get(), to, rstd.get(), {}, stream),
            "norm forward");
      check(kernels::cuda::launch_residual_norm_backward<N, T, Schedule>(dy.get(), to, next.get(), gamma.get(), offset, rstd.get(), rows, n,
                                                                         gradient_to, dgamma.get(), to_dbeta, {}, workspace.get(),
                                                                         workspace.size(), stream),
            "norm backward");
    } else {
      check(kernels::cuda::launch_norm_forward<N, T, Schedule>(x.get(), gamma.get(), offset, rows, n, kEps, to, rstd.get(), {}, stream),
            "norm forward");
      check(kernels::cuda::launch_norm_backward<N, T, Schedule>(dy.get(), to, gamma.get(), offset, rstd.get(), rows, n, gradient_to,
                                                                dgamma.get(), to_dbeta, {}, workspace.get(), workspace.size(), stream),
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
    std::string text = std::string(Residual ? "residual " : "") + (kLayer ? "layernorm" : "rmsnorm") + " " + std::to_string(rows) + " x " +
                       std::to_string(n);
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

// In place, on the default stream.
template <class T, class Case>
void matrix_equality(Report& report, const Case& work) {
  work.enqueue(Place::input, nullptr);
  u64 hash = 0;
  const std::string wrong = work.wrong(Place::input, hash);
  report.add(work.name(), kernels::Format<T>::kName, static_cast<u64>(work.outputs()), hash, wrong);
}

template <class T>
void equality_of(Report& report, bool reduced) {
  gelu_equality<T>(report, reduced);
  // Every number of warps per row, ragged ends, one row, many rows over few columns, the widest row that a group of steps holds.
  using Shape = std::pair<i64, i64>;
  std::vector<Shape> shapes = {{1, 1}, {7, 33}, {64, 768}};
  if (!reduced)
    shapes.insert(shapes.end(), {{1000, 1000}, {100'000, 64}, {512, 3000}, {300, 7000}, {4000, 8192}, {3000, 4096}, {128, 12'288}, {16, 65'536}, {3, 100'001}});
  for (const auto& [rows, n] : shapes) {
    matrix_equality<T>(report, BiasCase<T>(rows, n));
    matrix_equality<T>(report, NormCase<Norm::layer, T>(rows, n));
    matrix_equality<T>(report, NormCase<Norm::rms, T>(rows, n));
    // Both norms with a residual between the formats: the body is one template.
    matrix_equality<T>(report, NormCase<sizeof(T) == 4 ? Norm::rms : Norm::layer, T, true>(rows, n));
    if constexpr (kernels::cuda::kIsBf16<T>) {
      matrix_equality<T>(report, NormCase<Norm::layer, T, false, NormsShared>(rows, n));
      matrix_equality<T>(report, NormCase<Norm::layer, T, true, NormsInMemory>(rows, n));
      matrix_equality<T>(report, NormCase<Norm::layer, T, false, NormsApart>(rows, n));
      matrix_equality<T>(report, NormCase<Norm::layer, T, false, NormsSideBySide>(rows, n));
    }
  }
}

// --- Streams and graphs ------------------------------------------------------------------------------------------------------------

// The work on a stream that does not wait for the default one, then as a graph launched twice. While a stream is captured, a launch on the
// default stream is an error, and so is an allocation or a wait.
template <class T, class Case>
void stream_equality(Report& report, const Case& work) {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const auto outcome = [&](const char* how) {
    check(cudaStreamSynchronize(stream), how);
    u64 hash = 0;
    const std::string wrong = work.wrong(Place::own, hash);
    report.add(work.name() + ", " + how, kernels::Format<T>::kName, static_cast<u64>(work.outputs()), hash, wrong);
  };
  work.spoil();
  work.enqueue(Place::own, stream);
  outcome("own stream");

  cudaGraph_t graph;
  cudaGraphExec_t instance;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  work.enqueue(Place::own, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiateWithFlags(&instance, graph, 0), "graph");
  work.spoil();
  for (int launch = 0; launch < 2; ++launch) check(cudaGraphLaunch(instance, stream), "graph");
  outcome("graph");
  check(cudaGraphExecDestroy(instance), "graph");
  check(cudaGraphDestroy(graph), "graph");
  check(cudaStreamDestroy(stream), "stream");
}

template <class T>
void streams_of(Report& report) {
  stream_equality<T>(report, GeluCase<T>((i64{1} << 17) + 5));
  constexpr std::pair<i64, i64> kShapes[] = {{3000, 1000}, {333, 77}};  // several launches to each sum over rows
  for (const auto& [rows, n] : kShapes) {
    stream_equality<T>(report, BiasCase<T>(rows, n));
    stream_equality<T>(report, NormCase<Norm::layer, T>(rows, n));
    stream_equality<T>(report, NormCase<Norm::rms, T>(rows, n));
  }
}

// --- Timing ----------------------------------------------------------------------------------------------------------------------

struct Timed {
  std::string name;
  double bytes;
  std::function<void()> launch;
  std::vector<float> ms;
};

double median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The norms of the same elements as matrices of several widths; gamma, beta and what is written per row or column are left out of the bytes.
template <class T>
void add_norm_cases(std::vector<Timed>& cases, const Array<T>& x, const Array<T>& dy, const Array<T>& out) {
  const double bytes = static_cast<double>(x.size()) * sizeof(T);
  for (const i64 n : {1024, 2048, 4096, 8192}) {
    const i64 rows = x.size() / n;
    struct Columns {
      Columns(i64 rows, i64 n) : gamma(n), beta(n), rstd(rows), dgamma(n), dbeta(n), workspace(kernels::cuda::norm_backward_workspace(rows, n)) {}
      Array<float> gamma, beta, rstd, dgamma, dbeta, workspace;
    };
    const auto columns = std::make_shared<Columns>(rows, n);
    fill(columns->gamma, GammaAt{});
    fill(columns->beta, UniformAt<float>{kBetaStream});
    fill(columns->rstd, UniformAt<float>{kXStream});
    const auto add = [&]<Norm N>(const std::string& name) {
      constexpr bool kLayer = N == Norm::layer;
      const std::string width = " " + std::to_string(n);
      cases.push_back({name + "_backward" + width, 3 * bytes, [&, columns, rows, n] {
                         const Columns& c = *columns;
                         check(kernels::cuda::launch_norm_backward<N, T>(dy.get(), x.get(), c.gamma.get(), kLayer ? c.beta.get() : nullptr,
                                                                         c.rstd.get(), rows, n, out.get(), c.dgamma.get(),
                                                                         kLayer ? c.dbeta.get() : nullptr, {}, c.workspace.get(),
                                                                         c.workspace.size(), nullptr),
                               "norm backward");
                       },
                       {}});
      cases.push_back({name + "_forward" + width, 2 * bytes, [&, columns, rows, n] {
                         const Columns& c = *columns;
                         check(kernels::cuda::launch_norm_forward<N, T>(x.get(), c.gamma.get(), kLayer ? c.beta.get() : nullptr, rows, n, kEps,
                                                                        out.get(), c.rstd.get(), {}, nullptr),
                               "norm forward");
                       },
                       {}});
    };
    add.template operator()<Norm::layer>("layernorm");
    add.template operator()<Norm::rms>("rmsnorm");
  }
}

template <class T>
std::string time_format(double copy_share_floor) {
  constexpr int kSamples = 40;
  constexpr double kWarmUpMs = 200;  // until the clocks have risen
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory size");
  i64 n = i64{1} << 28;  // arrays of 0.5 to 1 GiB: an order beyond any L2
  while (static_cast<size_t>(n) * sizeof(T) * 4 > free) n /= 2;
  const Array<T> x(n), dy(n), out(n);
  const Array<u32> mask(n / 32);
  fill(x, UniformAt<T>{kXStream});
  fill(dy, UniformAt<T>{kDyStream});
  fill(mask, MaskAt{0, false});
  const double elements = static_cast<double>(n), size = sizeof(T);
  std::vector<Timed> cases;
  cases.push_back(
      {"copy",
       2 * size * elements,
       [&] { check(cudaMemcpyAsync(out.get(), x.get(), static_cast<size_t>(n) * sizeof(T), cudaMemcpyDeviceToDevice, nullptr), "copy"); },
       {}});
  cases.push_back({"gelu_backward",
                   (3 * size + 0.125) * elements,
                   [&] {
                     check(kernels::cuda::launch_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(dy.get(), x.get(), mask.get(),
                                                                                                         out.get(), n, nullptr),
                           "gelu_backward");
                   },
                   {}});
  cases.push_back({"gelu_forward",
                   (2 * size + 0.125) * elements,
                   [&] {
                     check(
                         kernels::cuda::launch_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(x.get(), out.get(), mask.get(), n, nullptr),
                         "gelu_forward");
                   },
                   {}});
  // The same elements as a matrix.
  constexpr i64 kColumns = 1024;
  const i64 matrix_rows = n / kColumns;
  const Array<float> bias(kColumns), dbias(kColumns), workspace(kernels::cuda::bias_backward_workspace(matrix_rows, kColumns));
  fill(bias, UniformAt<float>{kBetaStream});
  cases.push_back({"bias_backward",
                   (3 * size + 0.125) * elements,
                   [&] {
                     check(kernels::cuda::launch_bias_gelu_backward<typename kernels::DefaultFit<T>::Type, T>(
                               dy.get(), x.get(), mask.get(), matrix_rows, kColumns, out.get(), dbias.get(), workspace.get(),
                               workspace.size(), nullptr),
                           "bias_gelu_backward");
                   },
                   {}});
  cases.push_back({"bias_forward",
                   (2 * size + 0.125) * elements,
                   [&] {
                     check(kernels::cuda::launch_bias_gelu_forward<typename kernels::ForwardFit<T>::Type, T>(
                               x.get(), bias.get(), matrix_rows, kColumns, out.get(), mask.get(), nullptr),
                           "bias_gelu_forward");
                   },
                   {}});
  add_norm_cases(cases, x, dy, out);
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  const auto sample = [&](Timed& which) {
    check(cudaEventRecord(start), "event");
    which.launch();
    check(cudaEventRecord(stop), "event");
    check(cudaEventSynchronize(stop), which.name.c_str());
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, stop), "event");
    return ms;
  };
  for (double warm = 0; warm < kWarmUpMs;)
    for (Timed& which : cases) warm += sample(which);
  u64 order = 1;
  for (int round = 0; round < kSamples; ++round) {
    order = mix(order);  // another first kernel each round
    for (size_t i = 0; i < cases.size(); ++i) {
      Timed& which = cases[(i + order) % cases.size()];
      which.ms.push_back(sample(which));
    }
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  // Rounds disturbed from outside show in the copy; they are reported and left out.
  const float best = *std::min_element(cases[0].ms.begin(), cases[0].ms.end());
  std::string json;
  for (const Timed& which : cases) {
    std::vector<float> kept;
    std::string samples;
    for (size_t r = 0; r < which.ms.size(); ++r) {
      samples += (r == 0 ? "" : ", ") + std::to_string(which.ms[r]);
      if (best >= copy_share_floor * cases[0].ms[r]) kept.push_back(which.ms[r]);
    }
    const double gb_per_s = which.bytes / median(kept) * 1e-6;
    std::vector<float> copies;
    for (const float ms : cases[0].ms)
      if (best >= copy_share_floor * ms) copies.push_back(ms);
    const double share = gb_per_s / (cases[0].bytes / median(copies) * 1e-6);
    std::printf("%-23s %-4s %8.1f GB/s  %5.1f%% of copy  %8.2f G elements/s  (%zu of %zu rounds kept)\n", which.name.c_str(),
                kernels::Format<T>::kName, gb_per_s, 100 * share, elements / median(kept) * 1e-6, kept.size(), which.ms.size());
    json += (json.empty() ? "" : ",\n    ") + ("{\"name\": \"" + which.name) + "\", \"format\": \"" + kernels::Format<T>::kName +
            "\", \"elements\": " + std::to_string(n) + ", \"bytes\": " + std::to_string(static_cast<u64>(which.bytes)) +
            ", \"gb_per_s\": " + std::to_string(gb_per_s) + ", \"share_of_copy\": " + std::to_string(share) + ", \"ms\": [" + samples +
            "]}";
  }
  return json;
}

int run(const std::vector<std::string>& args) {
  bool reduced = false;
  std::string out;
  const std::string command = args.empty() ? "" : args.front();
  if (command != "equality" && command != "streams" && command != "time" && command != "arguments")
    throw kernels::SpecError("outgrad-gpu: expected 'equality', 'streams', 'time' or 'arguments'");
  for (size_t i = 1; i < args.size(); ++i) {
    if (args[i] == "--reduced" && command == "equality")
      reduced = true;
    else if (args[i] == "--out" && i + 1 < args.size() && command != "arguments")
      out = args[++i];
    else
      throw kernels::SpecError("outgrad-gpu", args[i], "unknown option");
  }
  if (command == "arguments") return std::max(refused_arguments(), refused_norm_arguments());
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0)
    throw kernels::CudaError(std::string("outgrad-gpu: no CUDA device: ") +
                             cudaGetErrorString(status != cudaSuccess ? status : cudaErrorNoDevice));
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "device properties");
  std::printf("%s, sm_%d%d, %d SMs\n", device.name, device.major, device.minor, device.multiProcessorCount);

  std::string key, rows;
  bool holds = true;
  if (command == "equality") {
    Report report;
    equality_of<F16>(report, reduced);
    equality_of<BF16>(report, reduced);
    equality_of<float>(report, reduced);
    key = "comparisons", rows = report.json, holds = report.equal;
  } else if (command == "streams") {
    Report report;
    streams_of<F16>(report);
    streams_of<BF16>(report);
    streams_of<float>(report);
    key = "comparisons", rows = report.json, holds = report.equal;
  } else {
    constexpr double kCopyShareFloor = 0.9;  // of the best round, as on the CPU
    const std::string f32 = time_format<float>(kCopyShareFloor), f16 = time_format<F16>(kCopyShareFloor),
                      bf16 = time_format<BF16>(kCopyShareFloor);
    key = "timings", rows = f32 + ",\n    " + f16 + ",\n    " + bf16;
  }
  if (!out.empty())
    write_text(out, "{\"schema\": \"outgrad.gpu_" + command + "/1\", \"device\": \"" + device.name + "\", \"arch\": \"sm_" +
                        std::to_string(10 * device.major + device.minor) + "\", \"sms\": " + std::to_string(device.multiProcessorCount) +
                        ",\n  \"" + key + "\": [\n    " + rows + "]}\n");
  return holds ? kernels::kExitHolds : kernels::kExitViolated;
}

}  // namespace
}  // namespace outgrad::autotune::gpu

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return outgrad::autotune::gpu::run(std::vector<std::string>(argv + 1, argv + argc)); });
}
