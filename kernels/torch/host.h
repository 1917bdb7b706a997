// The kernels on the CPU, from the compiled library. The calls are the same as those of Cuda
// (kernels/torch/cuda.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/c/outgrad.h"
#include "kernels/formats.h"
#include "kernels/host/dropout.h"
#include "kernels/side_policy.h"
#include "kernels/torch/cuda.h"
#include "kernels/torch/require.h"

namespace outgrad::torch_operators {

// action(T{}) for the format's type T.
template <class Action>
auto by_type(outgrad_format format, const Action& action) {
  if (format == OUTGRAD_F32) return action(float{});
  return format == OUTGRAD_F16 ? action(kernels::F16{}) : action(kernels::BF16{});
}

class Host {
 public:
  void activation_forward(outgrad_activation activation, const Elements& of, const void* x, void* y,
                          std::uint32_t* mask) const {
    outgrad_call call = forward_of(of, x, y);
    call.activation = activation;
    call.mask = mask;
    succeed(outgrad_activation_forward(&call));
  }
  void activation_backward(outgrad_activation activation, const Elements& of, const void* dy, const void* y,
                           const std::uint32_t* mask, void* dx) const {
    outgrad_call call = backward_of(of, dy, dx);
    call.activation = activation;
    call.y = kept(y);
    call.mask = kept(mask);
    succeed(outgrad_activation_backward(&call));
  }

  static std::size_t store_workspace_bytes(outgrad_store) { return 0; }
  void store_forward(const outgrad_call& of) const { succeed(outgrad_activation_forward(&of)); }
  void store_backward(const outgrad_call& of) const { succeed(outgrad_activation_backward(&of)); }
  void encode_gradients(const outgrad_call& of) const { succeed(outgrad_encode_gradients(&of)); }
  void backward_encoded(const outgrad_call& of) const { succeed(outgrad_backward_encoded(&of)); }

  void softmax_forward_code(const Rows& over, const void* x, void* y, void* codes) const {
    const outgrad_call call = in_octets(forward_of(over, x, y), codes);
    succeed(outgrad_softmax_forward(&call));
  }
  void softmax_backward_code(const Rows& over, const void* dy, const void* codes, void* dx) const {
    const outgrad_call call = in_octets(backward_of(over, dy, dx), codes);
    succeed(outgrad_softmax_backward(&call));
  }

  void bias_gelu_forward(const BiasOf& of, const void* x, const void* bias, void* y,
                         std::uint32_t* mask) const {
    const InFp32 biases(bias, of.bias, of.n);
    outgrad_call call = forward_of<Rows>(of, x, y);
    call.bias = biases.data();
    call.mask = mask;
    succeed(outgrad_bias_gelu_forward(&call));
  }
  std::size_t bias_workspace_bytes(const Rows& over) const {
    outgrad_call call = call_of(over);
    succeed(outgrad_bias_gelu_sizes(&call));
    return call.workspace_bytes;
  }
  void bias_gelu_backward(const BiasOf& of, const void* dy, const void* y, const std::uint32_t* mask,
                          void* dx, void* dbias) const {
    const OutOfFp32 dbiases(dbias, of.bias, of.n);
    outgrad_call call = backward_of<Rows>(of, dy, dx);
    call.y = kept(y);
    call.mask = kept(mask);
    call.dbias = dbiases.data();
    call.workspace = of.workspace;
    call.workspace_bytes = of.bytes;
    succeed(outgrad_bias_gelu_backward(&call));
  }

  // The sum needs a place: what is dropped first goes there, too.
  static constexpr bool kNeedsZ = true;
  void norm_forward(const NormOf& of, const void* x, void* y) const {
    const SumOf& sum = of.sum;
    const InFp32 gamma(of.gamma, of.parameters, of.n), beta(of.beta, of.parameters, of.n);
    outgrad_call call = with_norm(forward_of<Rows>(of, x, y), of, gamma, beta);
    if (sum.residual == nullptr) {
      succeed(of.rms ? outgrad_rmsnorm_forward(&call) : outgrad_layernorm_forward(&call));
    } else {
      if (sum.seed.at != nullptr) dropout({of.format, of.rows * of.n}, x, sum.z, sum.seed, sum.p);
      if (sum.seed.at != nullptr) call.x = sum.z;
      call.residual = sum.residual;
      call.z = sum.z;
      succeed(of.rms ? outgrad_residual_rmsnorm_forward(&call) : outgrad_residual_layernorm_forward(&call));
    }
    if (of.seen == nullptr) return;
    if (!beyond(of, gamma, beta, limits_of(of.format, of.tau, false)).empty()) of.seen[0] = 1;
    if (!beyond(of, gamma, beta, limits_of(of.format, of.tau, true)).empty()) of.seen[1] = 1;
  }
  std::size_t norm_workspace_bytes(const Rows& over) const {
    outgrad_call call = call_of(over);
    succeed(outgrad_norm_sizes(&call));
    return call.workspace_bytes;
  }
  void norm_backward(const NormOf& of, const void* dy, const void* y, const NormGradients& to) const {
    const auto [dx, dgamma, dbeta] = to;
    const SumOf& sum = of.sum;
    InFp32 gamma(of.gamma, of.parameters, of.n);
    const InFp32 beta(of.beta, of.parameters, of.n);
    const OutOfFp32 dgammas(dgamma, of.parameters, of.n), dbetas(dbeta, of.parameters, of.n);
    std::vector<std::int64_t> lost;
    if (of.tau > 0) lost = beyond(of, gamma, beta, limits_of(of.format, of.tau, true));
    // with a reciprocal: what comes of it is written over
    for (const std::int64_t j : lost) gamma.own()[j] = 1.0f;
    outgrad_call call = with_norm(backward_of<Rows>(of, dy, dx), of, gamma, beta);
    call.y = kept(y);
    call.dgamma = dgammas.data();
    call.dbeta = dbetas.data();
    if (sum.dz_next == nullptr) {
      require_backward_of_norm(of.rms ? outgrad_rmsnorm_backward(&call) : outgrad_layernorm_backward(&call));
    } else {
      call.dz_next = sum.dz_next;
      call.dz = dx;
      require_backward_of_norm(of.rms ? outgrad_residual_rmsnorm_backward(&call)
                                      : outgrad_residual_layernorm_backward(&call));
    }
    if (!lost.empty()) {
      // m2 and so every dx are wrong with a lost channel.
      const float nan = kernels::float_of(kernels::kCanonicalNanF32);
      by_type(of.format,
              [&]<class T>(T) { std::fill_n(static_cast<T*>(dx), of.rows * of.n, kernels::narrow<T>(nan)); });
      for (const std::int64_t j : lost)
        if (dgamma != nullptr) dgammas.data()[j] = nan;
    }
    if (sum.seed.at != nullptr) dropout({of.format, of.rows * of.n}, dx, sum.dx, sum.seed, sum.p);
  }

  void dropout(const Elements& of, const void* x, void* y, const SeedOf& seed, double p) const {
    by_type(of.format, [&]<class T>(T) {
      kernels::dropout(static_cast<const T*>(x), static_cast<T*>(y), of.n, *seed.at, p);
    });
  }

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

  template <class Over>
  static outgrad_call forward_of(const Over& over, const void* x, void* y) {
    outgrad_call call = call_of(over);
    call.x = x;
    call.y = y;
    return call;
  }
  template <class Over>
  static outgrad_call backward_of(const Over& over, const void* dy, void* dx) {
    outgrad_call call = call_of(over);
    call.dy = dy;
    call.dx = dx;
    return call;
  }
  // What a forward kept, which the library does not write in a backward.
  template <class T>
  static T* kept(const T* array) {
    return const_cast<T*>(array);
  }

  // A code of softmax is a byte.
  static outgrad_call in_octets(outgrad_call call, const void* codes) {
    call.codes = kept(codes);
    call.codes_bytes = static_cast<std::size_t>(call.rows * call.n);
    return call;
  }

  static outgrad_call with_norm(outgrad_call call, const NormOf& of, const InFp32& gamma,
                                const InFp32& beta) {
    call.gamma = gamma.data();
    call.beta = beta.data();
    call.eps = of.eps;
    call.rstd = of.rstd;
    call.side_channels = of.side;
    call.side_count = of.side_count;
    call.side_x_hat = of.side_x_hat;
    call.workspace = of.workspace;
    call.workspace_bytes = of.bytes;
    call.store = of.store;
    call.codes = of.codes;
    call.codes_bytes = of.codes_bytes;
    call.scales = of.scales;
    call.scales_bytes = of.scales_bytes;
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
    const std::int32_t *side = of.side, *const end = of.side + of.side_count;
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
