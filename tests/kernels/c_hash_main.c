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

static void* allocated[32];
static int allocations = 0;

static void* allocate(size_t bytes) {
  void* const memory = calloc(bytes ? bytes : 1, 1);
  if (memory == NULL) exit(3);
  allocated[allocations++] = memory;
  return memory;
}

static void release(void) {
  while (allocations > 0) free(allocated[--allocations]);
}

static void* elements(int format, int64_t n) { return allocate((size_t)n * kBytes[format]); }
static float* floats(int64_t n) { return allocate((size_t)n * sizeof(float)); }

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

static const uint64_t kPrime = UINT64_C(0x100000001b3);

/* FNV-1a, 64 bits, over little-endian words. */
static uint64_t hash_of(int format, const void* array, int64_t n) {
  uint64_t state = UINT64_C(0xcbf29ce484222325);
  int64_t i;
  int byte;
  for (i = 0; i < n; ++i) {
    const uint32_t word = canonical(format, bits_at(format, array, i));
    for (byte = 0; byte < 4; ++byte) state = (state ^ (word >> (8 * byte) & 0xffu)) * kPrime;
  }
  return state;
}

/* FNV-1a over bytes. */
static uint64_t hash_of_bytes(const uint8_t* bytes, size_t n) {
  uint64_t state = UINT64_C(0xcbf29ce484222325);
  size_t i;
  for (i = 0; i < n; ++i) state = (state ^ bytes[i]) * kPrime;
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

/* The name is in two parts. */
static void print(const char* what, const char* more, int format, uint64_t hash) {
  printf("%s%s %s %016" PRIx64 "\n", what, more, kFormatNames[format], hash);
}

static void print_array(const char* what, const char* more, int format, const void* array, int64_t n) {
  print(what, more, format, hash_of(format, array, n));
}

/* All patterns of a 16-bit format; of f32 for each sign and exponent the edges and 60 others. */
static int64_t patterns(int format, void** result) {
  const int64_t n = format == OUTGRAD_F32 ? 512 * 64 : 65536;
  int64_t i;
  *result = elements(format, n);
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

static const uint32_t kFiveQuarters[] = {0x3fa00000u, 0x3d00u, 0x3fa0u};

static void fill(int format, void* array, int64_t n) {
  int64_t i;
  for (i = 0; i < n; ++i) set_bits(format, array, i, kFiveQuarters[format]);
}

static void activations(int format) {
  void* values;
  const int64_t count = patterns(format, &values);
  const int64_t n = 2 * count - 3; /* a tail */
  uint32_t* const mask = allocate((size_t)(n + 31) / 32 * 4);
  void *const y = elements(format, n), *const dy = elements(format, n), *const dx = elements(format, n);
  outgrad_call forward = {sizeof forward, .format = format, .x = values, .y = y, .n = count - 1};
  outgrad_call backward = {sizeof backward, .format = format, .dy = dy, .y = y,
                           .mask = mask,    .dx = dx,         .n = n};
  int64_t i;
  int activation;
  for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
    const char* const name = outgrad_fit_name(activation, format);
    forward.activation = activation;
    forward.mask = activation < OUTGRAD_TANH ? mask : NULL;
    check(outgrad_activation_forward(&forward));
    print_array("forward ", name, format, y, count - 1);
    if (forward.mask) print_array("mask ", name, OUTGRAD_F32, mask, (count + 30) / 32);
  }
  for (i = 0; i < n; ++i) {
    set_bits(format, y, i, bits_at(format, values, i % count));
    /* Mostly moderate, so that the derivative shows. */
    set_bits(format, dy, i,
             next_random() % 4 ? kFiveQuarters[format] : bits_at(format, values, next_random() % count));
  }
  for (i = 0; i < (n + 31) / 32; ++i) mask[i] = i < count / 32 ? 0xffffffffu : 0u;
  for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
    backward.activation = activation;
    check(outgrad_activation_backward(&backward));
    print_array("", outgrad_fit_name(activation, format), format, dx, n);
  }
  forward.store = backward.store = OUTGRAD_STORE_PARITY; /* y carries the mask */
  for (activation = OUTGRAD_GELU; activation < OUTGRAD_TANH && format != OUTGRAD_F32; ++activation) {
    backward.activation = activation;
    check(outgrad_activation_backward(&backward));
    print_array("parity ", outgrad_fit_name(activation, format), format, dx, n);
  }
  for (activation = OUTGRAD_GELU; activation < OUTGRAD_TANH && format != OUTGRAD_F32; ++activation) {
    forward.activation = activation;
    check(outgrad_activation_forward(&forward));
    print_array("parity forward ", outgrad_fit_name(activation, format), format, y, count - 1);
  }
}

/* GELU's y in MXFP8: blocks of neighbouring patterns, hence of like magnitude, and a part of one. */
static void mxfp8(int format) {
  void* values;
  const int64_t n = patterns(format, &values) - 5, blocks = (n + 31) / 32;
  outgrad_call call = {sizeof call, .format = format, .store = OUTGRAD_STORE_MXFP8, .n = n};
  check(outgrad_activation_sizes(&call));
  call.x = call.dy = values;
  call.codes = allocate(call.codes_bytes);
  call.scales = allocate(call.scales_bytes);
  call.mask = allocate((size_t)blocks * 4);
  call.dx = elements(format, n);
  check(outgrad_activation_forward(&call));
  print("mxfp8_codes", "", format, hash_of_bytes(call.codes, call.codes_bytes));
  print("mxfp8_scales", "", format, hash_of_bytes(call.scales, call.scales_bytes));
  print("mxfp8_mask", "", format, hash_of(OUTGRAD_F32, call.mask, blocks));
  check(outgrad_activation_backward(&call));
  print_array("mxfp8_dx", "", format, call.dx, n);
}

static const uint64_t kSeed = UINT64_C(0x0123456789abcdef);

/* One line for every activation: the codes of some widths, exact and dithered, and dx from them. */
static void codes(int format) {
  static const int widths[] = {1, 4, 5, 7, 8, 2, 3};
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  void *const y = elements(format, n), *const dx = elements(format, n);
  uint32_t* const packed = allocate((size_t)n + 4);
  int activation;
  size_t i;
  for (activation = OUTGRAD_GELU; activation <= OUTGRAD_ELU; ++activation) {
    outgrad_call call = {
        sizeof call, .format = format, .activation = activation, .x = values, .dy = dx, .y = dx, .dx = dx,
        .n = n};
    uint64_t hash = 0;
    expect(strlen(outgrad_code_coefficients_sha256(activation)) == 64, "outgrad_code_coefficients_sha256");
    call.mask = packed;
    check(outgrad_activation_forward(&call));
    call.store = OUTGRAD_STORE_CODE;
    call.y = y;
    call.codes = packed;
    for (i = 0; i < sizeof widths / sizeof *widths; ++i) {
      call.bits = widths[i];
      call.seed = i < 5 ? NULL : &kSeed;
      check(outgrad_activation_sizes(&call));
      memset(packed, 0, (size_t)n + 4);
      check(outgrad_activation_forward(&call));
      if (i == 0)
        expect(hash_of(format, y, n) == hash_of(format, dx, n), "the y beside a code differs from y alone");
      hash = (hash ^ hash_of(OUTGRAD_F32, packed, (int64_t)(call.codes_bytes + 3) / 4)) * kPrime;
      fill(format, dx, n);
      check(outgrad_activation_backward(&call));
      hash = (hash ^ hash_of(format, dx, n)) * kPrime;
    }
    print(outgrad_code_name(activation), "", format, hash);
  }
}

/* Codes of gradients that the caller has computed, and dx from them. */
static void encoded(int format) {
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  outgrad_call call = {sizeof call,
                       .format = format,
                       .store = OUTGRAD_STORE_CODE,
                       .lo = -0.125f,
                       .hi = 1.25f,
                       .g = values,
                       .dy = values,
                       .n = n};
  uint64_t hash = 0;
  call.dx = elements(format, n);
  call.codes = allocate((size_t)n + 4);
  for (call.bits = 1; call.bits <= 8; ++call.bits) {
    call.seed = call.bits == 2 || call.bits == 3 ? &kSeed : NULL;
    check(outgrad_activation_sizes(&call));
    memset(call.codes, 0, (size_t)n + 4);
    check(outgrad_encode_gradients(&call));
    hash = (hash ^ hash_of(OUTGRAD_F32, call.codes, (int64_t)(call.codes_bytes + 3) / 4)) * kPrime;
    check(outgrad_backward_encoded(&call));
    hash = (hash ^ hash_of(format, call.dx, n)) * kPrime;
  }
  print("encoded", "", format, hash);
}

typedef struct {
  const char* name;
  outgrad_store store;
  float scale;
} Few;

/* One line for each of the activations that have it, in each store: codes, scales and parts of y in 8 or 4
 * bits, dx from them, and the bound. */
static void few_bits(int format, const Few* stores, int count) {
  void* values;
  const int64_t n = patterns(format, &values) - 3; /* a tail */
  outgrad_call call = {sizeof call, .format = format, .x = values, .n = n};
  int k;
  call.codes = allocate((size_t)n);
  call.scales = allocate((size_t)n);
  call.parts = allocate((size_t)n);
  call.dy = call.dx = elements(format, n);
  for (k = 0; k < count; ++k) {
    uint64_t hash = 0;
    call.store = stores[k].store;
    call.scale = &stores[k].scale;
    for (call.activation = OUTGRAD_GELU; call.activation <= OUTGRAD_ELU; ++call.activation) {
      for (call.bits = 0; call.bits <= 2; ++call.bits) {
        double error = 0;
        if (outgrad_store_error(&call, 0.9f, &error) == OUTGRAD_ERROR_ACTIVATION) continue;
        check(outgrad_activation_sizes(&call));
        check(outgrad_activation_forward(&call));
        hash ^= hash_of_bytes(call.codes, call.codes_bytes) ^ hash_of_bytes(call.parts, call.parts_bytes);
        if (call.scales_bytes > 0) hash ^= hash_of_bytes(call.scales, call.scales_bytes);
        hash *= kPrime;
        fill(format, call.dx, n);
        check(outgrad_activation_backward(&call));
        hash ^= hash_of(format, call.dx, n) ^ hash_of_bytes((const uint8_t*)&error, sizeof error);
        hash *= kPrime;
      }
    }
    print(stores[k].name, "", format, hash);
  }
}

/* Values around 1 of a format, as bits. */
static uint32_t moderate(int format) {
  const uint32_t r = next_random();
  const uint32_t sign = r >> 31;
  if (format == OUTGRAD_F32) return sign << 31 | (0x3f000000u + (r & 0xffffffu));
  if (format == OUTGRAD_F16) return sign << 15 | (0x3800u + (r & 0x7ffu));
  return sign << 15 | (0x3f00u + (r & 0xffu));
}

/* x and dy of a call over rows, drawn in turn. */
static void draw(outgrad_call* call, void* x, void* dy) {
  int64_t i;
  for (i = 0; i < call->rows * call->n; ++i) {
    set_bits(call->format, x, i, moderate(call->format));
    set_bits(call->format, dy, i, moderate(call->format));
  }
  call->x = x;
  call->dy = dy;
}

/* Uniform in [0, 1). */
static float unit(void) { return (float)(next_random() >> 8) * 5.9604644775390625e-8f; }

/* Gated pairs, whose a and b are the halves of a row. */
static void gated(int format, int64_t rows, int64_t n) {
  static const int gates[] = {OUTGRAD_GELU, OUTGRAD_GELU_TANH, OUTGRAD_SILU, OUTGRAD_SIGMOID};
  static const char* const names[] = {"gelu", "gelu_tanh", "silu", "sigmoid"};
  int64_t i;
  int k;
  for (k = 0; k < 4; ++k) {
    void *const x = elements(format, 2 * rows * n), *const dy = elements(format, rows * n);
    outgrad_call call = {sizeof call, .format = format, .activation = gates[k],          .rows = rows,
                         .n = n,      .x = x,           .y = elements(format, rows * n), .dy = dy,
                         .dx = x};
    for (i = 0; i < 2 * rows * n; ++i) set_bits(format, x, i, moderate(format));
    for (i = 0; i < rows * n; ++i) set_bits(format, dy, i, moderate(format));
    check(outgrad_gated_forward(&call));
    print_array("gated_y", names[k], format, call.y, rows * n);
    check(outgrad_gated_backward(&call));
    print_array("gated_dx", names[k], format, x, 2 * rows * n);
    if (format == OUTGRAD_F32 || gates[k] == OUTGRAD_SIGMOID) continue;
    for (i = 0; i < 2 * rows * n; ++i) set_bits(format, x, i, moderate(format));
    call.slot = elements(format, rows * n);
    call.mask = allocate((size_t)((rows * n + 31) / 32) * sizeof *call.mask);
    check(outgrad_product_forward(&call));
    print_array("product_y", names[k], format, call.y, rows * n);
    print_array("product_slot", names[k], format, call.slot, rows * n);
    check(outgrad_product_backward(&call));
    print_array("product_dx", names[k], format, x, 2 * rows * n);
  }
}

/* Softmax with codes of p: half of each row masked, from the second element on. */
static void softmax(int format, int64_t rows, int64_t n) {
  static const uint32_t masked[] = {0xff800000u, 0xfc00u, 0xff80u};
  const int64_t size = rows * n;
  void *const x = elements(format, size), *const dy = elements(format, size);
  outgrad_call call = {sizeof call, .format = format, .rows = rows, .n = n, .x = x, .dy = dy, .dx = dy};
  int64_t i;
  for (i = 0; i < size; ++i) {
    set_bits(format, x, i, i % n > 0 && next_random() % 2 == 0 ? masked[format] : moderate(format));
    set_bits(format, dy, i, moderate(format));
  }
  call.y = elements(format, size);
  call.codes_bytes = (size_t)size;
  call.codes = allocate(call.codes_bytes);
  check(outgrad_softmax_forward(&call));
  print_array("softmax_y", "", format, call.y, size);
  print("softmax_codes", "", format, hash_of_bytes(call.codes, call.codes_bytes));
  check(outgrad_softmax_backward(&call));
  print_array("softmax_dx", "", format, dy, size);
  check(outgrad_softmax_encode(&call));
  print("softmax_encoded", "", format, hash_of_bytes(call.codes, call.codes_bytes));
}

/* A call of a norm with its results. */
static outgrad_call norm_call(int format, outgrad_store store, int64_t rows, int64_t n) {
  outgrad_call call = {sizeof call, .format = format, .store = store, .rows = rows, .n = n, .eps = 1e-5f};
  check(outgrad_norm_sizes(&call));
  call.workspace = allocate(call.workspace_bytes);
  call.codes = allocate(call.codes_bytes);
  call.scales = allocate(call.scales_bytes);
  call.y = elements(format, rows * n);
  call.dx = elements(format, rows * n);
  call.dgamma = floats(n);
  call.dbeta = floats(n);
  call.rstd = floats(rows);
  return call;
}

static void norms(int format, int64_t rows, int64_t n) {
  static const int32_t side[] = {0, 5};
  outgrad_call call = norm_call(format, OUTGRAD_STORE_Y, rows, n);
  float *const gamma = floats(n), *const beta = floats(n);
  int64_t i;
  int rms;
  draw(&call, elements(format, rows * n), elements(format, rows * n));
  for (i = 0; i < n; ++i) {
    gamma[i] = i == 0 || i == 5 ? 0.0f : 0.5f + unit();
    beta[i] = unit() - 0.5f;
  }
  call.gamma = gamma;
  call.beta = beta;
  call.side_channels = side;
  call.side_count = 2;
  call.side_x_hat = floats(rows * 2);
  for (rms = 0; rms < 2; ++rms) {
    const char* const name = rms ? "rmsnorm" : "layernorm";
    check(rms ? outgrad_rmsnorm_forward(&call) : outgrad_layernorm_forward(&call));
    check(rms ? outgrad_rmsnorm_backward(&call) : outgrad_layernorm_backward(&call));
    if (!rms) print_array(name, "_dbeta", OUTGRAD_F32, call.dbeta, n);
    print_array(name, "_y", format, call.y, rows * n);
    print_array(name, "_rstd", OUTGRAD_F32, call.rstd, rows);
    print_array(name, "_x_hat", OUTGRAD_F32, call.side_x_hat, rows * 2);
    print_array(name, "_dx", format, call.dx, rows * n);
    print_array(name, "_dgamma", OUTGRAD_F32, call.dgamma, n);
  }
}

/* The norms with y in 8 bits, in every store. */
static void norms_in_8_bits(int format, int64_t rows, int64_t n) {
  static const int32_t side[] = {1, 70};
  static const struct {
    const char* name;
    outgrad_store store;
  } stores[] = {{"norm_e4m3", OUTGRAD_STORE_E4M3},
                {"norm_mxfp8", OUTGRAD_STORE_MXFP8},
                {"norm_int8", OUTGRAD_STORE_INT8}};
  void* const x = elements(format, rows * n);
  float* const gamma = floats(n);
  int64_t i;
  size_t k;
  int rms;
  for (i = 0; i < rows * n; ++i) set_bits(format, x, i, moderate(format));
  for (i = 0; i < n; ++i) gamma[i] = i == 1 || i == 70 ? 0.0f : 0.5f + unit();
  for (k = 0; k < sizeof stores / sizeof *stores; ++k) {
    outgrad_call call = norm_call(format, stores[k].store, rows, n);
    call.x = call.dy = x;
    call.gamma = call.beta = gamma;
    call.side_channels = side;
    call.side_count = 2;
    call.side_x_hat = floats(rows * 2);
    for (rms = 0; rms < 2; ++rms) {
      check(rms ? outgrad_rmsnorm_forward(&call) : outgrad_layernorm_forward(&call));
      check(rms ? outgrad_rmsnorm_backward(&call) : outgrad_layernorm_backward(&call));
      print(stores[k].name, "_codes", format, hash_of_bytes(call.codes, call.codes_bytes));
      print_array(stores[k].name, "_dx", format, call.dx, rows * n);
      print_array(stores[k].name, "_dgamma", OUTGRAD_F32, call.dgamma, n);
    }
  }
}

/* The fused forms of GELU and of the norms. */
static void fused(int format, int64_t rows, int64_t n) {
  const int64_t size = rows * n;
  outgrad_call norm = norm_call(format, OUTGRAD_STORE_Y, rows, n), gelu;
  float* const bias = floats(n);
  int64_t i;
  draw(&norm, elements(format, size), elements(format, size));
  for (i = 0; i < n; ++i) bias[i] = unit() - 0.5f;
  norm.residual = norm.dy;
  norm.dz_next = norm.x;
  norm.beta = bias;
  norm.z = elements(format, size);
  norm.dz = norm.dx;
  gelu = norm;
  gelu.bias = bias;
  gelu.dbias = norm.dbeta;
  gelu.mask = allocate((size_t)(size + 31) / 32 * 4);
  check(outgrad_bias_gelu_sizes(&gelu));
  gelu.workspace = allocate(gelu.workspace_bytes);
  check(outgrad_bias_gelu_forward(&gelu));
  print_array("bias_gelu_y", "", format, gelu.y, size);
  print_array("bias_gelu_mask", "", OUTGRAD_F32, gelu.mask, (size + 31) / 32);
  check(outgrad_bias_gelu_backward(&gelu));
  print_array("bias_gelu_dx", "", format, gelu.dx, size);
  print_array("bias_gelu_dbias", "", OUTGRAD_F32, gelu.dbias, n);
  check(outgrad_residual_layernorm_forward(&norm));
  print_array("residual_layernorm_z", "", format, norm.z, size);
  print_array("residual_layernorm_y", "", format, norm.y, size);
  check(outgrad_residual_layernorm_backward(&norm));
  print_array("residual_layernorm_dz", "", format, norm.dz, size);
  check(outgrad_residual_rmsnorm_forward(&norm));
  print_array("residual_rmsnorm_y", "", format, norm.y, size);
  check(outgrad_residual_rmsnorm_backward(&norm));
  print_array("residual_rmsnorm_dz", "", format, norm.dz, size);
}

int main(void) {
  static const Few eight[] = {{"e4m3_at_a_scale", OUTGRAD_STORE_E4M3, 100.3f},
                              {"e5m2_at_a_scale", OUTGRAD_STORE_E5M2, 100.3f},
                              {"int8_at_a_scale", OUTGRAD_STORE_INT8, 100.3f}};
  static const Few four[] = {{"mxfp4", OUTGRAD_STORE_MXFP4, 1}, {"nvfp4", OUTGRAD_STORE_NVFP4, 100.3f}};
  int format;
  printf("version %s\n", outgrad_version());
  printf("instruction_set %s\n", outgrad_instruction_set());
  queries();
  for (format = OUTGRAD_F32; format <= OUTGRAD_BF16; ++format) {
    activations(format), release();
    mxfp8(format), release();
    codes(format), release();
    encoded(format), release();
    few_bits(format, eight, 3), release();
    few_bits(format, four, 2), release();
    gated(format, 37, 777), release();
    softmax(format, 37, 777), release();
    norms(format, 37, 777), release();
    fused(format, 37, 777), release();
    fused(format, 9, 256), release();
    norms(format, 3, 8), release();
    norms_in_8_bits(format, 37, 704), release();
  }
  return 0;
}
