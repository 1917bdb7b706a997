// The arrays of one call of a kernel, as every compiled variant takes them.
#pragma once

#include "kernels/portable.h"

namespace outgrad::autotune {

inline constexpr int kMostOperands = 10;  // of residual_layernorm_backward

// Pointers in the order of the kernel's operands (problem.h), null for an optional one that is absent; and the shape.
struct Arguments {
  void* array[kMostOperands] = {};
  kernels::i64 rows = 1, cols = 0;

  kernels::i64 elements() const { return rows * cols; }
  template <class T>
  T* at(int operand) const {
    return static_cast<T*>(array[operand]);
  }
};

using VariantFunction = void (*)(const Arguments&);

}  // namespace outgrad::autotune
