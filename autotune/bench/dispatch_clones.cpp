// GELU's backward for bench_dispatch.cpp: the portable body, left to the compiler's vectoriser and its multiversioning.
#include "autotune/bench/dispatch.h"
#include "kernels/activation.h"
#include "kernels/fits.h"

namespace outgrad::autotune {

using kernels::BF16;
using kernels::i64;
using kernels::u32;

// The sets of kernels/c: AVX-512 F/BW/DQ/VL, AVX2 with FMA and F16C, baseline. The product dy g feeds no sum, and a plain one keeps the
// vectoriser's way free of mul_rn's barrier.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) void backward_by_clones(const BF16* dy, const BF16* y, const u32* mask, BF16* dx,
                                                                                                      i64 n) {
  using Fit = kernels::DefaultFit<BF16>::Type;
  static constexpr auto kTable = Fit::table();
  for (i64 i = 0; i < n; ++i) {
    const bool m = (mask[i / 32] >> (i % 32) & 1) != 0;
    dx[i] = kernels::narrow<BF16>(kernels::widen(dy[i]) * kernels::evaluate_backward(kernels::FloatOps{}, Fit{}, kTable, kernels::widen(y[i]), m));
  }
}

}  // namespace outgrad::autotune
