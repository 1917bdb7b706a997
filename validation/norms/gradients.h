// One batch of rows through the deployed norm kernels, through the exact gradient, and through what other libraries compute.
//
// All values are float, those of a 16-bit format exactly representable in it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/layernorm.h"

namespace outgrad::validation {

struct NormLayer {
  kernels::Norm norm = kernels::Norm::layer;
  std::string format = "f32";
  kernels::i64 rows = 1, n = 1;
  std::vector<float> gamma, beta;  // beta is empty for RMSNorm
  float eps = 1e-5f;
  std::vector<kernels::i32> side;  // channels that keep x^ in fp32, ascending
};

struct NormBatch {
  std::vector<float> x, dy;  // [rows, n]
};

// What the kernels computed of a batch. x_hat: the x^ that the backward pass reads, formed as it forms it.
struct NormGradients {
  std::vector<float> rstd, x_hat, dx, dgamma, dbeta;
};

// Where a test may plant a fault.
class NormTamper {
 public:
  virtual ~NormTamper() = default;
  virtual void after_forward(const NormLayer&, const NormBatch&, std::vector<float>& /*rstd*/) const {}
  virtual void after_backward(const NormLayer&, const NormBatch&, NormGradients&) const {}
};

// The forward pass and the backward pass from the output, by the public host functions (kernels/host/layernorm.h).
class NormKernels {
 public:
  virtual ~NormKernels() = default;
  virtual void run(const NormBatch& batch, const NormTamper* tamper, NormGradients& result) = 0;
  // x rounded to the format; the value `steps` further on in the format, order by order (negative: towards -infinity), which stops at the
  // largest finite values.
  virtual float rounded(double x) const = 0;
  virtual float stepped(float x, int steps) const = 0;
};

// `layer` has to outlive the result. Throws SpecError for an unknown format.
std::unique_ptr<NormKernels> norm_kernels(const NormLayer& layer);

// The gradient of the stored x by the textbook formulas in long double: its error is that of reference_bounds() in validation/norms/stability.h.
struct NormReference {
  std::vector<long double> rstd, x_hat, dx, dgamma, dbeta;
  std::vector<double> mean_ratio, x_hat_max;  // of each row: |mean| rstd, max |x^|; rounded up
};
void exact_gradients(const NormLayer& layer, const NormBatch& batch, NormReference& result);

// Other ways to the same gradient, in fp32 with pairwise sums, dx rounded to the format.
enum class NormPeer {
  kFromInput,      // x, mean and rstd kept: what the output-based gradient saves
  kClampedGamma,   // from the output, x^ = (y - beta) / gamma with |gamma| raised to eps: Apex's memory_efficient=True
  kUnguarded,      // from the output, the same division as it is: Apex's fast LayerNorm
};
const char* to_string(NormPeer peer);
void peer_gradients(const NormLayer& layer, const NormBatch& batch, NormPeer peer, NormGradients& result);

}  // namespace outgrad::validation
