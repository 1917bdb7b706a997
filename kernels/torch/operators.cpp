// The operators of the package for CPU and CUDA tensors, and what the package states about its fits.
#include "kernels/torch/operators.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/accuracy.h"
#include "kernels/c/build.h"
#include "kernels/catalogue/codes.h"
#include "kernels/fits.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/softmax.h"
#include "kernels/support/jit/nvrtc.h"

STABLE_TORCH_LIBRARY(outgrad, m) { outgrad::torch_operators::define(m); }
STABLE_TORCH_LIBRARY_IMPL(outgrad, CPU, m) {
  outgrad::torch_operators::implement<outgrad::torch_operators::Host>(m);
}
STABLE_TORCH_LIBRARY_IMPL(outgrad, CUDA, m) {
  outgrad::torch_operators::implement<outgrad::torch_operators::Cuda>(m);
}

// --- What the package says of its fits, by ctypes ------------------------------------------------

namespace outgrad::torch_operators {
namespace {

struct Stated {
  const char* name = nullptr;
  kernels::FitBounds of{};
  double k = kernels::FitBounds::kNone, bias = kernels::FitBounds::kNone;
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

template <class F, class... S>
Stated stated_by(kernels::Fp8List<S...>, std::string_view activation, int bits) {
  Stated found;
  const auto state = [&]<class Of>(Of) {
    if (activation == Of::Header::kActivation)
      found = {Of::Header::kName, {.t = kernels::fp8_claims<typename Of::Header, F>().total[bits]}};
  };
  (state(S{}), ...);
  return found;
}

const char* digest_of(std::string_view fit) {
  const std::span digests{c::kDigests, static_cast<std::size_t>(c::kDigestCount)};
  return std::ranges::find(digests, fit, &c::CoefficientDigest::fit)->sha256;  // the build lists every header
}

}  // namespace
}  // namespace outgrad::torch_operators

// What a backward pass runs for a store (kinds as in outgrad/stores.py; bits: of a code), the SHA-256 of its
// coefficient header, and the proven bounds that the header states: {kA + kB, kK, kT, kR, kBias}, infinite
// where it states none. Returns 0, or 1 if there is no such store of this activation in this format.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_fit(outgrad_activation activation, outgrad_format format,
                                                      std::int32_t kind, std::int32_t bits, const char** name,
                                                      const char** sha256, double* bounds) {
  using namespace outgrad;
  using namespace outgrad::torch_operators;
  if (activation < 0 || activation >= kernels::kActivations || format < OUTGRAD_F32 || format > OUTGRAD_BF16)
    return 1;
  Stated found;
  switch (kind) {
    case 0:
      found = by_type(format, [&]<class T>(T) {
        return stated_by(typename kernels::ActivationFits<T>::Type{}, activation);
      });
      break;
    case 1:
      if (format == OUTGRAD_F16)
        found =
            stated_by(kernels::ParityFits<kernels::ParityF16>::Type{}, kernels::kActivationNames[activation]);
      if (format == OUTGRAD_BF16)
        found = stated_by(kernels::ParityFits<kernels::ParityBf16>::Type{},
                          kernels::kActivationNames[activation]);
      break;
    case 2:
    case 3:
      if (kernels::code_bits_hold(bits, kind == 3))
        found = stated_by(kernels::ActivationCodes{}, activation, bits, kind == 3);
      break;
    case 4:
      if (activation == OUTGRAD_GELU) found = stated_by<kernels::generated::GeluMxfp8>();
      break;
    case 5:
    case 6:
      if (!kernels::part_bits_hold(bits)) break;
      found = kind == 5 ? stated_by<kernels::F8E4M3>(kernels::Fp8Activations{},
                                                     kernels::kActivationNames[activation], bits)
                        : stated_by<kernels::F8E5M2>(kernels::Fp8Activations{},
                                                     kernels::kActivationNames[activation], bits);
      break;
    default: break;
  }
  if (found.name == nullptr) return 1;
  *name = found.name;
  *sha256 = digest_of(found.name);
  const double all[] = {found.of.a_plus_b, found.k, found.of.t, found.of.r, found.bias};
  std::copy(std::begin(all), std::end(all), bounds);
  return 0;
}

// outgrad_store_error for y in 8 bits at one scale. Returns 0, or 1 if there is no such store or scale.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_fp8_error(outgrad_activation activation, std::int32_t fp8,
                                                            float scale, std::int32_t bits, double* error) {
  if (fp8 < 0 || fp8 > OUTGRAD_STORE_INT8 - OUTGRAD_STORE_E4M3) return 1;
  outgrad_call call{};
  call.size = sizeof call;
  call.activation = activation;
  call.store = OUTGRAD_STORE_E4M3 + fp8;
  call.scale = &scale;
  call.bits = bits;
  return outgrad_store_error(&call, 0, error) == OUTGRAD_OK ? 0 : 1;
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

extern "C" OUTGRAD_API const char* outgrad_torch_version() { return outgrad_version(); }

// The name of an activation, in the order of outgrad_activation; null for an unknown one.
extern "C" OUTGRAD_API const char* outgrad_torch_activation(std::int32_t activation) {
  return activation >= 0 && activation < outgrad::kernels::kActivations
             ? outgrad::kernels::kActivationNames[activation]
             : nullptr;
}

// 1 for an activation with a minimum, whose gradient needs a mask; 0 for one without; -1 for an unknown one.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_masked(outgrad_activation activation) {
  using namespace outgrad;
  if (activation < 0 || activation >= kernels::kActivations) return -1;
  return torch_operators::is_masked(activation) ? 1 : 0;
}

// A list of folders that may have the CUDA run-time compiler that came with PyTorch. The compiler is loaded
// with the first kernel.
extern "C" OUTGRAD_API void outgrad_torch_nvrtc_folders(const char* const* folders, std::int32_t count) {
  outgrad::kernels::jit::Nvrtc::look_first_in({folders, folders + count});
}
