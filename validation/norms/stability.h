// Certified bounds, channel by channel, on LayerNorm and RMSNorm gradients that are computed from the stored
// output, and the policy that follows from them.
//
// DERIVATION. One row of N channels, stored exactly: x, dy (the format's), gamma, beta, eps (fp32). The
// reference is the exact real gradient of that stored x:
//   xh = (x - mean) rstd,  rstd = (var + eps)^(-1/2),  a = dy gamma,
//   dx = rstd (a - mean(a) - xh mean(a xh)),  dgamma = sum dy xh.
// Known about the row: k >= |mean| rstd and G >= |dy|. Hence sum xh^2 <= N, |xh| <= sqrt(N-1) (biased
// variance; RMSNorm: sqrt(N)), and by Cauchy-Schwarz mean |gamma xh| <= rms(gamma). e = 2^-24 is fp32's unit
// roundoff, u is that of the format, and h is half the format's least subnormal (for f32, u = h = 0 beyond
// fp32's own).
// g(n) = n e / (1 - n e) bounds n roundings in a row. D is the depth of the summation tree.
//
// Forward.
//   mean: |mean~ - mean| rstd <= M = g(D+1) (k + 1) + 2^-150 / sqrt(eps), as mean |x| <= |mean| + sqrt(var)
//     (and sqrt(var) rstd <= max|xh|, which replaces the 1 if it is less). Here and below, the division by N
//     is one of the roundings counted; it is exact if N is a power of two. N = 1: M = H = 0.
//   var: sum (x - mean~)^2 = N (var + (mean~ - mean)^2), so the rounded radicand var + eps is off by a
//     relative H <= H0 + M^2 (1 + H0), H0 = g(D+5) + 2^-148 / eps (difference twice, square, tree, mean, +
//     eps; underflow; RMSNorm: g(D+3)); hence rstd~ = rstd (1 +- R), R = (1 + g(2)) (1 + H/(2(1-H0))) - 1.
//   normalised: |xh~ - xh| <= AE |xh| + BE, with x - mean~ rounded, times rstd~, rounded:
//     AE = (1+R)(1+e)^2 - 1, BE = (1+R)(1+e)^2 M + 2^-150.
//   y = gamma xh~ + beta by one fma, then stored: y = gamma xh + beta + gamma (xh~ - xh) + F, with
//     U = (1+e)(1+u) - 1 and |F| <= U (|gamma| ((1 + AE) |xh| + BE) + |beta|) + h + 2^-149.
//   So (y - beta)/gamma = xh +- (A |xh| + B), A = AE + U (1 + AE),
//     B = BE (1 + U) + U rho + (h + 2^-149)/|gamma|, rho = |beta/gamma|:
//     the storage term U (|xh| + rho) is the one that a channel can make large. The bound is infinite if y
//     may exceed the format's range.
// Backward.
//   xh' = (y - beta) rcp(gamma): three more roundings, |xh' - xh| <= X = (1 + g(3)) (A |xh| + B) + g(3) |xh|
//     + 2^-149.
//   m1 = mean(a): |D1| <= g(D+2) G mean|gamma| + 2^-148.
//   m2 = mean(dy (y - beta)), no division:
//     |D2| <= G (A W + S) + g(D+3) G ((1 + A) W + S) + 2^-148 + 2^-149 G (a side channel's gamma xh),
//     where W = min(rms(gamma), max|xh| mean|gamma|) bounds mean |gamma xh|, and
//     S = mean(|gamma| B) = BE (1+U) mean|gamma| + U mean|beta| + h + 2^-149: finite for gamma = 0.
//   p = fma(xh', -m2, fma(dy, gamma, -m1)):
//     |Dp| <= I + e (|p| + I) + 2^-148, I = D1 + |xh| D2 + X (|m2| + D2) + e (|a| + |m1| + D1).
//   dx = narrow(rstd~ p): |error| <= rstd (Dp + V (|p| + Dp)) + h + 2^-149, V = (1+R)(1+e)(1+u) - 1,
//     |p| <= |a| + |m1| + |xh m2|.
//     A sharper bound has |xh_j| itself in [low, high] and takes the maximum over such pieces of its range:
//     sum_(i != j) xh_i^2 <= N - low^2, so W <= (|gamma_j| high + |gamma|_(i != j) sqrt(N - low^2)) / N, and
//     p_j = sum_i a_i (delta_ij - 1/N - xh_j xh_i / N) likewise (`projected`).
//     A number of magnitude at most v is rounded by at most half an ulp of the highest binade below v. This
//     holds for y (F) and for the nodes of dbeta's tree.
//     The rms of dx over the channels follows from Minkowski's inequality: rms(xh) <= 1, rms(a) <= G
//     rms(gamma), and rms(p) <= rms(a), since p is a projection.
//   dgamma, per row: G (A |xh| + B + g(DM+3) ((1+A) |xh| + B)) + 2^-149 (1 + 1/|gamma|), DM the depth of the
//     sum over rows;
//   dbeta: at most g(DM-1) G, because each slot's first addition is to 0.
// A side-buffer channel keeps xh~ in fp32: U and h vanish from its A and B (and hence from S), X = A |xh| +
// B, and gamma = 0 is harmless.
// RMSNorm: M = 0, no beta, no m1.
// D counts only additions of two terms that both exist: N = 1 has none.
// Range. |x| <= largest_x(N), which keeps N (2x)^2 <= 2^125. A check decides whether a sum or product of the
// backward pass may overflow fp32; if so, the bounds are infinite. Assumptions: dx and its bound stay within
// the format's range (rstd decides its size), and subnormals are not flushed.
// y in 8 bits (stores.h). Where y has a store of its own, u above is 0 except that U and h, which say what
// storing y costs, become U = (1+e)(1+r) - 1 and a half error h_j for each channel. Both hold for y of a
// group whose largest |y| is at most Y, and Y follows A PRIORI from the class of rows: |y_i| <=
// (1+e)(|gamma_i| ((1+AE) |xh| + BE) + |beta_i|) with |xh| at the class's limit, over the channels i of the
// group (e4m3: of the row, and the limit must hold for all rows). Channels with a side buffer count, since
// their y is stored too.
//   e4m3: v = y/s and v' s are rounded to fp32. The nearest e4m3 is within |v| / 17 (half an ulp 2^(k-4)
//     against the least v that it is taken from, 2^k (1 + 2^-4)), or below 2^-6 within 2^-10.
//     r = (1 + 1/17)(1+e)^2 - 1, and h = s 2^-10 (1 + 2^-20) + 2^-149 with s <= max(Y/448 (1+e), 2^-126). At
//     most 16 s for any y, plus fp32's roundings. A given s is that number; then the bound is infinite if
//     Y > 448 s.
//   mxfp8: y/s and v' s are exact. 2^8 s is the power of two at or below the largest |y|, hence |v| < 512.
//     |v| > 448 is saturated and loses at most 1/8 of itself (64 of 512); r = 1/8, h = s 2^-10, s =
//     max(2^(floor(log2 Y) - 8), 2^-127). For |y| <= c, whatever s is: at most c' - 448 s for the largest
//     power of two s with 448 s < c, c' = min(c, 512 s); or 32 s, which is what half this s can cost; or half
//     an ulp of c's binade.
//   int8: s <= max((Y+ + Y-) / 255 (1+e)^2, 2^-126), where Y+ and Y- bound y and -y. RN(RN(y - z)/s) is
//     within 2^-15 of (y - z)/s <= 255 (1+e)^2, so the code is within 1/2 + 2^-15 of it, and is not
//     saturated. r = e (the last fma) and h = s (1/2 + 2^-14) (1+e). As two channels' xh_i^2 + xh_k^2 <= N,
//     also Y+ + Y- <= (1+AE) sqrt(N (gamma_i^2 + gamma_k^2)) + BE (|gamma_i| + |gamma_k|) + max beta - min
//     beta, with the two largest |gamma| of the group.
// The derivation holds for any arithmetic with a unit roundoff. With e = 2^-64, D = N, g(4) for p's unfused
// products, and nothing stored, it bounds the error of a long double reference (reference_bounds).
// All of it consists of sums and products of non-negative numbers, evaluated upwards: after each operation on
// doubles, the next larger double is taken.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/layernorm.h"
#include "validation/norms/stores.h"
#include "validation/norms/tensors.h"

namespace outgrad::validation {

using kernels::Norm;

// The properties of a storage format on which the bounds depend. x, dy and dx have the format itself; so has
// y, unless it has a store of its own. With such a store the format is f32: then the bounds are those of dx
// before it is narrowed.
struct StorageFormat {
  std::string name;
  double unit_roundoff;  // 2^-p; 0 for f32, for which the stored value is the fp32 result itself
  double half_subnormal;  // largest error of a subnormal; 0 for f32
  double overflow;  // the least magnitude that rounds to infinity
  int bytes;
  double tau = 0x1p-4;  // the usual StabilityOptions::tau
  NormStore store{};  // of y
};

inline constexpr const char* kNormFormats[] = {"f32", "f16", "bf16", "e4m3", "mxfp8", "int8", "int8_row"};

// The format of that name. With "e4m3", "mxfp8", "int8" (groups of 64) and "int8_row" y is in 8 bits
// (stores.h) and all else in f32. SpecError for a name that is not in kNormFormats.
StorageFormat storage_format(const std::string& name);

struct StabilityOptions {
  Norm norm = Norm::layer;
  StorageFormat format = storage_format("bf16");
  float eps = 1e-5f;
  double mean_ratio = 10;  // the most that |mean| rstd of a row of x may be (LayerNorm)
  double dy_max = 1;  // the most that |dy| may be
  // The conditional bounds assume this limit of |xh|. A normal variable exceeds 6 once in 5e8 elements.
  double x_hat_max = 6;
  // If the storage error of xh at |xh| = 1 (its rms) exceeds this, a channel no longer uses the output. 2^-4
  // is the unit roundoff of fp8 e4m3: beyond it, the 16-bit y says less about xh than half as many bytes
  // would. For y in 8 bits StorageFormat::tau is 2^-2, the unit roundoff of e2m1, for the same reason.
  double tau = 0x1p-4;
  kernels::i64 rows = 4096;  // rows summed in dgamma and dbeta; only the depth of their tree depends on it
};

enum class ChannelClass {
  // loses at most one bit of xh against a channel with beta = 0: the error at |xh| = 1 is at most doubled
  kStable,
  kDegraded,  // worse, but within tau
  kUnstable,  // beyond tau, or 1/gamma is not a normal fp32 number, or y overflows within |xh| <= x_hat_max
  kZeroGamma,  // y does not depend on xh
};

const char* to_string(ChannelClass channel_class);
const char* to_string(Norm norm);

// Upper bounds; infinite if no bound holds. `worst` holds for every row, `conditional` for rows with |xh| <=
// x_hat_max.
struct Bound {
  double worst, conditional;
};

struct ChannelBounds {
  Bound x_hat;  // |xh' - xh|, absolute (xh has rms at most 1)
  Bound dx;  // |error of dx| / rstd, without the outer underflow NormBounds::dx_absolute
  Bound dgamma;  // per row summed
};

struct NormBounds {
  std::vector<ChannelBounds> channels;
  Bound dx;  // max-norm: the largest of the channels' bounds
  // root mean square over the row / rstd (|xh| enters through the scales of y's store, and where y may
  // overflow)
  Bound dx_rms;
  Bound dx_rms_relative;  // the same, divided by dy_max rms(gamma), the scale of dx / rstd
  // must be added to every bound on dx: the underflow of the outer product and of the format
  double dx_absolute;
  double dbeta;  // per row summed
  double rstd;  // R: relative error of the stored rstd
};

struct ChannelParameters {
  float gamma, beta;
  double rho;  // |beta / gamma|, infinite for gamma = 0; 0 for RMSNorm
  ChannelClass channel_class;
  double bits_lost;  // log2 of the storage error at |xh| = 1, divided by that for gamma = 1, beta = 0
  // ESTIMATE of the rms error of xh from the storage of y, not a bound: c u sqrt(1 + rho^2); in int8 that of
  // normal xh
  double x_hat_estimate;
};

struct StabilityResult {
  StabilityOptions options;
  std::vector<ChannelParameters> channels;
  std::vector<size_t> side_buffer;  // unstable and zero-gamma channels, ascending
  NormBounds from_output;  // every channel from the output
  // channels of `side_buffer` use the fp32 xh; equals from_output if there are none
  NormBounds recommended;
  // the error of xh at |xh| = 1 that the fp32 forward itself causes; no storage policy removes it
  double forward_x_hat;
  // ESTIMATE of the relative L2 error of dgamma, with every channel from the output and dy independent of xh
  double dgamma_estimate;
  std::array<int, 4> count;  // by ChannelClass

  const char* policy() const { return side_buffer.empty() ? "from_output" : "side_buffer"; }
  size_t side_buffer_bytes_per_row() const { return sizeof(float) * side_buffer.size(); }
};

// The depth of the kernels' fixed summation trees: the most roundings between a term and the sum.
int row_tree_depth(kernels::i64 columns);
int column_tree_depth(kernels::i64 rows, kernels::i64 columns);

// Upper bound on |xh| in a row of `columns`: sqrt(N - 1), for RMSNorm sqrt(N).
double largest_x_hat(Norm norm, kernels::i64 columns);

// The largest |x| for which the bounds hold. Beyond it, fp32 sums of squares may overflow.
double largest_x(kernels::i64 columns);

// Analyses one norm layer. gamma has N values, 1 <= N <= 2^20; beta has N values or none. `label` (the file)
// and the tensors' names appear in messages. Throws SpecError for a NaN or infinity (with tensor and index),
// for sizes that differ, and for options out of range.
StabilityResult analyse_stability(const std::vector<float>& gamma, const std::vector<float>& beta,
                                  const StabilityOptions& options, const std::string& label = "stability",
                                  const std::string& gamma_name = "gamma",
                                  const std::string& beta_name = "beta");

// The channels that the policy keeps in a side buffer, in ascending order. This is `side_buffer` of the
// analysis, without its bounds.
std::vector<size_t> side_channels(const std::vector<float>& gamma, const std::vector<float>& beta,
                                  const StabilityOptions& options);

// The errors of the textbook formulas (dx from x, sums term by term) in long double of at least 64 bits,
// bounded for the rows that `result` is about. A comparison with such a reference must allow for these
// errors.
NormBounds reference_bounds(const StabilityResult& result);

// The value at a fraction of the sorted values of rho (finite or infinite), by nearest rank.
double rho_quantile(const StabilityResult& result, double fraction);

// The tensors of one norm layer.
struct NormNames {
  std::string name;  // the common part of the names of gamma and beta: "encoder.layer.0.output.LayerNorm"
  std::string gamma;
  std::string beta;  // empty if there is none
  // Its name is a GroupNorm's, whose mean and variance are those of a group of channels at all positions: no
  // bound of this file is about it.
  bool group = false;
  // A convolution stands beside it: it may be a GroupNorm under a plain name (a ResNet block's norm1), or a
  // LayerNorm (ConvNeXt's norm).
  bool beside_convolution = false;
};

// Finds norm layers by the naming habits of PyTorch, TensorFlow and JAX checkpoints: one-dimensional X.weight
// or X.scale (with X.bias) where the last component of X contains "norm" or is "ln", "ln_1", "ln_f"; or
// X.gamma (with X.beta), whatever X is; "gn" and what contains "group_norm" or "groupnorm" are found as
// GroupNorms. A BatchNorm, which has a running mean beside it, is left out.
std::vector<NormNames> detect_norms(const TensorFile& file);

// What the norm's formula adds to the stored weights: 1 where it multiplies by 1 + w (the norms of Gemma;
// "zero-centred gamma"), known from the checkpoint's own words: the model_type of a config.json beside it, or
// tensor names that only such models have. Nothing where these do not tell.
std::optional<float> known_weight_offset(const TensorFile& file, const NormNames& norm,
                                         const std::string& model_type);

// Whether most of the weights are within 1/4 of 0: where training begins at gamma = 1, that is rare
// (LayerNorms of the committed checkpoints have medians from 0.45 to 1.27), so that they are probably to be
// added to 1.
bool around_zero(const std::vector<float>& weights);

// One element of "norms" in schema outgrad.stability/1: a summary, and the channels as columns. Infinite
// bounds are null.
nlohmann::json to_json(const StabilityResult& result);
nlohmann::json to_json(const StabilityOptions& options);

}  // namespace outgrad::validation
