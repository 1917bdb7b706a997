// The kernels on the CPU, from the compiled library. The calls are the same as those of Cuda
// (kernels/torch/cuda.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/formats.h"
#include "kernels/side_policy.h"
#include "kernels/torch/cuda.h"
#include "kernels/torch/require.h"

namespace outgrad::torch_operators {

class Host {
 public:
  static std::size_t store_workspace_bytes(outgrad_store) { return 0; }
  void activation_forward(const outgrad_call& of) const { succeed(outgrad_activation_forward(&of)); }
  void activation_backward(const outgrad_call& of) const { succeed(outgrad_activation_backward(&of)); }
  void encode_gradients(const outgrad_call& of) const { succeed(outgrad_encode_gradients(&of)); }
  void backward_encoded(const outgrad_call& of) const { succeed(outgrad_backward_encoded(&of)); }
  void softmax_forward(const outgrad_call& of) const { succeed(outgrad_softmax_forward(&of)); }
  void softmax_backward(const outgrad_call& of) const { succeed(outgrad_softmax_backward(&of)); }
  void gated_forward(const outgrad_call& of) const { succeed(outgrad_gated_forward(&of)); }
  void gated_backward(const outgrad_call& of) const { succeed(outgrad_gated_backward(&of)); }
  void product_forward(const outgrad_call& of) const { succeed(outgrad_product_forward(&of)); }
  void product_backward(const outgrad_call& of) const { succeed(outgrad_product_backward(&of)); }
  static std::size_t gated_forward_8bit_workspace_bytes() { return 0; }
  void gated_forward_8bit(const GatedIn8Bits& of) const {
    c::chosen_kernels(of.format).gated_forward_8bit[of.activation](of, of.kept);
  }
  void gated_backward_8bit(const GatedIn8Bits& of) const {
    c::chosen_kernels(of.format).gated_backward_8bit[of.activation](of, of.kept);
  }

  void bias_gelu_forward(const BiasOf& of) const {
    const InFp32 bias(of.own.bias, of.own.format, of.n);
    outgrad_call call = of;
    call.bias = bias.data();
    succeed(outgrad_bias_gelu_forward(&call));
  }
  std::size_t bias_workspace_bytes(outgrad_call call) const {
    succeed(outgrad_bias_gelu_sizes(&call));
    return call.workspace_bytes;
  }
  void bias_gelu_backward(const BiasOf& of) const {
    const OutOfFp32 dbias(of.own.dbias, of.own.format, of.n);
    outgrad_call call = of;
    call.dbias = dbias.data();
    succeed(outgrad_bias_gelu_backward(&call));
  }

  // The sum needs a place: what is dropped first goes there, too.
  static constexpr bool kNeedsZ = true;
  void norm_forward(const NormOf& of) const {
    const InFp32 gamma(of.own.gamma, of.own.format, of.n), beta(of.own.beta, of.own.format, of.n);
    outgrad_call call = with_parameters(of, gamma, beta);
    if (of.residual == nullptr) {
      succeed(of.rms ? outgrad_rmsnorm_forward(&call) : outgrad_layernorm_forward(&call));
    } else {
      if (of.drop.seed != nullptr) {
        drop(of, of.x, of.z, of.drop);
        call.x = of.z;
      }
      succeed(of.rms ? outgrad_residual_rmsnorm_forward(&call) : outgrad_residual_layernorm_forward(&call));
    }
    if (of.seen == nullptr) return;
    if (!beyond(of, gamma, beta, limits_of(of.format, of.tau, false)).empty()) of.seen[0] = 1;
    if (!beyond(of, gamma, beta, limits_of(of.format, of.tau, true)).empty()) of.seen[1] = 1;
  }
  static std::size_t norm_forward_workspace_bytes(const outgrad_call&) { return 0; }
  std::size_t norm_workspace_bytes(outgrad_call call) const {
    succeed(outgrad_norm_sizes(&call));
    return call.workspace_bytes;
  }
  void norm_backward(const NormOf& of) const {
    InFp32 gamma(of.own.gamma, of.own.format, of.n);
    const InFp32 beta(of.own.beta, of.own.format, of.n);
    const OutOfFp32 dgamma(of.own.dgamma, of.own.format, of.n), dbeta(of.own.dbeta, of.own.format, of.n);
    std::vector<std::int64_t> lost;
    if (of.tau > 0) lost = beyond(of, gamma, beta, limits_of(of.format, of.tau, true));
    // with a reciprocal: what comes of it is written over
    for (const std::int64_t j : lost) gamma.own()[j] = 1.0f;
    outgrad_call call = with_parameters(of, gamma, beta);
    call.dgamma = dgamma.data();
    call.dbeta = dbeta.data();
    call.dz = of.dx;
    if (of.dz_next == nullptr) {
      require_backward_of_norm(of.rms ? outgrad_rmsnorm_backward(&call) : outgrad_layernorm_backward(&call));
    } else {
      require_backward_of_norm(of.rms ? outgrad_residual_rmsnorm_backward(&call)
                                      : outgrad_residual_layernorm_backward(&call));
    }
    if (!lost.empty()) {
      // m2 and so every dx are wrong with a lost channel.
      const float nan = kernels::float_of(kernels::kCanonicalNanF32);
      by_type(of.format, [&]<class T>(T) {
        std::fill_n(static_cast<T*>(of.dx), of.rows * of.n, kernels::narrow<T>(nan));
      });
      for (const std::int64_t j : lost)
        if (of.own.dgamma != nullptr) dgamma.data()[j] = nan;
    }
    if (of.drop.seed != nullptr) drop(of, of.dx, of.dropped, of.drop);
  }

  void dropout(outgrad_call of, const Drop& how) const {
    of.rows = 1;
    drop(of, of.x, of.y, how);
  }

  static std::size_t encode_tensor_workspace_bytes() { return 0; }
  void encode_tensor(const TensorOf& of) const {
    const c::TensorCodes& codes = codes_of(of);
    if (codes.scale != nullptr) codes.scale(of.x, of.n, of.least, of.scales);
    if (of.codes != nullptr) codes.encode(of.x, of.codes, of.scales, of.n);
  }
  void decode_tensor(const TensorOf& of) const { codes_of(of).decode(of.codes, of.scales, of.y, of.n); }

 private:
  // gamma, beta or a bias in fp32, as the library reads them: where they are, or a copy.
  class InFp32 {
   public:
    InFp32(const void* values, outgrad_format format, std::int64_t n)
        : at_(static_cast<const float*>(values)), n_(n) {
      if (values == nullptr || format == OUTGRAD_F32) return;
      own_.resize(static_cast<std::size_t>(n));
      by_type(format, [&]<class T>(T) {
        const T* const all = static_cast<const T*>(values);
        std::transform(all, all + n, own_.begin(), [](T value) { return kernels::widen(value); });
      });
      at_ = own_.data();
    }
    const float* data() const { return at_; }
    float operator[](std::int64_t j) const { return at_[j]; }
    // A copy that may be changed.
    float* own() {
      if (own_.empty()) own_.assign(at_, at_ + n_);
      at_ = own_.data();
      return own_.data();
    }

   private:
    std::vector<float> own_;
    const float* at_;
    std::int64_t n_;
  };

  // Where the library puts dgamma or dbeta in fp32. At the end they are rounded to their format. Null if they
  // are not wanted.
  class OutOfFp32 {
   public:
    OutOfFp32(void* values, outgrad_format format, std::int64_t n) : values_(values), format_(format) {
      if (values != nullptr && format != OUTGRAD_F32) own_.resize(static_cast<std::size_t>(n));
    }
    OutOfFp32(const OutOfFp32&) = delete;
    OutOfFp32& operator=(const OutOfFp32&) = delete;
    ~OutOfFp32() {
      if (own_.empty()) return;
      by_type(format_, [&]<class T>(T) {
        std::transform(own_.begin(), own_.end(), static_cast<T*>(values_),
                       [](float value) { return kernels::narrow<T>(value); });
      });
    }
    float* data() const {
      return own_.empty() ? static_cast<float*>(values_) : const_cast<float*>(own_.data());
    }

   private:
    void* values_;
    outgrad_format format_;
    std::vector<float> own_;
  };

  static const c::TensorCodes& codes_of(const TensorOf& of) {
    return c::chosen_kernels(of.format).tensor_codes[of.store];
  }

  static void drop(const outgrad_call& of, const void* x, void* y, const Drop& how) {
    c::chosen_kernels(of.format).dropout(x, y, of.rows * of.n, *how.seed, how.p);
  }

  static outgrad_call with_parameters(outgrad_call call, const InFp32& gamma, const InFp32& beta) {
    call.gamma = gamma.data();
    call.beta = beta.data();
    return call;
  }

  static kernels::SideLimits limits_of(outgrad_format format, double tau, bool lost) {
    return by_type(format, [&]<class T>(T) {
      return lost ? kernels::lost_limits<T>(tau) : kernels::near_limits<T>(tau);
    });
  }
  // The channels without a side buffer that are beyond these limits.
  static std::vector<std::int64_t> beyond(const NormOf& of, const InFp32& gamma, const InFp32& beta,
                                          const kernels::SideLimits& limits) {
    std::vector<std::int64_t> found;
    if (gamma.data() == nullptr) return found;
    const std::int32_t *side = of.side_channels, *const end = side + of.side_count;
    for (std::int64_t j = 0; j < of.n; ++j) {
      if (side != end && *side == j) {
        ++side;
      } else if (!kernels::is_told(limits, gamma[j], beta.data() != nullptr ? beta[j] : 0.0f)) {
        found.push_back(j);
      }
    }
    return found;
  }

  // Where a gamma has no finite reciprocal, the message also says what to do.
  static void require_backward_of_norm(outgrad_status status) {
    if (status != OUTGRAD_OK && said().find("has no finite reciprocal") != std::string_view::npos) {
      refuse(said(), ": side_channels=outgrad.side_channels(weight, bias, x.dtype) names all such channels");
    }
    succeed(status);
  }
};

}  // namespace outgrad::torch_operators
