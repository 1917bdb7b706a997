/* Strict C99 against the C interface, every function of it: prints a hash of every entry point's results over
 * fixed inputs, one a line. The first two lines say what ran. c_api_test runs it under each instruction set,
 * hash_test builds of it for other machines, and compares what follows. f16 and bf16: every bit pattern, with
 * both mask bits; f32: the edges of every binade and a sample of each. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outgrad.h"

static const char* const kFormatNames[] = {"f32", "f16", "bf16"};
static const size_t kBytes[] = {4, 2, 2};

static uint64_t random_state = 1;

/* splitmix64 */
static uint32_t next_random(void) {
  uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static void* allocate(size_t bytes) {
  void* memory = calloc(bytes ? bytes : 1, 1);
  if (memory == NULL) exit(3);
  return memory;
}

static uint32_t bits_at(int format, const void* array, int64_t i) {
  return format == OUTGRAD_F32 ? ((const uint32_t*)array)[i] : ((const uint16_t*)array)[i];
}

static void set_bits(int format, void* array, int64_t i, uint32_t bits) {
  if (format == OUTGRAD_F32) {
    ((uint32_t*)array)[i] = bits;
  } else {
    ((uint16_t*)array)[i] = (uint16_t)bits;
  }
}

/* Payloads of NaNs may differ between machines: all are one pattern. */
static uint32_t canonical(int format, uint32_t bits) {
  static const uint32_t infinity[] = {0x7f800000u, 0x7c00u, 0x7f80u};
  static const uint32_t magnitude[] = {0x7fffffffu, 0x7fffu, 0x7fffu};
  return (bits & magnitude[format]) > infinity[format] ? infinity[format] + 1 : bits;
}

/* FNV-1a, 64 bits, over little-endian words. */
static uint64_t hash_of(int format, const void* array, int64_t n) {
  uint64_t state = UINT64_C(0xcbf29ce484222325);
  int64_t i;
  int byte;
  for (i = 0; i < n; ++i) {
    const uint32_t word = canonical(format, bits_at(format, array, i));
    for (byte = 0; byte < 4; ++byte) state = (state ^ (word >> (8 * byte) & 0xffu)) * UINT64_C(0x100000001b3);
  }
  return state;
}

static void check(outgrad_status status) {
  if (status != OUTGRAD_OK) {
    fprintf(stderr, "%s: %s\n", outgrad_status_name(status), outgrad_error_message());
    exit(2);
  }
}

static void expect(int holds, const char* what) {
  if (!holds) {
    fprintf(stderr, "%s\n", what);
    exit(2);
  }
}

/* The functions that compute nothing. */
static void queries(void) {
  int format;
  expect(strlen(outgrad_forward_coefficients_sha256()) == 64, "outgrad_forward_coefficients_sha256");
  for (format = OUTGRAD_F32; format <= OUTGRAD_BF16; ++format) {
    expect(strlen(outgrad_coefficients_sha256(OUTGRAD_GELU, format)) == 64, "outgrad_coefficients_sha256");
    expect(*outgrad_forward_variant(format) != 0 && *outgrad_backward_variant(format) != 0,
           "the names of the variants");
    expect(*outgrad_tuned_variant(OUTGRAD_KERNEL_GELU_BACKWARD, format, 1, 4096) != 0,
           "outgrad_tuned_variant");
    expect(*outgrad_tuned_rung(OUTGRAD_KERNEL_GELU_BACKWARD, format, 1, 4096) != 0, "outgrad_tuned_rung");
  }
  expect(*outgrad_error_message() == 0, "a message before any error");
  expect(strcmp(outgrad_status_name(outgrad_set_threads(-1)), "OUTGRAD_ERROR_VALUE") == 0,
         "outgrad_set_threads takes -1");
  expect(outgrad_get_threads() == 0 && *outgrad_error_message() != 0, "no message of an error");
  check(outgrad_set_threads(2));
  expect(outgrad_get_threads() == 2, "outgrad_get_threads");
}

static void print(const char* what, int format, uint64_t hash) {
  printf("%s %s %016" PRIx64 "\n", what, kFormatNames[format], hash);
}

/* All patterns of a 16-bit format; of f32 for each sign and exponent the edges and 60 others. */
static int64_t patterns(int format, void** result) {
  const int64_t n = format == OUTGRAD_F32 ? 512 * 64 : 65536;
  int64_t i;
  *result = allocate((size_t)n * kBytes[format]);
  for (i = 0; i < n; ++i) {
    uint32_t bits = (uint32_t)i;
    if (format == OUTGRAD_F32) {
      static const uint32_t edges[] = {0u, 1u, 0x400000u, 0x7fffffu};
      bits = (uint32_t)(i / 64) << 23 | (i % 64 < 4 ? edges[i % 64] : next_random() >> 9);
    }
    set_bits(format, *result, i, bits);
  }
  return n;
}

static void activations(int format) {
  void* values;
  const int64_t count = patterns(format, &values);
  const int64_t n = 2 * count - 3; /* a tail */
  void* const y = allocate((size_t)n * kBytes[format]);
  void* const dy = allocate((size_t)n * kBytes[format]);
  void* const dx = allocate((size_t)n * kBytes[format]);
  uint32_t* const mask = allocate((size_t)(n + 31) / 32 * 4);
  int64_t i;
  int activation;
  for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
    const char* const name = outgrad_fit_name(activation, format);
    const int masked = activation < OUTGRAD_TANH;
    check(outgrad_activation_forward(activation, format, values, y, masked ? mask : NULL, count - 1));
    printf("forward ");
    print(name, format, hash_of(format, y, count - 1));
    if (masked) {
      printf("mask ");
      print(name, OUTGRAD_F32, hash_of(OUTGRAD_F32, mask, (count + 30) / 32));
    }
    if (activation == OUTGRAD_GELU) { /* under its own name */
      const uint64_t expected = hash_of(format, y, count - 1);
      check(outgrad_gelu_forward(format, values, y, mask, count - 1));
      expect(hash_of(format, y, count - 1) == expected,
             "outgrad_gelu_forward differs from outgrad_activation_forward");
    }
  }
  for (i = 0; i < n; ++i) {
    set_bits(format, y, i, bits_at(format, values, i % count));
    /* Mostly moderate, so that the derivative shows. */
    set_bits(format, dy, i,
             next_random() % 4 ? (format == OUTGRAD_F32   ? 0x3fa00000u
                                  : format == OUTGRAD_F16 ? 0x3d00u
                                                          : 0x3fa0u)
                               : bits_at(format, values, next_random() % count));
  }
  for (i = 0; i < (n + 31) / 32; ++i) mask[i] = i < count / 32 ? 0xffffffffu : 0u;
  for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
    check(outgrad_activation_backward(activation, format, dy, y, mask, dx, n));
    print(outgrad_fit_name(activation, format), format, hash_of(format, dx, n));
    if (activation == OUTGRAD_GELU) { /* under its own name, in place */
      const uint64_t expected = hash_of(format, dx, n);
      memcpy(dx, dy, (size_t)n * kBytes[format]);
      check(outgrad_gelu_backward(format, dx, y, mask, dx, n));
      expect(hash_of(format, dx, n) == expected,
             "outgrad_gelu_backward differs from outgrad_activation_backward");
    }
  }
  for (activation = OUTGRAD_GELU; activation < OUTGRAD_TANH && format != OUTGRAD_F32;
       ++activation) { /* y carries the mask */
    check(outgrad_activation_backward_parity(activation, format, dy, y, dx, n));
    printf("parity ");
    print(outgrad_fit_name(activation, format), format, hash_of(format, dx, n));
  }
  for (activation = OUTGRAD_GELU; activation < OUTGRAD_TANH && format != OUTGRAD_F32; ++activation) {
    check(outgrad_activation_forward_parity(activation, format, values, y, count - 1));
    printf("parity forward ");
    print(outgrad_fit_name(activation, format), format, hash_of(format, y, count - 1));
  }
  free(values);
  free(y);
  free(dy);
  free(dx);
  free(mask);
}

/* FNV-1a over bytes. */
static uint64_t hash_of_bytes(const uint8_t* bytes, int64_t n) {
  uint64_t state = UINT64_C(0xcbf29ce484222325);
  int64_t i;
  for (i = 0; i < n; ++i) state = (state ^ bytes[i]) * UINT64_C(0x100000001b3);
  return state;
}

/* GELU's y in MXFP8: blocks of neighbouring patterns, hence of like magnitude, and a part of one. */
static void mxfp8(int format) {
  void* values;
  const int64_t n = patterns(format, &values) - 5, blocks = (n + 31) / 32;
  uint8_t *const codes = allocate((size_t)n), *const scales = allocate((size_t)blocks);
  uint32_t* const mask = allocate((size_t)blocks * 4);
  void* const dx = allocate((size_t)n * kBytes[format]);
  check(outgrad_gelu_forward_mxfp8(format, values, codes, scales, mask, n));
  print("mxfp8_codes", format, hash_of_bytes(codes, n));
  print("mxfp8_scales", format, hash_of_bytes(scales, blocks));
  print("mxfp8_mask", format, hash_of(OUTGRAD_F32, mask, blocks));
  check(outgrad_gelu_backward_mxfp8(format, values, codes, scales, mask, dx, n));
  print("mxfp8_dx", format, hash_of(format, dx, n));
  free(values);
  free(codes);
  free(scales);
  free(mask);
  free(dx);
}

/* One line for every activation: the codes of some widths, exact and dithered, and dx from them. */
static void codes(int format) {
  static const int widths[] = {1, 4, 5, 7, 8, 2, 3};
  static const uint64_t seed = UINT64_C(0x0123456789abcdef);
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  void* const y = allocate((size_t)n * kBytes[format]);
  void* const dx = allocate((size_t)n * kBytes[format]);
  uint32_t* const packed = allocate((size_t)n + 4);
  int activation;
  size_t i;
  for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
    uint64_t hash = 0;
    expect(strlen(outgrad_code_coefficients_sha256(activation)) == 64, "outgrad_code_coefficients_sha256");
    check(outgrad_activation_forward(activation, format, values, dx, packed, n));
    for (i = 0; i < sizeof widths / sizeof *widths; ++i) {
      const uint64_t* const dither = i < 5 ? NULL : &seed;
      size_t bytes = 0;
      int64_t element;
      check(outgrad_code_bytes(widths[i], n, &bytes));
      memset(packed, 0, (size_t)n + 4);
      check(outgrad_activation_forward_code(activation, format, values, y, packed, bytes, widths[i], dither,
                                            n));
      if (i == 0)
        expect(hash_of(format, y, n) == hash_of(format, dx, n),
               "the y beside a code differs from outgrad_activation_forward's");
      hash = (hash ^ hash_of(OUTGRAD_F32, packed, (int64_t)(bytes + 3) / 4)) * UINT64_C(0x100000001b3);
      for (element = 0; element < n; ++element) {
        set_bits(format, dx, element,
                 (format == OUTGRAD_F32   ? 0x3fa00000u
                  : format == OUTGRAD_F16 ? 0x3d00u
                                          : 0x3fa0u));
      }
      check(
          outgrad_activation_backward_code(activation, format, dx, packed, bytes, dx, widths[i], dither, n));
      hash = (hash ^ hash_of(format, dx, n)) * UINT64_C(0x100000001b3);
    }
    print(outgrad_code_name(activation), format, hash);
  }
  free(values);
  free(y);
  free(dx);
  free(packed);
}

/* Codes of gradients that the caller has computed, and dx from them. */
static void encoded(int format) {
  static const uint64_t seed = UINT64_C(0x0123456789abcdef);
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  void* const dx = allocate((size_t)n * kBytes[format]);
  uint32_t* const packed = allocate((size_t)n + 4);
  uint64_t hash = 0;
  int bits;
  for (bits = 1; bits <= 8; ++bits) {
    const uint64_t* const dither = bits == 2 || bits == 3 ? &seed : NULL;
    size_t bytes = 0;
    check(outgrad_code_bytes(bits, n, &bytes));
    memset(packed, 0, (size_t)n + 4);
    check(outgrad_encode_gradients(-0.125f, 1.25f, format, values, packed, bytes, bits, dither, n));
    hash = (hash ^ hash_of(OUTGRAD_F32, packed, (int64_t)(bytes + 3) / 4)) * UINT64_C(0x100000001b3);
    check(outgrad_backward_encoded(-0.125f, 1.25f, format, values, packed, bytes, dx, bits, dither, n));
    hash = (hash ^ hash_of(format, dx, n)) * UINT64_C(0x100000001b3);
  }
  print("encoded", format, hash);
  free(values);
  free(dx);
  free(packed);
}

/* One line for each 8-bit format, over the activations that have it: codes and parts of y at a scale, dx from
 * them, and the bound. */
static void eight_bits(int format) {
  static const char* const names[] = {"e4m3_at_a_scale", "e5m2_at_a_scale", "int8_at_a_scale"};
  const float scale = 100.3f;
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  uint8_t *const kept = allocate((size_t)n), *const parts = allocate((size_t)n);
  void* const dx = allocate((size_t)n * kBytes[format]);
  int fp8, activation, bits;
  for (fp8 = OUTGRAD_E4M3; fp8 <= OUTGRAD_INT8; ++fp8) {
    uint64_t hash = 0;
    for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
      for (bits = 0; bits <= 2; ++bits) {
        size_t bytes = 0;
        int64_t element;
        double error = 0;
        uint8_t of_error[sizeof error];
        if (outgrad_fp8_error(activation, fp8, scale, bits, &error) == OUTGRAD_ERROR_ACTIVATION) continue;
        if (bits > 0) check(outgrad_code_bytes(bits, n, &bytes));
        check(outgrad_activation_forward_fp8(activation, format, values, fp8, scale, kept, parts, bytes, bits,
                                             n));
        hash =
            (hash ^ hash_of_bytes(kept, n) ^ hash_of_bytes(parts, (int64_t)bytes)) * UINT64_C(0x100000001b3);
        for (element = 0; element < n; ++element) {
          set_bits(format, dx, element,
                   (format == OUTGRAD_F32   ? 0x3fa00000u
                    : format == OUTGRAD_F16 ? 0x3d00u
                                            : 0x3fa0u));
        }
        check(outgrad_activation_backward_fp8(activation, format, dx, fp8, scale, kept, parts, bytes, dx,
                                              bits, n));
        memcpy(of_error, &error, sizeof error);
        hash =
            (hash ^ hash_of(format, dx, n) ^ hash_of_bytes(of_error, sizeof error)) * UINT64_C(0x100000001b3);
      }
    }
    print(names[fp8], format, hash);
  }
  free(values);
  free(kept);
  free(parts);
  free(dx);
}

/* One line for each 4-bit format, over the activations that have it: codes, scales and parts of y in blocks,
 * dx from them, and the bound. */
static void four_bits(int format) {
  static const char* const names[] = {"mxfp4", "nvfp4"};
  static const float tensor[] = {1, 100.3f};
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  uint8_t *const kept = allocate((size_t)n), *const scales = allocate((size_t)n),
                 *const parts = allocate((size_t)n);
  void* const dx = allocate((size_t)n * kBytes[format]);
  int fp4, activation, bits;
  for (fp4 = OUTGRAD_MXFP4; fp4 <= OUTGRAD_NVFP4; ++fp4) {
    const int64_t block = fp4 == OUTGRAD_MXFP4 ? 32 : 16;
    uint64_t hash = 0;
    for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
      for (bits = 0; bits <= 2; ++bits) {
        size_t bytes = 0;
        int64_t element;
        double error = 0;
        uint8_t of_error[sizeof error];
        if (outgrad_fp4_error(activation, fp4, tensor[fp4], 0.9f, bits, &error) == OUTGRAD_ERROR_ACTIVATION)
          continue;
        if (bits > 0) check(outgrad_code_bytes(bits, n, &bytes));
        check(outgrad_activation_forward_fp4(activation, format, values, fp4, tensor[fp4], kept, scales,
                                             parts, bytes, bits, n));
        hash = (hash ^ hash_of_bytes(kept, (n + 1) / 2) ^ hash_of_bytes(scales, (n - 1) / block + 1) ^
                hash_of_bytes(parts, (int64_t)bytes)) *
               UINT64_C(0x100000001b3);
        for (element = 0; element < n; ++element) {
          set_bits(format, dx, element,
                   (format == OUTGRAD_F32   ? 0x3fa00000u
                    : format == OUTGRAD_F16 ? 0x3d00u
                                            : 0x3fa0u));
        }
        check(outgrad_activation_backward_fp4(activation, format, dx, fp4, tensor[fp4], kept, scales, parts,
                                              bytes, dx, bits, n));
        memcpy(of_error, &error, sizeof error);
        hash =
            (hash ^ hash_of(format, dx, n) ^ hash_of_bytes(of_error, sizeof error)) * UINT64_C(0x100000001b3);
      }
    }
    print(names[fp4], format, hash);
  }
  free(values);
  free(kept);
  free(scales);
  free(parts);
  free(dx);
}

/* Values around 1 of a format, as bits. */
static uint32_t moderate(int format) {
  const uint32_t r = next_random();
  const uint32_t sign = r >> 31;
  if (format == OUTGRAD_F32) return sign << 31 | (0x3f000000u + (r & 0xffffffu));
  if (format == OUTGRAD_F16) return sign << 15 | (0x3800u + (r & 0x7ffu));
  return sign << 15 | (0x3f00u + (r & 0xffu));
}

/* Softmax with codes of p: half of each row masked, from the second element on. */
static void softmax(int format, int64_t rows, int64_t n) {
  static const uint32_t masked[] = {0xff800000u, 0xfc00u, 0xff80u};
  const int64_t size = rows * n;
  void *const x = allocate((size_t)size * kBytes[format]), *const y = allocate((size_t)size * kBytes[format]);
  void* const dy = allocate((size_t)size * kBytes[format]);
  uint8_t* const codes = allocate((size_t)size);
  size_t bytes;
  int64_t i;
  for (i = 0; i < size; ++i) {
    set_bits(format, x, i, i % n > 0 && next_random() % 2 == 0 ? masked[format] : moderate(format));
    set_bits(format, dy, i, moderate(format));
  }
  check(outgrad_code_bytes(8, size, &bytes));
  check(outgrad_softmax_forward_code(format, x, rows, n, y, codes, bytes));
  print("softmax_y", format, hash_of(format, y, size));
  print("softmax_codes", format, hash_of_bytes(codes, size));
  check(outgrad_softmax_backward_code(format, dy, codes, bytes, rows, n, dy));
  print("softmax_dx", format, hash_of(format, dy, size));
  check(outgrad_softmax_encode(format, y, rows, n, codes, bytes));
  print("softmax_encoded", format, hash_of_bytes(codes, size));
  free(x);
  free(y);
  free(dy);
  free(codes);
}

static void norms(int format, int64_t rows, int64_t n) {
  static const int32_t side[] = {0, 5};
  const int64_t size = rows * n;
  void* const x = allocate((size_t)size * kBytes[format]);
  void* const y = allocate((size_t)size * kBytes[format]);
  void* const dy = allocate((size_t)size * kBytes[format]);
  void* const dx = allocate((size_t)size * kBytes[format]);
  float *const gamma = allocate((size_t)n * 4), *const beta = allocate((size_t)n * 4);
  float *const dgamma = allocate((size_t)n * 4), *const dbeta = allocate((size_t)n * 4);
  float *const rstd = allocate((size_t)rows * 4), *const x_hat = allocate((size_t)rows * 8);
  size_t bytes;
  void* workspace;
  int64_t i;
  int rms;
  for (i = 0; i < size; ++i) {
    set_bits(format, x, i, moderate(format));
    set_bits(format, dy, i, moderate(format));
  }
  for (i = 0; i < n; ++i) {
    gamma[i] = i == 0 || i == 5 ? 0.0f : 0.5f + (float)(next_random() >> 8) * 5.9604644775390625e-8f;
    beta[i] = (float)(next_random() >> 8) * 5.9604644775390625e-8f - 0.5f;
  }
  check(outgrad_norm_backward_workspace(format, rows, n, &bytes));
  workspace = allocate(bytes);
  for (rms = 0; rms < 2; ++rms) {
    if (rms) {
      check(outgrad_rmsnorm_forward(format, x, gamma, rows, n, 1e-5f, y, rstd, side, 2, x_hat));
      check(outgrad_rmsnorm_backward(format, dy, y, gamma, rstd, rows, n, dx, dgamma, side, 2, x_hat,
                                     workspace, bytes));
    } else {
      check(outgrad_layernorm_forward(format, x, gamma, beta, rows, n, 1e-5f, y, rstd, side, 2, x_hat));
      check(outgrad_layernorm_backward(format, dy, y, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side, 2,
                                       x_hat, workspace, bytes));
      print("layernorm_dbeta", OUTGRAD_F32, hash_of(OUTGRAD_F32, dbeta, n));
    }
    print(rms ? "rmsnorm_y" : "layernorm_y", format, hash_of(format, y, size));
    print(rms ? "rmsnorm_rstd" : "layernorm_rstd", OUTGRAD_F32, hash_of(OUTGRAD_F32, rstd, rows));
    print(rms ? "rmsnorm_x_hat" : "layernorm_x_hat", OUTGRAD_F32, hash_of(OUTGRAD_F32, x_hat, rows * 2));
    print(rms ? "rmsnorm_dx" : "layernorm_dx", format, hash_of(format, dx, size));
    print(rms ? "rmsnorm_dgamma" : "layernorm_dgamma", OUTGRAD_F32, hash_of(OUTGRAD_F32, dgamma, n));
  }
  free(x);
  free(y);
  free(dy);
  free(dx);
  free(gamma);
  free(beta);
  free(dgamma);
  free(dbeta);
  free(rstd);
  free(x_hat);
  free(workspace);
}

/* The norms with y in 8 bits, in every store. */
static void norms_in_8_bits(int format, int64_t rows, int64_t n) {
  static const int32_t side[] = {1, 70};
  static const char* const names[][3] = {{"norm_e4m3_codes", "norm_e4m3_dx", "norm_e4m3_dgamma"},
                                         {"norm_mxfp8_codes", "norm_mxfp8_dx", "norm_mxfp8_dgamma"},
                                         {"norm_int8_codes", "norm_int8_dx", "norm_int8_dgamma"}};
  const int64_t size = rows * n;
  void* const x = allocate((size_t)size * kBytes[format]);
  void* const y = allocate((size_t)size * kBytes[format]);
  void* const dx = allocate((size_t)size * kBytes[format]);
  unsigned char* const codes = allocate((size_t)size);
  float *const gamma = allocate((size_t)n * 4), *const dgamma = allocate((size_t)n * 4),
               *const dbeta = allocate((size_t)n * 4);
  float *const rstd = allocate((size_t)rows * 4), *const x_hat = allocate((size_t)rows * 8);
  size_t bytes, scale_bytes;
  void* workspace;
  void* scales;
  int64_t i;
  int store, rms;
  for (i = 0; i < size; ++i) set_bits(format, x, i, moderate(format));
  for (i = 0; i < n; ++i)
    gamma[i] = i == 1 || i == 70 ? 0.0f : 0.5f + (float)(next_random() >> 8) * 5.9604644775390625e-8f;
  check(outgrad_norm_backward_workspace(format, rows, n, &bytes));
  workspace = allocate(bytes);
  for (store = OUTGRAD_NORM_E4M3; store <= OUTGRAD_NORM_INT8; ++store) {
    check(outgrad_norm_scale_bytes(store, rows, n, &scale_bytes));
    scales = allocate(scale_bytes);
    for (rms = 0; rms < 2; ++rms) {
      if (rms) {
        check(outgrad_rmsnorm_forward_8bit(format, store, x, gamma, rows, n, 1e-5f, NULL, y, codes,
                                           (size_t)size, scales, scale_bytes, rstd, side, 2, x_hat));
        check(outgrad_rmsnorm_backward_8bit(format, store, x, codes, (size_t)size, scales, scale_bytes, gamma,
                                            rstd, rows, n, dx, dgamma, side, 2, x_hat, workspace, bytes));
      } else {
        check(outgrad_layernorm_forward_8bit(format, store, x, gamma, gamma, rows, n, 1e-5f, NULL, y, codes,
                                             (size_t)size, scales, scale_bytes, rstd, side, 2, x_hat));
        check(outgrad_layernorm_backward_8bit(format, store, x, codes, (size_t)size, scales, scale_bytes,
                                              gamma, gamma, rstd, rows, n, dx, dgamma, dbeta, side, 2, x_hat,
                                              workspace, bytes));
      }
      print(names[store][0], format, hash_of_bytes(codes, size));
      print(names[store][1], format, hash_of(format, dx, size));
      print(names[store][2], OUTGRAD_F32, hash_of(OUTGRAD_F32, dgamma, n));
    }
    free(scales);
  }
  free(x);
  free(y);
  free(dx);
  free(codes);
  free(gamma);
  free(dgamma);
  free(dbeta);
  free(rstd);
  free(x_hat);
  free(workspace);
}

/* The fused forms of GELU and of the norms. */
static void fused(int format, int64_t rows, int64_t n) {
  const int64_t size = rows * n;
  void *const x = allocate((size_t)size * kBytes[format]), *const y = allocate((size_t)size * kBytes[format]);
  void *const z = allocate((size_t)size * kBytes[format]), *const dx =
                                                               allocate((size_t)size * kBytes[format]);
  void *const dy = allocate((size_t)size * kBytes[format]), *workspace;
  float *const bias = allocate((size_t)n * 4), *const dbias = allocate((size_t)n * 4),
               *const rstd = allocate((size_t)rows * 4);
  float* const dgamma = allocate((size_t)n * 4);
  uint32_t* const mask = allocate((size_t)(size + 31) / 32 * 4);
  size_t bytes, norm_bytes;
  int64_t i;
  for (i = 0; i < size; ++i) {
    set_bits(format, x, i, moderate(format));
    set_bits(format, dy, i, moderate(format));
  }
  for (i = 0; i < n; ++i) bias[i] = (float)(next_random() >> 8) * 5.9604644775390625e-8f - 0.5f;
  check(outgrad_bias_backward_workspace(format, rows, n, &bytes));
  check(outgrad_norm_backward_workspace(format, rows, n, &norm_bytes));
  workspace = allocate(bytes > norm_bytes ? bytes : norm_bytes);
  check(outgrad_bias_gelu_forward(format, x, bias, rows, n, y, mask));
  print("bias_gelu_y", format, hash_of(format, y, size));
  print("bias_gelu_mask", OUTGRAD_F32, hash_of(OUTGRAD_F32, mask, (size + 31) / 32));
  check(outgrad_bias_gelu_backward(format, dy, y, mask, rows, n, dx, dbias, workspace, bytes));
  print("bias_gelu_dx", format, hash_of(format, dx, size));
  print("bias_gelu_dbias", OUTGRAD_F32, hash_of(OUTGRAD_F32, dbias, n));
  check(outgrad_residual_layernorm_forward(format, x, dy, NULL, bias, rows, n, 1e-5f, z, y, rstd, NULL, 0,
                                           NULL));
  print("residual_layernorm_z", format, hash_of(format, z, size));
  print("residual_layernorm_y", format, hash_of(format, y, size));
  check(outgrad_residual_layernorm_backward(format, dy, y, x, NULL, bias, rstd, rows, n, dx, dgamma, dbias,
                                            NULL, 0, NULL, workspace, norm_bytes));
  print("residual_layernorm_dz", format, hash_of(format, dx, size));
  check(outgrad_residual_rmsnorm_forward(format, x, dy, NULL, rows, n, 1e-5f, z, y, rstd, NULL, 0, NULL));
  print("residual_rmsnorm_y", format, hash_of(format, y, size));
  check(outgrad_residual_rmsnorm_backward(format, dy, y, x, NULL, rstd, rows, n, dx, dgamma, NULL, 0, NULL,
                                          workspace, norm_bytes));
  print("residual_rmsnorm_dz", format, hash_of(format, dx, size));
  free(x);
  free(y);
  free(z);
  free(dx);
  free(dy);
  free(bias);
  free(dbias);
  free(rstd);
  free(dgamma);
  free(mask);
  free(workspace);
}

int main(void) {
  int format;
  printf("version %s\n", outgrad_version());
  printf("instruction_set %s\n", outgrad_instruction_set());
  queries();
  for (format = OUTGRAD_F32; format <= OUTGRAD_BF16; ++format) {
    activations(format);
    mxfp8(format);
    codes(format);
    encoded(format);
    eight_bits(format);
    four_bits(format);
    softmax(format, 37, 777);
    norms(format, 37, 777);
    fused(format, 37, 777);
    fused(format, 9, 256);
    norms(format, 3, 8);
    norms_in_8_bits(format, 37, 704);
  }
  return 0;
}
