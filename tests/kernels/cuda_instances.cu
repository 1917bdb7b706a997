// Every CUDA launcher for every format and committed fit, compiled and never run here: what nvcc says of the wrappers.

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/layernorm.cuh"
#include "kernels/fits.h"

namespace outgrad::kernels::cuda {

template <class T>
struct Launchers {
  using Fit = typename DefaultFit<T>::Type;

  decltype(&launch_gelu_backward<Fit, T>) gelu_backward = &launch_gelu_backward<Fit, T>;
  decltype(&launch_gelu_forward<generated::GeluForward, T>) gelu_forward = &launch_gelu_forward<generated::GeluForward, T>;
  decltype(&launch_norm_forward<Norm::layer, T>) layernorm_forward = &launch_norm_forward<Norm::layer, T>;
  decltype(&launch_norm_backward<Norm::layer, T>) layernorm_backward = &launch_norm_backward<Norm::layer, T>;
  decltype(&launch_norm_forward<Norm::rms, T>) rmsnorm_forward = &launch_norm_forward<Norm::rms, T>;
  decltype(&launch_norm_backward<Norm::rms, T>) rmsnorm_backward = &launch_norm_backward<Norm::rms, T>;
};

extern const Launchers<float> kLaunchersF32{};
extern const Launchers<F16> kLaunchersF16{};
extern const Launchers<BF16> kLaunchersBf16{};

}  // namespace outgrad::kernels::cuda
