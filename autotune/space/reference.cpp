// The scalar kernels that define the bits of the norms and of codes.
#include "autotune/space/variant.h"
#include "kernels/host/functions.h"

namespace outgrad::autotune {

VariantFunction fitless_reference(const Problem& problem) {
  return with_type(problem.format, [&]<class T>(T) {
    return kernels::with_kernel(problem.kernel, [](auto kernel) -> VariantFunction {
      constexpr KernelId kKernel = kernel();
      if constexpr (!kernels::has_fit(kKernel)) {
        return &kernels::run<kKernel, void, T, kReferenceSchedule>;
      } else {
        return nullptr;
      }
    });
  });
}

}  // namespace outgrad::autotune
