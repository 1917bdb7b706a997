// A libcuda that runs on the host, for tests of the tuner and of the PyTorch package: OUTGRAD_LIBCUDA names
// it. It has one device, an sm_90, whose kernels compute what the host's scalar kernels compute, found by the
// names in their mangled symbols; machine code is never looked at. Of a plan with several kernels the one
// over rows computes everything, the others carry its results on through the workspace.
//
// OUTGRAD_STAND_IN_PLANTS=THREADS:WHAT,..: launches with blocks of THREADS threads go wrong. WHAT: bit (one
// wrong bit), write (one element beyond the output), fault (the launch ends in an error and so does every
// later call), crash (the process dies), hang, memory (the device is out of memory), late (only the last of
// 1000 elements or more is wrong).
// OUTGRAD_STAND_IN_MEMORY=BYTES: of the device, 1 GiB unless given. The tuner's arrays are sized by it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/cuda/plan.h"
#include "kernels/dropout.h"
#include "kernels/fits.h"
#include "kernels/host/bias.h"
#include "kernels/host/functions.h"
#include "kernels/host/gated.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/norm_store.h"
#include "kernels/host/tensor_codes.h"
#include "kernels/side_policy.h"
#include "kernels/stored.h"
#include "kernels/stores/code.h"

namespace {

using namespace outgrad;
using kernels::BF16;
using kernels::F16;

constexpr int kSuccess = 0, kOutOfMemory = 2, kInvalid = 1, kNoDevice = 101, kIllegalAddress = 700;
constexpr kernels::CpuSchedule kScalar{.threads = 1};

int sticky = kSuccess;
std::map<void*, std::chrono::steady_clock::time_point> events;
thread_local std::vector<void*> contexts;

std::mutex counting;
std::map<std::string, long long> calls;  // of functions that cost the host time where a launch needs them
void count(const char* function) {
  const std::lock_guard lock(counting);
  ++calls[function];
}

constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct Kernel {
  std::string symbol;
  unsigned allowed_shared = 48 << 10;  // dynamic bytes
};

std::size_t memory_bytes() {
  const char* text = std::getenv("OUTGRAD_STAND_IN_MEMORY");
  return text == nullptr ? std::size_t{1} << 30 : std::strtoull(text, nullptr, 10);
}

std::string plant_of(unsigned threads) {
  const char* plants = std::getenv("OUTGRAD_STAND_IN_PLANTS");
  const std::string text = plants == nullptr ? "" : "," + std::string(plants) + ",",
                    key = "," + std::to_string(threads) + ":";
  const std::size_t at = text.find(key);
  return at == std::string::npos ? ""
                                 : text.substr(at + key.size(), text.find(',', at + 1) - at - key.size());
}

std::string mangled(const std::string& name) { return std::to_string(name.size()) + name; }

std::string type_of(const char* name) {  // "GeluF32" for "gelu_f32"
  std::string type;
  bool capital = true;
  for (const char* c = name; *c != '\0'; ++c) {
    if (*c != '_') type += capital ? static_cast<char>(std::toupper(static_cast<unsigned char>(*c))) : *c;
    capital = *c == '_';
  }
  return type;
}

// Calls action with a value of the type that the symbol names as a kernel's first format. The format of a
// norm's parameters is a number there.
template <class Action>
void with_type(const std::string& symbol, const Action& action) {
  if (symbol.find("4BF16E") != std::string::npos) return action(BF16{});
  if (symbol.find("3F16E") != std::string::npos) return action(F16{});
  action(float{});
}

bool is_of(const std::string& symbol, const char* kernel) {
  return symbol.find(mangled(kernel) + "I") != std::string::npos;
}

// The parameter `index` of a launch.
template <class T>
T& parameter(void** parameters, int index) {
  return *static_cast<T*>(parameters[index]);
}

template <class T>
constexpr outgrad_format kFormatOf = std::is_same_v<T, float> ? OUTGRAD_F32
                                     : std::is_same_v<T, F16> ? OUTGRAD_F16
                                                              : OUTGRAD_BF16;

// A call of the compiled library, whose arrays hold what they must.
outgrad_call library_call(outgrad_format format, outgrad_store store, std::int64_t n, int activation = 0) {
  outgrad_call call{};
  call.size = sizeof call;
  call.format = format;
  call.store = store;
  call.activation = activation;
  call.n = n;
  call.codes_bytes = call.scales_bytes = call.parts_bytes = SIZE_MAX;
  return call;
}

// What a launch wrote, for plants.
struct Written {
  void* out = nullptr;
  std::int64_t bytes = 0;
};

// Dropout element by element.
template <class T>
void drop(const T* x, T* y, std::int64_t n, const kernels::cuda::Seed& seed,
          const kernels::DropoutRule& rule) {
  const kernels::u64 key = seed.at != nullptr ? *seed.at : seed.value;
  for (std::int64_t i = 0; i < n; ++i) {
    const kernels::PhiloxWords words = kernels::philox(static_cast<kernels::u64>(i / 4), key);
    y[i] = kernels::dropout_element(rule, words.word[i % 4], x[i]);
  }
}

// The other activations, by the compiled library, and dropout.
bool compute_others(const std::string& symbol, void** p, Written& written) {
  bool known = is_of(symbol, "dropout");
  const bool forward = is_of(symbol, "activation_forward");
  with_type(symbol, [&]<class T>(T) {
    if (known) {
      auto* const y = parameter<T*>(p, 1);
      const auto n = parameter<std::int64_t>(p, 2);
      drop(parameter<const T*>(p, 0), y, n, parameter<kernels::cuda::Seed>(p, 3),
           parameter<kernels::DropoutRule>(p, 4));
      written = {y, n * static_cast<std::int64_t>(sizeof(T))};
      return;
    }
    for (int k = 1; k < kernels::kActivations; ++k) {
      const std::string name = kernels::kActivationNames[k];
      if (symbol.find(mangled(type_of((forward ? name : name + "_" + kernels::Format<T>::kName).c_str())) +
                      "E") == std::string::npos)
        continue;
      const auto n = parameter<std::int64_t>(p, forward ? 3 : 4);
      void* const out = parameter<void*>(p, forward ? 1 : 3);
      outgrad_call call = library_call(kFormatOf<T>, OUTGRAD_STORE_Y, n, k);
      (forward ? call.x : call.dy) = parameter<const void*>(p, 0);
      call.y = parameter<void*>(p, 1);
      call.mask = parameter<kernels::u32*>(p, 2);
      call.dx = out;
      known = (forward ? outgrad_activation_forward : outgrad_activation_backward)(&call) == OUTGRAD_OK;
      written = {out, n * static_cast<std::int64_t>(sizeof(T))};
    }
  });
  return known;
}

// Codes for f'(x): the activation's forward by the compiled library; codes of g and the backward element by
// element, from the rule that they were given.
bool compute_codes(const std::string& symbol, void** p, Written& written) {
  const bool forward = is_of(symbol, "activation_forward_code"),
             backward = is_of(symbol, "activation_backward_code");
  const bool encode = is_of(symbol, "encode_gradients");
  bool known = backward || encode;
  if (!forward && !known) return false;
  // after the format
  const std::size_t at = symbol.find("ELi") == std::string::npos ? symbol.find("fLi") : symbol.find("ELi");
  const int bits = symbol[at + 3] - '0';
  const bool dithered = symbol.substr(at + 4, 4) == "ELb1";
  with_type(symbol, [&]<class T>(T) {
    const auto n = parameter<std::int64_t>(p, encode ? 2 : 3);
    const auto* const seed = dithered ? parameter<const kernels::u64*>(p, encode ? 3 : 4) : nullptr;
    const auto dither_at = [&](std::int64_t i) {
      return dithered
                 ? kernels::dither_of(kernels::philox(static_cast<kernels::u64>(i / 4), *seed).word[i % 4])
                 : 0.0f;
    };
    if (encode) {
      const auto* const g = parameter<const T*>(p, 0);
      auto* const codes = parameter<kernels::u8*>(p, 1);
      const std::int64_t bytes = kernels::code_bytes(bits, n);
      std::fill_n(codes, bytes, kernels::u8{0});
      for (std::int64_t i = 0; i < n; ++i) {
        const unsigned code =
            kernels::coded_gradient(parameter<kernels::CodeRule>(p, 4), kernels::widen(g[i]), dither_at(i));
        for (int bit = 0; bit < bits; ++bit)
          codes[(i * bits + bit) / 8] |= static_cast<kernels::u8>((code >> bit & 1u) << (i * bits + bit) % 8);
      }
      written = {codes, bytes};
      return;
    }
    if (backward) {
      const auto* const dy = parameter<const T*>(p, 0);
      const auto* const codes = parameter<const kernels::u8*>(p, 1);
      auto* const dx = parameter<T*>(p, 2);
      for (std::int64_t i = 0; i < n; ++i) {
        unsigned code = 0;
        for (int bit = 0; bit < bits; ++bit)
          code |= (codes[(i * bits + bit) / 8] >> (i * bits + bit) % 8 & 1u) << bit;
        const float g = kernels::gradient_of_code(parameter<kernels::CodeRule>(p, 5),
                                                  static_cast<kernels::u8>(code), dither_at(i));
        dx[i] = kernels::narrow<T>(kernels::mul_rn(kernels::widen(dy[i]), g));
      }
      written = {dx, n * static_cast<std::int64_t>(sizeof(T))};
      return;
    }
    for (int k = 0; k < kernels::kActivations; ++k) {
      if (symbol.find(mangled(type_of((std::string(kernels::kActivationNames[k]) + "_code").c_str())) +
                      "E") == std::string::npos)
        continue;
      outgrad_call call = library_call(kFormatOf<T>, OUTGRAD_STORE_CODE, n, k);
      call.bits = bits;
      call.seed = seed;
      call.x = parameter<const void*>(p, 0);
      call.y = parameter<void*>(p, 1);
      call.codes = parameter<void*>(p, 2);
      known = outgrad_activation_forward(&call) == OUTGRAD_OK;
      written = {parameter<void*>(p, 1), n * static_cast<std::int64_t>(sizeof(T))};
    }
  });
  return known;
}

// y in 8 bits at a scale: the table by its own definition, the forward by the compiled library, the backward
// element by element, from the table.
template <class F>
bool compute_fp8(const std::string& symbol, void** p, Written& written, outgrad_store store) {
  bool known = false;
  const auto names = [&]<class S>(S) {
    return symbol.find(mangled(type_of(S::Header::kName)) + "E") != std::string::npos;
  };
  const auto fill = [&]<class... S>(kernels::Fp8List<S...>) {
    const auto one = [&]<class Of>(Of of) {
      if (!names(of)) return;
      kernels::fill_fp8_table<Of, F>(*parameter<const float*>(p, 0), parameter<int>(p, 1),
                                     *parameter<kernels::Fp8Table*>(p, 2));
      known = true;
    };
    (one(S{}), ...);
  };
  if (is_of(symbol, "fp8_table")) return fill(kernels::Fp8Activations{}), known;
  with_type(symbol, [&]<class T>(T) {
    const auto& table = *parameter<const kernels::Fp8Table*>(p, 0);
    const auto n = parameter<std::int64_t>(p, 5);
    const auto forward = [&]<class... S>(kernels::Fp8List<S...>) {
      const auto one = [&]<class Of>(Of of) {
        const auto& activations = kernels::kActivationNames;
        const auto at = std::find(std::begin(activations), std::end(activations),
                                  std::string_view(Of::Header::kActivation)) -
                        std::begin(activations);
        if (!names(of)) return;
        outgrad_call call = library_call(kFormatOf<T>, store, n, static_cast<int>(at));
        call.bits = table.bits;
        call.scale = parameter<const float*>(p, 1);
        call.x = parameter<const void*>(p, 2);
        call.codes = parameter<void*>(p, 3);
        call.parts = parameter<void*>(p, 4);
        known = outgrad_activation_forward(&call) == OUTGRAD_OK;
      };
      (one(S{}), ...);
    };
    forward(kernels::Fp8Activations{});
    written = {parameter<void*>(p, 3), n};
  });
  return known;
}

bool compute_fp8(const std::string& symbol, void** p, Written& written) {
  if (is_of(symbol, "activation_backward_fp8")) {
    with_type(symbol, [&]<class T>(T) {
      const auto& table = *parameter<const kernels::Fp8Table*>(p, 0);
      const auto* const dy = parameter<const T*>(p, 1);
      const auto* const codes = parameter<const kernels::u8*>(p, 2);
      const auto* const parts = parameter<const kernels::u8*>(p, 3);
      auto* const dx = parameter<T*>(p, 4);
      const auto n = parameter<std::int64_t>(p, 5);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t bit = i * table.bits;
        const int part = table.bits == 0 ? 0 : parts[bit / 8] >> bit % 8 & ((1 << table.bits) - 1);
        dx[i] = kernels::narrow<T>(kernels::mul_rn(kernels::widen(dy[i]), table.values[part][codes[i]]));
      }
      written = {dx, n * static_cast<std::int64_t>(sizeof(T))};
    });
    return true;
  }
  if (!is_of(symbol, "fp8_table") && !is_of(symbol, "activation_forward_fp8")) return false;
  if (symbol.find(mangled("F8E4M3") + "E") != std::string::npos)
    return compute_fp8<kernels::F8E4M3>(symbol, p, written, OUTGRAD_STORE_E4M3);
  if (symbol.find(mangled("F8E5M2") + "E") != std::string::npos)
    return compute_fp8<kernels::F8E5M2>(symbol, p, written, OUTGRAD_STORE_E5M2);
  return symbol.find(mangled("I8") + "E") != std::string::npos &&
         compute_fp8<kernels::I8>(symbol, p, written, OUTGRAD_STORE_INT8);
}

// Softmax and its codes, by the compiled library.
bool compute_softmax(const std::string& symbol, void** p, Written& written) {
  const bool forward = is_of(symbol, "softmax_forward_code");
  if (!forward && !is_of(symbol, "softmax_backward_code")) return false;
  outgrad_status status = OUTGRAD_OK;
  with_type(symbol, [&]<class T>(T) {
    const auto rows = parameter<std::int64_t>(p, 3), n = parameter<std::int64_t>(p, 4);
    void* const out = parameter<void*>(p, forward ? 1 : 2);
    outgrad_call call = library_call(kFormatOf<T>, OUTGRAD_STORE_CODE, n);
    call.rows = rows;
    (forward ? call.x : call.dy) = parameter<const void*>(p, 0);
    call.y = call.dx = out;
    call.codes = parameter<void*>(p, forward ? 2 : 1);
    status = (forward ? outgrad_softmax_forward : outgrad_softmax_backward)(&call);
    written = {out, rows * n * static_cast<std::int64_t>(sizeof(T))};
  });
  return status == OUTGRAD_OK;
}

// The activation whose gate a symbol names, or none.
std::optional<int> gate_of(const std::string& symbol) {
  for (int k = 0; k < kernels::kActivations; ++k) {
    if (symbol.find(mangled("gates") + mangled(type_of(kernels::kActivationNames[k])) + "E") !=
        std::string::npos)
      return k;
  }
  return std::nullopt;
}

// Gated pairs that keep their product, by the compiled library.
bool compute_product(const std::string& symbol, void** p, Written& written) {
  const bool forward = is_of(symbol, "product_forward");
  const std::optional<int> gate = gate_of(symbol);
  if (!gate || (!forward && !is_of(symbol, "product_backward"))) return false;
  outgrad_status status = OUTGRAD_ERROR_ACTIVATION;
  with_type(symbol, [&]<class T>(T) {
    const int shape = forward ? 2 : 4;
    const auto rows = parameter<std::int64_t>(p, shape), n = parameter<std::int64_t>(p, shape + 1),
               stride = parameter<std::int64_t>(p, shape + 2);
    outgrad_call call = library_call(kFormatOf<T>, OUTGRAD_STORE_Y, n, *gate);
    call.rows = rows;
    if (forward) {
      call.x = parameter<const void*>(p, 0);
      if (stride == n) call.b = parameter<const void*>(p, 1);
      call.y = parameter<void*>(p, 5);
      call.slot = parameter<void*>(p, 6);
      call.mask = parameter<std::uint32_t*>(p, 7);
    } else {
      call.dy = parameter<const void*>(p, 0);
      call.y = parameter<void*>(p, 1);
      call.slot = parameter<void*>(p, 2);
      call.mask = parameter<std::uint32_t*>(p, 3);
      call.dx = parameter<void*>(p, 7);
      if (stride == n) call.db = parameter<void*>(p, 8);
    }
    status = (forward ? outgrad_product_forward : outgrad_product_backward)(&call);
    written = {forward ? call.y : call.dx,
               rows * (forward ? n : stride) * static_cast<std::int64_t>(sizeof(T))};
  });
  return status == OUTGRAD_OK;
}

// Gated pairs, by the compiled library.
bool compute_gated(const std::string& symbol, void** p, Written& written) {
  const bool forward = is_of(symbol, "gated_forward");
  const std::optional<int> gate = gate_of(symbol);
  if (!gate || (!forward && !is_of(symbol, "gated_backward"))) return false;
  outgrad_status status = OUTGRAD_ERROR_ACTIVATION;
  with_type(symbol, [&]<class T>(T) {
    const int first = forward ? 0 : 1;  // dy comes before them
    const auto rows = parameter<std::int64_t>(p, first + 2), n = parameter<std::int64_t>(p, first + 3),
               stride = parameter<std::int64_t>(p, first + 4);
    outgrad_call call = library_call(kFormatOf<T>, OUTGRAD_STORE_Y, n, *gate);
    call.rows = rows;
    call.x = parameter<const void*>(p, first);
    if (stride == n) call.b = parameter<const void*>(p, first + 1);
    if (!forward) {
      call.dy = parameter<const void*>(p, 0);
      call.dx = parameter<void*>(p, 6);
      call.db = parameter<void*>(p, 7);
    }
    call.y = parameter<void*>(p, forward ? 5 : 8);
    status = (forward ? outgrad_gated_forward : outgrad_gated_backward)(&call);
    written = {forward ? call.y : call.dx, rows * stride * static_cast<std::int64_t>(sizeof(T))};
    if (forward) written.bytes = rows * n * static_cast<std::int64_t>(sizeof(T));
  });
  return status == OUTGRAD_OK;
}

// What blocks leave of the largest magnitude of [rows, n] of x: the last one has seen it, the others nothing.
template <class T>
void leave_maximum(const T* x, const kernels::GatedShape& shape, kernels::u32* maxima, unsigned blocks) {
  std::fill_n(maxima, blocks, 0u);
  for (std::int64_t row = 0; row < shape.rows; ++row)
    for (std::int64_t j = 0; j < shape.n; ++j)
      maxima[blocks - 1] =
          std::max(maxima[blocks - 1], kernels::finite_magnitude(kernels::widen(x[row * shape.stride + j])));
}
float scale_from(const kernels::cuda::Maxima& maxima, float least, float (*scale)(kernels::u32, float)) {
  kernels::u32 most = 0;
  for (std::int64_t k = 0; k < maxima.count; ++k) most = std::max(most, maxima.of_blocks[k]);
  return scale(most, least);
}

template <class T>
const kernels::TensorFormat<T>& tensor_format(const std::string& symbol) {
  if (symbol.find(mangled("InBlocks") + "E") != std::string::npos ||
      symbol.find("_blocksI") != std::string::npos)
    return kernels::kTensorInBlocks<T>;
  return symbol.find(mangled("F8E5M2") + "E") != std::string::npos
             ? kernels::kTensorAtScale<kernels::F8E5M2, T>
             : kernels::kTensorAtScale<kernels::F8E4M3, T>;
}

// Any tensor in 8 bits, by the host's kernels for parts of one.
bool compute_tensor_codes(const std::string& symbol, void** p, unsigned blocks, Written& written) {
  const bool maxima = is_of(symbol, "tensor_maxima"), at_scale = is_of(symbol, "encode_tensor"),
             in_blocks = is_of(symbol, "encode_tensor_blocks"),
             decode = is_of(symbol, "decode_tensor") || is_of(symbol, "decode_tensor_blocks");
  if (!maxima && !at_scale && !in_blocks && !decode) return false;
  with_type(symbol, [&]<class T>(T) {
    const auto& format = tensor_format<T>(symbol);
    if (maxima) {
      const auto n = parameter<std::int64_t>(p, 2);
      leave_maximum(parameter<const T*>(p, 0), {1, n, n}, parameter<kernels::u32*>(p, 1), blocks);
      written = {parameter<void*>(p, 1), 4 * std::int64_t{blocks}};
    } else if (decode) {
      const auto n = parameter<std::int64_t>(p, 3);
      format.decode(parameter<void*>(p, 0), parameter<void*>(p, 1), 0, parameter<T*>(p, 2), n);
      written = {parameter<void*>(p, 2), n * static_cast<std::int64_t>(sizeof(T))};
    } else {
      const auto n = parameter<std::int64_t>(p, at_scale ? 5 : 3);
      void *const codes = parameter<void*>(p, at_scale ? 3 : 1), *const scales =
                                                                     parameter<void*>(p, at_scale ? 4 : 2);
      if (at_scale)
        *static_cast<float*>(scales) =
            scale_from(parameter<kernels::cuda::Maxima>(p, 1), parameter<float>(p, 2), format.scale);
      format.encode(parameter<const T*>(p, 0), codes, scales, 0, n);
      written = {codes, n};
    }
  });
  return true;
}

// Gated pairs that keep a and b so, by the host's loops; false where the maxima of a launch before are not
// those of a and b.
template <class Gate, class T>
bool compute_gated_codes(const std::string& symbol, void** p, Written& written) {
  const bool forward = is_of(symbol, "gated_forward_8bit");
  const auto rows = parameter<std::int64_t>(p, 2), n = parameter<std::int64_t>(p, 3),
             stride = parameter<std::int64_t>(p, 4);
  const kernels::GatedShape shape{rows, n, stride};
  const auto& on_device = parameter<kernels::cuda::GatedCodes>(p, forward ? 7 : 1);
  const kernels::GatedCodes<T> kept{&tensor_format<T>(symbol), on_device.codes_of_a, on_device.scales_of_a,
                                    on_device.codes_of_b, on_device.scales_of_b};
  if (!forward) {
    auto* const da = parameter<T*>(p, 5);
    kernels::gated_backward<Gate, T, kScalar>(parameter<const T*>(p, 0), nullptr, nullptr, shape, da,
                                              parameter<T*>(p, 6), parameter<T*>(p, 7), &kept);
    written = {da, rows * stride * static_cast<std::int64_t>(sizeof(T))};
    return true;
  }
  auto* const y = parameter<T*>(p, 5);
  kernels::gated_forward<Gate, T, kScalar>(parameter<const T*>(p, 0), parameter<const T*>(p, 1), shape, y,
                                           &kept);
  written = {y, rows * n * static_cast<std::int64_t>(sizeof(T))};
  if (kept.format->scale == nullptr) return true;
  const auto& maxima = parameter<kernels::cuda::Maxima>(p, 6);
  const auto is_scale = [&](const void* scale, const kernels::cuda::Maxima& of) {
    return *static_cast<const float*>(scale) == scale_from(of, kernels::kLeastOfTensors, kept.format->scale);
  };
  return is_scale(kept.scales_of_a, maxima) &&
         is_scale(kept.scales_of_b, {maxima.of_blocks + maxima.count, maxima.count});
}

bool compute_gated_codes(const std::string& symbol, void** p, unsigned blocks, Written& written) {
  if (is_of(symbol, "gated_maxima")) {
    with_type(symbol, [&]<class T>(T) {
      const kernels::GatedShape shape{parameter<std::int64_t>(p, 2), parameter<std::int64_t>(p, 3),
                                      parameter<std::int64_t>(p, 4)};
      auto* const maxima = parameter<kernels::u32*>(p, 5);
      leave_maximum(parameter<const T*>(p, 0), shape, maxima, blocks);
      leave_maximum(parameter<const T*>(p, 1), shape, maxima + blocks, blocks);
      written = {maxima, 8 * std::int64_t{blocks}};
    });
    return true;
  }
  const std::optional<int> gate = gate_of(symbol);
  if (!gate || (!is_of(symbol, "gated_forward_8bit") && !is_of(symbol, "gated_backward_8bit"))) return false;
  bool known = false;
  with_type(symbol, [&]<class T>(T) {
    const auto one = [&]<class Gate>(Gate) {
      if (gate_of(mangled("gates") + mangled(type_of(Gate::kActivation)) + "E") == gate)
        known = compute_gated_codes<Gate, T>(symbol, p, written);
    };
    one(kernels::gates::Silu{}), one(kernels::gates::GeluTanh{});
    one(kernels::gates::Sigmoid{}), one(kernels::gates::Gelu{});
  });
  return known;
}

// A y that carries its branch and MXFP8, by the compiled library.
bool compute_stores(const std::string& symbol, void** p, Written& written) {
  if (compute_codes(symbol, p, written) || compute_fp8(symbol, p, written) ||
      compute_softmax(symbol, p, written) || compute_gated(symbol, p, written) ||
      compute_product(symbol, p, written))
    return true;
  const bool backward = is_of(symbol, "activation_backward"),
             half = symbol.find("9ParityF16E") != std::string::npos;
  if (half || symbol.find("10ParityBf16E") != std::string::npos) {
    const outgrad_format format = half ? OUTGRAD_F16 : OUTGRAD_BF16;
    const auto n = parameter<std::int64_t>(p, backward ? 4 : 2);
    for (int k = 0; k < kernels::kActivations; ++k) {
      const std::string name = kernels::kActivationNames[k];
      const std::string function = backward ? name + (half ? "_f16_parity" : "_bf16_parity")
                                   : k == 0 ? "gelu_forward"
                                            : name;
      if (symbol.find(mangled(type_of(function.c_str())) + "E") == std::string::npos) continue;
      void* const out = parameter<void*>(p, backward ? 3 : 1);
      written = {out, 2 * n};
      outgrad_call call = library_call(format, OUTGRAD_STORE_PARITY, n, k);
      (backward ? call.dy : call.x) = parameter<const void*>(p, 0);
      call.y = parameter<void*>(p, 1);
      call.dx = out;
      return (backward ? outgrad_activation_backward : outgrad_activation_forward)(&call) == OUTGRAD_OK;
    }
    return false;
  }
  const bool mxfp8_forward = is_of(symbol, "gelu_forward_mxfp8");
  if (!mxfp8_forward && symbol.find("5MxFp8E") == std::string::npos) return false;
  bool known = false;
  with_type(symbol, [&]<class T>(T) {
    const auto n = parameter<std::int64_t>(p, 4);
    outgrad_call call = library_call(kFormatOf<T>, OUTGRAD_STORE_MXFP8, n);
    (mxfp8_forward ? call.x : call.dy) = parameter<const void*>(p, 0);
    if (mxfp8_forward) {
      call.codes = parameter<void*>(p, 1);
      call.scales = parameter<void*>(p, 2);
      call.mask = parameter<kernels::u32*>(p, 3);
      known = outgrad_activation_forward(&call) == OUTGRAD_OK;
      written = {call.codes, n};
      return;
    }
    const auto& y = parameter<kernels::BlockScaled<kernels::MxFp8>>(p, 1);
    call.codes = const_cast<kernels::F8E4M3*>(y.codes);
    call.scales = const_cast<kernels::E8M0*>(y.scales);
    call.mask = parameter<kernels::u32*>(p, 2);
    call.dx = parameter<void*>(p, 3);
    known = outgrad_activation_backward(&call) == OUTGRAD_OK;
    written = {parameter<void*>(p, 3), n * static_cast<std::int64_t>(sizeof(T))};
  });
  return known;
}

// The mangled formats of bias_gelu_forward's elements and of its bias, its template's second and third
// argument. The third may be a substitution of the second.
struct FormatsOfBias {
  std::string elements, bias;
};
FormatsOfBias formats_of_bias(const std::string& symbol) {
  const std::string name = mangled("bias_gelu_forward") + "I";
  std::size_t at = symbol.find('E', symbol.find(name)) + 1;  // behind the first argument
  const auto next = [&] {
    const std::size_t begin = at;
    at = symbol[at] == 'f' ? at + 1 : symbol.find(symbol[at] == 'N' ? 'E' : '_', at) + 1;
    return symbol.substr(begin, at - begin);
  };
  const std::string elements = next(), bias = next();
  return {elements, bias[0] == 'S' ? elements : bias};
}

// GELU's kernels, and those with a bias, whose sums over rows are all in their first row: the others hold
// -0, which is neutral.
bool compute_gelu(const std::string& symbol, void** p, Written& written) {
  const bool is_forward = is_of(symbol, "gelu_forward"), is_bias_forward = is_of(symbol, "bias_gelu_forward"),
             is_bias = is_of(symbol, "bias_gelu_backward");
  bool known = is_forward || is_bias_forward;
  if (known) {
    const FormatsOfBias of_bias = is_bias_forward ? formats_of_bias(symbol) : FormatsOfBias{symbol, ""};
    with_type(of_bias.elements, [&]<class T>(T) {
      T* const y = parameter<T*>(p, is_forward ? 1 : 4);
      const auto elements = parameter<std::int64_t>(p, is_forward ? 3 : 2);
      if (is_forward) {
        kernels::Arguments a{{parameter<void*>(p, 0), y, parameter<void*>(p, 2)}, 1, elements};
        kernels::run<kernels::KernelId::kGeluForward, typename kernels::ForwardFit<T>::Type, T, kScalar>(a);
      } else {
        const auto n = parameter<std::int64_t>(p, 3);
        with_type(of_bias.bias, [&]<class B>(B) {
          std::vector<float> bias(static_cast<std::size_t>(n));
          for (std::int64_t j = 0; j < n; ++j)
            bias[static_cast<std::size_t>(j)] = kernels::widen(parameter<const B*>(p, 1)[j]);
          kernels::bias_gelu_forward<typename kernels::ForwardFit<T>::Type, T, kScalar>(
              parameter<const T*>(p, 0), bias.data(), elements / n, n, y, parameter<kernels::u32*>(p, 5));
        });
      }
      written = {y, elements * static_cast<std::int64_t>(sizeof(T))};
    });
    return true;
  }
  kernels::for_each_fit([&](auto fit) {
    using Fit = decltype(fit);
    constexpr std::string_view kFormat = Fit::kFormat;
    if constexpr (std::string_view(Fit::kActivation) == "gelu" &&
                  (kFormat == "f32" || kFormat == "f16" || kFormat == "bf16")) {
      if (symbol.find(mangled(type_of(Fit::kName)) + "E") == std::string::npos) return;
      using T = std::conditional_t<kFormat == "f32", float, std::conditional_t<kFormat == "f16", F16, BF16>>;
      known = true;
      if (!is_bias) {
        kernels::Arguments a{
            {parameter<void*>(p, 0), parameter<void*>(p, 1), parameter<void*>(p, 2), parameter<void*>(p, 3)},
            1,
            parameter<std::int64_t>(p, 4)};
        kernels::run<kernels::KernelId::kGeluBackward, Fit, T, kScalar>(a);
        written = {a.array[3], a.cols * static_cast<std::int64_t>(sizeof(T))};
        return;
      }
      const auto& slots = parameter<kernels::cuda::SlotRows>(p, 3);
      const std::int64_t count = std::int64_t{1} << slots.log_slots, rows = slots.begin(count),
                         n = parameter<std::int64_t>(p, 5);
      const int log_beside = parameter<int>(p, 4);
      T* const dx = parameter<T*>(p, 6);
      float* const sums = parameter<float*>(p, 7);
      std::fill(sums + n, sums + (count >> log_beside) * n, -0.0f);
      kernels::bias_gelu_backward<Fit, T, kScalar>(parameter<const T*>(p, 0), parameter<const T*>(p, 1),
                                                   parameter<const kernels::u32*>(p, 2), rows, n, dx, sums);
      written = {dx, rows * n * static_cast<std::int64_t>(sizeof(T))};
    }
  });
  return known;
}

// Calls action with a value of the format of gamma, beta and their gradients, which the symbol names; fp32
// unless it does.
template <class Action>
void with_parameters(const std::string& symbol, const Action& action) {
  const std::string name = mangled("ParameterFormat") + "E";
  const std::size_t at = symbol.find(name);
  const char format = at == std::string::npos ? '0' : symbol[at + name.size()];
  if (format == '1') return action(F16{});
  if (format == '2') return action(BF16{});
  action(float{});
}

// gamma or beta in fp32; none if they are absent.
std::vector<float> parameters_in(const std::string& symbol, const void* parameters, std::int64_t n) {
  std::vector<float> values(parameters == nullptr ? 0 : static_cast<std::size_t>(n));
  with_parameters(symbol, [&]<class P>(P) {
    for (std::size_t j = 0; j < values.size(); ++j)
      values[j] = kernels::widen(static_cast<const P*>(parameters)[j]);
  });
  return values;
}
const float* data_of(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

// The last arguments of a norm's template, before its store: whether it drops and, of a forward, whether it
// stores the sum. A launch whose arguments say something else would read or write through a null pointer on a
// device.
void expect_instance(const std::string& symbol, bool drops, bool forward, bool stores) {
  const std::size_t end = symbol.find("EvEEv");  // behind it is the store: none
  const std::string want =
      std::string("Lb") + (drops ? "1" : "0") + (forward ? std::string("ELb") + (stores ? "1" : "0") : "");
  if (end == std::string::npos || end < want.size() || symbol.substr(end - want.size(), want.size()) != want)
    std::abort();
}

// Calls action with the store, as the kernels and the library know it, that the symbol of a norm's kernel
// names. Whether there is one.
template <class Action>
bool with_norm_store(const std::string& symbol, const Action& action) {
  const auto is_named = [&](const char* type) {
    return symbol.find(mangled(type) + "E") != std::string::npos;
  };
  if (is_named("NormE4m3")) return action(kernels::NormE4m3{}, OUTGRAD_STORE_E4M3), true;
  if (is_named("NormMxFp8")) return action(kernels::NormMxFp8{}, OUTGRAD_STORE_MXFP8), true;
  if (is_named("NormInt8")) return action(kernels::NormInt8{}, OUTGRAD_STORE_INT8), true;
  return false;
}

template <class T>
void norm_forward(const std::string& symbol, bool layer, const kernels::cuda::NormForwardArrays<T>& a) {
  const std::vector<float> gammas = parameters_in(symbol, a.gamma, a.n),
                           betas = parameters_in(symbol, a.beta, a.n);
  const float *const gamma = data_of(gammas), *const beta = data_of(betas);
  const auto* const end = a.side.channels + a.side.count;
  for (std::int64_t j = 0; a.watch.seen != nullptr && gamma != nullptr && j < a.n; ++j) {
    const float b = beta != nullptr ? beta[j] : 0.0f;
    if (kernels::is_told(a.watch.near, gamma[j], b) || std::find(a.side.channels, end, j) != end) continue;
    a.watch.seen[0] = 1;
    if (!kernels::is_told(a.watch.lost, gamma[j], b)) a.watch.seen[1] = 1;
  }
  // The host's kernels need a place for a sum that is not stored; what is dropped before it goes there, too.
  std::vector<T> sum(a.residual != nullptr && a.z == nullptr ? static_cast<std::size_t>(a.rows * a.n) : 0);
  T* const z = a.z == nullptr ? sum.data() : a.z;
  const bool drops = a.dropout.seed.at != nullptr || a.dropout.seed.value != 0;
  expect_instance(symbol, drops, true, a.z != nullptr);
  if (drops) drop(a.x, z, a.rows * a.n, a.dropout.seed, a.dropout.rule);
  const T* const x = drops ? z : a.x;
  const kernels::NormForward<T> of{.x = x,
                                   .residual = a.residual,
                                   .gamma = gamma,
                                   .beta = beta,
                                   .rows = a.rows,
                                   .n = a.n,
                                   .eps = a.eps,
                                   .z = z,
                                   .y = a.y,
                                   .rstd = a.rstd,
                                   .side = a.side};
  if (a.residual != nullptr) {
    layer ? kernels::residual_layernorm_forward<T, kScalar>(of)
          : kernels::residual_rmsnorm_forward<T, kScalar>(of);
  } else {
    layer ? kernels::layernorm_forward<T, kScalar>(of) : kernels::rmsnorm_forward<T, kScalar>(of);
  }
}

template <class T>
void norm_backward_from_y(bool layer, const kernels::cuda::NormBackwardArrays<T>& a, float* dgamma,
                          float* dbeta, std::span<float> workspace) {
  const kernels::NormBackward<T> of{.dy = a.dy,
                                    .y = a.y,
                                    .dz_next = a.dz_next,
                                    .gamma = a.columns.gamma,
                                    .beta = a.columns.beta,
                                    .rstd = a.rstd,
                                    .rows = a.rows,
                                    .n = a.n,
                                    .dx = a.dx,
                                    .dgamma = dgamma,
                                    .dbeta = dbeta,
                                    .side = a.side,
                                    .workspace = workspace};
  if (a.dz_next != nullptr) {
    layer ? kernels::residual_layernorm_backward<T, kScalar>(of)
          : kernels::residual_rmsnorm_backward<T, kScalar>(of);
  } else {
    layer ? kernels::layernorm_backward<T, kScalar>(of) : kernels::rmsnorm_backward<T, kScalar>(of);
  }
}

// With the columns that norm_prepare left, or with gamma and beta themselves; dgamma and dbeta, divided
// already, go into the first row of sums, and -0 into the others, of which there are so many.
template <class T>
void norm_backward(const std::string& symbol, bool layer, kernels::cuda::NormBackwardArrays<T> a, bool fused,
                   std::int64_t sum_rows) {
  const std::int64_t words =
      kernels::cuda::column_sums(layer ? kernels::Norm::layer : kernels::Norm::rms) * a.stride;
  float* const dgamma = a.sums;
  float* const dbeta = layer && a.sums != nullptr ? a.sums + a.stride : nullptr;
  if (a.sums != nullptr) std::fill(a.sums + words, a.sums + sum_rows * words, -0.0f);
  std::vector<float> workspace(static_cast<std::size_t>(kernels::norm_backward_workspace(a.rows, a.n)));
  std::vector<float> gammas, betas;
  std::vector<std::int64_t> lost;
  if (fused) {
    gammas = parameters_in(symbol, a.gamma, a.n);
    betas = parameters_in(symbol, a.beta, a.n);
    a.columns.gamma = const_cast<float*>(data_of(gammas));
    a.columns.beta = const_cast<float*>(data_of(betas));
  }
  for (std::int64_t j = 0; a.columns.gamma != nullptr && j < a.n; ++j) {
    const float b = a.columns.beta != nullptr ? a.columns.beta[j] : 0.0f;
    if (fused ? a.guard.tests == 0 || kernels::is_told(a.guard.lost, a.columns.gamma[j], b) : b == b)
      continue;
    lost.push_back(j);
    a.columns.gamma[j] = 1.0f;  // with a reciprocal: what comes of it is written over
  }
  const bool from_codes = with_norm_store(symbol, [&]<class Store>(Store, outgrad_store) {
    const kernels::NormBackward8bit<Store, T> of{
        .norm = {.dy = a.dy,
                 .gamma = a.columns.gamma,
                 .beta = layer ? a.columns.beta : nullptr,
                 .rstd = a.rstd,
                 .rows = a.rows,
                 .n = a.n,
                 .dx = a.dx,
                 .dgamma = dgamma,
                 .dbeta = dbeta,
                 .side = a.side,
                 .workspace = workspace},
        .codes = static_cast<const typename Store::Code*>(a.kept.codes),
        .scales = static_cast<const typename Store::Scale*>(a.kept.scales)};
    layer ? kernels::norm_backward_8bit<kernels::Norm::layer, kScalar>(of)
          : kernels::norm_backward_8bit<kernels::Norm::rms, kScalar>(of);
  });
  if (!from_codes) norm_backward_from_y(layer, a, dgamma, dbeta, workspace);
  if (!lost.empty()) {
    const float nan = kernels::float_of(kernels::kCanonicalNanF32);
    std::fill_n(a.dx, a.rows * a.n, kernels::narrow<T>(nan));
    for (const std::int64_t j : lost)
      if (dgamma != nullptr) dgamma[j] = nan;
  }
  const bool drops = a.dropout.seed.at != nullptr || a.dropout.seed.value != 0;
  if (!from_codes) expect_instance(symbol, drops, false, false);
  if (drops) drop(a.dx, static_cast<T*>(a.dropout.dx), a.rows * a.n, a.dropout.seed, a.dropout.rule);
}

// A norm's forward with codes. Those at a scale of the tensor are norm_encode's, which finds here what it is
// to take on the device: the means, and an amax that was 0 before this and is none of a tensor's after it.
constexpr kernels::u32 kFoundAmax = 0xffffffffu;
template <class T>
void norm_forward_8bit(const std::string& symbol, bool layer, const kernels::cuda::NormForwardArrays<T>& a) {
  const bool encodes = is_of(symbol, "norm_encode");
  const std::vector<float> gammas = parameters_in(symbol, a.gamma, a.n),
                           betas = parameters_in(symbol, a.beta, a.n);
  with_norm_store(symbol, [&]<class Store>(Store, outgrad_store store) {
    const auto elements = static_cast<std::size_t>(a.rows * a.n);
    std::vector<kernels::u8> no_codes(elements), no_scale(sizeof(float));
    std::vector<T> y(elements);
    std::vector<float> rstd(static_cast<std::size_t>(a.rows)),
        x_hat(static_cast<std::size_t>(a.rows * a.side.count));
    const bool later = Store::kGroup == 0 && !encodes;
    if (Store::kGroup == 0 && *a.kept.amax != (encodes ? kFoundAmax : 0) && a.rows > 0) std::abort();
    outgrad_call call = library_call(kFormatOf<T>, store, a.n);
    call.rows = a.rows;
    call.eps = a.eps;
    call.x = a.x;
    call.y = encodes ? y.data() : a.y;
    call.rstd = encodes ? rstd.data() : a.rstd;
    call.codes = later ? no_codes.data() : a.kept.codes;
    call.scales = later ? no_scale.data() : a.kept.scales;
    call.gamma = data_of(gammas);
    call.beta = data_of(betas);
    call.side_channels = a.side.channels;
    call.side_count = a.side.count;
    call.side_x_hat = encodes ? x_hat.data() : a.side.x_hat;
    // norm_encode is one kernel for both norms: LayerNorm has means
    const bool is_layer = encodes ? a.kept.means != nullptr : layer;
    if ((is_layer ? outgrad_layernorm_forward : outgrad_rmsnorm_forward)(&call) != OUTGRAD_OK) std::abort();
    if (!later) return;
    *a.kept.amax = kFoundAmax;
    for (std::int64_t row = 0; layer && row < a.rows; ++row) a.kept.means[row] = 0.0f;
  });
}

void prepare(const std::string& symbol, void** p) {
  const auto& columns = parameter<kernels::NormColumns>(p, 0);
  auto* const place = parameter<kernels::i32*>(p, 1);
  const auto n = parameter<std::int64_t>(p, 4), padded = parameter<std::int64_t>(p, 5);
  const auto& side = parameter<kernels::SideBuffer<const float>>(p, 6);
  const auto& guard = parameter<kernels::SideGuard>(p, 7);
  const std::vector<float> gammas = parameters_in(symbol, parameter<const void*>(p, 2), n),
                           betas = parameters_in(symbol, parameter<const void*>(p, 3), n);
  for (std::int64_t j = 0; j < padded; ++j) {
    const auto* const end = side.channels + side.count;
    const auto* const found = std::find(side.channels, end, j);
    place[j] = found == end ? -1 : static_cast<kernels::i32>(found - side.channels);
    kernels::prepare_column(columns, j < n ? data_of(gammas) : nullptr, j < n ? data_of(betas) : nullptr, j,
                            found != end);
    if (j < n && guard.tests != 0 && found == end &&
        !kernels::is_told(guard.lost, columns.gamma[j], columns.beta[j]))
      columns.beta[j] = kernels::float_of(kernels::kCanonicalNanF32);
  }
}

void add_slots(void** p) {
  float* const sums = parameter<float*>(p, 0);
  const auto words = parameter<std::int64_t>(p, 1), left = parameter<std::int64_t>(p, 2),
             apart = parameter<std::int64_t>(p, 3);
  constexpr std::int64_t kFan = kernels::cuda::kSlotFan;
  for (std::int64_t first = 0; first < left; first += kFan) {
    float* const target = sums + first * apart * words;
    for (std::int64_t k = 1; k < kFan && first + k < left; ++k)
      for (std::int64_t j = 0; j < words; ++j) target[j] += sums[(first + k) * apart * words + j];
  }
}

void finish(const std::string& symbol, void** p) {
  float* const sums = const_cast<float*>(parameter<const float*>(p, 0));
  const auto n = parameter<std::int64_t>(p, 3), stride = parameter<std::int64_t>(p, 4),
             words = parameter<std::int64_t>(p, 5);
  const auto left = parameter<std::int64_t>(p, 6), apart = parameter<std::int64_t>(p, 7);
  for (std::int64_t row = 1; row < left; ++row)
    for (std::int64_t j = 0; j < words; ++j) sums[j] += sums[row * apart * words + j];
  with_parameters(symbol, [&]<class P>(P) {
    P *const dgamma = parameter<P*>(p, 8), *const dbeta = parameter<P*>(p, 9);
    for (std::int64_t j = 0; dgamma != nullptr && j < n; ++j) dgamma[j] = kernels::narrow<P>(sums[j]);
    for (std::int64_t j = 0; dbeta != nullptr && j < n; ++j) dbeta[j] = kernels::narrow<P>(sums[stride + j]);
  });
}

// Whether the symbol is of a kernel that is known. Kernels compute together what they compute apart on a
// device.
bool compute(const std::string& symbol, void** p, unsigned blocks, Written& written) {
  const bool layer = symbol.find("4NormE0E") != std::string::npos;
  if (is_of(symbol, "norm_prepare")) return prepare(symbol, p), true;
  if (is_of(symbol, "add_slots")) return add_slots(p), true;
  if (is_of(symbol, "finish_columns")) return finish(symbol, p), true;
  if (is_of(symbol, "norm_slot_sums")) {
    const auto& a = parameter<kernels::cuda::NormBackwardArrays<float>>(p, 0);
    std::fill_n(a.sums,
                kernels::cuda::column_sums(layer ? kernels::Norm::layer : kernels::Norm::rms) * a.stride,
                0.0f);
    // all that there is where there are no rows
    for (std::int64_t j = 0; j < a.n; ++j) a.sums[j] /= a.columns.divisor[j];
    return true;
  }
  const bool is_forward = is_of(symbol, "norm_forward") || is_of(symbol, "norm_encode");
  if (!is_forward && !is_of(symbol, "norm_backward") && !is_of(symbol, "norm_backward_slots"))
    return compute_tensor_codes(symbol, p, blocks, written) ||
           compute_gated_codes(symbol, p, blocks, written) || compute_stores(symbol, p, written) ||
           compute_gelu(symbol, p, written) || compute_others(symbol, p, written);
  with_type(symbol, [&]<class T>(T) {
    if (is_forward) {
      const auto& a = parameter<kernels::cuda::NormForwardArrays<T>>(p, 0);
      if (with_norm_store(symbol, [](auto, outgrad_store) {})) {
        norm_forward_8bit(symbol, layer, a);
      } else {
        norm_forward(symbol, layer, a);
      }
      written = {a.y, a.rows * a.n * static_cast<std::int64_t>(sizeof(T))};
    } else {
      const auto& a = parameter<kernels::cuda::NormBackwardArrays<T>>(p, 0);
      const bool fused = is_of(symbol, "norm_backward_slots");
      norm_backward(symbol, layer, a, fused,
                    fused ? static_cast<std::int64_t>(blocks) : kernels::cuda::most_sum_rows(a.slots));
      written = {a.dx, a.rows * a.n * static_cast<std::int64_t>(sizeof(T))};
    }
  });
  return true;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : "CUDA_ERROR_INVALID_VALUE";
  return kSuccess;
}
int cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
int cuDeviceGetCount(int* count) {
  const char* given = std::getenv("OUTGRAD_STAND_IN_DEVICES");
  return *count = given != nullptr ? std::atoi(given) : 1, kSuccess;
}
int cuDeviceGet(int* device, int index) {
  int count = 0;
  cuDeviceGetCount(&count);
  return *device = index, index < count ? kSuccess : kNoDevice;
}
int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Stand-in GPU", static_cast<std::size_t>(bytes));
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> kValues = {{13, 1980000},   {16, 2},         {36, 1600000}, {37, 128},
                                             {38, 1 << 20},   {39, 2048},      {75, 9},       {76, 0},
                                             {81, 228 << 10}, {97, 227 << 10}, {106, 32}};
  const auto found = kValues.find(attribute);
  if (found == kValues.end()) return kInvalid;
  *value = found->second;
  return kSuccess;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = memory_bytes(), kSuccess; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &sticky, kSuccess; }
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxSetCurrent(void* context) { return contexts.assign(1, context), kSuccess; }
int cuCtxGetCurrent(void** context) {
  return *context = contexts.empty() ? nullptr : contexts.back(), kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  return count("cuCtxPushCurrent"), contexts.push_back(context), kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return kInvalid;
  *context = contexts.back();
  return contexts.pop_back(), kSuccess;
}
long long outgrad_stand_in_calls(const char* function) {
  const std::lock_guard lock(counting);
  return calls[function];
}
int cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
int cuCtxSynchronize() { return sticky; }
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
  return *free_bytes = *total = memory_bytes(), sticky;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<std::uint64_t>(memory);
  return memory == nullptr ? kOutOfMemory : sticky;
}
int cuMemFree_v2(std::uint64_t address) { return std::free(reinterpret_cast<void*>(address)), sticky; }
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), sticky;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), sticky;
}
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void*) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), sticky;
}
int cuMemsetD8Async(std::uint64_t to, unsigned char byte, std::size_t bytes, void*) {
  return std::memset(reinterpret_cast<void*>(to), byte, bytes), sticky;
}
int cuModuleLoadData(void** module, const void* image) {
  return count("cuModuleLoadData"), *module = const_cast<void*>(image), sticky;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  return *function = new Kernel{name}, sticky;
}
int cuEventCreate(void** event, unsigned) { return *event = new char, kSuccess; }
int cuEventDestroy_v2(void* event) { return delete static_cast<char*>(event), kSuccess; }
int cuEventRecord(void* event, void*) { return events[event] = std::chrono::steady_clock::now(), sticky; }
int cuEventSynchronize(void*) { return sticky; }
int cuEventElapsedTime(float* milliseconds, void* start, void* stop) {
  *milliseconds = std::chrono::duration<float, std::milli>(events[stop] - events[start]).count();
  return sticky;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  count("cuFuncSetAttribute");
  if (attribute == kMaxDynamicShared)
    static_cast<Kernel*>(function)->allowed_shared = static_cast<unsigned>(value);
  return sticky;
}

// By threads alone, as if every kernel's registers allowed the most of them.
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, std::size_t) {
  constexpr int kThreadsPerSm = 2048;
  return *blocks = kThreadsPerSm / threads, sticky;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned shared_bytes, void*, void** parameters, void**) {
  count("cuLaunchKernel");
  if (sticky != kSuccess) return sticky;
  const Kernel& kernel = *static_cast<Kernel*>(function);
  if (blocks == 0 || threads == 0 || threads > 1024 || shared_bytes > kernel.allowed_shared) return kInvalid;
  const std::string plant = plant_of(threads);
  if (plant == "fault") return sticky = kIllegalAddress, kSuccess;
  if (plant == "crash") std::raise(SIGSEGV);
  if (plant == "memory") return kOutOfMemory;
  while (plant == "hang") ::pause();
  Written written;
  if (!compute(kernel.symbol, parameters, blocks, written)) return kInvalid;
  constexpr std::int64_t kLateBytes = 2000;  // 1000 elements of the shortest
  auto* out = static_cast<unsigned char*>(written.out);
  if (written.bytes > 0 && plant == "bit") out[0] ^= 1;
  if (written.bytes > 0 && plant == "write") out[written.bytes] ^= 1;
  if (written.bytes >= kLateBytes && plant == "late") out[written.bytes - 1] ^= 0x40;
  return kSuccess;
}
}
