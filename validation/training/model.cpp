// Forward and backward of the transformer of model.h.
#include "validation/training/model.h"

#define EIGEN_DONT_PARALLELIZE
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false alarms in g++ 12's own AVX-512 header (GCC bug 105593)
#endif
#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "kernels/host/api.h"
#include "kernels/support/random.h"
#include "validation/norms/stability.h"

namespace outgrad::validation {

using kernels::i32;
using kernels::i64;
using kernels::u32;

namespace {

constexpr float kNormEps = 1e-5f;  // PyTorch's default

// --- Formats ---------------------------------------------------------------------------------------------------------------------

template <class T>
constexpr bool kReference = std::is_same_v<T, double>;
template <class T>
constexpr bool kNarrow = sizeof(T) == 2;

double widened(double v) { return v; }
template <class T>
float widened(T v) {
  return kernels::widen(v);
}

template <class T, class Scalar>
T narrowed(Scalar v) {
  if constexpr (kReference<T>) {
    return v;
  } else {
    return kernels::narrow<T>(static_cast<float>(v));
  }
}

template <class T>
FloatFormat float_format() {
  static_assert(!kReference<T>);
  return std::is_same_v<T, float> ? kF32 : std::is_same_v<T, kernels::F16> ? kF16 : kBf16;
}

/// Values rounded to T, in place.
template <class T, class Scalar>
void round_to(Scalar* values, i64 n) {
  if constexpr (kNarrow<T>) {
    for (i64 i = 0; i < n; ++i) values[i] = kernels::widen(kernels::narrow<T>(values[i]));
  }
}

template <class T, class Scalar>
void narrow_all(const Scalar* from, T* to, i64 n) {
  for (i64 i = 0; i < n; ++i) to[i] = narrowed<T>(from[i]);
}

template <class T, class Scalar>
void widen_all(const T* from, Scalar* to, i64 n) {
  for (i64 i = 0; i < n; ++i) to[i] = widened(from[i]);
}

// --- Products --------------------------------------------------------------------------------------------------------------------

template <class Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using View = Eigen::Map<Matrix<Scalar>, 0, Eigen::OuterStride<>>;
template <class Scalar>
using ConstView = Eigen::Map<const Matrix<Scalar>, 0, Eigen::OuterStride<>>;

template <class Scalar>
ConstView<Scalar> read(const Scalar* data, i64 rows, i64 columns, i64 stride = 0) {
  return {data, rows, columns, Eigen::OuterStride<>(stride == 0 ? columns : stride)};
}
template <class Scalar>
View<Scalar> write(Scalar* data, i64 rows, i64 columns, i64 stride = 0) {
  return {data, rows, columns, Eigen::OuterStride<>(stride == 0 ? columns : stride)};
}

/// The blocks that Eigen cuts products into follow the caches, and the order of sums follows the blocks: the same caches on every machine.
void fix_blocking() {
  static const bool done = [] {
    constexpr std::ptrdiff_t kFirst = 32 << 10, kSecond = 512 << 10, kThird = 8 << 20;
    Eigen::setCpuCacheSizes(kFirst, kSecond, kThird);
    return true;
  }();
  static_cast<void>(done);
}

template <class Scalar>
void add_row(Scalar* values, const Scalar* row, i64 rows, i64 columns) {
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < columns; ++j) values[i * columns + j] += row[j];
  }
}

/// sums[j] = the sum over rows, from the first to the last.
template <class Scalar>
void sum_rows(const Scalar* values, i64 rows, i64 columns, Scalar* sums) {
  std::fill_n(sums, columns, Scalar{});
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < columns; ++j) sums[j] += values[i * columns + j];
  }
}

/// y = x w + b.
template <class Scalar>
void linear(const Scalar* x, const Scalar* w, const Scalar* b, i64 rows, i64 in, i64 out, Scalar* y) {
  write(y, rows, out).noalias() = read(x, rows, in) * read(w, in, out);
  if (b != nullptr) add_row(y, b, rows, out);
}

/// dx = dy w^T, dw = x^T dy, db = the sum of dy over rows.
template <class Scalar>
void linear_backward(const Scalar* dy, const Scalar* x, const Scalar* w, i64 rows, i64 in, i64 out, Scalar* dx, Scalar* dw, Scalar* db) {
  write(dx, rows, in).noalias() = read(dy, rows, out) * read(w, in, out).transpose();
  write(dw, in, out).noalias() = read(x, rows, in).transpose() * read(dy, rows, out);
  if (db != nullptr) sum_rows(dy, rows, out, db);
}

/// row[0 .. n) = softmax of itself.
template <class Scalar>
void softmax(Scalar* row, i64 n) {
  const Scalar most = *std::max_element(row, row + n);
  Scalar sum = 0;
  for (i64 j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - most);
  for (i64 j = 0; j < n; ++j) row[j] /= sum;
}

// --- GELU and LayerNorm by formula -----------------------------------------------------------------------------------------------

/// mean and rstd of a row from its input.
template <class Real, class T>
std::pair<Real, Real> moments(const T* x, i64 n) {
  Real sum = 0;
  for (i64 j = 0; j < n; ++j) sum += static_cast<Real>(widened(x[j]));
  const Real mean = sum / static_cast<Real>(n);
  Real squares = 0;
  for (i64 j = 0; j < n; ++j) {
    const Real d = static_cast<Real>(widened(x[j])) - mean;
    squares += d * d;
  }
  return {mean, 1 / std::sqrt(squares / static_cast<Real>(n) + static_cast<Real>(kNormEps))};
}

/// LayerNorm's gradient from its input, the formulas of kernels/layernorm.h in Real.
template <class Real, class T, class Scalar>
void norm_backward_from_input(const T* dy, const T* x, const Scalar* gamma, i64 rows, i64 n, T* dx, Scalar* dgamma, Scalar* dbeta) {
  std::vector<Real> sum_gamma(static_cast<std::size_t>(n)), sum_beta(static_cast<std::size_t>(n)), x_hat(static_cast<std::size_t>(n));
  for (i64 i = 0; i < rows; ++i, dy += n, x += n, dx += n) {
    const auto [mean, rstd] = moments<Real>(x, n);
    Real m1 = 0, m2 = 0;
    for (i64 j = 0; j < n; ++j) {
      const auto column = static_cast<std::size_t>(j);
      const Real d = static_cast<Real>(widened(dy[j])), a = d * static_cast<Real>(gamma[j]);
      x_hat[column] = (static_cast<Real>(widened(x[j])) - mean) * rstd;
      m1 += a;
      m2 += a * x_hat[column];
      sum_gamma[column] += d * x_hat[column];
      sum_beta[column] += d;
    }
    m1 /= static_cast<Real>(n);
    m2 /= static_cast<Real>(n);
    for (i64 j = 0; j < n; ++j) {
      const Real a = static_cast<Real>(widened(dy[j])) * static_cast<Real>(gamma[j]);
      dx[j] = narrowed<T>(rstd * (a - m1 - x_hat[static_cast<std::size_t>(j)] * m2));
    }
  }
  std::transform(sum_gamma.begin(), sum_gamma.end(), dgamma, [](Real v) { return static_cast<Scalar>(v); });
  std::transform(sum_beta.begin(), sum_beta.end(), dbeta, [](Real v) { return static_cast<Scalar>(v); });
}

}  // namespace

double gelu_derivative(double x) {
  if (!std::isfinite(x)) return x > 0 ? 1.0 : x < 0 ? 0.0 : x;
  constexpr double kDensity = 0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 1 / sqrt(2 pi)
  return 0.5 * std::erfc(-x * (0.5 * std::numbers::sqrt2)) + x * std::exp(-0.5 * x * x) * kDensity;
}

// --- Parameters ------------------------------------------------------------------------------------------------------------------

std::vector<ParameterTensor> parameter_tensors(const ModelShape& shape) {
  std::vector<ParameterTensor> tensors;
  i64 offset = 0;
  const auto add = [&](std::string name, i64 rows, i64 columns, double value, double within, double spread) {
    tensors.push_back({std::move(name), offset, rows, columns, value, within, spread});
    offset += rows * columns;
  };
  const auto add_norm = [&](const std::string& name) {
    add(name + ".gamma", 1, shape.width, 1, 0, 0);
    add(name + ".beta", 1, shape.width, 0, 0, 0);
  };
  const auto add_linear = [&](const std::string& name, i64 in, i64 out) {
    const double within = 1 / std::sqrt(static_cast<double>(in));
    add(name + ".weight", in, out, 0, within, 0);
    add(name + ".bias", 1, out, 0, within, 0);
  };
  add("token", shape.vocabulary, shape.width, 0, 0, 1);
  add("position", shape.context, shape.width, 0, 0, 1);
  for (i64 k = 0; k < shape.layers; ++k) {
    const std::string block = "block" + std::to_string(k);
    add_norm(block + ".norm1");
    add_linear(block + ".qkv", shape.width, 3 * shape.width);
    add_linear(block + ".out", shape.width, shape.width);
    add_norm(block + ".norm2");
    add_linear(block + ".up", shape.width, shape.hidden);
    add_linear(block + ".down", shape.hidden, shape.width);
  }
  add_norm("norm");
  add_linear("head", shape.width, shape.vocabulary);
  return tensors;
}

i64 parameter_count(const ModelShape& shape) {
  const ParameterTensor last = parameter_tensors(shape).back();
  return last.offset + last.rows * last.columns;
}

std::vector<float> initial_parameters(const ModelShape& shape, std::uint64_t seed) {
  kernels::Random random(seed);
  std::vector<float> parameters;
  for (const ParameterTensor& tensor : parameter_tensors(shape)) {
    for (i64 i = 0; i < tensor.rows * tensor.columns; ++i) {
      double value = tensor.value;
      if (tensor.within > 0) value += tensor.within * (2 * random.uniform() - 1);
      if (tensor.spread > 0) value += tensor.spread * random.normal();
      parameters.push_back(static_cast<float>(value));
    }
  }
  return parameters;
}

// --- Ways ------------------------------------------------------------------------------------------------------------------------

template <class T>
PreparedWay<T>::PreparedWay(const GradientWay& way) : way_(way) {
  if constexpr (!kReference<T>) {
    if (way.gelu == GradientSource::foreign) foreign_ = make_subject(*way.foreign, float_format<T>());
    if constexpr (kNarrow<T>) {
      if (way.gelu == GradientSource::output) return;
      // y and the mask follow from x, and so does every derivative.
      constexpr i64 kCodes = 1 << 16;
      std::vector<T> x(kCodes), y(kCodes);
      std::vector<u32> mask(kCodes / 32);
      for (i64 code = 0; code < kCodes; ++code) x[static_cast<std::size_t>(code)].bits = static_cast<kernels::u16>(code);
      kernels::gelu_forward<T>(x.data(), y.data(), mask.data(), kCodes);
      std::vector<double> g(kCodes);
      derivatives(x.data(), y.data(), g.data(), kCodes);
      by_code_ = std::move(g);
    }
  }
}

template <class T>
void PreparedWay<T>::derivatives(const T* x, const T* y, double* g, i64 n) const {
  if constexpr (kReference<T>) {
    std::transform(x, x + n, g, gelu_derivative);
  } else {
    if (!by_code_.empty()) {
      if constexpr (kNarrow<T>) std::transform(x, x + n, g, [this](T v) { return by_code_[v.bits]; });
      return;
    }
    constexpr i64 kBlock = 1024;
    std::array<float, kBlock> wide, stored, derivative;
    std::array<u32, kBlock / 32> mask;
    for (i64 begin = 0; begin < n; begin += kBlock) {
      const i64 count = std::min(kBlock, n - begin);
      widen_all(x + begin, wide.data(), count);
      if (way_.gelu == GradientSource::exact) {
        std::transform(wide.begin(), wide.begin() + count, g + begin, [](float v) { return gelu_derivative(static_cast<double>(v)); });
        continue;
      }
      if (way_.gelu == GradientSource::input_f32) {
        std::transform(wide.begin(), wide.begin() + count, derivative.begin(), gelu_slope_by_erff);
      } else {
        if (foreign_.code) {
          foreign_.forward(wide.data(), stored.data(), mask.data(), count);
        } else {
          mask.fill(0);
          for (i64 i = 0; i < count; ++i) {
            mask[static_cast<std::size_t>(i / 32)] |= static_cast<u32>(wide[static_cast<std::size_t>(i)] >= foreign_.mask_from) << (i % 32);
          }
          widen_all(y + begin, stored.data(), count);
        }
        foreign_.derivative(stored.data(), mask.data(), derivative.data(), count);
      }
      std::transform(derivative.begin(), derivative.begin() + count, g + begin, [](float v) { return static_cast<double>(v); });
    }
  }
}

template <class T>
void PreparedWay<T>::gelu(const T* dy, const T* x, const T* y, const u32* mask, T* dx, i64 n) const {
  if constexpr (!kReference<T>) {
    if (way_.gelu == GradientSource::output) return kernels::gelu_backward<T>(dy, y, mask, dx, n);
  }
  constexpr i64 kBlock = 1024;
  std::array<double, kBlock> g;
  for (i64 begin = 0; begin < n; begin += kBlock) {
    const i64 count = std::min(kBlock, n - begin);
    derivatives(x + begin, y + begin, g.data(), count);
    // A product of fp32 numbers is exact in double: where g is one, this is RN_f32(dy g).
    for (i64 i = 0; i < count; ++i) dx[begin + i] = narrowed<T>(static_cast<double>(widened(dy[begin + i])) * g[static_cast<std::size_t>(i)]);
  }
}

// --- The model -------------------------------------------------------------------------------------------------------------------

namespace {

/// Of one LayerNorm what the forward pass keeps, and its gradient in every way.
template <class T, class Scalar>
class NormLayerOf {
 public:
  NormLayerOf(i64 rows, i64 n, i64 gamma, i64 beta)
      : x_(rows * n), y_(rows * n), dy_(rows * n), dx_(rows * n), rstd_(rows), workspace_(kernels::norm_backward_workspace(rows, n)), rows_(rows), n_(n),
        gamma_(gamma), beta_(beta) {}

  void forward(const Scalar* parameters, const Scalar* x, Scalar* y) {
    narrow_all(x, x_.data(), rows_ * n_);
    if constexpr (kReference<T>) {
      for (i64 i = 0; i < rows_; ++i) {
        const auto [mean, rstd] = moments<double>(x + i * n_, n_);
        for (i64 j = 0; j < n_; ++j) y[i * n_ + j] = (x[i * n_ + j] - mean) * rstd * parameters[gamma_ + j] + parameters[beta_ + j];
      }
    } else {
      StabilityOptions options;
      options.norm = kernels::Norm::layer;
      options.format = storage_format(kernels::Format<T>::kName);
      options.eps = kNormEps;
      const std::vector<float> gamma(parameters + gamma_, parameters + gamma_ + n_), beta(parameters + beta_, parameters + beta_ + n_);
      // A diverged run has no channel worth analysing; its loss will say so.
      const auto finite = [](float v) { return std::isfinite(v); };
      channels_.clear();
      if (std::all_of(gamma.begin(), gamma.end(), finite) && std::all_of(beta.begin(), beta.end(), finite)) {
        for (const std::size_t channel : side_channels(gamma, beta, options)) channels_.push_back(static_cast<i32>(channel));
      }
      side_.resize(static_cast<std::size_t>(rows_) * channels_.size());
      kernels::layernorm_forward<T>(x_.data(), gamma.data(), beta.data(), rows_, n_, kNormEps, y_.data(), rstd_.data(),
                                    {channels_.data(), static_cast<i64>(channels_.size()), side_.data()});
      widen_all(y_.data(), y, rows_ * n_);
    }
  }

  /// dx += the gradient, rounded to T as it is, and again in the sum.
  void backward(const Scalar* parameters, const PreparedWay<T>& way, const Scalar* dy, Scalar* dx, Scalar* gradient) {
    const Scalar* const gamma = parameters + gamma_;
    Scalar *const dgamma = gradient + gamma_, *const dbeta = gradient + beta_;
    narrow_all(dy, dy_.data(), rows_ * n_);
    if constexpr (kReference<T>) {
      norm_backward_from_input<double>(dy_.data(), x_.data(), gamma, rows_, n_, dx_.data(), dgamma, dbeta);
    } else if (way.way().norm == GradientSource::output) {
      kernels::layernorm_backward<T>(dy_.data(), y_.data(), gamma, parameters + beta_, rstd_.data(), rows_, n_, dx_.data(), dgamma, dbeta,
                                     {channels_.data(), static_cast<i64>(channels_.size()), side_.data()},
                                     {workspace_.data(), static_cast<std::size_t>(workspace_.size())});
    } else if (way.way().norm == GradientSource::input_f32) {
      norm_backward_from_input<float>(dy_.data(), x_.data(), gamma, rows_, n_, dx_.data(), dgamma, dbeta);
    } else {
      norm_backward_from_input<double>(dy_.data(), x_.data(), gamma, rows_, n_, dx_.data(), dgamma, dbeta);
    }
    for (i64 i = 0; i < rows_ * n_; ++i) dx[i] += static_cast<Scalar>(widened(dx_[i]));
    round_to<T>(dx, rows_ * n_);
  }

  i64 side_channels_in_use() const { return static_cast<i64>(channels_.size()); }

 private:
  Buffer<T> x_, y_, dy_, dx_;
  Buffer<float> rstd_, workspace_;
  std::vector<i32> channels_;
  std::vector<float> side_;
  i64 rows_, n_, gamma_, beta_;
};

}  // namespace

template <class T>
struct Model<T>::State {
  using Norm = NormLayerOf<T, Scalar>;

  struct Linear {
    i64 weight, bias;
  };
  struct Block {
    Norm norm1;
    Linear qkv_at, out_at;
    Norm norm2;
    Linear up_at, down_at;
    Buffer<Scalar> normed1, qkv, attention, mixed, normed2, hidden;  // attention [windows, heads, context, context]; hidden is GELU's output
    Buffer<T> x, y;                                                  // of GELU
    Buffer<u32> mask;
  };

  State(const ModelShape& given, i64 window_count) : shape(given), windows(window_count) {}

  // Parameters are named; these find them.
  i64 offset(const std::string& name) const {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const ParameterTensor& t) { return t.name == name; });
    return found->offset;
  }
  Norm norm(const std::string& name) const { return {rows, shape.width, offset(name + ".gamma"), offset(name + ".beta")}; }
  Linear linear_at(const std::string& name) const { return {offset(name + ".weight"), offset(name + ".bias")}; }
  std::vector<Block> make_blocks() const {
    const i64 wide = rows * shape.width, hidden = rows * shape.hidden;
    std::vector<Block> made;
    for (i64 k = 0; k < shape.layers; ++k) {
      const std::string name = "block" + std::to_string(k);
      made.push_back({norm(name + ".norm1"), linear_at(name + ".qkv"), linear_at(name + ".out"), norm(name + ".norm2"), linear_at(name + ".up"),
                      linear_at(name + ".down"), Buffer<Scalar>(wide), Buffer<Scalar>(3 * wide),
                      Buffer<Scalar>(windows * shape.heads * shape.context * shape.context), Buffer<Scalar>(wide), Buffer<Scalar>(wide), Buffer<Scalar>(hidden),
                      Buffer<T>(hidden), Buffer<T>(hidden), Buffer<u32>((hidden + 31) / 32)});
    }
    return made;
  }
  void attend(Block& block);
  void attend_backward(const Block& block, const Scalar* dmixed, Scalar* dqkv);

  ModelShape shape;
  i64 windows, rows = windows * shape.context;
  std::vector<ParameterTensor> tensors = parameter_tensors(shape);
  std::vector<Block> blocks = make_blocks();
  Norm final_norm = norm("norm");
  Buffer<Scalar> stream{rows * shape.width}, normed{rows * shape.width};
  Buffer<Scalar> logits{rows * shape.vocabulary};  // their softmax, once the loss is known
  Buffer<Scalar> dlogits{rows * shape.vocabulary}, dstream{rows * shape.width}, dnarrow{rows * shape.width};
  Buffer<Scalar> dwide{rows * std::max(shape.hidden, 3 * shape.width)}, dscores{shape.context * shape.context};
  Buffer<T> dx{rows * shape.hidden}, dy{rows * shape.hidden};
  std::vector<std::uint8_t> tokens, targets;
};

template <class T>
Model<T>::Model(const ModelShape& shape, i64 windows) : state_(std::make_unique<State>(shape, windows)) {
  fix_blocking();
}
template <class T>
Model<T>::~Model() = default;

template <class T>
void Model<T>::State::attend(Block& block) {
  const i64 context = shape.context, width = shape.width, depth = width / shape.heads;
  const Scalar scale = 1 / std::sqrt(static_cast<Scalar>(depth));
  for (i64 window = 0; window < windows; ++window) {
    for (i64 head = 0; head < shape.heads; ++head) {
      const Scalar* const q = block.qkv.data() + window * context * 3 * width + head * depth;
      Scalar* const p = block.attention.data() + (window * shape.heads + head) * context * context;
      write(p, context, context).noalias() = read(q, context, depth, 3 * width) * read(q + width, context, depth, 3 * width).transpose();
      for (i64 i = 0; i < context; ++i) {
        Scalar* const row = p + i * context;
        for (i64 j = 0; j <= i; ++j) row[j] *= scale;
        softmax(row, i + 1);
        std::fill(row + i + 1, row + context, Scalar{});
      }
      round_to<T>(p, context * context);
      write(block.mixed.data() + window * context * width + head * depth, context, depth, width).noalias() =
          read(static_cast<const Scalar*>(p), context, context) * read(q + 2 * width, context, depth, 3 * width);
    }
  }
  round_to<T>(block.mixed.data(), rows * width);
}

template <class T>
void Model<T>::State::attend_backward(const Block& block, const Scalar* dmixed, Scalar* dqkv) {
  const i64 context = shape.context, width = shape.width, depth = width / shape.heads, stride = 3 * width;
  const Scalar scale = 1 / std::sqrt(static_cast<Scalar>(depth));
  for (i64 window = 0; window < windows; ++window) {
    for (i64 head = 0; head < shape.heads; ++head) {
      const i64 at = window * context * stride + head * depth;
      const Scalar* const q = block.qkv.data() + at;
      Scalar* const dq = dqkv + at;
      const Scalar* const p = block.attention.data() + (window * shape.heads + head) * context * context;
      const auto dout = read(dmixed + window * context * width + head * depth, context, depth, width);
      write(dscores.data(), context, context).noalias() = dout * read(q + 2 * width, context, depth, stride).transpose();
      write(dq + 2 * width, context, depth, stride).noalias() = read(p, context, context).transpose() * dout;
      for (i64 i = 0; i < context; ++i) {
        Scalar* const row = dscores.data() + i * context;
        const Scalar* const share = p + i * context;
        Scalar sum = 0;
        for (i64 j = 0; j <= i; ++j) sum += share[j] * row[j];
        for (i64 j = 0; j < context; ++j) row[j] = j <= i ? share[j] * (row[j] - sum) * scale : Scalar{};
      }
      round_to<T>(dscores.data(), context * context);
      const auto scores = read(static_cast<const Scalar*>(dscores.data()), context, context);
      write(dq, context, depth, stride).noalias() = scores * read(q + width, context, depth, stride);
      write(dq + width, context, depth, stride).noalias() = scores.transpose() * read(q, context, depth, stride);
    }
  }
  round_to<T>(dqkv, rows * stride);
}

template <class T>
double Model<T>::forward(const Scalar* parameters, std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets) {
  State& s = *state_;
  const ModelShape& shape = s.shape;
  const i64 rows = s.rows, width = shape.width, hidden = shape.hidden, vocabulary = shape.vocabulary;
  s.tokens.assign(tokens.begin(), tokens.end());
  s.targets.assign(targets.begin(), targets.end());
  const Scalar *const token = parameters + s.offset("token"), *const position = parameters + s.offset("position");
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < width; ++j) {
      s.stream[i * width + j] = token[s.tokens[static_cast<std::size_t>(i)] * width + j] + position[i % shape.context * width + j];
    }
  }
  round_to<T>(s.stream.data(), rows * width);
  const auto add_to_stream = [&](const Scalar* branch) {
    for (i64 i = 0; i < rows * width; ++i) s.stream[i] += branch[i];
    round_to<T>(s.stream.data(), rows * width);
  };
  for (auto& block : s.blocks) {
    block.norm1.forward(parameters, s.stream.data(), block.normed1.data());
    linear(block.normed1.data(), parameters + block.qkv_at.weight, parameters + block.qkv_at.bias, rows, width, 3 * width, block.qkv.data());
    round_to<T>(block.qkv.data(), rows * 3 * width);
    s.attend(block);
    linear(block.mixed.data(), parameters + block.out_at.weight, parameters + block.out_at.bias, rows, width, width, s.normed.data());
    round_to<T>(s.normed.data(), rows * width);
    add_to_stream(s.normed.data());

    block.norm2.forward(parameters, s.stream.data(), block.normed2.data());
    linear(block.normed2.data(), parameters + block.up_at.weight, parameters + block.up_at.bias, rows, width, hidden, block.hidden.data());
    narrow_all(block.hidden.data(), block.x.data(), rows * hidden);
    if constexpr (kReference<T>) {
      std::transform(block.x.begin(), block.x.end(), block.y.begin(), [](double x) { return 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2); });
    } else {
      kernels::gelu_forward<T>(block.x.data(), block.y.data(), block.mask.data(), rows * hidden);
    }
    widen_all(block.y.data(), block.hidden.data(), rows * hidden);
    linear(block.hidden.data(), parameters + block.down_at.weight, parameters + block.down_at.bias, rows, hidden, width, s.normed.data());
    round_to<T>(s.normed.data(), rows * width);
    add_to_stream(s.normed.data());
  }
  s.final_norm.forward(parameters, s.stream.data(), s.normed.data());
  const auto head = s.linear_at("head");
  linear(s.normed.data(), parameters + head.weight, parameters + head.bias, rows, width, vocabulary, s.logits.data());
  double loss = 0;
  for (i64 i = 0; i < rows; ++i) {
    Scalar* const row = s.logits.data() + i * vocabulary;
    const Scalar target = row[s.targets[static_cast<std::size_t>(i)]], most = *std::max_element(row, row + vocabulary);
    double sum = 0;
    for (i64 j = 0; j < vocabulary; ++j) sum += std::exp(static_cast<double>(row[j] - most));
    loss += std::log(sum) - static_cast<double>(target - most);
    softmax(row, vocabulary);
  }
  return loss / static_cast<double>(rows);
}

template <class T>
void Model<T>::backward(const Scalar* parameters, const PreparedWay<T>& way, Scalar* gradient) {
  State& s = *state_;
  const ModelShape& shape = s.shape;
  const i64 rows = s.rows, width = shape.width, hidden = shape.hidden, vocabulary = shape.vocabulary;
  const i64 parameters_in_all = parameter_count(shape);
  std::fill_n(gradient, parameters_in_all, Scalar{});
  const auto through = [&](const Scalar* dy, const Scalar* x, const typename State::Linear& at, i64 in, i64 out, Scalar* dx) {
    linear_backward(dy, x, parameters + at.weight, rows, in, out, dx, gradient + at.weight, gradient + at.bias);
    round_to<T>(dx, rows * in);
  };

  // d(sum of the losses) / d(logits) = softmax - [target].
  std::copy(s.logits.begin(), s.logits.end(), s.dlogits.begin());
  for (i64 i = 0; i < rows; ++i) s.dlogits[i * vocabulary + s.targets[static_cast<std::size_t>(i)]] -= 1;
  through(s.dlogits.data(), s.normed.data(), s.linear_at("head"), width, vocabulary, s.dnarrow.data());
  s.dstream.clear();
  s.final_norm.backward(parameters, way, s.dnarrow.data(), s.dstream.data(), gradient);
  for (auto block = s.blocks.rbegin(); block != s.blocks.rend(); ++block) {
    through(s.dstream.data(), block->hidden.data(), block->down_at, hidden, width, s.dwide.data());
    narrow_all(s.dwide.data(), s.dy.data(), rows * hidden);
    way.gelu(s.dy.data(), block->x.data(), block->y.data(), block->mask.data(), s.dx.data(), rows * hidden);
    widen_all(s.dx.data(), s.dwide.data(), rows * hidden);
    through(s.dwide.data(), block->normed2.data(), block->up_at, width, hidden, s.dnarrow.data());
    block->norm2.backward(parameters, way, s.dnarrow.data(), s.dstream.data(), gradient);

    through(s.dstream.data(), block->mixed.data(), block->out_at, width, width, s.dnarrow.data());
    s.attend_backward(*block, s.dnarrow.data(), s.dwide.data());
    through(s.dwide.data(), block->normed1.data(), block->qkv_at, width, 3 * width, s.dnarrow.data());
    block->norm1.backward(parameters, way, s.dnarrow.data(), s.dstream.data(), gradient);
  }
  Scalar *const dtoken = gradient + s.offset("token"), *const dposition = gradient + s.offset("position");
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < width; ++j) {
      dtoken[s.tokens[static_cast<std::size_t>(i)] * width + j] += s.dstream[i * width + j];
      dposition[i % shape.context * width + j] += s.dstream[i * width + j];
    }
  }
  std::for_each(gradient, gradient + parameters_in_all, [rows](Scalar& g) { g /= static_cast<Scalar>(rows); });
}

template <class T>
typename Model<T>::GeluTensors Model<T>::gelu(i64 layer) const {
  const auto& block = state_->blocks[static_cast<std::size_t>(layer)];
  return {{block.x.begin(), block.x.end()}, {block.y.begin(), block.y.end()}, block.mask.data()};
}

template <class T>
i64 Model<T>::side_channels() const {
  i64 count = state_->final_norm.side_channels_in_use();
  for (const auto& block : state_->blocks) count += block.norm1.side_channels_in_use() + block.norm2.side_channels_in_use();
  return count;
}

template class PreparedWay<double>;
template class PreparedWay<float>;
template class PreparedWay<kernels::F16>;
template class PreparedWay<kernels::BF16>;
template class Model<double>;
template class Model<float>;
template class Model<kernels::F16>;
template class Model<kernels::BF16>;

}  // namespace outgrad::validation
