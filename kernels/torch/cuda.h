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
#include "kernels/c/table.h"
#include "kernels/formats.h"

namespace outgrad::torch_operators {

// action(T{}) for the format's type T.
template <class Action>
decltype(auto) by_type(outgrad_format format, const Action& action) {
  switch (format) {
    case OUTGRAD_F32: return action(float{});
    case OUTGRAD_F16: return action(kernels::F16{});
    default: return action(kernels::BF16{});
  }
}

// What operators hand to either backend, Host or Cuda: a call of kernels/c/outgrad.h, and for some kernels
// what that has no member for.

// A dropout. The seed lies where the tensors are, or on the host, where its value is known without a wait.
// Null: nothing is dropped.
struct Drop {
  const std::uint64_t* seed = nullptr;
  bool on_host = false;
  double p = 0;
};

// Parameters and their gradients in a format of their own, for which the call has members in fp32. A gradient
// that is not wanted is null.
struct Parameters {
  outgrad_format format = OUTGRAD_F32;
  const void *gamma = nullptr, *beta = nullptr, *bias = nullptr;
  void *dgamma = nullptr, *dbeta = nullptr, *dbias = nullptr;
};

// A norm; with a residual that of z = dropout(x) + residual, where a device need not have a place for z, and
// in the backward pass dx is where dz goes. tau: what the channels without a side buffer are tested for
// (kernels/side_policy.h); 0: nothing. seen: where a forward says what it found, two numbers, or null.
// dropped: in a backward with a seed, where dropout(dz) goes.
struct NormOf : outgrad_call {
  bool rms = false;
  Parameters own = {};
  double tau = 0;
  std::int32_t* seen = nullptr;
  Drop drop = {};
  void* dropped = nullptr;
};

// GELU behind a bias.
struct BiasOf : outgrad_call {
  Parameters own = {};
};

// Any tensor in 8 bits (kernels/tensor_codes.h), by the call's store: E4M3 or E5M2, whose scale is in
// `scales`, or MXFP8, which has a byte there for each block. y is where what codes stand for goes, in the
// call's format. least: what the largest magnitude of a tensor counts as at least.
struct TensorOf : outgrad_call {
  float least = 0;
};

// A gated pair that keeps a and b so, each with a scale of its own. Its backward has neither; without db,
// they are packed.
struct GatedIn8Bits : outgrad_call {
  c::GatedCodes kept = {};
};

// The calls of kernels/c/outgrad.h with these names, for arrays on the device. They enqueue work, allocate
// nothing and never wait, so they may be captured in a graph. Values on the device are not checked: a gamma
// without a finite reciprocal outside the side channels gives infinities and NaNs in the backward pass, and a
// scale that does not hold gradients without a meaning. They throw kernels::SpecError for arguments that
// break the contract, and EnvironmentError if driver, compiler or device fail.
class Cuda {
 public:
  Cuda(int device, void* stream) : on_{device, stream} {}

  struct Where {
    int device;
    void* stream;
  };

  // With the call's store, whose workspace is written.
  static std::size_t store_workspace_bytes(outgrad_store store);
  void activation_forward(const outgrad_call& of) const;
  void activation_backward(const outgrad_call& of) const;
  void encode_gradients(outgrad_call of) const;
  void backward_encoded(outgrad_call of) const;
  void softmax_forward(outgrad_call of) const;
  void softmax_backward(outgrad_call of) const;
  void gated_forward(outgrad_call of) const;
  void gated_backward(outgrad_call of) const;
  void product_forward(outgrad_call of) const;
  void product_backward(outgrad_call of) const;
  // The workspace is for a store at one scale.
  static std::size_t gated_forward_8bit_workspace_bytes();
  void gated_forward_8bit(GatedIn8Bits of) const;
  void gated_backward_8bit(GatedIn8Bits of) const;

  void bias_gelu_forward(const BiasOf& of) const;
  std::size_t bias_workspace_bytes(const outgrad_call& of) const;
  void bias_gelu_backward(BiasOf of) const;

  // A sum is made in the same pass, and not stored if it has no place.
  static constexpr bool kNeedsZ = false;
  static std::size_t norm_forward_workspace_bytes(const outgrad_call& of);
  void norm_forward(const NormOf& of) const;
  std::size_t norm_workspace_bytes(const outgrad_call& of) const;
  void norm_backward(const NormOf& of) const;

  void dropout(outgrad_call of, const Drop& drop) const;

  // Where there are no codes, the scale alone is written. The workspace is for a store at one scale.
  static std::size_t encode_tensor_workspace_bytes();
  void encode_tensor(TensorOf of) const;
  void decode_tensor(TensorOf of) const;

 private:
  Where on_;
};

}  // namespace outgrad::torch_operators
