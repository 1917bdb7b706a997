// The kernels on the CPU, from the compiled library. The calls are the same as those of Cuda (kernels/torch/cuda.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/c/outgrad.h"
#include "kernels/formats.h"
#include "kernels/host/dropout.h"
#include "kernels/torch/cuda.h"
#include "kernels/torch/require.h"

namespace outgrad::torch_operators {

class Host {
 public:
  void activation_forward(outgrad_activation activation, outgrad_format format, const void* x, void* y, std::uint32_t* mask, std::int64_t n) const {
    require(outgrad_activation_forward(activation, format, x, y, mask, n));
  }
  void activation_backward(outgrad_activation activation, outgrad_format format, const void* dy, const void* y, const std::uint32_t* mask, void* dx,
                           std::int64_t n) const {
    require(outgrad_activation_backward(activation, format, dy, y, mask, dx, n));
  }

  void activation_forward_parity(outgrad_activation activation, outgrad_format format, const void* x, void* y, std::int64_t n) const {
    require(outgrad_activation_forward_parity(activation, format, x, y, n));
  }
  void activation_backward_parity(outgrad_activation activation, outgrad_format format, const void* dy, const void* y, void* dx, std::int64_t n) const {
    require(outgrad_activation_backward_parity(activation, format, dy, y, dx, n));
  }
  void activation_forward_code(const CodesOf& of, outgrad_format format, const void* x, void* y, void* codes, std::int64_t n) const {
    require(outgrad_activation_forward_code(of.activation, format, x, y, codes, of.bytes, of.bits, of.seed, n));
  }
  void activation_backward_code(const CodesOf& of, outgrad_format format, const void* dy, const void* codes, void* dx, std::int64_t n) const {
    require(outgrad_activation_backward_code(of.activation, format, dy, codes, of.bytes, dx, of.bits, of.seed, n));
  }
  void encode_gradients(const CodesOf& of, outgrad_format format, const void* g, void* codes, std::int64_t n) const {
    require(outgrad_encode_gradients(of.lo, of.hi, format, g, codes, of.bytes, of.bits, of.seed, n));
  }
  void backward_encoded(const CodesOf& of, outgrad_format format, const void* dy, const void* codes, void* dx, std::int64_t n) const {
    require(outgrad_backward_encoded(of.lo, of.hi, format, dy, codes, of.bytes, dx, of.bits, of.seed, n));
  }
  void gelu_forward_mxfp8(outgrad_format format, const void* x, std::uint8_t* codes, std::uint8_t* scales, std::uint32_t* mask, std::int64_t n) const {
    require(outgrad_gelu_forward_mxfp8(format, x, codes, scales, mask, n));
  }
  void gelu_backward_mxfp8(outgrad_format format, const void* dy, const std::uint8_t* codes, const std::uint8_t* scales, const std::uint32_t* mask, void* dx,
                           std::int64_t n) const {
    require(outgrad_gelu_backward_mxfp8(format, dy, codes, scales, mask, dx, n));
  }
  std::size_t fp8_workspace_bytes() const { return 0; }
  void activation_forward_fp8(const Fp8Of& of, outgrad_format format, const void* x, std::uint8_t* codes, void* parts, std::int64_t n, void*) const {
    require(outgrad_activation_forward_fp8(of.activation, format, x, of.fp8, *of.scale, codes, parts, of.bytes, of.bits, n));
  }
  void activation_backward_fp8(const Fp8Of& of, outgrad_format format, const void* dy, const std::uint8_t* codes, const void* parts, void* dx, std::int64_t n,
                               void*) const {
    require(outgrad_activation_backward_fp8(of.activation, format, dy, of.fp8, *of.scale, codes, parts, of.bytes, dx, of.bits, n));
  }
  // A code of softmax is a byte.
  void softmax_forward_code(outgrad_format format, const void* x, std::int64_t rows, std::int64_t n, void* y, void* codes) const {
    require(outgrad_softmax_forward_code(format, x, rows, n, y, codes, static_cast<std::size_t>(rows * n)));
  }
  void softmax_backward_code(outgrad_format format, const void* dy, const void* codes, std::int64_t rows, std::int64_t n, void* dx) const {
    require(outgrad_softmax_backward_code(format, dy, codes, static_cast<std::size_t>(rows * n), rows, n, dx));
  }

  void bias_gelu_forward(outgrad_format format, const void* x, const float* bias, std::int64_t rows, std::int64_t n, void* y, std::uint32_t* mask) const {
    require(outgrad_bias_gelu_forward(format, x, bias, rows, n, y, mask));
  }
  std::size_t bias_workspace_bytes(outgrad_format format, std::int64_t rows, std::int64_t n) const {
    std::size_t bytes = 0;
    require(outgrad_bias_backward_workspace(format, rows, n, &bytes));
    return bytes;
  }
  void bias_gelu_backward(outgrad_format format, const void* dy, const void* y, const std::uint32_t* mask, std::int64_t rows, std::int64_t n, void* dx,
                          float* dbias, void* workspace, std::size_t bytes) const {
    require(outgrad_bias_gelu_backward(format, dy, y, mask, rows, n, dx, dbias, workspace, bytes));
  }

  void norm_forward(outgrad_format format, const NormOf& of, const void* x, float eps, void* y, float* rstd, float* side_x_hat) const {
    require(of.rms ? outgrad_rmsnorm_forward(format, x, of.gamma, of.rows, of.n, eps, y, rstd, of.side, of.side_count, side_x_hat)
                   : outgrad_layernorm_forward(format, x, of.gamma, of.beta, of.rows, of.n, eps, y, rstd, of.side, of.side_count, side_x_hat));
  }
  std::size_t norm_workspace_bytes(outgrad_format format, std::int64_t rows, std::int64_t n) const {
    std::size_t bytes = 0;
    require(outgrad_norm_backward_workspace(format, rows, n, &bytes));
    return bytes;
  }
  void norm_backward(outgrad_format format, const NormOf& of, const void* dy, const void* y, const float* rstd, const float* side_x_hat, void* dx,
                     float* dgamma, float* dbeta, void* workspace, std::size_t bytes) const {
    require_backward_of_norm(
        of.rms ? outgrad_rmsnorm_backward(format, dy, y, of.gamma, rstd, of.rows, of.n, dx, dgamma, of.side, of.side_count, side_x_hat, workspace, bytes)
               : outgrad_layernorm_backward(format, dy, y, of.gamma, of.beta, rstd, of.rows, of.n, dx, dgamma, dbeta, of.side, of.side_count, side_x_hat,
                                            workspace, bytes));
  }

  std::size_t norm_scale_bytes(outgrad_norm_store store, std::int64_t rows, std::int64_t n) const {
    std::size_t bytes = 0;
    require(outgrad_norm_scale_bytes(store, rows, n, &bytes));
    return bytes;
  }
  void norm_forward_8bit(outgrad_format format, outgrad_norm_store store, const NormOf& of, const void* x, float eps, void* y, void* codes, void* scales,
                         std::size_t scale_bytes, float* rstd, float* side_x_hat) const {
    const auto code_bytes = static_cast<std::size_t>(of.rows * of.n);
    require(of.rms ? outgrad_rmsnorm_forward_8bit(format, store, x, of.gamma, of.rows, of.n, eps, nullptr, y, codes, code_bytes, scales, scale_bytes, rstd,
                                                  of.side, of.side_count, side_x_hat)
                   : outgrad_layernorm_forward_8bit(format, store, x, of.gamma, of.beta, of.rows, of.n, eps, nullptr, y, codes, code_bytes, scales, scale_bytes,
                                                    rstd, of.side, of.side_count, side_x_hat));
  }
  void norm_backward_8bit(outgrad_format format, outgrad_norm_store store, const NormOf& of, const void* dy, const void* codes, const void* scales,
                          std::size_t scale_bytes, const float* rstd, const float* side_x_hat, void* dx, float* dgamma, float* dbeta, void* workspace,
                          std::size_t bytes) const {
    const auto code_bytes = static_cast<std::size_t>(of.rows * of.n);
    require_backward_of_norm(of.rms ? outgrad_rmsnorm_backward_8bit(format, store, dy, codes, code_bytes, scales, scale_bytes, of.gamma, rstd, of.rows, of.n,
                                                                    dx, dgamma, of.side, of.side_count, side_x_hat, workspace, bytes)
                                    : outgrad_layernorm_backward_8bit(format, store, dy, codes, code_bytes, scales, scale_bytes, of.gamma, of.beta, rstd,
                                                                      of.rows, of.n, dx, dgamma, dbeta, of.side, of.side_count, side_x_hat, workspace, bytes));
  }

  void dropout(outgrad_format format, const void* x, void* y, std::int64_t n, const std::uint64_t* seed, double p) const {
    const auto of = [&]<class T>(T) { kernels::dropout(static_cast<const T*>(x), static_cast<T*>(y), n, *seed, p); };
    if (format == OUTGRAD_F32) return of(float{});
    format == OUTGRAD_F16 ? of(kernels::F16{}) : of(kernels::BF16{});
  }

 private:
  static void require(outgrad_status status) {
    if (status != OUTGRAD_OK) refuse(said());
  }
  // Of a gamma without a finite reciprocal it also says what to do.
  static void require_backward_of_norm(outgrad_status status) {
    if (status != OUTGRAD_OK && said().find("has no finite reciprocal") != std::string_view::npos) {
      refuse(said(), ": side_channels=outgrad.side_channels(weight, bias, x.dtype) names all such channels");
    }
    require(status);
  }
  // The library's message without the names of C functions before it, since the caller has called none of them.
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
