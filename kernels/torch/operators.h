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
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/stores/code.h"
#include "kernels/stores/fp8.h"
#include "kernels/torch/cuda.h"
#include "kernels/torch/host.h"
#include "kernels/torch/require.h"

namespace outgrad::torch_operators {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using kernels::i64;

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

inline void require_elements(const Tensor& tensor, ScalarType type, i64 count, const char* name) {
  require(tensor.numel() == count, name, " has ", tensor.numel(), " elements, where ", count, " are needed");
  require(tensor.scalar_type() == type, name, " is not of ", torch::headeronly::toString(type));
}

// Where a tensor's elements are, as whichever pointer an argument is. An operator's inputs are not written.
struct Memory {
  void* at = nullptr;
  template <class T>
  operator T*() const {
    return static_cast<T*>(at);
  }
};
inline Memory into(const Tensor& tensor) { return {tensor.mutable_data_ptr()}; }

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

// The place of an operator's first tensor. All other tensors share it, and results are made there.
class Call {
 public:
  explicit Call(const Tensor& first) : place_(place_of(first)) {}

  bool holds(const Tensor& tensor) const { return place_of(tensor) == place_; }

  // Its elements in the order of its indices. Where they lie in another one they are copied, for as long as
  // the call lasts. Asking for that here and not in Python spares a call from there for each tensor.
  Memory data(const Tensor& tensor) const {
    require(holds(tensor), "an operator takes tensors on one device");
    return {const_cast<void*>(
        (tensor.is_contiguous() ? tensor : copies_.emplace_back(torch::stable::contiguous(tensor)))
            .const_data_ptr())};
  }
  // A parameter, in any of the three formats; null if there is no tensor.
  Memory parameter(const OptionalTensor& tensor, i64 count, const char* name) const {
    if (!tensor) return {};
    require(tensor->numel() == count, name, " has ", tensor->numel(), " elements, where ", count,
            " are needed");
    return data(*tensor);
  }

  Tensor floats_of(std::initializer_list<i64> size) const {
    return made({size.begin(), size.size()}, aoti_torch_dtype_float32());
  }
  // In the type of a parameter; of float32 if there is none.
  Tensor reals_of(i64 count, const OptionalTensor& model) const {
    return made({&count, 1}, model ? type_of(*model) : aoti_torch_dtype_float32());
  }
  Tensor words_of(i64 count) const { return made({&count, 1}, aoti_torch_dtype_int32()); }
  Tensor octets_of(i64 count) const { return made({&count, 1}, aoti_torch_dtype_uint8()); }
  Tensor bytes_of(std::size_t count) const { return floats_of({static_cast<i64>((count + 3) / 4)}); }
  Tensor none_like(const Tensor& model) const {
    const i64 none = 0;
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
  static void ask_for_huge_pages([[maybe_unused]] const Tensor& tensor, [[maybe_unused]] i64 elements) {
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
  Tensor made(std::span<const i64> size, std::int32_t type) const {
    constexpr std::size_t kMostDimensions = 64;
    require(size.size() <= kMostDimensions, "a tensor has more than 64 dimensions");
    i64 strides[kMostDimensions], stride = 1;
    for (std::size_t k = size.size(); k-- > 0; stride *= std::max<i64>(size[k], 1)) strides[k] = stride;
    AtenTensorHandle handle = nullptr;
    succeed(aoti_torch_empty_strided(static_cast<i64>(size.size()), size.data(), strides, type, place_.type,
                                     place_.index, &handle),
            "make a tensor: memory may have run out");
    const Tensor tensor(handle);
    if (place_.type == aoti_torch_device_type_cpu())
      ask_for_huge_pages(tensor, size.empty() ? 1 : strides[0] * size[0]);
    return tensor;
  }

  mutable std::vector<Tensor> copies_;

 protected:
  Place place_;
};

// The same with what computes there.
template <class Backend>
class On : public Call {
 public:
  explicit On(const Tensor& first) : Call(first), run(at(place_)) {}

  Backend run;

 private:
  static Backend at(const Place& place) {
    if constexpr (std::is_same_v<Backend, Host>) {
      return {};
    } else {
      return {std::max(place.index, 0), current_stream(place)};
    }
  }
};

inline i64 mask_words(i64 n) { return (n + 31) / 32; }
inline i64 mxfp8_scales(i64 n) { return (n + 31) / 32; }

template <class... Fit>
constexpr std::array<bool, kernels::kActivations> masked_of(kernels::FitList<Fit...>) {
  return {Fit::kMasked...};
}
inline constexpr auto kMasked = masked_of(kernels::ActivationFits<float>::Type{});

// Also for an unknown one, which a backend refuses.
inline bool is_masked(i64 activation) {
  return activation < 0 || activation >= kernels::kActivations ||
         kMasked[static_cast<std::size_t>(activation)];
}

// --- What operators of one family have in common -------------------------------------------------

inline outgrad_activation kind_of(i64 activation) { return static_cast<outgrad_activation>(activation); }

inline Elements elements_of(const Tensor& tensor) { return {format_of(tensor), tensor.numel()}; }

// Codes of f'. The seed of a dither is an int64 tensor of one element beside x. range: of gradients that the
// caller has computed.
inline CodesOf codes_of(const Call& call, i64 activation, i64 bits, const OptionalTensor& seed, i64 n,
                        std::array<double, 2> range = {}) {
  require(bits >= 1 && bits <= kernels::kMostCodeBits, "a code of ", bits, " bits, where 1 to ",
          kernels::kMostCodeBits, " are possible");
  const int width = static_cast<int>(bits);
  CodesOf codes{.activation = kind_of(activation),
                .bits = width,
                .bytes = static_cast<std::size_t>(kernels::code_bytes(width, n)),
                .lo = static_cast<float>(range[0]),
                .hi = static_cast<float>(range[1])};
  if (seed) {
    require_elements(*seed, ScalarType::Long, 1, "seed");
    codes.seed = call.data(*seed);
  }
  return codes;
}

// The scale is a float32 tensor of one element beside x.
inline Fp8Of fp8_of(const Call& call, const Tensor& scale, i64 activation, i64 fp8, i64 bits, i64 n) {
  require(bits >= 0 && bits <= kernels::kMostPartBits, "parts of ", bits, " bits, where 0 to ",
          kernels::kMostPartBits, " are possible");
  require_elements(scale, ScalarType::Float, 1, "scale");
  const int width = static_cast<int>(bits);
  return {.activation = kind_of(activation),
          .store = static_cast<outgrad_store>(OUTGRAD_STORE_E4M3 + fp8),
          .bits = width,
          .scale = call.data(scale),
          .bytes = static_cast<std::size_t>(kernels::code_bytes(width, n))};
}

inline Rows rows_of(const Tensor& matrix, i64 n) {
  const i64 rows = n > 0 ? matrix.numel() / n : 0;
  require(rows * n == matrix.numel(), matrix.numel(), " elements are no rows of ", n);
  return {format_of(matrix), rows, n};
}

// The seed is an int64 tensor of one element beside the others, or one without dimensions on the CPU.
inline SeedOf seed_of(const Call& call, const OptionalTensor& seed) {
  if (!seed) return {};
  require_elements(*seed, ScalarType::Long, 1, "seed");
  if (seed->dim() > 0) return {call.data(*seed)};
  require(place_of(*seed).type == aoti_torch_device_type_cpu(), "a seed without dimensions lies on the CPU");
  return {static_cast<const std::uint64_t*>(seed->const_data_ptr()), true};
}

// What a norm is given as parameters.
struct OfNorm {
  i64 columns = 0;
  const OptionalTensor &gamma, &beta;
  bool rms = false;
  const OptionalTensor& channels;
  double tau = 0;
};

inline NormOf norm_of(const Call& call, const Tensor& matrix, const OfNorm& of) {
  NormOf norm{rows_of(matrix, of.columns), of.rms, call.parameter(of.gamma, of.columns, "gamma"),
              call.parameter(of.beta, of.columns, "beta")};
  norm.tau = of.tau;
  require(of.columns > 0, "a norm needs at least one column, x has ", of.columns);
  if (of.gamma || of.beta) norm.parameters = format_of(of.gamma ? *of.gamma : *of.beta);
  require(!of.gamma || !of.beta || format_of(*of.beta) == norm.parameters, "gamma and beta are of two types");
  if (!of.channels) return norm;
  norm.side_count = of.channels->numel();
  require_elements(*of.channels, ScalarType::Int, norm.side_count, "side_channels");
  norm.side = call.data(*of.channels);
  return norm;
}

// A norm's forward pass: where its results go beside y.
class NormForward {
 public:
  NormForward(const Call& call, const Tensor& x, const OfNorm& parameters, double eps,
              const OptionalTensor& seen = {})
      : of(norm_of(call, x, parameters)), y(call.made_like(x)), rstd(call.floats_of({of.rows})),
        x_hat(call.floats_of({of.rows, of.side_count})) {
    of.eps = static_cast<float>(eps);
    of.rstd = into(rstd);
    of.side_x_hat = of.side_count > 0 ? into(x_hat) : Memory{};
    if (!seen) return;
    require_elements(*seen, ScalarType::Int, 2, "seen");
    require(seen->is_contiguous() && call.holds(*seen), "seen is no array beside the others");
    of.seen = into(*seen);
  }

  NormOf of;
  Tensor y, rstd, x_hat;
};

// A norm's backward pass: what it reads beside dy and y, and its results. dgamma and dbeta have no elements
// if they are not wanted.
struct Kept {
  const Tensor &rstd, &side_x_hat;
  bool with_dgamma, with_dbeta;
};
template <class Backend>
class NormBackward {
 public:
  NormBackward(const On<Backend>& call, const Tensor& dy, const OfNorm& parameters, const Kept& kept)
      : of(norm_of(call, dy, parameters)), dx(call.made_like(dy)),
        workspace(call.bytes_of(of.bytes = call.run.norm_workspace_bytes(of))),
        dgamma(parameter_like(call, parameters, kept.with_dgamma)),
        dbeta(parameter_like(call, parameters, kept.with_dbeta)),
        to{into(dx), kept.with_dgamma ? into(dgamma) : Memory{}, kept.with_dbeta ? into(dbeta) : Memory{}} {
    require_elements(kept.rstd, ScalarType::Float, of.rows, "rstd");
    require_elements(kept.side_x_hat, ScalarType::Float, of.rows * of.side_count, "side_x_hat");
    of.workspace = into(workspace);
    of.rstd = call.data(kept.rstd);
    of.side_x_hat = of.side_count > 0 ? call.data(kept.side_x_hat) : Memory{};
  }

  NormOf of;
  Tensor dx, workspace, dgamma, dbeta;
  NormGradients to;

 private:
  static Tensor parameter_like(const Call& call, const OfNorm& of, bool wanted) {
    return call.reals_of(wanted ? of.columns : 0, of.gamma ? of.gamma : of.beta);
  }
};

inline In8Bits in_8_bits(i64 store, const Rows& over) {
  constexpr outgrad_store kStores[] = {OUTGRAD_STORE_E4M3, OUTGRAD_STORE_MXFP8, OUTGRAD_STORE_INT8};
  require(store >= 0 && store < 3, "store ", store, " of a norm, where 0 to 2 are possible");
  const outgrad_store known = kStores[store];
  return {.store = known, .scale_bytes = Host().norm_scale_bytes(known, over)};
}

// --- The operators -------------------------------------------------------------------------------

// Each operator is stated here once: by its schema, by its results as Python makes them of its arguments for
// fake tensors (library.py), and by what it does. each(schema, results, function) takes them one by one.

// y itself is activation_forward's wherever an operator gives only what is kept beside it. The mask of an
// activation without a minimum has no words.
template <class Backend, class Each>
void activation_operators(Each&& each) {
  each("activation_forward(Tensor x, int activation) -> (Tensor, Tensor)", "same(x), mask(x, activation)",
       [](const Tensor& x, i64 activation) {
         const On<Backend> call(x);
         const Tensor y = call.made_like(x),
                      mask = call.words_of(is_masked(activation) ? mask_words(x.numel()) : 0);
         call.run.activation_forward(kind_of(activation), elements_of(x), call.data(x), into(y), into(mask));
         return std::tuple(y, mask);
       });
  each("activation_backward(Tensor dy, Tensor y, Tensor? mask, int activation) -> Tensor", "same(dy)",
       [](const Tensor& dy, const Tensor& y, const OptionalTensor& mask, i64 activation) {
         const On<Backend> call(y);
         require_like(dy, y, "dy");
         const bool masked = mask && is_masked(activation);
         if (masked) require_elements(*mask, ScalarType::Int, mask_words(y.numel()), "mask");
         const Tensor dx = call.made_like(dy);
         call.run.activation_backward(kind_of(activation), elements_of(y), call.data(dy), call.data(y),
                                      masked ? call.data(*mask) : Memory{}, into(dx));
         return dx;
       });
  each("activation_forward_parity(Tensor x, int activation) -> Tensor", "same(x)",
       [](const Tensor& x, i64 activation) {
         const On<Backend> call(x);
         const Tensor y = call.made_like(x);
         call.run.activation_forward_parity(kind_of(activation), elements_of(x), call.data(x), into(y));
         return y;
       });
  each("activation_backward_parity(Tensor dy, Tensor y, int activation) -> Tensor", "same(dy)",
       [](const Tensor& dy, const Tensor& y, i64 activation) {
         const On<Backend> call(y);
         require_like(dy, y, "dy");
         const Tensor dx = call.made_like(dy);
         call.run.activation_backward_parity(kind_of(activation), elements_of(y), call.data(dy), call.data(y),
                                             into(dx));
         return dx;
       });
}

template <class Backend, class Each>
void code_operators(Each&& each) {
  each("activation_forward_code(Tensor x, int activation, int bits, Tensor? seed) -> (Tensor, Tensor)",
       "same(x), octets(x, bits)", [](const Tensor& x, i64 activation, i64 bits, const OptionalTensor& seed) {
         const On<Backend> call(x);
         const CodesOf of = codes_of(call, activation, bits, seed, x.numel());
         const Tensor y = call.made_like(x), codes = call.octets_of(static_cast<i64>(of.bytes));
         call.run.activation_forward_code(of, elements_of(x), call.data(x), into(y), into(codes));
         return std::tuple(y, codes);
       });
  each("activation_backward_code(Tensor dy, Tensor codes, int activation, int bits, Tensor? seed) -> Tensor",
       "same(dy)",
       [](const Tensor& dy, const Tensor& codes, i64 activation, i64 bits, const OptionalTensor& seed) {
         const On<Backend> call(dy);
         const CodesOf of = codes_of(call, activation, bits, seed, dy.numel());
         require_elements(codes, ScalarType::Byte, static_cast<i64>(of.bytes), "codes");
         const Tensor dx = call.made_like(dy);
         call.run.activation_backward_code(of, elements_of(dy), call.data(dy), call.data(codes), into(dx));
         return dx;
       });
  each("encode_gradients(Tensor g, float lo, float hi, int bits, Tensor? seed) -> Tensor", "octets(g, bits)",
       [](const Tensor& g, double lo, double hi, i64 bits, const OptionalTensor& seed) {
         const On<Backend> call(g);
         const CodesOf of = codes_of(call, 0, bits, seed, g.numel(), {lo, hi});
         const Tensor codes = call.octets_of(static_cast<i64>(of.bytes));
         call.run.encode_gradients(of, elements_of(g), call.data(g), into(codes));
         return codes;
       });
  each("backward_encoded(Tensor dy, Tensor codes, float lo, float hi, int bits, Tensor? seed) -> Tensor",
       "same(dy)",
       [](const Tensor& dy, const Tensor& codes, double lo, double hi, i64 bits, const OptionalTensor& seed) {
         const On<Backend> call(dy);
         const CodesOf of = codes_of(call, 0, bits, seed, dy.numel(), {lo, hi});
         require_elements(codes, ScalarType::Byte, static_cast<i64>(of.bytes), "codes");
         const Tensor dx = call.made_like(dy);
         call.run.backward_encoded(of, elements_of(dy), call.data(dy), call.data(codes), into(dx));
         return dx;
       });
}

template <class Backend, class Each>
void operators_of_y_in_8_bits(Each&& each) {
  each("gelu_forward_mxfp8(Tensor x) -> (Tensor, Tensor, Tensor)",
       "octets(x, 8), bytes(x, (x.numel() + 31) // 32), mask(x)", [](const Tensor& x) {
         const On<Backend> call(x);
         const i64 n = x.numel();
         const Tensor codes = call.octets_of(n), scales = call.octets_of(mxfp8_scales(n)),
                      mask = call.words_of(mask_words(n));
         call.run.gelu_forward_mxfp8(elements_of(x), call.data(x), into(codes), into(scales), into(mask));
         return std::tuple(codes, scales, mask);
       });
  each("gelu_backward_mxfp8(Tensor dy, Tensor codes, Tensor scales, Tensor mask) -> Tensor", "same(dy)",
       [](const Tensor& dy, const Tensor& codes, const Tensor& scales, const Tensor& mask) {
         const On<Backend> call(dy);
         const i64 n = dy.numel();
         require_elements(codes, ScalarType::Byte, n, "codes");
         require_elements(scales, ScalarType::Byte, mxfp8_scales(n), "scales");
         require_elements(mask, ScalarType::Int, mask_words(n), "mask");
         const Tensor dx = call.made_like(dy);
         call.run.gelu_backward_mxfp8(elements_of(dy), call.data(dy), call.data(codes), call.data(scales),
                                      call.data(mask), into(dx));
         return dx;
       });
  each(
      "activation_forward_fp8(Tensor x, Tensor scale, int activation, int fp8, int bits) -> (Tensor, Tensor)",
      "octets(x, 8), octets(x, bits)",
      [](const Tensor& x, const Tensor& scale, i64 activation, i64 fp8, i64 bits) {
        const On<Backend> call(x);
        Fp8Of of = fp8_of(call, scale, activation, fp8, bits, x.numel());
        const Tensor codes = call.octets_of(x.numel()), parts = call.octets_of(static_cast<i64>(of.bytes));
        const Tensor workspace = call.bytes_of(call.run.fp8_workspace_bytes());
        of.workspace = into(workspace);
        call.run.activation_forward_fp8(of, elements_of(x), call.data(x), into(codes), into(parts));
        return std::tuple(codes, parts);
      });
  each(
      "activation_backward_fp8(Tensor dy, Tensor codes, Tensor parts, Tensor scale, int activation, int fp8, "
      "int bits) -> Tensor",
      "same(dy)",
      [](const Tensor& dy, const Tensor& codes, const Tensor& parts, const Tensor& scale, i64 activation,
         i64 fp8, i64 bits) {
        const On<Backend> call(dy);
        Fp8Of of = fp8_of(call, scale, activation, fp8, bits, dy.numel());
        require_elements(codes, ScalarType::Byte, dy.numel(), "codes");
        require_elements(parts, ScalarType::Byte, static_cast<i64>(of.bytes), "parts");
        const Tensor dx = call.made_like(dy);
        const Tensor workspace = call.bytes_of(call.run.fp8_workspace_bytes());
        of.workspace = into(workspace);
        call.run.activation_backward_fp8(of, elements_of(dy), call.data(dy), call.data(codes),
                                         call.data(parts), into(dx));
        return dx;
      });
}

// GELU of what a linear layer gives before its bias is added; softmax; dropout, which with the same seed is
// its own backward.
template <class Backend, class Each>
void operators_of_rows(Each&& each) {
  each("bias_gelu_forward(Tensor x, Tensor bias) -> (Tensor, Tensor)", "same(x), mask(x)",
       [](const Tensor& x, const Tensor& bias) {
         const On<Backend> call(x);
         const BiasOf of{rows_of(x, bias.numel()), format_of(bias)};
         const Tensor y = call.made_like(x), mask = call.words_of(mask_words(x.numel()));
         call.run.bias_gelu_forward(of, call.data(x), call.data(bias), into(y), into(mask));
         return std::tuple(y, mask);
       });
  each(
      "bias_gelu_backward(Tensor dy, Tensor y, Tensor mask, SymInt columns, Tensor? like=None) -> (Tensor, "
      "Tensor)",
      "same(dy), reals(dy, columns, like)",
      [](const Tensor& dy, const Tensor& y, const Tensor& mask, i64 columns, const OptionalTensor& like) {
        const On<Backend> call(y);
        BiasOf of{rows_of(y, columns)};
        require_like(dy, y, "dy");
        require_elements(mask, ScalarType::Int, mask_words(y.numel()), "mask");
        of.bytes = call.run.bias_workspace_bytes(of);
        const Tensor dx = call.made_like(dy), dbias = call.reals_of(columns, like),
                     workspace = call.bytes_of(of.bytes);
        of.bias = format_of(dbias);
        of.workspace = into(workspace);
        call.run.bias_gelu_backward(of, call.data(dy), call.data(y), call.data(mask), into(dx), into(dbias));
        return std::tuple(dx, dbias);
      });
  each("softmax_forward_code(Tensor x, SymInt columns) -> (Tensor, Tensor)", "same(x), octets(x, 8)",
       [](const Tensor& x, i64 columns) {
         const On<Backend> call(x);
         const Rows over = rows_of(x, columns);
         const Tensor y = call.made_like(x), codes = call.octets_of(x.numel());
         if (over.rows > 0) call.run.softmax_forward_code(over, call.data(x), into(y), into(codes));
         return std::tuple(y, codes);
       });
  each("softmax_backward_code(Tensor dy, Tensor codes, SymInt columns) -> Tensor", "same(dy)",
       [](const Tensor& dy, const Tensor& codes, i64 columns) {
         const On<Backend> call(dy);
         const Rows over = rows_of(dy, columns);
         require_elements(codes, ScalarType::Byte, dy.numel(), "codes");
         const Tensor dx = call.made_like(dy);
         if (over.rows > 0) call.run.softmax_backward_code(over, call.data(dy), call.data(codes), into(dx));
         return dx;
       });
  each("dropout(Tensor x, Tensor seed, float p) -> Tensor", "same(x)",
       [](const Tensor& x, const Tensor& seed, double p) {
         const On<Backend> call(x);
         const Tensor y = call.made_like(x);
         call.run.dropout(elements_of(x), call.data(x), into(y), seed_of(call, seed), p);
         return y;
       });
}

template <class Backend, class Each>
void norm_operators(Each&& each) {
  each(
      "norm_forward(Tensor x, SymInt columns, Tensor? gamma, Tensor? beta, float eps, bool rms, Tensor? "
      "side_channels, Tensor(a!)? seen=None, float tau=0.0) -> (Tensor, Tensor, Tensor)",
      "same(x), *of_rows(x, columns, side_channels)",
      [](const Tensor& x, i64 columns, const OptionalTensor& gamma, const OptionalTensor& beta, double eps,
         bool rms, const OptionalTensor& side_channels, const OptionalTensor& seen, double tau) {
        const On<Backend> call(x);
        const NormForward norm(call, x, {columns, gamma, beta, rms, side_channels, tau}, eps, seen);
        call.run.norm_forward(norm.of, call.data(x), into(norm.y));
        return std::tuple(norm.y, norm.rstd, norm.x_hat);
      });
  each(
      "norm_backward(Tensor dy, Tensor y, SymInt columns, Tensor? gamma, Tensor? beta, Tensor rstd, bool "
      "rms, "
      "Tensor? side_channels, Tensor side_x_hat, bool with_dgamma, bool with_dbeta, float tau=0.0) -> "
      "(Tensor, Tensor, Tensor)",
      "same(dy), *of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)",
      [](const Tensor& dy, const Tensor& y, i64 columns, const OptionalTensor& gamma,
         const OptionalTensor& beta, const Tensor& rstd, bool rms, const OptionalTensor& side_channels,
         const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta, double tau) {
        const On<Backend> call(y);
        require_like(dy, y, "dy");
        const NormBackward<Backend> norm(call, dy, {columns, gamma, beta, rms, side_channels, tau},
                                         {rstd, side_x_hat, with_dgamma, with_dbeta});
        call.run.norm_backward(norm.of, call.data(dy), call.data(y), norm.to);
        return std::tuple(norm.dx, norm.dgamma, norm.dbeta);
      });
}

// Norms of z = dropout(x) + residual; without a seed nothing is dropped.
template <class Backend, class Each>
void operators_of_sums(Each&& each) {
  // z has no elements if it is not wanted.
  each(
      "norm_forward_of_sum(Tensor x, Tensor residual, SymInt columns, Tensor? gamma, Tensor? beta, float "
      "eps, "
      "bool rms, Tensor? side_channels, Tensor? seed, float p, bool with_z, Tensor(a!)? seen=None, float "
      "tau=0.0) -> (Tensor, Tensor, Tensor, Tensor)",
      "same(x), *of_rows(x, columns, side_channels), same(x) if with_z else x.new_empty(0)",
      [](const Tensor& x, const Tensor& residual, i64 columns, const OptionalTensor& gamma,
         const OptionalTensor& beta, double eps, bool rms, const OptionalTensor& side_channels,
         const OptionalTensor& seed, double p, bool with_z, const OptionalTensor& seen, double tau) {
        const On<Backend> call(x);
        NormForward norm(call, x, {columns, gamma, beta, rms, side_channels, tau}, eps, seen);
        require_like(residual, x, "residual");
        const bool has_z = with_z || Backend::kNeedsZ;
        const Tensor z = has_z ? call.made_like(x) : call.none_like(x);
        norm.of.sum = {.residual = call.data(residual),
                       .z = has_z ? into(z) : Memory{},
                       .seed = seed_of(call, seed),
                       .p = p};
        call.run.norm_forward(norm.of, call.data(x), into(norm.y));
        return std::tuple(norm.y, norm.rstd, norm.x_hat, with_z || !has_z ? z : call.none_like(x));
      });
  // dz, and dx = dropout(dz), which has no elements without a seed: it is then dz. dz_next is what reaches z
  // itself.
  each(
      "norm_backward_of_sum(Tensor dy, Tensor y, Tensor? dz_next, SymInt columns, Tensor? gamma, Tensor? "
      "beta, "
      "Tensor rstd, bool rms, Tensor? side_channels, Tensor side_x_hat, bool with_dgamma, bool with_dbeta, "
      "Tensor? seed, float p, float tau=0.0) -> (Tensor, Tensor, Tensor, Tensor)",
      "same(dy), dy.new_empty(0) if seed is None else same(dy), *of_parameters(dy, columns, gamma, beta, "
      "with_dgamma, with_dbeta)",
      [](const Tensor& dy, const Tensor& y, const OptionalTensor& dz_next, i64 columns,
         const OptionalTensor& gamma, const OptionalTensor& beta, const Tensor& rstd, bool rms,
         const OptionalTensor& side_channels, const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta,
         const OptionalTensor& seed, double p, double tau) {
        const On<Backend> call(y);
        require_like(dy, y, "dy");
        if (dz_next) require_like(*dz_next, y, "dz_next");
        NormBackward<Backend> norm(call, dy, {columns, gamma, beta, rms, side_channels, tau},
                                   {rstd, side_x_hat, with_dgamma, with_dbeta});
        const Tensor dx = seed ? call.made_like(dy) : call.none_like(dy);
        norm.of.sum = {.dz_next = dz_next ? call.data(*dz_next) : Memory{},
                       .dx = seed ? into(dx) : Memory{},
                       .seed = seed_of(call, seed),
                       .p = p};
        call.run.norm_backward(norm.of, call.data(dy), call.data(y), norm.to);
        return std::tuple(norm.dx, dx, norm.dgamma, norm.dbeta);
      });
}

// Norms with y in 8 bits (0: e4m3, 1: mxfp8, 2: int8), on the CPU alone. y itself is norm_forward's.
template <class Each>
void operators_of_norms_in_8_bits(Each&& each) {
  each(
      "norm_forward_8bit(Tensor x, SymInt columns, Tensor? gamma, Tensor? beta, float eps, bool rms, Tensor? "
      "side_channels, int store) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      // The bytes of scales in that order: a float for all, a byte for 32 elements, two
      // floats for 64.
      "same(x), octets(x, 8), bytes(x, (4, x.numel() // 32, x.numel() // 64 * 8)[store]), *of_rows(x, "
      "columns, side_channels)",
      [](const Tensor& x, i64 columns, const OptionalTensor& gamma, const OptionalTensor& beta, double eps,
         bool rms, const OptionalTensor& side_channels, i64 store) {
        const On<Host> call(x);
        const NormForward norm(call, x, {columns, gamma, beta, rms, side_channels}, eps);
        In8Bits in = in_8_bits(store, norm.of);
        const Tensor codes = call.octets_of(x.numel()),
                     scales = call.octets_of(static_cast<i64>(in.scale_bytes));
        in.codes = into(codes);
        in.scales = into(scales);
        call.run.norm_forward_8bit(norm.of, in, call.data(x), into(norm.y));
        return std::tuple(norm.y, codes, scales, norm.rstd, norm.x_hat);
      });
  each(
      "norm_backward_8bit(Tensor dy, Tensor codes, Tensor scales, SymInt columns, Tensor? gamma, Tensor? "
      "beta, "
      "Tensor rstd, bool rms, Tensor? side_channels, Tensor side_x_hat, bool with_dgamma, bool with_dbeta, "
      "int store) -> (Tensor, Tensor, Tensor)",
      "same(dy), *of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)",
      [](const Tensor& dy, const Tensor& codes, const Tensor& scales, i64 columns,
         const OptionalTensor& gamma, const OptionalTensor& beta, const Tensor& rstd, bool rms,
         const OptionalTensor& side_channels, const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta,
         i64 store) {
        const On<Host> call(dy);
        const NormBackward<Host> norm(call, dy, {columns, gamma, beta, rms, side_channels},
                                      {rstd, side_x_hat, with_dgamma, with_dbeta});
        In8Bits in = in_8_bits(store, norm.of);
        require_elements(codes, ScalarType::Byte, dy.numel(), "codes");
        require_elements(scales, ScalarType::Byte, static_cast<i64>(in.scale_bytes), "scales");
        in.codes = call.data(codes);
        in.scales = call.data(scales);
        call.run.norm_backward_8bit(norm.of, in, call.data(dy), norm.to);
        return std::tuple(norm.dx, norm.dgamma, norm.dbeta);
      });
}

template <class Backend, class Each>
void operators(Each&& each) {
  activation_operators<Backend>(each);
  code_operators<Backend>(each);
  operators_of_y_in_8_bits<Backend>(each);
  operators_of_rows<Backend>(each);
  norm_operators<Backend>(each);
  operators_of_sums<Backend>(each);
  if constexpr (std::is_same_v<Backend, Host>) operators_of_norms_in_8_bits(each);
}

template <class Library>
void define(Library& m) {
  operators<Host>([&](const char* schema, const char*, auto) { m.def(schema); });
}

// A lambda as a function that may be a template's argument.
template <class Function, class Pointer = decltype(+Function{})>
struct Named;
template <class Function, class Result, class... Parameters>
struct Named<Function, Result (*)(Parameters...)> {
  static Result call(Parameters... parameters) { return Function{}(parameters...); }
};

template <class Backend, class Library>
void implement(Library& m) {
  operators<Backend>([&]<class Function>(const char* schema, const char*, Function) {
    m.impl(std::string(schema, std::strchr(schema, '(')).c_str(), TORCH_BOX(&Named<Function>::call));
  });
}

}  // namespace outgrad::torch_operators
