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
 * an error. Members are added at the end of outgrad_call, where an older
 * caller's count as 0. Until 1.0 a minor version may break this: CHANGELOG.md says so then. The minor version
 * may change the coefficients, hence the bits of results (outgrad_coefficients_sha256 tells); the size of the
 * workspace (ask at run time, never store it); texts of messages; and names of variants. Of these, a patch
 * release changes only texts.
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
   * finite */
  OUTGRAD_ERROR_VALUE = 8,
  OUTGRAD_ERROR_ENVIRONMENT = 9, /* OUTGRAD_ISA is none of the names above */
  OUTGRAD_ERROR_INTERNAL = 10, /* a defect of this library */
  OUTGRAD_ERROR_MEMORY = 11, /* no memory for the tables of a call with y in 4 bits */
  OUTGRAD_ERROR_STORE = 12 /* not one of the stores, or none that the function takes */
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
 * names, where GELU's are outgrad_activation_forward and _backward of OUTGRAD_GELU with OUTGRAD_STORE_Y, the
 * last two with OUTGRAD_STORE_CODE. */
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

/* What is kept for the backward pass in place of x. Not every function takes every store; one that it does
 * not take is OUTGRAD_ERROR_STORE. */
typedef int32_t outgrad_store;
enum {
  OUTGRAD_STORE_Y = 0,      /* y, and of an activation with a minimum a mask */
  OUTGRAD_STORE_PARITY = 1, /* y alone, whose lowest bit is the mask's */
  OUTGRAD_STORE_CODE = 2,   /* a code for f'(x), of softmax for p */
  OUTGRAD_STORE_MXFP8 = 3,  /* e4m3 in blocks that share a power of two */
  OUTGRAD_STORE_E4M3 = 4,   /* e4m3 at a scale of the tensor */
  OUTGRAD_STORE_E5M2 = 5,   /* e5m2 likewise */
  OUTGRAD_STORE_INT8 = 6,   /* 8-bit integers */
  OUTGRAD_STORE_MXFP4 = 7,  /* e2m1 in blocks that share a power of two */
  OUTGRAD_STORE_NVFP4 = 8   /* e2m1 in blocks that share an e4m3 */
};

/* --- A call ------------------------------------------------------------------------------------- */

/* The arguments of a function. Each function says which members it takes; the others may be anything, 0 among
 * it. In C:
 *   const outgrad_call call = {sizeof call, .format = OUTGRAD_BF16, .x = x, .y = y, .mask = mask, .n = n};
 *   status = outgrad_activation_forward(&call);
 * What a forward writes, its backward reads and does not write: y, z, mask, rstd, side_x_hat, codes, scales,
 * parts, slot. */
typedef struct outgrad_call {
  /* sizeof(outgrad_call), by which a later release knows the members that an older caller lacks */
  size_t size;
  outgrad_format format;
  outgrad_activation activation;
  outgrad_store store;
  int32_t bits; /* of a code; beside a y of few bits: 0, 1 or 2 */
  int64_t rows, n;
  float eps;
  float lo, hi;
  const float* scale; /* one float */
  const uint64_t* seed;

  const void *x, *residual; /* in the format, as are y, z, dy, dz_next, g, dx and dz */
  const float* bias; /* [n] */
  const float *gamma, *beta; /* [n] */
  void *y, *z;
  uint32_t* mask;
  float* rstd; /* [rows] */
  const void* g; /* f'(x) */
  const void *dy, *dz_next;
  void *dx, *dz;
  float *dgamma, *dbeta, *dbias; /* [n] */

  void *codes, *scales, *parts;
  /* What these arrays hold. What lies beyond what is needed is left alone. */
  size_t codes_bytes, scales_bytes, parts_bytes;

  const int32_t* side_channels;
  int64_t side_count;
  float* side_x_hat; /* [rows, side_count] */

  void* workspace; /* aligned to 4; its content does not matter and is overwritten */
  size_t workspace_bytes;

  const void* b; /* of a gated pair, in the format, as are db and slot */
  void* db;
  void* slot;
} outgrad_call;

/* --- Activations -------------------------------------------------------------------------------- */

/* y[i] = f(x[i]) and what the store keeps of it; takes activation, format, store, x, n and the store's
 * members.
 *
 * OUTGRAD_STORE_Y: y and mask. Mask bit i is [x[i] >= x*] of an activation with a minimum at x* (GELU's is at
 * -0.7517915); the bits of the last word beyond n are set to 0. The mask of an increasing one (tanh, sigmoid,
 * softplus, elu) is not written and may be null. In f16 and bf16 y is f(x) correctly rounded. In f32 it is
 * within one unit in the last place of f(x), counted over all x, but for GELU (1.51) and the left tail of its
 * tanh form (1.17). y may be x itself.
 *
 * OUTGRAD_STORE_PARITY: y in f16 or bf16 (f32 is OUTGRAD_ERROR_FORMAT), of an activation with a minimum at x*
 * (the increasing ones are OUTGRAD_ERROR_ACTIVATION), and nothing beside it: where y[i] < 0 or y[i] is -0,
 * the lowest bit of its code is 0 for x[i] >= x* and 1 for x[i] < x*. Such a y[i] is off f(x[i]) by at most
 * one unit in the last place; y[i] >= +0 is correctly rounded. What uses y next sees that. A NaN x[i] gives
 * NaN. y may be x itself.
 *
 * OUTGRAD_STORE_CODE: y as in OUTGRAD_STORE_Y, and in codes a code of `bits` bits for f'(x[i]), which is all
 * that needs to be kept. Codes are packed without gaps: element i has the bits `bits` i to bits (i + 1) - 1
 * of codes, where bit b is bit b % 8 of byte b / 8; the bits beyond the last code are 0. codes may have any
 * alignment. Two kinds:
 *  - seed null: `bits` is 1 to 8. The range of f' is cut into 2^bits cells of equal width, and a code stands
 *    for the middle of its cell.
 *  - seed given: `bits` is 2 or 3. Each element is rounded up or down by a dither that follows from *seed and
 *    its index, so that the gradient has no bias; the backward needs the same seed. Each tensor needs a seed
 *    of its own in each training step.
 * How far the gradient that a code stands for can be from f'(x), for every finite x, is proven: kT1 to kT8,
 * kDithered2, kDithered3 and kBias in the header named by outgrad_code_name (GELU: 0.0394 with 4 bits, 0.0197
 * with 5, 0.0025 with 8). x = +-inf gives a code of the limit of f'. A code cannot say that x was a NaN: it
 * has code 0, while y is NaN. In f16 and bf16 the first call for an activation fills tables of at most 512
 * KiB, which later ones read. y may be x itself.
 *
 * OUTGRAD_STORE_MXFP8, of GELU alone, for a next product that reads its input in MXFP8 (OCP Microscaling
 * Formats specification 1.0): codes [n] are e4m3, scales [(n + 31) / 32] are E8M0, and mask is as above; y
 * itself is not written. Elements 32 k to 32 k + 31 stand for code 2^(scales[k] - 127). Rows of a matrix have
 * blocks of their own where their length is a multiple of 32. The scale is 2^(floor(log2(amax)) - 8), and not
 * below 2^-127; elements are rounded once, from fp32, to nearest even, and saturated. An infinity counts as
 * the largest finite number; a NaN stays one and is left out of amax.
 *
 * OUTGRAD_STORE_E4M3, _E5M2, _INT8, of activations with a minimum, for a next product that reads its input in
 * 8 bits with one scale a tensor: codes [n] are y *scale, rounded once from fp32 to nearest even in e4m3 or
 * e5m2 (OFP8) or to an integer from -127 to 127, so that code i stands for code / *scale; what exceeds the
 * largest number, an infinity too, is saturated, and a NaN stays one. int8 has no NaN: there its code is
 * -128, which no number has, and whose gradient is NaN. A product that reads these codes takes it for the
 * number -128 / *scale. Many x share a code. The `bits` bits beside it, its part, say in which part of their
 * f'(x) this one lies; the parts are as short as so many bits allow. Parts are packed as codes of
 * OUTGRAD_STORE_CODE are, so that those of one bit lie as a mask does; with bits = 0, parts may be null.
 * *scale is positive, finite and not subnormal, else OUTGRAD_ERROR_VALUE. y itself is not written.
 *
 * OUTGRAD_STORE_MXFP4, _NVFP4: the same for a next product that reads e2m1 (0, 1/2, 1, 3/2, 2, 3, 4, 6 and a
 * sign) in blocks that share a scale:
 * - MXFP4: blocks of 32, the scale an E8M0, as OCP's Microscaling Formats 1.0 convert to them; *scale is 1.
 * - NVFP4: blocks of 16, the block's scale an e4m3: its largest |y| times *scale, over 6, rounded to nearest.
 *   *scale is the tensor's, 6 448 / (its largest |y|), from 2^-117 up to 2^118. A code stands for code
 *   (block's scale) / *scale.
 *
 * codes [(n + 1) / 2] hold two codes a byte, the earlier in its lower half; scales has one byte a block, the
 * last of which may be a part of one. e2m1 has no NaN: a NaN makes its block's scale NaN, and with it the
 * gradients of the block. */
OUTGRAD_API outgrad_status outgrad_activation_forward(const outgrad_call* call);

/* dx[i] = dy[i] f'(x[i]) from what the forward kept. dx may be dy itself. Takes activation, format, store,
 * dy, n, dx and the store's members: y and mask of OUTGRAD_STORE_Y (the mask of an increasing activation is
 * not read and may be null), y of OUTGRAD_STORE_PARITY, codes, scales, parts, mask, scale, bits and *seed as
 * the forward had them. Where y is not read, the format of dy and dx may be another than the forward's. How
 * far dx can be from the exact product, apart from its rounding, is proven:
 * - OUTGRAD_STORE_Y: the bounds of the header named by outgrad_fit_name.
 * - OUTGRAD_STORE_PARITY: those of <activation>_<format>_parity.h. A y that was not made by the forward gives
 *   finite gradients, of the branch that its lowest bit happens to say.
 * - OUTGRAD_STORE_MXFP8: |dx / dy - GELU'(x)| is at most kT of gelu_mxfp8.h, 0.03998, in every block whose
 *   amax is below 2^12. From there on the numbers of e4m3 about GELU's minimum are subnormal, and the error
 *   is larger: 0.117 is found for an x of bf16 in blocks whose amax is just beyond 2^12, and 0.5 beyond 2^16.
 * - the others: outgrad_store_error. In <activation>_fp8.h are bounds over all scales from 448/2^12 to 448
 *   for e4m3 and from 57344/2^26 to 57344 for e5m2: scales by which the largest |y| is from 1 to 2^12 (2^26)
 *   if it becomes the largest number. For int8, whose numbers do not lie closer where they are small, they
 *   are over the scales from 127/8 to 127, largest |y| from 1 to 8. For GELU they are, with 1 and 2 bits,
 *   0.0612 and 0.0307 in e4m3, 0.0791 and 0.0396 in e5m2, and 0.1011 and 0.0476 in int8. In 4 bits the sign
 *   of y alone halves the derivatives that a code may stand for, so in no block is GELU's further than 0.1574
 *   with 1 bit and 0.0788 with 2, and in blocks with large |y| a code beside +-0 says no more than this sign.
 *
 * These headers are in kernels/generated/. */
OUTGRAD_API outgrad_status outgrad_activation_backward(const outgrad_call* call);

/* Sets codes_bytes, scales_bytes and parts_bytes of the call to what its store needs for n elements; takes
 * store, bits, seed and n. scales are aligned to 1 here. */
OUTGRAD_API outgrad_status outgrad_activation_sizes(outgrad_call* call);

/* The proven bound of |dx / dy - f'(x)| of OUTGRAD_STORE_CODE, and at *scale of OUTGRAD_STORE_E4M3, _E5M2 and
 * _INT8; of OUTGRAD_STORE_MXFP4 and _NVFP4 in every block whose largest |y| is at most amax, infinity for all
 * blocks. Takes activation, store, bits, scale and seed. error is written only on success. */
OUTGRAD_API outgrad_status outgrad_store_error(const outgrad_call* call, float amax, double* error);

/* OUTGRAD_STORE_CODE for an activation of one's own, whose y and f'(x) the caller computes; takes format, lo,
 * hi, g, codes, bits, seed and n. `./outgrad fit` and `emit` make a header of codes from its formula
 * (docs/your_own_activation.md): lo and hi are the header's kLo and kHi, between which all f'(x) lie. g[i] is
 * f'(x) of element i within the header's kG, and code i is that of g[i]; a g outside of [lo, hi] is taken for
 * the nearer end. The range is within +-2 and wider than 1/8, and lo <= 0, else OUTGRAD_ERROR_VALUE. */
OUTGRAD_API outgrad_status outgrad_encode_gradients(const outgrad_call* call);

/* dx[i] = dy[i] times what code i stands for. dx may be dy itself. lo, hi, bits and *seed are those of the
 * codes; format is that of dy and dx, and need not be that of g. */
OUTGRAD_API outgrad_status outgrad_backward_encoded(const outgrad_call* call);

/* The header of an activation's codes, such as "gelu_code", and its SHA-256, as for outgrad_fit_name. Null
 * for an unknown activation. */
OUTGRAD_API const char* outgrad_code_name(outgrad_activation activation);
OUTGRAD_API const char* outgrad_code_coefficients_sha256(outgrad_activation activation);

/* y = GELU(x + bias) over [rows, n]; the sum is in fp32 and never stored. Takes format, x, bias, rows, n, y
 * and mask, whose bit i is as in OUTGRAD_STORE_Y, over all rows n elements. rows may be 0, but not n. y may
 * be x itself. */
OUTGRAD_API outgrad_status outgrad_bias_gelu_forward(const outgrad_call* call);

/* dx = dy g as in outgrad_activation_backward, and dbias, the sums over rows of the fp32 products before they
 * are rounded to the format. Takes format, dy, y, mask, rows, n, dx, dbias and workspace. dx may be dy
 * itself. */
OUTGRAD_API outgrad_status outgrad_bias_gelu_backward(const outgrad_call* call);

/* Sets workspace_bytes to what outgrad_bias_gelu_backward needs; takes format, rows and n. */
OUTGRAD_API outgrad_status outgrad_bias_gelu_sizes(outgrad_call* call);

/* --- Gated pairs -------------------------------------------------------------------------------- */

/* y = f(a) b over [rows, n], as in a gated MLP, for the gates OUTGRAD_GELU, _GELU_TANH, _SILU and
 * _SIGMOID; another one is OUTGRAD_ERROR_ACTIVATION. Takes activation, format, x, which is a, b, rows, n and
 * y. b may be null: then x is [rows, 2 n], and a row of it holds those of a and then those of b.
 * f(a) is computed in fp32 from a (kernels/gate.h has its error), and the product is rounded once more, to
 * the format. y may be x or b unless b is null. rows may be 0, but not n. */
OUTGRAD_API outgrad_status outgrad_gated_forward(const outgrad_call* call);

/* dx = dy b f'(a) and db = dy f(a), from a and b themselves; takes activation, format, dy, x, b, rows, n, dx,
 * db and y. With b null, dx is [rows, 2 n] and holds both, and db is not looked at. y may be null; otherwise
 * it becomes what the forward gave, to the bit, for whoever has not kept it. dx may be x, db may be b, and y
 * may be dy. f'(a) is within 2.3e-7 of the exact one, counted over every finite float a. */
OUTGRAD_API outgrad_status outgrad_gated_backward(const outgrad_call* call);

/* The same pair for whoever keeps its product y anyway, as the Linear after it does: then slot [rows, n] and
 * a bit an element are all that is kept beside y, and nothing is computed again. For OUTGRAD_GELU,
 * _GELU_TANH and _SILU (another one is OUTGRAD_ERROR_ACTIVATION) in f16 and bf16 (f32 is
 * OUTGRAD_ERROR_FORMAT, because y, b and a bit are as much as a and b there). Takes activation, format, x,
 * b, rows, n, y, slot and mask, with x, b, rows and n as in outgrad_gated_forward. y is that of
 * outgrad_gated_forward, but for the signs of its zeros: they say what the slot holds, which is b wherever y
 * is not 0, and the larger of f(a) and b where it is. Mask bit i is [a >= x*] of element i, as in
 * OUTGRAD_STORE_Y. y may be x and slot b unless b is null. */
OUTGRAD_API outgrad_status outgrad_product_forward(const outgrad_call* call);

/* dx = dy b f'(a) and db = dy y / b from y, slot and mask as the forward gave them; takes activation,
 * format, dy, y, slot, mask, rows, n, dx and db. With db null, dx is [rows, 2 n] and holds both; otherwise
 * dx may be dy. What stands for f'(a) is within kT of <activation>_<format>_product.h of it, 0.0164 for SiLU
 * in bf16 and 0.0057 in f16, and what stands for f(a) within a relative kRelative, 2^-8 and 2^-11, as long
 * as y is finite and above the least normal number, or |b| >= 1/2; kernels/product.h says by how much
 * otherwise. */
OUTGRAD_API outgrad_status outgrad_product_backward(const outgrad_call* call);

/* --- Softmax over the rows of [rows, n], with codes of p ---------------------------------------- */

/* Softmax's backward needs its output p alone. A code of 8 bits gives log2(p) in steps of 3/32: p' is p
 * within 3.25% from 6.4e-8 up, and 0 below. One byte an element is all that is kept. rows may be 0; n is 1 to
 * 2^23, because in longer rows all p may be that small.
 *
 * How far dx can be from softmax's gradient ds is proven: over a row, sum |dx - ds| is at most
 * 0.0651 sum |ds| + 1.273e-7 n (max(dy) - min(dy)), apart from the rounding of dx and terms of 2^-24 |dy|.
 * kernels/softmax.h derives this and has the bounds with every rounding: this one, that of an element, and
 * that of sum |p' - p| (0.03275 for n = 4096).
 *
 * x = -inf, a masked element, gives p = 0 and dx = 0. A row with NaN or +inf, or with nothing but -inf, gives
 * NaN in all of y, and in all of dx. */

/* y = softmax(x) in the format and the codes [rows, n] of p before it is rounded to the format; takes format,
 * x, rows, n, y and codes. y may be x itself. */
OUTGRAD_API outgrad_status outgrad_softmax_forward(const outgrad_call* call);

/* The codes alone, of a p [rows, n] that was computed elsewhere and is given as y. A p below 0 or NaN has
 * code 0, one above 1 that of 1. The relative error of this p adds to that of the codes. */
OUTGRAD_API outgrad_status outgrad_softmax_encode(const outgrad_call* call);

/* dx = p' (dy - sum(p' dy) / sum(p')), row by row; takes format, dy, rows, n, dx and codes. dx may be dy
 * itself. The format of dy and dx may be another than the forward's. */
OUTGRAD_API outgrad_status outgrad_softmax_backward(const outgrad_call* call);

/* --- Normalisations over the rows of [rows, n] -------------------------------------------------- */

/* y = (x - mean) rstd gamma + beta, rstd[row] = 1 / sqrt(var + eps). Takes format, store, x, gamma, beta,
 * rows, n, eps, y, rstd and the side channels. rows may be 0, but not n; eps is at least 0. gamma and beta
 * may be null, which means 1 and 0. y may be x itself. Side channels: columns whose output does not determine
 * their x^ well enough (gamma 0 or near it). side_channels holds side_count ascending column numbers, and
 * side_x_hat receives their x^. Both may be null if side_count is 0.
 *
 * With another store than OUTGRAD_STORE_Y, what is kept are codes [rows, n] of y, one byte each, as a next
 * product reads them, and scales, and y may be null if these are all that is wanted. All arithmetic is fp32;
 * y is rounded to its code once, before it is narrowed to the format. kernels/norm_store.h has every
 * rounding.
 * - OUTGRAD_STORE_E4M3: one scale s for the tensor (a float): code = y / s rounded to e4m3 (OFP8) and
 *   saturated, read as code s. *scale gives it, such as one that follows from earlier steps; it is positive,
 *   finite and not subnormal, else OUTGRAD_ERROR_VALUE. With scale null it is that by which the largest |y|
 *   becomes 448.
 * - OUTGRAD_STORE_MXFP8: blocks of 32 along a row share a power of two (OCP Microscaling Formats 1.0; a byte
 *   of type E8M0).
 * - OUTGRAD_STORE_INT8: groups of 64 along a row have two floats, their least y and a step: y = least + code
 *   step, code 0 to 255.
 *
 * Blocks and groups divide n, else OUTGRAD_ERROR_SIZE. A NaN stays NaN; in int8 its whole group is NaN, as is
 * that of an infinity. scales are aligned to 4, those of MXFP8 to 1. How far dx, dgamma and dbeta can then be
 * from the exact gradients is certified channel by channel for given gamma and beta by
 * `outgrad stability --format e4m3|mxfp8|int8`. Channels for which that is too far belong to the side
 * channels, whose x^ is kept in fp32 and whose y has codes all the same. */
OUTGRAD_API outgrad_status outgrad_layernorm_forward(const outgrad_call* call);

/* The same without mean and beta: rstd[row] = 1 / sqrt(mean(x^2) + eps). */
OUTGRAD_API outgrad_status outgrad_rmsnorm_forward(const outgrad_call* call);

/* dx, dgamma and dbeta from dy and the output y, or from what its codes stand for; dgamma and dbeta may be
 * null if not wanted. Takes format, store, dy, gamma, beta, rows, n, what the forward wrote, dx, dgamma,
 * dbeta, the side channels and workspace. dx may be dy itself. gamma, beta and the side channels are those of
 * the forward. A gamma whose reciprocal is not finite (0, or below 2^-128 in magnitude) outside the side
 * channels is OUTGRAD_ERROR_VALUE: the output does not hold its x^. So is a scale that is zero, negative,
 * subnormal, infinite or NaN; only the least y of a group of int8 may be NaN. */
OUTGRAD_API outgrad_status outgrad_layernorm_backward(const outgrad_call* call);

/* The same without beta and dbeta. */
OUTGRAD_API outgrad_status outgrad_rmsnorm_backward(const outgrad_call* call);

/* Sets codes_bytes and scales_bytes to what the store needs, and workspace_bytes to what a backward needs,
 * that of a sum too; takes format, store, rows and n. */
OUTGRAD_API outgrad_status outgrad_norm_sizes(outgrad_call* call);

/* z = x + residual, rounded to fp32 and to the format, then the norm of z as above with OUTGRAD_STORE_Y. z
 * may be x or residual. y may also be one of them, but not z. */
OUTGRAD_API outgrad_status outgrad_residual_layernorm_forward(const outgrad_call* call);
OUTGRAD_API outgrad_status outgrad_residual_rmsnorm_forward(const outgrad_call* call);

/* dz = the norm's gradient + dz_next, the gradient from z's other use; added in fp32 and rounded once to the
 * format. dz is the gradient of x and of residual, takes the place of dx, and may be dy or dz_next. All else
 * is as in outgrad_layernorm_backward and outgrad_rmsnorm_backward. */
OUTGRAD_API outgrad_status outgrad_residual_layernorm_backward(const outgrad_call* call);
OUTGRAD_API outgrad_status outgrad_residual_rmsnorm_backward(const outgrad_call* call);

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
