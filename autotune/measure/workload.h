// The arrays that kernels are timed on: plausible activations, first touched by the threads that will use
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "autotune/space/problem.h"

namespace outgrad::autotune {

// values repeat after so many elements: branch predictors were seen to learn 2^16 in part
inline constexpr kernels::i64 kWorkspacePeriod = 1 << 20;

struct FreeArray {
  void operator()(void* memory) const { std::free(memory); }
};
using Array = std::unique_ptr<std::byte, FreeArray>;

// An array of `count` elements. x is normal(0, 1), y, mask and codes (exact, of 4 bits) of a GELU are what
// our own forward makes of that x where the seed is the same, dy is uniform in [-1, 1), gamma of both signs
// and 0.5 to 1.5 in size, results are zero. The kernels branch on nothing but rare x, so the distribution of
// x is what matters. Enters OpenMP regions (see isolate.h). Throws std::bad_alloc.
Array filled(Content content, Element element, FormatId format, kernels::i64 count, std::uint64_t seed);

// The arrays of one problem, all operands present. The problem is sized.
class Workspace {
 public:
  Workspace(const Problem& problem, std::uint64_t seed);

  Arguments arguments() const;

 private:
  Problem problem_;
  std::vector<Array> arrays_;  // of the operands, in their order
};

}  // namespace outgrad::autotune
