// The operators of the package for CPU and CUDA tensors, and what the package states about its fits.
#include "kernels/torch/operators.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/accuracy.h"
#include "kernels/c/build.h"
#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/fits.h"
#include "kernels/gate.h"
#include "kernels/norm_store.h"
#include "kernels/product_fits.h"
#include "kernels/softmax.h"
#include "kernels/support/jit/nvrtc.h"
#include "kernels/torch/eager.h"
#include "kernels/torch/linear.h"

STABLE_TORCH_LIBRARY(outgrad, m) { outgrad::torch_operators::define(m); }
STABLE_TORCH_LIBRARY_IMPL(outgrad, CPU, m) {
  outgrad::torch_operators::implement<outgrad::torch_operators::Host>(m);
}
STABLE_TORCH_LIBRARY_IMPL(outgrad, CUDA, m) {
  outgrad::torch_operators::implement<outgrad::torch_operators::Cuda>(m);
}

// The same for graphs of torch.export, where Python gives them derivatives (outgrad/exported.py). Under the
// names above, each call of eager mode would look for these. What has a derivative writes no argument: such a
// graph gives none to say what a norm has seen.
STABLE_TORCH_LIBRARY(outgrad_exported, m) {
  using namespace outgrad::torch_operators;
  operators<Host>([&](std::string schema, const char*, auto) {
    constexpr std::string_view kWritten = "(a!)";
    if (const auto at = schema.find(kWritten); at != schema.npos) schema.erase(at, kWritten.size());
    m.def(schema.c_str());
  });
}
STABLE_TORCH_LIBRARY_IMPL(outgrad_exported, CPU, m) {
  outgrad::torch_operators::implement<outgrad::torch_operators::Host>(m);
}
STABLE_TORCH_LIBRARY_IMPL(outgrad_exported, CUDA, m) {
  outgrad::torch_operators::implement<outgrad::torch_operators::Cuda>(m);
}

// --- What the package says of its fits, by ctypes ------------------------------------------------

namespace outgrad::torch_operators {
namespace {

struct Stated {
  const char* name = nullptr;
  kernels::FitBounds of{};
  double k = kernels::FitBounds::kNone, bias = kernels::FitBounds::kNone;
  double largest = kernels::FitBounds::kNone;  // |y| of a tensor for which kT holds
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

template <class Fit>
constexpr Stated stated_by() {
  return {Fit::kName, kernels::claims_of<Fit>().bounds, coordinate_bound<Fit>()};
}

template <class... Fit>
Stated stated_by(kernels::FitList<Fit...>, int activation) {
  constexpr Stated kAll[] = {stated_by<Fit>()...};
  return kAll[activation];
}

template <class... Fit>
Stated stated_by(kernels::ParityFitList<Fit...>, std::string_view activation) {
  Stated found;
  ((activation == Fit::kActivation ? void(found = stated_by<Fit>()) : void()), ...);
  return found;
}

template <class... Code>
Stated stated_by(kernels::FitList<Code...>, int activation, int bits, bool dithered) {
  const Stated all[] = {{Code::kName,
                         {.t = kernels::code_error<Code>(bits, dithered)},
                         kernels::FitBounds::kNone,
                         dithered ? Code::kBias : kernels::FitBounds::kNone}...};
  return all[activation];
}

// Arithmetic: of a store at one scale of the tensor.
template <class Arithmetic, class... S>
Stated stated_by(kernels::Fp8List<S...>, std::string_view activation, int bits) {
  Stated found;
  const auto state = [&]<class Of>(Of) {
    if (activation != Of::Header::kActivation) return;
    constexpr kernels::Fp8Claims kClaims = Arithmetic::template kClaims<typename Of::Header>;
    found = {Of::Header::kName, {.t = kClaims.total[bits]}};
    found.largest = kernels::kLargestOf<typename Arithmetic::Code> / kClaims.least;
  };
  (state(S{}), ...);
  return found;
}

// Of a value of outgrad_store; without a name if there is no such store of this activation in this format.
Stated stated_by(outgrad_activation activation, outgrad_format format, outgrad_store store, int bits,
                 bool dithered) {
  const char* const name = kernels::kActivationNames[activation];
  const auto with_parity = [&]<class Y>(Y) {
    return stated_by(typename kernels::ParityFits<Y>::Type{}, name);
  };
  Stated at_scale;
  kernels::for_each_store([&]<kernels::StoreId kId>() {
    constexpr kernels::Store kStore = kernels::store_of(kId);
    if constexpr (kStore.takes_scale && kStore.block == 0) {
      if (static_cast<int>(kId) == store && kernels::part_bits_hold(bits))
        at_scale = stated_by<kernels::StoreArithmetic<kId>>(kernels::Fp8Activations{}, name, bits);
    }
  });
  switch (store) {
    case OUTGRAD_STORE_Y:
      return by_type(format, [&]<class T>(T) {
        return stated_by(typename kernels::ActivationFits<T>::Type{}, activation);
      });
    case OUTGRAD_STORE_PARITY:
      if (format == OUTGRAD_F32) return {};
      return format == OUTGRAD_F16 ? with_parity(kernels::ParityF16{}) : with_parity(kernels::ParityBf16{});
    case OUTGRAD_STORE_CODE:
      if (!kernels::code_bits_hold(bits, dithered)) return {};
      return stated_by(kernels::ActivationCodes{}, activation, bits, dithered);
    case OUTGRAD_STORE_MXFP8:
      return activation == OUTGRAD_GELU ? stated_by<kernels::generated::GeluMxfp8>() : Stated{};
    default: return at_scale;
  }
}

const char* digest_of(std::string_view fit) {
  const std::span digests{c::kDigests, static_cast<std::size_t>(c::kDigestCount)};
  return std::ranges::find(digests, fit, &c::CoefficientDigest::fit)->sha256;  // the build lists every header
}

}  // namespace
}  // namespace outgrad::torch_operators

// What an activation keeps: the facts of kernels/catalogue/stores.h in their order, and the store's name;
// null behind the last one.
extern "C" OUTGRAD_API const char* outgrad_torch_store(outgrad_store store, std::int32_t* facts) {
  using namespace outgrad::kernels;
  if (store >= kStoreCount) return nullptr;
  const Store& of = kStores[store];
  const std::int32_t all[] = {of.keeps_y, of.keeps_mask, of.writes_y,   of.code_bits,
                              of.block,   of.has_parts,  of.takes_scale};
  std::copy(std::begin(all), std::end(all), facts);
  return of.name;
}

// What a norm keeps in place of y: the elements of a row that share a scale, 0 for those of the tensor, and
// the bytes of a scale; and its name, which is a store's. Null behind the last one.
extern "C" OUTGRAD_API const char* outgrad_torch_norm_store(std::int32_t index, std::int32_t* facts) {
  return []<class... Store>(outgrad::kernels::NormStoreList<Store...>, std::int32_t at, std::int32_t* to) {
    constexpr std::int32_t kFacts[][2] = {{Store::kGroup, sizeof(typename Store::Scale)}...};
    constexpr const char* kNames[] = {Store::kName...};
    if (at >= static_cast<std::int32_t>(sizeof...(Store))) return static_cast<const char*>(nullptr);
    std::copy(std::begin(kFacts[at]), std::end(kFacts[at]), to);
    return kNames[at];
  }(outgrad::kernels::NormStores{}, index, facts);
}

// What a backward pass runs for a store (bits: of a code, or beside one), the SHA-256 of its coefficient
// header, and the proven bounds that the header states: {kA + kB, kK, kT, kR, kBias}, and the largest |y| of
// a tensor for which kT holds; infinite where it states none.
struct OutgradTorchFit {
  const char *name, *sha256;
  double bounds[6];
};

// Returns 0, or 1 if there is no such store of this activation in this format.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_fit(outgrad_activation activation, outgrad_format format,
                                                      outgrad_store store, std::int32_t bits,
                                                      std::int32_t dithered, OutgradTorchFit* fit) {
  using namespace outgrad;
  if (activation < 0 || activation >= kernels::kActivations || format < OUTGRAD_F32 || format > OUTGRAD_BF16)
    return 1;
  const torch_operators::Stated found =
      torch_operators::stated_by(activation, format, store, bits, dithered != 0);
  if (found.name == nullptr) return 1;
  *fit = {found.name,
          torch_operators::digest_of(found.name),
          {found.of.a_plus_b, found.k, found.of.t, found.of.r, found.bias, found.largest}};
  return 0;
}

// outgrad_store_error of y at a scale. Returns 0, or 1 if there is no such store or scale.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_store_error(outgrad_activation activation,
                                                              outgrad_store store, float scale,
                                                              std::int32_t bits, double* error) {
  outgrad_call call{};
  call.size = sizeof call;
  call.activation = activation;
  call.store = store;
  call.scale = &scale;
  call.bits = bits;
  return outgrad_store_error(&call, std::numeric_limits<float>::infinity(), error) == OUTGRAD_OK ? 0 : 1;
}

// What softmax's codes cost in rows of n (kernels/softmax.h): the relative error of p', the largest p with
// code 0, and the bound of sum |dx - ds| over a row, where `row` has the sum of |ds|, the range of dy and the
// greatest |dy|. Returns 0, or 1 for a row that there is not.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_softmax(std::int64_t n, const double* row, double* bounds) {
  using namespace outgrad::kernels;
  if (n < 1 || n > kMostSoftmax) return 1;
  bounds[0] = softmax_relative(n);
  bounds[1] = softmax_least(n);
  bounds[2] = softmax_gradient_sum({n, row[0], row[1], row[2]});
  return 0;
}

// What the 256 codes of softmax stand for.
extern "C" OUTGRAD_API void outgrad_torch_softmax_values(float* values) {
  for (int code = 0; code < 256; ++code)
    values[code] = outgrad::kernels::softmax_of_code(static_cast<outgrad::kernels::u8>(code));
}

// What torch.randint(0, 2^62, (1,)) draws on a CUDA device whose generator has this seed and stands at this
// offset, a multiple of 4: the low bits of the first two words of Philox4x32-10 at that place (PyTorch,
// aten/src/ATen/native/cuda/DistributionTemplates.h; cuRAND's curand4).
extern "C" OUTGRAD_API std::int64_t outgrad_torch_seed(std::uint64_t seed, std::uint64_t offset) {
  const outgrad::kernels::PhiloxWords words = outgrad::kernels::philox(offset / 4, seed);
  return static_cast<std::int64_t>((std::uint64_t{words.word[0]} << 32 | words.word[1]) &
                                   ((std::uint64_t{1} << 62) - 1));
}

// An operator's schema, and its results as Python makes them of its arguments; null behind the last one.
extern "C" OUTGRAD_API const char* outgrad_torch_operator(std::int32_t index, const char** results) {
  using namespace outgrad::torch_operators;
  static const auto kAll = [] {
    std::vector<std::array<const char*, 2>> all;
    operators<Host>([&](const char* schema, const char* of, auto) { all.push_back({schema, of}); });
    return all;
  }();
  if (static_cast<std::size_t>(index) >= kAll.size()) return nullptr;
  *results = kAll[static_cast<std::size_t>(index)][1];
  return kAll[static_cast<std::size_t>(index)][0];
}

// Gets ready for calls past the dispatcher with what Eager::find takes. Returns 0, or 1 if this process has
// no CPython.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_eager(outgrad::torch_operators::PyObject* given) {
  return outgrad::torch_operators::Eager::find(given) != nullptr ? 0 : 1;
}

// An operator as a function that goes past the dispatcher where it may; behind the last one what computes
// as linear_gradients of outgrad/functional.py does. `of` is what the function leaves to do to, as an object
// of Python. A new reference.
extern "C" OUTGRAD_API outgrad::torch_operators::PyObject* outgrad_torch_past(
    std::int32_t index, outgrad::torch_operators::PyObject* of) {
  using namespace outgrad::torch_operators;
  static PyMethod of_linear{"linear_gradients", &past_python<&linear_gradients, 6>, PyMethod::kFast, nullptr};
  static const std::vector<PyMethod*> ways = [] {
    std::vector<PyMethod*> all = ways_past();
    all.push_back(&of_linear);
    return all;
  }();
  return Eager::is().python.PyCFunction_NewEx(ways.at(static_cast<std::size_t>(index)), of, nullptr);
}

extern "C" OUTGRAD_API const char* outgrad_torch_version() { return outgrad_version(); }

// The bounds of a gated pair's gradients from its product (kernels/product.h): kT of f'(a), and the relative
// and the absolute error of f(a). Returns 0, or 1 if there is no such pair in this format.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_product(outgrad_activation activation,
                                                          outgrad_format format, double* bounds) {
  using namespace outgrad::kernels;
  const auto state = [&]<int kAt, class T>(T) {
    if constexpr (kHasProduct<GateAt<kAt>, T>) {
      using Fit = typename ProductFit<GateAt<kAt>, T>::Type;
      if (activation == kAt) bounds[0] = Fit::kT, bounds[1] = Fit::kRelative, bounds[2] = Fit::kAbsolute;
    }
  };
  const auto of = [&]<class T, int... kAt>(T format_of, std::integer_sequence<int, kAt...>) {
    (state.template operator()<kAt>(format_of), ...);
  };
  if (!has_product(activation) || (format != OUTGRAD_F16 && format != OUTGRAD_BF16)) return 1;
  constexpr std::make_integer_sequence<int, kActivations> kAll{};
  format == OUTGRAD_F16 ? of(F16{}, kAll) : of(BF16{}, kAll);
  return 0;
}

// The name of an activation, in the order of outgrad_activation, and whether it has a minimum, so that its
// gradient needs a mask, whether it is a gate, and whether it is one that can be had from its pair's product;
// null behind the last one.
extern "C" OUTGRAD_API const char* outgrad_torch_activation(std::int32_t activation, std::int32_t* facts) {
  using namespace outgrad;
  if (activation >= kernels::kActivations) return nullptr;
  facts[0] = torch_operators::is_masked(activation);
  facts[1] = kernels::is_gate(activation);
  facts[2] = kernels::has_product(activation);
  return kernels::kActivationNames[activation];
}

// A list of folders that may have the CUDA run-time compiler that came with PyTorch. The compiler is loaded
// with the first kernel.
extern "C" OUTGRAD_API void outgrad_torch_nvrtc_folders(const char* const* folders, std::int32_t count) {
  outgrad::kernels::jit::Nvrtc::look_first_in({folders, folders + count});
}
