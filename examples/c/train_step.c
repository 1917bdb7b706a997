/* One training step of y = GELU(x) in C, through the compiled library: keep y and one bit an element, forget
 * x, compute the gradient, compare it with the one from x.
 *
 * Build:  cc -std=c99 train_step.c -o train_step $(pkg-config --cflags --libs outgrad) -lm
 * Exit status 0 if the gradients agree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <outgrad.h>

enum { kElements = 100003 };

static void require(outgrad_status status) {
  if (status != OUTGRAD_OK) {
    fprintf(stderr, "%s: %s\n", outgrad_status_name(status), outgrad_error_message());
    exit(2);
  }
}

int main(void) {
  float *const x = malloc(kElements * sizeof *x), *const y = malloc(kElements * sizeof *y),
               *const dx = malloc(kElements * sizeof *dx);
  uint32_t* const mask = malloc((kElements + 31) / 32 * sizeof *mask);
  double largest = 0;
  outgrad_call call = {sizeof call, .format = OUTGRAD_F32, .activation = OUTGRAD_GELU, .n = kElements};
  long i;
  if (!x || !y || !dx || !mask) return 3;
  for (i = 0; i < kElements; ++i) x[i] = -12.0f + 24.0f * (float)i / kElements;
  printf("outgrad %s, %s, fit %s, coefficients %.16s...\n", outgrad_version(), outgrad_instruction_set(),
         outgrad_fit_name(OUTGRAD_GELU, OUTGRAD_F32), outgrad_coefficients_sha256(OUTGRAD_GELU, OUTGRAD_F32));

  require(outgrad_set_threads(2));
  call.x = x;
  call.y = y;
  call.mask = mask;
  require(outgrad_activation_forward(&call));
  for (i = 0; i < kElements; ++i) dx[i] = 1.0f; /* the gradient of y; the gradient of x takes its place */
  call.dy = call.dx = dx;
  require(outgrad_activation_backward(&call));

  for (i = 0; i < kElements; ++i) {
    const double density = exp(-0.5 * x[i] * x[i]) / sqrt(2 * 3.14159265358979323846);
    const double error = fabs(dx[i] - (0.5 * erfc(-x[i] / sqrt(2.0)) + x[i] * density));
    if (error > largest) largest = error;
  }
  printf("largest error %.3g\n", largest);

  /* A mistake is a status and a message, and nothing is written. */
  call.mask = NULL;
  if (outgrad_activation_forward(&call) != OUTGRAD_ERROR_NULL_POINTER) return 1;
  printf("refused: %s\n", outgrad_error_message());
  free(x);
  free(y);
  free(dx);
  free(mask);
  /* The least that any function of a y stored in fp32 can reach is 3.9e-5, at GELU's minimum. */
  return largest < 4.1e-5 ? 0 : 1;
}
