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

// What operators hand to either backend, Host or Cuda.

struct Elements {
  outgrad_format format = OUTGRAD_F32;
  std::int64_t n = 0;
};

struct Rows {
  outgrad_format format = OUTGRAD_F32;
  std::int64_t rows = 0, n = 0;
};

inline outgrad_call call_of(const Rows& over) {
  outgrad_call call{};
  call.size = sizeof call;
  call.format = over.format;
  call.rows = over.rows;
  call.n = over.n;
  return call;
}
inline outgrad_call call_of(const Elements& over) { return call_of(Rows{over.format, 0, over.n}); }

// The seed of a dropout: where the tensors are, or on the host, where its value is known without a wait.
// Null: nothing is dropped.
struct SeedOf {
  const std::uint64_t* at = nullptr;
  bool on_host = false;
};

// What a norm's x is added to first: z = dropout(x) + residual. With a null seed nothing is dropped. z: where
// the sum goes; a device may have none. dz_next: what reaches z itself, or null. dx: with a seed, where
// dropout(dz) goes.
struct SumOf {
  const void *residual = nullptr, *dz_next = nullptr;
  void *z = nullptr, *dx = nullptr;
  SeedOf seed = {};
  double p = 0;
};

// A norm. gamma, beta and their gradients are in the format `parameters`. side: the channels whose x^ is
// kept, in ascending order. tau: what the others are tested for (kernels/side_policy.h); 0: nothing. seen:
// where a forward says what it found, two numbers, or null. A backward reads rstd and side_x_hat, and writes
// the workspace, which has norm_workspace_bytes. codes, scales: of another store than OUTGRAD_STORE_Y, which
// Host alone has.
struct NormOf : Rows {
  bool rms = false;
  const void *gamma = nullptr, *beta = nullptr;
  outgrad_format parameters = OUTGRAD_F32;
  const std::int32_t* side = nullptr;
  std::int64_t side_count = 0;
  double tau = 0;
  float eps = 0;
  float *rstd = nullptr, *side_x_hat = nullptr;
  std::int32_t* seen = nullptr;
  SumOf sum = {};
  void* workspace = nullptr;
  std::size_t bytes = 0;
  outgrad_store store = OUTGRAD_STORE_Y;
  void *codes = nullptr, *scales = nullptr;
  std::size_t codes_bytes = 0, scales_bytes = 0;
};

// Where a norm's backward puts its results; dgamma and dbeta are null if they are not wanted.
struct NormGradients {
  void *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;
};

// GELU behind a bias, which is in a format of its own. The workspace of a backward is written.
struct BiasOf : Rows {
  outgrad_format bias = OUTGRAD_F32;
  void* workspace = nullptr;
  std::size_t bytes = 0;
};

// The calls of kernels/c/outgrad.h with these names, for arrays on the device. They enqueue work, allocate
// nothing and never wait, so they may be captured in a graph. Values on the device are not checked: a gamma
// without a finite reciprocal outside the side channels gives infinities and NaNs in the backward pass. They
// throw kernels::SpecError for arguments that break the contract, and EnvironmentError if driver, compiler or
// device fail.
class Cuda {
 public:
  Cuda(int device, void* stream) : on_{device, stream} {}

  struct Where {
    int device;
    void* stream;
  };

  void activation_forward(outgrad_activation activation, Elements of, const void* x, void* y,
                          std::uint32_t* mask) const;
  void activation_backward(outgrad_activation activation, Elements of, const void* dy, const void* y,
                           const std::uint32_t* mask, void* dx) const;

  // An activation with the call's store. A seed and a scale lie on the device; a scale that does not hold
  // gives gradients without a meaning. The workspace is written.
  static std::size_t store_workspace_bytes(outgrad_store store);
  void store_forward(const outgrad_call& of) const;
  void store_backward(const outgrad_call& of) const;
  void encode_gradients(outgrad_call of) const;
  void backward_encoded(outgrad_call of) const;
  void softmax_forward_code(const Rows& over, const void* x, void* y, void* codes) const;
  void softmax_backward_code(const Rows& over, const void* dy, const void* codes, void* dx) const;

  void bias_gelu_forward(const BiasOf& of, const void* x, const void* bias, void* y,
                         std::uint32_t* mask) const;
  std::size_t bias_workspace_bytes(const Rows& over) const;
  void bias_gelu_backward(const BiasOf& of, const void* dy, const void* y, const std::uint32_t* mask,
                          void* dx, void* dbias) const;

  // A sum is made in the same pass, and not stored if it has no place. dx of its backward is called dz.
  static constexpr bool kNeedsZ = false;
  void norm_forward(const NormOf& of, const void* x, void* y) const;
  std::size_t norm_workspace_bytes(const Rows& over) const;
  void norm_backward(const NormOf& of, const void* dy, const void* y, const NormGradients& to) const;

  void dropout(Elements of, const void* x, void* y, const SeedOf& seed, double p) const;

 private:
  Where on_;
};

}  // namespace outgrad::torch_operators
