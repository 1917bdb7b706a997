// The operators of the package for CPU and CUDA tensors, and what the package states about its fits.
#include "kernels/torch/operators.h"

#include <string>
#include <vector>

#include "kernels/accuracy.h"
#include "kernels/support/jit/nvrtc.h"

STABLE_TORCH_LIBRARY(outgrad, m) { outgrad::torch_operators::define(m); }
STABLE_TORCH_LIBRARY_IMPL(outgrad, CPU, m) { outgrad::torch_operators::implement<outgrad::torch_operators::Host>(m); }
STABLE_TORCH_LIBRARY_IMPL(outgrad, CUDA, m) { outgrad::torch_operators::implement<outgrad::torch_operators::Cuda>(m); }

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

// The fit that a backward runs, the SHA-256 of its coefficient header, and the proven bounds that the header states:
// {kA + kB, kK, kT, kR}, infinite where it states none. Returns 0, or 1 if the activation or the format is unknown.
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

// The name of an activation, in the order of outgrad_activation; null for an unknown one.
extern "C" OUTGRAD_API const char* outgrad_torch_activation(std::int32_t activation) {
  return activation >= 0 && activation < outgrad::kernels::kActivations ? outgrad::kernels::kActivationNames[activation] : nullptr;
}

// 1 for an activation with a minimum, whose gradient needs a mask; 0 for one without; -1 for an unknown one.
extern "C" OUTGRAD_API std::int32_t outgrad_torch_masked(outgrad_activation activation) {
  using namespace outgrad;
  if (activation < 0 || activation >= kernels::kActivations) return -1;
  return torch_operators::is_masked(activation) ? 1 : 0;
}

// A list of folders that may have the CUDA run-time compiler that came with PyTorch. The compiler is loaded with the
// first kernel.
extern "C" OUTGRAD_API void outgrad_torch_nvrtc_folders(const char* const* folders, std::int32_t count) {
  outgrad::kernels::jit::Nvrtc::look_first_in({folders, folders + count});
}
