// The bodies of LayerNorm and RMSNorm, forward and backward from the output, which host loops and CUDA
// kernels share.
//
// Forward, per row of N elements (RMSNorm: mean = 0, no beta):
//   mean = sum(x) / N,  var = sum((x - mean)^2) / N,  rstd = 1 / sqrt(var + eps),  x^ = (x - mean) rstd,
//   y = x^ gamma + beta.
// Backward from y (the rows' x and mean are not kept), with a = dy gamma and c = y - beta = x^ gamma:
//   m1 = mean(a),  m2 = mean(a x^) = mean(dy c)   (no division),
//   x^ = c (1 / gamma)   (the reciprocal once per column),
//   dx = rstd (a - m1 - x^ m2)   (RMSNorm: m1 = 0),  dgamma = sum_rows(dy c) / gamma,  dbeta = sum_rows(dy).
// A side channel is a channel whose y says too little about x^ (for example because gamma = 0); it keeps x^
// itself in fp32. For a side channel c = x^, the reciprocal and the divisor of dgamma are 1, and the term of
// m2 is dy (gamma c).
// These are the other columns' formulas with other constants.
//
// Every product that feeds a sum is one fma, and sums follow the trees of reduce.h. A NaN in a row of x, dy
// or y reaches every output of that row. A NaN in gamma, beta or eps reaches every output that depends on it.
// Nothing is clamped.
#pragma once

#include "kernels/reduce.h"

namespace outgrad::kernels {

enum class Norm { layer, rms };

// x^ in fp32 for `count` side channels, which are given by their column indices in ascending order; [rows,
// count], row-major. Float is `float` where the forward writes x^, and `const float` where the backward reads
// it.
template <class Float>
struct SideBuffer {
  const i32* channels = nullptr;
  i64 count = 0;
  Float* x_hat = nullptr;
};

// Whether a kernel is compiled for side channels.
enum class SideChannels {
  none,
  some,
  either,  // it asks at run time
};

// The format of gamma, beta and their gradients, whose sums are in fp32. An argument of a kernel's template,
// and a name of its own in the mangled symbol.
enum class ParameterFormat { f32, f16, bf16 };

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

// --- Forward -------------------------------------------------------------------------------------

// Whether eps is at least 0, -0 included. The test uses eps's bits, because a negative subnormal compares
// equal to 0 if the caller has set denormals-are-zero.
OUTGRAD_HD bool eps_holds(float eps) { return bits_of(eps) <= 0x7f800000u || bits_of(eps) == bits_of(-0.0f); }

// sum(x).
template <class T>
struct MeanTerms {
  static constexpr int kOperands = 1;
  static constexpr int kSums = 1;
  const T* x;

  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Tuple<Lane, 1> operands(i64 j, const Io& io = {}) const {
    return {{io.load(x + j)}};
  }
  static OUTGRAD_HD Tuple<float, 1> missing() { return {{kMissingTerm}}; }
  template <class Lane>
  static OUTGRAD_HD Tuple<Lane, 1> first_fold(const Tuple<Lane, 1>& low, const Tuple<Lane, 1>& high) {
    return {{add_rn(low.v[0], high.v[0])}};
  }
};

// sum((x - mean)^2).
template <class T>
struct VarianceTerms {
  static constexpr int kOperands = 1;
  static constexpr int kSums = 1;
  const T* x;
  float mean;

  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Tuple<Lane, 1> operands(i64 j, const Io& io = {}) const {
    return {{sub_rn(io.load(x + j), io.splat(mean))}};
  }
  // its square +0 is neutral among squares, none of which is -0
  static OUTGRAD_HD Tuple<float, 1> missing() { return {{0.0f}}; }
  template <class Lane>
  static OUTGRAD_HD Tuple<Lane, 1> first_fold(const Tuple<Lane, 1>& low, const Tuple<Lane, 1>& high) {
    return {{fma_rn(low.v[0], low.v[0], mul_rn(high.v[0], high.v[0]))}};
  }
};

OUTGRAD_HD float mean_of(float sum, i64 n) { return div_rn(sum, static_cast<float>(n)); }

OUTGRAD_HD float rstd_of(float squares, i64 n, float eps) {
  return div_rn(1.0f, sqrt_rn(add_rn(mean_of(squares, n), eps)));
}

template <class Lane>
OUTGRAD_HD Lane normalised(Lane x, Lane mean, Lane rstd) {
  return mul_rn(sub_rn(x, mean), rstd);
}

// y before it is narrowed. An absent gamma is 1. An absent beta is -0, so that the fma gives the bare
// product.
template <class Lane>
OUTGRAD_HD Lane forward_output(Lane x, Lane mean, Lane rstd, Lane gamma, Lane beta) {
  return fma_rn(normalised(x, mean, rstd), gamma, beta);
}

// --- Backward ------------------------------------------------------------------------------------

// What the backward pass reads for each column: arrays of [n] elements, none of them null.
struct NormColumns {
  float* gamma;  // 1 where absent
  float* beta;  // 0 where absent
  float* reciprocal;  // 1 / gamma, 1 for a side channel
  float* divisor;  // the divisor of dgamma: gamma, or 1 for a side channel
  float* weight;  // a x^ = dy (weight c): 1, or gamma for a side channel
};

inline constexpr int kColumnArrays = 5;

OUTGRAD_HD NormColumns columns_at(float* storage, i64 n) {
  return {storage, storage + n, storage + 2 * n, storage + 3 * n, storage + 4 * n};
}

OUTGRAD_HD void prepare_column(const NormColumns& columns, const float* gamma, const float* beta, i64 j,
                               bool side) {
  const float g = gamma ? gamma[j] : 1.0f;
  columns.gamma[j] = g;
  columns.beta[j] = beta ? beta[j] : 0.0f;
  columns.reciprocal[j] = side ? 1.0f : div_rn(1.0f, g);
  columns.divisor[j] = side ? 1.0f : g;
  columns.weight[j] = side ? g : 1.0f;
}

// Two ways to get c of one row. `weighted` is the factor of dy in m2.

// No side channels.
template <class T>
struct CentredOutput {
  const T* y;
  const float* beta;

  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Lane centred(i64 j, const Io& io = {}) const {
    return sub_rn(io.load(y + j), io.load(beta + j));
  }
  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Lane weighted(i64 j, const Io& io = {}) const {
    return centred<Lane>(j, io);
  }
};

// Side channels are already in place: c is staged in fp32, and for the sums it includes the weights of side
// channels.
struct CentredStaged {
  const float* c;

  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Lane centred(i64 j, const Io& io = {}) const {
    return io.load(c + j);
  }
  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Lane weighted(i64 j, const Io& io = {}) const {
    return centred<Lane>(j, io);
  }
};

// sum(a) (LayerNorm) and sum(a x^), the latter always last.
template <Norm N, class T, class Centred>
struct GradientTerms {
  static constexpr int kOperands = 3;
  static constexpr int kSums = N == Norm::layer ? 2 : 1;
  const T* dy;
  const float* gamma;
  Centred output;

  template <class Lane, class Io = LaneIo<Lane>>
  OUTGRAD_HD Tuple<Lane, 3> operands(i64 j, const Io& io = {}) const {
    return {{io.load(dy + j), io.load(gamma + j), output.template weighted<Lane>(j, io)}};
  }
  // both products are -0
  static OUTGRAD_HD Tuple<float, 3> missing() { return {{kMissingTerm, 1.0f, 0.0f}}; }
  template <class Lane>
  static OUTGRAD_HD Tuple<Lane, kSums> first_fold(const Tuple<Lane, 3>& low, const Tuple<Lane, 3>& high) {
    const Lane product = fma_rn(low.v[0], low.v[2], mul_rn(high.v[0], high.v[2]));
    if constexpr (N == Norm::layer) {
      return {{fma_rn(low.v[0], low.v[1], mul_rn(high.v[0], high.v[1])), product}};
    } else {
      return {{product}};
    }
  }
};

// The means of a row, negated so that they can be added: -m1 (-0 for RMSNorm) and -m2.
struct NegatedMeans {
  float m1;
  float m2;
};

template <Norm N, int Sums>
OUTGRAD_HD NegatedMeans negated_means(const Tuple<float, Sums>& sums, i64 n) {
  return {N == Norm::layer ? -mean_of(sums.v[0], n) : -0.0f, -mean_of(sums.v[Sums - 1], n)};
}

// dx before it is narrowed.
template <class Lane>
OUTGRAD_HD Lane input_gradient(Lane dy, Lane c, Lane gamma, Lane reciprocal, Lane negated_m1, Lane negated_m2,
                               Lane rstd) {
  const Lane x_hat = mul_rn(c, reciprocal);
  return mul_rn(rstd, fma_rn(x_hat, negated_m2, fma_rn(dy, gamma, negated_m1)));
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
