// Certified bounds on LayerNorm and RMSNorm gradients computed from the stored output, channel by channel, and the policy they imply.
//
// DERIVATION. One row of N channels, stored exactly: x, dy (the format's), gamma, beta, eps (fp32). The reference is the exact real
// gradient of that stored x:
//   xh = (x - mean) rstd,  rstd = (var + eps)^(-1/2),  a = dy gamma,  dx = rstd (a - mean(a) - xh mean(a xh)),  dgamma = sum dy xh.
// Known of the row: k >= |mean| rstd and G >= |dy|. Hence sum xh^2 <= N, |xh| <= sqrt(N-1) (biased variance; RMSNorm: sqrt(N)), and by
// Cauchy-Schwarz mean |gamma xh| <= rms(gamma). e = 2^-24 is fp32's unit roundoff, u the format's, h half its least subnormal
// (u = h = 0 beyond fp32's own for f32), g(n) = n e / (1 - n e) bounds n roundings in a row, D is the depth of the summation tree.
//
// Forward.  mean: |mean~ - mean| rstd <= M = g(D+1) (k + 1) + 2^-150 / sqrt(eps), as mean |x| <= |mean| + sqrt(var)
//   (and sqrt(var) rstd <= max|xh|, which stands for the 1 where it is less). Here and below the
//   division by N is one of the roundings counted, which falls away where N is a power of two. N = 1: M = H = 0.
//   var: sum (x - mean~)^2 = N (var + (mean~ - mean)^2), so the rounded radicand var + eps is off by a relative
//   H <= H0 + M^2 (1 + H0), H0 = g(D+5) + 2^-148 / eps (difference twice, square, tree, mean, + eps; underflow; RMSNorm: g(D+3)); hence
//   rstd~ = rstd (1 +- R), R = (1 + g(2)) (1 + H/(2(1-H0))) - 1.
//   normalised: |xh~ - xh| <= AE |xh| + BE, with x - mean~ rounded, times rstd~, rounded: AE = (1+R)(1+e)^2 - 1,
//   BE = (1+R)(1+e)^2 M + 2^-150.
//   y = gamma xh~ + beta by one fma, then stored: y = gamma xh + beta + gamma (xh~ - xh) + F, with U = (1+e)(1+u) - 1 and
//   |F| <= U (|gamma| ((1 + AE) |xh| + BE) + |beta|) + h + 2^-149.
//   So (y - beta)/gamma = xh +- (A |xh| + B), A = AE + U (1 + AE), B = BE (1 + U) + U rho + (h + 2^-149)/|gamma|,
//   rho = |beta/gamma|: the storage term U (|xh| + rho) is the one that a channel can ruin. A y beyond the format's range makes the
//   bound infinite.
// Backward.  xh' = (y - beta) rcp(gamma): three more roundings, |xh' - xh| <= X = (1 + g(3)) (A |xh| + B) + g(3) |xh| + 2^-149.
//   m1 = mean(a): |D1| <= g(D+2) G mean|gamma| + 2^-148.
//   m2 = mean(dy (y - beta)), no division: |D2| <= G (A W + S) + g(D+3) G ((1 + A) W + S) + 2^-148 + 2^-149 G (a side channel's gamma xh),
//   where W = min(rms(gamma), max|xh| mean|gamma|) bounds mean |gamma xh|, and
//   S = mean(|gamma| B) = BE (1+U) mean|gamma| + U mean|beta| + h + 2^-149: finite for gamma = 0.
//   p = fma(xh', -m2, fma(dy, gamma, -m1)):
//   |Dp| <= I + e (|p| + I) + 2^-148, I = D1 + |xh| D2 + X (|m2| + D2) + e (|a| + |m1| + D1).
//   dx = narrow(rstd~ p): |error| <= rstd (Dp + V (|p| + Dp)) + h + 2^-149, V = (1+R)(1+e)(1+u) - 1, |p| <= |a| + |m1| + |xh m2|.
//   Sharper, with |xh_j| itself in [low, high], the maximum being taken over such pieces of its range: sum_(i != j) xh_i^2 <= N - low^2, so
//   W <= (|gamma_j| high + |gamma|_(i != j) sqrt(N - low^2)) / N, and p_j = sum_i a_i (delta_ij - 1/N - xh_j xh_i / N) likewise (`projected`).
//   A number of magnitude at most v is rounded by at most half an ulp of the highest binade below v: so are y (F) and the nodes of dbeta's tree.
//   Its rms over the channels by Minkowski's inequality: rms(xh) <= 1, rms(a) <= G rms(gamma) and rms(p) <= rms(a), a projection.
//   dgamma, per row: G (A |xh| + B + g(DM+3) ((1+A) |xh| + B)) + 2^-149 (1 + 1/|gamma|), DM the depth of the sum over rows;
//   dbeta: g(DM-1) G at most, as each slot's first addition is to 0.
// A side-buffer channel keeps xh~ in fp32: U and h vanish from its A and B (hence from S), X = A |xh| + B, and gamma = 0 does no harm.
// RMSNorm: M = 0, no beta, no m1.
// D counts additions of two terms that are both there: N = 1 has none.
// Range. |x| <= largest_x(N), which keeps N (2x)^2 <= 2^125. Whether a sum or product of the backward pass may overflow fp32 is checked:
// the bounds are infinite where it may. Assumed: dx and its bound stay within the format's range (its size is rstd's to decide),
// subnormals are not flushed.
// The derivation holds for any arithmetic with a unit roundoff: with e = 2^-64, D = N, g(4) for p's unfused products and nothing stored it
// bounds the error of a long double reference (reference_bounds).
// All of it is sums and products of non-negative numbers, evaluated upwards: each operation on doubles is followed by a step to the
// next one.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/layernorm.h"
#include "validation/norms/tensors.h"

namespace outgrad::validation {

using kernels::Norm;

// A storage format as the bounds see it.
struct StorageFormat {
  std::string name;
  double unit_roundoff;    // 2^-p; 0 for f32, whose stored value is the fp32 result itself
  double half_subnormal;   // largest error of a subnormal; 0 for f32
  double overflow;         // magnitudes from here on round to infinity
  int bytes;
};

// "f32", "f16" or "bf16"; SpecError for anything else.
StorageFormat storage_format(const std::string& name);

struct StabilityOptions {
  Norm norm = Norm::layer;
  StorageFormat format = storage_format("bf16");
  float eps = 1e-5f;
  double mean_ratio = 10;  // |mean| rstd of a row of x, at most (LayerNorm)
  double dy_max = 1;       // |dy|, at most
  // |xh| assumed by the conditional bounds: a normal variable exceeds 6 once in 5e8 elements.
  double x_hat_max = 6;
  // Storage error of xh at |xh| = 1 (its rms) beyond which a channel leaves the output: 2^-4 is the unit roundoff of fp8 e4m3, so beyond it
  // the 16-bit y says less about xh than half as many bytes would.
  double tau = 0x1p-4;
  kernels::i64 rows = 4096;  // rows summed in dgamma and dbeta: only the depth of their tree depends on it
};

enum class ChannelClass {
  kStable,     // at most one bit of xh lost against a channel with beta = 0: the error at |xh| = 1 is at most doubled
  kDegraded,   // worse, but within tau
  kUnstable,   // beyond tau, 1/gamma not a normal fp32 number, or y overflows within |xh| <= x_hat_max
  kZeroGamma,  // y does not depend on xh
};

const char* to_string(ChannelClass channel_class);
const char* to_string(Norm norm);

// Upper bounds; infinite where nothing holds. `worst`: for every row; `conditional`: for rows with |xh| <= x_hat_max.
struct Bound {
  double worst, conditional;
};

struct ChannelBounds {
  Bound x_hat;   // |xh' - xh|, absolute (xh has rms at most 1)
  Bound dx;      // |error of dx| / rstd, without the outer underflow NormBounds::dx_absolute
  Bound dgamma;  // per row summed
};

struct NormBounds {
  std::vector<ChannelBounds> channels;
  Bound dx;                // max-norm: the largest of the channels'
  Bound dx_rms;            // root mean square over the row / rstd (no |xh| enters: the two differ only where y may overflow)
  Bound dx_rms_relative;   // the same over dy_max rms(gamma), the scale of dx / rstd
  double dx_absolute;      // to be added to every bound on dx: underflow of the outer product and of the format
  double dbeta;            // per row summed
  double rstd;             // R: relative error of the stored rstd
};

struct ChannelParameters {
  float gamma, beta;
  double rho;            // |beta / gamma|, infinite for gamma = 0; 0 for RMSNorm
  ChannelClass channel_class;
  double bits_lost;      // log2 of the storage error at |xh| = 1 over that of gamma = 1, beta = 0
  double x_hat_estimate;  // ESTIMATE of the rms error of xh from the storage of y, not a bound: c u sqrt(1 + rho^2)
};

struct StabilityResult {
  StabilityOptions options;
  std::vector<ChannelParameters> channels;
  std::vector<size_t> side_buffer;  // unstable and zero-gamma channels, ascending
  NormBounds from_output;           // every channel from the output
  NormBounds recommended;           // channels of `side_buffer` from fp32 xh; equals from_output where there are none
  double forward_x_hat;             // error of xh at |xh| = 1 that the fp32 forward itself causes: no storage policy removes it
  double dgamma_estimate;           // ESTIMATE of the relative L2 error of dgamma, every channel from the output, dy independent of xh
  std::array<int, 4> count;         // by ChannelClass

  const char* policy() const { return side_buffer.empty() ? "from_output" : "side_buffer"; }
  size_t side_buffer_bytes_per_row() const { return sizeof(float) * side_buffer.size(); }
};

// The depth of the kernels' fixed summation trees: roundings between a term and the sum, at most.
int row_tree_depth(kernels::i64 columns);
int column_tree_depth(kernels::i64 rows, kernels::i64 columns);

// Upper bound on |xh| in a row of `columns`: sqrt(N - 1), for RMSNorm sqrt(N).
double largest_x_hat(Norm norm, kernels::i64 columns);

// |x| up to which the bounds hold: beyond it fp32 sums of squares may overflow.
double largest_x(kernels::i64 columns);

// Analyses one norm layer. gamma: N values, 1 <= N <= 2^20; beta: N values or none. `label` (the file) and the tensors' names stand in
// messages. Throws SpecError for NaN or infinity (tensor and index), sizes that differ, options out of range.
StabilityResult analyse_stability(const std::vector<float>& gamma, const std::vector<float>& beta, const StabilityOptions& options,
                                  const std::string& label = "stability", const std::string& gamma_name = "gamma", const std::string& beta_name = "beta");

// The channels that the policy keeps in a side buffer, ascending: `side_buffer` of the analysis, without its bounds.
std::vector<size_t> side_channels(const std::vector<float>& gamma, const std::vector<float>& beta, const StabilityOptions& options);

// The errors of the textbook formulas (dx from x, sums term by term) in long double of at least 64 bits, bounded for the rows that `result` is
// about: what a comparison with such a reference has to allow for.
NormBounds reference_bounds(const StabilityResult& result);

// The value at a fraction of the finite-or-infinite rho, nearest rank.
double rho_quantile(const StabilityResult& result, double fraction);

// The tensors of one norm layer.
struct NormNames {
  std::string name;   // what gamma and beta share: "encoder.layer.0.output.LayerNorm"
  std::string gamma;
  std::string beta;   // empty where there is none
};

// Norm layers by the naming habits of PyTorch, TensorFlow and JAX checkpoints: one-dimensional X.weight or X.scale (with X.bias) whose last
// component X holds "norm" or is "ln", "ln_1", "ln_f"; or X.gamma (with X.beta), whatever X. BatchNorm (a running mean beside it) is left
// out.
std::vector<NormNames> detect_norms(const TensorFile& file);

// One element of "norms" in schema outgrad.stability/1: summary plus the channels as columns; infinite bounds are null.
nlohmann::json to_json(const StabilityResult& result);
nlohmann::json to_json(const StabilityOptions& options);

}  // namespace outgrad::validation
