// Ways to have one kernel for several instruction sets in one program, for bench_dispatch.cpp: GELU's backward in bf16 by its default fit,
// out[i] = dy[i] g(y[i], m[i]), mask bits as in kernels/host/elementwise.h; one thread, `out` equal for all of them.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::autotune {

// The portable body, multiversioned by the compiler: __attribute__((target_clones)).
void backward_by_clones(const kernels::BF16* dy, const kernels::BF16* y, const kernels::u32* mask, kernels::BF16* dx, kernels::i64 n);

// The same formulas in Google Highway's operations, which compiles them for its targets and chooses at run time.
void backward_by_highway(const kernels::BF16* dy, const kernels::BF16* y, const kernels::u32* mask, kernels::BF16* dx, kernels::i64 n);

// Which of them it has chosen.
const char* highway_target();

}  // namespace outgrad::autotune
