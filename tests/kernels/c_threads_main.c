/* The library among threads and processes: threads with the smallest stacks start in a program that links it,
 * and a child that was forked after calls on several threads gets its parent's bits. Prints what fails. */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "outgrad.h"

enum { kElements = 1 << 18, kCols = 512, kRows = kElements / kCols };

static int failures = 0;

static void expect(int holds, const char* what) {
  if (!holds) printf("FAILED: %s\n", what), ++failures;
}

static void* nothing(void* argument) { return argument; }

static void small_stacks(void) {
  long least = sysconf(_SC_THREAD_STACK_MIN);
  if (least < 16 * 1024) least = 16 * 1024;
  for (long bytes = least; bytes <= 16 * least; bytes *= 2) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)bytes);
    const int status = pthread_create(&thread, &attributes, nothing, NULL);
    if (status != 0)
      printf("FAILED: a thread with a stack of %ld bytes: %s\n", bytes, strerror(status)), ++failures;
    if (status == 0) pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
  }
}

/* A call with all arrays, of a norm's shape. */
static outgrad_call allocate(void) {
  outgrad_call a = {sizeof a, .format = OUTGRAD_F32, .rows = kRows, .n = kCols, .eps = 1e-5f};
  const size_t bytes = kElements * sizeof(float);
  float* const x = malloc(bytes);
  for (int i = 0; i < kElements; ++i) x[i] = (float)((i * 7919) % 4001 - 2000) / 256;
  a.x = a.dy = x, a.y = calloc(1, bytes), a.dx = calloc(1, bytes);
  a.rstd = calloc(kRows, 4), a.dgamma = calloc(kCols, 4), a.mask = calloc(kElements / 32, 4);
  a.codes_bytes = kElements / 2, a.codes = calloc(1, a.codes_bytes);
  a.scales_bytes = kElements / 32, a.scales = calloc(1, a.scales_bytes);
  outgrad_call sizes = a;
  expect(outgrad_norm_sizes(&sizes) == OUTGRAD_OK, "a workspace's size");
  a.workspace_bytes = sizes.workspace_bytes, a.workspace = malloc(a.workspace_bytes);
  return a;
}

/* One hash of an activation, a norm and y in 4 bits, forward and backward. */
static uint64_t results(const outgrad_call* a) {
  static const float one = 1;
  outgrad_call gelu = *a, few = *a;
  gelu.n = few.n = kElements;
  few.activation = OUTGRAD_SILU, few.store = OUTGRAD_STORE_MXFP4, few.scale = &one;
  uint64_t hash = 14695981039346656037u;
#define ADD(array, count) \
  for (size_t i = 0; i < (count); ++i) hash = (hash ^ ((const unsigned char*)(array))[i]) * 1099511628211u
  expect(outgrad_activation_forward(&gelu) == OUTGRAD_OK, "a forward");
  expect(outgrad_activation_backward(&gelu) == OUTGRAD_OK, "a backward");
  ADD(a->y, kElements * sizeof(float));
  ADD(a->dx, kElements * sizeof(float));
  expect(outgrad_rmsnorm_forward(a) == OUTGRAD_OK, "a norm's forward");
  expect(outgrad_rmsnorm_backward(a) == OUTGRAD_OK, "a norm's backward");
  ADD(a->dx, kElements * sizeof(float));
  expect(outgrad_activation_forward(&few) == OUTGRAD_OK, "a forward in 4 bits");
  expect(outgrad_activation_backward(&few) == OUTGRAD_OK, "a backward in 4 bits");
  ADD(a->codes, kElements / 2);
  ADD(a->dx, kElements * sizeof(float));
  return hash;
}

/* `depth` children, each the next one's parent. */
static void children(const outgrad_call* a, uint64_t expected, int depth, const char* when) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60); /* a child that hangs dies */
    if (results(a) != expected) _exit(2);
    if (depth > 1) children(a, expected, depth - 1, when);
    _exit(failures > 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    printf("FAILED: a child %s %s\n", when, WTERMSIG(status) == SIGALRM ? "hangs" : "crashes"), ++failures;
  if (WIFEXITED(status) && WEXITSTATUS(status) > 2)
    printf("FAILED: a child %s ends with %d\n", when, WEXITSTATUS(status)), ++failures;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
    printf("FAILED: a child %s has other bits than its parent\n", when), ++failures;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
    printf("FAILED: a call in a child %s\n", when), ++failures;
}

static pthread_barrier_t barrier;

static void* caller(void* expected) {
  const outgrad_call own = allocate();
  expect(results(&own) == *(const uint64_t*)expected, "another thread's bits");
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  return NULL;
}

int main(void) {
  small_stacks();
  const outgrad_call a = allocate();
  outgrad_set_threads(1);
  const uint64_t expected = results(&a);
  outgrad_set_threads(4);
  expect(results(&a) == expected, "four threads' bits");
  children(&a, expected, 2, "after calls");
  expect(results(&a) == expected, "the parent's bits after a fork");
  pthread_t thread;
  uint64_t wanted = expected;
  pthread_barrier_init(&barrier, NULL, 2);
  expect(pthread_create(&thread, NULL, caller, &wanted) == 0, "a thread");
  pthread_barrier_wait(&barrier); /* it has called, and lives */
  children(&a, expected, 2, "beside a thread that has called");
  pthread_barrier_wait(&barrier);
  pthread_join(thread, NULL);
  small_stacks();
  return failures > 0;
}
