// The kernels on the CPU, from the compiled library. The calls are the same as those of Cuda
// (kernels/torch/cuda.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
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
    const auto& [format, n] = of;
    require(outgrad_activation_forward(activation, format, x, y, mask, n));
  }
  void activation_backward(outgrad_activation activation, const Elements& of, const void* dy, const void* y,
                           const std::uint32_t* mask, void* dx) const {
    const auto& [format, n] = of;
    require(outgrad_activation_backward(activation, format, dy, y, mask, dx, n));
  }

  void activation_forward_parity(outgrad_activation activation, const Elements& of, const void* x,
                                 void* y) const {
    const auto& [format, n] = of;
    require(outgrad_activation_forward_parity(activation, format, x, y, n));
  }
  void activation_backward_parity(outgrad_activation activation, const Elements& of, const void* dy,
                                  const void* y, void* dx) const {
    const auto& [format, n] = of;
    require(outgrad_activation_backward_parity(activation, format, dy, y, dx, n));
  }
  void activation_forward_code(const CodesOf& of, const Elements& over, const void* x, void* y,
                               void* codes) const {
    const auto& [format, n] = over;
    require(
        outgrad_activation_forward_code(of.activation, format, x, y, codes, of.bytes, of.bits, of.seed, n));
  }
  void activation_backward_code(const CodesOf& of, const Elements& over, const void* dy, const void* codes,
                                void* dx) const {
    const auto& [format, n] = over;
    require(outgrad_activation_backward_code(of.activation, format, dy, codes, of.bytes, dx, of.bits, of.seed,
                                             n));
  }
  void encode_gradients(const CodesOf& of, const Elements& over, const void* g, void* codes) const {
    const auto& [format, n] = over;
    require(outgrad_encode_gradients(of.lo, of.hi, format, g, codes, of.bytes, of.bits, of.seed, n));
  }
  void backward_encoded(const CodesOf& of, const Elements& over, const void* dy, const void* codes,
                        void* dx) const {
    const auto& [format, n] = over;
    require(outgrad_backward_encoded(of.lo, of.hi, format, dy, codes, of.bytes, dx, of.bits, of.seed, n));
  }
  void gelu_forward_mxfp8(const Elements& of, const void* x, std::uint8_t* codes, std::uint8_t* scales,
                          std::uint32_t* mask) const {
    const auto& [format, n] = of;
    require(outgrad_gelu_forward_mxfp8(format, x, codes, scales, mask, n));
  }
  void gelu_backward_mxfp8(const Elements& of, const void* dy, const std::uint8_t* codes,
                           const std::uint8_t* scales, const std::uint32_t* mask, void* dx) const {
    const auto& [format, n] = of;
    require(outgrad_gelu_backward_mxfp8(format, dy, codes, scales, mask, dx, n));
  }
  std::size_t fp8_workspace_bytes() const { return 0; }
  void activation_forward_fp8(const Fp8Of& of, const Elements& over, const void* x, std::uint8_t* codes,
                              void* parts) const {
    const auto& [format, n] = over;
    require(outgrad_activation_forward_fp8(of.activation, format, x, of.fp8, *of.scale, codes, parts,
                                           of.bytes, of.bits, n));
  }
  void activation_backward_fp8(const Fp8Of& of, const Elements& over, const void* dy,
                               const std::uint8_t* codes, const void* parts, void* dx) const {
    const auto& [format, n] = over;
    require(outgrad_activation_backward_fp8(of.activation, format, dy, of.fp8, *of.scale, codes, parts,
                                            of.bytes, dx, of.bits, n));
  }
  // A code of softmax is a byte.
  void softmax_forward_code(const Rows& over, const void* x, void* y, void* codes) const {
    const auto& [format, rows, n] = over;
    require(outgrad_softmax_forward_code(format, x, rows, n, y, codes, static_cast<std::size_t>(rows * n)));
  }
  void softmax_backward_code(const Rows& over, const void* dy, const void* codes, void* dx) const {
    const auto& [format, rows, n] = over;
    require(
        outgrad_softmax_backward_code(format, dy, codes, static_cast<std::size_t>(rows * n), rows, n, dx));
  }

  void bias_gelu_forward(const BiasOf& of, const void* x, const void* bias, void* y,
                         std::uint32_t* mask) const {
    const auto& [format, rows, n] = static_cast<const Rows&>(of);
    require(outgrad_bias_gelu_forward(format, x, InFp32(bias, of.bias, n).data(), rows, n, y, mask));
  }
  std::size_t bias_workspace_bytes(const Rows& over) const {
    const auto& [format, rows, n] = over;
    std::size_t bytes = 0;
    require(outgrad_bias_backward_workspace(format, rows, n, &bytes));
    return bytes;
  }
  void bias_gelu_backward(const BiasOf& of, const void* dy, const void* y, const std::uint32_t* mask,
                          void* dx, void* dbias) const {
    const auto& [format, rows, n] = static_cast<const Rows&>(of);
    require(outgrad_bias_gelu_backward(format, dy, y, mask, rows, n, dx, OutOfFp32(dbias, of.bias, n).data(),
                                       of.workspace, of.bytes));
  }

  // The sum needs a place: what is dropped first goes there, too.
  static constexpr bool kNeedsZ = true;
  void norm_forward(const NormOf& of, const void* x, void* y) const {
    const auto [format, eps, rstd, side_x_hat] = std::tuple(of.format, of.eps, of.rstd, of.side_x_hat);
    const SumOf& sum = of.sum;
    const InFp32 gamma(of.gamma, of.parameters, of.n), beta(of.beta, of.parameters, of.n);
    if (sum.residual == nullptr) {
      require(of.rms ? outgrad_rmsnorm_forward(format, x, gamma.data(), of.rows, of.n, eps, y, rstd, of.side,
                                               of.side_count, side_x_hat)
                     : outgrad_layernorm_forward(format, x, gamma.data(), beta.data(), of.rows, of.n, eps, y,
                                                 rstd, of.side, of.side_count, side_x_hat));
    } else {
      if (sum.seed.at != nullptr) dropout({format, of.rows * of.n}, x, sum.z, sum.seed, sum.p);
      const void* const added = sum.seed.at != nullptr ? sum.z : x;
      require(of.rms
                  ? outgrad_residual_rmsnorm_forward(format, added, sum.residual, gamma.data(), of.rows, of.n,
                                                     eps, sum.z, y, rstd, of.side, of.side_count, side_x_hat)
                  : outgrad_residual_layernorm_forward(format, added, sum.residual, gamma.data(), beta.data(),
                                                       of.rows, of.n, eps, sum.z, y, rstd, of.side,
                                                       of.side_count, side_x_hat));
    }
    if (of.seen == nullptr) return;
    if (!beyond(of, gamma, beta, limits_of(format, of.tau, false)).empty()) of.seen[0] = 1;
    if (!beyond(of, gamma, beta, limits_of(format, of.tau, true)).empty()) of.seen[1] = 1;
  }
  std::size_t norm_workspace_bytes(const Rows& over) const {
    const auto& [format, rows, n] = over;
    std::size_t bytes = 0;
    require(outgrad_norm_backward_workspace(format, rows, n, &bytes));
    return bytes;
  }
  void norm_backward(const NormOf& of, const void* dy, const void* y, const NormGradients& to) const {
    const auto [format, rstd, side_x_hat] = std::tuple(of.format, of.rstd, of.side_x_hat);
    const auto [dx, dgamma, dbeta] = to;
    const auto [workspace, bytes] = std::tuple(of.workspace, of.bytes);
    const SumOf& sum = of.sum;
    InFp32 gamma(of.gamma, of.parameters, of.n);
    const InFp32 beta(of.beta, of.parameters, of.n);
    const OutOfFp32 dgammas(dgamma, of.parameters, of.n), dbetas(dbeta, of.parameters, of.n);
    std::vector<std::int64_t> lost;
    if (of.tau > 0) lost = beyond(of, gamma, beta, limits_of(format, of.tau, true));
    // with a reciprocal: what comes of it is written over
    for (const std::int64_t j : lost) gamma.own()[j] = 1.0f;
    if (sum.dz_next == nullptr) {
      require_backward_of_norm(
          of.rms
              ? outgrad_rmsnorm_backward(format, dy, y, gamma.data(), rstd, of.rows, of.n, dx, dgammas.data(),
                                         of.side, of.side_count, side_x_hat, workspace, bytes)
              : outgrad_layernorm_backward(format, dy, y, gamma.data(), beta.data(), rstd, of.rows, of.n, dx,
                                           dgammas.data(), dbetas.data(), of.side, of.side_count, side_x_hat,
                                           workspace, bytes));
    } else {
      require_backward_of_norm(
          of.rms ? outgrad_residual_rmsnorm_backward(format, dy, y, sum.dz_next, gamma.data(), rstd, of.rows,
                                                     of.n, dx, dgammas.data(), of.side, of.side_count,
                                                     side_x_hat, workspace, bytes)
                 : outgrad_residual_layernorm_backward(format, dy, y, sum.dz_next, gamma.data(), beta.data(),
                                                       rstd, of.rows, of.n, dx, dgammas.data(), dbetas.data(),
                                                       of.side, of.side_count, side_x_hat, workspace, bytes));
    }
    if (!lost.empty()) {
      // m2 and so every dx are wrong with a lost channel.
      const float nan = kernels::float_of(kernels::kCanonicalNanF32);
      by_type(format,
              [&]<class T>(T) { std::fill_n(static_cast<T*>(dx), of.rows * of.n, kernels::narrow<T>(nan)); });
      for (const std::int64_t j : lost)
        if (dgamma != nullptr) dgammas.data()[j] = nan;
    }
    if (sum.seed.at != nullptr) dropout({format, of.rows * of.n}, dx, sum.dx, sum.seed, sum.p);
  }

  std::size_t norm_scale_bytes(outgrad_norm_store store, const Rows& over) const {
    std::size_t bytes = 0;
    require(outgrad_norm_scale_bytes(store, over.rows, over.n, &bytes));
    return bytes;
  }
  void norm_forward_8bit(const NormOf& of, const In8Bits& in, const void* x, void* y) const {
    const auto [format, eps, rstd, side_x_hat] = std::tuple(of.format, of.eps, of.rstd, of.side_x_hat);
    const auto [store, codes, scales, scale_bytes] = in;
    const auto code_bytes = static_cast<std::size_t>(of.rows * of.n);
    const InFp32 gamma(of.gamma, of.parameters, of.n), beta(of.beta, of.parameters, of.n);
    require(of.rms ? outgrad_rmsnorm_forward_8bit(format, store, x, gamma.data(), of.rows, of.n, eps, nullptr,
                                                  y, codes, code_bytes, scales, scale_bytes, rstd, of.side,
                                                  of.side_count, side_x_hat)
                   : outgrad_layernorm_forward_8bit(format, store, x, gamma.data(), beta.data(), of.rows,
                                                    of.n, eps, nullptr, y, codes, code_bytes, scales,
                                                    scale_bytes, rstd, of.side, of.side_count, side_x_hat));
  }
  void norm_backward_8bit(const NormOf& of, const In8Bits& in, const void* dy,
                          const NormGradients& to) const {
    const auto [format, rstd, side_x_hat] = std::tuple(of.format, of.rstd, of.side_x_hat);
    const auto [store, codes, scales, scale_bytes] = in;
    const auto [dx, dgamma, dbeta] = to;
    const auto [workspace, bytes] = std::tuple(of.workspace, of.bytes);
    const auto code_bytes = static_cast<std::size_t>(of.rows * of.n);
    const InFp32 gamma(of.gamma, of.parameters, of.n), beta(of.beta, of.parameters, of.n);
    const OutOfFp32 dgammas(dgamma, of.parameters, of.n), dbetas(dbeta, of.parameters, of.n);
    require_backward_of_norm(
        of.rms ? outgrad_rmsnorm_backward_8bit(format, store, dy, codes, code_bytes, scales, scale_bytes,
                                               gamma.data(), rstd, of.rows, of.n, dx, dgammas.data(), of.side,
                                               of.side_count, side_x_hat, workspace, bytes)
               : outgrad_layernorm_backward_8bit(format, store, dy, codes, code_bytes, scales, scale_bytes,
                                                 gamma.data(), beta.data(), rstd, of.rows, of.n, dx,
                                                 dgammas.data(), dbetas.data(), of.side, of.side_count,
                                                 side_x_hat, workspace, bytes));
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

  static void require(outgrad_status status) {
    if (status != OUTGRAD_OK) refuse(said());
  }
  // Where a gamma has no finite reciprocal, the message also says what to do.
  static void require_backward_of_norm(outgrad_status status) {
    if (status != OUTGRAD_OK && said().find("has no finite reciprocal") != std::string_view::npos) {
      refuse(said(), ": side_channels=outgrad.side_channels(weight, bias, x.dtype) names all such channels");
    }
    require(status);
  }
  // The library's message without the names of C functions before it, since the caller has called none of
  // them.
  static std::string_view said() {
    std::string_view message = outgrad_error_message();
    for (;;) {
      const std::size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_");
      if (end == 0 || end == message.npos || !message.substr(end).starts_with(": ")) return message;
      message.remove_prefix(end + 2);
    }
  }
};

}  // namespace outgrad::torch_operators
