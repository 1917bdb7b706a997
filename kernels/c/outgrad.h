/* outgrad.h: the C interface of the compiled library. Gradients of activations, LayerNorm and RMSNorm from
 * their outputs.
 *
 * C99 or later, C++98 or later. Every function may be called from any thread, and from several at once on
 * different data. None throws an exception, keeps a pointer after it returns, or allocates memory that grows
 * with the arguments.
 *
 * Arrays. x, y, dy, dx are in the given format; elements of OUTGRAD_F16 and OUTGRAD_BF16 are 16-bit words in
 * the machine's byte order. gamma, beta, dgamma, dbeta, rstd and x^ are float (fp32). Arrays may have any
 * alignment that the element type allows, and any length; in the elementwise functions n may be 0. Element
 * i's mask bit is bit i % 32 of word i / 32; a mask has (n + 31) / 32 words. An array that is written may not
 * overlap another argument, unless the function says so.
 *
 * Results depend only on the arguments, and not on the machine, its instruction set, the number of threads,
 * or the caller's rounding mode and flush-to-zero flags, which are left as they were. (Payloads of NaNs may
 * differ.)
 *
 * Errors. A function checks its arguments before it writes anything. If one is wrong, it writes nothing and
 * returns a status other than OUTGRAD_OK, and outgrad_error_message() says what is wrong and why.
 *
 * Instruction set. The best variant that the processor and the operating system support is chosen once, at
 * the first call. The environment variable OUTGRAD_ISA (baseline, avx2, avx512, avx512_bf16), read at that
 * moment, can lower the choice but not raise it.
 *
 * ABI policy. The soname is liboutgrad.so.<OUTGRAD_VERSION_MAJOR>; symbols carry the version node
 * OUTGRAD_<OUTGRAD_VERSION_MAJOR>. Under one soname, a program that was linked against an earlier release
 * runs with every later one. Functions are added, but none is removed or changes its type. Values of the
 * enumerations are added, but none changes its meaning. A status that an older caller does not know is still
 * an error. Types in this interface are fixed-width integers, float, size_t and pointers, never structs. The
 * minor version may change the coefficients, hence the bits of results (outgrad_coefficients_sha256 tells);
 * the size of the workspace (ask at run time, never store it); texts of messages; and names of variants. Of
 * these, a patch release changes only texts.
 */
#ifndef OUTGRAD_H
#define OUTGRAD_H

#include <stddef.h>
#include <stdint.h>

#define OUTGRAD_VERSION_MAJOR 0
#define OUTGRAD_VERSION_MINOR 2
#define OUTGRAD_VERSION_PATCH 0

#if defined(__GNUC__)
#define OUTGRAD_API __attribute__((visibility("default")))
#else
#define OUTGRAD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t outgrad_status;
enum {
  OUTGRAD_OK = 0,
  OUTGRAD_ERROR_NULL_POINTER = 1, /* an argument that is needed is null */
  OUTGRAD_ERROR_SIZE = 2, /* a size is negative, 0 where it may not be, or too large to be addressed */
  OUTGRAD_ERROR_OVERLAP = 3, /* an array that is written overlaps another */
  OUTGRAD_ERROR_ALIGNMENT = 4, /* a pointer is not a multiple of its element's size */
  OUTGRAD_ERROR_FORMAT = 5, /* not one of the formats */
  OUTGRAD_ERROR_ACTIVATION = 6, /* not one of the activations */
  OUTGRAD_ERROR_WORKSPACE = 7, /* the workspace is missing or too small */
  /* eps, a scale, a side channel, a thread count, the bits of a code, or a gamma whose reciprocal is not
     finite */
  OUTGRAD_ERROR_VALUE = 8,
  OUTGRAD_ERROR_ENVIRONMENT = 9, /* OUTGRAD_ISA is none of the names above */
  OUTGRAD_ERROR_INTERNAL = 10, /* a defect of this library */
  OUTGRAD_ERROR_MEMORY = 11 /* no memory for the tables of a call with y in 4 bits */
};

typedef int32_t outgrad_format;
enum { OUTGRAD_F32 = 0, OUTGRAD_F16 = 1, OUTGRAD_BF16 = 2 };

typedef int32_t outgrad_activation;
enum {
  OUTGRAD_GELU = 0, /* x Phi(x) */
  OUTGRAD_GELU_TANH = 1, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
  OUTGRAD_QUICK_GELU = 2, /* x sigmoid(1.702 x) */
  OUTGRAD_SILU = 3, /* x sigmoid(x) */
  OUTGRAD_SWISH = 4, /* x sigmoid(1.5 x) */
  OUTGRAD_MISH = 5, /* x tanh(softplus(x)) */
  OUTGRAD_TANH = 6,
  OUTGRAD_SIGMOID = 7,
  OUTGRAD_SOFTPLUS = 8, /* log(1 + exp(x)) */
  OUTGRAD_ELU = 9 /* x for x >= 0, exp(x) - 1 below */
};

/* The kernels that outgrad_tuned_variant and outgrad_tuned_rung can be asked about: the functions with these
 * names. The last two are outgrad_activation_forward_code and outgrad_activation_backward_code of
 * OUTGRAD_GELU. */
typedef int32_t outgrad_kernel;
enum {
  OUTGRAD_KERNEL_GELU_FORWARD = 0,
  OUTGRAD_KERNEL_GELU_BACKWARD = 1,
  OUTGRAD_KERNEL_BIAS_GELU_FORWARD = 2,
  OUTGRAD_KERNEL_BIAS_GELU_BACKWARD = 3,
  OUTGRAD_KERNEL_LAYERNORM_FORWARD = 4,
  OUTGRAD_KERNEL_LAYERNORM_BACKWARD = 5,
  OUTGRAD_KERNEL_RMSNORM_FORWARD = 6,
  OUTGRAD_KERNEL_RMSNORM_BACKWARD = 7,
  OUTGRAD_KERNEL_RESIDUAL_LAYERNORM_FORWARD = 8,
  OUTGRAD_KERNEL_RESIDUAL_LAYERNORM_BACKWARD = 9,
  OUTGRAD_KERNEL_RESIDUAL_RMSNORM_FORWARD = 10,
  OUTGRAD_KERNEL_RESIDUAL_RMSNORM_BACKWARD = 11,
  OUTGRAD_KERNEL_GELU_FORWARD_CODE = 12,
  OUTGRAD_KERNEL_GELU_BACKWARD_CODE = 13
};

/* --- Activations ------------------------------------------------------------------------------ */

/* y[i] = GELU(x[i]), mask bit i = [x[i] >= x*], x* = -0.7517915 where GELU is least; the bits of the last
 * word beyond n are set to 0. y may be x itself. Keep y and mask for the backward pass; x may be dropped. */
OUTGRAD_API outgrad_status outgrad_gelu_forward(outgrad_format format, const void* x, void* y, uint32_t* mask,
                                                int64_t n);

/* y[i] = f(x[i]), mask bit i = [x[i] >= x*] of an activation with a minimum at x*. The mask of an increasing
 * one (tanh, sigmoid, softplus, elu) is not written and may be null. For OUTGRAD_GELU this is
 * outgrad_gelu_forward. In f16 and bf16 y is f(x) correctly rounded; so it is in f32, except for at most 66
 * of all x, where it is within 0.5 + 2^-20 units in the last place (GELU: see
 * kernels/generated/gelu_forward.h). y may be x itself. */
OUTGRAD_API outgrad_status outgrad_activation_forward(outgrad_activation activation, outgrad_format format,
                                                      const void* x, void* y, uint32_t* mask, int64_t n);

/* dx[i] = dy[i] f'(x[i]) from y[i] = f(x[i]) and the mask bit [x[i] >= x*] of an activation with a minimum at
 * x*. The increasing ones (tanh, sigmoid, softplus, elu) have no minimum; their mask is not read and may be
 * null. dx may be dy itself. How far dx can be from the exact product is proven; the bounds are in the
 * coefficient header named by outgrad_fit_name. */
OUTGRAD_API outgrad_status outgrad_activation_backward(outgrad_activation activation, outgrad_format format,
                                                       const void* dy, const void* y, const uint32_t* mask,
                                                       void* dx, int64_t n);

/* outgrad_activation_backward for OUTGRAD_GELU. */
OUTGRAD_API outgrad_status outgrad_gelu_backward(outgrad_format format, const void* dy, const void* y,
                                                 const uint32_t* mask, void* dx, int64_t n);

/* --- GELU's y in MXFP8 ------------------------------------------------------------------------ */

/* For a next product that reads its input in MXFP8 (OCP Microscaling Formats specification 1.0): that array
 * and one bit an element are all that is kept, 1.156 bytes an element. codes [n] are e4m3, and scales [(n +
 * 31) / 32] are E8M0: elements 32 k to 32 k + 31 stand for code 2^(scales[k] - 127). Rows of a matrix have
 * blocks of their own where their length is a multiple of 32. The scale is 2^(floor(log2(amax)) - 8), and not
 * below 2^-127; elements are rounded once, from fp32, to nearest even, and saturated. An infinity counts as
 * the largest finite number; a NaN stays one and is left out of amax. mask is that of outgrad_gelu_forward.
 * No array may overlap another. */
OUTGRAD_API outgrad_status outgrad_gelu_forward_mxfp8(outgrad_format format, const void* x, uint8_t* codes,
                                                      uint8_t* scales, uint32_t* mask, int64_t n);

/* dx[i] = dy[i] GELU'(x[i]) from these arrays; dy and dx are in the format. dx may be dy itself. |dx / dy -
 * GELU'(x)| is at most kT of kernels/generated/gelu_mxfp8.h, 0.03998, apart from the rounding of dx, in every
 * block whose amax is below 2^12. From there on the numbers of e4m3 about GELU's minimum are subnormal, and
 * the error is larger: 0.117 is found for an x of bf16 in blocks whose amax is just beyond 2^12, and 0.5
 * beyond 2^16. */
OUTGRAD_API outgrad_status outgrad_gelu_backward_mxfp8(outgrad_format format, const void* dy,
                                                       const uint8_t* codes, const uint8_t* scales,
                                                       const uint32_t* mask, void* dx, int64_t n);

/* --- Activations whose y carries the mask ----------------------------------------------------- */

/* y[i] = f(x[i]) in OUTGRAD_F16 or OUTGRAD_BF16, of an activation with a minimum at x*, and nothing beside it
 * to keep: where y[i] < 0 or y[i] is -0, the lowest bit of its code is 0 for x[i] >= x* and 1 for x[i] < x*.
 * Such a y[i] is off f(x[i]) by at most one unit in the last place; y[i] >= +0 is correctly rounded. What
 * uses y next sees that. A NaN x[i] gives NaN. OUTGRAD_F32 is OUTGRAD_ERROR_FORMAT. The increasing
 * activations (tanh, sigmoid, softplus, elu) need no mask and are OUTGRAD_ERROR_ACTIVATION. y may be x
 * itself. */
OUTGRAD_API outgrad_status outgrad_activation_forward_parity(outgrad_activation activation,
                                                             outgrad_format format, const void* x, void* y,
                                                             int64_t n);

/* dx[i] = dy[i] f'(x[i]) from such a y alone. dx may be dy itself. The proven bounds are in
 * kernels/generated/, in the header <activation>_<format>_parity.h. A y that was not made by the function
 * above gives finite gradients, of the branch that its lowest bit happens to say. */
OUTGRAD_API outgrad_status outgrad_activation_backward_parity(outgrad_activation activation,
                                                              outgrad_format format, const void* dy,
                                                              const void* y, void* dx, int64_t n);

/* --- Codes for f'(x) in place of y and mask --------------------------------------------------- */

/* What is kept for the backward pass may be a code of a few bits for f'(x) alone, so that neither x nor y nor
 * a mask has to stay. Codes are packed without gaps: element i has the bits `bits` i to bits (i + 1) - 1 of
 * codes, where bit b is bit b % 8 of byte b / 8; the bits beyond the last code are 0. Two kinds:
 *   seed null: `bits` is 1 to 8. The range of f' is cut into 2^bits cells of equal width, and a code stands
 *     for the middle of its cell.
 *   seed given: `bits` is 2 or 3. Each element is rounded up or down by a dither that follows from *seed and
 *     its index, so that the gradient has no bias; the backward needs the same seed. Each tensor needs a seed
 *     of its own in each training step.
 * How far the gradient that a code stands for can be from f'(x), for every finite x, is proven: kT1 to kT8,
 * kDithered2, kDithered3 and kBias in the header named by outgrad_code_name (GELU: 0.0394 with 4 bits, 0.0197
 * with 5, 0.0025 with 8). x = +-inf gives a code of the limit of f'. A code cannot say that x was a NaN: it
 * has code 0, while y is NaN. */

/* Bytes of n codes. bytes is written only on success. A `bits` that no code has is OUTGRAD_ERROR_VALUE. */
OUTGRAD_API outgrad_status outgrad_code_bytes(int32_t bits, int64_t n, size_t* bytes);

/* y as in outgrad_activation_forward, and the codes of x. y may be x itself. codes_bytes is the size of
 * codes, which may have any alignment; fewer than outgrad_code_bytes says are OUTGRAD_ERROR_SIZE, and bytes
 * beyond these are left alone. In f16 and bf16 the first call for an activation fills tables of at most 512
 * KiB, which later ones read. */
OUTGRAD_API outgrad_status outgrad_activation_forward_code(outgrad_activation activation,
                                                           outgrad_format format, const void* x, void* y,
                                                           void* codes, size_t codes_bytes, int32_t bits,
                                                           const uint64_t* seed, int64_t n);

/* dx[i] = dy[i] times what code i stands for. dx may be dy itself. activation, bits and *seed are those of
 * the forward; the format of dy and dx may be another. */
OUTGRAD_API outgrad_status outgrad_activation_backward_code(outgrad_activation activation,
                                                            outgrad_format format, const void* dy,
                                                            const void* codes, size_t codes_bytes, void* dx,
                                                            int32_t bits, const uint64_t* seed, int64_t n);

/* The same for an activation of one's own, whose y and f'(x) the caller computes. `./outgrad fit` and `emit`
 * make a header of codes from its formula (docs/your_own_activation.md): lo and hi are the header's kLo and
 * kHi, between which all f'(x) lie. g[i] is f'(x) of element i within the header's kG, and code i is that of
 * g[i]; a g outside of [lo, hi] is taken for the nearer end. The range is within +-2 and wider than 1/8, and
 * lo <= 0, else OUTGRAD_ERROR_VALUE. Array sizes, bits and seed are as above. */
OUTGRAD_API outgrad_status outgrad_encode_gradients(float lo, float hi, outgrad_format format, const void* g,
                                                    void* codes, size_t codes_bytes, int32_t bits,
                                                    const uint64_t* seed, int64_t n);

/* dx[i] = dy[i] times what code i stands for. dx may be dy itself. lo, hi, bits and *seed are those of the
 * codes; format is that of dy and dx, and need not be that of g. */
OUTGRAD_API outgrad_status outgrad_backward_encoded(float lo, float hi, outgrad_format format, const void* dy,
                                                    const void* codes, size_t codes_bytes, void* dx,
                                                    int32_t bits, const uint64_t* seed, int64_t n);

/* The header of an activation's codes, such as "gelu_code", and its SHA-256, as for outgrad_fit_name. Null
 * for an unknown activation. */
OUTGRAD_API const char* outgrad_code_name(outgrad_activation activation);
OUTGRAD_API const char* outgrad_code_coefficients_sha256(outgrad_activation activation);

/* --- Softmax over the rows of [rows, n], with codes of p -------------------------------------- */

/* Softmax's backward needs its output p alone. A code of 8 bits gives log2(p) in steps of 3/32: p' is p
 * within 3.25% from 6.4e-8 up, and 0 below. One byte an element is all that is kept (outgrad_code_bytes with
 * 8 bits). rows may be 0; n is 1 to 2^23, because in longer rows all p may be that small.
 *
 * How far dx can be from softmax's gradient ds is proven: over a row, sum |dx - ds| is at most 0.0651 sum
 * |ds| + 1.273e-7 n (max(dy) - min(dy)), apart from the rounding of dx and terms of 2^-24 |dy|.
 * kernels/softmax.h derives this and has the bounds with every rounding: this one, that of an element, and
 * that of sum |p' - p| (0.03275 for n = 4096).
 *
 * x = -inf, a masked element, gives p = 0 and dx = 0. A row with NaN or +inf, or with nothing but -inf, gives
 * NaN in all of y, and in all of dx. */

/* y = softmax(x) in the format and the codes [rows, n] of p before it is rounded to the format. y may be x
 * itself. codes_bytes is the size of codes, at least rows n; bytes beyond these are left alone. */
OUTGRAD_API outgrad_status outgrad_softmax_forward_code(outgrad_format format, const void* x, int64_t rows,
                                                        int64_t n, void* y, void* codes, size_t codes_bytes);

/* The codes alone, of a p [rows, n] that was computed elsewhere. A p below 0 or NaN has code 0, one above 1
 * that of 1. The relative error of this p adds to that of the codes. */
OUTGRAD_API outgrad_status outgrad_softmax_encode(outgrad_format format, const void* p, int64_t rows,
                                                  int64_t n, void* codes, size_t codes_bytes);

/* dx = p' (dy - sum(p' dy) / sum(p')), row by row. dx may be dy itself. The format of dy and dx may be
 * another than the forward's. */
OUTGRAD_API outgrad_status outgrad_softmax_backward_code(outgrad_format format, const void* dy,
                                                         const void* codes, size_t codes_bytes, int64_t rows,
                                                         int64_t n, void* dx);

/* --- y in 8 bits at a scale ------------------------------------------------------------------- */

/* For a next product that reads its input in 8 bits with one scale a tensor: its codes serve the backward
 * pass too, with 0, 1 or 2 bits beside each. codes [n] are y scale, rounded once from fp32 to nearest even in
 * e4m3 or e5m2 (OFP8) or to an integer from -127 to 127 (int8), so that code i stands for code / scale; what
 * exceeds the largest number, an infinity too, is saturated, and a NaN stays one. int8 has no NaN: there its
 * code is -128, which no number has, and whose gradient is NaN. A product that reads these codes takes it for
 * the number -128 / scale. Many x share a code. The bits beside it, its part, say in which part of their
 * f'(x) this one lies; the parts are as short as so many bits allow. Parts are packed without gaps, as codes
 * of outgrad_activation_forward_code: those of one bit lie as a mask does. scale is positive, finite and not
 * subnormal, else OUTGRAD_ERROR_VALUE. The increasing activations (tanh, sigmoid, softplus, elu) are
 * OUTGRAD_ERROR_ACTIVATION.
 *
 * How far the gradient can be from dy f'(x), apart from the rounding of dx, is proven for every finite x. In
 * the header <activation>_fp8.h of kernels/generated/ are bounds over all scales from 448/2^12 to 448 for
 * e4m3 and from 57344/2^26 to 57344 for e5m2: scales by which the largest |y| is from 1 to 2^12 (2^26) if it
 * becomes the largest number. For int8, whose numbers do not lie closer where they are small, they are over
 * the scales from 127/8 to 127, largest |y| from 1 to 8. For GELU they are, with 1 and 2 bits, 0.0612 and
 * 0.0307 in e4m3, 0.0791 and 0.0396 in e5m2, and 0.1011 and 0.0476 in int8. outgrad_fp8_error has the bound
 * of any one scale. */
typedef int32_t outgrad_fp8;
enum { OUTGRAD_E4M3 = 0, OUTGRAD_E5M2 = 1, OUTGRAD_INT8 = 2 };

/* parts_bytes is the size of parts; fewer than outgrad_code_bytes(bits, n) are OUTGRAD_ERROR_SIZE. With bits
 * = 0, parts may be null. No array may overlap another. */
OUTGRAD_API outgrad_status outgrad_activation_forward_fp8(outgrad_activation activation,
                                                          outgrad_format format, const void* x,
                                                          outgrad_fp8 fp8, float scale, uint8_t* codes,
                                                          void* parts, size_t parts_bytes, int32_t bits,
                                                          int64_t n);

/* dx[i] = dy[i] times what code i and part i stand for. dx may be dy itself. activation, fp8, scale and bits
 * are those of the forward; the format of dy and dx may be another. */
OUTGRAD_API outgrad_status outgrad_activation_backward_fp8(outgrad_activation activation,
                                                           outgrad_format format, const void* dy,
                                                           outgrad_fp8 fp8, float scale, const uint8_t* codes,
                                                           const void* parts, size_t parts_bytes, void* dx,
                                                           int32_t bits, int64_t n);

/* The proven bound of |dx / dy - f'(x)| at this scale. error is written only on success. */
OUTGRAD_API outgrad_status outgrad_fp8_error(outgrad_activation activation, outgrad_fp8 fp8, float scale,
                                             int32_t bits, double* error);

/* --- y in 4 bits by blocks -------------------------------------------------------------------- */

/* The same for a next product that reads e2m1 (0, 1/2, 1, 3/2, 2, 3, 4, 6 and a sign) in blocks that share a
 * scale:
 *   OUTGRAD_MXFP4  blocks of 32, the scale an E8M0, as OCP's Microscaling Formats 1.0 convert to them;
 *                  `scale` is 1
 *   OUTGRAD_NVFP4  blocks of 16, the block's scale an e4m3: its largest |y| times `scale`, over 6, rounded to
 *                  nearest. `scale` is the tensor's, 6 448 / (its largest |y|), from 2^-117 up to 2^118. A
 *                  code stands for code (block's scale) / scale
 * codes [(n + 1) / 2] hold two codes a byte, the earlier in its lower half; scales has one byte a block, the
 * last of which may be a part of one. e2m1 has no NaN: a NaN makes its block's scale NaN, and with it the
 * gradients of the block.
 *
 * The proven bounds depend on the largest |y| of a block: outgrad_fp4_error. The sign of y alone halves the
 * derivatives that a code may stand for, so in no block is GELU's further than 0.1574 with 1 bit and 0.0788
 * with 2, and in blocks with large |y| a code beside +-0 says no more than this sign. */
typedef int32_t outgrad_fp4;
enum { OUTGRAD_MXFP4 = 0, OUTGRAD_NVFP4 = 1 };

/* parts and parts_bytes as of outgrad_activation_forward_fp8. No array may overlap another. */
OUTGRAD_API outgrad_status outgrad_activation_forward_fp4(outgrad_activation activation,
                                                          outgrad_format format, const void* x,
                                                          outgrad_fp4 fp4, float scale, uint8_t* codes,
                                                          uint8_t* scales, void* parts, size_t parts_bytes,
                                                          int32_t bits, int64_t n);

/* dx[i] = dy[i] times what code i and part i stand for in a block of that scale. dx may be dy itself.
 * activation, fp4, scale and bits are those of the forward; the format of dy and dx may be another. */
OUTGRAD_API outgrad_status outgrad_activation_backward_fp4(outgrad_activation activation,
                                                           outgrad_format format, const void* dy,
                                                           outgrad_fp4 fp4, float scale, const uint8_t* codes,
                                                           const uint8_t* scales, const void* parts,
                                                           size_t parts_bytes, void* dx, int32_t bits,
                                                           int64_t n);

/* The proven bound of |dx / dy - f'(x)| in every block whose largest |y| is at most amax; infinity for all
 * blocks. error is written only on success. */
OUTGRAD_API outgrad_status outgrad_fp4_error(outgrad_activation activation, outgrad_fp4 fp4, float scale,
                                             float amax, int32_t bits, double* error);

/* --- Normalisations over the rows of [rows, n] ------------------------------------------------ */

/* y = (x - mean) rstd gamma + beta, rstd[row] = 1 / sqrt(var + eps). rows may be 0, but not n; eps is at
 * least 0. gamma and beta are [n] and may be null, which means 1 and 0. y may be x itself. Side channels:
 * columns whose output does not determine their x^ well enough (gamma 0 or near it). side_channels holds
 * side_count ascending column numbers, and side_x_hat [rows, side_count] receives their x^. Both may be null
 * if side_count is 0. */
OUTGRAD_API outgrad_status outgrad_layernorm_forward(outgrad_format format, const void* x, const float* gamma,
                                                     const float* beta, int64_t rows, int64_t n, float eps,
                                                     void* y, float* rstd, const int32_t* side_channels,
                                                     int64_t side_count, float* side_x_hat);

/* The same without mean and beta: rstd[row] = 1 / sqrt(mean(x^2) + eps). */
OUTGRAD_API outgrad_status outgrad_rmsnorm_forward(outgrad_format format, const void* x, const float* gamma,
                                                   int64_t rows, int64_t n, float eps, void* y, float* rstd,
                                                   const int32_t* side_channels, int64_t side_count,
                                                   float* side_x_hat);

/* Bytes of workspace, aligned to 4, that a backward of this shape needs. bytes is written only on success. */
OUTGRAD_API outgrad_status outgrad_norm_backward_workspace(outgrad_format format, int64_t rows, int64_t n,
                                                           size_t* bytes);

/* dx, dgamma and dbeta from dy and the output y; dgamma and dbeta may be null if not wanted. dx may be dy
 * itself. gamma, beta and the side channels are those of the forward; rstd and side_x_hat are what it wrote.
 * A gamma whose reciprocal is not finite (0, or below 2^-128 in magnitude) outside the side channels is
 * OUTGRAD_ERROR_VALUE: the output does not hold its x^. The workspace's content does not matter and is
 * overwritten. */
OUTGRAD_API outgrad_status outgrad_layernorm_backward(outgrad_format format, const void* dy, const void* y,
                                                      const float* gamma, const float* beta,
                                                      const float* rstd, int64_t rows, int64_t n, void* dx,
                                                      float* dgamma, float* dbeta,
                                                      const int32_t* side_channels, int64_t side_count,
                                                      const float* side_x_hat, void* workspace,
                                                      size_t workspace_bytes);

OUTGRAD_API outgrad_status outgrad_rmsnorm_backward(outgrad_format format, const void* dy, const void* y,
                                                    const float* gamma, const float* rstd, int64_t rows,
                                                    int64_t n, void* dx, float* dgamma,
                                                    const int32_t* side_channels, int64_t side_count,
                                                    const float* side_x_hat, void* workspace,
                                                    size_t workspace_bytes);

/* The norms with y in 8 bits, as a next product reads it: codes [rows, n], one byte each, are kept in place
 * of y. All arithmetic is fp32; y is rounded to its code once, before it is narrowed to the format.
 * kernels/norm_store.h has every rounding.
 *   OUTGRAD_NORM_E4M3   one scale s for the tensor (a float): code = y / s rounded to e4m3 (OFP8) and
 *                       saturated, read as code s
 *   OUTGRAD_NORM_MXFP8  blocks of 32 along a row share a power of two (OCP Microscaling Formats 1.0; a byte
 *                       of type E8M0)
 *   OUTGRAD_NORM_INT8   groups of 64 along a row have two floats, their least y and a step: y = least + code
 *                       step, code 0 to 255
 * Blocks and groups divide n, else OUTGRAD_ERROR_SIZE. A NaN stays NaN; in int8 its whole group is NaN, as is
 * that of an infinity.
 *
 * How far dx, dgamma and dbeta can then be from the exact gradients is certified channel by channel for given
 * gamma and beta by `outgrad stability --format e4m3|mxfp8|int8`. Channels for which that is too far belong
 * to the side channels, whose x^ is kept in fp32 and whose y has codes all the same. */
typedef int32_t outgrad_norm_store;
enum { OUTGRAD_NORM_E4M3 = 0, OUTGRAD_NORM_MXFP8 = 1, OUTGRAD_NORM_INT8 = 2 };

/* Bytes of the scales of [rows, n] codes; they are aligned to 4, those of MXFP8 to 1. bytes is written only
 * on success. */
OUTGRAD_API outgrad_status outgrad_norm_scale_bytes(outgrad_norm_store store, int64_t rows, int64_t n,
                                                    size_t* bytes);

/* outgrad_layernorm_forward, which also writes codes and scales. y may be null if codes are all that is
 * wanted. scale may be null, or with OUTGRAD_NORM_E4M3 the tensor's scale, such as one that follows from
 * earlier steps; without it the scale is that by which the largest |y| becomes 448. It is positive, finite
 * and not subnormal, else OUTGRAD_ERROR_VALUE. codes_bytes and scales_bytes are the sizes of these arrays;
 * fewer than are needed are OUTGRAD_ERROR_SIZE. */
OUTGRAD_API outgrad_status outgrad_layernorm_forward_8bit(
    outgrad_format format, outgrad_norm_store store, const void* x, const float* gamma, const float* beta,
    int64_t rows, int64_t n, float eps, const float* scale, void* y, void* codes, size_t codes_bytes,
    void* scales, size_t scales_bytes, float* rstd, const int32_t* side_channels, int64_t side_count,
    float* side_x_hat);

OUTGRAD_API outgrad_status outgrad_rmsnorm_forward_8bit(
    outgrad_format format, outgrad_norm_store store, const void* x, const float* gamma, int64_t rows,
    int64_t n, float eps, const float* scale, void* y, void* codes, size_t codes_bytes, void* scales,
    size_t scales_bytes, float* rstd, const int32_t* side_channels, int64_t side_count, float* side_x_hat);

/* outgrad_layernorm_backward from what the codes stand for. The workspace is that of
 * outgrad_norm_backward_workspace. A scale that is zero, negative, subnormal, infinite or NaN is
 * OUTGRAD_ERROR_VALUE; only the least y of a group of int8 may be NaN. */
OUTGRAD_API outgrad_status outgrad_layernorm_backward_8bit(
    outgrad_format format, outgrad_norm_store store, const void* dy, const void* codes, size_t codes_bytes,
    const void* scales, size_t scales_bytes, const float* gamma, const float* beta, const float* rstd,
    int64_t rows, int64_t n, void* dx, float* dgamma, float* dbeta, const int32_t* side_channels,
    int64_t side_count, const float* side_x_hat, void* workspace, size_t workspace_bytes);

OUTGRAD_API outgrad_status outgrad_rmsnorm_backward_8bit(
    outgrad_format format, outgrad_norm_store store, const void* dy, const void* codes, size_t codes_bytes,
    const void* scales, size_t scales_bytes, const float* gamma, const float* rstd, int64_t rows, int64_t n,
    void* dx, float* dgamma, const int32_t* side_channels, int64_t side_count, const float* side_x_hat,
    void* workspace, size_t workspace_bytes);

/* --- Fused forms ------------------------------------------------------------------------------ */

/* y = GELU(x + bias) over [rows, n], bias [n]; the sum is in fp32 and never stored. Mask bit i is as in
 * outgrad_gelu_forward, over all rows n elements. rows may be 0, but not n. y may be x itself. */
OUTGRAD_API outgrad_status outgrad_bias_gelu_forward(outgrad_format format, const void* x, const float* bias,
                                                     int64_t rows, int64_t n, void* y, uint32_t* mask);

/* Bytes of workspace, aligned to 4, that the next function needs. bytes is written only on success. */
OUTGRAD_API outgrad_status outgrad_bias_backward_workspace(outgrad_format format, int64_t rows, int64_t n,
                                                           size_t* bytes);

/* dx = dy g as in outgrad_gelu_backward, and dbias [n], the sums over rows of the fp32 products before they
 * are rounded to the format. dx may be dy itself. */
OUTGRAD_API outgrad_status outgrad_bias_gelu_backward(outgrad_format format, const void* dy, const void* y,
                                                      const uint32_t* mask, int64_t rows, int64_t n, void* dx,
                                                      float* dbias, void* workspace, size_t workspace_bytes);

/* z = x + residual, rounded to fp32 and to the format, then the norm of z as above. z may be x or residual. y
 * may also be one of them, but not z. */
OUTGRAD_API outgrad_status outgrad_residual_layernorm_forward(outgrad_format format, const void* x,
                                                              const void* residual, const float* gamma,
                                                              const float* beta, int64_t rows, int64_t n,
                                                              float eps, void* z, void* y, float* rstd,
                                                              const int32_t* side_channels,
                                                              int64_t side_count, float* side_x_hat);
OUTGRAD_API outgrad_status outgrad_residual_rmsnorm_forward(outgrad_format format, const void* x,
                                                            const void* residual, const float* gamma,
                                                            int64_t rows, int64_t n, float eps, void* z,
                                                            void* y, float* rstd,
                                                            const int32_t* side_channels, int64_t side_count,
                                                            float* side_x_hat);

/* dz = the norm's gradient + dz_next, the gradient from z's other use; added in fp32 and rounded once to the
 * format. dz is the gradient of x and of residual, and may be dy or dz_next. All else, including the
 * workspace, is as in outgrad_layernorm_backward and outgrad_rmsnorm_backward. */
OUTGRAD_API outgrad_status outgrad_residual_layernorm_backward(
    outgrad_format format, const void* dy, const void* y, const void* dz_next, const float* gamma,
    const float* beta, const float* rstd, int64_t rows, int64_t n, void* dz, float* dgamma, float* dbeta,
    const int32_t* side_channels, int64_t side_count, const float* side_x_hat, void* workspace,
    size_t workspace_bytes);
OUTGRAD_API outgrad_status outgrad_residual_rmsnorm_backward(
    outgrad_format format, const void* dy, const void* y, const void* dz_next, const float* gamma,
    const float* rstd, int64_t rows, int64_t n, void* dz, float* dgamma, const int32_t* side_channels,
    int64_t side_count, const float* side_x_hat, void* workspace, size_t workspace_bytes);

/* --- Errors ----------------------------------------------------------------------------------- */

/* What went wrong in this thread's last failed call, as one line: "function: what: why". "" if no call has
 * failed. The text stays until the thread's next failing call. */
OUTGRAD_API const char* outgrad_error_message(void);

/* The name of a status, such as "OUTGRAD_ERROR_SIZE"; never null. */
OUTGRAD_API const char* outgrad_status_name(outgrad_status status);

/* --- Threads ---------------------------------------------------------------------------------- */

/* Sets the most threads for each later call of this process, from any thread; 0, the default, means as many
 * as OpenMP gives the calling thread (OMP_NUM_THREADS, omp_set_num_threads). This is an atomic store: running
 * calls keep the number they began with. The caller's own OpenMP settings stay as they are. Inside a parallel
 * region of the caller, a call runs on one thread, as OpenMP prescribes. So does every call in a child that
 * was forked after a call on several threads, since these stayed behind in its parent. (Where the parent ran
 * GNU's OpenMP by itself and made no such call, its child sets outgrad_set_threads(1): OpenMP would wait for
 * the parent's threads for ever.) */
OUTGRAD_API outgrad_status outgrad_set_threads(int32_t threads);

/* The number last set; 0 if none was. */
OUTGRAD_API int32_t outgrad_get_threads(void);

/* --- What runs -------------------------------------------------------------------------------- */

/* "major.minor.patch" of the library that runs, which may be newer than this header. */
OUTGRAD_API const char* outgrad_version(void);

/* The variant that the process has chosen: "baseline", "avx2", "avx512" or "avx512_bf16". */
OUTGRAD_API const char* outgrad_instruction_set(void);

/* The fit that a backward runs, such as "gelu_bf16": its coefficients, proven bounds and origin are in
 * kernels/generated/<name>.h. Null for an unknown activation or format; this is also true of the next two
 * functions. */
OUTGRAD_API const char* outgrad_fit_name(outgrad_activation activation, outgrad_format format);

/* SHA-256 of that header as it was compiled in, 64 hexadecimal digits. Equal digests mean equal coefficients
 * and equal bits. sha256sum of the installed file gives the same digest. */
OUTGRAD_API const char* outgrad_coefficients_sha256(outgrad_activation activation, outgrad_format format);

/* The same for GELU's forward, kernels/generated/gelu_forward.h. */
OUTGRAD_API const char* outgrad_forward_coefficients_sha256(void);

/* The schedule of GELU's forward and backward in a format for the largest arrays, by the tuner's name
 * ("default" without tuning). No schedule changes a bit of a result. */
OUTGRAD_API const char* outgrad_forward_variant(outgrad_format format);
OUTGRAD_API const char* outgrad_backward_variant(outgrad_format format);

/* The schedule of a kernel for arrays of [rows, n] (for GELU without a bias, rows = 1 and n elements), and
 * the rung of the ladder on which it was found: "exact device" (tuned on such a processor with as many
 * threads), "same architecture", "same family" (vectors of the same width), or "default" (nothing nearer was
 * tuned). Null for an unknown kernel or format. */
OUTGRAD_API const char* outgrad_tuned_variant(outgrad_kernel kernel, outgrad_format format, int64_t rows,
                                              int64_t n);
OUTGRAD_API const char* outgrad_tuned_rung(outgrad_kernel kernel, outgrad_format format, int64_t rows,
                                           int64_t n);

#ifdef __cplusplus
}
#endif

#endif /* OUTGRAD_H */
