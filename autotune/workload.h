// The arrays that kernels are timed on: plausible activations, first touched by the threads that will use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "autotune/variant.h"

namespace outgrad::autotune {

// x is normal(0, 1), y and mask are GELU's of it, dy is uniform in [-1, 1), out is zero. The kernels branch on nothing but rare x, so
// the distribution of x is what matters. Enters OpenMP regions (see isolate.h). Throws std::bad_alloc.
inline constexpr kernels::i64 kWorkspacePeriod = 1 << 20;  // values repeat after so many elements: branch predictors were seen to learn 2^16 in part

struct Workspace {
  Workspace(FormatId format, kernels::i64 elements, bool with_x, bool with_dy_and_y, std::uint64_t seed);

  Arguments backward() const { return {dy.get(), y.get(), mask_words(), out.get(), elements}; }
  Arguments forward() const { return {x.get(), nullptr, mask_words(), out.get(), elements}; }
  kernels::u32* mask_words() const { return reinterpret_cast<kernels::u32*>(mask.get()); }

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Array = std::unique_ptr<std::byte, Free>;

  kernels::i64 elements;
  std::size_t bytes;  // of each array but the mask
  Array x, dy, y, out, mask;
};

}  // namespace outgrad::autotune
