// outgrad's kernels as PyTorch operators over LibTorch's stable ABI: one binary for every release from 2.10
// on. Each operator is written once here, as a template over the backend that computes it: Host or Cuda.
//
// Operators are plain functions of tensors; autograd is outside, in Python (outgrad/functional.py). They take
// dense tensors on one device. The Python side makes sure of that, and gives messages that name the caller's
// argument. Results are contiguous.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#ifdef __linux__
#include <dlfcn.h>
#include <sys/mman.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/code.h"
#include "kernels/fp8.h"
#include "kernels/torch/cuda.h"
#include "kernels/torch/host.h"
#include "kernels/torch/require.h"

namespace outgrad::torch_operators {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline outgrad_format format_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return OUTGRAD_F32;
    case ScalarType::Half: return OUTGRAD_F16;
    case ScalarType::BFloat16: return OUTGRAD_BF16;
    default: refuse("a tensor is not of float32, float16 or bfloat16");
  }
}

inline void require_like(const Tensor& tensor, const Tensor& model, const char* name) {
  require(tensor.scalar_type() == model.scalar_type() && tensor.numel() == model.numel(), name,
          " is not of the type and number of elements of the others");
}

inline void require_elements(const Tensor& tensor, ScalarType type, std::int64_t count, const char* name) {
  require(tensor.numel() == count, name, " has ", tensor.numel(), " elements, where ", count, " are needed");
  require(tensor.scalar_type() == type, name, " is not of ", torch::headeronly::toString(type));
}

template <class T>
T* result(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// --- Where an operator computes ------------------------------------------------------------------

struct Place {
  std::int32_t type = 0, index = 0;
  bool operator==(const Place&) const = default;
};
inline Place place_of(const Tensor& tensor) {
  Place place;
  succeed(aoti_torch_get_device_type(tensor.get(), &place.type), "tell the device of a tensor");
  succeed(aoti_torch_get_device_index(tensor.get(), &place.index), "tell the device of a tensor");
  return place;
}

// PyTorch's current stream of a device. The function that returns it is in a library that only PyTorch for
// CUDA has.
inline void* current_stream([[maybe_unused]] const Place& place) {
  void* stream = nullptr;
#ifdef __linux__
  if (place.type == aoti_torch_device_type_cpu()) return nullptr;  // a device that stands in for one
  using Function = AOTITorchError (*)(std::int32_t, void**);
  static const auto function = [] {
    void* const library = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function>(
        library != nullptr ? ::dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr);
  }();
  require(function != nullptr, "this PyTorch does not tell its CUDA stream");
  succeed(function(place.index, &stream), "tell its CUDA stream");
#endif
  return stream;
}

template <class Backend>
Backend backend_at(const Place& place);
template <>
inline Host backend_at<Host>(const Place&) {
  return {};
}
template <>
inline Cuda backend_at<Cuda>(const Place& place) {
  return {std::max(place.index, 0), current_stream(place)};
}

// The place of an operator's first tensor. All other tensors share it, and results are made there.
class Call {
 public:
  explicit Call(const Tensor& first) : place_(place_of(first)) {}

  bool holds(const Tensor& tensor) const { return place_of(tensor) == place_; }
  template <class Backend>
  Backend backend() const {
    return backend_at<Backend>(place_);
  }

  // Its elements in the order of its indices. Where they lie in another one they are copied, for as long as
  // the call lasts. Asking for that here and not in Python spares a call from there for each tensor.
  const void* data(const Tensor& tensor) const {
    require(holds(tensor), "an operator takes tensors on one device");
    return (tensor.is_contiguous() ? tensor : copies_.emplace_back(torch::stable::contiguous(tensor)))
        .const_data_ptr();
  }
  template <class T>
  const T* data(const Tensor& tensor) const {
    return static_cast<const T*>(data(tensor));
  }
  // A parameter, in any of the three formats; null if there is no tensor.
  const void* parameter(const OptionalTensor& tensor, std::int64_t count, const char* name) const {
    if (!tensor) return nullptr;
    require(tensor->numel() == count, name, " has ", tensor->numel(), " elements, where ", count,
            " are needed");
    return data(*tensor);
  }

  Tensor floats_of(std::initializer_list<std::int64_t> size) const {
    return made({size.begin(), size.size()}, aoti_torch_dtype_float32());
  }
  // In the type of a parameter; of float32 if there is none.
  Tensor reals_of(std::int64_t count, const OptionalTensor& model) const {
    return made({&count, 1}, model ? type_of(*model) : aoti_torch_dtype_float32());
  }
  Tensor words_of(std::int64_t count) const { return made({&count, 1}, aoti_torch_dtype_int32()); }
  Tensor octets_of(std::int64_t count) const { return made({&count, 1}, aoti_torch_dtype_uint8()); }
  Tensor bytes_of(std::size_t count) const { return floats_of({static_cast<std::int64_t>((count + 3) / 4)}); }
  Tensor none_like(const Tensor& model) const {
    const std::int64_t none = 0;
    return made({&none, 1}, type_of(model));
  }
  Tensor made_like(const Tensor& model) const {
    const auto size = model.sizes();
    return made({size.data(), size.size()}, type_of(model));
  }

 private:
  static std::int32_t type_of(const Tensor& tensor) {
    std::int32_t type = 0;
    succeed(aoti_torch_get_dtype(tensor.get(), &type), "tell the type of a tensor");
    return type;
  }

  // Asks for huge pages for an array that malloc has just mapped. From 32 MiB on (the most to which
  // M_MMAP_THRESHOLD grows by itself), glibc maps every array anew. The first touch of 2^24 floats, in pages
  // of 4 KiB, takes four times as long as GELU.
  static void ask_for_huge_pages([[maybe_unused]] const Tensor& tensor,
                                 [[maybe_unused]] std::int64_t elements) {
#ifdef __linux__
    constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21, kMapped = std::uintptr_t{1} << 25;
    const std::uintptr_t bytes = static_cast<std::uintptr_t>(elements) * tensor.element_size();
    if (bytes < kMapped) return;
    const auto begin =
        (reinterpret_cast<std::uintptr_t>(tensor.mutable_data_ptr()) + kHugePage - 1) & ~(kHugePage - 1);
    const auto end = (reinterpret_cast<std::uintptr_t>(tensor.mutable_data_ptr()) + bytes) & ~(kHugePage - 1);
    // If the system has no huge pages, the call reports that, and nothing changes.
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
  }

  // Not torch::stable::empty_like and new_empty, because these go through the dispatcher, which is a third of
  // a call for small tensors.
  Tensor made(std::span<const std::int64_t> size, std::int32_t type) const {
    constexpr std::size_t kMostDimensions = 64;
    require(size.size() <= kMostDimensions, "a tensor has more than 64 dimensions");
    std::int64_t strides[kMostDimensions], stride = 1;
    for (std::size_t k = size.size(); k-- > 0; stride *= std::max<std::int64_t>(size[k], 1))
      strides[k] = stride;
    AtenTensorHandle handle = nullptr;
    succeed(aoti_torch_empty_strided(static_cast<std::int64_t>(size.size()), size.data(), strides, type,
                                     place_.type, place_.index, &handle),
            "make a tensor: memory may have run out");
    const Tensor tensor(handle);
    if (place_.type == aoti_torch_device_type_cpu())
      ask_for_huge_pages(tensor, size.empty() ? 1 : strides[0] * size[0]);
    return tensor;
  }

  Place place_;
  mutable std::vector<Tensor> copies_;
};

inline std::int64_t mask_words(std::int64_t n) { return (n + 31) / 32; }
inline std::int64_t mxfp8_scales(std::int64_t n) { return (n + 31) / 32; }

// --- Activations ---------------------------------------------------------------------------------

template <class... Fit>
constexpr std::array<bool, kernels::kActivations> masked_of(kernels::FitList<Fit...>) {
  return {Fit::kMasked...};
}
inline constexpr auto kMasked = masked_of(kernels::ActivationFits<float>::Type{});

// Also for an unknown one, which a backend refuses.
inline bool is_masked(std::int64_t activation) {
  return activation < 0 || activation >= kernels::kActivations ||
         kMasked[static_cast<std::size_t>(activation)];
}

// The mask of an activation without a minimum has no words.
template <class Backend>
std::tuple<Tensor, Tensor> activation_forward(const Tensor& x, std::int64_t activation) {
  const Call call(x);
  const std::int64_t n = x.numel();
  const Tensor y = call.made_like(x), mask = call.words_of(is_masked(activation) ? mask_words(n) : 0);
  call.backend<Backend>().activation_forward(static_cast<outgrad_activation>(activation), format_of(x),
                                             call.data(x), y.mutable_data_ptr(), result<std::uint32_t>(mask),
                                             n);
  return {y, mask};
}

template <class Backend>
Tensor activation_backward(const Tensor& dy, const Tensor& y, const OptionalTensor& mask,
                           std::int64_t activation) {
  const Call call(y);
  const std::int64_t n = y.numel();
  require_like(dy, y, "dy");
  const bool masked = mask && is_masked(activation);
  if (masked) require_elements(*mask, ScalarType::Int, mask_words(n), "mask");
  const Tensor dx = call.made_like(dy);
  call.backend<Backend>().activation_backward(
      static_cast<outgrad_activation>(activation), format_of(y), call.data(dy), call.data(y),
      masked ? call.data<std::uint32_t>(*mask) : nullptr, dx.mutable_data_ptr(), n);
  return dx;
}

// --- Activations that keep something else than y and mask ----------------------------------------

template <class Backend>
Tensor activation_forward_parity(const Tensor& x, std::int64_t activation) {
  const Call call(x);
  const Tensor y = call.made_like(x);
  call.backend<Backend>().activation_forward_parity(static_cast<outgrad_activation>(activation), format_of(x),
                                                    call.data(x), y.mutable_data_ptr(), x.numel());
  return y;
}

template <class Backend>
Tensor activation_backward_parity(const Tensor& dy, const Tensor& y, std::int64_t activation) {
  const Call call(y);
  require_like(dy, y, "dy");
  const Tensor dx = call.made_like(dy);
  call.backend<Backend>().activation_backward_parity(static_cast<outgrad_activation>(activation),
                                                     format_of(y), call.data(dy), call.data(y),
                                                     dx.mutable_data_ptr(), y.numel());
  return dx;
}

// What forward and backward with codes have in common. The seed of a dither is an int64 tensor of one element
// beside x.
inline CodesOf codes_of(const Call& call, std::int64_t activation, std::int64_t bits,
                        const OptionalTensor& seed, std::int64_t n) {
  require(bits >= 1 && bits <= kernels::kMostCodeBits, "a code of ", bits, " bits, where 1 to ",
          kernels::kMostCodeBits, " are possible");
  const int width = static_cast<int>(bits);
  CodesOf codes{.activation = static_cast<outgrad_activation>(activation),
                .bits = width,
                .bytes = static_cast<std::size_t>(kernels::code_bytes(width, n))};
  if (seed) {
    require_elements(*seed, ScalarType::Long, 1, "seed");
    codes.seed = call.data<std::uint64_t>(*seed);
  }
  return codes;
}

template <class Backend>
std::tuple<Tensor, Tensor> activation_forward_code(const Tensor& x, std::int64_t activation,
                                                   std::int64_t bits, const OptionalTensor& seed) {
  const Call call(x);
  const CodesOf of = codes_of(call, activation, bits, seed, x.numel());
  const Tensor y = call.made_like(x), codes = call.octets_of(static_cast<std::int64_t>(of.bytes));
  call.backend<Backend>().activation_forward_code(of, format_of(x), call.data(x), y.mutable_data_ptr(),
                                                  codes.mutable_data_ptr(), x.numel());
  return {y, codes};
}

template <class Backend>
Tensor activation_backward_code(const Tensor& dy, const Tensor& codes, std::int64_t activation,
                                std::int64_t bits, const OptionalTensor& seed) {
  const Call call(dy);
  const CodesOf of = codes_of(call, activation, bits, seed, dy.numel());
  require_elements(codes, ScalarType::Byte, static_cast<std::int64_t>(of.bytes), "codes");
  const Tensor dx = call.made_like(dy);
  call.backend<Backend>().activation_backward_code(of, format_of(dy), call.data(dy), call.data(codes),
                                                   dx.mutable_data_ptr(), dy.numel());
  return dx;
}

// The same of codes for gradients that the caller has computed, which all lie in a range.
inline CodesOf codes_of(const Call& call, double lo, double hi, std::int64_t bits, const OptionalTensor& seed,
                        std::int64_t n) {
  CodesOf codes = codes_of(call, 0, bits, seed, n);
  codes.lo = static_cast<float>(lo);
  codes.hi = static_cast<float>(hi);
  return codes;
}

template <class Backend>
Tensor encode_gradients(const Tensor& g, double lo, double hi, std::int64_t bits,
                        const OptionalTensor& seed) {
  const Call call(g);
  const CodesOf of = codes_of(call, lo, hi, bits, seed, g.numel());
  const Tensor codes = call.octets_of(static_cast<std::int64_t>(of.bytes));
  call.backend<Backend>().encode_gradients(of, format_of(g), call.data(g), codes.mutable_data_ptr(),
                                           g.numel());
  return codes;
}

template <class Backend>
Tensor backward_encoded(const Tensor& dy, const Tensor& codes, double lo, double hi, std::int64_t bits,
                        const OptionalTensor& seed) {
  const Call call(dy);
  const CodesOf of = codes_of(call, lo, hi, bits, seed, dy.numel());
  require_elements(codes, ScalarType::Byte, static_cast<std::int64_t>(of.bytes), "codes");
  const Tensor dx = call.made_like(dy);
  call.backend<Backend>().backward_encoded(of, format_of(dy), call.data(dy), call.data(codes),
                                           dx.mutable_data_ptr(), dy.numel());
  return dx;
}

// y itself is activation_forward's.
template <class Backend>
std::tuple<Tensor, Tensor, Tensor> gelu_forward_mxfp8(const Tensor& x) {
  const Call call(x);
  const std::int64_t n = x.numel();
  const Tensor codes = call.octets_of(n), scales = call.octets_of(mxfp8_scales(n)),
               mask = call.words_of(mask_words(n));
  call.backend<Backend>().gelu_forward_mxfp8(format_of(x), call.data(x), result<std::uint8_t>(codes),
                                             result<std::uint8_t>(scales), result<std::uint32_t>(mask), n);
  return {codes, scales, mask};
}

template <class Backend>
Tensor gelu_backward_mxfp8(const Tensor& dy, const Tensor& codes, const Tensor& scales, const Tensor& mask) {
  const Call call(dy);
  const std::int64_t n = dy.numel();
  require_elements(codes, ScalarType::Byte, n, "codes");
  require_elements(scales, ScalarType::Byte, mxfp8_scales(n), "scales");
  require_elements(mask, ScalarType::Int, mask_words(n), "mask");
  const Tensor dx = call.made_like(dy);
  call.backend<Backend>().gelu_backward_mxfp8(format_of(dy), call.data(dy), call.data<std::uint8_t>(codes),
                                              call.data<std::uint8_t>(scales), call.data<std::uint32_t>(mask),
                                              dx.mutable_data_ptr(), n);
  return dx;
}

// The scale is a float32 tensor of one element beside x. y itself is activation_forward's.
inline Fp8Of fp8_of(const Call& call, const Tensor& scale, std::int64_t activation, std::int64_t fp8,
                    std::int64_t bits, std::int64_t n) {
  require(bits >= 0 && bits <= kernels::kMostPartBits, "parts of ", bits, " bits, where 0 to ",
          kernels::kMostPartBits, " are possible");
  require_elements(scale, ScalarType::Float, 1, "scale");
  const int width = static_cast<int>(bits);
  return {static_cast<outgrad_activation>(activation), static_cast<outgrad_store>(OUTGRAD_STORE_E4M3 + fp8),
          width, call.data<float>(scale), static_cast<std::size_t>(kernels::code_bytes(width, n))};
}

template <class Backend>
std::tuple<Tensor, Tensor> activation_forward_fp8(const Tensor& x, const Tensor& scale,
                                                  std::int64_t activation, std::int64_t fp8,
                                                  std::int64_t bits) {
  const Call call(x);
  const std::int64_t n = x.numel();
  const Fp8Of of = fp8_of(call, scale, activation, fp8, bits, n);
  const Tensor codes = call.octets_of(n), parts = call.octets_of(static_cast<std::int64_t>(of.bytes));
  const auto backend = call.backend<Backend>();
  const Tensor workspace = call.bytes_of(backend.fp8_workspace_bytes());
  backend.activation_forward_fp8(of, format_of(x), call.data(x), result<std::uint8_t>(codes),
                                 parts.mutable_data_ptr(), n, workspace.mutable_data_ptr());
  return {codes, parts};
}

template <class Backend>
Tensor activation_backward_fp8(const Tensor& dy, const Tensor& codes, const Tensor& parts,
                               const Tensor& scale, std::int64_t activation, std::int64_t fp8,
                               std::int64_t bits) {
  const Call call(dy);
  const std::int64_t n = dy.numel();
  const Fp8Of of = fp8_of(call, scale, activation, fp8, bits, n);
  require_elements(codes, ScalarType::Byte, n, "codes");
  require_elements(parts, ScalarType::Byte, static_cast<std::int64_t>(of.bytes), "parts");
  const Tensor dx = call.made_like(dy);
  const auto backend = call.backend<Backend>();
  const Tensor workspace = call.bytes_of(backend.fp8_workspace_bytes());
  backend.activation_backward_fp8(of, format_of(dy), call.data(dy), call.data<std::uint8_t>(codes),
                                  call.data(parts), dx.mutable_data_ptr(), n, workspace.mutable_data_ptr());
  return dx;
}

// --- GELU and a bias -----------------------------------------------------------------------------

// GELU of what a linear layer gives before its bias is added, over rows of n = the bias's length.
inline std::int64_t rows_of(const Tensor& matrix, std::int64_t n) {
  const std::int64_t rows = n > 0 ? matrix.numel() / n : 0;
  require(rows * n == matrix.numel(), matrix.numel(), " elements are no rows of ", n);
  return rows;
}

template <class Backend>
std::tuple<Tensor, Tensor> bias_gelu_forward(const Tensor& x, const Tensor& bias) {
  const Call call(x);
  const std::int64_t n = bias.numel(), rows = rows_of(x, n);
  const Tensor y = call.made_like(x), mask = call.words_of(mask_words(x.numel()));
  call.backend<Backend>().bias_gelu_forward(format_of(x), call.data(x), call.data(bias), format_of(bias),
                                            rows, n, y.mutable_data_ptr(), result<std::uint32_t>(mask));
  return {y, mask};
}

template <class Backend>
std::tuple<Tensor, Tensor> bias_gelu_backward(const Tensor& dy, const Tensor& y, const Tensor& mask,
                                              std::int64_t columns, const OptionalTensor& like) {
  const Call call(y);
  const std::int64_t rows = rows_of(y, columns);
  require_like(dy, y, "dy");
  require_elements(mask, ScalarType::Int, mask_words(y.numel()), "mask");
  const auto backend = call.backend<Backend>();
  const std::size_t bytes = backend.bias_workspace_bytes(format_of(y), rows, columns);
  const Tensor dx = call.made_like(dy), dbias = call.reals_of(columns, like),
               workspace = call.bytes_of(bytes);
  backend.bias_gelu_backward(format_of(y), call.data(dy), call.data(y), call.data<std::uint32_t>(mask), rows,
                             columns, dx.mutable_data_ptr(), dbias.mutable_data_ptr(), format_of(dbias),
                             workspace.mutable_data_ptr(), bytes);
  return {dx, dbias};
}

// --- Softmax over rows of n ----------------------------------------------------------------------

template <class Backend>
std::tuple<Tensor, Tensor> softmax_forward_code(const Tensor& x, std::int64_t columns) {
  const Call call(x);
  const std::int64_t rows = rows_of(x, columns);
  const Tensor y = call.made_like(x), codes = call.octets_of(x.numel());
  if (rows > 0)
    call.backend<Backend>().softmax_forward_code(format_of(x), call.data(x), rows, columns,
                                                 y.mutable_data_ptr(), codes.mutable_data_ptr());
  return {y, codes};
}

template <class Backend>
Tensor softmax_backward_code(const Tensor& dy, const Tensor& codes, std::int64_t columns) {
  const Call call(dy);
  const std::int64_t rows = rows_of(dy, columns);
  require_elements(codes, ScalarType::Byte, dy.numel(), "codes");
  const Tensor dx = call.made_like(dy);
  if (rows > 0)
    call.backend<Backend>().softmax_backward_code(format_of(dy), call.data(dy), call.data(codes), rows,
                                                  columns, dx.mutable_data_ptr());
  return dx;
}

// --- Norms over rows of n ------------------------------------------------------------------------

// What forward and backward have in common.
inline NormOf norm_of(const Call& call, const Tensor& matrix, std::int64_t columns,
                      const OptionalTensor& gamma, const OptionalTensor& beta, bool rms,
                      const OptionalTensor& channels, double tau = 0) {
  NormOf norm{.rms = rms,
              .rows = rows_of(matrix, columns),
              .n = columns,
              .gamma = call.parameter(gamma, columns, "gamma"),
              .beta = call.parameter(beta, columns, "beta"),
              .tau = tau};
  require(columns > 0, "a norm needs at least one column, x has ", columns);
  if (gamma || beta) norm.parameters = format_of(gamma ? *gamma : *beta);
  require(!gamma || !beta || format_of(*beta) == norm.parameters, "gamma and beta are of two types");
  if (!channels) return norm;
  norm.side_count = channels->numel();
  require_elements(*channels, ScalarType::Int, norm.side_count, "side_channels");
  norm.side = call.data<std::int32_t>(*channels);
  return norm;
}

inline std::int32_t* seen_of(const Call& call, const OptionalTensor& seen) {
  if (!seen) return nullptr;
  require_elements(*seen, ScalarType::Int, 2, "seen");
  require(seen->is_contiguous() && call.holds(*seen), "seen is no array beside the others");
  return result<std::int32_t>(*seen);
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor> norm_forward(const Tensor& x, std::int64_t columns,
                                                const OptionalTensor& gamma, const OptionalTensor& beta,
                                                double eps, bool rms, const OptionalTensor& side_channels,
                                                const OptionalTensor& seen, double tau) {
  const Call call(x);
  NormOf norm = norm_of(call, x, columns, gamma, beta, rms, side_channels, tau);
  norm.seen = seen_of(call, seen);
  const Tensor y = call.made_like(x), rstd = call.floats_of({norm.rows}),
               x_hat = call.floats_of({norm.rows, norm.side_count});
  call.backend<Backend>().norm_forward(format_of(x), norm, call.data(x), static_cast<float>(eps),
                                       y.mutable_data_ptr(), result<float>(rstd),
                                       norm.side_count > 0 ? result<float>(x_hat) : nullptr);
  return {y, rstd, x_hat};
}

// dgamma and dbeta have no elements if they are not wanted.
template <class Backend>
std::tuple<Tensor, Tensor, Tensor> norm_backward(const Tensor& dy, const Tensor& y, std::int64_t columns,
                                                 const OptionalTensor& gamma, const OptionalTensor& beta,
                                                 const Tensor& rstd, bool rms,
                                                 const OptionalTensor& side_channels,
                                                 const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta,
                                                 double tau) {
  const Call call(y);
  const NormOf norm = norm_of(call, y, columns, gamma, beta, rms, side_channels, tau);
  require_like(dy, y, "dy");
  require_elements(rstd, ScalarType::Float, norm.rows, "rstd");
  require_elements(side_x_hat, ScalarType::Float, norm.rows * norm.side_count, "side_x_hat");
  const auto backend = call.backend<Backend>();
  const std::size_t bytes = backend.norm_workspace_bytes(format_of(y), norm.rows, norm.n);
  const Tensor dx = call.made_like(dy), workspace = call.bytes_of(bytes);
  const Tensor dgamma = call.reals_of(with_dgamma ? norm.n : 0, gamma ? gamma : beta),
               dbeta = call.reals_of(with_dbeta ? norm.n : 0, gamma ? gamma : beta);
  backend.norm_backward(format_of(y), norm, call.data(dy), call.data(y), call.data<float>(rstd),
                        norm.side_count > 0 ? call.data<float>(side_x_hat) : nullptr, dx.mutable_data_ptr(),
                        with_dgamma ? dgamma.mutable_data_ptr() : nullptr,
                        with_dbeta ? dbeta.mutable_data_ptr() : nullptr, workspace.mutable_data_ptr(), bytes);
  return {dx, dgamma, dbeta};
}

// Of z = dropout(x) + residual; without a seed nothing is dropped. z has no elements if it is not wanted.

// The seed is an int64 tensor of one element beside the others, or one without dimensions on the CPU.
inline SeedOf seed_of(const Call& call, const OptionalTensor& seed) {
  if (!seed) return {};
  require_elements(*seed, ScalarType::Long, 1, "seed");
  if (seed->dim() > 0) return {call.data<std::uint64_t>(*seed)};
  require(place_of(*seed).type == aoti_torch_device_type_cpu(), "a seed without dimensions lies on the CPU");
  return {static_cast<const std::uint64_t*>(seed->const_data_ptr()), true};
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor, Tensor> norm_forward_of_sum(
    const Tensor& x, const Tensor& residual, std::int64_t columns, const OptionalTensor& gamma,
    const OptionalTensor& beta, double eps, bool rms, const OptionalTensor& side_channels,
    const OptionalTensor& seed, double p, bool with_z, const OptionalTensor& seen, double tau) {
  const Call call(x);
  NormOf norm = norm_of(call, x, columns, gamma, beta, rms, side_channels, tau);
  norm.seen = seen_of(call, seen);
  require_like(residual, x, "residual");
  const Tensor y = call.made_like(x), rstd = call.floats_of({norm.rows}),
               x_hat = call.floats_of({norm.rows, norm.side_count});
  const bool has_z = with_z || Backend::kNeedsZ;
  const Tensor z = has_z ? call.made_like(x) : call.none_like(x);
  const SumOf sum{.residual = call.data(residual),
                  .z = has_z ? z.mutable_data_ptr() : nullptr,
                  .seed = seed_of(call, seed),
                  .p = p};
  call.backend<Backend>().norm_forward(format_of(x), norm, call.data(x), static_cast<float>(eps),
                                       y.mutable_data_ptr(), result<float>(rstd),
                                       norm.side_count > 0 ? result<float>(x_hat) : nullptr, sum);
  return {y, rstd, x_hat, with_z || !has_z ? z : call.none_like(x)};
}

// dz, and dx = dropout(dz), which has no elements without a seed: it is then dz. dz_next is what reaches z
// itself.
template <class Backend>
std::tuple<Tensor, Tensor, Tensor, Tensor> norm_backward_of_sum(
    const Tensor& dy, const Tensor& y, const OptionalTensor& dz_next, std::int64_t columns,
    const OptionalTensor& gamma, const OptionalTensor& beta, const Tensor& rstd, bool rms,
    const OptionalTensor& side_channels, const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta,
    const OptionalTensor& seed, double p, double tau) {
  const Call call(y);
  const NormOf norm = norm_of(call, y, columns, gamma, beta, rms, side_channels, tau);
  require_like(dy, y, "dy");
  if (dz_next) require_like(*dz_next, y, "dz_next");
  require_elements(rstd, ScalarType::Float, norm.rows, "rstd");
  require_elements(side_x_hat, ScalarType::Float, norm.rows * norm.side_count, "side_x_hat");
  const auto backend = call.backend<Backend>();
  const std::size_t bytes = backend.norm_workspace_bytes(format_of(y), norm.rows, norm.n);
  const Tensor dz = call.made_like(dy), dx = seed ? call.made_like(dy) : call.none_like(dy),
               workspace = call.bytes_of(bytes);
  const Tensor dgamma = call.reals_of(with_dgamma ? norm.n : 0, gamma ? gamma : beta),
               dbeta = call.reals_of(with_dbeta ? norm.n : 0, gamma ? gamma : beta);
  const SumOf sum{.dz_next = dz_next ? call.data(*dz_next) : nullptr,
                  .dx = seed ? dx.mutable_data_ptr() : nullptr,
                  .seed = seed_of(call, seed),
                  .p = p};
  backend.norm_backward(format_of(y), norm, call.data(dy), call.data(y), call.data<float>(rstd),
                        norm.side_count > 0 ? call.data<float>(side_x_hat) : nullptr, dz.mutable_data_ptr(),
                        with_dgamma ? dgamma.mutable_data_ptr() : nullptr,
                        with_dbeta ? dbeta.mutable_data_ptr() : nullptr, workspace.mutable_data_ptr(), bytes,
                        sum);
  return {dz, dx, dgamma, dbeta};
}

// With y in 8 bits (0: e4m3, 1: mxfp8, 2: int8), on the CPU alone. y itself is norm_forward's.

inline std::tuple<outgrad_store, std::int64_t> norm_store_of(std::int64_t store, const NormOf& norm) {
  constexpr outgrad_store kStores[] = {OUTGRAD_STORE_E4M3, OUTGRAD_STORE_MXFP8, OUTGRAD_STORE_INT8};
  require(store >= 0 && store < 3, "store ", store, " of a norm, where 0 to 2 are possible");
  const outgrad_store known = kStores[store];
  return {known, static_cast<std::int64_t>(Host().norm_scale_bytes(known, norm.rows, norm.n))};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> norm_forward_8bit(
    const Tensor& x, std::int64_t columns, const OptionalTensor& gamma, const OptionalTensor& beta,
    double eps, bool rms, const OptionalTensor& side_channels, std::int64_t store) {
  const Call call(x);
  const NormOf norm = norm_of(call, x, columns, gamma, beta, rms, side_channels);
  const auto [known, scale_bytes] = norm_store_of(store, norm);
  const Tensor y = call.made_like(x), codes = call.octets_of(x.numel()), scales = call.octets_of(scale_bytes);
  const Tensor rstd = call.floats_of({norm.rows}), x_hat = call.floats_of({norm.rows, norm.side_count});
  call.backend<Host>().norm_forward_8bit(
      format_of(x), known, norm, call.data(x), static_cast<float>(eps), y.mutable_data_ptr(),
      codes.mutable_data_ptr(), scales.mutable_data_ptr(), static_cast<std::size_t>(scale_bytes),
      result<float>(rstd), norm.side_count > 0 ? result<float>(x_hat) : nullptr);
  return {y, codes, scales, rstd, x_hat};
}

inline std::tuple<Tensor, Tensor, Tensor> norm_backward_8bit(const Tensor& dy, const Tensor& codes,
                                                             const Tensor& scales, std::int64_t columns,
                                                             const OptionalTensor& gamma,
                                                             const OptionalTensor& beta, const Tensor& rstd,
                                                             bool rms, const OptionalTensor& side_channels,
                                                             const Tensor& side_x_hat, bool with_dgamma,
                                                             bool with_dbeta, std::int64_t store) {
  const Call call(dy);
  const NormOf norm = norm_of(call, dy, columns, gamma, beta, rms, side_channels);
  const auto [known, scale_bytes] = norm_store_of(store, norm);
  require_elements(codes, ScalarType::Byte, dy.numel(), "codes");
  require_elements(scales, ScalarType::Byte, scale_bytes, "scales");
  require_elements(rstd, ScalarType::Float, norm.rows, "rstd");
  require_elements(side_x_hat, ScalarType::Float, norm.rows * norm.side_count, "side_x_hat");
  const Host backend = call.backend<Host>();
  const std::size_t bytes = backend.norm_workspace_bytes(format_of(dy), norm.rows, norm.n);
  const Tensor dx = call.made_like(dy), workspace = call.bytes_of(bytes);
  const Tensor dgamma = call.reals_of(with_dgamma ? norm.n : 0, gamma ? gamma : beta),
               dbeta = call.reals_of(with_dbeta ? norm.n : 0, gamma ? gamma : beta);
  backend.norm_backward_8bit(format_of(dy), known, norm, call.data(dy), call.data(codes), call.data(scales),
                             static_cast<std::size_t>(scale_bytes), call.data<float>(rstd),
                             norm.side_count > 0 ? call.data<float>(side_x_hat) : nullptr,
                             dx.mutable_data_ptr(), with_dgamma ? dgamma.mutable_data_ptr() : nullptr,
                             with_dbeta ? dbeta.mutable_data_ptr() : nullptr, workspace.mutable_data_ptr(),
                             bytes);
  return {dx, dgamma, dbeta};
}

// --- Dropout -------------------------------------------------------------------------------------

// Applied to dy with the same seed, this is its own backward.
template <class Backend>
Tensor dropout(const Tensor& x, const Tensor& seed, double p) {
  const Call call(x);
  const Tensor y = call.made_like(x);
  call.backend<Backend>().dropout(format_of(x), call.data(x), y.mutable_data_ptr(), x.numel(),
                                  seed_of(call, seed), p);
  return y;
}

// --- Their names ---------------------------------------------------------------------------------

inline constexpr const char* kSchemas[] = {
    "activation_forward(Tensor x, int activation) -> (Tensor, Tensor)",
    "activation_backward(Tensor dy, Tensor y, Tensor? mask, int activation) -> Tensor",
    "activation_forward_parity(Tensor x, int activation) -> Tensor",
    "activation_backward_parity(Tensor dy, Tensor y, int activation) -> Tensor",
    "activation_forward_code(Tensor x, int activation, int bits, Tensor? seed) -> (Tensor, Tensor)",
    "activation_backward_code(Tensor dy, Tensor codes, int activation, int bits, Tensor? seed) -> Tensor",
    "encode_gradients(Tensor g, float lo, float hi, int bits, Tensor? seed) -> Tensor",
    "backward_encoded(Tensor dy, Tensor codes, float lo, float hi, int bits, Tensor? seed) -> Tensor",
    "gelu_forward_mxfp8(Tensor x) -> (Tensor, Tensor, Tensor)",
    "gelu_backward_mxfp8(Tensor dy, Tensor codes, Tensor scales, Tensor mask) -> Tensor",
    "activation_forward_fp8(Tensor x, Tensor scale, int activation, int fp8, int bits) -> (Tensor, Tensor)",
    "activation_backward_fp8(Tensor dy, Tensor codes, Tensor parts, Tensor scale, int activation, int fp8, "
    "int bits) -> Tensor",
    "bias_gelu_forward(Tensor x, Tensor bias) -> (Tensor, Tensor)",
    "bias_gelu_backward(Tensor dy, Tensor y, Tensor mask, SymInt columns, Tensor? like=None) -> (Tensor, "
    "Tensor)",
    "softmax_forward_code(Tensor x, SymInt columns) -> (Tensor, Tensor)",
    "softmax_backward_code(Tensor dy, Tensor codes, SymInt columns) -> Tensor",
    "norm_forward(Tensor x, SymInt columns, Tensor? gamma, Tensor? beta, float eps, bool rms, Tensor? "
    "side_channels, "
    "Tensor(a!)? seen=None, float tau=0.0) -> (Tensor, Tensor, Tensor)",
    "norm_backward(Tensor dy, Tensor y, SymInt columns, Tensor? gamma, Tensor? beta, Tensor rstd, bool rms, "
    "Tensor? side_channels, Tensor side_x_hat, "
    "bool with_dgamma, bool with_dbeta, float tau=0.0) -> (Tensor, Tensor, Tensor)",
    "norm_forward_of_sum(Tensor x, Tensor residual, SymInt columns, Tensor? gamma, Tensor? beta, float eps, "
    "bool rms, Tensor? side_channels, Tensor? seed, "
    "float p, bool with_z, Tensor(a!)? seen=None, float tau=0.0) -> (Tensor, Tensor, Tensor, Tensor)",
    "norm_backward_of_sum(Tensor dy, Tensor y, Tensor? dz_next, SymInt columns, Tensor? gamma, Tensor? beta, "
    "Tensor rstd, bool rms, Tensor? side_channels, "
    "Tensor side_x_hat, bool with_dgamma, bool with_dbeta, Tensor? seed, float p, float tau=0.0) -> (Tensor, "
    "Tensor, Tensor, Tensor)",
    "norm_forward_8bit(Tensor x, SymInt columns, Tensor? gamma, Tensor? beta, float eps, bool rms, Tensor? "
    "side_channels, int store) -> (Tensor, Tensor, "
    "Tensor, Tensor, Tensor)",
    "norm_backward_8bit(Tensor dy, Tensor codes, Tensor scales, SymInt columns, Tensor? gamma, Tensor? beta, "
    "Tensor rstd, bool rms, Tensor? side_channels, "
    "Tensor side_x_hat, bool with_dgamma, bool with_dbeta, int store) -> (Tensor, Tensor, Tensor)",
    "dropout(Tensor x, Tensor seed, float p) -> Tensor"};

template <class Library>
void define(Library& m) {
  for (const char* schema : kSchemas) m.def(schema);
}

template <class Backend, class Library>
void implement(Library& m) {
  m.impl("activation_forward", TORCH_BOX(&activation_forward<Backend>));
  m.impl("activation_backward", TORCH_BOX(&activation_backward<Backend>));
  m.impl("activation_forward_parity", TORCH_BOX(&activation_forward_parity<Backend>));
  m.impl("activation_backward_parity", TORCH_BOX(&activation_backward_parity<Backend>));
  m.impl("activation_forward_code", TORCH_BOX(&activation_forward_code<Backend>));
  m.impl("activation_backward_code", TORCH_BOX(&activation_backward_code<Backend>));
  m.impl("encode_gradients", TORCH_BOX(&encode_gradients<Backend>));
  m.impl("backward_encoded", TORCH_BOX(&backward_encoded<Backend>));
  m.impl("gelu_forward_mxfp8", TORCH_BOX(&gelu_forward_mxfp8<Backend>));
  m.impl("gelu_backward_mxfp8", TORCH_BOX(&gelu_backward_mxfp8<Backend>));
  m.impl("activation_forward_fp8", TORCH_BOX(&activation_forward_fp8<Backend>));
  m.impl("activation_backward_fp8", TORCH_BOX(&activation_backward_fp8<Backend>));
  m.impl("bias_gelu_forward", TORCH_BOX(&bias_gelu_forward<Backend>));
  m.impl("bias_gelu_backward", TORCH_BOX(&bias_gelu_backward<Backend>));
  m.impl("softmax_forward_code", TORCH_BOX(&softmax_forward_code<Backend>));
  m.impl("softmax_backward_code", TORCH_BOX(&softmax_backward_code<Backend>));
  m.impl("norm_forward", TORCH_BOX(&norm_forward<Backend>));
  m.impl("norm_backward", TORCH_BOX(&norm_backward<Backend>));
  m.impl("norm_forward_of_sum", TORCH_BOX(&norm_forward_of_sum<Backend>));
  m.impl("norm_backward_of_sum", TORCH_BOX(&norm_backward_of_sum<Backend>));
  if constexpr (std::is_same_v<Backend, Host>) {
    m.impl("norm_forward_8bit", TORCH_BOX(&norm_forward_8bit));
    m.impl("norm_backward_8bit", TORCH_BOX(&norm_backward_8bit));
  }
  m.impl("dropout", TORCH_BOX(&dropout<Backend>));
}

}  // namespace outgrad::torch_operators
