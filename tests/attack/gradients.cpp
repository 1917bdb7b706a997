// The three computations of gradients.h.
#include "tests/attack/gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/c/outgrad.h"
#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "kernels/norm_store.h"
#include "tests/attack/kept_output.h"
#include "validation/norms/stability.h"

namespace outgrad::validation {

using kernels::BF16;
using kernels::F16;
using kernels::i32;
using kernels::i64;
using kernels::narrow;
using kernels::Norm;
using kernels::SpecError;
using kernels::widen;

static_assert(std::numeric_limits<long double>::digits >= 64, "the reference's error bound assumes 64 bits");

namespace {

template <class T>
constexpr outgrad_format kFormat = std::is_same_v<T, float> ? OUTGRAD_F32
                                   : std::is_same_v<T, F16> ? OUTGRAD_F16
                                                            : OUTGRAD_BF16;
template <class Store>
constexpr outgrad_store kStore = std::is_same_v<Store, kernels::NormE4m3>    ? OUTGRAD_STORE_E4M3
                                 : std::is_same_v<Store, kernels::NormMxFp8> ? OUTGRAD_STORE_MXFP8
                                                                             : OUTGRAD_STORE_INT8;

// The library's refusals are those of the layer's parameters.
void require(outgrad_status status) {
  if (status != OUTGRAD_OK) throw SpecError("norm kernels", "layer", outgrad_error_message());
}

float beta_of(const NormLayer& layer, size_t j) { return layer.beta.empty() ? 0.0f : layer.beta[j]; }

template <class T>
class NormKernelsOf : public NormKernels {
 public:
  explicit NormKernelsOf(const NormLayer& layer) : layer_(layer) {
    const size_t n = static_cast<size_t>(layer.n), size = static_cast<size_t>(layer.rows) * n;
    for (std::vector<T>* values : {&x_, &dy_, &y_, &dx_}) values->resize(size);
    outgrad_call sizes = call();
    require(outgrad_norm_sizes(&sizes));
    workspace_.resize(sizes.workspace_bytes / sizeof(float));
    side_.resize(static_cast<size_t>(layer.rows) * layer.side.size());
    place_.assign(n, -1);
    for (size_t k = 0; k < layer.side.size(); ++k)
      place_[static_cast<size_t>(layer.side[k])] = static_cast<int>(k);
  }

  void run(const NormBatch& batch, const NormTamper* tamper, NormGradients& result) override {
    const size_t n = static_cast<size_t>(layer_.n), rows = static_cast<size_t>(layer_.rows);
    std::ranges::transform(batch.x, x_.begin(), narrow<T>);
    std::ranges::transform(batch.dy, dy_.begin(), narrow<T>);
    result.rstd.resize(rows);
    result.dgamma.resize(n);
    result.dbeta.resize(n);
    result.dx.resize(rows * n);
    result.x_hat.resize(rows * n);
    forward(result);
    if (tamper) tamper->after_forward(layer_, batch, result.rstd);
    backward(result);
    for (size_t e = 0; e < rows * n; ++e) {
      const size_t j = e % n;
      result.dx[e] = widen(dx_[e]);
      result.x_hat[e] = place_[j] >= 0 ? side_[e / n * layer_.side.size() + static_cast<size_t>(place_[j])]
                                       : kernels::mul_rn(kernels::sub_rn(widen(y_[e]), beta_of(layer_, j)),
                                                         kernels::div_rn(1.0f, layer_.gamma[j]));
    }
    if (tamper) tamper->after_backward(layer_, batch, result);
  }

  float read_as(float y, size_t, size_t) const override { return rounded(static_cast<double>(y)); }

  float rounded(double x) const override { return bounded(widen(narrow<T>(static_cast<float>(x)))); }

  float stepped(float x, int steps) const override {
    using Bits = typename kernels::Format<T>::Bits;
    constexpr i64 kSign = i64{1} << (8 * sizeof(Bits) - 1);
    const auto order = [](T value) {
      const i64 bits = std::bit_cast<Bits>(value);
      return bits >= kSign ? kSign - bits : bits;
    };
    const i64 last = order(narrow<T>(largest()));
    const i64 moved = std::clamp(order(narrow<T>(x)) + steps, -last, last);
    return widen(std::bit_cast<T>(static_cast<Bits>(moved < 0 ? kSign - moved : moved)));
  }

 protected:
  // Sets y_, rstd and x^ of side channels from x_.
  virtual void forward(NormGradients& result) { run_forward(call(), result); }

  // Sets dx_, dgamma and dbeta from dy_ and what was kept, and y_ to what was read of it.
  virtual void backward(NormGradients& result) { run_backward(call(), result); }

  // The arguments that forward and backward share.
  outgrad_call call() {
    outgrad_call call{};
    call.size = sizeof call;
    call.format = kFormat<T>;
    call.rows = layer_.rows;
    call.n = layer_.n;
    call.eps = layer_.eps;
    call.gamma = layer_.gamma.data();
    call.beta = layer_.beta.data();
    call.y = y_.data();
    call.side_channels = layer_.side.data();
    call.side_count = static_cast<i64>(layer_.side.size());
    call.side_x_hat = side_.data();
    return call;
  }
  void run_forward(outgrad_call call, NormGradients& result) {
    call.x = x_.data();
    call.rstd = result.rstd.data();
    require(centred() ? outgrad_layernorm_forward(&call) : outgrad_rmsnorm_forward(&call));
  }
  void run_backward(outgrad_call call, NormGradients& result) {
    call.dy = dy_.data();
    call.rstd = result.rstd.data();
    call.dx = dx_.data();
    call.dgamma = result.dgamma.data();
    call.dbeta = result.dbeta.data();
    call.workspace = workspace_.data();
    call.workspace_bytes = workspace_.size() * sizeof(float);
    require(centred() ? outgrad_layernorm_backward(&call) : outgrad_rmsnorm_backward(&call));
  }

  const NormLayer& layer_;
  std::vector<T> x_, dy_, y_, dx_;
  std::vector<float> side_, workspace_;

 private:
  bool centred() const { return layer_.norm == Norm::layer; }

  static float largest() {
    if constexpr (std::is_same_v<T, float>) return std::numeric_limits<float>::max();
    if constexpr (std::is_same_v<T, F16>) return 65504.0f;
    return 0x1.fep127f;
  }
  static float bounded(float value) { return std::clamp(value, -largest(), largest()); }

  std::vector<int> place_;
};

// For a store that has no kernel of its own: the backward from the y that the store gives back.
class NormKernelsFromStore : public NormKernelsOf<float> {
 public:
  NormKernelsFromStore(const NormLayer& layer, const NormStore& store)
      : NormKernelsOf<float>(layer), kept_(store, layer.rows, layer.n) {}
  float read_as(float y, size_t row, size_t column) const override { return kept_.read_as(y, row, column); }

 protected:
  void backward(NormGradients& result) override {
    keep();
    NormKernelsOf<float>::backward(result);
  }
  void keep() {
    kept_.keep(y_);
    kept_.read(y_);
  }

 private:
  KeptOutput kept_;
};

// The kernels of a store. Their codes must stand for the y that stores.h gives back, which is what the bounds
// are about.
template <class Store>
class NormKernelsFromCodes final : public NormKernelsFromStore {
 public:
  NormKernelsFromCodes(const NormLayer& layer, const NormStore& store)
      : NormKernelsFromStore(layer, store), codes_(static_cast<size_t>(layer.rows * layer.n)),
        scales_(static_cast<size_t>(kernels::norm_scales_of<Store>(layer.rows, layer.n))) {}

 private:
  void forward(NormGradients& result) override { run_forward(with_codes(), result); }
  void backward(NormGradients& result) override {
    keep();
    for (size_t e = 0; e < codes_.size(); ++e) {
      const float read = kernels::norm_value(
          codes_[e],
          scales_[Store::kGroup == 0 ? 0 : e / static_cast<size_t>(std::max<i64>(Store::kGroup, 1))]);
      if (std::bit_cast<std::uint32_t>(read) != std::bit_cast<std::uint32_t>(y_[e])) {
        throw std::logic_error(std::string("the kernel's code in ") + Store::kName +
                               " does not stand for the y of validation/norms/stores.h");
      }
    }
    run_backward(with_codes(), result);
  }

  outgrad_call with_codes() {
    outgrad_call of = call();
    of.store = kStore<Store>;
    of.codes = codes_.data();
    of.codes_bytes = codes_.size() * sizeof(typename Store::Code);
    of.scales = scales_.data();
    of.scales_bytes = scales_.size() * sizeof(typename Store::Scale);
    return of;
  }

  std::vector<typename Store::Code> codes_;
  std::vector<typename Store::Scale> scales_;
};

// Pairwise sums, which most libraries use in effect.
template <class Term>
float pairwise(size_t begin, size_t end, const Term& term) {
  constexpr size_t kLeaf = 8;
  if (end - begin <= kLeaf) {
    float sum = 0;
    for (size_t j = begin; j < end; ++j) sum += term(j);
    return sum;
  }
  const size_t middle = begin + (end - begin) / 2;
  return pairwise(begin, middle, term) + pairwise(middle, end, term);
}

template <class T>
float stored(float value) {
  return widen(narrow<T>(value));
}

}  // namespace

std::unique_ptr<NormKernels> norm_kernels(const NormLayer& layer) {
  if (layer.format == "f32") return std::make_unique<NormKernelsOf<float>>(layer);
  if (layer.format == "f16") return std::make_unique<NormKernelsOf<F16>>(layer);
  if (layer.format == "bf16") return std::make_unique<NormKernelsOf<BF16>>(layer);
  const NormStore store = storage_format(layer.format).store;
  check_store(store, layer.n, "norm kernels", "columns");
  if (layer.format == "e4m3") return std::make_unique<NormKernelsFromCodes<kernels::NormE4m3>>(layer, store);
  if (layer.format == "mxfp8")
    return std::make_unique<NormKernelsFromCodes<kernels::NormMxFp8>>(layer, store);
  if (layer.format == "int8") return std::make_unique<NormKernelsFromCodes<kernels::NormInt8>>(layer, store);
  return std::make_unique<NormKernelsFromStore>(layer, store);
}

void exact_gradients(const NormLayer& layer, const NormBatch& batch, NormReference& result) {
  const size_t n = static_cast<size_t>(layer.n), rows = static_cast<size_t>(layer.rows);
  const long double columns = static_cast<long double>(n);
  const bool centred = layer.norm == Norm::layer;
  // these facts are rounded, with a relative error of at most N 2^-64, times the mean ratio for x^ of small
  // rows
  constexpr double kUp = 1 + 0x1p-40;
  result.rstd.resize(rows);
  result.mean_ratio.resize(rows);
  result.x_hat_max.resize(rows);
  result.x_hat.resize(rows * n);
  result.dx.resize(rows * n);
  result.dgamma.assign(n, 0);
  result.dbeta.assign(n, 0);
  for (size_t i = 0; i < rows; ++i) {
    const float* const x = batch.x.data() + i * n;
    const float* const dy = batch.dy.data() + i * n;
    long double* const x_hat = result.x_hat.data() + i * n;
    long double mean = 0, squares = 0, m1 = 0, m2 = 0, largest = 0;
    if (centred) {
      for (size_t j = 0; j < n; ++j) mean += x[j];
      mean /= columns;
    }
    for (size_t j = 0; j < n; ++j) {
      const long double difference = x[j] - mean;
      squares += difference * difference;
    }
    const long double rstd = 1 / std::sqrt(squares / columns + layer.eps);
    for (size_t j = 0; j < n; ++j) {
      x_hat[j] = (x[j] - mean) * rstd;
      const long double a = static_cast<long double>(dy[j]) * layer.gamma[j];
      m1 += a;
      m2 += a * x_hat[j];
      largest = std::max(largest, std::abs(x_hat[j]));
      result.dgamma[j] += dy[j] * x_hat[j];
      result.dbeta[j] += dy[j];
    }
    m1 = centred ? m1 / columns : 0;
    m2 /= columns;
    for (size_t j = 0; j < n; ++j) {
      result.dx[i * n + j] = rstd * (static_cast<long double>(dy[j]) * layer.gamma[j] - m1 - x_hat[j] * m2);
    }
    result.rstd[i] = rstd;
    result.mean_ratio[i] = static_cast<double>(std::abs(mean) * rstd) * kUp;
    result.x_hat_max[i] = static_cast<double>(largest) * kUp;
  }
}

const char* to_string(NormPeer peer) {
  constexpr const char* kNames[] = {"from_input", "clamped_gamma", "unguarded"};
  return kNames[static_cast<int>(peer)];
}

void peer_gradients(const NormLayer& layer, const NormBatch& batch, NormPeer peer, NormGradients& result) {
  const size_t n = static_cast<size_t>(layer.n), rows = static_cast<size_t>(layer.rows);
  const bool centred = layer.norm == Norm::layer;
  const float columns = static_cast<float>(n);
  const auto store = layer.format == "f16"    ? stored<F16>
                     : layer.format == "bf16" ? stored<BF16>
                                              : stored<float>;
  std::vector<float> y(rows * n);
  result.rstd.resize(rows);
  result.x_hat.resize(rows * n);
  result.dx.resize(rows * n);
  result.dgamma.assign(n, 0.0f);
  result.dbeta.assign(n, 0.0f);
  for (size_t i = 0; i < rows; ++i) {
    const float* const x = batch.x.data() + i * n;
    float* const x_hat = result.x_hat.data() + i * n;
    const float mean = centred ? pairwise(0, n, [&](size_t j) { return x[j]; }) / columns : 0.0f;
    const float squares = pairwise(0, n, [&](size_t j) { return (x[j] - mean) * (x[j] - mean); });
    const float rstd = 1.0f / std::sqrt(squares / columns + layer.eps);
    result.rstd[i] = rstd;
    for (size_t j = 0; j < n; ++j) {
      x_hat[j] = (x[j] - mean) * rstd;
      y[i * n + j] = store(x_hat[j] * layer.gamma[j] + beta_of(layer, j));
    }
  }
  const NormStore kept = storage_format(layer.format).store;
  if (!kept.plain() && peer != NormPeer::kFromInput) {
    KeptOutput output(kept, layer.rows, layer.n);
    output.keep(y);
    output.read(y);
  }
  for (size_t i = 0; i < rows; ++i) {
    const float* const dy = batch.dy.data() + i * n;
    float* const x_hat = result.x_hat.data() + i * n;
    const float rstd = result.rstd[i];
    for (size_t j = 0; j < n; ++j) {
      if (peer == NormPeer::kFromInput) continue;
      const float gamma = layer.gamma[j], beta = beta_of(layer, j);
      const bool raised = peer == NormPeer::kClampedGamma && std::abs(gamma) < layer.eps;
      x_hat[j] = (y[i * n + j] - beta) / (raised ? (gamma >= 0 ? layer.eps : -layer.eps) : gamma);
    }
    const float m1 =
        centred ? pairwise(0, n, [&](size_t j) { return dy[j] * layer.gamma[j]; }) / columns : 0.0f;
    const float m2 = pairwise(0, n, [&](size_t j) { return dy[j] * layer.gamma[j] * x_hat[j]; }) / columns;
    for (size_t j = 0; j < n; ++j) {
      result.dx[i * n + j] = store(rstd * (dy[j] * layer.gamma[j] - m1 - x_hat[j] * m2));
      result.dgamma[j] += dy[j] * x_hat[j];
      result.dbeta[j] += dy[j];
    }
  }
}

}  // namespace outgrad::validation
