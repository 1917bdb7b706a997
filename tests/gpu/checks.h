// What outgrad-gpu compares with the host, a family of kernels and a format to a unit each (gelu_FORMAT.cu,
// norms_FORMAT.cu): 16 cores compile them side by side.
#pragma once

#include "tests/gpu/report.h"
#include "kernels/portable.h"

namespace outgrad::tests::gpu {

// Every bit pattern with both mask values, schedules beside the default over a prefix; reduced: the prefix
// alone.
template <class T>
void gelu_equality(Report& report, bool reduced);
// In place: the other activations' forwards, of f32 2^26 patterns, some of each binade; dropout of several
// probabilities. Reduced: fewer patterns of f32.
template <class T>
void forwards_equality(Report& report, bool reduced);
// In place, on the default stream.
template <class T>
void bias_equality(Report& report, kernels::i64 rows, kernels::i64 n);
template <class T>
void norm_equality(Report& report, kernels::i64 rows, kernels::i64 n);
// LayerNorm in bf16 by schedules beside the default.
void norm_schedules_equality(Report& report, kernels::i64 rows, kernels::i64 n);
// Norms whose y is kept in 8 bits, each store in another format. n is a multiple of 64, and rows are even.
void norm_stores_equality(Report& report, kernels::i64 rows, kernels::i64 n);
void norm_stores_streams(Report& report, kernels::i64 rows, kernels::i64 n);

// On a stream of its own and in a graph that is launched twice.
template <class T>
void gelu_streams(Report& report);
template <class T>
void bias_streams(Report& report, kernels::i64 rows, kernels::i64 n);
template <class T>
void norm_streams(Report& report, kernels::i64 rows, kernels::i64 n);

}  // namespace outgrad::tests::gpu
