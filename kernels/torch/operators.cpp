// outgrad's kernels as PyTorch operators, over LibTorch's stable ABI: one binary for every release from 2.10 on.
//
// Operators are plain functions of tensors: autograd stands outside, in Python (outgrad/functional.py). They take dense
// contiguous tensors; the Python side sees to that, and to messages that name the caller's argument.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <tuple>

#include "kernels/accuracy.h"
#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/host/dropout.h"

namespace outgrad::torch_operators {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

void require(outgrad_status status) { STD_TORCH_CHECK(status == OUTGRAD_OK, outgrad_error_message()); }

outgrad_format format_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return OUTGRAD_F32;
    case ScalarType::Half: return OUTGRAD_F16;
    case ScalarType::BFloat16: return OUTGRAD_BF16;
    default: STD_TORCH_CHECK(false, "outgrad: a tensor is not of float32, float16 or bfloat16");
  }
}

void require_like(const Tensor& tensor, const Tensor& model, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == model.scalar_type() && tensor.numel() == model.numel(), "outgrad: ", name,
                  " is not of the type and number of elements of the others");
}

void require_elements(const Tensor& tensor, ScalarType type, std::int64_t count, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == type && tensor.numel() == count, "outgrad: ", name, " has ", tensor.numel(), " elements or another type, where ",
                  count, " are needed");
}

const void* data(const Tensor& tensor) {
  STD_TORCH_CHECK(tensor.is_contiguous(), "outgrad: an operator takes contiguous tensors");
  return tensor.const_data_ptr();
}
template <class T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(data(tensor));
}
template <class T>
T* result(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// Null where there is none.
const float* floats(const OptionalTensor& tensor, std::int64_t count, const char* name) {
  if (!tensor) return nullptr;
  require_elements(*tensor, ScalarType::Float, count, name);
  return data<float>(*tensor);
}

// Asks for huge pages under an array that malloc has just mapped. From 32 MiB on, glibc maps every array anew (the most that M_MMAP_THRESHOLD
// grows to by itself), and the first touch of 2^24 floats, page by page of 4 KiB, takes four times as long as GELU.
void ask_for_huge_pages([[maybe_unused]] const Tensor& tensor, [[maybe_unused]] std::int64_t elements) {
#ifdef __linux__
  constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21, kMapped = std::uintptr_t{1} << 25;
  const std::uintptr_t bytes = static_cast<std::uintptr_t>(elements) * tensor.element_size();
  if (bytes < kMapped) return;
  const auto begin = (reinterpret_cast<std::uintptr_t>(tensor.mutable_data_ptr()) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(tensor.mutable_data_ptr()) + bytes) & ~(kHugePage - 1);
  // Where the system has none, it says so, and all is as before.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Not torch::stable::empty_like and new_empty, which pass through the dispatcher: for small tensors that is a third of a call.
Tensor made(const Tensor& model, std::span<const std::int64_t> size, std::int32_t type) {
  constexpr std::size_t kMostDimensions = 64;
  STD_TORCH_CHECK(size.size() <= kMostDimensions, "outgrad: a tensor has more than 64 dimensions");
  std::int64_t strides[kMostDimensions], stride = 1;
  for (std::size_t k = size.size(); k-- > 0; stride *= std::max<std::int64_t>(size[k], 1)) strides[k] = stride;
  std::int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(model.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(model.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<std::int64_t>(size.size()), size.data(), strides, type, device_type, device_index, &handle));
  const Tensor tensor(handle);
  ask_for_huge_pages(tensor, size.empty() ? 1 : strides[0] * size[0]);
  return tensor;
}
Tensor floats_of(const Tensor& model, std::initializer_list<std::int64_t> size) { return made(model, {size.begin(), size.size()}, aoti_torch_dtype_float32()); }
Tensor made_like(const Tensor& model) {
  std::int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(model.get(), &type));
  const auto size = model.sizes();
  return made(model, {size.data(), size.size()}, type);
}

std::int64_t mask_words(std::int64_t n) { return (n + 31) / 32; }

// --- Activations ---------------------------------------------------------------------------------------------------

template <class... Fit>
constexpr std::array<bool, kernels::kActivations> masked_of(kernels::FitList<Fit...>) {
  return {Fit::kMasked...};
}
constexpr auto kMasked = masked_of(kernels::ActivationFits<float>::Type{});

// Of an unknown one too, which the C interface refuses.
bool is_masked(std::int64_t activation) { return activation < 0 || activation >= kernels::kActivations || kMasked[static_cast<std::size_t>(activation)]; }

// The mask of an activation without a minimum has no words.
std::tuple<Tensor, Tensor> activation_forward(const Tensor& x, std::int64_t activation) {
  const std::int64_t n = x.numel();
  const std::int64_t words[] = {is_masked(activation) ? mask_words(n) : 0};
  const Tensor y = made_like(x), mask = made(x, words, aoti_torch_dtype_int32());
  require(outgrad_activation_forward(static_cast<outgrad_activation>(activation), format_of(x), data(x), y.mutable_data_ptr(), result<std::uint32_t>(mask), n));
  return {y, mask};
}

Tensor activation_backward(const Tensor& dy, const Tensor& y, const OptionalTensor& mask, std::int64_t activation) {
  const std::int64_t n = y.numel();
  require_like(dy, y, "dy");
  const bool masked = mask && is_masked(activation);
  if (masked) require_elements(*mask, ScalarType::Int, mask_words(n), "mask");
  const Tensor dx = made_like(dy);
  require(outgrad_activation_backward(static_cast<outgrad_activation>(activation), format_of(y), data(dy), data(y),
                                      masked ? data<std::uint32_t>(*mask) : nullptr, dx.mutable_data_ptr(), n));
  return dx;
}

// GELU of what a linear layer gives before its bias, over rows of n = the bias's length.
std::int64_t rows_of(const Tensor& matrix, std::int64_t n) {
  const std::int64_t rows = n > 0 ? matrix.numel() / n : 0;
  STD_TORCH_CHECK(rows * n == matrix.numel(), "outgrad: ", matrix.numel(), " elements are no rows of ", n);
  return rows;
}

std::tuple<Tensor, Tensor> bias_gelu_forward(const Tensor& x, const Tensor& bias) {
  const std::int64_t n = bias.numel(), rows = rows_of(x, n), words[] = {mask_words(x.numel())};
  require_elements(bias, ScalarType::Float, n, "bias");
  const Tensor y = made_like(x), mask = made(x, words, aoti_torch_dtype_int32());
  require(outgrad_bias_gelu_forward(format_of(x), data(x), data<float>(bias), rows, n, y.mutable_data_ptr(), result<std::uint32_t>(mask)));
  return {y, mask};
}

std::tuple<Tensor, Tensor> bias_gelu_backward(const Tensor& dy, const Tensor& y, const Tensor& mask, std::int64_t columns) {
  const std::int64_t rows = rows_of(y, columns);
  require_like(dy, y, "dy");
  require_elements(mask, ScalarType::Int, mask_words(y.numel()), "mask");
  std::size_t bytes = 0;
  require(outgrad_bias_backward_workspace(format_of(y), rows, columns, &bytes));
  const Tensor dx = made_like(dy), dbias = floats_of(y, {columns}), workspace = floats_of(y, {static_cast<std::int64_t>((bytes + 3) / 4)});
  require(outgrad_bias_gelu_backward(format_of(y), data(dy), data(y), data<std::uint32_t>(mask), rows, columns, dx.mutable_data_ptr(), result<float>(dbias),
                                     workspace.mutable_data_ptr(), bytes));
  return {dx, dbias};
}

// --- Norms over rows of n ------------------------------------------------------------------------------------------

// What forward and backward have in common.
struct Norm {
  std::int64_t rows, n, side_count = 0;
  const float *gamma, *beta;
  const std::int32_t* side = nullptr;

  Norm(const Tensor& matrix, std::int64_t columns, const OptionalTensor& gamma_, const OptionalTensor& beta_, const OptionalTensor& channels)
      : rows(rows_of(matrix, columns)), n(columns), gamma(floats(gamma_, columns, "gamma")), beta(floats(beta_, columns, "beta")) {
    if (!channels) return;
    side_count = channels->numel();
    require_elements(*channels, ScalarType::Int, side_count, "side_channels");
    side = data<std::int32_t>(*channels);
  }
};

std::tuple<Tensor, Tensor, Tensor> norm_forward(const Tensor& x, std::int64_t columns, const OptionalTensor& gamma, const OptionalTensor& beta, double eps,
                                                bool rms, const OptionalTensor& side_channels) {
  const Norm norm(x, columns, gamma, beta, side_channels);
  const Tensor y = made_like(x), rstd = floats_of(x, {norm.rows}), x_hat = floats_of(x, {norm.rows, norm.side_count});
  const auto e = static_cast<float>(eps);
  float* const side_x_hat = norm.side_count > 0 ? result<float>(x_hat) : nullptr;
  require(rms ? outgrad_rmsnorm_forward(format_of(x), data(x), norm.gamma, norm.rows, norm.n, e, y.mutable_data_ptr(), result<float>(rstd), norm.side,
                                        norm.side_count, side_x_hat)
              : outgrad_layernorm_forward(format_of(x), data(x), norm.gamma, norm.beta, norm.rows, norm.n, e, y.mutable_data_ptr(), result<float>(rstd),
                                          norm.side, norm.side_count, side_x_hat));
  return {y, rstd, x_hat};
}

// dgamma and dbeta have no elements where they are not wanted.
std::tuple<Tensor, Tensor, Tensor> norm_backward(const Tensor& dy, const Tensor& y, std::int64_t columns, const OptionalTensor& gamma,
                                                 const OptionalTensor& beta, const Tensor& rstd, bool rms, const OptionalTensor& side_channels,
                                                 const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta) {
  const Norm norm(y, columns, gamma, beta, side_channels);
  require_like(dy, y, "dy");
  require_elements(rstd, ScalarType::Float, norm.rows, "rstd");
  require_elements(side_x_hat, ScalarType::Float, norm.rows * norm.side_count, "side_x_hat");
  std::size_t bytes = 0;
  require(outgrad_norm_backward_workspace(format_of(y), norm.rows, norm.n, &bytes));
  const Tensor dx = made_like(dy), workspace = floats_of(y, {static_cast<std::int64_t>((bytes + 3) / 4)});
  const Tensor dgamma = floats_of(y, {with_dgamma ? norm.n : 0}), dbeta = floats_of(y, {with_dbeta ? norm.n : 0});
  float* const to_dgamma = with_dgamma ? result<float>(dgamma) : nullptr;
  float* const to_dbeta = with_dbeta ? result<float>(dbeta) : nullptr;
  const float* const x_hat = norm.side_count > 0 ? data<float>(side_x_hat) : nullptr;
  require(rms ? outgrad_rmsnorm_backward(format_of(y), data(dy), data(y), norm.gamma, data<float>(rstd), norm.rows, norm.n, dx.mutable_data_ptr(), to_dgamma,
                                         norm.side, norm.side_count, x_hat, workspace.mutable_data_ptr(), bytes)
              : outgrad_layernorm_backward(format_of(y), data(dy), data(y), norm.gamma, norm.beta, data<float>(rstd), norm.rows, norm.n, dx.mutable_data_ptr(),
                                           to_dgamma, to_dbeta, norm.side, norm.side_count, x_hat, workspace.mutable_data_ptr(), bytes));
  return {dx, dgamma, dbeta};
}

// --- Dropout -------------------------------------------------------------------------------------------------------

// Applied to dy with the same seed, an int64 tensor of one element on the CPU, it is its own backward.
Tensor dropout(const Tensor& x, const Tensor& seed, double p) {
  require_elements(seed, ScalarType::Long, 1, "seed");
  const Tensor y = made_like(x);
  const std::uint64_t key = *data<std::uint64_t>(seed);
  const std::int64_t n = x.numel();
  switch (x.scalar_type()) {
    case ScalarType::Float: kernels::dropout(data<float>(x), result<float>(y), n, key, p); break;
    case ScalarType::Half: kernels::dropout(data<kernels::F16>(x), result<kernels::F16>(y), n, key, p); break;
    case ScalarType::BFloat16: kernels::dropout(data<kernels::BF16>(x), result<kernels::BF16>(y), n, key, p); break;
    default: STD_TORCH_CHECK(false, "outgrad: a tensor is not of float32, float16 or bfloat16");
  }
  return y;
}

}  // namespace
}  // namespace outgrad::torch_operators

STABLE_TORCH_LIBRARY(outgrad, m) {
  m.def("activation_forward(Tensor x, int activation) -> (Tensor, Tensor)");
  m.def("activation_backward(Tensor dy, Tensor y, Tensor? mask, int activation) -> Tensor");
  m.def("bias_gelu_forward(Tensor x, Tensor bias) -> (Tensor, Tensor)");
  m.def("bias_gelu_backward(Tensor dy, Tensor y, Tensor mask, SymInt columns) -> (Tensor, Tensor)");
  m.def("norm_forward(Tensor x, SymInt columns, Tensor? gamma, Tensor? beta, float eps, bool rms, Tensor? side_channels) -> (Tensor, Tensor, Tensor)");
  m.def(
      "norm_backward(Tensor dy, Tensor y, SymInt columns, Tensor? gamma, Tensor? beta, Tensor rstd, bool rms, Tensor? side_channels, Tensor side_x_hat, "
      "bool with_dgamma, bool with_dbeta) -> (Tensor, Tensor, Tensor)");
  m.def("dropout(Tensor x, Tensor seed, float p) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(outgrad, CPU, m) {
  using namespace outgrad::torch_operators;
  m.impl("activation_forward", TORCH_BOX(&activation_forward));
  m.impl("activation_backward", TORCH_BOX(&activation_backward));
  m.impl("bias_gelu_forward", TORCH_BOX(&bias_gelu_forward));
  m.impl("bias_gelu_backward", TORCH_BOX(&bias_gelu_backward));
  m.impl("norm_forward", TORCH_BOX(&norm_forward));
  m.impl("norm_backward", TORCH_BOX(&norm_backward));
  m.impl("dropout", TORCH_BOX(&dropout));
}

// --- What the package says of its fits, by ctypes --------------------------------------------------------------------

namespace outgrad::torch_operators {
namespace {

struct Bounds {
  kernels::FitBounds of;
  double k;
};

template <class Fit>
constexpr double coordinate_bound() {
  if constexpr (requires { Fit::kK; }) {
    return Fit::kK;
  } else if constexpr (!Fit::kMasked) {
    return 0;  // the coordinate is y itself
  } else {
    return kernels::FitBounds::kNone;
  }
}

template <class... Fit>
Bounds bounds_of(kernels::FitList<Fit...>, int activation) {
  const Bounds all[] = {{kernels::claims_of<Fit>().bounds, coordinate_bound<Fit>()}...};
  return all[activation];
}

}  // namespace
}  // namespace outgrad::torch_operators

// The fit that a backward runs, the SHA-256 of its coefficient header, and the proven bounds that the header states: {kA + kB,
// kK, kT, kR}, infinite where it states none. 0, or 1 for an activation or a format that is unknown.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_fit(outgrad_activation activation, outgrad_format format, const char** name, const char** sha256,
                                                      double* bounds) {
  using namespace outgrad;
  if (activation < 0 || activation >= kernels::kActivations) return 1;
  torch_operators::Bounds found;
  switch (format) {
    case OUTGRAD_F32: found = torch_operators::bounds_of(kernels::ActivationFits<float>::Type{}, activation); break;
    case OUTGRAD_F16: found = torch_operators::bounds_of(kernels::ActivationFits<kernels::F16>::Type{}, activation); break;
    case OUTGRAD_BF16: found = torch_operators::bounds_of(kernels::ActivationFits<kernels::BF16>::Type{}, activation); break;
    default: return 1;
  }
  *name = outgrad_fit_name(activation, format);
  *sha256 = outgrad_coefficients_sha256(activation, format);
  bounds[0] = found.of.a_plus_b, bounds[1] = found.k, bounds[2] = found.of.t, bounds[3] = found.of.r;
  return 0;
}

extern "C" OUTGRAD_API const char* outgrad_torch_version() { return outgrad_version(); }

// 1 for an activation with a minimum, whose gradient needs a mask; 0 for another, -1 for an unknown one.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_masked(outgrad_activation activation) {
  using namespace outgrad;
  if (activation < 0 || activation >= kernels::kActivations) return -1;
  return torch_operators::is_masked(activation) ? 1 : 0;
}
