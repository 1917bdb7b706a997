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
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/catalogue/stores.h"
#include "kernels/gate.h"
#include "kernels/tensor_codes.h"
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
inline Memory into(const OptionalTensor& tensor) { return tensor ? into(*tensor) : Memory{}; }

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

// A function that not every PyTorch has; null where there is none.
template <class Function>
Function* function_of_pytorch([[maybe_unused]] const char* name) {
#ifdef __linux__
  if (void* const found = ::dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<Function*>(found);
  if (void* const library = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD))
    return reinterpret_cast<Function*>(::dlsym(library, name));
#endif
  return nullptr;
}

// PyTorch's current stream of a device. The function that returns it is in a library that only PyTorch for
// CUDA has.
inline void* current_stream(const Place& place) {
  if (place.type == aoti_torch_device_type_cpu()) return nullptr;  // a device that stands in for one
  static auto* const function =
      function_of_pytorch<AOTITorchError(std::int32_t, void**)>("aoti_torch_get_current_cuda_stream");
  require(function != nullptr, "this PyTorch does not tell its CUDA stream");
  void* stream = nullptr;
  succeed(function(place.index, &stream), "tell its CUDA stream");
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
  OptionalTensor workspace_of(std::size_t bytes) const {
    return bytes > 0 ? OptionalTensor(bytes_of(bytes)) : std::nullopt;
  }
  Tensor none_like(const Tensor& model) const {
    const i64 none = 0;
    return made({&none, 1}, type_of(model));
  }
  // The same with another number of elements in the last dimension.
  Tensor made_like(const Tensor& model, i64 last) const {
    std::vector<i64> size(model.sizes().begin(), model.sizes().end());
    size.back() = last;
    return made(size, type_of(model));
  }
  Tensor made_like(const Tensor& model) const {
    const auto size = model.sizes();
    return made({size.data(), size.size()}, type_of(model));
  }
  // The same in a format.
  Tensor made_in(const Tensor& model, outgrad_format format) const {
    const auto size = model.sizes();
    return made({size.data(), size.size()}, format == OUTGRAD_F32   ? aoti_torch_dtype_float32()
                                            : format == OUTGRAD_F16 ? aoti_torch_dtype_float16()
                                                                    : aoti_torch_dtype_bfloat16());
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

inline outgrad_call over_elements(const Tensor& tensor) {
  outgrad_call of{};
  of.size = sizeof of;
  of.format = format_of(tensor);
  of.n = tensor.numel();
  return of;
}

inline outgrad_call over_rows(const Tensor& matrix, i64 n) {
  outgrad_call of = over_elements(matrix);
  of.n = n;
  of.rows = n > 0 ? matrix.numel() / n : 0;
  require(of.rows * n == matrix.numel(), matrix.numel(), " elements are no rows of ", n);
  return of;
}

inline std::int32_t int_of(i64 value) {
  using Limits = std::numeric_limits<std::int32_t>;
  return static_cast<std::int32_t>(std::clamp<i64>(value, Limits::min(), Limits::max()));
}

// What an operator is told of a store beside its arrays: a value of outgrad_store, the bits of its codes or
// of the parts beside them, and where it has them a dither's seed, an int64 tensor of one element, and the
// tensor's scale, a float32 one.
struct OfStore {
  i64 activation = 0, store = 0, bits = 0;
  const OptionalTensor &seed, &scale;
};

// Without the arrays, whose sizes it has.
inline outgrad_call call_of(const Call& call, const Tensor& over, const OfStore& told) {
  outgrad_call of = over_elements(over);
  of.activation = int_of(told.activation);
  of.store = int_of(told.store);
  of.bits = int_of(told.bits);
  if (told.seed) {
    require_elements(*told.seed, ScalarType::Long, 1, "seed");
    of.seed = call.data(*told.seed);
  }
  if (told.scale) {
    require_elements(*told.scale, ScalarType::Float, 1, "scale");
    of.scale = call.data(*told.scale);
  }
  succeed(outgrad_activation_sizes(&of));
  return of;
}

// Codes of gradients that the caller has computed, which lie in a range.
inline outgrad_call call_of_own(const Call& call, const Tensor& over, const OfStore& told, double lo,
                                double hi) {
  outgrad_call of = call_of(call, over, told);
  of.lo = static_cast<float>(lo);
  of.hi = static_cast<float>(hi);
  return of;
}

// The arrays that a store has beside y, in the order in which the operators give and take them: each is what
// array(type, elements, name) returns.
template <class Array>
void set_arrays(outgrad_call& of, const Array& array) {
  const kernels::Store& has = kernels::kStores[of.store];
  const auto bytes = [&](std::size_t count, const char* name) {
    return array(ScalarType::Byte, static_cast<i64>(count), name);
  };
  if (has.keeps_mask && is_masked(of.activation)) of.mask = array(ScalarType::Int, mask_words(of.n), "mask");
  if (has.code_bits != 0) of.codes = bytes(of.codes_bytes, "codes");
  if (has.block > 0) of.scales = bytes(of.scales_bytes, "scales");
  if (has.has_parts && of.bits > 0) of.parts = bytes(of.parts_bytes, "parts");
}

// The bytes that a forward gave.
inline Memory octets(const Call& call, const Tensor& array, std::size_t bytes, const char* name) {
  require_elements(array, ScalarType::Byte, static_cast<i64>(bytes), name);
  return call.data(array);
}

// The seed is an int64 tensor of one element beside the others, or one without dimensions on the CPU.
inline Drop drop_of(const Call& call, const OptionalTensor& seed, double p) {
  if (!seed) return {};
  require_elements(*seed, ScalarType::Long, 1, "seed");
  if (seed->dim() > 0) return {call.data(*seed), false, p};
  require(place_of(*seed).type == aoti_torch_device_type_cpu(), "a seed without dimensions lies on the CPU");
  return {static_cast<const std::uint64_t*>(seed->const_data_ptr()), true, p};
}

// What a norm is given as parameters.
struct OfNorm {
  i64 columns = 0;
  const OptionalTensor &gamma, &beta;
  bool rms = false;
  const OptionalTensor& channels;
  double tau = 0;
};

inline NormOf norm_of(const Call& call, const Tensor& matrix, const OfNorm& given) {
  NormOf of{over_rows(matrix, given.columns), given.rms};
  of.own.gamma = call.parameter(given.gamma, given.columns, "gamma");
  of.own.beta = call.parameter(given.beta, given.columns, "beta");
  of.tau = given.tau;
  require(given.columns > 0, "a norm needs at least one column, x has ", given.columns);
  if (given.gamma || given.beta) of.own.format = format_of(given.gamma ? *given.gamma : *given.beta);
  require(!given.gamma || !given.beta || format_of(*given.beta) == of.own.format,
          "gamma and beta are of two types");
  if (!given.channels) return of;
  of.side_count = given.channels->numel();
  require_elements(*given.channels, ScalarType::Int, of.side_count, "side_channels");
  of.side_channels = call.data(*given.channels);
  return of;
}

// A norm's forward pass and its results.
class NormForward {
 public:
  NormForward(const Call& call, const Tensor& x, const OfNorm& parameters, double eps,
              const OptionalTensor& seen = {})
      : of(norm_of(call, x, parameters)), y(call.made_like(x)), rstd(call.floats_of({of.rows})),
        x_hat(call.floats_of({of.rows, of.side_count})) {
    of.eps = static_cast<float>(eps);
    of.x = call.data(x);
    of.y = into(y);
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

// A norm's backward pass: what it reads beside dy, and its results. dgamma and dbeta have no elements if they
// are not wanted.
struct Kept {
  const Tensor &rstd, &side_x_hat;
  bool with_dgamma, with_dbeta;
};
template <class Backend>
class NormBackward {
 public:
  NormBackward(const On<Backend>& call, const Tensor& dy, const OfNorm& parameters, const Kept& kept)
      : of(norm_of(call, dy, parameters)), dx(call.made_like(dy)),
        workspace(call.bytes_of(of.workspace_bytes = call.run.norm_workspace_bytes(of))),
        dgamma(parameter_like(call, parameters, kept.with_dgamma)),
        dbeta(parameter_like(call, parameters, kept.with_dbeta)) {
    require_elements(kept.rstd, ScalarType::Float, of.rows, "rstd");
    require_elements(kept.side_x_hat, ScalarType::Float, of.rows * of.side_count, "side_x_hat");
    of.dy = call.data(dy);
    of.dx = into(dx);
    if (kept.with_dgamma) of.own.dgamma = into(dgamma);
    if (kept.with_dbeta) of.own.dbeta = into(dbeta);
    of.workspace = into(workspace);
    of.rstd = call.data(kept.rstd);
    of.side_x_hat = of.side_count > 0 ? call.data(kept.side_x_hat) : Memory{};
  }

  NormOf of;
  Tensor dx, workspace, dgamma, dbeta;

 private:
  static Tensor parameter_like(const Call& call, const OfNorm& of, bool wanted) {
    return call.reals_of(wanted ? of.columns : 0, of.gamma ? of.gamma : of.beta);
  }
};

// A gated pair: a and b, or the halves of a's rows.
inline outgrad_call gated_of(const Call& call, const Tensor& a, const OptionalTensor& b, i64 activation) {
  const bool packed = !b;
  require(!packed || (a.dim() > 0 && a.sizes().back() % 2 == 0), "a's rows have no halves");
  outgrad_call of = over_rows(a, std::max<i64>(packed ? a.sizes().back() : a.numel(), 1));
  if (packed) of.n /= 2;
  of.activation = int_of(activation);
  of.x = call.data(a);
  if (b) {
    require_like(*b, a, "b");
    of.b = call.data(*b);
  }
  return of;
}

// Says that the norm keeps y in 8 bits. The workspace is the backend's matter.
inline void keep_in_8_bits(NormOf& of, i64 store) {
  of.store = int_of(store);
  outgrad_call sized = of;
  succeed(outgrad_norm_sizes(&sized));
  of.codes_bytes = sized.codes_bytes;
  of.scales_bytes = sized.scales_bytes;
}

// The scales of any tensor in 8 bits (kernels/tensor_codes.h): their type and number.
struct ScalesOfTensor {
  ScalarType type;
  i64 count;

  bool is_one() const { return type == ScalarType::Float; }  // of the tensor
  Tensor made(const Call& call) const { return is_one() ? call.floats_of({count}) : call.octets_of(count); }
};
inline ScalesOfTensor scales_of_tensor(const TensorOf& of) {
  if (of.store == OUTGRAD_STORE_E4M3 || of.store == OUTGRAD_STORE_E5M2) return {ScalarType::Float, 1};
  require(of.store == OUTGRAD_STORE_MXFP8, "no tensor is stored as ", of.store);
  return {ScalarType::Byte, kernels::scales_of<kernels::MxFp8>(of.n)};
}

// Says that a pair keeps a and b so.
inline ScalesOfTensor keep_pair(GatedIn8Bits& of, i64 store, bool packed) {
  constexpr i64 kBlock = kernels::Format<kernels::MxFp8>::kBlock;
  require(kernels::is_gate(of.activation), "activation ", of.activation, " is no gate");
  TensorOf tensor{};
  tensor.n = of.rows * of.n;
  tensor.store = of.store = int_of(store);
  const ScalesOfTensor scales = scales_of_tensor(tensor);
  require(scales.is_one() || !packed || of.rows == 0 || of.n % kBlock == 0, "packed rows of ", of.n,
          " are no blocks of ", kBlock);
  return scales;
}
// A tensor's codes, which have no elements if they are not wanted, and its scales.
template <class Backend>
std::tuple<Tensor, Tensor> encoded_tensor(const Tensor& x, i64 store, double least, bool with_codes) {
  const On<Backend> call(x);
  TensorOf of{over_elements(x)};
  of.store = int_of(store);
  of.least = static_cast<float>(least);
  const ScalesOfTensor of_scales = scales_of_tensor(of);
  const bool at_one_scale = of_scales.is_one();
  require(!at_one_scale || (kernels::kLeastOfTensors <= of.least && of.least <= kernels::kMostOfTensors),
          "least must lie in [2^-100, 2^127]");
  require(at_one_scale || with_codes, "a tensor in mxfp8 has no scale of its own");
  const Tensor codes = call.octets_of(with_codes ? of.n : 0), scales = of_scales.made(call);
  of.x = call.data(x);
  of.scales = into(scales);
  if (codes.numel() > 0) of.codes = into(codes);
  of.workspace_bytes = at_one_scale ? Backend::encode_tensor_workspace_bytes() : 0;
  const OptionalTensor workspace = call.workspace_of(of.workspace_bytes);
  of.workspace = into(workspace);
  if (at_one_scale || of.n > 0) call.run.encode_tensor(of);
  return {codes, scales};
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
         outgrad_call of = over_elements(x);
         of.activation = int_of(activation);
         of.x = call.data(x);
         of.y = into(y);
         of.mask = into(mask);
         call.run.activation_forward(of);
         return std::tuple(y, mask);
       });
  each("activation_backward(Tensor dy, Tensor y, Tensor? mask, int activation) -> Tensor", "same(dy)",
       [](const Tensor& dy, const Tensor& y, const OptionalTensor& mask, i64 activation) {
         const On<Backend> call(y);
         require_like(dy, y, "dy");
         const bool masked = mask && is_masked(activation);
         if (masked) require_elements(*mask, ScalarType::Int, mask_words(y.numel()), "mask");
         const Tensor dx = call.made_like(dy);
         outgrad_call of = over_elements(y);
         of.activation = int_of(activation);
         of.dy = call.data(dy);
         of.y = call.data(y);
         if (masked) of.mask = call.data(*mask);
         of.dx = into(dx);
         call.run.activation_backward(of);
         return dx;
       });
}

template <class Backend, class Each>
void store_operators(Each&& each) {
  // Gives y if the store writes it, and what else it has.
  each(
      "store_forward(Tensor x, int activation, int store, int bits, Tensor? seed=None, Tensor? scale=None) "
      "-> Tensor[]",
      "stored(x, activation, store, bits)",
      [](const Tensor& x, i64 activation, i64 store, i64 bits, const OptionalTensor& seed,
         const OptionalTensor& scale) {
        const On<Backend> call(x);
        outgrad_call of = call_of(call, x, {activation, store, bits, seed, scale});
        std::vector<Tensor> given;
        const auto into_new = [&](Tensor array) { return into(given.emplace_back(std::move(array))); };
        if (kernels::kStores[of.store].writes_y) of.y = into_new(call.made_like(x));
        set_arrays(of, [&](ScalarType type, i64 count, const char*) {
          return into_new(type == ScalarType::Int ? call.words_of(count) : call.octets_of(count));
        });
        const OptionalTensor workspace = call.workspace_of(Backend::store_workspace_bytes(of.store));
        of.workspace = into(workspace);
        of.x = call.data(x);
        call.run.activation_forward(of);
        return given;
      });
  // Takes y if the store keeps it, and what else the forward gave.
  each(
      "store_backward(Tensor dy, Tensor[] kept, int activation, int store, int bits, Tensor? seed=None, "
      "Tensor? scale=None) -> Tensor",
      "same(dy)",
      [](const Tensor& dy, const std::vector<Tensor>& kept, i64 activation, i64 store, i64 bits,
         const OptionalTensor& seed, const OptionalTensor& scale) {
        const On<Backend> call(dy);
        outgrad_call of = call_of(call, dy, {activation, store, bits, seed, scale});
        std::size_t count = 0;
        const auto next = [&](ScalarType type, i64 elements, const char* name) {
          require(count < kept.size(), name, " is missing");
          require_elements(kept[count], type, elements, name);
          return call.data(kept[count++]);
        };
        if (kernels::kStores[of.store].keeps_y) of.y = next(dy.scalar_type(), of.n, "y");
        set_arrays(of, next);
        require(count == kept.size(), "there are ", kept.size(), " arrays, where ", count, " are kept");
        const Tensor dx = call.made_like(dy);
        const OptionalTensor workspace = call.workspace_of(Backend::store_workspace_bytes(of.store));
        of.workspace = into(workspace);
        of.dy = call.data(dy);
        of.dx = into(dx);
        call.run.activation_backward(of);
        return dx;
      });
  each("encode_gradients(Tensor g, float lo, float hi, int bits, Tensor? seed) -> Tensor", "octets(g, bits)",
       [](const Tensor& g, double lo, double hi, i64 bits, const OptionalTensor& seed) {
         const On<Backend> call(g);
         outgrad_call of = call_of_own(call, g, {0, OUTGRAD_STORE_CODE, bits, seed, {}}, lo, hi);
         const Tensor codes = call.octets_of(static_cast<i64>(of.codes_bytes));
         of.g = call.data(g);
         of.codes = into(codes);
         call.run.encode_gradients(of);
         return codes;
       });
  each("backward_encoded(Tensor dy, Tensor codes, float lo, float hi, int bits, Tensor? seed) -> Tensor",
       "same(dy)",
       [](const Tensor& dy, const Tensor& codes, double lo, double hi, i64 bits, const OptionalTensor& seed) {
         const On<Backend> call(dy);
         outgrad_call of = call_of_own(call, dy, {0, OUTGRAD_STORE_CODE, bits, seed, {}}, lo, hi);
         const Tensor dx = call.made_like(dy);
         of.codes = octets(call, codes, of.codes_bytes, "codes");
         of.dy = call.data(dy);
         of.dx = into(dx);
         call.run.backward_encoded(of);
         return dx;
       });
}

// GELU of what a linear layer gives before its bias is added.
template <class Backend, class Each>
void bias_operators(Each&& each) {
  each("bias_gelu_forward(Tensor x, Tensor bias) -> (Tensor, Tensor)", "same(x), mask(x)",
       [](const Tensor& x, const Tensor& bias) {
         const On<Backend> call(x);
         BiasOf of{over_rows(x, bias.numel()), {.format = format_of(bias), .bias = call.data(bias)}};
         const Tensor y = call.made_like(x), mask = call.words_of(mask_words(x.numel()));
         of.x = call.data(x);
         of.y = into(y);
         of.mask = into(mask);
         call.run.bias_gelu_forward(of);
         return std::tuple(y, mask);
       });
  each(
      "bias_gelu_backward(Tensor dy, Tensor y, Tensor mask, SymInt columns, Tensor? like=None) -> (Tensor, "
      "Tensor)",
      "same(dy), reals(dy, columns, like)",
      [](const Tensor& dy, const Tensor& y, const Tensor& mask, i64 columns, const OptionalTensor& like) {
        const On<Backend> call(y);
        BiasOf of{over_rows(y, columns)};
        require_like(dy, y, "dy");
        require_elements(mask, ScalarType::Int, mask_words(y.numel()), "mask");
        of.workspace_bytes = call.run.bias_workspace_bytes(of);
        const Tensor dx = call.made_like(dy), dbias = call.reals_of(columns, like),
                     workspace = call.bytes_of(of.workspace_bytes);
        of.own = {.format = format_of(dbias), .dbias = into(dbias)};
        of.dy = call.data(dy);
        of.y = call.data(y);
        of.mask = call.data(mask);
        of.dx = into(dx);
        of.workspace = into(workspace);
        call.run.bias_gelu_backward(of);
        return std::tuple(dx, dbias);
      });
}

template <class Backend, class Each>
void gated_operators(Each&& each) {
  each("gated_forward(Tensor a, Tensor? b, int activation) -> Tensor", "gated(a, b)",
       [](const Tensor& a, const OptionalTensor& b, i64 activation) {
         const On<Backend> call(a);
         outgrad_call of = gated_of(call, a, b, activation);
         const Tensor y = b ? call.made_like(a) : call.made_like(a, of.n);
         of.y = into(y);
         if (a.numel() > 0) call.run.gated_forward(of);
         return y;
       });
  each(
      "gated_backward(Tensor dy, Tensor a, Tensor? b, int activation, bool with_y) -> (Tensor, Tensor, "
      "Tensor)",
      "same(a), none(a) if b is None else same(b), same(dy) if with_y else none(dy)",
      [](const Tensor& dy, const Tensor& a, const OptionalTensor& b, i64 activation, bool with_y) {
        const On<Backend> call(dy);
        outgrad_call of = gated_of(call, a, b, activation);
        require(dy.scalar_type() == a.scalar_type() && dy.numel() == of.rows * of.n,
                "dy is not of the type and number of elements of the output");
        const Tensor da = call.made_like(a), db = b ? call.made_like(*b) : call.none_like(a),
                     y = with_y ? call.made_like(dy) : call.none_like(dy);
        of.dy = call.data(dy);
        of.dx = into(da);
        if (b) of.db = into(db);
        if (with_y) of.y = into(y);
        if (a.numel() > 0) call.run.gated_backward(of);
        return std::tuple(da, db, y);
      });
  // a and b are kept in 8 bits, too; store is a value of outgrad_store. In mxfp8, packed rows are whole
  // blocks.
  each(
      "gated_forward_8bit(Tensor a, Tensor? b, int activation, int store) -> (Tensor, Tensor, Tensor, "
      "Tensor, Tensor)",
      "gated(a, b), *gated_codes(a, b, store), *gated_codes(a, b, store)",
      [](const Tensor& a, const OptionalTensor& b, i64 activation, i64 store) {
        const On<Backend> call(a);
        GatedIn8Bits of{gated_of(call, a, b, activation)};
        const ScalesOfTensor scales = keep_pair(of, store, !b);
        const auto made = [&] {
          if (!scales.is_one() || a.numel() > 0) return scales.made(call);
          return std::get<1>(encoded_tensor<Backend>(a, store, double{kernels::kLeastOfTensors}, false));
        };
        const Tensor y = b ? call.made_like(a) : call.made_like(a, of.n),
                     codes_of_a = call.octets_of(y.numel()), scales_of_a = made(),
                     codes_of_b = call.octets_of(y.numel()), scales_of_b = made();
        of.y = into(y);
        of.kept = {into(codes_of_a), into(scales_of_a), into(codes_of_b), into(scales_of_b)};
        of.workspace_bytes = scales.is_one() ? Backend::gated_forward_8bit_workspace_bytes() : 0;
        const OptionalTensor workspace = call.workspace_of(of.workspace_bytes);
        of.workspace = into(workspace);
        if (a.numel() > 0) call.run.gated_forward_8bit(of);
        return std::tuple(y, codes_of_a, scales_of_a, codes_of_b, scales_of_b);
      });
  each(
      "gated_backward_8bit(Tensor dy, Tensor codes_of_a, Tensor scales_of_a, Tensor codes_of_b, Tensor "
      "scales_of_b, int activation, int store, bool packed, bool with_y) -> (Tensor, Tensor, Tensor)",
      "doubled(dy) if packed else same(dy), none(dy) if packed else same(dy), same(dy) if with_y else "
      "none(dy)",
      [](const Tensor& dy, const Tensor& codes_of_a, const Tensor& scales_of_a, const Tensor& codes_of_b,
         const Tensor& scales_of_b, i64 activation, i64 store, bool packed, bool with_y) {
        const On<Backend> call(dy);
        GatedIn8Bits of{over_rows(dy, std::max<i64>(packed ? dy.sizes().back() : dy.numel(), 1))};
        of.activation = int_of(activation);
        const ScalesOfTensor scales = keep_pair(of, store, packed);
        const auto array = [&](const Tensor& tensor, ScalarType type, i64 count, const char* name) {
          require_elements(tensor, type, count, name);
          return call.data(tensor);
        };
        of.kept = {array(codes_of_a, ScalarType::Byte, dy.numel(), "codes_of_a"),
                   array(scales_of_a, scales.type, scales.count, "scales_of_a"),
                   array(codes_of_b, ScalarType::Byte, dy.numel(), "codes_of_b"),
                   array(scales_of_b, scales.type, scales.count, "scales_of_b")};
        const Tensor da = packed ? call.made_like(dy, 2 * dy.sizes().back()) : call.made_like(dy),
                     db = packed ? call.none_like(dy) : call.made_like(dy),
                     y = with_y ? call.made_like(dy) : call.none_like(dy);
        of.dy = call.data(dy);
        of.dx = into(da);
        if (!packed) of.db = into(db);
        if (with_y) of.y = into(y);
        if (dy.numel() > 0) call.run.gated_backward_8bit(of);
        return std::tuple(da, db, y);
      });
  each("product_forward(Tensor a, Tensor? b, int activation) -> (Tensor, Tensor, Tensor)",
       "gated(a, b), gated(a, b), gated_mask(a, b)",
       [](const Tensor& a, const OptionalTensor& b, i64 activation) {
         const On<Backend> call(a);
         outgrad_call of = gated_of(call, a, b, activation);
         const auto like_z = [&] { return b ? call.made_like(a) : call.made_like(a, of.n); };
         const Tensor z = like_z(), slot = like_z(), mask = call.words_of(mask_words(of.rows * of.n));
         of.y = into(z);
         of.slot = into(slot);
         of.mask = into(mask);
         if (a.numel() > 0) call.run.product_forward(of);
         return std::tuple(z, slot, mask);
       });
  each(
      "product_backward(Tensor dz, Tensor z, Tensor slot, Tensor mask, int activation, bool packed) -> "
      "(Tensor, Tensor)",
      "doubled(dz) if packed else same(dz), none(dz) if packed else same(dz)",
      [](const Tensor& dz, const Tensor& z, const Tensor& slot, const Tensor& mask, i64 activation,
         bool packed) {
        const On<Backend> call(dz);
        outgrad_call of = over_rows(dz, std::max<i64>(packed ? dz.sizes().back() : dz.numel(), 1));
        of.activation = int_of(activation);
        require_like(z, dz, "z");
        require_like(slot, dz, "slot");
        require_elements(mask, ScalarType::Int, mask_words(dz.numel()), "mask");
        const Tensor da = packed ? call.made_like(dz, 2 * dz.sizes().back()) : call.made_like(dz),
                     db = packed ? call.none_like(dz) : call.made_like(dz);
        of.dy = call.data(dz);
        of.y = call.data(z);
        of.slot = call.data(slot);
        of.mask = call.data(mask);
        of.dx = into(da);
        if (!packed) of.db = into(db);
        if (dz.numel() > 0) call.run.product_backward(of);
        return std::tuple(da, db);
      });
}

// Softmax; dropout, which with the same seed is its own backward.
template <class Backend, class Each>
void softmax_and_dropout_operators(Each&& each) {
  each("softmax_forward_code(Tensor x, SymInt columns) -> (Tensor, Tensor)", "same(x), octets(x, 8)",
       [](const Tensor& x, i64 columns) {
         const On<Backend> call(x);
         outgrad_call of = over_rows(x, columns);
         const Tensor y = call.made_like(x), codes = call.octets_of(x.numel());
         of.x = call.data(x);
         of.y = into(y);
         of.codes = into(codes);
         of.codes_bytes = static_cast<std::size_t>(x.numel());
         if (of.rows > 0) call.run.softmax_forward(of);
         return std::tuple(y, codes);
       });
  each("softmax_backward_code(Tensor dy, Tensor codes, SymInt columns) -> Tensor", "same(dy)",
       [](const Tensor& dy, const Tensor& codes, i64 columns) {
         const On<Backend> call(dy);
         outgrad_call of = over_rows(dy, columns);
         const Tensor dx = call.made_like(dy);
         of.codes_bytes = static_cast<std::size_t>(dy.numel());
         of.codes = octets(call, codes, of.codes_bytes, "codes");
         of.dy = call.data(dy);
         of.dx = into(dx);
         if (of.rows > 0) call.run.softmax_backward(of);
         return dx;
       });
  each("dropout(Tensor x, Tensor seed, float p) -> Tensor", "same(x)",
       [](const Tensor& x, const Tensor& seed, double p) {
         const On<Backend> call(x);
         const Tensor y = call.made_like(x);
         outgrad_call of = over_elements(x);
         of.x = call.data(x);
         of.y = into(y);
         call.run.dropout(of, drop_of(call, seed, p));
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
        call.run.norm_forward(norm.of);
        return std::tuple(norm.y, norm.rstd, norm.x_hat);
      });
  each(
      "norm_backward(Tensor dy, Tensor y, SymInt columns, Tensor? gamma, Tensor? beta, Tensor rstd, bool "
      "rms, Tensor? side_channels, Tensor side_x_hat, bool with_dgamma, bool with_dbeta, float tau=0.0) -> "
      "(Tensor, Tensor, Tensor)",
      "same(dy), *of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)",
      [](const Tensor& dy, const Tensor& y, i64 columns, const OptionalTensor& gamma,
         const OptionalTensor& beta, const Tensor& rstd, bool rms, const OptionalTensor& side_channels,
         const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta, double tau) {
        const On<Backend> call(y);
        require_like(dy, y, "dy");
        NormBackward<Backend> norm(call, dy, {columns, gamma, beta, rms, side_channels, tau},
                                   {rstd, side_x_hat, with_dgamma, with_dbeta});
        norm.of.y = call.data(y);
        call.run.norm_backward(norm.of);
        return std::tuple(norm.dx, norm.dgamma, norm.dbeta);
      });
}

// Norms of z = dropout(x) + residual; without a seed nothing is dropped.
template <class Backend, class Each>
void operators_of_sums(Each&& each) {
  // z has no elements if it is not wanted.
  each(
      "norm_forward_of_sum(Tensor x, Tensor residual, SymInt columns, Tensor? gamma, Tensor? beta, float "
      "eps, bool rms, Tensor? side_channels, Tensor? seed, float p, bool with_z, Tensor(a!)? seen=None, "
      "float tau=0.0) -> (Tensor, Tensor, Tensor, Tensor)",
      "same(x), *of_rows(x, columns, side_channels), same(x) if with_z else x.new_empty(0)",
      [](const Tensor& x, const Tensor& residual, i64 columns, const OptionalTensor& gamma,
         const OptionalTensor& beta, double eps, bool rms, const OptionalTensor& side_channels,
         const OptionalTensor& seed, double p, bool with_z, const OptionalTensor& seen, double tau) {
        const On<Backend> call(x);
        NormForward norm(call, x, {columns, gamma, beta, rms, side_channels, tau}, eps, seen);
        require_like(residual, x, "residual");
        const bool has_z = with_z || Backend::kNeedsZ;
        const Tensor z = has_z ? call.made_like(x) : call.none_like(x);
        norm.of.residual = call.data(residual);
        if (has_z) norm.of.z = into(z);
        norm.of.drop = drop_of(call, seed, p);
        call.run.norm_forward(norm.of);
        return std::tuple(norm.y, norm.rstd, norm.x_hat, with_z || !has_z ? z : call.none_like(x));
      });
  // dz, and dx = dropout(dz), which has no elements without a seed: it is then dz. dz_next is what reaches z
  // itself.
  each(
      "norm_backward_of_sum(Tensor dy, Tensor y, Tensor? dz_next, SymInt columns, Tensor? gamma, Tensor? "
      "beta, Tensor rstd, bool rms, Tensor? side_channels, Tensor side_x_hat, bool with_dgamma, bool "
      "with_dbeta, Tensor? seed, float p, float tau=0.0) -> (Tensor, Tensor, Tensor, Tensor)",
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
        norm.of.y = call.data(y);
        if (dz_next) norm.of.dz_next = call.data(*dz_next);
        if (seed) norm.of.dropped = into(dx);
        norm.of.drop = drop_of(call, seed, p);
        call.run.norm_backward(norm.of);
        return std::tuple(norm.dx, dx, norm.dgamma, norm.dbeta);
      });
}

// Norms whose y is kept in 8 bits; store is a value of outgrad_store.
template <class Backend, class Each>
void operators_of_norms_in_8_bits(Each&& each) {
  each(
      "norm_forward_8bit(Tensor x, SymInt columns, Tensor? gamma, Tensor? beta, float eps, bool rms, Tensor? "
      "side_channels, int store) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      "same(x), octets(x, 8), norm_scales(x, store), *of_rows(x, columns, side_channels)",
      [](const Tensor& x, i64 columns, const OptionalTensor& gamma, const OptionalTensor& beta, double eps,
         bool rms, const OptionalTensor& side_channels, i64 store) {
        const On<Backend> call(x);
        NormForward norm(call, x, {columns, gamma, beta, rms, side_channels}, eps);
        keep_in_8_bits(norm.of, store);
        norm.of.workspace_bytes = Backend::norm_forward_workspace_bytes(norm.of);
        const OptionalTensor workspace = call.workspace_of(norm.of.workspace_bytes);
        norm.of.workspace = into(workspace);
        const Tensor codes = call.octets_of(static_cast<i64>(norm.of.codes_bytes)),
                     scales = call.octets_of(static_cast<i64>(norm.of.scales_bytes));
        norm.of.codes = into(codes);
        norm.of.scales = into(scales);
        call.run.norm_forward(norm.of);
        return std::tuple(norm.y, codes, scales, norm.rstd, norm.x_hat);
      });
  each(
      "norm_backward_8bit(Tensor dy, Tensor codes, Tensor scales, SymInt columns, Tensor? gamma, Tensor? "
      "beta, Tensor rstd, bool rms, Tensor? side_channels, Tensor side_x_hat, bool with_dgamma, bool "
      "with_dbeta, int store) -> (Tensor, Tensor, Tensor)",
      "same(dy), *of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)",
      [](const Tensor& dy, const Tensor& codes, const Tensor& scales, i64 columns,
         const OptionalTensor& gamma, const OptionalTensor& beta, const Tensor& rstd, bool rms,
         const OptionalTensor& side_channels, const Tensor& side_x_hat, bool with_dgamma, bool with_dbeta,
         i64 store) {
        const On<Backend> call(dy);
        NormBackward<Backend> norm(call, dy, {columns, gamma, beta, rms, side_channels},
                                   {rstd, side_x_hat, with_dgamma, with_dbeta});
        keep_in_8_bits(norm.of, store);
        norm.of.codes = octets(call, codes, norm.of.codes_bytes, "codes");
        norm.of.scales = octets(call, scales, norm.of.scales_bytes, "scales");
        call.run.norm_backward(norm.of);
        return std::tuple(norm.dx, norm.dgamma, norm.dbeta);
      });
}

// Any tensor in 8 bits; store is a value of outgrad_store, and format one of outgrad_format.
template <class Backend, class Each>
void operators_of_tensors_in_8_bits(Each&& each) {
  each("tensor_scale(Tensor x, int store, float least) -> Tensor", "tensor_scale(x)",
       [](const Tensor& x, i64 store, double least) {
         return std::get<1>(encoded_tensor<Backend>(x, store, least, false));
       });
  each("encode_tensor(Tensor x, int store, float least) -> (Tensor, Tensor)",
       "octets(x, 8), tensor_scales(x, store)", [](const Tensor& x, i64 store, double least) {
         return encoded_tensor<Backend>(x, store, least, true);
       });
  each("decode_tensor(Tensor codes, Tensor scales, int store, int format) -> Tensor",
       "reals_like(codes, format)", [](const Tensor& codes, const Tensor& scales, i64 store, i64 format) {
         const On<Backend> call(codes);
         require(format >= OUTGRAD_F32 && format <= OUTGRAD_BF16, "format ", format, " is unknown");
         TensorOf of{};
         of.size = sizeof(outgrad_call);
         of.format = int_of(format);
         of.n = codes.numel();
         of.store = int_of(store);
         const auto [type, count] = scales_of_tensor(of);
         require_elements(codes, ScalarType::Byte, of.n, "codes");
         require_elements(scales, type, count, "scales");
         const Tensor x = call.made_in(codes, of.format);
         of.codes = call.data(codes);
         of.scales = call.data(scales);
         of.y = into(x);
         if (of.n > 0) call.run.decode_tensor(of);
         return x;
       });
}

template <class Backend, class Each>
void operators(Each&& each) {
  activation_operators<Backend>(each);
  store_operators<Backend>(each);
  bias_operators<Backend>(each);
  gated_operators<Backend>(each);
  softmax_and_dropout_operators<Backend>(each);
  norm_operators<Backend>(each);
  operators_of_sums<Backend>(each);
  operators_of_norms_in_8_bits<Backend>(each);
  operators_of_tensors_in_8_bits<Backend>(each);
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
