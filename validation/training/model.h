// A small transformer with a backward pass written out by hand, in which the gradients of GELU and LayerNorm can be had in several ways.
//
// A decoder: token and position embeddings; blocks x += attention(LayerNorm(x)), x += down(GELU(up(LayerNorm(x)))), causal softmax attention; a last
// LayerNorm, a linear layer to the vocabulary, cross-entropy. Parameters are one array, tensor after tensor.
//
// T is the format of activations: float, F16 or BF16. Every tensor that one layer hands to another is rounded to T, forwards and backwards; sums
// (matrix products, softmax, loss) and parameters are fp32. Going back the loss is the sum over the tokens, the gradients of the parameters are
// divided by their number at the end: that keeps the gradients of activations in f16's range. GELU and LayerNorm are the public host kernels, in
// every way the same forward. With T = double all is double and nothing is rounded: the reference for tests, GELU and LayerNorm by their formulas.
//
// Bits. A model runs in one thread, in the order of its statements. Products are Eigen's, in one thread, blocked for fixed cache sizes, of buffers
// that start on a cache line, so that the order of their sums depends on the shapes and on the vector width compiled for alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/formats.h"
#include "validation/sweep/foreign.h"

namespace outgrad::validation {

struct ModelShape {
  kernels::i64 vocabulary = 32, context = 64, width = 64, heads = 4, layers = 2, hidden = 256;
};

/// Where a tensor lies among the parameters, [rows, columns] row-major, and what it starts as: `value`, plus a uniform number within +-`within`,
/// plus a normal one of standard deviation `spread`.
struct ParameterTensor {
  std::string name;
  kernels::i64 offset, rows, columns;
  double value, within, spread;
};
std::vector<ParameterTensor> parameter_tensors(const ModelShape& shape);
kernels::i64 parameter_count(const ModelShape& shape);

/// PyTorch's defaults: weights and biases of linear layers uniform within 1 / sqrt(fan_in), embeddings N(0, 1), gamma = 1, beta = 0.
std::vector<float> initial_parameters(const ModelShape& shape, std::uint64_t seed);

/// n zeros that start on a cache line.
template <class Scalar>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(kernels::i64 n)
      : size_(static_cast<std::size_t>(n)), data_(static_cast<Scalar*>(::operator new(size_ * sizeof(Scalar) + kLine, std::align_val_t{kLine}))) {
    clear();
  }
  void clear() {
    for (Scalar& value : *this) value = Scalar{};
  }
  Scalar* data() { return data_.get(); }
  const Scalar* data() const { return data_.get(); }
  kernels::i64 size() const { return static_cast<kernels::i64>(size_); }
  Scalar* begin() { return data(); }
  Scalar* end() { return data() + size_; }
  const Scalar* begin() const { return data(); }
  const Scalar* end() const { return data() + size_; }
  Scalar& operator[](kernels::i64 i) { return data_.get()[i]; }
  const Scalar& operator[](kernels::i64 i) const { return data_.get()[i]; }

 private:
  static constexpr std::size_t kLine = 64;
  struct Free {
    void operator()(Scalar* data) const { ::operator delete(data, std::align_val_t{kLine}); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<Scalar, Free> data_;
};

/// Where a gradient comes from.
enum class GradientSource {
  exact,      // the stored input, in double: dy f'(x) is rounded to f32, then to T
  input_f32,  // the stored input, in fp32: PyTorch's formulas
  output,     // the stored output: outgrad's kernels, for LayerNorm with the side buffer that `outgrad stability` asks for
  foreign,    // GELU alone: somebody's coefficients
};

struct GradientWay {
  std::string name;
  GradientSource gelu = GradientSource::exact, norm = GradientSource::exact;
  std::shared_ptr<const ForeignFunction> foreign;
};

/// f'(x) of GELU by its formula in double, off by a few roundings of 2^-53 (the tests compare it with MPFR); its limits at the infinities.
double gelu_derivative(double x);

/// Of a way what depends on the format, shared by the threads that use it.
template <class T>
class PreparedWay {
 public:
  explicit PreparedWay(const GradientWay& way);
  const GradientWay& way() const { return way_; }
  /// dx[i] = dy[i] GELU'(x[i]) of this way, from what gelu_forward gave.
  void gelu(const T* dy, const T* x, const T* y, const kernels::u32* mask, T* dx, kernels::i64 n) const;

 private:
  void derivatives(const T* x, const T* y, double* g, kernels::i64 n) const;

  GradientWay way_;
  Subject foreign_;              // of `foreign`
  std::vector<double> by_code_;  // of a 16-bit T: the derivative for every x
};

template <class T>
class Model {
 public:
  using Scalar = std::conditional_t<std::is_same_v<T, double>, double, float>;

  /// For `windows` windows of shape.context tokens at a time.
  Model(const ModelShape& shape, kernels::i64 windows);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// The mean cross-entropy of `targets`, in nats; tokens and targets are [windows, context]. Keeps what backward() needs.
  double forward(const Scalar* parameters, std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets);
  /// The gradient of that mean, of the last forward(), with the same parameters. May be called again, in another way.
  void backward(const Scalar* parameters, const PreparedWay<T>& way, Scalar* gradient);

  /// What the GELU of a layer was given, and gave, in the last forward(): [windows * context, hidden].
  struct GeluTensors {
    std::span<const T> x, y;
    const kernels::u32* mask;
  };
  GeluTensors gelu(kernels::i64 layer) const;
  /// Channels of all norms together that the last forward() kept in the side buffer.
  kernels::i64 side_channels() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

extern template class PreparedWay<double>;
extern template class PreparedWay<float>;
extern template class PreparedWay<kernels::F16>;
extern template class PreparedWay<kernels::BF16>;
extern template class Model<double>;
extern template class Model<float>;
extern template class Model<kernels::F16>;
extern template class Model<kernels::BF16>;

}  // namespace outgrad::validation
