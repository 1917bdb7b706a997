// The kernels on a CUDA device. NVRTC compiles them at their first use on the device, and the driver launches
// them on the caller's stream. Neither library is loaded before the first kernel runs.
//
// A kernel runs with the schedule, and GELU with the fit, that the tuned header has for the device
// (OUTGRAD_TUNED_CUDA_HEADER, or else the default header). Every schedule gives the host's bits. Compiled
// kernels are kept in a folder, so that the next process need not compile them. The folder is $OUTGRAD_CACHE,
// or else outgrad/ in $XDG_CACHE_HOME or ~/.cache. If it cannot be written, nothing is kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/c/outgrad.h"

namespace outgrad::torch_operators {

// A norm over rows of n, for either backend. gamma, beta and their gradients are in the format `parameters`.
// side: the channels whose x^ is kept, in ascending order. tau: what the others are tested for
// (kernels/side_policy.h); 0: nothing. seen: where a forward says what it found, two numbers, or null.
struct NormOf {
  bool rms = false;
  std::int64_t rows = 0, n = 0;
  const void *gamma = nullptr, *beta = nullptr;
  outgrad_format parameters = OUTGRAD_F32;
  const std::int32_t* side = nullptr;
  std::int64_t side_count = 0;
  double tau = 0;
  std::int32_t* seen = nullptr;
};

// The seed of a dropout: where the tensors are, or on the host, where its value is known without a wait.
// Null: nothing is dropped.
struct SeedOf {
  const std::uint64_t* at = nullptr;
  bool on_host = false;
};

// What a norm's x is added to first: z = dropout(x) + residual, for either backend. With a null seed nothing
// is dropped. z: where the sum goes; a device may have none. dz_next: what reaches z itself, or null. dx:
// with a seed, where dropout(dz) goes.
struct SumOf {
  const void *residual = nullptr, *dz_next = nullptr;
  void *z = nullptr, *dx = nullptr;
  SeedOf seed = {};
  double p = 0;
};

// Codes for f'(x), for either backend.
struct CodesOf {
  outgrad_activation activation = 0;
  std::int32_t bits = 0;
  const std::uint64_t* seed = nullptr;  // of a dither
  std::size_t bytes = 0;
  float lo = 0, hi = 0;  // the range of f', of codes that are of no activation of the catalogue
};

// y in 8 bits at a scale, for either backend.
struct Fp8Of {
  outgrad_activation activation = 0;
  outgrad_store store = OUTGRAD_STORE_E4M3;
  std::int32_t bits = 0;
  const float* scale = nullptr;  // where the tensors are
  std::size_t bytes = 0;  // of the parts
};

// The calls of kernels/c/outgrad.h with these names, for arrays on the device. They enqueue work, allocate
// nothing and never wait, so they may be captured in a graph. Values on the device are not checked: a gamma
// without a finite reciprocal outside the side channels gives infinities and NaNs in the backward pass. They
// throw kernels::SpecError for arguments that break the contract, and EnvironmentError if driver, compiler or
// device fail.
class Cuda {
 public:
  Cuda(int device, void* stream) : device_(device), stream_(stream) {}

  void activation_forward(outgrad_activation activation, outgrad_format format, const void* x, void* y,
                          std::uint32_t* mask, std::int64_t n) const;
  void activation_backward(outgrad_activation activation, outgrad_format format, const void* dy,
                           const void* y, const std::uint32_t* mask, void* dx, std::int64_t n) const;

  // A seed lies on the device.
  void activation_forward_parity(outgrad_activation activation, outgrad_format format, const void* x, void* y,
                                 std::int64_t n) const;
  void activation_backward_parity(outgrad_activation activation, outgrad_format format, const void* dy,
                                  const void* y, void* dx, std::int64_t n) const;
  void activation_forward_code(const CodesOf& codes_of, outgrad_format format, const void* x, void* y,
                               void* codes, std::int64_t n) const;
  void activation_backward_code(const CodesOf& codes_of, outgrad_format format, const void* dy,
                                const void* codes, void* dx, std::int64_t n) const;
  void encode_gradients(const CodesOf& codes_of, outgrad_format format, const void* g, void* codes,
                        std::int64_t n) const;
  void backward_encoded(const CodesOf& codes_of, outgrad_format format, const void* dy, const void* codes,
                        void* dx, std::int64_t n) const;
  void gelu_forward_mxfp8(outgrad_format format, const void* x, std::uint8_t* codes, std::uint8_t* scales,
                          std::uint32_t* mask, std::int64_t n) const;
  void gelu_backward_mxfp8(outgrad_format format, const void* dy, const std::uint8_t* codes,
                           const std::uint8_t* scales, const std::uint32_t* mask, void* dx,
                           std::int64_t n) const;
  // A scale lies on the device; one that does not hold gives gradients without a meaning. The workspace, of
  // fp8_workspace_bytes(), is written.
  std::size_t fp8_workspace_bytes() const;
  void activation_forward_fp8(const Fp8Of& of, outgrad_format format, const void* x, std::uint8_t* codes,
                              void* parts, std::int64_t n, void* workspace) const;
  void activation_backward_fp8(const Fp8Of& of, outgrad_format format, const void* dy,
                               const std::uint8_t* codes, const void* parts, void* dx, std::int64_t n,
                               void* workspace) const;
  void softmax_forward_code(outgrad_format format, const void* x, std::int64_t rows, std::int64_t n, void* y,
                            void* codes) const;
  void softmax_backward_code(outgrad_format format, const void* dy, const void* codes, std::int64_t rows,
                             std::int64_t n, void* dx) const;

  void bias_gelu_forward(outgrad_format format, const void* x, const void* bias, outgrad_format bias_format,
                         std::int64_t rows, std::int64_t n, void* y, std::uint32_t* mask) const;
  std::size_t bias_workspace_bytes(outgrad_format format, std::int64_t rows, std::int64_t n) const;
  void bias_gelu_backward(outgrad_format format, const void* dy, const void* y, const std::uint32_t* mask,
                          std::int64_t rows, std::int64_t n, void* dx, void* dbias,
                          outgrad_format bias_format, void* workspace, std::size_t bytes) const;

  // Of a sum: in the same pass, and z is not stored if it has no place. dx of a backward is then called dz.
  static constexpr bool kNeedsZ = false;
  void norm_forward(outgrad_format format, const NormOf& norm, const void* x, float eps, void* y, float* rstd,
                    float* side_x_hat, const SumOf& sum = {}) const;
  std::size_t norm_workspace_bytes(outgrad_format format, std::int64_t rows, std::int64_t n) const;
  void norm_backward(outgrad_format format, const NormOf& norm, const void* dy, const void* y,
                     const float* rstd, const float* side_x_hat, void* dx, void* dgamma, void* dbeta,
                     void* workspace, std::size_t bytes, const SumOf& sum = {}) const;

  void dropout(outgrad_format format, const void* x, void* y, std::int64_t n, const SeedOf& seed,
               double p) const;

 private:
  int device_;
  void* stream_;
};

}  // namespace outgrad::torch_operators
