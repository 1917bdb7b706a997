// Runs one batch of rows through the deployed norm kernels, through the exact gradient, and through the
// computations of other libraries.
//
// All values are float; those of a 16-bit format are exactly representable in it. Where y is kept in 8 bits
// (stores.h), the library's kernels keep codes of the forward's y in fp32, and every run makes sure that
// these stand for the y of stores.h, bit for bit. int8_row has no kernel; there the backward in fp32 reads
// the y of stores.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/layernorm.h"

namespace outgrad::validation {

struct NormLayer {
  kernels::Norm norm = kernels::Norm::layer;
  std::string format = "f32";  // one of kNormFormats
  kernels::i64 rows = 1, n = 1;
  std::vector<float> gamma, beta;  // beta is empty for RMSNorm
  float eps = 1e-5f;
  std::vector<kernels::i32> side;  // channels that keep x^ in fp32, in ascending order
};

struct NormBatch {
  std::vector<float> x, dy;  // [rows, n]
};

// What the kernels computed for a batch. x_hat is the x^ that the backward pass reads, computed in the same
// way.
struct NormGradients {
  std::vector<float> rstd, x_hat, dx, dgamma, dbeta;
};

// A place where a test may plant a fault.
class NormTamper {
 public:
  virtual ~NormTamper() = default;
  virtual void after_forward(const NormLayer&, const NormBatch&, std::vector<float>& /*rstd*/) const {}
  virtual void after_backward(const NormLayer&, const NormBatch&, NormGradients&) const {}
};

// The forward pass, and the backward pass from the output, through the compiled library
// (kernels/c/outgrad.h).
class NormKernels {
 public:
  virtual ~NormKernels() = default;
  virtual void run(const NormBatch& batch, const NormTamper* tamper, NormGradients& result) = 0;
  // x rounded to the format; and the value `steps` further on in the order of the format's values (negative:
  // towards -infinity), which stops at the largest finite values.
  virtual float rounded(double x) const = 0;
  virtual float stepped(float x, int steps) const = 0;
  // What the backward pass would read for a y at [row, column], if the other y of the last run stayed.
  virtual float read_as(float y, size_t row, size_t column) const = 0;
};

// `layer` must outlive the result. Throws SpecError for an unknown format.
std::unique_ptr<NormKernels> norm_kernels(const NormLayer& layer);

// The gradient of the stored x, computed by the textbook formulas in long double. reference_bounds() in
// validation/norms/stability.h bounds its error.
struct NormReference {
  std::vector<long double> rstd, x_hat, dx, dgamma, dbeta;
  std::vector<double> mean_ratio, x_hat_max;  // for each row: |mean| rstd and max |x^|, rounded up
};
void exact_gradients(const NormLayer& layer, const NormBatch& batch, NormReference& result);

// Other ways to compute the same gradient, in fp32 with pairwise sums; dx is rounded to the format.
enum class NormPeer {
  kFromInput,  // x, mean and rstd are kept, which the output-based gradient saves
  // from the output: x^ = (y - beta) / gamma, with |gamma| raised to eps, as in Apex's memory_efficient=True
  kClampedGamma,
  kUnguarded,  // from the output: the same division without a guard, as in Apex's fast LayerNorm
};
const char* to_string(NormPeer peer);
void peer_gradients(const NormLayer& layer, const NormBatch& batch, NormPeer peer, NormGradients& result);

}  // namespace outgrad::validation
